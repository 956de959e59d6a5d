/* The option offload: what waits in host memory while the device does not use it. */
#ifndef DSVI_OFFLOAD_H
#define DSVI_OFFLOAD_H

#include <stdbool.h>
#include <string.h>

#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether the option names `what`, one of its values. No value is a part of another one. */
static inline bool dsvi_offloads(const DsvConfig *settings, const char *what)
{
    return strstr(settings->offload, what) != NULL;
}

#ifdef __cplusplus
}
#endif
#endif
