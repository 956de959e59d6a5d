/* Included by every C test: cmocka, comparisons that fail on NaN, and paths of test files outside the
 * repository. */
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

#define SKIPPED 77 /* exit status that makes ctest report a test as skipped */

/* 1 in builds with a sanitizer, which run five to ten times slower. Such builds skip cases that only repeat
 * the same code with other numbers. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TEST_SANITIZED = 1 };
#else
enum { TEST_SANITIZED = 0 };
#endif

/* Fails the test unless `call` returns DSV_OK; prints the library's error message. */
#define assert_ok(call)                                                                               \
    do {                                                                                              \
        DsvStatus assert_ok_status = (call);                                                          \
        if (assert_ok_status != DSV_OK)                                                               \
            fail_msg("%s: %s: %s\n%s", #call, dsv_status_text(assert_ok_status), dsv_error_message(), \
                     dsv_error_trail());                                                              \
    } while (0)

/* Fails the test unless `call` returns `status` and the library's error message contains `words`. */
#define assert_fails(status, words, call)                                                     \
    do {                                                                                      \
        DsvStatus assert_fails_status = (call);                                               \
        if (assert_fails_status != (status))                                                  \
            fail_msg("%s: %s (%s), expected %s", #call, dsv_status_text(assert_fails_status), \
                     dsv_error_message(), dsv_status_text(status));                           \
        if (!strstr(dsv_error_message(), (words)))                                            \
            fail_msg("%s: message lacks '%s': %s", #call, (words), dsv_error_message());      \
    } while (0)

/* Returns |a - b| / |b| (L2 norms) over n elements of any floating-point dtypes; |a - b| if b is all zero;
 * infinity if any element is NaN. Infinities of the same sign count as equal. */
static inline double relative_l2(DsviDtype a_dtype, const void *a, DsviDtype b_dtype, const void *b,
                                 int64_t n)
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
#define assert_error_below(error, bound, ...)                                      \
    do {                                                                           \
        double assert_error = (error);                                             \
        if (!(assert_error <= (bound))) {                                          \
            print_error(__VA_ARGS__);                                              \
            fail_msg(": error %.3g, allowed %.3g", assert_error, (double)(bound)); \
        }                                                                          \
    } while (0)

/* True when the environment variable DSV_TEST_SMALL is set. Tests then run the same kernels in the same
 * cases, but without repetitions, with one kind of input values and with shorter sequences. Meant for tools
 * such as compute-sanitizer, which slow a test down a hundred times. */
static inline bool test_small(void)
{
    return getenv("DSV_TEST_SMALL") != NULL;
}

/* Returns the path of a test file that is too large for the repository, such as a real clip. CMake sets the
 * folder (DSV_SHARED_DIR). The four most recently returned paths stay valid. */
static inline const char *shared_path(const char *relative)
{
    static char path[4][1024];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", DSV_SHARED_DIR, relative);
    return out;
}

/* Exits with status SKIPPED and a message if the file `relative` of the folder DSV_SHARED_DIR is absent. For
 * test programs that need this file for all of their tests. */
static inline void skip_without_shared(const char *relative)
{
    FILE *file = fopen(shared_path(relative), "rb");
    if (file) {
        fclose(file);
        return;
    }
    printf("SKIPPED: %s is absent\n", shared_path(relative));
    exit(SKIPPED);
}

#endif
