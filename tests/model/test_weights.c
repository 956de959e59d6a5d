/* Reading and writing weights of a small model: all supported namings and dtypes, and an error for each kind
 * of invalid file. */
#include "test.h"

#include "base/fs.h"
#include "base/rng.h"
#include "model/weights/weights.h"
#include "model/weights/weights_files.h"

enum { ALL = 1 << 24 }; /* more bytes than the model has, for a single file */

static char folder[] = "/tmp/dsv-weights-XXXXXX";

/* A small model, its weights, and the tensors that its file would have. Tests change the tensors before they
 * write the file. */
typedef struct Model {
    DsviDitConfig config;
    DsviParamTable table;
    float *flat, *back;
    DsviStoredTensor *tensors; /* (table.count + 8) */
    char (*names)[160];
    size_t count;
    char path[256];
} Model;

static int make_model(void **state)
{
    Model *m = calloc(1, sizeof *m);
    DsvConfig settings;
    strcpy(folder + sizeof folder - 7, "XXXXXX");
    if (!m || !mkdtemp(folder))
        return -1;
    dsv_config_defaults(&settings);
    settings.model_num_layers = 2;
    settings.model_num_attention_heads = 3;
    settings.model_attention_head_dim = 34;
    settings.model_ffn_dim = 50;
    if (dsvi_dit_config_make(&settings, &m->config) != DSV_OK ||
        dsvi_param_table_make(&m->config, &m->table) != DSV_OK)
        return -1;
    size_t room = (size_t)m->table.count + 8, elements = (size_t)m->table.elements;
    m->flat = calloc(elements, sizeof *m->flat);
    m->back = calloc(elements, sizeof *m->back);
    m->tensors = calloc(room, sizeof *m->tensors);
    m->names = calloc(room, sizeof *m->names);
    m->count = (size_t)m->table.count;
    snprintf(m->path, sizeof m->path, "%s/%s", folder, DSVI_WEIGHTS_SINGLE);
    DsviRng rng = {5, DSVI_RNG_TEST, 0};
    for (int64_t i = 0; i < m->table.count; i++) {
        const DsviParam *param = &m->table.params[i];
        DsviStoredTensor *tensor = &m->tensors[i];
        dsvi_rng_fill_normal(rng, (uint64_t)param->offset, m->flat + param->offset, param->count);
        snprintf(m->names[i], sizeof *m->names, "%s", param->name);
        *tensor = (DsviStoredTensor){.name = m->names[i],
                                     .dtype = DSVI_F32,
                                     .ndim = param->ndim,
                                     .count = param->count,
                                     .bytes = (size_t)param->count * sizeof(float),
                                     .data = m->flat + param->offset};
        memcpy(tensor->shape, param->shape, sizeof tensor->shape);
    }
    *state = m;
    return 0;
}

static int free_model(void **state)
{
    Model *m = *state;
    dsvi_param_table_free(&m->table);
    free(m->flat);
    free(m->back);
    free(m->tensors);
    free(m->names);
    free(m);
    return dsvi_folder_remove(folder) == DSV_OK ? 0 : -1;
}

static void write_tensors(const Model *m)
{
    assert_ok(dsvi_safetensors_write(m->path, m->tensors, m->count, NULL, 0));
}

static DsvStatus read_back(const Model *m, const char *path)
{
    memset(m->back, 0xff, (size_t)m->table.elements * sizeof(float)); /* NaN */
    return dsvi_weights_read(path, &m->table, m->back);
}

static void assert_same(const Model *m)
{
    assert_memory_equal(m->flat, m->back, (size_t)m->table.elements * sizeof(float));
}

static DsviStoredTensor *find(Model *m, const char *name)
{
    int64_t i = dsvi_param_find(&m->table, name);
    assert_true(i >= 0);
    return &m->tensors[i];
}

static void places_do_not_overlap(void **state)
{
    const Model *m = *state;
    int64_t parameters = 0;
    char *taken = calloc((size_t)m->table.elements, 1);
    assert_non_null(taken);
    for (int64_t i = 0; i < m->table.count; i++) {
        const DsviParam *param = &m->table.params[i];
        assert_int_equal(param->offset % 16, 0);
        assert_in_range(param->offset + param->count, 0, m->table.elements);
        for (int64_t j = 0; j < param->count; j++)
            assert_int_equal(taken[param->offset + j]++, 0);
        parameters += param->count;
        assert_int_equal(dsvi_param_find(&m->table, param->name), i);
    }
    free(taken);
    assert_int_equal(parameters, m->table.parameters);
    assert_int_equal(dsvi_param_find(&m->table, "blocks.2.norm2.weight"), -1);
}

/* Each parameter is stored in the range of its block's bucket, GEMM weights after the other parameters. */
static void buckets_hold_their_blocks(void **state)
{
    const Model *m = *state;
    const DsviParamTable *table = &m->table;
    long long block;
    assert_int_equal(table->begin[0], 0);
    assert_int_equal(table->begin[table->buckets], table->elements);
    for (int64_t i = 0; i < table->count; i++) {
        const DsviParam *param = &table->params[i];
        int64_t bucket = dsvi_param_bucket(table, param->offset);
        bool behind = strncmp(param->name, "proj_out", 8) == 0 ||
                      strcmp(param->name, "scale_shift_table") == 0;
        bool inside = sscanf(param->name, "blocks.%lld.", &block) == 1;
        assert_int_equal(bucket, inside ? block + 1 : behind ? table->buckets - 1 : 0);
        assert_int_equal(dsvi_param_bucket(table, param->offset + param->count - 1), bucket);
        assert_int_equal(param->in_compute_dtype, param->offset >= table->gemm[bucket]);
        assert_in_range(param->offset, table->begin[bucket], table->begin[bucket + 1] - 1);
    }
}

/* Checks mean and deviation of initial weights. The bounds are five standard errors of n independent
 * draws. */
static void check_draw(const Model *m, const char *name, double deviation, double largest)
{
    const DsviParam *param = &m->table.params[dsvi_param_find(&m->table, name)];
    double n = (double)param->count, sum = 0, square = 0, most = 0;
    for (int64_t i = 0; i < param->count; i++) {
        double value = m->back[param->offset + i];
        sum += value;
        square += value * value;
        most = fmax(most, fabs(value));
    }
    assert_error_below(fabs(sum / n), 5 * deviation / sqrt(n), "mean of %s", name);
    assert_error_below(fabs(sqrt(square / n) / deviation - 1), 5 / sqrt(n), "deviation of %s", name);
    assert_true(most <= largest);
}

static void initialisation_follows_the_rules(void **state)
{
    const Model *m = *state;
    const double width = 3 * 34;
    dsvi_weights_init(&m->table, 3, m->back);
    double limit = sqrt(6 / (width + width));
    check_draw(m, "blocks.1.attn1.to_q.weight", limit / sqrt(3), limit);
    limit = sqrt(6 / (width + 50));
    check_draw(m, "blocks.0.ffn.net.2.weight", limit / sqrt(3), limit);
    limit = sqrt(6 / (width + 16 * 4));
    check_draw(m, "patch_embedding.weight", limit / sqrt(3), limit);
    check_draw(m, "condition_embedder.time_embedder.linear_2.weight", 0.02, 0.2);
    check_draw(m, "condition_embedder.text_embedder.linear_1.weight", 0.02, 0.2);
    check_draw(m, "blocks.0.scale_shift_table", 1 / sqrt(width), 6 / sqrt(width));
    check_draw(m, "scale_shift_table", 1 / sqrt(width), 6 / sqrt(width));
    for (int64_t i = 0; i < m->table.count; i++) {
        const DsviParam *param = &m->table.params[i];
        bool ones = param->init == DSVI_INIT_ONE, zeros = param->init == DSVI_INIT_ZERO;
        assert_int_equal(ones, strstr(param->name, "norm") && strstr(param->name, "weight"));
        assert_int_equal(zeros, strstr(param->name, "bias") || strcmp(param->name, "proj_out.weight") == 0);
        for (int64_t j = 0; j < param->count && (ones || zeros); j++)
            assert_true(m->back[param->offset + j] == (ones ? 1 : 0));
        for (int64_t j = param->offset + param->count; j < m->table.elements && j % 16; j++)
            assert_true(m->back[j] == 0);
    }
    memcpy(m->flat, m->back, (size_t)m->table.elements * sizeof(float));
    dsvi_weights_init(&m->table, 3, m->back);
    assert_same(m);
    dsvi_weights_init(&m->table, 4, m->back);
    assert_memory_not_equal(m->flat, m->back, (size_t)m->table.elements * sizeof(float));
}

static void reads_what_it_writes(void **state)
{
    const Model *m = *state;
    assert_ok(dsvi_weights_write(folder, &m->table, m->flat, DSVI_F32, ALL));
    assert_ok(read_back(m, folder));
    assert_same(m);
    assert_ok(read_back(m, m->path));
    assert_same(m);
}

static void rounds_to_bf16(void **state)
{
    const Model *m = *state;
    assert_ok(dsvi_weights_write(folder, &m->table, m->flat, DSVI_BF16, ALL));
    assert_ok(read_back(m, folder));
    for (int64_t i = 0; i < m->table.elements; i++)
        assert_true(m->back[i] == dsvi_bf16_to_f32(dsvi_f32_to_bf16(m->flat[i])));
}

static void writes_shards(void **state)
{
    Model *m = *state;
    char path[512], *text;
    size_t bytes;
    const uint64_t limit = 60000;
    assert_ok(dsvi_weights_write(folder, &m->table, m->flat, DSVI_F32, limit));
    assert_false(dsvi_path_exists(m->path));
    assert_ok(read_back(m, folder));
    assert_same(m);
    snprintf(path, sizeof path, "%s/%s", folder, DSVI_WEIGHTS_INDEX);
    assert_ok(dsvi_file_read(path, ALL, &text, &bytes));
    char total[64];
    snprintf(total, sizeof total, "\"total_size\":\t%lld", (long long)m->table.parameters * 4);
    assert_non_null(strstr(text, total));
    assert_non_null(strstr(text, "diffusion_pytorch_model-00001-of-000"));
    free(text);
    /* The error names a missing shard. */
    DsviWeightFiles files;
    assert_ok(dsvi_weight_files_find(folder, &files));
    assert_true(files.count > 2);
    for (size_t i = 0; i < files.count; i++) {
        DsviSafetensors *file;
        uint64_t stored = 0;
        assert_ok(dsvi_safetensors_open(files.paths[i], &file));
        for (size_t n = 0; n < dsvi_safetensors_count(file); n++)
            stored += dsvi_safetensors_at(file, n)->bytes;
        assert_true(stored <= limit || dsvi_safetensors_count(file) == 1);
        dsvi_safetensors_close(&file);
    }
    assert_int_equal(remove(files.paths[1]), 0);
    assert_fails(DSV_E_NOT_FOUND, "-00002-of-", read_back(m, folder));
    dsvi_weight_files_free(&files);
}

static void rename_all(Model *m, const char *prefix, bool original)
{
    for (size_t i = 0; i < m->count; i++)
        snprintf(m->names[i], sizeof *m->names, "%s%s", prefix,
                 original ? m->table.params[i].original : m->table.params[i].name);
}

static void reads_both_namings_and_prefixes(void **state)
{
    static const char *const PREFIXES[] = {"", "model.diffusion_model.", "diffusion_model."};
    Model *m = *state;
    for (size_t i = 0; i < sizeof PREFIXES / sizeof *PREFIXES; i++) {
        for (int original = 0; original < 2; original++) {
            rename_all(m, PREFIXES[i], original);
            write_tensors(m);
            assert_ok(read_back(m, folder));
            assert_same(m);
        }
    }
}

/* Uses small whole numbers, which F16 and BF16 both represent exactly. */
static void reads_other_dtypes(void **state)
{
    static const DsviDtype DTYPES[] = {DSVI_F16, DSVI_BF16, DSVI_F64};
    Model *m = *state;
    char *copy = calloc((size_t)m->table.elements, sizeof(double));
    assert_non_null(copy);
    for (int64_t i = 0; i < m->table.elements; i++)
        m->flat[i] = m->flat[i] == 0 ? 0 : (float)(i % 200 - 100);
    for (size_t d = 0; d < sizeof DTYPES / sizeof *DTYPES; d++) {
        size_t size = dsvi_dtype_size(DTYPES[d]);
        dsvi_convert(DTYPES[d], copy, DSVI_F32, m->flat, m->table.elements);
        for (size_t i = 0; i < m->count; i++) {
            m->tensors[i].dtype = DTYPES[d];
            m->tensors[i].bytes = (size_t)m->tensors[i].count * size;
            m->tensors[i].data = copy + (size_t)m->table.params[i].offset * size;
        }
        write_tensors(m);
        assert_ok(read_back(m, folder));
        assert_same(m);
    }
    free(copy);
}

/* Replaces the first tensor of `parts` by a tensor with the rows of all parts, and gives the other parts
 * names that readers ignore. Returns the memory of the new tensor, which the caller frees. */
static float *fuse(Model *m, const char *name, const char *const *parts, int count)
{
    DsviStoredTensor *first = find(m, parts[0]);
    float *rows = malloc((size_t)count * first->bytes);
    assert_non_null(rows);
    for (int i = 0; i < count; i++) {
        DsviStoredTensor *part = find(m, parts[i]);
        memcpy(rows + i * part->count, part->data, part->bytes);
        if (i > 0)
            snprintf((char *)part->name, 160, "left.out.norm_added_q.%d.%s", i, name);
    }
    first->name = name;
    first->shape[0] *= count;
    first->count *= count;
    first->bytes *= (size_t)count;
    first->data = rows;
    return rows;
}

static void splits_fused_projections(void **state)
{
    Model *m = *state;
    static const char *const QKV[] = {"blocks.1.attn1.to_q.weight", "blocks.1.attn1.to_k.weight",
                                      "blocks.1.attn1.to_v.weight"};
    static const char *const KV[] = {"blocks.0.attn2.to_k.bias", "blocks.0.attn2.to_v.bias"};
    float *weight = fuse(m, "blocks.1.attn1.to_qkv.weight", QKV, 3);
    float *bias = fuse(m, "blocks.0.attn2.to_kv.bias", KV, 2);
    write_tensors(m);
    assert_ok(read_back(m, folder));
    assert_same(m);
    free(weight);
    free(bias);
}

static void takes_squeezed_shapes(void **state)
{
    Model *m = *state;
    DsviStoredTensor *table = find(m, "blocks.0.scale_shift_table");
    DsviStoredTensor *patch = find(m, "patch_embedding.weight");
    table->ndim = 2;
    table->shape[0] = 6;
    table->shape[1] = table->shape[2];
    patch->ndim = 4;
    patch->shape[2] = patch->shape[3] = 2;
    write_tensors(m);
    assert_ok(read_back(m, folder));
    assert_same(m);
}

static void tells_every_fault(void **state)
{
    Model *m = *state;
    float number[6] = {0};
    int32_t whole[102] = {0};
    strcpy(m->names[0], "blocks.0.to_gate_compress.weight");
    DsviStoredTensor *norm = find(m, "blocks.1.norm2.bias");
    norm->shape[0] = norm->count = 6;
    norm->bytes = sizeof number;
    norm->data = number;
    DsviStoredTensor *key = find(m, "blocks.0.attn2.norm_k.weight");
    key->dtype = DSVI_I32;
    key->data = whole;
    m->tensors[m->count] = *find(m, "proj_out.bias");
    m->tensors[m->count++].name = "head.head.bias";
    write_tensors(m);
    static const char *const WORDS[] = {"5 tensors",
                                        "unknown blocks.0.to_gate_compress.weight",
                                        "missing patch_embedding.weight",
                                        "blocks.1.norm2.bias is (6), expected (102)",
                                        "blocks.0.attn2.norm_k.weight is I32",
                                        "proj_out.bias is there twice"};
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        assert_fails(DSV_E_SHAPE, WORDS[i], read_back(m, m->path));
    assert_int_equal(strncmp(dsv_error_message(), m->path, strlen(m->path)), 0);
}

static void counts_what_it_does_not_list(void **state)
{
    Model *m = *state;
    m->count = 20;
    char words[32];
    write_tensors(m);
    snprintf(words, sizeof words, "%lld tensors", (long long)m->table.count - 20);
    assert_fails(DSV_E_SHAPE, words, read_back(m, folder));
    assert_non_null(strstr(dsv_error_message(), "; ..."));
    assert_null(strchr(dsv_error_message(), '\n'));
}

static void write_text(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(dsvi_file_write(path, text, strlen(text)));
}

static void finds_the_right_files(void **state)
{
    Model *m = *state;
    assert_fails(DSV_E_NOT_FOUND, "no safetensors file", read_back(m, folder));
    write_text("model.pth", "pickle");
    assert_fails(DSV_E_UNSUPPORTED, "model.pth: weights in a pickle", read_back(m, folder));
    assert_fails(DSV_E_UNSUPPORTED, "pickle", read_back(m, "/tmp/absent/model.bin"));
    assert_fails(DSV_E_NOT_FOUND, "absent.safetensors", read_back(m, "/tmp/absent.safetensors"));
    snprintf(m->path, sizeof m->path, "%s/wan_repack.safetensors", folder);
    write_tensors(m);
    assert_ok(read_back(m, folder));
    assert_same(m);
    write_text("another.safetensors", "");
    assert_fails(DSV_E_USAGE, "2 safetensors files", read_back(m, folder));
}

static void refuses_a_hostile_index(void **state)
{
    static const char *const FILES[] = {
        "\"../secret.safetensors\"", "\"/etc/passwd\"", "\"..\"", "\"\"", "7", "\"a\\\\b\""};
    const Model *m = *state;
    char text[256];
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        snprintf(text, sizeof text, "{\"weight_map\": {\"proj_out.bias\": %s}}", FILES[i]);
        write_text(DSVI_WEIGHTS_INDEX, text);
        assert_fails(DSV_E_FORMAT, "the file of tensor proj_out.bias", read_back(m, folder));
    }
    write_text(DSVI_WEIGHTS_INDEX, "{\"weight_map\": []}");
    assert_fails(DSV_E_FORMAT, "no weight_map", read_back(m, folder));
    write_text(DSVI_WEIGHTS_INDEX, "not JSON");
    assert_fails(DSV_E_FORMAT, "no weight_map", read_back(m, folder));
}

static void keeps_any_array(void **state)
{
    const Model *m = *state;
    assert_ok(dsvi_flat_write(m->path, &m->table, "exp_avg", m->flat));
    assert_ok(dsvi_flat_read(m->path, &m->table, "exp_avg", m->back));
    assert_same(m);
    DsviSafetensors *file;
    assert_ok(dsvi_safetensors_open(m->path, &file));
    assert_non_null(dsvi_safetensors_find(file, "exp_avg.patch_embedding.weight"));
    dsvi_safetensors_close(&file);
    assert_fails(DSV_E_NOT_FOUND, "moment.patch_embedding.weight",
                 dsvi_flat_read(m->path, &m->table, "moment", m->back));
    DsviParamTable fewer = m->table;
    fewer.count--;
    assert_fails(DSV_E_SHAPE, "tensors, expected", dsvi_flat_read(m->path, &fewer, "exp_avg", m->back));
}

/* In checkpoints of version 0.1, names have no dot after the name of the array: exp_avgblocks.0... */
static void reads_arrays_of_version_0_1(void **state)
{
    enum { COUNT_MAX = 256 };
    static char names[COUNT_MAX][160];
    static DsviStoredTensor tensors[COUNT_MAX];
    const Model *m = *state;
    assert_true(m->table.count <= COUNT_MAX);
    for (int64_t i = 0; i < m->table.count; i++) {
        const DsviParam *param = &m->table.params[i];
        snprintf(names[i], sizeof names[i], "exp_avg%s", param->name);
        tensors[i] = (DsviStoredTensor){.name = names[i],
                                        .dtype = DSVI_F32,
                                        .ndim = param->ndim,
                                        .data = m->flat + param->offset,
                                        .count = param->count,
                                        .bytes = (size_t)param->count * sizeof(float)};
        memcpy(tensors[i].shape, param->shape, sizeof param->shape);
    }
    assert_ok(dsvi_safetensors_write(m->path, tensors, (size_t)m->table.count, NULL, 0));
    assert_ok(dsvi_flat_read(m->path, &m->table, "exp_avg", m->back));
    assert_same(m);
}

#define WITH_MODEL(test) cmocka_unit_test_setup_teardown(test, make_model, free_model)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_MODEL(places_do_not_overlap),
        WITH_MODEL(buckets_hold_their_blocks),
        WITH_MODEL(initialisation_follows_the_rules),
        WITH_MODEL(reads_what_it_writes),
        WITH_MODEL(rounds_to_bf16),
        WITH_MODEL(writes_shards),
        WITH_MODEL(reads_both_namings_and_prefixes),
        WITH_MODEL(reads_other_dtypes),
        WITH_MODEL(splits_fused_projections),
        WITH_MODEL(takes_squeezed_shapes),
        WITH_MODEL(tells_every_fault),
        WITH_MODEL(counts_what_it_does_not_list),
        WITH_MODEL(finds_the_right_files),
        WITH_MODEL(refuses_a_hostile_index),
        WITH_MODEL(reads_arrays_of_version_0_1),
        WITH_MODEL(keeps_any_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
