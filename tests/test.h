/* What every test file starts from: cmocka, comparisons that NaN cannot pass, and the golden files. */
#ifndef DSVI_TEST_H
#define DSVI_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/status.h"

#define SKIPPED 77 /* exit status by which ctest shows a test as skipped */

/* Under sanitizers, which take five to ten times as long, what runs the same code again with other numbers is
 * left out. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TEST_SANITIZED = 1 };
#else
enum { TEST_SANITIZED = 0 };
#endif

/* Fails with the library's sentence. */
#define assert_ok(call)                                                                       \
    do {                                                                                      \
        DsvStatus assert_ok_status = (call);                                                  \
        if (assert_ok_status != DSV_OK)                                                       \
            fail_msg("%s: %s: %s\n%s", #call, dsv_status_text(assert_ok_status),              \
                     dsv_error_message(), dsv_error_trail());                                 \
    } while (0)

/* The call fails with this status and its sentence contains `words`. */
#define assert_fails(status, words, call)                                                     \
    do {                                                                                      \
        DsvStatus assert_fails_status = (call);                                               \
        if (assert_fails_status != (status))                                                  \
            fail_msg("%s: %s (%s), wanted %s", #call, dsv_status_text(assert_fails_status),   \
                     dsv_error_message(), dsv_status_text(status));                           \
        if (!strstr(dsv_error_message(), (words)))                                            \
            fail_msg("%s: message lacks '%s': %s", #call, (words), dsv_error_message());      \
    } while (0)

/* |a - b| / |b| over n elements of any floating dtypes; infinite when anything is NaN. -inf equals -inf. */
static inline double relative_l2(DsvDtype a_dtype, const void *a, DsvDtype b_dtype, const void *b, int64_t n)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = dsvi_load(a_dtype, a, i), y = dsvi_load(b_dtype, b, i);
        if (x == y)
            x = y = isinf(y) ? 0 : y;
        difference += (x - y) * (x - y);
        norm += y * y;
    }
    if (!(difference >= 0))
        return INFINITY;
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

/* Fails unless error <= bound; written so that NaN fails. */
#define assert_error_below(error, bound, ...)                                 \
    do {                                                                      \
        double assert_error = (error);                                        \
        if (!(assert_error <= (bound))) {                                     \
            print_error(__VA_ARGS__);                                         \
            fail_msg(": error %.3g, allowed %.3g", assert_error, (double)(bound)); \
        }                                                                     \
    } while (0)

/* Whether repetition is left out: the same kernels in the same cases, but fewer times, over other numbers no
 * more, and with shorter sequences. For tools under which all takes a hundred times as long. */
static inline bool test_small(void)
{
    return getenv("DSV_TEST_SMALL") != NULL;
}

/* Path of a golden file; its folder is set by CMake (DSV_SHARED_DIR). */
static inline const char *shared_path(const char *relative)
{
    static char path[4][1024];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", DSV_SHARED_DIR, relative);
    return out;
}

/* For tests made of nothing but golden files: leaves the program, loudly, where they are absent. */
static inline void skip_without_shared(const char *relative)
{
    FILE *file = fopen(shared_path(relative), "rb");
    if (file) {
        fclose(file);
        return;
    }
    printf("SKIPPED: golden files are not there: %s\n", shared_path(relative));
    exit(SKIPPED);
}

#endif
