/* Fuzzes a text encoder: its config.json and its weights, as a folder and as a single file. All weights of an
 * accepted model can be read. */
#include "model/umt5/umt5_internal.h"
#include "fuzz.h"

static void read_all(const DsviUmt5Weights *weights, const DsviUmt5Config *config)
{
    enum { REACH = 3 };
    volatile float sum = 0;
    float value, *bias = malloc((size_t)config->num_heads * (2 * REACH + 1) * sizeof *bias);
    fuzz_expect(bias);
    for (int64_t i = 0; i < config->num_layers; i++) {
        for (int part = 0; part < DSVI_UMT5_PARTS; part++) {
            const DsviStoredTensor *tensor = weights->layers[i][part];
            fuzz_expect(tensor->count == dsvi_umt5_part_elements(config, (DsviUmt5Part)part));
            for (int64_t n = 0; n < tensor->count; n++) {
                dsvi_tensor_set_read(weights->set, tensor, n, 1, DSVI_F32, &value);
                sum = sum + value;
            }
        }
        dsvi_umt5_bias(weights, config, i, REACH, bias);
    }
    fuzz_expect(weights->embedding->count == config->vocab_size * config->d_model);
    fuzz_expect(weights->final_norm->count == config->d_model);
    free(bias);
}

static void try_path(const char *path)
{
    DsviUmt5Config config;
    DsviUmt5Weights weights;
    if (dsvi_umt5_weights_open(path, &config, &weights) == DSV_OK) {
        fuzz_accept();
        fuzz_expect(dsvi_umt5_is(path));
        read_all(&weights, &config);
    }
    dsvi_umt5_weights_close(&weights);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    fuzz_files_put_parts(names, 2, data, size);
    try_path(FUZZ_ROOT);
    try_path(FUZZ_ROOT "/model.safetensors");
    fuzz_files_clear();
    return 0;
}
