typedef int bti_empty_cmd_translate; /* filled by its own commit */
