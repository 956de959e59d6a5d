/* Raising and forwarding errors inside the library (include/dsv/status.h is what users see).
 *
 * A function that finds something wrong says so once, with a whole sentence, and returns:
 *     return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s has %d dimensions, wanted 2", path, name, ndim);
 * Callers forward with DSVI_TRY, or DSVI_TRY_GOTO once they hold anything that must be released. */
#ifndef DSVI_STATUS_H
#define DSVI_STATUS_H

#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DSVI_PRINTF(format_arg, first_arg) __attribute__((format(printf, format_arg, first_arg)))
#else
#define DSVI_PRINTF(format_arg, first_arg)
#endif

/* Records the sentence, starts a new trail at (file, line) and returns `status`. */
DsvStatus dsvi_fail_at(const char *file, int line, DsvStatus status, const char *format, ...)
    DSVI_PRINTF(4, 5);

/* Adds (file, line) to the trail. */
void dsvi_trail_add(const char *file, int line);

/* Puts "prefix: " before the recorded sentence: for callers that know the file or key a lower layer
 * could not know. Returns `status` unchanged. */
DsvStatus dsvi_fail_within(DsvStatus status, const char *format, ...) DSVI_PRINTF(2, 3);

/* The calling thread's record of its last failure. A shared library that holds a copy of status.c has
 * records of its own until it is told, once, to use those of the library that loaded it. */
enum { DSVI_MESSAGE_BYTES = 2048, DSVI_TRAIL_BYTES = 1024 };
typedef struct DsvStatusRecord {
    char message[DSVI_MESSAGE_BYTES];
    char trail[DSVI_TRAIL_BYTES];
} DsvStatusRecord;
typedef DsvStatusRecord *DsvStatusRecordOfThread(void);
DsvStatusRecordOfThread dsvi_status_record;
void dsvi_status_share(DsvStatusRecordOfThread *record_of_thread);

/* Makes a failure recorded by another thread this thread's own; its sentence is copied. */
DsvStatus dsvi_fail_adopt(DsvStatus status, const char *text);

#define DSVI_FAIL(status, ...) dsvi_fail_at(__FILE__, __LINE__, (status), __VA_ARGS__)

#define DSVI_TRY(call)                            \
    do {                                          \
        DsvStatus dsvi_try_status = (call);       \
        if (dsvi_try_status != DSV_OK) {          \
            dsvi_trail_add(__FILE__, __LINE__);   \
            return dsvi_try_status;               \
        }                                         \
    } while (0)

/* As DSVI_TRY, but stores the status in `status_var` and jumps to `label`. */
#define DSVI_TRY_GOTO(status_var, call, label)    \
    do {                                          \
        (status_var) = (call);                    \
        if ((status_var) != DSV_OK) {             \
            dsvi_trail_add(__FILE__, __LINE__);   \
            goto label;                           \
        }                                         \
    } while (0)

/* A broken promise between two pieces of dsv itself: says where and aborts, in release builds too. */
#define DSVI_ASSERT(condition) \
    ((condition) ? (void)0 : dsvi_assert_failed(__FILE__, __LINE__, #condition))
#if defined(__GNUC__)
__attribute__((noreturn))
#endif
void dsvi_assert_failed(const char *file, int line, const char *condition);

#ifdef __cplusplus
}
#endif
#endif
