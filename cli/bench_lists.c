/* See bench_lists.h. */
#include "bench_lists.h"

int cli_bench_lists(const CliArgs *args, DsvBenchLists *lists)
{
    const struct {
        int flag;
        int64_t *value;
    } integers[] = {
        {CLI_LISTS_TOKENS, &lists->tokens},     {CLI_LISTS_HEADS, &lists->heads},
        {CLI_LISTS_HEAD_DIM, &lists->head_dim}, {CLI_LISTS_GRAIN, &lists->grain},
        {CLI_LISTS_GROUP, &lists->group},       {CLI_LISTS_REPEATS, &lists->repeats},
    };
    int status = CLI_DONE;
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
