/* Implements metrics_read.h: summarises metrics.jsonl. */
#include "run/metrics_read.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/number_text.h"

enum { FIRST_STEPS = 10, LAST_STEPS = 20 };

static DsvStatus read_line(const char *path, long line, const char *text, int64_t *step, double *loss)
{
    cJSON *object = cJSON_Parse(text);
    const cJSON *step_item = cJSON_GetObjectItemCaseSensitive(object, "step");
    const cJSON *loss_item = cJSON_GetObjectItemCaseSensitive(object, "loss");
    bool good = cJSON_IsNumber(step_item) && dsvi_number_to_whole(step_item->valuedouble, step) &&
                cJSON_IsNumber(loss_item);
    if (good)
        *loss = loss_item->valuedouble;
    cJSON_Delete(object);
    return good ? DSV_OK : DSVI_FAIL(DSV_E_FORMAT, "%s:%ld: no object with step and loss", path, line);
}

DsvStatus dsvi_metrics_summarise(const char *path, DsviMetricsSummary *summary)
{
    DsvStatus status = DSV_OK;
    double loss = 0, first = 0, last[LAST_STEPS] = {0};
    long lines = 0;
    char *text = NULL;
    size_t capacity = 0;
    ssize_t length;
    FILE *file = fopen(path, "r");
    *summary = (DsviMetricsSummary){0, NAN, NAN};
    if (!file)
        return DSVI_FAIL(DSV_E_IO, "%s: cannot be read: %s", path, strerror(errno));
    while ((length = getline(&text, &capacity, file)) > 0 && text[length - 1] == '\n') {
        status = read_line(path, lines + 1, text, &summary->last_step, &loss);
        if (status != DSV_OK)
            break;
        if (lines < FIRST_STEPS)
            first += loss;
        last[lines % LAST_STEPS] = loss;
        lines++;
    }
    free(text);
    fclose(file);
    if (status == DSV_OK && lines > 0) {
        long first_count = lines < FIRST_STEPS ? lines : FIRST_STEPS;
        long last_count = lines < LAST_STEPS ? lines : LAST_STEPS;
        double sum = 0;
        for (long i = 0; i < last_count; i++)
            sum += last[i];
        summary->first_loss = first / (double)first_count;
        summary->last_loss = sum / (double)last_count;
    }
    return status;
}
