typedef int bti_empty_compose; /* filled by its own commit */
