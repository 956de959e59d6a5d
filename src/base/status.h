/* Raising and forwarding errors inside the library. The public part is include/dsv/status.h.
 *
 * The function that detects an error records one sentence about it and returns its status:
 *     return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s has %d dimensions, wanted 2", path, name, ndim);
 * Callers forward the status with DSVI_TRY, or with DSVI_TRY_GOTO if something must be released first. The
 * trail is the list of source lines through which an error passed. */
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

/* Records the sentence for the calling thread, starts a new trail at (file, line) and returns `status`. */
DsvStatus dsvi_fail_at(const char *file, int line, DsvStatus status, const char *format, ...)
    DSVI_PRINTF(4, 5);

/* Adds (file, line) to the calling thread's trail. */
void dsvi_trail_add(const char *file, int line);

/* Puts "prefix: " before the recorded sentence: for callers that know the file or key of which a lower layer
 * does not know. Returns `status` unchanged. */
DsvStatus dsvi_fail_prefix(DsvStatus status, const char *format, ...) DSVI_PRINTF(2, 3);

/* A thread's record of its last failure. A plugin (libdsv_cuda.so, libdsv_mpi.so) contains a copy of status.c
 * and with it separate records; dsvi_status_use_records_of, called once after loading, makes the plugin use
 * the records of the library that loaded it. */
enum { DSVI_MESSAGE_BYTES = 2048, DSVI_TRAIL_BYTES = 1024 };
typedef struct DsviStatusRecord {
    char message[DSVI_MESSAGE_BYTES];
    char trail[DSVI_TRAIL_BYTES];
} DsviStatusRecord;
typedef DsviStatusRecord *DsviStatusRecordOfThread(void);
DsviStatusRecordOfThread dsvi_status_record; /* returns the calling thread's record of its last failure */
void dsvi_status_use_records_of(DsviStatusRecordOfThread *record_of_thread);

/* Copies the sentence `text` of another thread's failure into the calling thread's record, with an empty
 * trail. Returns `status`. */
DsvStatus dsvi_fail_adopt(DsvStatus status, const char *text);

#ifdef __clang_analyzer__ /* the analyzer reads one file only, and must see that a failure is not DSV_OK */
#define DSVI_FAIL(status, ...) (dsvi_fail_at(__FILE__, __LINE__, (status), __VA_ARGS__), (status))
#else
#define DSVI_FAIL(status, ...) dsvi_fail_at(__FILE__, __LINE__, (status), __VA_ARGS__)
#endif

#define DSVI_TRY(call)                          \
    do {                                        \
        DsvStatus dsvi_try_status = (call);     \
        if (dsvi_try_status != DSV_OK) {        \
            dsvi_trail_add(__FILE__, __LINE__); \
            return dsvi_try_status;             \
        }                                       \
    } while (0)

/* As DSVI_TRY, but stores the status in `status_var` and jumps to `label`. */
#define DSVI_TRY_GOTO(status_var, call, label)  \
    do {                                        \
        (status_var) = (call);                  \
        if ((status_var) != DSV_OK) {           \
            dsvi_trail_add(__FILE__, __LINE__); \
            goto label;                         \
        }                                       \
    } while (0)

/* Prints the source line and aborts if the condition is false: a bug in dsv. Active in release builds too. */
#define DSVI_ASSERT(condition) ((condition) ? (void)0 : dsvi_assert_failed(__FILE__, __LINE__, #condition))
#if defined(__GNUC__)
__attribute__((noreturn))
#endif
void dsvi_assert_failed(const char *file, int line, const char *condition);

#ifdef __cplusplus
}
#endif
#endif
