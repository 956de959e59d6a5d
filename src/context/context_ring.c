/* Dense attention over a sequence group: stretches of keys and values go round a ring, from each rank to the
 * next, and every rank attends with its queries each stretch that it has at a time.
 *
 *     forward, rank i of n      step   0   1   ...  n-1       backward    step   0   1   ...  n-1
 *     attends stretch                  i  i-1  ...  i+1                         i-1  i-2 ...   i
 *
 * Forward: the next stretch comes while one is attended. Results are merged as they come (attention_merge).
 * Backward: gradients of a stretch's keys and values are sums over all queries, and travel with it in acc:
 * each rank adds its part and hands them on. A rank begins with the stretch of the rank before it and ends
 * with its own, so that these sums arrive where they belong with the last step, and travel once less than if
 * it began with its own; for that the first stretch is waited for. The sums that come are those that this
 * step's part is added to: they, and the next stretch, travel while attention computes the part.
 *
 * On a GPU a step's transfers begin before its attention is enqueued, whose kernels would leave them no room;
 * what they read and overwrite was finished with before. */
#include "context/context_internal.h"

static int64_t tokens_of(const Attend *a, int64_t stretch)
{
    return a->part.bound[stretch + 1] - a->part.bound[stretch];
}

static int64_t round_to(const Attend *a, int64_t stretch)
{
    int64_t n = a->part.sequence_ranks;
    return (stretch % n + n) % n;
}

static int64_t elements_of(const Attend *a, int64_t stretch)
{
    return a->heads.batch * tokens_of(a, stretch) * a->part.heads * a->heads.head_dim;
}

/* `stretch` goes to the next rank, while the one before it comes from the rank before. */
static DsvStatus hop(const Attend *a, int64_t stretch, DsvDtype dtype, const void *send, void *receive)
{
    int64_t i = a->part.sequence_index, coming = round_to(a, stretch - 1);
    size_t size = dsvi_dtype_size(dtype);
    DsvPiece out = {(void *)send, (size_t)elements_of(a, stretch) * size};
    DsvPiece in = {receive, (size_t)elements_of(a, coming) * size};
    return dsvi_comm_swap(a->part.sequence_device, round_to(a, i + 1), out, round_to(a, i - 1), in);
}

/* Keys and values of a stretch, the own one or one in the room. */
typedef struct KeyValues {
    int64_t stretch;
    const void *keys, *values;
} KeyValues;

static KeyValues own_stretch(const Attend *a)
{
    return (KeyValues){a->part.sequence_index, a->heads.k, a->heads.v};
}

static DsvStatus hop_keys(const Attend *a, KeyValues now, int place, KeyValues *next)
{
    const Room *room = &a->room;
    *next = (KeyValues){round_to(a, now.stretch - 1), room->keys[place], room->values[place]};
    DSVI_TRY(hop(a, now.stretch, a->heads.act, now.keys, room->keys[place]));
    return hop(a, now.stretch, a->heads.act, now.values, room->values[place]);
}

static DsvAttentionArgs op_args(const Attend *a, const KeyValues *now)
{
    DsvAttentionArgs op = dsvi_context_op_args(a, tokens_of(a, now->stretch));
    op.k.data = (void *)now->keys;
    op.v.data = (void *)now->values;
    return op;
}

/* ---- forward ---- */

static DsvStatus merge(const Attend *a, bool first, bool last)
{
    const DsvBackend *backend = a->c->group->backend;
    const DsvContextAttention *h = &a->heads;
    int64_t tokens = a->part.tokens, heads = a->part.heads;
    DsvAttentionMergeArgs args = {
        .batch = h->batch, .heads = heads, .queries = tokens, .head_dim = h->head_dim,
        .act = h->act, .acc = h->acc,
        .from_dtype = first ? h->act : h->acc, .to_dtype = last ? h->act : h->acc,
        .from = dsvi_heads(first ? h->out : a->room.sum, tokens, heads, h->head_dim),
        .part = dsvi_heads(a->room.part_out, tokens, heads, h->head_dim),
        .to = dsvi_heads(last ? h->out : a->room.sum, tokens, heads, h->head_dim),
        .lse = h->lse, .part_lse = a->room.part_lse,
    };
    return backend->ops.attention_merge.run(backend->device->stream, &args);
}

/* The first stretch's result goes where the joint one will be. */
static DsvStatus attend_stretch(const Attend *a, int64_t step, const KeyValues *now)
{
    const DsvBackend *backend = a->c->group->backend;
    DsvAttentionArgs op = op_args(a, now);
    if (step > 0) {
        op.out.data = a->room.part_out;
        op.lse = a->room.part_lse;
    }
    DSVI_TRY(backend->ops.attention_fwd.run(backend->device->stream, &op));
    return step == 0 ? DSV_OK : merge(a, step == 1, step == a->part.sequence_ranks - 1);
}

static DsvStatus forward_step(const Attend *a, int64_t step, KeyValues *now)
{
    DsvComm *comm = a->part.sequence_device;
    KeyValues next;
    if (step == a->part.sequence_ranks - 1)
        return attend_stretch(a, step, now);
    dsvi_comm_begin(comm);
    DSVI_TRY(hop_keys(a, *now, step % 2, &next));
    DSVI_TRY(attend_stretch(a, step, now));
    *now = next;
    return dsvi_comm_await(comm);
}

DsvStatus dsvi_context_ring_fwd(const Attend *a)
{
    KeyValues now = own_stretch(a);
    for (int64_t step = 0; step < a->part.sequence_ranks; step++)
        DSVI_TRY(forward_step(a, step, &now));
    return DSV_OK;
}

/* ---- backward ---- */

/* sum = part, or sum += part: n elements of act to acc or back. */
static DsvStatus add(const Attend *a, int64_t n, bool to_act, bool overwrite, const void *part, void *sum)
{
    const DsvBackend *backend = a->c->group->backend;
    DsvDtype act = a->heads.act, acc = a->heads.acc;
    DsvAddArgs args = {.n = n, .a = 1, .b = overwrite ? 0 : 1, .x_dtype = to_act ? acc : act,
                       .y_dtype = to_act ? act : acc, .x = part, .y = sum};
    return backend->ops.add.run(backend->device->stream, &args);
}

/* dq of the queries over all stretches so far is in sum_dq; the last part is where all has to be. */
static DsvStatus add_dq(const Attend *a, int64_t step)
{
    int64_t n = elements_of(a, a->part.sequence_index);
    bool last = step == a->part.sequence_ranks - 1;
    return last ? add(a, n, true, false, a->room.sum_dq, a->heads.dq)
                : add(a, n, false, step == 0, a->heads.dq, a->room.sum_dq);
}

static DsvStatus attend_stretch_back(const Attend *a, int64_t step, const KeyValues *now)
{
    const DsvBackend *backend = a->c->group->backend;
    bool last = step == a->part.sequence_ranks - 1;
    DsvAttentionArgs op = op_args(a, now);
    op.dk.data = last ? a->heads.dk : a->room.part_dk;
    op.dv.data = last ? a->heads.dv : a->room.part_dv;
    DSVI_TRY(backend->ops.attention_bwd.run(backend->device->stream, &op));
    return add_dq(a, step);
}

/* What travels during a step: the stretch of the next, unless that is the own one; and the sums for this. */
static DsvStatus travel_back(const Attend *a, int64_t step, KeyValues now, KeyValues *next)
{
    const Room *room = &a->room;
    int64_t n = a->part.sequence_ranks, place = step % 2, earlier = round_to(a, now.stretch + 1);
    *next = own_stretch(a);
    if (step < n - 2)
        DSVI_TRY(hop_keys(a, now, 1 - (int)place, next));
    if (step == 0)
        return DSV_OK;
    DSVI_TRY(hop(a, earlier, a->heads.acc, room->sum_dk[1 - place], room->sum_dk[place]));
    return hop(a, earlier, a->heads.acc, room->sum_dv[1 - place], room->sum_dv[place]);
}

/* The part of this step to the sums that came, or these to the last part. */
static DsvStatus add_parts(const Attend *a, int64_t step, int64_t stretch)
{
    const Room *room = &a->room;
    int64_t n = elements_of(a, stretch), place = step % 2;
    if (step == a->part.sequence_ranks - 1) {
        DSVI_TRY(add(a, n, true, false, room->sum_dk[place], a->heads.dk));
        return add(a, n, true, false, room->sum_dv[place], a->heads.dv);
    }
    DSVI_TRY(add(a, n, false, step == 0, room->part_dk, room->sum_dk[place]));
    return add(a, n, false, step == 0, room->part_dv, room->sum_dv[place]);
}

static DsvStatus backward_step(const Attend *a, int64_t step, KeyValues *now)
{
    DsvComm *comm = a->part.sequence_device;
    KeyValues next;
    dsvi_comm_begin(comm);
    DSVI_TRY(travel_back(a, step, *now, &next));
    DSVI_TRY(attend_stretch_back(a, step, now));
    DSVI_TRY(dsvi_comm_await(comm));
    DSVI_TRY(add_parts(a, step, now->stretch));
    *now = next;
    return DSV_OK;
}

DsvStatus dsvi_context_ring_bwd(const Attend *a)
{
    KeyValues now;
    dsvi_comm_begin(a->part.sequence_device);
    DSVI_TRY(hop_keys(a, own_stretch(a), 0, &now));
    DSVI_TRY(dsvi_comm_await(a->part.sequence_device));
    for (int64_t step = 0; step < a->part.sequence_ranks; step++)
        DSVI_TRY(backward_step(a, step, &now));
    return DSV_OK;
}
