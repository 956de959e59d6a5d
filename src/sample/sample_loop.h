/* From noise to pixels: the sampling loop over a model, a sampler and a codec. */
#ifndef DSVI_SAMPLE_LOOP_H
#define DSVI_SAMPLE_LOOP_H

#include "dsv/events.h"
#include "model/codec.h"
#include "model/dit.h"
#include "sample/sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvSampleJob {
    DsvBackend *backend;
    DsvDit *dit;               /* batch 1; set up and up to date */
    DsvSparse *sparse;         /* or NULL */
    const DsvCodec *codec;
    DsvVideoShape video;       /* (3, T, H, W) */
    DsvVideoShape latent;
    int64_t text_elements;     /* L * text_dim */
    const float *text;         /* host, conditional rows, or NULL: unconditional */
    const float *null_text;    /* host, unconditional rows */
    const char *sampler;
    int64_t steps;
    double flow_shift, guidance_scale;
    uint64_t seed;
    /* device memory the loop may use; dit's dtypes */
    void *latents, *timestep, *text_rows, *output;
    float *pixels;             /* host (3, T, H, W), result */
} DsvSampleJob;

/* v = v_uncond + g (v_cond - v_uncond), two passes when guidance_scale != 1 and there is text. Calls
 * events->progress per step and honours events->stop. */
DsvStatus dsvi_sample_run(const DsvSampleJob *job, const DsvEvents *events);

#ifdef __cplusplus
}
#endif
#endif
