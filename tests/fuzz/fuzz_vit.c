/* Fuzzes an image encoder: its config.json, its weights, and the preprocessor_config.json of its pictures.
 * All weights of an accepted model can be read, and an accepted processor prepares a small picture. */
#include "model/vit/vit_internal.h"
#include "fuzz.h"

static void read_all(const DsviVitWeights *weights, const DsviVitConfig *config)
{
    volatile float sum = 0;
    float value;
    for (int64_t i = 0; i < config->num_hidden_layers; i++)
        for (int part = 0; part < DSVI_VIT_PARTS; part++) {
            const DsviStoredTensor *tensor = weights->layers[i].weight[part];
            int64_t shape[2];
            dsvi_vit_part_shape(config, part, shape);
            fuzz_expect(tensor->count == shape[0] * shape[1]);
            fuzz_expect(weights->layers[i].bias[part]->count == shape[0]);
            for (int64_t n = 0; n < tensor->count; n++) {
                dsvi_tensor_set_read(weights->set, tensor, n, 1, DSVI_F32, &value);
                sum = sum + value;
            }
        }
    fuzz_expect(weights->positions->count == dsvi_vit_rows(config) * config->hidden_size);
}

static bool encoder_is_good(void)
{
    DsviVitConfig config;
    DsviVitWeights weights;
    const bool good = dsvi_vit_weights_open(FUZZ_ROOT, &config, &weights) == DSV_OK;
    if (good) {
        fuzz_expect(dsvi_vit_is(FUZZ_ROOT));
        read_all(&weights, &config);
    }
    dsvi_vit_weights_close(&weights);
    return good;
}

static bool processor_is_good(void)
{
    enum { LARGEST = 64 }; /* larger pictures take long and show nothing else */
    static const uint8_t rgb[3 * 2 * 3] = {0, 255, 7};
    DsviVitProcessor processor;
    if (dsvi_vit_processor_read(FUZZ_ROOT "/preprocessor_config.json", &processor) != DSV_OK)
        return false;
    if (processor.shortest_edge <= LARGEST) {
        float *pixels = malloc((size_t)(3 * processor.crop * processor.crop) * sizeof *pixels);
        fuzz_expect(pixels && dsvi_vit_prepare(&processor, 2, 3, rgb, pixels) == DSV_OK);
        free(pixels);
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"config.json", "preprocessor_config.json", "model.safetensors"};
    fuzz_files_put_parts(names, 3, data, size);
    const bool encoder = encoder_is_good();
    if (processor_is_good() && encoder)
        fuzz_accept();
    fuzz_files_clear();
    return 0;
}
