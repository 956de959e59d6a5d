/* adamw_8bit: AdamW with block-wise moments of 8 bits.
 *
 * A thread block of 256 threads processes one block of 256 elements at a time, one element per thread. It
 * keeps the 256 values of each kind of code in shared memory, finds the new scales with a maximum over its
 * threads, and each thread finds its new codes by bisection. */
#include "cuda/common/cuda.h"
#include "cuda/common/kernel.cuh"
#include "cuda/pointwise/optim.cuh"

namespace {

using namespace dsvi;

static_assert(OPTIM_THREADS == DSVI_STATE_BLOCK && OPTIM_THREADS == DSVI_STATE_VALUES,
              "one thread per element of a block and per value of a code");

constexpr int WARPS = OPTIM_THREADS / 32;

/* The values of the codes, passed to the kernel by value. */
struct Values {
    float with_sign[DSVI_STATE_VALUES], positive[DSVI_STATE_VALUES];
};

struct States {
    uint8_t *m, *v;
    float *m_scale, *v_scale;
};

/* Returns the maximum over the threads of the block. x >= 0. All threads must call. */
__device__ float block_max(float x, float (&shared)[WARPS])
{
    for (int lane = 16; lane > 0; lane /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, lane));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        x = fmaxf(x, shared[i]);
    return x;
}

/* As dsvi_state_code of ops/optim.h. */
__device__ __forceinline__ int state_code(const float *values, float x)
{
    int low = 0;
#pragma unroll
    for (int step = DSVI_STATE_VALUES / 2; step > 0; step /= 2)
        low += values[low + step] <= x ? step : 0;
    if (low < DSVI_STATE_VALUES - 1 && values[low + 1] - x < x - values[low])
        low++;
    return low;
}

template <typename T>
__global__ void __launch_bounds__(OPTIM_THREADS)
    adamw_8bit_step(AdamwStep<T> p, States s, const __grid_constant__ Values values, int64_t n)
{
    __shared__ float with_sign[DSVI_STATE_VALUES], positive[DSVI_STATE_VALUES], largest[WARPS];
    with_sign[threadIdx.x] = values.with_sign[threadIdx.x];
    positive[threadIdx.x] = values.positive[threadIdx.x];
    __syncthreads();
    for (int64_t block = blockIdx.x; block * DSVI_STATE_BLOCK < n; block += gridDim.x) {
        int64_t i = block * DSVI_STATE_BLOCK + threadIdx.x;
        float m = 0, v = 0, weight[1] = {0};
        if (i < n) {
            m = s.m_scale[block] * with_sign[s.m[i]];
            v = s.v_scale[block] * positive[s.v[i]];
            weight[0] = p.weight[i];
            adamw_element(p, p.grad[i], weight[0], m, v);
            p.weight[i] = weight[0];
            derive<1>(p.derived, i, weight);
        }
        /* block_max synchronises the threads, so the old scales have been read by all. */
        float m_scale = block_max(fabsf(m), largest), v_scale = block_max(v, largest);
        if (threadIdx.x == 0) {
            s.m_scale[block] = m_scale;
            s.v_scale[block] = v_scale;
        }
        if (i < n) {
            int code = state_code(positive, v_scale > 0 ? v / v_scale : 0);
            s.m[i] = (uint8_t)state_code(with_sign, m_scale > 0 ? m / m_scale : 0);
            s.v[i] = (uint8_t)(v > 0 && code < 1 ? 1 : code);
        }
    }
}

template <typename T> DsvStatus adamw_8bit_of_type(DsviStream *stream, const DsviAdamwArgs *args)
{
    Values values;
    States states = {(uint8_t *)args->m, (uint8_t *)args->v, args->m_scale, args->v_scale};
    dsvi_state_values(true, values.with_sign);
    dsvi_state_values(false, values.positive);
    DSVI_CUDA_LAUNCH(stream, "adamw_8bit", adamw_8bit_step<T>, optim_blocks(stream, args->n, 1),
                     OPTIM_THREADS, 0, adamw_arguments<T>(args), states, values, args->n);
    return DSV_OK;
}

DsvStatus cuda_adamw_8bit(DsviStream *stream, const DsviAdamwArgs *args)
{
    if (args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "adamw_8bit: this variant takes F32, not %s",
                         dsvi_dtype_name(args->acc));
    if (args->n == 0)
        return DSV_OK;
    DSVI_FOR_ACT("adamw_8bit", args->copy ? args->copy_dtype : DSVI_F32,
                 return adamw_8bit_of_type<T>(stream, args));
}

} // namespace

void dsvi_cuda_fill_optim_8bit(DsviOps *ops)
{
    DSVI_OPS_SET(ops, adamw_8bit, cuda_adamw_8bit, "cuda");
}
