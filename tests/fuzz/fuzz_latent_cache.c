/* Fuzzes a latent cache: its index, the file of one window, the file of one text's states, and the
 * hashes of clips. Windows that
 * an open cache lists are found in it, and a rewritten index has as many windows. */
#include "data/latent_cache.h"
#include "fuzz.h"

#define KEY "00000000000000000000000000000000"

static void use(DsviLatentCache *cache)
{
    float latent[64];
    const DsviClipWindow window = {.start = 0, .crop_x = 0.5, .crop_y = 0.5};
    for (int64_t i = 0; i < dsvi_latent_cache_count(cache); i++) {
        (void)dsvi_latent_cache_check(cache, i);
        (void)dsvi_latent_read(dsvi_latent_cache_file(cache, i), 4, latent);
        (void)dsvi_latent_cache_has(cache, dsvi_latent_cache_source(cache, i), &window);
        const DsviCaptions *captions = dsvi_latent_cache_captions(cache, i);
        for (int64_t k = 0; k < captions->count; k++)
            fuzz_expect(captions->at[k].text && strlen(captions->at[k].states.hex) <= DSVI_HASH_KEY_DIGITS);
    }
}

static void read_states(void)
{
    enum { DIM = 2, ROWS = 4 };
    float rows[ROWS * DIM];
    int64_t count;
    DsviHashKey key;
    DsviTextStore store = {.folder = FUZZ_ROOT, .dtype = DSVI_F32, .dim = DIM};
    fuzz_expect(dsvi_hash_key_read(KEY, &key));
    bool has = dsvi_text_states_has(&store, &key);
    if (dsvi_text_states_read(&store, &key, ROWS, rows, &count) == DSV_OK)
        fuzz_expect(has && count >= 1 && count <= ROWS);
    store.dtype = DSVI_BF16;
    (void)dsvi_text_states_read(&store, &key, ROWS, rows, &count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"index.json", "a.safetensors", KEY ".safetensors", "hashes"};
    DsviLatentCache *cache;
    DsvConfig settings;
    int64_t count = -1;
    fuzz_files_put_parts(names, 4, data, size);
    read_states();
    (void)dsvi_latent_cache_is(FUZZ_ROOT);
    if (dsvi_latent_cache_open(FUZZ_ROOT, NULL, &cache) == DSV_OK) {
        fuzz_accept();
        count = dsvi_latent_cache_count(cache);
        use(cache);
        dsvi_latent_cache_close(&cache);
    }
    dsv_config_defaults(&settings);
    if (dsvi_latent_cache_create(FUZZ_ROOT, &settings, NULL, &cache) == DSV_OK) {
        fuzz_expect(dsvi_latent_cache_count(cache) == count);
        DsviLatentSource clip = {.path = "a.mp4", .stamp = {1, 2}};
        if (dsvi_latent_cache_recall(cache, &clip, 1) == DSV_OK)
            fuzz_expect(strlen(clip.content.hex) <= DSVI_HASH_KEY_DIGITS);
        dsvi_latent_cache_close(&cache);
    }
    return 0;
}
