/* The program dsv: finds the verb that the command line names. The verbs are in cmd_<verb>.c. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cmd.h"
#include "process.h"
#include "verb.h"

static const CliVerb *const verbs[] = {
    &cli_verb_train,           &cli_verb_sample,        &cli_verb_encode,
    &cli_verb_decode,          &cli_verb_text,          &cli_verb_forward,
    &cli_verb_inspect,         &cli_verb_report,        &cli_verb_lora_convert,
    &cli_verb_lora_merge,      &cli_verb_plan_memory,   &cli_verb_plan,
    &cli_verb_bench_attention, &cli_verb_bench_context, &cli_verb_bench_part,
    &cli_verb_bench_step,      &cli_verb_help,          &cli_verb_version,
};

#define STACK_BYTES ((size_t)8 << 20)

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

/* Returns the verb that the first words name, and in *used the number of its words ("bench step" has two).
 * NULL: there is no such verb. */
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

/* Returns whether a word is the first word of verbs with two words, such as "bench". Writes their second
 * words to `rests`: "attention or context or step". */
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
        return cli_misused(NULL, "%s needs %s after it", word, rests);
    const char *nearest = dsv_nearest(word, verb_name, NULL);
    if (nearest)
        return cli_misused(NULL, "no verb %s, the nearest is %s", word, nearest);
    return cli_misused(NULL, "no verb %s; dsv help lists all verbs", word);
}

/* Replaces --help and --version as first word by the verbs help and version. */
static void undisguise(char **words)
{
    static char help[] = "help", version[] = "version";
    if (strcmp(words[0], "--help") == 0 || strcmp(words[0], "-h") == 0)
        words[0] = help;
    else if (strcmp(words[0], "--version") == 0 || strcmp(words[0], "-V") == 0)
        words[0] = version;
}

/* Reads the command line of `program` and finds the verb. Returns CLI_DONE, with *verb NULL if nothing is
   left to do (help was printed), or the exit status of a wrong command line. */
static int read_command(const char *program, int count, char **words, const CliVerb **verb, CliArgs *args)
{
    int used;
    *verb = NULL;
    if (count == 0) {
        cli_print_overview(stderr);
        return CLI_MISUSED;
    }
    undisguise(words);
    const CliVerb *found = find_verb(count, words, &used);
    if (!found)
        return no_such_verb(words[0]);
    int status = cli_args_read(program, found, count - used, words + used, args);
    if (status == CLI_DONE && args->help)
        cli_print_page(found);
    else if (status == CLI_DONE)
        *verb = found;
    return status;
}

typedef struct CommandLine {
    int argc;
    char **argv;
    int status; /* exit status of the program, once command_main has returned */
} CommandLine;

/* The whole program; runs on a thread of its own, which main starts. */
static void *command_main(void *command_line)
{
    CommandLine *c = command_line;
    CliArgs args;
    const CliVerb *verb;
    cli_process_prepare();
    c->status = read_command(c->argc > 0 ? c->argv[0] : "dsv", c->argc > 0 ? c->argc - 1 : 0, c->argv + 1,
                             &verb, &args);
    if (verb)
        c->status = verb->run(&args);
    c->status = cli_process_finish(c->status);
    return NULL;
}

/* Runs the program on a thread with a stack of 8 MiB: the first thread's stack is as small as `ulimit -s`
 * says, and the library computes on the thread that calls it, where kernels need some hundred kilobytes. If
 * no such thread can be started, the program runs on the first. */
int main(int argc, char **argv)
{
    CommandLine command_line = {.argc = argc, .argv = argv};
    pthread_attr_t attributes;
    pthread_t thread;
    int error = pthread_attr_init(&attributes);
    if (!error) {
        error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
        if (!error)
            error = pthread_create(&thread, &attributes, command_main, &command_line);
        pthread_attr_destroy(&attributes);
    }
    if (error)
        command_main(&command_line);
    else
        pthread_join(thread, NULL);
    return command_line.status;
}
