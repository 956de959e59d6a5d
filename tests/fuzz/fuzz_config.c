/* Fuzzes options from YAML and from key=value arguments. An accepted configuration must be equal, byte for
 * byte, after dsv_config_save and reading. */
#include "base/option_hint.h"
#include "dsv/config.h"
#include "fuzz.h"

void __real_dsvi_option_advice(const char *key, char text[DSVI_HINT_BYTES]);
void __wrap_dsvi_option_advice(const char *key, char text[DSVI_HINT_BYTES]);

/* The search for similar option names takes a hundred times as long as all other work, so it runs for one
 * key length in sixteen. */
void __wrap_dsvi_option_advice(const char *key, char text[DSVI_HINT_BYTES])
{
    if (strlen(key) % 16 == 3)
        __real_dsvi_option_advice(key, text);
    else
        text[0] = 0;
}

static void round_trip(const DsvConfig *config)
{
    static DsvConfig again;
    dsv_config_defaults(&again);
    fuzz_expect(dsv_config_save(config, FUZZ_ROOT "/saved.yaml") == DSV_OK);
    fuzz_expect(dsv_config_load(&again, FUZZ_ROOT "/saved.yaml") == DSV_OK);
    fuzz_expect(memcmp(config, &again, sizeof again) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static DsvConfig config;
    static char text[1 << 12];
    size_t length = size < sizeof text ? size : sizeof text - 1;
    bool changed = false;
    fuzz_files_clear();
    fuzz_file_put("a.yaml", data, size);
    dsv_config_defaults(&config);
    if (dsv_config_load(&config, FUZZ_ROOT "/a.yaml") == DSV_OK) {
        fuzz_accept();
        changed = true;
    }
    memcpy(text, data, length); /* each line is also used as an argument */
    text[length] = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        changed |= dsv_config_set(&config, line) == DSV_OK;
    if (changed)
        round_trip(&config);
    return 0;
}
