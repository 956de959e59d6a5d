/* The held-out loss: its definition, its bitwise repetition, and that measuring does not change training. */
#include "test.h"

#include "cpu/cpu.h"
#include "dsv/dsv.h"
#include "tiny.h"
#include "train/step.h"

static char clips[DSVI_PATH_MAX], held_out_clips[DSVI_PATH_MAX];

static void set(DsvConfig *settings, const char *key, const char *value)
{
    char assignment[DSVI_PATH_MAX + 64];
    snprintf(assignment, sizeof assignment, "%s=%s", key, value);
    assert_ok(dsv_config_set(settings, assignment));
}

/* ---- One trainer ---- */

typedef struct Rig {
    DsvConfig settings;
    DsviBackend backend;
    DsviCodec *codec;
    DsviTrainer *trainer;
    DsviDataset *dataset; /* the held-out clips */
} Rig;

/* The tolerances below assume F32. */
static void open_rig(Rig *r, const char *const *assignment)
{
    DsviVideoShape video = {3, TINY_FRAMES, TINY_SIDE, TINY_SIDE}, latent;
    DsviDitConfig config;
    tiny_settings(&r->settings);
    set(&r->settings, "mixed_precision", "no");
    set(&r->settings, "validation.data", held_out_clips);
    set(&r->settings, "validation.clips", "3");
    for (; *assignment; assignment++)
        assert_ok(dsv_config_set(&r->settings, *assignment));
    assert_ok(dsvi_codec_open(&r->settings, &r->codec));
    assert_ok(r->codec->latent_shape(r->codec, video, &latent));
    assert_ok(dsvi_dit_config_make(&r->settings, &config));
    config.in_channels = config.out_channels = latent.channels;
    assert_ok(dsvi_cpu_open("auto", 2, &r->backend));
    assert_ok(dsvi_trainer_create(
        &(DsviTrainerArgs){
            .settings = &r->settings, .backend = &r->backend, .codec = r->codec, .config = &config},
        &r->trainer));
    assert_ok(dsvi_trainer_start_new(r->trainer, 1));
    assert_ok(dsvi_dataset_open(held_out_clips, &r->settings, &r->dataset));
    assert_ok(dsvi_held_out_fill(r->trainer->held_out, r->dataset, &r->settings, r->codec, NULL, NULL));
}

static void close_rig(Rig *r)
{
    dsvi_dataset_close(&r->dataset);
    dsvi_trainer_free(&r->trainer);
    r->codec->close(r->codec);
    dsvi_cpu_close(&r->backend);
}

static DsvStatus next_latent(void *context, DsviSample *sample)
{
    int64_t elements = *(int64_t *)context;
    float *latent = sample->latent;
    for (int64_t i = 0; i < elements; i++)
        latent[i] = (float)sin(0.37 * (double)i);
    return DSV_OK;
}

static void take_steps(Rig *r, int steps)
{
    DsviSampleSource source = {.context = &r->trainer->elements, .next = next_latent};
    DsviStepResult result;
    for (int step = 0; step < steps; step++)
        assert_ok(dsvi_train_step(r->trainer, &source, &result));
}

static void measure(Rig *r, DsviHeldOutLoss *loss)
{
    const DsvEvents nobody = {0};
    assert_ok(dsvi_held_out_measure(r->trainer->held_out, r->trainer->sparse, &nobody, loss));
}

/* ---- Definition ---- */

/* Loss of window k at one noise level, computed with training's forward pass at batch 1; clip and noise are
 * mixed in double here. */
static double loss_by_hand(Rig *r, const float *latent, const float *noise, double sigma)
{
    DsviTrainer *t = r->trainer;
    float *output = malloc((size_t)t->elements * sizeof *output);
    double sum = 0;
    assert_non_null(output);
    for (int64_t i = 0; i < t->elements; i++)
        t->latents[i] = (float)((1 - sigma) * latent[i] + sigma * noise[i]);
    t->timestep[0] = (float)(1000 * sigma);
    assert_ok(dsvi_sparse_step_begin(t->sparse, 1, false));
    assert_ok(dsvi_dit_forward(t->dit, t->latents, t->timestep, t->text, output, NULL));
    for (int64_t i = 0; i < t->elements; i++) {
        double error = output[i] - ((double)noise[i] - latent[i]);
        sum += error * error;
    }
    free(output);
    return sum / (double)t->elements;
}

/* Over lists and with dense attention. Clip and noise are mixed in double here and in F32 in the library:
 * the bound allows some roundings of 6e-8 through the model. */
static void it_is_the_mean_squared_error(void **state)
{
    const char *const assignment[] = {"train_batch_size=1", *state, NULL};
    Rig r;
    DsviHeldOutLoss loss;
    DsviSparseReport report;
    double by_hand[DSVI_SIGMA_BINS] = {0}, mean = 0;
    open_rig(&r, assignment);
    take_steps(&r, 3); /* an untrained model outputs zero for every input */
    measure(&r, &loss);
    dsvi_sparse_report(r.trainer->sparse, &report);
    assert_true(report.sparse_blocks == (r.settings.sparse_enabled ? 2 : 0));
    float *pixels = malloc(sizeof(float) * 3 * TINY_FRAMES * TINY_SIDE * TINY_SIDE);
    float *latent = malloc(sizeof(float) * (size_t)r.trainer->elements);
    float *noise = malloc(sizeof(float) * (size_t)r.trainer->elements);
    for (int64_t k = 0; k < 3; k++) {
        DsviSampleRef ref = dsvi_dataset_spread(r.dataset, &r.settings, k, 3);
        assert_ok(dsvi_clip_read(r.dataset->items[ref.item].path, &ref.window, pixels));
        assert_ok(r.codec->encode(r.codec, r.trainer->video, pixels, latent));
        dsvi_rng_fill_normal(dsvi_flow_held_out_noise(&r.settings, (uint64_t)k), 0, noise,
                             r.trainer->elements);
        for (int bin = 0; bin < DSVI_SIGMA_BINS; bin++)
            by_hand[bin] += loss_by_hand(&r, latent, noise, 0.05 + 0.1 * bin) / 3;
    }
    for (int bin = 0; bin < DSVI_SIGMA_BINS; bin++) {
        assert_error_below(fabs(loss.bin_sigma[bin] - (0.05 + 0.1 * bin)), 1e-12, "level %d", bin);
        assert_error_below(fabs(loss.bin_loss[bin] / by_hand[bin] - 1), 1e-5, "bin %d", bin);
        mean += by_hand[bin] / DSVI_SIGMA_BINS;
    }
    assert_error_below(fabs(loss.loss / mean - 1), 1e-5, "mean");
    assert_true(isnan(loss.dense_loss) == !r.settings.sparse_enabled);
    free(pixels);
    free(latent);
    free(noise);
    close_rig(&r);
}

/* Neighbouring groups of ranks share at most one window at their border, and the last group may wrap to the
 * first window to fill a batch. */
static void ranks_keep_their_own_windows(void **state)
{
    static const char *const assignment[] = {"validation.clips=8", "train_batch_size=1", NULL};
    Rig r;
    (void)state;
    open_rig(&r, assignment);
    const DsviTrainer *t = r.trainer;
    for (int64_t ranks = 1; ranks <= 5; ranks++) {
        int64_t windows = 0, bytes = t->elements * (int64_t)sizeof(float);
        for (int64_t rank = 0; rank < ranks; rank++) {
            DsviMesh mesh = {.data_ranks = ranks, .data_rank = rank, .cp_ranks = 1};
            DsviHeldOut *h;
            assert_ok(dsvi_held_out_create(&(DsviHeldOutArgs){.backend = &r.backend,
                                                              .mesh = &mesh,
                                                              .settings = &r.settings,
                                                              .latent = t->latent,
                                                              .config = &t->config,
                                                              .table = &t->table},
                                           &h));
            windows += (int64_t)dsvi_held_out_bytes(h) / bytes;
            dsvi_held_out_free(&h);
        }
        assert_true(windows >= 8 && windows <= 8 + ranks);
    }
    close_rig(&r);
}

static DsvStatus (*host_alloc)(DsviDevice *device, size_t bytes, void **out);

static DsvStatus little_host_memory(DsviDevice *device, size_t bytes, void **out)
{
    *out = NULL;
    return bytes < 1 << 24 ? host_alloc(device, bytes, out)
                           : DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes here", bytes);
}

static void too_many_windows_are_named(void **state)
{
    static const char *const assignment[] = {"validation.clips=2048", NULL};
    Rig r;
    DsviTrainer *t;
    (void)state;
    open_rig(&r, &assignment[1]);
    DsviDitConfig config = r.trainer->config;
    assert_ok(dsv_config_set(&r.settings, assignment[0]));
    host_alloc = r.backend.device->host_alloc;
    r.backend.device->host_alloc = little_host_memory;
    assert_fails(DSV_E_NO_MEMORY, "validation.clips is 2048, and this rank's held-out windows take",
                 dsvi_trainer_create(
                     &(DsviTrainerArgs){
                         .settings = &r.settings, .backend = &r.backend, .codec = r.codec, .config = &config},
                     &t));
    r.backend.device->host_alloc = host_alloc;
    close_rig(&r);
}

/* Thirty pairs in batches of 7 leave a last batch that is padded: no pair may be counted twice. */
static void batches_do_not_matter_to_dense_attention(void **state)
{
    static const char *const one[] = {"train_batch_size=1", "sparse.enabled=false", NULL};
    static const char *const seven[] = {"train_batch_size=7", "sparse.enabled=false", NULL};
    Rig a, b;
    DsviHeldOutLoss of_one, of_seven;
    (void)state;
    open_rig(&a, one);
    open_rig(&b, seven);
    take_steps(&a, 2);
    memcpy(b.trainer->zero.master.data, a.trainer->zero.master.data,
           (size_t)a.trainer->table.elements * sizeof(float));
    measure(&a, &of_one);
    measure(&b, &of_seven);
    for (int bin = 0; bin < DSVI_SIGMA_BINS; bin++)
        assert_error_below(fabs(of_one.bin_loss[bin] / of_seven.bin_loss[bin] - 1), 1e-5, "bin %d", bin);
    close_rig(&a);
    close_rig(&b);
}

/* The figure dense_loss is of dense attention: full lists agree with it up to rounding, short lists do not.
 */
static void dense_loss_is_that_of_full_lists(void **state)
{
    static const char *const full[] = {"sparse.target_mass=1", "sparse.min_mass=0", "sparse.max_density=1",
                                       "sparse.list_memory=1", "lr=1e-2",           NULL};
    static const char *const few[] = {"sparse.target_mass=0",
                                      "sparse.target_density=0.05",
                                      "sparse.min_mass=0",
                                      "sparse.max_density=1",
                                      "sparse.list_memory=1",
                                      "lr=1e-2",
                                      NULL};
    static const char *const *const lists[2] = {full, few};
    (void)state;
    for (int i = 0; i < 2; i++) {
        Rig r;
        DsviHeldOutLoss loss;
        DsviSparseReport report;
        open_rig(&r, lists[i]);
        take_steps(&r, 10); /* at a high learning rate, so that attention affects the output */
        dsvi_sparse_report(r.trainer->sparse, &report);
        assert_int_equal(report.sparse_blocks, 2);
        measure(&r, &loss);
        double difference = fabs(loss.loss / loss.dense_loss - 1);
        if (i == 0)
            assert_error_below(difference, 1e-6, "full lists");
        else
            assert_true(difference > 1e-5);
        close_rig(&r);
    }
}

/* ---- In a run ---- */

static void run_settings(DsvConfig *settings, const char *folder, const char *selector)
{
    tiny_settings(settings);
    set(settings, "data.path", clips);
    set(settings, "output_dir", folder);
    set(settings, "max_train_steps", "8");
    set(settings, "sparse.selector", selector);
    set(settings, "validation.data", held_out_clips);
    set(settings, "validation.every", "3");
    set(settings, "validation.clips", "2");
    set(settings, "validation_steps", "4");
    set(settings, "num_inference_steps", "2");
}

/* Measurements at steps 3, 6 and the last, 8, also of blocks that became sparse. */
static void lines_are_there(const char *folder)
{
    static const char *const begin[] = {
        "{\"step\": 3, \"loss\": ", "{\"step\": 6, \"loss\": ", "{\"step\": 8, \"loss\": "};
    char path[DSVI_PATH_MAX];
    char *text, *line;
    size_t bytes;
    assert_ok(dsvi_path_join(path, folder, "validation.jsonl"));
    assert_ok(dsvi_file_read(path, 1 << 20, &text, &bytes));
    line = text;
    for (int i = 0; i < 3; i++) {
        assert_memory_equal(line, begin[i], strlen(begin[i]));
        line = strchr(line, '\n') + 1;
    }
    assert_int_equal(*line, 0);
    assert_non_null(strstr(text, "\"bins\": [{\"sigma\": 0.05, \"loss\": "));
    assert_null(strstr(strstr(text, "\"step\": 8"), "\"dense_loss\": null"));
    free(text);
}

/* dsv_train asks whether to stop before each step, and the measurement before each batch. */
static bool stop_after(void *context)
{
    return (*(int64_t *)context)-- <= 0;
}

/* A run that is stopped at any point, before a step or during a measurement, and resumed, has the same
 * records, and the model of a run that never measured or sampled. */
static void stop_and_resume(void **state)
{
    DsvConfig settings;
    const char *straight = tiny_folder(), *unmeasured = tiny_folder();
    run_settings(&settings, straight, *state);
    assert_ok(dsv_train(&settings, NULL, NULL));
    lines_are_there(straight);
    run_settings(&settings, unmeasured, *state);
    set(&settings, "validation.data", "");
    set(&settings, "validation_steps", "0");
    assert_ok(dsv_train(&settings, NULL, NULL));
    same_file(straight, unmeasured, "checkpoint-8/transformer/diffusion_pytorch_model.safetensors");
    same_file(straight, unmeasured, "checkpoint-8/sparse.safetensors");
    for (int64_t questions = 3; questions < 60; questions += 14) {
        const char *folder = tiny_folder();
        int64_t left = questions;
        DsvEvents events = {.context = &left, .stop = stop_after};
        run_settings(&settings, folder, *state);
        DsvStatus status = dsv_train(&settings, &events, NULL);
        assert_true(status == DSV_E_INTERRUPTED || status == DSV_OK);
        set(&settings, "resume_from_checkpoint", "latest");
        assert_ok(dsv_train(&settings, NULL, NULL));
        assert_ok(dsv_train(&settings, NULL, NULL)); /* no step left, and no measurement repeated */
        same_file(straight, folder, "validation.jsonl");
        same_file(straight, folder, "checkpoint-8/transformer/diffusion_pytorch_model.safetensors");
        same_file(straight, folder, "checkpoint-8/sparse.safetensors");
        assert_ok(dsvi_folder_remove(folder));
    }
    assert_ok(dsvi_folder_remove(straight));
    assert_ok(dsvi_folder_remove(unmeasured));
}

typedef struct Named {
    int count;
    char last[512];
} Named;

static void note_name(void *context, const char *line)
{
    Named *named = context;
    named->count++;
    snprintf(named->last, sizeof named->last, "%s", line);
}

/* Windows of a clip that cannot be read are taken from other clips, and the clip is named. */
static void a_window_that_cannot_be_read_is_replaced(void **state)
{
    const char *const assignment[] = {"validation.clips=6", NULL};
    char paths[2][DSVI_PATH_MAX], away[2][DSVI_PATH_MAX];
    Rig r;
    Named named = {0};
    DsviHeldOutLoss loss;
    (void)state;
    open_rig(&r, assignment);
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/waves-%d.mp4", held_out_clips, i);
        snprintf(away[i], sizeof away[i], "%s/away-%d", held_out_clips, i);
    }
    assert_int_equal(rename(paths[0], away[0]), 0);
    assert_ok(dsvi_held_out_fill(r.trainer->held_out, r.dataset, &r.settings, r.codec, note_name, &named));
    assert_int_equal(named.count, 1);
    assert_non_null(strstr(named.last, "waves-0.mp4: No such file"));
    measure(&r, &loss);
    assert_true(isfinite(loss.loss));
    assert_int_equal(rename(paths[1], away[1]), 0);
    assert_fails(DSV_E_NOT_FOUND, "16 held-out windows in a row cannot be read, the last: ",
                 dsvi_held_out_fill(r.trainer->held_out, r.dataset, &r.settings, r.codec, NULL, NULL));
    for (int i = 0; i < 2; i++)
        assert_int_equal(rename(away[i], paths[i]), 0);
    close_rig(&r);
}

static void bad_clips_are_named(void **state)
{
    DsvConfig settings;
    const char *folder = tiny_folder(), *empty = tiny_folder();
    (void)state;
    run_settings(&settings, folder, "pooled");
    set(&settings, "validation.data", empty);
    assert_fails(DSV_E_NOT_FOUND, empty, dsv_train(&settings, NULL, NULL));
    assert_ok(dsvi_folder_remove(folder));
    assert_ok(dsvi_folder_remove(empty));
}

static int make_clips(void **state)
{
    (void)state;
    snprintf(clips, sizeof clips, "%s", tiny_folder());
    snprintf(held_out_clips, sizeof held_out_clips, "%s", tiny_folder());
    tiny_clips(clips, 3);
    tiny_clips(held_out_clips, 2);
    return 0;
}

static int remove_clips(void **state)
{
    (void)state;
    return dsvi_folder_remove(clips) == DSV_OK && dsvi_folder_remove(held_out_clips) == DSV_OK ? 0 : 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(it_is_the_mean_squared_error, "sparse.enabled=true"),
        cmocka_unit_test_prestate(it_is_the_mean_squared_error, "sparse.enabled=false"),
        cmocka_unit_test(ranks_keep_their_own_windows),
        cmocka_unit_test(too_many_windows_are_named),
        cmocka_unit_test(batches_do_not_matter_to_dense_attention),
        cmocka_unit_test(dense_loss_is_that_of_full_lists),
        cmocka_unit_test_prestate(stop_and_resume, "projection"),
        cmocka_unit_test_prestate(stop_and_resume, "predictor"),
        cmocka_unit_test(a_window_that_cannot_be_read_is_replaced),
        cmocka_unit_test(bad_clips_are_named),
    };
    return cmocka_run_group_tests(tests, make_clips, remove_clips);
}
