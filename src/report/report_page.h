/* The page: a template (page.html) with slots such as {{loss}}, and the functions that fill the slots. */
#ifndef DSVI_REPORT_PAGE_H
#define DSVI_REPORT_PAGE_H

#include <stdio.h>

#include "report/report_data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* page.html, zero-terminated. */
extern const char dsvi_report_template[];

/* Writes the whole page. */
DsvStatus dsvi_report_page(FILE *to, const DsviReportData *data);

/* Each function fills the slot with the end of its name. report_training.c: */
DsvStatus dsvi_report_loss(FILE *to, const DsviReportData *data);
DsvStatus dsvi_report_noise(FILE *to, const DsviReportData *data);
DsvStatus dsvi_report_gradient(FILE *to, const DsviReportData *data);
DsvStatus dsvi_report_rate(FILE *to, const DsviReportData *data);
/* report_cost.c: */
DsvStatus dsvi_report_time(FILE *to, const DsviReportData *data);
DsvStatus dsvi_report_memory(FILE *to, const DsviReportData *data);
/* report_sparse.c: */
DsvStatus dsvi_report_sparsity(FILE *to, const DsviReportData *data);
DsvStatus dsvi_report_blocks(FILE *to, const DsviReportData *data);
DsvStatus dsvi_report_heads(FILE *to, const DsviReportData *data);
DsvStatus dsvi_report_decisions(FILE *to, const DsviReportData *data);
/* report_clips.c: */
DsvStatus dsvi_report_clips(FILE *to, const DsviReportData *data);
/* report_about.c: */
DsvStatus dsvi_report_name(FILE *to, const DsviReportData *data);
DsvStatus dsvi_report_sentence(FILE *to, const DsviReportData *data);
DsvStatus dsvi_report_tiles(FILE *to, const DsviReportData *data);
DsvStatus dsvi_report_config(FILE *to, const DsviReportData *data);
DsvStatus dsvi_report_footer(FILE *to, const DsviReportData *data);

/* Writes a sentence in place of a figure, with the reason why there is none. */
void dsvi_report_note(FILE *to, const char *sentence);
#define DSVI_NO_STEPS "No step has finished yet."

/* Begins a line of text that replaces the chart of a constant value. The caller writes the value, "</b>",
 * more text, and "</p>". */
void dsvi_report_figure(FILE *to);

#ifdef __cplusplus
}
#endif
#endif
