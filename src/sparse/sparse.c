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

#include "context/context_most.h"
#include "sparse/cost.h"
#include "sparse/order.h"
#include "sparse/sparse_internal.h"

static void say(const DsvSparse *s, const char *line)
{
    if (s->log && line[0])
        s->log(s->log_context, line);
}

/* Some plan at least must be one that lists can be attended to under. */
static DsvStatus check_ranks(const DsvContext *context)
{
    DsvContextMost part;
    int64_t least = INT64_MAX;
    for (int64_t i = 0; dsvi_context_most(context, i, &part); i++)
        least = part.sequence_ranks < least ? part.sequence_ranks : least;
    if (least <= DSV_RUN_PARTS_MOST)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED, "sparse.enabled is true and %lld ranks divide the tokens of a clip "
                     "in every plan there may be, wanted at most %d", (long long)least, DSV_RUN_PARTS_MOST);
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
    if (settings->sparse_enabled && shape->context)
        DSVI_TRY(check_ranks(shape->context));
    if (settings->sparse_time_choices && shape->context)
        return DSVI_FAIL(DSV_E_USAGE, "sparse.time_choices is true and %lld ranks share a clip, wanted 1",
                         (long long)dsvi_context_ranks(shape->context));
    if (settings->sparse_time_choices && settings->sparse_offload_lists)
        return DSVI_FAIL(DSV_E_USAGE, "sparse.time_choices is true and so is sparse.offload_lists: choices "
                         "are timed over lists that stay on the device");
    bool counts = settings->sparse_target_density > 0, topk = strcmp(settings->sparse_rule, "topk") == 0;
    if (settings->sparse_enabled && !counts && (topk || settings->sparse_target_mass <= 0))
        return DSVI_FAIL(DSV_E_USAGE, "sparse.target_density is 0 and %s: nothing says how many keys lists "
                         "may have", topk ? "sparse.rule is topk" : "so is sparse.target_mass");
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
        r->head_captured[i] = r->head_share90[i] = r->head_listed[i] = NAN;
    r->break_even[0] = 1;
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
    if (shape->context && dsvi_context_ranks(shape->context) > 1)
        s->context = shape->context;
    s->shape.context = s->context;
    s->samples = settings->sparse_profile_samples < shape->tokens ? settings->sparse_profile_samples
                                                                   : shape->tokens;
    s->listed_block = s->room_block = s->scored_block = -1;
    s->lying[0] = s->lying[1] = s->coming = -1;
    s->predictor_loss = NAN;
    DSVI_TRY_GOTO(status, check(settings, shape), fail);
    DSVI_TRY_GOTO(status, dsvi_sparse_allocate_host(s), fail);
    DSVI_TRY_GOTO(status, dsvi_order_make(settings->sparse_order, shape->grid, s->order), fail);
    if (settings->sparse_enabled)
        DSVI_TRY_GOTO(status, dsvi_selector_create(backend, &s->settings, &s->shape, &s->selector), fail);
    dsvi_sparse_restart(s);
    dsvi_sparse_size_lists(s);
    if (s->context) /* those that share samples decide together, whoever else trains */
        dsvi_sparse_share(s, dsvi_context_group_host(dsvi_context_group(s->context)),
                          dsvi_context_group_device(dsvi_context_group(s->context)));
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
    if (s->host_runs) /* which is the caller's, as is the room on the device */
        s->backend->device->sync(s->backend->device->copies);
    dsvi_selector_free(&s->selector);
    if (s->host_memory)
        s->backend->device->host_free(s->backend->device, s->host_memory);
    free(s);
    *sparse = NULL;
}

DsvSparseView dsvi_sparse_view(const DsvSparse *s, int64_t block)
{
    return dsvi_sparse_view_of(&s->shape, block);
}

DsvAttentionArgs dsvi_sparse_attention_args(const DsvSparse *s, const DsvSparseView *view, int64_t keys,
                                            const DsvSparseAttention *pass)
{
    int64_t queries = view->queries, heads = view->heads, dim = s->shape.head_dim;
    return (DsvAttentionArgs){
        .batch = s->shape.batch, .heads = heads, .queries = queries, .keys = keys, .head_dim = dim,
        .scale = pass->scale, .act = s->shape.act, .acc = s->acc,
        .q = dsvi_heads(pass->q, queries, heads, dim), .k = dsvi_heads(pass->k, keys, heads, dim),
        .v = dsvi_heads(pass->v, keys, heads, dim), .out = dsvi_heads(pass->out, queries, heads, dim),
        .lse = pass->lse,
        .dout = dsvi_heads(pass->dout, queries, heads, dim), .dq = dsvi_heads(pass->dq, queries, heads, dim),
        .dk = dsvi_heads(pass->dk, keys, heads, dim), .dv = dsvi_heads(pass->dv, keys, heads, dim),
        .workspace = s->workspace, .workspace_bytes = s->workspace_bytes,
    };
}

double dsvi_sparse_max_density(const DsvSparse *s)
{
    return fmin(s->settings.sparse_max_density, s->record.break_even[0]);
}

DsvStatus dsvi_sparse_setup(DsvSparse *s)
{
    DsvCostFound found;
    if (!s->selector)
        return DSV_OK;
    DSVI_TRY(dsvi_selector_setup(s->selector));
    if (!s->settings.sparse_measure_cost || s->settings.deterministic) /* times waver */
        return DSV_OK;
    DSVI_TRY(dsvi_cost_measure(s->backend, &s->settings, &s->shape, &found));
    DSVI_TRY(dsvi_comm_broadcast(s->comm, 0, &found, sizeof found));
    s->record.break_even[0] = found.break_even;
    s->cost = found.attention;
    s->knows_cost = true;
    say(s, found.line);
    return DSV_OK;
}

const int32_t *dsvi_sparse_order(const DsvSparse *s)
{
    return s->order;
}

bool dsvi_sparse_wanted(const DsvSparse *s, int64_t block)
{
    if (s->prescribed)
        return !isnan(s->prescribed[block * s->shape.heads]);
    return s->forced || s->record.sparse[block];
}

/* Whether a step of measurements takes the block's: not where it is prescribed to run dense. */
static bool may_measure(const DsvSparse *s, int64_t block)
{
    return !s->prescribed || dsvi_sparse_wanted(s, block);
}

/* Measurements are taken every so many steps, and as long as a block has none. */
static bool measures(const DsvSparse *s)
{
    if (!s->selector || !s->train)
        return false;
    for (int64_t block = 0; block < s->shape.blocks; block++)
        if (may_measure(s, block) && isnan(s->record.share90[block]))
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
    s->timing = s->times_next && train && !s->measuring;
    s->times_next = s->times_next && !s->timing;
    s->room_block = s->scored_block = -1;
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        DsvSparseBlock *b = &s->block[block];
        b->measured = b->overflowed = false;
        b->seconds = 0;
        b->passes = 0;
        b->times.forward = b->times.backward = false;
        b->far_share = NAN;
    }
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
    if (s->train && !s->forced && !s->prescribed) {
        b->overflowed = true; /* step_end tells */
        return;
    }
    snprintf(line, sizeof line, "block %lld ran dense: its lists needed density %.2f, above the %.2f there "
             "is room for", (long long)block, b->overflow_density, capacity_density(b));
    say(s, line);
}

void dsvi_sparse_point_lists(DsvSparse *s, int64_t block, int32_t *runs)
{
    DsvSparseBlock *b = &s->block[block];
    bool divided = dsvi_sparse_view(s, block).divided;
    b->runs = runs;
    if (!divided) {
        b->lists.runs = runs;
        return;
    }
    b->near.runs = runs;
    b->far.runs = runs + b->near.capacity;
}

/* Shapes the block's lists, and points them behind those which blocks before it keep on the device. */
static void place_lists(DsvSparse *s, int64_t block)
{
    DsvSparseBlock *b = &s->block[block];
    DsvSparseView view = dsvi_sparse_view(s, block);
    b->at = block > 0 && s->shape.backward ? b[-1].at + b[-1].kept : 0;
    b->kept = 0;
    dsvi_sparse_shape_lists(s, &view, &b->lists);
    b->runs = dsvi_sparse_offloads(s) ? s->runs : s->runs + b->at;
    b->lists.runs = view.divided ? s->whole_runs : b->runs;
    if (dsvi_sparse_compares(s) && !dsvi_sparse_wanted(s, block))
        b->lists.runs = s->runs_aside + block * s->runs_most;
    b->lists.capacity = s->runs_capacity - b->at < s->runs_most ? s->runs_capacity - b->at : s->runs_most;
}

/* Decides how this pass of the block should attend, and makes what it takes. */
static DsvStatus prepare(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    DsvDevice *device = s->backend->device;
    DsvSparseBlock *b = &s->block[block];
    bool wanted = dsvi_sparse_wanted(s, block);
    bool measure = s->measuring && !b->measured && may_measure(s, block);
    bool compare = measure && dsvi_sparse_compares(s);
    double begin = 0, selected = 0;
    DsvSparseScored scored = {0};
    b->over_lists = false;
    if (!s->selector)
        return DSV_OK;
    place_lists(s, block);
    if (compare)
        DSVI_TRY(device->clock(device->stream, &begin));
    if (measure || dsvi_selector_learns(s->selector))
        DSVI_TRY(dsvi_sparse_take_scored(s, block, pass, &scored));
    DSVI_TRY(dsvi_selector_look(s->selector, block, pass, &scored, wanted || measure));
    if (!wanted && !measure)
        return DSV_OK;
    DSVI_TRY(dsvi_sparse_take_features(s, block));
    DSVI_TRY(dsvi_sparse_clear_room(s, block));
    DSVI_TRY(dsvi_sparse_make_lists(s, block));
    b->over_lists = wanted;
    if (!measure)
        return DSV_OK;
    if (compare)
        DSVI_TRY(device->clock(device->stream, &selected));
    DSVI_TRY(dsvi_sparse_take_lists(s, block));
    DSVI_TRY(dsvi_sparse_profile_pass(s, block, pass->scale, &scored));
    return compare ? dsvi_sparse_time_forward(s, block, pass, selected - begin) : DSV_OK;
}

DsvStatus dsvi_sparse_attend(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    const DsvOps *ops = &s->backend->ops;
    DsvStream *stream = s->backend->device->stream;
    DsvSparseView view = dsvi_sparse_view(s, block);
    DsvAttentionArgs args = dsvi_sparse_attention_args(s, &view, s->shape.tokens, pass);
    if (!s->block[block].over_lists)
        return ops->attention_fwd.run(stream, &args);
    args.lists = &s->block[block].lists;
    return ops->attention_list_fwd.run(stream, &args);
}

static DsvStatus attend(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    return s->context ? dsvi_sparse_context_attend(s, block, pass) : dsvi_sparse_attend(s, block, pass);
}

static DsvStatus settle(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    DsvSparseBlock *b = &s->block[block];
    DSVI_TRY(dsvi_sparse_take_lists(s, block));
    b->over_lists = b->fit;
    if (b->fit) {
        b->kept = s->listed_runs;
        return dsvi_sparse_send_away(s, block);
    }
    overflow(s, block);
    return attend(s, block, pass);
}

/* The halves of the lists are made only now: they leave behind that. */
static DsvStatus keep_divided(DsvSparse *s, int64_t block)
{
    DsvDevice *device = s->backend->device;
    DSVI_TRY(dsvi_sparse_keep_divided(s, block));
    DSVI_TRY(device->follow(device->copies, device->stream));
    return dsvi_sparse_send_away(s, block);
}

/* Where keys are divided, what has to be fetched depends on the lists: they are settled first. */
static DsvStatus attend_divided(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    DsvSparseBlock *b = &s->block[block];
    DSVI_TRY(dsvi_sparse_divide(s, block));
    DSVI_TRY(dsvi_sparse_take_lists(s, block));
    b->over_lists = b->fit;
    if (b->fit)
        DSVI_TRY(keep_divided(s, block));
    else
        overflow(s, block);
    return attend(s, block, pass);
}

static DsvStatus forward(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    if (pass->recompute) {
        DSVI_TRY(dsvi_sparse_bring_back(s, block));
        return attend(s, block, pass);
    }
    if (s->watch)
        DSVI_TRY(s->watch(s->watch_context, block, pass));
    DSVI_TRY(prepare(s, block, pass));
    if (s->block[block].over_lists && dsvi_sparse_view(s, block).divided)
        return attend_divided(s, block, pass);
    DSVI_TRY(attend(s, block, pass));
    return s->block[block].over_lists ? settle(s, block, pass) : DSV_OK;
}

DsvStatus dsvi_sparse_attend_back(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    const DsvOps *ops = &s->backend->ops;
    DsvStream *stream = s->backend->device->stream;
    DsvSparseView view = dsvi_sparse_view(s, block);
    DsvAttentionArgs args = dsvi_sparse_attention_args(s, &view, s->shape.tokens, pass);
    if (!s->block[block].over_lists)
        return ops->attention_bwd.run(stream, &args);
    args.lists = &s->block[block].lists;
    return ops->attention_list_bwd.run(stream, &args);
}

static DsvStatus attend_back(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    if (s->context)
        return dsvi_sparse_context_backward(s, block, pass);
    if (dsvi_sparse_compares(s))
        DSVI_TRY(dsvi_sparse_time_backward(s, block, pass));
    return dsvi_sparse_attend_back(s, block, pass);
}

static DsvStatus backward(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    DSVI_TRY(dsvi_sparse_bring_back(s, block));
    DSVI_TRY(attend_back(s, block, pass));
    return dsvi_sparse_use_up(s, block);
}

/* Runs a pass, timed where the step is. */
static DsvStatus run(DsvSparse *s, int64_t block, const DsvSparseAttention *pass,
                     DsvStatus (*fn)(DsvSparse *, int64_t, const DsvSparseAttention *))
{
    DsvDevice *device = s->backend->device;
    double begin, end;
    if (s->context)
        dsvi_sparse_lay_room(s, block);
    if (!s->timing)
        return fn(s, block, pass);
    DSVI_TRY(device->clock(device->stream, &begin));
    DSVI_TRY(fn(s, block, pass));
    DSVI_TRY(device->clock(device->stream, &end));
    s->block[block].seconds += end - begin;
    s->block[block].passes += fn == backward;
    return DSV_OK;
}

DsvStatus dsvi_sparse_forward(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    return run(s, block, pass, forward);
}

DsvStatus dsvi_sparse_backward(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    return run(s, block, pass, backward);
}

/* The head whose lists hold the smallest fraction of its attention. */
static int64_t worst_head(const DsvSparse *s, int64_t block)
{
    const float *captured = s->record.head_captured + block * s->shape.heads;
    int64_t worst = 0;
    for (int64_t h = 0; h < s->shape.heads; h++)
        if (captured[h] < captured[worst])
            worst = h;
    return worst;
}

/* Asks the guard which side the block is on from the next step, and logs a change. */
static void dispatch(DsvSparse *s, int64_t block)
{
    char line[256];
    const DsvSparseBlock *b = &s->block[block];
    DsvSparseRecord *r = &s->record;
    int64_t worst = worst_head(s, block);
    const DsvGuard guard = {
        .min_mass = s->settings.sparse_min_mass,
        .min_head_mass = s->settings.sparse_min_head_mass,
        .max_density = dsvi_sparse_max_density(s),
        .hysteresis = s->settings.sparse_hysteresis,
    };
    const DsvGuardView view = {
        .sparse = r->sparse[block],
        .measured = b->measured,
        .overflowed = b->overflowed,
        .fit = b->measured_fit,
        .captured = r->captured[block],
        .density = r->listed[block],
        .worst_head = worst,
        .head_captured = r->head_captured[block * s->shape.heads + worst],
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

static void tell_times(const DsvSparse *s)
{
    char line[256];
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        dsvi_sparse_tell_times(s, block, line, sizeof line);
        say(s, line);
    }
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
    tell_times(s);
    bool decides = !s->forced && !s->prescribed && s->step >= s->settings.sparse_warmup_steps;
    for (int64_t block = 0; block < s->shape.blocks && decides; block++)
        dispatch(s, block);
    return DSV_OK;
}

void dsvi_sparse_force(DsvSparse *s, bool sparse_everywhere)
{
    DSVI_ASSERT(s->selector || !sparse_everywhere);
    s->forced = sparse_everywhere;
}

void dsvi_sparse_prescribe(DsvSparse *s, const double *density)
{
    DSVI_ASSERT(s->selector);
    memcpy(s->prescription, density, (size_t)(s->shape.blocks * s->shape.heads) * sizeof *density);
    s->prescribed = s->prescription;
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
        if (!dsvi_sparse_wanted(s, block))
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
        .sparse = dsvi_sparse_wanted(s, block), .over_lists = s->block[block].over_lists,
        .captured_mass = r->captured[block],
        .density = r->density[block], .estimated_mass = r->estimated_mass[block],
        .share90 = r->share90[block],
        .head_captured = r->head_captured + block * s->shape.heads,
        .head_share90 = r->head_share90 + block * s->shape.heads, .changes = r->changes[block],
    };
}

void dsvi_sparse_burden(const DsvSparse *s, int64_t block, double *density)
{
    const float *listed = s->record.head_listed + block * s->shape.heads;
    const double *prescribed = s->prescribed ? s->prescribed + block * s->shape.heads : NULL;
    bool dense = !dsvi_sparse_wanted(s, block);
    for (int64_t h = 0; h < s->shape.heads; h++)
        density[h] = dense ? 1 : !isnan(listed[h]) ? listed[h] : prescribed ? prescribed[h] : 1;
}

double dsvi_sparse_far_share(const DsvSparse *s, int64_t block)
{
    return s->block[block].far_share;
}

void dsvi_sparse_time_next(DsvSparse *s)
{
    s->times_next = true;
}

double dsvi_sparse_seconds(const DsvSparse *s, int64_t block)
{
    const DsvSparseBlock *b = &s->block[block];
    return b->passes > 0 ? b->seconds / (double)b->passes : NAN;
}

const DsvAttentionCost *dsvi_sparse_attention_cost(const DsvSparse *s)
{
    return s->knows_cost ? &s->cost : NULL;
}

const DsvLists *dsvi_sparse_lists(const DsvSparse *s, int64_t block)
{
    const DsvSparseBlock *b = &s->block[block];
    bool made_anew = !s->shape.backward || dsvi_sparse_view(s, block).divided;
    bool overwritten = (made_anew && s->listed_block != block) || !dsvi_sparse_lies(s, block);
    return b->over_lists && !overwritten ? &b->lists : NULL;
}
