/* Context parallelism: ranks share clips, and each rank owns a range of the tokens of every clip.
 *
 * The ranks that share clips form a *cp group*. A rank owns the tokens [bound[rank], bound[rank + 1]) of
 * every clip, and computes everything except self-attention on these tokens alone. For the self-attention of
 * a block the ranks of the cp group form a grid of sequence_ranks rows and head_ranks columns:
 *     rank = sequence_index * head_ranks + head_index.
 * A row of the grid is a *head group*. Its ranks are consecutive, and together they own T consecutive tokens.
 * For attention they exchange tokens for heads (Ulysses: head-parallel attention with an all-to-all), so that
 * each rank has all T tokens of some heads. A column of the grid is a *sequence group*. Its ranks have the
 * same heads, and each has the T tokens of its own row. The rows together have all tokens.
 *
 *     heads form of a tensor      (B, T, N_own, D): the heads of this rank, in the order of its plan
 *     tokens form of a tensor     (B, S_own, N, D): the tokens of this rank
 *     If head_ranks is 1, both forms are the same and share memory.
 *
 * Bytes that a rank sends, as dsvi_comm_sent counts them (B samples, elements of e bytes):
 *     to heads      B S_own (N - N_own) D e                    to the other ranks of its head group
 *     to tokens     B (T - S_own) N_own D e                    to the other ranks of its head group
 * In dense attention with n > 1 sequence ranks, for the rank with sequence_index i, where row j has T_j
 * tokens (j modulo n), and elements of acc have a bytes:
 *     forward       2 B (S - T_(i+1)) N_own D e                keys and values of n - 1 rows
 *     backward      the same, and 2 B (S - T_i) N_own D a      gradients of keys and values of n - 1 rows
 * When the heads forms of a tensor are gathered or summed (dsvi_cp_gather, dsvi_cp_sum):
 *     gather        B (n - 1) T_i N_own D e                    to the other ranks of its sequence group
 *     sum           B (S - T_i) N_own D e                      to the other ranks of its sequence group
 *
 * Nothing is allocated after creation. The caller owns all device memory; functions named *_bytes give the
 * sizes. */
#ifndef DSVI_CP_H
#define DSVI_CP_H

#include "dist/comm.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the ranks ---- */

/* One rank's communicators for its context-parallel group (cp group), and for the head groups and sequence
 * groups inside the cp group. Created once for a run; serves clips of any size. */
typedef struct DsviCpGroup DsviCpGroup;

/* Called by all ranks of the cp group. `host` connects the ranks of the cp group, in the order of the
 * tokens that they own; NULL means that this rank is alone. The caller owns `host` and `backend`; both
 * must outlive the group. If head_ranks is not 0, it must divide the number of ranks, every plan must have
 * this value, and only the communicators for this value are created. If it is 0, plans may have any
 * head_ranks. */
DsvStatus dsvi_cp_group_create(const DsviBackend *backend, DsviComm *host, int64_t head_ranks,
                               DsviCpGroup **out);
void dsvi_cp_group_close(DsviCpGroup **group);

int64_t dsvi_cp_group_size(const DsviCpGroup *group);
int64_t dsvi_cp_group_rank(const DsviCpGroup *group);
/* Communicators of all ranks of the cp group, for host memory and for device memory. NULL if this rank is
 * alone. */
DsviComm *dsvi_cp_group_host(const DsviCpGroup *group);
DsviComm *dsvi_cp_group_device(const DsviCpGroup *group);

/* ---- which rank has which tokens and heads ---- */

/* Sizes of a clip and limits of plans; the same on all ranks of the cp group. */
typedef struct DsviCpClip {
    int64_t tokens, heads; /* S, N of the model */
    int64_t unit;          /* a rank's tokens begin at a multiple of `unit`, so that no group of queries, no
                            * span of keys and no run of a tail's keys is split between ranks */
    int64_t blocks;
    int64_t head_ranks; /* head_ranks of every plan; 0: plans may have different values of head_ranks */
    int64_t rows_max;   /* limit of T x N_own on each rank; raised to the largest value that an even plan
                         * needs, so 0 means this value */
} DsviCpClip;

/* How the ranks of the cp group divide one block's attention. */
typedef struct DsviCpPlan {
    int64_t head_ranks, sequence_ranks; /* their product is the size of the group */
    const int32_t *placement;           /* (N) all heads, first the heads of head_index 0; must be 0, 1, 2
                                         * ... if head_ranks is 1 */
    const int64_t *bound;               /* (head_ranks + 1) the ranks with head_index i have the heads
                                         * placement[bound[i]] to placement[bound[i + 1] - 1], at least one */
} DsviCpPlan;

/* The part of a block's attention that this rank computes. The arrays are valid until the block's plan is
 * changed. */
typedef struct DsviCpPart {
    int64_t head_ranks, sequence_ranks, head_index, sequence_index;
    int64_t first, tokens; /* the head group has the T = `tokens` tokens from `first` on */
    int64_t heads;         /* N_own */
    const int32_t *head;   /* (N_own) numbers of these heads, in the order of the heads form */
    const int64_t *bound;  /* (sequence_ranks + 1) row i has the tokens bound[i] to bound[i + 1] - 1 */
    /* Communicators; NULL if the group has this rank only. */
    DsviComm *head_device;                     /* the head group, ordered by head_index; device memory */
    DsviComm *sequence_device, *sequence_host; /* the sequence group, ordered by sequence_index */
} DsviCpPart;

typedef struct DsviCp DsviCp;

/* Divides `tokens` tokens into `ranks` ranges of whole units, as evenly as possible, and writes the first
 * token of each range to bound (ranks + 1). Returns DSV_E_USAGE if there are fewer units than ranks. */
DsvStatus dsvi_cp_shard_bounds(int64_t tokens, int64_t unit, int64_t ranks, int64_t *bound);

/* Creates the division of a clip among the ranks of `group`. Every block starts with an even plan of the
 * largest possible head_ranks. `group` must outlive *out. Returns DSV_E_USAGE if there are fewer units of
 * tokens than ranks, if there are fewer heads than shape->head_ranks, or if shape->head_ranks does not
 * divide the number of ranks. */
DsvStatus dsvi_cp_create(DsviCpGroup *group, const DsviCpClip *shape, DsviCp **out);
void dsvi_cp_free(DsviCp **cp);

const DsviCpClip *dsvi_cp_clip(const DsviCp *cp); /* the clip with which `cp` was created, but rows_max has
                                                   * its final value; head_ranks may be 0 */
const DsviCpGroup *dsvi_cp_group(const DsviCp *cp);
int64_t dsvi_cp_ranks(const DsviCp *cp);
int64_t dsvi_cp_rank(const DsviCp *cp);
/* This rank owns the S_own = dsvi_cp_tokens tokens from dsvi_cp_first on. Rank r owns the tokens bound[r] to
 * bound[r + 1] - 1, with bound (ranks + 1) from dsvi_cp_bound. */
int64_t dsvi_cp_tokens(const DsviCp *cp);
int64_t dsvi_cp_first(const DsviCp *cp);
const int64_t *dsvi_cp_bound(const DsviCp *cp);

/* Makes a copy of `plan` the block's plan. All ranks must set the same plan. Returns DSV_E_USAGE if the plan
 * is not valid. */
DsvStatus dsvi_cp_set_plan(DsviCp *cp, int64_t block, const DsviCpPlan *plan);
/* Sets the block's even plan with this head_ranks: each rank of a head group gets consecutive heads, in
 * numbers as equal as possible. */
DsvStatus dsvi_cp_set_even_plan(DsviCp *cp, int64_t block, int64_t head_ranks);
const DsviCpPlan *dsvi_cp_plan(const DsviCp *cp, int64_t block);
DsviCpPart dsvi_cp_part(const DsviCp *cp, int64_t block);

/* ---- Ulysses: exchange of tokens for heads, and back ---- */

typedef struct DsviCpTensor {
    int64_t batch, head_dim; /* B, D */
    DsviDtype dtype;         /* any */
} DsviCpTensor;

/* Limit of tensors that one call of dsvi_cp_to_heads or dsvi_cp_to_tokens exchanges. The tensors have the
 * same shape; one is packed while another is sent. */
enum { DSVI_CP_TENSORS_MAX = 3 };

/* The tokens form and the heads form of one tensor. dsvi_cp_to_heads reads `tokens` and writes `heads`;
 * dsvi_cp_to_tokens does the opposite. */
typedef struct DsviCpForms {
    void *tokens, *heads;
} DsviCpForms;

/* Return the bytes of device memory for a tensor in tokens form, for a tensor in heads form under any
 * plan, and for the workspace of an exchange of DSVI_CP_TENSORS_MAX tensors (0 if this rank is alone). */
size_t dsvi_cp_tokens_bytes(const DsviCp *cp, const DsviCpTensor *tensor);
size_t dsvi_cp_heads_bytes(const DsviCp *cp, const DsviCpTensor *tensor);
size_t dsvi_cp_move_bytes(const DsviCp *cp, const DsviCpTensor *tensor);

/* Returns the address of a tensor's heads form: `tokens` if tokens form and heads form are the same, else
 * `room`. */
void *dsvi_cp_heads_address(const DsviCp *cp, int64_t block, const void *tokens, void *room);
/* Bytes that the buffer `room` of dsvi_cp_heads_address needs under any plan; 0 if tokens form and heads
 * form are the same in every plan. */
size_t dsvi_cp_heads_buffer_bytes(const DsviCp *cp, const DsviCpTensor *tensor);

/* Called by all ranks of the head group, with the same `count`. All pointers are device memory; `workspace`
 * has dsvi_cp_move_bytes. If both forms are the same (dsvi_cp_heads_address), forms[i].tokens must equal
 * forms[i].heads, and the calls do nothing. */
DsvStatus dsvi_cp_to_heads(const DsviCp *cp, int64_t block, const DsviCpTensor *tensor,
                           const DsviCpForms *forms, int64_t count, void *workspace);
DsvStatus dsvi_cp_to_tokens(const DsviCp *cp, int64_t block, const DsviCpTensor *tensor,
                            const DsviCpForms *forms, int64_t count, void *workspace);

/* ---- gather of all tokens of this rank's heads, (B, S, N_own, D), and back ---- */

/* Returns the address of the gathered tensor: `heads` with one sequence rank, where the heads form already
 * has all tokens, else `room`. dsvi_cp_gathered_bytes returns the bytes that `room` needs under any plan; 0
 * if no plan needs it. */
void *dsvi_cp_gathered_address(const DsviCp *cp, int64_t block, const void *heads, void *room);
size_t dsvi_cp_gathered_bytes(const DsviCp *cp, const DsviCpTensor *tensor);

/* Called by all ranks of the sequence group; all pointers are device memory. With one sequence rank `heads`
 * must equal `all`, and the calls do nothing. dsvi_cp_gather concatenates the heads forms of the ranks along
 * the tokens. dsvi_cp_sum is a reduce-scatter of `all` (F32 or F64): each rank gets the sums for the T tokens
 * of its row in `heads`, and `all` is overwritten. `workspace` has dsvi_cp_sum_bytes; the communicator keeps
 * the pointer to it after the call (dsvi_comm_set_workspace in dist/comm.h). */
DsvStatus dsvi_cp_gather(const DsviCp *cp, int64_t block, const DsviCpTensor *tensor, const void *heads,
                         void *all);
DsvStatus dsvi_cp_sum(const DsviCp *cp, int64_t block, const DsviCpTensor *tensor, void *all, void *heads,
                      void *workspace);
/* Returns the bytes of the workspace of dsvi_cp_sum that suffice under any plan. */
size_t dsvi_cp_sum_bytes(const DsviCp *cp);

/* ---- attention over all tokens ---- */

/* Attention of this rank's queries to the keys of one row of the rank grid, when it is not dense attention.
 * Each function is called once for each row. `args` has this rank's T queries and the keys of row `row`, out
 * and lse of a partial result (forward) or of the result over all rows (backward), and no lists. Its
 * workspace suffices for dense attention only. As in ops/attention.h the forward pass overwrites out and lse,
 * the backward pass dq, dk and dv. */
typedef DsvStatus DsviCpRowFunction(void *context, int64_t row, const DsviAttentionArgs *args);
typedef struct DsviCpRowAttention {
    DsviCpRowFunction *forward, *backward;
    void *context;
} DsviCpRowAttention;

/* Arguments as in ops/attention.h, for the tokens of this rank: q, k, v, out and their gradients are
 * (B, S_own, N, D) act, contiguous device memory. */
typedef struct DsviCpAttention {
    int64_t batch, head_dim;
    double scale;
    DsviDtype act, acc;
    const void *q, *k, *v;
    void *out; /* written by forward, read by backward */
    void *lse; /* (B, N_own, T) acc; written by forward, read by backward */
    /* Only the backward pass reads dout and writes dq, dk and dv; it overwrites them. */
    const void *dout;
    void *dq, *dk, *dv;
    void *workspace; /* 64-byte aligned */
    size_t workspace_bytes;
    const DsviCpRowAttention *row_attention; /* NULL: dense attention */
} DsviCpAttention;

/* Bytes that DsviCpAttention.lse needs under any plan. */
size_t dsvi_cp_lse_bytes(const DsviCp *cp, int64_t batch, DsviDtype acc);
/* Bytes of workspace that the forward or backward pass needs under any plan. Reads batch, head_dim, act and
 * acc of `args`. */
size_t dsvi_cp_attend_bytes(const DsviCp *cp, const DsviCpAttention *args, bool backward);

/* Called by all ranks of the cp group, under the same plan. Each head group exchanges tokens for heads;
 * each sequence group computes ring attention (keys and values travel around a ring, while each rank
 * attends to the keys that it has); each head group exchanges heads for tokens. With one sequence rank the
 * result has the same bits as without context parallelism, if the attention op computes each head
 * independently of the number of heads. With several sequence ranks a rank computes one partial result for
 * the keys of each row of the rank grid; these partial results are rounded to the activation dtype and
 * then merged in the accumulation dtype. */
DsvStatus dsvi_cp_attend_fwd(const DsviCp *cp, int64_t block, const DsviCpAttention *args);
DsvStatus dsvi_cp_attend_bwd(const DsviCp *cp, int64_t block, const DsviCpAttention *args);

#ifdef __cplusplus
}
#endif
#endif
