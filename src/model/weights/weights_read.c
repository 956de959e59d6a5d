/* Reads a transformer's weights from safetensors files. Accepts diffusers' and original names, known
 * prefixes, fused projections, and F64, F32, BF16, F16 or F8_E4M3 with a scale for each tensor.
 *
 * All tensors are checked before reading fails, so that one message lists all faults. Shapes are compared
 * without dimensions of length 1, because some tools drop them from the modulation tables and the patch
 * embedding. */
#include "model/weights/weights.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "model/weights/weights_files.h"

enum { FAULTS_LISTED = 8, FAULT_BYTES = 192, PARTS_MAX = 3, NAME_BYTES = 256, SHAPE_BYTES = 64 };
enum { CONVERT_PIECE = 1 << 16 }; /* elements that a thread converts at a time */

/* State of finding the stored values of all parameters, and the faults found so far. */
typedef struct Loading {
    const DsviParamTable *table;
    DsviStoredParam *params; /* (table->count) */
    bool *seen;              /* (table->count) */
    bool *scaled;            /* (table->count) whether a scale was found, in params[i].scale */
    int64_t faults;
    char text[FAULTS_LISTED * FAULT_BYTES];
} Loading;

DSVI_PRINTF(2, 3)
static void add_fault(Loading *l, const char *format, ...)
{
    char fault[FAULT_BYTES - 2];
    va_list args;
    if (l->faults++ >= FAULTS_LISTED)
        return;
    va_start(args, format);
    vsnprintf(fault, sizeof fault, format, args);
    va_end(args);
    size_t used = strlen(l->text);
    snprintf(l->text + used, sizeof l->text - used, "%s%s", used ? "; " : "", fault);
}

const char *dsvi_weights_plain_name(const char *name)
{
    static const char *const PREFIXES[] = {"model.diffusion_model.", "diffusion_model."};
    for (size_t i = 0; i < sizeof PREFIXES / sizeof *PREFIXES; i++)
        if (strncmp(name, PREFIXES[i], strlen(PREFIXES[i])) == 0)
            return name + strlen(PREFIXES[i]);
    return name;
}

static int64_t find_either(const DsviParamTable *table, const char *name)
{
    for (int64_t i = 0; i < table->count; i++)
        if (strcmp(table->params[i].name, name) == 0 || strcmp(table->params[i].original, name) == 0)
            return i;
    return -1;
}

/* A fused projection: its rows are the rows of its parts, in this order. */
typedef struct Fused {
    const char *name;
    int count;
    const char *parts[PARTS_MAX];
} Fused;

static const Fused FUSED[] = {
    {".to_qkv.", 3, {".to_q.", ".to_k.", ".to_v."}},
    {".to_kv.", 2, {".to_k.", ".to_v."}},
    {".to_added_kv.", 2, {".add_k_proj.", ".add_v_proj."}},
};

/* Finds the parameters that a stored tensor contains. Returns the number of these parameters, 0 for an
 * unknown name. */
static int resolve(const DsviParamTable *table, const char *name, int64_t found[PARTS_MAX])
{
    char part[NAME_BYTES];
    found[0] = find_either(table, name);
    if (found[0] >= 0)
        return 1;
    for (size_t f = 0; f < sizeof FUSED / sizeof *FUSED; f++) {
        const char *middle = strstr(name, FUSED[f].name);
        int known = 0;
        while (middle && known < FUSED[f].count) {
            snprintf(part, sizeof part, "%.*s%s%s", (int)(middle - name), name, FUSED[f].parts[known],
                     middle + strlen(FUSED[f].name));
            found[known] = find_either(table, part);
            if (found[known] < 0)
                return 0;
            known++;
        }
        if (known > 0)
            return known;
    }
    return 0;
}

/* Copies `shape` without dimensions of length 1 to `out`. Returns the number of dimensions left. */
static int squeeze(int ndim, const int64_t *shape, int64_t out[DSVI_TENSOR_MAX_DIMS])
{
    int count = 0;
    for (int i = 0; i < ndim; i++)
        if (shape[i] != 1)
            out[count++] = shape[i];
    return count;
}

static bool same_shape(int a_ndim, const int64_t *a_shape, int b_ndim, const int64_t *b_shape)
{
    int64_t a[DSVI_TENSOR_MAX_DIMS], b[DSVI_TENSOR_MAX_DIMS];
    int count = squeeze(a_ndim, a_shape, a);
    return count == squeeze(b_ndim, b_shape, b) && memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

static const char *weights_read_shape_text(int ndim, const int64_t *shape, char text[SHAPE_BYTES])
{
    size_t used = 1;
    snprintf(text, SHAPE_BYTES, "(");
    for (int i = 0; i < ndim && used < SHAPE_BYTES; i++) {
        snprintf(text + used, SHAPE_BYTES - used, i ? ", %lld" : "%lld", (long long)shape[i]);
        used = strlen(text);
    }
    snprintf(text + used, SHAPE_BYTES - used, ")");
    return text;
}

/* Returns whether the tensor can be divided into `count` parameters shaped like `part`; records a fault for
 * the error message if not. */
static bool fits(Loading *l, const DsviStoredTensor *stored, const DsviParam *part, int count)
{
    char found[SHAPE_BYTES], wanted[SHAPE_BYTES];
    int64_t shape[DSVI_TENSOR_MAX_DIMS];
    memcpy(shape, part->shape, sizeof shape);
    shape[0] *= count;
    if (!same_shape(stored->ndim, stored->shape, part->ndim, shape)) {
        add_fault(l, "%s is %s, expected %s", stored->name,
                  weights_read_shape_text(stored->ndim, stored->shape, found),
                  weights_read_shape_text(part->ndim, shape, wanted));
        return false;
    }
    switch (stored->dtype) {
    case DSVI_F32:
    case DSVI_BF16:
    case DSVI_F16:
    case DSVI_F64:
    case DSVI_F8_E4M3: return true;
    default: break;
    }
    add_fault(l, "%s is %s, expected F32, BF16, F16, F64 or F8_E4M3", stored->name,
              dsvi_dtype_name(stored->dtype));
    return false;
}

/* Returns the length of the name of the layer to which the tensor `name` belongs if its last part is `last`,
 * otherwise 0. */
static size_t layer_before(const char *name, const char *last)
{
    size_t length = strlen(name), last_length = strlen(last);
    return length > last_length && strcmp(name + length - last_length, last) == 0 ? length - last_length : 0;
}

/* Stores the scale of an F8 weight if the tensor is one. Returns whether the tensor has been dealt with:
 * also scales of inputs, and the mark of files with scales, are no weights. */
static bool find_scale(Loading *l, const DsviStoredTensor *stored, const char *name)
{
    static const char *const UNUSED[] = {".scale_input", ".input_scale"};
    int64_t parts[PARTS_MAX];
    char weight[NAME_BYTES];
    for (size_t i = 0; i < sizeof UNUSED / sizeof *UNUSED; i++)
        if (layer_before(name, UNUSED[i]))
            return true;
    size_t layer = layer_before(name, ".scale_weight");
    layer = layer ? layer : layer_before(name, ".weight_scale");
    if (!layer)
        return strcmp(name, "scaled_fp8") == 0;
    snprintf(weight, sizeof weight, "%.*s.weight", (int)layer, name);
    int count = resolve(l->table, weight, parts);
    if (count == 0)
        return false;
    double scale = NAN;
    if (stored->count == 1 && dsvi_dtype_is_floating(stored->dtype))
        scale = dsvi_load(stored->dtype, stored->data, 0);
    if (!isfinite(scale))
        add_fault(l, "%s has %lld numbers of %s, expected one finite number", stored->name,
                  (long long)stored->count, dsvi_dtype_name(stored->dtype));
    for (int i = 0; i < count; i++) {
        l->params[parts[i]].scale = scale;
        l->scaled[parts[i]] = true;
    }
    return true;
}

/* Sets the scales of all parameters for which no scale was found to 1. */
static void finish_scales(Loading *l)
{
    for (int64_t i = 0; i < l->table->count; i++) {
        if (!l->scaled[i])
            l->params[i].scale = 1;
        else if (l->seen[i] && l->params[i].dtype != DSVI_F8_E4M3)
            add_fault(l, "%s has a scale and is %s, expected F8_E4M3", l->table->params[i].name,
                      dsvi_dtype_name(l->params[i].dtype));
    }
}

static void find_weights_tensor(Loading *l, const DsviStoredTensor *stored)
{
    int64_t parts[PARTS_MAX];
    const char *name = dsvi_weights_plain_name(stored->name);
    if (strstr(name, ".norm_added_q.")) /* some converters write this tensor; no supported model uses it */
        return;
    if (find_scale(l, stored, name))
        return;
    int count = resolve(l->table, name, parts);
    if (count == 0) {
        add_fault(l, "unknown %s", stored->name);
        return;
    }
    bool usable = fits(l, stored, &l->table->params[parts[0]], count);
    const char *rows = stored->data;
    for (int i = 0; i < count; i++) {
        const DsviParam *param = &l->table->params[parts[i]];
        if (l->seen[parts[i]])
            add_fault(l, "%s is there twice", param->name);
        l->seen[parts[i]] = true;
        if (usable) {
            l->params[parts[i]].data = rows;
            l->params[parts[i]].dtype = stored->dtype;
        }
        rows += (size_t)param->count * dsvi_dtype_size(stored->dtype);
    }
}

static DsvStatus report_faults(Loading *l, const char *path)
{
    for (int64_t i = 0; i < l->table->count; i++)
        if (!l->seen[i])
            add_fault(l, "missing %s", l->table->params[i].name);
    if (l->faults == 0)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_SHAPE, "%s: %lld tensor%s not fit the model: %s%s", path, (long long)l->faults,
                     l->faults == 1 ? " does" : "s do", l->text, l->faults > FAULTS_LISTED ? "; ..." : "");
}

static DsvStatus open_weight_files(const DsviWeightFiles *files, DsviStoredWeights *out)
{
    out->files = calloc(files->count, sizeof *out->files);
    if (!out->files)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %zu files", files->count);
    for (; out->file_count < files->count; out->file_count++)
        DSVI_TRY(dsvi_safetensors_open(files->paths[out->file_count], &out->files[out->file_count]));
    return DSV_OK;
}

DsvStatus dsvi_weights_open(const char *path, const DsviParamTable *table, DsviStoredWeights *out)
{
    DsvStatus status;
    DsviWeightFiles files;
    Loading loading = {.table = table};
    memset(out, 0, sizeof *out);
    DSVI_TRY_GOTO(status, dsvi_weight_files_find(path, &files), done);
    loading.seen = calloc((size_t)table->count, sizeof *loading.seen);
    loading.scaled = calloc((size_t)table->count, sizeof *loading.scaled);
    loading.params = out->params = calloc((size_t)table->count, sizeof *out->params);
    if (!loading.seen || !loading.scaled || !loading.params) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of its tensors", path);
        goto done;
    }
    DSVI_TRY_GOTO(status, open_weight_files(&files, out), done);
    for (size_t i = 0; i < out->file_count; i++)
        for (size_t t = 0; t < dsvi_safetensors_count(out->files[i]); t++)
            find_weights_tensor(&loading, dsvi_safetensors_at(out->files[i], t));
    finish_scales(&loading);
    DSVI_TRY_GOTO(status, report_faults(&loading, path), done);
done:
    free(loading.seen);
    free(loading.scaled);
    dsvi_weight_files_free(&files);
    if (status != DSV_OK)
        dsvi_weights_close(out);
    return status;
}

void dsvi_weights_close(DsviStoredWeights *weights)
{
    for (size_t i = 0; i < weights->file_count; i++)
        dsvi_safetensors_close(&weights->files[i]);
    free(weights->files);
    free(weights->params);
    memset(weights, 0, sizeof *weights);
}

/* A range of a parameter that threads convert together. */
typedef struct Conversion {
    DsviStoredParam from;
    int64_t first;
    DsviDtype dtype;
    char *out;
} Conversion;

static void convert_piece(void *context, int64_t begin, int64_t end, int worker)
{
    const Conversion *c = context;
    const char *from = c->from.data;
    void *to = c->out + (size_t)begin * dsvi_dtype_size(c->dtype);
    from += (size_t)(c->first + begin) * dsvi_dtype_size(c->from.dtype);
    (void)worker;
    if (c->from.dtype == DSVI_F8_E4M3)
        dsvi_convert_f8(c->dtype, to, from, c->from.scale, end - begin);
    else
        dsvi_convert(c->dtype, to, c->from.dtype, from, end - begin);
}

void dsvi_weights_convert(const DsviStoredWeights *weights, int64_t param, int64_t first, int64_t count,
                          DsviDtype dtype, void *out)
{
    Conversion conversion = {weights->params[param], first, dtype, out};
    dsvi_parallel_for(count, CONVERT_PIECE, convert_piece, &conversion);
}

void dsvi_weights_read_bucket(const DsviStoredWeights *weights, const DsviParamTable *table, int64_t bucket,
                              float *out)
{
    int64_t first = table->begin[bucket], past = table->begin[bucket + 1];
    memset(out, 0, (size_t)(past - first) * sizeof *out); /* padding must be zero */
    for (int64_t i = 0; i < table->count; i++) {
        const DsviParam *param = &table->params[i];
        if (param->offset >= first && param->offset < past)
            dsvi_weights_convert(weights, i, 0, param->count, DSVI_F32, out + (param->offset - first));
    }
}

DsvStatus dsvi_weights_read(const char *path, const DsviParamTable *table, float *flat)
{
    DsviStoredWeights weights;
    DSVI_TRY(dsvi_weights_open(path, table, &weights));
    for (int64_t b = 0; b < table->buckets; b++)
        dsvi_weights_read_bucket(&weights, table, b, flat + table->begin[b]);
    dsvi_weights_close(&weights);
    return DSV_OK;
}
