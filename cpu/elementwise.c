typedef int bti_empty_elementwise; /* filled by its own commit */
