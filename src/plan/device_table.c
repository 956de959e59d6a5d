/* Implements device_table.h. */
#include "plan/device_table.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "plan/json_file.h"

enum { TABLE_FILE_MAX = 1 << 16 };
enum {
    TFLOPS,
    MEMORY_GBS,
    LINK_GBS,
    HOST_GBS,
    UPDATE_GBS,
    MEMORY_GIB,
    HOST_GIB,
    TABLE_KEYS,
    TABLE_REQUIRED = HOST_GBS
};

static const char *const KEY[TABLE_KEYS] = {"tflops",     "memory_gbs", "link_gbs", "host_gbs",
                                            "update_gbs", "memory_gib", "host_gib"};

static DsvStatus read_key(const char *path, const cJSON *item, double value[TABLE_KEYS])
{
    char words[DSVI_JSON_FOUND_BYTES];
    int key = 0;
    while (key < TABLE_KEYS && strcmp(item->string, KEY[key]) != 0)
        key++;
    if (key == TABLE_KEYS)
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s: %s is no key of a device, expected tflops, memory_gbs, link_gbs, host_gbs, "
                         "update_gbs, memory_gib and host_gib",
                         path, item->string);
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble) || item->valuedouble <= 0)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: %s: expected a number above 0, found %s", path, item->string,
                         dsvi_json_found(item, words));
    value[key] = item->valuedouble;
    return DSV_OK;
}

static DsvStatus read_table(const char *path, const cJSON *object, double value[TABLE_KEYS])
{
    char words[DSVI_JSON_FOUND_BYTES];
    const cJSON *item;
    if (!cJSON_IsObject(object))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: expected a JSON object, found %s", path,
                         dsvi_json_found(object, words));
    cJSON_ArrayForEach(item, object)
        DSVI_TRY(read_key(path, item, value));
    for (int key = 0; key < TABLE_REQUIRED; key++)
        if (value[key] == 0)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: %s is missing, expected a number above 0", path, KEY[key]);
    return DSV_OK;
}

DsvStatus dsvi_device_table_read(const char *path, DsviDeviceTable *out)
{
    double value[TABLE_KEYS] = {0};
    cJSON *object;
    DSVI_TRY(dsvi_json_file_read(path, TABLE_FILE_MAX, &object));
    DsvStatus status = read_table(path, object, value);
    cJSON_Delete(object);
    DSVI_TRY(status);
    double shared = value[HOST_GBS] / 2; /* copies to and from the host run at the same time */
    bool host_limits = shared > 0 && shared < value[LINK_GBS];
    double update = value[UPDATE_GBS] > 0 ? value[UPDATE_GBS] : dsvi_device_speeds_nominal().update * 1e-9;
    if (value[HOST_GBS] > 0 && value[HOST_GBS] < update)
        update = value[HOST_GBS];
    *out = (DsviDeviceTable){
        .speeds = {.flops = value[TFLOPS] * 1e12,
                   .memory = value[MEMORY_GBS] * 1e9,
                   .link = (host_limits ? shared : value[LINK_GBS]) * 1e9,
                   .update = update * 1e9},
        .memory_gib = value[MEMORY_GIB],
        .host_gib = value[HOST_GIB],
    };
    return DSV_OK;
}
