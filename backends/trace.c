typedef int bti_empty_trace; /* filled by its own commit */
