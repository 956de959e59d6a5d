/* The shape of a Wan 2.1 transformer: presets, and the config.json of either naming. */
#ifndef DSVI_DIT_CONFIG_H
#define DSVI_DIT_CONFIG_H

#include "base/status.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvDitConfig {
    int64_t num_layers;
    int64_t num_attention_heads;  /* N */
    int64_t attention_head_dim;   /* D, even, 32 to 256 */
    int64_t ffn_dim;
    int64_t freq_dim;             /* of the time embedding, even */
    int64_t text_dim;             /* width of a text row */
    int64_t text_len;             /* rows the model is used with; not part of diffusers' config.json */
    int64_t in_channels, out_channels;
    int64_t patch[3];             /* pt, ph, pw */
    int64_t rope_max_seq_len;     /* positions per axis */
    double eps;
} DsvDitConfig;

static inline int64_t dsvi_dit_width(const DsvDitConfig *config) /* C */
{
    return config->num_attention_heads * config->attention_head_dim;
}

/* A preset by name (options.def), then the model.* overrides of `settings`. in_channels is that of the
 * preset: the caller sets in_channels and out_channels to the codec's. */
DsvStatus dsvi_dit_config_make(const DsvConfig *settings, DsvDitConfig *out);

/* Reads config.json of a transformer folder, diffusers' or original naming. Unsupported variants
 * (image conditioning, other norms) are errors that name the key. */
DsvStatus dsvi_dit_config_read(const char *path, DsvDitConfig *out);

/* Writes the config.json of diffusers' WanTransformer3DModel, plus text_len as "dsv_text_len". */
DsvStatus dsvi_dit_config_write(const char *path, const DsvDitConfig *config);

/* DSV_E_USAGE naming the first field in which `found`, read from `where`, is not `wanted`. */
DsvStatus dsvi_dit_config_compare(const DsvDitConfig *found, const DsvDitConfig *wanted, const char *where);

/* Every field in its range, or an error naming the first that is not. `where` is the file or key. */
DsvStatus dsvi_dit_config_check(const DsvDitConfig *config, const char *where);

#ifdef __cplusplus
}
#endif
#endif
