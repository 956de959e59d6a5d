/* See config_value.h. Values are spelled as in the core schema of YAML 1.2, except that booleans are only
 * true and false in small letters. The yes, no, on, off and octal numbers of YAML 1.1 are refused, so that no
 * value depends on the YAML version of a reader. */
#include "base/config_value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/number_text.h"
#include "base/option_hint.h"
#include "base/utf8.h"

/* Writes which values the option accepts: "an integer from 0 to 10 (steps)", "one of no, bf16". */
static void accepted_text(const DsviOption *option, char *text, size_t room)
{
    const DsvOptionInfo *info = &option->info;
    size_t used = 0;
    switch (option->kind) {
    case DSVI_OPTION_INT:
    case DSVI_OPTION_FLOAT:
        snprintf(text, room, "%s from %s%s%s%s", option->kind == DSVI_OPTION_INT ? "an integer" : "a number",
                 info->range, info->unit[0] ? " (" : "", info->unit, info->unit[0] ? ")" : "");
        return;
    case DSVI_OPTION_BOOL: snprintf(text, room, "true or false"); return;
    case DSVI_OPTION_TEXT: snprintf(text, room, "text, at most %d bytes of UTF-8", DSV_TEXT_MAX - 1); return;
    case DSVI_OPTION_CHOICE:
        used = (size_t)snprintf(text, room, "one of ");
        for (const char *c = option->info.type; *c && used + 3 < room; c++)
            used += (size_t)snprintf(text + used, room - used, *c == '|' ? ", " : "%c", *c);
        return;
    }
}

DsvStatus dsvi_config_refuse_value(const DsviOption *option, const char *found)
{
    char accepted[256];
    accepted_text(option, accepted, sizeof accepted);
    return DSVI_FAIL(DSV_E_USAGE, "%s is %.120s, expected %s", option->info.key, found, accepted);
}

static DsvStatus refuse_text(const DsviOption *option, const char *value)
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
    dsvi_option_advice(key, advice);
    return DSVI_FAIL(DSV_E_USAGE, "unknown key %.100s%s", key, advice);
}

static DsvStatus set_int(const DsviOption *option, const char *value, int64_t *field)
{
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    bool digits = value[0] == '-' || (value[0] >= '0' && value[0] <= '9'); /* strtoll allows " +1" */
    if (!digits || *end || errno || number < (int64_t)option->min || number > (int64_t)option->max)
        return refuse_text(option, value);
    *field = number;
    return DSV_OK;
}

static DsvStatus set_float(const DsviOption *option, const char *value, double *field)
{
    double number;
    if (!dsvi_number_read(value, &number) || !(number >= option->min && number <= option->max))
        return refuse_text(option, value);
    *field = number;
    return DSV_OK;
}

static DsvStatus set_bool(const DsviOption *option, const char *value, bool *field)
{
    if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
        return refuse_text(option, value);
    *field = value[0] == 't';
    return DSV_OK;
}

/* Clears the rest of the field, so that configurations with equal values have equal bytes. `value` may be in
 * the field already. */
static void fill_text_field(const char *value, char *field, size_t room)
{
    size_t length = strlen(value);
    memmove(field, value, length);
    memset(field + length, 0, room - length);
}

static DsvStatus set_text(const DsviOption *option, const char *value, char field[DSV_TEXT_MAX])
{
    char found[64];
    size_t length = strlen(value);
    if (length >= DSV_TEXT_MAX) {
        snprintf(found, sizeof found, "text of %zu bytes", length);
        return dsvi_config_refuse_value(option, found);
    }
    if (!dsvi_utf8_valid(value, length))
        return dsvi_config_refuse_value(option, "not UTF-8");
    fill_text_field(value, field, DSV_TEXT_MAX);
    return DSV_OK;
}

static DsvStatus set_choice(const DsviOption *option, const char *value, char field[DSV_CHOICE_MAX])
{
    size_t length = strlen(value);
    for (const char *choice = option->info.type; choice; choice = strchr(choice, '|')) {
        choice += *choice == '|';
        if (length > 0 && strcspn(choice, "|") == length && strncmp(choice, value, length) == 0) {
            fill_text_field(value, field, DSV_CHOICE_MAX);
            return DSV_OK;
        }
    }
    return refuse_text(option, value);
}

DsvStatus dsvi_config_set_value(DsvConfig *config, const DsviOption *option, const char *value)
{
    void *field = (char *)config + option->offset;
    switch (option->kind) {
    case DSVI_OPTION_INT: return set_int(option, value, field);
    case DSVI_OPTION_FLOAT: return set_float(option, value, field);
    case DSVI_OPTION_BOOL: return set_bool(option, value, field);
    case DSVI_OPTION_TEXT: return set_text(option, value, field);
    case DSVI_OPTION_CHOICE: return set_choice(option, value, field);
    }
    return DSVI_FAIL(DSV_E_INTERNAL, "%s: option of no kind", option->info.key);
}

/* Returns whether a YAML reader takes the character unchanged between double quotes: false for quotes,
 * backslashes, line ends, invisible characters, and those outside YAML's character set. */
static bool needs_no_escape(uint32_t code)
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
        if (needs_no_escape(code))
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

void dsvi_config_print_value(FILE *to, const DsviOption *option, const DsvConfig *config)
{
    const void *field = (const char *)config + option->offset;
    char number[DSVI_NUMBER_BYTES];
    switch (option->kind) {
    case DSVI_OPTION_INT: fprintf(to, "%" PRId64, *(const int64_t *)field); break;
    case DSVI_OPTION_FLOAT:
        dsvi_number_text(*(const double *)field, number);
        fputs(number, to);
        break;
    case DSVI_OPTION_BOOL: fputs(*(const bool *)field ? "true" : "false", to); break;
    case DSVI_OPTION_TEXT: print_text(to, field); break;
    case DSVI_OPTION_CHOICE: fputs(field, to); break;
    }
}
