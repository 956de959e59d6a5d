/* Implements gemm_peak.h. */
#include "ops/gemm_peak.h"

#include <math.h>
#include <stdlib.h>

#include "base/rng.h"

/* Matrix products that are timed: smallest and largest side of the square matrices, and repetitions. */
enum { PEAK_SIDE = 1024, PEAK_SIDE_MAX = 8192, PEAK_TRIES = 4 };
/* A timed matrix product must take at least so many seconds; the time of a shorter one is mostly launch
 * overhead. */
#define PEAK_SECONDS 1e-3

/* Fills device memory with random numbers, the same in every PEAK_SIDE x PEAK_SIDE elements. Products of
 * zeros would be faster than those of real data. */
static DsvStatus fill_random(DsviDevice *device, DsviDtype dtype, void *memory, size_t bytes)
{
    size_t count = (size_t)PEAK_SIDE * PEAK_SIDE, tile = count * dsvi_dtype_size(dtype);
    DsviRng rng = {0, DSVI_RNG_TEST, 0};
    DsvStatus status;
    float *numbers = malloc(count * (sizeof *numbers + dsvi_dtype_size(dtype)));
    if (!numbers)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the numbers of a product");
    dsvi_rng_fill_normal(rng, 0, numbers, (int64_t)count);
    dsvi_convert(dtype, numbers + count, DSVI_F32, numbers, (int64_t)count);
    for (size_t at = 0; at < bytes; at += tile)
        DSVI_TRY_GOTO(status, device->upload(device->stream, (char *)memory + at, numbers + count, tile),
                      done);
    DSVI_TRY_GOTO(status, device->sync(device->stream), done);
done:
    free(numbers);
    return status;
}

/* Measures the seconds of a product of two side x side matrices in the compute dtype: the fastest of
 * PEAK_TRIES. */
static DsvStatus time_product(const DsviBackend *backend, DsviDtype act, int64_t side, double *best)
{
    DsviDevice *device = backend->device;
    size_t bytes = (size_t)(side * side) * dsvi_dtype_size(act);
    DsvStatus status;
    void *memory;
    *best = INFINITY;
    DSVI_TRY(device->mem_alloc(device, 3 * bytes, &memory));
    DsviGemmArgs args = {
        .m = side,
        .n = side,
        .k = side,
        .ab_dtype = act,
        .c_dtype = act,
        .bias_dtype = DSVI_F32,
        .a = memory,
        .lda = side,
        .b = (char *)memory + bytes,
        .ldb = side,
        .trans_b = true,
        .c = (char *)memory + 2 * bytes,
        .ldc = side,
    };
    DSVI_TRY_GOTO(status, fill_random(device, act, memory, 2 * bytes), done);
    for (int i = 0; i < PEAK_TRIES; i++) {
        double start, end;
        DSVI_TRY_GOTO(status, device->clock(device->stream, &start), done);
        DSVI_TRY_GOTO(status, backend->ops.gemm.run(device->stream, &args), done);
        DSVI_TRY_GOTO(status, device->clock(device->stream, &end), done);
        *best = fmin(*best, end - start);
    }
done:
    device->mem_free(device, memory);
    return status;
}

/* The side of the matrices is doubled until a product takes PEAK_SECONDS, or until there
 * is no memory for a larger one. */
DsvStatus dsvi_gemm_peak(const DsviBackend *backend, DsviDtype act, double *flops)
{
    double best = 0;
    for (int64_t side = PEAK_SIDE; side <= PEAK_SIDE_MAX && best < PEAK_SECONDS; side *= 2) {
        DsvStatus status = time_product(backend, act, side, &best);
        if (status == DSV_E_NO_MEMORY && side > PEAK_SIDE)
            return DSV_OK;
        DSVI_TRY(status);
        *flops = 2.0 * (double)(side * side * side) / best;
    }
    return DSV_OK;
}
