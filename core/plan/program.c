typedef int bti_empty_program; /* filled by its own commit */
