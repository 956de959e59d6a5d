/* Fuzzes a folder of weights: the index of shards and one shard, for a model of a few small tensors. */
#include "model/weights/weights.h"
#include "model/weights/weights_files.h"
#include "fuzz.h"

enum { ELEMENTS = 96 };

static DsviParam params[] = {
    {.name = "patch_embedding.weight", .ndim = 2, .shape = {2, 2}, .count = 4, .offset = 0},
    {.name = "blocks.0.attn1.to_q.weight",
     .original = "blocks.0.self_attn.q.weight",
     .ndim = 2,
     .shape = {2, 2},
     .count = 4,
     .offset = 16},
    {.name = "blocks.0.attn1.to_k.weight",
     .original = "blocks.0.self_attn.k.weight",
     .ndim = 2,
     .shape = {2, 2},
     .count = 4,
     .offset = 32},
    {.name = "blocks.0.attn1.to_v.weight",
     .original = "blocks.0.self_attn.v.weight",
     .ndim = 2,
     .shape = {2, 2},
     .count = 4,
     .offset = 48},
    {.name = "blocks.0.norm2.weight",
     .original = "blocks.0.norm3.weight",
     .ndim = 1,
     .shape = {2},
     .count = 2,
     .offset = 64},
    {.name = "scale_shift_table",
     .original = "head.modulation",
     .ndim = 3,
     .shape = {1, 2, 1},
     .count = 2,
     .offset = 80},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {DSVI_WEIGHTS_INDEX, "a.safetensors"};
    int64_t begin[2] = {0, ELEMENTS};
    const DsviParamTable table = {.params = params,
                                  .count = sizeof params / sizeof *params,
                                  .elements = ELEMENTS,
                                  .parameters = 20,
                                  .buckets = 1,
                                  .begin = begin};
    float *flat = malloc(ELEMENTS * sizeof *flat); /* on the heap, so that a write past the end is detected */
    fuzz_expect(flat);
    fuzz_files_put_parts(names, 2, data, size);
    if (dsvi_weights_read(FUZZ_ROOT, &table, flat) == DSV_OK) {
        fuzz_accept();
        for (int64_t i = 4; i < 16; i++)
            fuzz_expect(flat[i] == 0); /* padding stays 0 */
    }
    (void)dsvi_flat_read(FUZZ_ROOT "/a.safetensors", &table, "exp_avg", flat);
    free(flat);
    return 0;
}
