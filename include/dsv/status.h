/** @file
 * Status codes, and the sentence that says what went wrong.
 *
 * Every function that can fail returns a DsvStatus. After anything but `DSV_OK`, the thread that made the
 * call can read one sentence (what was found, what was expected, in which file, option or tensor) and the
 * list of source positions through which the failure passed. The library never prints and never exits. */
#ifndef DSV_STATUS_H
#define DSV_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/** All status codes. Calls `X(name, value, text)` once for each, where `text` is the short text that
 * dsv_status_text() returns. */
#define DSV_STATUS_LIST(X)                                     \
    X(OK, 0, "no error")                                       \
    X(E_USAGE, 1, "wrong option, key or argument")             \
    X(E_NOT_FOUND, 2, "no such file, folder or tensor")        \
    X(E_FORMAT, 3, "malformed or hostile file")                \
    X(E_SHAPE, 4, "tensor shapes or types do not fit")         \
    X(E_IO, 5, "reading or writing failed")                    \
    X(E_NO_MEMORY, 6, "out of memory")                         \
    X(E_UNSUPPORTED, 7, "not available in this build or case") \
    X(E_DIVERGED, 8, "loss or gradients are not finite")       \
    X(E_INTERRUPTED, 9, "stopped on request")                  \
    X(E_INTERNAL, 10, "a broken promise inside dsv")           \
    X(E_DEVICE, 11, "the device failed")                       \
    X(E_RANK, 12, "another rank failed or does not answer")

/** The outcome of a call. The numbers are stable between versions.
 *
 * | value | constant            | meaning |
 * |-------|---------------------|---------|
 * | 0     | `DSV_OK`            | success |
 * | 1     | `DSV_E_USAGE`       | wrong option, key or argument |
 * | 2     | `DSV_E_NOT_FOUND`   | no such file, folder or tensor |
 * | 3     | `DSV_E_FORMAT`      | malformed or hostile file |
 * | 4     | `DSV_E_SHAPE`       | tensor shapes or types do not fit |
 * | 5     | `DSV_E_IO`          | reading or writing failed |
 * | 6     | `DSV_E_NO_MEMORY`   | not enough memory on the host or the device |
 * | 7     | `DSV_E_UNSUPPORTED` | not available in this build, on this machine or for these shapes |
 * | 8     | `DSV_E_DIVERGED`    | the loss, gradients or results are not finite |
 * | 9     | `DSV_E_INTERRUPTED` | stopped because DsvEvents::stop returned true |
 * | 10    | `DSV_E_INTERNAL`    | a bug in dsv |
 * | 11    | `DSV_E_DEVICE`      | the device or its driver failed |
 * | 12    | `DSV_E_RANK`        | another rank failed or does not answer | */
typedef enum DsvStatus {
/** @cond */
#define DSV_STATUS_ENUM(name, value, text) DSV_##name = value,
    DSV_STATUS_LIST(DSV_STATUS_ENUM)
#undef DSV_STATUS_ENUM
    /** @endcond */
} DsvStatus;

/** Returns the short text of a status code.
 * @param status any value, known or not
 * @return a static string, never NULL */
const char *dsv_status_text(DsvStatus status);

/** Returns the sentence that describes the last failure of the calling thread.
 * @return the sentence without a full stop or newline at its end; "" if no call of this thread has failed.
 *     The library owns it; it is valid until the next failing call of this thread. */
const char *dsv_error_message(void);

/** Returns the source positions through which the last failure of the calling thread passed.
 * @return one "file:line" a line, innermost first; "" if no call of this thread has failed. The library
 *     owns it; it is valid until the next failing call of this thread. */
const char *dsv_error_trail(void);

#ifdef __cplusplus
}
#endif
#endif
