/* Fuzzes a VAE's config.json. The layers of an accepted configuration must fit together. */
#include "fuzz.h"
#include "model/vae/vae_parts.h"

static void check_half(const DsviVaeConfig *config, bool decode)
{
    DsviVaeHalf half;
    fuzz_expect(dsvi_vae_half_make(config, decode, &half) == DSV_OK);
    fuzz_expect(half.count > 1 && half.split > 0 && half.split < half.count);
    for (int64_t i = 0; i < half.count; i++) {
        const DsviVaeStage *stage = &half.stages[i];
        fuzz_expect(stage->in > 0 && stage->out > 0);
        fuzz_expect(stage->kind == DSVI_VAE_SAVE ? stage->shortcut > 0 : stage->conv[0].out > 0);
        fuzz_expect(i == 0 || half.stages[i - 1].out == stage->in);
    }
    for (int64_t i = 0; i < half.param_count; i++)
        fuzz_expect(half.params[i].where && half.params[i].ndim > 0);
    dsvi_vae_half_free(NULL, &half);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    DsviVaeConfig config;
    int64_t temporal, spatial;
    fuzz_files_clear();
    fuzz_file_put("config.json", data, size);
    if (dsvi_vae_config_read(FUZZ_ROOT "/config.json", &config) != DSV_OK)
        return 0;
    fuzz_accept();
    dsvi_vae_factors(&config, &temporal, &spatial);
    fuzz_expect(dsvi_vae_check_size(&config, 1 + temporal, spatial, spatial) == DSV_OK);
    check_half(&config, false);
    check_half(&config, true);
    return 0;
}
