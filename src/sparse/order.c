/* Token orders. One recursive space-filling curve serves two- and three-dimensional token grids.
 *
 * curve() visits every cell of a box a x b x c once, from one corner to the next corner along side a, each
 * step to a neighbour. Such a walk alternates between the colours of a chessboard, so it exists only if a is
 * even, or if all three sides are odd. In these cases it always exists: the box is divided into boxes of the
 * same kind, each of which ends next to the start of the following one.
 *
 *     a is long    two boxes, one after the other along a; the length of the first is even
 *     otherwise    up on the left, across the top, down on the right. b is the longer of the other two
 *                  sides. The legs have an even height h and walk along b, the top walks along a
 *
 *         +-----------------+
 *         |  top  (a, b-h)  |     c is not divided here, but later, once it is the longer side
 *         +--------+--------+
 *         | up     | down   |
 *         | h even |        |
 *         S--------+--------E
 *
 * For squares of 2^n this is Hilbert's curve. Every grid has a side that can be `a`: an even side if there
 * is one, any side if all are odd. So every grid has a curve without jumps. */
#include "sparse/order.h"

#include <stdbool.h>
#include <string.h>

typedef struct Side {
    int axis;
    int64_t step;   /* 1 or -1 */
    int64_t length; /* cells */
} Side;

typedef struct Walk {
    const int64_t *grid;
    int32_t *order;
    int64_t count; /* cells visited so far */
} Walk;

typedef struct Cell {
    int64_t at[3];
} Cell;

static Cell moved(Cell cell, Side side, int64_t cells)
{
    cell.at[side.axis] += side.step * cells;
    return cell;
}

static Side part(Side side, int64_t length)
{
    side.length = length;
    return side;
}

static Side reversed(Side side)
{
    side.step = -side.step;
    return side;
}

static void order_visit(Walk *walk, Cell cell)
{
    const int64_t *grid = walk->grid;
    walk->order[walk->count++] = (int32_t)((cell.at[0] * grid[1] + cell.at[1]) * grid[2] + cell.at[2]);
}

/* Returns the even number nearest to half of n: for n >= 3 at least 2 and less than n. */
static int64_t even_half(int64_t n)
{
    return (n + 2) / 4 * 2;
}

/* Walks through all cells of the box with the sides a, b and c, from its corner `start`, at which the
 * three sides begin, to the corner at the other end of side a. */
static void curve(Walk *walk, Cell start, Side a, Side b, Side c)
{
    if (b.length < c.length) {
        Side other = b;
        b = c;
        c = other;
    }
    if (b.length == 1) {
        for (int64_t i = 0; i < a.length; i++)
            order_visit(walk, moved(start, a, i));
        return;
    }
    if (2 * a.length > 3 * b.length) {
        int64_t first = even_half(a.length);
        curve(walk, start, part(a, first), b, c);
        curve(walk, moved(start, a, first), part(a, a.length - first), b, c);
        return;
    }
    /* If side b has 2 cells, side a has 2 too, and the two legs of the curve (up, down) fill the box
     * without a top between them. */
    int64_t height = b.length == 2 ? 2 : even_half(b.length);
    int64_t left = a.length / 2;
    Side up = part(b, height);
    Cell corner = moved(start, a, a.length - 1);
    curve(walk, start, up, part(a, left), c);
    if (height < b.length)
        curve(walk, moved(start, b, height), a, part(b, b.length - height), c);
    curve(walk, moved(corner, b, height - 1), reversed(up), reversed(part(a, a.length - left)), c);
}

/* Walks the curve through `box` cells from `start`, along its longest even side, or along its longest side
 * if all sides are odd. */
static void walk_box(Walk *walk, Cell start, const int64_t box[3])
{
    int main_axis = 0;
    for (int axis = 1; axis < 3; axis++) {
        bool even = box[axis] % 2 == 0, best_even = box[main_axis] % 2 == 0;
        if (even != best_even ? even : box[axis] > box[main_axis])
            main_axis = axis;
    }
    Side side[3];
    for (int i = 0; i < 3; i++) {
        int axis = (main_axis + i) % 3;
        side[i] = (Side){axis, 1, box[axis]};
    }
    curve(walk, start, side[0], side[1], side[2]);
}

static void reverse_order(int32_t *order, int64_t count)
{
    for (int64_t i = 0, j = count - 1; i < j; i++, j--) {
        int32_t other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
}

/* Reverses every other frame, so that a group across two frames contains the same region of both. */
static void walk_frames(Walk *walk)
{
    const int64_t frame[3] = {1, walk->grid[1], walk->grid[2]};
    int64_t cells = frame[1] * frame[2];
    for (int64_t f = 0; f < walk->grid[0]; f++) {
        walk_box(walk, (Cell){{f, 0, 0}}, frame);
        if (f % 2 == 1)
            reverse_order(walk->order + f * cells, cells);
    }
}

/* Walks the curve of one frame and expands each position into all frames. The expansion is done in place from
 * the last position to the first, so that no position is overwritten before it is read. */
static void walk_tubes(Walk *walk)
{
    const int64_t *grid = walk->grid, frame[3] = {1, grid[1], grid[2]};
    int64_t frames = grid[0], cells = frame[1] * frame[2];
    walk_box(walk, (Cell){{0, 0, 0}}, frame);
    for (int64_t i = cells - 1; i >= 0; i--) {
        int32_t cell = walk->order[i];
        for (int64_t f = 0; f < frames; f++)
            walk->order[i * frames + f] = (int32_t)((i % 2 ? frames - 1 - f : f) * cells + cell);
    }
    walk->count = cells * frames;
}

static void walk_raster(Walk *walk, Cell start, const int64_t box[3])
{
    for (int64_t f = 0; f < box[0]; f++)
        for (int64_t row = 0; row < box[1]; row++)
            for (int64_t column = 0; column < box[2]; column++)
                order_visit(walk, (Cell){{start.at[0] + f, start.at[1] + row, start.at[2] + column}});
}

enum { EDGE = 4 }; /* of a cube */

/* Walks a cube of EDGE x EDGE x EDGE cells in Z-order and skips the cells outside `box`, which is smaller at
 * the edges of the grid. The bits of a cell's number in the cube, from the lowest, are the lowest bits of
 * frame, row and column, then the next ones. So two consecutive keys are one place in consecutive frames,
 * whose mean chooses keys better than the mean of neighbours in a row (sparse.key_chunk, docs/sparse.md). */
static void walk_z(Walk *walk, Cell start, const int64_t box[3])
{
    for (int cell = 0; cell < EDGE * EDGE * EDGE; cell++) {
        int64_t frame = (cell & 1) | (cell >> 2 & 2), row = (cell >> 1 & 1) | (cell >> 3 & 2),
                column = (cell >> 2 & 1) | (cell >> 4 & 2);
        if (frame < box[0] && row < box[1] && column < box[2])
            order_visit(walk, (Cell){{start.at[0] + frame, start.at[1] + row, start.at[2] + column}});
    }
}

/* Walks cubes in raster order, each with walk_cube. */
static void walk_cubes(Walk *walk, void (*walk_cube)(Walk *walk, Cell start, const int64_t box[3]))
{
    const int64_t *grid = walk->grid;
    for (int64_t f = 0; f < grid[0]; f += EDGE) {
        for (int64_t row = 0; row < grid[1]; row += EDGE) {
            for (int64_t column = 0; column < grid[2]; column += EDGE) {
                const Cell start = {{f, row, column}};
                int64_t box[3];
                for (int axis = 0; axis < 3; axis++) {
                    int64_t left = grid[axis] - start.at[axis];
                    box[axis] = left < EDGE ? left : EDGE;
                }
                walk_cube(walk, start, box);
            }
        }
    }
}

DsvStatus dsvi_order_make(const char *name, const int64_t grid[3], int32_t *order)
{
    Walk walk = {grid, order, 0};
    const Cell origin = {{0, 0, 0}};
    if (grid[0] < 1 || grid[1] < 1 || grid[2] < 1)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "token order: the grid is %lld x %lld x %lld, expected at least 1 each "
                         "way",
                         (long long)grid[0], (long long)grid[1], (long long)grid[2]);
    if (grid[1] > INT32_MAX / grid[2] || grid[0] > INT32_MAX / (grid[1] * grid[2]))
        return DSVI_FAIL(DSV_E_SHAPE, "token order: a grid of %lld x %lld x %lld has more than %d tokens",
                         (long long)grid[0], (long long)grid[1], (long long)grid[2], INT32_MAX);
    if (strcmp(name, "hilbert") == 0)
        walk_frames(&walk);
    else if (strcmp(name, "raster") == 0)
        walk_raster(&walk, origin, grid);
    else if (strcmp(name, "hilbert3d") == 0)
        walk_box(&walk, origin, grid);
    else if (strcmp(name, "tube") == 0)
        walk_tubes(&walk);
    else if (strcmp(name, "cube") == 0)
        walk_cubes(&walk, walk_raster);
    else if (strcmp(name, "zcube") == 0)
        walk_cubes(&walk, walk_z);
    else
        return DSVI_FAIL(DSV_E_USAGE,
                         "token order '%s' is unknown: hilbert, raster, hilbert3d, tube, cube or zcube",
                         name);
    DSVI_ASSERT(walk.count == grid[0] * grid[1] * grid[2]);
    return DSV_OK;
}
