/* The candidates of a selection (ops/select.h) as columns: transposed in blocks of (features, candidates), so
 * that candidates are in vector lanes. */
#ifndef DSVI_SELECT_COLUMNS_H
#define DSVI_SELECT_COLUMNS_H

#include "cpu/select_powers.h"
#include "cpu/simd_rows.h"
#include "ops/select.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_COLUMNS_BLOCK = 256 }; /* candidates in a block */

/* The transposed candidates of some spans of one (batch, head). */
typedef struct DsviSelectColumns {
    int64_t features;
    int64_t spans, count; /* count: number of candidates */
    int64_t width;        /* `count` rounded up to whole strips (DSVI_POWER_STRIP) */
    float *transposed;    /* (blocks, features, DSVI_COLUMNS_BLOCK) candidates */
} DsviSelectColumns;

/* Describes the columns of `spans` spans, the last of which is span `last_span` of the (batch, head). */
static inline DsviSelectColumns dsvi_select_columns(const DsviSelectArgs *args, int64_t spans,
                                                    int64_t last_span, float *transposed)
{
    int64_t per_span = dsvi_select_per_span(args);
    int64_t left = dsvi_select_candidates(args) - last_span * per_span;
    int64_t count = spans > 0 ? (spans - 1) * per_span + dsvi_min(left, per_span) : 0;
    return (DsviSelectColumns){args->features, spans, count, dsvi_round_up(count, DSVI_POWER_STRIP),
                               transposed};
}

static inline int64_t dsvi_column_blocks(int64_t count)
{
    return dsvi_pieces(count, DSVI_COLUMNS_BLOCK);
}

/* Returns the number of floats that the blocks of `count` candidates hold. */
static inline int64_t dsvi_column_floats(int64_t features, int64_t count)
{
    return dsvi_column_blocks(count) * features * DSVI_COLUMNS_BLOCK;
}

/* Returns the first feature of candidate c. The candidate's features are DSVI_COLUMNS_BLOCK floats apart, the
 * candidates of a block one float. */
static inline float *dsvi_column(const DsviSelectColumns *columns, int64_t c)
{
    return columns->transposed + c / DSVI_COLUMNS_BLOCK * columns->features * DSVI_COLUMNS_BLOCK +
           c % DSVI_COLUMNS_BLOCK;
}

/* Transposes block `block` of all candidates of (batch, head) number `pair`, and rounds the features if they
 * are coarse. Columns after the last candidate are zero. */
static inline void dsvi_columns_transpose(const DsviSelectArgs *args, const DsviSelectColumns *all,
                                          int64_t pair, int64_t block)
{
    int64_t features = all->features, first = block * DSVI_COLUMNS_BLOCK;
    int64_t count = dsvi_min(all->count - first, DSVI_COLUMNS_BLOCK);
    const float *from = args->candidates + (pair * all->count + first) * features;
    float *to = dsvi_column(all, first);
    memset(to, 0, (size_t)(features * DSVI_COLUMNS_BLOCK) * sizeof *to);
    for (int64_t c = 0; c < count; c++)
        for (int64_t r = 0; r < features; r++)
            to[r * DSVI_COLUMNS_BLOCK + c] = args->coarse ? dsvi_select_coarse(from[c * features + r], 1)
                                                          : from[c * features + r];
}

/* Copies the columns of the spans that groups with this `rotation` count in the histogram. The rotation
 * decides which part of all spans these are (dsvi_select_counted_span). Columns after the last candidate are
 * zero. */
static inline DsviSelectColumns dsvi_columns_copy_counted(const DsviSelectArgs *args,
                                                          const DsviSelectColumns *all, uint32_t rotation,
                                                          float *transposed)
{
    int64_t per_span = dsvi_select_per_span(args), spans = dsvi_select_counted_spans(args, rotation);
    int64_t last = spans > 0 ? dsvi_select_counted_span(args, rotation, spans - 1) : 0;
    DsviSelectColumns columns = dsvi_select_columns(args, spans, last, transposed);
    for (int64_t c = 0; c < columns.count; c++) {
        int64_t span = dsvi_select_counted_span(args, rotation, c / per_span);
        const float *from = dsvi_column(all, span * per_span + c % per_span);
        float *to = dsvi_column(&columns, c);
        for (int64_t r = 0; r < args->features; r++)
            to[r * DSVI_COLUMNS_BLOCK] = from[r * DSVI_COLUMNS_BLOCK];
    }
    for (int64_t c = columns.count; c < columns.width; c++)
        for (int64_t r = 0; r < args->features; r++)
            dsvi_column(&columns, c)[r * DSVI_COLUMNS_BLOCK] = 0;
    return columns;
}

#ifdef __cplusplus
}
#endif
#endif
