/* See study_estimator.h. */
#include "study_estimator.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/carve.h"
#include "train/model_path.h"

struct StudyEstimator {
    DsvBackend *backend;
    DsvConfig settings; /* the selector's */
    StudySource source;
    int64_t blocks;     /* whose state it keeps */
    DsvSelector *selector;
    void *memory;
    bool *seen;         /* (blocks) */
    float *host;        /* features on their way through the host */
    size_t host_count;
};

DsvStatus study_buffer_want(DsvDevice *device, StudyBuffer *buffer, size_t bytes)
{
    if (buffer->memory && buffer->bytes >= bytes)
        return DSV_OK;
    device->mem_free(device, buffer->memory);
    *buffer = (StudyBuffer){NULL, 0};
    DSVI_TRY(device->mem_alloc(device, bytes > 0 ? bytes : 64, &buffer->memory));
    buffer->bytes = bytes;
    return DSV_OK;
}

/* The true mean attention of a group needs no selector of its own: pooling over single queries and single
 * keys gives q and k themselves as features. */
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

static void carve(void *of, DsvArena *arena)
{
    StudyEstimator *e = of;
    dsvi_selector_carve(e->selector, arena);
}

static DsvStatus allocate(StudyEstimator *e)
{
    DSVI_TRY(dsvi_device_carve(e->backend->device, carve, e, &e->memory));
    e->seen = calloc((size_t)e->blocks, sizeof *e->seen);
    if (!e->seen)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for an estimator");
    return DSV_OK;
}

static DsvStatus read_state(StudyEstimator *e, const char *path)
{
    DsvStatus status;
    DsvModelPath model;
    DsvSafetensors *file;
    DsvStateList list = {.count = 0};
    DSVI_TRY(dsvi_model_find(path, &model));
    if (!model.sparse[0])
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no sparse state beside that model", path);
    DSVI_TRY(dsvi_safetensors_open(model.sparse, &file));
    dsvi_selector_state(e->selector, &list);
    DSVI_TRY_GOTO(status, dsvi_state_read(e->backend->device, &list, file), done);
    status = dsvi_selector_restored(e->selector);
done:
    dsvi_safetensors_close(&file);
    return status;
}

DsvStatus study_estimator_open(DsvBackend *backend, const DsvConfig *settings, const DsvSparseShape *shape,
                               const StudyCase *of, StudyEstimator **out)
{
    DsvStatus status;
    DsvSparseShape mine = *shape;
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

/* To the nearest number with 1 sign, 4 exponent (down to 2^-6, then subnormal) and 3 mantissa bits. */
static float round_fp8(float x)
{
    int exponent;
    frexpf(x, &exponent); /* |x| in [2^(exponent - 1), 2^exponent) */
    float step = ldexpf(1, (exponent < -5 ? -5 : exponent) - 4);
    return rintf(x / step) * step;
}

/* fp8 is scaled, for each head, so that its largest feature is the largest number there is. */
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
    DsvDevice *device = e->backend->device;
    const DsvSparseShape *s = &e->selector->shape;
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

DsvStatus study_estimator_look(StudyEstimator *e, int64_t block, const DsvSparseAttention *args,
                               StudyFormat format, const DsvFeatures **features, bool *learnt)
{
    DsvFeatures *f = &e->selector->features;
    const DsvSparseScored scored = {args->q, args->k};
    int64_t mine = e->blocks == 1 ? 0 : block;
    *learnt = e->source == STUDY_FIRST && !e->seen[mine];
    e->seen[mine] = true;
    DSVI_TRY(dsvi_selector_look(e->selector, mine, args, &scored, true));
    if (format != STUDY_F32) {
        DSVI_TRY(round_features(e, f->proxies, f->chunk, format));
        DSVI_TRY(round_features(e, f->candidates, f->candidate_keys, format));
    }
    *features = f;
    return DSV_OK;
}
