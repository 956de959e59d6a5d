/* The objective of flow matching and the time embedding, as Wan 2.1 has them.
 *
 * noise:     out[i] = normal number first + i of `rng` (base/rng.h), rounded to acc; variants may differ in
 *            the last place.
 * flow_mix:  x_t = (1 - sigma) x0 + sigma noise, target = noise - x0; one sigma per sample.
 * mse:       loss[b] = mean over the sample of w_i (output_i - target_i)^2;
 *            doutput_i = 2 grad_scale / (batch * n) * w_i (output_i - target_i), so that with grad_scale 1 it
 *            is the gradient of the mean of loss[] over the batch. w_i = weight[i % period], or 1 without
 *            weights.
 * time_embed: row[b] = [cos(t_b w_j) | sin(t_b w_j)], w_j = 10000^(-j / (dim / 2)), cosines first;
 *            angles in double, for t reaches 1000. */
#ifndef DSVI_FLOW_H
#define DSVI_FLOW_H

#include "base/dtype.h"
#include "base/rng.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvNoiseArgs {
    int64_t n;
    DsvRng rng;
    uint64_t first;
    DsvDtype acc;
    void *out;           /* (n) acc */
} DsvNoiseArgs;
typedef DsvStatus dsvi_noise_fn(DsvStream *stream, const DsvNoiseArgs *args);

typedef struct DsvFlowMixArgs {
    int64_t batch, n;    /* n: elements of one sample */
    DsvDtype acc;
    const void *x0;      /* (B, n) acc */
    const void *noise;   /* (B, n) acc */
    const void *sigma;   /* (B) acc, device memory */
    void *x_t, *target;  /* (B, n) acc; x_t may be x0, target may be noise */
} DsvFlowMixArgs;
typedef DsvStatus dsvi_flow_mix_fn(DsvStream *stream, const DsvFlowMixArgs *args);

typedef struct DsvMseArgs {
    int64_t batch, n;
    double grad_scale;
    int64_t period;              /* of the weights; divides n */
    DsvDtype acc;
    const void *weight;          /* (period) acc, or NULL: all are 1 */
    const void *output, *target; /* (B, n) acc */
    void *loss;                  /* (B) acc */
    void *doutput;               /* (B, n) acc, or NULL: loss alone; may be output */
} DsvMseArgs;
typedef DsvStatus dsvi_mse_fn(DsvStream *stream, const DsvMseArgs *args);

typedef struct DsvTimeEmbedArgs {
    int64_t batch, dim; /* dim is even */
    DsvDtype acc;
    const void *t;      /* (B) acc, device memory */
    void *row;          /* (B, dim) acc */
} DsvTimeEmbedArgs;
typedef DsvStatus dsvi_time_embed_fn(DsvStream *stream, const DsvTimeEmbedArgs *args);

dsvi_noise_fn dsvi_noise_ref;
dsvi_flow_mix_fn dsvi_flow_mix_ref;
dsvi_mse_fn dsvi_mse_ref;
dsvi_time_embed_fn dsvi_time_embed_ref;

#ifdef __cplusplus
}
#endif
#endif
