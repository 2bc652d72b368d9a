typedef int bti_empty_reader; /* filled by its own commit */
