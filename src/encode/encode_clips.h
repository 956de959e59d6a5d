/* The clips that are encoded: their contents, their windows, and the list of what became of each of them. */
#ifndef DSVI_ENCODE_CLIPS_H
#define DSVI_ENCODE_CLIPS_H

#include "data/dataset.h"
#include "encode/encode_windows.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviEncodeClip {
    int64_t copy_of;      /* an earlier clip with the same contents, which is encoded for both; -1: none */
    int64_t frames, used; /* at the frame rate of the windows: frames, and those in windows */
    int64_t windows;      /* in all; a window is counted by one of the following once its outcome is known */
    int64_t encoded, kept, unreadable;
    char *reason; /* why its first unreadable window is unreadable, or NULL */
} DsviEncodeClip;

/* All bytes 0: none. */
typedef struct DsviEncodeClips {
    const DsviDataset *dataset; /* without duplicates (dsvi_dataset_deduplicate) */
    const DsvConfig *config;
    int64_t count;
    DsviEncodeClip *at;        /* (count) */
    DsviLatentSource *sources; /* (count) */
    DsviEncodeWindow *windows; /* (window_count), those of copies left out */
    int64_t *clip_of;          /* (window_count) clip of each window */
    int64_t window_count;
} DsviEncodeClips;

/* Lists the clips of `dataset`, with their stamps and captions, and with `pictures` the pictures with which
 * they begin. *out refers to data set and options, which must outlive it. The caller frees *out with
 * dsvi_encode_clips_free, also after a failure. */
DsvStatus dsvi_encode_clips_list(const DsviDataset *dataset, const DsvConfig *config, bool pictures,
                                 DsviEncodeClips *out);
void dsvi_encode_clips_free(DsviEncodeClips *clips);

/* Finds the contents of all clips: from the cache if it knows a clip with the same stamp, else by reading the
 * clip. What was read is kept in the cache's folder, also after DSV_E_INTERRUPTED and after the end of the
 * process. A clip that cannot be read keeps unknown contents. */
DsvStatus dsvi_encode_clips_hash(DsviEncodeClips *clips, const DsviLatentCache *cache,
                                 const DsvEvents *events);

/* Lists the windows that data.windows takes from each clip, one at least, cropped in the middle. Needs the
 * contents, because the windows of copies are left out. */
DsvStatus dsvi_encode_clips_windows(DsviEncodeClips *clips);

/* Counts the outcome of window `window`. */
void dsvi_encode_clips_outcome(DsviEncodeClips *clips, int64_t window, DsviWindowOutcome outcome,
                               const char *message);

/* Writes a CSV file with a row for each clip that the data set has found, used or left out. */
DsvStatus dsvi_encode_clips_write(const DsviEncodeClips *clips, const char *path);

/* Counts the clips that are shorter than their window, so that their last frame is repeated. *first: the
 * first of them, if there is one. */
int64_t dsvi_encode_clips_shorter(const DsviEncodeClips *clips, const char **first);

/* Writes one line about the sums to `text`. */
void dsvi_encode_clips_summary(const DsviEncodeClips *clips, char *text, size_t room);

#ifdef __cplusplus
}
#endif
#endif
