typedef int bti_empty_model; /* filled by its own commit */
