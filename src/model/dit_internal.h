/* What the pieces of the transformer share: the struct, and the small steps that blocks and embeddings are
 * made of. Read dit.c first, then dit_block.c. */
#ifndef DSVI_DIT_INTERNAL_H
#define DSVI_DIT_INTERNAL_H

#include "model/dit.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_DIT_NO_BIAS = -1 };

/* y = x W^T + b. Places are in elements, the same in all flat arrays. */
typedef struct DsvDitLinear {
    int64_t out, in;
    int64_t weight, bias; /* backward bias may be DSVI_DIT_NO_BIAS: who makes dy also sums it */
    DsvDtype dtype; /* of x and of the copy of W that multiplies it: act, or acc in the time embedder */
    bool begun;     /* backward: another product has gone into the weight's gradient, so this one is added */
} DsvDitLinear;

typedef struct DsvDitAttentionParams {
    DsvDitLinear q, k, v, o;
    int64_t norm_q, norm_k; /* places */
} DsvDitAttentionParams;

typedef struct DsvDitBlockParams {
    DsvDitAttentionParams self, cross;
    DsvDitLinear ffn_in, ffn_out;
    int64_t norm_weight, norm_bias; /* the affine norm before cross-attention */
    int64_t modulation;             /* (6, C) */
} DsvDitBlockParams;

typedef struct DsvDitParams {
    DsvDitLinear patch, text_in, text_out, time_in, time_out, time_projection, head;
    int64_t head_modulation;   /* (2, C) */
    DsvDitBlockParams *blocks; /* (num_layers) */
} DsvDitParams;

/* What a block's backward pass needs beside the block's input. The rest it computes again from these, for
 * the price of a pass over memory: norms (from the residual stream), q and k after norm and RoPE, and the
 * residual stream after self-attention (from its summands). */
typedef struct DsvDitSaved {
    void *q, *k, *v;            /* (B, S, C) act: self-attention, q and k before their norm */
    void *attended;             /* (B, S, C) act */
    void *lse;                  /* (B, N, S) acc; with a context as dsvi_context_lse_bytes says */
    void *cross_q;              /* (B, S, C) act: before its norm */
    void *cross_k, *cross_v;    /* (B, L, C) act: k before its norm */
    void *cross_attended;       /* (B, S, C) act */
    void *cross_lse;            /* (B, N, S) acc */
    void *ffn_hidden, *ffn_act; /* (B, S, ffn) act: before and after the activation; in scratch, and of a part
                                 * of the rows, unless all is kept */
    void *y_self, *y_ffn;       /* (B, S, C) act: what these sub-layers add, before their gates */
    void *x2;                   /* (B, S, C) acc: residual stream after cross-attention */
} DsvDitSaved;

/* Kept from the forward pass of embeddings and head to their backward pass; small but for patch_rows. */
typedef struct DsvDitEmbedded {
    void *patch_rows;              /* (B, S, in_channels * patch) act */
    void *text;                    /* (B, L, text_dim) act */
    void *text_hidden, *text_act;  /* (B, L, C) act: before and after GELU */
    void *context;                 /* (B, L, C) act: what cross-attention attends */
    void *time_row;                /* (B, freq_dim) acc */
    void *time_hidden, *time_act;  /* (B, C) acc: before and after SiLU */
    void *time, *time_silu;        /* (B, C) acc: e, and SiLU(e) */
    void *modulation;              /* (B, 6, C) acc: e0 */
    void *head_modulation;         /* (B, 2, C) acc */
} DsvDitEmbedded;

/* Lives inside one sub-layer, unless a comment says otherwise. What lies over what is said in dit_plan.c. */
typedef struct DsvDitScratch {
    void *x1;                /* (B, S, C) acc: residual stream after self-attention of a block */
    void *modulation;        /* (num_layers, B, 6, C) acc: of all blocks, from forward to backward */
    void *h;                 /* (B, S, C) act: a norm's output, then what cross-attention adds; before it is
                              * computed again in the backward pass, the gradient of attention's output */
    void *q, *k;             /* (B, S, C) act: after norm and RoPE */
    void *ffn_hidden, *ffn_act; /* (ffn_rows, ffn) act: of DsvDitSaved */
    void *cross_k;           /* (B, L, C) act: after norm */
    void *mean, *rstd;       /* (B, max(S, L)) acc: of the norm just computed */
    void *rstd_k;            /* (B, max(S, L)) acc: of k's, while rstd holds q's */
    void *head_rows;         /* (B, all_tokens, out_channels * patch) acc; with shape.loss (B, S, ...), and
                              * then the loss's gradient */
    void *target_rows;       /* the same of the target, from the begin of the pass; with shape.loss */
    void *attention;         /* workspace of attention that is not the sparse layer's */
    size_t attention_bytes;
    /* backward only */
    void *dx;                /* (B, S, C) acc: gradient of the residual stream, through the whole pass */
    void *dcontext;          /* (B, L, C) acc: grows over the blocks */
    void *dembedding;        /* (B, 6, C) acc: gradient of e0, grows over the blocks */
    void *dmodulation;       /* (num_layers, B, 6, C) acc */
    void *dy_sum;            /* (num_layers, C) acc: gradients of the biases of ffn_out */
    void *dhead_modulation;  /* (B, 2, C) acc */
    void *dtime;             /* (B, C) acc: gradient of e, from the head to the end */
    void *dtime_hidden;      /* (B, C) acc */
    void *dy;                /* (B, S, C) act: gradient of a sub-layer's output, then of its input */
    void *dq, *dk, *dv;      /* (B, S, C) act */
    void *dffn;              /* (ffn_rows, ffn) act */
    void *dcross_k, *dcross_v;       /* (B, L, C) act */
    void *dtext, *dtext_hidden;      /* (B, L, C) act */
    void *dhead_rows;        /* (B, S, out_channels * patch) act: from the loss to the head's backward pass */
    void *dpatch_rows;       /* (B, S, in_channels * patch) acc */
} DsvDitScratch;

struct DsvDit {
    DsvBackend *backend;
    DsvStream *stream;
    const DsvParamTable *table;
    DsvSparse *sparse; /* or NULL */
    DsvDitConfig config;
    DsvDitShape shape;
    DsvDtype act, acc;
    int64_t grid[3];                      /* tokens along frames, rows, columns */
    int64_t batch, tokens, text_len;      /* B, S, L; with a context S are the own tokens: */
    int64_t first, all_tokens;            /* from `first` on, of all that the samples have */
    int64_t width, heads, head_dim, ffn;  /* C, N, D */
    int64_t patch_in, patch_out;          /* elements of a token's patch, in and out */
    DsvDitParams params;

    DsvDitWeights weights;
    DsvDitStretch *stretch;               /* (table->stretches) where each lies; of those that are lent, good
                                           * between entering and leaving */
    int32_t *order;                       /* (all_tokens) device memory */
    void *rope_cos, *rope_sin;            /* (S, D / 2) acc */
    void **residual;                      /* (num_layers + 1) of (B, S, C) acc: input of each block, and of
                                           * the head; all the same buffer without backward */
    DsvDitSaved *saved;                   /* (num_layers); all the same buffers without backward, and those
                                           * that shape.keep leaves out */
    DsvDitEmbedded embedded;
    DsvDitScratch scratch;
    DsvDitRoom room;
};

/* ---- dit_parts.c ---- */

/* Element `place` of a flat or other array. */
void *dsvi_dit_at(const void *base, DsvDtype dtype, int64_t place);
/* A parameter in acc, and its gradient. */
const void *dsvi_dit_param(const DsvDit *dit, int64_t place);
void *dsvi_dit_grad(const DsvDit *dit, int64_t place);

DsvStatus dsvi_dit_zero(const DsvDit *dit, DsvDtype dtype, void *x, int64_t n);
DsvStatus dsvi_dit_cast(const DsvDit *dit, int64_t n, DsvDtype x_dtype, const void *x, DsvDtype y_dtype,
                        void *y);

/* y (rows, out) y_dtype from x (rows, in) linear->dtype. */
DsvStatus dsvi_dit_linear_fwd(const DsvDit *dit, const DsvDitLinear *linear, int64_t rows, const void *x,
                              DsvDtype y_dtype, void *y);
/* The same with a GELU after it: y = gelu(z), z and y (rows, out) linear->dtype. */
DsvStatus dsvi_dit_linear_gelu_fwd(const DsvDit *dit, const DsvDitLinear *linear, int64_t rows, const void *x,
                                   void *z, void *y);
/* Adds the gradients of weight and bias; dx (rows, in) dx_dtype is written, or added to, or NULL. */
DsvStatus dsvi_dit_linear_bwd(const DsvDit *dit, const DsvDitLinear *linear, int64_t rows, const void *x,
                              const void *dy, DsvDtype dx_dtype, void *dx, bool add_to_dx);
/* The same where x = gelu(z): dz (rows, in) linear->dtype is written. */
DsvStatus dsvi_dit_linear_gelu_bwd(const DsvDit *dit, const DsvDitLinear *linear, int64_t rows, const void *z,
                                   const void *x, const void *dy, void *dz);

/* A LayerNorm over the residual stream. Mean and rstd go through scratch: the backward pass computes h again,
 * just before. */
typedef struct DsvDitNorm {
    const void *x;              /* (B, S, C) acc */
    double one_plus;
    int64_t sample_stride;
    const void *scale, *shift;
    void *dscale, *dshift;      /* backward */
} DsvDitNorm;

/* LN(x) (1 + scale) + shift with shift and scale rows `row` and `row` + 1 of a modulation (B, rows, C). */
DsvDitNorm dsvi_dit_modulated(const DsvDit *dit, const void *x, const void *modulation, void *dmodulation,
                              int64_t rows, int64_t row);
/* To scratch.h; before that the sum that makes x, or NULL. */
DsvStatus dsvi_dit_norm_fwd(const DsvDit *dit, const DsvDitNorm *norm, const DsvGateResidualArgs *sum);
/* From scratch.dy; adds to scratch.dx. After that backward through the sum before the norm, or NULL: it
 * leaves its own dy in scratch.dy. */
DsvStatus dsvi_dit_norm_bwd(const DsvDit *dit, const DsvDitNorm *norm, const DsvGateResidualArgs *sum);

/* ---- dit_attention.c ---- */

/* Bytes of scratch.attention. */
size_t dsvi_dit_attention_workspace(const DsvDit *dit);
DsvStatus dsvi_dit_self_attend(DsvDit *dit, int64_t block, const DsvSparseAttention *args, bool backward);
DsvStatus dsvi_dit_cross_attend(DsvDit *dit, const DsvSparseAttention *args, bool backward);

/* ---- dit_embed.c ---- */

/* The target to target_rows. */
DsvStatus dsvi_dit_target_rows(DsvDit *dit, const void *target);
/* Latents to residual[0], timestep to time and modulation, text to context. */
DsvStatus dsvi_dit_embed_fwd(DsvDit *dit, const void *latents, const void *timestep, const void *text);
/* From dx, dembedding, dtime and dcontext. */
DsvStatus dsvi_dit_embed_bwd(DsvDit *dit, void *dlatents, void *dtext);
/* The last residual stream to the output. */
DsvStatus dsvi_dit_head_fwd(DsvDit *dit, void *output);
/* The last residual stream to the loss, and with backward to its gradient. */
DsvStatus dsvi_dit_head_loss(DsvDit *dit, const DsvDitLoss *loss);
/* Adds to dx and dtime. `doutput` may be NULL: what the loss left. */
DsvStatus dsvi_dit_head_bwd(DsvDit *dit, const void *doutput);

/* ---- dit_block.c ---- */

/* residual[block] to the summands of residual[block + 1]: the norm behind the block does the sum. */
DsvStatus dsvi_dit_block_fwd(DsvDit *dit, int64_t block);
DsvGateResidualArgs dsvi_dit_block_sum(const DsvDit *dit, int64_t block);
/* dx, from gradient of residual[block + 1] to that of residual[block]; adds to dembedding and dcontext. The
 * norm behind the block has gone back through the block's sum, where all of that is kept: if not, NULL. */
DsvStatus dsvi_dit_block_bwd(DsvDit *dit, int64_t block);
const DsvGateResidualArgs *dsvi_dit_block_sum_bwd(const DsvDit *dit, int64_t block,
                                                  DsvGateResidualArgs *args);
/* Whether each block has all its activations from forward to backward. */
bool dsvi_dit_keeps_all(const DsvDit *dit);
/* Rows that the feed-forward layer has at once, at most. */
int64_t dsvi_dit_ffn_rows(const DsvDit *dit);

#ifdef __cplusplus
}
#endif
#endif
