/* Takes the sizes of a transformer from the shapes of its stored tensors (weights.h), as single files have no
 * config.json. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/weights/weights.h"
#include "base/fs.h"
#include "model/weights/weights_files.h"

enum { PUBLISHED_HEAD = 128, PUBLISHED_CHANNELS = 16, PUBLISHED_TEXT = 512, PUBLISHED_POSITIONS = 1024 };
enum { BLOCKS_MAX = 1000, PATCH_MAX = 64 };

/* The tensors that give sizes, with both names. The last two exist only in models that take image rows. */
typedef enum Measure { PATCH, TEXT_IN, TIME_IN, FFN_IN, HEAD, IMAGE_IN, IMAGE_POSITIONS, MEASURES } Measure;

static const char *const NAMES[MEASURES][2] = {
    [PATCH] = {"patch_embedding.weight", "patch_embedding.weight"},
    [TEXT_IN] = {"condition_embedder.text_embedder.linear_1.weight", "text_embedding.0.weight"},
    [TIME_IN] = {"condition_embedder.time_embedder.linear_1.weight", "time_embedding.0.weight"},
    [FFN_IN] = {"blocks.0.ffn.net.0.proj.weight", "blocks.0.ffn.0.weight"},
    [HEAD] = {"proj_out.weight", "head.head.weight"},
    [IMAGE_IN] = {"condition_embedder.image_embedder.ff.net.0.proj.weight", "img_emb.proj.1.weight"},
    [IMAGE_POSITIONS] = {"condition_embedder.image_embedder.pos_embed", "img_emb.emb_pos"},
};

/* Parts of names by which an unsupported variant is recognised; the first that occurs counts. */
static const char *const VARIANTS[][2] = {
    {"vace_", "a VACE model (control video)"},
};
enum { VARIANT_COUNT = sizeof VARIANTS / sizeof *VARIANTS };

typedef struct Sizes {
    int64_t shape[MEASURES][DSVI_TENSOR_MAX_DIMS];
    int ndim[MEASURES]; /* 0: not found */
    int64_t blocks;     /* one more than the largest number of a block */
    size_t variant;     /* place in VARIANTS; VARIANT_COUNT: none */
} Sizes;

static void measure_tensor(Sizes *sizes, const DsviStoredTensor *tensor)
{
    const char *name = dsvi_weights_plain_name(tensor->name);
    if (strncmp(name, "blocks.", strlen("blocks.")) == 0) {
        long block = strtol(name + strlen("blocks."), NULL, 10);
        if (block >= 0 && block < BLOCKS_MAX && block + 1 > sizes->blocks)
            sizes->blocks = block + 1;
    }
    for (size_t v = 0; v < sizes->variant; v++)
        if (strstr(name, VARIANTS[v][0]))
            sizes->variant = v;
    for (int m = 0; m < MEASURES; m++)
        if (strcmp(name, NAMES[m][0]) == 0 || strcmp(name, NAMES[m][1]) == 0) {
            sizes->ndim[m] = tensor->ndim;
            memcpy(sizes->shape[m], tensor->shape, sizeof sizes->shape[m]);
        }
}

static DsvStatus measure_file(Sizes *sizes, const char *path)
{
    DsviSafetensors *file;
    DSVI_TRY(dsvi_safetensors_open_unmapped(path, &file));
    for (size_t i = 0; i < dsvi_safetensors_count(file); i++)
        measure_tensor(sizes, dsvi_safetensors_at(file, i));
    dsvi_safetensors_close(&file);
    return DSV_OK;
}

static void image_from_sizes(const Sizes *sizes, DsviDitConfig *config)
{
    if (sizes->ndim[IMAGE_IN] == 2)
        config->image_dim = sizes->shape[IMAGE_IN][1];
    if (sizes->ndim[IMAGE_IN] == 2 && sizes->ndim[IMAGE_POSITIONS] == 3)
        config->pos_embed_seq_len = sizes->shape[IMAGE_POSITIONS][1];
}

static DsvStatus config_from_sizes(const Sizes *sizes, const char *path, DsviDitConfig *out)
{
    static const int NDIM[IMAGE_IN] = {[PATCH] = 5, [TEXT_IN] = 2, [TIME_IN] = 2, [FFN_IN] = 2, [HEAD] = 2};
    for (int m = 0; m < IMAGE_IN; m++)
        if (sizes->ndim[m] != NDIM[m])
            return DSVI_FAIL(m == PATCH && sizes->ndim[m] == 0 ? DSV_E_NOT_FOUND : DSV_E_SHAPE,
                             "%s: tensor %s %s, expected the %d dimensions that a Wan transformer has there",
                             path, NAMES[m][1],
                             sizes->ndim[m] ? "has another number of dimensions" : "is missing", NDIM[m]);
    if (sizes->variant < VARIANT_COUNT)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: its tensors are those of %s, which dsv does not support",
                         path, VARIANTS[sizes->variant][1]);
    const int64_t *patch = sizes->shape[PATCH];
    int64_t width = patch[0], volume = 1;
    for (int i = 2; i < 5; i++) /* a larger patch is refused below, by the range of patch_size */
        volume *= patch[i] > 0 && patch[i] <= PATCH_MAX ? patch[i] : 1;
    if (width < 1 || width % PUBLISHED_HEAD)
        return DSVI_FAIL(
            DSV_E_SHAPE,
            "%s: the width is %lld, expected a multiple of the head size of published models, %d; for "
            "another head size put the model's config.json beside the file",
            path, (long long)width, PUBLISHED_HEAD);
    *out = (DsviDitConfig){
        .num_layers = sizes->blocks,
        .num_attention_heads = width / PUBLISHED_HEAD,
        .attention_head_dim = PUBLISHED_HEAD,
        .ffn_dim = sizes->shape[FFN_IN][0],
        .freq_dim = sizes->shape[TIME_IN][1],
        .text_dim = sizes->shape[TEXT_IN][1],
        .text_len = PUBLISHED_TEXT,
        .in_channels = patch[1],
        .out_channels = sizes->shape[HEAD][0] / volume,
        .patch = {patch[2], patch[3], patch[4]},
        .rope_max_seq_len = PUBLISHED_POSITIONS,
        .eps = 1e-6,
    };
    image_from_sizes(sizes, out);
    if (out->image_dim > 0)
        return dsvi_dit_config_check(out, path);
    if (out->in_channels > out->out_channels)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s: %lld input and %lld output channels, as image-to-video models (I2V) have: only "
                         "text-to-video models are supported",
                         path, (long long)out->in_channels, (long long)out->out_channels);
    if (out->in_channels != PUBLISHED_CHANNELS)
        return DSVI_FAIL(
            DSV_E_UNSUPPORTED,
            "%s: %lld latent channels, expected 16 as in Wan 2.1; for another model, such as TI2V-5B of Wan "
            "2.2, put its config.json beside the file",
            path, (long long)out->in_channels);
    return dsvi_dit_config_check(out, path);
}

static DsvStatus measure_files(const char *path, Sizes *out)
{
    DsvStatus status;
    DsviWeightFiles files;
    *out = (Sizes){.variant = VARIANT_COUNT};
    DSVI_TRY_GOTO(status, dsvi_weight_files_find(path, &files), done);
    for (size_t i = 0; i < files.count; i++)
        DSVI_TRY_GOTO(status, measure_file(out, files.paths[i]), done);
done:
    dsvi_weight_files_free(&files);
    return status;
}

DsvStatus dsvi_weights_config(const char *path, DsviDitConfig *out)
{
    Sizes sizes;
    DSVI_TRY(measure_files(path, &sizes));
    return config_from_sizes(&sizes, path, out);
}

/* Returns whether `path` is a folder without weights, of which a memory plan needs the config.json alone. */
static bool lacks_weights(const char *path)
{
    DsviWeightFiles files = {0};
    if (!dsvi_path_is_folder(path))
        return false;
    bool lacks = dsvi_weight_files_find(path, &files) == DSV_E_NOT_FOUND;
    dsvi_weight_files_free(&files);
    return lacks;
}

DsvStatus dsvi_weights_find_image(const char *path, DsviDitConfig *config)
{
    Sizes sizes;
    if (config->in_channels <= config->out_channels || config->image_dim > 0 || lacks_weights(path))
        return DSV_OK;
    DSVI_TRY(measure_files(path, &sizes));
    image_from_sizes(&sizes, config);
    return dsvi_dit_config_check(config, path);
}
