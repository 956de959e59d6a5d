/* Implements bench_report.h: computes medians, and writes results as a table and as JSON. */
#include "bench/bench_report.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/fs.h"

static int bench_report_ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double dsvi_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, bench_report_ascending);
    return values[(count - 1) / 2];
}

static DsvStatus write_json(const DsviBenchLabel *labels, size_t label_count, const DsviBenchFigure *figures,
                            size_t figure_count, const char *path)
{
    DsvStatus status;
    cJSON *object = cJSON_CreateObject();
    bool whole = object != NULL;
    for (size_t i = 0; i < label_count && whole; i++)
        whole = cJSON_AddStringToObject(object, labels[i].name, labels[i].value) != NULL;
    for (size_t i = 0; i < figure_count && whole; i++)
        whole = isfinite(figures[i].value)
                    ? cJSON_AddNumberToObject(object, figures[i].name, figures[i].value) != NULL
                    : cJSON_AddNullToObject(object, figures[i].name) != NULL;
    char *text = whole ? cJSON_Print(object) : NULL;
    status = text ? dsvi_file_replace(path, text, strlen(text))
                  : DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the figures", path);
    cJSON_free(text);
    cJSON_Delete(object);
    return status;
}

DsvStatus dsvi_bench_report(const DsviBenchLabel *labels, size_t label_count, const DsviBenchFigure *figures,
                            size_t figure_count, const char *json_path, DsvLine *line, void *context)
{
    char text[256];
    for (size_t i = 0; i < label_count && line; i++) {
        snprintf(text, sizeof text, "%-20s %s", labels[i].name, labels[i].value);
        line(context, text);
    }
    for (size_t i = 0; i < figure_count && line; i++) {
        snprintf(text, sizeof text, "%-20s %.4g", figures[i].name, figures[i].value);
        line(context, text);
    }
    return json_path ? write_json(labels, label_count, figures, figure_count, json_path) : DSV_OK;
}
