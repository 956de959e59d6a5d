/* The sampling loop: from noise to pixels with a model, a sampler and a codec. */
#ifndef DSVI_SAMPLE_LOOP_H
#define DSVI_SAMPLE_LOOP_H

#include "dsv/events.h"
#include "model/codec/codec.h"
#include "model/dit/dit.h"
#include "sample/sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviSampleJob {
    DsviBackend *backend;
    DsviDit *dit;       /* batch 1; after setup, with weights up to date */
    DsviSparse *sparse; /* or NULL */
    const DsviCodec *codec;
    DsviVideoShape video; /* (3, T, H, W) */
    DsviVideoShape latent;
    int64_t text_elements;  /* L * text_dim */
    const float *text;      /* host (L, text_dim): conditional text rows; NULL: unconditional */
    const float *null_text; /* host (L, text_dim): unconditional text rows */
    const char *sampler;    /* "euler" or "unipc" */
    int64_t steps;
    double flow_shift, guidance_scale;
    uint64_t seed;
    /* Device memory that the loop uses: arguments of dsvi_dit_forward, F32. */
    void *latents, *timestep, *text_rows, *output;
    float *pixels; /* host (3, T, H, W): the result */
} DsviSampleJob;

/* Samples a clip. With text and a guidance_scale g other than 1 each step evaluates the model twice and uses
 * the velocity v = v_uncond + g (v_cond - v_uncond). Calls events->progress after each step.
 * DSV_E_INTERRUPTED if events->stop returns true. */
DsvStatus dsvi_sample_run(const DsviSampleJob *job, const DsvEvents *events);

#ifdef __cplusplus
}
#endif
#endif
