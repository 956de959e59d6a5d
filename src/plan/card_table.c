/* Implements card_table.h. */
#include "plan/card_table.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* What a CUDA context and loaded kernels take before a run: on an H200, the least of the measured amounts
 * (docs/gpu.md). */
static const double CONTEXT_GIB = 0.6;

typedef struct Card {
    const char *name, *title;
    double
        memory_gib; /* that CUDA reports in all, rounded down; the driver keeps the rest of the nominal GB */
    bool measured;  /* the speeds were measured on this card */
    DsviDeviceSpeeds speeds; /* rounded; flops 0: those of dsvi_device_speeds_nominal */
} Card;

static const Card CARD[] = {
    {.name = "rtx3090", .title = "NVIDIA GeForce RTX 3090", .memory_gib = 23.6},
    {.name = "rtx4090", .title = "NVIDIA GeForce RTX 4090", .memory_gib = 23.5},
    {.name = "rtx5090", .title = "NVIDIA GeForce RTX 5090", .memory_gib = 31.3},
    {.name = "l40s", .title = "NVIDIA L40S", .memory_gib = 44.3},
    {.name = "a100-40", .title = "NVIDIA A100 with 40 GB", .memory_gib = 39.3},
    {.name = "a100-80", .title = "NVIDIA A100 with 80 GB", .memory_gib = 79.1},
    {.name = "h100", .title = "NVIDIA H100 with 80 GB", .memory_gib = 79.1, .measured = true},
    {.name = "h200",
     .title = "NVIDIA H200",
     .memory_gib = 139.7,
     .measured = true,
     .speeds = {.flops = 7.2e14, .memory = 2.5e12, .link = 5.4e10, .update = 1.45e11}},
    {.name = "b200", .title = "NVIDIA B200", .memory_gib = 178.3},
};
enum { CARDS = sizeof CARD / sizeof *CARD };

DsvStatus dsvi_card_find(const char *name, DsviDeviceTable *out)
{
    char names[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < CARDS; i++) {
        const Card *card = &CARD[i];
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", card->name);
        if (strcmp(name, card->name) != 0)
            continue;
        *out = (DsviDeviceTable){
            .name = card->title,
            .speeds = card->speeds.flops > 0 ? card->speeds : dsvi_device_speeds_nominal(),
            .memory_gib = card->memory_gib,
            .used_gib = CONTEXT_GIB,
        };
        out->speeds.assumed = !card->measured;
        return DSV_OK;
    }
    return DSVI_FAIL(DSV_E_USAGE, "%.64s is no card that dsv knows, expected one of %s", name, names);
}
