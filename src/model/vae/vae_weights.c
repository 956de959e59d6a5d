/* Loads the weights of a VAE: kernels as (out, frames, rows, columns, in) in the dtype of activations, gammas
 * and biases in F32. */
#include <stdlib.h>

#include "base/threads.h"
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

/* Rows of a parameter (Loading). */
static int64_t rows_of(const DsviVaeParam *param)
{
    return param->kernel ? param->shape[0] : 1;
}

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

/* A parameter on its way from its file to the device, in rows: a kernel has one for each output channel, any
 * other parameter is a single row. */
typedef struct Loading {
    const DsviVaeParam *param;
    DsviTensorSet *set;
    const DsviStoredTensor *tensor; /* NULL: a mean */
    DsviDtype dtype;
    int64_t row;    /* elements of a row */
    void *ready;    /* (rows, row) dtype */
    float *scratch; /* two rows for each thread */
} Loading;

/* Row o of the kernel of a mean, (out, in, taps): output o is the mean of the o-th of `out` equal groups of
 * (in, taps). */
static void make_mean(const DsviVaeParam *param, int64_t o, int64_t row, float *to)
{
    int64_t group = row / param->shape[0];
    for (int64_t k = 0; k < row; k++)
        to[k] = k / group == o ? 1 / (float)group : 0;
}

/* Reorders a row of a kernel, (in, taps), to (taps, in). */
static void reorder_row(int64_t in, int64_t taps, const float *from, float *to)
{
    for (int64_t k = 0; k < taps; k++)
        for (int64_t i = 0; i < in; i++)
            to[k * in + i] = from[i * taps + k];
}

static void load_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const Loading *l = context;
    float *stored = l->scratch + worker * 2 * l->row, *source = stored;
    for (int64_t o = begin; o < end; o++) {
        if (l->tensor)
            dsvi_tensor_set_read(l->set, l->tensor, o * l->row, l->row, DSVI_F32, stored);
        else
            make_mean(l->param, o, l->row, stored);
        if (l->param->kernel) {
            source = stored + l->row;
            reorder_row(l->param->shape[1], l->row / l->param->shape[1], stored, source);
        }
        dsvi_convert(l->dtype, (char *)l->ready + (size_t)(o * l->row) * dsvi_dtype_size(l->dtype), DSVI_F32,
                     source, l->row);
    }
}

/* `ready` has room for the largest parameter, `scratch` for two of its rows for each thread. */
static DsvStatus load_param(DsviDevice *device, const DsviVaeParam *param, DsviTensorSet *set, DsviDtype act,
                            void *ready, float *scratch)
{
    const char *const names[] = {param->name[0], param->name[1], NULL};
    int64_t rows = rows_of(param);
    Loading l = {
        .param = param,
        .set = set,
        .tensor = param->mean ? NULL : dsvi_tensor_set_find(set, names),
        .dtype = param->kernel ? act : DSVI_F32,
        .row = param_elements(param) / rows,
        .ready = ready,
        .scratch = scratch,
    };
    dsvi_parallel_for(rows, 1, load_rows, &l);
    DSVI_TRY(device->upload(device->stream, (void *)*param->where, ready,
                            (size_t)(rows * l.row) * dsvi_dtype_size(l.dtype)));
    return device->sync(device->stream);
}

DsvStatus dsvi_vae_half_load(DsviDevice *device, DsviVaeHalf *half, DsviTensorSet *set, DsviDtype act)
{
    DsvStatus status = DSV_OK;
    HalfLayout layout = {half, act};
    int64_t largest = 1, longest = 1;
    for (int64_t i = 0; i < half->param_count; i++) {
        int64_t count = param_elements(&half->params[i]), row = count / rows_of(&half->params[i]);
        largest = count > largest ? count : largest;
        longest = row > longest ? row : longest;
    }
    size_t scratch = (size_t)(2 * longest * dsvi_threads_count());
    float *host = malloc(((size_t)largest + scratch) * sizeof *host);
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a weight of %lld numbers", (long long)largest);
    DSVI_TRY_GOTO(status, dsvi_device_alloc_layout(device, carve_half, &layout, &half->memory), done);
    for (int64_t i = 0; i < half->param_count && status == DSV_OK; i++)
        status = load_param(device, &half->params[i], set, act, host, host + largest);
done:
    free(host);
    return status;
}
