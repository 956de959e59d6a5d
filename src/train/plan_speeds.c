/* Implements plan_speeds.h. */
#include "train/plan_speeds.h"

#include <stdlib.h>

#include "base/host.h"
#include "model/dit/dit.h"
#include "ops/gemm_peak.h"
#include "train/memory_plan.h"
#include "train/update_place.h"

/* Enough parameters that their state does not stay in a cache. */
enum { PARAMETERS = 16 << 20, ARRAYS = 4, UPDATE_TRIES = 3 };
/* Bytes that AdamW reads and writes per parameter: gradient, weight and two moments in F32, and the weight in
 * BF16, of which the gradient is only read and the last only written. */
static const double UPDATE_BYTES = 4 + 3 * 8 + 2;

bool dsvi_plan_needs_speeds(const DsvConfig *settings, const DsviDevice *device)
{
    return dsvi_memory_plans(settings) || dsvi_update_place_is_open(settings, device);
}

/* Sets *best to the seconds of the fastest of some updates. The first one, which touches the memory for the
 * first time, is not counted. Gradients are written before, because the system would keep pages of memory
 * that is only read in one page of zeros, which stays in a cache. */
static DsvStatus time_updates(const DsviOps *ops, float *array, uint16_t *copy, double *best)
{
    for (int64_t i = 0; i < PARAMETERS; i++)
        array[i] = 1e-3F;
    const DsviAdamwArgs args = {
        .n = PARAMETERS,
        .step = 1,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .grad_scale = 1,
        .acc = DSVI_F32,
        .grad = array,
        .weight = array + PARAMETERS,
        .state_dtype = DSVI_F32,
        .m = array + 2 * (size_t)PARAMETERS,
        .v = array + 3 * (size_t)PARAMETERS,
        .copy_dtype = DSVI_BF16,
        .copy = copy,
    };
    for (int i = -1; i < UPDATE_TRIES; i++) {
        double begin = dsvi_clock_seconds();
        DSVI_TRY(ops->adamw.run(NULL, &args));
        double seconds = dsvi_clock_seconds() - begin;
        if (i <= 0 || seconds < *best)
            *best = seconds;
    }
    return DSV_OK;
}

/* Sets *speed as measured; without memory for the measurement it stays. */
static DsvStatus measure_update(const DsviBackend *backend, double *speed)
{
    double seconds = 0;
    float *array = calloc((size_t)ARRAYS * PARAMETERS, sizeof *array);
    uint16_t *copy = calloc(PARAMETERS, sizeof *copy);
    DsvStatus status = DSV_OK;
    if (array && copy)
        status = time_updates(&backend->host_ops, array, copy, &seconds);
    if (status == DSV_OK && seconds > 0)
        *speed = UPDATE_BYTES * PARAMETERS / seconds;
    free(array);
    free(copy);
    return status;
}

DsvStatus dsvi_plan_speeds(const DsvConfig *settings, const DsviBackend *backend, DsviDeviceSpeeds *speeds)
{
    *speeds = dsvi_device_speeds_nominal();
    speeds->assumed = settings->deterministic;
    if (settings->deterministic)
        return DSV_OK;
    DSVI_TRY(dsvi_device_speeds_time_copies(backend->device, speeds));
    if (backend->device->kind != DSVI_DEVICE_CPU)
        DSVI_TRY(measure_update(backend, &speeds->update));
    return dsvi_gemm_peak(backend, dsvi_dit_act(settings), &speeds->flops);
}
