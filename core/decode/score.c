typedef int bti_empty_score; /* filled by its own commit */
