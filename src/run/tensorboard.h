/* Writes event files for TensorBoard with scalars and pictures, without TensorFlow's libraries.
 *
 * An event file is a sequence of records: length (8 bytes), masked CRC-32C of the length, data, masked
 * CRC-32C of the data; the data is a protocol buffer of type Event. */
#ifndef DSVI_TENSORBOARD_H
#define DSVI_TENSORBOARD_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_TENSORBOARD_SCALARS_MAX = 32, DSVI_TENSORBOARD_TAG_MAX = 63 };

typedef struct DsviScalar {
    const char *tag; /* at most DSVI_TENSORBOARD_TAG_MAX bytes, "train/loss" */
    double value;    /* stored as F32; left out when it is not finite */
} DsviScalar;

typedef struct DsviTensorboard DsviTensorboard;

/* Creates a new event file in `folder` for the steps after `resume_step`. Its first records make TensorBoard
 * discard events of these steps in earlier files of the folder. */
DsvStatus dsvi_tensorboard_open(const char *folder, int64_t resume_step, DsviTensorboard **out);
void dsvi_tensorboard_close(DsviTensorboard **tensorboard);

/* Writes one record with all scalars of a step and flushes it to the operating system. Does not allocate. */
DsvStatus dsvi_tensorboard_step(DsviTensorboard *tensorboard, int64_t step, const DsviScalar *scalars,
                                size_t count);

/* A PNG picture, possibly animated. TensorBoard passes it to the browser unchanged. */
typedef struct DsviImage {
    const char *tag; /* at most DSVI_TENSORBOARD_TAG_MAX bytes, "samples/clip" */
    const void *png;
    size_t bytes;
    int64_t height, width;
} DsviImage;

/* Writes one record with a picture and flushes it to the operating system. */
DsvStatus dsvi_tensorboard_image(DsviTensorboard *tensorboard, int64_t step, const DsviImage *image);

/* Returns the path of the file being written; valid until the file is closed. */
const char *dsvi_tensorboard_path(const DsviTensorboard *tensorboard);

/* Returns the CRC-32C (Castagnoli) of the bytes. */
uint32_t dsvi_crc32c(const void *data, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
