/* See gemm_plan.h. The C interface of oneDNN 2.x: descriptors of memory and operation make a primitive
 * descriptor, which makes a primitive, which is executed on memory objects. */
#include "cpu/gemm_plan.h"

#include <stdlib.h>
#include <string.h>

#include <dnnl_debug.h>

#include "base/threads.h"

enum {
    CAPACITY = 512,         /* slots: a power of two */
    MOST = CAPACITY * 3 / 4 /* plans kept; one more, and all are dropped: a run uses a few dozen */
};

struct DsvGemmPlans {
    dnnl_engine_t engine;
    int workers;
    dnnl_stream_t *streams; /* (workers) */
    bool have_bf16;
    int used;
    DsvGemmPlan plan[CAPACITY]; /* a hash table with linear probing */
};

void dsvi_gemm_plans_limit(int cpu_isa)
{
    (void)dnnl_set_max_cpu_isa((dnnl_cpu_isa_t)cpu_isa);
}

DsvStatus dsvi_gemm_plan_status(dnnl_status_t status, const char *what, const DsvGemmKey *key)
{
    if (status == dnnl_success)
        return DSV_OK;
    DsvStatus code = status == dnnl_out_of_memory   ? DSV_E_NO_MEMORY
                     : status == dnnl_unimplemented ? DSV_E_UNSUPPORTED
                                                    : DSV_E_INTERNAL;
    return DSVI_FAIL(code, "gemm: oneDNN: %s: %s (m %lld, n %lld, k %lld, %s to %s)", what,
                     dnnl_status2str(status), (long long)key->m, (long long)key->n, (long long)key->k,
                     dsvi_dtype_name((DsvDtype)key->ab_dtype), dsvi_dtype_name((DsvDtype)key->c_dtype));
}

/* ---- making a plan ---- */

static dnnl_data_type_t dnnl_type(int64_t dtype)
{
    return dtype == DSV_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* A matrix of `rows` by `cols`; transposed: stored as its transpose. `pitch` is that of the stored rows. */
static dnnl_status_t matrix(dnnl_memory_desc_t *desc, int64_t dtype, int64_t rows, int64_t cols,
                            int64_t pitch, bool transposed)
{
    dnnl_dims_t dims = {rows, cols}, strides = {transposed ? 1 : pitch, transposed ? pitch : 1};
    return dnnl_memory_desc_init_by_strides(desc, 2, dims, dnnl_type(dtype), strides);
}

typedef struct Descs {
    dnnl_memory_desc_t a, b_plain, b_used, bias, c, scratchpad;
} Descs;

static dnnl_status_t describe_memory(const DsvGemmKey *key, Descs *descs)
{
    dnnl_dims_t b_dims = {key->k, key->n};
    dnnl_status_t status = matrix(&descs->a, key->ab_dtype, key->m, key->k, key->trans_a ? key->m : key->k,
                                  key->trans_a);
    if (status == dnnl_success)
        status = matrix(&descs->b_plain, key->ab_dtype, key->k, key->n, key->ldb, key->trans_b);
    descs->b_used = descs->b_plain;
    if (status == dnnl_success && key->packed)
        status = dnnl_memory_desc_init_by_tag(&descs->b_used, 2, b_dims, dnnl_type(key->ab_dtype),
                                              dnnl_format_tag_any);
    if (status == dnnl_success)
        status = matrix(&descs->bias, DSV_F32, 1, key->n, key->n, false);
    if (status == dnnl_success)
        status = matrix(&descs->c, key->c_dtype, key->m, key->n, key->n, false);
    return status;
}

static dnnl_status_t make_attributes(const DsvGemmKey *key, dnnl_primitive_attr_t *attr)
{
    dnnl_post_ops_t post_ops = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status != dnnl_success || !key->accumulate)
        return status;
    status = dnnl_post_ops_create(&post_ops);
    if (status == dnnl_success)
        status = dnnl_post_ops_append_sum(post_ops, 1);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(*attr, post_ops); /* copies */
    dnnl_post_ops_destroy(post_ops);
    return status;
}

/* Fills in what oneDNN decides: the order of a packed B and the size of its scratch memory. */
static dnnl_status_t make_matmul(dnnl_engine_t engine, const DsvGemmKey *key, Descs *descs,
                                 dnnl_primitive_t *matmul)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = make_attributes(key, &attr);
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

static dnnl_status_t make_pack(dnnl_engine_t engine, const Descs *descs, dnnl_primitive_t *pack)
{
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status = dnnl_reorder_primitive_desc_create(&desc, &descs->b_plain, engine, &descs->b_used,
                                                              engine, NULL);
    if (status == dnnl_success)
        status = dnnl_primitive_create(pack, desc);
    dnnl_primitive_desc_destroy(desc);
    return status;
}

static dnnl_status_t make_memory(dnnl_engine_t engine, const dnnl_memory_desc_t *desc, dnnl_memory_t *memory)
{
    return dnnl_memory_create(memory, desc, engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t make_memories(const DsvGemmPlans *plans, const Descs *descs, DsvGemmPlan *plan)
{
    dnnl_engine_t engine = plans->engine;
    plan->worker = calloc((size_t)plans->workers, sizeof *plan->worker);
    if (!plan->worker)
        return dnnl_out_of_memory;
    dnnl_status_t status = make_memory(engine, &descs->b_plain, &plan->b_plain);
    if (status == dnnl_success && plan->pack)
        status = make_memory(engine, &descs->b_used, &plan->b_used);
    else
        plan->b_used = plan->b_plain;
    if (status == dnnl_success && plan->key.bias)
        status = make_memory(engine, &descs->bias, &plan->bias);
    for (int i = 0; i < plans->workers && status == dnnl_success; i++) {
        status = make_memory(engine, &descs->a, &plan->worker[i].a);
        if (status == dnnl_success)
            status = make_memory(engine, &descs->c, &plan->worker[i].c);
        if (status == dnnl_success)
            status = make_memory(engine, &descs->scratchpad, &plan->worker[i].scratchpad);
    }
    return status;
}

static void plan_free(DsvGemmPlan *plan, int workers)
{
    for (int i = 0; plan->worker && i < workers; i++) {
        dnnl_memory_destroy(plan->worker[i].a);
        dnnl_memory_destroy(plan->worker[i].c);
        dnnl_memory_destroy(plan->worker[i].scratchpad);
    }
    free(plan->worker);
    dnnl_memory_destroy(plan->bias);
    if (plan->b_used != plan->b_plain)
        dnnl_memory_destroy(plan->b_used);
    dnnl_memory_destroy(plan->b_plain);
    dnnl_primitive_destroy(plan->pack);
    dnnl_primitive_destroy(plan->matmul);
    memset(plan, 0, sizeof *plan);
}

static dnnl_status_t plan_make(const DsvGemmPlans *plans, const DsvGemmKey *key, DsvGemmPlan *plan)
{
    Descs descs;
    memset(plan, 0, sizeof *plan);
    plan->key = *key;
    dnnl_status_t status = describe_memory(key, &descs);
    if (status == dnnl_success)
        status = make_matmul(plans->engine, key, &descs, &plan->matmul);
    if (status == dnnl_success && !dnnl_memory_desc_equal(&descs.b_plain, &descs.b_used))
        status = make_pack(plans->engine, &descs, &plan->pack);
    if (status == dnnl_success)
        status = make_memories(plans, &descs, plan);
    if (status == dnnl_success) {
        plan->packed_bytes = plan->pack ? dnnl_memory_desc_get_size(&descs.b_used) : 0;
        plan->scratchpad_bytes = dnnl_memory_desc_get_size(&descs.scratchpad);
    } else {
        plan_free(plan, plans->workers);
    }
    return status;
}

typedef struct Making {
    const DsvGemmPlans *plans;
    const DsvGemmKey *key;
    DsvGemmPlan *plan;
    dnnl_status_t status;
} Making;

static void make_alone(void *context, int64_t begin, int64_t end, int worker)
{
    Making *making = context;
    (void)begin, (void)end, (void)worker;
    making->status = plan_make(making->plans, making->key, making->plan);
}

/* oneDNN lays a primitive out for as many threads as it finds: here one. */
static dnnl_status_t plan_make_alone(const DsvGemmPlans *plans, const DsvGemmKey *key, DsvGemmPlan *plan)
{
    Making making = {plans, key, plan, dnnl_success};
    dsvi_parallel_for(1, 1, make_alone, &making);
    return making.status;
}

/* ---- keeping plans ---- */

static bool try_bf16(const DsvGemmPlans *plans)
{
    DsvGemmKey key = {.m = 16, .n = 16, .k = 16, .ldb = 16, .ab_dtype = DSV_BF16, .c_dtype = DSV_BF16};
    DsvGemmPlan plan;
    bool works = plan_make_alone(plans, &key, &plan) == dnnl_success;
    plan_free(&plan, plans->workers);
    return works;
}

DsvStatus dsvi_gemm_plans_create(int workers, DsvGemmPlans **out)
{
    *out = NULL;
    DsvGemmPlans *plans = calloc(1, sizeof *plans);
    if (plans)
        plans->streams = calloc((size_t)workers, sizeof *plans->streams);
    if (!plans || !plans->streams) {
        free(plans);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the table of matrix products");
    }
    plans->workers = workers;
    dnnl_status_t status = dnnl_engine_create(&plans->engine, dnnl_cpu, 0);
    for (int i = 0; i < workers && status == dnnl_success; i++)
        status = dnnl_stream_create(&plans->streams[i], plans->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) {
        dsvi_gemm_plans_free(&plans);
        return DSVI_FAIL(DSV_E_INTERNAL, "gemm: oneDNN does not start: %s", dnnl_status2str(status));
    }
    plans->have_bf16 = try_bf16(plans);
    *out = plans;
    return DSV_OK;
}

static void drop_all(DsvGemmPlans *plans)
{
    for (int i = 0; i < CAPACITY; i++)
        plan_free(&plans->plan[i], plans->workers);
    plans->used = 0;
}

void dsvi_gemm_plans_free(DsvGemmPlans **plans)
{
    if (!*plans)
        return;
    drop_all(*plans);
    for (int i = 0; i < (*plans)->workers; i++)
        dnnl_stream_destroy((*plans)->streams[i]);
    dnnl_engine_destroy((*plans)->engine);
    free((*plans)->streams);
    free(*plans);
    *plans = NULL;
}

bool dsvi_gemm_plans_have_bf16(const DsvGemmPlans *plans)
{
    return plans->have_bf16;
}

/* FNV-1a over the words of the key, folded. */
static unsigned slot_of(const DsvGemmKey *key)
{
    uint64_t words[sizeof *key / sizeof(uint64_t)], hash = 0xcbf29ce484222325u;
    memcpy(words, key, sizeof *key);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        hash = (hash ^ words[i]) * 0x100000001b3u;
    return (unsigned)(hash ^ hash >> 32) % CAPACITY;
}

DsvStatus dsvi_gemm_plans_get(DsvGemmPlans *plans, const DsvGemmKey *key, DsvGemmPlan **out)
{
    unsigned slot = slot_of(key);
    for (; plans->plan[slot].matmul; slot = (slot + 1) % CAPACITY) {
        *out = &plans->plan[slot];
        if (memcmp(&(*out)->key, key, sizeof *key) == 0)
            return DSV_OK;
    }
    if (plans->used == MOST) {
        drop_all(plans);
        slot = slot_of(key);
    }
    *out = &plans->plan[slot];
    DSVI_TRY(dsvi_gemm_plan_status(plan_make_alone(plans, key, *out), "no such product", key));
    plans->used++;
    return DSV_OK;
}

/* ---- using a plan ---- */

DsvStatus dsvi_gemm_plan_set_b(DsvGemmPlans *plans, DsvGemmPlan *plan, const void *b, const void *bias,
                               void *packed)
{
    dnnl_stream_t stream = plans->streams[0];
    dnnl_status_t status = dnnl_memory_set_data_handle_v2(plan->b_plain, (void *)b, stream);
    if (status == dnnl_success && plan->bias)
        status = dnnl_memory_set_data_handle_v2(plan->bias, (void *)bias, stream);
    if (status == dnnl_success && plan->pack) {
        dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, plan->b_plain}, {DNNL_ARG_TO, plan->b_used}};
        status = dnnl_memory_set_data_handle_v2(plan->b_used, packed, stream);
        if (status == dnnl_success)
            status = dnnl_primitive_execute(plan->pack, stream, 2, args);
    }
    return dsvi_gemm_plan_status(status, "packing failed", &plan->key);
}

dnnl_status_t dsvi_gemm_plan_run(DsvGemmPlans *plans, DsvGemmPlan *plan, int worker, const void *a, void *c,
                                 void *scratchpad)
{
    dnnl_stream_t stream = plans->streams[worker];
    struct DsvGemmPlanWorker *own = &plan->worker[worker];
    dnnl_exec_arg_t args[5] = {
        {DNNL_ARG_SRC, own->a},   {DNNL_ARG_WEIGHTS, plan->b_used},      {DNNL_ARG_DST, own->c},
        {DNNL_ARG_SCRATCHPAD, own->scratchpad}, {DNNL_ARG_BIAS, plan->bias},
    };
    dnnl_status_t status = dnnl_memory_set_data_handle_v2(own->a, (void *)a, stream);
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle_v2(own->c, c, stream);
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle_v2(own->scratchpad, scratchpad, stream);
    if (status == dnnl_success)
        status = dnnl_primitive_execute(plan->matmul, stream, plan->bias ? 5 : 4, args);
    return status;
}
