/* Reads the scheduler_config.json of a published pipeline. */
#ifndef DSVI_SCHEDULER_CONFIG_H
#define DSVI_SCHEDULER_CONFIG_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviSchedulerConfig {
    const char *sampler; /* value of the option sampler; static */
    double flow_shift;   /* shift of the noise levels; the sampler applies it */
} DsviSchedulerConfig;

/* Reads the configuration of diffusers' UniPCMultistepScheduler (sampler unipc, key flow_shift) or
 * FlowMatchEulerDiscreteScheduler (sampler euler, key shift). A key that is absent has the value that the
 * class gives it. DSV_E_UNSUPPORTED names the first key whose value would change the result in a way that dsv
 * does not implement, or another class; DSV_E_FORMAT names a key of a wrong type. */
DsvStatus dsvi_scheduler_config_read(const char *path, DsviSchedulerConfig *out);

#ifdef __cplusplus
}
#endif
#endif
