/* The option memory_gib in bytes. */
#ifndef DSVI_MEMORY_LIMIT_H
#define DSVI_MEMORY_LIMIT_H

#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the limit of device memory that the option memory_gib sets; 0: none. */
static inline uint64_t dsvi_memory_limit(const DsvConfig *settings)
{
    return (uint64_t)(settings->memory_gib * (double)(1 << 30));
}

#ifdef __cplusplus
}
#endif
#endif
