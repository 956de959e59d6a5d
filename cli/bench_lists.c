/* See bench_lists.h. */
#include "bench_lists.h"

#include <string.h>

/* Refuses a key=value argument that has no effect because a flag of the verb sets its value. */
static int refuse_options_of_flags(const CliArgs *args, int mass_flag)
{
    const struct {
        const char *key;
        int flag;
    } governed[] = {
        {"sparse.group", CLI_LISTS_GROUP},
        {"sparse.grain", CLI_LISTS_GRAIN},
        {"sparse.selector", CLI_LISTS_SELECTOR},
        {"sparse.target_density", CLI_LISTS_DENSITY},
        {"sparse.min_keys", CLI_LISTS_DENSITY},
        {"sparse.target_mass", mass_flag},
        {"mixed_precision", CLI_LISTS_DTYPE},
        {"model.num_attention_heads", CLI_LISTS_HEADS},
        {"model.attention_head_dim", CLI_LISTS_HEAD_DIM},
    };
    for (int i = 0; i < args->option_count; i++) {
        const char *option = args->options[i];
        size_t length = strcspn(option, "=");
        for (size_t k = 0; k < sizeof governed / sizeof *governed; k++)
            if (strlen(governed[k].key) == length && strncmp(governed[k].key, option, length) == 0)
                return cli_misused(args->verb, "%s: expected the flag %s instead", option,
                                   args->verb->flags[governed[k].flag].name);
    }
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
    if (args->flag[CLI_LISTS_DTYPE])
        lists->dtype = args->flag[CLI_LISTS_DTYPE];
    if (args->flag[CLI_LISTS_SELECTOR])
        lists->selector = args->flag[CLI_LISTS_SELECTOR];
    lists->heads_from = args->flag[CLI_LISTS_FROM];
    return status;
}
