/* The shape of a Wan 2.1 transformer: presets, and config.json with the keys of diffusers or of the original
 * code. */
#ifndef DSVI_DIT_CONFIG_H
#define DSVI_DIT_CONFIG_H

#include "base/status.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviDitConfig {
    int64_t num_layers;          /* blocks */
    int64_t num_attention_heads; /* N */
    int64_t attention_head_dim;  /* D, even, 32 to 256 */
    int64_t ffn_dim;             /* hidden width of the feed-forward layer */
    int64_t freq_dim;            /* width of the sinusoidal time embedding, even */
    int64_t text_dim;            /* width of a text row */
    int64_t text_len;            /* text rows that the model is used with; diffusers' config.json has no such
                                  * key */
    int64_t in_channels, out_channels;
    int64_t image_dim;         /* width of the rows of an image, which cross-attention attends besides the
                                * text (Wan 2.1 I2V: states of CLIP, 1280); 0: no such rows */
    int64_t pos_embed_seq_len; /* image rows of a sample, to which a table of positions is added (FLF2V: 514,
                                * those of two images); 0: no table, and any number of rows */
    int64_t image_len;         /* image rows of a sample in training; 0: as dsvi_dit_image_len says */
    int64_t patch[3];          /* latent frames, rows and columns that make a token */
    int64_t rope_max_seq_len;  /* limit of positions on each axis of the token grid */
    double eps;                /* added to the variance in norms */
} DsviDitConfig;

/* Returns C, the width of the residual stream. */
static inline int64_t dsvi_dit_width(const DsviDitConfig *config)
{
    return config->num_attention_heads * config->attention_head_dim;
}

/* Returns the image rows of a sample in training: config->image_len or, if it is not known, what the
 * published image encoder computes of a picture. */
int64_t dsvi_dit_image_len(const DsviDitConfig *config);

/* Sets *out to the preset that the option model.preset names, changed by the other model.* options.
 * in_channels and out_channels are 16: the caller replaces them with those of the codec. Returns
 * DSV_E_USAGE, with a message that names the option, if a value is out of range. */
DsvStatus dsvi_dit_config_make(const DsvConfig *settings, DsviDitConfig *out);

/* Reads config.json of a transformer folder, with diffusers' or original keys. DSV_E_UNSUPPORTED names the
 * key if the model is of an unsupported variant (control video, other norms). Original keys do not say
 * whether the model takes image rows: dsvi_weights_find_image (weights.h) does. */
DsvStatus dsvi_dit_config_read(const char *path, DsviDitConfig *out);

/* Writes the config.json of diffusers' WanTransformer3DModel, plus text_len as "dsv_text_len". */
DsvStatus dsvi_dit_config_write(const char *path, const DsviDitConfig *config);

/* Returns DSV_E_USAGE with the name of the first field in which `found`, read from `where`, differs from
 * `wanted`. */
DsvStatus dsvi_dit_config_compare(const DsviDitConfig *found, const DsviDitConfig *wanted, const char *where);

/* Returns DSV_E_USAGE with the name of the first field of `config` that is out of range. `where` is the file
 * or option that the message names. */
DsvStatus dsvi_dit_config_check(const DsviDitConfig *config, const char *where);

#ifdef __cplusplus
}
#endif
#endif
