/* Operation graphs of cuDNN's backend API, and the execution plans that run them.
 *
 * A graph is built operation by operation. Each function adds an operation that writes to a tensor `to` and
 * returns this tensor, so that nested calls read like the formula. The graph keeps the first failure and its
 * sentence; calls after a failure do nothing. So it is enough to check `status` after
 * dsvi_cudnn_graph_plan. */
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

typedef cudnnBackendDescriptor_t DsviCudnnTensor;

enum { DSVI_CUDNN_DIMS = 4 };

/* Sizes, and strides in elements, of batch, head, row and column. */
typedef struct DsviCudnnShape {
    int64_t size[DSVI_CUDNN_DIMS], stride[DSVI_CUDNN_DIMS];
} DsviCudnnShape;

/* A graph with all bytes 0 is empty. Release it with dsvi_cudnn_graph_release, also after a failure. */
typedef struct DsviCudnnGraph {
    DsvStatus status;               /* DSV_E_UNSUPPORTED: cuDNN has no engine for the graph on this device */
    char why[DSVI_CUDNN_WHY_BYTES]; /* text that says why `status` is not DSV_OK */
    cudnnBackendDescriptor_t plan;
    int64_t workspace_bytes; /* bytes of workspace that the plan needs */
    int64_t unnamed;         /* number of intermediate tensors (between two operations) so far */
    int descriptors, operations;
    cudnnBackendDescriptor_t descriptor[DSVI_CUDNN_DESCRIPTORS]; /* all cuDNN descriptors that were created
                                                                    for the graph, which owns them */
    cudnnBackendDescriptor_t operation[DSVI_CUDNN_OPERATIONS];
} DsviCudnnGraph;

/* ---- tensors ---- */

/* A tensor in device memory at a multiple of 16 bytes. dsvi_cudnn_graph_run gets its address by `id`, which
 * is above 0. */
DsviCudnnTensor dsvi_cudnn_memory(DsviCudnnGraph *graph, int64_t id, cudnnDataType_t type,
                                  const DsviCudnnShape *shape);
/* One F32 number in host memory, which dsvi_cudnn_graph_run reads. */
DsviCudnnTensor dsvi_cudnn_scalar(DsviCudnnGraph *graph, int64_t id);
/* A tensor that one operation hands to others; cuDNN need not store it in memory. */
DsviCudnnTensor dsvi_cudnn_intermediate(DsviCudnnGraph *graph, cudnnDataType_t type,
                                        const DsviCudnnShape *shape);

/* ---- operations (computed in F32) ---- */

/* Limits a matrix product to the first rows and columns of its matrices. The numbers are INT32 tensors
 * (batch, 1, 1, 1) in device memory; NULL means no limit. */
typedef struct DsviCudnnMatmulSize {
    DsviCudnnTensor rows, columns; /* number of rows and of columns of the product */
    DsviCudnnTensor inner;         /* number of columns of the left factor, and of rows of the right factor */
} DsviCudnnMatmulSize;

/* Matrix product: to = a b, where the last two dimensions are those of the matrices. */
DsviCudnnTensor dsvi_cudnn_matmul(DsviCudnnGraph *graph, DsviCudnnTensor a, DsviCudnnTensor b,
                                  DsviCudnnMatmulSize size, DsviCudnnTensor to);
/* to = mode(x), for each element. */
DsviCudnnTensor dsvi_cudnn_map(DsviCudnnGraph *graph, cudnnPointwiseMode_t mode, DsviCudnnTensor x,
                               DsviCudnnTensor to);
/* to = mode(x, y), for each element; dimensions of size 1 in y are broadcast. */
DsviCudnnTensor dsvi_cudnn_combine(DsviCudnnGraph *graph, cudnnPointwiseMode_t mode, DsviCudnnTensor x,
                                   DsviCudnnTensor y, DsviCudnnTensor to);
/* to = mode(x, y), for each element, where `mode` is a comparison or logical operation; `to` is boolean. */
DsviCudnnTensor dsvi_cudnn_test(DsviCudnnGraph *graph, cudnnPointwiseMode_t mode, DsviCudnnTensor x,
                                DsviCudnnTensor y, DsviCudnnTensor to);
/* to = x where the mask is true, else y. */
DsviCudnnTensor dsvi_cudnn_select(DsviCudnnGraph *graph, DsviCudnnTensor mask, DsviCudnnTensor x,
                                  DsviCudnnTensor y, DsviCudnnTensor to);
/* to = index of each element of x along dimension `axis`, from 0, as INT32. */
DsviCudnnTensor dsvi_cudnn_index(DsviCudnnGraph *graph, int64_t axis, DsviCudnnTensor x, DsviCudnnTensor to);
/* Reduces x over the dimensions that have size 1 in `to`. */
DsviCudnnTensor dsvi_cudnn_reduce(DsviCudnnGraph *graph, cudnnReduceTensorOp_t mode, DsviCudnnTensor x,
                                  DsviCudnnTensor to);
/* to = the elements of x, with the shape and strides of `to`, rounded to the type of `to`. */
DsviCudnnTensor dsvi_cudnn_view(DsviCudnnGraph *graph, DsviCudnnTensor x, DsviCudnnTensor to);

/* ---- plans ---- */

/* Makes the execution plan for all operations so far that cuDNN expects to be fastest on the handle's device.
 * graph->status says whether there is one. */
void dsvi_cudnn_graph_plan(DsviCudnnGraph *graph, cudnnHandle_t handle);
/* Enqueues the plan on the handle's stream. The tensor with id[i] is at data[i], 0 <= i < count. */
DsvStatus dsvi_cudnn_graph_run(const DsviCudnnGraph *graph, cudnnHandle_t handle, int count,
                               const int64_t *id, void *const *data, void *workspace);
void dsvi_cudnn_graph_release(DsviCudnnGraph *graph);

/* Reports a failure of cuDNN, with its own error message. */
DsvStatus dsvi_cudnn_fail_at(const char *file, int line, cudnnStatus_t status, const char *what);

#define DSVI_CUDNN_TRY(call)                                                         \
    do {                                                                             \
        cudnnStatus_t dsvi_cudnn_status = (call);                                    \
        if (dsvi_cudnn_status != CUDNN_STATUS_SUCCESS)                               \
            return dsvi_cudnn_fail_at(__FILE__, __LINE__, dsvi_cudnn_status, #call); \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
