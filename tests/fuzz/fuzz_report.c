/* Fuzzes the page that dsv_report makes of a run folder, except clips. Text of the run must not become
 * markup: no input may add a script to the page. */
#include "dsv/report.h"
#include "report/report_page.h"
#include "fuzz.h"

/* Replaces the section of clips, so that this program needs no FFmpeg; fuzz_clip.c fuzzes clips. */
DsvStatus dsvi_report_clips(FILE *to, const DsviReportData *data)
{
    (void)to, (void)data;
    return DSV_OK;
}

static const char MARK[] = "<fuzz"; /* part of a seed; the page may contain it only escaped */

static bool page_holds(const char *text)
{
    FILE *page = fopen(FUZZ_ROOT "/report.html", "rb");
    char *line = NULL;
    size_t room = 0;
    bool held = false;
    fuzz_expect(page);
    while (!held && getline(&line, &room, page) > 0)
        held = strstr(line, text) != NULL;
    free(line);
    fclose(page);
    return held;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"metrics.jsonl",    "blocks.jsonl", "decisions.jsonl",
                                        "validation.jsonl", "run.json",     "config.yaml"};
    DsvReportSummary summary;
    fuzz_files_put_parts(names, 6, data, size);
    if (dsv_report(FUZZ_ROOT, NULL, &summary) != DSV_OK)
        return 0;
    fuzz_accept();
    fuzz_expect(summary.steps >= 0 && summary.bytes > 0);
    fuzz_expect(!page_holds(MARK));
    return 0;
}
