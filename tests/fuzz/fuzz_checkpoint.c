/* Fuzzes the search and check of checkpoints: manifest.json, state.json and `latest` of a run folder. */
#include "run/checkpoint.h"
#include "run/manifest.h"
#include "fuzz.h"

static void quiet(void *context, const char *line)
{
    (void)context;
    fuzz_expect(strlen(line) < 1 << 14);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"checkpoint-7/manifest.json", "checkpoint-7/state.json", "latest"};
    DsviCheckpointState state;
    char path[DSVI_PATH_MAX];
    bool found;
    fuzz_files_put_parts(names, 3, data, size);
    bool whole = dsvi_manifest_verify(FUZZ_ROOT "/checkpoint-7") == DSV_OK;
    if (dsvi_checkpoint_state(FUZZ_ROOT "/checkpoint-7", &state) == DSV_OK) {
        fuzz_expect(state.step >= 0 && state.data.count >= 0);
        if (whole)
            fuzz_accept();
    }
    if (dsvi_checkpoint_latest(FUZZ_ROOT, quiet, NULL, path, &found) == DSV_OK && found)
        fuzz_expect(whole && strcmp(path, FUZZ_ROOT "/checkpoint-7") == 0);
    return 0;
}
