/* Implements wan_latents.h. */
#include "pipeline/wan_latents.h"

#include <math.h>
#include <stdlib.h>

#include "base/safetensors.h"

DsvStatus dsvi_wan_latents_read(const char *path, const char *name, DsviVideoShape shape, float **out)
{
    DsvStatus status;
    DsviSafetensors *file;
    const DsviStoredTensor *tensor;
    const int64_t wanted[5] = {1, shape.channels, shape.frames, shape.height, shape.width};
    *out = NULL;
    DSVI_TRY(dsvi_safetensors_open(path, &file));
    tensor = dsvi_safetensors_find(file, name);
    bool batch = !tensor || tensor->ndim == 5;
    DSVI_TRY_GOTO(status,
                  dsvi_safetensors_require_floating(file, name, batch ? 5 : 4, batch ? wanted : wanted + 1,
                                                    &tensor),
                  done);
    *out = malloc((size_t)tensor->count * sizeof **out);
    if (!*out) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for tensor %s", path, name);
        goto done;
    }
    dsvi_convert(DSVI_F32, *out, tensor->dtype, tensor->data, tensor->count);
    for (int64_t i = 0; i < tensor->count && status == DSV_OK; i++)
        if (!isfinite((*out)[i]))
            status = DSVI_FAIL(DSV_E_FORMAT, "%s: element %lld of tensor %s is not finite", path,
                               (long long)i, name);
done:
    dsvi_safetensors_close(&file);
    return status;
}

DsvStatus dsvi_wan_latents_write(const char *path, DsviVideoShape shape, const float *latents)
{
    int64_t count = shape.channels * shape.frames * shape.height * shape.width;
    DsviStoredTensor tensor = {.name = "latents",
                               .dtype = DSVI_F32,
                               .ndim = 5,
                               .shape = {1, shape.channels, shape.frames, shape.height, shape.width},
                               .count = count,
                               .bytes = (size_t)count * sizeof *latents,
                               .data = latents};
    return dsvi_safetensors_replace(path, &tensor, 1, NULL, 0);
}
