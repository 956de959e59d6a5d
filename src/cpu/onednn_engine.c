/* Implements onednn_engine.h. */
#include "cpu/onednn_engine.h"

#include <stdlib.h>
#include <string.h>

#include <dnnl_debug.h>

#include "base/threads.h"

void dsvi_onednn_limit(DsviIsa isa)
{
    static const dnnl_cpu_isa_t limit[] = {
        [DSVI_ISA_REF] = dnnl_cpu_isa_sse41,
        [DSVI_ISA_BASE] = dnnl_cpu_isa_sse41,
        [DSVI_ISA_AVX2] = dnnl_cpu_isa_avx2,
        [DSVI_ISA_AVX512] = dnnl_cpu_isa_avx512_core_vnni,
        [DSVI_ISA_AVX512_BF16] = dnnl_cpu_isa_avx512_core_bf16,
        [DSVI_ISA_AMX] = dnnl_cpu_isa_all,
    };
    (void)dnnl_set_max_cpu_isa(limit[isa]);
}

DsvStatus dsvi_onednn_open(int workers, DsviOnednn *onednn)
{
    *onednn = (DsviOnednn){.workers = workers};
    onednn->streams = calloc((size_t)workers, sizeof *onednn->streams);
    if (!onednn->streams)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %d oneDNN streams", workers);
    dnnl_status_t status = dnnl_engine_create(&onednn->engine, dnnl_cpu, 0);
    for (int i = 0; i < workers && status == dnnl_success; i++)
        status = dnnl_stream_create(&onednn->streams[i], onednn->engine, dnnl_stream_default_flags);
    if (status == dnnl_success)
        return DSV_OK;
    dsvi_onednn_close(onednn);
    return DSVI_FAIL(DSV_E_INTERNAL, "oneDNN cannot be initialised: %s", dnnl_status2str(status));
}

void dsvi_onednn_close(DsviOnednn *onednn)
{
    for (int i = 0; onednn->streams && i < onednn->workers; i++)
        dnnl_stream_destroy(onednn->streams[i]);
    dnnl_engine_destroy(onednn->engine);
    free(onednn->streams);
    memset(onednn, 0, sizeof *onednn);
}

dnnl_data_type_t dsvi_onednn_type(int64_t dtype)
{
    return dtype == DSVI_BF16 ? dnnl_bf16 : dnnl_f32;
}

DsvStatus dsvi_onednn_status(dnnl_status_t status)
{
    switch (status) {
    case dnnl_success: return DSV_OK;
    case dnnl_out_of_memory: return DSV_E_NO_MEMORY;
    case dnnl_unimplemented: return DSV_E_UNSUPPORTED;
    default: return DSV_E_INTERNAL;
    }
}

dnnl_status_t dsvi_onednn_attributes(bool accumulate, dnnl_primitive_attr_t *attr)
{
    dnnl_post_ops_t post_ops = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status != dnnl_success || !accumulate)
        return status;
    status = dnnl_post_ops_create(&post_ops);
    if (status == dnnl_success)
        status = dnnl_post_ops_append_sum(post_ops, 1);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(*attr, post_ops); /* copies post_ops */
    dnnl_post_ops_destroy(post_ops);
    return status;
}

dnnl_status_t dsvi_onednn_make_pack(dnnl_engine_t engine, const dnnl_memory_desc_t *from,
                                    const dnnl_memory_desc_t *to, dnnl_primitive_t *pack)
{
    dnnl_primitive_desc_t desc = NULL;
    *pack = NULL;
    if (dnnl_memory_desc_equal(from, to))
        return dnnl_success;
    dnnl_status_t status = dnnl_reorder_primitive_desc_create(&desc, from, engine, to, engine, NULL);
    if (status == dnnl_success)
        status = dnnl_primitive_create(pack, desc);
    dnnl_primitive_desc_destroy(desc);
    return status;
}

dnnl_status_t dsvi_onednn_make_memory(dnnl_engine_t engine, const dnnl_memory_desc_t *desc,
                                      dnnl_memory_t *memory)
{
    return dnnl_memory_create(memory, desc, engine, DNNL_MEMORY_NONE);
}

typedef struct OnednnCreation {
    dsvi_onednn_create_fn *create;
    void *context;
    dnnl_status_t status;
} OnednnCreation;

static void onednn_creation_job(void *context, int64_t begin, int64_t end, int worker)
{
    OnednnCreation *creation = context;
    (void)begin, (void)end, (void)worker;
    creation->status = creation->create(creation->context);
}

dnnl_status_t dsvi_onednn_on_one_thread(dsvi_onednn_create_fn *create, void *context)
{
    OnednnCreation creation = {create, context, dnnl_success};
    dsvi_parallel_for(1, 1, onednn_creation_job, &creation);
    return creation.status;
}
