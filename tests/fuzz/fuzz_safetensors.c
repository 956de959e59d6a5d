/* Fuzzes safetensors files: every tensor of an accepted file must be inside the file, aligned, and found by
 * its name. */
#include "base/safetensors.h"
#include "fuzz.h"

static void check_tensor(const DsviSafetensors *file, const DsviStoredTensor *tensor)
{
    const int64_t *shape = tensor->shape;
    const DsviStoredTensor *found;
    const unsigned char *bytes = tensor->data;
    volatile unsigned char byte = 0;
    volatile double sum = 0;
    fuzz_expect(dsvi_safetensors_find(file, tensor->name) == tensor);
    fuzz_expect((uintptr_t)tensor->data % dsvi_dtype_size(tensor->dtype) == 0);
    fuzz_expect((size_t)tensor->count * dsvi_dtype_size(tensor->dtype) == tensor->bytes);
    for (size_t i = 0; i < tensor->bytes; i++)
        byte = byte ^ bytes[i];
    bool floating = dsvi_dtype_is_floating(tensor->dtype);
    for (int64_t i = 0; floating && i < tensor->count; i++)
        sum = sum + dsvi_load(tensor->dtype, tensor->data, i);
    DsvStatus status = dsvi_safetensors_require_floating(file, tensor->name, tensor->ndim, shape, &found);
    fuzz_expect((status == DSV_OK) == floating);
    fuzz_expect(dsvi_safetensors_require(file, tensor->name, tensor->ndim + 1, shape, &found) != DSV_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    DsviSafetensors *file;
    fuzz_files_clear();
    fuzz_file_put("a.safetensors", data, size);
    if (dsvi_safetensors_open(FUZZ_ROOT "/a.safetensors", &file) != DSV_OK)
        return 0;
    fuzz_accept();
    for (size_t i = 0; i < dsvi_safetensors_count(file); i++)
        check_tensor(file, dsvi_safetensors_at(file, i));
    (void)dsvi_safetensors_metadata(file, "xxh3");
    dsvi_safetensors_close(&file);
    return 0;
}
