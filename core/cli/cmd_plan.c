typedef int bti_empty_cmd_plan; /* filled by its own commit */
