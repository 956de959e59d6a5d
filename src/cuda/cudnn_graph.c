/* Graphs and plans of cuDNN's backend API: descriptors with attributes, all made and finalized alike. */
#include "cuda/cudnn_graph.h"

#include <stdio.h>

enum {
    ALIGNMENT = 16,   /* of tensors in memory */
    FIRST_ID = 1000,  /* those that are not in memory have the ids above it */
    CONFIGS_MOST = 16 /* configurations of engines tried */
};

/* ---- failures ---- */

static DsvStatus status_of(cudnnStatus_t status)
{
    if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED)
        return DSV_E_UNSUPPORTED;
    if (status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
        status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
        return DSV_E_NO_MEMORY;
    return DSV_E_DEVICE;
}

/* The sentence; what cuDNN adds to the name of the status can be several lines. */
static void describe(cudnnStatus_t status, const char *what, char *text, size_t bytes)
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
    describe(status, what, text, sizeof text);
    return dsvi_fail_at(file, line, status_of(status), "%s", text);
}

/* Keeps the first failure. True: none so far. */
static bool expect(DsvCudnnGraph *graph, cudnnStatus_t status, const char *what)
{
    if (graph->status == DSV_OK && status != CUDNN_STATUS_SUCCESS) {
        graph->status = status_of(status);
        describe(status, what, graph->why, sizeof graph->why);
    }
    return graph->status == DSV_OK;
}

/* ---- descriptors ---- */

static cudnnBackendDescriptor_t make(DsvCudnnGraph *graph, cudnnBackendDescriptorType_t type)
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

static void set(DsvCudnnGraph *graph, cudnnBackendDescriptor_t descriptor,
                cudnnBackendAttributeName_t attribute, const char *name, cudnnBackendAttributeType_t type,
                int64_t count, const void *values)
{
    if (graph->status == DSV_OK)
        expect(graph, cudnnBackendSetAttribute(descriptor, attribute, type, count, values), name);
}

/* The name of the attribute is for the sentence of a failure. */
#define SET(graph, descriptor, attribute, type, count, values) \
    set((graph), (descriptor), (attribute), #attribute, (type), (count), (values))

static void set_tensor(DsvCudnnGraph *graph, cudnnBackendDescriptor_t operation,
                       cudnnBackendAttributeName_t attribute, const char *name, DsvCudnnTensor tensor)
{
    set(graph, operation, attribute, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &tensor);
}

#define SET_TENSOR(graph, operation, attribute, tensor) \
    set_tensor((graph), (operation), (attribute), #attribute, (tensor))

static cudnnBackendDescriptor_t finalize(DsvCudnnGraph *graph, cudnnBackendDescriptor_t descriptor,
                                         const char *kind)
{
    if (graph->status != DSV_OK)
        return NULL;
    char what[64];
    snprintf(what, sizeof what, "%s after %d operations", kind, graph->operations);
    return expect(graph, cudnnBackendFinalize(descriptor), what) ? descriptor : NULL;
}

/* ---- tensors ---- */

static DsvCudnnTensor tensor(DsvCudnnGraph *graph, int64_t id, cudnnDataType_t type,
                             const DsvCudnnShape *shape)
{
    const int64_t alignment = ALIGNMENT;
    DsvCudnnTensor made = make(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    SET(graph, made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    SET(graph, made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    SET(graph, made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape->size);
    SET(graph, made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape->stride);
    SET(graph, made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    return made;
}

DsvCudnnTensor dsvi_cudnn_memory(DsvCudnnGraph *graph, int64_t id, cudnnDataType_t type,
                                 const DsvCudnnShape *shape)
{
    return finalize(graph, tensor(graph, id, type, shape), "tensor in memory");
}

DsvCudnnTensor dsvi_cudnn_number(DsvCudnnGraph *graph, int64_t id)
{
    const DsvCudnnShape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    const bool by_value = true;
    DsvCudnnTensor made = tensor(graph, id, CUDNN_DATA_FLOAT, &one);
    SET(graph, made, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    return finalize(graph, made, "number");
}

DsvCudnnTensor dsvi_cudnn_between(DsvCudnnGraph *graph, cudnnDataType_t type, const DsvCudnnShape *shape)
{
    const bool is_virtual = true;
    DsvCudnnTensor made = tensor(graph, FIRST_ID + ++graph->unnamed, type, shape);
    SET(graph, made, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    return finalize(graph, made, "intermediate tensor");
}

/* ---- operations ---- */

static const cudnnDataType_t PRECISION = CUDNN_DATA_FLOAT;

static DsvCudnnTensor operation(DsvCudnnGraph *graph, cudnnBackendDescriptor_t made, const char *kind,
                                DsvCudnnTensor to)
{
    if (!finalize(graph, made, kind))
        return NULL;
    DSVI_ASSERT(graph->operations < DSVI_CUDNN_OPERATIONS);
    graph->operation[graph->operations++] = made;
    return to;
}

DsvCudnnTensor dsvi_cudnn_matmul(DsvCudnnGraph *graph, DsvCudnnTensor a, DsvCudnnTensor b,
                                 DsvCudnnMatmulSize size, DsvCudnnTensor to)
{
    cudnnBackendDescriptor_t how = make(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    SET(graph, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &PRECISION);
    finalize(graph, how, "kind of product");
    cudnnBackendDescriptor_t made = make(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
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

/* What one pointwise operation is made of; y and mask may be NULL. */
typedef struct Pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t precision;
    int64_t axis; /* of CUDNN_POINTWISE_GEN_INDEX */
    DsvCudnnTensor x, y, mask;
} Pointwise;

static DsvCudnnTensor pointwise(DsvCudnnGraph *graph, const Pointwise *p, DsvCudnnTensor to)
{
    cudnnBackendDescriptor_t how = make(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    SET(graph, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p->mode);
    SET(graph, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &p->precision);
    if (p->mode == CUDNN_POINTWISE_GEN_INDEX)
        SET(graph, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &p->axis);
    finalize(graph, how, "kind of pointwise operation");
    cudnnBackendDescriptor_t made = make(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p->x);
    if (p->y)
        SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p->y);
    if (p->mask)
        SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p->mask);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
    return operation(graph, made, "pointwise operation", to);
}

DsvCudnnTensor dsvi_cudnn_map(DsvCudnnGraph *graph, cudnnPointwiseMode_t mode, DsvCudnnTensor x,
                              DsvCudnnTensor to)
{
    return pointwise(graph, &(Pointwise){.mode = mode, .precision = PRECISION, .x = x}, to);
}

DsvCudnnTensor dsvi_cudnn_combine(DsvCudnnGraph *graph, cudnnPointwiseMode_t mode, DsvCudnnTensor x,
                                  DsvCudnnTensor y, DsvCudnnTensor to)
{
    return pointwise(graph, &(Pointwise){.mode = mode, .precision = PRECISION, .x = x, .y = y}, to);
}

DsvCudnnTensor dsvi_cudnn_test(DsvCudnnGraph *graph, cudnnPointwiseMode_t mode, DsvCudnnTensor x,
                               DsvCudnnTensor y, DsvCudnnTensor to)
{
    return pointwise(graph, &(Pointwise){.mode = mode, .precision = CUDNN_DATA_BOOLEAN, .x = x, .y = y}, to);
}

DsvCudnnTensor dsvi_cudnn_select(DsvCudnnGraph *graph, DsvCudnnTensor mask, DsvCudnnTensor x,
                                 DsvCudnnTensor y, DsvCudnnTensor to)
{
    const Pointwise select = {.mode = CUDNN_POINTWISE_BINARY_SELECT, .precision = PRECISION,
                              .x = x, .y = y, .mask = mask};
    return pointwise(graph, &select, to);
}

DsvCudnnTensor dsvi_cudnn_index(DsvCudnnGraph *graph, int64_t axis, DsvCudnnTensor x, DsvCudnnTensor to)
{
    const Pointwise index = {.mode = CUDNN_POINTWISE_GEN_INDEX, .precision = CUDNN_DATA_INT32,
                             .axis = axis, .x = x};
    return pointwise(graph, &index, to);
}

DsvCudnnTensor dsvi_cudnn_reduce(DsvCudnnGraph *graph, cudnnReduceTensorOp_t mode, DsvCudnnTensor x,
                                 DsvCudnnTensor to)
{
    cudnnBackendDescriptor_t how = make(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    SET(graph, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    SET(graph, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &PRECISION);
    finalize(graph, how, "kind of reduction");
    cudnnBackendDescriptor_t made = make(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to);
    return operation(graph, made, "reduction", to);
}

DsvCudnnTensor dsvi_cudnn_view(DsvCudnnGraph *graph, DsvCudnnTensor x, DsvCudnnTensor to)
{
    cudnnBackendDescriptor_t made = make(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    SET_TENSOR(graph, made, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to);
    return operation(graph, made, "view", to);
}

/* ---- plans ---- */

/* The plan of one configuration of an engine. False: it cannot be made, and graph->why says why. */
static bool make_plan(DsvCudnnGraph *graph, cudnnBackendDescriptor_t config)
{
    int64_t count = 0;
    cudnnBackendDescriptor_t plan = make(graph, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    SET_TENSOR(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (!finalize(graph, plan, "execution plan") ||
        !expect(graph, cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                CUDNN_TYPE_INT64, 1, &count, &graph->workspace_bytes),
                "CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE"))
        return false;
    graph->plan = plan;
    return true;
}

/* The configurations of engines that cuDNN proposes, the fastest by its reckoning first. Returns how many. */
static int64_t propose(DsvCudnnGraph *graph, cudnnHandle_t handle,
                       cudnnBackendDescriptor_t config[CONFIGS_MOST])
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0;
    cudnnBackendDescriptor_t operations = make(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    SET(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, graph->operations,
        graph->operation);
    SET(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize(graph, operations, "graph");
    cudnnBackendDescriptor_t heuristic = make(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    SET_TENSOR(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations);
    SET(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(graph, heuristic, "choice of engine");
    for (int i = 0; i < CONFIGS_MOST; i++)
        config[i] = make(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (graph->status != DSV_OK ||
        !expect(graph, cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS_MOST, &count, config),
                "CUDNN_ATTR_ENGINEHEUR_RESULTS"))
        return 0;
    return count < CONFIGS_MOST ? count : CONFIGS_MOST;
}

void dsvi_cudnn_graph_plan(DsvCudnnGraph *graph, cudnnHandle_t handle)
{
    cudnnBackendDescriptor_t config[CONFIGS_MOST];
    int64_t count = propose(graph, handle, config);
    for (int64_t i = 0; i < count; i++) {
        graph->status = DSV_OK; /* the failure of one engine leaves the word to the next */
        if (make_plan(graph, config[i]))
            return;
    }
    expect(graph, CUDNN_STATUS_NOT_SUPPORTED, "no engine for this graph");
}

static DsvStatus run_with(const DsvCudnnGraph *graph, cudnnHandle_t handle, cudnnBackendDescriptor_t pack,
                          int count, const int64_t *id, void *const *data, void *workspace)
{
    DSVI_CUDNN_TRY(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count,
                                            id));
    DSVI_CUDNN_TRY(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                            count, data));
    DSVI_CUDNN_TRY(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                                            &workspace));
    DSVI_CUDNN_TRY(cudnnBackendFinalize(pack));
    DSVI_CUDNN_TRY(cudnnBackendExecute(handle, graph->plan, pack));
    return DSV_OK;
}

DsvStatus dsvi_cudnn_graph_run(const DsvCudnnGraph *graph, cudnnHandle_t handle, int count, const int64_t *id,
                               void *const *data, void *workspace)
{
    cudnnBackendDescriptor_t pack = NULL;
    DSVI_CUDNN_TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    DsvStatus status = run_with(graph, handle, pack, count, id, data, workspace);
    cudnnBackendDestroyDescriptor(pack);
    return status;
}

void dsvi_cudnn_graph_release(DsvCudnnGraph *graph)
{
    while (graph->descriptors > 0)
        cudnnBackendDestroyDescriptor(graph->descriptor[--graph->descriptors]);
    *graph = (DsvCudnnGraph){0};
}
