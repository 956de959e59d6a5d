/* Adds LoRAs to the weights of a transformer's files. See lora_set.h. */
#include "model/lora/lora_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "model/weights/weights_files.h"

/* Copies of the changed tensors of one file. */
typedef struct LoraMerge {
    const DsviLoraSet *set;
    DsviStoredTensor *tensors; /* (count) of the file that is being written */
    void **owned;              /* (count) memory of changed tensors, otherwise NULL */
    size_t count;
} LoraMerge;

static DsvStatus find_change(const DsviLora *lora, const DsviStoredTensor *tensor, DsviLoraChange *change)
{
    int64_t rows = tensor->ndim > 0 ? tensor->shape[0] : 1;
    DSVI_TRY(dsvi_lora_change(lora, tensor->name, rows > 0 ? rows : 1, tensor->count, change));
    if (change->layer && (!dsvi_dtype_is_floating(tensor->dtype) || tensor->dtype == DSVI_F8_E4M3))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s is %s: a LoRA can be added to F32, BF16, F16 and F64 weights",
                         tensor->name, dsvi_dtype_name(tensor->dtype));
    return DSV_OK;
}

/* ---- checking ---- */

/* Marks the layers that the tensors of a file have. changed: (lora->count) */
static DsvStatus fit_file(const DsviLora *lora, const char *path, bool *changed)
{
    DsviSafetensors *file;
    DsvStatus status = DSV_OK;
    DSVI_TRY(dsvi_safetensors_open(path, &file));
    for (size_t i = 0; i < dsvi_safetensors_count(file) && status == DSV_OK; i++) {
        DsviLoraChange change;
        status = find_change(lora, dsvi_safetensors_at(file, i), &change);
        if (change.layer)
            changed[change.layer - lora->layers] = true;
    }
    dsvi_safetensors_close(&file);
    return status;
}

static DsvStatus fit_lora(const DsviLora *lora, const DsviWeightFiles *files, const char *from)
{
    DsvStatus status = DSV_OK;
    bool *changed = calloc(lora->count + 1, sizeof *changed);
    if (!changed)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %zu layers", lora->count);
    for (size_t i = 0; i < files->count && status == DSV_OK; i++)
        status = fit_file(lora, files->paths[i], changed);
    if (status == DSV_OK)
        status = dsvi_lora_expect_all(lora, changed, from);
    free(changed);
    return status;
}

static DsvStatus check_files(const DsviWeightFiles *files)
{
    for (size_t i = 0; i < files->count; i++) {
        DsviSafetensors *file;
        DSVI_TRY(dsvi_safetensors_open(files->paths[i], &file));
        dsvi_safetensors_close(&file);
    }
    return DSV_OK;
}

DsvStatus dsvi_lora_set_fit(const DsviLoraSet *set, const char *from)
{
    DsviWeightFiles files = {0};
    DsvStatus status = dsvi_weight_files_find(from, &files);
    if (status == DSV_OK)
        status = check_files(&files); /* also without a LoRA */
    for (size_t i = 0; i < set->count && status == DSV_OK; i++)
        status = fit_lora(&set->lora[i], &files, from);
    dsvi_weight_files_free(&files);
    return status;
}

/* ---- writing ---- */

static DsvStatus is_changed(const DsviLoraSet *set, const DsviStoredTensor *tensor, bool *changed)
{
    *changed = false;
    for (size_t i = 0; i < set->count; i++) {
        DsviLoraChange change;
        DSVI_TRY(find_change(&set->lora[i], tensor, &change));
        *changed = *changed || change.layer;
    }
    return DSV_OK;
}

/* Stores the tensor's values with all changes in `out`, in the tensor's dtype. values: room for (count) F32
 */
static DsvStatus add_changes(const DsviLoraSet *set, const DsviStoredTensor *tensor, float *values, void *out)
{
    dsvi_convert(DSVI_F32, values, tensor->dtype, tensor->data, tensor->count);
    for (size_t i = 0; i < set->count; i++) {
        DsviLoraChange change;
        DSVI_TRY(find_change(&set->lora[i], tensor, &change));
        if (change.layer)
            DSVI_TRY(dsvi_lora_add(&set->lora[i], &change, set->scale[i], values));
    }
    dsvi_convert(tensor->dtype, out, DSVI_F32, values, tensor->count);
    if (!dsvi_all_finite(tensor->dtype, out, tensor->count))
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s is not finite in %s after the LoRA is added, expected a smaller scale",
                         tensor->name, dsvi_dtype_name(tensor->dtype));
    return DSV_OK;
}

/* Replaces the data of *tensor by a changed copy, if a LoRA changes the tensor. */
static DsvStatus merge_tensor(const DsviLoraSet *set, DsviStoredTensor *tensor, void **owned)
{
    bool changed;
    DSVI_TRY(is_changed(set, tensor, &changed));
    if (!changed)
        return DSV_OK;
    float *values = malloc((size_t)tensor->count * sizeof *values);
    *owned = malloc(tensor->bytes);
    DsvStatus status = values && *owned
                           ? add_changes(set, tensor, values, *owned)
                           : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a copy of %s", tensor->name);
    free(values);
    tensor->data = *owned;
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
        DSVI_TRY(merge_tensor(m->set, &m->tensors[i], &m->owned[i]));
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

DsvStatus dsvi_lora_set_merge(const DsviLoraSet *set, const char *from, const char *to)
{
    DsviWeightFiles files = {0};
    LoraMerge merge = {.set = set};
    DsvStatus status = dsvi_weight_files_find(from, &files);
    for (size_t i = 0; i < files.count && status == DSV_OK; i++)
        status = merge_file(&merge, files.paths[i], to);
    dsvi_weight_files_free(&files);
    return status;
}
