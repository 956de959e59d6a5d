/* See model_config.h. */
#include "model/model_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"

enum { CONFIG_BYTES_MAX = 1 << 20 };

DsvStatus dsvi_model_config_parse(const char *path, cJSON **out)
{
    char *text = NULL;
    size_t bytes;
    *out = NULL;
    DSVI_TRY(dsvi_file_read(path, CONFIG_BYTES_MAX, &text, &bytes));
    *out = cJSON_ParseWithLength(text, bytes);
    free(text);
    return cJSON_IsObject(*out) ? DSV_OK : DSVI_FAIL(DSV_E_FORMAT, "%s: not a JSON object", path);
}

DsvStatus dsvi_model_config_whole(const cJSON *object, const char *path, const char *key, int64_t absent,
                                  int64_t *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    *out = absent;
    if (!item)
        return DSV_OK;
    double number = cJSON_GetNumberValue(item); /* NaN if the item is no number */
    if (!(number >= 0 && number <= 1e15 && number == floor(number)))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key %s is not a whole number", path, key);
    *out = (int64_t)number;
    return DSV_OK;
}

DsvStatus dsvi_model_config_number(const cJSON *object, const char *path, const char *key, double absent,
                                   double *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (item && !cJSON_IsNumber(item))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key %s is not a number", path, key);
    *out = item ? cJSON_GetNumberValue(item) : absent;
    return DSV_OK;
}

static const char *type_of(const cJSON *object)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "model_type"));
}

bool dsvi_model_config_is(const cJSON *object, const char *type, const char *class_name)
{
    const cJSON *classes = cJSON_GetObjectItemCaseSensitive(object, "architectures");
    const char *found = cJSON_GetStringValue(cJSON_GetArrayItem(classes, 0));
    if (type_of(object))
        return strcmp(type_of(object), type) == 0;
    return found && strncmp(found, class_name, strlen(class_name)) == 0;
}

DsvStatus dsvi_model_config_require(const cJSON *object, const char *path, const char *type,
                                    const char *class_name)
{
    const char *found = type_of(object);
    if (dsvi_model_config_is(object, type, class_name))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: model_type is %.64s, expected %s", path,
                     found ? found : "not there", type);
}
