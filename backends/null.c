typedef int bti_empty_null; /* filled by its own commit */
