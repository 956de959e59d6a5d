/** @file
 * A run as one HTML page. */
#ifndef DSV_REPORT_H
#define DSV_REPORT_H

#include "dsv/config.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What dsv_report() has written. */
typedef struct DsvReportSummary {
    char path[DSV_TEXT_MAX]; /**< path of the page */
    int64_t steps;           /**< training steps that the page shows */
    int64_t bytes;           /**< size of the page */
} DsvReportSummary;

/** Writes the metrics, decisions, sampled clips and settings of a run folder as one HTML page that needs no
 * other file and no network. The run may be finished or still going on. Missing files, and clips that
 * cannot be decoded, are named on the page and are no failure.
 * @param run_folder the run's output_dir
 * @param html_path  replaced if it exists; NULL: report.html in `run_folder`
 * @param summary    filled on success; may be NULL
 * @return DSV_E_NOT_FOUND if the folder or its metrics.jsonl is missing; DSV_E_FORMAT, naming the file and
 *     line, for anything that a run does not write; DSV_E_NO_MEMORY; DSV_E_IO */
DsvStatus dsv_report(const char *run_folder, const char *html_path, DsvReportSummary *summary);

#ifdef __cplusplus
}
#endif
#endif
