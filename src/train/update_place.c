/* Implements update_place.h. */
#include "train/update_place.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory_limit.h"
#include "base/offload.h"
#include "train/trainer_sizes.h"

/* Bytes of device memory that an update on the device reads and writes for each trained parameter: gradient,
 * weight and two moments in F32, the weight again in BF16. */
static const double DEVICE_BYTES = 30;
/* Bytes of host memory that an update by the CPU reads and writes for each parameter beside its state, which
 * is read and written: the gradient in F32 and the weight in BF16, each once by the CPU and once by a copy.
 */
static const double HOST_BYTES = 2 * (4 + 2);
/* Part of its speed alone that AdamW of the CPU keeps on page-locked state beside the copies: 118 of 145
 * GB/s with 16 cores beside an H200 (docs/performance.md). */
static const double SPEED_KEPT = 0.8;

static bool updates_by(const DsvConfig *settings, const char *place)
{
    return strcmp(settings->offload_update, place) == 0;
}

/* Returns whether optimizer state can wait in host memory. */
static bool state_waits(const DsvConfig *settings)
{
    bool weights = dsvi_offloads(settings, "weights") || strcmp(settings->offload, "auto") == 0;
    return dsvi_offloads(settings, "states") || (weights && settings->lora_rank == 0);
}

/* Returns why the CPU cannot update, as the value of an option and what is expected; NULL: it can. */
static const char *obstacle(const DsvConfig *settings)
{
    if (dsvi_dit_act(settings) == DSVI_F32)
        return "mixed_precision is no, expected bf16: F32 weights are updated where passes read them";
    if (dsvi_optimizer(settings) == DSVI_MUON)
        return "optimizer is muon, expected a form of adamw: muon multiplies matrices";
    return NULL;
}

DsvStatus dsvi_update_place_check(const DsvConfig *settings)
{
    if (!updates_by(settings, "host"))
        return DSV_OK;
    if (!state_waits(settings))
        return DSVI_FAIL(
            DSV_E_USAGE,
            "offload_update is host and offload is %s%s, expected %s: only optimizer state that waits "
            "in host memory is updated there",
            settings->offload, settings->lora_rank > 0 ? " beside a LoRA" : "",
            settings->lora_rank > 0 ? "states" : "states, weights or auto");
    return obstacle(settings)
               ? DSVI_FAIL(DSV_E_UNSUPPORTED, "offload_update is host and %s", obstacle(settings))
               : DSV_OK;
}

bool dsvi_update_place_is_open(const DsvConfig *settings, const DsviDevice *device)
{
    return updates_by(settings, "auto") && strcmp(settings->offload, "auto") != 0 && state_waits(settings) &&
           device->kind != DSVI_DEVICE_CPU && !obstacle(settings);
}

/* Beside a CPU device the host's memory is the device's: copies and the CPU's AdamW are no choice. */
bool dsvi_update_place_may_be(const DsviTrainer *t, bool by_cpu)
{
    bool pointless = t->backend->device->kind == DSVI_DEVICE_CPU && !updates_by(t->settings, "host");
    if (!by_cpu)
        return !updates_by(t->settings, "host");
    return !updates_by(t->settings, "device") && dsvi_zero_can_update_on_host(&t->zero) && !pointless;
}

/* ---- predicted times ---- */

double dsvi_update_seconds(const DsviTrainer *t, const DsviUpdateWork *work)
{
    const DsviZero *z = &t->zero;
    const DsviDeviceSpeeds *speeds = &t->speeds;
    double waiting = (double)z->shard.packed[work->buckets], own = (double)z->shard.own;
    double beside = z->updates_in_pass ? work->backward : 0;
    if (!work->by_cpu) {
        double update = DEVICE_BYTES * own / speeds->memory;
        return update + fmax(0, (double)(work->state + work->grads) / speeds->link - update - beside);
    }
    double grads = (double)work->grads; /* the backward pass has copied them */
    double computed = 2 * (double)work->state + HOST_BYTES * waiting - grads; /* bytes */
    computed /= SPEED_KEPT * speeds->update;
    double copied = fmax(sizeof(float) * waiting - grads, 2 * waiting) / speeds->link;
    return DEVICE_BYTES * (own - waiting) / speeds->memory + fmax(0, fmax(computed, copied) - beside);
}

/* Returns the predicted seconds of an update with what waits now. */
static double update_now(const DsviTrainer *t)
{
    const DsviZero *z = &t->zero;
    double cost[DSVI_CLIP_SIZES_MAX], flops = 0;
    int64_t blocks = dsvi_zero_blocks(z);
    dsvi_trainer_sizes_costs(t, cost);
    for (int64_t i = 0; i < t->size_count; i++)
        flops += cost[i] / (double)t->size_count;
    DsviUpdateWork work = {
        .by_cpu = z->host_update,
        .buckets = z->hosted,
        .state = dsvi_zero_waiting_state(z, t->settings),
        .grads = z->grads_wait ? (size_t)(z->shard.packed[blocks + 1] - z->shard.packed[1]) * sizeof(float)
                               : 0,
        .backward = flops * 2 / 3 / t->speeds.flops,
    };
    return dsvi_update_seconds(t, &work);
}

/* ---- the choice ---- */

/* Chooses a place and how much waits. Sets the predicted seconds of the update, and returns whether the
 * choice keeps to memory_gib. */
static bool try_place(DsviTrainer *t, bool by_cpu, dsvi_layout_fn *layout, dsvi_amount_fn *amount,
                      double *seconds)
{
    uint64_t limit = dsvi_memory_limit(t->settings);
    DsviArena plan;
    dsvi_zero_update_on_host(&t->zero, by_cpu);
    amount(t, layout);
    dsvi_arena_plan(&plan);
    layout(t, &plan);
    *seconds = update_now(t);
    return limit == 0 || plan.used <= limit;
}

void dsvi_update_place_choose(DsviTrainer *t, dsvi_layout_fn *layout, dsvi_amount_fn *amount,
                              DsviSparseLog *log, void *log_context)
{
    char line[256], times[96] = "compared";
    double seconds[2]; /* on the device, by the CPU */
    bool by_cpu = state_waits(t->settings) && dsvi_update_place_may_be(t, true);
    if (by_cpu && dsvi_update_place_may_be(t, false)) {
        bool device_fits = try_place(t, false, layout, amount, &seconds[0]);
        bool cpu_fits = try_place(t, true, layout, amount, &seconds[1]);
        by_cpu = cpu_fits != device_fits ? cpu_fits : seconds[1] < seconds[0];
        if (!t->speeds.assumed)
            snprintf(times, sizeof times, "predicted %.3g s on the device and %.3g s by the CPU", seconds[0],
                     seconds[1]);
        snprintf(
            line, sizeof line,
            "offload_update=auto: %s with %.3g GB/s to and from the host and %.3g GB/s of host memory in "
            "AdamW of the CPU; the %s updates",
            times, t->speeds.link * 1e-9, t->speeds.update * 1e-9, by_cpu ? "CPU" : "device");
        if (log)
            log(log_context, line);
    }
    dsvi_zero_update_on_host(&t->zero, by_cpu);
    amount(t, layout);
}
