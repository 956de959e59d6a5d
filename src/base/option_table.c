/* See option_table.h. */
#include "base/option_table.h"

#include <pthread.h>
#include <string.h>

static DsviOption option[DSVI_OPTION_COUNT]; /* filled on first use */
static pthread_once_t filled = PTHREAD_ONCE_INIT;

static void fill_option_table(void)
{
    const char *section = "", *text = "";
    DsviOption *row = option;
/* The values are in the order of DsvOptionInfo's fields, then of DsviOption's. */
/* clang-format off */
#define DSV_SECTION(title, words) section = title; text = words;
#define DSV_INT(key, field, initial, min, max, unit, help)                                       \
    *row++ = (DsviOption){                                                                           \
        {section, text, key, "integer", #initial, #min " to " #max, unit, help},                 \
        DSVI_OPTION_INT, offsetof(DsvConfig, field), min, max};
#define DSV_FLOAT(key, field, initial, min, max, unit, help)                                     \
    *row++ = (DsviOption){                                                                           \
        {section, text, key, "number", #initial, #min " to " #max, unit, help},                  \
        DSVI_OPTION_FLOAT, offsetof(DsvConfig, field), min, max};
#define DSV_BOOL(key, field, initial, help)                                                         \
    *row++ = (DsviOption){                                                                           \
        {section, text, key, "true or false", (initial) ? "true" : "false", "", "", help},          \
        DSVI_OPTION_BOOL, offsetof(DsvConfig, field), 0, 0};
#define DSV_TEXT(key, field, initial, help)                                                         \
    *row++ = (DsviOption){                                                                           \
        {section, text, key, "text", initial, "", "", help},                                        \
        DSVI_OPTION_TEXT, offsetof(DsvConfig, field), 0, 0};
#define DSV_CHOICE(key, field, initial, choices, help)                                              \
    *row++ = (DsviOption){                                                                           \
        {section, text, key, choices, initial, "", "", help},                                       \
        DSVI_OPTION_CHOICE, offsetof(DsvConfig, field), 0, 0};
/* clang-format on */
#include "dsv/options.def"
}

const DsviOption *dsvi_options(void)
{
    pthread_once(&filled, fill_option_table);
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

const DsviOption *dsvi_option_find(const char *key)
{
    const DsviOption *options = dsvi_options();
    for (size_t i = 0; i < DSVI_OPTION_COUNT; i++)
        if (strcmp(options[i].info.key, key) == 0)
            return &options[i];
    return NULL;
}

const DsviOption *dsvi_option_first_of_group(const char *group)
{
    const DsviOption *options = dsvi_options();
    size_t length = strlen(group);
    for (size_t i = 0; i < DSVI_OPTION_COUNT; i++)
        if (strncmp(options[i].info.key, group, length) == 0 && options[i].info.key[length] == '.')
            return &options[i];
    return NULL;
}
