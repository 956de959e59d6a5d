/* Reads densities of the key lists of blocks and heads, from a number or a JSON file. */
#ifndef DSVI_DENSITIES_H
#define DSVI_DENSITIES_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads the density of key lists (fraction of keys that a list names). `densities` is one number for all
 * lists, or the path of a JSON file. The file holds an array with one item per block: a density, an array of
 * densities of its heads, or null if the block is dense. Writes density (blocks, heads); dense blocks get
 * NAN. */
DsvStatus dsvi_densities_read(const char *densities, int64_t blocks, int64_t heads, double *density);

#ifdef __cplusplus
}
#endif
#endif
