typedef int bti_empty_cmd_devices; /* filled by its own commit */
