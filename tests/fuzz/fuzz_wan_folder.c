/* Fuzzes how a published folder is recognised: model_index.json and the configurations of two parts in the
 * layout of diffusers, and a safetensors file whose tensors tell what it holds. */
#include "model/folder/wan_folder.h"
#include "model/weights/weights.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"d/model_index.json", "d/transformer/config.json",
                                        "d/vae/config.json", "c/a.safetensors"};
    DsviWanFolder folder;
    DsviDitConfig config;
    bool found = false;
    fuzz_files_put_parts(names, 4, data, size);
    if (dsvi_wan_folder_find(FUZZ_ROOT "/d", NULL, &folder, &found) == DSV_OK && found &&
        dsvi_wan_folder_check(&folder) == DSV_OK && dsvi_wan_folder_config(&folder, &config) == DSV_OK)
        fuzz_accept();
    (void)dsvi_wan_folder_find(FUZZ_ROOT "/c/a.safetensors", NULL, &folder, &found);
    if (dsvi_weights_config(FUZZ_ROOT "/c/a.safetensors", &config) == DSV_OK)
        fuzz_expect(config.num_layers > 0 && config.in_channels == 16);
    return 0;
}
