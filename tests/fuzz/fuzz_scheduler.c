/* Fuzzes scheduler_config.json of a published model. */
#include "sample/scheduler_config.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    DsviSchedulerConfig config;
    fuzz_files_clear();
    fuzz_file_put("scheduler_config.json", data, size);
    if (dsvi_scheduler_config_read(FUZZ_ROOT "/scheduler_config.json", &config) != DSV_OK)
        return 0;
    fuzz_accept();
    fuzz_expect(config.flow_shift > 0 && config.flow_shift <= 100);
    fuzz_expect(strcmp(config.sampler, "unipc") == 0 || strcmp(config.sampler, "euler") == 0);
    return 0;
}
