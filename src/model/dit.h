/* The Wan 2.1 video transformer: forward and hand-written backward, over the op table.
 * It computes what Wan 2.1 (arXiv 2503.20314) and diffusers' WanTransformer3DModel compute.
 *
 * A DsvDit is a plan for one shape (batch, frames, height, width, text rows): it owns no memory but
 * views into an arena, and calls the ops in order. Self-attention goes through src/sparse, which decides
 * block by block between dense attention and lists.
 *
 * Dtypes: act (F32, BF16) for GEMM inputs and outputs, q, k, v and attention; acc (F32) for the residual
 * stream, norms' statistics, modulation, time embedding, weights' gradients. The residual stream stays
 * in acc as in the original implementation (diffusers rounds it): twice the bytes, one rounding less a
 * sub-layer. With act == F64 everything is F64: the truth for gradient checks. */
#ifndef DSVI_DIT_H
#define DSVI_DIT_H

#include "base/arena.h"
#include "context/context.h"
#include "context/cp_plan.h"
#include "model/codec.h"
#include "model/dit_config.h"
#include "model/weights.h"
#include "ops/ops.h"
#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the forward pass keeps of each block for the backward pass; the rest is computed again. */
typedef enum DsvDitKeep {
    DSV_KEEP_ALL,
    DSV_KEEP_ATTENTION, /* the block's input and the output of its self-attention: the cheap rest is not */
    DSV_KEEP_INPUT      /* the block's input alone */
} DsvDitKeep;

typedef struct DsvDitShape {
    int64_t batch;                 /* B */
    int64_t frames, height, width; /* of the latent, multiples of the patch */
    int64_t text_len;              /* L */
    DsvDtype act;
    bool backward;                 /* activations are kept and gradients computed */
    DsvDitKeep keep;
    int64_t ffn_rows;              /* most rows of B x S that the feed-forward layer has at once where its
                                    * activations are not kept: each part's memory serves the next; 0: as
                                    * many as products are at their fastest with */
    bool loss;                     /* made for dsvi_dit_forward_loss: there is room for its inputs; ranks that
                                    * share samples keep rows of their own tokens alone, and cannot find whole
                                    * outputs */
    const int64_t *grad_begin;     /* (stretches + 1) with backward: there is room for the weights' gradients,
                                    * and a stretch's begin at so many elements; NULL: there is none */
    const DsvContext *context;     /* the ranks that share the samples, made for this many tokens and for the
                                    * model's heads and blocks; NULL: this rank has them alone */
} DsvDitShape;

/* The compute dtype that mixed_precision names. */
DsvDtype dsvi_dit_act(const DsvConfig *settings);
/* What gradient_checkpointing names. */
DsvDitKeep dsvi_dit_keep(const DsvConfig *settings);

/* The model's channels against those of a latent of `codec`: DSV_E_SHAPE names both. */
DsvStatus dsvi_dit_check_latent(const DsvDitConfig *config, const DsvCodec *codec, DsvVideoShape latent);

/* Tokens of a sample. */
int64_t dsvi_dit_tokens(const DsvDitConfig *config, const DsvDitShape *shape);

/* What a context for a model of this shape wants: stretches of tokens in which groups of queries and runs of
 * keys stay whole. */
DsvContextShape dsvi_dit_context_shape(const DsvDitConfig *config, const DsvDitShape *shape,
                                       const DsvConfig *settings);

/* What plans of such a context go by: all but its ranks and stretches. */
DsvCpShape dsvi_dit_cp_shape(const DsvDitConfig *config, const DsvDitShape *shape, const DsvConfig *settings);

/* What self-attention looks like in a model of this shape. */
DsvSparseShape dsvi_dit_sparse_shape(const DsvDitConfig *config, const DsvDitShape *shape);

typedef enum DsvDitPass { DSV_PASS_FORWARD, DSV_PASS_BACKWARD } DsvDitPass;

/* Where a stretch of the parameters (weights.h) lies on the device. */
typedef struct DsvDitStretch {
    void *acc;  /* what is used in acc, from the stretch's begin on */
    void *act;  /* GEMM weights in act, from where they begin */
    void *grad; /* acc, of the whole stretch, added to; needed in the backward pass alone */
    bool fresh; /* but GEMM weights' gradients are overwritten: they may hold anything */
} DsvDitStretch;

/* The weights a model computes with: whole in three arrays, or lent to it a stretch at a time. */
typedef struct DsvDitWeights {
    /* Whole: device arrays in the layout of the table. `compute` is `master` itself when act is acc. */
    void *master;  /* (elements) acc */
    void *compute; /* (elements) act: GEMM weights only are kept up to date */
    void *grad;    /* (elements) acc, added to; NULL without backward */

    /* Lent: a pass enters a stretch before it uses it, says where it is good until the next is entered, and
     * leaves it when it has given the stream all that uses it. A forward pass enters from the first to the
     * last, a backward pass from the last to the first. NULL: the arrays above are there. */
    DsvStatus (*enter)(void *lender, DsvDitPass pass, int64_t stretch, DsvDitStretch *where);
    DsvStatus (*leave)(void *lender, DsvDitPass pass, int64_t stretch);
    void *lender;
} DsvDitWeights;

typedef struct DsvDit DsvDit;

/* Describes the model; `sparse` may be NULL where there is no context: all attention dense. Table, config,
 * sparse, and the shape's context and grad_begin stay the caller's and must outlive it. */
DsvStatus dsvi_dit_create(DsvBackend *backend, const DsvDitConfig *config, const DsvParamTable *table,
                          const DsvDitShape *shape, DsvSparse *sparse, DsvDit **out);
void dsvi_dit_free(DsvDit **dit);

/* Takes what the model needs beside its weights from the arena: run once to plan, once bound. The first what
 * lasts, the second what a pass uses, from its inputs to its gradients: when nobody wants these any more its
 * memory is free for anything. That is also what calls of the sparse layer use; what lasts of this layer is
 * the caller's to take. */
void dsvi_dit_carve(DsvDit *dit, DsvArena *arena);
void dsvi_dit_carve_pass(DsvDit *dit, DsvArena *arena);

/* Room in the memory of a pass, NULL where the shape does not ask for it. */
typedef struct DsvDitRoom {
    void *latents, *target; /* as dsvi_dit_forward_loss takes them, and overwrites them here */
    void *grad;             /* (grad_begin[stretches]) acc: of a stretch free for its gradients from when the
                             * backward pass enters it until the next pass; before that it holds anything */
} DsvDitRoom;

DsvDitRoom dsvi_dit_room(const DsvDit *dit);

/* After binding: uploads token order and RoPE tables. */
DsvStatus dsvi_dit_setup(DsvDit *dit, const DsvDitWeights *weights);

/* Brings weights.compute up to date with weights.master, where they are whole. */
DsvStatus dsvi_dit_refresh_compute(DsvDit *dit);

/* All device memory. latents (B, in_channels, F, H, W) acc, timestep (B) acc in [0, 1000], text (B, L,
 * text_dim) acc, output (B, out_channels, F, H, W) acc. With a context all its ranks call, with the same
 * inputs, and all have the whole output. */
DsvStatus dsvi_dit_forward(DsvDit *dit, const void *latents, const void *timestep, const void *text,
                           void *output);

/* The objective in place of the output, of which nothing leaves the model. */
typedef struct DsvDitLoss {
    const void *target;   /* as output: what it should be; read before any block is */
    double grad_scale;    /* as in ops/flow.h, of the whole batch */
    const void *channel_weight; /* (out_channels) acc, device memory: factor of each latent channel's squared
                                 * error; NULL: all are 1 */
    void *loss;           /* (B) acc, device memory: mean of (output - target)^2 over the own tokens, which
                           * are dsvi_dit_share of the sample */
} DsvDitLoss;

/* With shape.loss. */
DsvStatus dsvi_dit_forward_loss(DsvDit *dit, const void *latents, const void *timestep, const void *text,
                                const DsvDitLoss *loss);
/* Own tokens over all of a sample: what of its loss is in that of the own ones. */
double dsvi_dit_share(const DsvDit *dit);

/* From doutput (as output), or where that is NULL from the loss that the forward pass found; adds to the
 * weights' gradients. dlatents and dtext, as latents and text, are overwritten, or NULL. The forward pass of
 * the same inputs came just before. With a context doutput is the whole one on all its ranks, and the
 * gradients are each rank's part of a sum over them: its own tokens'. */
DsvStatus dsvi_dit_backward(DsvDit *dit, const void *doutput, void *dlatents, void *dtext);

/* FLOPs of one forward pass with dense self-attention: all GEMMs, and self- plus cross-attention. */
double dsvi_dit_flops_gemm(const DsvDitConfig *config, const DsvDitShape *shape);
double dsvi_dit_flops_attention(const DsvDitConfig *config, const DsvDitShape *shape);

#ifdef __cplusplus
}
#endif
#endif
