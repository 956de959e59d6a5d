/* What Hopper (sm_90a) adds to CUDA C++, one small function for each instruction: barriers in shared memory,
 * copies that arrive at them, additions in bulk, products of warpgroups (wgmma), registers that change hands.
 * "PTX" below names sections of NVIDIA's PTX ISA, version 9.0.
 *
 * A matrix in shared memory is made of atoms of 8 lines of 128 bytes, each on a boundary of 1024 bytes. The
 * 16-byte chunk c of line r stands at place c ^ r ("128-byte swizzle"; PTX: Swizzling Modes, wgmma). A line
 * has 64 elements of bf16, so that a row of D = 128 is in two atoms. The same bytes serve as
 *     K-major     lines are rows or columns of the product, elements are summed over: Q and K of Q K^T
 *     MN-major    lines are summed over, elements are columns of the product: V of P V
 */
#ifndef DSVI_HOPPER_CUH
#define DSVI_HOPPER_CUH

#include <cuda.h>

#include "cuda/tensor_core.cuh"

namespace dsvi::hopper {

using dsvi::pair_bits, dsvi::shared_address;

constexpr int WARPGROUP = 128, ATOM_BYTES = 1024, LINE_BYTES = 128;

/* PTX: mbarrier.init. */
__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* PTX: mbarrier.arrive; releases what this thread did before, in the block of threads. */
__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives when all cp.async of this thread so far have been written. "noinc": the arrival is one of those the
 * barrier was made for (PTX: cp.async.mbarrier.arrive). */
__device__ __forceinline__ void barrier_arrive_after_copies(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* Has the phase of this parity ended? Sleeps for a time before it says no. PTX: mbarrier.try_wait. */
__device__ __forceinline__ bool barrier_passed(uint32_t barrier, uint32_t parity)
{
    uint32_t passed;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(passed)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return passed != 0;
}

/* A wait of seconds is a mistake of the program: it ends with an error rather than never. */
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    if (barrier_passed(barrier, parity))
        return;
    long long since = clock64();
    while (!barrier_passed(barrier, parity))
        if (clock64() - since > 4000000000ll)
            __trap();
}

/* The same where another warpgroup, which waits for what this one does, watches the time: a trap is a way out
 * of the function, for which the assembler leaves a warpgroup that took registers fewer of them. */
__device__ __forceinline__ void barrier_wait_watched(uint32_t barrier, uint32_t parity)
{
    while (!barrier_passed(barrier, parity))
        ;
}

/* Barriers of the block by number (PTX: barrier.sync, barrier.arrive); 0 is __syncthreads'. */
__device__ __forceinline__ void named_sync(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_arrive(int number, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* 16 bytes to shared memory in the background, past L1, or zeros: then nothing is read (PTX: cp.async). */
__device__ __forceinline__ void copy_chunk(uint32_t to, const void *from, bool there)
{
    asm volatile("{\n.reg .pred absent;\nsetp.eq.u32 absent, %2, 0;\n"
                 "cp.async.cg.shared.global [%0], [%1], 16, absent;\n}" ::"r"(to),
                 "l"(from), "r"((uint32_t)there)
                 : "memory");
}

/* Arrives, and makes the phase wait for so many bytes of boxes besides (PTX: mbarrier.arrive.expect_tx). */
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* One lane of a whole warp, always the same: the compiler then issues what it does once, where for "lane 0"
 * it would write a loop over lanes (PTX: elect.sync). */
__device__ __forceinline__ bool elected()
{
    uint32_t chosen;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
    return chosen != 0;
}

/* A box of a tensor of four dimensions to shared memory in the background, swizzled as the map says; its
 * bytes are counted at the barrier (PTX: cp.async.bulk.tensor). */
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, int x, int y, int z, int w,
                                         uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
                 : "memory");
}

/* Consecutive bytes, multiples of 16 from a multiple of 16, in the same way (PTX: cp.async.bulk). */
__device__ __forceinline__ void copy_bulk(uint32_t to, const void *from, int bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* Makes fresh barriers known to the async proxy, by which boxes arrive (PTX: fence.mbarrier_init). */
__device__ __forceinline__ void fence_fresh_barriers()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Between writes to shared memory by ordinary stores or cp.async, which this thread knows to be done, and
 * wgmma or bulk additions that read them: these go by another path, the "async proxy" (PTX: Async Proxy,
 * fence.proxy). */
__device__ __forceinline__ void fence_for_products()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Adds floats of shared memory in the background, from and to multiples of 16 bytes; it reads by the async
 * proxy (PTX: cp.reduce.async.bulk). */
__device__ __forceinline__ void add_bulk(void *to, uint32_t from, int bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Until shared memory was read by all but the LATER newest groups of this thread. */
template <int LATER> __device__ __forceinline__ void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LATER) : "memory");
}

/* Until all groups of this thread are done. */
__device__ __forceinline__ void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Four 8 x 8 matrices of bf16 from their fragments; lane l has the address of row l % 8 of matrix l / 8
 * (PTX: stmatrix). */
__device__ __forceinline__ void store_matrices(uint32_t to, const uint32_t *x)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

__device__ __forceinline__ void store_four(uint32_t to, float x, float y, float z, float w)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x), "f"(y), "f"(z), "f"(w)
                 : "memory");
}

__device__ __forceinline__ void store_float(uint32_t to, float x)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}

/* Two neighbouring floats. */
__device__ __forceinline__ float2 load_two(uint32_t from)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
    return x;
}

/* Registers per thread of the warpgroup that calls (PTX: setmaxnreg). */
template <int REGISTERS> __device__ __forceinline__ void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ __forceinline__ void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* A matrix of atoms as wgmma takes it (PTX: Matrix Descriptor Format; Strides). Bits 0-13 address / 16,
 * 16-29 `leading` / 16, 32-45 `stride` / 16, 62-63 the swizzle, 1 being that of 128 bytes.
 *     stride     bytes from 8 lines to the next 8
 *     leading    bytes from 64 elements of a line to the next 64: used in MN-major only, since 16 elements
 *                summed over, a K-major step, are inside an atom
 * Addresses are below 2^18: adding bytes / 16 moves the matrix. A K-major matrix moves by 32 bytes for 16
 * elements, inside the atom: the swizzle goes by the bits of the address, not by the descriptor. */
__device__ __forceinline__ uint64_t matrix_at(uint32_t address, uint32_t leading, uint32_t stride)
{
    return (uint64_t)(address >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* Before the first product, and after registers that a product uses were touched (PTX: wgmma.fence). */
__device__ __forceinline__ void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Closes a group of products (PTX: wgmma.commit_group). */
__device__ __forceinline__ void products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most LATER groups are under way (PTX: wgmma.wait_group). */
template <int LATER> __device__ __forceinline__ void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory");
}

/* The compiler takes an instruction's results to be there at once: what uses these registers must not be
 * moved above the wait that this call follows, nor below the product that it precedes. */
template <int N> __device__ __forceinline__ void hold(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}

template <int N> __device__ __forceinline__ void hold(uint32_t (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(x[i])::"memory");
}

/* Registers whose contents do not matter, for a product that does not add: no instruction. */
template <int N> __device__ __forceinline__ void leave_unset(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "=f"(x[i]));
}

/* The same number, which the compiler takes for a new one: what is made of it is made where it is used, and
 * does not wait in registers that a loop around has no room for. */
__device__ __forceinline__ int anew(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

__device__ __forceinline__ char *anew(char *x)
{
    asm volatile("" : "+l"(x));
    return x;
}

/* Products of a warpgroup, 64 rows and 16 elements to sum over (PTX: wgmma.mma_async; Register Fragments).
 * Warp w of the four has rows 16 w to 16 w + 15; of those, lane l holds in
 *     d[4 j + i]    row l / 4 + i / 2 * 8, column 8 j + l % 4 * 2 + i % 2
 *     a[i]          two elements: row l / 4 + i % 2 * 8, elements l % 4 * 2 + i / 2 * 8 and the next
 * so that of p[] packed from d[], four registers from 4 n on are a left factor for elements 16 n on. */

/* A product names its registers one by one, in the instruction and to the compiler; no template can. */
#define DSVI_REGISTERS_32                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DSVI_REGISTERS_64                                                                           \
    DSVI_REGISTERS_32                                                                               \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "            \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DSVI_FLOATS_8(d, i)                                                                         \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]),                     \
        "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define DSVI_FLOATS_32(d, i)                                                                        \
    DSVI_FLOATS_8(d, i), DSVI_FLOATS_8(d, i + 8), DSVI_FLOATS_8(d, i + 16), DSVI_FLOATS_8(d, i + 24)
#define DSVI_FLOATS_64(d) DSVI_FLOATS_32(d, 0), DSVI_FLOATS_32(d, 32)

/* d = a b^T, or d += a b^T: 64 x 64, both K-major. */
__device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        DSVI_REGISTERS_32
        "}, %32, %33, add, 1, 1, 0, 0;\n}"
        : DSVI_FLOATS_32(d, 0)
        : "l"(a), "l"(b), "r"((int)add));
}

/* The same, 64 x 128. */
__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        DSVI_REGISTERS_64
        "}, %64, %65, add, 1, 1, 0, 0;\n}"
        : DSVI_FLOATS_64(d)
        : "l"(a), "l"(b), "r"((int)add));
}

/* d += a b: 64 x 64, a in registers, b MN-major. */
__device__ __forceinline__ void multiply_add(float (&d)[32], const uint32_t *a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        DSVI_REGISTERS_32
        "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : DSVI_FLOATS_32(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* d += a b: 64 x 128, a in registers, b MN-major. */
__device__ __forceinline__ void multiply_add(float (&d)[64], const uint32_t *a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        DSVI_REGISTERS_64
        "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : DSVI_FLOATS_64(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* d = a b, or d += a b: 64 x 64, a in registers, b MN-major. */
__device__ __forceinline__ void multiply_left(float (&d)[32], const uint32_t *a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        DSVI_REGISTERS_32
        "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}"
        : DSVI_FLOATS_32(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

/* The same, 64 x 128. */
__device__ __forceinline__ void multiply_left(float (&d)[64], const uint32_t *a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        DSVI_REGISTERS_64
        "}, {%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}"
        : DSVI_FLOATS_64(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

/* d += a^T b: 64 x 64, both MN-major: their lines are summed over. */
__device__ __forceinline__ void multiply_add_turned(float (&d)[32], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        DSVI_REGISTERS_32
        "}, %32, %33, 1, 1, 1, 1, 1;"
        : DSVI_FLOATS_32(d, 0)
        : "l"(a), "l"(b));
}

/* The same, 64 x 128. */
__device__ __forceinline__ void multiply_add_turned(float (&d)[64], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        DSVI_REGISTERS_64
        "}, %64, %65, 1, 1, 1, 1, 1;"
        : DSVI_FLOATS_64(d)
        : "l"(a), "l"(b));
}

/* d = a^T b, or d += a^T b: 64 x 64. */
__device__ __forceinline__ void multiply_turned(float (&d)[32], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        DSVI_REGISTERS_32
        "}, %32, %33, add, 1, 1, 1, 1;\n}"
        : DSVI_FLOATS_32(d, 0)
        : "l"(a), "l"(b), "r"((int)add));
}

#undef DSVI_REGISTERS_32
#undef DSVI_REGISTERS_64
#undef DSVI_FLOATS_8
#undef DSVI_FLOATS_32
#undef DSVI_FLOATS_64

/* 2^x, denormals flushed; 0 at -inf. */
__device__ __forceinline__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

} // namespace dsvi::hopper

#endif
