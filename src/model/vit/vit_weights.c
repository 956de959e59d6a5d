/* The weights of an image encoder in mapped files: their names and shapes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "model/vit/vit_internal.h"

enum { NAME_BYTES = 128 };

/* Published files put vision_model. before all names; newer ones do not. */
static const char PREFIX[] = "vision_model.";

static const char *const PART_NAMES[DSVI_VIT_PARTS] = {
    [DSVI_VIT_Q] = "self_attn.q_proj",   [DSVI_VIT_K] = "self_attn.k_proj", [DSVI_VIT_V] = "self_attn.v_proj",
    [DSVI_VIT_O] = "self_attn.out_proj", [DSVI_VIT_FFN_IN] = "mlp.fc1",     [DSVI_VIT_FFN_OUT] = "mlp.fc2",
    [DSVI_VIT_NORM1] = "layer_norm1",    [DSVI_VIT_NORM2] = "layer_norm2",
};

void dsvi_vit_part_shape(const DsviVitConfig *config, int part, int64_t shape[2])
{
    const int64_t hidden = config->hidden_size, ffn = config->intermediate_size;
    shape[0] = part == DSVI_VIT_FFN_IN ? ffn : hidden;
    shape[1] = part >= DSVI_VIT_MATRICES ? 1 : part == DSVI_VIT_FFN_OUT ? ffn : hidden;
}

static DsvStatus take(DsviTensorSet *set, const char *name, const char *ending, int ndim,
                      const int64_t *shape, const DsviStoredTensor **out)
{
    char full[2][NAME_BYTES];
    const char *const names[] = {full[0], full[1], NULL};
    snprintf(full[0], NAME_BYTES, "%s%s%s", PREFIX, name, ending);
    snprintf(full[1], NAME_BYTES, "%s%s", name, ending);
    return dsvi_tensor_set_take(set, names, ndim, shape, out);
}

static DsvStatus take_layer(DsviVitWeights *w, const DsviVitConfig *config, int64_t layer)
{
    for (int part = 0; part < DSVI_VIT_PARTS; part++) {
        char name[NAME_BYTES - sizeof PREFIX];
        int64_t shape[2];
        dsvi_vit_part_shape(config, part, shape);
        snprintf(name, sizeof name, "encoder.layers.%lld.%s", (long long)layer, PART_NAMES[part]);
        DSVI_TRY(take(w->set, name, ".weight", part < DSVI_VIT_MATRICES ? 2 : 1, shape,
                      &w->layers[layer].weight[part]));
        DSVI_TRY(take(w->set, name, ".bias", 1, shape, &w->layers[layer].bias[part]));
    }
    return DSV_OK;
}

static DsvStatus take_all(DsviVitWeights *w, const DsviVitConfig *config, const char *path)
{
    const int64_t hidden = config->hidden_size, patch = config->patch_size;
    const int64_t filter[] = {hidden, config->num_channels, patch, patch};
    const int64_t positions[] = {dsvi_vit_rows(config), hidden};
    const DsviStoredTensor *unused;
    w->layers = calloc((size_t)config->num_hidden_layers, sizeof *w->layers);
    if (!w->layers)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of %lld layers", path,
                         (long long)config->num_hidden_layers);
    DSVI_TRY(take(w->set, "embeddings.class_embedding", "", 1, &hidden, &w->class_embedding));
    DSVI_TRY(take(w->set, "embeddings.patch_embedding", ".weight", 4, filter, &w->patch));
    DSVI_TRY(take(w->set, "embeddings.position_embedding", ".weight", 2, positions, &w->positions));
    DSVI_TRY(take(w->set, "pre_layrnorm", ".weight", 1, &hidden, &w->norm[0])); /* spelled so in the files */
    DSVI_TRY(take(w->set, "pre_layrnorm", ".bias", 1, &hidden, &w->norm[1]));
    DSVI_TRY(take(w->set, "post_layernorm", ".weight", 1, &hidden, &unused));
    DSVI_TRY(take(w->set, "post_layernorm", ".bias", 1, &hidden, &unused));
    for (int64_t i = 0; i < config->num_hidden_layers; i++)
        DSVI_TRY(take_layer(w, config, i));
    dsvi_tensor_set_skip(w->set, "vision_model.embeddings.position_ids"); /* 0, 1, 2, ... */
    return dsvi_tensor_set_finish(w->set);
}

DsvStatus dsvi_vit_weights_open(const char *path, DsviVitConfig *config, DsviVitWeights *out)
{
    char file[DSVI_PATH_MAX];
    memset(out, 0, sizeof *out);
    DSVI_TRY(dsvi_path_join(file, path, "config.json"));
    DSVI_TRY(dsvi_vit_config_read(file, config));
    DSVI_TRY(dsvi_tensor_set_open(path, &out->set));
    return take_all(out, config, path);
}

DsvStatus dsvi_vit_config_of(const char *path, DsviVitConfig *out)
{
    DsviVitWeights weights;
    DsvStatus status = dsvi_vit_weights_open(path, out, &weights);
    dsvi_vit_weights_close(&weights);
    return status;
}

void dsvi_vit_weights_close(DsviVitWeights *weights)
{
    free(weights->layers);
    dsvi_tensor_set_close(&weights->set);
    memset(weights, 0, sizeof *weights);
}
