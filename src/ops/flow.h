/* The flow-matching objective and the time embedding of Wan 2.1.
 *
 * noise:     out[i] = standard normal number first + i of `rng` (base/rng.h), rounded to acc. Variants may
 *            differ in the last bit.
 *
 * flow_mix:  x_t = (1 - sigma) x0 + sigma noise, target = noise - x0; one sigma for each sample.
 *
 * mse:       loss[b] = mean over the elements i of sample b of w_i (output_i - target_i)^2;
 *            doutput_i = 2 grad_scale / (batch * n) * w_i (output_i - target_i). With grad_scale 1, doutput
 *            is the gradient of the mean of loss[] over the batch. w_i = weight[i % period], or 1 if `weight`
 *            is NULL.
 *
 * time_embed: row[b] = [cos(t_b w_j) | sin(t_b w_j)], w_j = 10000^(-j / (dim / 2)), cosines first. As in
 *            diffusers, the exponent, w_j and the angle are each rounded to F32. With t up to 1000 this
 *            rounding changes angles by up to 6e-5; exact angles would differ from diffusers' by as much. */
#ifndef DSVI_FLOW_H
#define DSVI_FLOW_H

#include "base/dtype.h"
#include "base/rng.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviNoiseArgs {
    int64_t n;
    DsviRng rng;
    uint64_t first;
    DsviDtype acc; /* accumulation dtype */
    void *out;     /* (n) acc */
} DsviNoiseArgs;
typedef DsvStatus dsvi_noise_fn(DsviStream *stream, const DsviNoiseArgs *args);

typedef struct DsviFlowMixArgs {
    int64_t batch, n;   /* n: elements of one sample */
    DsviDtype acc;      /* accumulation dtype */
    const void *x0;     /* (B, n) acc */
    const void *noise;  /* (B, n) acc */
    const void *sigma;  /* (B) acc, device memory */
    void *x_t, *target; /* (B, n) acc; x_t may be x0, target may be noise */
} DsviFlowMixArgs;
typedef DsvStatus dsvi_flow_mix_fn(DsviStream *stream, const DsviFlowMixArgs *args);

typedef struct DsviMseArgs {
    int64_t batch, n;
    double grad_scale;
    int64_t period;              /* length of `weight`; divides n */
    DsviDtype acc;               /* accumulation dtype */
    const void *weight;          /* (period) acc, or NULL: every w_i is 1 */
    const void *output, *target; /* (B, n) acc */
    void *loss;                  /* (B) acc */
    void *doutput;               /* (B, n) acc, or NULL: only the loss is computed; may be `output` */
} DsviMseArgs;
typedef DsvStatus dsvi_mse_fn(DsviStream *stream, const DsviMseArgs *args);

typedef struct DsviTimeEmbedArgs {
    int64_t batch, dim; /* dim is even */
    DsviDtype acc;      /* accumulation dtype */
    const void *t;      /* (B) acc, device memory */
    void *row;          /* (B, dim) acc */
} DsviTimeEmbedArgs;
typedef DsvStatus dsvi_time_embed_fn(DsviStream *stream, const DsviTimeEmbedArgs *args);

dsvi_noise_fn dsvi_noise_ref;
dsvi_flow_mix_fn dsvi_flow_mix_ref;
dsvi_mse_fn dsvi_mse_ref;
dsvi_time_embed_fn dsvi_time_embed_ref;

#ifdef __cplusplus
}
#endif
#endif
