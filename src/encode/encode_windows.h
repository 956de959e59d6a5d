/* Encodes windows of clips into a latent cache: threads decode windows ahead and write latents, while the
 * calling thread encodes one window after another. */
#ifndef DSVI_ENCODE_WINDOWS_H
#define DSVI_ENCODE_WINDOWS_H

#include "data/latent_cache.h"
#include "dsv/events.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What converts the pixels of a window to its latent. */
typedef struct DsviWindowEncoder {
    void *context;
    /* Encodes the pixels of a window of size number `size`, host F32 in [-1, 1], to a latent, host F32. */
    DsvStatus (*encode)(void *context, int64_t size, const float *pixels, float *latent);
    bool parallel;  /* several threads may call encode at once: the threads that decode call it. Otherwise
                       only the thread that called dsvi_encode_windows calls it. */
    bool pictures;  /* a window's pixels are followed by the picture with which it begins, (3, height, width):
                       that of its source, or its first frame */
    int64_t states; /* numbers that follow a latent: states of the window's pictures */
    int64_t pixels; /* number of pixels' elements of the largest window, and of its picture */
    const int64_t (*shapes)[4]; /* (size_count) of a latent: channels, frames, height, width */
    int64_t size_count;
    /* Returns the seconds that the device has worked in all calls of `encode` so far. NULL: the device works
     * as long as the calls take. */
    double (*worked)(void *context);
} DsviWindowEncoder;

/* A window that is to be encoded. */
typedef struct DsviEncodeWindow {
    const DsviLatentSource *source;
    DsviClipWindow window;
    int64_t size; /* number of its size */
} DsviEncodeWindow;

typedef enum DsviWindowOutcome {
    DSVI_WINDOW_ENCODED,
    DSVI_WINDOW_KEPT,      /* the cache had it already */
    DSVI_WINDOW_UNREADABLE /* its clip cannot be read there */
} DsviWindowOutcome;

typedef struct DsviEncodeWindowsArgs {
    DsviLatentCache *cache;
    const DsviEncodeWindow *windows; /* (count) */
    int64_t count;
    const DsviWindowEncoder *encoder;
    int threads;   /* that decode and write; at least 1 */
    int64_t ahead; /* number of windows whose pixels are in memory at once, at least 1. More than `threads`
                      are of use only if the encoder is not parallel */
    /* Called once for each window, in order, by the calling thread. `message` says why a window is
     * unreadable. */
    void (*outcome)(void *context, int64_t window, DsviWindowOutcome outcome, const char *message);
    void *context;
    const DsvEvents *events; /* `progress` after each window, in order; `stop` is asked then, too */
} DsviEncodeWindowsArgs;

/* How long the call took, and how much of that time the device worked. */
typedef struct DsviEncodeTimes {
    int64_t encoded; /* windows */
    double seconds;  /* from the first window that was read until all were written */
    double busy; /* seconds in which the device worked: as encoder->worked tells, otherwise those in which a
                    call of `encode` ran; for a parallel encoder: sum over the threads */
} DsviEncodeTimes;

/* Encodes all windows that the cache does not have. A window that is read or encoded when the call ends early
 * is lost; one that is encoded is still written. The index is written every ten seconds, by a thread that
 * decodes, and at the end.
 * Fails with DSV_E_INTERRUPTED after `stop`, and with the failure of the encoder or of writing to the cache.
 * *times is set in any case. */
DsvStatus dsvi_encode_windows(const DsviEncodeWindowsArgs *args, DsviEncodeTimes *times);

#ifdef __cplusplus
}
#endif
#endif
