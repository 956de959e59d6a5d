/* Reads sparsities of heads from text. "0.9" is for all heads; "0.82*4,0.98*12" for four and for twelve
 * heads; "0.82..0.98*16" for sixteen heads, evenly spaced from one number to the other. Other text is the
 * path of a JSON file with an array of one number for each head. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_cp_parts.h"
#include "plan/json_file.h"

enum { FILE_MAX = 1 << 20 };

static bool is_sparsity(double value)
{
    return value >= 0 && value < 1;
}

/* One item of a list: `count` heads with sparsities evenly spaced from `first` to `last`. */
typedef struct Item {
    double first, last;
    int64_t count; /* 0: not given */
} Item;

static bool head_sparsity_read_item(const char **at, Item *item)
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

static DsvStatus head_sparsity_wrong(const char *text, int64_t heads)
{
    return DSVI_FAIL(DSV_E_USAGE,
                     "head sparsity %s: expected one of all heads, or of %lld in order as "
                     "0.82*4,0.9..0.98*12, each from 0 to below 1",
                     text, (long long)heads);
}

static DsvStatus head_sparsity_read_list(const char *text, int64_t heads, double *density)
{
    const char *at = text;
    int64_t h = 0;
    for (;;) {
        Item item;
        if (!head_sparsity_read_item(&at, &item))
            return head_sparsity_wrong(text, heads);
        bool alone = h == 0 && !*at && item.count == 0;
        int64_t count = alone ? heads : item.count > 0 ? item.count : 1;
        if (count > heads - h)
            return head_sparsity_wrong(text, heads);
        for (int64_t i = 0; i < count; i++)
            density[h++] = 1 - item.first - (item.last - item.first) * (double)i / fmax(1, (double)count - 1);
        if (*at != ',')
            break;
        at++;
    }
    return *at || h != heads ? head_sparsity_wrong(text, heads) : DSV_OK;
}

static DsvStatus head_sparsity_read_array(const char *path, const cJSON *array, int64_t heads,
                                          double *density)
{
    char words[DSVI_JSON_FOUND_BYTES];
    const cJSON *item;
    int64_t h = 0;
    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) != heads)
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s: expected a JSON array of %lld sparsities, one for each head, found "
                         "%s",
                         path, (long long)heads, dsvi_json_found(array, words));
    cJSON_ArrayForEach(item, array) {
        if (!cJSON_IsNumber(item) || !is_sparsity(item->valuedouble))
            return DSVI_FAIL(DSV_E_FORMAT, "%s: head %lld: expected a sparsity from 0 to below 1, found %s",
                             path, (long long)h, dsvi_json_found(item, words));
        density[h++] = 1 - item->valuedouble;
    }
    return DSV_OK;
}

static DsvStatus head_sparsity_read_file(const char *path, int64_t heads, double *density)
{
    cJSON *array;
    DSVI_TRY(dsvi_json_file_read(path, FILE_MAX, &array));
    DsvStatus status = head_sparsity_read_array(path, array, heads, density);
    cJSON_Delete(array);
    return status;
}

/* Returns whether the text is a list of sparsities and not the path of a file: a list has only digits and the
 * characters of numbers, '*' and ','. strtod cannot decide this, because it reads "inf" from the path
 * info.json. */
static bool is_list(const char *text)
{
    return text[strspn(text, "0123456789.,*eE+-")] == 0;
}

DsvStatus dsvi_head_sparsity_read(const char *text, int64_t heads, double *density)
{
    return is_list(text) ? head_sparsity_read_list(text, heads, density)
                         : head_sparsity_read_file(text, heads, density);
}
