typedef int bti_empty_cmd_train; /* filled by its own commit */
