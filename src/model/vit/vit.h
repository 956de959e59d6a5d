/* The image encoder of CLIP, as Wan 2.1 uses it: the states of a picture before the last layer. It computes
 * what hidden_states[-2] of CLIPVisionModel of the package transformers is, and prepares pictures as that
 * package's CLIPImageProcessor does with Pillow.
 *
 * All weights are on the device: those that the published encoder (ViT-H) uses are 1.2 GB in BF16. The
 * residual stream is F32; matrix products and attention use `act`. */
#ifndef DSVI_VIT_H
#define DSVI_VIT_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviVitConfig {
    int64_t hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
    int64_t image_size, patch_size; /* pixels; image_size is a multiple of patch_size */
    int64_t num_channels;           /* 3 */
    double eps;                     /* of the norms */
    DsviActivation activation;      /* of the feed-forward layers */
} DsviVitConfig;

/* Returns whether `path` is a folder with the config.json of a CLIP image encoder. */
bool dsvi_vit_is(const char *path);
/* Reads config.json of an image encoder. DSV_E_UNSUPPORTED names the key of an unsupported variant. */
DsvStatus dsvi_vit_config_read(const char *path, DsviVitConfig *out);
/* Reads the configuration of the encoder in the folder `path`, and checks names and shapes of its tensors. */
DsvStatus dsvi_vit_config_of(const char *path, DsviVitConfig *out);
/* Returns the rows of states of a picture: one for each patch, after one for the picture. */
int64_t dsvi_vit_rows(const DsviVitConfig *config);

typedef struct DsviVit DsviVit;

/* Opens the image encoder in the folder `path` for batches of at most `batch` pictures, and uploads its
 * weights. `act` is F32 or BF16. The backend must outlive the encoder. */
DsvStatus dsvi_vit_open(DsviBackend *backend, const char *path, DsviDtype act, int64_t batch, DsviVit **out);
void dsvi_vit_close(DsviVit **encoder); /* frees all memory */
const DsviVitConfig *dsvi_vit_config(const DsviVit *encoder);
/* Returns the bytes of device memory that an encoder of these sizes holds. */
uint64_t dsvi_vit_plan(DsviBackend *backend, const DsviVitConfig *config, DsviDtype act, int64_t batch);

/* Computes the states of `count` pictures. pixels: host array (count, 3, image_size, image_size) F32; states:
 * host array (count, rows, hidden_size) F32, written. */
DsvStatus dsvi_vit_encode(DsviVit *encoder, int64_t count, const float *pixels, float *states);

/* How a picture becomes the input of the encoder (preprocessor_config.json). */
typedef struct DsviVitProcessor {
    int64_t shortest_edge;          /* pixels to which the shorter side is resized, bicubic */
    int64_t crop;                   /* height and width of the centre that is cropped out */
    double factor, mean[3], std[3]; /* pixel = (byte factor - mean) / std */
} DsviVitProcessor;

/* Reads preprocessor_config.json. Keys that are missing have the defaults of CLIPImageProcessor.
 * DSV_E_UNSUPPORTED names a key whose value asks for another preparation. */
DsvStatus dsvi_vit_processor_read(const char *path, DsviVitProcessor *out);
/* Prepares a picture: rgb (height, width, 3) bytes; pixels (3, crop, crop) F32, written. Resizing rounds to
 * bytes after rows and after columns, as Pillow does. */
DsvStatus dsvi_vit_prepare(const DsviVitProcessor *processor, int64_t height, int64_t width,
                           const uint8_t *rgb, float *pixels);

#ifdef __cplusplus
}
#endif
#endif
