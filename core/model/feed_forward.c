typedef int bti_empty_feed_forward; /* filled by its own commit */
