/* Implements size_plans.h. */
#include "train/size_plans.h"

#include <math.h>
#include <stdlib.h>

/* Backward passes of attention take about as long as three forward passes (docs/performance.md). */
static const double ATTENTION_BACKWARD = 3;

/* The ways of a block, numbered as in DsviBlockPlan.way; bits of a set of ways. */
static const DsviDitKept WAY[DSVI_BLOCK_WAYS] = {{DSVI_KEEP_ALL, false},
                                                 {DSVI_KEEP_ATTENTION, false},
                                                 {DSVI_KEEP_INPUT, false},
                                                 {DSVI_KEEP_ATTENTION, true},
                                                 {DSVI_KEEP_INPUT, true}};
enum { ALL = 1, ATTENTION = 2, INPUT = 4, ATTENTION_WAITS = 8, INPUT_WAITS = 16 };
enum { KEEPS = 3, SETS = DSVI_WAY_SETS };
static const int SET[SETS] = {
    ALL,
    ATTENTION,
    INPUT,
    ALL | ATTENTION,
    ALL | INPUT,
    ATTENTION | INPUT,
    ALL | ATTENTION | INPUT,
    /* sets with blocks in host memory */
    ATTENTION | ATTENTION_WAITS,
    INPUT | INPUT_WAITS,
    ALL | ATTENTION | ATTENTION_WAITS,
    ALL | INPUT | INPUT_WAITS,
    ATTENTION | INPUT | ATTENTION_WAITS | INPUT_WAITS,
    ALL | ATTENTION | INPUT | ATTENTION_WAITS | INPUT_WAITS,
};

DsviDitKept dsvi_block_way(int way)
{
    return WAY[way];
}

static int64_t picoseconds(double seconds)
{
    return (int64_t)llround(seconds * 1e12);
}

/* Returns FLOPs of a forward pass of self-attention and cross-attention in one block. */
static double attention_flops(const DsviTrainer *t, const DsviDitShape *shape)
{
    return dsvi_sparse_expected_work(t->settings, dsvi_dit_tokens(&t->config, shape)) *
           dsvi_dit_flops_attention(&t->config, shape) / (double)t->config.num_layers;
}

static DsviDitShape shape_of(const DsviTrainer *t, const DsviTrainerSize *size)
{
    return dsvi_dit_shape_of(&t->config, t->settings->train_batch_size, size->latent);
}

/* Fills a block's times and ways; `link`: bytes per second for its copies. */
static void fill_block(const DsviTrainer *t, const DsviTrainerSize *size, double link, DsviChainBlock *block)
{
    const DsviDitShape shape = shape_of(t, size);
    double hidden, linear = dsvi_dit_flops_block(&t->config, &shape, &hidden), flops = t->speeds.flops;
    double attention = attention_flops(t, &shape);
    block->forward = picoseconds((linear + attention) / flops);
    block->backward = picoseconds(((t->frozen ? 1 : 2) * linear + ATTENTION_BACKWARD * attention) / flops);
    for (int w = 0; w < DSVI_BLOCK_WAYS; w++) {
        size_t bytes = dsvi_dit_own_bytes(size->dit, WAY[w].keep);
        double again = linear + (WAY[w].keep == DSVI_KEEP_INPUT ? attention : 0);
        bool all = WAY[w].keep == DSVI_KEEP_ALL;
        block->way[w] = (DsviBlockWay){
            .shares = !all,
            .waits = WAY[w].host,
            .bytes = WAY[w].host ? 0 : bytes,
            .again = all ? 0 : picoseconds(again / flops),
            .again_last = all ? 0 : picoseconds(hidden / flops),
            .copy = WAY[w].host ? picoseconds((double)bytes / link) : 0,
        };
    }
}

/* Returns whether a set allows blocks in host memory. */
static bool set_waits(int set)
{
    return (SET[set] & (ATTENTION_WAITS | INPUT_WAITS)) != 0;
}

/* Returns the bytes of the two sets of buffers in which blocks take turns that wait in host memory. */
static size_t stack_bytes(const DsviTrainerSize *size, int set)
{
    DsviDitKeep largest = SET[set] & ATTENTION_WAITS ? DSVI_KEEP_ATTENTION : DSVI_KEEP_INPUT;
    return set_waits(set) ? 2 * dsvi_dit_own_bytes(size->dit, largest) : 0;
}

/* Fills the chain of a size, with `block` (num_layers) as memory. If blocks wait in host memory, one of their
 * sets of buffers holds the input of the head. */
static DsviChain make_chain(const DsviTrainer *t, const DsviSizePlansArgs *args, int set,
                            DsviChainBlock *block)
{
    const DsviTrainerSize *size = &t->sizes[args->index];
    const DsviDit *dit = size->dit;
    int64_t layers = t->config.num_layers;
    fill_block(t, size, args->link, &block[0]);
    for (int w = 0; w < DSVI_BLOCK_WAYS; w++)
        block[0].way[w].allowed = SET[set] >> w & 1;
    for (int64_t b = 0; b < layers; b++) {
        block[b] = block[0];
        block[b].after = dsvi_dit_gradients_from(dit, b + 1);
    }
    return (DsviChain){
        .blocks = layers,
        .block = block,
        .end = set_waits(set) ? 0 : dsvi_dit_input_bytes(dit),
        .after_end = dsvi_dit_gradients_from(dit, layers + 1),
        .limit = args->limit,
    };
}

/* Finds the plans of each set. What a pass needs beside kept activations is measured by laying out the first
 * three sets, in which all blocks keep the same. `block` and `kept` (num_layers) are memory for the search.
 */
static DsvStatus find_plans(DsviTrainer *t, const DsviSizePlansArgs *args, DsviChainBlock *block,
                            DsviDitKept *kept, DsviSizePlans *out)
{
    const DsviTrainerSize *size = &t->sizes[args->index];
    size_t least[KEEPS];
    DsviArena plan;
    for (int s = 0; s < SETS; s++) {
        DsviChain chain = make_chain(t, args, s, block);
        DSVI_TRY(dsvi_block_plans_find(&chain, &out->plans[s]));
        out->forward = chain.block[0].forward;
        out->backward = chain.block[0].backward;
    }
    for (int k = 0; k < KEEPS; k++) {
        for (int64_t b = 0; b < t->config.num_layers; b++)
            kept[b] = WAY[k];
        dsvi_dit_keep_blocks(size->dit, kept);
        dsvi_arena_plan(&plan);
        args->layout(t, &plan);
        least[k] = size->pass_bytes - out->plans[k].plan[0].bytes;
    }
    for (int s = 0; s < SETS; s++)
        out->before[s] = least[SET[s] & INPUT ? 2 : SET[s] & ATTENTION ? 1 : 0] + stack_bytes(size, s);
    const DsviDitShape shape = shape_of(t, size);
    double blocks = (double)t->config.num_layers * dsvi_dit_flops_block(&t->config, &shape, NULL);
    out->ends = 3 * (dsvi_dit_flops_gemm(&t->config, &shape) - blocks) / t->speeds.flops;
    return DSV_OK;
}

DsvStatus dsvi_size_plans_find(DsviTrainer *t, const DsviSizePlansArgs *args, DsviSizePlans *out)
{
    size_t layers = (size_t)t->config.num_layers;
    DsviChainBlock *block = calloc(layers, sizeof *block);
    DsviDitKept *kept = calloc(layers, sizeof *kept);
    DsvStatus status = block && kept ? find_plans(t, args, block, kept, out)
                                     : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to plan %zu blocks", layers);
    free(block);
    free(kept);
    return status;
}

void dsvi_size_plans_free(DsviSizePlans *plans)
{
    for (int s = 0; s < SETS; s++)
        dsvi_block_plans_free(&plans->plans[s]);
}

size_t dsvi_size_plans_choose(const DsviSizePlans *plans, int first, int end, size_t bytes, bool least,
                              const DsviBlockPlan **out)
{
    size_t taken = 0;
    *out = NULL;
    for (int s = first; s < end; s++) {
        size_t before = plans->before[s];
        const DsviBlockPlan *plan = least ? &plans->plans[s].plan[0]
                                    : bytes >= before
                                        ? dsvi_block_plans_within(&plans->plans[s], bytes - before)
                                        : NULL;
        const DsviBlockPlan *best = *out;
        if (plan && (!best || (least ? before + plan->bytes < taken : plan->time < best->time))) {
            *out = plan;
            taken = before + plan->bytes;
        }
    }
    return taken;
}
