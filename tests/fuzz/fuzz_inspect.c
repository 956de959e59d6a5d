/* dsv_inspect over a safetensors file, a latent cache and a run's folder. */
#include "dsv/inspect.h"
#include "data/clip.h"
#include "fuzz.h"

DsvStatus __wrap_dsvi_clip_probe(const char *path, DsvClipInfo *info);

/* The linker puts this function in place of the decoder's: fuzz_clip.c is for clips. */
DsvStatus __wrap_dsvi_clip_probe(const char *path, DsvClipInfo *info)
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
