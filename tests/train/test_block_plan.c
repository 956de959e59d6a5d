/* The plan of each block's activations: it equals an exhaustive search for short chains, and long chains take
 * little work. */
#include "test.h"

#include "base/rng.h"
#include "train/block_plan.h"

enum { SHORT = 8, LONG = 60, CAPS = 20 };

static const DsviRng RNG = {3, DSVI_RNG_TEST, 9};
static uint64_t drawn;

static int64_t draw(int64_t from, int64_t to)
{
    return from + (int64_t)dsvi_rng_below(RNG, drawn++, (uint64_t)(to - from + 1));
}

/* Ways 0: all, 1 and 2: attention on the device and in host memory, 3 and 4: inputs. */
static void fill_ways(DsviChainBlock *block, size_t unit, int64_t again, int64_t again_attention,
                      int64_t copy)
{
    const size_t input = 4 * unit, attention = 2 * unit + 1, all = 23 * unit + 5;
    block->way[0] = (DsviBlockWay){.allowed = true, .bytes = all};
    block->way[1] = (DsviBlockWay){.allowed = true, .shares = true, .bytes = input + attention};
    block->way[3] = (DsviBlockWay){.allowed = true, .shares = true, .bytes = input};
    for (int w = 1; w < DSVI_BLOCK_WAYS; w++) {
        block->way[w].again = w < 3 ? again_attention : again;
        block->way[w].again_last = again_attention / 4;
    }
    block->way[2] = block->way[1];
    block->way[4] = block->way[3];
    block->way[2].waits = block->way[4].waits = true;
    block->way[2].bytes = block->way[4].bytes = 0;
    block->way[2].copy = copy * 7 / 4;
    block->way[4].copy = copy;
}

static void random_chain(DsviChainBlock *block, int64_t blocks, DsviChain *chain)
{
    size_t after = (size_t)draw(0, 9) * 10;
    *chain = (DsviChain){
        .blocks = blocks, .block = block, .end = 4, .after_end = after / 8, .limit = SIZE_MAX};
    for (int64_t b = 0; b < blocks; b++) {
        int64_t forward = draw(5, 40);
        block[b] = (DsviChainBlock){
            .forward = forward, .backward = 2 * forward, .after = after / 8 * (size_t)(blocks - b)};
        fill_ways(&block[b], 1, forward, forward * 2 / 3, draw(0, 60));
        block[b].way[draw(0, DSVI_BLOCK_WAYS - 1)].allowed = draw(0, 2) > 0;
    }
}

/* Goes through the two passes of one choice, as the model computes and copies: independent of the search. */
static int64_t time_of(const DsviChain *chain, const int *way)
{
    int64_t last_shared = -1, time = 0, stack[LONG], number = 0, since[2] = {0, 0};
    for (int64_t b = 0; b < chain->blocks; b++) {
        last_shared = chain->block[b].way[way[b]].shares ? b : last_shared;
        if (chain->block[b].way[way[b]].waits)
            stack[number++] = b;
    }
    for (int64_t b = 0; b < chain->blocks; b++) {
        const DsviBlockWay *w = &chain->block[b].way[way[b]];
        time += chain->block[b].forward + chain->block[b].backward +
                (b == last_shared ? w->again_last : w->again);
    }
    for (int64_t n = 0; n + 1 < number; n++) {
        int64_t copy = chain->block[stack[n]].way[way[stack[n]]].copy;
        since[0] = since[1] = 0;
        for (int64_t b = stack[n] + 1; b <= stack[n + 1]; b++) {
            const DsviBlockWay *w = &chain->block[b].way[way[b]];
            since[0] += chain->block[b].forward;
            since[1] += chain->block[b].backward + (b == last_shared ? w->again_last : w->again);
        }
        for (int pass = 0; pass < 2; pass++)
            time += copy > since[pass] ? copy - since[pass] : 0;
    }
    return time;
}

static size_t bytes_of(const DsviChain *chain, const int *way)
{
    size_t used = 0, most = 0;
    for (int64_t b = 0; b < chain->blocks; b++) {
        used += chain->block[b].way[way[b]].bytes;
        most = used + chain->block[b].after > most ? used + chain->block[b].after : most;
    }
    used += chain->end + chain->after_end;
    return used > most ? used : most;
}

/* Writes the least time of any choice within each limit; -1: no choice. */
static void search_all(const DsviChain *chain, const size_t *limit, int64_t *least)
{
    int way[SHORT] = {0};
    for (int c = 0; c < CAPS; c++)
        least[c] = -1;
    for (bool more = true; more;) {
        bool allowed = true;
        for (int64_t b = 0; b < chain->blocks; b++)
            allowed = allowed && chain->block[b].way[way[b]].allowed;
        int64_t time = allowed ? time_of(chain, way) : 0;
        size_t bytes = bytes_of(chain, way);
        for (int c = 0; c < CAPS && allowed; c++)
            if (bytes <= limit[c] && (least[c] < 0 || time < least[c]))
                least[c] = time;
        int64_t b = 0;
        while (b < chain->blocks && ++way[b] == DSVI_BLOCK_WAYS)
            way[b++] = 0;
        more = b < chain->blocks;
    }
}

static void equals_an_exhaustive_search(void **state)
{
    enum { CHAINS = 12 };
    (void)state;
    for (int i = 0; i < CHAINS; i++) {
        DsviChainBlock block[SHORT];
        DsviChain chain;
        DsviBlockPlans plans;
        size_t limit[CAPS];
        int64_t least[CAPS], blocks = i < 10 ? 1 + i % 6 : SHORT - 1 + i % 2;
        random_chain(block, blocks, &chain);
        for (int c = 0; c < CAPS; c++)
            limit[c] = (size_t)(4 + (int64_t)c * 23 * blocks / (CAPS - 1) + draw(0, 3));
        search_all(&chain, limit, least);
        assert_ok(dsvi_block_plans_find(&chain, &plans));
        for (int c = 0; c < CAPS; c++) {
            const DsviBlockPlan *plan = dsvi_block_plans_within(&plans, limit[c]);
            assert_int_equal(plan ? plan->time : -1, least[c]);
            int way[SHORT];
            for (int64_t b = 0; plan && b < blocks; b++)
                way[b] = plan->way[b];
            if (plan) {
                assert_int_equal(time_of(&chain, way), plan->time);
                assert_int_equal(bytes_of(&chain, way), plan->bytes);
            }
        }
        dsvi_block_plans_free(&plans);
    }
}

/* With a limit the plans of at most so many bytes remain, and without any a smallest plan. */
static void a_limit_leaves_out_larger_plans(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        DsviChainBlock block[SHORT];
        DsviChain chain;
        DsviBlockPlans all, plans;
        random_chain(block, SHORT, &chain);
        assert_ok(dsvi_block_plans_find(&chain, &all));
        for (int64_t within = 0; within <= all.count; within++) {
            chain.limit = within > 0 ? all.plan[within - 1].bytes : 0;
            assert_ok(dsvi_block_plans_find(&chain, &plans));
            assert_int_equal(plans.count, all.count == 0 ? 0 : within > 0 ? within : 1);
            for (int64_t k = 0; k < plans.count; k++) {
                assert_int_equal(plans.plan[k].bytes, all.plan[k].bytes);
                if (within > 0)
                    assert_int_equal(plans.plan[k].time, all.plan[k].time);
            }
            dsvi_block_plans_free(&plans);
        }
        dsvi_block_plans_free(&all);
    }
}

/* More memory never makes a plan slower. */
static void plans_rise_in_memory_and_fall_in_time(const DsviBlockPlans *plans)
{
    assert_true(plans->count > 1);
    for (int64_t i = 1; i < plans->count; i++) {
        assert_true(plans->plan[i].bytes > plans->plan[i - 1].bytes);
        assert_true(plans->plan[i].time < plans->plan[i - 1].time);
    }
}

/* 60 equal blocks of a model with 14 billion parameters. A million partial plans take less than a second. */
static void long_chains_take_little_work(void **state)
{
    static const int64_t COPY_US[] = {1000, 37213, 71007, 212111, 401999};
    (void)state;
    for (size_t i = 0; i < sizeof COPY_US / sizeof *COPY_US; i++) {
        DsviChainBlock block[LONG];
        DsviBlockPlans plans;
        const size_t unit = (size_t)32760 * 5120, gradients = (size_t)3 << 29;
        const DsviChain chain = {
            .blocks = LONG, .block = block, .end = 4 * unit, .after_end = 12345, .limit = SIZE_MAX};
        for (int64_t b = 0; b < LONG; b++) {
            block[b] = (DsviChainBlock){
                .forward = 71234567, .backward = 153456789, .after = gradients * (size_t)(LONG - b)};
            fill_ways(&block[b], unit, 71234567, 42345678, COPY_US[i] * 1000);
        }
        assert_ok(dsvi_block_plans_find(&chain, &plans));
        plans_rise_in_memory_and_fall_in_time(&plans);
        assert_in_range(plans.tried, LONG, 1000000);
        dsvi_block_plans_free(&plans);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_an_exhaustive_search),
        cmocka_unit_test(a_limit_leaves_out_larger_plans),
        cmocka_unit_test(long_chains_take_little_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
