/* See bench_report.h. */
#include "api/bench_report.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/fs.h"

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double dsvi_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return values[(count - 1) / 2];
}

static DsvStatus write_json(const DsvBenchFigure *figures, size_t count, const char *device,
                            const char *path)
{
    DsvStatus status = DSV_OK;
    cJSON *object = cJSON_CreateObject();
    bool whole = object && cJSON_AddStringToObject(object, "device", device);
    for (size_t i = 0; i < count && whole; i++)
        whole = isfinite(figures[i].value)
            ? cJSON_AddNumberToObject(object, figures[i].name, figures[i].value) != NULL
            : cJSON_AddNullToObject(object, figures[i].name) != NULL;
    char *text = whole ? cJSON_Print(object) : NULL;
    if (text)
        status = dsvi_file_replace(path, text, strlen(text));
    else
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the figures", path);
    cJSON_free(text);
    cJSON_Delete(object);
    return status;
}

DsvStatus dsvi_bench_report(const DsvBenchFigure *figures, size_t count, const char *device,
                            const char *json_path, DsvLine *line, void *context)
{
    char text[256];
    if (line) {
        snprintf(text, sizeof text, "%s", device);
        line(context, text);
    }
    for (size_t i = 0; i < count && line; i++) {
        snprintf(text, sizeof text, "  %-20s %12.4g", figures[i].name, figures[i].value);
        line(context, text);
    }
    return json_path ? write_json(figures, count, device, json_path) : DSV_OK;
}
