typedef int bti_empty_options; /* filled by its own commit */
