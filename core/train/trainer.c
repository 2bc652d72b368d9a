typedef int bti_empty_trainer; /* filled by its own commit */
