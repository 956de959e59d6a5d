/* The forward pass of the image encoder, and its device memory.
 *
 *     x = LN([class | patches W^T] + positions)
 *     for each layer but the last:  x += O attention(Q n, K n, V n) + b     with n = LN(x)
 *                                   x += OUT act(IN n + b) + b              with n = LN(x)
 *     states = x
 *
 * Each sum is computed by the op of the norm that follows it. */
#include "model/vit/vit.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "device/carve.h"
#include "model/vit/vit_internal.h"

/* Device memory of a layer. Matrices and biases of Q, K and V follow one another. */
typedef struct LayerMemory {
    void *weight[DSVI_VIT_PARTS]; /* act; of a norm F32 */
    float *bias[DSVI_VIT_PARTS];
} LayerMemory;

struct DsviVit {
    DsviBackend *backend;
    DsviVitConfig config;
    DsviDtype act;
    int64_t batch; /* largest number of pictures */
    int64_t rows;  /* of a picture */
    DsviVitWeights weights;
    DsviTensorStager stager;

    void *memory;
    uint64_t bytes;
    LayerMemory *layers; /* (num_hidden_layers - 1) */
    void *patch;         /* (hidden, channels patch^2) act */
    float *begin;        /* (rows, hidden) the positions, and in row 0 also the class embedding */
    float *norm[2];      /* (hidden) weight and bias of the norm before the layers */
    int32_t *order;      /* (rows - 1) 0, 1, 2, ...: the order of patches */
    float *pixels;       /* (batch, channels, image, image) */
    void *patches;       /* (batch, rows - 1, channels patch^2) act */
    float *embedded;     /* (batch, rows, hidden): before the norm */
    float *x;            /* (batch, rows, hidden) the residual stream */
    void *normed;        /* (batch, rows, hidden) act; also a sub-layer's output */
    void *qkv;           /* (batch, rows, 3, hidden) act */
    void *attended;      /* (batch, rows, hidden) act */
    float *lse;          /* (batch, heads, rows) */
    void *hidden;        /* (batch, rows, intermediate) act; in the memory of qkv and attended */
    float *mean, *rstd;  /* (batch, rows) */
    void *workspace;
    size_t workspace_bytes;
};

static int64_t vit_patch_elements(const DsviVit *e)
{
    return e->config.num_channels * e->config.patch_size * e->config.patch_size;
}

/* ---- memory ---- */

static void *vit_take(DsviArena *arena, DsviMemClass mem_class, DsviDtype dtype, int64_t n)
{
    return dsvi_arena_take(arena, mem_class, (size_t)n * dsvi_dtype_size(dtype));
}

static void vit_carve_layer(const DsviVit *e, DsviArena *arena, LayerMemory *layer)
{
    for (int part = 0; part < DSVI_VIT_PARTS; part++) {
        const DsviDtype dtype = part < DSVI_VIT_MATRICES ? e->act : DSVI_F32;
        int64_t shape[2];
        dsvi_vit_part_shape(&e->config, part, shape);
        const int64_t count = shape[0] * shape[1];
        if (part == DSVI_VIT_K || part == DSVI_VIT_V) {
            char *before = layer->weight[part - 1];
            float *bias = layer->bias[part - 1];
            layer->weight[part] = before ? before + (size_t)count * dsvi_dtype_size(dtype) : NULL;
            layer->bias[part] = bias ? bias + shape[0] : NULL;
            continue;
        }
        const int64_t together = part == DSVI_VIT_Q ? 3 : 1;
        layer->weight[part] = vit_take(arena, DSVI_MEM_WEIGHTS, dtype, together * count);
        layer->bias[part] = vit_take(arena, DSVI_MEM_WEIGHTS, DSVI_F32, together * shape[0]);
    }
}

static DsviAttentionArgs vit_attention(const DsviVit *e, int64_t count)
{
    const int64_t hidden = e->config.hidden_size, heads = e->config.num_attention_heads;
    const size_t part = (size_t)hidden * dsvi_dtype_size(e->act);
    DsviHeads rows = {e->qkv, 3 * hidden * e->rows, 3 * hidden, hidden / heads};
    DsviAttentionArgs args = {
        .batch = count,
        .heads = heads,
        .queries = e->rows,
        .keys = e->rows,
        .head_dim = hidden / heads,
        .scale = 1 / sqrt((double)(hidden / heads)),
        .act = e->act,
        .acc = DSVI_F32,
        .q = rows,
        .k = rows,
        .v = rows,
        .out = dsvi_heads(e->attended, e->rows, heads, hidden / heads),
        .lse = e->lse,
        .workspace = e->workspace,
        .workspace_bytes = e->workspace_bytes,
    };
    if (e->qkv) {
        args.k.data = (char *)e->qkv + part;
        args.v.data = (char *)e->qkv + 2 * part;
    }
    return args;
}

static void vit_carve(void *context, DsviArena *arena)
{
    DsviVit *e = context;
    LayerMemory unused = {0};
    const DsviMemClass weights = DSVI_MEM_WEIGHTS, scratch = DSVI_MEM_SCRATCH;
    const int64_t hidden = e->config.hidden_size, side = e->config.image_size;
    const int64_t rows = e->batch * e->rows, patches = e->batch * (e->rows - 1);
    for (int64_t i = 0; i + 1 < e->config.num_hidden_layers; i++)
        vit_carve_layer(e, arena, e->layers ? &e->layers[i] : &unused);
    e->patch = vit_take(arena, weights, e->act, hidden * vit_patch_elements(e));
    e->begin = vit_take(arena, weights, DSVI_F32, e->rows * hidden);
    for (int i = 0; i < 2; i++)
        e->norm[i] = vit_take(arena, weights, DSVI_F32, hidden);
    e->order = vit_take(arena, DSVI_MEM_DATA, DSVI_I32, e->rows - 1);
    e->pixels = vit_take(arena, DSVI_MEM_DATA, DSVI_F32, e->batch * e->config.num_channels * side * side);
    e->patches = vit_take(arena, scratch, e->act, patches * vit_patch_elements(e));
    e->embedded = vit_take(arena, scratch, DSVI_F32, rows * hidden);
    e->x = vit_take(arena, scratch, DSVI_F32, rows * hidden);
    e->normed = vit_take(arena, scratch, e->act, rows * hidden);
    e->mean = vit_take(arena, scratch, DSVI_F32, rows);
    e->rstd = vit_take(arena, scratch, DSVI_F32, rows);
    e->lse = vit_take(arena, scratch, DSVI_F32, rows * e->config.num_attention_heads);
    DsviArenaOverlay over = dsvi_arena_overlay_begin(arena);
    e->qkv = vit_take(arena, scratch, e->act, 3 * rows * hidden);
    e->attended = vit_take(arena, scratch, e->act, rows * hidden);
    e->workspace = dsvi_arena_take(arena, scratch, e->workspace_bytes);
    dsvi_arena_overlay_next(arena, &over);
    e->hidden = vit_take(arena, scratch, e->act, rows * e->config.intermediate_size);
    dsvi_arena_overlay_end(arena, &over);
}

/* Finds the sizes that follow from the configuration. */
static void vit_set_sizes(DsviVit *e)
{
    e->rows = dsvi_vit_rows(&e->config);
    for (int64_t count = 1; count <= e->batch; count++) { /* fewer pictures may need more workspace */
        const DsviAttentionArgs attention = vit_attention(e, count);
        size_t bytes = DSVI_OP_WORKSPACE(e->backend->ops.attention_fwd, e->backend->device->stream,
                                         &attention);
        e->workspace_bytes = bytes > e->workspace_bytes ? bytes : e->workspace_bytes;
    }
}

uint64_t dsvi_vit_plan(DsviBackend *backend, const DsviVitConfig *config, DsviDtype act, int64_t batch)
{
    DsviVit e = {.backend = backend, .config = *config, .act = act, .batch = batch};
    DsviArena arena;
    vit_set_sizes(&e);
    dsvi_arena_plan(&arena);
    vit_carve(&e, &arena);
    return arena.used;
}

/* ---- weights ---- */

static DsvStatus vit_stage(DsviVit *e, const DsviStoredTensor *tensor, DsviDtype dtype, void *to)
{
    return dsvi_tensor_stage(&e->stager, e->weights.set, tensor, dtype, to);
}

/* Uploads the positions, with the class embedding added to row 0, and the order of patches. */
static DsvStatus vit_upload_begin(DsviVit *e)
{
    DsviDevice *device = e->backend->device;
    const DsviVitWeights *w = &e->weights;
    const int64_t hidden = e->config.hidden_size, count = e->rows * hidden;
    float *begin = malloc((size_t)(count + hidden) * sizeof *begin);
    int32_t *order = malloc((size_t)e->rows * sizeof *order);
    DsvStatus status;
    if (!begin || !order) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the positions of %" PRId64 " rows", e->rows);
        goto done;
    }
    float *class_embedding = begin + count;
    dsvi_tensor_set_read(w->set, w->positions, 0, count, DSVI_F32, begin);
    dsvi_tensor_set_read(w->set, w->class_embedding, 0, hidden, DSVI_F32, class_embedding);
    for (int64_t i = 0; i < hidden; i++)
        begin[i] += class_embedding[i];
    for (int64_t i = 0; i + 1 < e->rows; i++)
        order[i] = (int32_t)i;
    DSVI_TRY_GOTO(status, device->upload(device->stream, e->begin, begin, (size_t)count * sizeof *begin),
                  done);
    DSVI_TRY_GOTO(
        status, device->upload(device->stream, e->order, order, (size_t)(e->rows - 1) * sizeof *order), done);
    status = device->sync(device->stream);
done:
    free(begin);
    free(order);
    return status;
}

static DsvStatus vit_upload(DsviVit *e)
{
    DsviDevice *device = e->backend->device;
    for (int64_t i = 0; i + 1 < e->config.num_hidden_layers; i++)
        for (int part = 0; part < DSVI_VIT_PARTS; part++) {
            const DsviVitLayer *from = &e->weights.layers[i];
            DSVI_TRY(vit_stage(e, from->weight[part], part < DSVI_VIT_MATRICES ? e->act : DSVI_F32,
                               e->layers[i].weight[part]));
            DSVI_TRY(vit_stage(e, from->bias[part], DSVI_F32, e->layers[i].bias[part]));
        }
    DSVI_TRY(vit_stage(e, e->weights.patch, e->act, e->patch));
    for (int i = 0; i < 2; i++)
        DSVI_TRY(vit_stage(e, e->weights.norm[i], DSVI_F32, e->norm[i]));
    DSVI_TRY(device->follow(device->stream, device->copies));
    return vit_upload_begin(e);
}

static DsvStatus vit_open(DsviVit *e, const char *path)
{
    DSVI_TRY(dsvi_vit_weights_open(path, &e->config, &e->weights));
    e->layers = calloc((size_t)e->config.num_hidden_layers, sizeof *e->layers);
    if (!e->layers)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of %" PRId64 " layers", path,
                         e->config.num_hidden_layers);
    vit_set_sizes(e);
    DSVI_TRY(dsvi_device_alloc_layout(e->backend->device, vit_carve, e, &e->memory));
    DSVI_TRY(dsvi_tensor_stager_open(e->backend->device, &e->stager));
    DSVI_TRY(vit_upload(e));
    dsvi_tensor_stager_close(&e->stager);
    return DSV_OK;
}

DsvStatus dsvi_vit_open(DsviBackend *backend, const char *path, DsviDtype act, int64_t batch, DsviVit **out)
{
    DsviVit *e = calloc(1, sizeof *e);
    *out = NULL;
    if (!e)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for an image encoder");
    DSVI_ASSERT(act == DSVI_F32 || act == DSVI_BF16);
    e->backend = backend;
    e->act = act;
    e->batch = batch;
    DsvStatus status = vit_open(e, path);
    if (status == DSV_OK)
        *out = e;
    else
        dsvi_vit_close(&e);
    return status;
}

void dsvi_vit_close(DsviVit **encoder)
{
    DsviVit *e = *encoder;
    if (!e)
        return;
    DsviDevice *device = e->backend->device;
    (void)device->sync(device->stream); /* after a failure, work that uses the memory may be under way */
    dsvi_tensor_stager_close(&e->stager);
    if (e->memory)
        device->mem_free(device, e->memory);
    dsvi_vit_weights_close(&e->weights);
    free(e->layers);
    free(e);
    *encoder = NULL;
}

const DsviVitConfig *dsvi_vit_config(const DsviVit *encoder)
{
    return &encoder->config;
}

/* ---- the pass, for `count` pictures ---- */

/* Writes the norm of x (rows, hidden) F32 to `out`, in dtype `act`. Unless `y` is NULL, first adds y, in the
 * dtype act of the encoder, to x. */
static DsvStatus vit_norm(DsviVit *e, int64_t count, const float *weight, const float *bias, const void *y,
                          float *x, DsviDtype act, void *out)
{
    const DsviGateResidualArgs sum = {
        .batch = 1,
        .tokens = count * e->rows,
        .channels = e->config.hidden_size,
        .act = act,
        .acc = DSVI_F32,
        .x = x,
        .y = y,
        .out = x,
    };
    const DsviLayerNormArgs args = {
        .batch = 1,
        .tokens = count * e->rows,
        .channels = e->config.hidden_size,
        .eps = e->config.eps,
        .act = act,
        .acc = DSVI_F32,
        .x = x,
        .scale = weight,
        .shift = bias,
        .y = out,
        .mean = e->mean,
        .rstd = e->rstd,
        .sum = y ? &sum : NULL,
    };
    return e->backend->ops.layer_norm_fwd.run(e->backend->device->stream, &args);
}

/* out = in weight^T + bias with weight (n, k). */
static DsvStatus vit_linear(DsviVit *e, int64_t count, const LayerMemory *layer, DsviVitPart part, int64_t n,
                            int64_t k, const void *in, void *out)
{
    const DsviGemmArgs args = {
        .m = count * e->rows,
        .n = n,
        .k = k,
        .ab_dtype = e->act,
        .c_dtype = e->act,
        .a = in,
        .lda = k,
        .b = layer->weight[part],
        .ldb = k,
        .trans_b = true,
        .c = out,
        .ldc = n,
        .bias_dtype = DSVI_F32,
        .bias = layer->bias[part],
    };
    return e->backend->ops.gemm.run(e->backend->device->stream, &args);
}

/* Writes class embedding, patches and positions to `embedded`. */
static DsvStatus vit_embed(DsviVit *e, int64_t count)
{
    DsviStream *stream = e->backend->device->stream;
    const int64_t hidden = e->config.hidden_size, side = e->config.image_size, patch = e->config.patch_size;
    const int64_t patches = e->rows - 1, k = vit_patch_elements(e);
    const DsviPatchArgs gather = {
        .batch = count,
        .channels = e->config.num_channels,
        .frames = 1,
        .height = side,
        .width = side,
        .patch = {1, patch, patch},
        .tokens = patches,
        .order = e->order,
        .latent_dtype = DSVI_F32,
        .row_dtype = e->act,
        .latent = e->pixels,
        .rows = e->patches,
    };
    DSVI_TRY(e->backend->ops.patch_gather.run(stream, &gather));
    for (int64_t b = 0; b < count; b++) {
        float *rows = e->embedded + b * e->rows * hidden;
        const DsviGemmArgs args = {
            .m = patches,
            .n = hidden,
            .k = k,
            .ab_dtype = e->act,
            .c_dtype = DSVI_F32,
            .a = (const char *)e->patches + (size_t)(b * patches * k) * dsvi_dtype_size(e->act),
            .lda = k,
            .b = e->patch,
            .ldb = k,
            .trans_b = true,
            .c = rows + hidden,
            .ldc = hidden,
            .bias_dtype = DSVI_F32,
            .accumulate = true,
        };
        DSVI_TRY(e->backend->device->copy(stream, rows, e->begin, (size_t)(e->rows * hidden) * sizeof *rows));
        DSVI_TRY(e->backend->ops.gemm.run(stream, &args));
    }
    return DSV_OK;
}

/* Computes a layer up to its last output, in `normed`, which is yet to be added to x. `y`: the output of the
 * layer before, likewise; NULL: none. */
static DsvStatus vit_layer(DsviVit *e, int64_t count, const LayerMemory *layer, const void *y)
{
    DsviStream *stream = e->backend->device->stream;
    const int64_t hidden = e->config.hidden_size, ffn = e->config.intermediate_size;
    const DsviAttentionArgs attention = vit_attention(e, count);
    const DsviActivationArgs activation = {.activation = e->config.activation,
                                           .n = count * e->rows * ffn,
                                           .dtype = e->act,
                                           .x = e->hidden,
                                           .y = e->hidden};
    DSVI_TRY(vit_norm(e, count, layer->weight[DSVI_VIT_NORM1], layer->bias[DSVI_VIT_NORM1], y, e->x, e->act,
                      e->normed));
    DSVI_TRY(vit_linear(e, count, layer, DSVI_VIT_Q, 3 * hidden, hidden, e->normed, e->qkv));
    DSVI_TRY(e->backend->ops.attention_fwd.run(stream, &attention));
    DSVI_TRY(vit_linear(e, count, layer, DSVI_VIT_O, hidden, hidden, e->attended, e->normed));
    DSVI_TRY(vit_norm(e, count, layer->weight[DSVI_VIT_NORM2], layer->bias[DSVI_VIT_NORM2], e->normed, e->x,
                      e->act, e->normed));
    DSVI_TRY(vit_linear(e, count, layer, DSVI_VIT_FFN_IN, ffn, hidden, e->normed, e->hidden));
    DSVI_TRY(e->backend->ops.activation_fwd.run(stream, &activation));
    return vit_linear(e, count, layer, DSVI_VIT_FFN_OUT, hidden, ffn, e->hidden, e->normed);
}

static DsvStatus vit_batch(DsviVit *e, int64_t count, const float *pixels, float *states)
{
    DsviDevice *device = e->backend->device;
    const int64_t side = e->config.image_size, layers = e->config.num_hidden_layers - 1;
    const int64_t elements = count * e->rows * e->config.hidden_size;
    const DsviAddArgs last = {
        .n = elements, .a = 1, .b = 1, .x_dtype = e->act, .y_dtype = DSVI_F32, .x = e->normed, .y = e->x};
    DSVI_TRY(device->upload(device->stream, e->pixels, pixels,
                            (size_t)(count * e->config.num_channels * side * side) * sizeof *pixels));
    DSVI_TRY(vit_embed(e, count));
    DSVI_TRY(vit_norm(e, count, e->norm[0], e->norm[1], NULL, e->embedded, DSVI_F32, e->x));
    for (int64_t i = 0; i < layers; i++)
        DSVI_TRY(vit_layer(e, count, &e->layers[i], i > 0 ? e->normed : NULL));
    if (layers > 0)
        DSVI_TRY(e->backend->ops.add.run(device->stream, &last));
    DSVI_TRY(device->download(device->stream, states, e->x, (size_t)elements * sizeof *states));
    return device->sync(device->stream);
}

DsvStatus dsvi_vit_encode(DsviVit *e, int64_t count, const float *pixels, float *states)
{
    const int64_t side = e->config.image_size, picture = e->config.num_channels * side * side;
    for (int64_t done = 0; done < count; done += e->batch) {
        const int64_t some = count - done < e->batch ? count - done : e->batch;
        DSVI_TRY(
            vit_batch(e, some, pixels + done * picture, states + done * e->rows * e->config.hidden_size));
    }
    return DSV_OK;
}
