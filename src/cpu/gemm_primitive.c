/* Implements gemm_primitive.h: creates, caches and runs oneDNN matrix products. In oneDNN 2.x,
 * descriptors of memory and operation create a primitive descriptor, which creates a primitive, which is
 * executed on memory objects. */
#include "cpu/gemm_primitive.h"

#include <stdlib.h>
#include <string.h>

#include <dnnl_debug.h>

enum {
    CAPACITY = 512,                   /* slots of the hash table: a power of two */
    PRIMITIVES_MAX = CAPACITY * 3 / 4 /* primitives in the cache; if one more is needed, all are destroyed. A
                                       * run uses a few dozen. */
};

struct DsviGemmPrimitives {
    DsviOnednn onednn;
    bool have_bf16;
    int used;
    DsviGemmPrimitive primitive[CAPACITY]; /* a hash table with linear probing */
};

DsvStatus dsvi_gemm_primitive_status(dnnl_status_t status, const char *what, const DsviGemmKey *key)
{
    if (status == dnnl_success)
        return DSV_OK;
    return DSVI_FAIL(dsvi_onednn_status(status), "gemm: oneDNN: %s: %s (m %lld, n %lld, k %lld, %s to %s)",
                     what, dnnl_status2str(status), (long long)key->m, (long long)key->n, (long long)key->k,
                     dsvi_dtype_name((DsviDtype)key->ab_dtype), dsvi_dtype_name((DsviDtype)key->c_dtype));
}

/* ---- creating a primitive ---- */

/* Describes a matrix of `rows` by `cols`. If `transposed`, memory holds its transpose. `pitch` is the
 * distance between the stored rows. */
static dnnl_status_t matrix(dnnl_memory_desc_t *desc, int64_t dtype, int64_t rows, int64_t cols,
                            int64_t pitch, bool transposed)
{
    dnnl_dims_t dims = {rows, cols}, strides = {transposed ? 1 : pitch, transposed ? pitch : 1};
    return dnnl_memory_desc_init_by_strides(desc, 2, dims, dsvi_onednn_type(dtype), strides);
}

typedef struct Descs {
    dnnl_memory_desc_t a, b_plain, b_used, bias, c, scratchpad;
} Descs;

static dnnl_status_t describe_memory(const DsviGemmKey *key, Descs *descs)
{
    dnnl_dims_t b_dims = {key->k, key->n};
    dnnl_status_t status = matrix(&descs->a, key->ab_dtype, key->m, key->k, key->trans_a ? key->m : key->k,
                                  key->trans_a);
    if (status == dnnl_success)
        status = matrix(&descs->b_plain, key->ab_dtype, key->k, key->n, key->ldb, key->trans_b);
    descs->b_used = descs->b_plain;
    if (status == dnnl_success && key->packed)
        status = dnnl_memory_desc_init_by_tag(&descs->b_used, 2, b_dims, dsvi_onednn_type(key->ab_dtype),
                                              dnnl_format_tag_any);
    if (status == dnnl_success)
        status = matrix(&descs->bias, DSVI_F32, 1, key->n, key->n, false);
    if (status == dnnl_success)
        status = matrix(&descs->c, key->c_dtype, key->m, key->n, key->n, false);
    return status;
}

/* Creates the matmul, and stores in `descs` what oneDNN chose: the layout of a packed B, and the size of the
 * scratchpad. */
static dnnl_status_t make_matmul(dnnl_engine_t engine, const DsviGemmKey *key, Descs *descs,
                                 dnnl_primitive_t *matmul)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = dsvi_onednn_attributes(key->accumulate, &attr);
    if (status == dnnl_success)
        status = dnnl_matmul_desc_init(&operation, &descs->a, &descs->b_used, key->bias ? &descs->bias : NULL,
                                       &descs->c);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_create(&desc, &operation, attr, engine, NULL);
    if (status == dnnl_success) {
        descs->b_used = *dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
        descs->scratchpad = *dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
        status = dnnl_primitive_create(matmul, desc);
    }
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

static dnnl_status_t make_memories(const DsviGemmPrimitives *primitives, const Descs *descs,
                                   DsviGemmPrimitive *primitive)
{
    dnnl_engine_t engine = primitives->onednn.engine;
    primitive->worker = calloc((size_t)primitives->onednn.workers, sizeof *primitive->worker);
    if (!primitive->worker)
        return dnnl_out_of_memory;
    dnnl_status_t status = dsvi_onednn_make_memory(engine, &descs->b_plain, &primitive->b_plain);
    if (status == dnnl_success && primitive->pack)
        status = dsvi_onednn_make_memory(engine, &descs->b_used, &primitive->b_used);
    else
        primitive->b_used = primitive->b_plain;
    if (status == dnnl_success && primitive->key.bias)
        status = dsvi_onednn_make_memory(engine, &descs->bias, &primitive->bias);
    for (int i = 0; i < primitives->onednn.workers && status == dnnl_success; i++) {
        status = dsvi_onednn_make_memory(engine, &descs->a, &primitive->worker[i].a);
        if (status == dnnl_success)
            status = dsvi_onednn_make_memory(engine, &descs->c, &primitive->worker[i].c);
        if (status == dnnl_success)
            status = dsvi_onednn_make_memory(engine, &descs->scratchpad, &primitive->worker[i].scratchpad);
    }
    return status;
}

static void primitive_free(DsviGemmPrimitive *primitive, int workers)
{
    for (int i = 0; primitive->worker && i < workers; i++) {
        dnnl_memory_destroy(primitive->worker[i].a);
        dnnl_memory_destroy(primitive->worker[i].c);
        dnnl_memory_destroy(primitive->worker[i].scratchpad);
    }
    free(primitive->worker);
    dnnl_memory_destroy(primitive->bias);
    if (primitive->b_used != primitive->b_plain)
        dnnl_memory_destroy(primitive->b_used);
    dnnl_memory_destroy(primitive->b_plain);
    dnnl_primitive_destroy(primitive->pack);
    dnnl_primitive_destroy(primitive->matmul);
    memset(primitive, 0, sizeof *primitive);
}

static dnnl_status_t primitive_create(const DsviGemmPrimitives *primitives, const DsviGemmKey *key,
                                      DsviGemmPrimitive *primitive)
{
    Descs descs;
    memset(primitive, 0, sizeof *primitive);
    primitive->key = *key;
    dnnl_status_t status = describe_memory(key, &descs);
    if (status == dnnl_success)
        status = make_matmul(primitives->onednn.engine, key, &descs, &primitive->matmul);
    if (status == dnnl_success)
        status = dsvi_onednn_make_pack(primitives->onednn.engine, &descs.b_plain, &descs.b_used,
                                       &primitive->pack);
    if (status == dnnl_success)
        status = make_memories(primitives, &descs, primitive);
    if (status == dnnl_success) {
        primitive->packed_bytes = primitive->pack ? dnnl_memory_desc_get_size(&descs.b_used) : 0;
        primitive->scratchpad_bytes = dnnl_memory_desc_get_size(&descs.scratchpad);
    } else {
        primitive_free(primitive, primitives->onednn.workers);
    }
    return status;
}

typedef struct Creation {
    const DsviGemmPrimitives *primitives;
    const DsviGemmKey *key;
    DsviGemmPrimitive *primitive;
} Creation;

static dnnl_status_t primitive_create_job(void *context)
{
    const Creation *creation = context;
    return primitive_create(creation->primitives, creation->key, creation->primitive);
}

static dnnl_status_t primitive_create_one_thread(const DsviGemmPrimitives *primitives, const DsviGemmKey *key,
                                                 DsviGemmPrimitive *primitive)
{
    Creation creation = {primitives, key, primitive};
    return dsvi_onednn_on_one_thread(primitive_create_job, &creation);
}

/* ---- the cache of primitives ---- */

static bool supports_bf16(const DsviGemmPrimitives *primitives)
{
    DsviGemmKey key = {.m = 16, .n = 16, .k = 16, .ldb = 16, .ab_dtype = DSVI_BF16, .c_dtype = DSVI_BF16};
    DsviGemmPrimitive primitive;
    bool works = primitive_create_one_thread(primitives, &key, &primitive) == dnnl_success;
    primitive_free(&primitive, primitives->onednn.workers);
    return works;
}

DsvStatus dsvi_gemm_primitives_create(int workers, DsviGemmPrimitives **out)
{
    DsvStatus status;
    *out = NULL;
    DsviGemmPrimitives *primitives = calloc(1, sizeof *primitives);
    if (!primitives)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the table of matrix products");
    DSVI_TRY_GOTO(status, dsvi_onednn_open(workers, &primitives->onednn), fail);
    primitives->have_bf16 = supports_bf16(primitives);
    *out = primitives;
    return DSV_OK;
fail:
    dsvi_gemm_primitives_free(&primitives);
    return status;
}

static void primitives_clear(DsviGemmPrimitives *primitives)
{
    for (int i = 0; i < CAPACITY; i++)
        primitive_free(&primitives->primitive[i], primitives->onednn.workers);
    primitives->used = 0;
}

void dsvi_gemm_primitives_free(DsviGemmPrimitives **primitives)
{
    if (!*primitives)
        return;
    primitives_clear(*primitives);
    dsvi_onednn_close(&(*primitives)->onednn);
    free(*primitives);
    *primitives = NULL;
}

bool dsvi_gemm_primitives_have_bf16(const DsviGemmPrimitives *primitives)
{
    return primitives->have_bf16;
}

/* Returns a hash of the key: FNV-1a over its 64-bit words, folded to 32 bits. */
static unsigned primitive_slot(const DsviGemmKey *key)
{
    uint64_t words[sizeof *key / sizeof(uint64_t)], hash = 0xcbf29ce484222325u;
    memcpy(words, key, sizeof *key);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        hash = (hash ^ words[i]) * 0x100000001b3u;
    return (unsigned)(hash ^ hash >> 32) % CAPACITY;
}

DsvStatus dsvi_gemm_primitives_get(DsviGemmPrimitives *primitives, const DsviGemmKey *key,
                                   DsviGemmPrimitive **out)
{
    unsigned slot = primitive_slot(key);
    for (; primitives->primitive[slot].matmul; slot = (slot + 1) % CAPACITY) {
        *out = &primitives->primitive[slot];
        if (memcmp(&(*out)->key, key, sizeof *key) == 0)
            return DSV_OK;
    }
    if (primitives->used == PRIMITIVES_MAX) {
        primitives_clear(primitives);
        slot = primitive_slot(key);
    }
    *out = &primitives->primitive[slot];
    DSVI_TRY(dsvi_gemm_primitive_status(primitive_create_one_thread(primitives, key, *out),
                                        "cannot create the product", key));
    primitives->used++;
    return DSV_OK;
}

/* ---- using a primitive ---- */

DsvStatus dsvi_gemm_primitive_set_b(DsviGemmPrimitives *primitives, DsviGemmPrimitive *primitive,
                                    const void *b, const void *bias, void *packed)
{
    dnnl_stream_t stream = primitives->onednn.streams[0];
    dnnl_status_t status = dnnl_memory_set_data_handle_v2(primitive->b_plain, (void *)b, stream);
    if (status == dnnl_success && primitive->bias)
        status = dnnl_memory_set_data_handle_v2(primitive->bias, (void *)bias, stream);
    if (status == dnnl_success && primitive->pack) {
        dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, primitive->b_plain}, {DNNL_ARG_TO, primitive->b_used}};
        status = dnnl_memory_set_data_handle_v2(primitive->b_used, packed, stream);
        if (status == dnnl_success)
            status = dnnl_primitive_execute(primitive->pack, stream, 2, args);
    }
    return dsvi_gemm_primitive_status(status, "packing failed", &primitive->key);
}

dnnl_status_t dsvi_gemm_primitive_run(DsviGemmPrimitives *primitives, DsviGemmPrimitive *primitive,
                                      int worker, const void *a, void *c, void *scratchpad)
{
    dnnl_stream_t stream = primitives->onednn.streams[worker];
    struct DsviGemmPrimitiveWorker *memory = &primitive->worker[worker];
    dnnl_exec_arg_t args[5] = {
        {DNNL_ARG_SRC, memory->a},        {DNNL_ARG_WEIGHTS, primitive->b_used},
        {DNNL_ARG_DST, memory->c},        {DNNL_ARG_SCRATCHPAD, memory->scratchpad},
        {DNNL_ARG_BIAS, primitive->bias},
    };
    dnnl_status_t status = dnnl_memory_set_data_handle_v2(memory->a, (void *)a, stream);
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle_v2(memory->c, c, stream);
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle_v2(memory->scratchpad, scratchpad, stream);
    if (status == dnnl_success)
        status = dnnl_primitive_execute(primitive->matmul, stream, primitive->bias ? 5 : 4, args);
    return status;
}
