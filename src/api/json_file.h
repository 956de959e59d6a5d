/* JSON that users write by hand, and sentences that say what is wrong with it. */
#ifndef DSVI_JSON_FILE_H
#define DSVI_JSON_FILE_H

#include <stddef.h>

#include <cjson/cJSON.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The one value that the file holds; cJSON_Delete it. DSV_E_FORMAT, with the place, where the text is no JSON
 * or goes on behind the value. */
DsvStatus dsvi_json_file_read(const char *path, size_t limit, cJSON **value);

/* What a value is, in a few words: "an array of 3", "0.5", "a string"; `words` is returned. */
enum { DSVI_JSON_FOUND_BYTES = 32 };
const char *dsvi_json_found(const cJSON *value, char words[DSVI_JSON_FOUND_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
