typedef int bti_empty_blas; /* filled by its own commit */
