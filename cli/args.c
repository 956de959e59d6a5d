/* Parses the arguments of a verb, and reports errors to the user. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interrupt.h"
#include "terminal.h"
#include "verb.h"

int cli_misused(const CliVerb *verb, const char *format, ...)
{
    char sentence[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(sentence, sizeof sentence, format, list);
    va_end(list);
    cli_print_error("%s%s%s", verb ? verb->name : "", verb ? ": " : "", sentence);
    return CLI_MISUSED;
}

int cli_outcome(const CliArgs *args, DsvStatus status)
{
    if (status == DSV_OK)
        return CLI_DONE;
    cli_print_error("%s", dsv_error_message()[0] ? dsv_error_message() : dsv_status_text(status));
    if (args->verbose) {
        fprintf(stderr, "  %s, passed through\n", dsv_status_text(status));
        for (const char *at = dsv_error_trail(); *at; at += strcspn(at, "\n"), at += *at == '\n')
            fprintf(stderr, "    %.*s\n", (int)strcspn(at, "\n"), at);
    }
    if (status == DSV_E_INTERRUPTED)
        return 128 + cli_interrupt_signal();
    return status == DSV_E_USAGE ? CLI_MISUSED : CLI_FAILED;
}

void cli_print_line(void *context, const char *text)
{
    (void)context;
    cli_print_result("%s", text);
}

/* Lists all flags of the verb `context` for dsv_nearest. */
static const char *flag_name(const void *context, size_t index)
{
    static const char *const common[] = {"--verbose", "--help", NULL};
    const CliVerb *verb = context;
    size_t count = 0;
    while (verb->flags && verb->flags[count].name)
        count++;
    return index < count ? verb->flags[index].name : common[index - count];
}

/* Finds the option that the user meant by an unknown flag, such as max_train_steps for max-train-steps.
   Returns NULL if there is none. */
static const DsvOptionInfo *option_meant(const char *word, size_t length)
{
    const DsvOptionInfo *option;
    for (size_t i = 0; (option = dsv_option_info(i)); i++) {
        size_t same = 0;
        while (same < length &&
               (option->key[same] == word[same] || (option->key[same] == '_' && word[same] == '-')))
            same++;
        if (same == length && !option->key[same])
            return option;
    }
    return NULL;
}

static int unknown_flag(const CliVerb *verb, const char *word)
{
    int length = (int)strcspn(word, "=");
    char name[64];
    snprintf(name, sizeof name, "%.*s", length, word);
    const DsvOptionInfo *option = verb->takes_options && length > 2
                                      ? option_meant(word + 2, (size_t)length - 2)
                                      : NULL;
    const char *nearest = dsv_nearest(name, flag_name, verb);
    const char *hint = verb->takes_options ? dsv_option_hint(name) : NULL;
    if (option)
        return cli_misused(verb, "no flag %s; options are written %s=%s", name, option->key,
                           word[length] ? word + length + 1 : "VALUE");
    if (hint)
        return cli_misused(verb, "no flag %s: %s", name, hint);
    if (nearest)
        return cli_misused(verb, "no flag %s, the nearest is %s", name, nearest);
    return cli_misused(verb, "no flag %s; dsv help %s lists all flags", name, verb->name);
}

/* Reads the flag words[*at], and its value from the next word if the flag takes one and has no "=". */
static int read_flag(int count, char **words, int *at, CliArgs *args)
{
    const CliVerb *verb = args->verb;
    const char *word = words[*at], *equals = strchr(word, '=');
    size_t length = strcspn(word, "=");
    for (int i = 0; verb->flags && verb->flags[i].name; i++) {
        const CliFlag *flag = &verb->flags[i];
        if (strlen(flag->name) != length || strncmp(flag->name, word, length) != 0)
            continue;
        if (!flag->value && equals)
            return cli_misused(verb, "%s takes no value", flag->name);
        if (flag->value && !equals && *at + 1 >= count)
            return cli_misused(verb, "%s needs %s after it", flag->name, flag->value);
        if (!flag->value)
            args->flag[i] = "";
        else
            args->flag[i] = equals ? equals + 1 : words[++*at];
        return CLI_DONE;
    }
    return unknown_flag(verb, word);
}

/* Returns whether a word is key=value with a key that an option could have: "./a=b.mp4" is a path. */
static bool is_option_argument(const char *word)
{
    size_t key = strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");
    return key > 0 && word[key] == '=';
}

static int read_path(const char *word, int *paths, CliArgs *args)
{
    const CliVerb *verb = args->verb;
    if (*paths >= verb->paths_max)
        return cli_misused(verb, "%s is one argument too many, expected %s", word,
                           verb->arguments[0] ? verb->arguments : "none");
    args->path[(*paths)++] = word;
    return CLI_DONE;
}

int cli_args_read(const char *program, const CliVerb *verb, int count, char **words, CliArgs *args)
{
    bool flags_over = false;
    int paths = 0, status = CLI_DONE;
    *args = (CliArgs){.program = program, .verb = verb, .options = (const char **)words};
    for (int at = 0; at < count && status == CLI_DONE; at++) {
        const char *word = words[at];
        if (!flags_over && strcmp(word, "--") == 0)
            flags_over = true;
        else if (!flags_over && (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0))
            args->help = true;
        else if (!flags_over && (strcmp(word, "-v") == 0 || strcmp(word, "--verbose") == 0))
            args->verbose = true;
        else if (!flags_over && word[0] == '-' && word[1])
            status = read_flag(count, words, &at, args);
        else if (!flags_over && verb->takes_options && is_option_argument(word))
            args->options[args->option_count++] = word; /* overwrites only words that have been read */
        else
            status = read_path(word, &paths, args);
    }
    if (status == CLI_DONE && !args->help && paths < verb->paths_min)
        return cli_misused(verb, "expected %s", verb->arguments);
    return status;
}

int cli_args_number(const CliArgs *args, int flag, double *value)
{
    const char *text = args->flag[flag];
    char *end;
    if (!text)
        return CLI_DONE;
    double number = strtod(text, &end);
    if (!text[0] || *end || !isfinite(number))
        return cli_misused(args->verb, "%s %s: expected a number", args->verb->flags[flag].name, text);
    *value = number;
    return CLI_DONE;
}

int cli_args_integer(const CliArgs *args, int flag, int64_t *value)
{
    const char *text = args->flag[flag];
    char *end;
    if (!text)
        return CLI_DONE;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (!text[0] || *end || errno)
        return cli_misused(args->verb, "%s %s: expected an integer", args->verb->flags[flag].name, text);
    *value = number;
    return CLI_DONE;
}

DsvStatus cli_args_device(const CliArgs *args, int flag, DsvConfig *config)
{
    char device[64];
    if (!args->flag[flag])
        return DSV_OK;
    snprintf(device, sizeof device, "device=%s", args->flag[flag]);
    return dsv_config_set(config, device);
}

DsvStatus cli_args_options(const CliArgs *args, DsvConfig *config)
{
    return dsv_config_set_all(config, args->options, (size_t)args->option_count);
}
