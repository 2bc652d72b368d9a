typedef int bti_empty_dispatch; /* filled by its own commit */
