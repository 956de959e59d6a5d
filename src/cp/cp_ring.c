/* Ring attention: attention over the ranks of a sequence group. A *shard* is the keys and values of one
 * rank's heads and its head group's tokens; rank i of the sequence group owns shard i. The shards travel
 * around a ring, from each rank to the next, and every rank attends with its queries to one shard per step.
 *
 *     forward, rank i of n      step   0   1   ...  n-1       backward    step   0   1   ...  n-1
 *     attends to shard                 i  i-1  ...  i+1                         i-1  i-2 ...   i
 *
 * Forward: the next shard is received while attention reads the present one. The results over the shards are
 * merged with the op attention_merge. Backward: the gradients of a shard's keys and values are sums over the
 * queries of all ranks. These sums travel with the shard, in the accumulation dtype; each rank adds its part
 * and passes them on. A rank begins with the shard of the previous rank and ends with its own shard, so that
 * the complete sums arrive at the owner in the last step. The sums of gradients then travel once less than if
 * each rank began with its own shard. In exchange, the transfer of the first shard does not overlap with
 * attention. While attention computes a step's part, the sums to which this part is added are received, and
 * the next shard too.
 *
 * On a GPU the transfers of a step are enqueued before its attention kernels, which would otherwise occupy
 * all multiprocessors. The buffers that the transfers read and overwrite are no longer in use at that
 * time. */
#include "cp/cp_internal.h"

static int64_t tokens_of(const DsviCpCall *a, int64_t shard)
{
    return a->part.bound[shard + 1] - a->part.bound[shard];
}

static int64_t ring_index(const DsviCpCall *a, int64_t shard)
{
    int64_t n = a->part.sequence_ranks;
    return (shard % n + n) % n;
}

static int64_t elements_of(const DsviCpCall *a, int64_t shard)
{
    return a->heads.batch * tokens_of(a, shard) * a->part.heads * a->heads.head_dim;
}

/* Sends `shard` to the next rank and receives the shard with the previous number from the previous rank. */
static DsvStatus hop(const DsviCpCall *a, int64_t shard, DsviDtype dtype, const void *send, void *receive)
{
    int64_t i = a->part.sequence_index, arriving = ring_index(a, shard - 1);
    size_t size = dsvi_dtype_size(dtype);
    DsviPiece out = {(void *)send, (size_t)elements_of(a, shard) * size};
    DsviPiece in = {receive, (size_t)elements_of(a, arriving) * size};
    return dsvi_comm_send_receive(a->part.sequence_device, ring_index(a, i + 1), out, ring_index(a, i - 1),
                                  in);
}

/* The keys and values of one shard, which this rank owns or has received. */
typedef struct KeyValues {
    int64_t shard;
    const void *keys, *values;
} KeyValues;

static KeyValues own_shard(const DsviCpCall *a)
{
    return (KeyValues){a->part.sequence_index, a->heads.k, a->heads.v};
}

static DsvStatus hop_keys(const DsviCpCall *a, KeyValues now, int slot, KeyValues *next)
{
    const DsviCpBuffers *room = &a->room;
    *next = (KeyValues){ring_index(a, now.shard - 1), room->keys[slot], room->values[slot]};
    DSVI_TRY(hop(a, now.shard, a->heads.act, now.keys, room->keys[slot]));
    return hop(a, now.shard, a->heads.act, now.values, room->values[slot]);
}

static DsviAttentionArgs op_args(const DsviCpCall *a, const KeyValues *now)
{
    DsviAttentionArgs op = dsvi_cp_op_args(a, tokens_of(a, now->shard));
    op.k.data = (void *)now->keys;
    op.v.data = (void *)now->values;
    return op;
}

/* ---- forward ---- */

static DsvStatus cp_ring_merge(const DsviCpCall *a, bool first, bool last)
{
    const DsviBackend *backend = a->c->group->backend;
    const DsviCpAttention *h = &a->heads;
    int64_t tokens = a->part.tokens, heads = a->part.heads;
    DsviAttentionMergeArgs args = {
        .batch = h->batch,
        .heads = heads,
        .queries = tokens,
        .head_dim = h->head_dim,
        .act = h->act,
        .acc = h->acc,
        .from_dtype = first ? h->act : h->acc,
        .to_dtype = last ? h->act : h->acc,
        .from = dsvi_heads(first ? h->out : a->room.sum, tokens, heads, h->head_dim),
        .part = dsvi_heads(a->room.part_out, tokens, heads, h->head_dim),
        .to = dsvi_heads(last ? h->out : a->room.sum, tokens, heads, h->head_dim),
        .lse = h->lse,
        .part_lse = a->room.part_lse,
    };
    return backend->ops.attention_merge.run(backend->device->stream, &args);
}

/* Computes attention of this rank's queries to one shard of keys. The result of the first step is written to
 * `out`; later results are merged into it. */
static DsvStatus attend_shard(const DsviCpCall *a, int64_t step, const KeyValues *now)
{
    DsviAttentionArgs op = op_args(a, now);
    if (step > 0) {
        op.out.data = a->room.part_out;
        op.lse = a->room.part_lse;
    }
    DSVI_TRY(dsvi_cp_attend_row(a, now->shard, &op));
    return step == 0 ? DSV_OK : cp_ring_merge(a, step == 1, step == a->part.sequence_ranks - 1);
}

static DsvStatus forward_step(const DsviCpCall *a, int64_t step, KeyValues *now)
{
    DsviComm *comm = a->part.sequence_device;
    KeyValues next;
    if (step == a->part.sequence_ranks - 1)
        return attend_shard(a, step, now);
    dsvi_comm_begin_async(comm);
    DSVI_TRY(hop_keys(a, *now, step % 2, &next));
    DSVI_TRY(attend_shard(a, step, now));
    *now = next;
    return dsvi_comm_wait_async(comm);
}

DsvStatus dsvi_cp_ring_fwd(const DsviCpCall *a)
{
    KeyValues now = own_shard(a);
    for (int64_t step = 0; step < a->part.sequence_ranks; step++)
        DSVI_TRY(forward_step(a, step, &now));
    return DSV_OK;
}

/* ---- backward ---- */

/* sum = part (overwrite), or sum += part, for n elements. `part` has the activation dtype and `sum` the
 * accumulation dtype, or with to_act the opposite. */
static DsvStatus cp_ring_add(const DsviCpCall *a, int64_t n, bool to_act, bool overwrite, const void *part,
                             void *sum)
{
    const DsviBackend *backend = a->c->group->backend;
    DsviDtype act = a->heads.act, acc = a->heads.acc;
    DsviAddArgs args = {.n = n,
                        .a = 1,
                        .b = overwrite ? 0 : 1,
                        .x_dtype = to_act ? acc : act,
                        .y_dtype = to_act ? act : acc,
                        .x = part,
                        .y = sum};
    return backend->ops.add.run(backend->device->stream, &args);
}

/* Adds the dq that this ring step has computed to the sum of earlier steps, sum_dq. The last step instead
 * adds sum_dq to its own dq, which attention has written to the result, a->heads.dq. */
static DsvStatus cp_ring_add_dq(const DsviCpCall *a, int64_t step)
{
    int64_t n = elements_of(a, a->part.sequence_index);
    bool last = step == a->part.sequence_ranks - 1;
    return last ? cp_ring_add(a, n, true, false, a->room.sum_dq, a->heads.dq)
                : cp_ring_add(a, n, false, step == 0, a->heads.dq, a->room.sum_dq);
}

static DsvStatus attend_shard_bwd(const DsviCpCall *a, int64_t step, const KeyValues *now)
{
    bool last = step == a->part.sequence_ranks - 1;
    DsviAttentionArgs op = op_args(a, now);
    op.dk.data = last ? a->heads.dk : a->room.part_dk;
    op.dv.data = last ? a->heads.dv : a->room.part_dv;
    DSVI_TRY(dsvi_cp_attend_row_bwd(a, now->shard, &op));
    return cp_ring_add_dq(a, step);
}

/* Enqueues the transfers of one step of the backward pass: the keys and values of the next step, unless they
 * are this rank's own, and the sums of gradients to which this step adds. */
static DsvStatus backward_transfers(const DsviCpCall *a, int64_t step, KeyValues now, KeyValues *next)
{
    const DsviCpBuffers *room = &a->room;
    int64_t n = a->part.sequence_ranks, slot = step % 2, earlier = ring_index(a, now.shard + 1);
    *next = own_shard(a);
    if (step < n - 2)
        DSVI_TRY(hop_keys(a, now, 1 - (int)slot, next));
    if (step == 0)
        return DSV_OK;
    DSVI_TRY(hop(a, earlier, a->heads.acc, room->sum_dk[1 - slot], room->sum_dk[slot]));
    return hop(a, earlier, a->heads.acc, room->sum_dv[1 - slot], room->sum_dv[slot]);
}

/* Adds the dk and dv that this ring step has computed to the sums received from the previous rank. The last
 * step instead adds these sums to its own dk and dv, which attention has written to the results, a->heads.dk
 * and dv. */
static DsvStatus cp_ring_add_parts(const DsviCpCall *a, int64_t step, int64_t shard)
{
    const DsviCpBuffers *room = &a->room;
    int64_t n = elements_of(a, shard), slot = step % 2;
    if (step == a->part.sequence_ranks - 1) {
        DSVI_TRY(cp_ring_add(a, n, true, false, room->sum_dk[slot], a->heads.dk));
        return cp_ring_add(a, n, true, false, room->sum_dv[slot], a->heads.dv);
    }
    DSVI_TRY(cp_ring_add(a, n, false, step == 0, room->part_dk, room->sum_dk[slot]));
    return cp_ring_add(a, n, false, step == 0, room->part_dv, room->sum_dv[slot]);
}

static DsvStatus backward_step(const DsviCpCall *a, int64_t step, KeyValues *now)
{
    DsviComm *comm = a->part.sequence_device;
    KeyValues next;
    dsvi_comm_begin_async(comm);
    DSVI_TRY(backward_transfers(a, step, *now, &next));
    DSVI_TRY(attend_shard_bwd(a, step, now));
    DSVI_TRY(dsvi_comm_wait_async(comm));
    DSVI_TRY(cp_ring_add_parts(a, step, now->shard));
    *now = next;
    return DSV_OK;
}

DsvStatus dsvi_cp_ring_bwd(const DsviCpCall *a)
{
    KeyValues now;
    dsvi_comm_begin_async(a->part.sequence_device);
    DSVI_TRY(hop_keys(a, own_shard(a), 0, &now));
    DSVI_TRY(dsvi_comm_wait_async(a->part.sequence_device));
    for (int64_t step = 0; step < a->part.sequence_ranks; step++)
        DSVI_TRY(backward_step(a, step, &now));
    return DSV_OK;
}
