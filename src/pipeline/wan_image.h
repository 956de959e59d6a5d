/* Internal to src/pipeline: the pictures from which dsvi_wan_sample begins, encoded as the transformer takes
 * them. */
#ifndef DSVI_PIPELINE_WAN_IMAGE_H
#define DSVI_PIPELINE_WAN_IMAGE_H

#include "pipeline/wan_job.h"

/* Checks that the call has the pictures that the model takes, reads them, and finds the memory that the VAE
 * needs to encode them (job->image_bytes). Sets job->given_first. Needs the sizes of model and clip in *job.
 * Does nothing for a model and a call without pictures. */
DsvStatus dsvi_wan_image_prepare(DsviWanJob *job);

/* Encodes the pictures to job->image or, with job->given_first, to job->first_frame; the VAE is loaded for
 * the call and then freed. */
DsvStatus dsvi_wan_image_encode(DsviWanJob *job);

void dsvi_wan_image_free(DsviWanJob *job);

#endif
