/* What a batch of latents becomes before the forward pass: the model's input, its timesteps and the target
 * velocity. Training and the held-out loss share this.
 *
 * With model.first_frame=given the first latent frame has no noise and timestep 0. The model's loss leaves it
 * out (DsviDitShape.given_first). */
#ifndef DSVI_FLOW_BATCH_H
#define DSVI_FLOW_BATCH_H

#include "dsv/config.h"
#include "model/codec/codec.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns how many timesteps a sample has: 1, or 2 with model.first_frame=given. */
int64_t dsvi_flow_times(const DsvConfig *settings);
/* Writes the timesteps of sample `b`, whose noise level is `sigma`, to timestep (B, times), host memory. */
void dsvi_flow_set_times(const DsvConfig *settings, double sigma, int64_t b, float *timestep);

/* Device memory, all F32. */
typedef struct DsviFlowBatch {
    const DsvConfig *settings;
    DsviBackend *backend;
    int64_t batch;         /* B */
    DsviVideoShape latent; /* C, F, H, W */
    int64_t inputs;        /* elements from one sample's latent to the next: the model's input may have
                            * channels after those of the latent */
    float *latents;        /* (B, inputs): clean latents (C, F, H, W), which become the model's input */
    float *noise;          /* (B, C, F, H, W): becomes the target velocity */
    const float *sigma;    /* (B) */
} DsviFlowBatch;

/* Mixes the latents with noise. A given first frame keeps its values up to rounding; its target is 0. */
DsvStatus dsvi_flow_mix_batch(const DsviFlowBatch *b);

#ifdef __cplusplus
}
#endif
#endif
