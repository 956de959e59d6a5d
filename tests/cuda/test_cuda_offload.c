/* Training steps with lists that stay on the GPU and with offloaded lists (sparse.offload_lists) give the
 * same bits in every mode of gradient checkpointing, and so do those whose state, weights, gradients and
 * activations wait in host memory, as offload=auto chooses or all of them, wherever the state is updated
 * (offload_update). Lists are so long that their copies overlap with attention. */
#include "base/rng.h"
#include "cpu/cpu.h"
#include "cuda/gpu.h"
#include "test.h"
#include "train/step.h"

enum { STEPS = 3, BLOCKS = 5, HEADS = 4, CHANNELS = 16, FRAMES = 8, SIDE = 64 }; /* 8,192 tokens */

static DsvStatus fixed_latent_shape(const DsviCodec *codec, DsviVideoShape video, DsviVideoShape *latent)
{
    (void)codec;
    (void)video;
    *latent = (DsviVideoShape){CHANNELS, FRAMES, SIDE, SIDE};
    return DSV_OK;
}

static const DsviCodec FIXED = {.name = "fixed", .latent_shape = fixed_latent_shape};

static DsvStatus next_random(void *context, DsviSample *sample)
{
    uint32_t *drawn = context;
    float *latent = sample->latent;
    dsvi_rng_fill_normal((DsviRng){7, DSVI_RNG_TEST, (*drawn)++}, 0, latent, CHANNELS * FRAMES * SIDE * SIDE);
    return DSV_OK;
}

static DsvConfig settings_of(const char *keep, bool offload)
{
    static const char *const assignment[] = {
        "model.num_layers=5",
        "model.num_attention_heads=4",
        "model.attention_head_dim=64",
        "model.ffn_dim=512",
        "train_batch_size=1",
        "gradient_accumulation_steps=2",
        "lr=1e-3",
        "mixed_precision=bf16",
        "validation_at_end=false",
        "deterministic=true",
        "sparse.group=64",
        "sparse.measure_cost=false",
        "sparse.max_density=0.25",
        "sparse.min_keys=0",
        "sparse.list_memory=0.3",
        "sparse.profile_every=2",
    };
    DsvConfig settings;
    dsv_config_defaults(&settings);
    for (size_t i = 0; i < sizeof assignment / sizeof *assignment; i++)
        assert_ok(dsv_config_set(&settings, assignment[i]));
    snprintf(settings.gradient_checkpointing, sizeof settings.gradient_checkpointing, "%s", keep);
    settings.sparse_offload_lists = offload;
    return settings;
}

typedef struct Trained {
    double loss[STEPS];
    float *weights;
    size_t bytes;
    size_t used; /* planned device memory */
} Trained;

/* Trains STEPS steps. One of the five blocks runs dense. With `crowded` the device has no memory for the
 * lists of two consecutive blocks at once. */
static void train(DsvConfig settings, bool crowded, Trained *out)
{
    static const double share[2][BLOCKS] = {{0.2, 0.25, NAN, 0.1, 0.3}, {0.33, 0.33, 0.05, NAN, 0.32}};
    double density[BLOCKS * HEADS];
    DsviTrainer *t;
    DsviDitConfig config;
    uint32_t drawn = 0;
    DsviSampleSource source = {.context = &drawn, .next = next_random};
    assert_ok(dsvi_dit_config_make(&settings, &config));
    config.in_channels = config.out_channels = CHANNELS;
    for (int i = 0; i < BLOCKS * HEADS; i++)
        density[i] = share[crowded][i / HEADS];
    assert_ok(dsvi_trainer_create(
        &(DsviTrainerArgs){
            .settings = &settings, .backend = &gpu_backend, .codec = &FIXED, .config = &config},
        &t));
    dsvi_sparse_prescribe(t->sparse, density);
    assert_ok(dsvi_trainer_start_new(t, 7));
    for (int step = 0; step < STEPS; step++) {
        DsviStepResult result;
        assert_ok(dsvi_train_step(t, &source, &result));
        out->loss[step] = result.loss;
    }
    for (int64_t i = 0; i < BLOCKS; i++) {
        DsviSparseBlockReport report;
        dsvi_sparse_block_report(t->sparse, i, &report);
        assert_true(report.over_lists == !isnan(share[crowded][i]));
    }
    out->used = t->arena.used;
    out->bytes = (size_t)t->zero.shard.own * sizeof(float);
    out->weights = malloc(out->bytes);
    assert_non_null(out->weights);
    assert_ok(dsvi_zero_fetch_whole(&t->zero, DSVI_STATE_MASTER, out->weights));
    dsvi_trainer_free(&t);
}

static void same_bits(const Trained *kept, const Trained *moved, const char *what)
{
    for (int step = 0; step < STEPS; step++)
        if (!(kept->loss[step] == moved->loss[step]))
            fail_msg("%s, step %d: loss %.17g, offloaded %.17g", what, step + 1, kept->loss[step],
                     moved->loss[step]);
    assert_int_equal(kept->bytes, moved->bytes);
    assert_memory_equal(kept->weights, moved->weights, kept->bytes);
}

/* offload=auto with limits from the least memory upwards. */
static void planned(void **state)
{
    DsvConfig settings = settings_of("false", false);
    Trained all, least;
    (void)state;
    train(settings, false, &all);
    settings = settings_of("true", false);
    assert_ok(dsv_config_set(&settings, "offload=states+residual"));
    train(settings, false, &least);
    same_bits(&all, &least, "states+residual");
    for (int i = 0; i < 4; i++) {
        Trained some;
        settings = settings_of("false", false);
        assert_ok(dsv_config_set(&settings, "offload=auto"));
        double bytes = (double)least.used + 1e5 + i * (double)(all.used - least.used) / 4;
        settings.memory_gib = bytes / 1073741824.0;
        train(settings, false, &some);
        assert_true((double)some.used <= bytes);
        same_bits(&all, &some, "auto");
        free(some.weights);
    }
    free(all.weights);
    free(least.weights);
}

/* Weights and gradients in host memory, with gradients that add up on the device, that leave it, and that the
 * backward pass uses up. */
static void trained_weights_wait(void **state)
{
    static const char *const forms[][2] = {{"gradient_accumulation_steps=2", "max_grad_norm=1"},
                                           {"gradient_accumulation_steps=1", "max_grad_norm=1"},
                                           {"gradient_accumulation_steps=1", "max_grad_norm=0"}};
    static const char *const ways[] = {"offload=none", "offload=states", "offload=weights",
                                       "offload=weights+residual"};
    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        Trained kept = {0};
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            Trained moved;
            DsvConfig settings = settings_of("selective", false);
            assert_ok(dsv_config_set(&settings, forms[f][0]));
            assert_ok(dsv_config_set(&settings, forms[f][1]));
            assert_ok(dsv_config_set(&settings, ways[w]));
            train(settings, false, w > 0 ? &moved : &kept);
            if (w == 0)
                continue;
            same_bits(&kept, &moved, ways[w]);
            free(moved.weights);
        }
        free(kept.weights);
    }
}

/* AdamW of the CPU gives the bits of the GPU's. */
static void updated_by_the_cpu(void **state)
{
    static const char *const forms[][2] = {{"gradient_accumulation_steps=2", "ema_decay=0.9"},
                                           {"gradient_accumulation_steps=1", "max_grad_norm=1e-2"},
                                           {"gradient_accumulation_steps=1", "max_grad_norm=0"},
                                           {"optimizer=adamw_bf16", "train_modules=attn1"},
                                           {"optimizer=adamw_8bit", "max_grad_norm=1"}};
    static const char *const ways[] = {"offload=states", "offload=weights", "offload=states memory_gib"};
    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        DsvConfig settings = settings_of("selective", false);
        Trained kept;
        for (int i = 0; i < 2; i++)
            assert_ok(dsv_config_set(&settings, forms[f][i]));
        train(settings, false, &kept);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            Trained moved[2];
            for (int host = 0; host < 2; host++) {
                DsvConfig some = settings;
                assert_ok(dsv_config_set(&some, w == 1 ? "offload=weights" : "offload=states"));
                assert_ok(dsv_config_set(&some, host ? "offload_update=host" : "offload_update=device"));
                if (w == 2) /* state of some of the blocks */
                    some.memory_gib = (double)kept.used / 1073741824.0 * 0.99;
                train(some, false, &moved[host]);
                same_bits(&kept, &moved[host], ways[w]);
                free(moved[host].weights);
            }
        }
        free(kept.weights);
    }
}

static void kept_or_offloaded(void **state)
{
    static const char *const keep[] = {"false", "selective", "true"};
    (void)state;
    for (int i = 0; i < 6; i++) {
        Trained kept, offloaded;
        train(settings_of(keep[i % 3], false), i >= 3, &kept);
        train(settings_of(keep[i % 3], true), i >= 3, &offloaded);
        same_bits(&kept, &offloaded, keep[i % 3]);
        free(kept.weights);
        free(offloaded.weights);
    }
}

/* Runs only in deterministic mode, since bits cannot be compared if sums have no fixed order. */
static int run(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kept_or_offloaded), cmocka_unit_test(planned),
                                       cmocka_unit_test(trained_weights_wait),
                                       cmocka_unit_test(updated_by_the_cpu)};
    if (!gpu_backend.device->deterministic)
        return 0;
    dsvi_cpu_fill_host(&gpu_backend.host_ops);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    return run_on_gpu(run, argc, argv);
}
