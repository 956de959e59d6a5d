/* What a call of libdsv came to, and the sentence that tells a person why.
 *
 * Every fallible function returns a DsvStatus. On anything but DSV_OK the thread that made the call
 * can read one sentence (what was found, what was wanted, in which file, key or tensor) and the
 * trail of source lines the failure passed on its way up. Nothing in the library prints or exits. */
#ifndef DSV_STATUS_H
#define DSV_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, short text) */
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

typedef enum DsvStatus {
#define DSV_STATUS_ENUM(name, value, text) DSV_##name = value,
    DSV_STATUS_LIST(DSV_STATUS_ENUM)
#undef DSV_STATUS_ENUM
} DsvStatus;

/* The short text of a status; never NULL. */
const char *dsv_status_text(DsvStatus status);

/* The sentence of this thread's last failure, without a full stop or newline at its end; "" if there
 * was none. Owned by the library, valid until the thread's next failing call. */
const char *dsv_error_message(void);

/* The source positions the last failure passed, innermost first, one "file:line" a line; "" if none.
 * Same lifetime as dsv_error_message. */
const char *dsv_error_trail(void);

#ifdef __cplusplus
}
#endif
#endif
