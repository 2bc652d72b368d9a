/* The awkward device, for tests only: see far.c. */
#ifndef BANTAM_TESTS_FAR_H
#define BANTAM_TESTS_FAR_H

/* Makes "far" a backend of this process. May be called again. */
void far_register(void);

#endif
