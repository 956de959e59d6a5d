/* See man_page.h. Text goes out as man(7) macros for groff: a blank line begins a paragraph, and lines that
 * are indented, such as examples, keep their line breaks. */
#include "man_page.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "verb.h"

/* Prints the first `bytes` bytes of the text. Hyphens and quotes can be copied from the page into a shell. */
static void put_bytes(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        switch (text[i]) {
        case '\\': fputs("\\e", stdout); break;
        case '-': fputs("\\-", stdout); break;
        case '\'': fputs("\\(aq", stdout); break;
        case '`': fputs("\\(ga", stdout); break;
        case '^': fputs("\\(ha", stdout); break;
        case '~': fputs("\\(ti", stdout); break;
        default: putchar(text[i]);
        }
}

static void put(const char *text)
{
    put_bytes(text, strlen(text));
}

/* Prints a line as text, even if it begins with a dot, which would mark a macro. */
static void put_line(const char *text, size_t bytes)
{
    if (bytes > 0 && text[0] == '.')
        fputs("\\&", stdout);
    put_bytes(text, bytes);
    putchar('\n');
}

/* Prints text in font 'B' (bold) or 'I' (italic, underlined). */
static void put_in_font(char font, const char *text)
{
    printf("\\f%c", font);
    put(text);
    fputs("\\fR", stdout);
}

/* Prints a verb's help text, which consists of paragraphs and examples. */
static void put_text(const char *text)
{
    bool example = false, blank = false;
    while (*text) {
        size_t bytes = strcspn(text, "\n"), indent = strspn(text, " ");
        bool indented = indent > 0 && indent < bytes;
        if (indented != example)
            puts(indented ? ".PP\n.EX" : ".EE");
        if (blank && !indented && bytes > 0)
            puts(".PP");
        blank = bytes == 0;
        example = indented;
        if (bytes > 0)
            put_line(text, bytes);
        text += bytes + (text[bytes] == '\n');
    }
    if (example)
        puts(".EE");
}

/* Prints the cards that --card knows. */
static void put_cards(void)
{
    const DsvCardInfo *card;
    puts(".PP\nCards and the memory that CUDA reports:");
    for (size_t i = 0; (card = dsv_card_info(i)); i++) {
        puts(".TP");
        put_in_font('B', card->name);
        printf("\n%s, %.1f GiB%s\n", card->title, card->memory_gib,
               card->measured ? ", speeds measured" : "");
    }
}

static void put_verb(const CliVerb *verb)
{
    printf(".SS \"dsv %s\"\n\\fBdsv %s\\fR", verb->name, verb->name);
    fputs(verb->arguments[0] ? " " : "", stdout);
    put(verb->arguments);
    printf("%s%s\n.PP\n", verb->flags ? " [flags]" : "", verb->takes_options ? " [key=value ...]" : "");
    put_text(verb->text);
    for (const CliFlag *flag = verb->flags; flag && flag->name; flag++) {
        puts(".TP");
        put_in_font('B', flag->name);
        putchar(flag->value ? ' ' : '\n');
        if (flag->value) {
            put_in_font('I', flag->value);
            putchar('\n');
        }
        put_line(flag->help, strlen(flag->help));
    }
    if (verb->lists_cards)
        put_cards();
}

static void put_verbs(void)
{
    const CliVerb *verb;
    puts(".SH VERBS\n"
         "Every verb also takes\n.B \\-v\n(after an error, where in the source it passed) and\n"
         ".B \\-h\n(its page).");
    for (int i = 0; (verb = cli_verb_at(i)); i++)
        put_verb(verb);
}

static void put_option(const DsvOptionInfo *option)
{
    puts(".TP");
    put_in_font('B', option->key);
    putchar('=');
    put_in_font('I', option->initial[0] ? option->initial : "''");
    putchar('\n');
    put_line(option->help, strlen(option->help));
    putchar('(');
    put(option->type);
    fputs(option->range[0] ? ", " : "", stdout);
    put(option->range);
    fputs(option->unit[0] ? " " : "", stdout);
    put(option->unit);
    puts(")");
}

static void put_options(void)
{
    const DsvOptionInfo *option;
    const char *section = "";
    puts(".SH SETTINGS\n"
         "A setting is given in the YAML file, nested or dotted, or as an argument key=value, which comes\n"
         "after the file and wins. The value shown is the default.");
    for (size_t i = 0; (option = dsv_option_info(i)); i++) {
        if (strcmp(option->section, section) != 0) {
            printf(".SS \"%s\"\n", option->section);
            put_line(option->section_text, strlen(option->section_text));
        }
        section = option->section;
        put_option(option);
    }
}

static const char END[] =
    ".SH ENVIRONMENT\n"
    ".TP\n.B DSV_JOB_KEY\n"
    "A secret that all ranks of a job over TCP share, and that keeps strangers out.\n"
    ".TP\n.B RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT\n"
    "Place of this process among the ranks of a job, as torchrun sets them.\n"
    ".TP\n.B SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST\n"
    "The same, as srun sets them.\n"
    ".TP\n.B OMPI_COMM_WORLD_SIZE, PMIX_RANK\n"
    "Set by mpirun and by srun \\-\\-mpi=pmix: ranks meet over MPI.\n"
    ".TP\n.B NO_COLOR\n"
    "If set, nothing is coloured.\n"
    ".SH EXIT STATUS\n"
    ".TP\n.B 0\nsuccess\n"
    ".TP\n.B 1\nthe work failed; one sentence on standard error says why\n"
    ".TP\n.B 2\nwrong arguments or settings\n"
    ".TP\n.B 128 + signal\nstopped by a signal after a checkpoint was written: 130, 143 or 129\n"
    ".SH FILES\n"
    ".TP\n.I share/dsv/configs\n"
    "Configurations, below the prefix of the installation. A CONFIG that does not exist under its name is\n"
    "looked for there.\n"
    ".TP\n.I share/doc/dsv\n"
    "The documentation: docs/run_folder.md describes the files of a run.\n";

void cli_print_man_page(void)
{
    puts(".\\\" Written by `dsv help --man`.");
    printf(".TH DSV 1 \"\" \"dsv %s\" \"User Commands\"\n", dsv_version());
    puts(".nr HY 0\n.hy 0\n" /* no hyphenation: it would divide names of files and settings */
         ".SH NAME\ndsv \\- train and sample video diffusion transformers with dynamic sparse attention\n"
         ".SH SYNOPSIS\n\\fBdsv\\fR \\fIVERB\\fR [arguments] [flags] [key=value ...]\n"
         ".SH DESCRIPTION\n"
         "dsv trains video diffusion transformers of the Wan 2.1 family with attention that becomes sparse\n"
         "while they train, and samples clips from them, on CPUs and on NVIDIA GPUs.\n"
         ".PP\n.B dsv help\nlists the verbs,\n.B dsv help VERB\nand\n.B dsv help KEY\n"
         "explain a verb and a setting.");
    put_verbs();
    put_options();
    fputs(END, stdout);
}
