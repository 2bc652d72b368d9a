typedef int bti_empty_tokenizer; /* filled by its own commit */
