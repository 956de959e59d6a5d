/** @file
 * Sparse self-attention for programs that have their own model, such as a model in PyTorch.
 *
 * A DsvDevice is a CPU or a GPU. A DsvAttention serves the self-attention of all blocks of one model, for one
 * shape: it makes key lists, attends over them, measures which fraction of exact attention they hold, and
 * decides for each block whether it is sparse or dense. A training step is
 *
 *     dsv_attention_step_begin
 *     dsv_attention_forward    block 0, 1, ...
 *     dsv_attention_backward   ..., block 1, block 0
 *     dsv_attention_step_end
 *
 * Passes may be repeated before the step ends (gradient accumulation). dsv_lists_forward() and
 * dsv_lists_backward() attend over lists of the caller and keep nothing.
 *
 * Tensors are memory of the device. Tokens must be in the token order that dsv_token_order() returns:
 * attention does not change if queries, keys and values are permuted alike, but only neighbouring tokens
 * share a list.
 *
 * Threads: calls with the same DsvDevice, or with objects of the same DsvDevice, take turns, so that any
 * thread may make them. All devices of a process compute with one pool of threads, whose number the first
 * device sets (option `threads`). A process that was forked after a CPU device was opened must not compute
 * with dsv. */
#ifndef DSV_ATTENTION_H
#define DSV_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dsv/config.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Type of the elements of a tensor. */
typedef enum DsvDtype {
    DSV_F32,
    DSV_BF16,
    DSV_F64 /**< on the CPU with isa=ref only: for checks of gradients */
} DsvDtype;

/** A tensor (B, S, N, D) whose rows of D elements are contiguous. Row (b, s, h) begins at element
 * b * batch_stride + s * token_stride + h * head_stride of `data`. Strides may be 0 in tensors that are only
 * read. On a GPU rows should begin at multiples of 16 bytes: faster kernels require it. */
typedef struct DsvRows {
    void *data;           /**< the caller's memory on the device; the callee never frees it */
    int64_t batch_stride; /**< in elements */
    int64_t token_stride; /**< in elements */
    int64_t head_stride;  /**< in elements */
} DsvRows;

/** A CPU or a GPU with its operations. */
typedef struct DsvDevice DsvDevice;

/** Opens a device.
 * @param config `device`, `isa`, `threads` and `deterministic` are read
 * @param number number of the GPU among those that the process sees; 0 for the CPU
 * @param out    closed by the caller with dsv_device_close(); NULL on failure
 * @return DSV_E_UNSUPPORTED if this machine or build has no such device; DSV_E_USAGE, also if `threads`
 * differs from the number with which an open device computes; DSV_E_NO_MEMORY; DSV_E_DEVICE */
DsvStatus dsv_device_open(const DsvConfig *config, int64_t number, DsvDevice **out);

/** Closes a device, after the objects that were created with it.
 * @param device set to NULL; may be NULL already */
void dsv_device_close(DsvDevice **device);

/** Returns the name of a device.
 * @param device open
 * @return such as "AMD EPYC, avx512, 2 threads"; valid until the device is closed */
const char *dsv_device_name(const DsvDevice *device);

/** Writes the token order (option `sparse.order`) of a grid.
 * @param config `sparse_order` is read
 * @param grid   frames, rows and columns of the tokens, each at least 1
 * @param order  (count) written: order[s] is the raster position (frame, then row, then column) of token s
 * @param count  the product of `grid`
 * @return DSV_E_SHAPE if `count` is not the product of `grid`; DSV_E_USAGE */
DsvStatus dsv_token_order(const DsvConfig *config, const int64_t grid[3], int32_t *order, int64_t count);

/** What a DsvAttention is for. */
typedef struct DsvAttentionShape {
    int64_t blocks;   /**< blocks of the model that have self-attention */
    int64_t batch;    /**< B */
    int64_t heads;    /**< N */
    int64_t head_dim; /**< D, an even number from 32 to 256 */
    int64_t grid[3];  /**< frames, rows and columns of the tokens; their product is S */
    DsvDtype dtype;   /**< of q, k, v, out and their gradients */
    bool backward;    /**< true: lists are kept from the forward to the backward pass of each block */
} DsvAttentionShape;

/** The tensors of one pass. */
typedef struct DsvAttentionCall {
    double scale;       /**< factor of q k^T before the softmax, usually 1 / sqrt(D) */
    DsvRows q;          /**< (B, S, N, D), read */
    DsvRows k;          /**< (B, S, N, D), read */
    DsvRows v;          /**< (B, S, N, D), read */
    const void *hidden; /**< (B, S, N * D) contiguous, of the dtype of q: the input of the projections to q
                         * and k. Read with sparse.selector=predictor only, otherwise it may be NULL */
    DsvRows out;        /**< (B, S, N, D), written by the forward pass, read by the backward pass */
    void *lse;          /**< (B, N, S) contiguous, F32, or F64 for #DSV_F64: log-sum-exp of each query;
                         * written by the forward pass, read by the backward pass */
    DsvRows dout;       /**< (B, S, N, D), read by the backward pass */
    DsvRows dq;         /**< (B, S, N, D), overwritten by the backward pass */
    DsvRows dk;         /**< (B, S, N, D), overwritten by the backward pass */
    DsvRows dv;         /**< (B, S, N, D), overwritten by the backward pass */
    int64_t pass;       /**< Number of the pass through the model, from 1; 0 without sparse attention, whose
                         * passes run backward in any order. Written by the forward pass. The backward pass
                         * expects the number that its forward pass wrote; 0 is not checked */
    bool recompute;     /**< forward pass only; true: activation checkpointing repeats a forward pass. The
                         * lists of the first time are used and nothing is measured */
    void *stream;       /**< GPU: the cudaStream_t on which the work is enqueued; NULL: the default stream.
                         * The calling thread's current GPU becomes the one of the device */
    void *workspace;    /**< 64-byte aligned device memory that the pass may use; NULL: memory that the
                         * library allocates at the first such call and keeps */
    size_t workspace_bytes; /**< at least DsvAttentionMemory::workspace_bytes if `workspace` is given */
} DsvAttentionCall;

/** Sparse self-attention of one model for one shape. */
typedef struct DsvAttention DsvAttention;

/** Device memory of a DsvAttention. */
typedef struct DsvAttentionMemory {
    size_t state_bytes;     /**< kept for the life of the object: lists, and the state of the selector */
    size_t workspace_bytes; /**< used during a pass only */
} DsvAttentionMemory;

/** Receives one line about a decision (a block became sparse or dense), without a newline. */
typedef void DsvAttentionLog(void *context, const char *line);

/** Creates an object and allocates its host memory.
 * @param device  must outlive the object
 * @param config  the options `sparse.*`, `seed` and `deterministic` are read; copied. The part
 *     sparse.dense_finish of steps at the end of training is counted back from `max_train_steps`; where the
 *     number of steps is unknown, set sparse.dense_finish to 0
 * @param shape   copied
 * @param log     NULL: decisions are not reported. Called by the thread that ends a step
 * @param context handed to `log`
 * @param out     freed by the caller with dsv_attention_free(); NULL on failure
 * @return DSV_E_SHAPE; DSV_E_USAGE; DSV_E_UNSUPPORTED for a dtype that the device lacks; DSV_E_NO_MEMORY */
DsvStatus dsv_attention_create(DsvDevice *device, const DsvConfig *config, const DsvAttentionShape *shape,
                               DsvAttentionLog *log, void *context, DsvAttention **out);

/** Frees an object. On a GPU the call waits for the object's work.
 * @param attention set to NULL; may be NULL already */
void dsv_attention_free(DsvAttention **attention);

/** Returns how much device memory the object needs.
 * @param attention created
 * @param memory    written */
void dsv_attention_memory(const DsvAttention *attention, DsvAttentionMemory *memory);

/** Gives the object its device memory and sets the initial state. To be called once, before any step. With
 * sparse.measure_cost the call times attention, which can take seconds.
 * @param attention created
 * @param state     64-byte aligned device memory that the caller keeps until the object is freed; NULL: the
 *     library allocates it
 * @param bytes     at least DsvAttentionMemory::state_bytes if `state` is given
 * @param stream    GPU: as DsvAttentionCall::stream
 * @return DSV_E_SHAPE if `bytes` is too small; DSV_E_USAGE if called twice; DSV_E_NO_MEMORY; DSV_E_DEVICE */
DsvStatus dsv_attention_bind(DsvAttention *attention, void *state, size_t bytes, void *stream);

/** Begins a step.
 * @param attention bound
 * @param step      number of the step, from 1; should grow from step to step
 * @param train     true: selectors learn, and every `sparse.profile_every` steps lists are measured. false,
 * for sampling and validation: decisions stay as they are
 * @param stream    GPU: as DsvAttentionCall::stream
 * @return DSV_E_USAGE; DSV_E_DEVICE */
DsvStatus dsv_attention_step_begin(DsvAttention *attention, int64_t step, bool train, void *stream);

/** Self-attention of a block, dense or over lists as has been decided. The forward passes of a model call the
 * blocks in ascending order, beginning with block 0.
 * @param attention in a step
 * @param block     from 0
 * @param call      `out`, `lse` and `pass` are written
 * @return DSV_E_USAGE for a wrong order of calls; DSV_E_SHAPE for missing tensors or wrong strides;
 *     DSV_E_DEVICE */
DsvStatus dsv_attention_forward(DsvAttention *attention, int64_t block, DsvAttentionCall *call);

/** Gradients of a block's self-attention. q, k, v, out and lse are those of the block's last forward pass.
 * @param attention with DsvAttentionShape::backward
 * @param block     from 0
 * @param call      `dq`, `dk` and `dv` are written
 * @return DSV_E_USAGE if another forward pass replaced the lists of pass DsvAttentionCall::pass; otherwise as
 *     dsv_attention_forward() */
DsvStatus dsv_attention_backward(DsvAttention *attention, int64_t block, const DsvAttentionCall *call);

/** Ends a step: in a training step selectors are updated and it is decided about each block.
 * @param attention in a step
 * @param stream    GPU: as DsvAttentionCall::stream
 * @return DSV_E_USAGE; DSV_E_DEVICE */
DsvStatus dsv_attention_step_end(DsvAttention *attention, void *stream);

/** Makes all blocks attend over lists, or restores the decisions: for tests and benchmarks.
 * @param attention  created
 * @param everywhere true: all blocks attend over lists
 * @return DSV_E_USAGE if sparse.enabled is false */
DsvStatus dsv_attention_force(DsvAttention *attention, bool everywhere);

/** Sets the density of all lists, in place of decisions and targets: for benchmarks at a known sparsity.
 * @param attention created
 * @param density   fraction of the keys that lists hold, above 0 and at most 1
 * @return DSV_E_USAGE for another density, or if sparse.enabled is false */
DsvStatus dsv_attention_prescribe(DsvAttention *attention, double density);

/** State of all blocks together. */
typedef struct DsvAttentionReport {
    int64_t blocks;        /**< blocks of the model */
    int64_t sparse_blocks; /**< blocks that attend over lists from the next pass on */
    double density;        /**< density of the lists of the last pass, mean over blocks; dense blocks count as
                            * 1 */
    double captured_mass;  /**< fraction of exact attention that the lists of sparse blocks hold; NaN without
                            * sparse blocks */
    bool measured;         /**< whether the last step that ended measured lists */
    double output_error;   /**< relative error of attention's output over lists and tail, mean over sparse
                            * blocks; NaN without sparse blocks */
} DsvAttentionReport;

/** State of one block. */
typedef struct DsvAttentionBlockReport {
    bool sparse;           /**< the decision */
    bool over_lists;       /**< the last pass attended over lists */
    double captured_mass;  /**< fraction of exact attention that the lists hold, running mean of measurements;
                            * NaN before the first */
    double density;        /**< density of the lists made last; 1 before the first */
    double estimated_mass; /**< captured_mass of the last lists as the selector estimates it */
    double share90;        /**< smallest fraction of the keys that holds 90 % of a query's attention */
    int64_t changes;       /**< how often the decision changed */
    double output_error;   /**< relative error of attention's output over lists and tail, mean over heads,
                            * running mean of measurements; NaN before the first */
} DsvAttentionBlockReport;

/** Describes all blocks together.
 * @param attention bound
 * @param report    written */
void dsv_attention_report(DsvAttention *attention, DsvAttentionReport *report);

/** Describes one block.
 * @param attention     bound
 * @param block         from 0
 * @param report        written
 * @param head_captured (N) written: captured_mass of each head; or NULL
 * @return DSV_E_SHAPE if there is no such block */
DsvStatus dsv_attention_block_report(DsvAttention *attention, int64_t block, DsvAttentionBlockReport *report,
                                     float *head_captured);

/** Writes the state of selector, measurements and decisions to a safetensors file.
 * @param attention bound
 * @param path      replaced if it exists
 * @param stream    GPU: as DsvAttentionCall::stream
 * @return DSV_E_IO; DSV_E_NO_MEMORY; DSV_E_DEVICE */
DsvStatus dsv_attention_save(DsvAttention *attention, const char *path, void *stream);

/** Reads the state that dsv_attention_save() wrote, bit for bit.
 * @param attention bound
 * @param path      a file of the same selector, `sparse.rank`, number of blocks, heads and head size; batch
 * and grid may differ
 * @param stream    GPU: as DsvAttentionCall::stream
 * @return DSV_E_NOT_FOUND; DSV_E_FORMAT; DSV_E_SHAPE; DSV_E_DEVICE */
DsvStatus dsv_attention_load(DsvAttention *attention, const char *path, void *stream);

/** Copies the state that dsv_attention_save() writes to an object of the same model on the same device, whose
 * batch or grid may differ.
 * @param to     bound
 * @param from   bound
 * @param stream GPU: as DsvAttentionCall::stream
 * @return DSV_E_SHAPE; DSV_E_USAGE for different devices; DSV_E_DEVICE */
DsvStatus dsv_attention_copy(DsvAttention *to, DsvAttention *from, void *stream);

/** Key lists. `group` consecutive queries of a head share a list. A list names spans: span i is the `grain`
 * consecutive keys from key i * grain on. The list of group g of head h of sample b is
 * spans[offsets[n]] to spans[offsets[n + 1] - 1] with n = (b * heads + h) * ceil(queries / group) + g. The
 * spans of a list ascend and none is named twice. A list may be empty. */
typedef struct DsvLists {
    int64_t batch;          /**< B */
    int64_t heads;          /**< N */
    int64_t queries;        /**< queries of a head */
    int64_t keys;           /**< keys of a head */
    int64_t group;          /**< queries that share a list, from 16 to 1024 */
    int64_t grain;          /**< keys of a span, from 1 to 128 */
    int64_t capacity;       /**< entries of `spans`; at least as many as all lists together have */
    const int64_t *offsets; /**< (batch * heads * ceil(queries / group) + 1), device memory; the first is 0 */
    const int32_t *spans;   /**< (capacity), device memory */
} DsvLists;

/** Returns the lists of a block's last forward pass.
 * @param attention bound
 * @param block     from 0
 * @param lists     written; the arrays are valid until the next forward pass
 * @return DSV_E_NOT_FOUND if the block attended densely or its lists are not on the device any more;
 *     DSV_E_SHAPE */
DsvStatus dsv_attention_lists(DsvAttention *attention, int64_t block, DsvLists *lists);

/** Attention over lists of the caller.
 *
 * q and out are (B, queries, N, D), k and v (B, keys, N, D); `hidden`, `pass` and `recompute` of the call are
 * not used. On the CPU the lists are checked; on a GPU lists with wrong entries read wrong memory.
 * @param device   where the tensors and lists are
 * @param dtype    of the tensors
 * @param head_dim D
 * @param lists    NULL is refused
 * @param call     `out` and `lse` are written
 * @return DSV_E_SHAPE; DSV_E_FORMAT for wrong lists; DSV_E_NO_MEMORY; DSV_E_DEVICE */
DsvStatus dsv_lists_forward(DsvDevice *device, DsvDtype dtype, int64_t head_dim, const DsvLists *lists,
                            const DsvAttentionCall *call);

/** Gradients of dsv_lists_forward(), with the same lists.
 * @param device   as dsv_lists_forward()
 * @param dtype    as dsv_lists_forward()
 * @param head_dim as dsv_lists_forward()
 * @param lists    as dsv_lists_forward()
 * @param call     `dq`, `dk` and `dv` are written
 * @return as dsv_lists_forward() */
DsvStatus dsv_lists_backward(DsvDevice *device, DsvDtype dtype, int64_t head_dim, const DsvLists *lists,
                             const DsvAttentionCall *call);

/** Returns the workspace that dsv_lists_forward() or dsv_lists_backward() needs.
 * @param device   as dsv_lists_forward()
 * @param dtype    as dsv_lists_forward()
 * @param head_dim as dsv_lists_forward()
 * @param lists    the pointers are not read
 * @param backward for dsv_lists_backward()
 * @param bytes    written
 * @return DSV_E_SHAPE */
DsvStatus dsv_lists_workspace(DsvDevice *device, DsvDtype dtype, int64_t head_dim, const DsvLists *lists,
                              bool backward, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
