typedef int bti_empty_run_file; /* filled by its own commit */
