/* See option_table.h. */
#include "base/option_table.h"

#include <pthread.h>
#include <string.h>

/* A row of options.def: an option, or the heading of those that follow (no key). */
#define DSV_SECTION(title, text) {.info = {.section = title, .section_text = text}},
#define DSV_INT(key_, field, initial_, least_, most_, unit_, help_)                                  \
    {.info = {.key = key_, .type = "integer", .initial = #initial_, .range = #least_ " to " #most_, \
              .unit = unit_, .help = help_},                                                         \
     .kind = DSV_OPTION_INT, .offset = offsetof(DsvConfig, field), .least = least_, .most = most_},
#define DSV_FLOAT(key_, field, initial_, least_, most_, unit_, help_)                               \
    {.info = {.key = key_, .type = "number", .initial = #initial_, .range = #least_ " to " #most_, \
              .unit = unit_, .help = help_},                                                        \
     .kind = DSV_OPTION_FLOAT, .offset = offsetof(DsvConfig, field), .least = least_, .most = most_},
#define DSV_BOOL(key_, field, initial_, help_)                                                      \
    {.info = {.key = key_, .type = "true or false", .initial = (initial_) ? "true" : "false",       \
              .range = "", .unit = "", .help = help_},                                              \
     .kind = DSV_OPTION_BOOL, .offset = offsetof(DsvConfig, field)},
#define DSV_TEXT(key_, field, initial_, help_)                                                      \
    {.info = {.key = key_, .type = "text", .initial = initial_, .range = "", .unit = "",            \
              .help = help_},                                                                       \
     .kind = DSV_OPTION_TEXT, .offset = offsetof(DsvConfig, field)},
#define DSV_CHOICE(key_, field, initial_, choices_, help_)                                          \
    {.info = {.key = key_, .type = choices_, .initial = initial_, .range = "", .unit = "",          \
              .help = help_},                                                                       \
     .kind = DSV_OPTION_CHOICE, .offset = offsetof(DsvConfig, field), .choices = choices_},
static const DsvOption ROW[] = {
#include "dsv/options.def"
};
enum { ROWS = sizeof ROW / sizeof *ROW };
_Static_assert(sizeof ROW <= DSVI_OPTIONS_MOST * sizeof *ROW, "raise DSVI_OPTIONS_MOST");

/* The options alone, each knowing its section; made on first use. */
static DsvOption option[ROWS];
static size_t option_count;
static pthread_once_t made = PTHREAD_ONCE_INIT;

static void make(void)
{
    const char *section = "", *text = "";
    for (size_t i = 0; i < ROWS; i++) {
        if (!ROW[i].info.key) {
            section = ROW[i].info.section;
            text = ROW[i].info.section_text;
            continue;
        }
        option[option_count] = ROW[i];
        option[option_count].info.section = section;
        option[option_count].info.section_text = text;
        option_count++;
    }
}

const DsvOption *dsvi_options(size_t *count)
{
    pthread_once(&made, make);
    *count = option_count;
    return option;
}

size_t dsv_option_count(void)
{
    size_t count;
    (void)dsvi_options(&count);
    return count;
}

const DsvOptionInfo *dsv_option_info(size_t index)
{
    size_t count;
    const DsvOption *options = dsvi_options(&count);
    return index < count ? &options[index].info : NULL;
}

const DsvOption *dsvi_option_find(const char *key)
{
    size_t count;
    const DsvOption *options = dsvi_options(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(options[i].info.key, key) == 0)
            return &options[i];
    return NULL;
}

const DsvOption *dsvi_option_of_group(const char *group)
{
    size_t count, length = strlen(group);
    const DsvOption *options = dsvi_options(&count);
    for (size_t i = 0; i < count; i++)
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
    size_t count, least = SIZE_MAX;
    const DsvOption *options = dsvi_options(&count);
    const char *nearest = "";
    for (size_t i = 0; i < count; i++) {
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
