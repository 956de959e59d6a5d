/* See report_lines.h. Files may be truncated or hostile: the length of every line and every number is
 * checked. */
#include "report/report_lines.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES_MAX = 1 << 20 };
static const double STEP_MAX = 9007199254740992.0; /* whole numbers are exact up to 2^53 */

DsvStatus dsvi_lines_refuse(const DsviReportLines *lines, const char *format, ...)
{
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return DSVI_FAIL(DSV_E_FORMAT, "%s:%ld: %s", lines->path, lines->number, sentence);
}

DsvStatus dsvi_lines_open(const char *path, DsviReportLines *lines, bool *exists)
{
    memset(lines, 0, sizeof *lines);
    lines->path = path;
    lines->file = fopen(path, "rb");
    *exists = lines->file != NULL;
    if (!lines->file && errno != ENOENT)
        return DSVI_FAIL(DSV_E_IO, "%s: cannot be read: %s", path, strerror(errno));
    lines->text = malloc(LINE_BYTES_MAX + 1);
    return lines->text ? DSV_OK : DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for its lines", path);
}

void dsvi_lines_close(DsviReportLines *lines)
{
    if (lines->file)
        fclose(lines->file);
    cJSON_Delete(lines->object);
    free(lines->text);
    memset(lines, 0, sizeof *lines);
}

/* Reads the next line, without its newline, into lines->text. *got is false after the last complete line. */
static DsvStatus read_line_text(DsviReportLines *lines, bool *got)
{
    size_t used = 0;
    int c = EOF;
    *got = false;
    lines->number++;
    while ((c = getc_unlocked(lines->file)) != EOF && c != '\n') {
        if (used == LINE_BYTES_MAX)
            return dsvi_lines_refuse(lines, "longer than the %d bytes a line may have", LINE_BYTES_MAX);
        if (c == 0)
            return dsvi_lines_refuse(lines, "a zero byte, expected text");
        lines->text[used++] = (char)c;
    }
    lines->text[used] = 0;
    if (ferror(lines->file))
        return DSVI_FAIL(DSV_E_IO, "%s: cannot be read: %s", lines->path, strerror(errno));
    lines->unfinished = c == EOF && used > 0;
    *got = c == '\n';
    return DSV_OK;
}

static bool is_whole(double value, double limit)
{
    return value >= 0 && value <= limit && value == floor(value);
}

DsvStatus dsvi_lines_next(DsviReportLines *lines, bool *got)
{
    double step, before = lines->step;
    *got = false;
    if (!lines->file)
        return DSV_OK;
    DSVI_TRY(read_line_text(lines, got));
    if (!*got)
        return DSV_OK;
    cJSON_Delete(lines->object);
    lines->object = cJSON_ParseWithOpts(lines->text, NULL, 1);
    if (!cJSON_IsObject(lines->object))
        return dsvi_lines_refuse(lines, "not a JSON object");
    DSVI_TRY(dsvi_lines_number(lines, lines->object, "step", &step));
    if (!is_whole(step, STEP_MAX))
        return dsvi_lines_refuse(lines, "no step, expected a whole number");
    if (step < before)
        return dsvi_lines_refuse(lines, "step %.0f comes after step %.0f", step, before);
    lines->step = step;
    return DSV_OK;
}

DsvStatus dsvi_lines_number(const DsviReportLines *lines, const cJSON *object, const char *name,
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

DsvStatus dsvi_lines_index(const DsviReportLines *lines, const char *name, int64_t limit, int64_t *value)
{
    double number;
    DSVI_TRY(dsvi_lines_number(lines, lines->object, name, &number));
    if (!is_whole(number, (double)limit))
        return dsvi_lines_refuse(lines, "%s is not a whole number from 0 to %lld", name, (long long)limit);
    *value = (int64_t)number;
    return DSV_OK;
}

DsvStatus dsvi_lines_array(const DsviReportLines *lines, const char *name, const cJSON **array)
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

DsvStatus dsvi_lines_numbers(const DsviReportLines *lines, const char *name, int64_t count, double *values)
{
    const cJSON *array, *item;
    int64_t i = 0;
    DSVI_TRY(dsvi_lines_array(lines, name, &array));
    if (array && cJSON_GetArraySize(array) != count)
        return dsvi_lines_refuse(lines, "%s has %d numbers, expected %lld", name, cJSON_GetArraySize(array),
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
