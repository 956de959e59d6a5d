/* Samples clips with a published model. The text encoder, the image encoder, the transformer and the VAE are
 * loaded and freed in turn, so that the device never holds two of them. */
#ifndef DSVI_WAN_SAMPLE_H
#define DSVI_WAN_SAMPLE_H

#include "dsv/events.h"
#include "model/folder/wan_folder.h"
#include "model/lora/lora_set.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviWanSampleArgs {
    DsviBackend *backend;
    const DsvConfig *settings;
    const DsviWanFolder *folder;
    const char *const *prompts; /* (prompt_count) one clip for each */
    int64_t prompt_count;       /* 0: one clip with the text of text_path */
    const DsviLoraSet *loras;   /* LoRAs that are added to the transformer; or NULL */
    const DsviLoraSet *loras_2; /* those of transformer_2, the expert for low noise; or NULL */
    const char *negative;       /* negative prompt of all clips; NULL: "" */
    const char *text_path;      /* file with hidden states of text (wan_texts.h), or NULL */
    const char *image_path;     /* picture of the first frame, which an image-to-video model needs; or NULL */
    const char *last_image_path; /* picture of the last frame; or NULL */
    const char *noise_path;   /* file with tensor `noise`, with which every clip begins; NULL: drawn from the
                               * seed, the same for every clip */
    const char *sparse_path;  /* with sparse.enabled: file of the sparse state with which each clip begins
                               * (dsvi_sparse_save); NULL: with nothing */
    const char *latents_path; /* file that receives the latents before decoding; or NULL */
    const char *output_path; /* name of the clip (clip_writer.h). Clips of several prompts, and their latents,
                              * are numbered: dsvi_clip_numbered_path */
    const DsvEvents *events;
} DsviWanSampleArgs;

/* Samples all clips. Before anything is loaded, all inputs and output names are checked, the estimated memory
 * and time are logged, and DSV_E_NO_MEMORY is returned if one of the parts cannot fit the device. */
DsvStatus dsvi_wan_sample(const DsviWanSampleArgs *args);

#ifdef __cplusplus
}
#endif
#endif
