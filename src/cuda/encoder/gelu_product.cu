/* gelu_product: y = gelu(gate) x, element by element (ops/encoder.h). */
#include "cuda/common/activation.cuh"
#include "cuda/common/cuda.h"
#include "cuda/common/elementwise.cuh"

namespace dsvi {
namespace {

/* y may be gate or x: a thread reads an element before it writes it. */
template <typename T, int N>
__global__ void __launch_bounds__(ELEMENT_THREADS) gelu_product_kernel(const DsviGeluProductArgs args)
{
    float gate[VECTORS][N] = {}, x[VECTORS][N] = {};
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        load_upto<N>((const T *)args.gate, vector_start<N>(blockIdx.x, v), args.n, gate[v]);
        load_upto<N>((const T *)args.x, vector_start<N>(blockIdx.x, v), args.n, x[v]);
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[v][i] *= activation<T, DSVI_GELU_TANH>(gate[v][i]);
        store_upto<N>((T *)args.y, vector_start<N>(blockIdx.x, v), args.n, x[v]);
    }
}

template <typename T> DsvStatus gelu_product_of_type(DsviStream *stream, const DsviGeluProductArgs *args)
{
    constexpr int N = VECTOR<T>;
    if (aligned((const T *)args->gate, 0, 16) && aligned((const T *)args->x, 0, 16) &&
        aligned((const T *)args->y, 0, 16))
        DSVI_CUDA_LAUNCH(stream, "gelu_product", (gelu_product_kernel<T, N>), element_blocks<N>(args->n),
                         ELEMENT_THREADS, 0, *args);
    else
        DSVI_CUDA_LAUNCH(stream, "gelu_product", (gelu_product_kernel<T, 1>), element_blocks<1>(args->n),
                         ELEMENT_THREADS, 0, *args);
    return DSV_OK;
}

DsvStatus cuda_gelu_product(DsviStream *stream, const DsviGeluProductArgs *args)
{
    if (args->n == 0)
        return DSV_OK;
    DSVI_FOR_ACT("gelu_product", args->dtype, return gelu_product_of_type<T>(stream, args));
}

} // namespace
} // namespace dsvi

void dsvi_cuda_fill_gelu_product(DsviOps *ops)
{
    DSVI_OPS_SET(ops, gelu_product, dsvi::cuda_gelu_product, "cuda");
}
