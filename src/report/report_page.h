/* The page: a frame (page.html) with slots, {{loss}}, and the functions that fill them. */
#ifndef DSVI_REPORT_PAGE_H
#define DSVI_REPORT_PAGE_H

#include <stdio.h>

#include "report/report_data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* page.html, zero-terminated. */
extern const char dsvi_report_template[];

/* The whole page. */
DsvStatus dsvi_report_page(FILE *to, const DsvReportData *data);

/* What fills a slot. report_training.c: */
DsvStatus dsvi_report_loss(FILE *to, const DsvReportData *data);
DsvStatus dsvi_report_noise(FILE *to, const DsvReportData *data);
DsvStatus dsvi_report_gradient(FILE *to, const DsvReportData *data);
DsvStatus dsvi_report_rate(FILE *to, const DsvReportData *data);
/* report_cost.c: */
DsvStatus dsvi_report_time(FILE *to, const DsvReportData *data);
DsvStatus dsvi_report_memory(FILE *to, const DsvReportData *data);
/* report_sparse.c: */
DsvStatus dsvi_report_sparsity(FILE *to, const DsvReportData *data);
DsvStatus dsvi_report_blocks(FILE *to, const DsvReportData *data);
DsvStatus dsvi_report_heads(FILE *to, const DsvReportData *data);
DsvStatus dsvi_report_decisions(FILE *to, const DsvReportData *data);
/* report_clips.c: */
DsvStatus dsvi_report_clips(FILE *to, const DsvReportData *data);
/* report_about.c: */
DsvStatus dsvi_report_name(FILE *to, const DsvReportData *data);
DsvStatus dsvi_report_sentence(FILE *to, const DsvReportData *data);
DsvStatus dsvi_report_tiles(FILE *to, const DsvReportData *data);
DsvStatus dsvi_report_settings(FILE *to, const DsvReportData *data);
DsvStatus dsvi_report_footer(FILE *to, const DsvReportData *data);

/* In place of a figure: why there is none. */
void dsvi_report_note(FILE *to, const char *sentence);
#define DSVI_NO_STEPS "No step has finished yet."

/* In place of a chart of one value: the beginning of a line with that value, which goes on "</b> ...</p>". */
void dsvi_report_figure(FILE *to);

#ifdef __cplusplus
}
#endif
#endif
