/* Implements ops_timed.h: measures the time of operations by kind. */
#include "bench/ops_timed.h"

#include <string.h>

#include "dist/comm.h"

enum {
    CALLS_MAX = 1 << 16
}; /* timed calls between two resets; if there are more, dsvi_ops_time_spent fails */

/* Operations are plain functions without a context argument, so the state of timing must be global: it
 * consists of the original operations, the device, and the timed calls so far. */
static DsviOps inner;
static DsviDevice *device;
static unsigned char kind_of[CALLS_MAX]; /* call i is between marks 2 i and 2 i + 1 */
static int64_t calls;
static bool pausing;
static unsigned timed_kinds; /* bit 1 << kind is set if operations of this kind are timed */

/* Returns whether a call of an operation is timed. Only calls on the device's main stream are timed: calls on
 * other streams (for example sums over ranks) run concurrently with the main stream, and another thread,
 * which must not change the global state of timing, may make them. */
static bool is_timed(const DsviStream *stream, DsviOpKind kind)
{
    return stream == device->stream && !pausing && (timed_kinds >> kind & 1) && calls < CALLS_MAX;
}

static DsvStatus ops_timed_begin(DsviOpKind kind)
{
    kind_of[calls] = (unsigned char)kind;
    return device->mark(device->stream, 2 * calls);
}

static DsvStatus ops_timed_end(void)
{
    return device->mark(device->stream, 2 * calls++ + 1);
}

/* All timed operations: every operation except noise, which belongs to no kind (DsviOpKind). */
#define TIMED_OPS(X)                                            \
    X(gemm, DsviGemmArgs, GEMM)                                 \
    X(col_sum, DsviColSumArgs, GEMM)                            \
    X(layer_norm_fwd, DsviLayerNormArgs, ELEMENTWISE)           \
    X(layer_norm_bwd, DsviLayerNormArgs, ELEMENTWISE)           \
    X(rms_norm_rope_fwd, DsviRmsNormRopeArgs, ELEMENTWISE)      \
    X(rms_norm_rope_bwd, DsviRmsNormRopeArgs, ELEMENTWISE)      \
    X(activation_fwd, DsviActivationArgs, ELEMENTWISE)          \
    X(activation_bwd, DsviActivationArgs, ELEMENTWISE)          \
    X(gate_residual_fwd, DsviGateResidualArgs, ELEMENTWISE)     \
    X(gate_residual_bwd, DsviGateResidualArgs, ELEMENTWISE)     \
    X(add, DsviAddArgs, ELEMENTWISE)                            \
    X(add_rows_fwd, DsviAddRowsArgs, ELEMENTWISE)               \
    X(add_rows_bwd, DsviAddRowsArgs, ELEMENTWISE)               \
    X(patch_gather, DsviPatchArgs, ELEMENTWISE)                 \
    X(patch_scatter, DsviPatchArgs, ELEMENTWISE)                \
    X(flow_mix, DsviFlowMixArgs, ELEMENTWISE)                   \
    X(mse, DsviMseArgs, ELEMENTWISE)                            \
    X(time_embed, DsviTimeEmbedArgs, ELEMENTWISE)               \
    X(attention_fwd, DsviAttentionArgs, ATTENTION_FWD)          \
    X(attention_bwd, DsviAttentionArgs, ATTENTION_BWD)          \
    X(attention_list_fwd, DsviAttentionArgs, ATTENTION_FWD)     \
    X(attention_list_bwd, DsviAttentionArgs, ATTENTION_BWD)     \
    X(attention_tail_fwd, DsviAttentionTailArgs, ATTENTION_FWD) \
    X(attention_tail_bwd, DsviAttentionTailArgs, ATTENTION_BWD) \
    X(attention_merge, DsviAttentionMergeArgs, ELEMENTWISE)     \
    X(heads_move, DsviHeadsMoveArgs, TRANSFER)                  \
    X(select_covariance, DsviSelectCovarianceArgs, SELECT)      \
    X(select_features, DsviSelectFeaturesArgs, SELECT)          \
    X(select_histogram, DsviSelectArgs, SELECT)                 \
    X(select_threshold, DsviSelectThresholdArgs, SELECT)        \
    X(select_lists, DsviSelectArgs, SELECT)                     \
    X(lists_divide, DsviListDivideArgs, SELECT)                 \
    X(lists_emit, DsviListDivideArgs, SELECT)                   \
    X(lists_part, DsviListPartArgs, SELECT)                     \
    X(spans_count, DsviSpans, SELECT)                           \
    X(rows_take, DsviRowsArgs, TRANSFER)                        \
    X(rows_put, DsviRowsArgs, TRANSFER)                         \
    X(rows_add, DsviRowsArgs, TRANSFER)                         \
    X(profile, DsviProfileArgs, SELECT)                         \
    X(attention_error, DsviAttentionErrorArgs, SELECT)          \
    X(predictor_loss, DsviPredictorLossArgs, SELECT)            \
    X(f8_decode, DsviF8DecodeArgs, ELEMENTWISE)                 \
    X(sum_squares, DsviSumSquaresArgs, OPTIMIZER)               \
    X(adamw, DsviAdamwArgs, OPTIMIZER)                          \
    X(adamw_8bit, DsviAdamwArgs, OPTIMIZER)                     \
    X(muon_momentum, DsviMuonArgs, OPTIMIZER)                   \
    X(muon_step, DsviMuonArgs, OPTIMIZER)

#define TIMED(slot, args_type, kind)                                         \
    static DsvStatus timed_##slot(DsviStream *stream, const args_type *args) \
    {                                                                        \
        if (!is_timed(stream, DSVI_KIND_##kind))                             \
            return inner.slot.run(stream, args);                             \
        DSVI_TRY(ops_timed_begin(DSVI_KIND_##kind));                         \
        DSVI_TRY(inner.slot.run(stream, args));                              \
        return ops_timed_end();                                              \
    }
TIMED_OPS(TIMED)
#undef TIMED

#define WRAP(slot, args_type, kind) ops->slot.run = timed_##slot;
void dsvi_ops_time_enable(DsviBackend *backend)
{
    DsviOps *ops = &backend->ops;
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
    return is_timed(device->stream, DSVI_KIND_WAIT) ? ops_timed_begin(DSVI_KIND_WAIT) : DSV_OK;
}

static DsvStatus wait_ends(void *nothing)
{
    (void)nothing;
    return is_timed(device->stream, DSVI_KIND_WAIT) ? ops_timed_end() : DSV_OK;
}

void dsvi_ops_time_waits(bool timed)
{
    static const DsviCommWaitHooks watch = {.before_wait = wait_begins, .after_wait = wait_ends};
    dsvi_comm_set_wait_hooks(timed ? &watch : NULL);
}

DsvStatus dsvi_ops_time_spent(double spent[DSVI_KIND_COUNT])
{
    if (calls == CALLS_MAX)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "more than %d ops between two sums of their times", CALLS_MAX);
    memset(spent, 0, DSVI_KIND_COUNT * sizeof *spent);
    for (int64_t i = 0; i < calls; i++) {
        double seconds;
        DSVI_TRY(device->between(device->stream, 2 * i, 2 * i + 1, &seconds));
        spent[kind_of[i]] += seconds;
    }
    return DSV_OK;
}
