/* The CUDA device: device memory, page-locked host memory, one ordered stream of kernels. */
#ifndef DSVI_DEVICE_CUDA_H
#define DSVI_DEVICE_CUDA_H

#include <cuda_runtime_api.h>

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvGemmCublaslt DsvGemmCublaslt;   /* gemm_cublaslt.h */
typedef struct DsvAttentionCudnn DsvAttentionCudnn; /* attention_cudnn.h */

/* The oldest GPU served: compute capability 8.0, written 80. */
enum { DSVI_CUDA_OLDEST = 80 };

enum { DSVI_CUDA_VARIANT_BYTES = 96 };

/* What an op of the CUDA backend finds behind its stream argument. Ops only enqueue, but where a shape
 * is new: then cuDNN's plan is made, half a second, and large products are timed, for which they wait. */
struct DsvStream {
    cudaStream_t handle;
    int capability;         /* 90 on Hopper */
    int multiprocessors;
    size_t shared_bytes;    /* that a block of threads may use at most */
    bool deterministic;     /* the same calls must give the same bits */
    void *partials;         /* DSVI_CUDA_PARTIALS bytes of device memory for sums made in two stages: an op's
                             * own from its first kernel to its last, holding nothing for the next op */
    cudaEvent_t flag;
    cudaEvent_t given;      /* put where another stream begins to follow */
    cudaEvent_t *marks;     /* (mark_count) made when first put */
    int64_t mark_count;
    DsvGemmCublaslt *gemm;
    DsvAttentionCudnn *attention;
    /* Names of the kernels that answered last; of a dense call in pieces, those of its first piece. */
    char attention_fwd[DSVI_CUDA_VARIANT_BYTES], attention_bwd[DSVI_CUDA_VARIANT_BYTES];
    char attention_list_fwd[DSVI_CUDA_VARIANT_BYTES], attention_list_bwd[DSVI_CUDA_VARIANT_BYTES];
};

#define DSVI_CUDA_PARTIALS ((size_t)32 << 20)

/* Of the GPUs that the process sees, number `gpu`, beginning again behind the last. It becomes the calling
 * thread's GPU. DSV_E_UNSUPPORTED where there is no driver, no GPU or one that is too old. */
DsvStatus dsvi_device_cuda_create(int64_t gpu, bool deterministic, DsvDevice **out);

/* A failure of the CUDA runtime as a sentence: DSV_E_NO_MEMORY where memory ran out, else DSV_E_DEVICE. */
DsvStatus dsvi_cuda_fail_at(const char *file, int line, cudaError_t error, const char *what);

#define DSVI_CUDA_TRY(call)                                                       \
    do {                                                                          \
        cudaError_t dsvi_cuda_error = (call);                                     \
        if (dsvi_cuda_error != cudaSuccess)                                       \
            return dsvi_cuda_fail_at(__FILE__, __LINE__, dsvi_cuda_error, #call); \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
