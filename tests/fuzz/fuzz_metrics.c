/* Fuzzes metrics.jsonl: its summary, and opening it to continue after a step. Appended lines must be read
 * back. */
#include <math.h>

#include "run/metrics.h"
#include "run/metrics_read.h"
#include "fuzz.h"

static const char PATH[] = FUZZ_ROOT "/metrics.jsonl";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { RESUME_STEP = 5 };
    DsviSuperseded superseded = {.root = FUZZ_ROOT};
    const DsviMetricsStep line = {.step = RESUME_STEP + 1, .loss = 0.5, .grad_norm = NAN};
    DsviMetricsSummary summary;
    DsviMetrics *metrics;
    fuzz_files_clear();
    fuzz_file_put("metrics.jsonl", data, size);
    bool whole = dsvi_metrics_summarise(PATH, &summary) == DSV_OK;
    if (whole)
        fuzz_expect(summary.last_step >= 0);
    if (dsvi_metrics_open(PATH, RESUME_STEP, &metrics) != DSV_OK)
        return 0;
    if (whole)
        fuzz_accept();
    fuzz_expect(dsvi_metrics_last_step(metrics) <= RESUME_STEP);
    fuzz_expect(dsvi_metrics_begin(metrics, &superseded) == DSV_OK);
    fuzz_expect(dsvi_metrics_step(metrics, &line) == DSV_OK);
    dsvi_metrics_close(&metrics);
    if (whole) {
        fuzz_expect(dsvi_metrics_summarise(PATH, &summary) == DSV_OK);
        fuzz_expect(summary.last_step == RESUME_STEP + 1);
    }
    return 0;
}
