typedef int bti_empty_optimizer; /* filled by its own commit */
