/* Fuzzes a LoRA file, for a layer of a model with four inputs and two outputs: an accepted LoRA is added to
 * the layer's weight and bias, and its names are written and read again in all forms. */
#include "fuzz.h"
#include "model/lora/lora.h"

static void add_to_layer(const DsviLora *lora, const char *name, int64_t rows, int64_t count)
{
    DsviLoraChange change;
    float *values = calloc((size_t)count, sizeof *values); /* on the heap: a write past its end is detected */
    fuzz_expect(values);
    if (dsvi_lora_change(lora, name, rows, count, &change) == DSV_OK && change.layer)
        (void)dsvi_lora_add(lora, &change, 0.5, values);
    free(values);
}

static void check_names(const DsviLoraLayer *layer)
{
    char name[DSVI_LORA_NAME_BYTES], back[DSVI_LORA_NAME_BYTES];
    DsviLoraPart part;
    for (int form = DSVI_LORA_COMFY; form <= DSVI_LORA_KOHYA; form++) {
        fuzz_expect(dsvi_lora_name_make((DsviLoraForm)form, layer->name, DSVI_LORA_B, name) == DSV_OK);
        fuzz_expect(dsvi_lora_name_parse(name, back, &part));
        fuzz_expect(part == DSVI_LORA_B && strcmp(back, layer->name) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    DsviLora lora;
    fuzz_files_clear();
    fuzz_file_put("a.safetensors", data, size);
    if (dsvi_lora_open(FUZZ_ROOT "/a.safetensors", &lora) != DSV_OK)
        return 0;
    fuzz_accept();
    for (size_t i = 0; i < lora.count; i++)
        check_names(&lora.layers[i]);
    add_to_layer(&lora, "blocks.0.attn1.to_q.weight", 2, 8);
    add_to_layer(&lora, "blocks.0.attn1.to_q.bias", 2, 2);
    dsvi_lora_close(&lora);
    return 0;
}
