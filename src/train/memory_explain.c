/* See memory_explain.h. */
#include "train/memory_explain.h"

#include <stdio.h>
#include <string.h>

enum { CLASSES_NAMED = 3, LINE = 512 };

static double gib(size_t bytes)
{
    return (double)bytes / 1073741824.0;
}

/* The largest classes of the plan, in words. */
static void name_largest(const DsvArena *plan, char line[LINE])
{
    size_t left[DSV_MEM_CLASS_COUNT];
    int used = 0;
    memcpy(left, plan->by_class, sizeof left);
    for (int i = 0; i < CLASSES_NAMED; i++) {
        int largest = 0;
        for (int c = 1; c < DSV_MEM_CLASS_COUNT; c++)
            largest = left[c] > left[largest] ? c : largest;
        used += snprintf(line + used, LINE - (size_t)used, "%s%s %.1f", i ? ", " : "",
                         dsvi_mem_class_name((DsvMemClass)largest), gib(left[largest]));
        left[largest] = 0;
    }
}

static bool divide_more(DsvConfig *settings, int64_t stage)
{
    if (settings->zero_stage >= stage)
        return false;
    settings->zero_stage = stage;
    return true;
}

static bool keep_less(DsvConfig *settings, const char *keep)
{
    char *now = settings->gradient_checkpointing;
    if (strcmp(now, keep) == 0 || strcmp(now, "true") == 0)
        return false;
    snprintf(now, sizeof settings->gradient_checkpointing, "%s", keep);
    return true;
}

static bool split_batch(DsvConfig *settings)
{
    if (settings->train_batch_size == 1)
        return false;
    settings->gradient_accumulation_steps *= settings->train_batch_size;
    settings->train_batch_size = 1;
    return true;
}

/* Whether the host has room for so much more of each of its ranks. */
static bool host_has(const DsvTrainer *t, size_t more)
{
    return t->here.sum + (uint64_t)t->here.ranks * more <= t->backend->device->host_bytes;
}

/* Where lists may wait on the host, and that has room for them. */
static bool offload_lists(const DsvTrainer *t, DsvConfig *settings)
{
    DsvArena with, host, without, host_without;
    bool may = settings->sparse_enabled && !settings->sparse_offload_lists &&
               !settings->sparse_time_choices && t->backend->device->kind != DSV_DEVICE_CPU &&
               dsvi_trainer_plan(t, settings, &without, &host_without) == DSV_OK;
    settings->sparse_offload_lists |= may;
    if (!may || (dsvi_trainer_plan(t, settings, &with, &host) == DSV_OK && with.used < without.used &&
                 host_has(t, host.used - host_without.used)))
        return may;
    settings->sparse_offload_lists = false;
    return false;
}

enum { WAYS = 6 };

/* Ways to take less, the ones that cost least time first. Each is tried on top of those before it. False
 * where it would change nothing. */
static bool take_less(const DsvTrainer *t, DsvConfig *settings, int way)
{
    bool divided = t->mesh.shard_ranks > 1;
    switch (way) {
    case 0: return offload_lists(t, settings);
    case 1: return divided && divide_more(settings, 2);
    case 2: return keep_less(settings, "selective");
    case 3: return divided && divide_more(settings, 3);
    case 4: return keep_less(settings, "true");
    default: return split_batch(settings);
    }
}

static void name_settings(const DsvConfig *settings, bool divided, char words[LINE])
{
    int used = 0;
    if (settings->sparse_offload_lists)
        used = snprintf(words, LINE, "sparse.offload_lists=true ");
    if (divided)
        used += snprintf(words + used, LINE - (size_t)used, "zero_stage=%lld ",
                         (long long)settings->zero_stage);
    snprintf(words + used, LINE - (size_t)used,
             "gradient_checkpointing=%s train_batch_size=%lld gradient_accumulation_steps=%lld",
             settings->gradient_checkpointing, (long long)settings->train_batch_size,
             (long long)settings->gradient_accumulation_steps);
}

/* The first way that fits, in words; "" when none does. */
static void find_fit(const DsvTrainer *t, size_t there_are, char words[LINE])
{
    DsvConfig settings = *t->settings;
    DsvArena plan, host;
    for (int way = 0; way < WAYS; way++) {
        if (!take_less(t, &settings, way))
            continue;
        name_settings(&settings, t->mesh.shard_ranks > 1, words);
        if (dsvi_trainer_plan(t, &settings, &plan, &host) == DSV_OK && plan.used <= there_are)
            return;
    }
    words[0] = 0;
}

DsvStatus dsvi_memory_explain(const DsvTrainer *t, const DsvArena *plan)
{
    DsvDevice *device = t->backend->device;
    size_t used = device->memory_used(device);
    size_t there_are = device->memory_bytes > used ? device->memory_bytes - used : 0;
    char largest[LINE], fit[LINE];
    name_largest(plan, largest);
    find_fit(t, there_are, fit);
    return DSVI_FAIL(DSV_E_NO_MEMORY, "the run wants %.1f GiB of device memory, of %.1f there are %.1f free; "
                     "the most goes to %s GiB; %s%s", gib(plan->used), gib(device->memory_bytes),
                     gib(there_are), largest, fit[0] ? "it would fit with "
                                                     : "no checkpointing makes it fit: a smaller clip or "
                                                       "model would", fit);
}

DsvStatus dsvi_memory_explain_host(const DsvTrainer *t)
{
    bool one = t->here.ranks == 1;
    return DSVI_FAIL(DSV_E_NO_MEMORY, "%lld rank%s on this machine want%s %.1f GiB of its memory, and it has "
                     "%.1f", (long long)t->here.ranks, one ? "" : "s", one ? "s" : "",
                     gib(t->here.sum), gib(t->backend->device->host_bytes));
}
