typedef int bti_empty_params; /* filled by its own commit */
