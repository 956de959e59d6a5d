/* Implements json_file.h: reads JSON files written by users. */
#include "plan/json_file.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/fs.h"

static DsvStatus broken_at(const char *path, const char *text, const char *at)
{
    long long line = 1, column = 1;
    for (; text < at; text++) {
        column = *text == '\n' ? 1 : column + 1;
        line += *text == '\n';
    }
    return DSVI_FAIL(DSV_E_FORMAT, "%s: the text is no JSON from line %lld, column %lld on", path, line,
                     column);
}

DsvStatus dsvi_json_file_read(const char *path, size_t limit, cJSON **value)
{
    DsvStatus status = DSV_OK;
    char *text;
    const char *end;
    size_t bytes;
    DSVI_TRY(dsvi_file_read(path, limit, &text, &bytes));
    /* The terminating zero is included, so that cJSON can check that nothing follows the value. */
    *value = cJSON_ParseWithLengthOpts(text, bytes + 1, &end, true);
    if (!*value)
        status = broken_at(path, text, end);
    free(text);
    return status;
}

const char *dsvi_json_found(const cJSON *value, char words[DSVI_JSON_FOUND_BYTES])
{
    const char *kind = cJSON_IsString(value)   ? "a string"
                       : cJSON_IsObject(value) ? "an object"
                       : cJSON_IsNull(value)   ? "null"
                       : cJSON_IsTrue(value)   ? "true"
                                               : "false";
    if (cJSON_IsNumber(value))
        snprintf(words, DSVI_JSON_FOUND_BYTES, "%.15g", value->valuedouble);
    else if (cJSON_IsArray(value))
        snprintf(words, DSVI_JSON_FOUND_BYTES, "an array of %d", cJSON_GetArraySize(value));
    else
        snprintf(words, DSVI_JSON_FOUND_BYTES, "%s", kind);
    return words;
}
