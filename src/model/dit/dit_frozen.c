/* Implements dit_frozen.h. Each bucket (weights.h) has two pieces of device memory: its parameters in F32, up
 * to the GEMM weights, and its GEMM weights in the compute dtype. If the compute dtype is F32, one piece
 * holds the whole bucket. */
#include "model/dit/dit_frozen.h"

#include <stdlib.h>

enum { STAGE_BYTES = 32 << 20 }; /* of each of the two staging buffers */

struct DsviDitFrozen {
    const DsviParamTable *table;
    DsviDtype act;
    DsviDitBucket *bucket; /* (table->buckets) */
};

DsvStatus dsvi_dit_frozen_create(const DsviParamTable *table, DsviDtype act, DsviDitFrozen **out)
{
    DsviDitFrozen *f = calloc(1, sizeof *f);
    *out = NULL;
    DSVI_ASSERT(act == DSVI_F32 || act == DSVI_BF16);
    if (f)
        f->bucket = calloc((size_t)table->buckets, sizeof *f->bucket);
    if (!f || !f->bucket) {
        free(f);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %lld buckets of weights",
                         (long long)table->buckets);
    }
    f->table = table;
    f->act = act;
    *out = f;
    return DSV_OK;
}

void dsvi_dit_frozen_free(DsviDitFrozen **frozen)
{
    if (!*frozen)
        return;
    free((*frozen)->bucket);
    free(*frozen);
    *frozen = NULL;
}

void dsvi_dit_frozen_carve(DsviDitFrozen *f, DsviArena *arena)
{
    const DsviParamTable *table = f->table;
    for (int64_t s = 0; s < table->buckets; s++) {
        size_t exact = (size_t)(table->gemm[s] - table->begin[s]);
        size_t gemm = (size_t)(table->begin[s + 1] - table->gemm[s]);
        DsviDitBucket *bucket = &f->bucket[s];
        if (f->act == DSVI_F32) {
            float *whole = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, (exact + gemm) * sizeof(float));
            *bucket = (DsviDitBucket){.acc = whole, .act = whole ? whole + exact : NULL};
        } else {
            bucket->acc = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, exact * sizeof(float));
            bucket->act = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, gemm * dsvi_dtype_size(f->act));
        }
    }
}

/* Two pinned buffers: threads convert into one while the other is copied to the device. */
typedef struct Staging {
    DsviDevice *device;
    char *memory; /* (2, STAGE_BYTES) */
    int next;     /* buffer that is filled next */
    bool pending; /* an upload of the other buffer may be under way */
} Staging;

/* Uploads the `count` elements that were written to the next buffer, and makes the other buffer free. */
static DsvStatus send_stage(Staging *staging, void *to, size_t bytes)
{
    DsviStream *stream = staging->device->copies;
    if (staging->pending)
        DSVI_TRY(staging->device->await(stream));
    DSVI_TRY(
        staging->device->upload(stream, to, staging->memory + (size_t)staging->next * STAGE_BYTES, bytes));
    DSVI_TRY(staging->device->flag(stream));
    staging->pending = true;
    staging->next = 1 - staging->next;
    return DSV_OK;
}

/* What is loaded: the stored weights, and LoRAs that are added to them. */
typedef struct Source {
    DsviStoredWeights stored;
    const DsviLoraSet *loras; /* or NULL */
    float *sum;               /* a parameter to which LoRAs have been added; NULL: it is as stored */
} Source;

/* Writes elements [first, first + count) of a parameter to `out`. */
static void convert_elements(const Source *source, int64_t index, int64_t first, int64_t count,
                             DsviDtype dtype, void *out)
{
    if (source->sum)
        dsvi_convert(dtype, out, DSVI_F32, source->sum + first, count);
    else
        dsvi_weights_convert(&source->stored, index, first, count, dtype, out);
}

/* Sets source->sum if LoRAs change the parameter. */
static DsvStatus add_loras(Source *source, const DsviParam *param, int64_t index)
{
    source->sum = NULL;
    if (!source->loras || !dsvi_lora_set_changes(source->loras, param))
        return DSV_OK;
    source->sum = malloc((size_t)param->count * sizeof *source->sum);
    if (!source->sum)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a copy of %s", param->name);
    dsvi_weights_convert(&source->stored, index, 0, param->count, DSVI_F32, source->sum);
    return dsvi_lora_set_add(source->loras, param, source->sum);
}

static DsvStatus load_param(const DsviDitFrozen *f, Staging *staging, const Source *source, int64_t index)
{
    const DsviParam *param = &f->table->params[index];
    int64_t s = dsvi_param_bucket(f->table, param->offset);
    DsviDtype dtype = param->in_compute_dtype ? f->act : DSVI_F32;
    size_t size = dsvi_dtype_size(dtype);
    char *to = param->in_compute_dtype
                   ? (char *)f->bucket[s].act + (size_t)(param->offset - f->table->gemm[s]) * size
                   : (char *)f->bucket[s].acc + (size_t)(param->offset - f->table->begin[s]) * size;
    int64_t most = STAGE_BYTES / (int64_t)size;
    for (int64_t first = 0; first < param->count; first += most) {
        int64_t count = param->count - first < most ? param->count - first : most;
        convert_elements(source, index, first, count, dtype,
                         staging->memory + (size_t)staging->next * STAGE_BYTES);
        DSVI_TRY(send_stage(staging, to + (size_t)first * size, (size_t)count * size));
    }
    return DSV_OK;
}

static DsvStatus load_params(const DsviDitFrozen *f, Staging *staging, Source *source)
{
    DsvStatus status = DSV_OK;
    for (int64_t i = 0; i < f->table->count && status == DSV_OK; i++) {
        status = add_loras(source, &f->table->params[i], i);
        if (status == DSV_OK)
            status = load_param(f, staging, source, i);
        free(source->sum);
        source->sum = NULL;
    }
    return status;
}

DsvStatus dsvi_dit_frozen_load(DsviDitFrozen *f, DsviDevice *device, const char *path,
                               const DsviLoraSet *loras)
{
    DsvStatus status;
    Source source = {.loras = loras};
    Staging staging = {.device = device};
    void *memory = NULL;
    for (size_t i = 0; loras && i < loras->count; i++)
        DSVI_TRY(dsvi_lora_check(&loras->lora[i], f->table));
    DSVI_TRY_GOTO(status, dsvi_weights_open(path, f->table, &source.stored), done);
    DSVI_TRY_GOTO(status, device->host_alloc(device, (size_t)2 * STAGE_BYTES, &memory), done);
    staging.memory = memory;
    DSVI_TRY_GOTO(status, device->sync(device->stream), done); /* the memory may still be being cleared */
    status = load_params(f, &staging, &source);
done:
    if (memory) { /* no copy may read the staging buffers after they are freed */
        DsvStatus last = device->sync(device->copies);
        status = status == DSV_OK ? last : status;
    }
    device->host_free(device, memory);
    dsvi_weights_close(&source.stored);
    return status;
}

static DsvStatus frozen_acquire(void *owner, DsviDitPass pass, int64_t bucket, DsviDitBucket *where)
{
    const DsviDitFrozen *f = owner;
    (void)pass;
    *where = f->bucket[bucket];
    return DSV_OK;
}

DsviDitWeights dsvi_dit_frozen_weights(DsviDitFrozen *frozen)
{
    return (DsviDitWeights){.acquire = frozen_acquire, .owner = frozen};
}
