/* Implements wan_folder.h: one function for each layout. */
#include "model/folder/wan_folder.h"

#include <stdio.h>
#include <string.h>

#include "model/folder/wan_parts.h"
#include "model/umt5/umt5.h"
#include "model/vae/vae.h"
#include "model/weights/weights.h"

/* How the safetensors file of a part is told from other files: its preferred name, and words in the name of a
 * pickle with the same content. */
static const DsviWanSearch TRANSFORMER = {DSVI_WAN_TRANSFORMER, "t2v", "diffusion_pytorch_model"};
static const DsviWanSearch VAE = {DSVI_WAN_VAE, "wan", "vae"};
static const DsviWanSearch TEXT_ENCODER = {DSVI_WAN_TEXT_ENCODER, "umt5", "t5"};

const char *dsvi_wan_part_name(DsviWanPart part)
{
    static const char *const NAMES[DSVI_WAN_PARTS] = {
        [DSVI_WAN_TRANSFORMER] = "transformer",     [DSVI_WAN_VAE] = "VAE",
        [DSVI_WAN_TEXT_ENCODER] = "text encoder",   [DSVI_WAN_TOKENIZER] = "tokenizer",
        [DSVI_WAN_SCHEDULER] = "scheduler",         [DSVI_WAN_TRANSFORMER_2] = "transformer_2",
        [DSVI_WAN_IMAGE_ENCODER] = "image encoder", [DSVI_WAN_IMAGE_PROCESSOR] = "image processor",
    };
    return NAMES[part];
}

/* Stores the path of a part, unless the part is already known. */
static void use(DsviWanFolder *out, DsviWanPart part, const char *path)
{
    if (!out->part[part][0])
        snprintf(out->part[part], sizeof out->part[part], "%s", path);
}

/* Stores folder/name as the part if it exists. */
static DsvStatus use_if_exists(DsviWanFolder *out, DsviWanPart part, const char *folder, const char *name)
{
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(path, folder, name));
    if (dsvi_path_exists(path))
        use(out, part, path);
    return DSV_OK;
}

/* Where the parts are in the layout of diffusers. */
static const char *const PLACES[DSVI_WAN_PARTS] = {
    [DSVI_WAN_TRANSFORMER] = "transformer",
    [DSVI_WAN_VAE] = "vae",
    [DSVI_WAN_TEXT_ENCODER] = "text_encoder",
    [DSVI_WAN_TOKENIZER] = "tokenizer",
    [DSVI_WAN_SCHEDULER] = "scheduler/scheduler_config.json",
    [DSVI_WAN_TRANSFORMER_2] = "transformer_2",
    [DSVI_WAN_IMAGE_ENCODER] = "image_encoder",
    [DSVI_WAN_IMAGE_PROCESSOR] = "image_processor/preprocessor_config.json",
};

static DsvStatus find_diffusers(DsviWanFolder *out)
{
    out->layout = "diffusers";
    for (int part = 0; part < DSVI_WAN_PARTS; part++)
        DSVI_TRY(use_if_exists(out, (DsviWanPart)part, out->path, PLACES[part]));
    DSVI_TRY(dsvi_wan_index_read(out));
    if (!out->two_experts)
        out->part[DSVI_WAN_TRANSFORMER_2][0] = 0;
    return DSV_OK;
}

/* Finds text encoder and tokenizer among the files of a folder, as the Wan repository stores them. */
static DsvStatus find_text_beside(DsviWanFolder *out, const char *folder)
{
    DSVI_TRY(dsvi_wan_files_search(out, folder, &TEXT_ENCODER));
    DSVI_TRY(use_if_exists(out, DSVI_WAN_TOKENIZER, folder, "google/umt5-xxl"));
    DSVI_TRY(use_if_exists(out, DSVI_WAN_TOKENIZER, folder, "spiece.model"));
    return use_if_exists(out, DSVI_WAN_TOKENIZER, folder, "tokenizer.json");
}

static DsvStatus find_beside(DsviWanFolder *out, const char *folder)
{
    DSVI_TRY(dsvi_wan_files_search(out, folder, &VAE));
    return find_text_beside(out, folder);
}

/* Finds text encoder and tokenizer in the folders of ComfyUI. */
static DsvStatus find_comfy_text(DsviWanFolder *out, const char *root)
{
    static const char *const TEXT_FOLDERS[] = {"text_encoders", "clip"};
    char folder[DSVI_PATH_MAX];
    for (size_t i = 0; i < sizeof TEXT_FOLDERS / sizeof *TEXT_FOLDERS; i++) {
        DSVI_TRY(dsvi_path_join(folder, root, TEXT_FOLDERS[i]));
        DSVI_TRY(dsvi_wan_files_search(out, folder, &TEXT_ENCODER));
        DSVI_TRY(use_if_exists(out, DSVI_WAN_TOKENIZER, folder, "spiece.model"));
    }
    return DSV_OK;
}

static DsvStatus find_comfy(DsviWanFolder *out, const char *root)
{
    char folder[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(folder, root, "vae"));
    DSVI_TRY(dsvi_wan_files_search(out, folder, &VAE));
    return find_comfy_text(out, root);
}

/* Stores in `parent` the folder that contains `path`, which has no slash at its end. */
static void parent_of(const char *path, char parent[DSVI_PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    snprintf(parent, DSVI_PATH_MAX, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (slash == path)
        snprintf(parent, DSVI_PATH_MAX, "/");
}

static DsvStatus find_of_file(DsviWanFolder *out)
{
    char folder[DSVI_PATH_MAX], root[DSVI_PATH_MAX];
    if (!dsvi_wan_file_holds(out->path, DSVI_WAN_TRANSFORMER))
        return DSV_OK;
    out->layout = "ComfyUI";
    snprintf(out->part[DSVI_WAN_TRANSFORMER], DSVI_PATH_MAX, "%s", out->path);
    parent_of(out->path, folder);
    DSVI_TRY(find_beside(out, folder));
    if (strchr(folder, '/'))
        parent_of(folder, root);
    else
        DSVI_TRY(dsvi_path_join(root, folder, ".."));
    return find_comfy(out, root);
}

static DsvStatus find_of_folder(DsviWanFolder *out)
{
    static const char *const FOLDERS[] = {"diffusion_models", "unet"};
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(path, out->path, "model_index.json"));
    if (dsvi_path_exists(path))
        return find_diffusers(out);
    DSVI_TRY(dsvi_path_join(path, out->path, "high_noise_model"));
    if (dsvi_path_is_folder(path))
        dsvi_wan_refuse(out, path, "a model of two experts (Wan 2.2 A14B)");
    if (dsvi_umt5_is(out->path) || dsvi_vae_is(out->path))
        return DSV_OK; /* the config.json is not that of a transformer */
    DSVI_TRY(dsvi_path_join(path, out->path, "config.json"));
    if (out->refused || dsvi_path_exists(path)) {
        out->layout = "Wan repository";
        snprintf(out->part[DSVI_WAN_TRANSFORMER], DSVI_PATH_MAX, "%s", out->path);
        return find_beside(out, out->path);
    }
    out->layout = "ComfyUI";
    for (size_t i = 0; i < sizeof FOLDERS / sizeof *FOLDERS; i++) {
        DSVI_TRY(dsvi_path_join(path, out->path, FOLDERS[i]));
        DSVI_TRY(dsvi_wan_files_search(out, path, &TRANSFORMER));
    }
    DSVI_TRY(dsvi_wan_files_search(out, out->path, &TRANSFORMER));
    if (!out->part[DSVI_WAN_TRANSFORMER][0])
        return DSV_OK;
    DSVI_TRY(find_comfy(out, out->path));
    return find_beside(out, out->path);
}

/* Stores the parts that options name. */
static DsvStatus apply_options(DsviWanFolder *out, const DsvConfig *settings)
{
    const struct {
        DsviWanPart part;
        const char *key, *value;
    } options[] = {
        {DSVI_WAN_VAE, "model.vae", settings->model_vae},
        {DSVI_WAN_TEXT_ENCODER, "model.text_encoder", settings->model_text_encoder},
        {DSVI_WAN_TOKENIZER, "model.tokenizer", settings->model_tokenizer},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (!options[i].value[0])
            continue;
        if (!dsvi_path_exists(options[i].value))
            return DSVI_FAIL(DSV_E_NOT_FOUND, "%s=%s: no such file or folder", options[i].key,
                             options[i].value);
        snprintf(out->part[options[i].part], DSVI_PATH_MAX, "%s", options[i].value);
    }
    return DSV_OK;
}

/* Finds the tokenizer in or beside the text encoder, unless it is already known. */
static DsvStatus find_tokenizer_of_encoder(DsviWanFolder *out)
{
    const char *encoder = out->part[DSVI_WAN_TEXT_ENCODER];
    char parent[DSVI_PATH_MAX];
    if (!encoder[0] || out->part[DSVI_WAN_TOKENIZER][0])
        return DSV_OK;
    if (!dsvi_path_is_folder(encoder)) {
        use(out, DSVI_WAN_TOKENIZER, encoder);
        return DSV_OK;
    }
    DSVI_TRY(use_if_exists(out, DSVI_WAN_TOKENIZER, encoder, "tokenizer.json"));
    DSVI_TRY(use_if_exists(out, DSVI_WAN_TOKENIZER, encoder, "spiece.model"));
    DSVI_TRY(dsvi_path_join(parent, encoder, ".."));
    return use_if_exists(out, DSVI_WAN_TOKENIZER, parent, "tokenizer");
}

static bool has_manifest(const char *path)
{
    char manifest[DSVI_PATH_MAX], parent[DSVI_PATH_MAX];
    parent_of(path, parent);
    return (dsvi_path_join(manifest, path, "manifest.json") == DSV_OK && dsvi_path_exists(manifest)) ||
           (dsvi_path_join(manifest, parent, "manifest.json") == DSV_OK && dsvi_path_exists(manifest));
}

DsvStatus dsvi_wan_folder_find(const char *path, const DsvConfig *settings, DsviWanFolder *out, bool *found)
{
    size_t length = strlen(path);
    memset(out, 0, sizeof *out);
    *found = false;
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (length >= DSVI_PATH_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%.64s...: path longer than %d bytes", path, DSVI_PATH_MAX - 1);
    snprintf(out->path, sizeof out->path, "%.*s", (int)length, path);
    if (!dsvi_path_exists(out->path) || has_manifest(out->path))
        return DSV_OK;
    if (settings)
        DSVI_TRY(apply_options(out, settings)); /* a part that is known is not searched for */
    DSVI_TRY(dsvi_path_is_folder(out->path) ? find_of_folder(out) : find_of_file(out));
    DSVI_TRY(find_tokenizer_of_encoder(out));
    bool diffusers = out->layout && strcmp(out->layout, "diffusers") == 0;
    *found = diffusers || out->refused;
    for (int part = DSVI_WAN_VAE; part <= DSVI_WAN_TEXT_ENCODER; part++)
        *found = *found ||
                 (out->part[DSVI_WAN_TRANSFORMER][0] && (out->part[part][0] || out->pickle[part][0]));
    return DSV_OK;
}

/* Finds the text encoder of a path that is no whole model. */
static DsvStatus find_encoder_alone(DsviWanFolder *out)
{
    const DsviWanPart part = DSVI_WAN_TEXT_ENCODER;
    char folder[DSVI_PATH_MAX];
    if (dsvi_wan_is_pickle(out->path)) {
        snprintf(out->pickle[part], DSVI_PATH_MAX, "%s", out->path);
        return DSV_OK;
    }
    if (!dsvi_path_is_folder(out->path)) {
        out->layout = "ComfyUI";
        use(out, part, out->path);
        parent_of(out->path, folder);
        return find_text_beside(out, folder);
    }
    out->layout = "diffusers";
    DSVI_TRY(use_if_exists(out, part, out->path, "text_encoder"));
    DSVI_TRY(use_if_exists(out, DSVI_WAN_TOKENIZER, out->path, "tokenizer"));
    if (dsvi_umt5_is(out->path))
        use(out, part, out->path);
    if (out->part[part][0])
        return DSV_OK;
    out->layout = "Wan repository";
    DSVI_TRY(find_comfy_text(out, out->path));
    return find_text_beside(out, out->path);
}

DsvStatus dsvi_wan_folder_find_text(const char *path, const DsvConfig *settings, DsviWanFolder *out)
{
    bool found;
    if (!dsvi_path_exists(path))
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no such folder or file, expected a text encoder", path);
    DSVI_TRY(dsvi_wan_folder_find(path, settings, out, &found));
    if (!found) {
        DSVI_TRY(find_encoder_alone(out));
        DSVI_TRY(find_tokenizer_of_encoder(out));
    }
    if (!found && !out->part[DSVI_WAN_TEXT_ENCODER][0] && !out->pickle[DSVI_WAN_TEXT_ENCODER][0])
        return DSVI_FAIL(DSV_E_NOT_FOUND,
                         "%s: no text encoder, expected text_encoder/, the config.json of a UMT5 model, or a "
                         "safetensors file with the tensors of one",
                         path);
    DSVI_TRY(dsvi_wan_folder_require(out, DSVI_WAN_TEXT_ENCODER));
    return dsvi_wan_folder_require(out, DSVI_WAN_TOKENIZER);
}

DsvStatus dsvi_wan_folder_check(const DsviWanFolder *folder)
{
    return folder->refused ? DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: %s", folder->path, folder->refusal) : DSV_OK;
}

/* Fails if the part lacks config.json, as a folder in the layout of diffusers must not: the shapes of the
 * tensors do not tell everything, such as the mean of the latents. */
static DsvStatus require_config(const DsviWanFolder *folder, DsviWanPart part)
{
    char config[DSVI_PATH_MAX];
    const char *path = folder->part[part];
    bool configured = part == DSVI_WAN_TRANSFORMER || part == DSVI_WAN_TRANSFORMER_2 ||
                      part == DSVI_WAN_VAE || part == DSVI_WAN_TEXT_ENCODER || part == DSVI_WAN_IMAGE_ENCODER;
    if (!configured || strcmp(folder->layout, "diffusers") != 0 || !dsvi_path_is_folder(path))
        return DSV_OK;
    DSVI_TRY(dsvi_path_join(config, path, "config.json"));
    return dsvi_path_exists(config) ? DSV_OK
                                    : DSVI_FAIL(DSV_E_NOT_FOUND, "%s: the %s lacks its config.json", path,
                                                dsvi_wan_part_name(part));
}

DsvStatus dsvi_wan_folder_require(const DsviWanFolder *folder, DsviWanPart part)
{
    static const char *const WAYS[DSVI_WAN_PARTS] = {
        [DSVI_WAN_TRANSFORMER] = "",
        [DSVI_WAN_VAE] = "; model.vae=PATH names one elsewhere",
        [DSVI_WAN_TEXT_ENCODER] = "; model.text_encoder=PATH names one elsewhere",
        [DSVI_WAN_TOKENIZER] = "; model.tokenizer=PATH names one elsewhere",
        [DSVI_WAN_SCHEDULER] = "",
        [DSVI_WAN_TRANSFORMER_2] = ", which model_index.json names beside boundary_ratio",
        [DSVI_WAN_IMAGE_ENCODER] = ", which dsv reads in the layout of diffusers only",
        [DSVI_WAN_IMAGE_PROCESSOR] = ", which dsv reads in the layout of diffusers only",
    };
    const char *pickle = folder->pickle[part], *name = dsvi_wan_part_name(part);
    if (folder->part[part][0])
        return require_config(folder, part);
    if (pickle[0])
        return DSVI_FAIL(
            DSV_E_UNSUPPORTED,
            "%s: the %s is a Python pickle, which dsv does not read because opening one can run code: "
            "put a safetensors file beside it, which `python3 -c \"import torch, safetensors.torch "
            "as s; s.save_file({k: v.contiguous() for k, v in torch.load('%s', weights_only=True, "
            "map_location='cpu').items()}, '%.*s.safetensors')\"` writes",
            pickle, name, pickle, (int)(strrchr(pickle, '.') - pickle), pickle);
    bool diffusers = strcmp(folder->layout, "diffusers") == 0;
    return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: the %s is missing%s%s%s%s%s", folder->path, name,
                     diffusers ? ", expected " : "", diffusers ? folder->path : "", diffusers ? "/" : "",
                     diffusers ? PLACES[part] : "", WAYS[part]);
}

/* Reads the sizes of the transformer that is `part`. */
static DsvStatus read_config(const DsviWanFolder *folder, DsviWanPart part, DsviDitConfig *out)
{
    enum { PUBLISHED_CHANNELS = 16, WAN22_CHANNELS = 48, IMAGE_CHANNELS = 36 };
    char config[DSVI_PATH_MAX], parent[DSVI_PATH_MAX];
    const char *transformer = folder->part[part];
    DSVI_TRY(require_config(folder, part));
    parent_of(transformer, parent);
    bool whole = dsvi_path_is_folder(transformer);
    DSVI_TRY(dsvi_path_join(config, whole ? transformer : parent, "config.json"));
    bool configured = dsvi_path_exists(config);
    DSVI_TRY(configured ? dsvi_dit_config_read(config, out) : dsvi_weights_config(transformer, out));
    DSVI_TRY(dsvi_weights_find_image(transformer, out));
    if ((out->in_channels == out->out_channels &&
         (out->in_channels == PUBLISHED_CHANNELS || out->in_channels == WAN22_CHANNELS)) ||
        (out->in_channels == IMAGE_CHANNELS && out->out_channels == PUBLISHED_CHANNELS))
        return DSV_OK;
    return DSVI_FAIL(
        DSV_E_UNSUPPORTED,
        "%s: the transformer takes %lld and gives %lld channels, expected 16 and 16, 48 and 48 as "
        "in TI2V-5B of Wan 2.2, or 36 and 16 as in image-to-video models",
        transformer, (long long)out->in_channels, (long long)out->out_channels);
}

DsvStatus dsvi_wan_folder_config(const DsviWanFolder *folder, DsviDitConfig *out)
{
    DsviDitConfig second;
    const char *path = folder->part[DSVI_WAN_TRANSFORMER_2];
    DSVI_TRY(dsvi_wan_folder_check(folder));
    DSVI_TRY(read_config(folder, DSVI_WAN_TRANSFORMER, out));
    if (!path[0])
        return DSV_OK;
    DSVI_TRY(read_config(folder, DSVI_WAN_TRANSFORMER_2, &second));
    if (dsvi_dit_config_compare(&second, out, path) == DSV_OK)
        return DSV_OK;
    return dsvi_fail_prefix(DSV_E_SHAPE, "%s: both experts need the sizes of transformer", folder->path);
}

DsvStatus dsvi_wan_folder_check_text(const DsviWanFolder *folder, const DsviDitConfig *transformer)
{
    DsviUmt5Config text;
    const char *path = folder->part[DSVI_WAN_TEXT_ENCODER];
    DSVI_TRY(dsvi_umt5_config_of(path, &text));
    if (text.d_model == transformer->text_dim)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_SHAPE,
                     "%s: a text encoder with hidden states of %lld, expected %lld, which %s takes", path,
                     (long long)text.d_model, (long long)transformer->text_dim,
                     folder->part[DSVI_WAN_TRANSFORMER]);
}
