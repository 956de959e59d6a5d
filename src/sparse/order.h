/* Token orders: permutations of the tokens of a (frames, rows, columns) grid (sparse.order).
 *
 *     hilbert    frame by frame; inside each frame along a generalised 2-D Hilbert curve, defined for any
 *                height and width
 *     raster     frame by frame, row by row
 *     hilbert3d  one generalised Hilbert curve through all three dimensions
 *     tube       along the 2-D curve, with all frames at each of its positions; the frames alternate between
 *                ascending and descending. Equal to hilbert if there is one frame
 *     cube       cubes of 4 x 4 x 4 tokens in raster order, raster order inside; cubes at the edges may be
 *                smaller
 *     zcube      the same cubes, but Z-order (Morton order) inside: every 8 tokens of a complete cube are a
 *                cube of 2 x 2 x 2; from the lowest bit: frame, row, column, then the next bits
 * Every order is a bijection for every grid. */
#ifndef DSVI_ORDER_H
#define DSVI_ORDER_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills order (S), S the product of the grid: order[s] is the raster position (frame, then row, then column)
 * of the s-th token. `name` is one of the orders above. */
DsvStatus dsvi_order_make(const char *name, const int64_t grid[3], int32_t *order);

#ifdef __cplusplus
}
#endif
#endif
