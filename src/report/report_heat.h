/* Heat maps, as SVG inside the page, with their values for the pointer. */
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
    const char *row_name, *column_name; /* "block", "step" */
    int width;               /* units across */
    int64_t rows, columns, frames; /* frames: the same map at several times; the newest is drawn */
    const float *value;      /* (frames, rows, columns), NaN where there is none */
    const double *label;     /* (columns) what columns are called; NULL: their number */
    bool tenths;             /* rows are tenths from 0 to 1, the lowest at the top */
    bool log;                /* colours go by the logarithm; of one frame alone */
    double low, high;        /* what the colours span */
} DsvHeat;

/* Colours from the least to the largest value; to full 0.05 but for `log`, which passes over what is not
 * positive. */
void dsvi_heat_span(DsvHeat *heat);
/* The map with its scale of colours. Cells are single elements where there are several frames. */
void dsvi_heat_put(FILE *to, const DsvHeat *heat);
/* The style of all maps. */
void dsvi_heat_palette(FILE *to);

#ifdef __cplusplus
}
#endif
#endif
