/* Loads the weights of a VAE: kernels as (out, frames, rows, columns, in) in the dtype of activations, gammas
 * and biases in F32. */
#include <stdlib.h>

#include "device/carve.h"
#include "model/vae/vae_parts.h"

static int64_t param_elements(const DsviVaeParam *param)
{
    int64_t count = 1;
    for (int i = 0; i < param->ndim; i++)
        count *= param->shape[i];
    return count;
}

DsvStatus dsvi_vae_half_check(const DsviVaeHalf *half, DsviTensorSet *set)
{
    for (int64_t i = 0; i < half->param_count; i++) {
        const DsviVaeParam *param = &half->params[i];
        const char *const names[] = {param->name[0], param->name[1], NULL};
        const DsviStoredTensor *tensor;
        if (param->mean)
            continue;
        DSVI_TRY(dsvi_tensor_set_take(set, names, param->ndim, param->shape, &tensor));
    }
    return DSV_OK;
}

typedef struct HalfLayout {
    DsviVaeHalf *half;
    DsviDtype act;
} HalfLayout;

static void carve_half(void *context, DsviArena *arena)
{
    HalfLayout *layout = context;
    for (int64_t i = 0; i < layout->half->param_count; i++) {
        const DsviVaeParam *param = &layout->half->params[i];
        size_t element = dsvi_dtype_size(param->kernel ? layout->act : DSVI_F32);
        *param->where = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, (size_t)param_elements(param) * element);
    }
    if (!arena->base)
        layout->half->bytes = arena->used;
}

/* Reorders a kernel (out, in, taps) to (out, taps, in). */
static void reorder_kernel(const DsviVaeParam *param, const float *from, float *to)
{
    int64_t out = param->shape[0], in = param->shape[1], taps = param_elements(param) / (out * in);
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++)
            for (int64_t k = 0; k < taps; k++)
                to[(o * taps + k) * in + i] = from[(o * in + i) * taps + k];
}

/* Makes the kernel (out, in, taps) of a mean: output o is the mean of the o-th of `out` equal groups of (in,
 * taps). */
static void make_mean(const DsviVaeParam *param, float *to)
{
    int64_t out = param->shape[0], inputs = param_elements(param) / out, group = inputs / out;
    for (int64_t o = 0; o < out; o++)
        for (int64_t k = 0; k < inputs; k++)
            to[o * inputs + k] = k / group == o ? 1 / (float)group : 0;
}

static void read_param(const DsviVaeParam *param, DsviTensorSet *set, float *to)
{
    const char *const names[] = {param->name[0], param->name[1], NULL};
    if (param->mean)
        make_mean(param, to);
    else
        dsvi_tensor_set_read(set, dsvi_tensor_set_find(set, names), 0, param_elements(param), DSVI_F32, to);
}

/* `stored` and `ready`: each with room for the largest tensor. */
static DsvStatus load_param(DsviDevice *device, const DsviVaeParam *param, DsviTensorSet *set, DsviDtype act,
                            float *stored, float *ready)
{
    DsviDtype dtype = param->kernel ? act : DSVI_F32;
    int64_t count = param_elements(param);
    const void *source = stored;
    read_param(param, set, stored);
    if (param->kernel) {
        reorder_kernel(param, stored, ready);
        source = ready;
    }
    if (dtype != DSVI_F32) {
        dsvi_convert(dtype, stored, DSVI_F32, ready, count);
        source = stored;
    }
    DSVI_TRY(device->upload(device->stream, (void *)*param->where, source,
                            (size_t)count * dsvi_dtype_size(dtype)));
    return device->sync(device->stream);
}

DsvStatus dsvi_vae_half_load(DsviDevice *device, DsviVaeHalf *half, DsviTensorSet *set, DsviDtype act)
{
    DsvStatus status = DSV_OK;
    HalfLayout layout = {half, act};
    int64_t largest = 1;
    for (int64_t i = 0; i < half->param_count; i++)
        if (param_elements(&half->params[i]) > largest)
            largest = param_elements(&half->params[i]);
    float *host = malloc((size_t)largest * 2 * sizeof *host);
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a weight of %lld numbers", (long long)largest);
    DSVI_TRY_GOTO(status, dsvi_device_alloc_layout(device, carve_half, &layout, &half->memory), done);
    for (int64_t i = 0; i < half->param_count && status == DSV_OK; i++)
        status = load_param(device, &half->params[i], set, act, host, host + largest);
done:
    free(host);
    return status;
}
