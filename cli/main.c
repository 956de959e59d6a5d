/* dsv: the table of verbs. What a verb does is in cmd_<verb>.c. */
#include <stdio.h>
#include <string.h>

#include "cmd.h"
#include "own_stack.h"
#include "process.h"
#include "verb.h"

static const CliVerb *const verbs[] = {
    &cli_verb_train,
    &cli_verb_sample,
    &cli_verb_encode,
    &cli_verb_forward,
    &cli_verb_inspect,
    &cli_verb_report,
    &cli_verb_plan,
    &cli_verb_bench_attention,
    &cli_verb_bench_context,
    &cli_verb_bench_step,
    &cli_verb_help,
    &cli_verb_version,
};

enum { VERB_COUNT = sizeof verbs / sizeof *verbs };

const CliVerb *cli_verb_at(int index)
{
    return index < VERB_COUNT ? verbs[index] : NULL;
}

static const char *verb_name(const void *context, size_t index)
{
    (void)context;
    return index < (size_t)VERB_COUNT ? verbs[index]->name : NULL;
}

/* The verb that the first words name, and how many they are: "bench step" is one of two. */
static const CliVerb *find_verb(int count, char **words, int *used)
{
    char pair[64];
    snprintf(pair, sizeof pair, "%s %s", words[0], count > 1 ? words[1] : "");
    for (int i = 0; i < VERB_COUNT; i++) {
        const char *name = verbs[i]->name;
        *used = strchr(name, ' ') ? 2 : 1;
        if (strcmp(name, *used == 2 ? pair : words[0]) == 0)
            return verbs[i];
    }
    return NULL;
}

/* "bench" alone, or with a word that is none of its. */
static bool begins_verbs(const char *word, char *rests, size_t room)
{
    size_t length = strlen(word), used = 0;
    rests[0] = 0;
    for (int i = 0; i < VERB_COUNT; i++)
        if (strncmp(verbs[i]->name, word, length) == 0 && verbs[i]->name[length] == ' ')
            used += (size_t)snprintf(rests + used, room - used, "%s%s", used ? " or " : "",
                                     verbs[i]->name + length + 1);
    return used > 0;
}

static int no_such_verb(const char *word)
{
    char rests[128];
    if (begins_verbs(word, rests, sizeof rests))
        return cli_misused(NULL, "%s: wanted %s after it", word, rests);
    const char *nearest = dsv_nearest(word, verb_name, NULL);
    if (nearest)
        return cli_misused(NULL, "no verb %s, the nearest is %s", word, nearest);
    return cli_misused(NULL, "no verb %s; dsv help lists those there are", word);
}

/* --help and --version are verbs in disguise. */
static void undisguise(char **words)
{
    static char help[] = "help", version[] = "version";
    if (strcmp(words[0], "--help") == 0 || strcmp(words[0], "-h") == 0)
        words[0] = help;
    else if (strcmp(words[0], "--version") == 0 || strcmp(words[0], "-V") == 0)
        words[0] = version;
}

static int run(const char *program, int count, char **words)
{
    CliArgs args;
    int used;
    if (count == 0) {
        cli_print_overview(stderr);
        return CLI_MISUSED;
    }
    undisguise(words);
    const CliVerb *verb = find_verb(count, words, &used);
    if (!verb)
        return no_such_verb(words[0]);
    int status = cli_args_read(program, verb, count - used, words + used, &args);
    if (status != CLI_DONE)
        return status;
    if (args.help) {
        cli_print_page(verb);
        return CLI_DONE;
    }
    return verb->run(&args);
}

static int dsv(int argc, char **argv)
{
    cli_process_prepare();
    return cli_process_finish(run(argc > 0 ? argv[0] : "dsv", argc > 0 ? argc - 1 : 0, argv + 1));
}

int main(int argc, char **argv)
{
    return cli_on_own_stack(dsv, argc, argv);
}
