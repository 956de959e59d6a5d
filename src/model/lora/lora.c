/* Reads a LoRA, adds it to weights, writes it in another form. See lora.h. */
#include "model/lora/lora.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"

static const char *lora_path(const DsviLora *lora)
{
    return dsvi_safetensors_path(lora->file);
}

/* ---- reading ---- */

static int compare_layers(const void *a, const void *b)
{
    return strcmp(((const DsviLoraLayer *)a)->name, ((const DsviLoraLayer *)b)->name);
}

static const DsviLoraLayer *find_lora_layer(const DsviLora *lora, const char *layer)
{
    DsviLoraLayer key;
    snprintf(key.name, sizeof key.name, "%s", layer);
    return lora->count ? bsearch(&key, lora->layers, lora->count, sizeof key, compare_layers) : NULL;
}

/* A tensor of the file, with what its name says. */
typedef struct NamedPart {
    char layer[DSVI_LORA_NAME_BYTES];
    DsviLoraPart part;
    const DsviStoredTensor *tensor;
} NamedPart;

static int compare_parts(const void *a, const void *b)
{
    return strcmp(((const NamedPart *)a)->layer, ((const NamedPart *)b)->layer);
}

static DsvStatus parse_tensor(const DsviLora *lora, const DsviStoredTensor *tensor, NamedPart *out)
{
    const char *foreign = dsvi_lora_name_foreign(tensor->name);
    out->tensor = tensor;
    if (foreign)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s: key %s is that of %s, expected matrices A and B of a Wan LoRA", lora_path(lora),
                         tensor->name, foreign);
    if (!dsvi_lora_name_parse(tensor->name, out->layer, &out->part))
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s: unknown key %s, expected keys of a Wan LoRA, for example "
                         "diffusion_model.blocks.0.self_attn.q.lora_A.weight",
                         lora_path(lora), tensor->name);
    if (!dsvi_dtype_is_floating(tensor->dtype))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: %s is %s, expected a floating dtype", lora_path(lora),
                         tensor->name, dsvi_dtype_name(tensor->dtype));
    if (!dsvi_all_finite(tensor->dtype, tensor->data,
                         tensor->count)) /* no sum with a weight would be either */
        return DSVI_FAIL(DSV_E_FORMAT, "%s: %s has a value that is not finite", lora_path(lora),
                         tensor->name);
    return DSV_OK;
}

/* Gathers sorted parts into layers. */
static DsvStatus gather_layers(DsviLora *lora, const NamedPart *parts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool begins = i == 0 || compare_parts(&parts[i - 1], &parts[i]) != 0;
        DsviLoraLayer *layer = &lora->layers[begins ? lora->count++ : lora->count - 1];
        if (begins)
            snprintf(layer->name, sizeof layer->name, "%s", parts[i].layer);
        if (layer->part[parts[i].part])
            return DSVI_FAIL(DSV_E_FORMAT, "%s: %s and %s are the same tensor under two names",
                             lora_path(lora), layer->part[parts[i].part]->name, parts[i].tensor->name);
        layer->part[parts[i].part] = parts[i].tensor;
    }
    return DSV_OK;
}

/* Takes rank and sizes from the shapes of A and B. Dimensions of B after the second must be 1: the second
 * convolution of a convolution's adapter has a kernel of size 1. */
static DsvStatus measure_layer(const DsviLora *lora, DsviLoraLayer *layer)
{
    const DsviStoredTensor *a = layer->part[DSVI_LORA_A], *b = layer->part[DSVI_LORA_B];
    const DsviStoredTensor *alpha = layer->part[DSVI_LORA_ALPHA];
    layer->factor = 1;
    if (!a != !b)
        return DSVI_FAIL(DSV_E_SHAPE, "%s: %s has no matrix %s beside it", lora_path(lora),
                         a ? a->name : b->name, a ? "B" : "A");
    if (alpha && (!a || alpha->count != 1))
        return DSVI_FAIL(DSV_E_SHAPE, "%s: %s must be one number beside matrices A and B", lora_path(lora),
                         alpha->name);
    if (!a)
        return DSV_OK;
    if (a->ndim < 2 || b->ndim < 2 || a->count == 0 || b->count == 0 || a->shape[0] != b->shape[1] ||
        b->count != b->shape[0] * b->shape[1])
        return DSVI_FAIL(DSV_E_SHAPE, "%s: %s and %s are not matrices (rank, in) and (out, rank)",
                         lora_path(lora), a->name, b->name);
    layer->rank = a->shape[0];
    layer->in = a->count / a->shape[0];
    layer->out = b->shape[0];
    if (alpha)
        layer->factor = dsvi_load(alpha->dtype, alpha->data, 0) / (double)layer->rank;
    return DSV_OK;
}

static DsvStatus read_layers(DsviLora *lora)
{
    DsvStatus status = DSV_OK;
    size_t count = dsvi_safetensors_count(lora->file);
    NamedPart *parts = calloc(count + 1, sizeof *parts);
    lora->layers = calloc(count + 1, sizeof *lora->layers);
    if (!parts || !lora->layers) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of its layers", lora_path(lora));
        goto done;
    }
    for (size_t i = 0; i < count; i++)
        DSVI_TRY_GOTO(status, parse_tensor(lora, dsvi_safetensors_at(lora->file, i), &parts[i]), done);
    qsort(parts, count, sizeof *parts, compare_parts);
    DSVI_TRY_GOTO(status, gather_layers(lora, parts, count), done);
    for (size_t i = 0; i < lora->count; i++)
        DSVI_TRY_GOTO(status, measure_layer(lora, &lora->layers[i]), done);
    if (lora->count == 0)
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: no tensors, expected a LoRA", lora_path(lora));
done:
    free(parts);
    return status;
}

DsvStatus dsvi_lora_open(const char *path, DsviLora *out)
{
    memset(out, 0, sizeof *out);
    DSVI_TRY(dsvi_safetensors_open(path, &out->file));
    DsvStatus status = read_layers(out);
    if (status != DSV_OK)
        dsvi_lora_close(out);
    return status;
}

void dsvi_lora_close(DsviLora *lora)
{
    free(lora->layers);
    dsvi_safetensors_close(&lora->file);
    memset(lora, 0, sizeof *lora);
}

/* ---- against a model ---- */

static DsvStatus lora_misfit(const DsviLora *lora, const DsviStoredTensor *tensor, const char *what,
                             int64_t found, int64_t expected)
{
    return DSVI_FAIL(DSV_E_SHAPE, "%s: %s has %lld %s, expected %lld", lora_path(lora), tensor->name,
                     (long long)found, what, (long long)expected);
}

DsvStatus dsvi_lora_change(const DsviLora *lora, const char *name, int64_t rows, int64_t count,
                           DsviLoraChange *out)
{
    char layer_name[DSVI_LORA_NAME_BYTES];
    *out = (DsviLoraChange){.product = true};
    const DsviLoraLayer *layer = dsvi_lora_name_of_param(name, layer_name, &out->bias)
                                     ? find_lora_layer(lora, layer_name)
                                     : NULL;
    if (!layer)
        return DSV_OK;
    const DsviStoredTensor *a = out->bias ? NULL : layer->part[DSVI_LORA_A];
    const DsviStoredTensor *diff = layer->part[out->bias ? DSVI_LORA_DIFF_BIAS : DSVI_LORA_DIFF];
    if (!a && !diff)
        return DSV_OK;
    if (a && layer->out != rows)
        return lora_misfit(lora, layer->part[DSVI_LORA_B], "rows", layer->out, rows);
    if (a && layer->in != count / rows)
        return lora_misfit(lora, a, "columns", layer->in, count / rows);
    if (diff && diff->count != count)
        return lora_misfit(lora, diff, "elements", diff->count, count);
    out->layer = layer;
    return DSV_OK;
}

DsvStatus dsvi_lora_expect_all(const DsviLora *lora, const bool *changed, const char *model)
{
    for (size_t i = 0; i < lora->count; i++) {
        const DsviLoraLayer *layer = &lora->layers[i];
        int part = 0;
        while (!layer->part[part])
            part++;
        if (!changed[i])
            return DSVI_FAIL(DSV_E_SHAPE, "%s: %s belongs to layer %s, which %s lacks", lora_path(lora),
                             layer->part[part]->name, layer->name, model);
    }
    return DSV_OK;
}

DsvStatus dsvi_lora_check(const DsviLora *lora, const DsviParamTable *table)
{
    DsvStatus status = DSV_OK;
    bool *changed = calloc(lora->count + 1, sizeof *changed);
    if (!changed)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of its layers", lora_path(lora));
    for (int64_t i = 0; i < table->count && status == DSV_OK; i++) {
        const DsviParam *param = &table->params[i];
        DsviLoraChange change;
        status = dsvi_lora_change(lora, param->name, param->shape[0], param->count, &change);
        if (change.layer)
            changed[change.layer - lora->layers] = true;
    }
    if (status == DSV_OK)
        status = dsvi_lora_expect_all(lora, changed, "the model");
    free(changed);
    return status;
}

/* ---- adding to weights ---- */

typedef struct Product {
    const DsviLoraLayer *layer;
    const float *a; /* (rank, in) */
    double scale;   /* of the product B A */
    float *values;  /* (out, in) */
} Product;

static void add_product_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const Product *p = context;
    const DsviStoredTensor *b = p->layer->part[DSVI_LORA_B];
    int64_t rank = p->layer->rank, in = p->layer->in;
    (void)worker;
    for (int64_t o = begin; o < end; o++) {
        float *row = p->values + o * in;
        for (int64_t r = 0; r < rank; r++) {
            float factor = (float)(p->scale * dsvi_load(b->dtype, b->data, o * rank + r));
            const float *a = p->a + r * in;
            for (int64_t i = 0; i < in; i++)
                row[i] += factor * a[i];
        }
    }
}

static DsvStatus add_product(const DsviLora *lora, const DsviLoraLayer *layer, double scale, float *values)
{
    const DsviStoredTensor *a = layer->part[DSVI_LORA_A];
    float *wide = malloc((size_t)a->count * sizeof *wide);
    if (!wide)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for %s", lora_path(lora), a->name);
    dsvi_convert(DSVI_F32, wide, a->dtype, a->data, a->count);
    Product product = {.layer = layer, .a = wide, .scale = scale * layer->factor, .values = values};
    dsvi_parallel_for(layer->out, 16, add_product_rows, &product);
    free(wide);
    return DSV_OK;
}

static void add_difference(const DsviStoredTensor *diff, double scale, float *values)
{
    for (int64_t i = 0; i < diff->count; i++)
        values[i] += (float)(scale * dsvi_load(diff->dtype, diff->data, i));
}

DsvStatus dsvi_lora_add(const DsviLora *lora, const DsviLoraChange *change, double scale, float *values)
{
    const DsviLoraLayer *layer = change->layer;
    const DsviStoredTensor *diff = layer->part[change->bias ? DSVI_LORA_DIFF_BIAS : DSVI_LORA_DIFF];
    if (layer->part[DSVI_LORA_A] && !change->bias && change->product)
        DSVI_TRY(add_product(lora, layer, scale, values));
    if (diff)
        add_difference(diff, scale, values);
    return DSV_OK;
}

/* ---- writing ---- */

/* The tensors of a file that is being written. */
typedef struct LoraOutput {
    DsviStoredTensor *tensors;
    char (*names)[DSVI_LORA_NAME_BYTES];
    void **owned; /* memory of scaled tensors */
    float *ranks; /* alphas */
    size_t count;
} LoraOutput;

/* Appends a tensor with the data of `from`, times `factor`. */
static DsvStatus append_part(LoraOutput *out, const DsviStoredTensor *from, const char *name, double factor)
{
    DsviStoredTensor *to = &out->tensors[out->count];
    *to = *from;
    to->name = name;
    if (factor != 1) {
        void *scaled = out->owned[out->count] = malloc(from->bytes ? from->bytes : 1);
        if (!scaled)
            return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %s", name);
        for (int64_t i = 0; i < from->count; i++)
            dsvi_store(from->dtype, scaled, i, factor * dsvi_load(from->dtype, from->data, i));
        to->data = scaled;
        if (!dsvi_all_finite(from->dtype, scaled, from->count))
            return DSVI_FAIL(DSV_E_FORMAT,
                             "%s, which alpha multiplies by %g, has a value that is too large for %s",
                             from->name, fabs(factor), dsvi_dtype_name(from->dtype));
    }
    out->count++;
    return DSV_OK;
}

/* Appends an alpha equal to the rank. */
static void append_alpha(LoraOutput *out, int64_t rank, const char *name)
{
    float *value = &out->ranks[out->count];
    *value = (float)rank;
    out->tensors[out->count++] = (DsviStoredTensor){
        .name = name, .dtype = DSVI_F32, .count = 1, .bytes = sizeof *value, .data = value};
}

static DsvStatus append_layer(LoraOutput *out, const DsviLoraLayer *layer, DsviLoraForm form)
{
    double root = sqrt(fabs(layer->factor));
    for (int p = 0; p < DSVI_LORA_PARTS; p++) {
        bool wanted = p == DSVI_LORA_ALPHA ? form == DSVI_LORA_KOHYA && layer->part[DSVI_LORA_A] != NULL
                                           : layer->part[p] != NULL;
        char *name = out->names[out->count];
        if (!wanted)
            continue;
        DSVI_TRY(dsvi_lora_name_make(form, layer->name, (DsviLoraPart)p, name));
        if (p == DSVI_LORA_ALPHA)
            append_alpha(out, layer->rank, name);
        else if (p == DSVI_LORA_A)
            DSVI_TRY(append_part(out, layer->part[p], name, root));
        else if (p == DSVI_LORA_B)
            DSVI_TRY(append_part(out, layer->part[p], name, copysign(root, layer->factor)));
        else
            DSVI_TRY(append_part(out, layer->part[p], name, 1));
    }
    return DSV_OK;
}

DsvStatus dsvi_lora_write(const DsviLora *lora, DsviLoraForm form, const char *path)
{
    DsvStatus status;
    size_t room = lora->count * DSVI_LORA_PARTS;
    LoraOutput out = {
        .tensors = calloc(room, sizeof *out.tensors),
        .names = calloc(room, sizeof *out.names),
        .owned = calloc(room, sizeof *out.owned),
        .ranks = calloc(room, sizeof *out.ranks),
    };
    if (!out.tensors || !out.names || !out.owned || !out.ranks) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %zu tensors", room);
        goto done;
    }
    for (size_t i = 0; i < lora->count; i++)
        DSVI_TRY_GOTO(status, append_layer(&out, &lora->layers[i], form), done);
    status = dsvi_safetensors_replace(path, out.tensors, out.count, NULL, 0);
done:
    for (size_t i = 0; out.owned && i < room; i++) /* also of a tensor that was refused */
        free(out.owned[i]);
    free(out.tensors);
    free(out.names);
    free(out.owned);
    free(out.ranks);
    return status;
}
