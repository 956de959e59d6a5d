/* Internal to src/pipeline: the state of one call of dsvi_wan_sample (wan_sample.h), and what its parts
 * share. */
#ifndef DSVI_PIPELINE_WAN_JOB_H
#define DSVI_PIPELINE_WAN_JOB_H

#include "model/dit/dit_frozen.h"
#include "pipeline/wan_sample.h"
#include "pipeline/wan_shape.h"
#include "pipeline/wan_texts.h"
#include "sample/generator.h"
#include "sample/sample_room.h"

/* Clips whose latents are computed before the VAE decodes them. */
enum { DSVI_WAN_GROUP_CLIPS = 16 };

/* Seconds of each part of the work, all clips together. */
typedef struct DsviWanTimes {
    double texts, image;      /* image: pictures are encoded, with the loading of VAE and image encoder */
    double loading, steps;    /* loading: of the transformer */
    double decoding, writing; /* decoding: with the loading of the VAE */
} DsviWanTimes;

typedef struct DsviWanJob {
    const DsviWanSampleArgs *args;
    DsviDitConfig config;
    DsviParamTable table;
    DsviWanShape shape;
    DsviVideoShape video, latent;
    DsviWanTexts texts;                  /* prompts, then the negative prompt */
    int64_t clips, elements;             /* clips in all; elements of a latent */
    bool guided, together;               /* together: guided steps evaluate both texts in one pass */
    bool text_streamed;                  /* the layers of the text encoder take turns on the device */
    uint64_t text_bytes, vae_bytes;      /* device memory of text encoder and VAE; 0: no text encoder */
    uint64_t image_bytes;                /* device memory of the VAE that encodes pictures; 0: none */
    uint64_t encoder_bytes;              /* device memory of the image encoder; 0: none */
    float *noise;                        /* or NULL */
    float *first_picture, *last_picture; /* (3, H, W) of the clip's first and last frame; or NULL */
    float *image; /* (in_channels - out_channels, F, H, W) of the latent: the pictures, encoded; or NULL */
    int64_t image_len;  /* image rows that the transformer attends, those of all pictures together; 0: none */
    float *pixels;      /* (pictures, 3, side, side) as the image encoder takes them; or NULL */
    float *image_rows;  /* (image_len, image_dim) the image encoder's states; or NULL */
    bool given_first;   /* the picture is the clip's first latent frame (TI2V-5B) */
    float *first_frame; /* with given_first: (channels, 1, H, W) of the latent: the picture, encoded */
    float *rows, *negative_rows;          /* (text_len, text_dim) of the present clip, and of all clips */
    float *latents[DSVI_WAN_GROUP_CLIPS]; /* (elements) of each clip of the group */
    DsviSparseUseMean
        sparse[DSVI_WAN_GROUP_CLIPS]; /* with sparse.enabled: how the blocks of these clips attended */
    int expert;                       /* two experts: the one that is loaded; -1: none */
    DsviDitFrozen *weights;           /* while the transformer is loaded */
    DsviGenerator *generator;
    DsviSampleRoom room; /* memory that was planned for both */
    void *memory;        /* device memory, and host memory of blocks that wait there */
    DsviHostPool pool;
    DsviWanTimes times;
} DsviWanJob;

/* Adds the seconds since *since to *sum, and sets *since to now. */
void dsvi_wan_add_seconds(double *sum, double *since);

/* Passes a formatted line of at most 511 bytes to the caller's log. */
DSVI_PRINTF(2, 3)
void dsvi_wan_log(const DsviWanJob *job, const char *format, ...);

/* Writes the path of a clip or of its latents to out: `path` itself, or with several clips `path` with the
 * clip's number. Fails if the path is too long. */
DsvStatus dsvi_wan_path_of_clip(const DsviWanJob *job, const char *path, int64_t clip,
                                char out[DSVI_PATH_MAX]);

/* Returns the bytes of device memory that decoding may take. */
uint64_t dsvi_wan_vae_memory(const DsviWanJob *job);

/* Checks arguments and files, and fills all of *job that needs no device memory. Nothing is computed before
 * it has succeeded. */
DsvStatus dsvi_wan_prepare(DsviWanJob *job);

#endif
