typedef int bti_empty_translator; /* filled by its own commit */
