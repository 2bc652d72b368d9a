typedef int bti_empty_output; /* filled by its own commit */
