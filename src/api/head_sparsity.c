/* Sparsities of heads as text: "0.9" of all; "0.82*4,0.98*12" of four and of twelve; "0.82..0.98*16" of
 * sixteen, evenly from one number to the other; or a file with a JSON array of numbers, one for each head. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "api/bench_context_parts.h"
#include "base/fs.h"

enum { FILE_MOST = 1 << 20 };

static bool is_sparsity(double value)
{
    return value >= 0 && value < 1;
}

/* One item of a list: so many heads from `first` to `last`. */
typedef struct Item {
    double first, last;
    int64_t count;         /* 0: not said */
} Item;

static bool read_item(const char **at, Item *item)
{
    char *end;
    item->first = item->last = strtod(*at, &end);
    item->count = 0;
    bool right = end != *at;
    if (right && strncmp(end, "..", 2) == 0) {
        *at = end + 2;
        item->last = strtod(*at, &end);
        right = end != *at;
    }
    if (right && *end == '*') {
        *at = end + 1;
        item->count = strtoll(*at, &end, 10);
        right = end != *at && item->count > 0;
    }
    *at = end;
    return right && is_sparsity(item->first) && is_sparsity(item->last);
}

static DsvStatus wrong(const char *text, int64_t heads)
{
    return DSVI_FAIL(DSV_E_USAGE, "head sparsity %s: wanted one of all heads, or of %lld in order as "
                     "0.82*4,0.9..0.98*12, each from 0 to below 1", text, (long long)heads);
}

static DsvStatus read_list(const char *text, int64_t heads, double *density)
{
    const char *at = text;
    int64_t h = 0;
    for (;;) {
        Item item;
        if (!read_item(&at, &item))
            return wrong(text, heads);
        bool alone = h == 0 && !*at && item.count == 0;
        int64_t count = alone ? heads : item.count > 0 ? item.count : 1;
        if (count > heads - h)
            return wrong(text, heads);
        for (int64_t i = 0; i < count; i++)
            density[h++] = 1 - item.first - (item.last - item.first) * (double)i / fmax(1, (double)count - 1);
        if (*at != ',')
            break;
        at++;
    }
    return *at || h != heads ? wrong(text, heads) : DSV_OK;
}

static DsvStatus read_file(const char *path, int64_t heads, double *density)
{
    char *text;
    size_t bytes;
    DSVI_TRY(dsvi_file_read(path, FILE_MOST, &text, &bytes));
    cJSON *array = cJSON_ParseWithLength(text, bytes), *item;
    bool right = cJSON_IsArray(array) && cJSON_GetArraySize(array) == heads;
    int64_t h = 0;
    cJSON_ArrayForEach(item, array) {
        right = right && cJSON_IsNumber(item) && is_sparsity(item->valuedouble);
        if (right)
            density[h++] = 1 - item->valuedouble;
    }
    cJSON_Delete(array);
    free(text);
    return right ? DSV_OK
                 : DSVI_FAIL(DSV_E_FORMAT, "%s: wanted a JSON array of %lld sparsities, each from 0 to below "
                             "1", path, (long long)heads);
}

DsvStatus dsvi_head_sparsity_read(const char *text, int64_t heads, double *density)
{
    char *end;
    strtod(text, &end);
    return end == text ? read_file(text, heads, density) : read_list(text, heads, density);
}
