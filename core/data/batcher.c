typedef int bti_empty_batcher; /* filled by its own commit */
