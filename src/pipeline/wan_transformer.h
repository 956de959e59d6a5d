/* Internal to src/pipeline: the transformer of dsvi_wan_sample, or the two transformers of Wan 2.2, one at a
 * time on the device. */
#ifndef DSVI_PIPELINE_WAN_TRANSFORMER_H
#define DSVI_PIPELINE_WAN_TRANSFORMER_H

#include "pipeline/wan_job.h"

/* Creates the transformer (job->weights, job->generator) without memory, for guided steps in one pass
 * (job->together) if that is of use and fits, and plans its memory in job->room. Fails with DSV_E_NO_MEMORY
 * if the transformer does not fit. The caller frees with dsvi_wan_transformer_close. */
DsvStatus dsvi_wan_transformer_choose(DsviWanJob *job);

/* Chooses the transformer as above, allocates its memory and loads its weights, or with two experts leaves
 * loading to the first step of each. */
DsvStatus dsvi_wan_transformer_open(DsviWanJob *job);

/* Frees the transformer and its memory, if there is one. */
void dsvi_wan_transformer_close(DsviWanJob *job);

/* Logs which expert computes how many steps, if the model has two. */
DsvStatus dsvi_wan_transformer_report_experts(const DsviWanJob *job);

#endif
