/* The functions of sparse.h, in the order of a step. A forward pass of a block consists of:
 *
 *     prepare   The selector observes q and k, and learns from them. Lists are made if the block is sparse or
 *               is measured in this step. If the block is measured, its lists are compared with exact
 *               attention.
 *     attend    Attention over the lists, or dense attention.
 *     settle    The host waits until it knows whether the lists fit their memory; meanwhile the device is
 *               already computing attention. Lists that do not fit are empty, so attention is then computed
 *               again, densely.
 *
 * dsvi_sparse_step_end updates the running means of the measurements and lets the guard decide. */
#include "sparse/sparse.h"

#include <math.h>

#include "sparse/cost.h"
#include "sparse/sparse_internal.h"

DsviSparseView dsvi_sparse_view(const DsviSparse *s, int64_t block)
{
    return dsvi_sparse_view_of(&s->shape, block);
}

bool dsvi_sparse_fetches(const DsviSparse *s, int64_t block)
{
    return s->tail.chunk == 0 && dsvi_sparse_view(s, block).divided;
}

DsviAttentionArgs dsvi_sparse_attention_args(const DsviSparse *s, const DsviSparseView *view, int64_t keys,
                                             const DsviAttentionCall *pass)
{
    int64_t queries = view->queries, heads = view->heads, dim = s->shape.head_dim;
    const DsviAttentionRows contiguous = {
        .q = dsvi_heads(pass->q, queries, heads, dim),
        .k = dsvi_heads(pass->k, keys, heads, dim),
        .v = dsvi_heads(pass->v, keys, heads, dim),
        .out = dsvi_heads(pass->out, queries, heads, dim),
        .dout = dsvi_heads(pass->dout, queries, heads, dim),
        .dq = dsvi_heads(pass->dq, queries, heads, dim),
        .dk = dsvi_heads(pass->dk, keys, heads, dim),
        .dv = dsvi_heads(pass->dv, keys, heads, dim),
    };
    const DsviAttentionRows *rows = pass->rows ? pass->rows : &contiguous;
    return (DsviAttentionArgs){
        .batch = s->shape.batch,
        .heads = heads,
        .queries = queries,
        .keys = keys,
        .head_dim = dim,
        .scale = pass->scale,
        .act = s->shape.act,
        .acc = s->acc,
        .q = rows->q,
        .k = rows->k,
        .v = rows->v,
        .out = rows->out,
        .lse = pass->lse,
        .dout = rows->dout,
        .dq = rows->dq,
        .dk = rows->dk,
        .dv = rows->dv,
        .workspace = s->workspace,
        .workspace_bytes = s->workspace_bytes,
    };
}

DsvStatus dsvi_sparse_measure(DsviSparse *s)
{
    DsviCostFound found;
    bool wanted = s->selector && s->settings.sparse_measure_cost;
    if (!wanted || s->has_cost || s->settings.deterministic) /* timings vary from run to run */
        return DSV_OK;
    DSVI_TRY(dsvi_cost_measure(s->backend, &s->settings, &s->shape, &found));
    DSVI_TRY(dsvi_comm_broadcast(s->comm, 0, &found, sizeof found));
    s->record.break_even[0] = found.break_even;
    s->cost = found.attention;
    s->has_cost = true;
    dsvi_sparse_log_line(s, found.line);
    return DSV_OK;
}

DsvStatus dsvi_sparse_setup(DsviSparse *s)
{
    if (s->selector && !s->borrows)
        DSVI_TRY(dsvi_selector_setup(s->selector));
    return dsvi_sparse_measure(s);
}

const int32_t *dsvi_sparse_order(const DsviSparse *s)
{
    return s->order;
}

/* Returns whether measuring steps measure the block: false if dsvi_sparse_prescribe has made the block
 * dense. */
static bool is_measurable(const DsviSparse *s, int64_t block)
{
    return !s->prescribed || dsvi_sparse_uses_lists(s, block);
}

/* Returns whether a state was loaded whose measurements do not hold for these lists or bounds. */
static bool measurements_are_due(const DsviSparse *s)
{
    return s->record.measured_step[0] < 0;
}

/* Returns whether this step takes measurements: in the first step of every sparse.profile_every steps in
 * which the layer is used, at the end of the warm-up, so that blocks can be sparse right after it, and while
 * some measurable block has no measurement yet, or one that is due for replacement. */
static bool is_measuring_step(const DsviSparse *s)
{
    if (!s->selector || !s->train)
        return false;
    for (int64_t block = 0; block < s->shape.blocks; block++)
        if (is_measurable(s, block) && isnan(s->record.share90[block]))
            return true;
    int64_t every = s->settings.sparse_profile_every, warmup = s->settings.sparse_warmup_steps;
    int64_t last = s->record.measured_step[0];
    return measurements_are_due(s) || s->step / every != last / every || (last < warmup && s->step >= warmup);
}

void dsvi_sparse_watch(DsviSparse *s, DsviSparseWatch *watch, void *watch_context)
{
    s->watch = watch;
    s->watch_context = watch_context;
}

DsvStatus dsvi_sparse_step_begin(DsviSparse *s, int64_t step, bool train)
{
    s->step = step;
    s->train = train;
    s->ran = false;
    bool finish_begins = train && dsvi_sparse_finish_begin(s, step);
    s->measuring = is_measuring_step(s) || (finish_begins && s->selector);
    s->predictor_loss = NAN;
    s->timing = s->times_next && train && !s->measuring;
    s->times_next = s->times_next && !s->timing;
    s->room_block = s->scored_block = -1;
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        DsviSparseBlock *b = &s->block[block];
        b->measured = b->measured_error = b->overflowed = false;
        b->seconds = 0;
        b->passes = 0;
        b->times.forward = b->times.backward = false;
        b->far_share = NAN;
    }
    if (s->measuring)
        DSVI_TRY(dsvi_sparse_profile_begin(s));
    return s->selector ? dsvi_selector_step_begin(s->selector, step, train) : DSV_OK;
}

void dsvi_sparse_point_lists(DsviSparse *s, int64_t block, int32_t *spans)
{
    DsviSparseBlock *b = &s->block[block];
    b->spans = spans;
    if (!dsvi_sparse_fetches(s, block)) {
        b->lists.spans = spans;
        return;
    }
    b->near.spans = spans;
    b->far.spans = spans + b->near.capacity;
}

/* Prepares memory for the lists that the block is about to make. They are stored after the lists that
 * earlier blocks keep for their backward pass; with sparse.offload_lists the block's lists are always
 * stored at the front of `spans`. */
static void place_lists(DsviSparse *s, int64_t block)
{
    DsviSparseBlock *b = &s->block[block];
    DsviSparseView view = dsvi_sparse_view(s, block);
    b->first_span = block > 0 && s->shape.backward ? b[-1].first_span + b[-1].kept : 0;
    b->kept = 0;
    dsvi_sparse_shape_lists(s, &view, &b->lists);
    b->spans = dsvi_sparse_offloads(s) ? s->spans : s->spans + b->first_span;
    b->lists.spans = dsvi_sparse_fetches(s, block) ? s->whole_spans : b->spans;
    if (dsvi_sparse_compares(s) && !dsvi_sparse_uses_lists(s, block))
        b->lists.spans = s->compare_spans + block * s->spans_max;
    int64_t left = s->spans_capacity - b->first_span;
    b->lists.capacity = left < s->spans_max ? left : s->spans_max;
}

/* Decides whether this forward pass attends over lists or densely (over_lists). Makes the block's lists
 * and measures them, if needed. */
static DsvStatus sparse_prepare(DsviSparse *s, int64_t block, const DsviAttentionCall *pass)
{
    DsviDevice *device = s->backend->device;
    DsviSparseBlock *b = &s->block[block];
    bool wanted = dsvi_sparse_uses_lists(s, block);
    bool measure = s->measuring && !b->measured && is_measurable(s, block);
    bool compare = measure && dsvi_sparse_compares(s);
    double begin = 0, selected = 0;
    DsviSparseScored scored = {0};
    b->over_lists = false;
    if (!s->selector)
        return DSV_OK;
    place_lists(s, block);
    if (compare)
        DSVI_TRY(device->clock(device->stream, &begin));
    if (measure || dsvi_selector_learns(s->selector))
        DSVI_TRY(dsvi_sparse_exchange_scored(s, block, pass, measure, &scored));
    DSVI_TRY(dsvi_selector_observe(s->selector, block, pass, &scored, wanted || measure));
    if (!wanted && !measure)
        return DSV_OK;
    DSVI_TRY(dsvi_sparse_exchange_features(s, block));
    DSVI_TRY(dsvi_sparse_reserve_lists(s, block));
    DSVI_TRY(dsvi_sparse_make_lists(s, block));
    b->over_lists = wanted;
    if (!measure)
        return DSV_OK;
    if (compare)
        DSVI_TRY(device->clock(device->stream, &selected));
    DSVI_TRY(dsvi_sparse_await_lists(s, block));
    DSVI_TRY(dsvi_sparse_profile_pass(s, block, pass->scale, &scored));
    return compare ? dsvi_sparse_time_forward(s, block, pass, selected - begin) : DSV_OK;
}

DsvStatus dsvi_sparse_attend(DsviSparse *s, int64_t block, const DsviAttentionCall *pass)
{
    const DsviOps *ops = &s->backend->ops;
    DsviStream *stream = s->backend->device->stream;
    if (s->cp)
        return dsvi_sparse_cp_attend(s, block, pass);
    if (s->block[block].over_lists)
        return dsvi_sparse_attend_lists(s, block, pass);
    DsviSparseView view = dsvi_sparse_view(s, block);
    DsviAttentionArgs args = dsvi_sparse_attention_args(s, &view, s->shape.tokens, pass);
    return ops->attention_fwd.run(stream, &args);
}

/* Called after attention over lists whose lengths the host did not know: reads the lengths. Lists that fit
 * their memory are kept for the backward pass; if they do not fit, the block attends again, densely. */
static DsvStatus sparse_settle(DsviSparse *s, int64_t block, const DsviAttentionCall *pass)
{
    DsviSparseBlock *b = &s->block[block];
    DSVI_TRY(dsvi_sparse_await_lists(s, block));
    b->over_lists = b->fit;
    if (b->fit) {
        b->kept = s->listed_spans;
        return dsvi_sparse_offload_lists(s, block);
    }
    dsvi_sparse_overflow(s, block);
    return dsvi_sparse_attend(s, block, pass);
}

/* With keys sharded over ranks the lists decide which keys a rank must fetch, so the host reads their lengths
 * before attention, not after it as sparse_settle does. */
static DsvStatus attend_divided(DsviSparse *s, int64_t block, const DsviAttentionCall *pass)
{
    DsviDevice *device = s->backend->device;
    DsviSparseBlock *b = &s->block[block];
    DSVI_TRY(dsvi_sparse_divide_lists(s, block));
    DSVI_TRY(dsvi_sparse_await_lists(s, block));
    b->over_lists = b->fit;
    if (b->fit) {
        DSVI_TRY(dsvi_sparse_keep_divided_lists(s, block)); /* builds the near and far lists */
        /* the copy of the lists to the host waits until the lists are written */
        DSVI_TRY(device->follow(device->copies, device->stream));
        DSVI_TRY(dsvi_sparse_offload_lists(s, block));
    } else {
        dsvi_sparse_overflow(s, block);
    }
    return dsvi_sparse_attend(s, block, pass);
}

/* pass_begin and pass_end enclose each forward and each backward pass of a block. On steps that are timed,
 * pass_end adds the device's time since pass_begin to DsviSparseBlock.seconds. */
static DsvStatus pass_begin(DsviSparse *s, int64_t block, double *begin)
{
    if (s->cp)
        dsvi_sparse_layout_cp_buffers(s, block);
    return s->timing ? s->backend->device->clock(s->backend->device->stream, begin) : DSV_OK;
}

static DsvStatus pass_end(DsviSparse *s, int64_t block, double begin)
{
    double end;
    if (!s->timing)
        return DSV_OK;
    DSVI_TRY(s->backend->device->clock(s->backend->device->stream, &end));
    s->block[block].seconds += end - begin;
    return DSV_OK;
}

DsvStatus dsvi_sparse_forward(DsviSparse *s, int64_t block, const DsviAttentionCall *pass)
{
    DsviSparseBlock *b = &s->block[block];
    double begin = 0;
    DSVI_TRY(pass_begin(s, block, &begin));
    if (pass->recompute) {
        DSVI_TRY(dsvi_sparse_restore_lists(s, block));
        DSVI_TRY(dsvi_sparse_attend(s, block, pass));
        return pass_end(s, block, begin);
    }
    s->ran = true;
    if (s->selector)
        dsvi_selector_use(s->selector, &s->shape);
    if (s->watch)
        DSVI_TRY(s->watch(s->watch_context, block, pass));
    DSVI_TRY(sparse_prepare(s, block, pass));
    if (b->over_lists && dsvi_sparse_fetches(s, block)) {
        DSVI_TRY(attend_divided(s, block, pass));
    } else {
        DSVI_TRY(dsvi_sparse_attend(s, block, pass));
        if (b->over_lists)
            DSVI_TRY(sparse_settle(s, block, pass));
    }
    return pass_end(s, block, begin);
}

DsvStatus dsvi_sparse_attend_bwd(DsviSparse *s, int64_t block, const DsviAttentionCall *pass)
{
    const DsviOps *ops = &s->backend->ops;
    DsviStream *stream = s->backend->device->stream;
    if (s->cp)
        return dsvi_sparse_cp_backward(s, block, pass);
    if (s->block[block].over_lists)
        return dsvi_sparse_attend_lists_bwd(s, block, pass);
    DsviSparseView view = dsvi_sparse_view(s, block);
    DsviAttentionArgs args = dsvi_sparse_attention_args(s, &view, s->shape.tokens, pass);
    return ops->attention_bwd.run(stream, &args);
}

DsvStatus dsvi_sparse_backward(DsviSparse *s, int64_t block, const DsviAttentionCall *pass)
{
    double begin = 0;
    DSVI_TRY(pass_begin(s, block, &begin));
    DSVI_TRY(dsvi_sparse_restore_lists(s, block));
    if (dsvi_sparse_compares(s))
        DSVI_TRY(dsvi_sparse_time_backward(s, block, pass));
    DSVI_TRY(dsvi_sparse_attend_bwd(s, block, pass));
    DSVI_TRY(dsvi_sparse_discard_lists(s, block));
    DSVI_TRY(pass_end(s, block, begin));
    s->block[block].passes += s->timing;
    return DSV_OK;
}

static void log_times(const DsviSparse *s)
{
    char line[256];
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        dsvi_sparse_format_times(s, block, line, sizeof line);
        dsvi_sparse_log_line(s, line);
    }
}

/* Updates the running means with what has been measured since the step began, or since the last call. */
static DsvStatus read_measurements(DsviSparse *s)
{
    if (s->measuring && s->ran)
        DSVI_TRY(dsvi_sparse_profile_read(s));
    DSVI_TRY(dsvi_sparse_average_seen(s));
    s->measured = s->measuring && s->ran;
    if (s->measured) {
        if (measurements_are_due(s))
            dsvi_sparse_log_line(s,
                                 "the checkpoint's measurements are of lists with other lengths, groups or "
                                 "tail, or the guard's bounds are others now: all blocks were measured in "
                                 "this step");
        dsvi_sparse_profile_end(s);
        s->record.measured_step[0] = s->step;
    }
    return DSV_OK;
}

DsvStatus dsvi_sparse_measure_again(DsviSparse *s)
{
    if (!s->measuring)
        return DSV_OK;
    DSVI_TRY(read_measurements(s));
    for (int64_t block = 0; block < s->shape.blocks; block++)
        s->block[block].measured = false;
    return DSV_OK;
}

DsvStatus dsvi_sparse_step_end(DsviSparse *s)
{
    s->measured = s->measuring;
    if (!s->selector || !s->train)
        return DSV_OK;
    DSVI_TRY(read_measurements(s));
    if (!s->borrows)
        DSVI_TRY(dsvi_selector_step_end(s->selector, s->record.sparse, &s->predictor_loss));
    log_times(s);
    dsvi_sparse_decide(s);
    return DSV_OK;
}

bool dsvi_sparse_measured(const DsviSparse *s)
{
    return s->measured;
}

void dsvi_sparse_report(const DsviSparse *s, DsviSparseReport *report)
{
    double captured = 0, error = 0;
    *report = (DsviSparseReport){.blocks = s->shape.blocks, .predictor_loss = s->predictor_loss};
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        double density = s->block[block].over_lists ? s->record.density[block] : 1;
        report->density += density / (double)s->shape.blocks;
        report->work += (density + (s->block[block].over_lists ? dsvi_sparse_tail_work(s) : 0)) /
                        (double)s->shape.blocks;
        if (!dsvi_sparse_uses_lists(s, block))
            continue;
        report->sparse_blocks++;
        captured += s->record.captured[block];
        error += s->record.error[block];
    }
    report->captured_mass = report->sparse_blocks > 0 ? captured / (double)report->sparse_blocks : NAN;
    report->output_error = report->sparse_blocks > 0 ? error / (double)report->sparse_blocks : NAN;
}

void dsvi_sparse_block_report(const DsviSparse *s, int64_t block, DsviSparseBlockReport *report)
{
    const DsviSparseRecord *r = &s->record;
    *report = (DsviSparseBlockReport){
        .sparse = dsvi_sparse_uses_lists(s, block),
        .over_lists = s->block[block].over_lists,
        .captured_mass = r->captured[block],
        .output_error = r->error[block],
        .density = r->density[block],
        .estimated_mass = r->estimated_mass[block],
        .share90 = r->share90[block],
        .head_captured = r->head_captured + block * s->shape.heads,
        .head_error = r->head_error + block * s->shape.heads,
        .head_share90 = r->head_share90 + block * s->shape.heads,
        .changes = r->changes[block],
    };
}

void dsvi_sparse_head_densities(const DsviSparse *s, int64_t block, double *density)
{
    const float *listed = s->record.head_listed + block * s->shape.heads;
    const double *prescribed = s->prescribed ? s->prescribed + block * s->shape.heads : NULL;
    bool dense = !dsvi_sparse_uses_lists(s, block);
    for (int64_t h = 0; h < s->shape.heads; h++)
        density[h] = dense ? 1 : !isnan(listed[h]) ? listed[h] : prescribed ? prescribed[h] : 1;
}

double dsvi_sparse_far_fraction(const DsviSparse *s, int64_t block)
{
    return s->block[block].far_share;
}

void dsvi_sparse_time_next(DsviSparse *s)
{
    s->times_next = true;
}

double dsvi_sparse_seconds(const DsviSparse *s, int64_t block)
{
    const DsviSparseBlock *b = &s->block[block];
    return b->passes > 0 ? b->seconds / (double)b->passes : NAN;
}

const DsviAttentionCost *dsvi_sparse_attention_cost(const DsviSparse *s)
{
    return s->has_cost ? &s->cost : NULL;
}

const DsviLists *dsvi_sparse_lists(const DsviSparse *s, int64_t block)
{
    const DsviSparseBlock *b = &s->block[block];
    bool only_last = !s->shape.backward || dsvi_sparse_fetches(s, block);
    bool overwritten = (only_last && s->listed_block != block) || !dsvi_sparse_lists_on_device(s, block);
    return b->over_lists && !overwritten ? &b->lists : NULL;
}
