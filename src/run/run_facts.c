/* Implements run_facts.h: model size, device and memory plan, for run.json. */
#include "run/run_facts.h"

#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/fs.h"
#include "base/memory_limit.h"
#include "train/memory_plan.h"

void dsvi_run_facts(const DsviTrainer *t, size_t prefetch, size_t program, int64_t clips, DsviRunFacts *facts)
{
    bool one_memory = t->backend->device->kind == DSVI_DEVICE_CPU;
    size_t host = t->host_arena.used + prefetch, lists = t->host_arena.by_class[DSVI_MEM_SPARSE];
    size_t state = t->host_arena.by_class[DSVI_MEM_WEIGHTS] + t->host_arena.by_class[DSVI_MEM_OPTIMIZER] +
                   t->host_arena.by_class[DSVI_MEM_EMA];
    size_t kept = t->host_arena.by_class[DSVI_MEM_ACTIVATIONS];
    size_t gradients = t->host_arena.by_class[DSVI_MEM_GRADIENTS];
    bool lends = t->settings->lora_rank > 0; /* what waits is frozen */
    *facts = (DsviRunFacts){
        .trainer = t,
        .clips = clips,
        .program = program,
        .host = one_memory ? 0 : host - lists - state - kept - gradients,
        .host_lists = one_memory ? 0 : lists,
        .host_state = one_memory || lends ? 0 : state,
        .host_gradients = one_memory ? 0 : gradients,
        .host_kept = one_memory ? 0 : kept,
        .host_weights = one_memory || !lends ? 0 : state,
        .total = t->arena.used + (one_memory ? host + program : 0),
    };
    for (int c = 0; c < DSVI_MEM_CLASS_COUNT; c++)
        facts->memory[c] = t->arena.by_class[c] + (one_memory ? t->host_arena.by_class[c] : 0);
    facts->memory[DSVI_MEM_DATA] += one_memory ? prefetch : 0;
}

void dsvi_run_facts_memory(const DsviRunFacts *facts, char *line, size_t line_bytes)
{
    const double mib = 1.0 / 1048576.0;
    int used = snprintf(line, line_bytes, "memory: %.0f MiB in all:", (double)facts->total * mib);
    for (int c = 0; c < DSVI_MEM_CLASS_COUNT; c++)
        if (facts->memory[c] > 0)
            used += snprintf(line + used, line_bytes - (size_t)used, " %s %.1f,",
                             dsvi_mem_class_name((DsviMemClass)c), (double)facts->memory[c] * mib);
    if (facts->host > 0)
        used += snprintf(line + used, line_bytes - (size_t)used, " and on the host: batches %.1f,",
                         (double)facts->host * mib);
    if (facts->host_lists > 0)
        used += snprintf(line + used, line_bytes - (size_t)used, " lists %.1f,",
                         (double)facts->host_lists * mib);
    if (facts->host_state > 0)
        used += snprintf(line + used, line_bytes - (size_t)used, " weights and optimizer state %.1f,",
                         (double)facts->host_state * mib);
    if (facts->host_gradients > 0)
        used += snprintf(line + used, line_bytes - (size_t)used, " gradients %.1f,",
                         (double)facts->host_gradients * mib);
    if (facts->host_kept > 0)
        used += snprintf(line + used, line_bytes - (size_t)used, " kept activations %.1f,",
                         (double)facts->host_kept * mib);
    if (facts->host_weights > 0)
        used += snprintf(line + used, line_bytes - (size_t)used, " weights of blocks %.1f,",
                         (double)facts->host_weights * mib);
    snprintf(line + used, line_bytes - (size_t)used, " program and libraries %.0f",
             (double)facts->program * mib);
}

DsvStatus dsvi_run_facts_decoding(const DsvConfig *settings, DsviBackend *backend, DsviCodec *codec,
                                  size_t taken, size_t free_bytes, uint64_t *bytes)
{
    const DsviVideoShape video = {3, settings->num_frames, settings->height, settings->width};
    uint64_t limit = dsvi_memory_limit(settings), left = limit > taken ? limit - taken : 0;
    uint64_t room = limit > 0 && left < free_bytes ? left : free_bytes;
    *bytes = 0;
    if (settings->validation_steps == 0 && !settings->validation_at_end)
        return DSV_OK;
    return dsvi_codec_decode_plan(codec, backend, video, room, bytes);
}

void dsvi_run_facts_decoding_text(uint64_t bytes, char *line, size_t line_bytes)
{
    snprintf(line, line_bytes,
             "sampling shares the memory of a step; decoding a sampled clip takes %.1f MiB more",
             (double)bytes / 1048576.0);
}

static bool run_facts_add_number(cJSON *object, const char *name, double value)
{
    return cJSON_AddNumberToObject(object, name, value) != NULL;
}

static bool run_facts_add_memory(cJSON *object, const DsviRunFacts *facts)
{
    cJSON *memory = cJSON_AddObjectToObject(object, "memory_bytes");
    bool whole = memory != NULL;
    for (int c = 0; c < DSVI_MEM_CLASS_COUNT && whole; c++)
        if (facts->memory[c] > 0)
            whole = run_facts_add_number(memory, dsvi_mem_class_name((DsviMemClass)c),
                                         (double)facts->memory[c]);
    return whole && run_facts_add_number(memory, "program and libraries", (double)facts->program) &&
           run_facts_add_number(object, "memory_planned_bytes", (double)facts->total) &&
           run_facts_add_number(object, "lists_on_host_bytes", (double)facts->host_lists) &&
           run_facts_add_number(object, "state_on_host_bytes", (double)facts->host_state) &&
           run_facts_add_number(object, "gradients_on_host_bytes", (double)facts->host_gradients) &&
           run_facts_add_number(object, "activations_on_host_bytes", (double)facts->host_kept) &&
           run_facts_add_number(object, "weights_on_host_bytes", (double)facts->host_weights);
}

static bool add_model(cJSON *object, const DsviRunFacts *facts)
{
    const DsviTrainer *t = facts->trainer;
    const struct {
        const char *name;
        int64_t value;
    } number[] = {
        {"parameters", t->table.parameters},
        {"blocks", t->config.num_layers},
        {"heads", t->config.num_attention_heads},
        {"head_dim", t->config.attention_head_dim},
        {"tokens", t->latent.frames / t->config.patch[0] * (t->latent.height / t->config.patch[1]) *
                       (t->latent.width / t->config.patch[2])},
        {"latent_channels", t->latent.channels},
        {"latent_frames", t->latent.frames},
        {"latent_height", t->latent.height},
        {"latent_width", t->latent.width},
        {"clips", facts->clips},
    };
    bool whole = cJSON_AddStringToObject(object, "dsv", DSV_VERSION) &&
                 cJSON_AddStringToObject(object, "device", t->backend->device->name);
    for (size_t i = 0; i < sizeof number / sizeof *number && whole; i++)
        whole = run_facts_add_number(object, number[i].name, (double)number[i].value);
    return whole;
}

DsvStatus dsvi_run_facts_write(const DsviRunFacts *facts, const char *path)
{
    cJSON *object = cJSON_CreateObject();
    bool whole = object && add_model(object, facts) && run_facts_add_memory(object, facts);
    char *text = whole ? cJSON_Print(object) : NULL;
    DsvStatus status = text ? dsvi_file_replace(path, text, strlen(text))
                            : DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the facts of the run", path);
    cJSON_free(text);
    cJSON_Delete(object);
    return status;
}
