/* Implements dit_frozen.h. Each bucket (weights.h) has two pieces of device memory: its parameters in F32, up
 * to the GEMM weights, and its GEMM weights in the compute dtype. If the compute dtype is F32, one piece
 * holds the whole bucket. In 8 bits the bucket of a block has, instead of the second piece, one with codes
 * and one with scales; the blocks of 128 elements are counted from the start of each parameter.
 *
 * A lent block (dit_lent.h) has the same pieces, one after the other, in host memory; its slot on the device
 * has the same layout, so that one copy moves them all. */
#include "model/dit/dit_frozen.h"

#include <stdlib.h>
#include <string.h>

#include "model/dit/dit_lent.h"

enum { STAGE_BYTES = 32 << 20 };  /* of each of the two staging buffers */
enum { CODE_ELEMENTS = 4 << 20 }; /* elements that are encoded at once, a multiple of DSVI_F8_BLOCK */

/* The GEMM weights of a block in 8 bits. */
typedef struct Coded {
    uint8_t *code; /* (elements of the bucket's GEMM weights, with padding) */
    float *scale;
} Coded;

struct DsviDitFrozen {
    const DsviParamTable *table;
    DsviDtype act;
    DsviDitBucket *bucket; /* (table->buckets) device memory; of a lent block host memory */
    DsviDitLent lent;
    /* With weights in 8 bits: */
    DsviBackend *backend;   /* NULL otherwise */
    Coded *coded;           /* (table->buckets) device memory; of a lent block host memory */
    int64_t *scale_at;      /* (table->count) place of a parameter's scales among those of its bucket */
    int64_t *scales;        /* (table->buckets) number of scales */
    void *decoded;          /* the GEMM weights of one block in act */
    int64_t decoded_bucket; /* the block in `decoded`; -1: none */
};

static bool is_coded_bucket(const DsviDitFrozen *f, int64_t bucket)
{
    return f->backend && bucket > 0 && bucket < f->table->buckets - 1;
}

static bool is_lent_bucket(const DsviDitFrozen *f, int64_t bucket)
{
    return bucket > 0 && bucket < f->table->buckets - 1 && dsvi_lent_number(&f->lent, bucket - 1) >= 0;
}

static int64_t f8_blocks(int64_t count)
{
    return (count + DSVI_F8_BLOCK - 1) / DSVI_F8_BLOCK;
}

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
    f->lent = (DsviDitLent){.blocks = table->buckets - 2, .in_slot = {-1, -1}};
    *out = f;
    return DSV_OK;
}

void dsvi_dit_frozen_free(DsviDitFrozen **frozen)
{
    if (!*frozen)
        return;
    DsviStatusRecord first = *dsvi_status_record();
    (void)dsvi_lent_settle(
        &(*frozen)->lent); /* a fault of a copy must not replace the message of an earlier one */
    *dsvi_status_record() = first;
    free((*frozen)->bucket);
    free((*frozen)->coded);
    free((*frozen)->scale_at);
    free((*frozen)->scales);
    free(*frozen);
    *frozen = NULL;
}

DsvStatus dsvi_dit_frozen_use_f8(DsviDitFrozen *f, DsviBackend *backend)
{
    const DsviParamTable *table = f->table;
    f->coded = calloc((size_t)table->buckets, sizeof *f->coded);
    f->scales = calloc((size_t)table->buckets, sizeof *f->scales);
    f->scale_at = calloc((size_t)table->count, sizeof *f->scale_at);
    if (!f->coded || !f->scales || !f->scale_at)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of weights in 8 bits");
    f->backend = backend;
    f->decoded_bucket = -1;
    for (int64_t i = 0; i < table->count; i++) {
        int64_t bucket = dsvi_param_bucket(table, table->params[i].offset);
        f->scale_at[i] = f->scales[bucket];
        if (table->params[i].in_compute_dtype)
            f->scales[bucket] += f8_blocks(table->params[i].count);
    }
    return DSV_OK;
}

/* Takes the memory of one bucket. */
static void carve_bucket(const DsviDitFrozen *f, DsviArena *arena, int64_t s, DsviDitBucket *bucket,
                         Coded *coded)
{
    size_t exact = (size_t)(f->table->gemm[s] - f->table->begin[s]);
    size_t gemm = (size_t)(f->table->begin[s + 1] - f->table->gemm[s]);
    *bucket = (DsviDitBucket){0};
    if (f->act == DSVI_F32 && !is_coded_bucket(f, s)) {
        float *whole = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, (exact + gemm) * sizeof(float));
        *bucket = (DsviDitBucket){.acc = whole, .act = whole ? whole + exact : NULL};
        return;
    }
    bucket->acc = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, exact * sizeof(float));
    if (is_coded_bucket(f, s)) {
        coded->code = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, gemm);
        coded->scale = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, (size_t)f->scales[s] * sizeof(float));
    } else
        bucket->act = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, gemm * dsvi_dtype_size(f->act));
}

static Coded *coded_of(const DsviDitFrozen *f, int64_t bucket)
{
    return f->coded ? &f->coded[bucket] : NULL;
}

static size_t bucket_bytes(const DsviDitFrozen *f, int64_t bucket)
{
    DsviArena arena;
    DsviDitBucket unused;
    Coded coded;
    dsvi_arena_plan(&arena);
    carve_bucket(f, &arena, bucket, &unused, &coded);
    return arena.used;
}

/* Takes the buffer into which one block is decoded. */
static void carve_decoded(DsviDitFrozen *f, DsviArena *arena)
{
    int64_t largest = 0;
    for (int64_t s = 0; s < f->table->buckets; s++) {
        int64_t gemm = f->table->begin[s + 1] - f->table->gemm[s];
        largest = is_coded_bucket(f, s) && gemm > largest ? gemm : largest;
    }
    if (f->backend)
        f->decoded = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, (size_t)largest * dsvi_dtype_size(f->act));
}

/* Takes the slots of lent blocks. */
static void carve_slots(DsviDitFrozen *f, DsviArena *arena)
{
    DsviDitLent *lent = &f->lent;
    lent->slot_bytes = 0;
    for (int64_t s = 0; s < f->table->buckets; s++) {
        size_t bytes = is_lent_bucket(f, s) ? bucket_bytes(f, s) : 0;
        lent->slot_bytes = bytes > lent->slot_bytes ? bytes : lent->slot_bytes;
    }
    for (int slot = 0; slot < DSVI_LENT_SLOTS && lent->count > 0; slot++)
        lent->slot[slot] = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, lent->slot_bytes);
}

void dsvi_dit_frozen_carve(DsviDitFrozen *f, DsviArena *arena)
{
    carve_decoded(f, arena);
    carve_slots(f, arena);
    for (int64_t s = 0; s < f->table->buckets; s++)
        if (!is_lent_bucket(f, s))
            carve_bucket(f, arena, s, &f->bucket[s], coded_of(f, s));
}

/* ---- lent blocks ---- */

void dsvi_dit_frozen_lend(DsviDitFrozen *f, DsviDevice *device, int64_t blocks, bool turns)
{
    DSVI_ASSERT(blocks >= 0 && blocks <= f->lent.blocks);
    f->lent.device = device;
    f->lent.count = blocks;
    f->lent.turns = turns;
}

int64_t dsvi_dit_frozen_lent(const DsviDitFrozen *f)
{
    return f->lent.count;
}

void dsvi_dit_frozen_choose_lent(DsviDitFrozen *f, DsviDevice *device, bool turns, size_t limit,
                                 dsvi_layout_fn *layout, void *object)
{
    int64_t best = 0;
    size_t least = SIZE_MAX;
    for (int64_t count = 0; count <= f->lent.blocks && least > limit; count++) {
        DsviArena plan;
        dsvi_dit_frozen_lend(f, device, count, turns);
        dsvi_arena_plan(&plan);
        layout(object, &plan);
        if (plan.used < least) {
            least = plan.used;
            best = count;
        }
    }
    dsvi_dit_frozen_lend(f, device, best, turns);
}

void dsvi_dit_frozen_carve_host(DsviDitFrozen *f, DsviArena *arena)
{
    for (int64_t s = 0; s < f->table->buckets; s++) {
        DsviArena block;
        size_t bytes = is_lent_bucket(f, s) ? bucket_bytes(f, s) : 0;
        void *memory = bytes > 0 ? dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, bytes) : NULL;
        if (!memory)
            continue;
        dsvi_arena_bind(&block, memory, bytes);
        carve_bucket(f, &block, s, &f->bucket[s], coded_of(f, s));
    }
}

/* ---- loading ---- */

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

/* Sends `bytes` bytes of host memory to the device. */
static DsvStatus send_bytes(Staging *staging, const void *from, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += STAGE_BYTES) {
        size_t part = bytes - done < STAGE_BYTES ? bytes - done : STAGE_BYTES;
        memcpy(staging->memory + (size_t)staging->next * STAGE_BYTES, (const char *)from + done, part);
        DSVI_TRY(send_stage(staging, (char *)to + done, part));
    }
    return DSV_OK;
}

/* Writes the codes and scales of a parameter to host memory; `values` is scratch of CODE_ELEMENTS. Stored
 * codes are kept, with the one scale of the stored tensor. */
static void encode_param(const Source *source, const DsviParam *param, int64_t index, float *values,
                         uint8_t *code, float *scale)
{
    const DsviStoredParam *stored = &source->stored.params[index];
    if (stored->dtype == DSVI_F8_E4M3 && !source->sum) {
        memcpy(code, stored->data, (size_t)param->count);
        for (int64_t b = 0; b < f8_blocks(param->count); b++)
            scale[b] = (float)stored->scale;
        return;
    }
    for (int64_t first = 0; first < param->count; first += CODE_ELEMENTS) {
        int64_t left = param->count - first, count = left < CODE_ELEMENTS ? left : CODE_ELEMENTS;
        convert_elements(source, index, first, count, DSVI_F32, values);
        dsvi_f8_encode(count, values, code + first, scale + first / DSVI_F8_BLOCK);
    }
}

static DsvStatus load_coded_param(const DsviDitFrozen *f, Staging *staging, const Source *source,
                                  int64_t index)
{
    DsvStatus status = DSV_OK;
    const DsviParam *param = &f->table->params[index];
    int64_t s = dsvi_param_bucket(f->table, param->offset), blocks = f8_blocks(param->count);
    uint8_t *to_code = f->coded[s].code + (param->offset - f->table->gemm[s]);
    float *to_scale = f->coded[s].scale + f->scale_at[index];
    float *values = malloc(CODE_ELEMENTS * sizeof *values), *scale = malloc((size_t)blocks * sizeof *scale);
    uint8_t *code = malloc((size_t)param->count);
    if (!values || !scale || !code) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %s in 8 bits", param->name);
        goto done;
    }
    if (is_lent_bucket(f, s)) {
        encode_param(source, param, index, values, to_code, to_scale);
        goto done;
    }
    encode_param(source, param, index, values, code, scale);
    DSVI_TRY_GOTO(status, send_bytes(staging, code, to_code, (size_t)param->count), done);
    status = send_bytes(staging, scale, to_scale, (size_t)blocks * sizeof *scale);
done:
    free(values);
    free(scale);
    free(code);
    return status;
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
    if (param->in_compute_dtype && is_coded_bucket(f, s))
        return load_coded_param(f, staging, source, index);
    if (is_lent_bucket(f, s)) {
        convert_elements(source, index, 0, param->count, dtype, to);
        return DSV_OK;
    }
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
    DSVI_TRY_GOTO(status, dsvi_lent_settle(&f->lent), done);
    f->decoded_bucket = -1;
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

/* Decodes the GEMM weights of a block into the buffer, unless they are there. */
static DsvStatus decode_bucket(DsviDitFrozen *f, int64_t bucket, const Coded *coded)
{
    const DsviParamTable *table = f->table;
    if (f->decoded_bucket == bucket)
        return DSV_OK;
    for (int64_t i = 0; i < table->count; i++) {
        const DsviParam *param = &table->params[i];
        if (!param->in_compute_dtype || dsvi_param_bucket(table, param->offset) != bucket)
            continue;
        int64_t at = param->offset - table->gemm[bucket];
        DsviF8DecodeArgs args = {
            .n = param->count,
            .code = coded->code + at,
            .scale = coded->scale + f->scale_at[i],
            .out_dtype = f->act,
            .out = (char *)f->decoded + (size_t)at * dsvi_dtype_size(f->act),
        };
        DSVI_TRY(f->backend->ops.f8_decode.run(f->backend->device->stream, &args));
    }
    f->decoded_bucket = bucket;
    return DSV_OK;
}

/* DsviLentSource: all of a block. Its first piece begins where the block begins. */
static DsviLentSource lent_source(const void *owner, int64_t block)
{
    const DsviDitFrozen *f = owner;
    return (DsviLentSource){f->bucket[block + 1].acc, bucket_bytes(f, block + 1)};
}

static DsvStatus frozen_acquire(void *owner, DsviDitPass pass, int64_t bucket, DsviDitBucket *where)
{
    DsviDitFrozen *f = owner;
    Coded coded = f->coded ? f->coded[bucket] : (Coded){0};
    *where = f->bucket[bucket];
    if (is_lent_bucket(f, bucket)) {
        DsviArena slot;
        unsigned char *memory;
        DSVI_TRY(dsvi_lent_acquire(&f->lent, pass, bucket - 1, lent_source, f, &memory));
        dsvi_arena_bind(&slot, memory, f->lent.slot_bytes);
        carve_bucket(f, &slot, bucket, where, &coded);
    }
    if (!is_coded_bucket(f, bucket))
        return DSV_OK;
    DSVI_TRY(decode_bucket(f, bucket, &coded));
    where->act = f->decoded;
    return DSV_OK;
}

DsviDitWeights dsvi_dit_frozen_weights(DsviDitFrozen *frozen)
{
    return (DsviDitWeights){.acquire = frozen_acquire, .owner = frozen};
}
