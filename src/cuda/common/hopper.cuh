/* Hopper's (sm_90a) instructions that CUDA C++ has no functions for, one small function each: barriers in
 * shared memory, asynchronous copies and TMA, bulk additions, warpgroup products (wgmma), and register
 * reallocation. "PTX" below refers to sections of NVIDIA's PTX ISA, version 9.0. Barriers and matrices in
 * shared memory are passed as addresses in the shared window (shared_address of tensor_core.cuh).
 *
 * A matrix in shared memory consists of atoms: 8 lines of 128 bytes, at multiples of 1024 bytes. Chunk c (16
 * bytes) of line r is stored at position c ^ r of the line ("128-byte swizzle"; PTX: Swizzling Modes, wgmma).
 * A line has 64 elements of BF16, so a row of D = 128 is in two atoms. The same bytes can be used as
 *     K-major     lines are rows or columns of the product, elements are summed over: Q and K of Q K^T
 *     MN-major    lines are summed over, elements are columns of the product: V of P V
 */
#ifndef DSVI_HOPPER_CUH
#define DSVI_HOPPER_CUH

#include <cuda.h>

#include "cuda/common/tensor_core.cuh"

namespace dsvi::hopper {

using dsvi::pair_bits, dsvi::shared_address;

constexpr int WARPGROUP = 128, ATOM_BYTES = 1024, LINE_BYTES = 128;

/* Initialises a barrier whose phases complete after `arrivals` arrivals (PTX: mbarrier.init). */
__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* Arrives at a barrier; makes this thread's earlier writes visible to threads of the block that wait for the
 * phase (PTX: mbarrier.arrive). */
__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives when all earlier cp.async of this thread are complete. The arrival counts as one of those of
 * barrier_init (PTX: cp.async.mbarrier.arrive.noinc). */
__device__ __forceinline__ void barrier_arrive_after_copies(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* Returns whether the barrier's phase of this parity (0 or 1, alternating) is complete; waits a limited time
 * before it returns false (PTX: mbarrier.try_wait). */
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

/* Waits until the barrier's phase of this parity is complete. A wait of seconds means a programming error
 * and ends in a trap instead of a hang. */
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    if (barrier_passed(barrier, parity))
        return;
    long long since = clock64();
    while (!barrier_passed(barrier, parity))
        if (clock64() - since > 4000000000ll)
            __trap();
}

/* Waits like barrier_wait, but without a trap, for a warpgroup on which another one waits with barrier_wait.
 * In a warpgroup that has raised its number of registers (take_registers), the exit of a trap would leave the
 * assembler fewer registers. */
__device__ __forceinline__ void barrier_wait_watched(uint32_t barrier, uint32_t parity)
{
    while (!barrier_passed(barrier, parity))
        ;
}

/* Named barriers of the thread block: named_sync waits, named_arrive arrives without waiting (PTX:
 * barrier.sync, barrier.arrive). `threads` counts both the threads that wait and those that only arrive.
 * Barrier number 0 is used by __syncthreads. */
__device__ __forceinline__ void named_sync(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_arrive(int number, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* Begins to copy 16 bytes from global to shared memory, bypassing L1. If `there` is false, writes zeros and
 * reads nothing (PTX: cp.async). */
__device__ __forceinline__ void copy_chunk(uint32_t to, const void *from, bool there)
{
    asm volatile("{\n.reg .pred absent;\nsetp.eq.u32 absent, %2, 0;\n"
                 "cp.async.cg.shared.global [%0], [%1], 16, absent;\n}" ::"r"(to),
                 "l"(from), "r"((uint32_t)there)
                 : "memory");
}

/* Arrives at a barrier in shared memory, and makes the barrier's present phase also wait for `bytes` bytes of
 * TMA copies (PTX: mbarrier.arrive.expect_tx). */
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Returns true in one lane of a warp, always the same lane. The whole warp must call. For TMA instructions
 * after this test the compiler emits one instruction; after a test for lane 0 the compiler would generate a
 * loop over lanes (PTX: elect.sync). */
__device__ __forceinline__ bool elected()
{
    uint32_t chosen;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
    return chosen != 0;
}

/* TMA: begins to copy a box of a four-dimensional tensor, at coordinates x, y, z, w, to shared memory,
 * swizzled as the descriptor `map` says. The bytes count towards the barrier's phase (PTX:
 * cp.async.bulk.tensor). */
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, int x, int y, int z, int w,
                                         uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
                 : "memory");
}

/* TMA: begins to copy consecutive bytes from global to shared memory. The bytes count towards the barrier's
 * phase. Addresses and `bytes` are multiples of 16 (PTX: cp.async.bulk). */
__device__ __forceinline__ void copy_bulk(uint32_t to, const void *from, int bytes, uint32_t barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

/* Makes initialised barriers visible to the async proxy, through which TMA arrives (PTX:
 * fence.mbarrier_init). */
__device__ __forceinline__ void fence_fresh_barriers()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Call between writes to shared memory and wgmma or bulk additions that read them. The writes, by ordinary
 * stores or cp.async, must be complete. The fence is needed because wgmma and bulk additions access memory
 * through another path, the async proxy (PTX: Async Proxy, fence.proxy). */
__device__ __forceinline__ void fence_for_products()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* TMA: begins to add floats of shared memory to global memory. Both addresses and `bytes` are multiples of
 * 16; shared memory is read through the async proxy (PTX: cp.reduce.async.bulk). */
__device__ __forceinline__ void add_bulk(void *to, uint32_t from, int bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}

/* Closes a group of this thread's bulk additions, so that bulk_wait can wait for this group (PTX:
 * cp.async.bulk.commit_group). */
__device__ __forceinline__ void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until this thread's groups of bulk additions, except the LATER newest, have read their shared
 * memory, which may then be overwritten. */
template <int LATER> __device__ __forceinline__ void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LATER) : "memory");
}

/* Waits until all of this thread's groups of bulk additions are complete. */
__device__ __forceinline__ void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Stores four 8 x 8 matrices of BF16 from fragments x[0 .. 4); lane l passes the address of row l % 8 of
 * matrix l / 8 (PTX: stmatrix). */
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

/* Loads two neighbouring floats from shared memory. */
__device__ __forceinline__ float2 load_two(uint32_t from)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
    return x;
}

/* give_registers reduces, and take_registers below raises, the number of registers of each thread of the
 * calling warpgroup to REGISTERS (PTX: setmaxnreg). */
template <int REGISTERS> __device__ __forceinline__ void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ __forceinline__ void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* wgmma's descriptor of a matrix of atoms (PTX: Matrix Descriptor Format; Strides). Bits 0-13 are address /
 * 16, 16-29 `leading` / 16, 32-45 `stride` / 16, and 62-63 the swizzle, 1 for 128 bytes.
 *     stride     bytes from 8 lines to the next 8
 *     leading    bytes from 64 elements of a line to the next 64. Used in MN-major only: a K-major product
 *                sums over 16 elements, which are inside an atom
 * Addresses are below 2^18, so adding n / 16 to a descriptor moves the matrix by n bytes. A K-major matrix
 * moves by 32 bytes for 16 elements, inside an atom: the hardware swizzles by the bits of the address. */
__device__ __forceinline__ uint64_t matrix_at(uint32_t address, uint32_t leading, uint32_t stride)
{
    return (uint64_t)(address >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* Call before the first product (wgmma), and after any access to registers that a product uses (PTX:
 * wgmma.fence). */
__device__ __forceinline__ void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Closes a group of products (wgmma), so that products_wait can wait for this group (PTX:
 * wgmma.commit_group). */
__device__ __forceinline__ void products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most LATER groups of products (wgmma) are still incomplete (PTX: wgmma.wait_group). */
template <int LATER> __device__ __forceinline__ void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory");
}

/* Keeps the compiler, which does not know that wgmma is asynchronous, from moving accesses to the registers
 * x before the preceding products_wait or after the next product. Emits no instruction. */
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

/* Makes the compiler take the registers x as set, with any contents, for a product that overwrites them
 * instead of adding to them. Emits no instruction. */
template <int N> __device__ __forceinline__ void leave_unset(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "=f"(x[i]));
}

/* Returns x in a way that makes the compiler take the result for a new value. So the compiler recomputes
 * values derived from x where they are used, and does not keep them in registers for which a surrounding loop
 * has no room. */
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

/* Products of a warpgroup with 64 rows, summed over 16 elements (PTX: wgmma.mma_async; Register Fragments).
 * Warp w of the four has rows 16 w to 16 w + 15. Relative to these, lane l holds in
 *     d[4 j + i]    row l / 4 + i / 2 * 8, column 8 j + l % 4 * 2 + i % 2
 *     a[i]          two elements: row l / 4 + i % 2 * 8, elements l % 4 * 2 + i / 2 * 8 and the next
 * So when p[] is packed from d[], its registers 4 n to 4 n + 3 are a left factor for elements from 16 n
 * on. */

/* Inline PTX must name the registers of a product one by one, which a template cannot do. */
#define DSVI_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define DSVI_REGISTERS_32 \
    DSVI_REGISTERS_16     \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DSVI_REGISTERS_48 \
    DSVI_REGISTERS_32     \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define DSVI_REGISTERS_64                                                                \
    DSVI_REGISTERS_32                                                                    \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DSVI_REGISTERS_96                                                                \
    DSVI_REGISTERS_64                                                                    \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define DSVI_FLOATS_8(d, i)                                                                     \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define DSVI_FLOATS_32(d, i) \
    DSVI_FLOATS_8(d, i), DSVI_FLOATS_8(d, i + 8), DSVI_FLOATS_8(d, i + 16), DSVI_FLOATS_8(d, i + 24)
#define DSVI_FLOATS_64(d) DSVI_FLOATS_32(d, 0), DSVI_FLOATS_32(d, 32)

/* d = a b^T, or with `add` d += a b^T: a 64 x 64 product, a and b both K-major matrices in shared memory. */
__device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DSVI_REGISTERS_32
                 "}, %32, %33, add, 1, 1, 0, 0;\n}"
                 : DSVI_FLOATS_32(d, 0)
                 : "l"(a), "l"(b), "r"((int)add));
}

/* d = a b^T, or with `add` d += a b^T: a 64 x 128 product, a and b both K-major matrices in shared memory. */
__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" DSVI_REGISTERS_64
                 "}, %64, %65, add, 1, 1, 0, 0;\n}"
                 : DSVI_FLOATS_64(d)
                 : "l"(a), "l"(b), "r"((int)add));
}

/* d = a b^T, or with `add` d += a b^T: a 64 x 32 product, a and b both K-major matrices in shared memory. */
__device__ __forceinline__ void multiply(float (&d)[16], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" DSVI_REGISTERS_16
                 "}, %16, %17, add, 1, 1, 0, 0;\n}"
                 : DSVI_FLOATS_8(d, 0), DSVI_FLOATS_8(d, 8)
                 : "l"(a), "l"(b), "r"((int)add));
}

/* d = a b^T, or with `add` d += a b^T: a 64 x 96 product, a and b both K-major matrices in shared memory. */
__device__ __forceinline__ void multiply(float (&d)[48], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %50, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" DSVI_REGISTERS_48
                 "}, %48, %49, add, 1, 1, 0, 0;\n}"
                 : DSVI_FLOATS_32(d, 0), DSVI_FLOATS_8(d, 32), DSVI_FLOATS_8(d, 40)
                 : "l"(a), "l"(b), "r"((int)add));
}

/* d = a b^T, or with `add` d += a b^T: a 64 x 192 product, a and b both K-major matrices in shared memory. */
__device__ __forceinline__ void multiply(float (&d)[96], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" DSVI_REGISTERS_96
                 "}, %96, %97, add, 1, 1, 0, 0;\n}"
                 : DSVI_FLOATS_32(d, 0), DSVI_FLOATS_32(d, 32), DSVI_FLOATS_32(d, 64)
                 : "l"(a), "l"(b), "r"((int)add));
}

/* d += a b: a 64 x 64 product, a in registers, b an MN-major matrix in shared memory. */
__device__ __forceinline__ void multiply_add(float (&d)[32], const uint32_t *a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DSVI_REGISTERS_32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : DSVI_FLOATS_32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* d += a b: a 64 x 128 product, a in registers, b an MN-major matrix in shared memory. */
__device__ __forceinline__ void multiply_add(float (&d)[64], const uint32_t *a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" DSVI_REGISTERS_64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : DSVI_FLOATS_64(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* d = a b, or with `add` d += a b: a 64 x 64 product, a in registers, b an MN-major matrix in shared
 * memory. */
__device__ __forceinline__ void multiply_left(float (&d)[32], const uint32_t *a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DSVI_REGISTERS_32
                 "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}"
                 : DSVI_FLOATS_32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

/* d = a b, or with `add` d += a b: a 64 x 128 product, a in registers, b an MN-major matrix in shared
 * memory. */
__device__ __forceinline__ void multiply_left(float (&d)[64], const uint32_t *a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" DSVI_REGISTERS_64
                 "}, {%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}"
                 : DSVI_FLOATS_64(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

/* d += a^T b: a 64 x 64 product, a and b both MN-major matrices in shared memory (their lines are summed
 * over). */
__device__ __forceinline__ void multiply_add_transposed(float (&d)[32], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DSVI_REGISTERS_32
                 "}, %32, %33, 1, 1, 1, 1, 1;"
                 : DSVI_FLOATS_32(d, 0)
                 : "l"(a), "l"(b));
}

/* d += a^T b: a 64 x 128 product, a and b both MN-major matrices in shared memory (their lines are summed
 * over). */
__device__ __forceinline__ void multiply_add_transposed(float (&d)[64], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" DSVI_REGISTERS_64
                 "}, %64, %65, 1, 1, 1, 1, 1;"
                 : DSVI_FLOATS_64(d)
                 : "l"(a), "l"(b));
}

/* d = a^T b, or with `add` d += a^T b: a 64 x 64 product, a and b both MN-major matrices in shared memory. */
__device__ __forceinline__ void multiply_transposed(float (&d)[32], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DSVI_REGISTERS_32
                 "}, %32, %33, add, 1, 1, 1, 1;\n}"
                 : DSVI_FLOATS_32(d, 0)
                 : "l"(a), "l"(b), "r"((int)add));
}

#undef DSVI_REGISTERS_16
#undef DSVI_REGISTERS_32
#undef DSVI_REGISTERS_48
#undef DSVI_REGISTERS_64
#undef DSVI_REGISTERS_96
#undef DSVI_FLOATS_8
#undef DSVI_FLOATS_32
#undef DSVI_FLOATS_64

/* Approximates 2^x; denormals are flushed to 0, and the result is 0 at -inf. */
__device__ __forceinline__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

} // namespace dsvi::hopper

#endif
