/* SIMD variant of the attention forward pass, dense or over lists (attention_forward.h). Each tile of queries
 * is one piece of work, so the result does not depend on the number of threads. */
#include "base/threads.h"
#include "cpu/attention_forward.h"
#include "cpu/simd_fill.h"

/* One call of the operation. */
typedef struct ForwardCall {
    DsviForward forward;
    size_t worker_floats;
} ForwardCall;

static void attention_fwd_range(void *context, int64_t begin, int64_t end, int worker)
{
    const ForwardCall *call = context;
    const DsviForward *f = &call->forward;
    DsviForwardScratch s;
    float *memory = (float *)f->args->workspace + (size_t)worker * call->worker_floats;
    dsvi_forward_scratch(&f->tiles, memory, &s);
    dsvi_tile_products_begin();
    for (int64_t n = begin; n < end; n++) {
        int64_t pair = n / f->tiles.count;
        dsvi_forward_tile(f, &s, pair / f->args->heads, pair % f->args->heads, n % f->tiles.count);
    }
    dsvi_tile_products_end();
}

static ForwardCall attention_fwd_setup(const DsviAttentionArgs *args)
{
    DsviForwardScratch s;
    ForwardCall call = {.forward = {.args = args, .tiles = dsvi_attention_tiles(args)}};
    call.worker_floats = dsvi_forward_scratch(&call.forward.tiles, NULL, &s);
    return call;
}

static size_t cpu_attention_fwd_workspace(DsviStream *stream, const DsviAttentionArgs *args)
{
    (void)stream;
    return attention_fwd_setup(args).worker_floats * sizeof(float) * (size_t)dsvi_threads_count();
}

static DsvStatus cpu_attention_fwd(DsviStream *stream, const DsviAttentionArgs *args)
{
    DSVI_TRY(dsvi_attention_check_simd(args, cpu_attention_fwd_workspace(stream, args)));
    ForwardCall call = attention_fwd_setup(args);
    dsvi_parallel_for(args->batch * args->heads * call.forward.tiles.count, 1, attention_fwd_range, &call);
    return DSV_OK;
}

void DSVI_SIMD(fill_attention_fwd)(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_fwd, cpu_attention_fwd, cpu_attention_fwd_workspace,
                                DSVI_SIMD_NAME);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_list_fwd, cpu_attention_fwd, cpu_attention_fwd_workspace,
                                DSVI_SIMD_NAME);
}
