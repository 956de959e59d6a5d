/* The weights of a text encoder in mapped files: their names and shapes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "model/umt5/umt5_internal.h"

enum { NAME_BYTES = 128 };

const char *const dsvi_umt5_embedding[] = {"shared.weight", "encoder.embed_tokens.weight",
                                           "token_embedding.weight", NULL};

/* Names of a layer's tensors after encoder.block.N. (package transformers) and blocks.N. (Wan repository). */
static const char *const PART_NAMES[DSVI_UMT5_PARTS][2] = {
    [DSVI_UMT5_Q] = {"layer.0.SelfAttention.q.weight", "attn.q.weight"},
    [DSVI_UMT5_K] = {"layer.0.SelfAttention.k.weight", "attn.k.weight"},
    [DSVI_UMT5_V] = {"layer.0.SelfAttention.v.weight", "attn.v.weight"},
    [DSVI_UMT5_O] = {"layer.0.SelfAttention.o.weight", "attn.o.weight"},
    [DSVI_UMT5_GATE] = {"layer.1.DenseReluDense.wi_0.weight", "ffn.gate.0.weight"},
    [DSVI_UMT5_LINEAR] = {"layer.1.DenseReluDense.wi_1.weight", "ffn.fc1.weight"},
    [DSVI_UMT5_FFN_OUT] = {"layer.1.DenseReluDense.wo.weight", "ffn.fc2.weight"},
    [DSVI_UMT5_NORM_ATTENTION] = {"layer.0.layer_norm.weight", "norm1.weight"},
    [DSVI_UMT5_NORM_FFN] = {"layer.1.layer_norm.weight", "norm2.weight"},
    [DSVI_UMT5_BUCKETS] = {"layer.0.SelfAttention.relative_attention_bias.weight",
                           "pos_embedding.embedding.weight"},
};

/* Both names of a part of a layer, as a list for dsvi_tensor_set_find. */
typedef struct PartNames {
    char text[2][NAME_BYTES];
    const char *list[3];
} PartNames;

static const char *const *part_names(int64_t layer, int part, PartNames *names)
{
    static const char *const prefix[2] = {"encoder.block", "blocks"};
    for (int i = 0; i < 2; i++) {
        snprintf(names->text[i], NAME_BYTES, "%s.%lld.%s", prefix[i], (long long)layer, PART_NAMES[part][i]);
        names->list[i] = names->text[i];
    }
    names->list[2] = NULL;
    return names->list;
}

static void part_shape(const DsviUmt5Config *config, int part, int64_t shape[2])
{
    const int64_t inner = config->num_heads * config->d_kv, model = config->d_model, ffn = config->d_ff;
    switch ((DsviUmt5Part)part) {
    case DSVI_UMT5_Q:
    case DSVI_UMT5_K:
    case DSVI_UMT5_V: shape[0] = inner, shape[1] = model; return;
    case DSVI_UMT5_O: shape[0] = model, shape[1] = inner; return;
    case DSVI_UMT5_GATE:
    case DSVI_UMT5_LINEAR: shape[0] = ffn, shape[1] = model; return;
    case DSVI_UMT5_FFN_OUT: shape[0] = model, shape[1] = ffn; return;
    case DSVI_UMT5_BUCKETS: shape[0] = config->buckets, shape[1] = config->num_heads; return;
    default: shape[0] = model, shape[1] = 1; return; /* a norm: one dimension */
    }
}

int64_t dsvi_umt5_part_elements(const DsviUmt5Config *config, DsviUmt5Part part)
{
    int64_t shape[2];
    part_shape(config, part, shape);
    return shape[0] * shape[1];
}

/* Finds a matrix from whose shape sizes are taken. */
static DsvStatus find_matrix(const DsviTensorSet *set, const char *path, const char *const *names,
                             const DsviStoredTensor **out)
{
    *out = dsvi_tensor_set_find(set, names);
    if (!*out)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no tensor %s, expected the weights of a UMT5 text encoder",
                         path, names[0]);
    if ((*out)->ndim != 2)
        return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s has %d dimensions, expected 2", path, (*out)->name,
                         (*out)->ndim);
    return DSV_OK;
}

/* Takes the sizes from the shapes of the embedding and of tensors of the first layer. The table of the
 * position bias tells the number of heads. */
static DsvStatus config_from_shapes(const DsviTensorSet *set, const char *path, DsviUmt5Config *out)
{
    const DsviStoredTensor *embedding, *table, *q, *gate;
    PartNames names;
    int64_t layers = 1;
    DSVI_TRY(find_matrix(set, path, dsvi_umt5_embedding, &embedding));
    DSVI_TRY(find_matrix(set, path, part_names(0, DSVI_UMT5_BUCKETS, &names), &table));
    DSVI_TRY(find_matrix(set, path, part_names(0, DSVI_UMT5_Q, &names), &q));
    DSVI_TRY(find_matrix(set, path, part_names(0, DSVI_UMT5_GATE, &names), &gate));
    while (dsvi_tensor_set_find(set, part_names(layers, DSVI_UMT5_Q, &names)))
        layers++;
    *out = (DsviUmt5Config){
        .vocab_size = embedding->shape[0],
        .d_model = embedding->shape[1],
        .num_heads = table->shape[1],
        .d_ff = gate->shape[0],
        .num_layers = layers,
        .buckets = table->shape[0],
        .max_distance = DSVI_UMT5_MAX_DISTANCE,
        .eps = DSVI_UMT5_EPS,
    };
    if (out->num_heads < 1 || q->shape[0] % out->num_heads)
        return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s has %lld rows, expected a multiple of the %lld heads",
                         path, q->name, (long long)q->shape[0], (long long)out->num_heads);
    out->d_kv = q->shape[0] / out->num_heads;
    return dsvi_umt5_config_check(out, path);
}

static DsvStatus umt5_find_config(const DsviTensorSet *set, const char *path, DsviUmt5Config *out)
{
    char file[DSVI_PATH_MAX];
    if (!dsvi_path_is_folder(path))
        return config_from_shapes(set, path, out);
    DSVI_TRY(dsvi_path_join(file, path, "config.json"));
    return dsvi_umt5_config_read(file, out);
}

static DsvStatus take_layer(DsviUmt5Weights *w, const DsviUmt5Config *config, int64_t layer)
{
    PartNames names;
    int64_t shape[2];
    for (int part = 0; part < DSVI_UMT5_PARTS; part++) {
        int ndim = part == DSVI_UMT5_NORM_ATTENTION || part == DSVI_UMT5_NORM_FFN ? 1 : 2;
        part_shape(config, part, shape);
        DSVI_TRY(dsvi_tensor_set_take(w->set, part_names(layer, part, &names), ndim, shape,
                                      &w->layers[layer][part]));
    }
    return DSV_OK;
}

static DsvStatus take_all(DsviUmt5Weights *w, const DsviUmt5Config *config, const char *path)
{
    static const char *const norm[] = {"encoder.final_layer_norm.weight", "norm.weight", NULL};
    /* What published files hold besides: the tokenizer, and a mark that weights are F8. */
    static const char *const others[] = {"spiece_model", "scaled_fp8"};
    const int64_t embedding[] = {config->vocab_size, config->d_model};
    w->layers = calloc((size_t)config->num_layers, sizeof *w->layers);
    if (!w->layers)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of %lld layers", path,
                         (long long)config->num_layers);
    DSVI_TRY(dsvi_tensor_set_take(w->set, dsvi_umt5_embedding, 2, embedding, &w->embedding));
    DSVI_TRY(dsvi_tensor_set_take(w->set, norm, 1, &config->d_model, &w->final_norm));
    for (int64_t i = 0; i < config->num_layers; i++)
        DSVI_TRY(take_layer(w, config, i));
    for (const char *const *name = dsvi_umt5_embedding; *name; name++)
        dsvi_tensor_set_skip(w->set, *name); /* the same table under both names */
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        dsvi_tensor_set_skip(w->set, others[i]);
    return dsvi_tensor_set_finish(w->set);
}

DsvStatus dsvi_umt5_weights_open(const char *path, DsviUmt5Config *config, DsviUmt5Weights *out)
{
    memset(out, 0, sizeof *out);
    DSVI_TRY(dsvi_tensor_set_open(path, &out->set));
    DSVI_TRY(umt5_find_config(out->set, path, config));
    return take_all(out, config, path);
}

void dsvi_umt5_weights_close(DsviUmt5Weights *weights)
{
    free(weights->layers);
    dsvi_tensor_set_close(&weights->set);
    memset(weights, 0, sizeof *weights);
}

int64_t dsvi_umt5_bucket(const DsviUmt5Config *config, int64_t distance)
{
    const int64_t half = config->buckets / 2, exact = half / 2, steps = half - exact;
    const int64_t side = distance > 0 ? half : 0, length = distance < 0 ? -distance : distance;
    if (length < exact)
        return side + length;
    /* In F32 and in this order, as in the package transformers: rounding decides between two buckets. */
    float ratio = logf((float)length / (float)exact) /
                  (float)log((double)config->max_distance / (double)exact);
    float step = ratio * (float)steps;
    return side + exact + (step < (float)(steps - 1) ? (int64_t)step : steps - 1);
}

void dsvi_umt5_bias(const DsviUmt5Weights *weights, const DsviUmt5Config *config, int64_t layer,
                    int64_t reach, float *bias)
{
    const DsviStoredTensor *table = weights->layers[layer][DSVI_UMT5_BUCKETS];
    const int64_t width = 2 * reach + 1;
    for (int64_t i = 0; i < width; i++) {
        int64_t row = dsvi_umt5_bucket(config, i - reach) * config->num_heads;
        for (int64_t h = 0; h < config->num_heads; h++)
            dsvi_tensor_set_read(weights->set, table, row + h, 1, DSVI_F32, &bias[h * width + i]);
    }
}

DsvStatus dsvi_umt5_config_of(const char *path, DsviUmt5Config *out)
{
    DsviUmt5Weights weights;
    DsvStatus status = dsvi_umt5_weights_open(path, out, &weights);
    dsvi_umt5_weights_close(&weights);
    return status;
}
