/* dsv_report: reads a run folder (report_data.c), makes the page in memory (report_page.c), and writes the
 * file. */
#include "dsv/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/report_page.h"

static DsvStatus make_page(const DsviReportData *data, const char *path, char **text, size_t *bytes)
{
    FILE *to = open_memstream(text, bytes);
    if (!to)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the page", path);
    DsvStatus status = dsvi_report_page(to, data);
    bool whole = !ferror(to);
    if (fclose(to) != 0 || (status == DSV_OK && !whole))
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the page", path);
    return status;
}

DsvStatus dsv_report(const char *run_folder, const char *html_path, DsvReportSummary *summary)
{
    DsvStatus status;
    DsviReportData *data = NULL;
    char path[DSVI_PATH_MAX], *text = NULL;
    size_t bytes = 0;
    if (!dsvi_path_is_folder(run_folder))
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no such folder", run_folder);
    if (html_path)
        snprintf(path, sizeof path, "%s", html_path);
    else
        DSVI_TRY(dsvi_path_join(path, run_folder, "report.html"));
    DSVI_TRY(dsvi_report_read(run_folder, &data));
    DSVI_TRY_GOTO(status, make_page(data, path, &text, &bytes), done);
    DSVI_TRY_GOTO(status, dsvi_file_replace(path, text, bytes), done);
    if (summary) {
        *summary = (DsvReportSummary){.steps = data->steps.rows, .bytes = (int64_t)bytes};
        snprintf(summary->path, sizeof summary->path, "%s", path);
    }
done:
    free(text);
    dsvi_report_data_free(&data);
    return status;
}
