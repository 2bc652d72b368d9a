typedef int bti_empty_loss; /* filled by its own commit */
