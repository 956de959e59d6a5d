/* The calls of sparse.h, in the order of a step. A forward pass of a block reads:
 *
 *     prepare   the selector looks (and learns), lists are made if the block runs sparse or is measured,
 *               measured if this step measures
 *     attend    over the lists, or densely
 *     settle    of lists: whether they fit. The device attends already while the host finds out; where they
 *               did not, it attended over nothing, and does so again, densely
 *
 * and step_end takes the measurements in and moves blocks from one side to the other. */
#include "sparse/sparse.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sparse/order.h"
#include "sparse/sparse_internal.h"

/* Lists vary from pass to pass (with the noise level, above all) around the mean that max_density bounds:
 * memory is planned for this many times the bound. */
#define CAPACITY_SLACK 1.25

static void say(const DsvSparse *s, const char *line)
{
    if (s->log && line[0])
        s->log(s->log_context, line);
}

static DsvStatus check(const DsvConfig *settings, const DsvSparseShape *shape)
{
    int64_t tokens = shape->grid[0] * shape->grid[1] * shape->grid[2];
    if (shape->tokens != tokens || tokens < 1)
        return DSVI_FAIL(DSV_E_SHAPE, "sparse attention: %lld tokens do not make a grid of %lld x %lld x "
                         "%lld", (long long)shape->tokens, (long long)shape->grid[0],
                         (long long)shape->grid[1], (long long)shape->grid[2]);
    if (shape->head_dim < 32 || shape->head_dim > DSV_HEAD_DIM_MAX || shape->head_dim % 2)
        return DSVI_FAIL(DSV_E_SHAPE, "sparse attention: head size is %lld, wanted an even number from 32 "
                         "to %d", (long long)shape->head_dim, DSV_HEAD_DIM_MAX);
    if (settings->sparse_group % settings->sparse_chunk)
        return DSVI_FAIL(DSV_E_USAGE, "sparse.chunk, %lld, does not divide sparse.group, %lld",
                         (long long)settings->sparse_chunk, (long long)settings->sparse_group);
    if (shape->context && settings->sparse_enabled)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "ranks that share clips attend densely: cp_size above 1 wants "
                         "sparse.enabled=false");
    return DSV_OK;
}

static size_t results_count(const DsvSparse *s)
{
    return (size_t)(s->shape.blocks * s->shape.batch * s->shape.heads * s->samples);
}

/* Everything on the host: planned and carved like device memory. */
static void carve_host(DsvSparse *s, DsvArena *arena)
{
    size_t blocks = (size_t)s->shape.blocks, heads = (size_t)s->shape.heads;
    size_t bins = DSV_SELECT_BINS * sizeof(double), results = results_count(s) * sizeof(float);
    DsvSparseRecord *r = &s->record;
    s->order = dsvi_arena_take(arena, DSV_MEM_SPARSE, (size_t)s->shape.tokens * sizeof(int32_t));
    s->block = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * sizeof(DsvSparseBlock));
    r->sparse = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * sizeof(int32_t));
    r->changes = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * sizeof(int64_t));
    double **const running[] = {&r->captured, &r->listed, &r->share90, &r->density, &r->estimated_mass,
                                &r->missed};
    for (size_t i = 0; i < sizeof running / sizeof *running; i++)
        *running[i] = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * sizeof(double));
    r->head_captured = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * heads * sizeof(float));
    r->head_share90 = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * heads * sizeof(float));
    r->break_even = dsvi_arena_take(arena, DSV_MEM_SPARSE, sizeof(double));
    s->host_topk = dsvi_arena_take(arena, DSV_MEM_SPARSE, heads * sizeof(int32_t));
    s->host_count = dsvi_arena_take(arena, DSV_MEM_SPARSE, bins);
    s->host_mass = dsvi_arena_take(arena, DSV_MEM_SPARSE, bins);
    s->host_selected = dsvi_arena_take(arena, DSV_MEM_SPARSE, heads * sizeof(double));
    s->host_needed = dsvi_arena_take(arena, DSV_MEM_SPARSE, sizeof(int64_t));
    s->host_sample = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * (size_t)s->samples * sizeof(int32_t));
    s->host_captured = dsvi_arena_take(arena, DSV_MEM_SPARSE, results);
    s->host_share90 = dsvi_arena_take(arena, DSV_MEM_SPARSE, results);
    s->seen = dsvi_arena_take(arena, DSV_MEM_SPARSE, dsvi_sparse_seen_count(s) * sizeof(double));
}

static DsvStatus allocate_host(DsvSparse *s)
{
    DsvArena plan;
    dsvi_arena_plan(&plan);
    carve_host(s, &plan);
    size_t bytes = plan.used;
    DSVI_TRY(s->backend->device->host_alloc(s->backend->device, bytes, &s->host_memory));
    memset(s->host_memory, 0, bytes);
    dsvi_arena_bind(&plan, s->host_memory, bytes);
    carve_host(s, &plan);
    return DSV_OK;
}

void dsvi_sparse_restart(DsvSparse *s)
{
    DsvSparseRecord *r = &s->record;
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        r->sparse[block] = 0;
        r->changes[block] = 0;
        r->captured[block] = r->listed[block] = r->share90[block] = r->estimated_mass[block] = NAN;
        r->missed[block] = NAN;
        r->density[block] = 1;
    }
    for (int64_t i = 0; i < s->shape.blocks * s->shape.heads; i++)
        r->head_captured[i] = r->head_share90[i] = NAN;
    r->break_even[0] = 1;
}

/* Shape of every block's lists. */
static void shape_lists(DsvSparse *s)
{
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        DsvLists *lists = &s->block[block].lists;
        lists->batch = s->shape.batch;
        lists->heads = s->shape.heads;
        lists->queries = lists->keys = s->shape.tokens;
        lists->group = s->settings.sparse_group;
        lists->groups = (s->shape.tokens + lists->group - 1) / lists->group;
        lists->grain = s->settings.sparse_grain;
    }
}

/* Runs of lists of this density, for one block. */
static int64_t runs_of(const DsvLists *lists, double density)
{
    int64_t count = dsvi_lists_count(lists), all = count * dsvi_lists_full(lists);
    int64_t wanted = (int64_t)(density * (double)all) + count; /* no list is empty */
    return wanted < all ? wanted : all;
}

/* How many runs there is memory for. Lists are made block after block and used up in the opposite order: they
 * lie in one piece of memory, behind one another, so that blocks of few keys leave room to those of many.
 * The densest that a block may have find room alone. */
static void size_lists(DsvSparse *s)
{
    const DsvLists *lists = &s->block[0].lists;
    int64_t blocks = s->shape.backward ? s->shape.blocks : 1;
    int64_t one = runs_of(lists, CAPACITY_SLACK * (s->settings.sparse_max_density +
                                                   s->settings.sparse_hysteresis));
    int64_t all = s->shape.blocks * runs_of(lists, s->settings.sparse_list_memory);
    s->runs_most = one;
    s->runs_capacity = all < one ? one : all < blocks * one ? all : blocks * one;
}

DsvStatus dsvi_sparse_create(DsvBackend *backend, const DsvConfig *settings, const DsvSparseShape *shape,
                             DsvSparseLog *log, void *log_context, DsvSparse **out)
{
    DsvStatus status;
    DsvSparse *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for sparse attention");
    s->backend = backend;
    s->settings = *settings;
    s->shape = *shape;
    s->acc = shape->act == DSV_F64 ? DSV_F64 : DSV_F32;
    s->log = log;
    s->log_context = log_context;
    s->samples = settings->sparse_profile_samples < shape->tokens ? settings->sparse_profile_samples
                                                                   : shape->tokens;
    s->listed_block = -1;
    s->predictor_loss = NAN;
    DSVI_TRY_GOTO(status, check(settings, shape), fail);
    DSVI_TRY_GOTO(status, allocate_host(s), fail);
    DSVI_TRY_GOTO(status, dsvi_order_make(settings->sparse_order, shape->grid, s->order), fail);
    if (settings->sparse_enabled)
        DSVI_TRY_GOTO(status, dsvi_selector_create(backend, &s->settings, &s->shape, &s->selector), fail);
    dsvi_sparse_restart(s);
    shape_lists(s);
    size_lists(s);
    *out = s;
    return DSV_OK;
fail:
    dsvi_sparse_free(&s);
    return status;
}

void dsvi_sparse_free(DsvSparse **sparse)
{
    DsvSparse *s = *sparse;
    if (!s)
        return;
    dsvi_selector_free(&s->selector);
    if (s->host_memory)
        s->backend->device->host_free(s->backend->device, s->host_memory);
    free(s);
    *sparse = NULL;
}

DsvAttentionArgs dsvi_sparse_attention_args(const DsvSparse *s, const DsvSparseAttention *pass)
{
    int64_t tokens = s->shape.tokens, heads = s->shape.heads, dim = s->shape.head_dim;
    return (DsvAttentionArgs){
        .batch = s->shape.batch, .heads = heads, .queries = tokens, .keys = tokens, .head_dim = dim,
        .scale = pass->scale, .act = s->shape.act, .acc = s->acc,
        .q = dsvi_heads(pass->q, tokens, heads, dim), .k = dsvi_heads(pass->k, tokens, heads, dim),
        .v = dsvi_heads(pass->v, tokens, heads, dim), .out = dsvi_heads(pass->out, tokens, heads, dim),
        .lse = pass->lse,
        .dout = dsvi_heads(pass->dout, tokens, heads, dim), .dq = dsvi_heads(pass->dq, tokens, heads, dim),
        .dk = dsvi_heads(pass->dk, tokens, heads, dim), .dv = dsvi_heads(pass->dv, tokens, heads, dim),
        .workspace = s->workspace, .workspace_bytes = s->workspace_bytes,
    };
}

static DsvContextAttention context_args(const DsvSparse *s, const DsvSparseAttention *pass)
{
    return (DsvContextAttention){
        .batch = s->shape.batch, .head_dim = s->shape.head_dim, .scale = pass->scale, .act = s->shape.act,
        .acc = s->acc, .q = pass->q, .k = pass->k, .v = pass->v, .out = pass->out, .lse = pass->lse,
        .dout = pass->dout, .dq = pass->dq, .dk = pass->dk, .dv = pass->dv,
        .workspace = s->workspace, .workspace_bytes = s->workspace_bytes,
    };
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Of dense attention over all ranks' tokens. */
static size_t context_workspace(const DsvSparse *s)
{
    const DsvSparseAttention nothing = {0};
    DsvContextAttention args = context_args(s, &nothing);
    size_t forward = dsvi_context_attend_bytes(s->shape.context, &args, false);
    return s->shape.backward ? larger(forward, dsvi_context_attend_bytes(s->shape.context, &args, true))
                             : forward;
}

/* What any op this layer calls may need. */
static size_t workspace_of_all(const DsvSparse *s)
{
    const DsvOps *ops = &s->backend->ops;
    DsvStream *stream = s->backend->device->stream;
    const DsvSparseAttention nothing = {0};
    DsvAttentionArgs args = dsvi_sparse_attention_args(s, &nothing);
    if (s->shape.context)
        return context_workspace(s);
    size_t most = DSVI_OP_WORKSPACE(ops->attention_fwd, stream, &args);
    if (s->shape.backward)
        most = larger(most, DSVI_OP_WORKSPACE(ops->attention_bwd, stream, &args));
    if (!s->selector)
        return most;
    args.lists = &s->block[0].lists;
    most = larger(most, DSVI_OP_WORKSPACE(ops->attention_list_fwd, stream, &args));
    if (s->shape.backward)
        most = larger(most, DSVI_OP_WORKSPACE(ops->attention_list_bwd, stream, &args));
    return larger(most, larger(dsvi_sparse_select_workspace(s), dsvi_sparse_profile_workspace(s)));
}

static void carve_lists(DsvSparse *s, DsvArena *arena)
{
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        DsvLists *lists = &s->block[block].lists;
        lists->offsets = dsvi_arena_take(arena, DSV_MEM_SPARSE,
                                         (size_t)(dsvi_lists_count(lists) + 1) * sizeof(int64_t));
    }
    s->runs = dsvi_arena_take(arena, DSV_MEM_SPARSE, (size_t)s->runs_capacity * sizeof(int32_t));
    for (int64_t block = 0; block < s->shape.blocks; block++)
        s->block[block].lists.runs = s->runs;
}

void dsvi_sparse_carve(DsvSparse *s, DsvArena *arena)
{
    const DsvSparseShape *shape = &s->shape;
    size_t heads = (size_t)shape->heads, blocks = (size_t)shape->blocks, samples = (size_t)s->samples;
    size_t bins = DSV_SELECT_BINS * sizeof(double), results = results_count(s) * sizeof(float);
    if (s->selector) {
        int64_t proxies = (shape->tokens + s->selector->features.chunk - 1) / s->selector->features.chunk;
        carve_lists(s, arena);
        dsvi_selector_carve(s->selector, arena);
        s->select_lse = dsvi_arena_take(arena, DSV_MEM_SCRATCH,
                                        (size_t)(shape->batch * shape->heads * proxies) * sizeof(float));
        s->bin_count = dsvi_arena_take(arena, DSV_MEM_SCRATCH, bins);
        s->bin_mass = dsvi_arena_take(arena, DSV_MEM_SCRATCH, bins);
        s->threshold = dsvi_arena_take(arena, DSV_MEM_SCRATCH, heads * sizeof(float));
        s->topk = dsvi_arena_take(arena, DSV_MEM_SCRATCH, heads * sizeof(int32_t));
        s->selected_mass = dsvi_arena_take(arena, DSV_MEM_SCRATCH, heads * sizeof(double));
        s->sample = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * samples * sizeof(int32_t));
        s->captured = dsvi_arena_take(arena, DSV_MEM_SPARSE, results);
        s->share90 = dsvi_arena_take(arena, DSV_MEM_SPARSE, results);
        s->listed = dsvi_arena_take(arena, DSV_MEM_SCRATCH, results / blocks);
    }
    s->workspace_bytes = workspace_of_all(s);
    s->workspace = dsvi_arena_take(arena, DSV_MEM_SCRATCH, s->workspace_bytes);
}

double dsvi_sparse_max_density(const DsvSparse *s)
{
    return fmin(s->settings.sparse_max_density, s->record.break_even[0]);
}

DsvStatus dsvi_sparse_setup(DsvSparse *s)
{
    char line[256];
    if (!s->selector)
        return DSV_OK;
    DSVI_TRY(dsvi_selector_setup(s->selector));
    if (!s->settings.sparse_measure_cost)
        return DSV_OK;
    DSVI_TRY(dsvi_cost_break_even(s->backend, &s->settings, &s->shape, s->record.break_even, line,
                                  sizeof line));
    DSVI_TRY(dsvi_comm_broadcast(s->comm, 0, s->record.break_even, sizeof(double)));
    say(s, line);
    return DSV_OK;
}

const int32_t *dsvi_sparse_order(const DsvSparse *s)
{
    return s->order;
}

/* Measurements are taken every so many steps, and as long as a block has none. */
static bool measures(const DsvSparse *s)
{
    if (!s->selector || !s->train)
        return false;
    for (int64_t block = 0; block < s->shape.blocks; block++)
        if (isnan(s->record.share90[block]))
            return true;
    return s->step % s->settings.sparse_profile_every == 0;
}

void dsvi_sparse_watch(DsvSparse *s, DsvSparseWatch *watch, void *watch_context)
{
    s->watch = watch;
    s->watch_context = watch_context;
}

DsvStatus dsvi_sparse_step_begin(DsvSparse *s, int64_t step, bool train)
{
    s->step = step;
    s->train = train;
    s->measuring = measures(s);
    s->predictor_loss = NAN;
    for (int64_t block = 0; block < s->shape.blocks; block++)
        s->block[block].measured = s->block[block].overflowed = false;
    if (s->measuring)
        DSVI_TRY(dsvi_sparse_profile_begin(s));
    return s->selector ? dsvi_selector_step_begin(s->selector, step, train) : DSV_OK;
}

static double capacity_density(const DsvSparseBlock *b)
{
    return (double)b->lists.capacity / (double)(dsvi_lists_count(&b->lists) * dsvi_lists_full(&b->lists));
}

/* The block should run over its lists, and they do not fit: it runs dense. */
static void overflow(DsvSparse *s, int64_t block)
{
    char line[160];
    DsvSparseBlock *b = &s->block[block];
    b->overflow_density = s->record.density[block];
    if (s->train && !s->forced) {
        b->overflowed = true; /* step_end tells */
        return;
    }
    snprintf(line, sizeof line, "block %lld ran dense: its lists needed density %.2f, above the %.2f there "
             "is room for", (long long)block, b->overflow_density, capacity_density(b));
    say(s, line);
}

/* Points the block's lists behind those which blocks before it keep. */
static void place_lists(DsvSparse *s, int64_t block)
{
    DsvLists *lists = &s->block[block].lists;
    int64_t used = 0;
    if (block > 0 && s->shape.backward)
        used = s->block[block - 1].lists.runs - s->runs + s->block[block - 1].kept;
    lists->runs = s->runs + used;
    lists->capacity = s->runs_capacity - used < s->runs_most ? s->runs_capacity - used : s->runs_most;
    s->block[block].kept = 0;
}

/* Decides how this pass of the block should attend, and makes what it takes. */
static DsvStatus prepare(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    DsvSparseBlock *b = &s->block[block];
    bool wanted = s->forced || s->record.sparse[block], measure = s->measuring && !b->measured;
    b->over_lists = false;
    if (!s->selector)
        return DSV_OK;
    place_lists(s, block);
    DSVI_TRY(dsvi_selector_look(s->selector, block, pass, wanted || measure));
    if (!wanted && !measure)
        return DSV_OK;
    DSVI_TRY(dsvi_sparse_make_lists(s, block));
    b->over_lists = wanted;
    if (!measure)
        return DSV_OK;
    DSVI_TRY(dsvi_sparse_take_lists(s, block));
    return dsvi_sparse_profile_pass(s, block, pass);
}

static DsvStatus attend(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    const DsvOps *ops = &s->backend->ops;
    DsvStream *stream = s->backend->device->stream;
    DsvAttentionArgs args = dsvi_sparse_attention_args(s, pass);
    DsvContextAttention shared = context_args(s, pass);
    if (s->shape.context)
        return dsvi_context_attend_fwd(s->shape.context, block, &shared);
    if (!s->block[block].over_lists)
        return ops->attention_fwd.run(stream, &args);
    args.lists = &s->block[block].lists;
    return ops->attention_list_fwd.run(stream, &args);
}

static DsvStatus settle(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    DsvSparseBlock *b = &s->block[block];
    DSVI_TRY(dsvi_sparse_take_lists(s, block));
    b->over_lists = b->fit;
    if (b->fit) {
        b->kept = s->listed_runs;
        return DSV_OK;
    }
    overflow(s, block);
    return attend(s, block, pass);
}

DsvStatus dsvi_sparse_forward(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    if (pass->recompute)
        return attend(s, block, pass);
    if (s->watch)
        DSVI_TRY(s->watch(s->watch_context, block, pass));
    DSVI_TRY(prepare(s, block, pass));
    DSVI_TRY(attend(s, block, pass));
    return s->block[block].over_lists ? settle(s, block, pass) : DSV_OK;
}

DsvStatus dsvi_sparse_backward(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    const DsvOps *ops = &s->backend->ops;
    DsvStream *stream = s->backend->device->stream;
    DsvAttentionArgs args = dsvi_sparse_attention_args(s, pass);
    DsvContextAttention shared = context_args(s, pass);
    if (s->shape.context)
        return dsvi_context_attend_bwd(s->shape.context, block, &shared);
    if (!s->block[block].over_lists)
        return ops->attention_bwd.run(stream, &args);
    args.lists = &s->block[block].lists;
    return ops->attention_list_bwd.run(stream, &args);
}

/* Moves the block where the guard wants it. */
static void dispatch(DsvSparse *s, int64_t block)
{
    char line[256];
    const DsvSparseBlock *b = &s->block[block];
    DsvSparseRecord *r = &s->record;
    const DsvGuard guard = {
        s->settings.sparse_min_mass, dsvi_sparse_max_density(s), s->settings.sparse_hysteresis,
    };
    const DsvGuardView view = {
        .sparse = r->sparse[block], .measured = b->measured, .overflowed = b->overflowed,
        .fit = b->measured_fit, .captured = r->captured[block], .density = r->listed[block],
        .needed = b->overflow_density,
        .capacity = capacity_density(b),
    };
    bool sparse = dsvi_guard_decide(&guard, &view, block, line, sizeof line);
    if (b->overflowed)
        r->listed[block] = fmax(r->listed[block], b->overflow_density); /* it must come down from there */
    if (sparse == view.sparse)
        return;
    r->sparse[block] = sparse;
    r->changes[block]++;
    say(s, line);
}

DsvStatus dsvi_sparse_step_end(DsvSparse *s)
{
    s->measured = s->measuring;
    if (!s->selector || !s->train)
        return DSV_OK;
    if (s->measuring)
        DSVI_TRY(dsvi_sparse_profile_read(s));
    DSVI_TRY(dsvi_sparse_agree(s));
    if (s->measuring)
        dsvi_sparse_profile_end(s);
    DSVI_TRY(dsvi_selector_step_end(s->selector, s->record.sparse, &s->predictor_loss));
    bool decides = !s->forced && s->step >= s->settings.sparse_warmup_steps;
    for (int64_t block = 0; block < s->shape.blocks && decides; block++)
        dispatch(s, block);
    return DSV_OK;
}

void dsvi_sparse_force(DsvSparse *s, bool sparse_everywhere)
{
    DSVI_ASSERT(s->selector || !sparse_everywhere);
    s->forced = sparse_everywhere;
}

bool dsvi_sparse_measured(const DsvSparse *s)
{
    return s->measured;
}

void dsvi_sparse_report(const DsvSparse *s, DsvSparseReport *report)
{
    double captured = 0;
    *report = (DsvSparseReport){.blocks = s->shape.blocks, .predictor_loss = s->predictor_loss};
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        double density = s->block[block].over_lists ? s->record.density[block] : 1;
        report->density += density / (double)s->shape.blocks;
        if (!s->record.sparse[block] && !s->forced)
            continue;
        report->sparse_blocks++;
        captured += s->record.captured[block];
    }
    report->captured_mass = report->sparse_blocks > 0 ? captured / (double)report->sparse_blocks : NAN;
}

void dsvi_sparse_block_report(const DsvSparse *s, int64_t block, DsvSparseBlockReport *report)
{
    const DsvSparseRecord *r = &s->record;
    *report = (DsvSparseBlockReport){
        .sparse = r->sparse[block] || s->forced, .captured_mass = r->captured[block],
        .density = r->density[block], .estimated_mass = r->estimated_mass[block],
        .share90 = r->share90[block],
        .head_captured = r->head_captured + block * s->shape.heads,
        .head_share90 = r->head_share90 + block * s->shape.heads, .changes = r->changes[block],
    };
}

const DsvLists *dsvi_sparse_lists(const DsvSparse *s, int64_t block)
{
    const DsvSparseBlock *b = &s->block[block];
    bool overwritten = !s->shape.backward && s->listed_block != block;
    return b->over_lists && !overwritten ? &b->lists : NULL;
}
