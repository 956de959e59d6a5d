/* Sparsities of heads as text: "0.9" of all; "0.82*4,0.98*12" of four and of twelve; "0.82..0.98*16" of
 * sixteen, evenly from one number to the other; or a file with a JSON array of numbers, one for each head. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/bench_context_parts.h"
#include "api/json_file.h"

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

static DsvStatus read_array(const char *path, const cJSON *array, int64_t heads, double *density)
{
    char words[DSVI_JSON_FOUND_BYTES];
    const cJSON *item;
    int64_t h = 0;
    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) != heads)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: wanted a JSON array of %lld sparsities, one for each head, found "
                         "%s", path, (long long)heads, dsvi_json_found(array, words));
    cJSON_ArrayForEach(item, array) {
        if (!cJSON_IsNumber(item) || !is_sparsity(item->valuedouble))
            return DSVI_FAIL(DSV_E_FORMAT, "%s: head %lld: wanted a sparsity from 0 to below 1, found %s",
                             path, (long long)h, dsvi_json_found(item, words));
        density[h++] = 1 - item->valuedouble;
    }
    return DSV_OK;
}

static DsvStatus read_file(const char *path, int64_t heads, double *density)
{
    cJSON *array;
    DSVI_TRY(dsvi_json_file_read(path, FILE_MOST, &array));
    DsvStatus status = read_array(path, array, heads, density);
    cJSON_Delete(array);
    return status;
}

/* All its characters are such as lists have. strtod is no judge: it reads infinity from info.json. */
static bool is_list(const char *text)
{
    return text[strspn(text, "0123456789.,*eE+-")] == 0;
}

DsvStatus dsvi_head_sparsity_read(const char *text, int64_t heads, double *density)
{
    return is_list(text) ? read_list(text, heads, density) : read_file(text, heads, density);
}
