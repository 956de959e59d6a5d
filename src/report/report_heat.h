/* Heat maps as figures of the page: an SVG drawing that takes the width it is given, axes whose labels are
 * text of the page, a name for those who cannot see it, and its values for the pointer and as a table. */
#ifndef DSVI_REPORT_HEAT_H
#define DSVI_REPORT_HEAT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_HEAT_LEVELS = 40 };

typedef struct DsvHeat {
    const char *title;       /* what the map shows, for its name and its table */
    const char *row_name, *column_name; /* "block", "step" */
    int64_t rows, columns, frames; /* frames: the same map at several times; the newest is drawn */
    const float *value;      /* (frames, rows, columns), NaN where there is none */
    const double *label;     /* (columns) what columns are called, ascending; NULL: their number */
    bool tenths;             /* rows are tenths from 0 to 1, the lowest at the top */
    bool log;                /* colours go by the logarithm; of one frame alone */
    double low, high;        /* what the colours span */
} DsvHeat;

/* Colours from the smallest to the largest value, rounded outwards to 0.05; with `log` not rounded, and over
 * positive values only. */
void dsvi_heat_span(DsvHeat *heat);
/* Whether all values of the map are the same number, *value: a line then says it better than a map. */
bool dsvi_heat_flat(const DsvHeat *heat, double *value);
/* The figure. Cells are single elements where there are several frames. */
void dsvi_heat_put(FILE *to, const DsvHeat *heat);
/* The style of all maps. */
void dsvi_heat_palette(FILE *to);

#ifdef __cplusplus
}
#endif
#endif
