/* The text encoder against the package transformers (golden files umt5), and against itself where another
 * path must give the same: layers that are streamed, small batches, other names and dtypes of the file. */
#include "test.h"

#include <cjson/cJSON.h>

#include "../base/scratch.h"
#include "cpu/cpu.h"
#include "golden/golden_files.h"
#include "model/umt5/umt5_internal.h"

enum { ROWS = 512, TENSORS_MAX = 96, NAME = 160 };

/* Hidden states in F32 differ from those of transformers by the order of sums; the attention amplifies this.
 */
#define F32_BOUND 1e-5
#define BF16_BOUND 2e-2

/* The rows of a golden case that its mask marks. */
typedef struct Prompts {
    int64_t count, rows;
    int64_t lengths[8];
    int32_t ids[4 * ROWS];
    float *wanted; /* (rows, d_model) */
} Prompts;

static void read_case(const char *name, Prompts *out)
{
    char path[128];
    DsviSafetensors *in, *expected;
    const DsviStoredTensor *ids, *mask, *hidden;
    memset(out, 0, sizeof *out);
    snprintf(path, sizeof path, "umt5/%s/inputs.safetensors", name);
    assert_ok(dsvi_safetensors_open(golden_path(path), &in));
    snprintf(path, sizeof path, "umt5/%s/expected.safetensors", name);
    assert_ok(dsvi_safetensors_open(golden_path(path), &expected));
    assert_ok(dsvi_safetensors_require(in, "input_ids", 2, (int64_t[]){-1, -1}, &ids));
    assert_ok(dsvi_safetensors_require(in, "attention_mask", 2, ids->shape, &mask));
    assert_ok(dsvi_safetensors_require(expected, "last_hidden_state", 3,
                                       (int64_t[]){ids->shape[0], ids->shape[1], -1}, &hidden));
    const int64_t model = hidden->shape[2];
    out->count = ids->shape[0];
    out->wanted = malloc(hidden->bytes);
    assert_non_null(out->wanted);
    for (int64_t i = 0; i < ids->count; i++) {
        if (!((const int32_t *)mask->data)[i])
            continue;
        out->lengths[i / ids->shape[1]]++;
        out->ids[out->rows] = ((const int32_t *)ids->data)[i];
        memcpy(out->wanted + out->rows++ * model, (const float *)hidden->data + i * model,
               (size_t)model * sizeof(float));
    }
    dsvi_safetensors_close(&in);
    dsvi_safetensors_close(&expected);
}

/* Encodes the prompts with the files at `path`; the caller frees the result. */
static float *encode(const char *path, const char *isa, const DsviUmt5Options *options,
                     const Prompts *prompts)
{
    DsviBackend backend;
    DsviUmt5 *encoder;
    assert_ok(dsvi_cpu_open(isa, 2, &backend));
    assert_ok(dsvi_umt5_open(&backend, path, options, &encoder));
    const size_t count = (size_t)(prompts->rows * dsvi_umt5_config(encoder)->d_model);
    float *hidden = malloc(count * sizeof *hidden);
    assert_non_null(hidden);
    if (options->memory_bytes > 0)
        assert_true(dsvi_umt5_bytes(encoder) <= options->memory_bytes);
    /* twice: an encoder can be used again, also one that streams its layers */
    for (int i = 0; i < 2; i++)
        assert_ok(dsvi_umt5_encode(encoder, prompts->count, prompts->lengths, prompts->ids, hidden));
    dsvi_umt5_close(&encoder);
    assert_null(encoder);
    dsvi_cpu_close(&backend);
    return hidden;
}

static int64_t golden_d_model(void)
{
    DsviUmt5Config config;
    assert_ok(dsvi_umt5_config_read(golden_path("umt5/config.json"), &config));
    return config.d_model;
}

static void matches_transformers(void **state)
{
    static const struct {
        const char *isa;
        DsviDtype act;
        double bound;
    } ways[] = {{"auto", DSVI_F32, F32_BOUND}, {"ref", DSVI_F32, F32_BOUND}, {"auto", DSVI_BF16, BF16_BOUND}};
    char names[GOLDEN_CASES_MAX][GOLDEN_NAME], path[128];
    const int64_t model = golden_d_model();
    (void)state;
    for (int c = golden_cases("umt5", names) - 1; c >= 0; c--) {
        Prompts prompts;
        snprintf(path, sizeof path, "umt5/%s/expected.safetensors", names[c]);
        if (!dsvi_path_exists(golden_path(path))) /* a case of which only the description was published */
            continue;
        read_case(names[c], &prompts);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            const DsviUmt5Options options = {.act = ways[w].act, .rows = ROWS};
            float *hidden = encode(golden_path("umt5"), ways[w].isa, &options, &prompts);
            for (int64_t r = 0; r < prompts.rows; r++)
                assert_error_below(relative_l2(DSVI_F32, hidden + r * model, DSVI_F32,
                                               prompts.wanted + r * model, model),
                                   ways[w].bound, "%s row %lld, way %zu", names[c], (long long)r, w);
            free(hidden);
        }
        free(prompts.wanted);
    }
}

static void read_first_case(Prompts *out)
{
    char names[GOLDEN_CASES_MAX][GOLDEN_NAME];
    golden_cases("umt5", names);
    read_case(names[0], out);
}

/* A copy of the golden weights that tests rename, convert and write. */
typedef struct File {
    DsviSafetensors *golden;
    DsviStoredTensor tensors[TENSORS_MAX];
    char names[TENSORS_MAX][NAME];
    void *owned[TENSORS_MAX]; /* converted data, or NULL */
    size_t count;
} File;

static void file_open(File *f)
{
    memset(f, 0, sizeof *f);
    assert_ok(dsvi_safetensors_open(golden_path("umt5/model.safetensors"), &f->golden));
    f->count = dsvi_safetensors_count(f->golden);
    assert_true(f->count <= TENSORS_MAX);
    for (size_t i = 0; i < f->count; i++) {
        f->tensors[i] = *dsvi_safetensors_at(f->golden, i);
        snprintf(f->names[i], NAME, "%s", f->tensors[i].name);
        f->tensors[i].name = f->names[i];
    }
}

static void file_add(File *f, const char *name, DsviDtype dtype, int64_t count, const void *data)
{
    assert_true(f->count < TENSORS_MAX);
    snprintf(f->names[f->count], NAME, "%s", name);
    f->tensors[f->count] = (DsviStoredTensor){.name = f->names[f->count],
                                              .dtype = dtype,
                                              .ndim = 1,
                                              .shape = {count},
                                              .count = count,
                                              .bytes = (size_t)count * dsvi_dtype_size(dtype),
                                              .data = data};
    f->count++;
}

static DsviStoredTensor *file_find(File *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->names[i], name) == 0)
            return &f->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static const char *file_write(File *f, const char *name)
{
    assert_ok(dsvi_folder_make(scratch_path("encoder")));
    unlink(scratch_path(name));
    assert_ok(dsvi_safetensors_write(scratch_path(name), f->tensors, f->count, NULL, 0));
    return scratch_path(name);
}

static void file_close(File *f)
{
    for (size_t i = 0; i < TENSORS_MAX; i++)
        free(f->owned[i]);
    dsvi_safetensors_close(&f->golden);
}

static void copy_config(void)
{
    char *text;
    size_t bytes;
    assert_ok(dsvi_folder_make(scratch_path("encoder")));
    assert_ok(dsvi_file_read(golden_path("umt5/config.json"), 1 << 20, &text, &bytes));
    assert_ok(dsvi_file_write(scratch_path("encoder/config.json"), text, bytes));
    free(text);
}

/* Replaces the part `from` of a name, if the name has this part. */
static void replace_part(char name[NAME], const char *from, const char *to)
{
    char *at = strstr(name, from), copy[NAME];
    if (!at)
        return;
    snprintf(copy, NAME, "%.*s%s%s", (int)(at - name), name, to, at + strlen(from));
    snprintf(name, NAME, "%s", copy);
}

/* Writes a model of `layers` layers: layer i is layer i % 2 of the golden model. */
static void write_repeated_layers(int layers)
{
    char *text;
    size_t bytes;
    File file;
    file_open(&file);
    const size_t count = file.count;
    for (int layer = 2; layer < layers; layer++)
        for (size_t i = 0; i < count; i++) {
            char name[NAME], from[40], to[40];
            snprintf(name, NAME, "%s", file.names[i]);
            snprintf(from, sizeof from, "encoder.block.%d.", layer % 2);
            snprintf(to, sizeof to, "encoder.block.%d.", layer);
            if (strncmp(name, from, strlen(from)) != 0)
                continue;
            replace_part(name, from, to);
            bool stored = false; /* a golden model of more layers has this one */
            for (size_t k = 0; k < count && !stored; k++)
                stored = strcmp(file.names[k], name) == 0;
            if (stored)
                continue;
            assert_true(file.count < TENSORS_MAX);
            snprintf(file.names[file.count], NAME, "%s", name);
            file.tensors[file.count] = file.tensors[i];
            file.tensors[file.count].name = file.names[file.count];
            file.count++;
        }
    copy_config();
    assert_ok(dsvi_file_read(scratch_path("encoder/config.json"), 1 << 20, &text, &bytes));
    cJSON *config = cJSON_Parse(text);
    assert_non_null(config);
    cJSON_SetNumberValue(cJSON_GetObjectItemCaseSensitive(config, "num_layers"), layers);
    free(text);
    text = cJSON_Print(config);
    assert_ok(dsvi_file_write(scratch_path("encoder/config.json"), text, strlen(text)));
    cJSON_free(text);
    cJSON_Delete(config);
    file_write(&file, "encoder/model.safetensors");
    file_close(&file);
}

/* A streamed encoder gives the bits of one whose layers stay on the device, also in several batches, which
 * bring each layer into both buffers. Streaming needs a model of more than two layers to save memory: this
 * one has the layers of the golden model, repeated. */
static void streaming_changes_nothing(void **state)
{
    const int64_t model = golden_d_model();
    DsviUmt5Config config;
    Prompts prompts;
    (void)state;
    read_first_case(&prompts);
    assert_ok(dsvi_umt5_config_read(golden_path("umt5/config.json"), &config));
    config.num_layers = 5;
    write_repeated_layers(5);
    DsviUmt5Options options = {.act = DSVI_F32, .rows = prompts.lengths[0]};
    float *whole = encode(scratch_path("encoder"), "auto", &options, &prompts);
    options.memory_bytes = dsvi_umt5_plan(&config, &options, true);
    assert_true(options.memory_bytes < dsvi_umt5_plan(&config, &options, false));
    float *streamed = encode(scratch_path("encoder"), "auto", &options, &prompts);
    assert_memory_equal(whole, streamed, (size_t)(prompts.rows * model) * sizeof(float));
    /* Fewer rows in a batch change only how matrix products are divided. */
    const DsviUmt5Options large = {.act = DSVI_F32, .rows = 4 * ROWS};
    float *together = encode(scratch_path("encoder"), "auto", &large, &prompts);
    assert_error_below(relative_l2(DSVI_F32, together, DSVI_F32, whole, prompts.rows * model), 1e-6,
                       "batches");
    unlink(scratch_path("encoder/model.safetensors"));
    free(whole);
    free(streamed);
    free(together);
    free(prompts.wanted);
}

static void original_names_mean_the_same(void **state)
{
    static const char *const NAMES[][2] = {
        {"encoder.block.", "blocks."},
        {"layer.0.SelfAttention.relative_attention_bias", "pos_embedding.embedding"},
        {"layer.0.SelfAttention.", "attn."},
        {"layer.1.DenseReluDense.wi_0", "ffn.gate.0"},
        {"layer.1.DenseReluDense.wi_1", "ffn.fc1"},
        {"layer.1.DenseReluDense.wo", "ffn.fc2"},
        {"layer.0.layer_norm", "norm1"},
        {"layer.1.layer_norm", "norm2"},
        {"encoder.final_layer_norm", "norm"},
        {"shared", "token_embedding"},
    };
    const DsviUmt5Options options = {.act = DSVI_F32, .rows = ROWS};
    Prompts prompts;
    File file;
    (void)state;
    read_first_case(&prompts);
    file_open(&file);
    copy_config();
    for (size_t i = 0; i < file.count; i++)
        for (size_t n = 0; n < sizeof NAMES / sizeof *NAMES; n++)
            replace_part(file.names[i], NAMES[n][0], NAMES[n][1]);
    file_write(&file, "encoder/models_t5_umt5-xxl-enc.safetensors");
    float *hidden = encode(scratch_path("encoder"), "auto", &options, &prompts);
    assert_error_below(relative_l2(DSVI_F32, hidden, DSVI_F32, prompts.wanted,
                                   prompts.rows * golden_d_model()),
                       F32_BOUND, "original names");
    unlink(scratch_path("encoder/models_t5_umt5-xxl-enc.safetensors"));
    free(hidden);
    free(prompts.wanted);
    file_close(&file);
}

/* Gives each matrix another dtype and returns in `f` what the file then means: the same numbers in F32. */
static void convert_matrices(File *f, DsviDtype dtype, bool widened)
{
    for (size_t i = 0; i < f->count; i++) {
        DsviStoredTensor *t = &f->tensors[i];
        if (t->ndim != 2 || strstr(t->name, "bias") || strstr(t->name, "shared"))
            continue;
        uint8_t *narrow = malloc((size_t)t->count * sizeof(float));
        float *wide = malloc((size_t)t->count * sizeof(float));
        assert_true(narrow && wide);
        for (int64_t n = 0; n < t->count; n++) {
            float value = (float)dsvi_load(t->dtype, t->data, n);
            if (dtype == DSVI_F8_E4M3) /* any byte but NaN, of either sign */
                narrow[n] = (uint8_t)((n * 37 + (value < 0 ? 5 : 0)) % 127 + (n % 3 == 0 ? 128 : 0));
            else
                dsvi_store(dtype, narrow, n, value);
            dsvi_store(DSVI_F32, wide, n,
                       dsvi_load(dtype, narrow, n) * (dtype == DSVI_F8_E4M3 ? 0.0078125 : 1));
        }
        f->owned[i] = widened ? (void *)wide : (void *)narrow;
        free(widened ? (void *)narrow : (void *)wide);
        t->data = f->owned[i];
        t->dtype = widened ? DSVI_F32 : dtype;
        t->bytes = (size_t)t->count * dsvi_dtype_size(t->dtype);
    }
}

/* A single file as ComfyUI uses them: a scale beside each F8 matrix, a mark, the tokenizer, and no
 * config.json. */
static void add_scales(File *f)
{
    static const float scale = 0.0078125f;
    static const unsigned char bytes[7] = "spiece";
    const size_t count = f->count;
    for (size_t i = 0; i < count; i++) {
        char name[NAME];
        if (f->tensors[i].dtype != DSVI_F8_E4M3)
            continue;
        snprintf(name, NAME, "%s", f->names[i]);
        replace_part(name, ".weight", ".scale_weight");
        file_add(f, name, DSVI_F32, 1, &scale);
    }
    file_add(f, "scaled_fp8", DSVI_F8_E4M3, 2, bytes);
    file_add(f, "spiece_model", DSVI_U8, sizeof bytes, bytes);
}

/* A file in which all tensors that are read as F32 hold the same numbers gives the same bits. */
static void reads_other_dtypes(void **state)
{
    static const DsviDtype dtypes[] = {DSVI_F16, DSVI_BF16, DSVI_F8_E4M3};
    Prompts prompts;
    (void)state;
    read_first_case(&prompts);
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        const DsviUmt5Options options = {.act = DSVI_F32, .rows = ROWS};
        float *hidden[2];
        for (int widened = 0; widened < 2; widened++) {
            File file;
            file_open(&file);
            convert_matrices(&file, dtypes[d], widened);
            if (dtypes[d] == DSVI_F8_E4M3 && !widened)
                add_scales(&file);
            hidden[widened] = encode(file_write(&file, "single.safetensors"), "auto", &options, &prompts);
            file_close(&file);
        }
        assert_memory_equal(hidden[0], hidden[1], (size_t)(prompts.rows * golden_d_model()) * sizeof(float));
        for (int64_t i = 0; i < prompts.rows * golden_d_model(); i++)
            assert_true(isfinite(hidden[0][i]));
        free(hidden[0]);
        free(hidden[1]);
    }
    free(prompts.wanted);
}

static void takes_sizes_from_shapes(void **state)
{
    DsviUmt5Config wanted, found;
    DsviUmt5Weights weights;
    File file;
    (void)state;
    assert_ok(dsvi_umt5_config_read(golden_path("umt5/config.json"), &wanted));
    file_open(&file);
    const char *path = file_write(&file, "single.safetensors");
    assert_true(dsvi_umt5_is(path) && dsvi_umt5_is(golden_path("umt5")));
    assert_false(dsvi_umt5_is(golden_path("dit_a")) || dsvi_umt5_is("nowhere"));
    assert_ok(dsvi_umt5_weights_open(path, &found, &weights));
    dsvi_umt5_weights_close(&weights);
    assert_int_equal(found.max_distance, 128);
    found.max_distance = wanted.max_distance; /* the only size that no shape tells */
    assert_true(found.eps == wanted.eps);
    assert_int_equal(found.vocab_size, wanted.vocab_size);
    assert_int_equal(found.d_model, wanted.d_model);
    assert_int_equal(found.num_heads, wanted.num_heads);
    assert_int_equal(found.d_kv, wanted.d_kv);
    assert_int_equal(found.d_ff, wanted.d_ff);
    assert_int_equal(found.num_layers, wanted.num_layers);
    assert_int_equal(found.buckets, wanted.buckets);
    file_close(&file);
}

static DsvStatus open_weights(const char *path)
{
    DsviUmt5Config config;
    DsviUmt5Weights weights;
    DsvStatus status = dsvi_umt5_weights_open(path, &config, &weights);
    dsvi_umt5_weights_close(&weights);
    return status;
}

static void refuses_weights_that_do_not_fit(void **state)
{
    static const float number = 1;
    static const char first_q[] = "encoder.block.0.layer.0.SelfAttention.q.weight";
    File file;
    (void)state;
    copy_config();
    file_open(&file);
    file_add(&file, "lm_head.weight", DSVI_F32, 1, &number);
    file_write(&file, "encoder/model.safetensors");
    assert_fails(DSV_E_SHAPE, "1 tensor is unknown, expected only those of the model: lm_head.weight",
                 open_weights(scratch_path("encoder")));
    file.count--;
    DsviStoredTensor *q = file_find(&file, first_q);
    q->ndim = 1;
    q->shape[0] = q->count;
    file_write(&file, "encoder/model.safetensors");
    assert_fails(DSV_E_SHAPE, first_q, open_weights(scratch_path("encoder")));
    snprintf((char *)(uintptr_t)q->name, NAME, "renamed");
    file_write(&file, "encoder/model.safetensors");
    assert_fails(DSV_E_NOT_FOUND, "no tensor encoder.block.0.layer.0.SelfAttention.q.weight",
                 open_weights(scratch_path("encoder")));
    file_write(&file, "single.safetensors");
    assert_fails(DSV_E_NOT_FOUND, "expected the weights of a UMT5 text encoder",
                 open_weights(scratch_path("single.safetensors")));
    unlink(scratch_path("encoder/model.safetensors"));
    file_close(&file);
}

static void refuses_prompts_that_do_not_fit(void **state)
{
    const DsviUmt5Options options = {.act = DSVI_F32, .rows = 4};
    const DsviUmt5Options little = {.act = DSVI_F32, .rows = 4, .memory_bytes = 1000};
    DsviBackend backend;
    DsviUmt5 *encoder;
    float *hidden = calloc((size_t)(4 * golden_d_model()), sizeof *hidden);
    (void)state;
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    assert_fails(DSV_E_NO_MEMORY, "a limit of 1000 bytes",
                 dsvi_umt5_open(&backend, golden_path("umt5"), &little, &encoder));
    assert_null(encoder);
    assert_ok(dsvi_umt5_open(&backend, golden_path("umt5"), &options, &encoder));
    const int32_t last = (int32_t)dsvi_umt5_config(encoder)->vocab_size - 1;
    assert_fails(DSV_E_SHAPE, "prompt 1 has 5 ids, expected at most 4",
                 dsvi_umt5_encode(encoder, 2, (int64_t[]){1, 5}, (int32_t[6]){0}, hidden));
    assert_fails(DSV_E_SHAPE, "prompt 1 has the id",
                 dsvi_umt5_encode(encoder, 2, (int64_t[]){1, 1}, (int32_t[]){last, last + 1}, hidden));
    assert_fails(DSV_E_SHAPE, "prompt 0 has the id -1",
                 dsvi_umt5_encode(encoder, 1, (int64_t[]){1}, (int32_t[]){-1}, hidden));
    assert_ok(dsvi_umt5_encode(encoder, 3, (int64_t[]){0, 1, 0}, (int32_t[]){last}, hidden));
    assert_ok(dsvi_umt5_encode(encoder, 0, NULL, NULL, hidden));
    dsvi_umt5_close(&encoder);
    dsvi_cpu_close(&backend);
    free(hidden);
}

/* The distances at which a new bucket begins, as the package transformers gives them. */
static void buckets_begin_where_transformers_begins_them(void **state)
{
    static const struct {
        int64_t buckets, max_distance, count, first[16];
    } cases[] = {
        {32, 128, 16, {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91}},
        {16, 40, 8, {0, 1, 2, 3, 4, 8, 13, 23}},
        {33, 500, 16, {0, 1, 2, 3, 4, 5, 6, 7, 8, 14, 23, 38, 64, 107, 178, 299}},
        {10, 17, 5, {0, 1, 2, 5, 9}},
        {4, 20, 2, {0, 1}},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const DsviUmt5Config config = {.buckets = cases[c].buckets, .max_distance = cases[c].max_distance};
        int64_t bucket = 0;
        for (int64_t distance = 0; distance < 2000; distance++) {
            if (bucket + 1 < cases[c].count && distance == cases[c].first[bucket + 1])
                bucket++;
            assert_int_equal(dsvi_umt5_bucket(&config, -distance), bucket);
            if (distance > 0)
                assert_int_equal(dsvi_umt5_bucket(&config, distance), bucket + cases[c].buckets / 2);
        }
    }
}

static void configs_are_checked(void **state)
{
#define SIZES "\"vocab_size\":9,\"d_model\":8,\"num_heads\":2,\"d_ff\":3,\"num_layers\":1"
    static const struct {
        const char *text, *words;
        DsvStatus status;
    } cases[] = {
        {"[]", "not a JSON object", DSV_E_FORMAT},
        {"{\"model_type\":\"t5\"," SIZES ",\"d_kv\":8}", "model_type is t5, expected umt5",
         DSV_E_UNSUPPORTED},
        {"{" SIZES ",\"d_kv\":8}", "expected umt5", DSV_E_UNSUPPORTED},
        {"{\"model_type\":\"umt5\"," SIZES ",\"d_kv\":\"8\"}", "key d_kv is not a whole number",
         DSV_E_FORMAT},
        {"{\"model_type\":\"umt5\"," SIZES ",\"d_kv\":8.5}", "key d_kv is not a whole number", DSV_E_FORMAT},
        {"{\"model_type\":\"umt5\"," SIZES ",\"d_kv\":12}", "d_kv is 12, expected a multiple of 8",
         DSV_E_UNSUPPORTED},
        {"{\"model_type\":\"umt5\"," SIZES ",\"d_kv\":136}", "d_kv is 136, expected 8 to 128",
         DSV_E_UNSUPPORTED},
        {"{\"model_type\":\"umt5\"," SIZES ",\"d_kv\":8,\"feed_forward_proj\":\"relu\"}",
         "feed_forward_proj is relu, expected gated-gelu", DSV_E_UNSUPPORTED},
        {"{\"model_type\":\"umt5\"," SIZES ",\"d_kv\":8,\"dense_act_fn\":7}", "dense_act_fn is not a text",
         DSV_E_UNSUPPORTED},
        {"{\"model_type\":\"umt5\"," SIZES ",\"d_kv\":8,\"layer_norm_epsilon\":0}", "layer_norm_epsilon is 0",
         DSV_E_UNSUPPORTED},
        {"{\"model_type\":\"umt5\"," SIZES ",\"d_kv\":8,\"relative_attention_max_distance\":8}",
         "relative_attention_max_distance is 8", DSV_E_UNSUPPORTED},
        {"{\"architectures\":[\"UMT5EncoderModel\"]," SIZES ",\"d_kv\":8}", "", DSV_OK},
        {"{\"model_type\":\"umt5\"," SIZES "}", "", DSV_OK},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        DsviUmt5Config config;
        const char *path = scratch_path("config.json");
        assert_ok(dsvi_file_write(path, cases[i].text, strlen(cases[i].text)));
        if (cases[i].status == DSV_OK) {
            assert_ok(dsvi_umt5_config_read(path, &config));
            assert_true(config.buckets == 32 && config.max_distance == 128 && config.eps == 1e-6);
            assert_true(config.d_kv == 8 || config.d_kv == 64);
        } else {
            assert_fails(cases[i].status, cases[i].words, dsvi_umt5_config_read(path, &config));
        }
    }
}

static int run_on_golden(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_transformers),
        cmocka_unit_test(streaming_changes_nothing),
        cmocka_unit_test(original_names_mean_the_same),
        cmocka_unit_test(reads_other_dtypes),
        cmocka_unit_test(takes_sizes_from_shapes),
        cmocka_unit_test(refuses_weights_that_do_not_fit),
        cmocka_unit_test(refuses_prompts_that_do_not_fit),
        cmocka_unit_test(buckets_begin_where_transformers_begins_them),
        cmocka_unit_test(configs_are_checked),
    };
    return cmocka_run_group_tests_name("umt5", tests, scratch_make, scratch_remove);
}

int main(void)
{
    return golden_run("umt5", run_on_golden);
}
