/* Implements encode_models.h. */
#include "encode/encode_models.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory_limit.h"
#include "model/dit/dit.h"
#include "model/weights/weights_identity.h"
#include "pipeline/wan_condition.h"

enum { PUBLISHED_CHANNELS = 16, PUBLISHED_PATCH = 2 }; /* of a transformer that the folder does not have */

static bool uses_vae(const DsvConfig *config)
{
    return strcmp(config->codec_name, "wan") == 0;
}

/* Finds the sizes that VAE and transformer take, and checks the one size of the windows against them. */
static DsvStatus models_shape(DsviEncodeModels *m)
{
    const DsvConfig *config = m->config;
    const DsviVideoShape video = {3, config->num_frames, config->height, config->width};
    DsviVideoShape latent;
    DsviDitConfig *transformer = &m->transformer;
    *transformer = (DsviDitConfig){.in_channels = PUBLISHED_CHANNELS,
                                   .out_channels = PUBLISHED_CHANNELS,
                                   .patch = {1, PUBLISHED_PATCH, PUBLISHED_PATCH}};
    if (m->folder.part[DSVI_WAN_TRANSFORMER][0])
        DSVI_TRY(dsvi_wan_folder_config(&m->folder, transformer));
    DSVI_TRY(dsvi_wan_shape(&m->folder, transformer, &m->shape));
    m->condition_channels = transformer->in_channels - transformer->out_channels;
    m->identity.condition = m->condition_channels > 0;
    m->pictures = m->identity.condition ||
                  (m->folder.expand_timesteps && strcmp(config->model_first_frame, "noise") != 0);
    const DsviWanCondition condition = {.latent.channels = transformer->out_channels,
                                        .temporal = m->shape.temporal};
    if (m->identity.condition)
        DSVI_TRY(dsvi_wan_condition_check(&condition, transformer, m->folder.part[DSVI_WAN_TRANSFORMER]));
    DSVI_TRY(
        dsvi_picture_encoder_find(m->backend, &m->folder, transformer, &m->picture_encoder, &m->identity));
    return config->data_buckets[0] ? DSV_OK : m->shape.codec.latent_shape(&m->shape.codec, video, &latent);
}

static DsvStatus models_find_vae(DsviEncodeModels *m)
{
    DSVI_TRY(dsvi_wan_folder_require(&m->folder, DSVI_WAN_VAE));
    DSVI_TRY(models_shape(m));
    m->identity.vae_type = dsvi_dit_act(m->config);
    return dsvi_weights_identity(m->folder.part[DSVI_WAN_VAE], &m->identity.vae);
}

static DsvStatus models_find_text(DsviEncodeModels *m)
{
    DsviUmt5Config sizes;
    DsviDitConfig transformer;
    DsviTextStore *text = &m->identity.text;
    const char *path = m->folder.part[DSVI_WAN_TEXT_ENCODER];
    DSVI_TRY(dsvi_wan_folder_require(&m->folder, DSVI_WAN_TOKENIZER));
    DSVI_TRY(dsvi_wan_folder_require(&m->folder, DSVI_WAN_TEXT_ENCODER));
    DSVI_TRY(dsvi_umt5_config_of(path, &sizes));
    if (m->folder.part[DSVI_WAN_TRANSFORMER][0]) {
        DSVI_TRY(dsvi_wan_folder_config(&m->folder, &transformer));
        DSVI_TRY(dsvi_wan_folder_check_text(&m->folder, &transformer));
    }
    text->dim = sizes.d_model;
    text->dtype = dsvi_dit_act(m->config);
    DSVI_TRY(dsvi_weights_identity(path, &text->encoder));
    return dsvi_tokenizer_open(m->folder.part[DSVI_WAN_TOKENIZER], &m->tokenizer);
}

DsvStatus dsvi_encode_models_open(const char *path, const DsvConfig *config, DsviBackend *backend,
                                  DsviEncodeModels *out)
{
    bool found;
    *out = (DsviEncodeModels){.backend = backend, .config = config};
    DSVI_TRY(dsvi_wan_folder_find(path, config, &out->folder, &found));
    if (!found)
        return DSVI_FAIL(
            DSV_E_NOT_FOUND,
            "%s: no published model, expected a folder with model_index.json, VAE and text encoder", path);
    DSVI_TRY(dsvi_wan_folder_check(&out->folder));
    if (uses_vae(config))
        DSVI_TRY(models_find_vae(out));
    return models_find_text(out);
}

void dsvi_encode_models_close(DsviEncodeModels *models)
{
    dsvi_tokenizer_close(&models->tokenizer);
    dsvi_umt5_close(&models->text_encoder);
    if (models->codec)
        models->codec->close(models->codec);
    models->codec = NULL;
    dsvi_vae_close(&models->vae);
    dsvi_picture_encoder_close(&models->picture_encoder);
}

/* ---- Text ---- */

static DsvStatus models_ids(void *context, const char *text, int32_t *ids, int64_t *count, int64_t *cut)
{
    const DsviEncodeModels *m = context;
    return dsvi_tokenizer_encode(m->tokenizer, text, DSVI_TEXT_ROWS, ids, count, cut);
}

DsviTextIds dsvi_encode_models_ids(DsviEncodeModels *models)
{
    return (DsviTextIds){.context = models, .limit = DSVI_TEXT_ROWS, .ids = models_ids};
}

static DsvStatus models_encode_text(void *context, int64_t count, const int64_t *lengths, const int32_t *ids,
                                    float *hidden)
{
    const DsviEncodeModels *m = context;
    DsvStatus status = dsvi_umt5_encode(m->text_encoder, count, lengths, ids, hidden);
    return status == DSV_OK ? DSV_OK : dsvi_fail_prefix(status, "%s", m->folder.part[DSVI_WAN_TEXT_ENCODER]);
}

DsvStatus dsvi_encode_models_load_text(DsviEncodeModels *models, int64_t rows, DsviTextEncoder *out)
{
    DsviUmt5Options options = {.act = models->identity.text.dtype,
                               .rows = dsvi_umt5_rows(rows, DSVI_TEXT_ROWS),
                               .memory_bytes = dsvi_memory_limit(models->config)};
    *out = (DsviTextEncoder){.context = models, .rows = options.rows, .encode = models_encode_text};
    return dsvi_umt5_open(models->backend, models->folder.part[DSVI_WAN_TEXT_ENCODER], &options,
                          &models->text_encoder);
}

void dsvi_encode_models_free_text(DsviEncodeModels *models)
{
    dsvi_umt5_close(&models->text_encoder);
}

/* ---- VAE ---- */

/* Writes what an image-to-video transformer takes beside the latent (wan_condition.h). last: NULL: one
 * picture
 */
static DsvStatus encode_condition(const DsviEncodeModels *m, const DsviWanCondition *c, const float *picture,
                                  const float *last, float *out)
{
    float *video = dsvi_wan_condition_video(c, picture, c->video.height * c->video.width, last);
    if (!video)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the video that begins with a window's picture");
    dsvi_wan_condition_mask(c, last != NULL, out);
    DsvStatus status = m->codec->encode(m->codec, c->video, video, out + dsvi_wan_condition_mask_elements(c));
    free(video);
    return status;
}

/* Returns whether the picture is the first frame of the pixels. */
static bool is_first_frame(DsviVideoShape video, const float *pixels, const float *picture)
{
    int64_t frame = video.height * video.width;
    bool same = true;
    for (int64_t c = 0; c < video.channels; c++)
        same = same && memcmp(picture + c * frame, pixels + c * video.frames * frame,
                              (size_t)frame * sizeof *pixels) == 0;
    return same;
}

/* Replaces the first frame of a latent by the latent of a picture. */
static DsvStatus encode_first_frame(const DsviEncodeModels *m, const DsviWanCondition *c,
                                    const float *picture, float *latent)
{
    DsviVideoShape still = c->video;
    int64_t places = c->latent.height * c->latent.width;
    still.frames = 1;
    float *first = malloc((size_t)(c->latent.channels * places) * sizeof *first);
    if (!first)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the latent of a picture");
    DsvStatus status = m->codec->encode(m->codec, still, picture, first);
    for (int64_t ch = 0; ch < c->latent.channels && status == DSV_OK; ch++)
        memcpy(latent + ch * c->latent.frames * places, first + ch * places, (size_t)places * sizeof *first);
    free(first);
    return status;
}

/* Copies the last frame of a window. */
static DsvStatus copy_last_frame(DsviVideoShape video, const float *pixels, float **out)
{
    size_t frame = (size_t)(video.height * video.width), frames = (size_t)video.frames;
    *out = malloc((size_t)video.channels * frame * sizeof **out);
    if (!*out)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the last frame of a window");
    for (size_t c = 0; c < (size_t)video.channels; c++)
        memcpy(*out + c * frame, pixels + ((c + 1) * frames - 1) * frame, frame * sizeof **out);
    return DSV_OK;
}

/* Writes what follows the latent for an image-to-video transformer: the condition, then the states of
 * pictures. */
static DsvStatus encode_pictures(DsviEncodeModels *m, const DsviWanCondition *c, const float *pixels,
                                 const float *picture, float *out)
{
    float *last = NULL;
    int64_t places = c->latent.frames * c->latent.height * c->latent.width;
    if (m->picture_encoder.pictures > 1)
        DSVI_TRY(copy_last_frame(c->video, pixels, &last));
    DsvStatus status = encode_condition(m, c, picture, last, out);
    if (status == DSV_OK && m->picture_encoder.encoder)
        status = dsvi_picture_encoder_run(&m->picture_encoder, c->video, picture, last,
                                          out + m->condition_channels * places);
    free(last);
    return status;
}

static DsvStatus models_encode_window(void *context, int64_t size, const float *pixels, float *latent)
{
    DsviEncodeModels *m = context;
    DsviWanCondition c = {.video = m->videos[size], .temporal = m->shape.temporal};
    const float *picture = pixels + c.video.channels * c.video.frames * c.video.height * c.video.width;
    DSVI_TRY(m->codec->encode(m->codec, c.video, pixels, latent));
    DSVI_TRY(m->codec->latent_shape(m->codec, c.video, &c.latent));
    if (m->identity.condition)
        return encode_pictures(m, &c, pixels, picture,
                               latent +
                                   c.latent.channels * c.latent.frames * c.latent.height * c.latent.width);
    return !m->pictures || is_first_frame(c.video, pixels, picture)
               ? DSV_OK
               : encode_first_frame(m, &c, picture, latent);
}

static double models_worked(void *context)
{
    const DsviEncodeModels *m = context;
    return dsvi_vae_worked(m->vae);
}

DsvStatus dsvi_encode_models_load_vae(DsviEncodeModels *models, DsviWindowEncoder *out)
{
    uint64_t wanted = dsvi_memory_limit(models->config), held;
    DSVI_TRY(dsvi_picture_encoder_load(&models->picture_encoder, models->identity.vae_type, &held));
    if (wanted > 0 && wanted <= held)
        return DSVI_FAIL(DSV_E_NO_MEMORY,
                         "memory_gib=%g: the image encoder takes %.2f GiB and leaves none to the VAE",
                         models->config->memory_gib, (double)held / 1073741824.0);
    DsviVaeOptions options = {
        .act = models->identity.vae_type,
        .encode = true,
        .memory_bytes = dsvi_vae_memory_limit(models->backend->device, wanted > 0 ? wanted - held : 0),
    };
    *out = (DsviWindowEncoder){.context = models,
                               .encode = models_encode_window,
                               .pictures = models->pictures,
                               .states = models->identity.image.rows * models->identity.image.dim,
                               .worked = models_worked};
    DSVI_TRY(dsvi_vae_open(models->backend, models->folder.part[DSVI_WAN_VAE], &options, &models->vae));
    return dsvi_codec_wan_open(models->vae, &models->codec);
}
