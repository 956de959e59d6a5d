/* Flags of the benchmarks of attention that say of which heads and lists. */
#ifndef CLI_BENCH_LISTS_H
#define CLI_BENCH_LISTS_H

#include "cmd.h"
#include "dsv/bench.h"

/* Places of the flags; a verb has its own from CLI_LISTS_FLAGS on. */
enum {
    CLI_LISTS_JSON, CLI_LISTS_DEVICE,
    CLI_LISTS_TOKENS, CLI_LISTS_HEADS, CLI_LISTS_HEAD_DIM, CLI_LISTS_DTYPE, CLI_LISTS_DENSITY,
    CLI_LISTS_GRAIN, CLI_LISTS_GROUP, CLI_LISTS_SELECTOR, CLI_LISTS_FROM, CLI_LISTS_REPEATS,
    CLI_LISTS_FLAGS,
};

#define CLI_JSON_FLAG {"--json", "FILE", "write the figures there as one JSON object"}
#define CLI_DEVICE_FLAG {"--device", "NAME", "cpu or cuda (default cpu)"}

#define CLI_LISTS \
    [CLI_LISTS_JSON] = CLI_JSON_FLAG, \
    [CLI_LISTS_DEVICE] = CLI_DEVICE_FLAG, \
    [CLI_LISTS_TOKENS] = {"--tokens", "N", "length of the sequence (default 8192, or the file's)"}, \
    [CLI_LISTS_HEADS] = {"--heads", "N", "heads (default 4, or the file's)"}, \
    [CLI_LISTS_HEAD_DIM] = {"--head-dim", "N", "head size (default 64; a file has its own)"}, \
    [CLI_LISTS_DTYPE] = {"--dtype", "NAME", "bf16 or f32 (default bf16)"}, \
    [CLI_LISTS_DENSITY] = {"--density", "X", "share of keys in the lists, mean of the heads (default 0.1)"}, \
    [CLI_LISTS_GRAIN] = {"--grain", "N", "keys that a list entry stands for (default 1)"}, \
    [CLI_LISTS_GROUP] = {"--group", "N", "queries that share a list (default 128)"}, \
    [CLI_LISTS_SELECTOR] = {"--selector", "NAME", "projection or pooled (default projection)"}, \
    [CLI_LISTS_FROM] = {"--heads-from", "FILE", \
                        "q, k, v (heads, tokens, size) of a safetensors file, repeated"}, \
    [CLI_LISTS_REPEATS] = {"--repeats", "N", "measurements, of which the median counts (default 5)"}

/* What the flags say, to `lists`, which has its defaults. CLI_DONE, or the exit status of a misused one. */
int cli_bench_lists(const CliArgs *args, DsvBenchLists *lists);

#endif
