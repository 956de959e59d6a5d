/* A file of JSON lines, one object after the other, with failures that name file and line. */
#ifndef DSVI_REPORT_LINES_H
#define DSVI_REPORT_LINES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <cjson/cJSON.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvReportLines {
    const char *path;
    FILE *file;
    char *text;      /* the newest line */
    long number;     /* its number, from 1 */
    cJSON *object;   /* what it says */
    double step;     /* its step: a whole number, not below that of the line before */
    bool unfinished; /* the file ends within a line, as one that is being written may */
} DsvReportLines;

/* *there is false, and the lines are none, where there is no such file. `path` must outlive the lines. */
DsvStatus dsvi_lines_open(const char *path, DsvReportLines *lines, bool *there);
/* A zeroed one may be closed. */
void dsvi_lines_close(DsvReportLines *lines);

/* Reads the next object with a step; *got is false at the end. An unfinished last line is no line. */
DsvStatus dsvi_lines_next(DsvReportLines *lines, bool *got);

/* The number of this name in an object of the line; NaN where it is null or absent. Anything else fails. */
DsvStatus dsvi_lines_number(const DsvReportLines *lines, const cJSON *object, const char *name,
                            double *value);
/* A whole number from 0 to `most`, which must be there. */
DsvStatus dsvi_lines_index(const DsvReportLines *lines, const char *name, int64_t most, int64_t *value);
/* The array of this name, or NULL where it is null or absent. */
DsvStatus dsvi_lines_array(const DsvReportLines *lines, const char *name, const cJSON **array);
/* Numbers or nulls of the array of this name; NaN for all of them where it is absent. */
DsvStatus dsvi_lines_numbers(const DsvReportLines *lines, const char *name, int64_t count, double *values);

/* Fails with DSV_E_FORMAT: "path:line: " and the sentence. */
DsvStatus dsvi_lines_refuse(const DsvReportLines *lines, const char *format, ...) DSVI_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif
#endif
