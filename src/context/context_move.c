/* Tokens for heads and back, inside a head group.
 *
 * Heads of one rank lie between those of others, so the ranks' parts are packed before they are sent, or
 * unpacked after; on the other side a rank's part of a sample is one stretch of memory, sent from there or
 * received there. Hence an exchange for each sample. The own part goes from one form to the other at once.
 * Of several tensors each is packed, or unpacked, while others travel. */
#include "context/context_internal.h"
#include "context/context_most.h"

static size_t elements_bytes(const DsvContextTensor *tensor, int64_t rows)
{
    return (size_t)(tensor->batch * rows * tensor->head_dim) * dsvi_dtype_size(tensor->dtype);
}

size_t dsvi_context_tokens_bytes(const DsvContext *c, const DsvContextTensor *tensor)
{
    return elements_bytes(tensor, dsvi_context_tokens(c) * c->shape.heads);
}

size_t dsvi_context_heads_bytes(const DsvContext *c, const DsvContextTensor *tensor)
{
    return elements_bytes(tensor, c->shape.rows_most);
}

size_t dsvi_context_move_bytes(const DsvContext *c, const DsvContextTensor *tensor)
{
    return c->group->size == 1 ? 0 : DSV_CONTEXT_TOGETHER * dsvi_context_tokens_bytes(c, tensor);
}

size_t dsvi_context_heads_room_bytes(const DsvContext *c, const DsvContextTensor *tensor)
{
    DsvContextMost most;
    for (int64_t i = 0; dsvi_context_most(c, i, &most); i++)
        if (most.head_ranks > 1)
            return dsvi_context_heads_bytes(c, tensor);
    return 0;
}

void *dsvi_context_heads_place(const DsvContext *c, int64_t block, const void *tokens, void *room)
{
    return c->block[block].plan.head_ranks == 1 ? (void *)tokens : room;
}

/* One move under way. */
typedef struct Move {
    const DsvContext *c;
    const DsvContextTensor *tensor;
    const DsvContextPlan *plan;
    DsvContextPart part;
    const int64_t *bound; /* (head_ranks + 1) tokens of the head group's ranks */
    int64_t tokens;       /* S_own */
    size_t size;          /* of an element */
} Move;

static Move begin(const DsvContext *c, int64_t block, const DsvContextTensor *tensor)
{
    Move m = {.c = c, .tensor = tensor, .plan = dsvi_context_plan(c, block),
              .part = dsvi_context_part(c, block), .tokens = dsvi_context_tokens(c),
              .size = dsvi_dtype_size(tensor->dtype)};
    m.bound = c->bound + m.part.sequence_index * m.part.head_ranks;
    return m;
}

static int64_t heads_of(const Move *m, int64_t head_rank)
{
    return m->plan->bound[head_rank + 1] - m->plan->bound[head_rank];
}

/* All samples' own tokens of a rank's heads, packed: (B, S_own, heads of the rank, D). */
static DsvHeads packed(const Move *m, void *workspace, int64_t head_rank)
{
    int64_t before = m->tensor->batch * m->tokens * m->plan->bound[head_rank] * m->tensor->head_dim;
    return dsvi_heads((char *)workspace + (size_t)before * m->size, m->tokens, heads_of(m, head_rank),
                      m->tensor->head_dim);
}

/* The rows of the heads form that hold the own tokens, or another rank's. */
static DsvHeads in_heads_form(const Move *m, const void *heads, int64_t head_rank)
{
    DsvHeads rows = dsvi_heads(heads, m->part.tokens, m->part.heads, m->tensor->head_dim);
    return dsvi_heads_from(&rows, m->bound[head_rank] - m->bound[0], m->size);
}

/* A rank's heads of the own tokens between the tokens form and where they lie together. */
static DsvStatus move_heads(const Move *m, int64_t head_rank, bool pack, const void *tokens,
                            DsvHeads together)
{
    const DsvBackend *backend = m->c->group->backend;
    const int32_t *head = m->plan->placement + m->plan->bound[head_rank];
    DsvHeads apart = dsvi_heads(tokens, m->tokens, m->c->shape.heads, m->tensor->head_dim);
    DsvHeadsMoveArgs args = {
        .batch = m->tensor->batch, .tokens = m->tokens, .heads = heads_of(m, head_rank),
        .head_dim = m->tensor->head_dim, .dtype = m->tensor->dtype,
        .from_head = pack ? head : NULL, .to_head = pack ? NULL : head,
        .from = pack ? apart : together, .to = pack ? together : apart,
    };
    return backend->ops.heads_move.run(backend->device->stream, &args);
}

/* The own heads, without a detour. */
static DsvStatus move_own_heads(const Move *m, bool pack, const void *tokens, const void *heads)
{
    return move_heads(m, m->part.head_index, pack, tokens, in_heads_form(m, heads, m->part.head_index));
}

static DsvStatus move_others_heads(const Move *m, bool pack, const void *tokens, void *workspace)
{
    for (int64_t r = 0; r < m->part.head_ranks; r++)
        if (r != m->part.head_index)
            DSVI_TRY(move_heads(m, r, pack, tokens, packed(m, workspace, r)));
    return DSV_OK;
}

/* `rows` x D elements from row (b, 0, 0) on. */
static DsvPiece piece_of(const Move *m, DsvHeads from, int64_t b, int64_t rows)
{
    return (DsvPiece){(char *)from.data + (size_t)(b * from.batch_stride) * m->size,
                      (size_t)(rows * m->tensor->head_dim) * m->size};
}

/* One sample: what the ranks have packed against what lies in heads form. */
static DsvStatus exchange(const Move *m, int64_t b, bool send_packed, const void *heads, void *workspace)
{
    DsvPiece *packs = send_packed ? m->c->send : m->c->receive;
    DsvPiece *others = send_packed ? m->c->receive : m->c->send;
    for (int64_t r = 0; r < m->part.head_ranks; r++) {
        int64_t tokens = m->bound[r + 1] - m->bound[r];
        others[r] = piece_of(m, in_heads_form(m, heads, r), b, tokens * m->part.heads);
        packs[r] = piece_of(m, packed(m, workspace, r), b, m->tokens * heads_of(m, r));
    }
    packs[m->part.head_index] = others[m->part.head_index]; /* is where it belongs */
    return dsvi_comm_exchange(m->part.head_device, m->c->send, m->c->receive);
}

static DsvStatus exchange_samples(const Move *m, bool send_packed, const void *heads, void *workspace)
{
    for (int64_t b = 0; b < m->tensor->batch; b++)
        DSVI_TRY(exchange(m, b, send_packed, heads, workspace));
    return DSV_OK;
}

/* Of tensor number i. */
static void *workspace_of(const Move *m, void *workspace, int64_t i)
{
    return (char *)workspace + (size_t)i * dsvi_context_tokens_bytes(m->c, m->tensor);
}

DsvStatus dsvi_context_to_heads(const DsvContext *c, int64_t block, const DsvContextTensor *tensor,
                                const DsvContextForms *forms, int64_t count, void *workspace)
{
    Move m = begin(c, block, tensor);
    if (m.part.head_ranks == 1)
        return DSV_OK;
    DSVI_ASSERT(count <= DSV_CONTEXT_TOGETHER);
    dsvi_comm_begin(m.part.head_device);
    for (int64_t i = 0; i < count; i++) {
        void *room = workspace_of(&m, workspace, i);
        DSVI_TRY(move_others_heads(&m, true, forms[i].tokens, room));
        DSVI_TRY(exchange_samples(&m, true, forms[i].heads, room));
    }
    for (int64_t i = 0; i < count; i++)
        DSVI_TRY(move_own_heads(&m, true, forms[i].tokens, forms[i].heads));
    return dsvi_comm_await(m.part.head_device);
}

DsvStatus dsvi_context_to_tokens(const DsvContext *c, int64_t block, const DsvContextTensor *tensor,
                                 const DsvContextForms *forms, int64_t count, void *workspace)
{
    Move m = begin(c, block, tensor);
    if (m.part.head_ranks == 1)
        return DSV_OK;
    DSVI_ASSERT(count <= DSV_CONTEXT_TOGETHER);
    dsvi_comm_begin(m.part.head_device);
    for (int64_t i = 0; i < count; i++)
        DSVI_TRY(exchange_samples(&m, false, forms[i].heads, workspace_of(&m, workspace, i)));
    for (int64_t i = 0; i < count; i++)
        DSVI_TRY(move_own_heads(&m, false, forms[i].tokens, forms[i].heads));
    for (int64_t i = 0; i < count; i++) {
        DSVI_TRY(dsvi_comm_follow(m.part.head_device, (i + 1) * tensor->batch));
        DSVI_TRY(move_others_heads(&m, false, forms[i].tokens, workspace_of(&m, workspace, i)));
    }
    return dsvi_comm_await(m.part.head_device);
}
