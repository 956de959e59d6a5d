/* Measures cycles per score of a lane in loops like the selection kernels' loops, on registers alone;
 * lab/README.md uses the results. The values computed are meaningless. One product is a half-precision mma
 * of 16 rows, 8 columns and 16 elements. */
#include <stdint.h>
#include <stdio.h>

#include "cuda/select/select_score.cuh"

using namespace dsvi;

enum { THREADS = 256, BLOCKS = 132 * 2 * 4, TILES = 8, ROUNDS = 512, REPEATS = 8 };
enum Loop { PRODUCTS, ADDITIONS, SHIFTS, CUT_ONE_ADDED, CUT_BY_MMA, CUT_BF16, HALVES_ALONE, HALVES };

struct Operands {
    uint4 left[2];
    uint2 right[TILES];
};

__device__ __forceinline__ void multiply_halves(uint32_t (&x)[2], const uint4 &a, uint2 b, uint32_t start)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%8, %8};"
        : "=r"(x[0]), "=r"(x[1])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "r"(start));
}

/* Adds two pairs of halves. */
__device__ __forceinline__ uint32_t add_halves(uint32_t a, uint32_t b)
{
    __half2 sum = __hadd2(*reinterpret_cast<__half2 *>(&a), *reinterpret_cast<__half2 *>(&b));
    return *reinterpret_cast<uint32_t *>(&sum);
}

struct Sums {
    float one[TILES][2], four[4];
    uint32_t two[TILES];
};

/* Multiplies tiles n and n + 1 by both left factors. */
template <Loop LOOP>
__device__ __forceinline__ void take_floats(const Operands &o, int n, const float (&start)[4], uint2 ones,
                                            Sums &s)
{
    float x[4][4];
    uint32_t p[4][2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        multiply_add(x[i], o.left[i % 2], o.right[n + i / 2], start);
        p[i][0] = cut_powers(x[i][0], x[i][1]);
        p[i][1] = cut_powers(x[i][2], x[i][3]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (LOOP == ADDITIONS)
                s.one[n + i / 2][j % 2] += x[i][j];
            if (LOOP == SHIFTS)
                s.one[n + i / 2][j % 2] += __uint_as_float(__float_as_uint(x[i][j]) << 9);
        }
        if (LOOP == PRODUCTS)
            asm volatile("" ::"f"(x[i][0] + x[i][3]));
        if (LOOP == CUT_BF16)
            s.two[n + i / 2] = add_bf16(s.two[n + i / 2], add_bf16(p[i][0], p[i][1]));
    }
    if (LOOP == CUT_ONE_ADDED)
        add_powers_up<false>(s.four,
                             {add_bf16(p[0][0], p[0][1]), add_bf16(p[1][0], p[1][1]),
                              add_bf16(p[2][0], p[2][1]), add_bf16(p[3][0], p[3][1])},
                             ones);
    for (int i = 0; LOOP == CUT_BY_MMA && i < 4; i += 2)
        add_powers_up<false>(s.four, {p[i][0], p[i][1], p[i + 1][0], p[i + 1][1]}, ones);
}

/* Multiplies tile n by both left factors. */
template <Loop LOOP>
__device__ __forceinline__ void take_halves(const Operands &o, int n, uint32_t start, Sums &s)
{
    uint32_t x[2][2];
    multiply_halves(x[0], o.left[0], o.right[n], start);
    multiply_halves(x[1], o.left[1], o.right[n], start);
    if (LOOP == HALVES_ALONE)
        s.two[n] ^= x[0][0] ^ x[1][1];
    else
        s.two[n] = add_halves(s.two[n], add_halves(add_halves(x[0][0] << 4, x[0][1] << 4),
                                                   add_halves(x[1][0] << 4, x[1][1] << 4)));
}

template <Loop LOOP>
__global__ __launch_bounds__(THREADS, 2) void loop(const uint4 *left, const uint2 *right, float *out)
{
    __shared__ uint4 shared[1024];
    int lane = threadIdx.x % 32;
    Operands o;
    Sums s = {};
    const float start[4] = {383.f, 383.f, 383.f, 383.f};
    const uint2 ones = {BF16_MINUS_ONE << 16 | BF16_MINUS_ONE, BF16_MINUS_ONE << 16 | BF16_MINUS_ONE};
    for (int i = threadIdx.x; i < 1024; i += THREADS)
        shared[i] = left[i];
    __syncthreads();
    for (int n = 0; n < TILES; n++)
        o.right[n] = right[n * 32 + lane];
#pragma unroll 1
    for (int r = 0; r < ROUNDS; r++) {
        o.left[0] = shared[r % 16 * 64 + lane];
        o.left[1] = shared[r % 16 * 64 + 32 + lane];
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            if (LOOP >= HALVES_ALONE)
                take_halves<LOOP>(o, n, 0x3f80u, s);
            else if (n % 2 == 0)
                take_floats<LOOP>(o, n, start, ones, s);
        }
    }
    float all = s.four[0] + s.four[1] + s.four[2] + s.four[3];
    for (int n = 0; n < TILES; n++)
        all += s.one[n][0] + s.one[n][1] + __uint_as_float(s.two[n]);
    out[blockIdx.x * THREADS + threadIdx.x] = all;
}

template <Loop LOOP> void time_loop(const char *name, const uint4 *left, const uint2 *right, float *out)
{
    cudaEvent_t begin, end;
    float least = 1e9f, ms;
    int clock = 0;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0);
    for (int i = 0; i < REPEATS; i++) {
        cudaEventRecord(begin);
        loop<LOOP><<<BLOCKS, THREADS>>>(left, right, out);
        cudaEventRecord(end);
        cudaEventSynchronize(end);
        cudaEventElapsedTime(&ms, begin, end);
        least = ms < least ? ms : least;
    }
    double scores = (double)BLOCKS * (THREADS / 32) * ROUNDS * TILES * 8 / (132 * 4);
    printf("%-40s %.4f ms, %.2f cycles a score at %.2f GHz\n", name, least, least * clock / scores,
           clock * 1e-6);
}

int main(void)
{
    uint4 *left;
    uint2 *right;
    float *out;
    cudaMalloc(&left, 1024 * sizeof *left);
    cudaMalloc(&right, TILES * 32 * sizeof *right);
    cudaMalloc(&out, BLOCKS * THREADS * sizeof *out);
    cudaMemset(left, 0, 1024 * sizeof *left);
    cudaMemset(right, 0, TILES * 32 * sizeof *right);
    time_loop<PRODUCTS>("products alone", left, right, out);
    time_loop<ADDITIONS>("products, additions", left, right, out);
    time_loop<SHIFTS>("products, shifts, additions", left, right, out);
    time_loop<CUT_ONE_ADDED>("products, cut, one addition, mma", left, right, out);
    time_loop<CUT_BY_MMA>("products, cut, mma", left, right, out);
    time_loop<CUT_BF16>("products, cut, additions", left, right, out);
    time_loop<HALVES_ALONE>("products in halves", left, right, out);
    time_loop<HALVES>("products in halves, shifts, additions", left, right, out);
    printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
    return 0;
}
