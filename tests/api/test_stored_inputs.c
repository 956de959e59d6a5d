/* Wrong inputs of users: tensors of an unsupported dtype, an invalid grid, an output path that cannot be
 * written. */
#include "test.h"

#include "bench/bench_heads.h"
#include "base/safetensors.h"
#include "base/scratch.h"
#include "dsv/dsv.h"
#include "golden/golden_files.h"

enum { HEADS = 2, TOKENS = 12, SIZE = 4, COUNT = HEADS * TOKENS * SIZE };

static const char *write_heads(DsviDtype q, const char *grid)
{
    static const int64_t zeros[COUNT];
    static const char *const names[3] = {"q", "k", "v"};
    const char *const metadata[1][2] = {{"grid", grid}}, *path = scratch_path("heads.safetensors");
    DsviStoredTensor tensor[3];
    for (int i = 0; i < 3; i++) {
        DsviDtype dtype = i == 0 ? q : DSVI_F32;
        tensor[i] = (DsviStoredTensor){
            .name = names[i],
            .dtype = dtype,
            .ndim = 3,
            .shape = {HEADS, TOKENS, SIZE},
            .count = COUNT,
            .bytes = COUNT * dsvi_dtype_size(dtype),
            .data = zeros,
        };
    }
    assert_ok(dsvi_safetensors_write(path, tensor, 3, metadata, grid ? 1 : 0));
    return path;
}

static DsvStatus open_heads(DsviDtype q, const char *grid, DsviBenchHeads *heads)
{
    DsvBenchLists lists = dsvi_bench_lists_defaults();
    lists.heads_from = write_heads(q, grid);
    DsvStatus status = dsvi_bench_heads_open(&lists, heads);
    dsvi_bench_heads_close(heads);
    return status;
}

static void heads_have_a_dtype_and_a_grid(void **state)
{
    static const char *const no_grid[] = {"-1x-1x12", "-2x-6x1", "0x3x4", "5x2x1",
                                          "3x2x3",    "12",      "1x1x",  "4294967297x1x12"};
    DsviBenchHeads heads;
    (void)state;
    assert_fails(DSV_E_SHAPE, "heads.safetensors: tensor q is I64, expected a floating dtype",
                 open_heads(DSVI_I64, NULL, &heads));
    for (size_t i = 0; i < sizeof no_grid / sizeof *no_grid; i++)
        assert_fails(DSV_E_FORMAT, "expected FxHxW with 12 cells", open_heads(DSVI_F32, no_grid[i], &heads));
    assert_ok(open_heads(DSVI_F32, "3x2x2", &heads));
    assert_true(heads.grid[0] == 3 && heads.grid[1] == 2 && heads.grid[2] == 2);
    assert_ok(open_heads(DSVI_F32, NULL, &heads));
    assert_true(heads.grid[0] == 1 && heads.grid[1] == 1 && heads.grid[2] == TOKENS);
}

static void text_rows_are_of_a_floating_dtype(void **state)
{
    enum { ROWS = 512, WIDTH = 48 }; /* shape of the model's text rows */
    static const uint8_t zeros[ROWS * WIDTH];
    const DsviStoredTensor rows = {
        .name = "encoder_hidden_states",
        .dtype = DSVI_U8,
        .ndim = 2,
        .shape = {ROWS, WIDTH},
        .count = ROWS * WIDTH,
        .bytes = sizeof zeros,
        .data = zeros,
    };
    const char *path = scratch_path("text.safetensors");
    DsvConfig settings;
    (void)state;
    assert_ok(dsvi_safetensors_write(path, &rows, 1, NULL, 0));
    dsv_config_defaults(&settings);
    assert_fails(DSV_E_SHAPE,
                 "text.safetensors: tensor encoder_hidden_states is U8, expected a floating dtype",
                 dsv_sample(golden_path("dit_a"), path, scratch_path("out.mp4"), &settings, NULL));
}

/* Refused before the model is opened. */
static void where_a_clip_goes_comes_first(void **state)
{
    DsvConfig settings;
    (void)state;
    dsv_config_defaults(&settings);
    assert_fails(DSV_E_NOT_FOUND, "nowhere/out.mp4: cannot write it: No such file",
                 dsv_sample("no-such-model", NULL, scratch_path("nowhere/out.mp4"), &settings, NULL));
    assert_fails(DSV_E_NOT_FOUND, "no-such-model",
                 dsv_sample("no-such-model", NULL, scratch_path("out.mp4"), &settings, NULL));
    assert_false(dsvi_path_exists(scratch_path("out.mp4.tmp")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_have_a_dtype_and_a_grid),
        cmocka_unit_test(text_rows_are_of_a_floating_dtype),
        cmocka_unit_test(where_a_clip_goes_comes_first),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
