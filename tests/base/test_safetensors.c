/* Safetensors: files of the writer and valid files of other writers are read. */
#include "safetensors_case.h"

#include "golden/golden_files.h"

/* Valid headers that some writers never make. */
static void unusual_files_are_read(void **state)
{
    DsviSafetensors *file;
    const DsviStoredTensor *t;
    (void)state;
    assert_ok(dsvi_safetensors_open(file_with("{}", 0), &file));
    assert_int_equal(dsvi_safetensors_count(file), 0);
    assert_null(dsvi_safetensors_find(file, "a"));
    assert_null(dsvi_safetensors_metadata(file, "format"));
    dsvi_safetensors_close(&file);
    assert_null(file);

    assert_ok(dsvi_safetensors_open(file_with("{\"__metadata__\":{}}", 0), &file));
    assert_null(dsvi_safetensors_metadata(file, "format"));
    dsvi_safetensors_close(&file);

    /* Blanks everywhere, the parts of an entry in another order and with an extra part, names with any
     * letters. */
    assert_ok(dsvi_safetensors_open(
        file_with(
            "{ \"\\u00e9 \\\"\" : {\n \"shape\" : [ 2 , 1e0 ] , \"note\" : [{}] ,\t\"data_offsets\" : [0, 8],"
            " \"dtype\" : \"F32\" } }   ",
            8),
        &file));
    t = dsvi_safetensors_find(file, "é \"");
    assert_non_null(t);
    assert_true(t->ndim == 2 && t->shape[0] == 2 && t->shape[1] == 1 && t->count == 2);
    check_promises(file, 1000);
    dsvi_safetensors_close(&file);

    /* Empty tensors before, between and after others; scalars; eight dimensions; unordered headers. */
    assert_ok(dsvi_safetensors_open(
        file_with("{" ENTRY("z", "U8", "", 3, 4) "," ENTRY("e3", "I64", "9,0", 4, 4) "," ENTRY(
                      "y", "U8", "3,1,1,1,1,1,1,1", 0,
                      3) "," ENTRY("e1", "F32", "0", 0, 0) "," ENTRY("e2", "U8", "0,9007199254740991", 3,
                                                                     3) "}",
                  4),
        &file));
    static const char *const order[] = {"e1", "y", "e2", "z", "e3"};
    for (size_t i = 0; i < 5; i++)
        assert_string_equal(dsvi_safetensors_at(file, i)->name, order[i]);
    t = dsvi_safetensors_find(file, "z");
    assert_true(t->ndim == 0 && t->count == 1 && *(const unsigned char *)t->data == 4);
    check_promises(file, 1000);
    dsvi_safetensors_close(&file);
}

/* A file that is not mapped is read at the time of the call, and reading past its end is an error. */
static void unmapped_files_are_read(void **state)
{
    DsviSafetensors *file;
    uint64_t size;
    char bytes[8];
    (void)state;
    const char *path = file_with("{" ENTRY("b", "U8", "5", 3, 8) "," ENTRY("a", "U8", "3", 0, 3) "}", 8);
    assert_ok(dsvi_safetensors_open_unmapped(path, &file));
    const DsviStoredTensor *b = dsvi_safetensors_find(file, "b");
    assert_ok(dsvi_file_size(path, &size));
    assert_string_equal(dsvi_safetensors_at(file, 0)->name, "a");
    assert_null(b->data);
    assert_ok(dsvi_safetensors_read(file, b, 1, bytes, 4));
    assert_memory_equal(bytes, "\5\6\7\10", 4);
    assert_ok(dsvi_safetensors_read(file, b, 5, bytes, 0));
    assert_int_equal(truncate(path, (off_t)size - 3), 0);
    assert_ok(dsvi_safetensors_read(file, b, 0, bytes, 2));
    assert_fails(DSV_E_FORMAT, "case.safetensors: ends at byte", dsvi_safetensors_read(file, b, 0, bytes, 5));
    dsvi_safetensors_close(&file);
    assert_refused("cut", path, "the file has 5");
}

/* Tensors that are not aligned for their type are copied to an aligned address. */
static void unaligned_tensors_are_aligned(void **state)
{
    DsviSafetensors *file;
    char header[512];
    (void)state;
    for (int blanks = 0; blanks < 8; blanks++) { /* the data begin at each alignment */
        snprintf(header, sizeof header,
                 "{" ENTRY("a", "U8", "1", 0, 1) "," ENTRY("b", "F64", "2", 1, 17) "," ENTRY(
                     "c", "BF16", "1", 17, 19) "," ENTRY("d", "I32", "1", 19, 23) "}%*s",
                 blanks, "");
        assert_ok(dsvi_safetensors_open(file_with(header, 23), &file));
        check_promises(file, 1000);
        for (size_t i = 0, next = 1; i < 4; i++) {
            const DsviStoredTensor *t = dsvi_safetensors_at(file, i);
            for (size_t b = 0; b < t->bytes; b++)
                assert_int_equal(((const unsigned char *)t->data)[b], next++);
        }
        dsvi_safetensors_close(&file);
    }
}

static void what_is_written_is_read(void **state)
{
    static const float f32[6] = {0, -1, 2.5f, 3, 4, 5e-30f};
    static const uint16_t bf16[2] = {0x3f80, 0xc000};
    static const int64_t i64[1] = {INT64_MIN};
    static const uint8_t u8[3] = {7, 8, 9};
    static const DsviStoredTensor tensors[] = {
        {"a.b\n\"é", DSVI_F32, 2, {2, 3}, 6, 24, f32}, {"none", DSVI_F16, 3, {4, 0, 2}, 0, 0, NULL},
        {"scalar", DSVI_I64, 0, {0}, 1, 8, i64},       {"bf", DSVI_BF16, 1, {2}, 2, 4, bf16},
        {"bytes", DSVI_U8, 2, {1, 3}, 3, 3, u8},
    };
    static const char *const metadata[][2] = {{"grid", "3,4,5"}, {"quote", "\"\\\n"}, {"empty", ""}};
    const char *path = scratch_path("written.safetensors");
    DsviSafetensors *file;
    uint64_t size;
    (void)state;
    /* A name with a line break can be written, but reading would refuse it. */
    assert_ok(dsvi_safetensors_write(path, tensors, 5, metadata, 3));
    assert_refused("control character", path, "control character 10");

    assert_ok(dsvi_safetensors_write(path, tensors + 1, 4, metadata, 3));
    assert_ok(dsvi_safetensors_open(path, &file));
    assert_ok(dsvi_file_size(path, &size));
    assert_string_equal(dsvi_safetensors_path(file), path);
    assert_int_equal(dsvi_safetensors_count(file), 4);
    check_promises(file, size);
    for (size_t i = 0; i < 4; i++) {
        const DsviStoredTensor *got = dsvi_safetensors_at(file, i), *want = &tensors[1 + i];
        assert_string_equal(got->name, want->name);
        assert_true(got->dtype == want->dtype && got->ndim == want->ndim && got->count == want->count);
        assert_memory_equal(got->shape, want->shape, sizeof got->shape);
        assert_int_equal(got->bytes, want->bytes);
        if (want->bytes > 0)
            assert_memory_equal(got->data, want->data, want->bytes);
    }
    assert_string_equal(dsvi_safetensors_metadata(file, "format"), "pt");
    assert_string_equal(dsvi_safetensors_metadata(file, "grid"), "3,4,5");
    assert_string_equal(dsvi_safetensors_metadata(file, "quote"), "\"\\\n");
    assert_string_equal(dsvi_safetensors_metadata(file, "empty"), "");
    assert_null(dsvi_safetensors_metadata(file, "Grid"));
    dsvi_safetensors_close(&file);

    assert_ok(dsvi_safetensors_write(path, NULL, 0, NULL, 0));
    assert_ok(dsvi_safetensors_open(path, &file));
    assert_int_equal(dsvi_safetensors_count(file), 0);
    dsvi_safetensors_close(&file);
}

/* The file follows the format exactly, so that other readers accept it: size, header padded to 8 bytes,
 * data. */
static void the_written_bytes(void **state)
{
    static const float one = 1;
    static const DsviStoredTensor tensor = {"w", DSVI_F32, 1, {1}, 1, 4, &one};
    static const char *const metadata[][2] = {{"k", "v"}};
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\",\"k\":\"v\"},"
                                 "\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    const char *path = scratch_path("bytes.safetensors");
    char *text;
    size_t bytes, padded = (strlen(header) + 7) / 8 * 8;
    (void)state;
    assert_ok(dsvi_safetensors_write(path, &tensor, 1, metadata, 1));
    assert_ok(dsvi_file_read(path, 4096, &text, &bytes));
    assert_int_equal(bytes, 8 + padded + 4);
    assert_int_equal((unsigned char)text[0], padded);
    for (int i = 1; i < 8; i++)
        assert_int_equal(text[i], 0);
    assert_memory_equal(text + 8, header, strlen(header));
    for (size_t i = 8 + strlen(header); i < 8 + padded; i++)
        assert_int_equal(text[i], ' ');
    assert_memory_equal(text + 8 + padded, "\0\0\x80\x3f", 4);
    free(text);
}

static void failed_writes_say_why(void **state)
{
    static const float one = 1;
    static const DsviStoredTensor tensor = {"w", DSVI_F32, 1, {1}, 1, 4, &one};
    (void)state;
    assert_fails(DSV_E_IO, "/dev/full: cannot write",
                 dsvi_safetensors_write("/dev/full", &tensor, 1, NULL, 0));
    assert_fails(DSV_E_IO, "No space left on device",
                 dsvi_safetensors_write("/dev/full", &tensor, 1, NULL, 0));
    assert_fails(DSV_E_NOT_FOUND, "nowhere/x: cannot write it: No such file",
                 dsvi_safetensors_write(scratch_path("nowhere/x"), &tensor, 1, NULL, 0));
}

static void wanted_tensors(void **state)
{
    static const int64_t right[] = {2, 3}, any[] = {-1, 3}, wrong[] = {2, 4}, longer[] = {2, 3, 1};
    DsviSafetensors *file;
    const DsviStoredTensor *t;
    (void)state;
    assert_ok(dsvi_safetensors_open(file_with(ONE("U8", "2,3", 0, 6), 6), &file));
    assert_ok(dsvi_safetensors_require(file, "a", 2, right, &t));
    assert_string_equal(t->name, "a");
    assert_ok(dsvi_safetensors_require(file, "a", 2, any, &t));
    assert_ok(dsvi_safetensors_require(file, "a", -1, NULL, &t));
    assert_fails(DSV_E_NOT_FOUND, "case.safetensors: no tensor b in it",
                 dsvi_safetensors_require(file, "b", -1, NULL, &t));
    assert_null(t);
    assert_fails(DSV_E_SHAPE, "tensor a is (2, 3), expected (2, 4)",
                 dsvi_safetensors_require(file, "a", 2, wrong, &t));
    assert_fails(DSV_E_SHAPE, "tensor a is (2, 3), expected (2, 3, 1)",
                 dsvi_safetensors_require(file, "a", 3, longer, &t));
    assert_fails(DSV_E_SHAPE, "tensor a is (2, 3), expected (any)",
                 dsvi_safetensors_require(file, "a", 1, any, &t));
    assert_fails(DSV_E_SHAPE, "tensor a is (2, 3), expected ()",
                 dsvi_safetensors_require(file, "a", 0, NULL, &t));
    assert_fails(DSV_E_SHAPE, "case.safetensors: tensor a is U8, expected a floating dtype",
                 dsvi_safetensors_require_floating(file, "a", 2, right, &t));
    assert_null(t);
    assert_fails(DSV_E_SHAPE, "tensor a is (2, 3), expected (2, 4)",
                 dsvi_safetensors_require_floating(file, "a", 2, wrong, &t));
    dsvi_safetensors_close(&file);
    assert_ok(dsvi_safetensors_open(file_with(ONE("BF16", "2,3", 0, 12), 12), &file));
    assert_ok(dsvi_safetensors_require_floating(file, "a", 2, right, &t));
    assert_int_equal(t->dtype, DSVI_BF16);
    dsvi_safetensors_close(&file);
}

static void thousands_of_tensors(void **state)
{
    enum { COUNT = 5000 };
    static DsviStoredTensor tensors[COUNT];
    static char names[COUNT][32];
    static int32_t values[COUNT];
    const char *path = scratch_path("many.safetensors");
    DsviSafetensors *file;
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "blocks.%d.weight", i * 7919 % COUNT);
        values[i] = i;
        tensors[i] = (DsviStoredTensor){names[i], DSVI_I32, 1, {1}, 1, 4, &values[i]};
    }
    assert_ok(dsvi_safetensors_write(path, tensors, COUNT, NULL, 0));
    assert_ok(dsvi_safetensors_open(path, &file));
    assert_int_equal(dsvi_safetensors_count(file), COUNT);
    for (int i = 0; i < COUNT; i++) {
        const DsviStoredTensor *t = dsvi_safetensors_find(file, names[i]);
        assert_non_null(t);
        assert_int_equal(*(const int32_t *)t->data, i);
        assert_ptr_equal(t, dsvi_safetensors_at(file, (size_t)i));
    }
    assert_null(dsvi_safetensors_find(file, "blocks.5000.weight"));
    assert_null(dsvi_safetensors_find(file, ""));
    dsvi_safetensors_close(&file);
}

/* Files written by Hugging Face's library. */
static void golden_files_are_read(void **state)
{
    static const char *const golden[] = {"dit_a/diffusion_pytorch_model.safetensors",
                                         "attention/list8_b1h1_20x41_d128.safetensors",
                                         "dit_c/diffusion_pytorch_model.safetensors"};
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        DsviSafetensors *file;
        uint64_t size;
        assert_ok(dsvi_safetensors_open(golden_path(golden[i]), &file));
        assert_ok(dsvi_file_size(golden_path(golden[i]), &size));
        assert_true(dsvi_safetensors_count(file) > 0);
        check_promises(file, size);
        dsvi_safetensors_close(&file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unusual_files_are_read),  cmocka_unit_test(unaligned_tensors_are_aligned),
        cmocka_unit_test(what_is_written_is_read), cmocka_unit_test(the_written_bytes),
        cmocka_unit_test(failed_writes_say_why),   cmocka_unit_test(wanted_tensors),
        cmocka_unit_test(thousands_of_tensors),    cmocka_unit_test(golden_files_are_read),
        cmocka_unit_test(unmapped_files_are_read),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
