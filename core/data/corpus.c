typedef int bti_empty_corpus; /* filled by its own commit */
