/* The states of the pictures of windows, for transformers that attend them beside the text (Wan 2.1 I2V,
 * FLF2V).
 *
 * The picture of a window is its first frame or the picture that a list names, and for FLF2V also its last
 * frame. The image encoder sees pictures as the window shows them: scaled and cropped. */
#ifndef DSVI_ENCODE_PICTURES_H
#define DSVI_ENCODE_PICTURES_H

#include "data/latent_index.h"
#include "model/codec/codec.h"
#include "model/dit/dit_config.h"
#include "model/folder/wan_folder.h"
#include "model/vit/vit.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All bytes 0: the transformer takes no states of pictures. */
typedef struct DsviPictureEncoder {
    DsviBackend *backend;
    const char *path; /* of the image encoder, the folder's */
    int64_t pictures; /* of a window: 1, or 2 with the last frame */
    int64_t rows;     /* states of a picture */
    DsviVitConfig config;
    DsviVitProcessor processor;
    DsviVit *encoder; /* NULL: not loaded */
    float *pixels;    /* (pictures, 3, crop, crop) the encoder's input */
    uint8_t *rgb;     /* (height, width, 3) of the largest window so far */
    size_t rgb_bytes;
} DsviPictureEncoder;

/* Finds the image encoder of a transformer, and enters into `identity` its identity and the states of a
 * window. Does nothing if the transformer takes none. Backend and folder must outlive *out. */
DsvStatus dsvi_picture_encoder_find(DsviBackend *backend, const DsviWanFolder *folder,
                                    const DsviDitConfig *transformer, DsviPictureEncoder *out,
                                    DsviLatentModel *identity);
/* Loads the encoder, which computes in `act`; does nothing without one. *bytes: the device memory that it
 * holds. */
DsvStatus dsvi_picture_encoder_load(DsviPictureEncoder *encoder, DsviDtype act, uint64_t *bytes);
void dsvi_picture_encoder_close(DsviPictureEncoder *encoder);

/* Computes the states (pictures rows, hidden_size) of pictures (3, video.height, video.width) in [-1, 1],
 * host F32; `last` counts only with two pictures. */
DsvStatus dsvi_picture_encoder_run(DsviPictureEncoder *encoder, DsviVideoShape video, const float *first,
                                   const float *last, float *states);

#ifdef __cplusplus
}
#endif
#endif
