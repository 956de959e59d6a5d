/* Settings as a struct: defaults, single assignments, saving. Reading YAML is config_yaml.c; what the settings
 * are is include/dsv/options.def. */
#include "dsv/config.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config_value.h"
#include "base/fs.h"
#include "base/number_text.h"
#include "base/option_table.h"
#include "base/status.h"

void dsv_config_defaults(DsvConfig *config)
{
    memset(config, 0, sizeof *config);
#define DSV_INT(key, field, initial, least, most, unit, help) config->field = initial;
#define DSV_FLOAT(key, field, initial, least, most, unit, help) config->field = initial;
#define DSV_BOOL(key, field, initial, help) config->field = initial;
#define DSV_TEXT(key, field, initial, help) snprintf(config->field, sizeof config->field, "%s", initial);
#define DSV_CHOICE(key, field, initial, choices, help) \
    snprintf(config->field, sizeof config->field, "%s", initial);
#include "dsv/options.def"
}

static DsvStatus wrong_value(const DsvOption *option, const char *value, const char *wanted)
{
    const char *unit = option->info.unit;
    return DSVI_FAIL(DSV_E_USAGE, "%s=%.200s: wanted %s%s%s", option->info.key, value, wanted,
                     unit[0] ? " " : "", unit);
}

static DsvStatus out_of_range(const DsvOption *option, const char *value)
{
    char wanted[160];
    bool integer = option->kind == DSV_OPTION_INT;
    snprintf(wanted, sizeof wanted, "%s from %s", integer ? "an integer" : "a number", option->info.range);
    return wrong_value(option, value, wanted);
}

static DsvStatus set_int(const DsvOption *option, const char *value, int64_t *field)
{
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    bool digits = value[0] == '-' || (value[0] >= '0' && value[0] <= '9'); /* no blanks, no plus */
    if (!digits || end == value || *end)
        return wrong_value(option, value, "an integer");
    if (errno || (double)number < option->least || (double)number > option->most)
        return out_of_range(option, value);
    *field = number;
    return DSV_OK;
}

static DsvStatus set_float(const DsvOption *option, const char *value, double *field)
{
    char *end;
    double number = strtod(value, &end);
    /* strtod also takes blanks, hexadecimal, inf and nan. */
    if (!value[0] || *end || strspn(value, "+-.0123456789eE") != strlen(value))
        return wrong_value(option, value, "a number");
    if (!(number >= option->least && number <= option->most))
        return out_of_range(option, value);
    *field = number;
    return DSV_OK;
}

static DsvStatus set_bool(const DsvOption *option, const char *value, bool *field)
{
    if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
        return wrong_value(option, value, "true or false");
    *field = value[0] == 't';
    return DSV_OK;
}

static DsvStatus set_text(const DsvOption *option, const char *value, char field[DSV_TEXT_MAX])
{
    if (strlen(value) >= DSV_TEXT_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%s: text of %zu bytes, wanted at most %d", option->info.key,
                         strlen(value), DSV_TEXT_MAX - 1);
    memmove(field, value, strlen(value) + 1);
    return DSV_OK;
}

static DsvStatus set_choice(const DsvOption *option, const char *value, char field[DSV_CHOICE_MAX])
{
    size_t length = strlen(value);
    for (const char *choice = option->choices; choice; choice = strchr(choice, '|')) {
        choice += *choice == '|';
        if (length > 0 && strcspn(choice, "|") == length && strncmp(choice, value, length) == 0) {
            memmove(field, value, length + 1);
            return DSV_OK;
        }
    }
    return wrong_value(option, value, option->choices);
}

DsvStatus dsvi_config_set_value(DsvConfig *config, const char *key, const char *value)
{
    const DsvOption *option = dsvi_option_find(key);
    if (!option)
        return DSVI_FAIL(DSV_E_USAGE, "unknown key %.100s, the nearest is %s", key, dsvi_option_nearest(key));
    void *field = (char *)config + option->offset;
    switch (option->kind) {
    case DSV_OPTION_INT: return set_int(option, value, field);
    case DSV_OPTION_FLOAT: return set_float(option, value, field);
    case DSV_OPTION_BOOL: return set_bool(option, value, field);
    case DSV_OPTION_TEXT: return set_text(option, value, field);
    case DSV_OPTION_CHOICE: return set_choice(option, value, field);
    }
    return DSVI_FAIL(DSV_E_INTERNAL, "%s: option of no kind", key);
}

DsvStatus dsv_config_set(DsvConfig *config, const char *assignment)
{
    char key[128];
    const char *equals = strchr(assignment, '=');
    if (!equals || equals == assignment || (size_t)(equals - assignment) >= sizeof key)
        return DSVI_FAIL(DSV_E_USAGE, "%.200s: wanted key=value", assignment);
    memcpy(key, assignment, (size_t)(equals - assignment));
    key[equals - assignment] = 0;
    return dsvi_config_set_value(config, key, equals + 1);
}

/* A YAML single-quoted scalar: only the quote itself needs doubling. Line breaks have no place in it. */
static DsvStatus print_text(FILE *to, const DsvOption *option, const char *text)
{
    if (text[strcspn(text, "\r\n")])
        return DSVI_FAIL(DSV_E_USAGE, "%s: its text has a line break in it", option->info.key);
    fputc('\'', to);
    for (const char *c = text; *c; c++) {
        if (*c == '\'')
            fputc('\'', to);
        fputc(*c, to);
    }
    fputc('\'', to);
    return DSV_OK;
}

static DsvStatus print_value(FILE *to, const DsvOption *option, const void *field)
{
    char number[DSVI_NUMBER_ROOM];
    switch (option->kind) {
    case DSV_OPTION_INT: fprintf(to, "%" PRId64, *(const int64_t *)field); break;
    case DSV_OPTION_FLOAT:
        dsvi_number_text(*(const double *)field, number);
        fputs(number, to);
        break;
    case DSV_OPTION_BOOL: fputs(*(const bool *)field ? "true" : "false", to); break;
    case DSV_OPTION_TEXT: return print_text(to, option, field);
    case DSV_OPTION_CHOICE: fputs(field, to); break;
    }
    return DSV_OK;
}

static DsvStatus print_config(FILE *to, const DsvConfig *config)
{
    size_t count;
    const DsvOption *options = dsvi_options(&count);
    const char *section = "";
    for (size_t i = 0; i < count; i++) {
        if (options[i].info.section != section) {
            section = options[i].info.section;
            fprintf(to, "%s# %s\n", i ? "\n" : "", section);
        }
        fprintf(to, "%s: ", options[i].info.key);
        DSVI_TRY(print_value(to, &options[i], (const char *)config + options[i].offset));
        fputc('\n', to);
    }
    return DSV_OK;
}

DsvStatus dsv_config_save(const DsvConfig *config, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    if (!to)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the settings", path);
    DsvStatus status = print_config(to, config);
    if (fclose(to) != 0 && status == DSV_OK)
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the settings", path);
    if (status == DSV_OK)
        status = dsvi_file_replace(path, text, bytes);
    free(text);
    return status;
}
