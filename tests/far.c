typedef int bti_empty_far; /* filled by its own commit */
