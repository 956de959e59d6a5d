/* Types and functions that only the sources of src/cp use. */
#ifndef DSVI_CP_INTERNAL_H
#define DSVI_CP_INTERNAL_H

#include "cp/cp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One factorisation of the number of ranks into sequence_ranks x head_ranks, with the communicators of this
 * rank's head group and sequence group; NULL for a group of one rank. */
typedef struct DsviCpFactor {
    int64_t head_ranks, sequence_ranks;
    DsviComm *head_host, *head_device, *sequence_host, *sequence_device;
} DsviCpFactor;

struct DsviCpGroup {
    const DsviBackend *backend;
    DsviComm *host, *device;
    int64_t rank, size;
    int64_t factors;
    DsviCpFactor *factor; /* (factors) by ascending head_ranks */
};

/* Returns the factorisation with this head_ranks; NULL if head_ranks does not divide the ranks, or if the
 * group was created for another head_ranks. */
const DsviCpFactor *dsvi_cp_factor(const DsviCpGroup *group, int64_t head_ranks);

/* The plan of one block, with the arrays that it points to. */
typedef struct DsviCpBlockPlan {
    DsviCpPlan plan;         /* points to `placement` and `bound` below */
    int32_t *placement;      /* (heads) */
    int64_t *bound;          /* (ranks + 1) */
    int64_t *sequence_bound; /* (ranks + 1) first token of each row of the grid */
} DsviCpBlockPlan;

struct DsviCp {
    DsviCpGroup *group;
    DsviCpClip shape;
    int64_t *bound;            /* (ranks + 1) first token of each rank */
    DsviCpBlockPlan *block;    /* (blocks) */
    DsviPiece *send, *receive; /* (ranks) each; scratch of an exchange */
    int64_t *elements;         /* (ranks + 1) scratch of dsvi_cp_sum */
};

/* Returns whether plans may divide the ranks into a grid of factor->sequence_ranks x factor->head_ranks. */
bool dsvi_cp_allows(const DsviCp *cp, const DsviCpFactor *factor);
/* Returns the largest number of tokens of a head group with this head_ranks. */
int64_t dsvi_cp_longest(const DsviCp *cp, int64_t head_ranks);

/* ---- attention over the tokens of all ranks ---- */

/* The buffers in the workspace of an attention call. "rows act": B rows_max D elements of the activation
 * dtype, the largest heads form of a tensor under any plan; "rows acc": as many elements of the
 * accumulation dtype. */
typedef struct DsviCpBuffers {
    void *q, *k, *v, *out, *dout, *dq, *dk, *dv; /* heads forms, rows act; NULL if head_ranks is 1 */
    void *staging;                               /* workspace of exchanges of tokens for heads */
    void *keys[2], *values[2];                   /* keys and values of other ranks, rows act: attention uses
                                                  * one buffer while the other is received */
    void *part_out, *part_lse; /* attention over the keys of one row of the rank grid (rows act), and its
                                * log-sum-exp in the accumulation dtype */
    void *sum;                 /* merged result so far, rows acc */
    /* rows act: this rank's gradients for the keys and values of one row of the rank grid */
    void *part_dk, *part_dv;
    void *sum_dk[2], *sum_dv[2]; /* gradients of travelling keys, rows acc: one is sent while
                                  * the other is received */
    void *sum_dq;                /* rows acc: sum of dq so far */
    void *op;                    /* workspace of the attention op */
    size_t op_bytes;
} DsviCpBuffers;

/* State of one call of attention over all ranks' tokens. */
typedef struct DsviCpCall {
    const DsviCp *c;
    int64_t block;
    DsviCpPart part;
    DsviCpBuffers room;
    DsviCpAttention heads; /* the call's arguments with tensors in heads form: (B, T, N_own, D) */
} DsviCpCall;

/* Returns arguments of the ordinary attention op for this rank's T queries and `keys` keys. The caller sets
 * k, v, dk, dv, and out and lse if the result is not to be written to a->heads. */
DsviAttentionArgs dsvi_cp_op_args(const DsviCpCall *a, int64_t keys);
/* Attends to the keys of one row of the rank grid: densely, or as DsviCpAttention.row_attention does. */
DsvStatus dsvi_cp_attend_row(const DsviCpCall *a, int64_t row, const DsviAttentionArgs *args);
DsvStatus dsvi_cp_attend_row_bwd(const DsviCpCall *a, int64_t row, const DsviAttentionArgs *args);
DsvStatus dsvi_cp_ring_fwd(const DsviCpCall *a);
DsvStatus dsvi_cp_ring_bwd(const DsviCpCall *a);

#ifdef __cplusplus
}
#endif
#endif
