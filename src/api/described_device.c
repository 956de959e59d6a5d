/* Implements described_device.h. */
#include "api/described_device.h"

#include <stdio.h>

#include "backend/backend.h"
#include "run/expert.h"
#include "run/preview.h"

static const double GIB = 1073741824.0;

static size_t nothing_used(DsviDevice *device)
{
    (void)device;
    return 0;
}

/* Returns the memory of the described host; 0: not described. */
static size_t whole_host(DsviDevice *device)
{
    return device->host_bytes;
}

/* Makes the device of a backend look like the one that is asked about. */
static void pretend(const DsviDeviceTable *table, double memory_gib, DsviDevice *device)
{
    double gib = table->memory_gib > 0 ? table->memory_gib - table->used_gib : memory_gib;
    device->kind = DSVI_DEVICE_CUDA; /* its memory is not that of the host */
    device->name = table->name ? table->name : "the described device";
    device->memory_bytes = (size_t)(gib * GIB);
    device->memory_used = nothing_used;
    device->host_bytes = (size_t)(table->host_gib * GIB);
    device->host_available = whole_host;
}

/* Says what is known of a card. */
static void report_card(const DsviDeviceTable *table, void (*line)(void *context, const char *text),
                        void *context)
{
    char text[256];
    snprintf(
        text, sizeof text,
        "%s: %g GiB, of which the driver needs about %g GiB for the program; working memory of kernels is "
        "not planned",
        table->name, table->memory_gib, table->used_gib);
    line(context, text);
    if (table->speeds.assumed)
        line(context, "no times are given: the speeds of this card were not measured");
}

DsvStatus dsvi_described_preview(const DsviDeviceTable *table, const DsvConfig *config,
                                 void (*line)(void *context, const char *text), void *context)
{
    DsvConfig settings = *config;
    DsviBackend backend;
    DSVI_TRY(dsv_config_set(&settings, "device=cpu"));
    DSVI_TRY(dsvi_expert_prepare(&settings, line, context));
    DSVI_TRY(dsvi_backend_open(&settings, &backend));
    pretend(table, settings.memory_gib, backend.device);
    if (table->name)
        report_card(table, line, context);
    DsvStatus status = dsvi_preview_report(&settings, &backend, &table->speeds, line, context);
    dsvi_backend_close(&backend);
    return status;
}
