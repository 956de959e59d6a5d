/* See bench_lists.h. */
#include "bench_lists.h"

#include <string.h>

/* Refuses a key=value argument that has no effect because a flag of the verb sets its value. */
static int refuse_options_of_flags(const CliArgs *args, int mass_flag)
{
    const struct {
        const char *key;
        int flag;
        bool replaced; /* the option has no effect without the flag either */
    } governed[] = {
        {"sparse.group", CLI_LISTS_GROUP, false},
        {"sparse.grain", CLI_LISTS_GRAIN, false},
        {"sparse.selector", CLI_LISTS_SELECTOR, false},
        {"sparse.target_density", CLI_LISTS_DENSITY, false},
        {"sparse.min_keys", CLI_LISTS_DENSITY, false},
        {"sparse.target_mass", mass_flag, true},
        {"mixed_precision", CLI_LISTS_DTYPE, true},
        {"model.num_attention_heads", CLI_LISTS_HEADS, true},
        {"model.attention_head_dim", CLI_LISTS_HEAD_DIM, true},
    };
    for (int i = 0; i < args->option_count; i++) {
        const char *option = args->options[i];
        size_t length = strcspn(option, "=");
        for (size_t k = 0; k < sizeof governed / sizeof *governed; k++) {
            const char *flag = args->verb->flags[governed[k].flag].name;
            if (strlen(governed[k].key) != length || strncmp(governed[k].key, option, length) != 0)
                continue;
            if (governed[k].replaced)
                return cli_misused(args->verb, "%s: expected the flag %s instead", option, flag);
            if (args->flag[governed[k].flag])
                return cli_misused(args->verb, "%s and %s: expected one of them", option, flag);
        }
    }
    return CLI_DONE;
}

/* Refuses 0 for flags where the library takes 0 for a default. */
static int refuse_zeros(const CliArgs *args, const DsvBenchLists *lists)
{
    const struct {
        int flag;
        double value;
    } given[] = {
        {CLI_LISTS_TOKENS, (double)lists->tokens},     {CLI_LISTS_HEADS, (double)lists->heads},
        {CLI_LISTS_HEAD_DIM, (double)lists->head_dim}, {CLI_LISTS_GROUP, (double)lists->group},
        {CLI_LISTS_GRAIN, (double)lists->grain},       {CLI_LISTS_DENSITY, lists->density},
    };
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (args->flag[given[i].flag] && given[i].value == 0)
            return cli_misused(args->verb, "%s 0: expected a number above 0",
                               args->verb->flags[given[i].flag].name);
    return CLI_DONE;
}

int cli_bench_lists(const CliArgs *args, int mass_flag, DsvBenchLists *lists)
{
    const struct {
        int flag;
        int64_t *value;
    } integers[] = {
        {CLI_LISTS_TOKENS, &lists->tokens},     {CLI_LISTS_HEADS, &lists->heads},
        {CLI_LISTS_HEAD_DIM, &lists->head_dim}, {CLI_LISTS_GRAIN, &lists->grain},
        {CLI_LISTS_GROUP, &lists->group},       {CLI_LISTS_REPEATS, &lists->repeats},
    };
    int status = refuse_options_of_flags(args, mass_flag);
    for (size_t i = 0; i < sizeof integers / sizeof *integers && status == CLI_DONE; i++)
        status = cli_args_integer(args, integers[i].flag, integers[i].value);
    if (status == CLI_DONE)
        status = cli_args_number(args, CLI_LISTS_DENSITY, &lists->density);
    if (status == CLI_DONE)
        status = refuse_zeros(args, lists);
    if (args->flag[CLI_LISTS_DTYPE])
        lists->dtype = args->flag[CLI_LISTS_DTYPE];
    if (args->flag[CLI_LISTS_SELECTOR])
        lists->selector = args->flag[CLI_LISTS_SELECTOR];
    lists->heads_from = args->flag[CLI_LISTS_FROM];
    return status;
}
