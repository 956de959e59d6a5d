/* Tables of what the charts show, folded under them: for the keyboard, for screen readers, for copying. */
#ifndef DSVI_REPORT_TABLE_H
#define DSVI_REPORT_TABLE_H

#include <stdio.h>

#include "report/report_heat.h"
#include "report/report_plot.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Some points of every series: about evenly spread ones of lines, more of them of measurements. */
void dsvi_table_of_plot(FILE *to, const DsvPlot *plot);

/* The newest values of a map; of many columns some. */
void dsvi_table_of_heat(FILE *to, const DsvHeat *heat);

/* The beginning and the end of a table's frame, which scrolls where it is too large; `name` says what it
 * holds. */
void dsvi_scroll_begin(FILE *to, const char *name);
void dsvi_scroll_end(FILE *to);

#ifdef __cplusplus
}
#endif
#endif
