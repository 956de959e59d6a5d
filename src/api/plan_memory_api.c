/* dsv_plan_memory (include/dsv/plan.h): plans the memory of training for a device that need not be there. The
 * layout is that of the CPU backend, which stands for the device. */
#include <stdio.h>

#include "backend/backend.h"
#include "base/config_abi.h"
#include "dsv/plan.h"
#include "plan/device_table.h"
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
    device->kind = DSVI_DEVICE_CUDA; /* its memory is not that of the host */
    device->name = "the described device";
    device->memory_bytes = (size_t)((table->memory_gib > 0 ? table->memory_gib : memory_gib) * GIB);
    device->memory_used = nothing_used;
    device->host_bytes = (size_t)(table->host_gib * GIB);
    device->host_available = whole_host;
}

DsvStatus dsv_plan_memory(const DsvMemoryQuestion *question, const DsvConfig *config, DsvLine *line,
                          void *context)
{
    DSVI_TRY(dsvi_config_check_abi(config));
    DsviDeviceTable table = {.speeds = dsvi_device_speeds_nominal()};
    DsvConfig settings = *config;
    DsviBackend backend;
    if (question->table)
        DSVI_TRY(dsvi_device_table_read(question->table, &table));
    if (question->memory_gib > 0)
        settings.memory_gib = question->memory_gib;
    if (settings.memory_gib <= 0 && table.memory_gib <= 0)
        return DSVI_FAIL(DSV_E_USAGE,
                         "the memory of the device is not given, expected a number of GiB, memory_gib or a "
                         "table of the device with memory_gib");
    DSVI_TRY(dsv_config_set(&settings, "device=cpu"));
    DSVI_TRY(dsv_config_set(&settings, "offload=auto"));
    DSVI_TRY(dsvi_expert_prepare(&settings, line, context));
    DSVI_TRY(dsvi_backend_open(&settings, &backend));
    pretend(&table, settings.memory_gib, backend.device);
    DsvStatus status = dsvi_preview_report(&settings, &backend, &table.speeds, line, context);
    dsvi_backend_close(&backend);
    return status;
}
