/* What the program is made of: verbs, their flags, and the arguments of one call. */
#ifndef CLI_VERB_H
#define CLI_VERB_H

#include <stdbool.h>
#include <stdint.h>

#include <dsv/dsv.h>

/* What a shell sees. After a signal was obeyed it is 128 + the signal. */
enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_MISUSED = 2 };

enum { CLI_FLAGS_MOST = 16, CLI_PATHS_MOST = 4 };

typedef struct CliFlag {
    const char *name;  /* "--json" */
    const char *value; /* what stands behind it, "FILE"; NULL: nothing */
    const char *help;
} CliFlag;

typedef struct CliArgs {
    const char *program;                 /* as it was called */
    const struct CliVerb *verb;
    const char *path[CLI_PATHS_MOST];    /* plain arguments in order; NULL behind the last */
    const char *flag[CLI_FLAGS_MOST];    /* values by place in verb->flags; "": it has none; NULL: absent */
    const char **settings;               /* the key=value arguments in order */
    int setting_count;
    bool verbose, help;
} CliArgs;

typedef struct CliVerb {
    const char *name;         /* "sample", "bench step" */
    const char *arguments;    /* as the usage line shows them */
    int paths_least, paths_most;
    bool takes_settings;      /* key=value */
    bool lists_settings;      /* on its page */
    const char *summary;      /* a line of the overview */
    const char *text;         /* its page, ending with a newline */
    const CliFlag *flags;     /* up to one without a name; or NULL */
    int (*run)(const CliArgs *args);
} CliVerb;

/* main.c: the table. NULL past its end. */
const CliVerb *cli_verb_at(int index);

/* Reads what stands behind the verb. The settings are gathered in `words` itself. On anything but CLI_DONE
 * the complaint is out. */
int cli_args_read(const char *program, const CliVerb *verb, int count, char **words, CliArgs *args);

/* Numbers behind a flag; *value stays as it is where the flag is absent. */
int cli_args_integer(const CliArgs *args, int flag, int64_t *value);
int cli_args_number(const CliArgs *args, int flag, double *value);

/* What stands behind a flag, as the setting device; nothing where it is absent. */
DsvStatus cli_args_device(const CliArgs *args, int flag, DsvConfig *config);
/* The key=value arguments, in order, over `config`. */
DsvStatus cli_args_settings(const CliArgs *args, DsvConfig *config);

/* "dsv: train: <sentence>." on stderr; gives CLI_MISUSED. */
int cli_misused(const CliVerb *verb, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What a call of the library came to, told on stderr if it failed, as exit status. */
int cli_outcome(const CliArgs *args, DsvStatus status);

/* One line of a report on stdout: a DsvLine. */
void cli_print_line(void *context, const char *text);

#endif
