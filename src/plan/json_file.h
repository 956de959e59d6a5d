/* Reads JSON files written by users, with helpers for error messages. */
#ifndef DSVI_JSON_FILE_H
#define DSVI_JSON_FILE_H

#include <stddef.h>

#include <cjson/cJSON.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads the file, which must hold one JSON value and at most `limit` bytes. The caller must cJSON_Delete the
 * value. Returns DSV_E_FORMAT with line and column if the text is not JSON, or if other text follows the
 * value. */
DsvStatus dsvi_json_file_read(const char *path, size_t limit, cJSON **value);

/* Describes a JSON value in a few words, for error messages, such as "an array of 3", "0.5" or "a string".
 * Returns `words`. */
enum { DSVI_JSON_FOUND_BYTES = 32 };
const char *dsvi_json_found(const cJSON *value, char words[DSVI_JSON_FOUND_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
