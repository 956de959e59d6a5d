/* Implements densities.h: reads the densities of key lists (the fraction of keys that a list names). */
#include "plan/densities.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "plan/json_file.h"

enum { FILE_MAX = 1 << 24 };

typedef struct Reading {
    const char *path;
    int64_t blocks, heads;
    double *density;
} Reading;

static bool is_density(double value)
{
    return value > 0 && value <= 1;
}

static void set_all(const Reading *r, int64_t block, double density)
{
    for (int64_t h = 0; h < r->heads; h++)
        r->density[block * r->heads + h] = density;
}

static DsvStatus set_heads(const Reading *r, int64_t block, const cJSON *heads)
{
    char words[DSVI_JSON_FOUND_BYTES];
    const cJSON *item;
    int64_t h = 0;
    if (cJSON_GetArraySize(heads) != r->heads)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: block %lld has %d densities, expected %lld, one for each head",
                         r->path, (long long)block, cJSON_GetArraySize(heads), (long long)r->heads);
    cJSON_ArrayForEach(item, heads) {
        double value = cJSON_GetNumberValue(item);
        if (!is_density(value))
            return DSVI_FAIL(DSV_E_FORMAT,
                             "%s: block %lld, head %lld: expected a density above 0, at most 1, "
                             "found %s",
                             r->path, (long long)block, (long long)h, dsvi_json_found(item, words));
        r->density[block * r->heads + h++] = value;
    }
    return DSV_OK;
}

static DsvStatus read_blocks(const Reading *r, const cJSON *blocks)
{
    char words[DSVI_JSON_FOUND_BYTES];
    const cJSON *item;
    int64_t block = 0;
    if (!cJSON_IsArray(blocks) || cJSON_GetArraySize(blocks) != r->blocks)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: expected a JSON array of %lld blocks, found %s", r->path,
                         (long long)r->blocks, dsvi_json_found(blocks, words));
    cJSON_ArrayForEach(item, blocks) {
        if (cJSON_IsArray(item))
            DSVI_TRY(set_heads(r, block, item));
        else if (cJSON_IsNumber(item) && is_density(item->valuedouble))
            set_all(r, block, item->valuedouble);
        else if (!cJSON_IsNull(item))
            return DSVI_FAIL(DSV_E_FORMAT,
                             "%s: block %lld: expected a density above 0, at most 1, an array of "
                             "them, or null, found %s",
                             r->path, (long long)block, dsvi_json_found(item, words));
        block++;
    }
    return DSV_OK;
}

static DsvStatus densities_read_file(const Reading *r)
{
    cJSON *blocks;
    DSVI_TRY(dsvi_json_file_read(r->path, FILE_MAX, &blocks));
    DsvStatus status = read_blocks(r, blocks);
    cJSON_Delete(blocks);
    return status;
}

DsvStatus dsvi_densities_read(const char *densities, int64_t blocks, int64_t heads, double *density)
{
    const Reading r = {densities, blocks, heads, density};
    char *end;
    double value = strtod(densities, &end);
    bool number = end != densities && !*end;
    if (number && !is_density(value))
        return DSVI_FAIL(DSV_E_USAGE, "%s is no density: expected a number above 0, at most 1", densities);
    for (int64_t block = 0; block < blocks; block++)
        set_all(&r, block, number ? value : NAN);
    return number ? DSV_OK : densities_read_file(&r);
}
