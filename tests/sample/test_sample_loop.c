/* The sampling loop with a fake model, sparse layer and codec, which count calls and have a known exact
 * result. */
#include "test.h"

#include "sample/sample_loop.h"

enum { ELEMENTS = 2 * 1 * 2 * 3, IMAGE = 1 * 2 * 3, ROWS = 2 * 4, TEXT = 4, STEPS = 5 };

static const float some_image[IMAGE] = {6, 5, 4, 3, 2, 1};
static const float some_rows[ROWS] = {1, 2, 4, 8, 16, 32, 64, 128};

/* Replaces the transformer: it has one clean latent for each kind of text. */
struct DsviDit {
    int64_t batch;
    int passes, guided_passes;
    float clean[2];    /* without and with text */
    float poison;      /* added to the output */
    bool image;        /* takes a channel of a picture after those of the latent */
    const float *rows; /* the image rows of the batch that dsvi_dit_set_image was given; NULL: none */
    double timesteps[2 * STEPS];
};

struct DsviSparse {
    int begun, ended, learning, measured_again, restarted;
    int passes_before_again; /* of the model, when dsvi_sparse_measure_again was called last */
    const DsviDit *dit;
};

/* Sigma is t / 1000 for euler, so v = (x - clean) / sigma leads to exactly `clean`. */
static void evaluate(DsviDit *dit, const float *x, float t, const float *rows, float *v)
{
    bool conditional = rows[0] != 0;
    assert_true(dit->passes < 2 * STEPS);
    dit->timesteps[dit->passes++] = t;
    dit->guided_passes += conditional;
    for (int i = 0; i < ELEMENTS; i++)
        v[i] = (x[i] - dit->clean[conditional]) / (t / 1000) + dit->poison;
}

DsvStatus dsvi_dit_forward(DsviDit *dit, const void *latents, const void *timestep, const void *text,
                           void *output, const DsviDitLoss *loss)
{
    const float *x = latents, *t = timestep, *rows = text;
    float *v = output;
    (void)loss;
    for (int64_t b = 0; b < dit->batch; b++) {
        const float *input = x + b * (ELEMENTS + (dit->image ? IMAGE : 0));
        if (dit->image)
            assert_memory_equal(input + ELEMENTS, some_image, sizeof some_image);
        if (dit->rows)
            assert_memory_equal(dit->rows + b * ROWS, some_rows, sizeof some_rows);
        evaluate(dit, input, t[b], rows + b * TEXT, v + b * ELEMENTS);
    }
    return DSV_OK;
}

void dsvi_dit_set_image(DsviDit *dit, const void *image, void *dimage)
{
    assert_null(dimage);
    dit->rows = image;
}

DsvStatus dsvi_sparse_step_begin(DsviSparse *sparse, int64_t step, bool train)
{
    sparse->begun++;
    sparse->learning += train;
    assert_int_equal(step, sparse->begun);
    return DSV_OK;
}

void dsvi_sparse_restart(DsviSparse *sparse)
{
    sparse->restarted++;
}

DsvStatus dsvi_sparse_measure_again(DsviSparse *sparse)
{
    sparse->measured_again++;
    sparse->passes_before_again = sparse->dit->passes;
    return DSV_OK;
}

void dsvi_sparse_block_report(const DsviSparse *sparse, int64_t block, DsviSparseBlockReport *report)
{
    *report = (DsviSparseBlockReport){.over_lists = sparse->ended > 1 + block,
                                      .density = 0.25,
                                      .captured_mass = 0.5 + 0.25 * (double)block};
}

DsvStatus dsvi_sparse_step_end(DsviSparse *sparse)
{
    sparse->ended++;
    return DSV_OK;
}

static DsvStatus move(DsviStream *stream, void *to, const void *from, size_t bytes)
{
    (void)stream;
    memcpy(to, from, bytes);
    return DSV_OK;
}

static DsvStatus wait(DsviStream *stream)
{
    (void)stream;
    return DSV_OK;
}

static size_t used(DsviDevice *device)
{
    (void)device;
    return 42;
}

/* A codec that returns the latent unchanged. */
static DsvStatus decode(const DsviCodec *codec, DsviVideoShape video, const float *latent, float *pixels)
{
    (void)codec;
    assert_int_equal(video.width, 3);
    memcpy(pixels, latent, ELEMENTS * sizeof *pixels);
    return DSV_OK;
}

typedef struct Scene {
    DsviDevice device;
    DsviBackend backend;
    DsviDit dit;
    DsviSparse sparse;
    DsviCodec codec;
    float latents[2 * (ELEMENTS + IMAGE)], output[2 * ELEMENTS], pixels[ELEMENTS], timestep[2],
        text_rows[2 * TEXT];
    DsviSampleJob job;
    int64_t progressed, stop_after;
} Scene;

static const float null_text[TEXT] = {0}, some_text[TEXT] = {1, 2, 3, 4};

static void set(Scene *s)
{
    *s = (Scene){
        .device = {.upload = move, .download = move, .sync = wait, .memory_used = used},
        .codec = {.decode = decode},
        .dit = {.batch = 1, .clean = {0.5f, 0.75f}},
        .stop_after = STEPS,
    };
    s->backend.device = &s->device;
    s->sparse.dit = &s->dit;
    s->job = (DsviSampleJob){
        .backend = &s->backend,
        .dit = &s->dit,
        .batch = 1,
        .sparse = &s->sparse,
        .codec = &s->codec,
        .video = {3, 1, 2, 3},
        .latent = {2, 1, 2, 3},
        .text_elements = TEXT,
        .null_text = null_text,
        .sampler = "euler",
        .steps = STEPS,
        .flow_shift = 3,
        .guidance_scale = 1,
        .seed = 7,
        .latents = s->latents,
        .timestep = s->timestep,
        .text_rows = s->text_rows,
        .output = s->output,
        .pixels = s->pixels,
    };
}

static void on_progress(void *context, const DsvProgress *progress)
{
    Scene *s = context;
    if (s->job.use_expert)
        assert_non_null(strstr(progress->unit, " noise, step"));
    else
        assert_string_equal(progress->unit, "step");
    assert_int_equal(progress->total, STEPS);
    assert_int_equal(progress->done, ++s->progressed);
    assert_true(progress->seconds_left >= 0);
    assert_int_equal(progress->memory_bytes, 42);
}

static bool should_stop(void *context)
{
    const Scene *s = context;
    return s->progressed >= s->stop_after;
}

static DsvStatus run(Scene *s)
{
    DsvEvents events = {.context = s, .progress = on_progress, .stop = should_stop};
    return dsvi_sample_run(&s->job, &events);
}

/* The last step removes the noise up to rounding of values of about 1. */
static void assert_pixels(const Scene *s, double wanted)
{
    for (int i = 0; i < ELEMENTS; i++)
        assert_error_below(fabs(s->pixels[i] - wanted), 1e-6, "pixel %d", i);
}

static void test_unconditional(void **unused)
{
    (void)unused;
    Scene s;
    set(&s);
    assert_ok(run(&s));
    assert_pixels(&s, 0.5);
    assert_int_equal(s.dit.passes, STEPS);
    assert_int_equal(s.dit.guided_passes, 0);
    assert_int_equal(s.sparse.begun, STEPS);
    assert_int_equal(s.sparse.ended, STEPS);
    assert_int_equal(s.sparse.learning, 0);
    assert_int_equal(s.progressed, STEPS);
    assert_true(s.dit.timesteps[0] == 1000);
    for (int i = 1; i < STEPS; i++)
        assert_true(s.dit.timesteps[i] < s.dit.timesteps[i - 1]);
}

static void test_text_without_guidance(void **unused)
{
    (void)unused;
    Scene s;
    set(&s);
    s.job.text = some_text;
    s.job.sparse = NULL;
    assert_ok(run(&s));
    assert_pixels(&s, 0.75);
    assert_int_equal(s.dit.passes, STEPS);
    assert_int_equal(s.dit.guided_passes, STEPS);
}

/* v = v0 + g (v1 - v0) with v = (x - clean) / sigma is the flow to clean0 + g (clean1 - clean0). */
static void test_guidance(void **unused)
{
    (void)unused;
    Scene s;
    set(&s);
    s.job.text = some_text;
    s.job.guidance_scale = 3;
    assert_ok(run(&s));
    assert_pixels(&s, 0.5 + 3 * 0.25);
    assert_int_equal(s.dit.passes, 2 * STEPS);
    assert_int_equal(s.dit.guided_passes, STEPS);
    assert_int_equal(s.sparse.begun, STEPS);
}

/* A batch of two evaluates the same inputs in one pass, and gives the same bits. */
static void test_guidance_in_one_pass(void **unused)
{
    (void)unused;
    Scene once, twice;
    set(&twice);
    twice.job.text = some_text;
    twice.job.guidance_scale = 3;
    assert_ok(run(&twice));
    set(&once);
    once.job.text = some_text;
    once.job.guidance_scale = 3;
    once.job.batch = once.dit.batch = 2;
    assert_ok(run(&once));
    assert_int_equal(once.dit.passes, 2 * STEPS);
    assert_int_equal(once.dit.guided_passes, STEPS);
    assert_memory_equal(once.pixels, twice.pixels, sizeof once.pixels);
}

/* The model gets the picture in each pass, after the latent of each row. */
static void test_image(void **unused)
{
    (void)unused;
    for (int64_t batch = 1; batch <= 2; batch++) {
        Scene s;
        set(&s);
        s.dit.image = true;
        s.job.image_channels = 1;
        s.job.image = some_image;
        s.job.text = some_text;
        s.job.guidance_scale = 3;
        s.job.batch = s.dit.batch = batch;
        assert_ok(run(&s));
        assert_pixels(&s, 0.5 + 3 * 0.25);
        assert_int_equal(s.dit.passes, 2 * STEPS);
    }
}

/* The model gets the image rows in each pass, the same for both kinds of text. */
static void test_image_rows(void **unused)
{
    (void)unused;
    for (int64_t batch = 1; batch <= 2; batch++) {
        Scene s;
        float memory[2 * ROWS] = {0};
        set(&s);
        s.job.image_row_elements = ROWS;
        s.job.image_rows = some_rows;
        s.job.image_memory = memory;
        s.job.text = some_text;
        s.job.guidance_scale = 3;
        s.job.batch = s.dit.batch = batch;
        assert_ok(run(&s));
        assert_ptr_equal(s.dit.rows, memory);
        assert_int_equal(s.dit.passes, 2 * STEPS);
    }
}

/* Both passes of a guided step are measured if the sparse layer learns, and the blocks' densities are kept.
 */
static void test_learning_sparse_layer(void **unused)
{
    (void)unused;
    Scene s;
    char line[256];
    DsviSparseUse use;
    set(&s);
    assert_ok(dsvi_sparse_use_make(2, &use));
    s.job.text = some_text;
    s.job.guidance_scale = 3;
    s.job.sparse_learns = true;
    s.job.use = &use;
    assert_ok(run(&s));
    assert_int_equal(s.sparse.learning, STEPS);
    assert_int_equal(s.sparse.measured_again, STEPS);
    assert_int_equal(s.sparse.passes_before_again, 2 * STEPS - 1);
    DsviSparseUseMean mean = dsvi_sparse_use_mean(&use);
    assert_int_equal(mean.sparse_blocks, 2);
    assert_error_below(fabs(mean.density - (1 - 0.75 * (4 + 3) / (2 * STEPS))), 1e-12, "density");
    assert_error_below(fabs(mean.captured - 0.625), 1e-12, "captured mass");
    dsvi_sparse_use_line(&use, 1, line, sizeof line);
    assert_string_equal(line, "block 1: sparse in 3 of 5 steps, mean density 0.550; its lists hold 0.750 of "
                              "the attention mass");
    set(&s);
    s.job.sparse_learns = true;
    assert_ok(run(&s));
    assert_int_equal(s.sparse.measured_again, 0);
    dsvi_sparse_use_free(&use);
}

static DsvStatus note_expert(void *context, int expert)
{
    int *steps_of = context;
    assert_true(expert == 1 || steps_of[1] == 0); /* the high noise expert runs first */
    steps_of[expert]++;
    return DSV_OK;
}

/* Timesteps of the boundary or above belong to the first expert; what the sparse layer learned of it is
 * forgotten once, at the switch. */
static void test_two_experts(void **unused)
{
    (void)unused;
    int steps_of[2] = {0, 0}, high = 0;
    Scene s;
    set(&s);
    s.job.sparse_learns = true;
    s.job.use_expert = note_expert;
    s.job.expert_context = steps_of;
    s.job.boundary = 500;
    assert_ok(run(&s));
    for (int i = 0; i < STEPS; i++)
        high += s.dit.timesteps[i] >= 500;
    assert_in_range(high, 1, STEPS - 1);
    assert_int_equal(steps_of[0], high);
    assert_int_equal(steps_of[1], STEPS - high);
    assert_int_equal(s.sparse.restarted, 1);
}

/* A guidance scale of 1 or below means one pass with text, as in diffusers. */
static void test_guidance_below_one(void **unused)
{
    (void)unused;
    Scene s;
    set(&s);
    s.job.text = some_text;
    s.job.guidance_scale = 0.5;
    assert_ok(run(&s));
    assert_pixels(&s, 0.75);
    assert_int_equal(s.dit.passes, STEPS);
}

/* Noise of the caller replaces the drawn noise, and steps of other clips count in the progress. */
static void test_noise_and_latent(void **unused)
{
    (void)unused;
    Scene s;
    float noise[ELEMENTS], latent[ELEMENTS];
    DsvEvents none = {0};
    set(&s);
    for (int i = 0; i < ELEMENTS; i++)
        noise[i] = 0.125f * (float)i;
    s.job.noise = noise;
    s.job.sparse = NULL;
    s.job.steps = 1;
    s.job.codec = NULL;
    assert_ok(dsvi_sample_latent(&s.job, &none, latent));
    assert_memory_equal(s.latents, noise, sizeof noise);
    for (int i = 0; i < ELEMENTS; i++)
        assert_error_below(fabs(latent[i] - 0.5), 1e-6, "latent %d", i);
    s.job.steps = 2;
    s.job.steps_before = 2;
    s.job.steps_after = 1;
    s.progressed = 2;
    DsvEvents events = {.context = &s, .progress = on_progress};
    assert_ok(dsvi_sample_latent(&s.job, &events, latent));
    assert_int_equal(s.progressed, 4);
}

/* Without text the guidance scale has no effect: one pass per step. */
static void test_guidance_without_text(void **unused)
{
    (void)unused;
    Scene s;
    set(&s);
    s.job.guidance_scale = 3;
    assert_ok(run(&s));
    assert_pixels(&s, 0.5);
    assert_int_equal(s.dit.passes, STEPS);
}

/* The initial noise depends only on the seed; the model's first input shows it. */
static void first_latent(uint64_t seed, float *latent)
{
    Scene s;
    set(&s);
    s.job.seed = seed;
    s.job.steps = 1;
    s.dit.clean[0] = 0;
    DsvEvents none = {0};
    assert_ok(dsvi_sample_run(&s.job, &none));
    memcpy(latent, s.latents, ELEMENTS * sizeof *latent);
}

static void test_seed(void **unused)
{
    (void)unused;
    float once[ELEMENTS], again[ELEMENTS], other[ELEMENTS];
    first_latent(7, once);
    first_latent(7, again);
    first_latent(8, other);
    assert_memory_equal(once, again, sizeof once);
    assert_memory_not_equal(once, other, sizeof once);
    for (int i = 1; i < ELEMENTS; i++)
        assert_true(once[i] != once[0]);
}

static void test_stop(void **unused)
{
    (void)unused;
    Scene s;
    set(&s);
    s.stop_after = 2;
    assert_fails(DSV_E_INTERRUPTED, "stopped after 2 of 5", run(&s));
    assert_int_equal(s.dit.passes, 2);
}

static void test_not_finite(void **unused)
{
    (void)unused;
    Scene s;
    set(&s);
    s.dit.poison = NAN;
    assert_fails(DSV_E_DIVERGED, "not finite", run(&s));
    set(&s);
    s.job.sampler = "ddim";
    assert_fails(DSV_E_USAGE, "ddim", run(&s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unconditional),
        cmocka_unit_test(test_text_without_guidance),
        cmocka_unit_test(test_guidance),
        cmocka_unit_test(test_guidance_without_text),
        cmocka_unit_test(test_guidance_in_one_pass),
        cmocka_unit_test(test_image),
        cmocka_unit_test(test_image_rows),
        cmocka_unit_test(test_learning_sparse_layer),
        cmocka_unit_test(test_two_experts),
        cmocka_unit_test(test_guidance_below_one),
        cmocka_unit_test(test_noise_and_latent),
        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
