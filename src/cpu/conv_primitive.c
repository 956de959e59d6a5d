/* Implements conv_primitive.h: creates, caches and runs oneDNN convolutions of one row. */
#include "cpu/conv_primitive.h"

#include <stdlib.h>
#include <string.h>

#include <dnnl_debug.h>

enum { PRIMITIVES_MAX = 128 }; /* if one more is needed, all are destroyed. A model uses a few dozen. */

struct DsviConvPrimitives {
    DsviOnednn onednn;
    int used;
    DsviConvPrimitive primitive[PRIMITIVES_MAX];
};

DsvStatus dsvi_conv_primitive_status(dnnl_status_t status, const char *what, const DsviConvKey *key)
{
    if (status == dnnl_success)
        return DSV_OK;
    return DSVI_FAIL(
        dsvi_onednn_status(status),
        "conv: oneDNN: %s: %s (%lld to %lld channels, kernel %lld x %lld x %lld, %lld columns, %s)", what,
        dnnl_status2str(status), (long long)key->channels, (long long)key->out_channels,
        (long long)key->kernel[0], (long long)key->kernel[1], (long long)key->kernel[2],
        (long long)key->out_width, dsvi_dtype_name((DsviDtype)key->dtype));
}

/* ---- creating a primitive ---- */

/* The five dimensions of oneDNN are batch, channels, depth, height and width. Rows are the depth and frames
 * the height, because the gathered rows have this order. */
static dnnl_status_t conv_describe(const DsviConvKey *key, DsviConvPrimitive *p)
{
    int64_t columns = (key->out_width - 1) * key->stride_width + key->kernel[2];
    int64_t tap = key->channels, taps = key->kernel[2] * tap, frame = key->kernel[1] * taps;
    dnnl_data_type_t type = dsvi_onednn_type(key->dtype);
    dnnl_dims_t x = {1, key->channels, key->kernel[1], key->kernel[0], columns};
    dnnl_dims_t y = {1, key->out_channels, 1, 1, key->out_width};
    dnnl_dims_t bias = {key->out_channels};
    dnnl_dims_t weight = {key->out_channels, key->channels, key->kernel[1], key->kernel[0], key->kernel[2]};
    dnnl_dims_t weight_strides = {key->kernel[0] * frame, 1, taps, frame, tap};
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&p->x, 5, x, type, dnnl_ndhwc);
    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_tag(&p->y, 5, y, type, dnnl_ndhwc);
    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_strides(&p->weight, 5, weight, type, weight_strides);
    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_tag(&p->packed, 5, weight, type, dnnl_format_tag_any);
    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_tag(&p->bias, 1, bias, dnnl_f32, dnnl_x);
    return status;
}

/* Creates the convolution, and stores in *p what oneDNN chose: the layout of the weight, and the size of the
 * scratchpad. */
static dnnl_status_t conv_make(dnnl_engine_t engine, DsviConvPrimitive *p)
{
    const DsviConvKey *key = &p->key;
    const dnnl_dims_t strides = {1, 1, key->stride_width}, no_padding = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_convolution_desc_t operation;
    dnnl_status_t status = dsvi_onednn_attributes(key->accumulate, &attr);
    if (status == dnnl_success)
        status = dnnl_convolution_forward_desc_init(&operation, dnnl_forward_inference,
                                                    dnnl_convolution_direct, &p->x, &p->packed,
                                                    key->bias ? &p->bias : NULL, &p->y, strides, no_padding,
                                                    no_padding);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_create(&desc, &operation, attr, engine, NULL);
    if (status == dnnl_success) {
        p->packed = *dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
        p->scratchpad = *dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
        status = dnnl_primitive_create(&p->conv, desc);
    }
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

static void conv_primitive_free(DsviConvPrimitive *p)
{
    dnnl_primitive_destroy(p->conv);
    dnnl_primitive_destroy(p->pack);
    memset(p, 0, sizeof *p);
}

typedef struct ConvCreation {
    dnnl_engine_t engine;
    DsviConvPrimitive *primitive; /* its key is set */
} ConvCreation;

static dnnl_status_t conv_create_job(void *context)
{
    const ConvCreation *creation = context;
    DsviConvPrimitive *p = creation->primitive;
    dnnl_status_t status = conv_describe(&p->key, p);
    if (status == dnnl_success)
        status = conv_make(creation->engine, p);
    if (status == dnnl_success)
        status = dsvi_onednn_make_pack(creation->engine, &p->weight, &p->packed, &p->pack);
    p->packed_bytes = status == dnnl_success && p->pack ? dnnl_memory_desc_get_size(&p->packed) : 0;
    p->scratchpad_bytes = status == dnnl_success ? dnnl_memory_desc_get_size(&p->scratchpad) : 0;
    return status;
}

/* ---- the cache of primitives ---- */

DsvStatus dsvi_conv_primitives_create(int workers, DsviConvPrimitives **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the table of convolutions");
    DsvStatus status = dsvi_onednn_open(workers, &(*out)->onednn);
    if (status != DSV_OK)
        dsvi_conv_primitives_free(out);
    return status;
}

static void conv_primitives_clear(DsviConvPrimitives *primitives)
{
    for (int i = 0; i < primitives->used; i++)
        conv_primitive_free(&primitives->primitive[i]);
    primitives->used = 0;
}

void dsvi_conv_primitives_free(DsviConvPrimitives **primitives)
{
    if (!*primitives)
        return;
    conv_primitives_clear(*primitives);
    dsvi_onednn_close(&(*primitives)->onednn);
    free(*primitives);
    *primitives = NULL;
}

int dsvi_conv_primitives_workers(const DsviConvPrimitives *primitives)
{
    return primitives->onednn.workers;
}

DsvStatus dsvi_conv_primitives_get(DsviConvPrimitives *primitives, const DsviConvKey *key,
                                   const DsviConvPrimitive **out)
{
    for (int i = 0; i < primitives->used; i++) {
        *out = &primitives->primitive[i];
        if (memcmp(&(*out)->key, key, sizeof *key) == 0)
            return DSV_OK;
    }
    if (primitives->used == PRIMITIVES_MAX)
        conv_primitives_clear(primitives);
    DsviConvPrimitive *primitive = &primitives->primitive[primitives->used];
    ConvCreation creation = {primitives->onednn.engine, primitive};
    primitive->key = *key;
    dnnl_status_t status = dsvi_onednn_on_one_thread(conv_create_job, &creation);
    if (status != dnnl_success) {
        conv_primitive_free(primitive);
        return dsvi_conv_primitive_status(status, "cannot create the convolution", key);
    }
    primitives->used++;
    *out = primitive;
    return DSV_OK;
}

/* ---- using a primitive ---- */

/* Creates a memory object at an address. */
static dnnl_status_t conv_memory(dnnl_memory_t *memory, const dnnl_memory_desc_t *desc, dnnl_engine_t engine,
                                 const void *address)
{
    return dnnl_memory_create(memory, desc, engine, (void *)address);
}

DsvStatus dsvi_conv_primitive_pack(const DsviConvPrimitives *primitives, const DsviConvPrimitive *primitive,
                                   const void *weight, void *packed)
{
    dnnl_engine_t engine = primitives->onednn.engine;
    dnnl_memory_t from = NULL, to = NULL;
    dnnl_status_t status = conv_memory(&from, &primitive->weight, engine, weight);
    if (status == dnnl_success)
        status = conv_memory(&to, &primitive->packed, engine, packed);
    if (status == dnnl_success) {
        dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
        status = dnnl_primitive_execute(primitive->pack, primitives->onednn.streams[0], 2, args);
    }
    dnnl_memory_destroy(from);
    dnnl_memory_destroy(to);
    return dsvi_conv_primitive_status(status, "packing failed", &primitive->key);
}

dnnl_status_t dsvi_conv_worker_begin(const DsviConvPrimitives *primitives, const DsviConvPrimitive *primitive,
                                     int worker, const void *weight, const void *bias, void *scratchpad,
                                     DsviConvWorker *out)
{
    dnnl_engine_t engine = primitives->onednn.engine;
    *out = (DsviConvWorker){.stream = primitives->onednn.streams[worker]};
    dnnl_status_t status = dsvi_onednn_make_memory(engine, &primitive->x, &out->x);
    if (status == dnnl_success)
        status = dsvi_onednn_make_memory(engine, &primitive->y, &out->y);
    if (status == dnnl_success)
        status = conv_memory(&out->weight, &primitive->packed, engine, weight);
    if (status == dnnl_success && primitive->key.bias)
        status = conv_memory(&out->bias, &primitive->bias, engine, bias);
    if (status == dnnl_success)
        status = conv_memory(&out->scratchpad, &primitive->scratchpad, engine, scratchpad);
    return status;
}

void dsvi_conv_worker_end(DsviConvWorker *worker)
{
    dnnl_memory_destroy(worker->x);
    dnnl_memory_destroy(worker->weight);
    dnnl_memory_destroy(worker->bias);
    dnnl_memory_destroy(worker->y);
    dnnl_memory_destroy(worker->scratchpad);
}

dnnl_status_t dsvi_conv_worker_run(const DsviConvWorker *worker, const DsviConvPrimitive *primitive,
                                   const void *x, void *y)
{
    dnnl_exec_arg_t args[5] = {
        {DNNL_ARG_SRC, worker->x},     {DNNL_ARG_WEIGHTS, worker->weight},
        {DNNL_ARG_DST, worker->y},     {DNNL_ARG_SCRATCHPAD, worker->scratchpad},
        {DNNL_ARG_BIAS, worker->bias},
    };
    dnnl_status_t status = dnnl_memory_set_data_handle_v2(worker->x, (void *)x, worker->stream);
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle_v2(worker->y, y, worker->stream);
    if (status == dnnl_success)
        status = dnnl_primitive_execute(primitive->conv, worker->stream, primitive->key.bias ? 5 : 4, args);
    return status;
}
