/* dsv help and dsv version. Prints the overview, the page of a verb, an option, all options as text or as the
 * page docs/configuration.md, or the manual page. Texts about options come from include/dsv/options.def. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cmd.h"
#include "man_page.h"
#include "terminal.h"
#include "text.h"

enum { WIDEST = 100 };
enum { MARKDOWN, MAN };

enum { FLAG_BYTES = 48, FLAG_COLUMNS = 18 };

static const CliFlag help_flags[] = {
    [MARKDOWN] = {"--markdown", NULL, "with the word options: print them as docs/configuration.md"},
    [MAN] = {"--man", NULL, "print the manual page dsv(1), for groff"},
    {0},
};

static const CliFlag common_flags[] = {
    {"-v, --verbose", NULL, "after an error, print the source lines it passed through"},
    {"-h, --help", NULL, "print this page"},
    {0},
};

void cli_print_overview(FILE *to)
{
    const CliVerb *verb;
    fprintf(to,
            "dsv %s: train and sample video diffusion transformers with sparse attention.\n\n"
            "usage: dsv VERB [arguments] [key=value ...]\n\n",
            dsv_version());
    for (int i = 0; (verb = cli_verb_at(i)); i++)
        fprintf(to, "  %-16s %s\n", verb->name, verb->summary);
    fputs("\ndsv help VERB explains a verb, dsv help options all options, dsv help KEY one.\n", to);
}

/* Prints `text` as a paragraph whose lines begin with `indent` blanks. */
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

/* Writes a flag as in "--text FILE". */
static int flag_text(const CliFlag *flag, char text[FLAG_BYTES])
{
    return snprintf(text, FLAG_BYTES, "%s%s%s", flag->name, flag->value ? " " : "",
                    flag->value ? flag->value : "");
}

/* Returns the columns of the longest flag, at least FLAG_COLUMNS. */
static int flag_columns(const CliFlag *flags)
{
    char text[FLAG_BYTES];
    int columns = FLAG_COLUMNS;
    for (; flags && flags->name; flags++) {
        int length = flag_text(flags, text);
        columns = length > columns ? length : columns;
    }
    return columns;
}

static void print_flags(const CliFlag *flags, int columns)
{
    char text[FLAG_BYTES];
    for (; flags && flags->name; flags++) {
        flag_text(flags, text);
        printf("  %-*s %s\n", columns, text, flags->help);
    }
}

/* Prints the keys of all options, by section. */
static void print_keys(void)
{
    const DsvOptionInfo *option;
    const char *section = "";
    size_t column = 0, width = page_width();
    puts("\nOptions, key=value (dsv help KEY explains one, dsv help options all):");
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

static void print_cards(void)
{
    const DsvCardInfo *card;
    puts("\nCards (--card) and the memory that CUDA reports:");
    for (size_t i = 0; (card = dsv_card_info(i)); i++)
        printf("  %-8s %5.1f GiB  %s%s\n", card->name, card->memory_gib, card->title,
               card->measured ? ", speeds measured" : "");
}

void cli_print_page(const CliVerb *verb)
{
    printf("usage: dsv %s%s%s%s%s\n\n%s\n", verb->name, verb->arguments[0] ? " " : "", verb->arguments,
           verb->flags ? " [flags]" : "", verb->takes_options ? " [key=value ...]" : "", verb->text);
    print_flags(verb->flags, flag_columns(verb->flags));
    print_flags(common_flags, flag_columns(verb->flags));
    if (verb->lists_cards)
        print_cards();
    if (verb->lists_options)
        print_keys();
    else if (verb->takes_options)
        puts("\ndsv help options explains the options, key=value.");
}

/* Writes which values an option accepts, for example "integer, 0 to 10 steps" or "no, bf16". */
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
    values_text(option, values, sizeof values - 1);
    strcat(values, ")");
    int used = printf("  %s=%s  (", option->key, option->initial[0] ? option->initial : "''");
    cli_put_wrapped(stdout, values, (size_t)used, 6, page_width());
    putchar('\n');
    print_wrapped(option->help, 6, page_width());
}

/* Prints the options of the section with this title; if `title` is NULL, the options of all sections. */
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
    puts("Options and their defaults. In a YAML file keys are nested or dotted. key=value\n"
         "arguments override the file.");
    print_sections(NULL);
}

/* Prints the text of a Markdown table cell, with escaped bars, which would end the cell. */
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
         "`make docs` generates this page from [options.def](../include/dsv/options.def), the table of all\n"
         "options.\n\n"
         "Set an option in the YAML file, nested (`sparse:` with `group: 64` below it) or dotted\n"
         "(`sparse.group: 64`), or as a command-line argument `sparse.group=64`. Arguments override the\n"
         "file. `dsv help KEY` explains one option in the terminal, `dsv help options` all of them.");
    for (size_t i = 0; (option = dsv_option_info(i)); i++) {
        if (strcmp(option->section, section) != 0)
            printf("\n## %s\n\n%s\n\n| option | default | values | meaning |\n|---|---|---|---|\n",
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

/* Prints the page of a verb, or of all verbs that begin with a word ("bench"). Returns false if there is no
   such page. */
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

static bool print_named_option(const char *key)
{
    const DsvOptionInfo *option;
    for (size_t i = 0; (option = dsv_option_info(i)); i++)
        if (strcmp(option->key, key) == 0) {
            print_option(option);
            return true;
        }
    return false;
}

/* Prints a section, found by the first part of its keys ("sparse" for sparse.group) or by its title
 * ("optimizer"). */
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
    if (args->flag[MAN] && args->path[0])
        return cli_misused(args->verb, "--man is one page about everything, expected nothing else with it");
    if (args->flag[MAN]) {
        cli_print_man_page();
        return CLI_DONE;
    }
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
    if (print_pages(topic) || print_named_option(topic) || print_section(topic))
        return CLI_DONE;
    const char *nearest = dsv_nearest(topic, topic_name, NULL), *hint = dsv_option_hint(topic);
    if (hint)
        return cli_misused(args->verb, "no verb or option %s: %s", topic, hint);
    if (nearest)
        return cli_misused(args->verb, "no verb or option %s, the nearest is %s", topic, nearest);
    return cli_misused(args->verb, "no verb or option %s", topic);
}

const CliVerb cli_verb_help = {
    .name = "help",
    .arguments = "[VERB | KEY | SECTION | options]",
    .paths_max = 2,
    .summary = "explain a verb, an option, or all options",
    .text = "Explains a verb, the option KEY, the options of a SECTION (sparse, optimizer),\n"
            "or, with the word options, all options.\n",
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
    .summary = "print the version",
    .text = "Prints the version of the program.\n",
    .run = run_version,
};
