/* dsv_plan_memory (include/dsv/plan.h): plans the memory of training for a device that need not be there. */
#include "api/described_device.h"
#include "base/config_abi.h"
#include "dsv/plan.h"
#include "plan/card_table.h"

DsvStatus dsv_plan_memory(const DsvMemoryQuestion *question, const DsvConfig *config, DsvLine *line,
                          void *context)
{
    DSVI_TRY(dsvi_config_check_abi(config));
    DsviDeviceTable table = {.speeds = dsvi_device_speeds_nominal()};
    DsvConfig settings = *config;
    if (question->table && question->card)
        return DSVI_FAIL(DSV_E_USAGE, "the table %.512s and the card %.64s are given, expected one of them",
                         question->table, question->card);
    if (question->table)
        DSVI_TRY(dsvi_device_table_read(question->table, &table));
    if (question->card)
        DSVI_TRY(dsvi_card_find(question->card, &table));
    if (question->memory_gib > 0)
        settings.memory_gib = question->memory_gib;
    if (settings.memory_gib <= 0 && table.memory_gib <= 0)
        return DSVI_FAIL(
            DSV_E_USAGE,
            "the memory of the device is not given, expected a number of GiB, memory_gib, a card or "
            "a table of the device with memory_gib");
    DSVI_TRY(dsv_config_set(&settings, "offload=auto"));
    return dsvi_described_preview(&table, &settings, line, context);
}
