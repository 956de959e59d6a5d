/* The tokenizer against Hugging Face's tokenizers: the small vocabulary of tests/golden/tokenizer, and that
 * of UMT5 where DSV_SHARED_DIR has it. */
#include "text/tokenizer.h"

#include <cjson/cJSON.h>

#include "base/fs.h"
#include "base/safetensors.h"
#include "base/scratch.h"
#include "golden/golden_files.h"
#include "text/text_clean.h"

static int64_t lines_read;

static void check_text(const cJSON *line)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(line, "text"));
    const char *expected = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(line, "cleaned"));
    char *clean;
    assert_ok(dsvi_text_clean(text, &clean));
    if (strcmp(clean, expected) != 0)
        fail_msg("'%s' was cleaned to '%s', expected '%s'", text, clean, expected);
    free(clean);
}

static void check_ids(const DsviTokenizer *tokenizer, const cJSON *line, const char *key)
{
    const cJSON *expected = cJSON_GetObjectItemCaseSensitive(line, key), *id;
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(line, "text"));
    int32_t ids[DSVI_TEXT_ROWS];
    int64_t count, cut, i = 0;
    assert_non_null(expected);
    assert_ok(dsvi_tokenizer_encode(tokenizer, text, DSVI_TEXT_ROWS, ids, &count, &cut));
    if (count != cJSON_GetArraySize(expected))
        fail_msg("'%s' has %d ids, expected %d", text, (int)count, cJSON_GetArraySize(expected));
    cJSON_ArrayForEach(id, expected) {
        if (ids[i] != id->valueint)
            fail_msg("id %d of '%s' is %d, expected %d", (int)i, text, ids[i], id->valueint);
        i++;
    }
    assert_true(cut == 0 || count == DSVI_TEXT_ROWS);
}

/* Compares all lines of golden.jsonl with the tokenizer at `path`. */
static void check_golden(const char *path, const char *key)
{
    DsviTokenizer *tokenizer;
    FILE *file = fopen(golden_path("tokenizer/golden.jsonl"), "rb");
    char *text = NULL;
    size_t room = 0;
    assert_non_null(file);
    assert_ok(dsvi_tokenizer_open(path, &tokenizer));
    for (lines_read = 0; getline(&text, &room, file) > 0; lines_read++) {
        cJSON *line = cJSON_Parse(text);
        assert_non_null(line);
        check_text(line);
        check_ids(tokenizer, line, key);
        cJSON_Delete(line);
    }
    dsvi_tokenizer_close(&tokenizer);
    free(text);
    fclose(file);
    assert_true(lines_read > 100);
}

static void test_golden_spiece(void **state)
{
    (void)state;
    check_golden(golden_path("tokenizer/spiece.model"), "ids");
}

static void test_golden_json(void **state)
{
    const char *path = golden_path("tokenizer/tokenizer.json");
    (void)state;
    check_golden(dsvi_path_exists(path) ? path : shared_path("fixtures/pipe_a/tokenizer"), "ids");
}

static void test_golden_split_words(void **state)
{
    const char *path = golden_path("tokenizer/split_words.json");
    (void)state;
    if (!dsvi_path_exists(path)) /* only the small vocabulary has this file */
        skip();
    check_golden(path, "ids_split_words");
}

/* The bytes of spiece.model in a tensor of a safetensors file. */
static void test_golden_tensor(void **state)
{
    char *data;
    size_t bytes;
    (void)state;
    assert_ok(dsvi_file_read(golden_path("tokenizer/spiece.model"), 1 << 28, &data, &bytes));
    DsviStoredTensor tensor = {.name = "spiece_model",
                               .dtype = DSVI_U8,
                               .ndim = 1,
                               .shape = {(int64_t)bytes},
                               .count = (int64_t)bytes,
                               .bytes = bytes,
                               .data = data};
    assert_ok(dsvi_safetensors_write(scratch_path("t.safetensors"), &tensor, 1, NULL, 0));
    check_golden(scratch_path("t.safetensors"), "ids");
    tensor.name = "other";
    assert_ok(dsvi_safetensors_write(scratch_path("t.safetensors"), &tensor, 1, NULL, 0));
    DsviTokenizer *tokenizer;
    assert_fails(DSV_E_NOT_FOUND, "spiece_model",
                 dsvi_tokenizer_open(scratch_path("t.safetensors"), &tokenizer));
    assert_null(tokenizer);
    free(data);
}

static void test_folders(void **state)
{
    char *data;
    size_t bytes;
    DsviTokenizer *tokenizer;
    (void)state;
    assert_ok(dsvi_file_read(golden_path("tokenizer/spiece.model"), 1 << 28, &data, &bytes));
    assert_ok(dsvi_folder_make(scratch_path("here")));
    assert_ok(dsvi_file_write(scratch_path("here/spiece.model"), data, bytes));
    assert_ok(dsvi_tokenizer_open(scratch_path("here"), &tokenizer));
    dsvi_tokenizer_close(&tokenizer);
    assert_null(tokenizer);
    free(data);
    assert_ok(dsvi_folder_make(scratch_path("empty")));
    assert_fails(DSV_E_NOT_FOUND, "expected tokenizer.json or spiece.model",
                 dsvi_tokenizer_open(scratch_path("empty"), &tokenizer));
    assert_fails(DSV_E_NOT_FOUND, "absent", dsvi_tokenizer_open(scratch_path("absent"), &tokenizer));
}

static void test_cut(void **state)
{
    DsviTokenizer *tokenizer;
    int32_t all[64], ids[64];
    int64_t count, cut, total;
    const char *text = "a cat walks over the old hill";
    (void)state;
    assert_ok(dsvi_tokenizer_open(golden_path("tokenizer/spiece.model"), &tokenizer));
    assert_ok(dsvi_tokenizer_encode(tokenizer, text, 64, all, &total, &cut));
    assert_int_equal(cut, 0);
    for (int64_t limit = 1; limit <= total; limit++) {
        assert_ok(dsvi_tokenizer_encode(tokenizer, text, limit, ids, &count, &cut));
        assert_int_equal(count, limit);
        assert_int_equal(cut, total - limit);
        assert_memory_equal(ids, all, (size_t)(limit - 1) * sizeof *ids);
        assert_int_equal(ids[limit - 1], 1);
    }
    assert_fails(DSV_E_FORMAT, "not UTF-8", dsvi_tokenizer_encode(tokenizer, "\xff", 8, ids, &count, &cut));
    dsvi_tokenizer_close(&tokenizer);
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_spiece),
        cmocka_unit_test(test_golden_json),
        cmocka_unit_test(test_golden_split_words),
        cmocka_unit_test(test_golden_tensor),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_cut),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}

int main(void)
{
    return golden_run("tokenizer", run);
}
