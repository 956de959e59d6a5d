/* Fuzzes dsv_inspect on a safetensors file, a latent cache and a run folder. */
#include "dsv/inspect.h"
#include "data/clip.h"
#include "fuzz.h"

DsvStatus __wrap_dsvi_clip_probe(const char *path, DsviClipInfo *info);

/* The linker replaces dsvi_clip_probe by this function, since fuzz_clip.c fuzzes clips. */
DsvStatus __wrap_dsvi_clip_probe(const char *path, DsviClipInfo *info)
{
    (void)info;
    return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: no clips here", path);
}

static void take_line(void *context, const char *line)
{
    (void)context;
    fuzz_expect(strlen(line) < 1 << 16);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"cache/a.safetensors", "cache/index.json", "run/metrics.jsonl",
                                        "run/checkpoint-1/state.json", "run/checkpoint-1/manifest.json"};
    fuzz_files_put_parts(names, 5, data, size);
    if (dsv_inspect(FUZZ_ROOT "/cache/a.safetensors", take_line, NULL) == DSV_OK)
        fuzz_accept();
    (void)dsv_inspect(FUZZ_ROOT "/cache", take_line, NULL);
    (void)dsv_inspect(FUZZ_ROOT "/run", take_line, NULL);
    return 0;
}
