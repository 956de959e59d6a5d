/* How dense the lists of each block's heads are, from a number or a file. */
#ifndef DSVI_DENSITIES_H
#define DSVI_DENSITIES_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `densities`: one of all lists; or a JSON file: an array with a density for each block, or an array of those
 * of its heads, or null where it attends densely. To density (blocks, heads), NAN in blocks that do. */
DsvStatus dsvi_densities_read(const char *densities, int64_t blocks, int64_t heads, double *density);

#ifdef __cplusplus
}
#endif
#endif
