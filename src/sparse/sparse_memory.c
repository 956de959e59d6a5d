/* Memory of the sparse layer, on the host and on the device, planned for the largest part that any plan may
 * give this rank. */
#include <string.h>

#include "context/context_most.h"
#include "sparse/sparse_internal.h"

/* Lists vary from pass to pass (with the noise level, above all) around the mean that max_density bounds:
 * memory is planned for this many times the bound. */
#define CAPACITY_SLACK 1.25

/* ---- the most of everything ---- */

/* The largest parts of a block, one after the other. */
static bool part_at(const DsvSparse *s, int64_t i, DsvContextMost *part)
{
    if (s->context)
        return dsvi_context_most(s->context, i, part);
    *part = (DsvContextMost){1, 1, 0, s->shape.tokens, s->shape.heads};
    return i == 0;
}

typedef int64_t count_fn(const DsvSparse *s, const DsvContextMost *part);

static int64_t most_of(const DsvSparse *s, count_fn *count)
{
    DsvContextMost part;
    int64_t most = 0;
    for (int64_t i = 0; part_at(s, i, &part); i++) {
        int64_t n = count(s, &part);
        most = n > most ? n : most;
    }
    return most;
}

static int64_t pieces_of(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}

static int64_t pairs(const DsvSparse *s, const DsvContextMost *part)
{
    return s->shape.batch * part->heads;
}

static int64_t rows(const DsvSparse *s, const DsvContextMost *part)
{
    return pairs(s, part) * part->tokens;
}

static int64_t lists(const DsvSparse *s, const DsvContextMost *part)
{
    return pairs(s, part) * pieces_of(part->tokens, s->settings.sparse_group);
}

static int64_t proxies(const DsvSparse *s, const DsvContextMost *part)
{
    return pairs(s, part) * pieces_of(part->tokens, s->selector->features.chunk);
}

static int64_t candidates(const DsvSparse *s, const DsvContextMost *part)
{
    return pairs(s, part) * pieces_of(s->shape.tokens, s->selector->features.candidate_keys);
}

/* What follows is for keys divided among ranks: nothing for one. */

static int64_t full_runs(const DsvSparse *s)
{
    return pieces_of(s->shape.tokens, s->settings.sparse_grain);
}

static int64_t own_runs(const DsvSparse *s, const DsvContextMost *part)
{
    return pieces_of(part->tokens, s->settings.sparse_grain);
}

/* Words of marks. */
static int64_t needs(const DsvSparse *s, const DsvContextMost *part)
{
    return part->sequence_ranks > 1
               ? dsvi_rows_needs_words(pairs(s, part), part->sequence_ranks, full_runs(s)) : 0;
}

static int64_t wants(const DsvSparse *s, const DsvContextMost *part)
{
    return part->sequence_ranks > 1
               ? dsvi_rows_wants_words(pairs(s, part), part->sequence_ranks, own_runs(s, part)) : 0;
}

static int64_t firsts(const DsvSparse *s, const DsvContextMost *part)
{
    return part->sequence_ranks > 1 ? part->sequence_ranks * (pairs(s, part) + 1) : 0;
}

static int64_t far_lists(const DsvSparse *s, const DsvContextMost *part)
{
    return part->sequence_ranks > 1 ? lists(s, part) + 1 : 0;
}

static int64_t far_results(const DsvSparse *s, const DsvContextMost *part)
{
    return part->sequence_ranks > 1 ? rows(s, part) : 0;
}

/* Rows of k, and as many of v. */
static int64_t sent_rows(const DsvSparse *s, const DsvContextMost *part)
{
    return (part->sequence_ranks - 1) * pairs(s, part) * own_runs(s, part) * s->settings.sparse_grain;
}

static int64_t received_rows(const DsvSparse *s, const DsvContextMost *part)
{
    return part->sequence_ranks == 1
               ? 0
               : pairs(s, part) * (full_runs(s) - own_runs(s, part)) * s->settings.sparse_grain;
}

/* For fetched k and v, and for all keys where they are measured. */
static int64_t compact_rows(const DsvSparse *s, const DsvContextMost *part)
{
    int64_t fetched = 2 * received_rows(s, part), all = pairs(s, part) * s->shape.tokens;
    return part->sequence_ranks == 1 ? 0 : fetched > all ? fetched : all;
}

/* ---- lists ---- */

/* Runs of `count` lists of this density. */
static int64_t runs_of(const DsvSparse *s, int64_t count, double density)
{
    int64_t all = count * full_runs(s);
    int64_t wanted = (int64_t)(density * (double)all) + count; /* no list is empty */
    return wanted < all ? wanted : all;
}

/* How many runs there is memory for. Lists are made block after block and used up in the opposite order: they
 * lie in one piece of memory, behind one another, so that blocks of few keys leave room to those of many.
 * The densest that a block may have find room alone; so does one head that attends everything, for a plan may
 * leave a rank with little more. Where lists are offloaded that is the host's memory, and the device has room
 * for two blocks of middling lists, and for the densest. */
void dsvi_sparse_size_lists(DsvSparse *s)
{
    int64_t count = most_of(s, lists), blocks = s->shape.backward ? s->shape.blocks : 1;
    int64_t one = runs_of(s, count, CAPACITY_SLACK * (s->settings.sparse_max_density +
                                                      s->settings.sparse_hysteresis));
    int64_t head = s->shape.batch * pieces_of(s->shape.tokens, s->settings.sparse_group) * full_runs(s);
    if (s->context && one < head)
        one = head;
    int64_t all = s->shape.blocks * runs_of(s, count, s->settings.sparse_list_memory);
    s->runs_most = one;
    s->runs_capacity = all < one ? one : all < blocks * one ? all : blocks * one;
    int64_t room = 2 * runs_of(s, count, s->settings.sparse_list_memory);
    room = room < one ? one : room;
    s->runs_room = dsvi_sparse_offloads(s) && room < s->runs_capacity ? room : s->runs_capacity;
}

/* Room on the host for the lists of all blocks that have to leave the device. */
static int64_t host_runs(const DsvSparse *s)
{
    int64_t most = (s->shape.blocks - 1) * s->runs_most;
    return !s->selector || !dsvi_sparse_offloads(s) ? 0 : most < s->runs_capacity ? most : s->runs_capacity;
}

void dsvi_sparse_carve_host(DsvSparse *s, DsvArena *arena)
{
    if (host_runs(s) > 0)
        s->host_runs = dsvi_arena_take(arena, DSV_MEM_SPARSE, (size_t)host_runs(s) * sizeof *s->host_runs);
}

void dsvi_sparse_shape_lists(const DsvSparse *s, const DsvSparseView *view, DsvLists *of)
{
    of->batch = s->shape.batch;
    of->heads = view->heads;
    of->queries = view->queries;
    of->keys = s->shape.tokens;
    of->group = s->settings.sparse_group;
    of->groups = pieces_of(view->queries, of->group);
    of->grain = s->settings.sparse_grain;
}

/* ---- the host's ---- */

static size_t results_count(const DsvSparse *s)
{
    return (size_t)(s->shape.blocks * s->shape.batch * s->shape.heads * s->samples);
}

static void carve_records(DsvSparse *s, DsvArena *arena)
{
    size_t blocks = (size_t)s->shape.blocks, heads = (size_t)s->shape.heads;
    DsvSparseRecord *r = &s->record;
    double **const running[] = {&r->captured, &r->listed, &r->share90, &r->density, &r->estimated_mass,
                                &r->missed};
    float **const of_heads[] = {&r->head_captured, &r->head_share90, &r->head_listed};
    r->sparse = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * sizeof(int32_t));
    r->changes = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * sizeof(int64_t));
    for (size_t i = 0; i < sizeof running / sizeof *running; i++)
        *running[i] = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * sizeof(double));
    for (size_t i = 0; i < sizeof of_heads / sizeof *of_heads; i++)
        *of_heads[i] = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * heads * sizeof(float));
    r->break_even = dsvi_arena_take(arena, DSV_MEM_SPARSE, sizeof(double));
}

/* Everything on the host: planned and carved like device memory. */
static void carve_host(DsvSparse *s, DsvArena *arena)
{
    size_t blocks = (size_t)s->shape.blocks, heads = (size_t)s->shape.heads;
    size_t bins = DSV_SELECT_BINS * sizeof(double), results = results_count(s) * sizeof(float);
    s->order = dsvi_arena_take(arena, DSV_MEM_SPARSE, (size_t)s->shape.tokens * sizeof(int32_t));
    s->block = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * sizeof(DsvSparseBlock));
    carve_records(s, arena);
    s->prescription = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * heads * sizeof(double));
    s->host_topk = dsvi_arena_take(arena, DSV_MEM_SPARSE, heads * sizeof(int32_t));
    s->host_count = dsvi_arena_take(arena, DSV_MEM_SPARSE, bins);
    s->host_mass = dsvi_arena_take(arena, DSV_MEM_SPARSE, bins);
    s->host_selected = dsvi_arena_take(arena, DSV_MEM_SPARSE, heads * sizeof(double));
    s->host_needed = dsvi_arena_take(arena, DSV_MEM_SPARSE, sizeof(int64_t));
    s->host_near = dsvi_arena_take(arena, DSV_MEM_SPARSE, sizeof(int64_t));
    s->host_sample = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * (size_t)s->samples * sizeof(int32_t));
    s->host_captured = dsvi_arena_take(arena, DSV_MEM_SPARSE, results);
    s->host_share90 = dsvi_arena_take(arena, DSV_MEM_SPARSE, results);
    s->host_listed = dsvi_arena_take(arena, DSV_MEM_SPARSE, results);
    s->seen = dsvi_arena_take(arena, DSV_MEM_SPARSE, dsvi_sparse_seen_count(s) * sizeof(double));
    s->host_first = dsvi_arena_take(arena, DSV_MEM_SPARSE,
                                    2 * blocks * (size_t)most_of(s, firsts) * sizeof(int64_t));
}

DsvStatus dsvi_sparse_allocate_host(DsvSparse *s)
{
    DsvArena plan;
    dsvi_arena_plan(&plan);
    carve_host(s, &plan);
    size_t bytes = plan.used;
    DSVI_TRY(s->backend->device->host_alloc(s->backend->device, bytes, &s->host_memory));
    memset(s->host_memory, 0, bytes);
    dsvi_arena_bind(&plan, s->host_memory, bytes);
    carve_host(s, &plan);
    for (int64_t block = 0; block < s->shape.blocks; block++)
        s->block[block].host_first = s->host_first + block * 2 * most_of(s, firsts);
    return DSV_OK;
}

/* ---- the device's ---- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* What attention over lists of these keys may need. */
static size_t list_workspace(const DsvSparse *s, const DsvSparseView *view, int64_t keys)
{
    const DsvOps *ops = &s->backend->ops;
    DsvStream *stream = s->backend->device->stream;
    const DsvSparseAttention nothing = {0};
    DsvAttentionArgs args = dsvi_sparse_attention_args(s, view, keys, &nothing);
    DsvLists of = {.capacity = s->runs_most};
    dsvi_sparse_shape_lists(s, view, &of);
    of.keys = keys;
    args.lists = &of;
    size_t most = DSVI_OP_WORKSPACE(ops->attention_list_fwd, stream, &args);
    return s->shape.backward ? larger(most, DSVI_OP_WORKSPACE(ops->attention_list_bwd, stream, &args)) : most;
}

static size_t dense_workspace(const DsvSparse *s, const DsvSparseView *view)
{
    const DsvOps *ops = &s->backend->ops;
    DsvStream *stream = s->backend->device->stream;
    const DsvSparseAttention nothing = {0};
    DsvAttentionArgs args = dsvi_sparse_attention_args(s, view, s->shape.tokens, &nothing);
    size_t most = DSVI_OP_WORKSPACE(ops->attention_fwd, stream, &args);
    return s->shape.backward ? larger(most, DSVI_OP_WORKSPACE(ops->attention_bwd, stream, &args)) : most;
}

/* Over the own keys, and over fetched ones, as many as there may be: fewer may want more. */
static size_t divided_workspace(const DsvSparse *s, const DsvSparseView *view)
{
    int64_t grain = s->settings.sparse_grain, far_runs = full_runs(s) - pieces_of(view->queries, grain);
    bool ends_far = view->first + view->queries < s->shape.tokens;
    size_t most = list_workspace(s, view, view->queries);
    for (int64_t i = 1; i <= DSV_ROWS_WIDTHS; i++) {
        int64_t width = dsvi_rows_width(far_runs, i);
        most = larger(most, list_workspace(s, view, dsvi_rows_keys(width, grain, s->shape.tokens, ends_far)));
    }
    return most;
}

/* What any op this layer calls may need for a view; dense attention of ranks that share samples sees to
 * itself. */
static size_t view_workspace(const DsvSparse *s, const DsvSparseView *view)
{
    size_t most = s->context ? 0 : dense_workspace(s, view);
    if (!s->selector)
        return most;
    most = larger(most, dsvi_sparse_select_workspace(s, view));
    most = larger(most, dsvi_sparse_profile_workspace(s, view));
    return larger(most, view->divided ? divided_workspace(s, view)
                                      : list_workspace(s, view, s->shape.tokens));
}

/* Fewer heads may want more: ops share their work out otherwise. */
static size_t workspace_of_all(const DsvSparse *s)
{
    DsvContextMost part;
    size_t most = 0;
    for (int64_t i = 0; part_at(s, i, &part); i++)
        for (int64_t heads = s->context ? 1 : part.heads; heads <= part.heads; heads++) {
            const DsvSparseView view = {part.first, part.tokens, heads, NULL, part.sequence_ranks > 1};
            most = larger(most, view_workspace(s, &view));
        }
    return most;
}

static void *take(DsvArena *arena, DsvMemClass class, int64_t count, size_t size)
{
    return dsvi_arena_take(arena, class, (size_t)count * size);
}

static void carve_lists(DsvSparse *s, DsvArena *arena)
{
    int64_t blocks = s->shape.backward ? s->shape.blocks : 1;
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        DsvSparseBlock *b = &s->block[block];
        b->lists.offsets = take(arena, DSV_MEM_SPARSE, most_of(s, lists) + 1, sizeof(int64_t));
        b->near.offsets = take(arena, DSV_MEM_SPARSE, most_of(s, far_lists), sizeof(int64_t));
        b->far.offsets = take(arena, DSV_MEM_SPARSE, most_of(s, far_lists), sizeof(int64_t));
    }
    s->runs = take(arena, DSV_MEM_SPARSE, s->runs_room, sizeof(int32_t));
    if (s->settings.sparse_time_choices && s->shape.backward)
        s->runs_aside = take(arena, DSV_MEM_SPARSE, s->shape.blocks * s->runs_most, sizeof(int32_t));
    s->whole_runs = take(arena, DSV_MEM_SCRATCH, most_of(s, needs) > 0 ? s->runs_most : 0, sizeof(int32_t));
    uint32_t *needs_marks = take(arena, DSV_MEM_SPARSE, blocks * most_of(s, needs), sizeof *needs_marks);
    uint32_t *wants_marks = take(arena, DSV_MEM_SPARSE, blocks * most_of(s, wants), sizeof *wants_marks);
    for (int64_t block = 0; block < s->shape.blocks && needs_marks; block++) {
        s->block[block].needs_marks = needs_marks + block % blocks * most_of(s, needs);
        s->block[block].wants_marks = wants_marks + block % blocks * most_of(s, wants);
    }
}

/* For sums of histograms over the ranks that share the samples. Of the layers of one group all come to share
 * the room that was lent last; they live and end together. */
static void lend_room(const DsvSparse *s, DsvArena *arena)
{
    size_t bins = 2 * DSV_SELECT_BINS * sizeof(double);
    if (!s->context || !dsvi_comm_wants_room(dsvi_context_group_device(dsvi_context_group(s->context))))
        return;
    DsvComm *comm = dsvi_context_group_device(dsvi_context_group(s->context));
    void *room = dsvi_arena_take(arena, DSV_MEM_SCRATCH,
                                 dsvi_comm_room_bytes(dsvi_comm_size(comm), bins));
    if (room)
        dsvi_comm_lend(comm, room, bins);
}

/* Features and what lists are chosen by. */
static void carve_selection(DsvSparse *s, DsvArena *arena)
{
    int64_t heads = s->shape.heads, results = (int64_t)results_count(s);
    s->select_lse = take(arena, DSV_MEM_SCRATCH, most_of(s, proxies), sizeof(float));
    s->bin_count = take(arena, DSV_MEM_SCRATCH, 2 * DSV_SELECT_BINS, sizeof(double));
    s->bin_mass = s->bin_count ? s->bin_count + DSV_SELECT_BINS : NULL;
    lend_room(s, arena);
    s->head = take(arena, DSV_MEM_SCRATCH, s->context ? heads : 0, sizeof(int32_t));
    s->threshold = take(arena, DSV_MEM_SCRATCH, heads, sizeof(float));
    s->topk = take(arena, DSV_MEM_SCRATCH, heads, sizeof(int32_t));
    s->sample = take(arena, DSV_MEM_SPARSE, s->shape.blocks * s->samples, sizeof(int32_t));
    s->captured = take(arena, DSV_MEM_SPARSE, results, sizeof(float));
    s->share90 = take(arena, DSV_MEM_SPARSE, results, sizeof(float));
    s->listed = take(arena, DSV_MEM_SPARSE, results, sizeof(float));
}

static void lay_heads(DsvSparse *s, const DsvContextMost *part, DsvArena *arena)
{
    DsvSparseRoom *room = &s->room;
    const DsvContextTensor tensor = {s->shape.batch, s->shape.head_dim, s->shape.act};
    size_t bytes = (size_t)(rows(s, part) * tensor.head_dim) * dsvi_dtype_size(tensor.dtype);
    void **const forward[] = {&room->q, &room->k, &room->v, &room->out};
    void **const backward[] = {&room->dout, &room->dq, &room->dk, &room->dv};
    if (part->head_ranks == 1)
        return;
    for (int i = 0; i < 4; i++)
        *forward[i] = dsvi_arena_take(arena, DSV_MEM_SCRATCH, bytes);
    for (int i = 0; i < 4; i++)
        *backward[i] = dsvi_arena_take(arena, DSV_MEM_SCRATCH, s->shape.backward ? bytes : 0);
    room->moved = dsvi_arena_take(arena, DSV_MEM_SCRATCH, dsvi_context_move_bytes(s->context, &tensor));
}

static void lay_features(DsvSparse *s, const DsvContextMost *part, DsvArena *arena)
{
    DsvSparseRoom *room = &s->room;
    const DsvFeatures *f = &s->selector->features;
    DsvFeaturesExchange of_proxies = {.batch = s->shape.batch, .features = f->features,
                                      .tokens_each = f->chunk};
    DsvFeaturesExchange of_candidates = of_proxies;
    of_candidates.tokens_each = f->candidate_keys;
    room->proxies = take(arena, DSV_MEM_SCRATCH, proxies(s, part) * f->features, sizeof(float));
    room->candidates = take(arena, DSV_MEM_SCRATCH, candidates(s, part) * f->features, sizeof(float));
    room->features = dsvi_arena_take(
        arena, DSV_MEM_SCRATCH,
        larger(dsvi_features_exchange_bytes(s->context, part->head_ranks, &of_proxies),
               dsvi_features_exchange_bytes(s->context, part->head_ranks, &of_candidates)));
}

static void lay_far(DsvSparse *s, const DsvContextMost *part, DsvArena *arena)
{
    DsvSparseRoom *room = &s->room;
    size_t act = dsvi_dtype_size(s->shape.act), acc = dsvi_dtype_size(s->acc);
    int64_t dim = s->shape.head_dim, results = far_results(s, part);
    room->far_out = take(arena, DSV_MEM_SCRATCH, results * dim, act);
    room->far_lse = take(arena, DSV_MEM_SCRATCH, results, acc);
    room->far_dq = take(arena, DSV_MEM_SCRATCH, s->shape.backward ? results * dim : 0, act);
    room->needs_before = take(arena, DSV_MEM_SCRATCH, needs(s, part), sizeof(int32_t));
    room->wants_before = take(arena, DSV_MEM_SCRATCH, wants(s, part), sizeof(int32_t));
    room->needs_first = take(arena, DSV_MEM_SCRATCH, firsts(s, part), sizeof(int64_t));
    room->wants_first = take(arena, DSV_MEM_SCRATCH, firsts(s, part), sizeof(int64_t));
    room->sent = take(arena, DSV_MEM_SCRATCH, 2 * sent_rows(s, part) * dim, act);
    room->received = take(arena, DSV_MEM_SCRATCH, 2 * received_rows(s, part) * dim, act);
    room->compact = take(arena, DSV_MEM_SCRATCH, compact_rows(s, part) * dim, act);
}

static void lay_room(DsvSparse *s, const DsvContextMost *part, DsvArena *arena)
{
    s->room = (DsvSparseRoom){0};
    if (!s->selector)
        return;
    lay_heads(s, part, arena);
    lay_features(s, part, arena);
    lay_far(s, part, arena);
}

/* Within a step a block's passes find the same pieces, for its plan stays. */
void dsvi_sparse_lay_room(DsvSparse *s, int64_t block)
{
    DsvContextMost part;
    DsvArena arena;
    int64_t i = 0;
    while (part_at(s, i, &part) && part.head_ranks != dsvi_context_plan(s->context, block)->head_ranks)
        i++;
    dsvi_arena_bind(&arena, s->shared, s->shared_bytes);
    lay_room(s, &part, &arena);
}

/* One memory for either kind of attention, and for blocks of any plan: a pass is of one kind and one block at
 * a time. */
static void carve_shared(DsvSparse *s, DsvArena *arena)
{
    const DsvContextAttention dense = {.batch = s->shape.batch, .head_dim = s->shape.head_dim,
                                       .act = s->shape.act, .acc = s->acc};
    DsvContextMost part;
    s->shared_bytes = dsvi_context_attend_bytes(s->context, &dense, false);
    if (s->shape.backward)
        s->shared_bytes = larger(s->shared_bytes, dsvi_context_attend_bytes(s->context, &dense, true));
    for (int64_t i = 0; part_at(s, i, &part); i++) {
        DsvArena room;
        dsvi_arena_plan(&room);
        lay_room(s, &part, &room);
        s->shared_bytes = larger(s->shared_bytes, room.used);
    }
    s->shared = dsvi_arena_take(arena, DSV_MEM_SCRATCH, s->shared_bytes);
}

void dsvi_sparse_carve(DsvSparse *s, DsvArena *arena)
{
    if (s->selector) {
        carve_lists(s, arena);
        dsvi_selector_carve(s->selector, arena);
        carve_selection(s, arena);
    }
    if (s->context)
        carve_shared(s, arena);
}

void dsvi_sparse_carve_call(DsvSparse *s, DsvArena *arena)
{
    s->workspace_bytes = workspace_of_all(s);
    s->workspace = dsvi_arena_take(arena, DSV_MEM_SCRATCH, s->workspace_bytes);
}
