/* Options with which a published model is sampled unless the user gives others. */
#ifndef DSVI_WAN_SETTINGS_H
#define DSVI_WAN_SETTINGS_H

#include "model/folder/wan_folder.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets device to auto, size, number of frames, frame rate, steps and guidance to those of the published
 * pipelines, sampler and flow_shift to what the folder's scheduler_config.json says, and sparse.enabled to
 * false. Layouts other than that of diffusers have no such file: unipc and 5, as in the Wan repository. Other
 * options do not change. Fails as dsvi_scheduler_config_read, and with DSV_E_NOT_FOUND if the file is
 * missing. */
DsvStatus dsvi_wan_settings(const DsviWanFolder *folder, DsvConfig *settings);

#ifdef __cplusplus
}
#endif
#endif
