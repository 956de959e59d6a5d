/* A run on a CPU device of any size, for tests of memory plans and of their messages. */
#ifndef DSVI_TEST_MEMORY_BENCH_H
#define DSVI_TEST_MEMORY_BENCH_H

#include "test.h"
#include "train/trainer.h"

typedef struct Bench {
    DsvConfig settings;
    DsviBackend backend;
    DsviCodec *codec;
    DsviDitConfig config;
    int64_t in_channels;
    size_t kept, recomputed; /* planned bytes: all activations, only inputs of blocks */
} Bench;

/* Opens a run on the CPU, with larger clips and more blocks than in tiny.h, so that activations outweigh the
 * gradients that share their memory. */
void open_bench(Bench *b);
void close_bench(Bench *b);

/* Plans the memory of the run, with an option that is set before, unless it is NULL. */
void plan_with(Bench *b, const char *option, DsviArena *device, DsviArena *host);

#endif
