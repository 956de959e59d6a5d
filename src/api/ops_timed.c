/* See ops_timed.h. */
#include "api/ops_timed.h"

#include <string.h>

#include "dist/comm.h"

enum { CALLS_MOST = 1 << 16 }; /* between two resets; what comes after is not timed */

/* An op is a plain function without a context of its own: the table it stands in front of, its device and
 * what was called have to be variables of the file. */
static DsvOps inner;
static DsvDevice *device;
static unsigned char kind_of[CALLS_MOST]; /* call i lies between marks 2 i and 2 i + 1 */
static int64_t calls;
static bool pausing;
static unsigned timed_kinds;             /* each a bit 1 << kind */

/* What goes to another stream, such as sums of what ranks send each other, runs beside the device's own and
 * is none of its time; it may also be given by another thread, which must not touch what stands above. */
static bool counts(const DsvStream *stream, DsvOpKind kind)
{
    return stream == device->stream && !pausing && (timed_kinds >> kind & 1) && calls < CALLS_MOST;
}

static DsvStatus begin(DsvOpKind kind)
{
    kind_of[calls] = (unsigned char)kind;
    return device->mark(device->stream, 2 * calls);
}

static DsvStatus end(void)
{
    return device->mark(device->stream, 2 * calls++ + 1);
}

/* All but noise: drawing it is no part of a step's phases. */
#define TIMED_OPS(X)                                                 \
    X(gemm, DsvGemmArgs, GEMM)                                       \
    X(col_sum, DsvColSumArgs, GEMM)                                  \
    X(layer_norm_fwd, DsvLayerNormArgs, ELEMENTWISE)                 \
    X(layer_norm_bwd, DsvLayerNormArgs, ELEMENTWISE)                 \
    X(rms_norm_rope_fwd, DsvRmsNormRopeArgs, ELEMENTWISE)            \
    X(rms_norm_rope_bwd, DsvRmsNormRopeArgs, ELEMENTWISE)            \
    X(activation_fwd, DsvActivationArgs, ELEMENTWISE)                \
    X(activation_bwd, DsvActivationArgs, ELEMENTWISE)                \
    X(gate_residual_fwd, DsvGateResidualArgs, ELEMENTWISE)           \
    X(gate_residual_bwd, DsvGateResidualArgs, ELEMENTWISE)           \
    X(add, DsvAddArgs, ELEMENTWISE)                                  \
    X(add_rows_fwd, DsvAddRowsArgs, ELEMENTWISE)                     \
    X(add_rows_bwd, DsvAddRowsArgs, ELEMENTWISE)                     \
    X(patch_gather, DsvPatchArgs, ELEMENTWISE)                       \
    X(patch_scatter, DsvPatchArgs, ELEMENTWISE)                      \
    X(flow_mix, DsvFlowMixArgs, ELEMENTWISE)                         \
    X(mse, DsvMseArgs, ELEMENTWISE)                                  \
    X(time_embed, DsvTimeEmbedArgs, ELEMENTWISE)                     \
    X(attention_fwd, DsvAttentionArgs, ATTENTION_FWD)                \
    X(attention_bwd, DsvAttentionArgs, ATTENTION_BWD)                \
    X(attention_list_fwd, DsvAttentionArgs, ATTENTION_FWD)           \
    X(attention_list_bwd, DsvAttentionArgs, ATTENTION_BWD)           \
    X(attention_merge, DsvAttentionMergeArgs, ELEMENTWISE)           \
    X(heads_move, DsvHeadsMoveArgs, TRANSFER)                        \
    X(select_covariance, DsvSelectCovarianceArgs, SELECT)            \
    X(select_features, DsvSelectFeaturesArgs, SELECT)                \
    X(select_histogram, DsvSelectArgs, SELECT)                       \
    X(select_threshold, DsvSelectThresholdArgs, SELECT)              \
    X(select_lists, DsvSelectArgs, SELECT)                           \
    X(lists_divide, DsvListDivideArgs, SELECT)                       \
    X(lists_emit, DsvListDivideArgs, SELECT)                         \
    X(runs_count, DsvRuns, SELECT)                                   \
    X(rows_take, DsvRowsArgs, TRANSFER)                              \
    X(rows_put, DsvRowsArgs, TRANSFER)                               \
    X(rows_add, DsvRowsArgs, TRANSFER)                               \
    X(profile, DsvProfileArgs, SELECT)                               \
    X(predictor_loss, DsvPredictorLossArgs, SELECT)                  \
    X(sum_squares, DsvSumSquaresArgs, OPTIMIZER)                     \
    X(adamw, DsvAdamwArgs, OPTIMIZER)

#define TIMED(slot, args_type, kind)                                        \
    static DsvStatus timed_##slot(DsvStream *stream, const args_type *args) \
    {                                                                       \
        if (!counts(stream, DSV_KIND_##kind))                               \
            return inner.slot.run(stream, args);                            \
        DSVI_TRY(begin(DSV_KIND_##kind));                                   \
        DSVI_TRY(inner.slot.run(stream, args));                             \
        return end();                                                       \
    }
TIMED_OPS(TIMED)
#undef TIMED

#define WRAP(slot, args_type, kind) ops->slot.run = timed_##slot;
void dsvi_ops_time(DsvBackend *backend)
{
    DsvOps *ops = &backend->ops;
    inner = *ops;
    device = backend->device;
    TIMED_OPS(WRAP)
    pausing = false;
    dsvi_ops_time_kinds(DSVI_KINDS_ALL);
    dsvi_ops_time_reset();
}
#undef WRAP

void dsvi_ops_time_reset(void)
{
    calls = 0;
}

void dsvi_ops_time_pause(bool paused)
{
    pausing = paused;
}

void dsvi_ops_time_kinds(unsigned kinds)
{
    timed_kinds = kinds;
}

static DsvStatus wait_begins(void *nothing)
{
    (void)nothing;
    return counts(device->stream, DSV_KIND_WAIT) ? begin(DSV_KIND_WAIT) : DSV_OK;
}

static DsvStatus wait_ends(void *nothing)
{
    (void)nothing;
    return counts(device->stream, DSV_KIND_WAIT) ? end() : DSV_OK;
}

void dsvi_ops_time_waits(bool timed)
{
    static const DsvCommWatch watch = {.waits = wait_begins, .goes_on = wait_ends};
    dsvi_comm_watch(timed ? &watch : NULL);
}

DsvStatus dsvi_ops_time_spent(double spent[DSV_KIND_COUNT])
{
    if (calls == CALLS_MOST)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "more than %d ops between two sums of their times", CALLS_MOST);
    memset(spent, 0, DSV_KIND_COUNT * sizeof *spent);
    for (int64_t i = 0; i < calls; i++) {
        double seconds;
        DSVI_TRY(device->between(device->stream, 2 * i, 2 * i + 1, &seconds));
        spent[kind_of[i]] += seconds;
    }
    return DSV_OK;
}
