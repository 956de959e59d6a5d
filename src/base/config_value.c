/* See config_value.h. The spellings are those of YAML 1.2's core schema, but for booleans: true and false in
 * small letters alone. YAML 1.1's yes, no, on, off and octal numbers are not known, so that no value changes
 * its meaning with the reader's YAML version. */
#include "base/config_value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/number_text.h"
#include "base/option_hint.h"
#include "base/utf8.h"

static void wanted_text(const DsvOption *option, char *text, size_t room)
{
    const DsvOptionInfo *info = &option->info;
    size_t used = 0;
    switch (option->kind) {
    case DSV_OPTION_INT:
    case DSV_OPTION_FLOAT:
        snprintf(text, room, "%s from %s%s%s%s", option->kind == DSV_OPTION_INT ? "an integer" : "a number",
                 info->range, info->unit[0] ? " (" : "", info->unit, info->unit[0] ? ")" : "");
        return;
    case DSV_OPTION_BOOL: snprintf(text, room, "true or false"); return;
    case DSV_OPTION_TEXT: snprintf(text, room, "text, at most %d bytes of UTF-8", DSV_TEXT_MAX - 1); return;
    case DSV_OPTION_CHOICE:
        used = (size_t)snprintf(text, room, "one of ");
        for (const char *c = option->info.type; *c && used + 3 < room; c++)
            used += (size_t)snprintf(text + used, room - used, *c == '|' ? ", " : "%c", *c);
        return;
    }
}

DsvStatus dsvi_config_refuse_value(const DsvOption *option, const char *found)
{
    char wanted[256];
    wanted_text(option, wanted, sizeof wanted);
    return DSVI_FAIL(DSV_E_USAGE, "%s is %.120s, wanted %s", option->info.key, found, wanted);
}

static DsvStatus refuse_text(const DsvOption *option, const char *value)
{
    char quoted[96];
    if (!value[0])
        return dsvi_config_refuse_value(option, "empty");
    bool cut = snprintf(quoted, sizeof quoted - 4, "'%.80s'", value) < (int)strlen(value) + 2;
    return dsvi_config_refuse_value(option, cut ? strcat(quoted, "...") : quoted);
}

DsvStatus dsvi_config_refuse_key(const char *key)
{
    char advice[DSVI_HINT_BYTES];
    dsvi_option_advise(key, advice);
    return DSVI_FAIL(DSV_E_USAGE, "unknown key %.100s%s", key, advice);
}

static DsvStatus set_int(const DsvOption *option, const char *value, int64_t *field)
{
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    bool digits = value[0] == '-' || (value[0] >= '0' && value[0] <= '9'); /* no blanks, no plus */
    if (!digits || *end || errno || number < (int64_t)option->least || number > (int64_t)option->most)
        return refuse_text(option, value);
    *field = number;
    return DSV_OK;
}

static DsvStatus set_float(const DsvOption *option, const char *value, double *field)
{
    double number;
    if (!dsvi_number_read(value, &number) || !(number >= option->least && number <= option->most))
        return refuse_text(option, value);
    *field = number;
    return DSV_OK;
}

static DsvStatus set_bool(const DsvOption *option, const char *value, bool *field)
{
    if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
        return refuse_text(option, value);
    *field = value[0] == 't';
    return DSV_OK;
}

/* Behind a text its field is zero, so that equal settings are equal bytes. */
static void copy_text(const char *value, char *field, size_t room)
{
    size_t length = strlen(value);
    memmove(field, value, length);
    memset(field + length, 0, room - length);
}

static DsvStatus set_text(const DsvOption *option, const char *value, char field[DSV_TEXT_MAX])
{
    char found[64];
    size_t length = strlen(value);
    if (length >= DSV_TEXT_MAX) {
        snprintf(found, sizeof found, "text of %zu bytes", length);
        return dsvi_config_refuse_value(option, found);
    }
    if (!dsvi_utf8_valid(value, length))
        return dsvi_config_refuse_value(option, "not UTF-8");
    copy_text(value, field, DSV_TEXT_MAX);
    return DSV_OK;
}

static DsvStatus set_choice(const DsvOption *option, const char *value, char field[DSV_CHOICE_MAX])
{
    size_t length = strlen(value);
    for (const char *choice = option->info.type; choice; choice = strchr(choice, '|')) {
        choice += *choice == '|';
        if (length > 0 && strcspn(choice, "|") == length && strncmp(choice, value, length) == 0) {
            copy_text(value, field, DSV_CHOICE_MAX);
            return DSV_OK;
        }
    }
    return refuse_text(option, value);
}

DsvStatus dsvi_config_set_value(DsvConfig *config, const DsvOption *option, const char *value)
{
    void *field = (char *)config + option->offset;
    switch (option->kind) {
    case DSV_OPTION_INT: return set_int(option, value, field);
    case DSV_OPTION_FLOAT: return set_float(option, value, field);
    case DSV_OPTION_BOOL: return set_bool(option, value, field);
    case DSV_OPTION_TEXT: return set_text(option, value, field);
    case DSV_OPTION_CHOICE: return set_choice(option, value, field);
    }
    return DSVI_FAIL(DSV_E_INTERNAL, "%s: option of no kind", option->info.key);
}

/* What a YAML reader may take as it stands between double quotes: not what ends lines, what is invisible, or
 * what the YAML character set leaves out. */
static bool stands_for_itself(uint32_t code)
{
    if (code < 0x80)
        return code >= ' ' && code != 0x7f && code != '"' && code != '\\';
    return code > 0xa0 && code != 0x2028 && code != 0x2029 && code != 0xfeff && (code & 0xfffe) != 0xfffe;
}

static void print_text(FILE *to, const char *text)
{
    uint32_t code;
    fputc('"', to);
    for (size_t bytes; (bytes = dsvi_utf8_decode(text, strlen(text), &code)) > 0; text += bytes) {
        if (stands_for_itself(code))
            fwrite(text, 1, bytes, to);
        else if (code == '"' || code == '\\')
            fprintf(to, "\\%c", (char)code);
        else if (code < 0x100)
            fprintf(to, "\\x%02" PRIx32, code);
        else
            fprintf(to, "\\U%08" PRIx32, code);
    }
    fputc('"', to);
}

void dsvi_config_print_value(FILE *to, const DsvOption *option, const DsvConfig *config)
{
    const void *field = (const char *)config + option->offset;
    char number[DSVI_NUMBER_ROOM];
    switch (option->kind) {
    case DSV_OPTION_INT: fprintf(to, "%" PRId64, *(const int64_t *)field); break;
    case DSV_OPTION_FLOAT:
        dsvi_number_text(*(const double *)field, number);
        fputs(number, to);
        break;
    case DSV_OPTION_BOOL: fputs(*(const bool *)field ? "true" : "false", to); break;
    case DSV_OPTION_TEXT: print_text(to, field); break;
    case DSV_OPTION_CHOICE: fputs(field, to); break;
    }
}
