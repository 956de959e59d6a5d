/* Verbs of the program, their flags, and the parsed arguments of a command line. */
#ifndef CLI_VERB_H
#define CLI_VERB_H

#include <stdbool.h>
#include <stdint.h>

#include <dsv/dsv.h>

/* Exit statuses. After a signal stopped the work, the exit status is 128 + the signal. */
enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_MISUSED = 2 };

enum { CLI_FLAGS_MAX = 16, CLI_PATHS_MAX = 4 };

typedef struct CliFlag {
    const char *name;  /* "--json" */
    const char *value; /* name of the flag's value, "FILE"; NULL: the flag has none */
    const char *help;
} CliFlag;

typedef struct CliArgs {
    const char *program; /* argv[0] */
    const struct CliVerb *verb;
    const char *path[CLI_PATHS_MAX]; /* positional arguments in order; NULL after the last */
    const char *flag[CLI_FLAGS_MAX]; /* by index in verb->flags; "": no value; NULL: absent */
    const char **options;            /* the key=value arguments in order */
    int option_count;
    bool verbose, help;
} CliArgs;

typedef struct CliVerb {
    const char *name;      /* "sample", "bench step" */
    const char *arguments; /* positional arguments, as the usage line shows them */
    int paths_min, paths_max;
    bool takes_options;   /* accepts key=value */
    bool lists_options;   /* the verb's help page lists all option keys */
    bool lists_cards;     /* the verb's help page lists the cards that --card knows */
    const char *summary;  /* one line for the overview of verbs, such as "train a model" */
    const char *text;     /* text of the verb's help page, ending with a newline */
    const CliFlag *flags; /* ends with a flag without a name; or NULL */
    int (*run)(const CliArgs *args);
} CliVerb;

/* Returns the verb with this index in the table in main.c; NULL past its end. */
const CliVerb *cli_verb_at(int index);

/* Parses the words after the verb. args->options points into `words`, which is reordered. Returns CLI_DONE,
 * or another exit status after it has printed the error. */
int cli_args_read(const char *program, const CliVerb *verb, int count, char **words, CliArgs *args);

/* Parse the value of flag number `flag`. *value does not change if the flag is absent. Return CLI_DONE,
 * or another exit status after the error has been printed. */
int cli_args_integer(const CliArgs *args, int flag, int64_t *value);
int cli_args_number(const CliArgs *args, int flag, double *value);

/* Sets the option `device` to the value of flag number `flag`, if the flag is present. */
DsvStatus cli_args_device(const CliArgs *args, int flag, DsvConfig *config);
/* Applies the key=value arguments, in order, to `config`. */
DsvStatus cli_args_options(const CliArgs *args, DsvConfig *config);

/* Prints "dsv: VERB: <sentence>." to stderr and returns CLI_MISUSED. */
int cli_misused(const CliVerb *verb, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns the exit status for the status of a library call, after it has printed the message of a failure. */
int cli_outcome(const CliArgs *args, DsvStatus status);

/* Prints one line to stdout. A callback of type DsvLine. */
void cli_print_line(void *context, const char *text);

#endif
