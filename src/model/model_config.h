/* Reads the JSON files of published models, and keys of the config.json of an encoder in the form of the
 * package transformers. Errors name the file and the key. */
#ifndef DSVI_MODEL_CONFIG_H
#define DSVI_MODEL_CONFIG_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Parses the JSON object in a file of at most 1 MiB. The caller frees *out with cJSON_Delete, after an error
 * too. */
DsvStatus dsvi_model_config_parse(const char *path, cJSON **out);

/* Reads a whole number from 0 to 10^15; `absent` if the key is missing. */
DsvStatus dsvi_model_config_whole(const cJSON *object, const char *path, const char *key, int64_t absent,
                                  int64_t *out);

/* Reads a number; `absent` if the key is missing. */
DsvStatus dsvi_model_config_number(const cJSON *object, const char *path, const char *key, double absent,
                                   double *out);

/* Returns whether the model has this type or, without a key model_type, a class whose name begins with
 * `class_name`. */
bool dsvi_model_config_is(const cJSON *object, const char *type, const char *class_name);

/* Fails unless dsvi_model_config_is. */
DsvStatus dsvi_model_config_require(const cJSON *object, const char *path, const char *type,
                                    const char *class_name);

#ifdef __cplusplus
}
#endif

#endif
