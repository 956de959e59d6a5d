/* Context parallelism: ranks that work on the same clips, each on a stretch of their tokens.
 *
 * A rank has the tokens [bound[rank], bound[rank + 1]) of every clip, and computes on them alone but for
 * self-attention. There the ranks of a block stand in sequence_ranks rows of head_ranks columns,
 *     rank = sequence_index * head_ranks + head_index.
 * A row is a *head group*: its ranks are neighbours and hold together one stretch of T tokens. For attention
 * they exchange tokens for heads, and each has the T tokens of some of the heads. A column is a *sequence
 * group*: its ranks have the same heads of different stretches, which together are all tokens.
 *
 *     heads form of a tensor      (B, T, N_own, D): a rank's own heads, in the order of its plan
 *     tokens form                 (B, S_own, N, D): its own tokens
 *     where head_ranks is 1 both are the same, and one memory serves as both
 *
 * What travels, in bytes that a rank sends (B samples, elements of e bytes), as counted by dsvi_comm_sent:
 *     to heads      B S_own (N - N_own) D e                    to the ranks of its head group
 *     to tokens     B (T - S_own) N_own D e                    likewise
 * and in dense attention of n > 1 sequence ranks, of which this is number i and T_j the tokens of number j
 * (counted round), with a bytes an element of acc:
 *     forward       2 B (S - T_(i+1)) N_own D e                keys and values, n - 1 times one stretch
 *     backward      the same, and 2 B (S - T_i) N_own D a      their gradients, n - 1 times one stretch
 * and where a tensor's heads forms are put together:
 *     gather        B (n - 1) T_i N_own D e                    to the ranks of its sequence group
 *     sum           B (S - T_i) N_own D e                      likewise
 *
 * Nothing is allocated after creation; device memory is the caller's, sized by the functions that say so. */
#ifndef DSVI_CONTEXT_H
#define DSVI_CONTEXT_H

#include "dist/comm.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the ranks ---- */

/* A rank's end of a context group and of all head groups and sequence groups inside it. Made once for a run;
 * serves clips of any size. */
typedef struct DsvContextGroup DsvContextGroup;

/* `host`: the ranks of the context group, in the order of their stretches; NULL: a rank alone. All of them
 * call. `host` and the backend stay the caller's and must outlive the group. head_ranks: of every plan there
 * will be, a divisor of the ranks: no groups are made for others; 0: plans may differ in it. */
DsvStatus dsvi_context_group_create(const DsvBackend *backend, DsvComm *host, int64_t head_ranks,
                                    DsvContextGroup **out);
void dsvi_context_group_close(DsvContextGroup **group);

int64_t dsvi_context_group_size(const DsvContextGroup *group);
int64_t dsvi_context_group_rank(const DsvContextGroup *group);
/* All its ranks: for host memory, and for the device's. NULL where a rank is alone. */
DsvComm *dsvi_context_group_host(const DsvContextGroup *group);
DsvComm *dsvi_context_group_device(const DsvContextGroup *group);

/* ---- who has what ---- */

/* The same on all ranks of the group. */
typedef struct DsvContextShape {
    int64_t tokens, heads; /* S, N of the model */
    int64_t unit;          /* stretches begin at multiples of it: groups of queries and runs of keys stay
                            * whole */
    int64_t blocks;
    int64_t head_ranks;    /* of every plan; 0: plans may differ in it */
    int64_t rows_most;     /* T x N_own that a plan may give one rank; 0: as many as even plans give */
} DsvContextShape;

/* How a block's attention is shared out. */
typedef struct DsvContextPlan {
    int64_t head_ranks, sequence_ranks; /* their product is the size of the group */
    const int32_t *placement;           /* (N) all heads, those of head index 0 first; in order (0, 1, 2 ...)
                                         * where head_ranks is 1 */
    const int64_t *bound;               /* (head_ranks + 1) head index i has placement[bound[i]] to
                                         * placement[bound[i + 1] - 1], at least one */
} DsvContextPlan;

/* A rank's part in a block's attention; what it points to stays until the block's plan is changed. */
typedef struct DsvContextPart {
    int64_t head_ranks, sequence_ranks, head_index, sequence_index;
    int64_t first, tokens; /* of the head group: T tokens from `first` on */
    int64_t heads;         /* N_own */
    const int32_t *head;   /* (N_own) which they are, in the order of the heads form */
    const int64_t *bound;  /* (sequence_ranks + 1) sequence index i has tokens bound[i] to bound[i + 1] - 1 */
    /* NULL where the group is this rank alone. */
    DsvComm *head_device;                    /* ranks by head index, for device memory */
    DsvComm *sequence_device, *sequence_host; /* ranks by sequence index */
} DsvContextPart;

typedef struct DsvContext DsvContext;

/* The stretches of tokens that ranks have, of whole units, as even as can be: bound (ranks + 1). DSV_E_USAGE
 * where there are fewer units than ranks. */
DsvStatus dsvi_context_stretches(int64_t tokens, int64_t unit, int64_t ranks, int64_t *bound);

/* DSV_E_USAGE where there are fewer units of tokens than ranks, fewer heads than head ranks, or head ranks
 * that do not divide the ranks. Every block begins with an even plan of as many head ranks as may be. `group`
 * must outlive it. */
DsvStatus dsvi_context_create(DsvContextGroup *group, const DsvContextShape *shape, DsvContext **out);
void dsvi_context_free(DsvContext **context);

const DsvContextShape *dsvi_context_shape(const DsvContext *context); /* its zeros replaced, but head_ranks */
const DsvContextGroup *dsvi_context_group(const DsvContext *context);
int64_t dsvi_context_ranks(const DsvContext *context);
int64_t dsvi_context_rank(const DsvContext *context);
/* The own stretch: S_own tokens from `first` on; bound (ranks + 1): of all ranks. */
int64_t dsvi_context_tokens(const DsvContext *context);
int64_t dsvi_context_first(const DsvContext *context);
const int64_t *dsvi_context_bound(const DsvContext *context);

/* Copies the plan; all ranks set the same. DSV_E_USAGE says what is wrong with it. */
DsvStatus dsvi_context_set_plan(DsvContext *context, int64_t block, const DsvContextPlan *plan);
/* Heads in order, shared out as evenly as may be. */
DsvStatus dsvi_context_set_even_plan(DsvContext *context, int64_t block, int64_t head_ranks);
const DsvContextPlan *dsvi_context_plan(const DsvContext *context, int64_t block);
DsvContextPart dsvi_context_part(const DsvContext *context, int64_t block);

/* ---- tokens for heads, and back ---- */

typedef struct DsvContextTensor {
    int64_t batch, head_dim; /* B, D */
    DsvDtype dtype;          /* any */
} DsvContextTensor;

/* Tensors of one shape may move together: one is packed while another travels. */
enum { DSV_CONTEXT_TOGETHER = 3 };

/* Both forms of one; the one that is not written is not written to. */
typedef struct DsvContextForms {
    void *tokens, *heads;
} DsvContextForms;

/* Bytes of device memory: for a tensor in tokens form, for one in heads form under any plan, and for what a
 * move of as many as may move together wants beside them (0 for a rank alone). */
size_t dsvi_context_tokens_bytes(const DsvContext *context, const DsvContextTensor *tensor);
size_t dsvi_context_heads_bytes(const DsvContext *context, const DsvContextTensor *tensor);
size_t dsvi_context_move_bytes(const DsvContext *context, const DsvContextTensor *tensor);

/* Where a tensor's heads form lies: in `room`, or in `tokens`, where both forms are the same. */
void *dsvi_context_heads_place(const DsvContext *context, int64_t block, const void *tokens, void *room);
/* Bytes of such a room; 0 where no plan wants it. */
size_t dsvi_context_heads_room_bytes(const DsvContext *context, const DsvContextTensor *tensor);

/* All ranks of the head group call, with as many tensors. Memory is the device's; `workspace` has
 * dsvi_context_move_bytes. Where both forms are the same they must be given as one memory, and nothing is
 * done. */
DsvStatus dsvi_context_to_heads(const DsvContext *context, int64_t block, const DsvContextTensor *tensor,
                                const DsvContextForms *forms, int64_t count, void *workspace);
DsvStatus dsvi_context_to_tokens(const DsvContext *context, int64_t block, const DsvContextTensor *tensor,
                                 const DsvContextForms *forms, int64_t count, void *workspace);

/* ---- all tokens of the own heads, (B, S, N_own, D), and back ---- */

/* Where they lie: in `room`, or where the heads form does, which is the same with one sequence rank. Bytes of
 * the room under any plan; 0 where none wants it. */
void *dsvi_context_all_place(const DsvContext *context, int64_t block, const void *heads, void *room);
size_t dsvi_context_all_room_bytes(const DsvContext *context, const DsvContextTensor *tensor);

/* All ranks of the sequence group call; memory is the device's. Where both are the same they must be given as
 * one memory, and nothing is done. `gather` puts the ranks' heads forms together. `sum` adds what the ranks
 * have in `all`, F32 or F64, and gives each its own stretch; `all` is overwritten, and `workspace` has
 * dsvi_context_sum_bytes and stays lent to the group (dsvi_comm_lend). */
DsvStatus dsvi_context_gather(const DsvContext *context, int64_t block, const DsvContextTensor *tensor,
                              const void *heads, void *all);
DsvStatus dsvi_context_sum(const DsvContext *context, int64_t block, const DsvContextTensor *tensor,
                           void *all, void *heads, void *workspace);
/* Under any plan. */
size_t dsvi_context_sum_bytes(const DsvContext *context);

/* ---- dense attention over all tokens ---- */

/* As in attention.h, of a rank's own tokens: q, k, v, out and their gradients are (B, S_own, N, D) act,
 * contiguous device memory. */
typedef struct DsvContextAttention {
    int64_t batch, head_dim;
    double scale;
    DsvDtype act, acc;
    const void *q, *k, *v;
    void *out;             /* written by forward, read by backward */
    void *lse;             /* (B, N_own, T) acc: likewise */
    /* backward only; dq, dk, dv are overwritten */
    const void *dout;
    void *dq, *dk, *dv;
    void *workspace;       /* 64-byte aligned */
    size_t workspace_bytes;
} DsvContextAttention;

/* Bytes of lse under any plan. */
size_t dsvi_context_lse_bytes(const DsvContext *context, int64_t batch, DsvDtype acc);
/* Workspace that the forward pass, or the backward pass, wants under any plan. Of `args` batch, head_dim, act
 * and acc are read. */
size_t dsvi_context_attend_bytes(const DsvContext *context, const DsvContextAttention *args, bool backward);

/* All ranks of the group call, under the same plan. Tokens become heads; then, where there are several
 * sequence ranks, keys and values go round their ring while each rank attends those it has; heads become
 * tokens. With one sequence rank every row gets the bits it has without context parallelism, given an op
 * that treats heads alike however many there are; with several, results of stretches of keys are rounded to
 * act each before they are summed in acc. */
DsvStatus dsvi_context_attend_fwd(const DsvContext *context, int64_t block, const DsvContextAttention *args);
DsvStatus dsvi_context_attend_bwd(const DsvContext *context, int64_t block, const DsvContextAttention *args);

#ifdef __cplusplus
}
#endif
#endif
