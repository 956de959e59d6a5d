/* Graphs of operations for cuDNN, by its backend API, and the plans that run them.
 *
 * A graph is written down operation by operation. Each writes to a tensor and returns it, so that nested
 * calls read as the formula does. The first failure is kept with its sentence, and what follows it does
 * nothing: who looks at `status` when the plan is made has looked at all. */
#ifndef DSVI_CUDNN_GRAPH_H
#define DSVI_CUDNN_GRAPH_H

#include <cudnn.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_CUDNN_DESCRIPTORS = 128, DSVI_CUDNN_OPERATIONS = 24, DSVI_CUDNN_WHY_BYTES = 512 };

typedef cudnnBackendDescriptor_t DsvCudnnTensor;

/* Four dimensions, as attention has them: batch, head, row, column. Strides in elements. */
typedef struct DsvCudnnShape {
    int64_t size[4], stride[4];
} DsvCudnnShape;

/* All zero is an empty graph. */
typedef struct DsvCudnnGraph {
    DsvStatus status;               /* DSV_E_UNSUPPORTED: cuDNN has no engine for it here */
    char why[DSVI_CUDNN_WHY_BYTES]; /* the sentence, where status is not DSV_OK */
    cudnnBackendDescriptor_t plan;
    int64_t workspace_bytes; /* of the plan */
    int64_t unnamed; /* intermediate tensors so far */
    int descriptors, operations;
    cudnnBackendDescriptor_t descriptor[DSVI_CUDNN_DESCRIPTORS]; /* all of them, released with the graph */
    cudnnBackendDescriptor_t operation[DSVI_CUDNN_OPERATIONS];
} DsvCudnnGraph;

/* ---- tensors ---- */

/* Device memory at a multiple of 16 bytes, given when the plan runs by this id, which is above 0. */
DsvCudnnTensor dsvi_cudnn_memory(DsvCudnnGraph *graph, int64_t id, cudnnDataType_t type,
                                 const DsvCudnnShape *shape);
/* One F32 in host memory, read when the plan is run. */
DsvCudnnTensor dsvi_cudnn_number(DsvCudnnGraph *graph, int64_t id);
/* What one operation hands to others; it need not exist in memory. */
DsvCudnnTensor dsvi_cudnn_between(DsvCudnnGraph *graph, cudnnDataType_t type, const DsvCudnnShape *shape);

/* ---- operations, in F32 ---- */

/* How much of its matrices a product is of: INT32 in device memory, (batch, 1, 1, 1). NULL: all. */
typedef struct DsvCudnnMatmulSize {
    DsvCudnnTensor rows, columns; /* of the product */
    DsvCudnnTensor inner;         /* columns of a, rows of b */
} DsvCudnnMatmulSize;

/* to = a b, matrices of the last two dimensions. */
DsvCudnnTensor dsvi_cudnn_matmul(DsvCudnnGraph *graph, DsvCudnnTensor a, DsvCudnnTensor b,
                                 DsvCudnnMatmulSize size, DsvCudnnTensor to);
/* to = mode(x), element by element. */
DsvCudnnTensor dsvi_cudnn_map(DsvCudnnGraph *graph, cudnnPointwiseMode_t mode, DsvCudnnTensor x,
                              DsvCudnnTensor to);
/* to = mode(x, y); dimensions of size 1 in y are repeated. */
DsvCudnnTensor dsvi_cudnn_combine(DsvCudnnGraph *graph, cudnnPointwiseMode_t mode, DsvCudnnTensor x,
                                  DsvCudnnTensor y, DsvCudnnTensor to);
/* The same with truth values: comparisons and logic. */
DsvCudnnTensor dsvi_cudnn_test(DsvCudnnGraph *graph, cudnnPointwiseMode_t mode, DsvCudnnTensor x,
                               DsvCudnnTensor y, DsvCudnnTensor to);
/* to = x where the mask is true, else y. */
DsvCudnnTensor dsvi_cudnn_select(DsvCudnnGraph *graph, DsvCudnnTensor mask, DsvCudnnTensor x,
                                 DsvCudnnTensor y, DsvCudnnTensor to);
/* to = where along this dimension each element of x is, from 0: INT32. */
DsvCudnnTensor dsvi_cudnn_index(DsvCudnnGraph *graph, int64_t axis, DsvCudnnTensor x, DsvCudnnTensor to);
/* Over the dimensions that have size 1 in `to`. */
DsvCudnnTensor dsvi_cudnn_reduce(DsvCudnnGraph *graph, cudnnReduceTensorOp_t mode, DsvCudnnTensor x,
                                 DsvCudnnTensor to);
/* to: the elements of x with other dimensions, rounded to the type of `to`. */
DsvCudnnTensor dsvi_cudnn_view(DsvCudnnGraph *graph, DsvCudnnTensor x, DsvCudnnTensor to);

/* ---- plans ---- */

/* Makes the plan that cuDNN expects to be fastest on the handle's device for all operations so far;
 * graph->status says whether. */
void dsvi_cudnn_graph_plan(DsvCudnnGraph *graph, cudnnHandle_t handle);
/* Enqueues the plan on the handle's stream: tensor id[i] is at data[i]. */
DsvStatus dsvi_cudnn_graph_run(const DsvCudnnGraph *graph, cudnnHandle_t handle, int count, const int64_t *id,
                               void *const *data, void *workspace);
void dsvi_cudnn_graph_release(DsvCudnnGraph *graph);

/* A failure of cuDNN as a sentence, with what it says itself. */
DsvStatus dsvi_cudnn_fail_at(const char *file, int line, cudnnStatus_t status, const char *what);

#define DSVI_CUDNN_TRY(call)                                                          \
    do {                                                                              \
        cudnnStatus_t dsvi_cudnn_status = (call);                                     \
        if (dsvi_cudnn_status != CUDNN_STATUS_SUCCESS)                                \
            return dsvi_cudnn_fail_at(__FILE__, __LINE__, dsvi_cudnn_status, #call);  \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
