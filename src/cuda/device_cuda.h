/* The CUDA device: device memory, page-locked host memory, one compute stream and three streams for
 * copies. */
#ifndef DSVI_DEVICE_CUDA_H
#define DSVI_DEVICE_CUDA_H

#include <cuda_runtime_api.h>

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviGemmCublaslt DsviGemmCublaslt;     /* gemm_cublaslt.h */
typedef struct DsviAttentionCudnn DsviAttentionCudnn; /* attention_cudnn.h */

/* The smallest compute capability that dsv supports, times 10: 80 is 8.0 (Ampere). */
enum { DSVI_CUDA_MIN_CAPABILITY = 80 };

/* Size of the text that names the kernels of an op's last call. */
enum { DSVI_CUDA_VARIANT_BYTES = 96 };

/* The stream argument of every op of the CUDA backend. An op only enqueues work and returns, except on the
 * first call with a new shape: cuDNN then builds an execution plan (half a second), and gemm times several
 * cuBLASLt algorithms for a large product and waits for them. */
struct DsviStream {
    cudaStream_t handle;
    int capability;       /* compute capability times 10: 90 on Hopper */
    int multiprocessors;  /* of the GPU */
    size_t shared_bytes;  /* largest shared memory of a thread block */
    bool deterministic;   /* the same calls must give the same bits */
    void *partials;       /* DSVI_CUDA_PARTIALS bytes of device scratch, mostly for the partial sums of
                           * two-stage sums. An op may use all of it from its first kernel to its last; it
                           * keeps no content from one op to the next */
    cudaEvent_t flag;     /* DsviDevice.flag and await */
    cudaEvent_t followed; /* recorded when another stream starts to follow this one (DsviDevice.follow) */
    cudaEvent_t *marks;   /* (mark_count) timed events of DsviDevice.mark, created at first use */
    int64_t mark_count;
    DsviGemmCublaslt *gemm;        /* owned; NULL until gemm is set up */
    DsviAttentionCudnn *attention; /* owned; NULL until attention is set up */
    /* Names of the kernels that ran the last call of each op; for a dense call that was split into pieces,
     * the kernels of the first piece. */
    char attention_fwd[DSVI_CUDA_VARIANT_BYTES], attention_bwd[DSVI_CUDA_VARIANT_BYTES];
    char attention_list_fwd[DSVI_CUDA_VARIANT_BYTES], attention_list_bwd[DSVI_CUDA_VARIANT_BYTES];
    char attention_tail_fwd[DSVI_CUDA_VARIANT_BYTES], attention_tail_bwd[DSVI_CUDA_VARIANT_BYTES];
    char conv_variant[DSVI_CUDA_VARIANT_BYTES];
};

#define DSVI_CUDA_PARTIALS ((size_t)32 << 20)

/* Opens GPU number `gpu_number` modulo the number of GPUs that the process sees, and makes it the current
 * GPU of the calling thread. *out is closed with (*out)->close. Returns DSV_E_UNSUPPORTED if there is no
 * driver or no GPU, or if the GPU is too old. */
DsvStatus dsvi_device_cuda_create(int64_t gpu_number, bool deterministic, DsviDevice **out);

/* Records a failed call of the CUDA runtime as an error message that names `what`. Returns DSV_E_NO_MEMORY if
 * memory ran out, DSV_E_DEVICE otherwise. */
DsvStatus dsvi_cuda_fail_at(const char *file, int line, cudaError_t error, const char *what);

/* Evaluates a call that returns cudaError_t, and returns from the calling function if the call failed. */
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
