/* Implements card_table.h. */
#include "plan/card_table.h"

#include <stdio.h>
#include <string.h>

#include "dsv/plan.h"

/* What a CUDA context and loaded kernels take before a run: on an H200, the least of the measured amounts
 * (docs/gpu.md). */
static const double CONTEXT_GIB = 0.6;

typedef struct Card {
    DsvCardInfo info;
    DsviDeviceSpeeds speeds; /* rounded; flops 0: those of dsvi_device_speeds_nominal */
} Card;

static const Card CARD[] = {
    {.info = {"rtx3090", "NVIDIA GeForce RTX 3090", 23.6, false}},
    {.info = {"rtx4090", "NVIDIA GeForce RTX 4090", 23.5, false}},
    {.info = {"rtx5090", "NVIDIA GeForce RTX 5090", 31.3, false}},
    {.info = {"l40s", "NVIDIA L40S", 44.3, false}},
    {.info = {"a100-40", "NVIDIA A100 with 40 GB", 39.3, false}},
    {.info = {"a100-80", "NVIDIA A100 with 80 GB", 79.1, false}},
    {.info = {"h100", "NVIDIA H100 with 80 GB", 79.1, true}},
    {.info = {"h200", "NVIDIA H200", 139.7, true},
     .speeds = {.flops = 7.2e14, .memory = 2.5e12, .link = 5.4e10, .update = 1.45e11}},
    {.info = {"b200", "NVIDIA B200", 178.3, false}},
};
enum { CARDS = sizeof CARD / sizeof *CARD };

const DsvCardInfo *dsv_card_info(size_t index)
{
    return index < CARDS ? &CARD[index].info : NULL;
}

DsvStatus dsvi_card_find(const char *name, DsviDeviceTable *out)
{
    char names[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < CARDS; i++) {
        const Card *card = &CARD[i];
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", card->info.name);
        if (strcmp(name, card->info.name) != 0)
            continue;
        *out = (DsviDeviceTable){
            .name = card->info.title,
            .speeds = card->speeds.flops > 0 ? card->speeds : dsvi_device_speeds_nominal(),
            .memory_gib = card->info.memory_gib,
            .used_gib = CONTEXT_GIB,
        };
        out->speeds.assumed = !card->info.measured;
        return DSV_OK;
    }
    return DSVI_FAIL(DSV_E_USAGE, "%.64s is no card that dsv knows, expected one of %s", name, names);
}
