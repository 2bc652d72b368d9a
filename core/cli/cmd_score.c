typedef int bti_empty_cmd_score; /* filled by its own commit */
