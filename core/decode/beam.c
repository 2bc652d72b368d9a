typedef int bti_empty_beam; /* filled by its own commit */
