/* The tensors of several mapped safetensors files, in one list in the order of their names. See
 * tensor_set.h. */
#include "model/weights/tensor_set.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/weights/weights_files.h"

enum { NAMES_LISTED = 8, NAME_SHOWN = 96, SCALE_NAME_BYTES = 1088 };

/* A tensor, and whether the model has taken it. */
typedef struct SetEntry {
    const DsviStoredTensor *tensor;
    const DsviSafetensors *file;
    bool used;
} SetEntry;

struct DsviTensorSet {
    char *path;
    DsviSafetensors **files; /* (file_count) */
    size_t file_count;
    SetEntry *entries; /* (count) in the order of their names */
    size_t count;
};

static int set_entry_order(const void *a, const void *b)
{
    return strcmp(((const SetEntry *)a)->tensor->name, ((const SetEntry *)b)->tensor->name);
}

/* Makes the list of all tensors of the open files. */
static DsvStatus set_list_tensors(DsviTensorSet *set)
{
    size_t room = 1;
    for (size_t f = 0; f < set->file_count; f++)
        room += dsvi_safetensors_count(set->files[f]);
    set->entries = calloc(room, sizeof *set->entries);
    if (!set->entries)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of %zu tensors", set->path, room);
    for (size_t f = 0; f < set->file_count; f++)
        for (size_t i = 0; i < dsvi_safetensors_count(set->files[f]); i++)
            set->entries[set->count++] = (SetEntry){.tensor = dsvi_safetensors_at(set->files[f], i),
                                                    .file = set->files[f]};
    qsort(set->entries, set->count, sizeof *set->entries, set_entry_order);
    for (size_t i = 1; i < set->count; i++)
        if (set_entry_order(&set->entries[i - 1], &set->entries[i]) == 0)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s is in %s too, expected it in one file",
                             dsvi_safetensors_path(set->entries[i].file), set->entries[i].tensor->name,
                             dsvi_safetensors_path(set->entries[i - 1].file));
    return DSV_OK;
}

DsvStatus dsvi_tensor_set_open(const char *path, DsviTensorSet **out)
{
    DsvStatus status;
    DsviWeightFiles found = {0};
    DsviTensorSet *set = calloc(1, sizeof *set);
    *out = NULL;
    if (!set || !(set->path = strdup(path))) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to open it", path);
        goto fail;
    }
    DSVI_TRY_GOTO(status, dsvi_weight_files_find(path, &found), fail);
    set->files = calloc(found.count, sizeof(DsviSafetensors *));
    if (!set->files) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of %zu files", path, found.count);
        goto fail;
    }
    for (; set->file_count < found.count; set->file_count++)
        DSVI_TRY_GOTO(
            status, dsvi_safetensors_open(found.paths[set->file_count], &set->files[set->file_count]), fail);
    DSVI_TRY_GOTO(status, set_list_tensors(set), fail);
    dsvi_weight_files_free(&found);
    *out = set;
    return DSV_OK;
fail:
    dsvi_weight_files_free(&found);
    dsvi_tensor_set_close(&set);
    return status;
}

void dsvi_tensor_set_close(DsviTensorSet **set)
{
    DsviTensorSet *s = *set;
    if (!s)
        return;
    for (size_t f = 0; f < s->file_count; f++)
        dsvi_safetensors_close(&s->files[f]);
    free(s->files);
    free(s->entries);
    free(s->path);
    free(s);
    *set = NULL;
}

static SetEntry *set_entry(const DsviTensorSet *set, const char *name)
{
    const DsviStoredTensor wanted = {.name = name};
    const SetEntry key = {.tensor = &wanted};
    return set->count ? bsearch(&key, set->entries, set->count, sizeof key, set_entry_order) : NULL;
}

static SetEntry *set_first_entry(const DsviTensorSet *set, const char *const *names)
{
    for (; *names; names++) {
        SetEntry *entry = set_entry(set, *names);
        if (entry)
            return entry;
    }
    return NULL;
}

const DsviStoredTensor *dsvi_tensor_set_find(const DsviTensorSet *set, const char *const *names)
{
    const SetEntry *entry = set_first_entry(set, names);
    return entry ? entry->tensor : NULL;
}

/* Finds the tensor whose name is the weight's name with `ending` instead of its last part, ".weight". Returns
 * NULL if no such tensor exists, or the name of the weight ends otherwise. */
static SetEntry *set_beside_weight(const DsviTensorSet *set, const char *weight, const char *ending)
{
    static const char last[] = ".weight";
    const size_t length = strlen(weight), last_length = sizeof last - 1;
    char name[SCALE_NAME_BYTES];
    if (length < last_length || strcmp(weight + length - last_length, last) != 0)
        return NULL;
    int needed = snprintf(name, sizeof name, "%.*s%s", (int)(length - last_length), weight, ending);
    return needed < (int)sizeof name ? set_entry(set, name) : NULL;
}

static SetEntry *set_scale_of(const DsviTensorSet *set, const char *weight)
{
    SetEntry *scale = set_beside_weight(set, weight, ".scale_weight");
    return scale ? scale : set_beside_weight(set, weight, ".weight_scale");
}

/* Checks the scale of an F8 weight, if the file has one, and counts as used what belongs to the weight: its
 * scale, and the scale of the layer's input, which is for products of F8 matrices. */
static DsvStatus set_take_scale(DsviTensorSet *set, const char *weight)
{
    static const char *const inputs[] = {".scale_input", ".input_scale"};
    SetEntry *scale = set_scale_of(set, weight);
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        SetEntry *input = set_beside_weight(set, weight, inputs[i]);
        if (input)
            input->used = true;
    }
    if (!scale)
        return DSV_OK;
    const DsviStoredTensor *tensor = scale->tensor;
    scale->used = true;
    DSVI_TRY(dsvi_safetensors_require_floating(scale->file, tensor->name, -1, NULL, &tensor));
    if (tensor->count != 1)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: scale %s has %lld numbers, expected one for the tensor",
                         dsvi_safetensors_path(scale->file), tensor->name, (long long)tensor->count);
    if (!isfinite(dsvi_load(tensor->dtype, tensor->data, 0)))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: scale %s is not finite, expected a number",
                         dsvi_safetensors_path(scale->file), tensor->name);
    return DSV_OK;
}

DsvStatus dsvi_tensor_set_take(DsviTensorSet *set, const char *const *names, int ndim, const int64_t *shape,
                               const DsviStoredTensor **out)
{
    SetEntry *entry = set_first_entry(set, names);
    *out = NULL;
    if (!entry)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no tensor %s", set->path, names[0]);
    DSVI_TRY(dsvi_safetensors_require_floating(entry->file, entry->tensor->name, ndim, shape, out));
    entry->used = true;
    return (*out)->dtype == DSVI_F8_E4M3 ? set_take_scale(set, entry->tensor->name) : DSV_OK;
}

void dsvi_tensor_set_skip(DsviTensorSet *set, const char *name)
{
    SetEntry *entry = set_entry(set, name);
    if (entry)
        entry->used = true;
}

DsvStatus dsvi_tensor_set_finish(const DsviTensorSet *set)
{
    char text[NAMES_LISTED * (NAME_SHOWN + 2) + 8];
    size_t used = 0;
    int64_t unknown = 0;
    for (size_t i = 0; i < set->count; i++) {
        if (set->entries[i].used || unknown++ >= NAMES_LISTED)
            continue;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%.*s", used ? ", " : "", NAME_SHOWN,
                                 set->entries[i].tensor->name);
    }
    if (unknown == 0)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_SHAPE, "%s: %lld tensor%s unknown, expected only those of the model: %s%s",
                     set->path, (long long)unknown, unknown == 1 ? " is" : "s are", text,
                     unknown > NAMES_LISTED ? ", ..." : "");
}

void dsvi_tensor_set_read(const DsviTensorSet *set, const DsviStoredTensor *tensor, int64_t first,
                          int64_t count, DsviDtype dtype, void *out)
{
    const char *from = (const char *)tensor->data + (size_t)first * dsvi_dtype_size(tensor->dtype);
    DSVI_ASSERT(first >= 0 && count >= 0 && first <= tensor->count && count <= tensor->count - first);
    if (tensor->dtype != DSVI_F8_E4M3) {
        dsvi_convert(dtype, out, tensor->dtype, from, count);
        return;
    }
    const SetEntry *scale = set_scale_of(set, tensor->name);
    double factor = scale ? dsvi_load(scale->tensor->dtype, scale->tensor->data, 0) : 1;
    dsvi_convert_f8(dtype, out, from, factor, count);
}
