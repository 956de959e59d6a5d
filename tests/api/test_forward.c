/* The output of dsv_forward compared with PyTorch's results in double (golden files dit_a, dit_c). */
#include "test.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/safetensors.h"
#include "dsv/dsv.h"
#include "golden/golden_files.h"

typedef GoldenDit Case;

static Case cases[GOLDEN_CASES_MAX];
static int case_count;

static char folder[64];

static const char *case_path(const Case *c, const char *file)
{
    char relative[256];
    snprintf(relative, sizeof relative, "%s/%s/%s", c->model, c->name, file);
    return golden_path(relative);
}

static const char *device_setting = "device=cpu";

static void set_all(DsvConfig *settings, const char *const *assignment)
{
    dsv_config_defaults(settings);
    assert_ok(dsv_config_set(settings, device_setting));
    assert_ok(dsv_config_set(settings, "mixed_precision=no"));
    assert_ok(dsv_config_set(settings, "sparse.enabled=false"));
    for (; *assignment; assignment++)
        assert_ok(dsv_config_set(settings, *assignment));
}

static DsviSafetensors *open_golden(const Case *c, const char *file)
{
    DsviSafetensors *out;
    assert_ok(dsvi_safetensors_open(case_path(c, file), &out));
    return out;
}

static double error_of(const DsviSafetensors *ours, const char *prefix, const DsviSafetensors *golden,
                       const char *name)
{
    char full[160];
    const DsviStoredTensor *wanted = dsvi_safetensors_find(golden, name), *found;
    assert_non_null(wanted);
    snprintf(full, sizeof full, "%s%s", prefix, name);
    assert_ok(dsvi_safetensors_require(ours, full, wanted->ndim, wanted->shape, &found));
    assert_int_equal(found->dtype, DSVI_F32);
    return relative_l2(found->dtype, found->data, wanted->dtype, wanted->data, wanted->count);
}

/* Runs one case and opens its file of results. */
static DsviSafetensors *run(const Case *c, const DsvConfig *settings)
{
    char out[128];
    DsviSafetensors *ours;
    snprintf(out, sizeof out, "%s/out.safetensors", folder);
    assert_ok(dsv_forward(golden_path(c->model), case_path(c, "inputs.safetensors"), out, true, settings));
    assert_ok(dsvi_safetensors_open(out, &ours));
    return ours;
}

/* Relative errors allowed. */
typedef struct Bounds {
    double output, loss, dlatents, dtext, grad;
} Bounds;

static void compare(const Case *c, const DsvConfig *settings, Bounds most)
{
    DsviSafetensors *ours = run(c, settings);
    DsviSafetensors *exact = open_golden(c, "expected_f64.safetensors");
    DsviSafetensors *grads = open_golden(c, "grads.safetensors");
    assert_error_below(error_of(ours, "", exact, "output"), most.output, "%s output", c->name);
    assert_error_below(error_of(ours, "", exact, "loss"), most.loss, "%s loss", c->name);
    assert_error_below(error_of(ours, "", exact, "grad_hidden_states"), most.dlatents, "%s dlatents",
                       c->name);
    assert_error_below(error_of(ours, "", exact, "grad_encoder_hidden_states"), most.dtext, "%s dtext",
                       c->name);
    for (size_t t = 0; t < dsvi_safetensors_count(grads); t++) {
        const char *name = dsvi_safetensors_at(grads, t)->name;
        assert_error_below(error_of(ours, "grad.", grads, name), most.grad, "%s %s", c->name, name);
    }
    if (c->image_len > 0)
        assert_error_below(error_of(ours, "", exact, "grad_encoder_hidden_states_image"), most.dtext,
                           "%s dimage", c->name);
    assert_int_equal(dsvi_safetensors_count(ours),
                     dsvi_safetensors_count(grads) + (c->image_len > 0 ? 5 : 4));
    dsvi_safetensors_close(&ours);
    dsvi_safetensors_close(&exact);
    dsvi_safetensors_close(&grads);
}

static void matches_pytorch(void **state)
{
    DsvConfig settings;
    set_all(&settings, *state);
    for (int i = 0; i < case_count; i++)
        compare(&cases[i], &settings, (Bounds){1e-5, 1e-5, 1e-4, 1e-4, 1e-4});
}

/* The error is at most 1.5 times the error of PyTorch's bf16 autocast against F32 (fixture.json). */
static void bf16_is_close(void **state)
{
    DsvConfig settings;
    set_all(&settings, *state);
    for (int i = 0; i < case_count; i++) {
        const Case *c = &cases[i];
        compare(c, &settings,
                (Bounds){1.5 * c->bf16_output, 1e-3, 1.5 * c->bf16_dlatents, 1.5 * c->bf16_worst_grad,
                         1.5 * c->bf16_worst_grad});
    }
}

static const char *const DENSE[] = {NULL};
static const char *const BF16[] = {"mixed_precision=bf16", NULL};
static const char *const SELECTIVE[] = {"gradient_checkpointing=selective", NULL};
static const char *const DETERMINISTIC[] = {"deterministic=true", NULL};
static const char *const RECOMPUTED[] = {"gradient_checkpointing=true", NULL};
static const char *const REFERENCE[] = {"isa=ref", NULL};
/* Lists of all keys give the result of dense attention, through all of selection. */
static const char *const FULL_LISTS[] = {
    "sparse.enabled=true", "sparse.target_mass=1", "sparse.target_density=0",
    "sparse.group=16",     "sparse.chunk=8",       NULL,
};
static const char *const FULL_RUNS[] = {
    "sparse.enabled=true", "sparse.rule=topk",       "sparse.target_density=1",          "sparse.group=32",
    "sparse.grain=8",      "sparse.selector=pooled", "gradient_checkpointing=selective", NULL,
};

static void bad_files_are_named(void **state)
{
    DsvConfig settings;
    (void)state;
    set_all(&settings, DENSE);
    char out[128];
    snprintf(out, sizeof out, "%s/out.safetensors", folder);
    assert_fails(DSV_E_NOT_FOUND, "no-such-model", dsv_forward("no-such-model", "x", out, false, &settings));
    assert_fails(DSV_E_NOT_FOUND, "no-such-file",
                 dsv_forward(golden_path("dit_a"), "no-such-file", out, false, &settings));
    assert_fails(DSV_E_NOT_FOUND, "hidden_states",
                 dsv_forward(golden_path("dit_a"), golden_path("dit_a/diffusion_pytorch_model.safetensors"),
                             out, false, &settings));
    assert_fails(DSV_E_SHAPE, "encoder_hidden_states",
                 dsv_forward(golden_path("dit_c"), case_path(&cases[0], "inputs.safetensors"), out, false,
                             &settings));
    assert_false(dsvi_path_exists(out));
    /* the output path is checked first, so that no computation is lost */
    assert_fails(DSV_E_NOT_FOUND, "nowhere/out.safetensors: cannot write it",
                 dsv_forward("no-such-model", "x", "nowhere/out.safetensors", false, &settings));
    assert_fails(DSV_E_IO, "a folder of this name exists",
                 dsv_forward("no-such-model", "x", folder, false, &settings));
}

/* The disk is full halfway through the results, simulated by a limit on the size of files. */
static void a_full_disk_leaves_nothing_behind(void **state)
{
    const Case *c = &cases[0];
    const struct rlimit small = {4096, RLIM_INFINITY};
    struct rlimit before;
    DsvConfig settings;
    char out[128], temporary[160];
    (void)state;
    set_all(&settings, DENSE);
    snprintf(out, sizeof out, "%s/full.safetensors", folder);
    snprintf(temporary, sizeof temporary, "%s.tmp", out);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    DsvStatus status = dsv_forward(golden_path(c->model), case_path(c, "inputs.safetensors"), out, true,
                                   &settings);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, DSV_E_IO);
    assert_false(dsvi_path_exists(out));
    assert_false(dsvi_path_exists(temporary));
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/dsv-test-XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void **state)
{
    (void)state;
    return dsvi_folder_remove(folder) == DSV_OK ? 0 : 1;
}

/* Runs on a GPU if there is one. */
static int run_cuda(void)
{
    DsvConfig settings;
    DsvStatus status;
    char out[128];
    const Case *c = &cases[0];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(matches_pytorch, (void *)DENSE),
        cmocka_unit_test_prestate(matches_pytorch, (void *)RECOMPUTED),
        cmocka_unit_test_prestate(matches_pytorch, (void *)SELECTIVE),
        cmocka_unit_test_prestate(matches_pytorch, (void *)DETERMINISTIC),
        cmocka_unit_test_prestate(matches_pytorch, (void *)FULL_LISTS),
        cmocka_unit_test_prestate(matches_pytorch, (void *)FULL_RUNS),
        cmocka_unit_test_prestate(bf16_is_close, (void *)BF16),
    };
    device_setting = "device=cuda";
    case_count = golden_dit_cases(cases);
    set_all(&settings, DENSE);
    make_folder(NULL);
    snprintf(out, sizeof out, "%s/out.safetensors", folder);
    status = dsv_forward(golden_path(c->model), case_path(c, "inputs.safetensors"), out, true, &settings);
    remove_folder(NULL);
    if (status == DSV_E_UNSUPPORTED) {
        fprintf(stderr, "SKIPPED: %s\n", dsv_error_message());
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

static int run_cpu(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files_are_named),
        cmocka_unit_test(a_full_disk_leaves_nothing_behind),
        cmocka_unit_test_prestate(matches_pytorch, (void *)DENSE),
        cmocka_unit_test_prestate(matches_pytorch, (void *)RECOMPUTED),
        cmocka_unit_test_prestate(matches_pytorch, (void *)SELECTIVE),
        cmocka_unit_test_prestate(matches_pytorch, (void *)REFERENCE),
        cmocka_unit_test_prestate(matches_pytorch, (void *)FULL_LISTS),
        cmocka_unit_test_prestate(matches_pytorch, (void *)FULL_RUNS),
        cmocka_unit_test_prestate(bf16_is_close, (void *)BF16),
    };
    case_count = golden_dit_cases(cases);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* test_forward [cuda] */
int main(int argc, char **argv)
{
    return golden_run("dit_a", argc == 2 && strcmp(argv[1], "cuda") == 0 ? run_cuda : run_cpu);
}
