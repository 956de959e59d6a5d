/* Shapes that follow from a model's shape and options, in one place so that training, sampling and `dsv
 * forward` use the same. */
#include <stdio.h>
#include <string.h>

#include "model/dit/dit.h"

DsviDtype dsvi_dit_act(const DsvConfig *settings)
{
    return strcmp(settings->mixed_precision, "bf16") == 0 ? DSVI_BF16 : DSVI_F32;
}

bool dsvi_dit_stores_f8(const DsvConfig *settings)
{
    return strcmp(settings->base_precision, "fp8") == 0;
}

bool dsvi_dit_given_first(const DsvConfig *settings)
{
    return strcmp(settings->model_first_frame, "given") == 0;
}

DsviDitKeep dsvi_dit_keep(const DsvConfig *settings)
{
    const char *name = settings->gradient_checkpointing;
    return strcmp(name, "true") == 0        ? DSVI_KEEP_INPUT
           : strcmp(name, "selective") == 0 ? DSVI_KEEP_ATTENTION
                                            : DSVI_KEEP_ALL;
}

DsvStatus dsvi_dit_check_latent(const DsviDitConfig *config, const DsviCodec *codec, DsviVideoShape latent)
{
    enum { WAN_VAE_CHANNELS = 16 };
    if (config->in_channels == latent.channels && config->out_channels == latent.channels)
        return DSV_OK;
    if (config->in_channels > config->out_channels)
        return DSVI_FAIL(
            DSV_E_UNSUPPORTED,
            "an image-to-video model, which takes a picture in %lld channels beside the latent's "
            "%lld, expected a text-to-video model; dsv sample --image samples such models",
            (long long)(config->in_channels - config->out_channels), (long long)config->out_channels);
    if (config->in_channels == WAN_VAE_CHANNELS && config->out_channels == WAN_VAE_CHANNELS)
        return DSVI_FAIL(
            DSV_E_UNSUPPORTED,
            "the model needs the Wan VAE: it works on that VAE's 16 latent channels, and codec %s "
            "gives %lld; dsv sample takes the VAE of a published folder or of model.vae=PATH",
            codec->name, (long long)latent.channels);
    return DSVI_FAIL(DSV_E_SHAPE, "the model takes %lld and gives %lld latent channels, codec %s has %lld",
                     (long long)config->in_channels, (long long)config->out_channels, codec->name,
                     (long long)latent.channels);
}

bool dsvi_dit_takes_condition(const DsviDitConfig *config)
{
    return config->in_channels > config->out_channels;
}

/* Checks that a side of the clip, `latent` times `unit` pixels, is a whole number of patches. */
static DsvStatus check_side(const char *key, int64_t latent, int64_t unit, int64_t patch)
{
    int64_t step = unit * patch, found = latent * unit, below = found / step * step;
    char nearest[64];
    if (latent % patch == 0)
        return DSV_OK;
    if (below > 0)
        snprintf(nearest, sizeof nearest, "the nearest are %lld and %lld", (long long)below,
                 (long long)(below + step));
    else
        snprintf(nearest, sizeof nearest, "the nearest is %lld", (long long)step);
    return DSVI_FAIL(
        DSV_E_SHAPE,
        "%s=%lld, expected a multiple of %lld, %lld of the codec times %lld of the model's patch: %s", key,
        (long long)found, (long long)step, (long long)unit, (long long)patch, nearest);
}

DsvStatus dsvi_dit_check_input(const DsviDitConfig *config, const DsviCodec *codec, DsviVideoShape latent)
{
    int64_t pictures, unit;
    DSVI_TRY(dsvi_codec_steps(codec, &pictures, &unit));
    DSVI_TRY(check_side("height", latent.height, unit, config->patch[1]));
    DSVI_TRY(check_side("width", latent.width, unit, config->patch[2]));
    bool published = strcmp(codec->name, "wan") == 0 && config->out_channels == latent.channels;
    if (!published || !dsvi_dit_takes_condition(config))
        return dsvi_dit_check_latent(config, codec, latent);
    if (config->in_channels == 2 * latent.channels + pictures)
        return DSV_OK;
    return DSVI_FAIL(
        DSV_E_SHAPE,
        "the model takes %lld channels, expected %lld: twice the VAE's %lld latent channels, and "
        "a mask of %lld",
        (long long)config->in_channels, (long long)(2 * latent.channels + pictures),
        (long long)latent.channels, (long long)pictures);
}

DsvStatus dsvi_dit_check_pictures(const DsviDitConfig *config, DsviVideoShape latent)
{
    if (config->pos_embed_seq_len == 0 || latent.frames > 1)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_SHAPE,
                     "num_frames=1: the model makes clips between two pictures, expected 2 frames or more");
}

DsviDitShape dsvi_dit_shape_of(const DsviDitConfig *config, int64_t batch, DsviVideoShape latent)
{
    return (DsviDitShape){
        .batch = batch,
        .frames = latent.frames,
        .height = latent.height,
        .width = latent.width,
        .text_len = config->text_len,
        .image_len = dsvi_dit_image_len(config),
    };
}

int64_t dsvi_dit_tokens(const DsviDitConfig *config, const DsviDitShape *shape)
{
    return shape->frames / config->patch[0] * (shape->height / config->patch[1]) *
           (shape->width / config->patch[2]);
}

DsviCpClip dsvi_dit_cp_clip(const DsviDitConfig *config, const DsviDitShape *shape, const DsvConfig *settings)
{
    return (DsviCpClip){
        .tokens = dsvi_dit_tokens(config, shape),
        .heads = config->num_attention_heads,
        .unit = dsvi_sparse_unit(settings),
        .blocks = config->num_layers,
        .head_ranks = settings->cp_heads,
    };
}

/* Returns the bytes of predictor outputs of one token and head, Q_lr and K_lr, that context-parallel ranks
 * exchange in training; 0 for selectors that do not learn from exact scores. */
static double predictor_bytes(const DsviDitShape *shape, const DsvConfig *settings)
{
    bool taught = shape->backward && settings->sparse_enabled &&
                  strcmp(settings->sparse_selector, "predictor") == 0;
    return taught ? 2 * (double)settings->sparse_rank * sizeof(float) : 0;
}

DsviCpShape dsvi_dit_cp_shape(const DsviDitConfig *config, const DsviDitShape *shape,
                              const DsvConfig *settings)
{
    return (DsviCpShape){
        .batch = shape->batch,
        .tokens = dsvi_dit_tokens(config, shape),
        .heads = config->num_attention_heads,
        .head_dim = config->attention_head_dim,
        .element = (int64_t)dsvi_dtype_size(shape->act),
        .feature = dsvi_sparse_feature_bytes(settings, config->attention_head_dim),
        .taught = predictor_bytes(shape, settings),
        .group = settings->sparse_group,
        .grain = settings->sparse_grain,
        .tail = dsvi_sparse_has_tail(settings),
        .backward = shape->backward,
        .recompute = shape->backward && shape->keep == DSVI_KEEP_INPUT,
        .head_ranks = settings->cp_heads,
    };
}

DsviSparseShape dsvi_dit_sparse_shape(const DsviDitConfig *config, const DsviDitShape *shape)
{
    DsviSparseShape sparse = {
        .blocks = config->num_layers,
        .batch = shape->batch,
        .heads = config->num_attention_heads,
        .head_dim = config->attention_head_dim,
        .grid = {shape->frames / config->patch[0], shape->height / config->patch[1],
                 shape->width / config->patch[2]},
        .act = shape->act,
        .backward = shape->backward,
        .cp = shape->cp,
    };
    sparse.tokens = dsvi_dit_tokens(config, shape);
    return sparse;
}
