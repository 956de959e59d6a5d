/* Flags that dsv bench attention and dsv bench context share: sizes, heads and key lists. */
#ifndef CLI_BENCH_LISTS_H
#define CLI_BENCH_LISTS_H

#include "cmd.h"
#include "dsv/bench.h"

/* Indices of the flags that both verbs share. The verb's own flags begin at index CLI_LISTS_FLAGS. */
enum {
    CLI_LISTS_JSON,
    CLI_LISTS_DEVICE,
    CLI_LISTS_TOKENS,
    CLI_LISTS_HEADS,
    CLI_LISTS_HEAD_DIM,
    CLI_LISTS_DTYPE,
    CLI_LISTS_DENSITY,
    CLI_LISTS_GRAIN,
    CLI_LISTS_GROUP,
    CLI_LISTS_SELECTOR,
    CLI_LISTS_FROM,
    CLI_LISTS_REPEATS,
    CLI_LISTS_FLAGS,
};

/* Laid out by hand: clang-format 14 takes the braces of an initializer in a macro for a block. */
/* clang-format off */
#define CLI_JSON_FLAG {"--json", "FILE", "also write the results to FILE, as a JSON object"}
#define CLI_DEVICE_FLAG {"--device", "NAME", "cpu or cuda (default cpu)"}
/* clang-format on */

#define CLI_LISTS                                                                                         \
    [CLI_LISTS_JSON] = CLI_JSON_FLAG, [CLI_LISTS_DEVICE] = CLI_DEVICE_FLAG,                               \
    [CLI_LISTS_TOKENS] = {"--tokens", "N", "number of tokens (default 8192, or as in --heads-from)"},     \
    [CLI_LISTS_HEADS] = {"--heads", "N", "number of heads (default 4, or as in --heads-from)"},           \
    [CLI_LISTS_HEAD_DIM] = {"--head-dim", "N", "elements of a head (default 64, or as in --heads-from)"}, \
    [CLI_LISTS_DTYPE] = {"--dtype", "NAME", "bf16 or f32 (default bf16)"},                                \
    [CLI_LISTS_DENSITY] = {"--density", "X", "fraction of keys in lists (default: as in training)"},      \
    [CLI_LISTS_GRAIN] = {"--grain", "N", "keys of one entry of a list (default: sparse.grain)"},          \
    [CLI_LISTS_GROUP] = {"--group", "N", "queries that share a list (default: sparse.group)"},            \
    [CLI_LISTS_SELECTOR] = {"--selector", "NAME",                                                         \
                            "projection, pooled or window (default: sparse.selector)"},                   \
    [CLI_LISTS_FROM] = {"--heads-from", "FILE", "safetensors: q, k, v (heads, tokens, size), repeated"},  \
    [CLI_LISTS_REPEATS] = {"--repeats", "N", "measurements; their median is reported (default 5)"}

/* Copies the values of the shared flags to `lists`, whose other fields keep their values. Refuses options,
 * such as sparse.group, whose value a flag sets. `mass_flag` is the index of the flag that replaces
 * sparse.target_mass. Returns CLI_DONE, or the exit status after an error. */
int cli_bench_lists(const CliArgs *args, int mass_flag, DsvBenchLists *lists);

#endif
