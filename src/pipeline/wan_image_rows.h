/* Internal to src/pipeline: the states of pictures that the transformer of Wan 2.1 I2V or FLF2V attends
 * beside the text. An image encoder computes them. */
#ifndef DSVI_PIPELINE_WAN_IMAGE_ROWS_H
#define DSVI_PIPELINE_WAN_IMAGE_ROWS_H

#include "model/vit/vit.h"
#include "pipeline/wan_job.h"

/* Reads the configuration of a folder's image encoder and of the preparation of pictures, and checks that
 * number and width of the states of `pictures` pictures are what the transformer takes. */
DsvStatus dsvi_wan_image_encoder_find(const DsviWanFolder *folder, const DsviDitConfig *config,
                                      int64_t pictures, DsviVitConfig *encoder, DsviVitProcessor *processor);

/* Checks that the image encoder gives the rows that the transformer takes, reads the pictures and prepares
 * them (job->pixels), and finds job->image_len and the memory of the encoder (job->encoder_bytes). The call's
 * pictures must be those that the model takes. Does nothing for a model without image rows. */
DsvStatus dsvi_wan_image_rows_prepare(DsviWanJob *job);

/* Computes job->image_rows; the image encoder is loaded for the call and then freed. */
DsvStatus dsvi_wan_image_rows_encode(DsviWanJob *job);

void dsvi_wan_image_rows_free(DsviWanJob *job);

#endif
