/* A run as one page to look at. */
#ifndef DSV_REPORT_H
#define DSV_REPORT_H

#include "dsv/config.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvReportSummary {
    char path[DSV_TEXT_MAX]; /* of the page */
    int64_t steps;           /* it tells of */
    int64_t bytes;           /* of the page */
} DsvReportSummary;

/* Writes what the folder of a run holds - metrics, decisions, sampled clips, settings - as one HTML page that
 * needs no other file and no network. The run may be over or still going on. html_path NULL: report.html in
 * the run's folder. `summary` may be NULL.
 *
 * DSV_E_NOT_FOUND where the folder holds no metrics.jsonl; DSV_E_FORMAT names the file and line of anything
 * that is not what a run writes. Missing files, and clips that cannot be decoded, are said on the page. */
DsvStatus dsv_report(const char *run_folder, const char *html_path, DsvReportSummary *summary);

#ifdef __cplusplus
}
#endif
#endif
