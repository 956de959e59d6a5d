/* Ulysses: the exchange of tokens for heads, and back, inside a head group (dsvi_cp_to_heads and
 * dsvi_cp_to_tokens of cp.h).
 *
 * In tokens form the heads of different ranks are interleaved, so they are packed before sending or unpacked
 * after receiving. In heads form the tokens of one rank and one sample are contiguous, and are sent or
 * received in place: hence one exchange per sample. The part of a tensor that stays on this rank is copied
 * directly from one form to the other. With several tensors, one tensor is packed or unpacked while others
 * are sent. */
#include "cp/cp_internal.h"
#include "cp/cp_limits.h"

static size_t elements_bytes(const DsviCpTensor *tensor, int64_t rows)
{
    return (size_t)(tensor->batch * rows * tensor->head_dim) * dsvi_dtype_size(tensor->dtype);
}

size_t dsvi_cp_tokens_bytes(const DsviCp *c, const DsviCpTensor *tensor)
{
    return elements_bytes(tensor, dsvi_cp_tokens(c) * c->shape.heads);
}

size_t dsvi_cp_heads_bytes(const DsviCp *c, const DsviCpTensor *tensor)
{
    return elements_bytes(tensor, c->shape.rows_max);
}

size_t dsvi_cp_move_bytes(const DsviCp *c, const DsviCpTensor *tensor)
{
    return c->group->size == 1 ? 0 : DSVI_CP_TENSORS_MAX * dsvi_cp_tokens_bytes(c, tensor);
}

size_t dsvi_cp_heads_buffer_bytes(const DsviCp *c, const DsviCpTensor *tensor)
{
    DsviCpLimits limits;
    for (int64_t i = 0; dsvi_cp_limits(c, i, &limits); i++)
        if (limits.head_ranks > 1)
            return dsvi_cp_heads_bytes(c, tensor);
    return 0;
}

void *dsvi_cp_heads_address(const DsviCp *c, int64_t block, const void *tokens, void *room)
{
    return c->block[block].plan.head_ranks == 1 ? (void *)tokens : room;
}

/* State of one exchange. */
typedef struct Move {
    const DsviCp *c;
    const DsviCpTensor *tensor;
    const DsviCpPlan *plan;
    DsviCpPart part;
    const int64_t *bound; /* (head_ranks + 1) first token of each rank of the head group */
    int64_t tokens;       /* S_own */
    size_t size;          /* bytes of an element */
} Move;

static Move cp_move_begin(const DsviCp *c, int64_t block, const DsviCpTensor *tensor)
{
    Move m = {.c = c,
              .tensor = tensor,
              .plan = dsvi_cp_plan(c, block),
              .part = dsvi_cp_part(c, block),
              .tokens = dsvi_cp_tokens(c),
              .size = dsvi_dtype_size(tensor->dtype)};
    m.bound = c->bound + m.part.sequence_index * m.part.head_ranks;
    return m;
}

static int64_t cp_move_heads_of(const Move *m, int64_t head_rank)
{
    return m->plan->bound[head_rank + 1] - m->plan->bound[head_rank];
}

/* Returns a view of the packed buffer for the rank with head_index `head_rank`: (B, S_own, heads of that
 * rank, D), this rank's tokens. */
static DsviHeads cp_move_packed(const Move *m, void *workspace, int64_t head_rank)
{
    int64_t before = m->tensor->batch * m->tokens * m->plan->bound[head_rank] * m->tensor->head_dim;
    return dsvi_heads((char *)workspace + (size_t)before * m->size, m->tokens, cp_move_heads_of(m, head_rank),
                      m->tensor->head_dim);
}

/* Returns a view of the part of the heads form that holds the tokens of the rank with head_index
 * `head_rank`. */
static DsviHeads cp_move_in_heads_form(const Move *m, const void *heads, int64_t head_rank)
{
    DsviHeads rows = dsvi_heads(heads, m->part.tokens, m->part.heads, m->tensor->head_dim);
    return dsvi_heads_from(&rows, m->bound[head_rank] - m->bound[0], m->size);
}

/* Copies the heads that belong to the rank with head_index `head_rank`, for this rank's tokens. `pack` true:
 * from the tokens form to `in_one_place`, a view in which these heads are contiguous; false: back. */
static DsvStatus move_heads(const Move *m, int64_t head_rank, bool pack, const void *tokens,
                            DsviHeads in_one_place)
{
    const DsviBackend *backend = m->c->group->backend;
    const int32_t *head = m->plan->placement + m->plan->bound[head_rank];
    DsviHeads in_tokens_form = dsvi_heads(tokens, m->tokens, m->c->shape.heads, m->tensor->head_dim);
    DsviHeadsMoveArgs args = {
        .batch = m->tensor->batch,
        .tokens = m->tokens,
        .heads = cp_move_heads_of(m, head_rank),
        .head_dim = m->tensor->head_dim,
        .dtype = m->tensor->dtype,
        .from_head = pack ? head : NULL,
        .to_head = pack ? NULL : head,
        .from = pack ? in_tokens_form : in_one_place,
        .to = pack ? in_one_place : in_tokens_form,
    };
    return backend->ops.heads_move.run(backend->device->stream, &args);
}

/* Copies this rank's heads of this rank's tokens directly between tokens form and heads form. */
static DsvStatus move_own_heads(const Move *m, bool pack, const void *tokens, const void *heads)
{
    return move_heads(m, m->part.head_index, pack, tokens,
                      cp_move_in_heads_form(m, heads, m->part.head_index));
}

static DsvStatus move_others_heads(const Move *m, bool pack, const void *tokens, void *workspace)
{
    for (int64_t r = 0; r < m->part.head_ranks; r++)
        if (r != m->part.head_index)
            DSVI_TRY(move_heads(m, r, pack, tokens, cp_move_packed(m, workspace, r)));
    return DSV_OK;
}

/* Returns the piece (address and bytes) of `rows` x D elements that begins at sample b of `from`. */
static DsviPiece piece_of(const Move *m, DsviHeads from, int64_t b, int64_t rows)
{
    return (DsviPiece){(char *)from.data + (size_t)(b * from.batch_stride) * m->size,
                       (size_t)(rows * m->tensor->head_dim) * m->size};
}

/* Exchanges sample b with the other ranks of the head group. `send_packed` true: sends packed pieces and
 * receives into the heads form; false: sends from the heads form and receives packed pieces. */
static DsvStatus cp_move_exchange(const Move *m, int64_t b, bool send_packed, const void *heads,
                                  void *workspace)
{
    DsviPiece *packs = send_packed ? m->c->send : m->c->receive;
    DsviPiece *others = send_packed ? m->c->receive : m->c->send;
    for (int64_t r = 0; r < m->part.head_ranks; r++) {
        int64_t tokens = m->bound[r + 1] - m->bound[r];
        others[r] = piece_of(m, cp_move_in_heads_form(m, heads, r), b, tokens * m->part.heads);
        packs[r] = piece_of(m, cp_move_packed(m, workspace, r), b, m->tokens * cp_move_heads_of(m, r));
    }
    packs[m->part.head_index] = others[m->part.head_index]; /* copied by move_own_heads */
    return dsvi_comm_exchange(m->part.head_device, m->c->send, m->c->receive);
}

static DsvStatus exchange_samples(const Move *m, bool send_packed, const void *heads, void *workspace)
{
    for (int64_t b = 0; b < m->tensor->batch; b++)
        DSVI_TRY(cp_move_exchange(m, b, send_packed, heads, workspace));
    return DSV_OK;
}

/* Returns the address of the packed buffers of tensor i in the workspace. */
static void *cp_move_workspace_of(const Move *m, void *workspace, int64_t i)
{
    return (char *)workspace + (size_t)i * dsvi_cp_tokens_bytes(m->c, m->tensor);
}

DsvStatus dsvi_cp_to_heads(const DsviCp *c, int64_t block, const DsviCpTensor *tensor,
                           const DsviCpForms *forms, int64_t count, void *workspace)
{
    Move m = cp_move_begin(c, block, tensor);
    if (m.part.head_ranks == 1)
        return DSV_OK;
    DSVI_ASSERT(count <= DSVI_CP_TENSORS_MAX);
    dsvi_comm_begin_async(m.part.head_device);
    for (int64_t i = 0; i < count; i++) {
        void *room = cp_move_workspace_of(&m, workspace, i);
        DSVI_TRY(move_others_heads(&m, true, forms[i].tokens, room));
        DSVI_TRY(exchange_samples(&m, true, forms[i].heads, room));
    }
    for (int64_t i = 0; i < count; i++)
        DSVI_TRY(move_own_heads(&m, true, forms[i].tokens, forms[i].heads));
    return dsvi_comm_wait_async(m.part.head_device);
}

DsvStatus dsvi_cp_to_tokens(const DsviCp *c, int64_t block, const DsviCpTensor *tensor,
                            const DsviCpForms *forms, int64_t count, void *workspace)
{
    Move m = cp_move_begin(c, block, tensor);
    if (m.part.head_ranks == 1)
        return DSV_OK;
    DSVI_ASSERT(count <= DSVI_CP_TENSORS_MAX);
    dsvi_comm_begin_async(m.part.head_device);
    for (int64_t i = 0; i < count; i++)
        DSVI_TRY(exchange_samples(&m, false, forms[i].heads, cp_move_workspace_of(&m, workspace, i)));
    for (int64_t i = 0; i < count; i++)
        DSVI_TRY(move_own_heads(&m, false, forms[i].tokens, forms[i].heads));
    for (int64_t i = 0; i < count; i++) {
        DSVI_TRY(dsvi_comm_stream_wait(m.part.head_device, (i + 1) * tensor->batch));
        DSVI_TRY(move_others_heads(&m, false, forms[i].tokens, cp_move_workspace_of(&m, workspace, i)));
    }
    return dsvi_comm_wait_async(m.part.head_device);
}
