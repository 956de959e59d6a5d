/* Memory of the sparse layer on host and device, planned for the largest share of heads and tokens that any
 * parallel plan may give this rank. */
#include <string.h>

#include "sparse/sparse_internal.h"

/* ---- largest counts over all parallel plans ----
 *
 * Each count_fn returns how many elements of one kind a rank needs under one kind of plan; max_count takes
 * the maximum over all kinds of plans. "Pair" means a pair of sample and head. */

/* Sets `part` to this rank's largest part under kind of plan number `i`. Returns false if there is no plan
 * number i. */
static bool largest_part(const DsviSparse *s, int64_t i, DsviCpLimits *part)
{
    if (s->cp)
        return dsvi_cp_limits(s->cp, i, part);
    *part = (DsviCpLimits){1, 1, 0, s->shape.tokens, s->shape.heads};
    return i == 0;
}

typedef int64_t count_fn(const DsviSparse *s, const DsviCpLimits *part);

static int64_t max_count(const DsviSparse *s, count_fn *count)
{
    DsviCpLimits part;
    int64_t max = 0;
    for (int64_t i = 0; largest_part(s, i, &part); i++) {
        int64_t n = count(s, &part);
        max = n > max ? n : max;
    }
    return max;
}

static int64_t sparse_ceil_div(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}

static int64_t pair_count(const DsviSparse *s, const DsviCpLimits *part)
{
    return s->shape.batch * part->heads;
}

static int64_t row_count(const DsviSparse *s, const DsviCpLimits *part)
{
    return pair_count(s, part) * part->tokens;
}

static int64_t lists(const DsviSparse *s, const DsviCpLimits *part)
{
    return pair_count(s, part) * sparse_ceil_div(part->tokens, s->settings.sparse_group);
}

static int64_t proxies(const DsviSparse *s, const DsviCpLimits *part)
{
    return pair_count(s, part) * sparse_ceil_div(part->tokens, s->selector->features.chunk);
}

static int64_t candidates(const DsviSparse *s, const DsviCpLimits *part)
{
    return pair_count(s, part) * sparse_ceil_div(s->shape.tokens, s->selector->features.candidate_keys);
}

static int64_t tails(const DsviSparse *s, const DsviCpLimits *part)
{
    return part->sequence_ranks * pair_count(s, part) * dsvi_sparse_tail_count(s, part->tokens);
}

/* The functions divided_lists to compact_rows below return 0 unless several ranks own the keys of a head
 * (sequence_ranks above 1), and most of them unless the rank then fetches keys (dsvi_sparse_fetches). */

static int64_t divided_lists(const DsviSparse *s, const DsviCpLimits *part)
{
    return part->sequence_ranks > 1 ? lists(s, part) + 1 : 0;
}

static bool fetches(const DsviSparse *s, const DsviCpLimits *part)
{
    return part->sequence_ranks > 1 && s->tail.chunk == 0;
}

static int64_t full_spans(const DsviSparse *s)
{
    return sparse_ceil_div(s->shape.tokens, s->settings.sparse_grain);
}

static int64_t local_spans(const DsviSparse *s, const DsviCpLimits *part)
{
    return sparse_ceil_div(part->tokens, s->settings.sparse_grain);
}

/* needs_words and served_words: number of 32-bit words for one bit per span, to mark spans that this rank
 * needs from other ranks, and spans that other ranks need from this rank (cp/rows_exchange.h). */
static int64_t needs_words(const DsviSparse *s, const DsviCpLimits *part)
{
    return fetches(s, part) ? dsvi_rows_needs_words(pair_count(s, part), part->sequence_ranks, full_spans(s))
                            : 0;
}

static int64_t served_words(const DsviSparse *s, const DsviCpLimits *part)
{
    return fetches(s, part)
               ? dsvi_rows_served_words(pair_count(s, part), part->sequence_ranks, local_spans(s, part))
               : 0;
}

static int64_t first_counts(const DsviSparse *s, const DsviCpLimits *part)
{
    return fetches(s, part) ? part->sequence_ranks * (pair_count(s, part) + 1) : 0;
}

static int64_t far_lists(const DsviSparse *s, const DsviCpLimits *part)
{
    return fetches(s, part) ? lists(s, part) + 1 : 0;
}

static int64_t far_results(const DsviSparse *s, const DsviCpLimits *part)
{
    return fetches(s, part) ? row_count(s, part) : 0;
}

/* sent_rows and received_rows: limits of rows of k that this rank sends to and receives from other ranks; as
 * many rows of v are exchanged too. */
static int64_t sent_rows(const DsviSparse *s, const DsviCpLimits *part)
{
    return !fetches(s, part) ? 0
                             : (part->sequence_ranks - 1) * pair_count(s, part) * local_spans(s, part) *
                                   s->settings.sparse_grain;
}

static int64_t received_rows(const DsviSparse *s, const DsviCpLimits *part)
{
    return !fetches(s, part)
               ? 0
               : pair_count(s, part) * (full_spans(s) - local_spans(s, part)) * s->settings.sparse_grain;
}

/* Rows of the buffer that holds fetched k and v, or all keys, and with a tail all values, while lists are
 * compared with exact attention. */
static int64_t compact_rows(const DsviSparse *s, const DsviCpLimits *part)
{
    int64_t fetched = 2 * received_rows(s, part), tensors = s->tail.chunk > 0 ? 2 : 1;
    int64_t all = tensors * pair_count(s, part) * s->shape.tokens;
    return part->sequence_ranks == 1 ? 0 : fetched > all ? fetched : all;
}

/* ---- lists ---- */

/* Returns the number of spans that `count` lists of this density have together. */
static int64_t spans_of(const DsviSparse *s, int64_t count, double density)
{
    int64_t all = count * full_spans(s);
    int64_t spans = (int64_t)(density * (double)all) + count; /* each list has at least one span */
    return spans < all ? spans : all;
}

/* Lists are made block after block and used in the opposite order. They are stored one after another in
 * one buffer, so that blocks with short lists leave more room for blocks with long ones. The buffer holds
 * at least the densest lists that one block may have, and, with context parallelism, one head that attends
 * to all keys, because a plan may give a rank little more than one head. With sparse.offload_lists this
 * size applies to host memory; the device then has room for two blocks of density sparse.list_memory, and
 * at least for the densest block. */
void dsvi_sparse_size_lists(DsviSparse *s)
{
    int64_t count = max_count(s, lists), blocks = s->shape.backward ? s->shape.blocks : 1;
    int64_t one = spans_of(
        s, count, DSVI_SPARSE_SLACK * (s->settings.sparse_max_density + s->settings.sparse_hysteresis));
    int64_t head = s->shape.batch * sparse_ceil_div(s->shape.tokens, s->settings.sparse_group) *
                   full_spans(s);
    if (s->cp && one < head)
        one = head;
    int64_t all = s->shape.blocks * spans_of(s, count, s->settings.sparse_list_memory);
    s->spans_max = one;
    s->spans_capacity = all < one ? one : all < blocks * one ? all : blocks * one;
    int64_t room = 2 * spans_of(s, count, s->settings.sparse_list_memory);
    room = room < one ? one : room;
    s->spans_room = dsvi_sparse_offloads(s) && room < s->spans_capacity ? room : s->spans_capacity;
}

/* Returns the number of spans in the host buffer, which holds the lists of all blocks except the last; 0
 * without sparse.offload_lists. */
static int64_t host_spans(const DsviSparse *s)
{
    int64_t max = (s->shape.blocks - 1) * s->spans_max;
    return !s->selector || !dsvi_sparse_offloads(s) ? 0 : max < s->spans_capacity ? max : s->spans_capacity;
}

void dsvi_sparse_carve_host(DsviSparse *s, DsviArena *arena)
{
    if (host_spans(s) > 0)
        s->host_spans = dsvi_arena_take(arena, DSVI_MEM_SPARSE,
                                        (size_t)host_spans(s) * sizeof *s->host_spans);
}

void dsvi_sparse_shape_lists(const DsviSparse *s, const DsviSparseView *view, DsviLists *of)
{
    of->batch = s->shape.batch;
    of->heads = view->heads;
    of->queries = view->queries;
    of->keys = s->shape.tokens;
    of->group = s->settings.sparse_group;
    of->groups = sparse_ceil_div(view->queries, of->group);
    of->grain = s->settings.sparse_grain;
}

/* ---- host memory ---- */

static size_t results_count(const DsviSparse *s)
{
    return (size_t)(s->shape.blocks * s->shape.batch * s->shape.heads * s->samples);
}

static void carve_records(DsviSparse *s, DsviArena *arena)
{
    size_t blocks = (size_t)s->shape.blocks, heads = (size_t)s->shape.heads;
    DsviSparseRecord *r = &s->record;
    double **const running[] = {&r->captured, &r->listed,         &r->share90, &r->error,
                                &r->density,  &r->estimated_mass, &r->missed};
    float **const of_heads[] = {&r->head_captured, &r->head_share90, &r->head_listed, &r->head_error};
    r->sparse = dsvi_arena_take(arena, DSVI_MEM_SPARSE, blocks * sizeof(int32_t));
    r->reason = dsvi_arena_take(arena, DSVI_MEM_SPARSE, blocks * sizeof(int32_t));
    r->changes = dsvi_arena_take(arena, DSVI_MEM_SPARSE, blocks * sizeof(int64_t));
    for (size_t i = 0; i < sizeof running / sizeof *running; i++)
        *running[i] = dsvi_arena_take(arena, DSVI_MEM_SPARSE, blocks * sizeof(double));
    for (size_t i = 0; i < sizeof of_heads / sizeof *of_heads; i++)
        *of_heads[i] = dsvi_arena_take(arena, DSVI_MEM_SPARSE, blocks * heads * sizeof(float));
    r->measured_step = dsvi_arena_take(arena, DSVI_MEM_SPARSE, sizeof(int64_t));
    r->finishing = dsvi_arena_take(arena, DSVI_MEM_SPARSE, sizeof(int32_t));
    r->break_even = dsvi_arena_take(arena, DSVI_MEM_SPARSE, sizeof(double));
}

/* Takes all host arrays of the layer from one arena. Called twice: to count the bytes, then with the arena
 * bound to memory. */
static void carve_host_arrays(DsviSparse *s, DsviArena *arena)
{
    size_t blocks = (size_t)s->shape.blocks, heads = (size_t)s->shape.heads;
    size_t bins = DSVI_SELECT_BINS * sizeof(double), results = results_count(s) * sizeof(float);
    s->order = dsvi_arena_take(arena, DSVI_MEM_SPARSE, (size_t)s->shape.tokens * sizeof(int32_t));
    s->block = dsvi_arena_take(arena, DSVI_MEM_SPARSE, blocks * sizeof(DsviSparseBlock));
    carve_records(s, arena);
    s->prescription = dsvi_arena_take(arena, DSVI_MEM_SPARSE, blocks * heads * sizeof(double));
    s->host_topk = dsvi_arena_take(arena, DSVI_MEM_SPARSE, heads * sizeof(int32_t));
    s->host_count = dsvi_arena_take(arena, DSVI_MEM_SPARSE, bins);
    s->host_mass = dsvi_arena_take(arena, DSVI_MEM_SPARSE, bins);
    s->host_selected = dsvi_arena_take(arena, DSVI_MEM_SPARSE, heads * sizeof(double));
    s->host_needed = dsvi_arena_take(arena, DSVI_MEM_SPARSE, sizeof(int64_t));
    s->host_near = dsvi_arena_take(arena, DSVI_MEM_SPARSE, sizeof(int64_t));
    s->host_sample = dsvi_arena_take(arena, DSVI_MEM_SPARSE, blocks * (size_t)s->samples * sizeof(int32_t));
    s->host_captured = dsvi_arena_take(arena, DSVI_MEM_SPARSE, results);
    s->host_share90 = dsvi_arena_take(arena, DSVI_MEM_SPARSE, results);
    s->host_listed = dsvi_arena_take(arena, DSVI_MEM_SPARSE, results);
    s->host_error = dsvi_arena_take(arena, DSVI_MEM_SPARSE, results);
    s->host_norm = dsvi_arena_take(arena, DSVI_MEM_SPARSE, results);
    s->seen = dsvi_arena_take(arena, DSVI_MEM_SPARSE, dsvi_sparse_seen_count(s) * sizeof(double));
    s->host_first = dsvi_arena_take(arena, DSVI_MEM_SPARSE,
                                    2 * blocks * (size_t)max_count(s, first_counts) * sizeof(int64_t));
}

DsvStatus dsvi_sparse_allocate_host(DsviSparse *s)
{
    DsviArena plan;
    dsvi_arena_plan(&plan);
    carve_host_arrays(s, &plan);
    size_t bytes = plan.used;
    DSVI_TRY(s->backend->device->host_alloc(s->backend->device, bytes, &s->host_memory));
    memset(s->host_memory, 0, bytes);
    dsvi_arena_bind(&plan, s->host_memory, bytes);
    carve_host_arrays(s, &plan);
    for (int64_t block = 0; block < s->shape.blocks; block++)
        s->block[block].host_first = s->host_first + block * 2 * max_count(s, first_counts);
    return DSV_OK;
}

/* ---- device memory ---- */

/* Returns the bytes of workspace for attention over lists and its tail, with the queries and heads in `view`
 * and `keys` keys. */
static size_t list_workspace(const DsviSparse *s, const DsviSparseView *view, int64_t keys)
{
    const DsviAttentionCall nothing = {0};
    DsviAttentionArgs args = dsvi_sparse_attention_args(s, view, keys, &nothing);
    DsviLists of = {.capacity = s->spans_max};
    dsvi_sparse_shape_lists(s, view, &of);
    of.keys = keys;
    args.lists = &of;
    return dsvi_sparse_args_workspace(s, &args);
}

static size_t dense_workspace(const DsviSparse *s, const DsviSparseView *view)
{
    const DsviOps *ops = &s->backend->ops;
    DsviStream *stream = s->backend->device->stream;
    const DsviAttentionCall nothing = {0};
    DsviAttentionArgs args = dsvi_sparse_attention_args(s, view, s->shape.tokens, &nothing);
    size_t forward = DSVI_OP_WORKSPACE(ops->attention_fwd, stream, &args);
    if (!s->shape.backward)
        return forward;
    return dsvi_sparse_max_size(forward, DSVI_OP_WORKSPACE(ops->attention_bwd, stream, &args));
}

/* Returns the bytes of workspace for attention over near lists (keys that this rank owns), and over far
 * lists (keys of other ranks) with any number of fetched keys: an op may need more workspace for fewer
 * keys. */
static size_t divided_workspace(const DsviSparse *s, const DsviSparseView *view)
{
    int64_t grain = s->settings.sparse_grain;
    int64_t far_spans = full_spans(s) - sparse_ceil_div(view->queries, grain);
    bool ends_far = view->first + view->queries < s->shape.tokens;
    size_t max = list_workspace(s, view, view->queries);
    for (int64_t i = 1; i <= DSVI_ROWS_WIDTHS; i++) {
        int64_t width = dsvi_rows_width(far_spans, i);
        int64_t keys = dsvi_rows_keys(width, grain, s->shape.tokens, ends_far);
        max = dsvi_sparse_max_size(max, list_workspace(s, view, keys));
    }
    return max;
}

/* Returns the bytes of workspace for attention over lists and their tail to the keys of one row of the rank
 * grid, whichever row this is. */
static size_t row_workspace(const DsviSparse *s, const DsviSparseView *view, int64_t head_ranks)
{
    const int64_t *bound = dsvi_cp_bound(s->cp);
    int64_t ranks = dsvi_cp_ranks(s->cp), before = -1;
    size_t max = 0;
    for (int64_t r = 0; r < ranks; r += head_ranks) {
        int64_t keys = bound[r + head_ranks] - bound[r];
        if (keys != before)
            max = dsvi_sparse_max_size(max, list_workspace(s, view, keys));
        before = keys;
    }
    return max;
}

/* Returns the bytes of workspace that any op of the sparse layer may need for the queries and heads in
 * `view`, whose head group has `head_ranks` ranks. With context parallelism dense attention has its own
 * workspace (carve_shared). */
static size_t view_workspace(const DsviSparse *s, const DsviSparseView *view, int64_t head_ranks)
{
    size_t max = s->cp ? 0 : dense_workspace(s, view);
    if (!s->selector)
        return max;
    max = dsvi_sparse_max_size(max, dsvi_sparse_select_workspace(s, view));
    max = dsvi_sparse_max_size(max, dsvi_sparse_profile_workspace(s, view));
    if (view->divided && s->tail.chunk > 0)
        return dsvi_sparse_max_size(max, row_workspace(s, view, head_ranks));
    return dsvi_sparse_max_size(max, view->divided ? divided_workspace(s, view)
                                                   : list_workspace(s, view, s->shape.tokens));
}

/* Returns the largest view_workspace over all kinds of parallel plans and all numbers of heads: an op may
 * divide its work differently and need more workspace for fewer heads. */
static size_t max_workspace(const DsviSparse *s)
{
    DsviCpLimits part;
    size_t max = 0;
    for (int64_t i = 0; largest_part(s, i, &part); i++)
        for (int64_t heads = s->cp ? 1 : part.heads; heads <= part.heads; heads++) {
            const DsviSparseView view = {part.first, part.tokens, heads, NULL, part.sequence_ranks > 1};
            max = dsvi_sparse_max_size(max, view_workspace(s, &view, part.head_ranks));
        }
    return max;
}

static void *sparse_take_array(DsviArena *arena, DsviMemClass class, int64_t count, size_t size)
{
    return dsvi_arena_take(arena, class, (size_t)count * size);
}

static void carve_lists(DsviSparse *s, DsviArena *arena)
{
    int64_t blocks = s->shape.backward ? s->shape.blocks : 1;
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        DsviSparseBlock *b = &s->block[block];
        b->lists.offsets = sparse_take_array(arena, DSVI_MEM_SPARSE, max_count(s, lists) + 1,
                                             sizeof(int64_t));
        b->tail_lse = block < blocks ? sparse_take_array(arena, DSVI_MEM_SPARSE, max_count(s, tails),
                                                         dsvi_dtype_size(s->acc))
                                     : s->block[0].tail_lse;
        b->near.offsets = sparse_take_array(arena, DSVI_MEM_SPARSE, max_count(s, divided_lists),
                                            sizeof(int64_t));
        b->far.offsets = sparse_take_array(arena, DSVI_MEM_SPARSE, max_count(s, far_lists), sizeof(int64_t));
    }
    s->spans = sparse_take_array(arena, DSVI_MEM_SPARSE, s->spans_room, sizeof(int32_t));
    if (s->settings.sparse_time_choices && s->shape.backward)
        s->compare_spans = sparse_take_array(arena, DSVI_MEM_SPARSE, s->shape.blocks * s->spans_max,
                                             sizeof(int32_t));
    s->whole_spans = sparse_take_array(arena, DSVI_MEM_SCRATCH,
                                       max_count(s, divided_lists) > 0 ? s->spans_max : 0, sizeof(int32_t));
    uint32_t *needs_marks = sparse_take_array(arena, DSVI_MEM_SPARSE, blocks * max_count(s, needs_words),
                                              sizeof *needs_marks);
    uint32_t *served_marks = sparse_take_array(arena, DSVI_MEM_SPARSE, blocks * max_count(s, served_words),
                                               sizeof *served_marks);
    for (int64_t block = 0; block < s->shape.blocks && needs_marks; block++) {
        s->block[block].needs_marks = needs_marks + block % blocks * max_count(s, needs_words);
        s->block[block].served_marks = served_marks + block % blocks * max_count(s, served_words);
    }
}

/* Provides the buffer with which context-parallel ranks sum their histograms (dsvi_comm_set_workspace). The
 * group has one such buffer: if several sparse layers use it, all of them use the buffer given last, so they
 * must be freed together. */
static void carve_histogram_sum(const DsviSparse *s, DsviArena *arena)
{
    size_t bins = 2 * DSVI_SELECT_BINS * sizeof(double);
    if (!s->cp || !dsvi_comm_needs_workspace(dsvi_cp_group_device(dsvi_cp_group(s->cp))))
        return;
    DsviComm *comm = dsvi_cp_group_device(dsvi_cp_group(s->cp));
    void *room = dsvi_arena_take(arena, DSVI_MEM_SCRATCH,
                                 dsvi_comm_workspace_bytes(dsvi_comm_size(comm), bins));
    if (room)
        dsvi_comm_set_workspace(comm, room, bins);
}

/* Takes the buffers for making lists and for measuring them from the arena. */
static void carve_selection(DsviSparse *s, DsviArena *arena)
{
    int64_t heads = s->shape.heads, results = (int64_t)results_count(s);
    s->select_lse = sparse_take_array(arena, DSVI_MEM_SCRATCH, max_count(s, proxies), sizeof(float));
    s->bin_count = sparse_take_array(arena, DSVI_MEM_SCRATCH, 2 * DSVI_SELECT_BINS, sizeof(double));
    s->bin_mass = s->bin_count ? s->bin_count + DSVI_SELECT_BINS : NULL;
    carve_histogram_sum(s, arena);
    s->head = sparse_take_array(arena, DSVI_MEM_SCRATCH, s->cp ? heads : 0, sizeof(int32_t));
    s->threshold = sparse_take_array(arena, DSVI_MEM_SCRATCH, heads, sizeof(float));
    s->topk = sparse_take_array(arena, DSVI_MEM_SCRATCH, heads, sizeof(int32_t));
    s->sample = sparse_take_array(arena, DSVI_MEM_SPARSE, s->shape.blocks * s->samples, sizeof(int32_t));
    s->captured = sparse_take_array(arena, DSVI_MEM_SPARSE, results, sizeof(float));
    s->share90 = sparse_take_array(arena, DSVI_MEM_SPARSE, results, sizeof(float));
    s->listed = sparse_take_array(arena, DSVI_MEM_SPARSE, results, sizeof(float));
    s->error = sparse_take_array(arena, DSVI_MEM_SPARSE, results, sizeof(float));
    s->norm = sparse_take_array(arena, DSVI_MEM_SPARSE, results, sizeof(float));
}

static void layout_heads(DsviSparse *s, const DsviCpLimits *part, DsviArena *arena)
{
    DsviSparseCpBuffers *room = &s->room;
    const DsviCpTensor tensor = {s->shape.batch, s->shape.head_dim, s->shape.act};
    size_t bytes = (size_t)(row_count(s, part) * tensor.head_dim) * dsvi_dtype_size(tensor.dtype);
    void **const forward[] = {&room->q, &room->k, &room->v, &room->out};
    void **const backward[] = {&room->dout, &room->dq, &room->dk, &room->dv};
    if (part->head_ranks == 1)
        return;
    for (int i = 0; i < 4; i++)
        *forward[i] = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, bytes);
    for (int i = 0; i < 4; i++)
        *backward[i] = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, s->shape.backward ? bytes : 0);
    room->moved = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, dsvi_cp_move_bytes(s->cp, &tensor));
}

static void layout_features(DsviSparse *s, const DsviCpLimits *part, DsviArena *arena)
{
    DsviSparseCpBuffers *room = &s->room;
    const DsviFeatures *f = &s->selector->features;
    DsviFeaturesExchange of_proxies = {
        .batch = s->shape.batch, .features = f->features, .tokens_each = f->chunk};
    DsviFeaturesExchange of_candidates = of_proxies;
    of_candidates.tokens_each = f->candidate_keys;
    room->proxies = sparse_take_array(arena, DSVI_MEM_SCRATCH, proxies(s, part) * f->features, sizeof(float));
    room->candidates = sparse_take_array(arena, DSVI_MEM_SCRATCH, candidates(s, part) * f->features,
                                         sizeof(float));
    room->features = dsvi_arena_take(
        arena, DSVI_MEM_SCRATCH,
        dsvi_sparse_max_size(dsvi_features_exchange_bytes(s->cp, part->head_ranks, &of_proxies),
                             dsvi_features_exchange_bytes(s->cp, part->head_ranks, &of_candidates)));
}

static void layout_far(DsviSparse *s, const DsviCpLimits *part, DsviArena *arena)
{
    DsviSparseCpBuffers *room = &s->room;
    size_t act = dsvi_dtype_size(s->shape.act), acc = dsvi_dtype_size(s->acc);
    int64_t dim = s->shape.head_dim, results = far_results(s, part);
    room->far_out = sparse_take_array(arena, DSVI_MEM_SCRATCH, results * dim, act);
    room->far_lse = sparse_take_array(arena, DSVI_MEM_SCRATCH, results, acc);
    room->far_dq = sparse_take_array(arena, DSVI_MEM_SCRATCH, s->shape.backward ? results * dim : 0, act);
    room->needs_before = sparse_take_array(arena, DSVI_MEM_SCRATCH, needs_words(s, part), sizeof(int32_t));
    room->served_before = sparse_take_array(arena, DSVI_MEM_SCRATCH, served_words(s, part), sizeof(int32_t));
    room->needs_first = sparse_take_array(arena, DSVI_MEM_SCRATCH, first_counts(s, part), sizeof(int64_t));
    room->served_first = sparse_take_array(arena, DSVI_MEM_SCRATCH, first_counts(s, part), sizeof(int64_t));
    room->sent = sparse_take_array(arena, DSVI_MEM_SCRATCH, 2 * sent_rows(s, part) * dim, act);
    room->received = sparse_take_array(arena, DSVI_MEM_SCRATCH, 2 * received_rows(s, part) * dim, act);
    room->compact = sparse_take_array(arena, DSVI_MEM_SCRATCH, compact_rows(s, part) * dim, act);
}

static void layout_room_for(DsviSparse *s, const DsviCpLimits *part, DsviArena *arena)
{
    s->room = (DsviSparseCpBuffers){0};
    if (!s->selector)
        return;
    layout_heads(s, part, arena);
    layout_features(s, part, arena);
    layout_far(s, part, arena);
}

/* All passes of a block within a step get the same buffers, because the block's parallel plan does not
 * change within a step. */
void dsvi_sparse_layout_cp_buffers(DsviSparse *s, int64_t block)
{
    DsviCpLimits part;
    DsviArena arena;
    int64_t i = 0;
    while (largest_part(s, i, &part) && part.head_ranks != dsvi_cp_plan(s->cp, block)->head_ranks)
        i++;
    dsvi_arena_bind(&arena, s->shared, s->shared_bytes);
    layout_room_for(s, &part, &arena);
}

/* Dense attention and attention over lists use the same memory, as do blocks with different plans: a pass
 * attends either densely or over lists, for one block. */
static void carve_shared(DsviSparse *s, DsviArena *arena)
{
    const DsviCpAttention dense = {
        .batch = s->shape.batch, .head_dim = s->shape.head_dim, .act = s->shape.act, .acc = s->acc};
    DsviCpLimits part;
    s->shared_bytes = dsvi_cp_attend_bytes(s->cp, &dense, false);
    if (s->shape.backward)
        s->shared_bytes = dsvi_sparse_max_size(s->shared_bytes, dsvi_cp_attend_bytes(s->cp, &dense, true));
    for (int64_t i = 0; largest_part(s, i, &part); i++) {
        DsviArena room;
        dsvi_arena_plan(&room);
        layout_room_for(s, &part, &room);
        s->shared_bytes = dsvi_sparse_max_size(s->shared_bytes, room.used);
    }
    s->shared = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, s->shared_bytes);
}

void dsvi_sparse_carve_lists(DsviSparse *s, DsviArena *arena)
{
    if (s->selector)
        carve_lists(s, arena);
}

void dsvi_sparse_carve_state(DsviSparse *s, DsviArena *arena)
{
    if (s->selector && !s->borrows)
        dsvi_selector_carve(s->selector, arena);
    if (s->selector)
        carve_selection(s, arena);
    if (s->cp)
        carve_shared(s, arena);
}

void dsvi_sparse_carve(DsviSparse *s, DsviArena *arena)
{
    dsvi_sparse_carve_lists(s, arena);
    dsvi_sparse_carve_state(s, arena);
}

void dsvi_sparse_carve_call(DsviSparse *s, DsviArena *arena)
{
    s->workspace_bytes = max_workspace(s);
    s->workspace = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, s->workspace_bytes);
}

void dsvi_sparse_set_workspace(DsviSparse *s, void *workspace)
{
    s->workspace = workspace;
}
