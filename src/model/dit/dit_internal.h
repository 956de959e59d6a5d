/* Shared by the files of the transformer: DsviDit, its buffers, and the small steps of which blocks and
 * embeddings consist. Read dit.c first, then dit_block.c. */
#ifndef DSVI_DIT_INTERNAL_H
#define DSVI_DIT_INTERNAL_H

#include "model/dit/dit.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_DIT_NO_BIAS = -1 };

/* A linear layer y = x W^T + b. A *place* is an offset in elements into the flat array of all parameters, and
 * into the flat arrays of gradients and moments, which have the same layout (weights.h). */
typedef struct DsviDitLinear {
    int64_t out, in;
    /* Places of W and b among all parameters. In a backward pass bias may be DSVI_DIT_NO_BIAS: the op that
     * computed dy has then summed the gradient of b too. */
    int64_t weight, bias;
    DsviDtype dtype; /* dtype of x, and of the copy of W by which x is multiplied: act, or acc in the
                      * time embedder */
    const DsviLoraTarget *lora; /* the layer's matrices of the LoRA; NULL: none */
    int64_t of_condition; /* x has so many rows of text or image per sample, the same on all ranks; 0: x has
                           * rows of tokens (B, S, in) */
    int64_t row;          /* number, among those rows, of the first row of x in a call for some of them */
    bool begun;           /* backward pass: the weight's gradient contains an earlier product of this pass, so
                           * this one must be added */
} DsviDitLinear;

typedef struct DsviDitAttentionParams {
    DsviDitLinear q, k, v, o;
    int64_t norm_q, norm_k; /* places of the norms' weights */
} DsviDitAttentionParams;

/* Keys and values of image rows in cross-attention, which has one q for text and image. */
typedef struct DsviDitImageParams {
    DsviDitLinear k, v;
    int64_t norm_k; /* place of the norm's weight */
} DsviDitImageParams;

typedef struct DsviDitBlockParams {
    DsviDitAttentionParams self, cross;
    DsviDitImageParams image; /* with image rows */
    DsviDitLinear ffn_in, ffn_out;
    int64_t norm_weight, norm_bias; /* places of weight and bias of the affine norm before cross-attention */
    int64_t modulation;             /* place of a (6, C) table */
} DsviDitBlockParams;

typedef struct DsviDitParams {
    DsviDitLinear patch, text_in, text_out, time_in, time_out, time_projection, head;
    struct {
        DsviDitLinear in, out;
        int64_t norm1, norm1_bias, norm2, norm2_bias; /* places of the weights and biases of both norms */
        int64_t positions;                            /* place of a (R, image_dim) table, or -1: none */
    } image;                                          /* with image rows */
    int64_t head_modulation;                          /* place of a (2, C) table */
    DsviDitBlockParams *blocks;                       /* (num_layers) */
} DsviDitParams;

/* Activations of a block that its backward pass reads, besides the block's input. The backward pass computes
 * other activations again from these, each with one pass over memory: outputs of norms (from the residual
 * stream), q and k after norm and RoPE, and the residual stream after self-attention (from its summands). */
typedef struct DsviDitSaved {
    void *q, *k, *v;            /* (B, S, C) act: of self-attention; q and k before their norm */
    void *attended;             /* (B, S, C) act: output of self-attention before the projection o */
    void *lse;                  /* (B, N, S) acc; with context parallelism (B, N_local, T)
                                 * (dsvi_cp_lse_bytes) */
    void *cross_q;              /* (B, S, C) act: q of cross-attention before its norm */
    void *cross_k, *cross_v;    /* (B, L, C) act: k of cross-attention before its norm, and v */
    void *cross_attended;       /* (B, S, C) act: output of cross-attention before the projection o */
    void *cross_lse;            /* (B, N, S) acc */
    void *image_k, *image_v;    /* (B, R, C) act, as cross_k and cross_v: of the image rows */
    void *image_attended;       /* (B, S, C) act: output of attention over the image rows, to be added to
                                 * cross_attended */
    void *image_lse;            /* (B, N, S) acc */
    void *ffn_hidden, *ffn_act; /* (B, S, ffn) act: before and after GELU. Unless the block keeps all, they
                                 * are the buffers of DsviDitScratch, for ffn_rows rows */
    void *y_self, *y_ffn;       /* (B, S, C) act: outputs of these sub-layers before their gates */
    void *x2;                   /* (B, S, C) acc: residual stream after cross-attention */
} DsviDitSaved;

/* Activations of embeddings and head, kept from their forward to their backward pass. Small except
 * patch_rows. */
typedef struct DsviDitEmbedded {
    void *patch_rows;             /* (B, S, in_channels * patch) act: patches of the latents */
    void *text;                   /* (B, L, text_dim) act */
    void *text_hidden, *text_act; /* (B, L, C) act: before and after GELU */
    void *text_states;            /* (B, L, C) act: text after its embedding, input of cross-attention */
    void *image_rows;   /* (B, R, image_dim) acc: image rows plus positions; NULL without positions */
    void *image_normed; /* (B, R, image_dim) act: image rows after the first norm */
    void *image_hidden, *image_act; /* (B, R, image_dim) act: before and after GELU */
    void *image_out;                /* (B, R, C) acc: before the second norm */
    void *image_states;             /* (B, R, C) act: image rows after their embedding */
    void *time_row;               /* (B, T, freq_dim) acc: sinusoidal embedding of the T times of a sample */
    void *time_hidden, *time_act; /* (B, T, C) acc: before and after SiLU */
    void *time, *time_silu;       /* (B, T, C) acc: the time embedding e, and SiLU(e) */
    void *modulation;             /* (B, T, 6, C) acc: e0, to which each block adds its table */
    void *head_modulation;        /* (B, T, 2, C) acc: shift and scale of the head's norm */
} DsviDitEmbedded;

/* Scratch buffers. Their contents are valid within one sub-layer, unless noted. Several of them share memory:
 * dit_plan.c has the table. */
typedef struct DsviDitScratch {
    void *x1;         /* (B, S, C) acc: residual stream after self-attention of a block */
    void *modulation; /* (num_layers, B, T, 6, C) acc: modulation of all blocks; valid from forward to
                       * backward pass */
    void *h;          /* (B, S, C) act: output of a norm, or the output of cross-attention; in the
                       * backward pass also the gradient of attention's output */
    void *q, *k;      /* (B, S, C) act: after norm and RoPE */
    void *ffn_hidden, *ffn_act; /* (ffn_rows, ffn) act: those of DsviDitSaved unless a block keeps all */
    void *cross_k;              /* (B, max(L, R), C) act: of text or image, after norm */
    void *mean, *rstd;          /* (B, max(S, L, R)) acc: statistics of the norm computed last */
    void *rstd_k;      /* (B, max(S, L, R)) acc: statistics of k's norm, while rstd holds those of q's */
    void *head_rows;   /* (B, all_tokens, out_channels * patch) acc: the output as patches. With
                        * shape.loss (B, S, out_channels * patch), later overwritten with the loss's
                        * gradient */
    void *target_rows; /* (B, S, out_channels * patch) acc, with shape.loss: the target as patches,
                        * valid from the beginning of the pass to the loss */
    void *lora_rows, *lora_drows; /* (B max(S, L, R), rank) act: x A^T and the gradient of this product, times
                                   * the LoRA's factor */
    void *lora_input; /* with shape.lora_dropout: act, the largest input of an adapted layer after dropout,
                       * or the gradient of this input before */
    void *unread;     /* (2, C) acc, with shape.lora: receives gradients of frozen weights that an op always
                       * computes */
    void *attention;  /* workspace of dense attention outside the sparse layer */
    size_t attention_bytes;
    /* Backward pass only. */
    void *dx;                   /* (B, S, C) acc: gradient of the residual stream; valid through the whole
                                 * pass */
    void *dtext_states;         /* (B, L, C) acc: gradient of text_states, summed over the blocks */
    void *dembedding;           /* (B, T, 6, C) acc: gradient of e0, summed over the blocks */
    void *dmodulation;          /* (num_layers, B, T, 6, C) acc: gradient of each block's modulation */
    void *dy_sum;               /* (num_layers, C) acc: gradients of the biases of ffn_out */
    void *dhead_modulation;     /* (B, T, 2, C) acc */
    void *dtime;                /* (B, T, C) acc: gradient of e; valid from the head to the end of the pass */
    void *dtime_hidden;         /* (B, T, C) acc */
    void *dy;                   /* (B, S, C) act: gradient of a sub-layer's output, then of its input */
    void *dq, *dk, *dv;         /* (B, S, C) act */
    void *dffn;                 /* (ffn_rows, ffn) act */
    void *dcross_k, *dcross_v;  /* (B, max(L, R), C) act */
    void *dimage_states;        /* (B, R, C) acc: gradient of image_states, summed over the blocks */
    void *dimage_out;           /* (B, R, C) acc */
    void *dimage_act;           /* (B, R, C) act: dimage_states, then dimage_out */
    void *dimage_hidden;        /* (B, R, image_dim) act */
    void *dimage_normed;        /* (B, R, image_dim) act */
    void *dimage_rows;          /* (B, R, image_dim) acc */
    void *dtext, *dtext_hidden; /* (B, L, C) act */
    void *dhead_rows;           /* (B, S, out_channels * patch) act: gradient of the output as patches */
    void *dpatch_rows;          /* (B, S, in_channels * patch) acc */
} DsviDitScratch;

enum { DSVI_STACK_SETS = 2 };

/* Device memory in which kept activations of blocks take turns that wait in host memory (dit_stack.c). */
typedef struct DsviDitStackSet {
    void *residual, *attended, *lse; /* of DsviDit.residual and DsviDitSaved */
    bool attends;                    /* `attended` and `lse` have memory */
} DsviDitStackSet;

struct DsviDit {
    DsviBackend *backend;
    DsviStream *stream;
    const DsviParamTable *table;
    DsviSparse *sparse; /* or NULL */
    DsviDitConfig config;
    DsviDitShape shape;
    DsviDtype act, acc;
    int64_t grid[3];                     /* tokens along frames, rows, columns */
    int64_t batch, tokens, text_len;     /* B, S, L; S counts this rank's tokens */
    int64_t image_len;                   /* R, or 0 */
    int64_t longest;                     /* max(S, L, R) */
    int64_t times, time_rows;            /* T, times of a sample: 2 with shape.given_first, else 1; and B T */
    int64_t first, all_tokens;           /* this rank's tokens begin at `first` of all_tokens */
    int64_t width, heads, head_dim, ffn; /* C, N, D */
    int64_t patch_in, patch_out;         /* elements of one token's patch of the input and of the output */
    DsviDitParams params;

    DsviDitWeights weights;
    DsviDitWeights lora_weights; /* with shape.lora */
    DsviDitBucket *lora_bucket;  /* (table->buckets) as `bucket`, of the LoRA */
    DsviDitBucket *bucket;       /* (table->buckets) device memory of each bucket. If buckets are
                                  * acquired singly, valid between acquire and release */
    int32_t *order;              /* (all_tokens) device memory: the token order */
    void *rope_cos, *rope_sin;   /* (S, D / 2) acc */
    /* With shape.given_first, otherwise NULL. */
    int32_t *of_time, *host_of_time; /* (S) device and host memory: the tokens of each time, ascending */
    int64_t time_begin[3];           /* those of time t are of_time[time_begin[t]..time_begin[t + 1]) */
    void *loss_weight;               /* (S, out_channels * patch) acc, with shape.loss: 0 in the first frame,
                                      * the same number in all others, mean 1 over all ranks */
    void **residual;     /* (num_layers + 1) pointers to (B, S, C) acc: the input of each block and of
                          * the head. Without backward all are the same buffer; those of the stack
                          * take turns in two buffers */
    DsviDitSaved *saved; /* (num_layers). Without backward, all blocks have the same buffers; otherwise a
                          * block has own buffers for the activations that it keeps */
    DsviDitSaved shared; /* the buffers that blocks share */
    DsviDitKept *kept;   /* (num_layers) what each block keeps; without backward DSVI_KEEP_INPUT */
    int64_t last_shared; /* the last block that does not keep all; -1: none */
    int64_t *number;     /* (num_layers + 1) number in the stack of each block and of the head; -1:
                          * not in the stack */
    int64_t stacked;     /* number of blocks in the stack; if it is not 0 the head comes after them */
    DsviDitStackSet stack[DSVI_STACK_SETS];
    DsviDitEmbedded embedded;
    DsviDitScratch scratch;
    DsviDitBuffers room;
    void **host_kept; /* (num_layers, 3) host memory of what is kept of each block of the stack */

    const void *image; /* of dsvi_dit_set_image */
    void *dimage;
    uint64_t dropout_seed, first_sample; /* of dsvi_dit_set_samples */
};

/* ---- dit_parts.c ---- */

/* Returns the address of element `place` of an array of elements of `dtype`. */
void *dsvi_dit_at(const void *base, DsviDtype dtype, int64_t place);
/* Return the address of the parameter at `place` in the accumulation dtype, and of its gradient (NULL
 * without gradients, and if the parameter is frozen). The parameter's bucket must be acquired. */
const void *dsvi_dit_param(const DsviDit *dit, int64_t place);
void *dsvi_dit_grad(const DsviDit *dit, int64_t place);
/* As dsvi_dit_grad, but row `row` of scratch.unread if the parameter is frozen: for parameters (C) whose
 * gradient an op always computes. */
void *dsvi_dit_grad_or_unread(const DsviDit *dit, int64_t place, int64_t row);

/* Sets the n elements of x on the device to zero. */
DsvStatus dsvi_dit_clear(const DsviDit *dit, DsviDtype dtype, void *x, int64_t n);
/* Converts the n elements of x from x_dtype to y_dtype and writes them to y, on the device. */
DsvStatus dsvi_dit_cast(const DsviDit *dit, int64_t n, DsviDtype x_dtype, const void *x, DsviDtype y_dtype,
                        void *y);

/* Computes y (rows, out) y_dtype from x (rows, in) linear->dtype. */
DsvStatus dsvi_dit_linear_fwd(const DsviDit *dit, const DsviDitLinear *linear, int64_t rows, const void *x,
                              DsviDtype y_dtype, void *y);
/* Computes the linear layer and GELU: z = x W^T + b and y = gelu(z), both (rows, out) linear->dtype. */
DsvStatus dsvi_dit_linear_gelu_fwd(const DsviDit *dit, const DsviDitLinear *linear, int64_t rows,
                                   const void *x, void *z, void *y);
/* What dsvi_dit_linear_bwd reads and writes. Device memory. */
typedef struct DsviDitLinearGrads {
    int64_t rows;
    const void *x;      /* (rows, in) linear->dtype: the input of the forward pass */
    const void *dy;     /* (rows, out) linear->dtype: gradient of the output */
    void *dx;           /* (rows, in) dx_dtype: gradient of the input; NULL: not computed */
    DsviDtype dx_dtype; /* linear->dtype or acc; ignored without dx */
    bool add_to_dx;     /* adds to dx instead of overwriting it */
} DsviDitLinearGrads;

/* Backward pass of dsvi_dit_linear_fwd: adds the gradients of weight and bias to the model's stored
 * gradients, and computes the gradient of the input. */
DsvStatus dsvi_dit_linear_bwd(const DsviDit *dit, const DsviDitLinear *linear,
                              const DsviDitLinearGrads *grads);
/* Like dsvi_dit_linear_bwd for an input x = gelu(z): overwrites the gradient dz (rows, in) linear->dtype of
 * z. */
DsvStatus dsvi_dit_linear_gelu_bwd(const DsviDit *dit, const DsviDitLinear *linear, int64_t rows,
                                   const void *z, const void *x, const void *dy, void *dz);

/* A LayerNorm of the residual stream, LN(x) (one_plus + scale) + shift. Mean and rstd are in scratch, where
 * the norm computed last leaves them: the backward pass computes the norm again directly before its own
 * backward pass. */
typedef struct DsviDitNorm {
    const void *x;             /* (B, S, C) acc */
    double one_plus;           /* 1 for modulated norms, 0 for the affine one */
    int64_t sample_stride;     /* elements from one sample's scale and shift to the next; 0: the same for
                                * all */
    const void *scale, *shift; /* (C) acc of the first sample */
    void *dscale, *dshift;     /* gradients of scale and shift, in the backward pass */
} DsviDitNorm;

/* Returns the norm of x whose shift and scale are rows `row` and `row` + 1 of a modulation (B, T, rows, C).
 */
DsviDitNorm dsvi_dit_modulated(const DsviDit *dit, const void *x, const void *modulation, void *dmodulation,
                               int64_t rows, int64_t row);
/* Returns the tokens of time `time` among this rank's tokens `first` to `end` - 1; all tokens if a sample has
 * one time. */
DsviTokenList dsvi_dit_tokens_of_time(const DsviDit *dit, int64_t time, int64_t first, int64_t end);
/* Limits a residual sum to the tokens `only` of time `time`, and gives it the gate of this time. */
void dsvi_dit_sum_of_time(const DsviDit *dit, int64_t time, DsviTokenList only, DsviGateResidualArgs *sum);
/* Writes the norm of norm->x to scratch.h. Unless `sum` is NULL, first computes norm->x as the residual sum
 * with these arguments. */
DsvStatus dsvi_dit_norm_fwd(const DsviDit *dit, const DsviDitNorm *norm, const DsviGateResidualArgs *sum);
/* Backward pass of a norm: computes the gradient of norm->x from scratch.dy and adds it to scratch.dx.
 * Unless `sum` is NULL, then computes the backward pass of this residual sum x + gate y, which comes before
 * the norm, and writes the gradient of y to scratch.dy. */
DsvStatus dsvi_dit_norm_bwd(const DsviDit *dit, const DsviDitNorm *norm, const DsviGateResidualArgs *sum);

/* The RMSNorm over all heads of q or k with `tokens` rows per sample, in x; `turn`: with RoPE. `place` is
 * that of the weight, and `rstd` receives the statistics. */
DsviRmsNormRopeArgs dsvi_dit_heads_norm(const DsviDit *dit, int64_t tokens, bool turn, const void *x,
                                        int64_t place, void *rstd);
DsvStatus dsvi_dit_heads_norm_fwd(const DsviDit *dit, DsviRmsNormRopeArgs args, void *y);
/* Backward pass of the norm of q or k, and of its RoPE: replaces dy, the gradient of the result, by dx in
 * place. Also sums the gradient of the bias of `linear`, the layer that computed x. */
DsvStatus dsvi_dit_heads_norm_bwd(const DsviDit *dit, DsviRmsNormRopeArgs args, const DsviDitLinear *linear,
                                  void *dy);
/* Returns a copy of the layer without bias, for a backward pass that does not compute the gradient of the
 * bias: the op that computed dy has summed the bias gradient already. */
DsviDitLinear dsvi_dit_without_bias(const DsviDitLinear *linear);

/* ---- dit_lora.c ---- */

/* Adds the LoRA's part of a linear layer: y += factor (x A^T) B^T, with x (rows, in) linear->dtype and
 * y (rows, out) y_dtype. */
DsvStatus dsvi_dit_lora_fwd(const DsviDit *dit, const DsviDitLinear *linear, int64_t rows, const void *x,
                            DsviDtype y_dtype, void *y);
/* Backward pass of dsvi_dit_lora_fwd: the gradients of A and B, and, if there is a dx, dx += factor (dy B) A.
 */
DsvStatus dsvi_dit_lora_bwd(const DsviDit *dit, const DsviDitLinear *linear, const DsviDitLinearGrads *grads);

/* ---- dit_attention.c ---- */

/* Returns the bytes of workspace that dense attention needs in DsviDitScratch.attention. */
size_t dsvi_dit_attention_workspace(const DsviDit *dit);
/* Dense attention of the queries of this rank's tokens over `keys` keys; `backward`: its gradients. */
DsvStatus dsvi_dit_attend_dense(const DsviDit *dit, int64_t keys, const DsviAttentionCall *args,
                                bool backward);

/* ---- dit_image.c ---- */

/* Computes embedded.image_states from the image rows. Does nothing in a model without image rows, as do the
 * other functions of this file. */
DsvStatus dsvi_dit_image_embed_fwd(const DsviDit *dit);
/* Computes the gradients of the embedding's weights, and dit->dimage, from scratch.dimage_states. */
DsvStatus dsvi_dit_image_embed_bwd(const DsviDit *dit);
/* Attention of a block's queries, in scratch.q, over the image rows. Sets *attended, the output of attention
 * over the text, to its sum with the result, in scratch.k. */
DsvStatus dsvi_dit_image_attend_fwd(const DsviDit *dit, int64_t block, const void **attended);
/* Computes this sum again. */
DsvStatus dsvi_dit_image_sum(const DsviDit *dit, int64_t block, const void **attended);
/* Backward pass of the attention over image rows: from the gradient of the output, in scratch.h, and the
 * queries in scratch.q, adds to scratch.dq and to scratch.dimage_states. Overwrites scratch.k. */
DsvStatus dsvi_dit_image_attend_bwd(const DsviDit *dit, int64_t block);

/* ---- dit_embed.c ---- */

/* Copies the patches of `target`, which the loss reads, to scratch.target_rows. */
DsvStatus dsvi_dit_target_rows(DsviDit *dit, const void *target);
/* Embeds latents (to residual[0]), timestep (to embedded.time and .modulation) and text (to .text_states). */
DsvStatus dsvi_dit_embed_fwd(DsviDit *dit, const void *latents, const void *timestep, const void *text);
/* Computes gradients of the embeddings' weights, dlatents and dtext from scratch.dx, dembedding, dtime and
 * dtext_states. dlatents and dtext may be NULL. */
DsvStatus dsvi_dit_embed_bwd(DsviDit *dit, void *dlatents, void *dtext);
/* Computes the model's output from the residual stream after the last block. */
DsvStatus dsvi_dit_head_fwd(DsviDit *dit, void *output);
/* Computes the loss from the residual stream after the last block. With shape.backward also writes the
 * gradient of the loss to scratch.dhead_rows. */
DsvStatus dsvi_dit_head_loss(DsviDit *dit, const DsviDitLoss *loss);
/* Backward pass of the head: adds gradients to those of the weights, to scratch.dx and to scratch.dtime.
 * `doutput` is the gradient of the output; NULL: the gradient that dsvi_dit_head_loss has written. */
DsvStatus dsvi_dit_head_bwd(DsviDit *dit, const void *doutput);

/* ---- dit_plan.c ---- */

/* Returns the bytes of the log-sum-exp of a block's self-attention. */
size_t dsvi_dit_lse_bytes(const DsviDit *dit);

/* ---- dit_stack.c: without a stack these functions do nothing and return DSV_OK ---- */

/* To be called in a forward pass before residual[block] is written, the input of a block or of the head:
 * sends what is kept of the block before it to the host, if that block is in the stack. */
DsvStatus dsvi_dit_stack_push(DsviDit *dit, int64_t block);
/* To be called before the backward pass of a block: makes the compute stream wait for what is kept of the
 * block, and fetches the block that comes next. */
DsvStatus dsvi_dit_stack_pop(DsviDit *dit, int64_t block);

/* ---- dit_block.c ---- */

/* Forward pass of a block, from residual[block] to the summands of residual[block + 1]. The norm that follows
 * the block, in the next block or the head, computes this last sum with the arguments of
 * dsvi_dit_block_sum. */
DsvStatus dsvi_dit_block_fwd(DsviDit *dit, int64_t block);
DsviGateResidualArgs dsvi_dit_block_sum(const DsviDit *dit, int64_t block);
/* Backward pass of a block: changes scratch.dx from the gradient of residual[block + 1] to the gradient of
 * residual[block], and adds to the gradients dembedding and dtext_states. The norm that follows the block
 * must have gone backward through the block's last sum with the arguments of dsvi_dit_block_sum_bwd.
 * dsvi_dit_block_sum_bwd returns NULL if `block` is -1, or if the block goes through the sum itself. */
DsvStatus dsvi_dit_block_bwd(DsviDit *dit, int64_t block);
const DsviGateResidualArgs *dsvi_dit_block_sum_bwd(const DsviDit *dit, int64_t block,
                                                   DsviGateResidualArgs *args);
/* Returns whether all activations of the block are kept from forward to backward pass. */
bool dsvi_dit_keeps_all(const DsviDit *dit, int64_t block);
/* Returns the largest number of rows that the feed-forward layer processes at once. */
int64_t dsvi_dit_ffn_rows(const DsviDit *dit);

#ifdef __cplusplus
}
#endif
#endif
