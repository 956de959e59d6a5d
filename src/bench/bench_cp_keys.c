/* Benchmarks for ranks that divide the tokens: attention over lists with an all-gather of all keys; and only
 * the transfers, either of all keys or of the keys that lists name. */
#include "bench/bench_cp_parts.h"
#include "device/carve.h"

static int64_t row_elements(const DsviCpBench *b)
{
    return b->heads.heads * b->heads.head_dim;
}

static size_t bench_cp_keys_row_bytes(const DsviCpBench *b)
{
    return (size_t)row_elements(b) * dsvi_dtype_size(b->act);
}

static DsviAttentionArgs all_keys_args(const DsviCpBench *b, const DsviLists *lists)
{
    int64_t local = dsvi_cp_tokens(b->cp), keys = b->heads.tokens;
    int64_t heads = b->heads.heads, dim = b->heads.head_dim;
    const DsviAttentionCall *p = &b->pass;
    const DsviAllKeys *all = &b->all;
    return (DsviAttentionArgs){
        .batch = 1,
        .heads = heads,
        .queries = local,
        .keys = keys,
        .head_dim = dim,
        .scale = p->scale,
        .act = b->act,
        .acc = DSVI_F32,
        .lists = lists,
        .q = dsvi_heads(p->q, local, heads, dim),
        .k = dsvi_heads(all->k, keys, heads, dim),
        .v = dsvi_heads(all->v, keys, heads, dim),
        .out = dsvi_heads(p->out, local, heads, dim),
        .lse = p->lse,
        .dout = dsvi_heads(p->dout, local, heads, dim),
        .dq = dsvi_heads(p->dq, local, heads, dim),
        .dk = dsvi_heads(all->dk, keys, heads, dim),
        .dv = dsvi_heads(all->dv, keys, heads, dim),
        .workspace = all->workspace,
        .workspace_bytes = all->workspace_bytes,
    };
}

/* ---- memory ---- */

static void carve_all(DsviCpBench *b, DsviArena *arena)
{
    DsviAllKeys *all = &b->all;
    size_t bytes = (size_t)b->heads.tokens * bench_cp_keys_row_bytes(b);
    size_t local = (size_t)dsvi_cp_tokens(b->cp) * bench_cp_keys_row_bytes(b);
    all->k = dsvi_arena_take(arena, DSVI_MEM_DATA, bytes);
    all->v = dsvi_arena_take(arena, DSVI_MEM_DATA, bytes);
    all->dk = dsvi_arena_take(arena, DSVI_MEM_DATA, bytes);
    all->dv = dsvi_arena_take(arena, DSVI_MEM_DATA, bytes);
    all->received = dsvi_arena_take(arena, DSVI_MEM_DATA, (size_t)dsvi_cp_ranks(b->cp) * local);
    all->workspace = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, all->workspace_bytes);
}

/* Takes memory from the arena for the largest possible exchange of keys: this rank requests all keys of other
 * ranks, and each other rank requests all keys of this rank. */
static void carve_listed(DsviCpBench *b, DsviArena *arena)
{
    DsviListedKeys *l = &b->listed;
    int64_t ranks = dsvi_cp_ranks(b->cp), pairs = b->heads.heads, grain = b->settings.sparse_grain;
    int64_t spans = (b->heads.tokens + grain - 1) / grain;
    int64_t local = (dsvi_cp_tokens(b->cp) + grain - 1) / grain, far = spans - local;
    int64_t lists = pairs *
                    ((dsvi_cp_tokens(b->cp) + b->settings.sparse_group - 1) / b->settings.sparse_group);
    size_t slots = (size_t)(2 * pairs * grain * b->heads.head_dim) * dsvi_dtype_size(b->act);
    size_t needs = (size_t)dsvi_rows_needs_words(pairs, ranks, spans) * sizeof(uint32_t);
    size_t wants = (size_t)dsvi_rows_served_words(pairs, ranks, local) * sizeof(uint32_t);
    size_t firsts = (size_t)(ranks * (pairs + 1)) * sizeof(int64_t);
    l->memory.needs_marks = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, needs);
    l->memory.served_marks = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, wants);
    l->memory.needs_before = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, needs);
    l->memory.served_before = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, wants);
    l->memory.needs_first = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, firsts);
    l->memory.served_first = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, firsts);
    l->memory.sent = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, (size_t)((ranks - 1) * local) * slots);
    l->memory.received = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, (size_t)far * slots);
    l->compact = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, (size_t)far * slots);
    l->near.offsets = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, (size_t)(lists + 1) * sizeof(int64_t));
    l->far.offsets = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, (size_t)(lists + 1) * sizeof(int64_t));
    l->memory.host_first = l->host_first;
}

static void bench_cp_keys_carve(void *context, DsviArena *arena)
{
    DsviCpBench *b = context;
    carve_all(b, arena);
    carve_listed(b, arena);
}

static size_t all_keys_workspace(const DsviCpBench *b, const DsviLists *lists)
{
    DsviAttentionArgs args = all_keys_args(b, lists);
    return dsvi_sparse_args_workspace(b->sparse, &args);
}

DsvStatus dsvi_cp_bench_keys_open(DsviCpBench *b)
{
    DsviDevice *device = b->backend.device;
    int64_t ranks = dsvi_cp_ranks(b->cp);
    size_t firsts = (size_t)(2 * ranks * (b->heads.heads + 1)) * sizeof(int64_t);
    DSVI_TRY(device->host_alloc(device, firsts, &b->listed.host_first));
    b->all.workspace_bytes = all_keys_workspace(b, dsvi_sparse_lists(b->sparse, 0));
    return dsvi_device_alloc_layout(b->backend.device, bench_cp_keys_carve, b, &b->more);
}

/* ---- all keys ---- */

DsvStatus dsvi_all_keys_gather(DsviCpBench *b)
{
    DsviCpPart part = dsvi_cp_part(b->cp, 0);
    DSVI_TRY(dsvi_comm_all_gather_from(part.sequence_device, b->pass.k, b->all.k, bench_cp_keys_row_bytes(b),
                                       part.bound));
    return dsvi_comm_all_gather_from(part.sequence_device, b->pass.v, b->all.v, bench_cp_keys_row_bytes(b),
                                     part.bound);
}

/* Sends the gradients of other ranks' keys in `all` to these ranks, and sums the gradients of this rank's
 * keys from all ranks in `local`. */
static DsvStatus return_gradients(DsviCpBench *b, void *all, void *local)
{
    DsviCpPart part = dsvi_cp_part(b->cp, 0);
    DsviPiece send[DSVI_SPAN_PARTS_MAX], receive[DSVI_SPAN_PARTS_MAX];
    DsviDevice *device = b->backend.device;
    int64_t self = part.sequence_index;
    size_t row = bench_cp_keys_row_bytes(b), bytes = (size_t)part.tokens * row;
    for (int64_t j = 0; j < part.sequence_ranks; j++) {
        send[j] = (DsviPiece){(char *)all + (size_t)part.bound[j] * row,
                              j == self ? 0 : (size_t)(part.bound[j + 1] - part.bound[j]) * row};
        receive[j] = (DsviPiece){(char *)b->all.received + (size_t)j * bytes, j == self ? 0 : bytes};
    }
    DSVI_TRY(dsvi_comm_exchange(part.sequence_device, send, receive));
    DSVI_TRY(device->copy(device->stream, local, (char *)all + (size_t)part.first * row, bytes));
    for (int64_t j = 0; j < part.sequence_ranks; j++) {
        DsviAddArgs args = {
            .n = part.tokens * row_elements(b),
            .a = 1,
            .b = 1,
            .x_dtype = b->act,
            .y_dtype = b->act,
            .x = receive[j].data,
            .y = local,
        };
        if (j != self)
            DSVI_TRY(b->backend.ops.add.run(device->stream, &args));
    }
    return DSV_OK;
}

DsvStatus dsvi_all_keys_home(DsviCpBench *b)
{
    DSVI_TRY(return_gradients(b, b->all.dk, b->pass.dk));
    return return_gradients(b, b->all.dv, b->pass.dv);
}

DsvStatus dsvi_all_keys_forward(DsviCpBench *b)
{
    DsviAttentionArgs args = all_keys_args(b, dsvi_sparse_lists(b->sparse, 0));
    DSVI_TRY(dsvi_all_keys_gather(b));
    return dsvi_sparse_attend_args(b->sparse, 0, &args);
}

DsvStatus dsvi_all_keys_backward(DsviCpBench *b)
{
    DsviAttentionArgs args = all_keys_args(b, dsvi_sparse_lists(b->sparse, 0));
    DSVI_TRY(dsvi_sparse_attend_args_bwd(b->sparse, 0, &args));
    return dsvi_all_keys_home(b);
}

/* ---- listed keys ---- */

DsvStatus dsvi_listed_keys_mark(DsviCpBench *b)
{
    DsviListedKeys *l = &b->listed;
    DsviDevice *device = b->backend.device;
    DsviCpPart part = dsvi_cp_part(b->cp, 0);
    const DsviLists *lists = dsvi_sparse_lists(b->sparse, 0);
    const DsviRowsShape shape = {b->heads.tokens, 1, b->settings.sparse_grain, b->heads.head_dim, b->act};
    DSVI_TRY(dsvi_rows_begin(&b->backend, &part, &shape, &l->memory, &l->exchange));
    dsvi_lists_copy_shape(lists, &l->near);
    dsvi_lists_copy_shape(lists, &l->far);
    DsviListDivideArgs args = {
        .lists = lists,
        .spans = &l->exchange.needs,
        .self = part.sequence_index,
        .near = &l->near,
        .far = &l->far,
    };
    DSVI_TRY(b->backend.ops.lists_divide.run(device->stream, &args));
    DSVI_TRY(dsvi_rows_marks(&l->exchange));
    DSVI_TRY(device->sync(device->stream));
    dsvi_rows_measure(&l->exchange);
    return DSV_OK;
}

/* Returns where the values begin in `rows`, which holds the fetched keys and after them the fetched
 * values. */
static void *fetched_values(const DsviCpBench *b, void *rows)
{
    return (char *)rows + (size_t)b->listed.exchange.far_keys * bench_cp_keys_row_bytes(b);
}

DsvStatus dsvi_listed_keys_fetch(DsviCpBench *b)
{
    DsviListedKeys *l = &b->listed;
    DSVI_TRY(dsvi_rows_fetch_begin(&l->exchange, b->pass.k, b->pass.v));
    return dsvi_rows_fetch_end(&l->exchange, l->compact, fetched_values(b, l->compact));
}

DsvStatus dsvi_listed_keys_home(DsviCpBench *b)
{
    DsviListedKeys *l = &b->listed;
    void *rows = l->memory.received;
    DSVI_TRY(dsvi_rows_return_begin(&l->exchange, rows, fetched_values(b, rows), l->compact));
    return dsvi_rows_return_end(&l->exchange, b->pass.dk, b->pass.dv);
}
