/* One setting from text. */
#ifndef DSVI_CONFIG_VALUE_H
#define DSVI_CONFIG_VALUE_H

#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* DSV_E_USAGE: unknown key (the nearest is named), wrong type, out of range. */
DsvStatus dsvi_config_set_value(DsvConfig *config, const char *key, const char *value);

#ifdef __cplusplus
}
#endif
#endif
