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
    bool measured;  /* the nominal speeds of device_speeds.h were measured on this card */
} Card;

static const Card CARD[] = {
    {"rtx3090", "NVIDIA GeForce RTX 3090", 23.6, false},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 23.5, false},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 31.3, false},
    {"l40s", "NVIDIA L40S", 44.3, false},
    {"a100-40", "NVIDIA A100 with 40 GB", 39.3, false},
    {"a100-80", "NVIDIA A100 with 80 GB", 79.1, false},
    {"h100", "NVIDIA H100 with 80 GB", 79.1, true},
    {"h200", "NVIDIA H200", 139.7, false},
    {"b200", "NVIDIA B200", 178.3, false},
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
            .speeds = dsvi_device_speeds_nominal(),
            .memory_gib = card->memory_gib,
            .used_gib = CONTEXT_GIB,
        };
        out->speeds.assumed = !card->measured;
        return DSV_OK;
    }
    return DSVI_FAIL(DSV_E_USAGE, "%.64s is no card that dsv knows, expected one of %s", name, names);
}
