/* The sampling loop: from noise to pixels with a model, a sampler and a codec. */
#ifndef DSVI_SAMPLE_LOOP_H
#define DSVI_SAMPLE_LOOP_H

#include "dsv/events.h"
#include "model/codec/codec.h"
#include "model/dit/dit.h"
#include "sample/sampler.h"
#include "sample/sparse_use.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviSampleJob {
    DsviBackend *backend;
    DsviDit *dit;       /* after setup, with weights up to date */
    int64_t batch;      /* B, the batch of dit: 2 evaluates a guided step in one pass, 1 in two passes */
    DsviSparse *sparse; /* or NULL */
    bool sparse_learns; /* steps are steps of learning (dsvi_sparse_step_begin), in which all passes are
                         * measured: attention becomes sparse by what is measured in the same clip */
    DsviSparseUse *use; /* receives how the blocks attended, or NULL; needs `sparse` */
    const DsviCodec *codec;
    DsviVideoShape video; /* (3, T, H, W) */
    DsviVideoShape latent;
    int64_t text_elements;  /* L * text_dim */
    const float *text;      /* host (L, text_dim): conditional text rows; NULL: unconditional */
    const float *null_text; /* host (L, text_dim): unconditional text rows, or those of a negative prompt */
    const float *noise;     /* host, shaped like the latent: noise to begin with; NULL: drawn from the seed */
    /* A picture that the model takes in channels after those of the latent, the same in all steps. */
    int64_t image_channels;     /* 0: none */
    const float *image;         /* host (image_channels, F, H, W) */
    int64_t image_row_elements; /* of the image rows of a sample, which the model attends; 0: none */
    const float *image_rows;    /* host (image_row_elements), the same for both kinds of text */
    /* The clip's first latent frame, if it is given (DsviDitShape.given_first): it has no noise and time 0 in
     * all steps. */
    const float *first_frame; /* host (C, 1, H, W), or NULL */
    const char *sampler;      /* "euler" or "unipc" */
    int64_t steps;
    double flow_shift, guidance_scale;
    /* Two experts, which take turns in `dit`: called before each step with 0 from timestep `boundary` on and
     * with 1 below, makes the weights of this expert those of `dit`. NULL: one model. */
    DsvStatus (*use_expert)(void *context, int expert);
    void *expert_context;
    double boundary;         /* timestep, 0 to 1000 */
    double guidance_scale_2; /* of the steps of expert 1 */
    uint64_t seed;
    int64_t steps_before, steps_after; /* of other clips in the same piece of work, for the progress report */
    /* Device memory that the loop uses: arguments of dsvi_dit_forward for a batch of B, F32. `latents` has
     * the channels of the latent and image_channels, `timestep` two elements per row with first_frame;
     * `image_memory` holds the image rows of the batch. */
    void *latents, *timestep, *text_rows, *image_memory, *output;
    float *pixels; /* host (3, T, H, W): the result of dsvi_sample_run */
} DsviSampleJob;

/* Returns whether steps are guided: there is text, and guidance_scale is above 1. Each guided step evaluates
 * the model with `text` and with `null_text`, and uses the velocity v = v_null + guidance_scale (v_text -
 * v_null). */
bool dsvi_sample_guided(const DsviSampleJob *job);

/* Computes the latent of a clip, without decoding. latent: host array, written. A job that is not guided
 * needs batch 1. Calls events->progress after each step. DSV_E_INTERRUPTED if events->stop returns true. */
DsvStatus dsvi_sample_latent(const DsviSampleJob *job, const DsvEvents *events, float *latent);
/* Samples a clip: as dsvi_sample_latent, then decodes the latent to job->pixels. */
DsvStatus dsvi_sample_run(const DsviSampleJob *job, const DsvEvents *events);

#ifdef __cplusplus
}
#endif
#endif
