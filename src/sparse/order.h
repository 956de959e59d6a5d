/* Orders of the tokens of a (frames, rows, columns) grid.
 *
 * hilbert    frame by frame, inside each along a generalised 2-D Hilbert curve (any height and width)
 * raster     frame by frame, row by row
 * hilbert3d  one generalised curve through all three dimensions
 * tube       the curve of hilbert, and at each of its places all frames, forth and back in turns; of one
 *            frame the order of hilbert
 * cube       4 x 4 x 4 cubes in raster order, raster inside; ragged cubes at the edges
 * Every order is a bijection for every size. */
#ifndef DSVI_ORDER_H
#define DSVI_ORDER_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* order[s] = raster position (frame-major, then row, then column) of the s-th token; S = product of grid
 * entries. `name` is one of the above. */
DsvStatus dsvi_order_make(const char *name, const int64_t grid[3], int32_t *order);

/* Consecutive tokens of one frame that are not grid neighbours (distance 1 in rows plus columns). */
int64_t dsvi_order_jumps(const int64_t grid[3], const int32_t *order);

#ifdef __cplusplus
}
#endif
#endif
