/* Saving and loading the state of a sparse layer: a resumed run continues with the same bits, and a state
 * that does not fit is refused. */
#include "sparse/sparse_rig.h"

#include <unistd.h>

#include "base/fs.h"
#include "base/safetensors.h"
#include "sparse/sparse_internal.h"

static char path[64];
static const char *const selectors[] = {"projection", "predictor", "pooled", "window"};

static DsvConfig settings_for(const char *selector)
{
    DsvConfig settings = rig_settings();
    snprintf(settings.sparse_selector, sizeof settings.sparse_selector, "%s", selector);
    rig_set(&settings, "sparse.profile_every=3");
    rig_set(&settings, "sparse.refresh_every=2");
    rig_set(&settings, "sparse.explore_kind=random");
    rig_set(&settings, "sparse.target_mass=0.6");
    rig_set(&settings, "sparse.min_mass=0.2"); /* so blocks become sparse even with an untrained predictor */
    rig_set(&settings, "sparse.max_density=0.8");
    rig_set(&settings, "sparse.list_memory=0.8");
    return settings;
}

static void assert_same_reports(const Rig *a, const Rig *b)
{
    DsviSparseReport x, y;
    dsvi_sparse_report(a->sparse, &x);
    dsvi_sparse_report(b->sparse, &y);
    assert_int_equal(x.sparse_blocks, y.sparse_blocks);
    assert_true(x.density == y.density);
    assert_true(x.captured_mass == y.captured_mass || (isnan(x.captured_mass) && isnan(y.captured_mass)));
    assert_true(x.predictor_loss == y.predictor_loss || (isnan(x.predictor_loss) && isnan(y.predictor_loss)));
}

/* Stops and resumes after each of several steps; some of these steps measure or refresh the projection. */
static void test_resume(void **state)
{
    static Rig straight, resumed;
    static const DsviDtype dtypes[2] = {DSVI_F32, DSVI_BF16};
    (void)state;
    for (size_t n = 0; n < 3; n++) {
        DsvConfig settings = settings_for(selectors[n]);
        for (int64_t stop = 1; stop <= 4; stop++) {
            DsviSparseShape shape = rig_shape(2, 2, 2, 32, 2, 7, 9, dtypes[stop % 2]);
            int64_t sparse_steps = 0;
            rig_open(&straight, "auto", 2, &settings, &shape);
            rig_open(&resumed, "auto", 2, &settings, &shape);
            for (int64_t step = 1; step <= 8; step++) {
                rig_fill(&straight, (uint64_t)step, 8);
                rig_step(&straight, step, true);
                if (step == stop) {
                    assert_ok(dsvi_sparse_save(straight.sparse, path));
                    assert_ok(dsvi_sparse_load(resumed.sparse, path));
                    assert_true(rig_same_state(&straight, &resumed));
                    straight.log[0] = 0;
                }
                if (step <= stop)
                    continue;
                rig_fill(&resumed, (uint64_t)step, 8);
                rig_step(&resumed, step, true);
                assert_true(rig_same(&straight, &resumed));
                assert_same_reports(&straight, &resumed);
                sparse_steps += dsvi_sparse_lists(resumed.sparse, 0) != NULL;
            }
            assert_true(rig_same_state(&straight, &resumed));
            assert_string_equal(straight.log, resumed.log);
            assert_true(sparse_steps > 0);
            rig_close(&straight);
            rig_close(&resumed);
        }
    }
}

/* Rewrites the state file without the tensor `name`. */
static void drop_tensor(const char *name)
{
    enum { TENSORS_MAX = 64, TRAITS = 5 };
    static const char *const traits[TRAITS] = {"selector", "rank", "blocks", "heads", "head_dim"};
    char other[sizeof path + 8];
    const char *metadata[TRAITS][2];
    DsviStoredTensor kept[TENSORS_MAX];
    DsviSafetensors *file;
    size_t count = 0;
    snprintf(other, sizeof other, "%s.less", path);
    assert_ok(dsvi_safetensors_open(path, &file));
    assert_non_null(dsvi_safetensors_find(file, name));
    assert_true(dsvi_safetensors_count(file) <= TENSORS_MAX);
    for (size_t i = 0; i < dsvi_safetensors_count(file); i++)
        if (strcmp(dsvi_safetensors_at(file, i)->name, name) != 0)
            kept[count++] = *dsvi_safetensors_at(file, i);
    for (size_t i = 0; i < TRAITS; i++) {
        metadata[i][0] = traits[i];
        metadata[i][1] = dsvi_safetensors_metadata(file, traits[i]);
    }
    assert_ok(dsvi_safetensors_write(other, kept, count, (const char *const(*)[2])metadata, TRAITS));
    dsvi_safetensors_close(&file);
    assert_int_equal(rename(other, path), 0);
}

/* A state of version 0.1 has no mean of the queries. It loads, and the next sample supplies the mean. All
 * other tensors are required. */
static void test_state_of_version_0_1(void **state)
{
    static Rig saved, loaded;
    DsvConfig settings = settings_for("projection");
    DsviSparseShape shape = rig_shape(2, 2, 2, 32, 2, 7, 9, DSVI_F32);
    (void)state;
    rig_open(&saved, "auto", 2, &settings, &shape);
    rig_open(&loaded, "auto", 2, &settings, &shape);
    rig_fill(&saved, 1, 8);
    rig_step(&saved, 1, true);
    assert_ok(dsvi_sparse_save(saved.sparse, path));
    drop_tensor("projection.query_mean");
    assert_ok(dsvi_sparse_load(loaded.sparse, path));
    for (int64_t step = 2; step <= 4; step++) {
        rig_fill(&loaded, (uint64_t)step, 8);
        rig_step(&loaded, step, true);
    }
    drop_tensor("projection.key_mean");
    assert_fails(DSV_E_NOT_FOUND, "projection.key_mean", dsvi_sparse_load(loaded.sparse, path));
    rig_close(&saved);
    rig_close(&loaded);
}

/* Resumes after step 1, which measured, with the option `assignment`. Returns whether step 2 measures. */
static bool measures_on_resume(const char *assignment, bool train)
{
    static Rig resumed;
    DsviSparseBlockReport block;
    DsvConfig settings = settings_for("projection");
    DsviSparseShape shape = rig_shape(2, 2, 2, 32, 2, 7, 9, DSVI_F32);
    rig_set(&settings, "sparse.profile_every=100");
    rig_set(&settings, "sparse.target_density=0.6");
    rig_set(&settings, assignment);
    rig_open(&resumed, "auto", 2, &settings, &shape);
    assert_ok(dsvi_sparse_load(resumed.sparse, path));
    double before = resumed.sparse->record.captured[0];
    bool sparse = resumed.sparse->record.sparse[0];
    assert_true(sparse && before > 0);
    rig_fill(&resumed, 2, 8);
    rig_step(&resumed, 2, train);
    bool measured = dsvi_sparse_measured(resumed.sparse);
    dsvi_sparse_block_report(resumed.sparse, 0, &block);
    assert_true(block.over_lists); /* the decision holds until the measurement */
    assert_int_equal(before != block.captured_mass, measured);
    assert_int_equal(strstr(resumed.log, "all blocks were measured in this step") != NULL, measured);
    rig_fill(&resumed, 3, 8);
    rig_step(&resumed, 3, train);
    assert_false(dsvi_sparse_measured(resumed.sparse));
    rig_close(&resumed);
    return measured;
}

/* If the longer lists of a block do not fit into their memory after a resume, what its shorter ones held is
 * forgotten, so that the next measurement is not averaged with it. */
static void check_lists_that_do_not_fit(void)
{
    static Rig resumed;
    DsvConfig settings = settings_for("projection");
    DsviSparseShape shape = rig_shape(2, 2, 2, 32, 2, 7, 9, DSVI_F32);
    rig_set(&settings, "sparse.profile_every=100");
    rig_set(&settings, "sparse.target_density=0.7");
    rig_set(&settings, "sparse.target_mass=0");
    rig_set(&settings, "sparse.list_memory=0.4"); /* for the lists of one of two blocks */
    rig_open(&resumed, "auto", 2, &settings, &shape);
    assert_ok(dsvi_sparse_load(resumed.sparse, path));
    const DsviSparseRecord *record = &resumed.sparse->record;
    assert_true(record->sparse[0] && record->sparse[1] && record->captured[1] > 0);
    rig_fill(&resumed, 2, 8);
    rig_step(&resumed, 2, true);
    assert_true(dsvi_sparse_measured(resumed.sparse));
    assert_true(record->captured[0] > 0 && isnan(record->captured[1]));
    assert_true(isnan(record->head_captured[resumed.sparse->shape.heads]));
    rig_close(&resumed);
}

/* Opens a run, trains one step and saves the run's state to `path`. The caller closes the run. */
static void save_after_a_step(Rig *run, const DsvConfig *settings, const DsviSparseShape *shape)
{
    rig_open(run, "auto", 2, settings, shape);
    rig_fill(run, 1, 8);
    rig_step(run, 1, true);
    assert_ok(dsvi_sparse_save(run->sparse, path));
}

/* A run that is resumed with lists that may hold more or fewer keys measures at once what they hold, and so
 * does a run of a file that does not say how many keys its lists held. The new measurement is not averaged
 * with those of the other lists. */
static void test_other_lengths_are_measured(void **state)
{
    static Rig first, second;
    DsvConfig settings = settings_for("projection");
    DsviSparseShape shape = rig_shape(2, 2, 2, 32, 2, 7, 9, DSVI_F32);
    (void)state;
    rig_set(&settings, "sparse.profile_every=100");
    rig_set(&settings, "sparse.target_density=0.6");
    save_after_a_step(&first, &settings, &shape);
    assert_false(measures_on_resume("seed=1", true));
    assert_true(measures_on_resume("sparse.target_density=0.7", true));
    assert_true(measures_on_resume("sparse.min_keys=100", true));
    assert_true(measures_on_resume("sparse.target_mass=0.7", true));
    assert_true(measures_on_resume("sparse.group=64", true));
    assert_true(measures_on_resume("sparse.min_mass=0.1", true));
    assert_false(measures_on_resume("sparse.max_error=0.5", true)); /* a bound of tails, and there is none */
    assert_false(measures_on_resume("sparse.target_density=0.7", false)); /* samples do not measure */
    check_lists_that_do_not_fit();
    rig_set(&settings, "sparse.target_mass=0.9");
    rig_open(&second, "auto", 2, &settings, &shape);
    assert_ok(dsvi_sparse_load(second.sparse, path));
    rig_fill(&second, 2, 8);
    rig_step(&second, 2, true);
    double captured = second.sparse->record.captured[0];
    dsvi_sparse_restart(second.sparse);
    assert_ok(dsvi_sparse_load(second.sparse, path));
    second.sparse->record.captured[0] = 0.5;
    rig_step(&second, 2, true);
    assert_true(second.sparse->record.captured[0] == captured);
    drop_tensor("projection.query_mean"); /* and all metadata but the traits */
    assert_true(measures_on_resume("seed=1", true));
    rig_close(&first);
    rig_close(&second);
}

/* Returns the density up to which lists pay after a resume with the option `assignment`. The file says 0.4;
 * the run itself has measured 0.7. */
static double break_even_on_resume(const char *assignment)
{
    static Rig resumed;
    DsvConfig settings = settings_for("projection");
    DsviSparseShape shape = rig_shape(2, 2, 2, 32, 2, 7, 9, DSVI_F32);
    rig_set(&settings, assignment);
    rig_open(&resumed, "auto", 2, &settings, &shape);
    resumed.sparse->record.break_even[0] = 0.7;
    assert_ok(dsvi_sparse_load(resumed.sparse, path));
    double density = resumed.sparse->record.break_even[0];
    rig_close(&resumed);
    return density;
}

/* The measured cost of attention holds for the same lists only. */
static void test_cost_of_other_lists(void **state)
{
    static Rig first;
    DsvConfig settings = settings_for("projection");
    DsviSparseShape shape = rig_shape(2, 2, 2, 32, 2, 7, 9, DSVI_F32);
    (void)state;
    save_after_a_step(&first, &settings, &shape);
    first.sparse->record.break_even[0] = 0.4;
    assert_ok(dsvi_sparse_save(first.sparse, path));
    assert_true(break_even_on_resume("sparse.target_mass=0.7") == 0.4);
    assert_true(break_even_on_resume("sparse.group=64") == 0.7);
    assert_true(break_even_on_resume("sparse.tail=key") == 0.7);
    rig_close(&first);
}

/* Means of another number of keys or queries are another way to choose the keys of the same lists: a resumed
 * run keeps its measurements, its decisions and the projection, and measures nothing in addition. */
static void test_other_means_of_keys(void **state)
{
    static const char *const assignments[] = {"sparse.chunk=8", "sparse.key_chunk=1", "sparse.key_chunk=4"};
    static Rig first, resumed;
    DsvConfig settings = settings_for("projection");
    DsviSparseShape shape = rig_shape(2, 2, 2, 32, 2, 7, 9, DSVI_F32);
    (void)state;
    rig_set(&settings, "sparse.grain=8");
    rig_set(&settings, "sparse.key_chunk=2");
    rig_set(&settings, "sparse.refresh_every=100");
    rig_set(&settings, "sparse.profile_every=100");
    save_after_a_step(&first, &settings, &shape);
    for (size_t i = 0; i < sizeof assignments / sizeof *assignments; i++) {
        DsvConfig other = settings;
        rig_set(&other, assignments[i]);
        rig_open(&resumed, "auto", 2, &other, &shape);
        assert_ok(dsvi_sparse_load(resumed.sparse, path));
        assert_true(rig_same_state(&first, &resumed));
        rig_fill(&resumed, 2, 8);
        rig_step(&resumed, 2, true);
        assert_false(dsvi_sparse_measured(resumed.sparse));
        assert_non_null(dsvi_sparse_lists(resumed.sparse, 0));
        rig_close(&resumed);
    }
    rig_close(&first);
}

/* Returns the bytes of device memory that the selector plans. The rig cannot run afterwards, since planning
 * resets the selector's pointers. */
static size_t selector_bytes(const Rig *rig)
{
    DsviArena plan;
    dsvi_arena_plan(&plan);
    dsvi_selector_carve(rig->sparse->selector, &plan);
    return plan.by_class[DSVI_MEM_SPARSE];
}

/* Fails unless `whole` saves each tensor that `part` saves, with the same bits; returns how many tensors more
 * `whole` has. */
static size_t assert_state_within(Rig *part, Rig *whole)
{
    DsviSafetensors *few, *all;
    char other[sizeof path + 8];
    snprintf(other, sizeof other, "%s.whole", path);
    assert_ok(dsvi_sparse_save(part->sparse, path));
    assert_ok(dsvi_sparse_save(whole->sparse, other));
    assert_ok(dsvi_safetensors_open(path, &few));
    assert_ok(dsvi_safetensors_open(other, &all));
    for (size_t i = 0; i < dsvi_safetensors_count(few); i++) {
        const DsviStoredTensor *a = dsvi_safetensors_at(few, i), *b = dsvi_safetensors_find(all, a->name);
        assert_non_null(b);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    size_t more = dsvi_safetensors_count(all) - dsvi_safetensors_count(few);
    dsvi_safetensors_close(&few);
    dsvi_safetensors_close(&all);
    unlink(other);
    return more;
}

/* Validation uses the trained selector in a layer with another batch size and length and without backward
 * pass, which needs no moments of the predictor. */
static void test_copy_to_another_shape(void **state)
{
    static Rig training, sampling;
    (void)state;
    for (size_t n = 0; n < 3; n++) {
        DsvConfig settings = settings_for(selectors[n]);
        DsviSparseShape shape = rig_shape(2, 2, 2, 32, 2, 7, 9, DSVI_F32);
        DsviSparseShape other = rig_shape(2, 1, 2, 32, 3, 5, 4, DSVI_F32);
        other.backward = false;
        rig_open(&training, "auto", 2, &settings, &shape);
        rig_open(&sampling, "auto", 2, &settings, &other);
        for (int64_t step = 1; step <= 3; step++) {
            rig_fill(&training, (uint64_t)step, 8);
            rig_step(&training, step, true);
        }
        assert_ok(dsvi_sparse_copy(sampling.sparse, training.sparse));
        bool moments = strcmp(selectors[n], "predictor") == 0;
        assert_int_equal(assert_state_within(&sampling, &training), moments ? 2 : 0);
        rig_fill(&sampling, 9, 4);
        assert_ok(dsvi_sparse_step_begin(sampling.sparse, 1, false));
        DsviAttentionCall pass = rig_pass(&sampling, 1);
        assert_ok(dsvi_sparse_forward(sampling.sparse, 1, &pass));
        assert_non_null(dsvi_sparse_lists(sampling.sparse, 1));
        size_t learning = selector_bytes(&training) - selector_bytes(&sampling); /* gradients and moments */
        size_t parameters = 2 * 2 * 8 * 2 * (2 * 32 + 1) * sizeof(float);
        assert_true(!moments || learning >= 3 * parameters);
        rig_close(&training);
        rig_close(&sampling);
    }
}

/* The measured break-even is part of the state, so that a resumed run makes the same decisions. The resumed
 * run does not use the break-even that it has measured itself, and logs so. */
static void test_break_even_is_kept(void **state)
{
    static Rig first, second;
    DsvConfig settings = settings_for("projection");
    DsviSparseShape shape = rig_shape(1, 1, 2, 32, 2, 4, 4, DSVI_F32);
    (void)state;
    rig_open(&first, "auto", 1, &settings, &shape);
    settings.sparse_measure_cost = true;
    rig_open(&second, "auto", 1, &settings, &shape);
    first.sparse->record.break_even[0] = 0.35;
    second.sparse->record.break_even[0] = 0.8;
    second.log[0] = 0;
    assert_ok(dsvi_sparse_save(first.sparse, path));
    assert_true(dsvi_sparse_max_density(second.sparse) == 0.8);
    assert_ok(dsvi_sparse_load(second.sparse, path));
    assert_true(dsvi_sparse_max_density(second.sparse) == 0.35);
    assert_non_null(strstr(second.log, "faster than dense attention up to density 0.35"));
    rig_close(&first);
    rig_close(&second);
}

static void load_into(const char *selector, const char *assignment, DsviSparseShape shape, DsvStatus status,
                      const char *words)
{
    static Rig rig;
    DsvConfig settings = settings_for(selector);
    rig_set(&settings, assignment);
    rig_open(&rig, "auto", 1, &settings, &shape);
    if (status == DSV_OK)
        assert_ok(dsvi_sparse_load(rig.sparse, path));
    else
        assert_fails(status, words, dsvi_sparse_load(rig.sparse, path));
    rig_close(&rig);
}

static void test_what_does_not_fit(void **state)
{
    static Rig rig;
    DsvConfig settings = settings_for("projection");
    DsviSparseShape shape = rig_shape(2, 1, 2, 32, 2, 4, 4, DSVI_F32);
    (void)state;
    rig_open(&rig, "auto", 1, &settings, &shape);
    assert_ok(dsvi_sparse_save(rig.sparse, path));
    rig_close(&rig);

    load_into("projection", "seed=1", shape, DSV_OK, "");
    load_into("projection", "sparse.group=64", shape, DSV_OK, ""); /* not part of the state */
    load_into("projection", "sparse.enabled=false", shape, DSV_OK, "");
    load_into("pooled", "seed=1", shape, DSV_E_USAGE, "sparse.selector is pooled, expected projection,");
    load_into("projection", "sparse.rank=16", shape, DSV_E_USAGE, "sparse.rank is 16, expected 8, with");
    DsviSparseShape other = shape;
    other.blocks = 3;
    load_into("projection", "seed=1", other, DSV_E_SHAPE, "for blocks 2, expected 3");
    other = shape;
    other.heads = 4;
    load_into("projection", "seed=1", other, DSV_E_SHAPE, "for heads 2, expected 4");
    other = shape;
    other.head_dim = 64;
    load_into("projection", "seed=1", other, DSV_E_SHAPE, "for head_dim 32, expected 64");

    /* The state of a run without sparse attention has nothing to load. */
    rig_set(&settings, "sparse.enabled=false");
    rig_open(&rig, "auto", 1, &settings, &shape);
    assert_ok(dsvi_sparse_save(rig.sparse, path));
    rig_close(&rig);
    load_into("projection", "seed=1", shape, DSV_OK, "");

    /* A safetensors file that is not the state of a sparse layer. */
    const float value[1] = {1};
    const DsviStoredTensor tensor = {
        .name = "x", .dtype = DSVI_F32, .ndim = 1, .shape = {1}, .count = 1, .bytes = 4, .data = value};
    assert_ok(dsvi_safetensors_write(path, &tensor, 1, NULL, 0));
    load_into("projection", "seed=1", shape, DSV_E_SHAPE, "for selector (unknown), expected projection");
    unlink(path);
    load_into("projection", "seed=1", shape, DSV_E_NOT_FOUND, path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_copy_to_another_shape),
        cmocka_unit_test(test_break_even_is_kept),
        cmocka_unit_test(test_what_does_not_fit),
        cmocka_unit_test(test_state_of_version_0_1),
        cmocka_unit_test(test_other_lengths_are_measured),
        cmocka_unit_test(test_cost_of_other_lists),
        cmocka_unit_test(test_other_means_of_keys),
    };
    snprintf(path, sizeof path, "/tmp/dsv-sparse-state-%d.safetensors", (int)getpid());
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
