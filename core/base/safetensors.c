typedef int bti_empty_safetensors; /* filled by its own commit */
