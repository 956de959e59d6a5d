/* Adds a LoRA to the weights of a transformer's files. See lora.h. */
#include "model/lora/lora.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "model/weights/weights_files.h"

/* Copies of the changed tensors of one file. */
typedef struct LoraMerge {
    const DsviLora *lora;
    double scale;
    bool *changed;             /* (lora->count) layers that have been added */
    DsviStoredTensor *tensors; /* (count) of the file that is being written */
    void **owned;              /* (count) memory of changed tensors, otherwise NULL */
    size_t count;
} LoraMerge;

/* Replaces the data of *tensor by a changed copy, if the LoRA changes the tensor. */
static DsvStatus merge_tensor(LoraMerge *m, DsviStoredTensor *tensor, void **owned)
{
    DsviLoraChange change;
    int64_t rows = tensor->ndim > 0 ? tensor->shape[0] : 1;
    DSVI_TRY(dsvi_lora_change(m->lora, tensor->name, rows > 0 ? rows : 1, tensor->count, &change));
    if (!change.layer)
        return DSV_OK;
    if (!dsvi_dtype_is_floating(tensor->dtype))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s is %s: a LoRA can be added to F32, BF16, F16 and F64 weights",
                         tensor->name, dsvi_dtype_name(tensor->dtype));
    float *values = malloc((size_t)tensor->count * sizeof *values);
    *owned = malloc(tensor->bytes);
    if (!values || !*owned) {
        free(values);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a copy of %s", tensor->name);
    }
    dsvi_convert(DSVI_F32, values, tensor->dtype, tensor->data, tensor->count);
    DsvStatus status = dsvi_lora_add(m->lora, &change, m->scale, values);
    dsvi_convert(tensor->dtype, *owned, DSVI_F32, values, tensor->count);
    free(values);
    tensor->data = *owned;
    m->changed[change.layer - m->lora->layers] = true;
    return status;
}

static DsvStatus merge_tensors(LoraMerge *m, const DsviSafetensors *file, const char *to)
{
    m->count = dsvi_safetensors_count(file);
    m->tensors = calloc(m->count + 1, sizeof *m->tensors);
    m->owned = calloc(m->count + 1, sizeof *m->owned);
    if (!m->tensors || !m->owned)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %zu tensors", m->count);
    for (size_t i = 0; i < m->count; i++) {
        m->tensors[i] = *dsvi_safetensors_at(file, i);
        DSVI_TRY(merge_tensor(m, &m->tensors[i], &m->owned[i]));
    }
    return dsvi_safetensors_replace(to, m->tensors, m->count, NULL, 0);
}

static DsvStatus merge_file(LoraMerge *m, const char *from, const char *folder)
{
    char to[DSVI_PATH_MAX];
    const char *slash = strrchr(from, '/');
    DsviSafetensors *file;
    DSVI_TRY(dsvi_path_join(to, folder, slash ? slash + 1 : from));
    DSVI_TRY(dsvi_safetensors_open(from, &file));
    DsvStatus status = merge_tensors(m, file, to);
    for (size_t i = 0; m->owned && i < m->count; i++)
        free(m->owned[i]);
    free(m->owned);
    free(m->tensors);
    m->owned = NULL;
    m->tensors = NULL;
    dsvi_safetensors_close(&file);
    return status;
}

DsvStatus dsvi_lora_merge(const DsviLora *lora, double scale, const char *from, const char *to)
{
    DsvStatus status;
    DsviWeightFiles files = {0};
    LoraMerge merge = {.lora = lora, .scale = scale, .changed = calloc(lora->count + 1, sizeof(bool))};
    if (!merge.changed)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %zu layers", lora->count);
    DSVI_TRY_GOTO(status, dsvi_weight_files_find(from, &files), done);
    for (size_t i = 0; i < files.count; i++)
        DSVI_TRY_GOTO(status, merge_file(&merge, files.paths[i], to), done);
    status = dsvi_lora_expect_all(lora, merge.changed, from);
done:
    free(merge.changed);
    dsvi_weight_files_free(&files);
    return status;
}
