typedef int bti_empty_embedding; /* filled by its own commit */
