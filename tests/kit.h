/* What all suites share: one main, temporary folders, skips that are printed and counted. */
#ifndef BANTAM_TESTS_KIT_H
#define BANTAM_TESTS_KIT_H

#include <check.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"

/* Runs a suite without forking (devices and threads do not survive a fork), prints its time and its
 * skips, returns the exit status. argv[1] is the backend where the suite has one. */
int kit_main(const char *name, void (*add)(TCase *tc), int argc, char **argv);

/* "ref", "cpu", "far": argv[1]; "ref" without one. */
const char *kit_backend(void);

/* Says why a test does not run; counted in the closing line. */
void kit_skip(const char *fmt, ...) BTI_PRINTF(1, 2);

/* From here on the program's numbers have a decimal comma, until kit_comma_end. 0: there is no such
 * locale, which is skipped and counted. One that is installed, else one that localedef makes. */
int kit_comma_begin(void);
void kit_comma_end(void);

/* A new empty folder, removed when the suite ends. Strings are the kit's, valid to the end. */
const char *kit_tmpdir(void);
/* printf into a string that lives to the end of the suite; for paths. */
const char *kit_str(const char *fmt, ...) BTI_PRINTF(1, 2);
/* Full path of a file in tests/; of one in ../shared, NULL when that is absent. */
const char *kit_data(const char *relative);
const char *kit_shared(const char *relative);
void kit_write(const char *path, const void *data, size_t bytes);
void kit_write_text(const char *path, const char *text);
char *kit_read(const char *path, size_t *bytes); /* malloc; fails the test when missing */
/* Elements close in order and attributes are in quotes, as any XML parser asks; scripts and style
 * sheets are passed over, and so are HTML's <meta> and <!DOCTYPE>. */
void kit_tags(const char *text);

/* The call must give BT_OK; prints the last error when not. */
#define kit_ok(expr) \
    do { \
        bt_status kit_s_ = (expr); \
        ck_assert_msg(kit_s_ == BT_OK, "%s: %s: %s", #expr, bt_status_text(kit_s_), \
                      bt_last_error()); \
    } while (0)
/* The call must give this status, and a last error that contains `part`. */
#define kit_fails(expr, status, part) \
    do { \
        bt_status kit_s_ = (expr); \
        ck_assert_msg(kit_s_ == (status), "%s gave %s (%s)", #expr, bt_status_text(kit_s_), \
                      bt_last_error()); \
        ck_assert_msg(strstr(bt_last_error(), part) != NULL, "\"%s\" lacks \"%s\"", \
                      bt_last_error(), part); \
    } while (0)
/* Runs `call` with each request for memory failing in turn, until that lies behind its last one:
 * BT_ENOMEM every time, and at least `least` times. */
#define kit_walk(call, least) \
    do { \
        uint64_t kit_n_ = 0; \
        bt_status kit_s_; \
        do { \
            bti_alloc_fail_at(++kit_n_); \
            kit_s_ = (call); \
            bti_alloc_fail_at(0); \
            ck_assert_msg(kit_s_ == BT_OK || kit_s_ == BT_ENOMEM, "%s, request %d: %s", #call, \
                          (int)kit_n_, bt_last_error()); \
        } while (kit_s_ != BT_OK && kit_n_ < 20000); \
        ck_assert_msg(kit_s_ == BT_OK && kit_n_ > (least), "%s: %d requests failed", #call, \
                      (int)kit_n_ - 1); \
    } while (0)
/* |a - b| <= tol, false for NaN. */
#define kit_near(a, b, tol) \
    do { \
        double kit_a_ = (a), kit_b_ = (b), kit_t_ = (tol); \
        ck_assert_msg(fabs(kit_a_ - kit_b_) <= kit_t_, "%s = %.17g, %s = %.17g, off by %g > %g", \
                      #a, kit_a_, #b, kit_b_, fabs(kit_a_ - kit_b_), kit_t_); \
    } while (0)

#endif
