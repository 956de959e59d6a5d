/* Tables of the values in a chart, folded below it, for keyboards, for screen readers and for copying. */
#ifndef DSVI_REPORT_TABLE_H
#define DSVI_REPORT_TABLE_H

#include <stdio.h>

#include "report/report_heat.h"
#include "report/report_plot.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes some points of every series: up to 12 of a line, up to 24 of a series of separate measurements. */
void dsvi_table_of_plot(FILE *to, const DsviPlot *plot);

/* Writes the newest values of a map; if it has many columns and one frame, only some columns. */
void dsvi_table_of_heat(FILE *to, const DsviHeat *heat);

/* Begin and end a table in a box with scroll bars; `name` describes the table for screen readers. */
void dsvi_scroll_begin(FILE *to, const char *name);
void dsvi_scroll_end(FILE *to);

#ifdef __cplusplus
}
#endif
#endif
