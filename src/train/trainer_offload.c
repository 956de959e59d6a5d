/* Implements trainer_offload.h. */
#include "train/trainer_offload.h"

#include <stdio.h>

#include "base/memory_limit.h"
#include "base/offload.h"
#include "train/memory_plan.h"
#include "train/trainer_sizes.h"
#include "train/update_place.h"

/* Checks that weights that are trained can wait in host memory. */
static DsvStatus check_trained(const DsvConfig *settings, int64_t ranks, int64_t shard_ranks)
{
    if (dsvi_dit_act(settings) == DSVI_F32)
        return DSVI_FAIL(
            DSV_E_USAGE,
            "offload is %s and mixed_precision is no, expected bf16, or a LoRA: F32 weights that are trained "
            "stay on the device",
            settings->offload);
    if (ranks > 1 && (settings->zero_stage < 3 || shard_ranks == 1))
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "offload is %s and each of %lld ranks keeps all weights, expected zero_stage=3, one "
                         "rank, or a LoRA",
                         settings->offload, (long long)ranks);
    return DSV_OK;
}

DsvStatus dsvi_trainer_offload_check(const DsvConfig *settings, int64_t ranks, int64_t shard_ranks)
{
    if (dsvi_offloads(settings, "weights") && settings->lora_rank == 0)
        DSVI_TRY(check_trained(settings, ranks, shard_ranks));
    if (dsvi_offloads(settings, "residual") && dsvi_dit_keep(settings) == DSVI_KEEP_ALL)
        return DSVI_FAIL(
            DSV_E_USAGE,
            "offload is %s and gradient_checkpointing is false, expected true or selective: only "
            "what these keep of a block waits in host memory",
            settings->offload);
    return dsvi_update_place_check(settings);
}

bool dsvi_trainer_lends(const DsviTrainer *t)
{
    return t->frozen || dsvi_zero_can_lend(&t->zero);
}

/* Lets the fewest of up to `most` blocks or buckets wait, as `wait` does, that keep to memory_gib. */
static void choose_fewest(DsviTrainer *t, void (*wait)(DsviZero *zero, int64_t count), int64_t most,
                          dsvi_layout_fn *layout)
{
    uint64_t limit = dsvi_memory_limit(t->settings);
    int64_t best = most;
    size_t least = SIZE_MAX;
    for (int64_t count = 0; count <= most && limit > 0 && least > limit; count++) {
        DsviArena plan;
        dsvi_arena_plan(&plan);
        wait(&t->zero, count);
        layout(t, &plan);
        if (plan.used < least) {
            least = plan.used;
            best = count;
        }
    }
    wait(&t->zero, best);
}

/* Chooses how much of what the option names waits. */
static void choose_amount(DsviTrainer *t, dsvi_layout_fn *layout)
{
    if (dsvi_offloads(t->settings, "states"))
        choose_fewest(t, dsvi_zero_host_state, t->zero.shard.buckets, layout);
    if (dsvi_offloads(t->settings, "weights") && !t->frozen)
        choose_fewest(t, dsvi_zero_lend, dsvi_zero_blocks(&t->zero), layout);
    if (dsvi_offloads(t->settings, "weights") && t->frozen)
        dsvi_dit_frozen_choose_lent(t->frozen, t->backend->device, true,
                                    (size_t)dsvi_memory_limit(t->settings), layout, t);
}

DsvStatus dsvi_trainer_offload_choose(DsviTrainer *t, dsvi_layout_fn *layout, size_t host_beside,
                                      DsviSparseLog *log, void *log_context)
{
    if (t->speeds.flops == 0)
        t->speeds = dsvi_device_speeds_nominal();
    if (dsvi_memory_plans(t->settings))
        return dsvi_memory_plan_choose(t, layout, host_beside, log, log_context);
    dsvi_update_place_choose(t, layout, choose_amount, log, log_context);
    return DSV_OK;
}

void dsvi_trainer_offload_carve(void *trainer, DsviArena *arena)
{
    DsviTrainer *t = trainer;
    dsvi_zero_carve_state(&t->zero, t->settings, arena);
    if (t->frozen)
        dsvi_dit_frozen_carve_host(t->frozen, arena);
    dsvi_trainer_sizes_carve_kept(t, arena);
}

DsvStatus dsvi_trainer_offload_open(DsviTrainer *t, DsviSparseLog *log, void *log_context)
{
    DsviHostPool *pool = &t->waiting;
    char line[256];
    DsvStatus status = dsvi_host_pool_open(t->backend->device, dsvi_trainer_offload_carve, t, pool);
    if (status != DSV_OK)
        return dsvi_fail_prefix(status, "offload=%s", t->settings->offload);
    snprintf(line, sizeof line,
             "offload=%s: the system refuses to page-lock %.1f GiB, which now wait in pageable memory; this "
             "makes their copies slower",
             t->settings->offload, (double)pool->arena.used / 1073741824.0);
    if (pool->pageable && log)
        log(log_context, line);
    t->host_arena.used += pool->arena.used;
    for (int c = 0; c < DSVI_MEM_CLASS_COUNT; c++)
        t->host_arena.by_class[c] += pool->arena.by_class[c];
    return DSV_OK;
}

void dsvi_trainer_offload_settle(DsviTrainer *t)
{
    DsviDevice *device = t->backend->device;
    DsviStatusRecord first = *dsvi_status_record();
    if (!t->waiting.memory)
        return;
    (void)device->sync(device->uploads);
    (void)device->sync(device->downloads);
    *dsvi_status_record() = first; /* the message of what ended the run */
}
