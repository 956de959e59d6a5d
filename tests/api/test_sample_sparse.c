/* Sparse attention while published folders are sampled: lists of all keys give the dense clip, the guard's
 * refusal leaves it unchanged, and a clip depends on nothing but its own settings. */
#include "test.h"

#include "backend/backend.h"
#include "base/safetensors.h"
#include "base/scratch.h"
#include "device/carve.h"
#include "dsv/dsv.h"
#include "golden/golden_files.h"
#include "model/dit/dit_config.h"
#include "sparse/sparse_internal.h"

enum { STEPS = 6, LOG_BYTES = 1 << 14 };

typedef struct Outcome {
    char log[LOG_BYTES];
} Outcome;

static void keep_line(void *context, DsvLogLevel level, const char *line)
{
    Outcome *out = context;
    size_t used = strlen(out->log);
    (void)level;
    snprintf(out->log + used, sizeof out->log - used, "%s\n", line);
}

/* A clip of 72 tokens in F32, with groups of 16 queries. `more`: options divided by blanks. */
static void sparse_options(const char *more, DsvConfig *settings)
{
    bool found;
    char assignments[1024], *rest = assignments;
    dsv_config_defaults(settings);
    assert_ok(dsv_config_of_run(golden_path("pipe_a"), settings, &found));
    snprintf(assignments, sizeof assignments,
             "height=64 width=96 num_frames=9 num_inference_steps=%d threads=2 mixed_precision=no "
             "sparse.group=16 sparse.rank=8 sparse.list_memory=1 %s",
             STEPS, more);
    for (char *word; (word = strsep(&rest, " ")) != NULL;)
        if (word[0])
            assert_ok(dsv_config_set(settings, word));
}

static DsvStatus sample_with(const char *more, const char *state, const char *output, Outcome *out)
{
    DsvConfig settings;
    DsvSampleArgs args;
    DsvEvents events = {.context = out, .log = keep_line};
    const char *prompt = "A cat walks on the grass, realistic";
    out->log[0] = 0;
    sparse_options(more, &settings);
    dsv_sample_args_defaults(&args);
    args.model_path = golden_path("pipe_a");
    args.prompts = &prompt;
    args.prompt_count = 1;
    args.output_path = scratch_path("clip.safetensors");
    args.latents_path = scratch_path(output);
    args.sparse_path = state;
    return dsv_sample_clips(&args, &settings, &events);
}

static double difference(const char *a, const char *b)
{
    DsviSafetensors *x, *y;
    double largest = 0;
    assert_ok(dsvi_safetensors_open(scratch_path(a), &x));
    assert_ok(dsvi_safetensors_open(scratch_path(b), &y));
    const DsviStoredTensor *p = dsvi_safetensors_find(x, "latents"), *q = dsvi_safetensors_find(y, "latents");
    assert_int_equal(p->count, q->count);
    for (int64_t i = 0; i < p->count; i++) {
        double d = fabs((double)((const float *)p->data)[i] - ((const float *)q->data)[i]);
        if (!(d <= largest))
            largest = d;
    }
    dsvi_safetensors_close(&x);
    dsvi_safetensors_close(&y);
    return largest;
}

static void sample_dense(void)
{
    static Outcome out;
    assert_ok(sample_with("", NULL, "dense.safetensors", &out));
    assert_null(strstr(out.log, "sparse"));
    assert_non_null(strstr(out.log, " s for 6 steps (")); /* the times, which bench/torch_sample.py reads */
}

/* Both sum the same products in another order: the bound is the one for dense clips against diffusers. */
static void lists_of_all_keys(void **state)
{
    static Outcome out;
    (void)state;
    sample_dense();
    assert_ok(sample_with("sparse.enabled=true sparse.target_mass=1 sparse.target_density=1 "
                          "sparse.max_density=1 sparse.min_mass=0.99 sparse.warmup_steps=2 "
                          "sparse.profile_every=2",
                          NULL, "all.safetensors", &out));
    assert_error_below(difference("all.safetensors", "dense.safetensors"), 1e-4, "lists of all keys");
    assert_non_null(
        strstr(out.log, "block 0: sparse in 4 of 6 steps, mean density 1.000; its lists hold 1.000"));
    assert_non_null(strstr(out.log, "2 of 2 blocks were sparse"));
}

/* Samples with dense attention in all steps, in the token order of sparse attention: with this order sums are
 * rounded otherwise than without sparse attention. */
static void sample_dense_in_order(void)
{
    static Outcome out;
    sample_dense();
    assert_ok(sample_with("sparse.enabled=true sparse.warmup_steps=6", NULL, "ordered.safetensors", &out));
    assert_error_below(difference("ordered.safetensors", "dense.safetensors"), 1e-4, "token order");
    assert_non_null(strstr(out.log, "sparse.warmup_steps=6 keeps attention dense"));
}

static void refused_by_the_guard(void **state)
{
    static Outcome out;
    (void)state;
    sample_dense_in_order();
    assert_ok(
        sample_with("sparse.enabled=true sparse.target_density=0.1 sparse.min_keys=0 sparse.min_mass=0.99 "
                    "sparse.warmup_steps=1",
                    NULL, "refused.safetensors", &out));
    assert_true(difference("refused.safetensors", "ordered.safetensors") == 0);
    assert_non_null(strstr(out.log, "block 1: sparse in 0 of 6 steps, mean density 1.000"));
    assert_non_null(strstr(out.log, "0 of 2 blocks were sparse"));
}

#define ACCEPTED                                                                            \
    "sparse.enabled=true sparse.target_density=0.3 sparse.min_keys=0 sparse.min_mass=0.01 " \
    "sparse.min_head_mass=0 sparse.warmup_steps=1 sparse.profile_every=2"

static void same_bits_again(void **state)
{
    static Outcome out;
    DsviSafetensors *clip;
    (void)state;
    sample_dense();
    assert_ok(sample_with(ACCEPTED, NULL, "first.safetensors", &out));
    assert_true(difference("first.safetensors", "dense.safetensors") > 1e-4);
    assert_non_null(strstr(out.log, "block 0 turns sparse"));
    assert_non_null(strstr(out.log, "block 0: sparse in 5 of 6 steps"));
    assert_ok(dsvi_safetensors_open(scratch_path("clip.safetensors"), &clip));
    const char *comment = dsvi_safetensors_metadata(clip, "comment");
    assert_non_null(comment);
    assert_non_null(strstr(comment, "\"sparse\":{\"selector\":\"projection\",\"state\":null"));
    assert_non_null(strstr(comment, "\"sparse_blocks\":2"));
    dsvi_safetensors_close(&clip);
    assert_ok(sample_with(ACCEPTED, NULL, "second.safetensors", &out));
    assert_true(difference("first.safetensors", "second.safetensors") == 0);
}

/* The second clip of a file of prompts is the clip of its prompt alone. */
static void clips_do_not_depend_on_each_other(void **state)
{
    static Outcome out;
    DsvConfig settings;
    DsvSampleArgs args;
    const char *file = "rain\nA cat walks on the grass, realistic\n";
    (void)state;
    assert_ok(sample_with(ACCEPTED, NULL, "alone.safetensors", &out));
    sparse_options(ACCEPTED, &settings);
    assert_ok(dsvi_file_write(scratch_path("prompts.txt"), file, strlen(file)));
    dsv_sample_args_defaults(&args);
    args.model_path = golden_path("pipe_a");
    args.prompts_path = scratch_path("prompts.txt");
    args.output_path = scratch_path("clip.safetensors");
    args.latents_path = scratch_path("of.safetensors");
    assert_ok(dsv_sample_clips(&args, &settings, NULL));
    assert_true(difference("of-0000.safetensors", "alone.safetensors") > 0);
    assert_true(difference("of-0001.safetensors", "alone.safetensors") == 0);
}

static void carve_state(void *context, DsviArena *arena)
{
    dsvi_sparse_carve(context, arena);
}

/* Writes a state in which all blocks are sparse and measured, and nothing was gathered. The state is for the
 * model with `more_heads` more heads. */
static void write_state(const char *path, int64_t more_heads, bool enabled)
{
    DsviDitConfig model;
    assert_ok(dsvi_dit_config_read(golden_path("pipe_a/transformer/config.json"), &model));
    DsvConfig settings;
    DsviBackend backend = {0};
    DsviSparse *sparse;
    void *memory;
    const DsviSparseShape shape = {.blocks = model.num_layers,
                                   .batch = 1,
                                   .tokens = 16,
                                   .heads = model.num_attention_heads + more_heads,
                                   .head_dim = model.attention_head_dim,
                                   .grid = {1, 4, 4},
                                   .act = DSVI_F32};
    sparse_options("", &settings);
    settings.sparse_enabled = enabled;
    settings.sparse_measure_cost = false;
    assert_ok(dsvi_backend_open(&settings, &backend));
    assert_ok(dsvi_sparse_create(&backend, &settings, &shape, NULL, NULL, &sparse));
    assert_ok(dsvi_device_alloc_layout(backend.device, carve_state, sparse, &memory));
    assert_ok(dsvi_sparse_setup(sparse));
    for (int64_t block = 0; block < shape.blocks; block++) {
        sparse->record.sparse[block] = 1;
        sparse->record.captured[block] = sparse->record.share90[block] = 0.5;
    }
    assert_ok(dsvi_sparse_save(sparse, path));
    dsvi_sparse_free(&sparse);
    backend.device->mem_free(backend.device, memory);
    dsvi_backend_close(&backend);
}

/* The state's blocks are sparse in the last step of the warm-up. Without a state this step measures, and
 * blocks are sparse from the next step on. */
static void a_stored_state(void **state)
{
    static Outcome out;
    const char *options = "sparse.enabled=true sparse.target_density=0.3 sparse.min_keys=0 "
                          "sparse.warmup_steps=3 sparse.profile_every=1000 sparse.min_mass=0";
    char path[DSVI_PATH_MAX]; /* scratch_path keeps a few paths only */
    (void)state;
    snprintf(path, sizeof path, "%s", scratch_path("state.safetensors"));
    write_state(path, 0, true);
    assert_ok(sample_with(options, NULL, "fresh.safetensors", &out));
    assert_non_null(strstr(out.log, "block 1: sparse in 3 of 6 steps"));
    assert_ok(sample_with(options, path, "stored.safetensors", &out));
    assert_true(difference("stored.safetensors", "dense.safetensors") > 1e-4);
    assert_non_null(strstr(out.log, "block 1: sparse in 4 of 6 steps"));
    assert_fails(DSV_E_USAGE, "sparse.enabled=true only", sample_with("", path, "x.safetensors", &out));
    write_state(path, 1, true);
    assert_fails(DSV_E_SHAPE, "sparse state is for heads ",
                 sample_with(options, path, "x.safetensors", &out));
    write_state(path, 0, false);
    assert_fails(DSV_E_NOT_FOUND, "no sparse state", sample_with(options, path, "x.safetensors", &out));
    assert_fails(DSV_E_NOT_FOUND, "absent",
                 sample_with(options, scratch_path("absent"), "x.safetensors", &out));
    assert_false(dsvi_path_exists(scratch_path("x.safetensors")));
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_all_keys), cmocka_unit_test(refused_by_the_guard),
        cmocka_unit_test(same_bits_again),   cmocka_unit_test(clips_do_not_depend_on_each_other),
        cmocka_unit_test(a_stored_state),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}

int main(void)
{
    return golden_run("pipe_a", run_all);
}
