typedef int bti_empty_files; /* filled by its own commit */
