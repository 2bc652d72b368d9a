typedef int bti_empty_layout; /* filled by its own commit */
