/* dsv help and dsv version: the overview, a verb's page, a setting, all settings as text or as the page
 * docs/configuration.md. What is said about settings comes from the library's one table. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cmd.h"
#include "terminal.h"
#include "text.h"

enum { WIDEST = 100 };
enum { MARKDOWN };

static const CliFlag help_flags[] = {
    [MARKDOWN] = {"--markdown", NULL, "with options: as a page for docs/"},
    {0},
};

static const CliFlag common_flags[] = {
    {"-v, --verbose", NULL, "after an error, where in the source it passed"},
    {"-h, --help", NULL, "this page"},
    {0},
};

void cli_print_overview(FILE *to)
{
    const CliVerb *verb;
    fprintf(to, "dsv %s: trains and samples video diffusion transformers with sparse attention.\n\n"
                "usage: dsv VERB [arguments] [key=value ...]\n\n", dsv_version());
    for (int i = 0; (verb = cli_verb_at(i)); i++)
        fprintf(to, "  %-16s %s\n", verb->name, verb->summary);
    fputs("\ndsv help VERB explains a verb, dsv help options all settings, dsv help KEY one.\n", to);
}

/* `text` as a paragraph whose lines all begin with `indent` blanks. */
static void print_wrapped(const char *text, size_t indent, size_t width)
{
    printf("%*s", (int)indent, "");
    cli_put_wrapped(stdout, text, indent, indent, width);
    putchar('\n');
}

static size_t page_width(void)
{
    size_t columns = cli_columns(stdout);
    return columns < WIDEST ? columns : WIDEST;
}

static void print_flags(const CliFlag *flags)
{
    char left[32];
    for (; flags && flags->name; flags++) {
        snprintf(left, sizeof left, "%s%s%s", flags->name, flags->value ? " " : "",
                 flags->value ? flags->value : "");
        printf("  %-18s %s\n", left, flags->help);
    }
}

/* The keys alone, by section. */
static void print_keys(void)
{
    const DsvOptionInfo *option;
    const char *section = "";
    size_t column = 0, width = page_width();
    puts("\nSettings, key=value (dsv help KEY explains one, dsv help options all):");
    for (size_t i = 0; (option = dsv_option_info(i)); i++) {
        bool fresh = strcmp(option->section, section) != 0;
        if (fresh)
            printf("%s  %s\n", column ? "\n" : "", option->section);
        section = option->section;
        if (fresh || column + 1 + strlen(option->key) > width) {
            column = (size_t)printf("%s    ", fresh ? "" : "\n");
            column -= !fresh;
        } else {
            column += (size_t)printf(" ");
        }
        column += (size_t)printf("%s", option->key);
    }
    putchar('\n');
}

void cli_print_page(const CliVerb *verb)
{
    printf("usage: dsv %s%s%s%s%s\n\n%s\n", verb->name, verb->arguments[0] ? " " : "", verb->arguments,
           verb->flags ? " [flags]" : "", verb->takes_settings ? " [key=value ...]" : "", verb->text);
    print_flags(verb->flags);
    print_flags(common_flags);
    if (verb->lists_settings)
        print_keys();
    else if (verb->takes_settings)
        puts("\ndsv help options explains the settings, key=value.");
}

/* "integer, 0 to 10 steps"; "no, bf16" */
static void values_text(const DsvOptionInfo *option, char *out, size_t room)
{
    size_t used = 0;
    for (const char *c = option->type; *c && used + 3 < room; c++) {
        out[used++] = *c == '|' ? ',' : *c;
        if (*c == '|')
            out[used++] = ' ';
    }
    snprintf(out + used, room - used, "%s%s%s%s", option->range[0] ? ", " : "", option->range,
             option->unit[0] ? " " : "", option->unit);
}

static void print_option(const DsvOptionInfo *option)
{
    char values[256];
    values_text(option, values, sizeof values);
    printf("  %s=%s  (%s)\n", option->key, option->initial[0] ? option->initial : "''", values);
    print_wrapped(option->help, 6, page_width());
}

/* The options of the section of this title, or NULL: of all. */
static void print_sections(const char *title)
{
    const DsvOptionInfo *option;
    const char *section = "";
    for (size_t i = 0; (option = dsv_option_info(i)); i++) {
        if (title && strcmp(option->section, title) != 0)
            continue;
        if (strcmp(option->section, section) != 0) {
            printf("%s%s\n", title ? "" : "\n", option->section);
            print_wrapped(option->section_text, 0, page_width());
        }
        section = option->section;
        print_option(option);
    }
}

static void print_options(void)
{
    puts("Settings and their defaults. A YAML file sets them nested or dotted, key=value\n"
         "arguments come after it and win.");
    print_sections(NULL);
}

/* A table's cell: bars would end it. */
static void print_cell(const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            putchar('\\');
        putchar(*text);
    }
}

static void print_options_as_page(void)
{
    const DsvOptionInfo *option;
    const char *section = "";
    char values[256];
    puts("# Configuration\n\n"
         "Written by `make docs` from [options.def](../include/dsv/options.def), the one table of\n"
         "settings.\n\n"
         "A setting is given in the YAML file, nested (`sparse:` and below it `group: 64`) or dotted\n"
         "(`sparse.group: 64`), or as an argument `sparse.group=64`, which comes after the file and\n"
         "wins. `dsv help KEY` explains one of them in the terminal.");
    for (size_t i = 0; (option = dsv_option_info(i)); i++) {
        if (strcmp(option->section, section) != 0)
            printf("\n## %s\n\n%s\n\n| setting | default | values | meaning |\n|---|---|---|---|\n",
                   option->section, option->section_text);
        section = option->section;
        values_text(option, values, sizeof values);
        printf("| `%s` | %s%s%s | ", option->key, option->initial[0] ? "`" : "", option->initial,
               option->initial[0] ? "`" : "");
        print_cell(values);
        fputs(" | ", stdout);
        print_cell(option->help);
        puts(" |");
    }
}

static const char *topic_name(const void *context, size_t index)
{
    const CliVerb *verb = NULL;
    size_t verbs = 0;
    (void)context;
    while (verbs <= index && (verb = cli_verb_at((int)verbs)))
        verbs++;
    if (verb)
        return verb->name;
    if (index == verbs)
        return "options";
    const DsvOptionInfo *option = dsv_option_info(index - verbs - 1);
    return option ? option->key : NULL;
}

/* Pages of the verb, or of all verbs that begin with the word: "bench". */
static bool print_pages(const char *topic)
{
    const CliVerb *verb;
    bool found = false;
    size_t length = strlen(topic);
    for (int i = 0; (verb = cli_verb_at(i)); i++) {
        if (strncmp(verb->name, topic, length) != 0 || (verb->name[length] && verb->name[length] != ' '))
            continue;
        if (found)
            putchar('\n');
        cli_print_page(verb);
        found = true;
    }
    return found;
}

static bool print_setting(const char *key)
{
    const DsvOptionInfo *option;
    for (size_t i = 0; (option = dsv_option_info(i)); i++)
        if (strcmp(option->key, key) == 0) {
            print_option(option);
            return true;
        }
    return false;
}

/* "sparse" is the section whose keys begin with sparse., "optimizer" the one with that title. */
static bool print_section(const char *topic)
{
    const DsvOptionInfo *option;
    size_t length = strlen(topic);
    for (size_t i = 0; (option = dsv_option_info(i)); i++)
        if ((strncmp(option->key, topic, length) == 0 && option->key[length] == '.') ||
            strcasecmp(option->section, topic) == 0) {
            print_sections(option->section);
            return true;
        }
    return false;
}

static int run_help(const CliArgs *args)
{
    char topic[128];
    if (!args->path[0]) {
        cli_print_overview(stdout);
        return CLI_DONE;
    }
    snprintf(topic, sizeof topic, "%s%s%s", args->path[0], args->path[1] ? " " : "",
             args->path[1] ? args->path[1] : "");
    if (strcmp(topic, "options") == 0) {
        if (args->flag[MARKDOWN])
            print_options_as_page();
        else
            print_options();
        return CLI_DONE;
    }
    if (print_pages(topic) || print_setting(topic) || print_section(topic))
        return CLI_DONE;
    const char *nearest = dsv_nearest(topic, topic_name, NULL), *hint = dsv_option_hint(topic);
    if (hint)
        return cli_misused(args->verb, "no verb or setting %s: %s", topic, hint);
    if (nearest)
        return cli_misused(args->verb, "no verb or setting %s, the nearest is %s", topic, nearest);
    return cli_misused(args->verb, "no verb or setting %s", topic);
}

const CliVerb cli_verb_help = {
    .name = "help",
    .arguments = "[VERB | KEY | SECTION | options]",
    .paths_most = 2,
    .summary = "explains a verb, a setting, or all settings",
    .text = "Explains a verb, the setting KEY, the settings of a SECTION (sparse, optimizer), or\n"
            "with the word options all settings.\n",
    .flags = help_flags,
    .run = run_help,
};

static int run_version(const CliArgs *args)
{
    (void)args;
    printf("dsv %s\n", dsv_version());
    return CLI_DONE;
}

const CliVerb cli_verb_version = {
    .name = "version",
    .arguments = "",
    .summary = "tells the version",
    .text = "Tells the version of the program.\n",
    .run = run_version,
};
