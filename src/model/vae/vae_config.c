/* The configuration of a VAE: config.json with the keys of diffusers' AutoencoderKLWan, or the shapes of the
 * tensors where a file of weights comes alone. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/fs.h"
#include "model/model_config.h"
#include "model/vae/vae_parts.h"

enum {
    BASE_DIM_MAX = 4096,
    DIM_MULT_MAX = 64,
    RES_BLOCKS_MAX = 64,
    PUBLISHED_Z = 16,
    WAN22_Z = 48,
    COLOURS = 3,
    PATCH_MAX = 8,
    WAN22_PATCH = 2,
    SIDE_MAX = 16384,  /* of a video: rows or columns */
    FRAMES_MAX = 65536 /* with these limits no count of bytes overflows */
};

/* Mean and standard deviation of the latents of the VAE of Wan 2.1. */
static const double PUBLISHED_MEAN[PUBLISHED_Z] = {-0.7571, -0.7089, -0.9113, 0.1075,  -0.1745, 0.9653,
                                                   -0.1517, 1.5508,  0.4134,  -0.0715, 0.5517,  -0.3632,
                                                   -0.1922, -0.9497, 0.2503,  -0.2921};
static const double PUBLISHED_STD[PUBLISHED_Z] = {2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708,
                                                  2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579,
                                                  1.6382, 1.1253, 2.8251, 1.9160};

/* The same of the VAE of Wan 2.2 TI2V-5B. */
static const double WAN22_MEAN[WAN22_Z] = {-0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174,  0.1838,
                                           0.1557,  -0.1382, 0.0542,  0.2813,  0.0891,  0.1570,  -0.0098,
                                           0.0375,  -0.1825, -0.2246, -0.1207, -0.0698, 0.5109,  0.2665,
                                           -0.2108, -0.2158, 0.2502,  -0.2055, -0.0322, 0.1109,  0.1567,
                                           -0.0729, 0.0899,  -0.2799, -0.1230, -0.0313, -0.1649, 0.0117,
                                           0.0723,  -0.2839, -0.2083, -0.0520, 0.3748,  0.0152,  0.1957,
                                           0.1433,  -0.2944, 0.3573,  -0.0548, -0.1681, -0.0667};
static const double WAN22_STD[WAN22_Z] = {0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013,
                                          0.8158, 1.0344, 0.5894, 1.0901, 0.6885, 0.6165, 0.8454, 0.4978,
                                          0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
                                          0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093,
                                          0.5709, 0.6065, 0.6415, 0.4944, 0.5726, 1.2042, 0.5458, 1.6887,
                                          0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744};

/* A file that is being read. */
typedef struct ConfigFile {
    const cJSON *object;
    const char *path;
} ConfigFile;

static const cJSON *item_of(const ConfigFile *file, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(file->object, key);
    return item && !cJSON_IsNull(item) ? item : NULL;
}

/* Reads a whole number from min to max; `absent` if the file lacks the key. */
static DsvStatus config_whole(const ConfigFile *file, const char *key, int64_t min, int64_t max,
                              int64_t absent, int64_t *out)
{
    const cJSON *item = item_of(file, key);
    double value = item ? cJSON_GetNumberValue(item) : (double)absent; /* NaN if the item is no number */
    if (!(value >= (double)min && value <= (double)max && value == floor(value)))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key %s is not a whole number, expected one from %lld to %lld",
                         file->path, key, (long long)min, (long long)max);
    *out = (int64_t)value;
    return DSV_OK;
}

/* Finds a list with `count` items (any number up to DSVI_VAE_LEVELS_MAX if count < 0); NULL if the file lacks
 * the key. */
static DsvStatus config_list(const ConfigFile *file, const char *key, int64_t count, const cJSON **out)
{
    const cJSON *item = item_of(file, key);
    *out = item;
    if (!item)
        return DSV_OK;
    int64_t found = cJSON_IsArray(item) ? cJSON_GetArraySize(item) : -1;
    if (count >= 0 && found != count)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key %s is not a list of %lld, expected one value for each",
                         file->path, key, (long long)count);
    if (found < 0 || found > DSVI_VAE_LEVELS_MAX + (count >= 0 ? DSVI_VAE_Z_MAX : 0))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key %s is not a list, expected one of at most %d values",
                         file->path, key, DSVI_VAE_LEVELS_MAX);
    return DSV_OK;
}

/* Reads which variant of the model this is. Fails for those that dsv lacks. */
static DsvStatus config_read_variant(const ConfigFile *file, DsviVaeConfig *out)
{
    const cJSON *name = item_of(file, "_class_name");
    const char *text = cJSON_GetStringValue(name);
    int64_t channels;
    if (name && !(text && strcmp(text, "AutoencoderKLWan") == 0))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: _class_name is %s, expected AutoencoderKLWan", file->path,
                         text ? text : "not a text");
    const cJSON *residual = item_of(file, "is_residual");
    if (residual && !cJSON_IsBool(residual))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key is_residual is not true or false, as expected", file->path);
    out->residual = cJSON_IsTrue(residual);
    DSVI_TRY(config_whole(file, "patch_size", 1, PATCH_MAX, 1, &out->patch));
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "out_channels" : "in_channels";
        int64_t wanted = COLOURS * out->patch * out->patch;
        DSVI_TRY(config_whole(file, key, 1, 1000000, COLOURS, &channels));
        if (channels != wanted)
            return DSVI_FAIL(DSV_E_UNSUPPORTED,
                             "%s: %s is %lld, expected %lld, which is 3 colours of %lld x %lld pixels",
                             file->path, key, (long long)channels, (long long)wanted, (long long)out->patch,
                             (long long)out->patch);
    }
    return DSV_OK;
}

static DsvStatus config_read_levels(const ConfigFile *file, DsviVaeConfig *out)
{
    static const int64_t published[] = {1, 2, 4, 4};
    static const bool published_temporal[] = {false, true, true};
    const cJSON *list, *item;
    DSVI_TRY(config_list(file, "dim_mult", -1, &list));
    out->levels = list ? cJSON_GetArraySize(list) : 4;
    if (out->levels < 1)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key dim_mult is empty, expected 1 to %d numbers", file->path,
                         DSVI_VAE_LEVELS_MAX);
    for (int64_t i = 0; i < out->levels; i++) {
        double value = list ? cJSON_GetNumberValue(cJSON_GetArrayItem(list, (int)i)) : (double)published[i];
        if (!(value >= 1 && value <= DIM_MULT_MAX && value == floor(value)))
            return DSVI_FAIL(DSV_E_FORMAT, "%s: dim_mult[%lld] is not a whole number, expected 1 to %d",
                             file->path, (long long)i, DIM_MULT_MAX);
        out->dim_mult[i] = (int64_t)value;
    }
    DSVI_TRY(config_list(file, "temperal_downsample", out->levels - 1, &list));
    if (!list && out->levels != 4)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key temperal_downsample is missing, expected %lld values",
                         file->path, (long long)out->levels - 1);
    for (int64_t i = 0; i < out->levels - 1; i++) {
        item = list ? cJSON_GetArrayItem(list, (int)i) : NULL;
        if (item && !cJSON_IsBool(item))
            return DSVI_FAIL(DSV_E_FORMAT, "%s: temperal_downsample[%lld] is not true or false, as expected",
                             file->path, (long long)i);
        out->temporal_downsample[i] = item ? cJSON_IsTrue(item) : published_temporal[i];
    }
    /* Scales of levels: 1, 0.5, ... A scale that no level has is without effect, as in diffusers, and so is
     * the list where levels have shortcuts. */
    const cJSON *scales = item_of(file, "attn_scales");
    if (scales && !cJSON_IsArray(scales))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key attn_scales is not a list, as expected", file->path);
    cJSON_ArrayForEach(item, scales)
        for (int i = 0; i < out->levels && !out->residual; i++)
            out->attention[i] = out->attention[i] || cJSON_GetNumberValue(item) == ldexp(1, -i);
    return DSV_OK;
}

static DsvStatus config_read_latents(const ConfigFile *file, const char *key, const double *published,
                                     bool positive, const DsviVaeConfig *config, double *out)
{
    const cJSON *list;
    DSVI_TRY(config_list(file, key, config->z_dim, &list));
    if (!list && config->z_dim != (config->residual ? WAN22_Z : PUBLISHED_Z))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key %s is missing, expected %lld numbers", file->path, key,
                         (long long)config->z_dim);
    for (int64_t i = 0; i < config->z_dim; i++) {
        out[i] = list ? cJSON_GetNumberValue(cJSON_GetArrayItem(list, (int)i)) : published[i];
        if (!(fabs(out[i]) <= 1e6) || (positive && !(out[i] >= 1e-6)))
            return DSVI_FAIL(DSV_E_FORMAT, "%s: %s[%lld] is not a %snumber, expected one up to 1e6",
                             file->path, key, (long long)i, positive ? "positive " : "");
    }
    return DSV_OK;
}

/* Fails unless the channels of all levels allow the shortcuts: means over whole groups of elements in the
 * encoder, and in the decoder repeated elements, of which each belongs to one output channel. */
static DsvStatus check_shortcuts(const char *path, const DsviVaeConfig *config)
{
    for (int64_t i = 0; i < config->levels; i++) {
        int64_t before = i > 0 ? config->dim_mult[i - 1] : 1;
        bool last = i == config->levels - 1;
        int64_t elements = last ? 1 : config->temporal_downsample[i] ? 8 : 4;
        if (before * elements % config->dim_mult[i])
            return DSVI_FAIL(DSV_E_FORMAT,
                             "%s: dim_mult[%lld] is %lld, expected a divisor of %lld, the elements of the "
                             "level's shortcut",
                             path, (long long)i, (long long)config->dim_mult[i],
                             (long long)(before * elements));
    }
    for (int64_t i = config->levels - 1; i > 0; i--) {
        int64_t in = config->dim_mult[i == config->levels - 1 ? i : i + 1], out = config->dim_mult[i];
        int64_t elements = config->temporal_downsample[i - 1] ? 8 : 4;
        if (in % out || elements % (in / out))
            return DSVI_FAIL(
                DSV_E_UNSUPPORTED,
                "%s: dim_mult[%lld] is %lld after %lld, expected a quotient that divides %lld, the "
                "elements of the shortcut of the decoder's level",
                path, (long long)i, (long long)out, (long long)in, (long long)elements);
    }
    return DSV_OK;
}

static DsvStatus config_read_fields(const ConfigFile *file, DsviVaeConfig *out)
{
    DSVI_TRY(config_read_variant(file, out));
    DSVI_TRY(config_whole(file, "base_dim", 1, BASE_DIM_MAX, 96, &out->base_dim));
    DSVI_TRY(config_whole(file, "decoder_base_dim", 1, BASE_DIM_MAX, out->base_dim, &out->decoder_base_dim));
    DSVI_TRY(config_whole(file, "z_dim", 1, DSVI_VAE_Z_MAX, PUBLISHED_Z, &out->z_dim));
    DSVI_TRY(config_whole(file, "num_res_blocks", 1, RES_BLOCKS_MAX, 2, &out->num_res_blocks));
    DSVI_TRY(config_read_levels(file, out));
    for (int64_t i = 1; i < out->levels && !out->residual; i++)
        if (out->decoder_base_dim * out->dim_mult[i] < 2)
            return DSVI_FAIL(DSV_E_FORMAT,
                             "%s: level %lld of the decoder has 1 channel, expected 2 or more, of which the "
                             "next level takes half",
                             file->path, (long long)i);
    if (out->residual)
        DSVI_TRY(check_shortcuts(file->path, out));
    DSVI_TRY(config_read_latents(file, "latents_mean", out->residual ? WAN22_MEAN : PUBLISHED_MEAN, false,
                                 out, out->mean));
    return config_read_latents(file, "latents_std", out->residual ? WAN22_STD : PUBLISHED_STD, true, out,
                               out->std);
}

DsvStatus dsvi_vae_config_read(const char *path, DsviVaeConfig *out)
{
    cJSON *object;
    memset(out, 0, sizeof *out);
    DsvStatus status = dsvi_model_config_parse(path, &object);
    if (status == DSV_OK)
        status = config_read_fields(&(ConfigFile){object, path}, out);
    cJSON_Delete(object);
    return status;
}

static bool vae_config_is_of_vae(const char *path)
{
    cJSON *object;
    bool is = false;
    if (dsvi_model_config_parse(path, &object) == DSV_OK) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "_class_name"));
        is = name && strstr(name, "Autoencoder");
    }
    cJSON_Delete(object);
    return is;
}

bool dsvi_vae_is(const char *path)
{
    static const char *const names[] = {"decoder.conv_out.weight", "decoder.head.2.weight"};
    char config[DSVI_PATH_MAX];
    DsviSafetensors *file;
    if (dsvi_path_is_folder(path))
        return dsvi_path_join(config, path, "config.json") == DSV_OK && dsvi_path_exists(config) &&
               vae_config_is_of_vae(config);
    if (dsvi_safetensors_open_unmapped(path, &file) != DSV_OK)
        return false;
    bool is = dsvi_safetensors_find(file, names[0]) || dsvi_safetensors_find(file, names[1]);
    dsvi_safetensors_close(&file);
    return is;
}

/* Returns a tensor by its name in diffusers or the Wan repository, which are made from `number`; or NULL. */
static const DsviStoredTensor *named(const DsviTensorSet *set, const char *diffusers, const char *original,
                                     int64_t number)
{
    char names[2][96];
    const char *const list[] = {names[0], names[1], NULL};
    for (int i = 0; i < 2; i++) {
        const char *format = i ? original : diffusers, *hole = strchr(format, '#');
        if (hole)
            snprintf(names[i], sizeof names[i], "%.*s%lld%s", (int)(hole - format), format, (long long)number,
                     hole + 1);
        else
            snprintf(names[i], sizeof names[i], "%s", format);
    }
    return dsvi_tensor_set_find(set, list);
}

/* Fails unless the dimension `at` of a tensor is from 1 to max. */
static DsvStatus derive_size(const DsviStoredTensor *tensor, const char *path, int at, int64_t max,
                             int64_t *out)
{
    if (tensor->ndim <= at || tensor->shape[at] < 1 || tensor->shape[at] > max)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "%s: tensor %s has an impossible shape, expected 1 to %lld in dimension %d", path,
                         tensor->name, (long long)max, at);
    *out = tensor->shape[at];
    return DSV_OK;
}

/* Adds a residual block with `out` channels to the level that is being read, and counts the blocks. */
static DsvStatus derive_block(const DsviStoredTensor *tensor, const char *path, int64_t blocks,
                              DsviVaeConfig *config)
{
    int64_t out = 0;
    DSVI_TRY(derive_size(tensor, path, 0, (int64_t)BASE_DIM_MAX * DIM_MULT_MAX, &out));
    if (out % config->base_dim || out / config->base_dim > DIM_MULT_MAX)
        return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s has %lld channels, expected 1 to %d times %lld", path,
                         tensor->name, (long long)out, DIM_MULT_MAX, (long long)config->base_dim);
    config->dim_mult[config->levels] = out / config->base_dim;
    if (config->levels == 0)
        config->num_res_blocks = blocks;
    return DSV_OK;
}

/* Reads the encoder's list of blocks: residual blocks, perhaps with attention, and after each level but the
 * last a convolution of stride 2. */
static DsvStatus derive_levels(const DsviTensorSet *set, const char *path, DsviVaeConfig *config)
{
    int64_t blocks = 0;
    for (int64_t i = 0; i < DSVI_VAE_LEVELS_MAX * (2 * RES_BLOCKS_MAX + 1); i++) {
        const DsviStoredTensor *found;
        found = named(set, "encoder.down_blocks.#.conv2.weight", "encoder.downsamples.#.residual.6.weight",
                      i);
        if (found) {
            DSVI_TRY(derive_block(found, path, ++blocks, config));
            continue;
        }
        found = named(set, "encoder.down_blocks.#.to_qkv.weight", "encoder.downsamples.#.to_qkv.weight", i);
        if (found) {
            config->attention[config->levels] = true;
            continue;
        }
        found = named(set, "encoder.down_blocks.#.resample.1.weight",
                      "encoder.downsamples.#.resample.1.weight", i);
        if (!found)
            break;
        if (blocks == 0 || config->levels == DSVI_VAE_LEVELS_MAX - 1)
            return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s is out of place, expected at most %d levels", path,
                             found->name, DSVI_VAE_LEVELS_MAX);
        config->temporal_downsample[config->levels++] = named(set, "encoder.down_blocks.#.time_conv.weight",
                                                              "encoder.downsamples.#.time_conv.weight", i);
        blocks = 0;
    }
    if (blocks == 0)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no residual blocks of the encoder, expected those of a VAE",
                         path);
    config->levels++;
    return DSV_OK;
}

/* Reads the levels of the VAE of Wan 2.2, which names its blocks by level. */
static DsvStatus derive_residual_levels(const DsviTensorSet *set, const char *path, DsviVaeConfig *config)
{
    for (int64_t level = 0; level < DSVI_VAE_LEVELS_MAX; level++) {
        const char *const sides[2] = {"encoder.down_blocks", "encoder.downsamples"};
        const DsviStoredTensor *found = NULL;
        char names[2][96];
        int64_t blocks = 0;
        for (; blocks < RES_BLOCKS_MAX; blocks++) {
            snprintf(names[0], sizeof names[0], "%s.%lld.resnets.%lld.conv2.weight", sides[0],
                     (long long)level, (long long)blocks);
            snprintf(names[1], sizeof names[1], "%s.%lld.downsamples.%lld.residual.6.weight", sides[1],
                     (long long)level, (long long)blocks);
            const DsviStoredTensor *next = named(set, names[0], names[1], 0);
            if (!next)
                break;
            found = next;
        }
        if (!found)
            break;
        DSVI_TRY(derive_block(found, path, blocks, config));
        snprintf(names[0], sizeof names[0], "%s.%lld.downsampler.time_conv.weight", sides[0],
                 (long long)level);
        snprintf(names[1], sizeof names[1], "%s.%lld.downsamples.%lld.time_conv.weight", sides[1],
                 (long long)level, (long long)blocks);
        config->temporal_downsample[config->levels++] = named(set, names[0], names[1], 0) != NULL;
    }
    if (config->levels == 0)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no residual blocks of the encoder, expected those of a VAE",
                         path);
    return DSV_OK;
}

DsvStatus dsvi_vae_config_derive(const DsviTensorSet *set, const char *path, DsviVaeConfig *out)
{
    int64_t colours = 0;
    const DsviStoredTensor *first = named(set, "encoder.conv_in.weight", "encoder.conv1.weight", 0);
    const DsviStoredTensor *last = named(set, "post_quant_conv.weight", "conv2.weight", 0);
    const DsviStoredTensor *head = named(set, "decoder.conv_out.weight", "decoder.head.2.weight", 0);
    memset(out, 0, sizeof *out);
    if (!first || !last || !head)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no %s, expected the tensors of a Wan VAE", path,
                         !first  ? "encoder.conv_in.weight (encoder.conv1.weight)"
                         : !last ? "post_quant_conv.weight (conv2.weight)"
                                 : "decoder.conv_out.weight (decoder.head.2.weight)");
    DSVI_TRY(derive_size(first, path, 0, BASE_DIM_MAX, &out->base_dim));
    DSVI_TRY(derive_size(first, path, 1, 1000000, &colours));
    DSVI_TRY(derive_size(last, path, 0, 1000000, &out->z_dim));
    out->residual = colours == COLOURS * WAN22_PATCH * WAN22_PATCH;
    out->patch = out->residual ? WAN22_PATCH : 1;
    int64_t published = out->residual ? WAN22_Z : PUBLISHED_Z;
    if (out->z_dim != published)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s: the VAE has %lld latent channels, expected %d, or a folder with a config.json "
                         "that has latents_mean and latents_std",
                         path, (long long)out->z_dim, (int)published);
    DSVI_TRY(out->residual ? derive_residual_levels(set, path, out) : derive_levels(set, path, out));
    if (out->residual)
        DSVI_TRY(check_shortcuts(path, out));
    DSVI_TRY(derive_size(head, path, 1, (int64_t)BASE_DIM_MAX * DIM_MULT_MAX, &out->decoder_base_dim));
    out->decoder_base_dim /= out->dim_mult[0];
    if (out->decoder_base_dim < 1 || out->decoder_base_dim > BASE_DIM_MAX)
        return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s has an impossible shape, expected 1 to %d channels",
                         path, head->name, BASE_DIM_MAX);
    memcpy(out->mean, out->residual ? WAN22_MEAN : PUBLISHED_MEAN, (size_t)published * sizeof *out->mean);
    memcpy(out->std, out->residual ? WAN22_STD : PUBLISHED_STD, (size_t)published * sizeof *out->std);
    return DSV_OK;
}

void dsvi_vae_factors(const DsviVaeConfig *config, int64_t *temporal, int64_t *spatial)
{
    *temporal = 1;
    *spatial = config->patch;
    for (int64_t i = 0; i < config->levels - 1; i++) {
        *temporal *= config->temporal_downsample[i] ? 2 : 1;
        *spatial *= 2;
    }
}

/* Checks one size, which must be least + unit k with k >= 0. */
static DsvStatus check_length(const char *what, int64_t found, int64_t least, int64_t unit, int64_t max)
{
    char nearest[64];
    if (found >= least && found <= max && (found - least) % unit == 0)
        return DSV_OK;
    if (found > max)
        snprintf(nearest, sizeof nearest, "%lld", (long long)(least + (max - least) / unit * unit));
    else if (found < least)
        snprintf(nearest, sizeof nearest, "%lld", (long long)least);
    else
        snprintf(nearest, sizeof nearest, "%lld or %lld", (long long)(found - (found - least) % unit),
                 (long long)(found - (found - least) % unit + unit));
    return DSVI_FAIL(DSV_E_SHAPE, "the VAE cannot take %s %lld, expected %s", what, (long long)found,
                     nearest);
}

DsvStatus dsvi_vae_check_size(const DsviVaeConfig *config, int64_t frames, int64_t height, int64_t width)
{
    int64_t temporal, spatial;
    dsvi_vae_factors(config, &temporal, &spatial);
    DSVI_TRY(check_length("num_frames", frames, 1, temporal, FRAMES_MAX));
    DSVI_TRY(check_length("height", height, spatial, spatial, SIDE_MAX));
    return check_length("width", width, spatial, spatial, SIDE_MAX);
}

void dsvi_vae_normalize(const DsviVaeConfig *config, int64_t count, float *latents)
{
    for (int64_t i = 0; i < config->z_dim * count; i++)
        latents[i] = (float)((latents[i] - config->mean[i / count]) / config->std[i / count]);
}

void dsvi_vae_denormalize(const DsviVaeConfig *config, int64_t count, float *latents)
{
    for (int64_t i = 0; i < config->z_dim * count; i++)
        latents[i] = (float)(latents[i] * config->std[i / count] + config->mean[i / count]);
}
