/* See ops_timed.h. */
#include "api/ops_timed.h"

#include <string.h>

/* An op is a plain function without a context of its own: the table it stands in front of, its device and the
 * sums have to be variables of the file. */
static DsvOps inner;
static DsvDevice *device;
static double spent[DSV_KIND_COUNT];

static double now(void)
{
    double seconds = 0;
    /* A failing device shows in the op itself. */
    (void)device->clock(device->stream, &seconds);
    return seconds;
}

static DsvStatus finish(DsvOpKind kind, DsvStatus status, double start)
{
    spent[kind] += now() - start;
    return status;
}

#define TIMED(slot, args_type, kind)                                         \
    static DsvStatus timed_##slot(DsvStream *stream, const args_type *args)  \
    {                                                                        \
        double start = now();                                                \
        return finish(kind, inner.slot.run(stream, args), start);            \
    }
TIMED(gemm, DsvGemmArgs, DSV_KIND_GEMM)
TIMED(attention_fwd, DsvAttentionArgs, DSV_KIND_ATTENTION_FWD)
TIMED(attention_bwd, DsvAttentionArgs, DSV_KIND_ATTENTION_BWD)
TIMED(attention_list_fwd, DsvAttentionArgs, DSV_KIND_ATTENTION_FWD)
TIMED(attention_list_bwd, DsvAttentionArgs, DSV_KIND_ATTENTION_BWD)
TIMED(select_covariance, DsvSelectCovarianceArgs, DSV_KIND_SELECT)
TIMED(select_features, DsvSelectFeaturesArgs, DSV_KIND_SELECT)
TIMED(select_histogram, DsvSelectArgs, DSV_KIND_SELECT)
TIMED(select_lists, DsvSelectArgs, DSV_KIND_SELECT)
#undef TIMED

void dsvi_ops_time(DsvBackend *backend)
{
    DsvOps *ops = &backend->ops;
    inner = *ops;
    device = backend->device;
    ops->gemm.run = timed_gemm;
    ops->attention_fwd.run = timed_attention_fwd;
    ops->attention_bwd.run = timed_attention_bwd;
    ops->attention_list_fwd.run = timed_attention_list_fwd;
    ops->attention_list_bwd.run = timed_attention_list_bwd;
    ops->select_covariance.run = timed_select_covariance;
    ops->select_features.run = timed_select_features;
    ops->select_histogram.run = timed_select_histogram;
    ops->select_lists.run = timed_select_lists;
    dsvi_ops_time_reset();
}

void dsvi_ops_time_reset(void)
{
    memset(spent, 0, sizeof spent);
}

double dsvi_ops_time_spent(DsvOpKind kind)
{
    return spent[kind];
}
