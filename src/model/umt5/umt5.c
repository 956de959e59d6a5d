/* The forward pass of the text encoder, and its device memory.
 *
 *     x = embedding[ids]
 *     for each layer:  x += O attention(Q n, K n, V n)              with n = rms_norm(x)
 *                      x += OUT (gelu(GATE n) * (LINEAR n))         with n = rms_norm(x)
 *     hidden = rms_norm(x)
 *
 * Streamed layers take turns in two buffers. The copies of a layer run while the layer before it computes:
 *
 *     copies  | layer 0 to A | layer 1 to B | layer 2 to A |
 *     compute |              | layer 0 (A)  | layer 1 (B)  | ... */
#include "model/umt5/umt5.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "device/carve.h"
#include "device/device_limit.h"
#include "model/umt5/umt5_internal.h"

enum { BUFFERS = 2, FULL_SPEED_ROWS = 4096 };

/* Device memory of a layer's matrices. Those of Q, K and V follow one another: together they are one matrix.
 */
typedef struct LayerMemory {
    void *part[DSVI_UMT5_MATRICES];
} LayerMemory;

struct DsviUmt5 {
    DsviBackend *backend;
    DsviUmt5Config config;
    DsviUmt5Options options;
    DsviUmt5Weights weights;
    DsviTensorStager stager;
    bool streamed;
    int64_t reach;    /* distance from which on the position bias does not change, or that no two rows have */
    int64_t buffers;  /* layers that have device memory */
    int64_t uploaded; /* streamed layers that were uploaded so far, over all batches */
    int32_t *starts;  /* (rows + 1) host: first row of each prompt of a batch */

    void *memory;
    uint64_t bytes;
    LayerMemory *layers; /* (buffers) */
    float *norms;        /* (num_layers, 2, d_model), then the final norm (d_model) */
    float *bias;         /* (num_layers, heads, 2 reach + 1) */
    float *x;            /* (rows, d_model) the residual stream */
    void *normed;        /* (rows, d_model) act */
    void *qkv;           /* (rows, 3, heads d_kv) act */
    void *attended;      /* (rows, heads d_kv) act */
    void *gate, *linear; /* (rows, d_ff) act; in the memory of qkv and attended */
    int32_t *device_starts;
};

static int64_t umt5_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t dsvi_umt5_rows(int64_t total, int64_t longest)
{
    int64_t rows = umt5_smaller(total, FULL_SPEED_ROWS);
    rows = rows > longest ? rows : longest;
    return rows > 0 ? rows : 1;
}

static int64_t umt5_inner(const DsviUmt5 *e)
{
    return e->config.num_heads * e->config.d_kv;
}

static int64_t umt5_bias_elements(const DsviUmt5 *e)
{
    return e->config.num_heads * (2 * e->reach + 1);
}

static int64_t umt5_norm_elements(const DsviUmt5 *e)
{
    return (2 * e->config.num_layers + 1) * e->config.d_model;
}

static void umt5_carve_layer(const DsviUmt5 *e, DsviArena *arena, LayerMemory *layer)
{
    const size_t size = dsvi_dtype_size(e->options.act);
    for (int part = 0; part < DSVI_UMT5_MATRICES; part++) {
        const size_t bytes = (size_t)dsvi_umt5_part_elements(&e->config, part) * size;
        if (part == DSVI_UMT5_K || part == DSVI_UMT5_V)
            layer->part[part] = layer->part[part - 1] ? (char *)layer->part[part - 1] + bytes : NULL;
        else
            layer->part[part] = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS,
                                                part == DSVI_UMT5_Q ? 3 * bytes : bytes);
    }
}

static void umt5_carve(void *context, DsviArena *arena)
{
    DsviUmt5 *e = context;
    LayerMemory unused;
    const size_t rows = (size_t)e->options.rows, size = dsvi_dtype_size(e->options.act);
    const size_t model = (size_t)e->config.d_model, inner = (size_t)umt5_inner(e),
                 ffn = (size_t)e->config.d_ff;
    for (int64_t i = 0; i < e->buffers; i++)
        umt5_carve_layer(e, arena, e->layers ? &e->layers[i] : &unused);
    e->norms = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, (size_t)umt5_norm_elements(e) * sizeof(float));
    e->bias = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS,
                              (size_t)(e->config.num_layers * umt5_bias_elements(e)) * sizeof(float));
    e->device_starts = dsvi_arena_take(arena, DSVI_MEM_DATA, (rows + 1) * sizeof(int32_t));
    e->x = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, rows * model * sizeof(float));
    e->normed = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, rows * model * size);
    DsviArenaOverlay over = dsvi_arena_overlay_begin(arena);
    e->qkv = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, rows * 3 * inner * size);
    e->attended = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, rows * inner * size);
    dsvi_arena_overlay_next(arena, &over);
    e->gate = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, rows * ffn * size);
    e->linear = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, rows * ffn * size);
    dsvi_arena_overlay_end(arena, &over);
}

static uint64_t umt5_set_sizes(DsviUmt5 *e, bool streamed)
{
    DsviArena arena;
    e->streamed = streamed;
    e->buffers = streamed ? BUFFERS : e->config.num_layers;
    e->reach = umt5_smaller(e->config.max_distance, e->options.rows);
    dsvi_arena_plan(&arena);
    umt5_carve(e, &arena);
    return e->bytes = arena.used;
}

uint64_t dsvi_umt5_plan(const DsviUmt5Config *config, const DsviUmt5Options *options, bool streamed)
{
    DsviUmt5 e = {.config = *config, .options = *options};
    return umt5_set_sizes(&e, streamed);
}

/* Decides whether the layers are streamed. */
static DsvStatus umt5_choose(DsviUmt5 *e)
{
    uint64_t limit = e->options.memory_bytes;
    if (limit == 0)
        limit = dsvi_device_free_bytes(e->backend->device) / 4 * 3;
    if (umt5_set_sizes(e, false) <= limit || umt5_set_sizes(e, true) <= limit)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_NO_MEMORY,
                     "the text encoder has a limit of %" PRIu64 " bytes of memory, expected at least %" PRIu64
                     " for two layers and %" PRId64 " rows",
                     limit, e->bytes, e->options.rows);
}

DsvStatus dsvi_umt5_fit(DsviBackend *backend, const DsviUmt5Config *config, const DsviUmt5Options *options,
                        bool *streamed, uint64_t *bytes)
{
    DsviUmt5 e = {.backend = backend, .config = *config, .options = *options};
    DsvStatus status = umt5_choose(&e);
    *streamed = e.streamed;
    *bytes = e.bytes;
    return status;
}

static DsvStatus umt5_upload_layer(DsviUmt5 *e, int64_t layer, int64_t buffer)
{
    for (int part = 0; part < DSVI_UMT5_MATRICES; part++)
        DSVI_TRY(dsvi_tensor_stage(&e->stager, e->weights.set, e->weights.layers[layer][part], e->options.act,
                                   e->layers[buffer].part[part]));
    return DSV_OK;
}

/* Uploads norms and position biases of all layers. */
static DsvStatus umt5_upload_vectors(DsviUmt5 *e)
{
    DsviDevice *device = e->backend->device;
    const DsviUmt5Weights *w = &e->weights;
    const int64_t model = e->config.d_model, norms = umt5_norm_elements(e), bias = umt5_bias_elements(e);
    float *host = malloc((size_t)(norms + e->config.num_layers * bias) * sizeof *host), *at = host;
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the norms and position biases of %lld layers",
                         (long long)e->config.num_layers);
    for (int64_t i = 0; i < e->config.num_layers; i++)
        for (int part = DSVI_UMT5_NORM_ATTENTION; part <= DSVI_UMT5_NORM_FFN; part++, at += model)
            dsvi_tensor_set_read(w->set, w->layers[i][part], 0, model, DSVI_F32, at);
    dsvi_tensor_set_read(w->set, w->final_norm, 0, model, DSVI_F32, at);
    for (int64_t i = 0; i < e->config.num_layers; i++)
        dsvi_umt5_bias(w, &e->config, i, e->reach, host + norms + i * bias);
    DsvStatus status = device->upload(device->stream, e->norms, host, (size_t)norms * sizeof *host);
    if (status == DSV_OK)
        status = device->upload(device->stream, e->bias, host + norms,
                                (size_t)(e->config.num_layers * bias) * sizeof *host);
    if (status == DSV_OK)
        status = device->sync(device->stream);
    free(host);
    return status;
}

static DsvStatus umt5_prepare(DsviUmt5 *e, const char *path)
{
    DsviDevice *device = e->backend->device;
    DSVI_TRY(dsvi_umt5_weights_open(path, &e->config, &e->weights));
    DSVI_TRY(umt5_choose(e));
    e->layers = calloc((size_t)e->buffers, sizeof *e->layers);
    e->starts = calloc((size_t)e->options.rows + 1, sizeof *e->starts);
    if (!e->layers || !e->starts)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for lists of %lld layers and %lld rows", path,
                         (long long)e->buffers, (long long)e->options.rows);
    DSVI_TRY(dsvi_device_alloc_layout(device, umt5_carve, e, &e->memory));
    DSVI_TRY(dsvi_tensor_stager_open(device, &e->stager));
    DSVI_TRY(umt5_upload_vectors(e));
    if (e->streamed)
        return DSV_OK;
    for (int64_t i = 0; i < e->config.num_layers; i++)
        DSVI_TRY(umt5_upload_layer(e, i, i));
    DSVI_TRY(device->sync(device->copies));
    dsvi_tensor_stager_close(&e->stager);
    return DSV_OK;
}

DsvStatus dsvi_umt5_open(DsviBackend *backend, const char *path, const DsviUmt5Options *options,
                         DsviUmt5 **out)
{
    DsviUmt5 *e = calloc(1, sizeof *e);
    *out = NULL;
    DSVI_ASSERT(options->rows > 0 && (options->act == DSVI_F32 || options->act == DSVI_BF16));
    if (!e)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to open it", path);
    e->backend = backend;
    e->options = *options;
    DsvStatus status = umt5_prepare(e, path);
    if (status != DSV_OK)
        dsvi_umt5_close(&e);
    *out = e;
    return status;
}

void dsvi_umt5_close(DsviUmt5 **encoder)
{
    DsviUmt5 *e = *encoder;
    if (!e)
        return;
    DsviDevice *device = e->backend->device;
    (void)device->sync(device->stream); /* after a failure, work that uses the memory may be under way */
    dsvi_tensor_stager_close(&e->stager);
    if (e->memory)
        device->mem_free(device, e->memory);
    dsvi_umt5_weights_close(&e->weights);
    free(e->layers);
    free(e->starts);
    free(e);
    *encoder = NULL;
}

const DsviUmt5Config *dsvi_umt5_config(const DsviUmt5 *encoder)
{
    return &encoder->config;
}

uint64_t dsvi_umt5_bytes(const DsviUmt5 *encoder)
{
    return encoder->bytes;
}

/* A batch of prompts: their rows are rows 0 to `rows` of the device arrays. */
typedef struct Umt5Batch {
    int64_t prompts, rows, longest;
} Umt5Batch;

static DsvStatus umt5_norm(DsviUmt5 *e, const Umt5Batch *batch, int64_t norm, DsviDtype act, void *out)
{
    const DsviRmsNormArgs args = {
        .rows = batch->rows,
        .channels = e->config.d_model,
        .eps = e->config.eps,
        .act = act,
        .acc = DSVI_F32,
        .x = e->x,
        .weight = e->norms + norm * e->config.d_model,
        .y = out,
    };
    return e->backend->ops.rms_norm.run(e->backend->device->stream, &args);
}

/* out = in weight^T with weight (n, k), or x += in weight^T if out is NULL. */
static DsvStatus umt5_linear(DsviUmt5 *e, const Umt5Batch *batch, const void *weight, int64_t n, int64_t k,
                             const void *in, void *out)
{
    const DsviGemmArgs args = {
        .m = batch->rows,
        .n = n,
        .k = k,
        .ab_dtype = e->options.act,
        .c_dtype = out ? e->options.act : DSVI_F32,
        .a = in,
        .lda = k,
        .b = weight,
        .ldb = k,
        .trans_b = true,
        .c = out ? out : e->x,
        .ldc = n,
        .bias_dtype = DSVI_F32,
        .accumulate = !out,
    };
    return e->backend->ops.gemm.run(e->backend->device->stream, &args);
}

static DsvStatus umt5_attend(DsviUmt5 *e, const Umt5Batch *batch, int64_t layer)
{
    const int64_t inner = umt5_inner(e);
    const char *qkv = e->qkv;
    const size_t part = (size_t)inner * dsvi_dtype_size(e->options.act);
    const DsviBiasAttentionArgs args = {
        .segments = batch->prompts,
        .rows = batch->rows,
        .longest = batch->longest,
        .heads = e->config.num_heads,
        .head_dim = e->config.d_kv,
        .reach = e->reach,
        .scale = 1,
        .act = e->options.act,
        .acc = DSVI_F32,
        .starts = e->device_starts,
        .bias = e->bias + layer * umt5_bias_elements(e),
        .q = qkv,
        .k = qkv + part,
        .v = qkv + 2 * part,
        .stride = 3 * inner,
        .out = e->attended,
    };
    return e->backend->ops.bias_attention.run(e->backend->device->stream, &args);
}

static DsvStatus umt5_layer(DsviUmt5 *e, const Umt5Batch *batch, int64_t layer, const LayerMemory *memory)
{
    const int64_t model = e->config.d_model, inner = umt5_inner(e), ffn = e->config.d_ff;
    const DsviGeluProductArgs gelu = {
        .n = batch->rows * ffn, .dtype = e->options.act, .gate = e->gate, .x = e->linear, .y = e->gate};
    void *const *part = memory->part;
    DSVI_TRY(umt5_norm(e, batch, 2 * layer, e->options.act, e->normed));
    DSVI_TRY(umt5_linear(e, batch, part[DSVI_UMT5_Q], 3 * inner, model, e->normed, e->qkv));
    DSVI_TRY(umt5_attend(e, batch, layer));
    DSVI_TRY(umt5_linear(e, batch, part[DSVI_UMT5_O], model, inner, e->attended, NULL));
    DSVI_TRY(umt5_norm(e, batch, 2 * layer + 1, e->options.act, e->normed));
    DSVI_TRY(umt5_linear(e, batch, part[DSVI_UMT5_GATE], ffn, model, e->normed, e->gate));
    DSVI_TRY(umt5_linear(e, batch, part[DSVI_UMT5_LINEAR], ffn, model, e->normed, e->linear));
    DSVI_TRY(e->backend->ops.gelu_product.run(e->backend->device->stream, &gelu));
    return umt5_linear(e, batch, part[DSVI_UMT5_FFN_OUT], model, ffn, e->gate, NULL);
}

/* Enqueues all layers. `more`: another batch follows, so the copies of its first layer begin during the last
 * layer of this one. */
static DsvStatus umt5_layers(DsviUmt5 *e, const Umt5Batch *batch, bool more)
{
    DsviDevice *device = e->backend->device;
    const int64_t layers = e->config.num_layers;
    for (int64_t i = 0; i < layers; i++) {
        const int64_t buffer = e->streamed ? e->uploaded % e->buffers : i;
        if (e->streamed) {
            DSVI_TRY(device->follow(device->stream, device->copies));
            /* The other buffer is free as soon as the layer before this one has been computed. */
            DSVI_TRY(device->follow(device->copies, device->stream));
        }
        DSVI_TRY(umt5_layer(e, batch, i, &e->layers[buffer]));
        if (e->streamed && (i + 1 < layers || more))
            DSVI_TRY(umt5_upload_layer(e, (i + 1) % layers, ++e->uploaded % e->buffers));
    }
    return DSV_OK;
}

/* Encodes the prompts of one batch, whose embeddings `hidden` (rows, d_model) holds; replaces them by the
 * hidden states. */
static DsvStatus umt5_batch(DsviUmt5 *e, const Umt5Batch *batch, bool more, float *hidden)
{
    DsviDevice *device = e->backend->device;
    const size_t bytes = (size_t)(batch->rows * e->config.d_model) * sizeof *hidden;
    DSVI_TRY(device->upload(device->stream, e->device_starts, e->starts,
                            (size_t)(batch->prompts + 1) * sizeof *e->starts));
    DSVI_TRY(device->upload(device->stream, e->x, hidden, bytes));
    DSVI_TRY(umt5_layers(e, batch, more));
    DSVI_TRY(umt5_norm(e, batch, 2 * e->config.num_layers, DSVI_F32, e->x));
    DSVI_TRY(device->download(device->stream, hidden, e->x, bytes));
    return device->sync(device->stream);
}

static DsvStatus umt5_check(const DsviUmt5 *e, int64_t count, const int64_t *lengths, const int32_t *ids)
{
    for (int64_t i = 0; i < count; i++) {
        if (lengths[i] < 0 || lengths[i] > e->options.rows)
            return DSVI_FAIL(DSV_E_SHAPE, "prompt %lld has %lld ids, expected at most %lld", (long long)i,
                             (long long)lengths[i], (long long)e->options.rows);
        for (int64_t n = 0; n < lengths[i]; n++, ids++)
            if (*ids < 0 || *ids >= e->config.vocab_size)
                return DSVI_FAIL(DSV_E_SHAPE, "prompt %lld has the id %d, expected 0 to %lld", (long long)i,
                                 *ids, (long long)e->config.vocab_size - 1);
    }
    return DSV_OK;
}

/* Makes the batch that begins with prompt *next, and sets *next to the prompt after it. */
static Umt5Batch umt5_next_batch(DsviUmt5 *e, int64_t count, const int64_t *lengths, int64_t *next)
{
    Umt5Batch batch = {0};
    for (; *next < count && batch.rows + lengths[*next] <= e->options.rows; (*next)++) {
        const int64_t length = lengths[*next];
        if (length == 0)
            continue;
        e->starts[batch.prompts++] = (int32_t)batch.rows;
        batch.rows += length;
        batch.longest = length > batch.longest ? length : batch.longest;
    }
    e->starts[batch.prompts] = (int32_t)batch.rows;
    return batch;
}

DsvStatus dsvi_umt5_encode(DsviUmt5 *e, int64_t count, const int64_t *lengths, const int32_t *ids,
                           float *hidden)
{
    const int64_t model = e->config.d_model;
    DSVI_TRY(umt5_check(e, count, lengths, ids));
    if (e->streamed)
        DSVI_TRY(umt5_upload_layer(e, 0, e->uploaded % e->buffers));
    for (int64_t next = 0; next < count;) {
        const Umt5Batch batch = umt5_next_batch(e, count, lengths, &next);
        for (int64_t r = 0; r < batch.rows; r++)
            dsvi_tensor_set_read(e->weights.set, e->weights.embedding, ids[r] * model, model, DSVI_F32,
                                 hidden + r * model);
        if (batch.rows > 0)
            DSVI_TRY(umt5_batch(e, &batch, next < count, hidden));
        ids += batch.rows;
        hidden += batch.rows * model;
    }
    return DSV_OK;
}
