/* One selector with its memory and state; interface and ownership: study_estimator.h. */
#include "study_estimator.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/carve.h"
#include "run/model_path.h"

struct StudyEstimator {
    DsviBackend *backend;
    DsvConfig settings; /* with the selector's options from the case */
    StudySource source;
    int64_t blocks; /* number of blocks with state: 1 with STUDY_OWN, else the model's */
    DsviSelector *selector;
    void *memory;
    bool *seen;  /* (blocks) true after the first call for the block */
    float *host; /* features while they are rounded, on the host */
    size_t host_count;
};

DsvStatus study_buffer_reserve(DsviDevice *device, StudyBuffer *buffer, size_t bytes)
{
    if (buffer->memory && buffer->bytes >= bytes)
        return DSV_OK;
    device->mem_free(device, buffer->memory);
    *buffer = (StudyBuffer){NULL, 0};
    DSVI_TRY(device->mem_alloc(device, bytes > 0 ? bytes : 64, &buffer->memory));
    buffer->bytes = bytes;
    return DSV_OK;
}

/* "mean" uses the pooled selector with groups of one query and spans of one key: its features are then q and
 * k themselves, so that the estimates are exact attention. */
static void choose(DsvConfig *settings, const StudyCase *of)
{
    bool mean = strcmp(of->selector, "mean") == 0;
    snprintf(settings->sparse_selector, sizeof settings->sparse_selector, "%s",
             mean ? "pooled" : of->selector);
    settings->sparse_group = mean ? 1 : of->group;
    settings->sparse_grain = mean ? 1 : of->grain;
    settings->sparse_chunk = of->chunk;
    settings->sparse_rank = of->rank;
}

static void carve(void *of, DsviArena *arena)
{
    StudyEstimator *e = of;
    dsvi_selector_carve(e->selector, arena);
}

static DsvStatus allocate(StudyEstimator *e)
{
    DSVI_TRY(dsvi_device_alloc_layout(e->backend->device, carve, e, &e->memory));
    e->seen = calloc((size_t)e->blocks, sizeof *e->seen);
    if (!e->seen)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for an estimator");
    return DSV_OK;
}

static DsvStatus read_state(StudyEstimator *e, const char *path)
{
    DsvStatus status;
    DsviModelPath model;
    DsviSafetensors *file;
    DsviStateList list = {.count = 0};
    DSVI_TRY(dsvi_model_find(path, &model));
    if (!model.sparse[0])
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: this model has no file of sparse state", path);
    DSVI_TRY(dsvi_safetensors_open(model.sparse, &file));
    dsvi_selector_state(e->selector, &list);
    DSVI_TRY_GOTO(status, dsvi_state_read(e->backend->device, &list, file), done);
    status = dsvi_selector_restored(e->selector);
done:
    dsvi_safetensors_close(&file);
    return status;
}

DsvStatus study_estimator_open(DsviBackend *backend, const DsvConfig *settings, const DsviSparseShape *shape,
                               const StudyCase *of, StudyEstimator **out)
{
    DsvStatus status;
    DsviSparseShape mine = *shape;
    StudyEstimator *e = calloc(1, sizeof *e);
    *out = NULL;
    if (!e)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for an estimator");
    e->backend = backend;
    e->settings = *settings;
    e->source = of->source;
    if (of->source == STUDY_OWN)
        mine.blocks = 1;
    e->blocks = mine.blocks;
    choose(&e->settings, of);
    DSVI_TRY_GOTO(status, dsvi_selector_create(backend, &e->settings, &mine, &e->selector), fail);
    DSVI_TRY_GOTO(status, allocate(e), fail);
    DSVI_TRY_GOTO(status, dsvi_selector_setup(e->selector), fail);
    if (of->source == STUDY_STORED)
        DSVI_TRY_GOTO(status, read_state(e, of->stored), fail);
    DSVI_TRY_GOTO(status, dsvi_selector_step_begin(e->selector, 1, false), fail);
    *out = e;
    return DSV_OK;
fail:
    study_estimator_close(&e);
    return status;
}

void study_estimator_close(StudyEstimator **estimator)
{
    StudyEstimator *e = *estimator;
    if (!e)
        return;
    dsvi_selector_free(&e->selector);
    if (e->memory)
        e->backend->device->mem_free(e->backend->device, e->memory);
    free(e->seen);
    free(e->host);
    free(e);
    *estimator = NULL;
}

/* Rounds to the nearest FP8 E4M3 number: 1 sign bit, 4 exponent bits (normal from 2^-6), 3 mantissa bits. */
static float round_fp8(float x)
{
    int exponent;
    frexpf(x, &exponent); /* |x| in [2^(exponent - 1), 2^exponent) */
    float step = ldexpf(1, (exponent < -5 ? -5 : exponent) - 4);
    return rintf(x / step) * step;
}

/* Rounds the n features of one head. FP8 features are scaled so that the largest magnitude becomes 448, the
 * largest E4M3 number. */
static void round_head(float *x, size_t n, StudyFormat format)
{
    const float most = 448;
    float largest = 0;
    if (format == STUDY_BF16) {
        for (size_t i = 0; i < n; i++)
            x[i] = dsvi_bf16_to_f32(dsvi_f32_to_bf16(x[i]));
        return;
    }
    for (size_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    float scale = largest > 0 ? most / largest : 1;
    for (size_t i = 0; i < n; i++)
        x[i] = round_fp8(x[i] * scale) / scale;
}

static DsvStatus round_features(StudyEstimator *e, float *features, int64_t tokens_each, StudyFormat format)
{
    DsviDevice *device = e->backend->device;
    const DsviSparseShape *s = &e->selector->shape;
    size_t rows = (size_t)((s->tokens + tokens_each - 1) / tokens_each);
    size_t head = rows * (size_t)e->selector->features.features, count = head * (size_t)s->heads;
    if (count > e->host_count) {
        free(e->host);
        e->host = malloc(count * sizeof(float));
        e->host_count = e->host ? count : 0;
        if (!e->host)
            return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu features", count);
    }
    DSVI_TRY(device->download(device->stream, e->host, features, count * sizeof(float)));
    DSVI_TRY(device->sync(device->stream));
    for (int64_t h = 0; h < s->heads; h++)
        round_head(e->host + (size_t)h * head, head, format);
    DSVI_TRY(device->upload(device->stream, features, e->host, count * sizeof(float)));
    return device->sync(device->stream);
}

DsvStatus study_estimator_look(StudyEstimator *e, int64_t block, const DsviAttentionCall *args,
                               StudyFormat format, const DsviFeatures **features, bool *learnt)
{
    DsviFeatures *f = &e->selector->features;
    const DsviSparseShape *shape = &e->selector->shape;
    const DsviSparseScored scored = {.q = dsvi_call_q(args, shape->tokens, shape->heads, shape->head_dim),
                                     .k = dsvi_call_k(args, shape->tokens, shape->heads, shape->head_dim)};
    int64_t mine = e->blocks == 1 ? 0 : block;
    *learnt = e->source == STUDY_FIRST && !e->seen[mine];
    e->seen[mine] = true;
    DSVI_TRY(dsvi_selector_observe(e->selector, mine, args, &scored, true));
    if (format != STUDY_F32) {
        DSVI_TRY(round_features(e, f->proxies, f->chunk, format));
        DSVI_TRY(round_features(e, f->candidates, f->candidate_keys, format));
    }
    *features = f;
    return DSV_OK;
}
