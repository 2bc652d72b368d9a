typedef int bti_empty_attention; /* filled by its own commit */
