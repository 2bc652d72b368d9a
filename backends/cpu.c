typedef int bti_empty_cpu; /* filled by its own commit */
