/* dsv_text and dsv_forward with a text encoder, against what diffusers and transformers computed (golden
 * files pipe_a and umt5), and an error for each kind of unusable input. */
#include "test.h"

#include <cjson/cJSON.h>

#include "../base/scratch.h"
#include "base/safetensors.h"
#include "dsv/dsv.h"
#include "golden/golden_files.h"

/* What the callbacks of a call reported. */
typedef struct Heard {
    int64_t reports, done, total;
    char warning[512];
    bool stop;
} Heard;

static void hear_log(void *context, DsvLogLevel level, const char *line)
{
    Heard *heard = context;
    assert_int_equal(level, DSV_LOG_WARNING);
    snprintf(heard->warning, sizeof heard->warning, "%s", line);
}

static void hear_progress(void *context, const DsvProgress *progress)
{
    Heard *heard = context;
    assert_string_equal(progress->unit, "prompt");
    assert_true(progress->done > heard->done && progress->seconds_left >= 0);
    heard->reports++;
    heard->done = progress->done;
    heard->total = progress->total;
}

static bool hear_stop(void *context)
{
    return ((const Heard *)context)->stop;
}

static DsvEvents events_of(Heard *heard)
{
    return (DsvEvents){.context = heard, .log = hear_log, .progress = hear_progress, .stop = hear_stop};
}

static void text_settings(DsvConfig *settings, const char *precision)
{
    dsv_config_defaults(settings);
    assert_ok(dsv_config_set(settings, "device=cpu"));
    assert_ok(dsv_config_set(settings, precision));
}

static DsvStatus encode_text(const char *model, const char *prompts, size_t bytes, const char *precision,
                             Heard *heard)
{
    char folder[DSVI_PATH_MAX]; /* a copy, since scratch_path() keeps few paths */
    DsvConfig settings;
    DsvEvents events = events_of(heard);
    snprintf(folder, sizeof folder, "%s", model);
    text_settings(&settings, precision);
    assert_ok(dsvi_file_write(scratch_path("prompts.txt"), prompts, bytes));
    unlink(scratch_path("out.safetensors"));
    return dsv_text(folder, scratch_path("prompts.txt"), scratch_path("out.safetensors"), &settings, &events);
}

static DsviSafetensors *open_out(void)
{
    DsviSafetensors *out;
    assert_ok(dsvi_safetensors_open(scratch_path("out.safetensors"), &out));
    return out;
}

/* Compares the hidden states of prompt `line` with the first rows of a golden tensor, which has zero rows
 * after the last id. */
static void compare_states(const DsviSafetensors *out, int line, const DsviSafetensors *golden,
                           const char *name, double bound)
{
    char key[64];
    const DsviStoredTensor *ids, *hidden, *wanted;
    assert_ok(dsvi_safetensors_require(golden, name, 3, (int64_t[]){1, -1, -1}, &wanted));
    const int64_t model = wanted->shape[2];
    snprintf(key, sizeof key, "input_ids.%d", line);
    assert_ok(dsvi_safetensors_require(out, key, 1, (int64_t[]){-1}, &ids));
    snprintf(key, sizeof key, "hidden.%d", line);
    assert_ok(dsvi_safetensors_require(out, key, 2, (int64_t[]){ids->count, model}, &hidden));
    assert_int_equal(ids->dtype, DSVI_I32);
    assert_int_equal(hidden->dtype, DSVI_F32);
    assert_int_equal(((const int32_t *)ids->data)[ids->count - 1], 1); /* the end token */
    const int64_t rows = ids->count < wanted->shape[1] ? ids->count : wanted->shape[1];
    assert_error_below(relative_l2(DSVI_F32, hidden->data, wanted->dtype, wanted->data, rows * model), bound,
                       "%s", key);
    for (int64_t i = rows * model; i < wanted->count; i++) /* otherwise ids are missing */
        assert_true(dsvi_load(wanted->dtype, wanted->data, i) == 0);
}

static cJSON *golden_prompts(void)
{
    char *text;
    size_t bytes;
    assert_ok(dsvi_file_read(golden_path("pipe_a/fixture.json"), 1 << 20, &text, &bytes));
    cJSON *fixture = cJSON_Parse(text);
    free(text);
    assert_non_null(fixture);
    return fixture;
}

/* The prompts of all golden cases, one file: prompt and negative prompt of each case. */
static void matches_diffusers(void **state)
{
    static const char *const precisions[] = {"mixed_precision=no", "mixed_precision=bf16"};
    static const double bounds[] = {1e-5,
                                    3e-2}; /* F32: the order of sums; BF16: as large as diffusers' own */
    (void)state;
    for (int p = 0; p < 2; p++) {
        char text[4096] = "", path[256];
        Heard heard = {0};
        int line = 0;
        cJSON *fixture = golden_prompts();
        const cJSON *cases = cJSON_GetObjectItemCaseSensitive(fixture, "cases"), *item;
        cJSON_ArrayForEach(item, cases) {
            const char *prompt = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "prompt"));
            const char *negative = cJSON_GetStringValue(
                cJSON_GetObjectItemCaseSensitive(item, "negative_prompt"));
            size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, "%s\n%s\n", prompt, negative ? negative : "");
        }
        assert_ok(encode_text(golden_path("pipe_a"), text, strlen(text), precisions[p], &heard));
        DsviSafetensors *out = open_out();
        cJSON_ArrayForEach(item, cases) {
            DsviSafetensors *golden;
            const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "case"));
            snprintf(path, sizeof path, "pipe_a/cases/%s/expected.safetensors", name);
            assert_ok(dsvi_safetensors_open(golden_path(path), &golden));
            compare_states(out, line, golden, "prompt_embeds", bounds[p]);
            if (cJSON_IsString(cJSON_GetObjectItemCaseSensitive(item, "negative_prompt")))
                compare_states(out, line + 1, golden, "negative_embeds", bounds[p]);
            line += 2;
            dsvi_safetensors_close(&golden);
        }
        assert_int_equal(dsvi_safetensors_count(out), 2 * line);
        assert_true(heard.reports > 0 && heard.done == line && heard.total == line);
        dsvi_safetensors_close(&out);
        cJSON_Delete(fixture);
    }
}

/* An empty line is the empty prompt, the last newline begins no prompt, and a carriage return changes
 * nothing. */
static void lines_are_prompts(void **state)
{
    static const char *const texts[] = {"a cat\n\nrain\n", "a cat\r\n\r\nrain", "a cat\n\nrain"};
    Heard heard = {0};
    (void)state;
    for (int i = 0; i < 3; i++) {
        heard.done = 0;
        assert_ok(
            encode_text(golden_path("pipe_a"), texts[i], strlen(texts[i]), "mixed_precision=no", &heard));
        DsviSafetensors *out = open_out();
        const DsviStoredTensor *ids = dsvi_safetensors_find(out, "input_ids.1");
        assert_int_equal(dsvi_safetensors_count(out), 6);
        assert_true(ids && ids->count == 1);
        assert_true(dsvi_safetensors_find(out, "input_ids.0")->count > 1);
        assert_true(dsvi_safetensors_find(out, "input_ids.2")->count > 1);
        dsvi_safetensors_close(&out);
    }
    assert_string_equal(heard.warning, "");
}

static void long_prompts_are_cut(void **state)
{
    char text[4000];
    Heard heard = {0};
    (void)state;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = i % 2 ? ' ' : (char)('a' + i / 2 % 26);
    text[4] = '\n';
    assert_ok(encode_text(golden_path("pipe_a"), text, sizeof text, "mixed_precision=no", &heard));
    assert_non_null(strstr(heard.warning, "prompts.txt: line 2 has "));
    DsviSafetensors *out = open_out();
    const DsviStoredTensor *ids = dsvi_safetensors_find(out, "input_ids.1");
    assert_true(ids && ids->count == 512 && ((const int32_t *)ids->data)[511] == 1);
    dsvi_safetensors_close(&out);
}

static void unusable_prompts_are_named(void **state)
{
    static const struct {
        const char *text;
        size_t bytes;
        const char *words;
    } cases[] = {
        {"", 0, "prompts.txt: an empty file, expected one prompt on each line"},
        {"a\nb\xff\n", 5, "prompts.txt: line 2 is not UTF-8"},
        {"a\n\nb\0c", 6, "prompts.txt: line 3 has a zero byte"},
    };
    Heard heard = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(DSV_E_FORMAT, cases[i].words,
                     encode_text(golden_path("pipe_a"), cases[i].text, cases[i].bytes, "mixed_precision=no",
                                 &heard));
    char *many = malloc(1000000);
    assert_non_null(many);
    memset(many, 'a', 1000000);
    assert_fails(DSV_E_FORMAT, "line 1 has 1000000 bytes, expected a prompt of at most 65536",
                 encode_text(golden_path("pipe_a"), many, 1000000, "mixed_precision=no", &heard));
    assert_ok(encode_text(golden_path("pipe_a"), many, 65536, "mixed_precision=no", &heard));
    free(many);
}

static void unusable_models_are_named(void **state)
{
    Heard heard = {0};
    (void)state;
    assert_fails(DSV_E_NOT_FOUND, "nowhere: no such folder or file",
                 encode_text("nowhere", "a\n", 2, "mixed_precision=no", &heard));
    assert_fails(DSV_E_NOT_FOUND, "no text encoder, expected text_encoder/",
                 encode_text(golden_path("dit_a"), "a\n", 2, "mixed_precision=no", &heard));
    assert_ok(dsvi_folder_make(scratch_path("wan")));
    assert_ok(dsvi_file_write(scratch_path("wan/models_t5_umt5-xxl-enc-bf16.pth"), "x", 1));
    assert_fails(DSV_E_UNSUPPORTED, "models_t5_umt5-xxl-enc-bf16.pth",
                 encode_text(scratch_path("wan"), "a\n", 2, "mixed_precision=no", &heard));
    assert_fails(DSV_E_NOT_FOUND, "tokenizer",
                 encode_text(golden_path("umt5/model.safetensors"), "a\n", 2, "mixed_precision=no", &heard));
    assert_false(dsvi_path_exists(scratch_path("out.safetensors")));
}

/* More rows than one batch takes: 9 prompts of 512 rows. */
static void a_stop_leaves_no_file(void **state)
{
    enum { LINES = 9, LINE = 1101 };
    static char text[LINES * LINE];
    Heard heard = {.stop = true};
    (void)state;
    for (int i = 0; i < LINES * LINE; i++)
        text[i] = i % LINE == LINE - 1 ? '\n' : i % 2 ? ' ' : (char)('a' + i / 2 % 26);
    assert_fails(DSV_E_INTERRUPTED, "stopped after 8 of 9 prompts; nothing is written",
                 encode_text(golden_path("pipe_a"), text, sizeof text, "mixed_precision=no", &heard));
    assert_int_equal(heard.reports, 1);
    assert_false(dsvi_path_exists(scratch_path("out.safetensors")));
}

/* Runs dsv_forward on the golden text encoder with these ids and masks (2, 5) I64. */
static DsvStatus forward_ids(const int64_t *ids, const int64_t *mask, bool grad)
{
    DsvConfig settings;
    DsviStoredTensor tensors[2];
    text_settings(&settings, "mixed_precision=no");
    for (int i = 0; i < 2; i++)
        tensors[i] = (DsviStoredTensor){.name = i ? "attention_mask" : "input_ids",
                                        .dtype = DSVI_I64,
                                        .ndim = 2,
                                        .shape = {2, 5},
                                        .count = 10,
                                        .bytes = 10 * sizeof(int64_t),
                                        .data = i ? mask : ids};
    assert_ok(dsvi_safetensors_write(scratch_path("in.safetensors"), tensors, 2, NULL, 0));
    unlink(scratch_path("out.safetensors"));
    return dsv_forward(golden_path("umt5"), scratch_path("in.safetensors"), scratch_path("out.safetensors"),
                       grad, &settings);
}

/* A row that is marked gives the same wherever padding is, and rows that are not marked are zero. */
static void forward_packs_marked_rows(void **state)
{
    const int64_t ids[10] = {7, 8, 1, 99, 99, 99, 99, 7, 8, 1}, mask[10] = {1, 1, 1, 0, 0, 0, 0, 1, 1, 1};
    const DsviStoredTensor *hidden;
    (void)state;
    assert_ok(forward_ids(ids, mask, false));
    DsviSafetensors *out = open_out();
    assert_ok(dsvi_safetensors_require(out, "last_hidden_state", 3, (int64_t[]){2, 5, -1}, &hidden));
    const int64_t model = hidden->shape[2];
    const float *rows = hidden->data;
    assert_memory_equal(rows, rows + 7 * model, (size_t)(3 * model) * sizeof *rows);
    for (int64_t i = 0; i < 4 * model; i++)
        assert_true(rows[3 * model + i] == 0);
    assert_true(rows[0] != 0);
    dsvi_safetensors_close(&out);
}

static void forward_names_unusable_ids(void **state)
{
    const int64_t ids[10] = {7, 8, 1, 0, 0, 7, 8, 1, INT64_MAX, 0}, bad_mask[10] = {1, 0, 1};
    const int64_t mask[10] = {1, 1, 1, 0, 0, 1, 1, 1, 1, 0}, other_mask[10] = {1, 2};
    (void)state;
    assert_fails(DSV_E_SHAPE, "prompt 1 has the id -1, expected 0 to", forward_ids(ids, mask, false));
    assert_fails(DSV_E_UNSUPPORTED, "attention_mask of prompt 0 has zeros between ones",
                 forward_ids(ids, bad_mask, false));
    assert_fails(DSV_E_SHAPE, "attention_mask[0, 1] is 2, expected 0 or 1",
                 forward_ids(ids, other_mask, false));
    assert_fails(DSV_E_UNSUPPORTED, "no backward pass", forward_ids(ids, mask, true));
}

static void forward_matches_transformers(void **state)
{
    char names[GOLDEN_CASES_MAX][GOLDEN_NAME], in[128], expected[128];
    DsvConfig settings;
    (void)state;
    text_settings(&settings, "mixed_precision=no");
    for (int c = golden_cases("umt5", names) - 1; c >= 0; c--) {
        DsviSafetensors *golden, *inputs, *out;
        const DsviStoredTensor *mask, *wanted, *found;
        snprintf(in, sizeof in, "umt5/%s/inputs.safetensors", names[c]);
        snprintf(expected, sizeof expected, "umt5/%s/expected.safetensors", names[c]);
        if (!dsvi_path_exists(golden_path(expected)))
            continue;
        assert_ok(dsv_forward(golden_path("umt5"), golden_path(in), scratch_path("out.safetensors"), false,
                              &settings));
        out = open_out();
        assert_ok(dsvi_safetensors_open(golden_path(in), &inputs));
        assert_ok(dsvi_safetensors_open(golden_path(expected), &golden));
        assert_non_null(mask = dsvi_safetensors_find(inputs, "attention_mask"));
        assert_non_null(wanted = dsvi_safetensors_find(golden, "last_hidden_state"));
        assert_ok(dsvi_safetensors_require(out, "last_hidden_state", 3, wanted->shape, &found));
        const int64_t model = wanted->shape[2];
        for (int64_t r = 0; r < mask->count; r++)
            if (((const int32_t *)mask->data)[r])
                assert_error_below(relative_l2(DSVI_F32, (const float *)found->data + r * model, DSVI_F32,
                                               (const float *)wanted->data + r * model, model),
                                   1e-5, "%s row %lld", names[c], (long long)r);
        dsvi_safetensors_close(&out);
        dsvi_safetensors_close(&inputs);
        dsvi_safetensors_close(&golden);
    }
}

static int run_on_golden(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_diffusers),
        cmocka_unit_test(lines_are_prompts),
        cmocka_unit_test(long_prompts_are_cut),
        cmocka_unit_test(unusable_prompts_are_named),
        cmocka_unit_test(unusable_models_are_named),
        cmocka_unit_test(a_stop_leaves_no_file),
        cmocka_unit_test(forward_packs_marked_rows),
        cmocka_unit_test(forward_names_unusable_ids),
        cmocka_unit_test(forward_matches_transformers),
    };
    return cmocka_run_group_tests_name("text_encoder", tests, scratch_make, scratch_remove);
}

int main(void)
{
    return golden_run("pipe_a", run_on_golden);
}
