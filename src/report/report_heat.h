/* Heat maps: an SVG drawing that fills the available width, axes with HTML labels, a description for screen
 * readers, and the values as JSON for the page's script and as a table. */
#ifndef DSVI_REPORT_HEAT_H
#define DSVI_REPORT_HEAT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_HEAT_LEVELS = 40 };

typedef struct DsviHeat {
    const char *title;                  /* for the description and the table */
    const char *row_name, *column_name; /* "block", "step" */
    int64_t rows, columns, frames;      /* frames: the same map at several times; the newest is drawn */
    const float *value;                 /* (frames, rows, columns); NaN: not measured */
    const double *label;                /* (columns) labels of the columns, ascending; NULL: their indices */
    bool tenths;                        /* the rows are the intervals 0 to 0.1, ..., 0.9 to 1, from the top */
    bool log;                           /* logarithmic colour scale; only with one frame */
    double low, high;                   /* range of the colour scale */
} DsviHeat;

/* Sets the range of the colour scale to the range of the values, rounded outwards to multiples of 0.05. With
 * `log` only positive values count, and the range is not rounded. */
void dsvi_heat_span(DsviHeat *heat);
/* Returns whether all values of the map are equal; *value is the value. A line of text then replaces the
 * map. */
bool dsvi_heat_flat(const DsviHeat *heat, double *value);
/* Writes the figure. With several frames every cell is an SVG element, which the page's slider recolours. */
void dsvi_heat_put(FILE *to, const DsviHeat *heat);
/* Writes the CSS rules for the colours of all maps. */
void dsvi_heat_palette(FILE *to);

#ifdef __cplusplus
}
#endif
#endif
