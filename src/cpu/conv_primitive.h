/* oneDNN primitives for the convolution, created once for each shape and cached.
 *
 * A primitive computes one row of y on one thread, from the rows of x that this row of y depends on. The
 * caller has gathered these rows, in the order of rows, then frames, with the zeros of the padding written
 * out: x (kernel[1], kernel[0], columns, I)     columns = (W' - 1) stride[2] + kernel[2] y (W', O) The number
 * of frames and rows of the video is no part of the key, so the bits of a row of y cannot depend on these
 * numbers. */
#ifndef DSVI_CONV_PRIMITIVE_H
#define DSVI_CONV_PRIMITIVE_H

#include "cpu/onednn_engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The key under which a primitive is cached. All fields have the same width, so that keys have no padding and
 * are compared as bytes. */
typedef struct DsviConvKey {
    int64_t out_width, channels, out_channels;
    int64_t kernel[3], stride_width;
    int64_t dtype; /* of x, weight and y: F32 or BF16 */
    int64_t bias, accumulate;
} DsviConvKey;

typedef struct DsviConvPrimitive {
    DsviConvKey key;
    dnnl_primitive_t conv;
    dnnl_primitive_t pack; /* NULL: the weight is used as given */
    dnnl_memory_desc_t x, weight, packed, bias, y, scratchpad;
    size_t packed_bytes, scratchpad_bytes;
} DsviConvPrimitive;

typedef struct DsviConvPrimitives DsviConvPrimitives;

DsvStatus dsvi_conv_primitives_create(int workers, DsviConvPrimitives **out);
void dsvi_conv_primitives_free(DsviConvPrimitives **primitives);
int dsvi_conv_primitives_workers(const DsviConvPrimitives *primitives);

/* Returns in *out the primitive for `key`, and creates it if necessary. *out is valid until the next call. */
DsvStatus dsvi_conv_primitives_get(DsviConvPrimitives *primitives, const DsviConvKey *key,
                                   const DsviConvPrimitive **out);

/* Copies the weight, (O, kernel[0], kernel[1], kernel[2], I), into `packed`, which has packed_bytes bytes, in
 * the layout that the primitive reads. Only called if primitive->pack is not NULL. */
DsvStatus dsvi_conv_primitive_pack(const DsviConvPrimitives *primitives, const DsviConvPrimitive *primitive,
                                   const void *weight, void *packed);

/* The memory objects of one worker while the worker computes rows of one call. */
typedef struct DsviConvWorker {
    dnnl_stream_t stream;
    dnnl_memory_t x, weight, bias, y, scratchpad;
} DsviConvWorker;

/* Creates the memory objects for worker number `worker`. `weight` is packed, or as given if primitive->pack
 * is NULL. `scratchpad` has scratchpad_bytes bytes that no other worker uses. dsvi_conv_worker_end must be
 * called whatever the result. */
dnnl_status_t dsvi_conv_worker_begin(const DsviConvPrimitives *primitives, const DsviConvPrimitive *primitive,
                                     int worker, const void *weight, const void *bias, void *scratchpad,
                                     DsviConvWorker *out);
void dsvi_conv_worker_end(DsviConvWorker *worker);

/* Computes one row of y. */
dnnl_status_t dsvi_conv_worker_run(const DsviConvWorker *worker, const DsviConvPrimitive *primitive,
                                   const void *x, void *y);

/* Converts a oneDNN status. Any status except dnnl_success sets an error message with `what` and the shape.
 */
DsvStatus dsvi_conv_primitive_status(dnnl_status_t status, const char *what, const DsviConvKey *key);

#ifdef __cplusplus
}
#endif
#endif
