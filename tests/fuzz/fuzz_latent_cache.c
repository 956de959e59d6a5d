/* Fuzzes a latent cache: its index and the file of one window. Windows that an open cache lists are found in
 * it, and a rewritten index has as many windows. */
#include "data/latent_cache.h"
#include "fuzz.h"

static void use(DsviLatentCache *cache)
{
    float latent[64];
    const DsviClipWindow window = {.start = 0, .crop_x = 0.5, .crop_y = 0.5};
    for (int64_t i = 0; i < dsvi_latent_cache_count(cache); i++) {
        (void)dsvi_latent_cache_check(cache, i);
        (void)dsvi_latent_read(dsvi_latent_cache_file(cache, i), 4, latent);
        (void)dsvi_latent_cache_has(cache, dsvi_latent_cache_source(cache, i), &window);
        (void)dsvi_latent_cache_text(cache, i);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"index.json", "a.safetensors"};
    DsviLatentCache *cache;
    DsvConfig settings;
    int64_t count = -1;
    fuzz_files_put_parts(names, 2, data, size);
    (void)dsvi_latent_cache_is(FUZZ_ROOT);
    if (dsvi_latent_cache_open(FUZZ_ROOT, NULL, &cache) == DSV_OK) {
        fuzz_accept();
        count = dsvi_latent_cache_count(cache);
        use(cache);
        dsvi_latent_cache_close(&cache);
    }
    dsv_config_defaults(&settings);
    if (dsvi_latent_cache_create(FUZZ_ROOT, &settings, &cache) == DSV_OK) {
        fuzz_expect(dsvi_latent_cache_count(cache) == count);
        dsvi_latent_cache_close(&cache);
    }
    return 0;
}
