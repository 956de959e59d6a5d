/* Computes features, histogram, lists and exact captured mass of one block. Features become lists as in
 * src/sparse/sparse_select.c, with every rule that the study compares. Interface: study_meter.h. */
#include "study_meter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sparse/order.h"
#include "study_estimator.h"
#include "study_window.h"

#define SHARE_OF_MASS 0.9

const char *const study_rule_names[STUDY_RULES] = {
    "threshold", "mass", "head-threshold", "topk", "head-topk",
};
const char *const study_format_names[STUDY_FORMATS] = {"f32", "bf16", "fp8"};

enum { QUERIES, KEYS, HIDDEN, TENSORS };

struct StudyMeter {
    DsviBackend *backend;
    DsvConfig settings;
    DsviSparseShape shape;
    int64_t samples;

    /* State of the block of the latest study_meter_show. */
    int64_t block;
    double scale;
    unsigned char *raster[TENSORS];     /* (S, C) act, host */
    unsigned char *staging;             /* (S, C) act, host */
    const char *order;                  /* token order of the tensors on the device, or NULL */
    int32_t *order_of, *place_of;       /* (S) raster position of a token, and token of a raster position */
    int32_t *raster_sample, *sample_of; /* (samples) sampled queries as raster positions, and as tokens */

    StudyBuffer tensor[TENSORS];           /* (S, C) act */
    StudyBuffer sample;                    /* (samples) */
    StudyBuffer captured, share90, listed; /* (N, samples) */
    StudyBuffer lse, bin_count, bin_mass, threshold, topk, selected;
    StudyBuffer offsets, runs, needed, workspace;
    double *host_count, *host_mass; /* (N, BINS) */
    float *host_threshold;          /* (N) */
    int32_t *host_topk;             /* (N) */
    float *host_results;            /* (2, N, samples) captured mass or share90, then density */
};

static size_t row_bytes(const StudyMeter *m)
{
    return (size_t)(m->shape.heads * m->shape.head_dim) * dsvi_dtype_size(m->shape.act);
}

static size_t result_count(const StudyMeter *m)
{
    return (size_t)(m->shape.heads * m->samples);
}

static DsvStatus allocate(StudyMeter *m)
{
    size_t tokens = (size_t)m->shape.tokens, heads = (size_t)m->shape.heads;
    size_t results = result_count(m) * sizeof(float), bins = heads * DSVI_SELECT_BINS * sizeof(double);
    DsviDevice *device = m->backend->device;
    bool all = true;
    for (int i = 0; i < TENSORS; i++) {
        all = (m->raster[i] = malloc(tokens * row_bytes(m))) && all;
        DSVI_TRY(study_buffer_reserve(device, &m->tensor[i], tokens * row_bytes(m)));
    }
    m->staging = malloc(tokens * row_bytes(m));
    m->order_of = malloc(tokens * sizeof(int32_t));
    m->place_of = malloc(tokens * sizeof(int32_t));
    m->raster_sample = malloc((size_t)m->samples * sizeof(int32_t));
    m->sample_of = malloc((size_t)m->samples * sizeof(int32_t));
    m->host_count = malloc(bins);
    m->host_mass = malloc(bins);
    m->host_threshold = malloc(heads * sizeof(float));
    m->host_topk = malloc(heads * sizeof(int32_t));
    m->host_results = malloc(2 * results);
    if (!all || !m->staging || !m->order_of || !m->place_of || !m->raster_sample || !m->sample_of ||
        !m->host_count || !m->host_mass || !m->host_threshold || !m->host_topk || !m->host_results)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to measure %zu tokens", tokens);
    DSVI_TRY(study_buffer_reserve(device, &m->sample, (size_t)m->samples * sizeof(int32_t)));
    DSVI_TRY(study_buffer_reserve(device, &m->captured, results));
    DSVI_TRY(study_buffer_reserve(device, &m->share90, results));
    DSVI_TRY(study_buffer_reserve(device, &m->listed, results));
    DSVI_TRY(study_buffer_reserve(device, &m->bin_count, bins));
    DSVI_TRY(study_buffer_reserve(device, &m->bin_mass, bins));
    DSVI_TRY(study_buffer_reserve(device, &m->threshold, heads * sizeof(float)));
    DSVI_TRY(study_buffer_reserve(device, &m->topk, heads * sizeof(int32_t)));
    return study_buffer_reserve(device, &m->selected, heads * sizeof(double));
}

DsvStatus study_meter_open(DsviBackend *backend, const DsvConfig *settings, const DsviSparseShape *shape,
                           int64_t samples, StudyMeter **out)
{
    DsvStatus status;
    StudyMeter *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a meter");
    m->backend = backend;
    m->settings = *settings;
    m->shape = *shape;
    m->samples = samples < shape->tokens ? samples : shape->tokens;
    DSVI_TRY_GOTO(status, allocate(m), fail);
    *out = m;
    return DSV_OK;
fail:
    study_meter_close(&m);
    return status;
}

void study_meter_close(StudyMeter **meter)
{
    StudyMeter *m = *meter;
    if (!m)
        return;
    StudyBuffer *const buffers[] = {
        &m->tensor[QUERIES], &m->tensor[KEYS], &m->tensor[HIDDEN], &m->sample,   &m->captured,  &m->share90,
        &m->listed,          &m->lse,          &m->bin_count,      &m->bin_mass, &m->threshold, &m->topk,
        &m->selected,        &m->offsets,      &m->runs,           &m->needed,   &m->workspace,
    };
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        m->backend->device->mem_free(m->backend->device, buffers[i]->memory);
    void *const host[] = {
        m->raster[QUERIES], m->raster[KEYS],  m->raster[HIDDEN], m->staging,    m->order_of,
        m->place_of,        m->raster_sample, m->sample_of,      m->host_count, m->host_mass,
        m->host_threshold,  m->host_topk,     m->host_results,
    };
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
    free(m);
    *meter = NULL;
}

/* ---- the measured block ---- */

DsvStatus study_meter_show(StudyMeter *m, int64_t block, const DsviAttentionCall *args)
{
    DsviDevice *device = m->backend->device;
    const void *const from[TENSORS] = {args->q, args->k, args->hidden};
    for (int i = 0; i < TENSORS; i++)
        DSVI_TRY(
            device->download(device->stream, m->raster[i], from[i], (size_t)m->shape.tokens * row_bytes(m)));
    m->block = block;
    m->scale = args->scale;
    m->order = NULL;
    dsvi_draw_queries((uint64_t)m->settings.seed, 0, block, DSVI_DRAW_PROFILE, m->shape.tokens, m->samples,
                      m->raster_sample);
    return device->sync(device->stream);
}

/* Uploads the block's tensors with tokens in this order. The sampled queries are the same in every order. */
static DsvStatus bring_order(StudyMeter *m, const char *order)
{
    DsviDevice *device = m->backend->device;
    int64_t tokens = m->shape.tokens;
    size_t row = row_bytes(m);
    if (m->order && strcmp(m->order, order) == 0)
        return DSV_OK;
    DSVI_TRY(dsvi_order_make(order, m->shape.grid, m->order_of));
    for (int64_t s = 0; s < tokens; s++)
        m->place_of[m->order_of[s]] = (int32_t)s;
    for (int i = 0; i < TENSORS; i++) {
        for (int64_t s = 0; s < tokens; s++)
            memcpy(m->staging + (size_t)s * row, m->raster[i] + (size_t)m->order_of[s] * row, row);
        DSVI_TRY(device->upload(device->stream, m->tensor[i].memory, m->staging, (size_t)tokens * row));
        DSVI_TRY(device->sync(device->stream));
    }
    for (int64_t i = 0; i < m->samples; i++)
        m->sample_of[i] = m->place_of[m->raster_sample[i]];
    DSVI_TRY(
        device->upload(device->stream, m->sample.memory, m->sample_of, (size_t)m->samples * sizeof(int32_t)));
    m->order = order;
    return device->sync(device->stream);
}

/* ---- exact attention of the sampled queries ---- */

static DsvStatus profile(StudyMeter *m, const DsviLists *lists, const StudyBuffer *first)
{
    const DsviSparseShape *s = &m->shape;
    DsviDevice *device = m->backend->device;
    size_t bytes = result_count(m) * sizeof(float);
    DsviProfileArgs args = {
        .batch = 1,
        .heads = s->heads,
        .queries = s->tokens,
        .keys = s->tokens,
        .head_dim = s->head_dim,
        .scale = m->scale,
        .mass = SHARE_OF_MASS,
        .act = s->act,
        .q = dsvi_heads(m->tensor[QUERIES].memory, s->tokens, s->heads, s->head_dim),
        .k = dsvi_heads(m->tensor[KEYS].memory, s->tokens, s->heads, s->head_dim),
        .lists = lists,
        .samples = m->samples,
        .sample = m->sample.memory,
        .captured = m->captured.memory,
        .share90 = m->share90.memory,
        .listed = m->listed.memory,
    };
    args.workspace_bytes = DSVI_OP_WORKSPACE(m->backend->ops.profile, m->backend->device->stream, &args);
    DSVI_TRY(study_buffer_reserve(device, &m->workspace, args.workspace_bytes));
    args.workspace = m->workspace.memory;
    DSVI_TRY(m->backend->ops.profile.run(device->stream, &args));
    DSVI_TRY(device->download(device->stream, m->host_results, first->memory, bytes));
    DSVI_TRY(device->download(device->stream, m->host_results + result_count(m), m->listed.memory, bytes));
    return device->sync(device->stream);
}

static StudyResult result_of(const StudyMeter *m, const StudyCase *of, double target)
{
    size_t count = result_count(m);
    StudyResult result = {.of = of,
                          .block = m->block,
                          .target = target,
                          .captured_of = m->host_results,
                          .listed_of = m->host_results + count};
    for (size_t i = 0; i < count; i++) {
        result.captured += result.captured_of[i] / (double)count;
        result.density += result.listed_of[i] / (double)count;
    }
    return result;
}

DsvStatus study_meter_share90(StudyMeter *m, const StudyCase *of, StudyResult *result)
{
    DSVI_TRY(bring_order(m, of->order));
    DSVI_TRY(profile(m, NULL, &m->share90));
    *result = result_of(m, of, SHARE_OF_MASS);
    return DSV_OK;
}

/* ---- lists ---- */

/* Unrounded features are marked coarse where the selector does so, as in training. Rounded features are never
 * marked coarse, so that the case shows the cost of the rounding alone. */
static DsviSelectArgs select_args(const StudyMeter *m, const StudyCase *of, const DsviFeatures *f)
{
    return (DsviSelectArgs){
        .batch = 1,
        .heads = m->shape.heads,
        .queries = m->shape.tokens,
        .keys = m->shape.tokens,
        .group = of->group,
        .chunk = f->chunk,
        .candidate_keys = f->candidate_keys,
        .grain = of->grain,
        .features = f->features,
        .scale = f->scale,
        .coarse = f->coarse && of->format == STUDY_F32,
        .proxies = f->proxies,
        .candidates = f->candidates,
        .lse = m->lse.memory,
        .bin_heads = m->shape.heads,
        .bin_count = m->bin_count.memory,
        .bin_mass = m->bin_mass.memory,
        .threshold = m->threshold.memory,
        .selected_mass = m->selected.memory,
        .workspace = m->workspace.memory,
        .workspace_bytes = m->workspace.bytes,
    };
}

static DsvStatus take_histogram(StudyMeter *m, DsviSelectArgs *args)
{
    const DsviOps *ops = &m->backend->ops;
    DsviDevice *device = m->backend->device;
    size_t bins = (size_t)m->shape.heads * DSVI_SELECT_BINS * sizeof(double);
    size_t workspace = DSVI_OP_WORKSPACE(ops->select_histogram, m->backend->device->stream, args);
    DSVI_TRY(study_buffer_reserve(device, &m->workspace, workspace));
    DSVI_TRY(study_buffer_reserve(device, &m->lse,
                                  (size_t)(m->shape.heads * dsvi_select_proxies(args)) * sizeof(float)));
    args->lse = m->lse.memory;
    args->workspace = m->workspace.memory;
    args->workspace_bytes = m->workspace.bytes;
    DSVI_TRY(ops->select_histogram.run(device->stream, args));
    DSVI_TRY(device->download(device->stream, m->host_count, m->bin_count.memory, bins));
    DSVI_TRY(device->download(device->stream, m->host_mass, m->bin_mass.memory, bins));
    return device->sync(device->stream);
}

/* Counts the spans of heads [begin, end) in the bin that contains `threshold` and in all bins above. */
static double count_from(const StudyMeter *m, int64_t begin, int64_t end, float threshold)
{
    double sum = 0;
    for (int64_t h = begin; h < end; h++) {
        for (int64_t bin = DSVI_SELECT_BINS - 1; bin >= 0; bin--) {
            sum += m->host_count[h * DSVI_SELECT_BINS + bin];
            if (exp2((double)bin / DSVI_SELECT_PER_OCTAVE - DSVI_SELECT_OCTAVES) <= threshold)
                break;
        }
    }
    return sum;
}

/* Uploads the threshold or the list length of each head. *share is the expected density of the lists. */
static DsvStatus plan(StudyMeter *m, const StudyCase *of, double target, DsviSelectArgs *args, double *share)
{
    DsviDevice *device = m->backend->device;
    int64_t heads = m->shape.heads, runs = dsvi_select_spans(args);
    DsviThreshold common = of->rule == STUDY_MASS
                               ? dsvi_threshold_for_mass(m->host_count, m->host_mass, heads, target)
                               : dsvi_threshold_for_count(m->host_count, m->host_mass, heads, target);
    *share = of->rule == STUDY_MASS ? common.count : target;
    double all_counted = count_from(m, 0, heads, common.value);
    for (int64_t h = 0; h < heads; h++) {
        const double *count = m->host_count + h * DSVI_SELECT_BINS,
                     *mass = m->host_mass + h * DSVI_SELECT_BINS;
        double wanted = target * (double)runs;
        if (of->rule == STUDY_HEAD_TOPK)
            wanted *= (double)heads * count_from(m, h, h + 1, common.value) / all_counted;
        m->host_topk[h] = (int32_t)fmax(1, floor(wanted + 0.5));
        m->host_threshold[h] = of->rule == STUDY_PER_HEAD
                                   ? dsvi_threshold_for_count(count, mass, 1, target).value
                                   : common.value;
    }
    bool by_count = of->rule == STUDY_TOPK || of->rule == STUDY_HEAD_TOPK;
    args->threshold = by_count ? NULL : m->threshold.memory;
    args->topk = by_count ? m->topk.memory : NULL;
    DSVI_TRY(device->upload(device->stream, m->threshold.memory, m->host_threshold,
                            (size_t)heads * sizeof(float)));
    DSVI_TRY(device->upload(device->stream, m->topk.memory, m->host_topk, (size_t)heads * sizeof(int32_t)));
    return device->sync(device->stream);
}

/* Fills the lists; when they do not fit, enlarges their memory to the reported length and repeats. */
static DsvStatus fill_lists(StudyMeter *m, DsviSelectArgs *args, DsviLists *lists)
{
    DsviDevice *device = m->backend->device;
    int64_t needed = lists->capacity;
    DSVI_TRY(study_buffer_reserve(device, &m->needed, sizeof needed));
    args->needed = m->needed.memory;
    do {
        lists->capacity = needed;
        DSVI_TRY(study_buffer_reserve(device, &m->runs, (size_t)lists->capacity * sizeof(int32_t)));
        lists->spans = m->runs.memory;
        DSVI_TRY(m->backend->ops.select_lists.run(device->stream, args));
        DSVI_TRY(device->download(device->stream, &needed, args->needed, sizeof needed));
        DSVI_TRY(device->sync(device->stream));
    } while (needed > lists->capacity);
    return DSV_OK;
}

static DsvStatus make_lists(StudyMeter *m, const StudyCase *of, double target, DsviSelectArgs *args,
                            DsviLists *lists)
{
    double share;
    *lists = (DsviLists){
        .batch = 1,
        .heads = args->heads,
        .queries = args->queries,
        .keys = args->keys,
        .group = args->group,
        .groups = dsvi_select_groups(args),
        .grain = args->grain,
    };
    DSVI_TRY(plan(m, of, target, args, &share));
    int64_t count = dsvi_lists_count(lists);
    lists->capacity = (int64_t)(share * (double)(count * dsvi_lists_full(lists))) + count;
    DSVI_TRY(study_buffer_reserve(m->backend->device, &m->offsets, (size_t)(count + 1) * sizeof(int64_t)));
    lists->offsets = m->offsets.memory;
    args->lists = lists;
    size_t workspace = DSVI_OP_WORKSPACE(m->backend->ops.select_lists, m->backend->device->stream, args);
    DSVI_TRY(study_buffer_reserve(m->backend->device, &m->workspace, workspace));
    args->workspace = m->workspace.memory;
    args->workspace_bytes = m->workspace.bytes;
    return fill_lists(m, args, lists);
}

/* ---- one case ---- */

static DsvStatus measure(StudyMeter *m, const StudyCase *of, const DsviFeatures *features,
                         DsvStatus (*take)(void *, const StudyResult *), void *context)
{
    DsviSelectArgs args = select_args(m, of, features);
    DSVI_TRY(take_histogram(m, &args));
    for (const double *target = of->targets; *target > 0; target++) {
        DsviLists lists;
        DSVI_TRY(make_lists(m, of, *target, &args, &lists));
        DSVI_TRY(profile(m, &lists, &m->captured));
        StudyResult result = result_of(m, of, *target);
        DSVI_TRY(take(context, &result));
    }
    return DSV_OK;
}

static bool is_window(const StudyCase *of)
{
    return strcmp(of->selector, "nearest") == 0 || strcmp(of->selector, "column") == 0;
}

static DsvStatus measure_windows(StudyMeter *m, const StudyCase *of,
                                 DsvStatus (*take)(void *, const StudyResult *), void *context)
{
    for (const double *target = of->targets; *target > 0; target++) {
        DsviLists lists;
        DSVI_TRY(study_window_lists(m->backend->device, &m->shape, strcmp(of->selector, "nearest") == 0,
                                    *target, m->sample_of, m->samples, &m->offsets, &m->runs, &lists));
        DSVI_TRY(profile(m, &lists, &m->captured));
        StudyResult result = result_of(m, of, *target);
        DSVI_TRY(take(context, &result));
    }
    return DSV_OK;
}

DsvStatus study_meter_case(StudyMeter *m, StudyCase *of, DsvStatus (*take)(void *, const StudyResult *),
                           void *context)
{
    DsviAttentionCall args = {.scale = m->scale};
    const DsviFeatures *features;
    bool learnt;
    DSVI_TRY(bring_order(m, of->order));
    if (is_window(of))
        return measure_windows(m, of, take, context);
    args.q = m->tensor[QUERIES].memory;
    args.k = m->tensor[KEYS].memory;
    args.hidden = m->tensor[HIDDEN].memory;
    if (!of->estimator)
        DSVI_TRY(study_estimator_open(m->backend, &m->settings, &m->shape, of, &of->estimator));
    DSVI_TRY(study_estimator_look(of->estimator, m->block, &args, of->format, &features, &learnt));
    if (of->source != STUDY_FIRST || !learnt)
        DSVI_TRY(measure(m, of, features, take, context));
    if (of->source == STUDY_OWN)
        study_estimator_close(&of->estimator);
    return DSV_OK;
}

void study_case_free(StudyCase *of)
{
    study_estimator_close(&of->estimator);
}
