/* Operation graphs and execution plans of cuDNN's backend API. In this API, tensors, operations, graphs and
 * plans are all descriptors with attributes, which are created, set and finalized in the same way. */
#include "cuda/common/cudnn_graph.h"

#include <stdio.h>

enum {
    ALIGNMENT = 16,  /* alignment in bytes of the tensors that are in memory */
    FIRST_ID = 1000, /* intermediate tensors (between two operations) have ids above FIRST_ID */
    CONFIGS_MAX = 16 /* largest number of cuDNN's engine configurations that are tried to make a plan */
};

/* ---- failures ---- */

static DsvStatus cudnn_graph_status_of(cudnnStatus_t status)
{
    if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED)
        return DSV_E_UNSUPPORTED;
    if (status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
        status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
        return DSV_E_NO_MEMORY;
    return DSV_E_DEVICE;
}

/* Writes an error message about `what` to `text`, with cuDNN's own message on one line. */
static void cudnn_graph_describe(cudnnStatus_t status, const char *what, char *text, size_t bytes)
{
    char detail[DSVI_CUDNN_WHY_BYTES] = "";
    cudnnGetLastErrorString(detail, sizeof detail);
    for (char *c = detail; *c; c++)
        if (*c == '\n')
            *c = ' ';
    snprintf(text, bytes, "cuDNN %zu: %s: %s%s%.300s", cudnnGetVersion(), what, cudnnGetErrorString(status),
             *detail ? ": " : "", detail);
}

DsvStatus dsvi_cudnn_fail_at(const char *file, int line, cudnnStatus_t status, const char *what)
{
    char text[DSVI_CUDNN_WHY_BYTES];
    cudnn_graph_describe(status, what, text, sizeof text);
    return dsvi_fail_at(file, line, cudnn_graph_status_of(status), "%s", text);
}

/* Records a failed `status` in the graph if it is the graph's first failure. Returns whether the graph has no
 * failure so far. */
static bool expect(DsviCudnnGraph *graph, cudnnStatus_t status, const char *what)
{
    if (graph->status == DSV_OK && status != CUDNN_STATUS_SUCCESS) {
        graph->status = cudnn_graph_status_of(status);
        cudnn_graph_describe(status, what, graph->why, sizeof graph->why);
    }
    return graph->status == DSV_OK;
}

/* ---- descriptors ---- */

static cudnnBackendDescriptor_t cudnn_graph_make(DsviCudnnGraph *graph, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t descriptor = NULL;
    if (graph->status != DSV_OK)
        return NULL;
    DSVI_ASSERT(graph->descriptors < DSVI_CUDNN_DESCRIPTORS);
    if (!expect(graph, cudnnBackendCreateDescriptor(type, &descriptor), "a descriptor cannot be made"))
        return NULL;
    graph->descriptor[graph->descriptors++] = descriptor;
    return descriptor;
}

static void cudnn_graph_set(DsviCudnnGraph *graph, cudnnBackendDescriptor_t descriptor,
                            cudnnBackendAttributeName_t attribute, const char *name,
                            cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (graph->status == DSV_OK)
        expect(graph, cudnnBackendSetAttribute(descriptor, attribute, type, count, values), name);
}

/* Sets an attribute of a descriptor, and passes its name as a string too, for the error message. */
#define SET(graph, descriptor, attribute, type, count, values) \
    cudnn_graph_set((graph), (descriptor), (attribute), #attribute, (type), (count), (values))

static void set_tensor(DsviCudnnGraph *graph, cudnnBackendDescriptor_t operation,
                       cudnnBackendAttributeName_t attribute, const char *name, DsviCudnnTensor tensor)
{
    cudnn_graph_set(graph, operation, attribute, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &tensor);
}

#define SET_TENSOR(graph, operation, attribute, tensor) \
    set_tensor((graph), (operation), (attribute), #attribute, (tensor))

static cudnnBackendDescriptor_t finalize(DsviCudnnGraph *graph, cudnnBackendDescriptor_t descriptor,
                                         const char *kind)
{
    if (graph->status != DSV_OK)
        return NULL;
    char what[64];
    snprintf(what, sizeof what, "%s after %d operations", kind, graph->operations);
    return expect(graph, cudnnBackendFinalize(descriptor), what) ? descriptor : NULL;
}

/* ---- tensors ---- */

static DsviCudnnTensor tensor(DsviCudnnGraph *graph, int64_t id, cudnnDataType_t type,
                              const DsviCudnnShape *shape)
{
    const int64_t alignment = ALIGNMENT;
    DsviCudnnTensor made = cudnn_graph_make(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    SET(graph, made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    SET(graph, made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    SET(graph, made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, DSVI_CUDNN_DIMS, shape->size);
    SET(graph, made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, DSVI_CUDNN_DIMS, shape->stride);
    SET(graph, made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    return made;
}

DsviCudnnTensor dsvi_cudnn_memory(DsviCudnnGraph *graph, int64_t id, cudnnDataType_t type,
                                  const DsviCudnnShape *shape)
{
    return finalize(graph, tensor(graph, id, type, shape), "tensor in memory");
}

DsviCudnnTensor dsvi_cudnn_scalar(DsviCudnnGraph *graph, int64_t id)
{
    const DsviCudnnShape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    const bool by_value = true;
    DsviCudnnTensor made = tensor(graph, id, CUDNN_DATA_FLOAT, &one);
    SET(graph, made, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    return finalize(graph, made, "number");
}

DsviCudnnTensor dsvi_cudnn_intermediate(DsviCudnnGraph *graph, cudnnDataType_t type,
                                        const DsviCudnnShape *shape)
{
    const bool is_virtual = true;
    DsviCudnnTensor made = tensor(graph, FIRST_ID + ++graph->unnamed, type, shape);
    SET(graph, made, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    return finalize(graph, made, "intermediate tensor");
}

/* ---- operations ---- */

static const cudnnDataType_t PRECISION = CUDNN_DATA_FLOAT;

static DsviCudnnTensor operation(DsviCudnnGraph *graph, cudnnBackendDescriptor_t made, const char *kind,
                                 DsviCudnnTensor to)
{
    if (!finalize(graph, made, kind))
        return NULL;
    DSVI_ASSERT(graph->operations < DSVI_CUDNN_OPERATIONS);
    graph->operation[graph->operations++] = made;
    return to;
}

DsviCudnnTensor dsvi_cudnn_matmul(DsviCudnnGraph *graph, DsviCudnnTensor a, DsviCudnnTensor b,
                                  DsviCudnnMatmulSize size, DsviCudnnTensor to)
{
    cudnnBackendDescriptor_t how = cudnn_graph_make(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    SET(graph, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &PRECISION);
    finalize(graph, how, "kind of product");
    cudnnBackendDescriptor_t made = cudnn_graph_make(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_MATMUL_CDESC, to);
    if (size.rows)
        SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, size.rows);
    if (size.columns)
        SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, size.columns);
    if (size.inner)
        SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, size.inner);
    return operation(graph, made, "product of matrices", to);
}

/* One elementwise operation of cuDNN on tensors x, y and mask; y and mask may be NULL. */
typedef struct Pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t precision;
    int64_t axis; /* for CUDNN_POINTWISE_GEN_INDEX only */
    DsviCudnnTensor x, y, mask;
} Pointwise;

static DsviCudnnTensor pointwise(DsviCudnnGraph *graph, const Pointwise *p, DsviCudnnTensor to)
{
    cudnnBackendDescriptor_t how = cudnn_graph_make(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    SET(graph, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p->mode);
    SET(graph, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &p->precision);
    if (p->mode == CUDNN_POINTWISE_GEN_INDEX)
        SET(graph, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &p->axis);
    finalize(graph, how, "kind of pointwise operation");
    cudnnBackendDescriptor_t made = cudnn_graph_make(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p->x);
    if (p->y)
        SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p->y);
    if (p->mask)
        SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p->mask);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
    return operation(graph, made, "pointwise operation", to);
}

DsviCudnnTensor dsvi_cudnn_map(DsviCudnnGraph *graph, cudnnPointwiseMode_t mode, DsviCudnnTensor x,
                               DsviCudnnTensor to)
{
    return pointwise(graph, &(Pointwise){.mode = mode, .precision = PRECISION, .x = x}, to);
}

DsviCudnnTensor dsvi_cudnn_combine(DsviCudnnGraph *graph, cudnnPointwiseMode_t mode, DsviCudnnTensor x,
                                   DsviCudnnTensor y, DsviCudnnTensor to)
{
    return pointwise(graph, &(Pointwise){.mode = mode, .precision = PRECISION, .x = x, .y = y}, to);
}

DsviCudnnTensor dsvi_cudnn_test(DsviCudnnGraph *graph, cudnnPointwiseMode_t mode, DsviCudnnTensor x,
                                DsviCudnnTensor y, DsviCudnnTensor to)
{
    return pointwise(graph, &(Pointwise){.mode = mode, .precision = CUDNN_DATA_BOOLEAN, .x = x, .y = y}, to);
}

DsviCudnnTensor dsvi_cudnn_select(DsviCudnnGraph *graph, DsviCudnnTensor mask, DsviCudnnTensor x,
                                  DsviCudnnTensor y, DsviCudnnTensor to)
{
    const Pointwise select = {
        .mode = CUDNN_POINTWISE_BINARY_SELECT, .precision = PRECISION, .x = x, .y = y, .mask = mask};
    return pointwise(graph, &select, to);
}

DsviCudnnTensor dsvi_cudnn_index(DsviCudnnGraph *graph, int64_t axis, DsviCudnnTensor x, DsviCudnnTensor to)
{
    const Pointwise index = {
        .mode = CUDNN_POINTWISE_GEN_INDEX, .precision = CUDNN_DATA_INT32, .axis = axis, .x = x};
    return pointwise(graph, &index, to);
}

DsviCudnnTensor dsvi_cudnn_reduce(DsviCudnnGraph *graph, cudnnReduceTensorOp_t mode, DsviCudnnTensor x,
                                  DsviCudnnTensor to)
{
    cudnnBackendDescriptor_t how = cudnn_graph_make(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    SET(graph, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    SET(graph, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &PRECISION);
    finalize(graph, how, "kind of reduction");
    cudnnBackendDescriptor_t made = cudnn_graph_make(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to);
    return operation(graph, made, "reduction", to);
}

DsviCudnnTensor dsvi_cudnn_view(DsviCudnnGraph *graph, DsviCudnnTensor x, DsviCudnnTensor to)
{
    cudnnBackendDescriptor_t made = cudnn_graph_make(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to);
    return operation(graph, made, "view", to);
}

/* ---- plans ---- */

/* Makes the execution plan for one engine configuration of cuDNN. Returns false if making the plan fails;
 * graph->why has the reason. */
static bool cudnn_graph_make_plan(DsviCudnnGraph *graph, cudnnBackendDescriptor_t config)
{
    int64_t count = 0;
    cudnnBackendDescriptor_t plan = cudnn_graph_make(graph, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    SET_TENSOR(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (!finalize(graph, plan, "execution plan") ||
        !expect(graph,
                cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                         &count, &graph->workspace_bytes),
                "CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE"))
        return false;
    graph->plan = plan;
    return true;
}

/* Gets the engine configurations that cuDNN's heuristic proposes, the one expected to be fastest first.
 * Returns their number. */
static int64_t propose(DsviCudnnGraph *graph, cudnnHandle_t handle,
                       cudnnBackendDescriptor_t config[CONFIGS_MAX])
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0;
    cudnnBackendDescriptor_t operations = cudnn_graph_make(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    SET(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, graph->operations,
        graph->operation);
    SET(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize(graph, operations, "graph");
    cudnnBackendDescriptor_t heuristic = cudnn_graph_make(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    SET_TENSOR(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations);
    SET(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(graph, heuristic, "choice of engine");
    for (int i = 0; i < CONFIGS_MAX; i++)
        config[i] = cudnn_graph_make(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (graph->status != DSV_OK ||
        !expect(graph,
                cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS_MAX, &count, config),
                "CUDNN_ATTR_ENGINEHEUR_RESULTS"))
        return 0;
    return count < CONFIGS_MAX ? count : CONFIGS_MAX;
}

void dsvi_cudnn_graph_plan(DsviCudnnGraph *graph, cudnnHandle_t handle)
{
    cudnnBackendDescriptor_t config[CONFIGS_MAX];
    int64_t count = propose(graph, handle, config);
    for (int64_t i = 0; i < count; i++) {
        graph->status = DSV_OK; /* clears the failure of the previous engine configuration */
        if (cudnn_graph_make_plan(graph, config[i]))
            return;
    }
    expect(graph, CUDNN_STATUS_NOT_SUPPORTED, "no engine for this graph");
}

static DsvStatus run_variant_pack(const DsviCudnnGraph *graph, cudnnHandle_t handle,
                                  cudnnBackendDescriptor_t pack, int count, const int64_t *id,
                                  void *const *data, void *workspace)
{
    DSVI_CUDNN_TRY(
        cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, id));
    DSVI_CUDNN_TRY(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                            count, data));
    DSVI_CUDNN_TRY(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                                            &workspace));
    DSVI_CUDNN_TRY(cudnnBackendFinalize(pack));
    DSVI_CUDNN_TRY(cudnnBackendExecute(handle, graph->plan, pack));
    return DSV_OK;
}

DsvStatus dsvi_cudnn_graph_run(const DsviCudnnGraph *graph, cudnnHandle_t handle, int count,
                               const int64_t *id, void *const *data, void *workspace)
{
    cudnnBackendDescriptor_t pack = NULL;
    DSVI_CUDNN_TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    DsvStatus status = run_variant_pack(graph, handle, pack, count, id, data, workspace);
    cudnnBackendDestroyDescriptor(pack);
    return status;
}

void dsvi_cudnn_graph_release(DsviCudnnGraph *graph)
{
    while (graph->descriptors > 0)
        cudnnBackendDestroyDescriptor(graph->descriptor[--graph->descriptors]);
    *graph = (DsviCudnnGraph){0};
}
