/* Scalars and pictures for TensorBoard: event files as it reads them, written without its libraries.
 *
 * An event file is a row of records: length (8 bytes), masked CRC-32C of the length, data, masked CRC-32C
 * of the data; the data is a protocol buffer of type Event. */
#ifndef DSVI_TENSORBOARD_H
#define DSVI_TENSORBOARD_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSV_TENSORBOARD_SCALARS_MOST = 32, DSV_TENSORBOARD_TAG_MOST = 63 };

typedef struct DsvScalar {
    const char *tag; /* at most DSV_TENSORBOARD_TAG_MOST bytes, "train/loss" */
    double value;    /* stored as F32; left out when it is not finite */
} DsvScalar;

typedef struct DsvTensorboard DsvTensorboard;

/* Starts a new event file in `folder` for the steps after `resume_step`; its first records tell
 * TensorBoard to forget what earlier files of the folder say about those. */
DsvStatus dsvi_tensorboard_open(const char *folder, int64_t resume_step, DsvTensorboard **out);
void dsvi_tensorboard_close(DsvTensorboard **tensorboard);

/* One record with all scalars of a step, handed to the system at once. Does not allocate. */
DsvStatus dsvi_tensorboard_step(DsvTensorboard *tensorboard, int64_t step, const DsvScalar *scalars,
                                size_t count);

/* A picture, animated or not, which TensorBoard hands to the browser as it is. */
typedef struct DsvImage {
    const char *tag; /* at most DSV_TENSORBOARD_TAG_MOST bytes, "samples/clip" */
    const void *png;
    size_t bytes;
    int64_t height, width;
} DsvImage;

/* One record with a picture, handed to the system at once. */
DsvStatus dsvi_tensorboard_image(DsvTensorboard *tensorboard, int64_t step, const DsvImage *image);

/* The file being written. */
const char *dsvi_tensorboard_path(const DsvTensorboard *tensorboard);

/* CRC-32C (Castagnoli) of some bytes. */
uint32_t dsvi_crc32c(const void *data, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
