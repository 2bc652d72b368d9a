typedef int bti_empty_ops; /* filled by its own commit */
