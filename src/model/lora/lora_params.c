/* Makes the table of a LoRA's parameters. See lora_params.h. */
#include "model/lora/lora_params.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLACE_STEP = 16, NAMES_MAX = 64, NAMES_BYTES = 1024 };

/* The names in DsviLoraOptions.layers, and whether each stands for a layer of the model. */
typedef struct LayerNames {
    char text[NAMES_BYTES];
    char *name[NAMES_MAX];
    bool used[NAMES_MAX];
    int count;
} LayerNames;

static DsvStatus split_names(const char *text, LayerNames *out)
{
    char *rest = out->text, *name;
    if (strlen(text) >= sizeof out->text)
        return DSVI_FAIL(DSV_E_USAGE, "the names of layers for a LoRA are longer than %d bytes",
                         NAMES_BYTES - 1);
    memcpy(out->text, text, strlen(text) + 1);
    while ((name = strsep(&rest, ",")) != NULL) {
        name += strspn(name, " ");
        name[strcspn(name, " ")] = 0;
        if (!name[0])
            continue;
        if (out->count == NAMES_MAX)
            return DSVI_FAIL(DSV_E_USAGE, "more than %d names of layers for a LoRA", NAMES_MAX);
        out->name[out->count++] = name;
    }
    return DSV_OK;
}

/* Returns whether `pattern` matches the layer of the parameter `name` (which ends with .weight), or an ending
 * of the layer that begins after a dot. */
static bool matches_layer(const char *pattern, const char *name)
{
    char layer[96];
    snprintf(layer, sizeof layer, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
    for (const char *at = layer; at; at = strchr(at, '.')) {
        at += *at == '.';
        if (fnmatch(pattern, at, 0) == 0)
            return true;
    }
    return false;
}

/* A LoRA adapts linear layers inside blocks. All of them have a two-dimensional weight in the compute
 * dtype. */
static bool is_adaptable(const DsviParam *param)
{
    return param->ndim == 2 && param->in_compute_dtype && strncmp(param->name, "blocks.", 7) == 0;
}

static bool is_named(LayerNames *names, const DsviParam *param)
{
    bool named = false;
    for (int i = 0; i < names->count && is_adaptable(param); i++) {
        if (matches_layer(names->name[i], param->name) || matches_layer(names->name[i], param->original))
            named = names->used[i] = true;
    }
    return named;
}

static DsvStatus refuse_unused(const LayerNames *names)
{
    for (int i = 0; i < names->count; i++)
        if (!names->used[i])
            return DSVI_FAIL(
                DSV_E_USAGE,
                "lora_target_modules: no linear layer of the blocks is called %s, expected names such as q, "
                "cross_attn.k or ffn.0",
                names->name[i]);
    return names->count ? DSV_OK
                        : DSVI_FAIL(DSV_E_USAGE, "lora_target_modules is empty, expected names of layers");
}

/* Appends A or B of a layer to the table. */
static int64_t append_matrix(DsviParamTable *table, const DsviParam *layer, char letter, int64_t rows,
                             int64_t cols)
{
    DsviParam *param = &table->params[table->count++];
    int stem = (int)(strlen(layer->name) - strlen("weight"));
    int original = (int)(strlen(layer->original) - strlen("weight"));
    snprintf(param->name, sizeof param->name, "%.*slora_%c.weight", stem, layer->name, letter);
    snprintf(param->original, sizeof param->original, "%.*slora_%c.weight", original, layer->original,
             letter);
    param->ndim = 2;
    param->shape[0] = rows;
    param->shape[1] = cols;
    param->count = rows * cols;
    param->offset = table->elements;
    param->init = letter == 'A' ? DSVI_INIT_FAN_IN : DSVI_INIT_ZERO;
    param->in_compute_dtype = true;
    table->parameters += param->count;
    table->elements += (param->count + PLACE_STEP - 1) / PLACE_STEP * PLACE_STEP;
    return param->offset;
}

/* Appends the matrices of a layer. */
static void append_target(DsviLoraParams *out, const DsviParam *layer, int64_t rank, double factor)
{
    DsviLoraTarget *target = &out->targets[out->count++];
    *target = (DsviLoraTarget){.weight = layer->offset, .rank = rank, .factor = factor};
    target->a = append_matrix(&out->table, layer, 'A', rank, layer->shape[1]);
    target->b = append_matrix(&out->table, layer, 'B', layer->shape[0], rank);
    out->rank_max = rank > out->rank_max ? rank : out->rank_max;
}

/* What is adapted: either the named layers, or the layers of a file. */
typedef struct Wanted {
    LayerNames *names;
    const DsviLoraOptions *options;
    const DsviLora *file;
} Wanted;

static DsvStatus append_if_wanted(const Wanted *wanted, const DsviParam *param, DsviLoraParams *out)
{
    DsviLoraChange change;
    if (wanted->file) {
        DSVI_TRY(dsvi_lora_change(wanted->file, param->name, param->shape[0], param->count, &change));
        if (change.layer && change.layer->rank > 0 && is_adaptable(param))
            append_target(out, param, change.layer->rank, change.layer->factor);
        return DSV_OK;
    }
    if (!is_named(wanted->names, param))
        return DSV_OK;
    int64_t rank = wanted->options->rank;
    if (rank > param->shape[0] || rank > param->shape[1])
        return DSVI_FAIL(DSV_E_USAGE, "a LoRA of rank %lld, expected at most the width of %s (%lld, %lld)",
                         (long long)rank, param->name, (long long)param->shape[0],
                         (long long)param->shape[1]);
    append_target(out, param, rank, wanted->options->alpha / (double)rank);
    return DSV_OK;
}

/* Appends parameters in the order of the model's places, bucket by bucket. */
static DsvStatus append_all(const DsviParamTable *model, const Wanted *wanted, DsviLoraParams *out)
{
    DsviParamTable *table = &out->table;
    for (int64_t bucket = 0; bucket < table->buckets; bucket++) {
        table->first[bucket] = table->count;
        table->begin[bucket] = table->gemm[bucket] = table->elements;
        for (int64_t i = model->first[bucket]; i < model->first[bucket + 1]; i++)
            DSVI_TRY(append_if_wanted(wanted, &model->params[i], out));
    }
    table->first[table->buckets] = table->count;
    table->begin[table->buckets] = table->elements;
    return DSV_OK;
}

static DsvStatus make_lora_params(const DsviParamTable *model, const Wanted *wanted, DsviLoraParams *out)
{
    DsviParamTable *table = &out->table;
    DsvStatus status;
    *out = (DsviLoraParams){.count = 0};
    table->buckets = model->buckets;
    table->first = calloc((size_t)table->buckets + 1, sizeof *table->first);
    table->begin = calloc((size_t)table->buckets + 1, sizeof *table->begin);
    table->gemm = calloc((size_t)table->buckets, sizeof *table->gemm);
    table->params = calloc(2 * (size_t)model->count, sizeof *table->params);
    out->targets = calloc((size_t)model->count, sizeof *out->targets);
    if (table->first && table->begin && table->gemm && table->params && out->targets)
        status = append_all(model, wanted, out);
    else
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the table of a LoRA's parameters");
    if (status != DSV_OK)
        dsvi_lora_params_free(out);
    return status;
}

DsvStatus dsvi_lora_params_make(const DsviParamTable *model, const DsviLoraOptions *options,
                                DsviLoraParams *out)
{
    LayerNames names = {.count = 0};
    Wanted wanted = {.names = &names, .options = options};
    *out = (DsviLoraParams){.count = 0};
    if (options->rank < 1)
        return DSVI_FAIL(DSV_E_USAGE, "a LoRA of rank %lld, expected 1 or more", (long long)options->rank);
    DSVI_TRY(split_names(options->layers, &names));
    DSVI_TRY(make_lora_params(model, &wanted, out));
    DsvStatus status = refuse_unused(&names);
    if (status != DSV_OK)
        dsvi_lora_params_free(out);
    return status;
}

DsvStatus dsvi_lora_params_of_file(const DsviParamTable *model, const DsviLora *lora, DsviLoraParams *out)
{
    return make_lora_params(model, &(Wanted){.file = lora}, out);
}

const DsviStoredTensor *dsvi_lora_params_tensor(const DsviLoraParams *params, const DsviLora *lora,
                                                int64_t index)
{
    const DsviParam *param = &params->table.params[index];
    DsviLoraChange change;
    char weight[sizeof param->name];
    int stem = (int)(strlen(param->name) - strlen("lora_A.weight"));
    snprintf(weight, sizeof weight, "%.*sweight", stem, param->name);
    const DsviParam *a = &params->table.params[index & ~(int64_t)1], *b = a + 1;
    DsvStatus status = dsvi_lora_change(lora, weight, b->shape[0], a->shape[1] * b->shape[0], &change);
    DSVI_ASSERT(status == DSV_OK && change.layer);
    return change.layer->part[index % 2 ? DSVI_LORA_B : DSVI_LORA_A];
}

void dsvi_lora_params_read(const DsviLoraParams *params, const DsviLora *lora, float *flat)
{
    memset(flat, 0, (size_t)params->table.elements * sizeof *flat); /* padding must be zero */
    for (int64_t i = 0; i < params->table.count; i++) {
        const DsviStoredTensor *tensor = dsvi_lora_params_tensor(params, lora, i);
        dsvi_convert(DSVI_F32, flat + params->table.params[i].offset, tensor->dtype, tensor->data,
                     tensor->count);
    }
}

/* Fills one tensor of the file: matrix `index`, times the square root of its layer's factor. */
static DsvStatus fill_matrix(const DsviLoraParams *params, int64_t index, const float *flat,
                             DsviStoredTensor *out, char name[DSVI_LORA_NAME_BYTES])
{
    const DsviParam *param = &params->table.params[index];
    double root = sqrt(params->targets[index / 2].factor);
    char layer[DSVI_LORA_NAME_BYTES];
    snprintf(layer, sizeof layer, "%.*s", (int)(strlen(param->name) - strlen(".lora_A.weight")), param->name);
    DSVI_TRY(dsvi_lora_name_make(DSVI_LORA_COMFY, layer, index % 2 ? DSVI_LORA_B : DSVI_LORA_A, name));
    size_t bytes = (size_t)param->count * dsvi_dtype_size(out->dtype);
    void *data = malloc(bytes);
    if (!data)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a copy of %s", name);
    for (int64_t i = 0; i < param->count; i++)
        dsvi_store(out->dtype, data, i, root * (double)flat[param->offset + i]);
    out->name = name;
    out->ndim = 2;
    out->shape[0] = param->shape[0];
    out->shape[1] = param->shape[1];
    out->count = param->count;
    out->bytes = bytes;
    out->data = data;
    return DSV_OK;
}

DsvStatus dsvi_lora_params_write(const DsviLoraParams *params, const float *flat, DsviDtype dtype,
                                 const char *expert, const char *path)
{
    const char *const metadata[1][2] = {{DSVI_LORA_EXPERT_KEY, expert}};
    DsvStatus status;
    int64_t count = params->table.count;
    DsviStoredTensor *tensors = calloc((size_t)count, sizeof *tensors);
    char(*names)[DSVI_LORA_NAME_BYTES] = calloc((size_t)count, sizeof *names);
    if (!tensors || !names) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %lld tensors", (long long)count);
        goto done;
    }
    for (int64_t i = 0; i < count; i++) {
        tensors[i].dtype = dtype;
        DSVI_TRY_GOTO(status, fill_matrix(params, i, flat, &tensors[i], names[i]), done);
    }
    status = dsvi_safetensors_replace(path, tensors, (size_t)count, metadata, expert ? 1 : 0);
done:
    for (int64_t i = 0; tensors && i < count; i++)
        free((void *)tensors[i].data);
    free(tensors);
    free(names);
    return status;
}

void dsvi_lora_params_free(DsviLoraParams *params)
{
    dsvi_param_table_free(&params->table);
    free(params->targets);
    *params = (DsviLoraParams){0};
}

const DsviLoraTarget *dsvi_lora_params_find(const DsviLoraParams *params, int64_t weight)
{
    for (int64_t i = 0; i < params->count; i++)
        if (params->targets[i].weight == weight)
            return &params->targets[i];
    return NULL;
}
