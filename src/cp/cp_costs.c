/* Reads and writes the costs of attention and transfers (cp_costs.h) as a JSON file of this format:
 *
 *     {"about": "...", "transfers_beside_kernels": true, "memory_ps": ...,
 *      "attention": {"call_us": [forward, backward], "dense_ps": [forward, backward], "select_ps": ...,
 *                    "lists_forward_ps": [[density, ps], ...], "lists_backward_ps": [[density, ps], ...]},
 *      "links": [{"ranks": 2, "head_exchange_us": [[bytes, us], ...], "sequence_exchange_us": ...,
 *                 "sequence_swap_us": ...}, ...]}
 *
 * us: microseconds per call; ps: picoseconds per pair, or per byte. */
#include "cp/cp_costs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/fs.h"

#define US 1e-6
#define PS 1e-12
#define FILE_MAX (1 << 20)

double dsvi_price_at(const DsviPriceCurve *curve, double x)
{
    int64_t i = 1;
    if (curve->count < 2)
        return curve->count ? curve->y[0] : 0;
    while (i < curve->count - 1 && curve->x[i] < x)
        i++;
    double slope = (curve->y[i] - curve->y[i - 1]) / (curve->x[i] - curve->x[i - 1]);
    return fmax(0, curve->y[i - 1] + slope * (x - curve->x[i - 1]));
}

void dsvi_price_add(DsviPriceCurve *curve, double x, double y)
{
    if (curve->count >= DSVI_PRICE_POINTS_MAX || (curve->count > 0 && x <= curve->x[curve->count - 1]))
        return;
    curve->x[curve->count] = x;
    curve->y[curve->count++] = y;
}

const DsviLinkCost *dsvi_costs_link(const DsviCpCosts *costs, int64_t ranks)
{
    for (int64_t i = 0; i < costs->link_count; i++)
        if (costs->link[i].ranks == ranks)
            return &costs->link[i];
    return NULL;
}

/* The JSON object that is being read, with the names of the file and the object for error messages. */
typedef struct JsonPlace {
    const char *path, *within;
    const cJSON *object;
} JsonPlace;

static DsvStatus fail_wrong_value(const JsonPlace *at, const char *key, const char *expected)
{
    return DSVI_FAIL(DSV_E_FORMAT, "%s: %s%s: expected %s", at->path, at->within, key, expected);
}

static bool is_amount(const cJSON *item)
{
    return cJSON_IsNumber(item) && isfinite(item->valuedouble) && item->valuedouble >= 0;
}

/* Reads one number (count 1) or an array of `count` numbers, and multiplies each number by `unit`. */
static DsvStatus read_amounts(const JsonPlace *at, const char *key, int count, double unit, double *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(at->object, key);
    bool valid = count == 1 ? is_amount(item) : cJSON_IsArray(item) && cJSON_GetArraySize(item) == count;
    for (int i = 0; i < count && valid; i++) {
        const cJSON *one = count == 1 ? item : cJSON_GetArrayItem(item, i);
        valid = is_amount(one);
        out[i] = valid ? one->valuedouble * unit : 0;
    }
    return valid ? DSV_OK
                 : fail_wrong_value(at, key, count == 1 ? "a number from 0 up" : "two numbers from 0 up");
}

/* Reads an array of points [x, y] into a curve. The array may be empty if may_be_empty. */
static DsvStatus read_curve(const JsonPlace *at, const char *key, bool may_be_empty, double unit,
                            DsviPriceCurve *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(at->object, key), *point;
    bool valid = cJSON_IsArray(item) && (may_be_empty || cJSON_GetArraySize(item) >= 1) &&
                 cJSON_GetArraySize(item) <= DSVI_PRICE_POINTS_MAX;
    *out = (DsviPriceCurve){.count = 0};
    cJSON_ArrayForEach(point, item) {
        const cJSON *x = cJSON_GetArrayItem(point, 0), *y = cJSON_GetArrayItem(point, 1);
        int64_t before = out->count;
        if (cJSON_GetArraySize(point) == 2 && is_amount(x) && is_amount(y))
            dsvi_price_add(out, x->valuedouble, y->valuedouble * unit);
        valid = valid && out->count > before;
    }
    return valid
               ? DSV_OK
               : fail_wrong_value(at, key, "at most 12 pairs of numbers from 0 up, the first of each rising");
}

static DsvStatus read_attention(const JsonPlace *top, DsviAttentionCost *out)
{
    const JsonPlace at = {top->path, "attention.",
                          cJSON_GetObjectItemCaseSensitive(top->object, "attention")};
    DSVI_TRY(read_amounts(&at, "call_us", DSVI_PASSES, US, out->call));
    DSVI_TRY(read_amounts(&at, "dense_ps", DSVI_PASSES, PS, out->dense));
    DSVI_TRY(read_amounts(&at, "select_ps", 1, PS, &out->select));
    DSVI_TRY(read_curve(&at, "lists_forward_ps", true, PS, &out->lists[0]));
    return read_curve(&at, "lists_backward_ps", true, PS, &out->lists[1]);
}

static DsvStatus read_link(const JsonPlace *at, DsviLinkCost *out)
{
    double ranks;
    DSVI_TRY(read_amounts(at, "ranks", 1, 1, &ranks));
    if (ranks < 2 || ranks > 1e6 || ranks != floor(ranks))
        return fail_wrong_value(at, "ranks", "a whole number from 2 up");
    out->ranks = (int64_t)ranks;
    DSVI_TRY(read_curve(at, "head_exchange_us", true, US, &out->head_exchange));
    DSVI_TRY(read_curve(at, "sequence_exchange_us", true, US, &out->sequence_exchange));
    return read_curve(at, "sequence_swap_us", true, US, &out->sequence_swap);
}

static DsvStatus read_all(const JsonPlace *top, DsviCpCosts *out)
{
    const cJSON *about = cJSON_GetObjectItemCaseSensitive(top->object, "about"), *link;
    const cJSON *links = cJSON_GetObjectItemCaseSensitive(top->object, "links");
    memset(out, 0, sizeof *out);
    snprintf(out->about, sizeof out->about, "%s", cJSON_IsString(about) ? about->valuestring : top->path);
    out->beside = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(top->object, "transfers_beside_kernels"));
    DSVI_TRY(read_attention(top, &out->attention));
    DSVI_TRY(read_amounts(top, "memory_ps", 1, PS, &out->touch));
    if (!cJSON_IsArray(links) || cJSON_GetArraySize(links) > DSVI_DEGREES_MAX)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: links: expected an array of at most %d", top->path,
                         DSVI_DEGREES_MAX);
    cJSON_ArrayForEach(link, links) {
        const JsonPlace at = {top->path, "links[].", link};
        DSVI_TRY(read_link(&at, &out->link[out->link_count]));
        out->link_count++;
    }
    return DSV_OK;
}

DsvStatus dsvi_costs_read(const char *path, DsviCpCosts *out)
{
    char *text;
    size_t bytes;
    DSVI_TRY(dsvi_file_read(path, FILE_MAX, &text, &bytes));
    cJSON *object = cJSON_ParseWithLength(text, bytes);
    const JsonPlace top = {path, "", object};
    DsvStatus status = cJSON_IsObject(object) ? read_all(&top, out)
                                              : DSVI_FAIL(DSV_E_FORMAT, "%s: not a JSON object", path);
    cJSON_Delete(object);
    free(text);
    return status;
}

static bool add_amounts(cJSON *object, const char *key, int count, double unit, const double *amount)
{
    double scaled[DSVI_PASSES];
    for (int i = 0; i < count; i++)
        scaled[i] = amount[i] / unit;
    if (count == 1)
        return cJSON_AddNumberToObject(object, key, scaled[0]) != NULL;
    cJSON *array = cJSON_CreateDoubleArray(scaled, count);
    return array && cJSON_AddItemToObject(object, key, array);
}

static bool add_curve(cJSON *object, const char *key, double unit, const DsviPriceCurve *curve)
{
    cJSON *array = cJSON_AddArrayToObject(object, key);
    bool complete = array != NULL;
    for (int64_t i = 0; i < curve->count && complete; i++) {
        const double point[2] = {curve->x[i], curve->y[i] / unit};
        cJSON *pair = cJSON_CreateDoubleArray(point, 2);
        complete = pair && cJSON_AddItemToArray(array, pair);
    }
    return complete;
}

static bool cp_costs_add_attention(cJSON *object, const DsviAttentionCost *cost)
{
    return object && add_amounts(object, "call_us", DSVI_PASSES, US, cost->call) &&
           add_amounts(object, "dense_ps", DSVI_PASSES, PS, cost->dense) &&
           add_amounts(object, "select_ps", 1, PS, &cost->select) &&
           add_curve(object, "lists_forward_ps", PS, &cost->lists[0]) &&
           add_curve(object, "lists_backward_ps", PS, &cost->lists[1]);
}

static bool add_link(cJSON *array, const DsviLinkCost *link)
{
    cJSON *object = cJSON_CreateObject();
    return object && cJSON_AddItemToArray(array, object) &&
           cJSON_AddNumberToObject(object, "ranks", (double)link->ranks) &&
           add_curve(object, "head_exchange_us", US, &link->head_exchange) &&
           add_curve(object, "sequence_exchange_us", US, &link->sequence_exchange) &&
           add_curve(object, "sequence_swap_us", US, &link->sequence_swap);
}

DsvStatus dsvi_costs_write(const char *path, const DsviCpCosts *costs)
{
    cJSON *object = cJSON_CreateObject();
    bool complete = object && cJSON_AddStringToObject(object, "about", costs->about) &&
                    cJSON_AddBoolToObject(object, "transfers_beside_kernels", costs->beside) &&
                    add_amounts(object, "memory_ps", 1, PS, &costs->touch) &&
                    cp_costs_add_attention(cJSON_AddObjectToObject(object, "attention"), &costs->attention);
    cJSON *links = complete ? cJSON_AddArrayToObject(object, "links") : NULL;
    complete = links != NULL;
    for (int64_t i = 0; i < costs->link_count && complete; i++)
        complete = add_link(links, &costs->link[i]);
    char *text = complete ? cJSON_Print(object) : NULL;
    DsvStatus status = text ? dsvi_file_replace(path, text, strlen(text))
                            : DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the costs", path);
    cJSON_free(text);
    cJSON_Delete(object);
    return status;
}
