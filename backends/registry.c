typedef int bti_empty_registry; /* filled by its own commit */
