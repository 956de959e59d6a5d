/* Wan's rotary position embedding. The pairs of a head are divided among the axes frame, row and column. On
 * an axis with d elements (d / 2 pairs) pair j rotates by position * 10000^(-2 j / d). */
#include "model/dit/rope.h"

#include <math.h>

#include "base/status.h"

enum { PAIRS_MAX = 128 };

void dsvi_rope_split(int64_t head_dim, int64_t pairs[3])
{
    pairs[1] = pairs[2] = head_dim / 6;
    pairs[0] = head_dim / 2 - pairs[1] - pairs[2];
}

/* For each pair of elements of a head: the axis with which it rotates, and the angle in radians per position
 * on this axis. */
typedef struct Pairs {
    int axis[PAIRS_MAX];
    double frequency[PAIRS_MAX];
} Pairs;

static void assign_pairs(int64_t head_dim, Pairs *out)
{
    int64_t count[3], pair = 0;
    dsvi_rope_split(head_dim, count);
    for (int axis = 0; axis < 3; axis++) {
        for (int64_t j = 0; j < count[axis]; j++, pair++) {
            out->axis[pair] = axis;
            out->frequency[pair] = pow(10000, -(double)j / (double)count[axis]);
        }
    }
}

void dsvi_rope_tables(const int64_t grid[3], int64_t head_dim, int64_t tokens, const int32_t *order,
                      DsviDtype dtype, void *cos_table, void *sin_table)
{
    Pairs pairs;
    int64_t half = head_dim / 2;
    DSVI_ASSERT(head_dim % 2 == 0 && half <= PAIRS_MAX);
    assign_pairs(head_dim, &pairs);
    for (int64_t s = 0; s < tokens; s++) {
        int64_t raster = order ? order[s] : s;
        const int64_t position[3] = {raster / (grid[1] * grid[2]), raster / grid[2] % grid[1],
                                     raster % grid[2]};
        for (int64_t p = 0; p < half; p++) {
            double angle = (double)position[pairs.axis[p]] * pairs.frequency[p];
            dsvi_store(dtype, cos_table, s * half + p, cos(angle));
            dsvi_store(dtype, sin_table, s * half + p, sin(angle));
        }
    }
}
