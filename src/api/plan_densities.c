/* How dense the lists of each block's heads are, from a number or a file. */
#include <math.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "api/plan_parts.h"
#include "base/fs.h"

enum { FILE_MOST = 1 << 24 };

static bool is_density(double value)
{
    return value > 0 && value <= 1;
}

static void set_all(DsvPlanned *p, int64_t block, double density)
{
    DsvPlannedBlock *to = &p->block[block];
    for (int64_t h = 0; h < p->model.heads; h++)
        to->density[h] = density;
    to->known.density = to->density;
}

static DsvStatus set_heads(DsvPlanned *p, int64_t block, const cJSON *heads, const char *path)
{
    DsvPlannedBlock *to = &p->block[block];
    const cJSON *item;
    int64_t h = 0;
    if (cJSON_GetArraySize(heads) != p->model.heads)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: block %lld has %d densities, wanted %lld, one for each head",
                         path, (long long)block, cJSON_GetArraySize(heads), (long long)p->model.heads);
    cJSON_ArrayForEach(item, heads) {
        to->density[h] = cJSON_GetNumberValue(item);
        if (!is_density(to->density[h++]))
            return DSVI_FAIL(DSV_E_FORMAT, "%s: block %lld, head %lld: wanted a density above 0, at most 1",
                             path, (long long)block, (long long)h - 1);
    }
    to->known.density = to->density;
    return DSV_OK;
}

static DsvStatus read_blocks(DsvPlanned *p, const cJSON *blocks, const char *path)
{
    const cJSON *item;
    int64_t block = 0;
    if (!cJSON_IsArray(blocks) || cJSON_GetArraySize(blocks) != p->model.blocks)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: wanted a JSON array of %lld blocks", path,
                         (long long)p->model.blocks);
    cJSON_ArrayForEach(item, blocks) {
        if (cJSON_IsArray(item))
            DSVI_TRY(set_heads(p, block, item, path));
        else if (cJSON_IsNumber(item) && is_density(item->valuedouble))
            set_all(p, block, item->valuedouble);
        else if (!cJSON_IsNull(item))
            return DSVI_FAIL(DSV_E_FORMAT, "%s: block %lld: wanted a density above 0, at most 1, an array of "
                             "them, or null", path, (long long)block);
        block++;
    }
    return DSV_OK;
}

static DsvStatus read_file(DsvPlanned *p, const char *path)
{
    char *text;
    size_t bytes;
    DSVI_TRY(dsvi_file_read(path, FILE_MOST, &text, &bytes));
    cJSON *blocks = cJSON_ParseWithLength(text, bytes);
    DsvStatus status = read_blocks(p, blocks, path);
    cJSON_Delete(blocks);
    free(text);
    return status;
}

DsvStatus dsvi_plan_densities(const char *densities, DsvPlanned *p)
{
    char *end;
    for (int64_t block = 0; block < p->model.blocks; block++)
        p->block[block].known = (DsvCpBlock){.spread = DSV_CP_SPREAD};
    if (!densities)
        return DSV_OK;
    double density = strtod(densities, &end);
    if (end == densities || *end)
        return read_file(p, densities);
    if (!is_density(density))
        return DSVI_FAIL(DSV_E_USAGE, "%s is no density: wanted a number above 0, at most 1", densities);
    for (int64_t block = 0; block < p->model.blocks; block++)
        set_all(p, block, density);
    return DSV_OK;
}
