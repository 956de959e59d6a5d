/* Implements memory_explain.h: error messages of runs that do not fit into memory. */
#include "train/memory_explain.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory_limit.h"
#include "base/offload.h"
#include "device/device_limit.h"
#include "train/memory_plan.h"

enum { CLASSES_NAMED = 3, LINE = 512, OPTIONS = LINE / 2 };

static double gib(size_t bytes)
{
    return (double)bytes / 1073741824.0;
}

/* Returns with how many decimals GiB are written, so that little memory is not 0.0. */
static int decimals(size_t bytes)
{
    return gib(bytes) < 1 ? 3 : 1;
}

static int largest_class(const size_t by_class[DSVI_MEM_CLASS_COUNT])
{
    int largest = 0;
    for (int c = 1; c < DSVI_MEM_CLASS_COUNT; c++)
        largest = by_class[c] > by_class[largest] ? c : largest;
    return largest;
}

/* Writes the largest classes of the memory plan and their GiB into `line`. */
static void name_largest(const DsviArena *plan, char line[LINE])
{
    size_t left[DSVI_MEM_CLASS_COUNT];
    int used = 0;
    memcpy(left, plan->by_class, sizeof left);
    for (int i = 0; i < CLASSES_NAMED; i++) {
        int largest = largest_class(left);
        used += snprintf(line + used, LINE - (size_t)used, "%s%s %.*f", i ? ", " : "",
                         dsvi_mem_class_name((DsviMemClass)largest), decimals(left[largest]),
                         gib(left[largest]));
        left[largest] = 0;
    }
}

static bool on_cpu(const DsviTrainer *t)
{
    return t->backend->device->kind == DSVI_DEVICE_CPU;
}

/* Adds the host's plan to the device's: with device=cpu both are of the same memory. */
static void add_plan(DsviArena *plan, const DsviArena *host_plan)
{
    plan->used += host_plan->used;
    for (int c = 0; c < DSVI_MEM_CLASS_COUNT; c++)
        plan->by_class[c] += host_plan->by_class[c];
}

/* ---- options that reduce memory ---- */

/* With device=cpu nothing is gained by what waits in host memory, so all stays and is recomputed. */
static void let_nothing_wait(const DsviTrainer *t, DsvConfig *settings)
{
    if (!on_cpu(t) || strcmp(settings->offload, "none") == 0)
        return;
    if (dsvi_memory_plans(settings))
        snprintf(settings->gradient_checkpointing, sizeof settings->gradient_checkpointing, "true");
    snprintf(settings->offload, sizeof settings->offload, "none");
}

static bool uses_offload(const DsviTrainer *t)
{
    return strcmp(t->settings->offload, "none") != 0;
}

static void offload_lists(const DsviTrainer *t, DsvConfig *settings)
{
    settings->sparse_offload_lists |= settings->sparse_enabled && !settings->sparse_time_choices &&
                                      !on_cpu(t);
}

/* Moves to the host what takes most and is used least often: beside a LoRA the frozen weights, otherwise the
 * optimizer's state. */
static void offload_most(const DsviTrainer *t, DsvConfig *settings)
{
    const char *most = settings->lora_rank == 0 ? "states" : "weights";
    if (!on_cpu(t) && !dsvi_offloads(settings, most))
        snprintf(settings->offload, sizeof settings->offload, "%s%s", most,
                 dsvi_offloads(settings, "residual") ? "+residual" : "");
}

/* Moves the weights that are trained and their gradients to the host, beside the optimizer's state. */
static void offload_trained(const DsviTrainer *t, DsvConfig *settings)
{
    if (!on_cpu(t) && dsvi_offloads(settings, "states"))
        snprintf(settings->offload, sizeof settings->offload, "weights%s",
                 dsvi_offloads(settings, "residual") ? "+residual" : "");
}

/* Moves what is kept of each block to the host, beside what is there already. */
static void offload_kept(const DsviTrainer *t, DsvConfig *settings)
{
    if (on_cpu(t) || dsvi_offloads(settings, "residual") || dsvi_dit_keep(settings) == DSVI_KEEP_ALL)
        return;
    const char *now = dsvi_offloads(settings, "states")    ? "states+"
                      : dsvi_offloads(settings, "weights") ? "weights+"
                                                           : "";
    snprintf(settings->offload, sizeof settings->offload, "%sresidual", now);
}

static void divide_more(const DsviTrainer *t, DsvConfig *settings, int64_t stage)
{
    if (t->mesh.shard_ranks > 1 && settings->zero_stage < stage)
        settings->zero_stage = stage;
}

static void keep_less(DsvConfig *settings, const char *keep)
{
    char *now = settings->gradient_checkpointing;
    if (strcmp(now, "true") != 0)
        snprintf(now, sizeof settings->gradient_checkpointing, "%s", keep);
}

static void split_batch(DsvConfig *settings)
{
    settings->gradient_accumulation_steps *= settings->train_batch_size;
    settings->train_batch_size = 1;
}

/* Stores the frozen weights beside a LoRA in 8 bits. */
static void store_less(DsvConfig *settings)
{
    if (settings->lora_rank > 0)
        snprintf(settings->base_precision, sizeof settings->base_precision, "fp8");
}

/* Stores the moments of AdamW in fewer bits. A LoRA's moments are small. */
static void remember_less(DsvConfig *settings, const char *optimizer)
{
    if (settings->lora_rank == 0 && strncmp(settings->optimizer, "adamw", 5) == 0 &&
        strcmp(settings->optimizer, "adamw_8bit") != 0)
        snprintf(settings->optimizer, sizeof settings->optimizer, "%s", optimizer);
}

enum { WAYS = 13 };

/* Changes `settings` in way number `way` to use less memory. The ways that slow training least have the
 * lowest numbers. */
static void apply_way(const DsviTrainer *t, DsvConfig *settings, int way)
{
    switch (way) {
    case 0: let_nothing_wait(t, settings); break;
    case 1: offload_lists(t, settings); break;
    case 2: divide_more(t, settings, 2); break;
    case 3: keep_less(settings, "selective"); break;
    case 4: divide_more(t, settings, 3); break;
    case 5: offload_most(t, settings); break;
    case 6: keep_less(settings, "true"); break;
    case 7: offload_kept(t, settings); break;
    case 8: offload_trained(t, settings); break;
    case 9: store_less(settings); break;
    case 10: remember_less(settings, "adamw_bf16"); break;
    case 11: remember_less(settings, "adamw_8bit"); break;
    default: split_batch(settings);
    }
}

/* Names the options of `settings` that reduce memory. optimizer and base_precision are named only if they
 * differ from the run's. */
static void name_settings(const DsvConfig *run, const DsvConfig *settings, bool divided, char words[OPTIONS])
{
    int used = 0;
    if (settings->sparse_offload_lists)
        used = snprintf(words, OPTIONS, "sparse.offload_lists=true ");
    if (strcmp(settings->offload, run->offload) != 0)
        used += snprintf(words + used, OPTIONS - (size_t)used, "offload=%s ", settings->offload);
    if (divided)
        used += snprintf(words + used, OPTIONS - (size_t)used, "zero_stage=%lld ",
                         (long long)settings->zero_stage);
    if (strcmp(settings->base_precision, run->base_precision) != 0)
        used += snprintf(words + used, OPTIONS - (size_t)used, "base_precision=%s ",
                         settings->base_precision);
    if (strcmp(settings->optimizer, run->optimizer) != 0)
        used += snprintf(words + used, OPTIONS - (size_t)used, "optimizer=%s ", settings->optimizer);
    if (!dsvi_memory_plans(settings))
        used += snprintf(words + used, OPTIONS - (size_t)used, "gradient_checkpointing=%s ",
                         settings->gradient_checkpointing);
    snprintf(words + used, OPTIONS - (size_t)used, "train_batch_size=%lld gradient_accumulation_steps=%lld",
             (long long)settings->train_batch_size, (long long)settings->gradient_accumulation_steps);
}

/* Returns whether the host has memory for `more` additional bytes in each of its ranks. */
static bool host_has_room(const DsviTrainer *t, size_t more)
{
    uint64_t wanted = t->here.sum + (uint64_t)t->here.ranks * more;
    uint64_t all = t->backend->device->host_bytes; /* 0: unknown, as host_available */
    return (all == 0 || wanted <= all) && (t->host_available == 0 || wanted <= t->host_available);
}

/* Returns what lowers the memory of a class beyond the ways above. */
static const char *what_lowers(const DsvConfig *settings, int class)
{
    switch (class) {
    case DSVI_MEM_WEIGHTS:
    case DSVI_MEM_GRADIENTS:
    case DSVI_MEM_OPTIMIZER:
    case DSVI_MEM_EMA:
        return settings->model_path[0] && settings->lora_rank == 0 ? "a LoRA (lora_rank)" : "a smaller model";
    case DSVI_MEM_SPARSE: return "a lower sparse.list_memory and sparse.min_keys";
    default: return "a smaller clip (num_frames, height, width)";
    }
}

/* Plans the run with other settings. together: the plan counts host memory as well (add_plan). */
static DsvStatus plan_way(const DsviTrainer *t, const DsvConfig *settings, bool together, DsviArena *plan,
                          DsviArena *host)
{
    DSVI_TRY(dsvi_trainer_plan(t, settings, plan, host));
    if (together)
        add_plan(plan, host);
    return DSV_OK;
}

/* Writes with what the run would fit into `words`, or, if none of the options tried is enough, what lowers
 * the largest part of what it then still takes. Each way is added to the earlier ways that saved memory. All
 * ways are tried twice: gradients and activations share memory, so dividing the gradients may save memory
 * only after the activations have become smaller. */
static void find_fit(const DsviTrainer *t, size_t free_bytes, bool together, char words[LINE])
{
    DsvConfig best = *t->settings;
    DsviArena now, plan, host_now, host;
    char options[OPTIONS];
    words[0] = 0;
    if (plan_way(t, &best, together, &now, &host_now) != DSV_OK)
        return;
    size_t host_run = host_now.used;
    bool fits = false;
    for (int tried = 0; tried < 2 * WAYS && !fits; tried++) {
        DsvConfig settings = best;
        apply_way(t, &settings, tried % WAYS);
        /* Equal settings need no plan. Padding that differs would cost a plan, no more. */
        if (memcmp((const void *)&settings, (const void *)&best, sizeof best) == 0)
            continue;
        if (plan_way(t, &settings, together, &plan, &host) != DSV_OK || plan.used >= now.used ||
            (!together && host.used > host_run && !host_has_room(t, host.used - host_run)))
            continue;
        best = settings;
        now = plan;
        fits = now.used <= free_bytes;
    }
    name_settings(t->settings, &best, t->mesh.shard_ranks > 1, options);
    int largest = largest_class(now.by_class);
    if (fits)
        snprintf(words, LINE, "; it would fit with %s", options);
    else
        snprintf(words, LINE,
                 "; with %s it would still want %.3f GiB, and the largest part, %s, would be lowered by %s",
                 options, gib(now.used), dsvi_mem_class_name((DsviMemClass)largest),
                 what_lowers(t->settings, largest));
}

/* Writes the sizes of data.buckets with which alone the run would not fit either into `words`; "" without
 * several sizes. */
static void name_buckets(const DsviTrainer *t, size_t free_bytes, bool together, char words[LINE])
{
    char text[DSVI_CLIP_SIZE_BYTES];
    size_t used = 0;
    words[0] = 0;
    for (int64_t i = 0; i < t->clips.count && t->clips.count > 1 && used < LINE / 2; i++) {
        DsviTrainer one = *t;
        DsviArena plan, host;
        one.clips = (DsviClipSizes){{t->clips.at[i]}, 1};
        if (plan_way(&one, t->settings, together, &plan, &host) == DSV_OK && plan.used > free_bytes)
            used += (size_t)snprintf(words + used, LINE - used, "%s%s",
                                     used ? ", " : "; too large in data.buckets: ",
                                     dsvi_clip_size_text(&t->clips.at[i], text));
    }
}

/* Writes what the run wants apart from device memory, and the value of offload. */
static void name_offload(const DsviTrainer *t, bool together, char with[LINE])
{
    snprintf(with, LINE, "%s%s%s", together ? " and host memory (the same with device=cpu)" : "",
             uses_offload(t) ? " with offload=" : "", uses_offload(t) ? t->settings->offload : "");
}

DsvStatus dsvi_memory_explain(const DsviTrainer *t, const DsviArena *plan, const DsviArena *host_plan)
{
    DsviDevice *device = t->backend->device;
    DsviArena all = *plan;
    size_t limit = (size_t)dsvi_memory_limit(t->settings), free_bytes = dsvi_device_free_bytes(device);
    /* Without a host plan an allocation has failed, which other allocations under the limit can cause. */
    bool limited = limit > 0 && limit <= free_bytes && (plan->used > limit || !host_plan);
    bool together = on_cpu(t) && host_plan && !limited && (uses_offload(t) || plan->used <= free_bytes);
    char largest[LINE], fit[LINE], buckets[LINE], room[LINE], with[LINE], missing[LINE] = "";
    if (limited)
        snprintf(room, LINE, "memory_gib allows %.6g", t->settings->memory_gib);
    else
        snprintf(room, LINE, "of %.*f there are %.*f free", decimals(device->memory_bytes),
                 gib(device->memory_bytes), decimals(free_bytes), gib(free_bytes));
    free_bytes = limited ? limit : free_bytes;
    if (together)
        add_plan(&all, host_plan);
    /* Memory in use elsewhere and pieces that are too small may hinder a run whose bytes would suffice. */
    if (all.used > free_bytes)
        snprintf(missing, LINE, ": %llu bytes are missing", (unsigned long long)(all.used - free_bytes));
    /* What offload=auto chose takes the least of its choices; the number suffices as memory_gib. */
    bool least = dsvi_memory_plans(t->settings) && !together;
    double wanted = least ? ceil(gib(all.used) * 1000) / 1000 : gib(all.used);
    name_offload(t, together, with);
    name_largest(&all, largest);
    name_buckets(t, free_bytes, together, buckets);
    find_fit(t, free_bytes, together, fit);
    return DSVI_FAIL(DSV_E_NO_MEMORY,
                     "the run wants %s%.*f GiB of device memory%s, %s%s; "
                     "the most goes to %s GiB%s%s",
                     least ? "at least " : "", limited || least ? 3 : decimals(all.used), wanted, with, room,
                     missing, largest, buckets, fit);
}

/* The ranks on this machine need more host memory than it has. Each rank's allocation alone would succeed,
 * because Linux overcommits memory, and a rank would be killed later. */
static DsvStatus explain_host(const DsviTrainer *t, const DsviArena *host_plan, bool in_use)
{
    bool one = t->here.ranks == 1;
    char room[LINE], largest[LINE];
    size_t all = t->backend->device->host_bytes, has = in_use ? t->host_available : all;
    if (in_use)
        snprintf(room, LINE, "%.1f of its %.1f are free", gib(has), gib(all));
    else
        snprintf(room, LINE, "it has %.1f", gib(all));
    name_largest(host_plan, largest);
    return DSVI_FAIL(DSV_E_NO_MEMORY,
                     "%lld rank%s on this machine want%s %s%.1f GiB of its memory, and %s: %llu bytes are "
                     "missing; the most goes to %s GiB%s",
                     (long long)t->here.ranks, one ? "" : "s", one ? "s" : "",
                     dsvi_memory_plans(t->settings) ? "at least " : "", gib(t->here.sum), room,
                     (unsigned long long)(t->here.sum - has), largest, one ? "" : " of each rank");
}

DsvStatus dsvi_memory_check(const DsviTrainer *t, const DsviArena *plan, const DsviArena *host_plan)
{
    uint64_t limit = dsvi_memory_limit(t->settings);
    size_t device = t->backend->device->memory_bytes, all = t->backend->device->host_bytes;
    if ((limit > 0 && plan->used > limit) || plan->used > device)
        return dsvi_memory_explain(t, plan, host_plan);
    if (uses_offload(t) && on_cpu(t) && t->here.ranks == 1 &&
        plan->used + host_plan->used > dsvi_device_free_bytes(t->backend->device))
        return dsvi_memory_explain(t, plan, host_plan);
    if (all > 0 && t->here.sum > all)
        return explain_host(t, host_plan, false);
    if (uses_offload(t) && t->host_available > 0 && t->here.sum > t->host_available)
        return explain_host(t, host_plan, true);
    return DSV_OK;
}
