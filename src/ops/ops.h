/* The table of operations of a backend, and the backend: a device with its table.
 *
 * A table is filled in layers: first every slot gets its reference implementation (_ref), then faster
 * variants replace it where the machine supports them. Host code calls backend->ops.gemm.run(stream, &args)
 * and does not depend on the variant; the name in `variant` is for reports and tests. A variant that does not
 * support some arguments (for example an F64 tensor) returns DSV_E_UNSUPPORTED with a message that names
 * them. */
#ifndef DSVI_OPS_H
#define DSVI_OPS_H

#include "ops/attention.h"
#include "ops/attention_error.h"
#include "ops/attention_merge.h"
#include "ops/attention_tail.h"
#include "ops/conv.h"
#include "ops/encoder.h"
#include "ops/flow.h"
#include "ops/frames.h"
#include "ops/gemm.h"
#include "ops/heads_move.h"
#include "ops/list_exchange.h"
#include "ops/norm.h"
#include "ops/optim.h"
#include "ops/patch.h"
#include "ops/pointwise.h"
#include "ops/predictor_loss.h"
#include "ops/profile.h"
#include "ops/quant.h"
#include "ops/select.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_OP_SLOT(fn_type) \
    struct {                  \
        fn_type *run;         \
        const char *variant;  \
    }
#define DSVI_OP_SLOT_WITH_WORKSPACE(fn_type, workspace_fn_type)               \
    struct {                                                                  \
        fn_type *run;                                                         \
        workspace_fn_type *workspace; /* NULL if the op needs no workspace */ \
        const char *variant;                                                  \
    }

/* Bytes of workspace that the op in `slot` needs for these arguments. */
#define DSVI_OP_WORKSPACE(slot, stream, args) \
    ((slot).workspace ? (slot).workspace((stream), (args)) : (size_t)0)

typedef struct DsviOps {
    DSVI_OP_SLOT(dsvi_gemm_fn) gemm;
    DSVI_OP_SLOT(dsvi_col_sum_fn) col_sum;

    DSVI_OP_SLOT(dsvi_layer_norm_fn) layer_norm_fwd, layer_norm_bwd;
    DSVI_OP_SLOT(dsvi_rms_norm_rope_fn) rms_norm_rope_fwd, rms_norm_rope_bwd;

    DSVI_OP_SLOT(dsvi_activation_fn) activation_fwd, activation_bwd;
    DSVI_OP_SLOT(dsvi_gate_residual_fn) gate_residual_fwd, gate_residual_bwd;
    DSVI_OP_SLOT(dsvi_add_fn) add;
    DSVI_OP_SLOT(dsvi_dropout_fn) dropout;
    DSVI_OP_SLOT(dsvi_add_rows_fn) add_rows_fwd, add_rows_bwd;

    DSVI_OP_SLOT(dsvi_patch_fn) patch_gather, patch_scatter;
    DSVI_OP_SLOT(dsvi_noise_fn) noise;
    DSVI_OP_SLOT(dsvi_flow_mix_fn) flow_mix;
    DSVI_OP_SLOT(dsvi_mse_fn) mse;
    DSVI_OP_SLOT(dsvi_time_embed_fn) time_embed;

    /* dense attention and attention over lists have separate slots */
    DSVI_OP_SLOT_WITH_WORKSPACE(dsvi_attention_fn, dsvi_attention_workspace_fn)
    attention_fwd, attention_bwd, attention_list_fwd, attention_list_bwd;
    DSVI_OP_SLOT_WITH_WORKSPACE(dsvi_attention_tail_fn, dsvi_attention_tail_workspace_fn)
    attention_tail_fwd, attention_tail_bwd;
    DSVI_OP_SLOT(dsvi_attention_merge_fn) attention_merge;
    DSVI_OP_SLOT(dsvi_heads_move_fn) heads_move;

    DSVI_OP_SLOT(dsvi_select_covariance_fn) select_covariance;
    DSVI_OP_SLOT(dsvi_select_features_fn) select_features;
    DSVI_OP_SLOT_WITH_WORKSPACE(dsvi_select_fn, dsvi_select_workspace_fn)
    select_histogram, select_lists;
    DSVI_OP_SLOT(dsvi_select_threshold_fn) select_threshold;
    DSVI_OP_SLOT(dsvi_list_divide_fn) lists_divide, lists_emit;
    DSVI_OP_SLOT(dsvi_list_part_fn) lists_part;
    DSVI_OP_SLOT(dsvi_spans_count_fn) spans_count;
    DSVI_OP_SLOT(dsvi_rows_fn) rows_take, rows_put, rows_add;
    DSVI_OP_SLOT_WITH_WORKSPACE(dsvi_profile_fn, dsvi_profile_workspace_fn) profile;
    DSVI_OP_SLOT_WITH_WORKSPACE(dsvi_attention_error_fn, dsvi_attention_error_workspace_fn)
    attention_error;
    DSVI_OP_SLOT_WITH_WORKSPACE(dsvi_predictor_loss_fn, dsvi_predictor_loss_workspace_fn)
    predictor_loss;

    DSVI_OP_SLOT_WITH_WORKSPACE(dsvi_conv_fn, dsvi_conv_workspace_fn) conv;
    DSVI_OP_SLOT(dsvi_channel_norm_fn) channel_norm;
    DSVI_OP_SLOT(dsvi_frames_move_fn) frames_move;

    DSVI_OP_SLOT(dsvi_rms_norm_fn) rms_norm;
    DSVI_OP_SLOT(dsvi_gelu_product_fn) gelu_product;
    DSVI_OP_SLOT(dsvi_softmax_fn) softmax;
    DSVI_OP_SLOT(dsvi_bias_attention_fn) bias_attention;

    DSVI_OP_SLOT(dsvi_f8_decode_fn) f8_decode;

    DSVI_OP_SLOT(dsvi_sum_squares_fn) sum_squares;
    DSVI_OP_SLOT(dsvi_adamw_fn) adamw, adamw_8bit;
    DSVI_OP_SLOT(dsvi_muon_fn) muon_momentum, muon_step;
} DsviOps;

#define DSVI_OPS_SET(ops, slot, function, name) ((ops)->slot.run = (function), (ops)->slot.variant = (name))
#define DSVI_OPS_SET_WITH_WORKSPACE(ops, slot, function, workspace_function, name) \
    ((ops)->slot.run = (function), (ops)->slot.workspace = (workspace_function), (ops)->slot.variant = (name))

/* Fills every slot with its reference implementation. */
void dsvi_ops_fill_ref(DsviOps *ops);

typedef struct DsviComm DsviComm; /* defined in dist/comm.h */
typedef struct DsviBackend DsviBackend;

struct DsviBackend {
    DsviDevice *device;
    DsviOps ops;
    /* The CPU's operations, for arrays in host memory that the device does not use meanwhile. Their stream is
     * NULL: they run on the calling thread and the pool of compute threads, and are done when they return.
     * Matrix products and convolutions are the reference implementations. On the CPU: the same as `ops`. */
    DsviOps host_ops;
    /* Creates in *out a communicator of the same ranks as `host`, for memory of this device. All ranks of
     * `host` must call. The result must be closed before the backend and before `host`. The pointer `join` is
     * NULL on a device that shares the host's memory: there `host` itself is used. */
    DsvStatus (*join)(const DsviBackend *backend, DsviComm *host, DsviComm **out);
};

#ifdef __cplusplus
}
#endif
#endif
