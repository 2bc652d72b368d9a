typedef int bti_empty_ref; /* filled by its own commit */
