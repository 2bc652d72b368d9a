typedef int bti_empty_norm; /* filled by its own commit */
