typedef int bti_empty_checkpoint; /* filled by its own commit */
