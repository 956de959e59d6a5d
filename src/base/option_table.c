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
