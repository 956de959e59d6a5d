/* Tensors of several files by name: conversions with scales, and an error for each way in which files do not
 * fit the model. */
#include "test.h"

#include "../base/scratch.h"
#include "model/weights/tensor_set.h"

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define WEIGHT "layer.weight"

static const float FLOATS[6] = {0, 1, -2, 3.140625f, 1e-3f, -70000};
static const unsigned char BYTES[6] = {0x00, 0x38, 0xc0, 0x01, 0x7e, 0x45}; /* 0 1 -2 2^-9 448 3.25 */
static const double BYTE_VALUES[6] = {0, 1, -2, 0x1p-9, 448, 3.25};

static DsviStoredTensor tensor_of(const char *name, DsviDtype dtype, int64_t rows, int64_t columns,
                                  const void *data)
{
    return (DsviStoredTensor){.name = name,
                              .dtype = dtype,
                              .ndim = 2,
                              .shape = {rows, columns},
                              .count = rows * columns,
                              .bytes = (size_t)(rows * columns) * dsvi_dtype_size(dtype),
                              .data = data};
}

static void write_tensor_file(const char *name, const DsviStoredTensor *tensors, size_t count)
{
    assert_ok(dsvi_safetensors_write(scratch_path(name), tensors, count, NULL, 0));
}

static void remove_set(void)
{
    static const char *const files[] = {"set/a.safetensors", "set/b.safetensors",
                                        "set/model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        unlink(scratch_path(files[i]));
}

static DsviTensorSet *open_one(const DsviStoredTensor *tensors, size_t count)
{
    DsviTensorSet *set;
    remove_set();
    assert_ok(dsvi_folder_make(scratch_path("set")));
    write_tensor_file("set/a.safetensors", tensors, count);
    assert_ok(dsvi_tensor_set_open(scratch_path("set"), &set));
    return set;
}

static void finds_tensors_of_all_shards(void **state)
{
    static const char index[] = "{\"weight_map\": {\"a\": \"a.safetensors\", \"b\": \"b.safetensors\"}}";
    const DsviStoredTensor a = tensor_of("a", DSVI_F32, 2, 3, FLOATS),
                           b = tensor_of("b", DSVI_F32, 3, 1, FLOATS);
    const DsviStoredTensor *found;
    DsviTensorSet *set;
    (void)state;
    remove_set();
    assert_ok(dsvi_folder_make(scratch_path("set")));
    write_tensor_file("set/a.safetensors", &a, 1);
    write_tensor_file("set/b.safetensors", &b, 1);
    assert_ok(dsvi_file_write(scratch_path("set/model.safetensors.index.json"), index, strlen(index)));
    assert_ok(dsvi_tensor_set_open(scratch_path("set"), &set));
    assert_null(dsvi_tensor_set_find(set, NAMES("absent")));
    assert_string_equal(dsvi_tensor_set_find(set, NAMES("absent", "b", "a"))->name, "b");
    assert_fails(DSV_E_SHAPE, "2 tensors are unknown, expected only those of the model: a, b",
                 dsvi_tensor_set_finish(set));
    assert_ok(dsvi_tensor_set_take(set, NAMES("a"), 2, (int64_t[]){2, -1}, &found));
    assert_fails(DSV_E_SHAPE, "1 tensor is unknown", dsvi_tensor_set_finish(set));
    dsvi_tensor_set_skip(set, "absent");
    dsvi_tensor_set_skip(set, "b");
    assert_ok(dsvi_tensor_set_finish(set));
    assert_fails(DSV_E_NOT_FOUND, "set: no tensor c",
                 dsvi_tensor_set_take(set, NAMES("c", "d"), -1, NULL, &found));
    assert_null(found);
    assert_fails(DSV_E_SHAPE, "b.safetensors: tensor b is",
                 dsvi_tensor_set_take(set, NAMES("b"), 1, (int64_t[]){3}, &found));
    dsvi_tensor_set_close(&set);
    assert_null(set);
    write_tensor_file("set/b.safetensors", &a, 1);
    assert_fails(DSV_E_FORMAT, "tensor a is in", dsvi_tensor_set_open(scratch_path("set"), &set));
    assert_null(set);
    dsvi_tensor_set_close(&set);
}

static void converts_a_part(void **state)
{
    const DsviStoredTensor tensor = tensor_of(WEIGHT, DSVI_F32, 2, 3, FLOATS);
    const DsviStoredTensor *found;
    float values[2];
    uint16_t rounded[2];
    DsviTensorSet *set = open_one(&tensor, 1);
    (void)state;
    assert_ok(dsvi_tensor_set_take(set, NAMES(WEIGHT), -1, NULL, &found));
    dsvi_tensor_set_read(set, found, 3, 2, DSVI_F32, values);
    dsvi_tensor_set_read(set, found, 3, 2, DSVI_BF16, rounded);
    for (int i = 0; i < 2; i++) {
        assert_true(values[i] == FLOATS[3 + i]);
        assert_int_equal(rounded[i], dsvi_f32_to_bf16(FLOATS[3 + i]));
    }
    dsvi_tensor_set_close(&set);
}

/* Reads an F8 tensor beside which the file has a scale of this name, or none if NULL. */
static void check_scale(const char *scale_name, double scale)
{
    const float number = (float)scale;
    const DsviStoredTensor tensors[] = {
        tensor_of(scale_name ? scale_name : "other", DSVI_F32, 1, 1, &number),
        tensor_of("layer.scale_input", DSVI_F32, 1, 1, &number),
        tensor_of(WEIGHT, DSVI_F8_E4M3, 3, 2, BYTES),
    };
    const DsviStoredTensor *found;
    float values[6];
    DsviTensorSet *set = open_one(tensors, 3);
    assert_ok(dsvi_tensor_set_take(set, NAMES(WEIGHT), 2, (int64_t[]){3, 2}, &found));
    dsvi_tensor_set_read(set, found, 0, 6, DSVI_F32, values);
    for (int i = 0; i < 6; i++)
        assert_true(values[i] == (float)((scale_name ? (double)number : 1) * BYTE_VALUES[i]));
    if (!scale_name)
        dsvi_tensor_set_skip(set, "other");
    assert_ok(dsvi_tensor_set_finish(set));
    dsvi_tensor_set_close(&set);
}

static void multiplies_f8_by_its_scale(void **state)
{
    (void)state;
    check_scale(NULL, 0.3);
    check_scale("layer.scale_weight", 0.3);
    check_scale("layer.weight_scale", 1.7);
}

static void refuses_unusable_tensors(void **state)
{
    const float numbers[2] = {1, INFINITY};
    const DsviStoredTensor *found;
    (void)state;
    for (int bad = 0; bad < 3; bad++) {
        const DsviStoredTensor tensors[] = {
            tensor_of("layer.scale_weight", DSVI_F32, 1, bad == 0 ? 2 : 1, numbers + (bad == 1)),
            tensor_of(WEIGHT, bad == 2 ? DSVI_U8 : DSVI_F8_E4M3, 3, 2, BYTES),
        };
        static const char *const words[] = {"scale layer.scale_weight has 2 numbers, expected one",
                                            "scale layer.scale_weight is not finite",
                                            "tensor layer.weight is U8, expected a floating dtype"};
        static const DsvStatus wanted[] = {DSV_E_UNSUPPORTED, DSV_E_FORMAT, DSV_E_SHAPE};
        DsviTensorSet *set = open_one(tensors, 2);
        assert_fails(wanted[bad], words[bad], dsvi_tensor_set_take(set, NAMES(WEIGHT), -1, NULL, &found));
        dsvi_tensor_set_close(&set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_tensors_of_all_shards),
        cmocka_unit_test(converts_a_part),
        cmocka_unit_test(multiplies_f8_by_its_scale),
        cmocka_unit_test(refuses_unusable_tensors),
    };
    return cmocka_run_group_tests_name("tensor_set", tests, scratch_make, scratch_remove);
}
