/* See report_lines.h. Files may be cut short or hostile: every line is bounded and every number checked. */
#include "report/report_lines.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MOST = 1 << 20 };
static const double STEP_MOST = 9007199254740992.0; /* whole numbers are exact up to 2^53 */

DsvStatus dsvi_lines_refuse(const DsvReportLines *lines, const char *format, ...)
{
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return DSVI_FAIL(DSV_E_FORMAT, "%s:%ld: %s", lines->path, lines->number, sentence);
}

DsvStatus dsvi_lines_open(const char *path, DsvReportLines *lines, bool *there)
{
    memset(lines, 0, sizeof *lines);
    lines->path = path;
    lines->file = fopen(path, "rb");
    *there = lines->file != NULL;
    if (!lines->file && errno != ENOENT)
        return DSVI_FAIL(DSV_E_IO, "%s: cannot be read: %s", path, strerror(errno));
    lines->text = malloc(LINE_MOST + 1);
    return lines->text ? DSV_OK : DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for its lines", path);
}

void dsvi_lines_close(DsvReportLines *lines)
{
    if (lines->file)
        fclose(lines->file);
    cJSON_Delete(lines->object);
    free(lines->text);
    memset(lines, 0, sizeof *lines);
}

/* The next line without its newline; *got is false behind the last whole one. */
static DsvStatus read_text(DsvReportLines *lines, bool *got)
{
    size_t used = 0;
    int c = EOF;
    *got = false;
    lines->number++;
    while ((c = getc_unlocked(lines->file)) != EOF && c != '\n') {
        if (used == LINE_MOST)
            return dsvi_lines_refuse(lines, "longer than the %d bytes a line may have", LINE_MOST);
        if (c == 0)
            return dsvi_lines_refuse(lines, "a zero byte, wanted text");
        lines->text[used++] = (char)c;
    }
    lines->text[used] = 0;
    if (ferror(lines->file))
        return DSVI_FAIL(DSV_E_IO, "%s: cannot be read: %s", lines->path, strerror(errno));
    lines->unfinished = c == EOF && used > 0;
    *got = c == '\n';
    return DSV_OK;
}

static bool is_whole(double value, double most)
{
    return value >= 0 && value <= most && value == floor(value);
}

DsvStatus dsvi_lines_next(DsvReportLines *lines, bool *got)
{
    double step, before = lines->step;
    *got = false;
    if (!lines->file)
        return DSV_OK;
    DSVI_TRY(read_text(lines, got));
    if (!*got)
        return DSV_OK;
    cJSON_Delete(lines->object);
    lines->object = cJSON_ParseWithOpts(lines->text, NULL, 1);
    if (!cJSON_IsObject(lines->object))
        return dsvi_lines_refuse(lines, "not a JSON object");
    DSVI_TRY(dsvi_lines_number(lines, lines->object, "step", &step));
    if (!is_whole(step, STEP_MOST))
        return dsvi_lines_refuse(lines, "no step, wanted a whole number");
    if (step < before)
        return dsvi_lines_refuse(lines, "step %.0f comes after step %.0f", step, before);
    lines->step = step;
    return DSV_OK;
}

DsvStatus dsvi_lines_number(const DsvReportLines *lines, const cJSON *object, const char *name,
                            double *value)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    *value = NAN;
    if (!item || cJSON_IsNull(item))
        return DSV_OK;
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
        return dsvi_lines_refuse(lines, "%s is not a number", name);
    *value = item->valuedouble;
    return DSV_OK;
}

DsvStatus dsvi_lines_index(const DsvReportLines *lines, const char *name, int64_t most, int64_t *value)
{
    double number;
    DSVI_TRY(dsvi_lines_number(lines, lines->object, name, &number));
    if (!is_whole(number, (double)most))
        return dsvi_lines_refuse(lines, "%s is not a whole number from 0 to %lld", name, (long long)most);
    *value = (int64_t)number;
    return DSV_OK;
}

DsvStatus dsvi_lines_array(const DsvReportLines *lines, const char *name, const cJSON **array)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(lines->object, name);
    *array = NULL;
    if (!item || cJSON_IsNull(item))
        return DSV_OK;
    if (!cJSON_IsArray(item))
        return dsvi_lines_refuse(lines, "%s is not an array", name);
    *array = item;
    return DSV_OK;
}

DsvStatus dsvi_lines_numbers(const DsvReportLines *lines, const char *name, int64_t count, double *values)
{
    const cJSON *array, *item;
    int64_t i = 0;
    DSVI_TRY(dsvi_lines_array(lines, name, &array));
    if (array && cJSON_GetArraySize(array) != count)
        return dsvi_lines_refuse(lines, "%s has %d numbers, wanted %lld", name, cJSON_GetArraySize(array),
                                 (long long)count);
    for (; !array && i < count; i++)
        values[i] = NAN;
    cJSON_ArrayForEach(item, array) {
        if (!cJSON_IsNull(item) && (!cJSON_IsNumber(item) || !isfinite(item->valuedouble)))
            return dsvi_lines_refuse(lines, "%s holds what is not a number", name);
        values[i++] = cJSON_IsNull(item) ? NAN : item->valuedouble;
    }
    return DSV_OK;
}
