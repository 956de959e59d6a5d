/* Keys of other ranks, all of them or those that lists name: what gathering all costs in attention, and what
 * both cost without it. */
#include "api/bench_context_parts.h"
#include "device/carve.h"

static int64_t row_elements(const DsvContextBench *b)
{
    return b->heads.heads * b->heads.head_dim;
}

static size_t row_bytes(const DsvContextBench *b)
{
    return (size_t)row_elements(b) * dsvi_dtype_size(b->act);
}

static DsvAttentionArgs all_args(const DsvContextBench *b, const DsvLists *lists)
{
    int64_t own = dsvi_context_tokens(b->context), keys = b->heads.tokens;
    int64_t heads = b->heads.heads, dim = b->heads.head_dim;
    const DsvSparseAttention *p = &b->pass;
    const DsvAllKeys *all = &b->all;
    return (DsvAttentionArgs){
        .batch = 1, .heads = heads, .queries = own, .keys = keys, .head_dim = dim, .scale = p->scale,
        .act = b->act, .acc = DSV_F32, .lists = lists,
        .q = dsvi_heads(p->q, own, heads, dim), .k = dsvi_heads(all->k, keys, heads, dim),
        .v = dsvi_heads(all->v, keys, heads, dim), .out = dsvi_heads(p->out, own, heads, dim), .lse = p->lse,
        .dout = dsvi_heads(p->dout, own, heads, dim), .dq = dsvi_heads(p->dq, own, heads, dim),
        .dk = dsvi_heads(all->dk, keys, heads, dim), .dv = dsvi_heads(all->dv, keys, heads, dim),
        .workspace = all->workspace, .workspace_bytes = all->workspace_bytes,
    };
}

/* ---- memory ---- */

static void carve_all(DsvContextBench *b, DsvArena *arena)
{
    DsvAllKeys *all = &b->all;
    size_t bytes = (size_t)b->heads.tokens * row_bytes(b);
    size_t own = (size_t)dsvi_context_tokens(b->context) * row_bytes(b);
    all->k = dsvi_arena_take(arena, DSV_MEM_DATA, bytes);
    all->v = dsvi_arena_take(arena, DSV_MEM_DATA, bytes);
    all->dk = dsvi_arena_take(arena, DSV_MEM_DATA, bytes);
    all->dv = dsvi_arena_take(arena, DSV_MEM_DATA, bytes);
    all->received = dsvi_arena_take(arena, DSV_MEM_DATA, (size_t)dsvi_context_ranks(b->context) * own);
    all->workspace = dsvi_arena_take(arena, DSV_MEM_SCRATCH, all->workspace_bytes);
}

/* As many rows as there may be: all of the others', and the own ones for every other rank. */
static void carve_listed(DsvContextBench *b, DsvArena *arena)
{
    DsvListedKeys *l = &b->listed;
    int64_t ranks = dsvi_context_ranks(b->context), pairs = b->heads.heads, grain = b->settings.sparse_grain;
    int64_t runs = (b->heads.tokens + grain - 1) / grain;
    int64_t own = (dsvi_context_tokens(b->context) + grain - 1) / grain, far = runs - own;
    int64_t lists = pairs * ((dsvi_context_tokens(b->context) + b->settings.sparse_group - 1) /
                             b->settings.sparse_group);
    size_t slots = (size_t)(2 * pairs * grain * b->heads.head_dim) * dsvi_dtype_size(b->act);
    size_t needs = (size_t)dsvi_rows_needs_words(pairs, ranks, runs) * sizeof(uint32_t);
    size_t wants = (size_t)dsvi_rows_wants_words(pairs, ranks, own) * sizeof(uint32_t);
    size_t firsts = (size_t)(ranks * (pairs + 1)) * sizeof(int64_t);
    l->memory.needs_marks = dsvi_arena_take(arena, DSV_MEM_SCRATCH, needs);
    l->memory.wants_marks = dsvi_arena_take(arena, DSV_MEM_SCRATCH, wants);
    l->memory.needs_before = dsvi_arena_take(arena, DSV_MEM_SCRATCH, needs);
    l->memory.wants_before = dsvi_arena_take(arena, DSV_MEM_SCRATCH, wants);
    l->memory.needs_first = dsvi_arena_take(arena, DSV_MEM_SCRATCH, firsts);
    l->memory.wants_first = dsvi_arena_take(arena, DSV_MEM_SCRATCH, firsts);
    l->memory.sent = dsvi_arena_take(arena, DSV_MEM_SCRATCH, (size_t)((ranks - 1) * own) * slots);
    l->memory.received = dsvi_arena_take(arena, DSV_MEM_SCRATCH, (size_t)far * slots);
    l->compact = dsvi_arena_take(arena, DSV_MEM_SCRATCH, (size_t)far * slots);
    l->near.offsets = dsvi_arena_take(arena, DSV_MEM_SCRATCH, (size_t)(lists + 1) * sizeof(int64_t));
    l->far.offsets = dsvi_arena_take(arena, DSV_MEM_SCRATCH, (size_t)(lists + 1) * sizeof(int64_t));
    l->memory.host_first = l->host_first;
}

static void carve(void *of, DsvArena *arena)
{
    DsvContextBench *b = of;
    carve_all(b, arena);
    carve_listed(b, arena);
}

static size_t workspace_of_all(const DsvContextBench *b, const DsvLists *lists)
{
    const DsvOps *ops = &b->backend.ops;
    DsvAttentionArgs args = all_args(b, lists);
    size_t forward = DSVI_OP_WORKSPACE(ops->attention_list_fwd, b->backend.device->stream, &args);
    size_t backward = DSVI_OP_WORKSPACE(ops->attention_list_bwd, b->backend.device->stream, &args);
    return forward > backward ? forward : backward;
}

DsvStatus dsvi_context_bench_keys_open(DsvContextBench *b)
{
    DsvDevice *device = b->backend.device;
    int64_t ranks = dsvi_context_ranks(b->context);
    size_t firsts = (size_t)(2 * ranks * (b->heads.heads + 1)) * sizeof(int64_t);
    DSVI_TRY(device->host_alloc(device, firsts, &b->listed.host_first));
    b->all.workspace_bytes = workspace_of_all(b, dsvi_sparse_lists(b->sparse, 0));
    return dsvi_device_carve(b->backend.device, carve, b, &b->more);
}

/* ---- all keys ---- */

DsvStatus dsvi_all_keys_gather(DsvContextBench *b)
{
    DsvContextPart part = dsvi_context_part(b->context, 0);
    DSVI_TRY(dsvi_comm_all_gather_from(part.sequence_device, b->pass.k, b->all.k, row_bytes(b), part.bound));
    return dsvi_comm_all_gather_from(part.sequence_device, b->pass.v, b->all.v, row_bytes(b), part.bound);
}

/* Every rank's part of the gradient of the own keys to here, where they are summed. */
static DsvStatus send_home(DsvContextBench *b, void *all, void *own)
{
    DsvContextPart part = dsvi_context_part(b->context, 0);
    DsvPiece send[DSV_RUN_PARTS_MOST], receive[DSV_RUN_PARTS_MOST];
    DsvDevice *device = b->backend.device;
    int64_t self = part.sequence_index;
    size_t row = row_bytes(b), bytes = (size_t)part.tokens * row;
    for (int64_t j = 0; j < part.sequence_ranks; j++) {
        send[j] = (DsvPiece){(char *)all + (size_t)part.bound[j] * row,
                             j == self ? 0 : (size_t)(part.bound[j + 1] - part.bound[j]) * row};
        receive[j] = (DsvPiece){(char *)b->all.received + (size_t)j * bytes, j == self ? 0 : bytes};
    }
    DSVI_TRY(dsvi_comm_exchange(part.sequence_device, send, receive));
    DSVI_TRY(device->copy(device->stream, own, (char *)all + (size_t)part.first * row, bytes));
    for (int64_t j = 0; j < part.sequence_ranks; j++) {
        DsvAddArgs args = {
            .n = part.tokens * row_elements(b), .a = 1, .b = 1, .x_dtype = b->act, .y_dtype = b->act,
            .x = receive[j].data, .y = own,
        };
        if (j != self)
            DSVI_TRY(b->backend.ops.add.run(device->stream, &args));
    }
    return DSV_OK;
}

DsvStatus dsvi_all_keys_home(DsvContextBench *b)
{
    DSVI_TRY(send_home(b, b->all.dk, b->pass.dk));
    return send_home(b, b->all.dv, b->pass.dv);
}

DsvStatus dsvi_all_keys_forward(DsvContextBench *b)
{
    DsvAttentionArgs args = all_args(b, dsvi_sparse_lists(b->sparse, 0));
    DSVI_TRY(dsvi_all_keys_gather(b));
    return b->backend.ops.attention_list_fwd.run(b->backend.device->stream, &args);
}

DsvStatus dsvi_all_keys_backward(DsvContextBench *b)
{
    DsvAttentionArgs args = all_args(b, dsvi_sparse_lists(b->sparse, 0));
    DSVI_TRY(b->backend.ops.attention_list_bwd.run(b->backend.device->stream, &args));
    return dsvi_all_keys_home(b);
}

/* ---- listed keys ---- */

DsvStatus dsvi_listed_keys_mark(DsvContextBench *b)
{
    DsvListedKeys *l = &b->listed;
    DsvDevice *device = b->backend.device;
    DsvContextPart part = dsvi_context_part(b->context, 0);
    const DsvLists *lists = dsvi_sparse_lists(b->sparse, 0);
    const DsvRowsShape shape = {b->heads.tokens, 1, b->settings.sparse_grain, b->heads.head_dim, b->act};
    DSVI_TRY(dsvi_rows_begin(&b->backend, &part, &shape, &l->memory, &l->exchange));
    dsvi_lists_shape_half(lists, &l->near);
    dsvi_lists_shape_half(lists, &l->far);
    DsvListDivideArgs args = {
        .lists = lists, .runs = &l->exchange.needs, .self = part.sequence_index, .near = &l->near,
        .far = &l->far,
    };
    DSVI_TRY(b->backend.ops.lists_divide.run(device->stream, &args));
    DSVI_TRY(dsvi_rows_marks(&l->exchange));
    DSVI_TRY(device->sync(device->stream));
    dsvi_rows_measure(&l->exchange);
    return DSV_OK;
}

/* The values behind the keys in memory for the rows of both. */
static void *values_of(const DsvContextBench *b, void *rows)
{
    return (char *)rows + (size_t)b->listed.exchange.far_keys * row_bytes(b);
}

DsvStatus dsvi_listed_keys_fetch(DsvContextBench *b)
{
    DsvListedKeys *l = &b->listed;
    DSVI_TRY(dsvi_rows_fetch_begin(&l->exchange, b->pass.k, b->pass.v));
    return dsvi_rows_fetch_end(&l->exchange, l->compact, values_of(b, l->compact));
}

DsvStatus dsvi_listed_keys_home(DsvContextBench *b)
{
    DsvListedKeys *l = &b->listed;
    void *rows = l->memory.received;
    DSVI_TRY(dsvi_rows_home_begin(&l->exchange, rows, values_of(b, rows), l->compact));
    return dsvi_rows_home_end(&l->exchange, b->pass.dk, b->pass.dv);
}
