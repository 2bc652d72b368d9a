typedef int bti_empty_cpu_plan; /* filled by its own commit */
