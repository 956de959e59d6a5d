/* Reads a file with one JSON object per line. Error messages name the file and the line. */
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

typedef struct DsviReportLines {
    const char *path;
    FILE *file;
    char *text;      /* the current line */
    long number;     /* number of the current line, from 1 */
    cJSON *object;   /* the current line, parsed */
    double step;     /* "step" of the current line: a whole number; never decreases */
    bool unfinished; /* the last line has no newline, because it is still being written */
} DsviReportLines;

/* Opens a file. If it does not exist, *exists is false, and dsvi_lines_next finds no lines. `path` must
 * outlive `lines`. */
DsvStatus dsvi_lines_open(const char *path, DsviReportLines *lines, bool *exists);
/* Closes the file. Accepts a zeroed struct. */
void dsvi_lines_close(DsviReportLines *lines);

/* Reads the next line, an object with a step; *got is false at the end. A last line without newline is
 * ignored. */
DsvStatus dsvi_lines_next(DsviReportLines *lines, bool *got);

/* Reads the number with this name from an object of the line; NaN if it is null or absent. Fails if it is no
 * number. */
DsvStatus dsvi_lines_number(const DsviReportLines *lines, const cJSON *object, const char *name,
                            double *value);
/* Reads a whole number from 0 to `limit`. Fails if it is absent. */
DsvStatus dsvi_lines_index(const DsviReportLines *lines, const char *name, int64_t limit, int64_t *value);
/* Finds the array with this name; *array is NULL if it is null or absent. */
DsvStatus dsvi_lines_array(const DsviReportLines *lines, const char *name, const cJSON **array);
/* Reads an array of `count` numbers or nulls (NaN). All values are NaN if the array is absent. */
DsvStatus dsvi_lines_numbers(const DsviReportLines *lines, const char *name, int64_t count, double *values);

/* Fails with DSV_E_FORMAT and the message "path:line: sentence". */
DsvStatus dsvi_lines_refuse(const DsviReportLines *lines, const char *format, ...) DSVI_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif
#endif
