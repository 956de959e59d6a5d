/* The kinds of model that dsv_forward (include/dsv/forward.h) runs on tensors from a file. */
#ifndef DSVI_FORWARD_PARTS_H
#define DSVI_FORWARD_PARTS_H

#include <stdbool.h>

#include "dsv/config.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviForwardFiles {
    const char *model; /* path that the user gave */
    const char *lora;  /* a LoRA for the transformer; NULL: none */
    const char *in;    /* safetensors file that is read */
    const char *out;   /* safetensors file that is written */
} DsviForwardFiles;

/* The transformer, a folder or file as dsvi_model_find takes it. */
DsvStatus dsvi_forward_dit(const DsviForwardFiles *files, bool grad, const DsvConfig *settings);

/* The text encoder, as dsvi_umt5_open takes it. */
DsvStatus dsvi_forward_text(const DsviForwardFiles *files, bool grad, const DsvConfig *settings);

/* The image encoder, as dsvi_clip_open takes it. */
DsvStatus dsvi_forward_image(const DsviForwardFiles *files, bool grad, const DsvConfig *settings);

/* The VAE, as dsvi_vae_open takes it. */
DsvStatus dsvi_forward_vae(const DsviForwardFiles *files, bool grad, const DsvConfig *settings);

#ifdef __cplusplus
}
#endif
#endif
