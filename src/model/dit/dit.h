/* The Wan 2.1 video transformer: forward pass and hand-written backward pass, which call operations through
 * the table of the backend. It computes what Wan 2.1 (arXiv 2503.20314) and diffusers' WanTransformer3DModel
 * compute.
 *
 * A DsviDit is made for one shape (batch, frames, height, width, text rows). Its tensors are in memory that
 * the caller's arenas provide. Self-attention calls src/sparse, which attends densely or over key lists, as
 * decided for each block.
 *
 * Dtypes: act (F32 or BF16) for inputs and outputs of GEMMs, for q, k, v and attention; acc (F32) for the
 * residual stream, statistics of norms, modulation, time embedding, and gradients of weights. The residual
 * stream is stored in acc as in the original implementation (diffusers rounds it): it takes twice the bytes
 * and saves one rounding in each sub-layer. With act F64 acc is F64 too, as the reference for gradient
 * checks. */
#ifndef DSVI_DIT_H
#define DSVI_DIT_H

#include "base/arena.h"
#include "cp/cp.h"
#include "cp/cp_plan.h"
#include "model/codec/codec.h"
#include "model/dit/dit_config.h"
#include "model/lora/lora_params.h"
#include "model/weights/weights.h"
#include "ops/ops.h"
#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Activations of each block that are kept from the forward to the backward pass (gradient_checkpointing). The
 * backward pass computes the others again. */
typedef enum DsviDitKeep {
    DSVI_KEEP_ALL,
    DSVI_KEEP_ATTENTION, /* the block's input and the output of its self-attention, the most expensive part */
    DSVI_KEEP_INPUT      /* only the block's input */
} DsviDitKeep;

/* What one block keeps, and whether that waits in host memory between the passes; `host` has no effect with
 * DSVI_KEEP_ALL. */
typedef struct DsviDitKept {
    DsviDitKeep keep;
    bool host;
} DsviDitKept;

typedef struct DsviDitShape {
    int64_t batch;                 /* B */
    int64_t frames, height, width; /* of the latent; multiples of the patch */
    int64_t text_len;              /* L, text rows */
    int64_t image_len;             /* R, image rows; 0: the model takes none (config.image_dim is 0) */
    bool given_first;              /* the first latent frame is given (image to video of Wan 2.2 TI2V-5B): its
                                    * tokens have a time of their own and are left out of the loss. Needs at
                                    * least 2 frames and a patch of 1 frame */
    DsviDtype act;
    bool backward;              /* a backward pass will follow: activations are kept, gradients have
                                 * memory */
    DsviDitKeep keep;           /* of every block, unless dsvi_dit_keep_blocks is called */
    bool offload;               /* with backward and unless `keep` is DSVI_KEEP_ALL: what is kept of a block
                                 * waits in host memory (dsvi_dit_carve_host) between the passes */
    int64_t ffn_rows;           /* largest number of the B x S rows that the feed-forward layer processes at
                                 * once; unless a block keeps all, its activations have memory for that
                                 * many. 0: a number with which GEMMs reach their full speed */
    bool loss;                  /* made for dsvi_dit_forward: reserves memory for latents and target.
                                 * With context parallelism only rows of this rank's tokens are stored, so
                                 * dsvi_dit_forward must not be called */
    const int64_t *grad_begin;  /* (buckets + 1), only with backward: reserves memory for gradients of
                                 * weights; the gradients of a bucket begin at this element. NULL: the
                                 * caller has memory for them elsewhere */
    const DsviLoraParams *lora; /* A LoRA: its matrices are used, and a backward pass computes their gradients
                                 * alone; the model's own weights are frozen. NULL: none */
    double lora_dropout; /* with a LoRA: probability with which an element of an adapted layer's input is
                          * zero for the LoRA; the others are divided by 1 - lora_dropout. 0 outside
                          * of training */
    const DsviCp *cp;    /* context parallelism: ranks that work on the same samples, made for the
                          * tokens, heads and blocks of this model. NULL: this rank has all
                          * tokens */
} DsviDitShape;

/* Returns the dtype of activations that the option mixed_precision names. */
DsviDtype dsvi_dit_act(const DsvConfig *settings);
/* Returns whether the option base_precision asks for frozen weights in 8 bits. */
bool dsvi_dit_stores_f8(const DsvConfig *settings);
/* Returns whether the option model.first_frame says that the first latent frame is given in training. */
bool dsvi_dit_given_first(const DsvConfig *settings);
/* Returns which activations to keep, as the option gradient_checkpointing says. */
DsviDitKeep dsvi_dit_keep(const DsvConfig *settings);

/* Checks that the model has the channels of the codec's latents. Otherwise fails with DSV_E_SHAPE and a
 * message that gives both numbers of channels; DSV_E_UNSUPPORTED if the model needs the Wan VAE, or takes a
 * picture beside the latent. */
DsvStatus dsvi_dit_check_latent(const DsviDitConfig *config, const DsviCodec *codec, DsviVideoShape latent);

/* Returns whether the model takes a condition in channels beside the latent's. */
bool dsvi_dit_takes_condition(const DsviDitConfig *config);
/* As dsvi_dit_check_latent, for latents of a published VAE with which the model is trained: it may also take
 * the condition of image-to-video models of Wan 2.2, a mask with a channel for each picture for which a
 * latent frame stands, and a latent. */
DsvStatus dsvi_dit_check_input(const DsviDitConfig *config, const DsviCodec *codec, DsviVideoShape latent);
/* Fails with DSV_E_SHAPE if the model makes clips between two pictures (FLF2V) and the latent is that of a
 * clip of one frame, which cannot be both. */
DsvStatus dsvi_dit_check_pictures(const DsviDitConfig *config, DsviVideoShape latent);

/* Returns the number of tokens of a sample, over all ranks. */
int64_t dsvi_dit_tokens(const DsviDitConfig *config, const DsviDitShape *shape);

/* Returns the shape of `batch` samples with latents of these frames, height and width, and with as many rows
 * of text and of images as the model takes. All other members are 0. */
DsviDitShape dsvi_dit_shape_of(const DsviDitConfig *config, int64_t batch, DsviVideoShape latent);

/* Returns the clip for which dsvi_cp_create must divide tokens among ranks. The clip's `unit` is chosen so
 * that no group of queries and no span of keys is split between ranks. */
DsviCpClip dsvi_dit_cp_clip(const DsviDitConfig *config, const DsviDitShape *shape,
                            const DsvConfig *settings);

/* Returns the shape from which parallel plans estimate costs (cp_plan.h), without ranks and their shards. */
DsviCpShape dsvi_dit_cp_shape(const DsviDitConfig *config, const DsviDitShape *shape,
                              const DsvConfig *settings);

/* Returns the shape of self-attention in a model of this shape. */
DsviSparseShape dsvi_dit_sparse_shape(const DsviDitConfig *config, const DsviDitShape *shape);

typedef enum DsviDitPass { DSVI_PASS_FORWARD, DSVI_PASS_BACKWARD } DsviDitPass;

/* Device memory of one bucket of the parameters (weights.h). */
typedef struct DsviDitBucket {
    void *acc;  /* acc: the bucket's parameters from its beginning, at least those used in acc */
    void *act;  /* act: its GEMM weights */
    void *grad; /* acc: gradients of the whole bucket, to which a backward pass adds. May be NULL in a
                 * forward pass */
    bool fresh; /* true: a backward pass overwrites `grad` of GEMM weights instead of adding to it, so that
                 * it needs no valid content before */
} DsviDitBucket;

/* The weights of a model: either three arrays with all parameters, or buckets that are acquired one at a
 * time. */
typedef struct DsviDitWeights {
    /* All parameters: device arrays in the layout of the table. If act equals acc, `compute` is `master`. */
    void *master;  /* (elements) acc */
    void *compute; /* (elements) act: only the GEMM weights are kept up to date */
    void *grad;    /* (elements) acc: gradients, to which a backward pass adds; NULL without backward */

    /* Buckets: a pass acquires a bucket before it uses it, and releases it when all work that uses it has
     * been given to the stream. acquire fills *where, which remains valid until release. A forward pass
     * acquires buckets in ascending order, a backward pass in descending order. NULL: the arrays above are
     * used. */
    DsvStatus (*acquire)(void *owner, DsviDitPass pass, int64_t bucket, DsviDitBucket *where);
    DsvStatus (*release)(void *owner, DsviDitPass pass, int64_t bucket);
    void *owner;

    const struct DsviDitWeights *lora; /* the LoRA's matrices, in the layout of shape.lora->table; NULL
                                        * without shape.lora */
} DsviDitWeights;

typedef struct DsviDit DsviDit;

/* Creates a model. `sparse` may be NULL without context parallelism: all attention is then dense. The table,
 * `sparse`, shape->cp and shape->grad_begin remain the caller's and must outlive the model; `config` and
 * `shape` are copied. */
DsvStatus dsvi_dit_create(DsviBackend *backend, const DsviDitConfig *config, const DsviParamTable *table,
                          const DsviDitShape *shape, DsviSparse *sparse, DsviDit **out);
void dsvi_dit_free(DsviDit **dit);

/* Sets what each block keeps, in place of shape.keep and shape.offload: (num_layers). Has no effect without
 * shape.backward. May be called until memory is bound. Results have the same bits whatever is kept. */
void dsvi_dit_keep_blocks(DsviDit *dit, const DsviDitKept *blocks);

/* Take device memory other than weights from an arena, once for planning and once bound (base/arena.h).
 * dsvi_dit_carve takes what must persist between passes. dsvi_dit_carve_pass takes what one pass uses, from
 * its inputs to its gradients, including dsvi_sparse_carve_call: this memory is free for other uses once
 * results and gradients have been read. The caller calls dsvi_sparse_carve itself. */
void dsvi_dit_carve(DsviDit *dit, DsviArena *arena);
void dsvi_dit_carve_pass(DsviDit *dit, DsviArena *arena);

/* What the layout of dsvi_dit_carve_pass consists of, for plans of memory. dsvi_dit_own_bytes: device memory
 * that a block has for itself if it keeps `kept` and nothing waits in host memory. dsvi_dit_input_bytes:
 * that of the input of the head. dsvi_dit_gradients_from: gradients of `bucket` and later buckets, if
 * gradients are in the memory of a pass; they are stored after what blocks of earlier buckets need. */
size_t dsvi_dit_own_bytes(const DsviDit *dit, DsviDitKeep keep);
size_t dsvi_dit_input_bytes(const DsviDit *dit);
size_t dsvi_dit_gradients_from(const DsviDit *dit, int64_t bucket);

/* Takes the page-locked host memory of kept activations that wait there. Its content is needed from a forward
 * pass to the end of its backward pass. */
void dsvi_dit_carve_host(DsviDit *dit, DsviArena *arena);

/* Buffers for the caller inside the memory of a pass; NULL if the shape does not ask for them. */
typedef struct DsviDitBuffers {
    void *latents, *target; /* with shape.loss: may be passed to dsvi_dit_forward, which overwrites
                             * them */
    void *grad;             /* with shape.grad_begin: (grad_begin[buckets]) acc. Gradients of a bucket may be
                             * stored here from when the backward pass acquires it until the next pass.
                             * Before, the memory contains activations */
} DsviDitBuffers;

DsviDitBuffers dsvi_dit_buffers(const DsviDit *dit);

/* To be called once after the arenas are bound: sets the weights, which are copied with weights->lora, and
 * uploads token order and RoPE tables. */
DsvStatus dsvi_dit_setup(DsviDit *dit, const DsviDitWeights *weights);

/* Converts the array DsviDitWeights.master to the array `compute` in the activation dtype; to be called
 * after all weights have changed. Must not be called if the model acquires its weights bucket by bucket.
 * Does nothing if `master` and `compute` are the same array. */
DsvStatus dsvi_dit_refresh_compute(DsviDit *dit);

/* With shape.lora_dropout, to be called before each forward pass: the numbers of its samples are `first`,
 * first + 1, and so on. Which elements are dropped is a function of seed, number of the sample, layer, token
 * and column alone: a backward pass drops those of its forward pass, also where it computes again, and so do
 * all ranks that share a sample. */
void dsvi_dit_set_samples(DsviDit *dit, uint64_t seed, uint64_t first);

/* With shape.image_len, to be called before the first forward pass and whenever the memory changes: device
 * memory with the image rows (B, R, image_dim) acc, which stays the caller's and which passes read until the
 * end of the backward pass. A backward pass overwrites `dimage`, shaped like `image`, with its gradient,
 * unless `dimage` is NULL; with shape.lora it must be NULL. */
void dsvi_dit_set_image(DsviDit *dit, const void *image, void *dimage);

/* The training objective, which a forward pass computes instead of the output: the mean squared error of the
 * output. Device memory. */
typedef struct DsviDitLoss {
    const void *target;          /* (B, out_channels, F, H, W) acc; not read any more when the first block
                                  * begins */
    double grad_scale;           /* factor of the gradient, as DsviMseArgs.grad_scale (ops/flow.h) */
    const double *sample_weight; /* host (B): further factor of each sample's gradient; NULL: all 1 */
    const void *channel_weight;  /* (out_channels) acc: factor of each latent channel's squared error; NULL:
                                  * all 1. NULL with shape.given_first */
    void *loss;                  /* (B) acc, overwritten: mean of the weighted (output - target)^2 over this
                                  * rank's tokens. These are the fraction dsvi_dit_token_fraction of all
                                  * tokens */
} DsviDitLoss;

/* The forward pass: computes the output (the velocity) or, if `output` is NULL, the loss and with
 * shape.backward the gradient of the loss; the loss needs shape.loss. All arguments are device memory:
 * latents (B, in_channels, F, H, W) acc, timestep (B) acc in [0, 1000], with shape.given_first (B, 2) with
 * the time of the first frame before that of the others, text (B, L, text_dim) acc, output
 * (B, out_channels, F, H, W) acc. With context parallelism all ranks of the group call with the same
 * inputs, and every rank gets the whole output. */
DsvStatus dsvi_dit_forward(DsviDit *dit, const void *latents, const void *timestep, const void *text,
                           void *output, const DsviDitLoss *loss);
/* Returns this rank's fraction of the tokens of a sample, 1 without context parallelism: this fraction is
 * the weight of the rank's loss in the loss of the sample. */
double dsvi_dit_token_fraction(const DsviDit *dit);

/* The backward pass: adds this pass's gradients of the weights to the gradients stored in DsviDitWeights
 * or its buckets. The gradient of the output is `doutput` (shaped like output), or, if `doutput` is NULL,
 * the gradient that dsvi_dit_forward has computed from the loss. dlatents and dtext, shaped like latents
 * and text, are overwritten, or NULL; with shape.lora they must be NULL. The forward pass with the same
 * inputs must have come directly before. With context parallelism doutput is the whole gradient on all ranks,
 * and all gradients written are this rank's part of a sum over the ranks, namely the part of its tokens. */
DsvStatus dsvi_dit_backward(DsviDit *dit, const void *doutput, void *dlatents, void *dtext);

/* Return the FLOPs of one forward pass with dense self-attention: dsvi_dit_flops_gemm those of all linear
 * layers, dsvi_dit_flops_attention those of the products q k^T and P v in self-attention and
 * cross-attention. */
double dsvi_dit_flops_gemm(const DsviDitConfig *config, const DsviDitShape *shape);
/* FLOPs of linear layers in one block; *ffn_in (may be NULL): those of the first feed-forward layer. */
double dsvi_dit_flops_block(const DsviDitConfig *config, const DsviDitShape *shape, double *ffn_in);
double dsvi_dit_flops_attention(const DsviDitConfig *config, const DsviDitShape *shape);
/* FLOPs of a forward and a backward pass without what is recomputed. The backward pass of a matrix product
 * computes the gradients of both factors; frozen: not those of the weights, as beside a LoRA, whose own small
 * products are not counted. `attention`: FLOPs of attention as a fraction of those of dense attention. */
double dsvi_dit_flops_step(const DsviDitConfig *config, const DsviDitShape *shape, bool frozen,
                           double attention);

#ifdef __cplusplus
}
#endif
#endif
