/* See option_table.h. */
#include "base/option_table.h"

#include <pthread.h>
#include <string.h>

static DsvOption option[DSVI_OPTION_COUNT]; /* made on first use */
static pthread_once_t made = PTHREAD_ONCE_INIT;

static void make(void)
{
    const char *section = "", *text = "";
    DsvOption *row = option;
/* Fields in the order of DsvOptionInfo, then those of DsvOption. */
/* clang-format off */
#define DSV_SECTION(title, words) section = title; text = words;
#define DSV_INT(key, field, initial, least, most, unit, help)                                       \
    *row++ = (DsvOption){                                                                           \
        {section, text, key, "integer", #initial, #least " to " #most, unit, help},                 \
        DSV_OPTION_INT, offsetof(DsvConfig, field), least, most};
#define DSV_FLOAT(key, field, initial, least, most, unit, help)                                     \
    *row++ = (DsvOption){                                                                           \
        {section, text, key, "number", #initial, #least " to " #most, unit, help},                  \
        DSV_OPTION_FLOAT, offsetof(DsvConfig, field), least, most};
#define DSV_BOOL(key, field, initial, help)                                                         \
    *row++ = (DsvOption){                                                                           \
        {section, text, key, "true or false", (initial) ? "true" : "false", "", "", help},          \
        DSV_OPTION_BOOL, offsetof(DsvConfig, field), 0, 0};
#define DSV_TEXT(key, field, initial, help)                                                         \
    *row++ = (DsvOption){                                                                           \
        {section, text, key, "text", initial, "", "", help},                                        \
        DSV_OPTION_TEXT, offsetof(DsvConfig, field), 0, 0};
#define DSV_CHOICE(key, field, initial, choices, help)                                              \
    *row++ = (DsvOption){                                                                           \
        {section, text, key, choices, initial, "", "", help},                                       \
        DSV_OPTION_CHOICE, offsetof(DsvConfig, field), 0, 0};
/* clang-format on */
#include "dsv/options.def"
}

const DsvOption *dsvi_options(void)
{
    pthread_once(&made, make);
    return option;
}

size_t dsv_option_count(void)
{
    return DSVI_OPTION_COUNT;
}

const DsvOptionInfo *dsv_option_info(size_t index)
{
    return index < DSVI_OPTION_COUNT ? &dsvi_options()[index].info : NULL;
}

const DsvOption *dsvi_option_find(const char *key)
{
    const DsvOption *options = dsvi_options();
    for (size_t i = 0; i < DSVI_OPTION_COUNT; i++)
        if (strcmp(options[i].info.key, key) == 0)
            return &options[i];
    return NULL;
}

const DsvOption *dsvi_option_of_group(const char *group)
{
    const DsvOption *options = dsvi_options();
    size_t length = strlen(group);
    for (size_t i = 0; i < DSVI_OPTION_COUNT; i++)
        if (strncmp(options[i].info.key, group, length) == 0 && options[i].info.key[length] == '.')
            return &options[i];
    return NULL;
}

enum { COMPARED_MOST = 64 };

/* Levenshtein's distance: single letters put in, left out or changed. Longer keys are cut. */
static size_t distance(const char *a, const char *b)
{
    size_t row[COMPARED_MOST + 1];
    size_t width = strnlen(b, COMPARED_MOST), height = strnlen(a, COMPARED_MOST);
    for (size_t j = 0; j <= width; j++)
        row[j] = j;
    for (size_t i = 1; i <= height; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= width; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            row[j] = best;
        }
    }
    return row[width];
}

static const char *behind_dots(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

const char *dsvi_option_nearest(const char *key)
{
    const DsvOption *options = dsvi_options();
    size_t least = SIZE_MAX;
    const char *nearest = "";
    for (size_t i = 0; i < DSVI_OPTION_COUNT; i++) {
        /* A group that is wrong or missing counts as one letter: target_mass and train.target_mass should
         * find sparse.target_mass. */
        const char *known = options[i].info.key;
        size_t whole = distance(key, known), last = 1 + distance(behind_dots(key), behind_dots(known));
        size_t far = whole < last ? whole : last;
        if (far < least) {
            least = far;
            nearest = known;
        }
    }
    return nearest;
}
