typedef int bti_empty_sentencepiece; /* filled by its own commit */
