/* Saving and loading: a run that stops and resumes goes on to the bit; what does not fit is refused. */
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
    rig_set(&settings, "sparse.min_mass=0.2"); /* even the untaught predictor turns sparse */
    rig_set(&settings, "sparse.max_density=0.8");
    rig_set(&settings, "sparse.list_memory=0.8");
    return settings;
}

static void assert_same_reports(const Rig *a, const Rig *b)
{
    DsvSparseReport x, y;
    dsvi_sparse_report(a->sparse, &x);
    dsvi_sparse_report(b->sparse, &y);
    assert_int_equal(x.sparse_blocks, y.sparse_blocks);
    assert_true(x.density == y.density);
    assert_true(x.captured_mass == y.captured_mass || (isnan(x.captured_mass) && isnan(y.captured_mass)));
    assert_true(x.predictor_loss == y.predictor_loss || (isnan(x.predictor_loss) && isnan(y.predictor_loss)));
}

/* Stops after each of several steps, among them measuring and refreshing ones. */
static void test_resume(void **state)
{
    static Rig straight, resumed;
    static const DsvDtype dtypes[2] = {DSV_F32, DSV_BF16};
    (void)state;
    for (size_t n = 0; n < 3; n++) {
        DsvConfig settings = settings_for(selectors[n]);
        for (int64_t stop = 1; stop <= 4; stop++) {
            DsvSparseShape shape = rig_shape(2, 2, 2, 32, 2, 7, 9, dtypes[stop % 2]);
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
    enum { TENSORS_MOST = 64, TRAITS = 5 };
    static const char *const traits[TRAITS] = {"selector", "rank", "blocks", "heads", "head_dim"};
    char other[sizeof path + 8];
    const char *metadata[TRAITS][2];
    DsvStoredTensor kept[TENSORS_MOST];
    DsvSafetensors *file;
    size_t count = 0;
    snprintf(other, sizeof other, "%s.less", path);
    assert_ok(dsvi_safetensors_open(path, &file));
    assert_non_null(dsvi_safetensors_find(file, name));
    assert_true(dsvi_safetensors_count(file) <= TENSORS_MOST);
    for (size_t i = 0; i < dsvi_safetensors_count(file); i++)
        if (strcmp(dsvi_safetensors_at(file, i)->name, name) != 0)
            kept[count++] = *dsvi_safetensors_at(file, i);
    for (size_t i = 0; i < TRAITS; i++) {
        metadata[i][0] = traits[i];
        metadata[i][1] = dsvi_safetensors_metadata(file, traits[i]);
    }
    assert_ok(dsvi_safetensors_write(other, kept, count, (const char *const (*)[2])metadata, TRAITS));
    dsvi_safetensors_close(&file);
    assert_int_equal(rename(other, path), 0);
}

/* A state of version 0.1 has no mean of the queries: it loads, and the next sample brings the mean. Any other
 * tensor must be there. */
static void test_state_of_version_0_1(void **state)
{
    static Rig saved, loaded;
    DsvConfig settings = settings_for("projection");
    DsvSparseShape shape = rig_shape(2, 2, 2, 32, 2, 7, 9, DSV_F32);
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

/* Plans it anew: its device memory is lost to it. */
static size_t selector_bytes(const Rig *rig)
{
    DsvArena plan;
    dsvi_arena_plan(&plan);
    dsvi_selector_carve(rig->sparse->selector, &plan);
    return plan.by_class[DSV_MEM_SPARSE];
}

/* All that `part` saves `whole` saves too, to the bit; returns how many tensors more `whole` has. */
static size_t assert_state_within(Rig *part, Rig *whole)
{
    DsvSafetensors *few, *all;
    char other[sizeof path + 8];
    snprintf(other, sizeof other, "%s.whole", path);
    assert_ok(dsvi_sparse_save(part->sparse, path));
    assert_ok(dsvi_sparse_save(whole->sparse, other));
    assert_ok(dsvi_safetensors_open(path, &few));
    assert_ok(dsvi_safetensors_open(other, &all));
    for (size_t i = 0; i < dsvi_safetensors_count(few); i++) {
        const DsvStoredTensor *a = dsvi_safetensors_at(few, i), *b = dsvi_safetensors_find(all, a->name);
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

/* Validation samples with what training learnt: another batch and length, no backward pass, and so no moments
 * of a predictor. */
static void test_copy_to_another_shape(void **state)
{
    static Rig training, sampling;
    (void)state;
    for (size_t n = 0; n < 3; n++) {
        DsvConfig settings = settings_for(selectors[n]);
        DsvSparseShape shape = rig_shape(2, 2, 2, 32, 2, 7, 9, DSV_F32);
        DsvSparseShape other = rig_shape(2, 1, 2, 32, 3, 5, 4, DSV_F32);
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
        DsvSparseAttention pass = rig_pass(&sampling, 1);
        assert_ok(dsvi_sparse_forward(sampling.sparse, 1, &pass));
        assert_non_null(dsvi_sparse_lists(sampling.sparse, 1));
        size_t learning = selector_bytes(&training) - selector_bytes(&sampling); /* gradients, moments */
        size_t parameters = 2 * 2 * 8 * 2 * (2 * 32 + 1) * sizeof(float);
        assert_true(!moments || learning >= 3 * parameters);
        rig_close(&training);
        rig_close(&sampling);
    }
}

/* A measured break-even is part of the state, so that a resumed run decides as it would have; what it has
 * just measured itself it does not go by, and says so. */
static void test_break_even_is_kept(void **state)
{
    static Rig first, second;
    DsvConfig settings = settings_for("projection");
    DsvSparseShape shape = rig_shape(1, 1, 2, 32, 2, 4, 4, DSV_F32);
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
    assert_non_null(strstr(second.log, "it pays up to density 0.35"));
    rig_close(&first);
    rig_close(&second);
}

static void load_into(const char *selector, const char *assignment, DsvSparseShape shape, DsvStatus status,
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
    DsvSparseShape shape = rig_shape(2, 1, 2, 32, 2, 4, 4, DSV_F32);
    (void)state;
    rig_open(&rig, "auto", 1, &settings, &shape);
    assert_ok(dsvi_sparse_save(rig.sparse, path));
    rig_close(&rig);

    load_into("projection", "seed=1", shape, DSV_OK, "");
    load_into("projection", "sparse.group=64", shape, DSV_OK, ""); /* not part of the state */
    load_into("projection", "sparse.enabled=false", shape, DSV_OK, "");
    load_into("pooled", "seed=1", shape, DSV_E_SHAPE,
              "sparse state is for selector projection, wanted pooled");
    load_into("projection", "sparse.rank=16", shape, DSV_E_SHAPE, "for rank 8, wanted 16");
    DsvSparseShape other = shape;
    other.blocks = 3;
    load_into("projection", "seed=1", other, DSV_E_SHAPE, "for blocks 2, wanted 3");
    other = shape;
    other.heads = 4;
    load_into("projection", "seed=1", other, DSV_E_SHAPE, "for heads 2, wanted 4");
    other = shape;
    other.head_dim = 64;
    load_into("projection", "seed=1", other, DSV_E_SHAPE, "for head_dim 32, wanted 64");

    /* From a run without sparse attention there is nothing to take over. */
    rig_set(&settings, "sparse.enabled=false");
    rig_open(&rig, "auto", 1, &settings, &shape);
    assert_ok(dsvi_sparse_save(rig.sparse, path));
    rig_close(&rig);
    load_into("projection", "seed=1", shape, DSV_OK, "");

    /* A file of something else. */
    const float value[1] = {1};
    const DsvStoredTensor tensor = {.name = "x", .dtype = DSV_F32, .ndim = 1, .shape = {1}, .count = 1,
                                    .bytes = 4, .data = value};
    assert_ok(dsvi_safetensors_write(path, &tensor, 1, NULL, 0));
    load_into("projection", "seed=1", shape, DSV_E_SHAPE, "for selector (unknown), wanted projection");
    unlink(path);
    load_into("projection", "seed=1", shape, DSV_E_NOT_FOUND, path);
}

static void test_dump_lists(void **state)
{
    static Rig rig;
    DsvConfig settings = settings_for("projection");
    DsvSparseShape shape = rig_shape(2, 2, 3, 32, 2, 7, 9, DSV_F32);
    DsvSafetensors *file;
    const DsvStoredTensor *offsets, *runs, *about;
    const int64_t any[1] = {-1}, six[1] = {6}, expected[6] = {2, 3, 126, 126, 32, 1};
    (void)state;
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_fill(&rig, 2, 8);
    assert_fails(DSV_E_USAGE, "block 1 has no lists", dsvi_sparse_dump_lists(rig.sparse, 1, path));
    dsvi_sparse_force(rig.sparse, true);
    rig_run(&rig);
    assert_ok(dsvi_sparse_dump_lists(rig.sparse, 1, path));
    const DsvLists *lists = dsvi_sparse_lists(rig.sparse, 1);
    int64_t count = dsvi_lists_count(lists);
    assert_ok(dsvi_safetensors_open(path, &file));
    assert_ok(dsvi_safetensors_want(file, "offsets", 1, any, &offsets));
    assert_ok(dsvi_safetensors_want(file, "runs", 1, any, &runs));
    assert_ok(dsvi_safetensors_want(file, "shape", 1, six, &about));
    assert_memory_equal(about->data, expected, sizeof expected);
    assert_int_equal(offsets->count, 2 * 3 * 4 + 1);
    assert_memory_equal(offsets->data, lists->offsets, offsets->bytes);
    assert_int_equal(runs->count, lists->offsets[count]);
    assert_memory_equal(runs->data, lists->runs, runs->bytes);
    dsvi_safetensors_close(&file);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),          cmocka_unit_test(test_copy_to_another_shape),
        cmocka_unit_test(test_break_even_is_kept), cmocka_unit_test(test_what_does_not_fit),
        cmocka_unit_test(test_dump_lists),      cmocka_unit_test(test_state_of_version_0_1),
    };
    snprintf(path, sizeof path, "/tmp/dsv-sparse-state-%d.safetensors", (int)getpid());
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
