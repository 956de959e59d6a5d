/* Lists that are offloaded to the host (sparse.offload_lists). Results must have the same bits as with lists
 * that stay on the device, on a simulated device that performs each copy as late as it may. */
#include "sparse/sparse_rig.h"

#include "sparse/sparse_internal.h"

enum { BLOCKS = 4, COPIES_MAX = 16 };

/* A copy stream that performs its copies only when something waits for them. */
typedef struct Late {
    struct {
        void *dst;
        const void *src;
        size_t bytes;
    } copy[COPIES_MAX];
    int waiting;
    int up, down;     /* number of uploads and downloads so far */
    int ahead;        /* backward passes over lists during which an upload of other lists was pending */
    int used, passed; /* backward passes over lists so far; those for which the copy stream waits */
    DsviStream *stream, *copies;
    dsvi_attention_fn *backward;
} Late;

static Late late;
static char copies_stream;

static DsvStatus copy_late(DsviStream *stream, void *dst, const void *src, size_t bytes)
{
    if (stream != late.copies) {
        memmove(dst, src, bytes);
        return DSV_OK;
    }
    assert_true(late.waiting < COPIES_MAX);
    late.copy[late.waiting].dst = dst;
    late.copy[late.waiting].src = src;
    late.copy[late.waiting++].bytes = bytes;
    return DSV_OK;
}

/* Queues an upload of lists. The pass that uses the overwritten lists must have completed. */
static DsvStatus upload_late(DsviStream *stream, void *dst, const void *src, size_t bytes)
{
    assert_true(stream != late.copies || late.passed == late.used);
    late.up += stream == late.copies;
    return copy_late(stream, dst, src, bytes);
}

static DsvStatus download_late(DsviStream *stream, void *dst, const void *src, size_t bytes)
{
    late.down += stream == late.copies;
    return copy_late(stream, dst, src, bytes);
}

static DsvStatus sync_late(DsviStream *stream)
{
    for (int i = 0; i < late.waiting && stream == late.copies; i++)
        memmove(late.copy[i].dst, late.copy[i].src, late.copy[i].bytes);
    late.waiting = stream == late.copies ? 0 : late.waiting;
    return DSV_OK;
}

static DsvStatus follow_late(DsviStream *stream, DsviStream *leader)
{
    if (stream == late.copies)
        late.passed = late.used;
    return leader == late.copies ? sync_late(leader) : DSV_OK;
}

static DsvStatus backward_counted(DsviStream *stream, const DsviAttentionArgs *args)
{
    late.used++;
    late.ahead += late.waiting > 0;
    return late.backward(stream, args);
}

static void open_late(Rig *rig, const DsvConfig *settings, const DsviSparseShape *shape)
{
    rig_open(rig, "auto", 2, settings, shape);
    DsviDevice *device = rig->backend.device;
    memset(&late, 0, sizeof late);
    late.stream = device->stream;
    late.copies = device->copies = (DsviStream *)&copies_stream;
    late.backward = rig->backend.ops.attention_list_bwd.run;
    rig->backend.ops.attention_list_bwd.run = backward_counted;
    device->upload = upload_late;
    device->download = download_late;
    device->follow = follow_late;
    device->sync = sync_late;
}

/* A pass that ends before all of its blocks have run backward. */
static void abandon_pass(Rig *rig)
{
    DsviAttentionCall args;
    assert_ok(dsvi_sparse_step_begin(rig->sparse, 1, false));
    rig_fill(rig, 1, 0);
    for (int64_t i = 0; i < BLOCKS; i++) {
        args = rig_pass(rig, i);
        assert_ok(dsvi_sparse_forward(rig->sparse, i, &args));
    }
    assert_ok(dsvi_sparse_backward(rig->sparse, BLOCKS - 1, &args));
    late.up = late.down = late.ahead = 0;
}

/* Runs a step of two passes. With `recompute` the forward pass of each block except the last is repeated
 * before its backward pass. */
static void run_step(Rig *rig, int64_t step, bool recompute)
{
    assert_ok(dsvi_sparse_step_begin(rig->sparse, step, true));
    for (int pass = 0; pass < 2; pass++) {
        rig_fill(rig, (uint64_t)(10 * step + pass), pass == 0 ? 8 : 0);
        for (int64_t i = 0; i < BLOCKS; i++) {
            DsviAttentionCall args = rig_pass(rig, i);
            assert_ok(dsvi_sparse_forward(rig->sparse, i, &args));
        }
        for (int64_t i = BLOCKS - 1; i >= 0; i--) {
            DsviAttentionCall args = rig_pass(rig, i), again = args;
            again.recompute = true;
            if (recompute && i + 1 < BLOCKS)
                assert_ok(dsvi_sparse_forward(rig->sparse, i, &again));
            assert_ok(dsvi_sparse_backward(rig->sparse, i, &args));
        }
    }
    assert_ok(dsvi_sparse_step_end(rig->sparse));
}

typedef struct Case {
    const char *name;
    const char *setting[4]; /* options in addition to those of all cases */
    double density[BLOCKS]; /* density of each block's lists; NAN: dense; 0 for block 0: the guard decides */
    bool pairs;             /* the device has memory for the lists of two consecutive blocks */
    int down, up;           /* downloads and uploads of lists in a pass; -1: unknown */
} Case;

static const Case CASES[] = {
    {"all blocks sparse", {"sparse.list_memory=0.4"}, {0.25, 0.3, 0.2, 0.3}, true, 3, 3},
    {"dense ones between", {"sparse.list_memory=0.4"}, {0.25, NAN, NAN, 0.3}, true, 1, 1},
    {"the last one dense", {"sparse.list_memory=0.4"}, {0.25, 0.3, 0.2, NAN}, true, 3, 2},
    {"all dense", {"sparse.list_memory=0.4"}, {NAN, NAN, NAN, NAN}, true, 0, 0},
    {"room for one block",
     {"sparse.list_memory=0.3", "sparse.max_density=0.3"},
     {0.39, NAN, 0.38, 0.39},
     false,
     2,
     2},
    {"the last one finds no room",
     {"sparse.list_memory=0.25", "sparse.max_density=0.3"},
     {0.35, 0.35, 0.25, 0.38},
     false,
     3,
     3},
    {"exploring",
     {"sparse.list_memory=0.6", "sparse.explore_kind=random", "sparse.explore=0.1", "sparse.rule=threshold"},
     {0.25, 0.3, 0.2, 0.3},
     true,
     3,
     3},
    {"with a tail",
     {"sparse.list_memory=0.4", "sparse.tail=query", "sparse.tail_chunk=16"},
     {0.25, NAN, 0.2, 0.3},
     true,
     2,
     2},
    {"as the guard decides",
     {"sparse.list_memory=0.5", "sparse.rule=threshold", "sparse.target_mass=0.9", "sparse.min_mass=0.7"},
     {0},
     true,
     -1,
     -1},
};

static DsvConfig settings_of(const Case *c, bool offload)
{
    DsvConfig settings = rig_settings();
    rig_set(&settings, "sparse.rule=topk");
    rig_set(&settings, "sparse.target_density=0.3");
    rig_set(&settings, "sparse.target_mass=0");
    rig_set(&settings, "sparse.profile_every=2");
    for (int i = 0; i < 4 && c->setting[i]; i++)
        rig_set(&settings, c->setting[i]);
    rig_set(&settings, offload ? "sparse.offload_lists=true" : "sparse.offload_lists=false");
    return settings;
}

static void prescribe(Rig *rig, const Case *c)
{
    double density[BLOCKS * 2];
    for (int i = 0; i < 2 * BLOCKS; i++)
        density[i] = c->density[i / 2];
    if (c->density[0] != 0)
        dsvi_sparse_prescribe(rig->sparse, density);
}

static void same_as_kept(const Case *c, bool recompute)
{
    enum { STEPS = 3 };
    static Rig kept, offloaded;
    DsviSparseShape shape = rig_shape(BLOCKS, 1, 2, 32, 1, 16, 16, DSVI_F32);
    DsvConfig without = settings_of(c, false), with = settings_of(c, true);
    rig_open(&kept, "auto", 2, &without, &shape);
    open_late(&offloaded, &with, &shape);
    prescribe(&kept, c);
    prescribe(&offloaded, c);
    assert_true(offloaded.sparse->spans_room < kept.sparse->spans_room);
    abandon_pass(&kept);
    abandon_pass(&offloaded);
    for (int64_t step = 1; step <= STEPS; step++) {
        run_step(&kept, step, recompute);
        run_step(&offloaded, step, recompute);
        if (!rig_same(&kept, &offloaded) || !rig_same_state(&kept, &offloaded))
            fail_msg("%s%s: step %d differs", c->name, recompute ? ", recomputed" : "", (int)step);
    }
    assert_string_equal(kept.log, offloaded.log);
    assert_true(c->down < 0 ? late.down > 0 : late.down == 2 * STEPS * c->down);
    assert_true(c->pairs ? late.ahead == late.up : late.ahead < late.up);
    assert_true(c->up < 0 ? late.up > 0 : late.up == 2 * STEPS * c->up);
    bool pairs = true;
    for (int i = 1; i < BLOCKS; i++)
        pairs = pairs && offloaded.sparse->block[i - 1].kept + offloaded.sparse->block[i].kept <=
                             offloaded.sparse->spans_room;
    assert_true(pairs == c->pairs);
    rig_close(&kept);
    rig_close(&offloaded);
}

static void test_same_as_kept(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        same_as_kept(&CASES[i], false);
        same_as_kept(&CASES[i], true);
    }
}

/* The device has memory for the lists of two blocks of average length, the host for the lists of all blocks
 * except the last. Without backward passes, or with only one block, no lists are offloaded. */
static void test_memory(void **state)
{
    static Rig rig;
    const struct {
        int64_t blocks;
        bool backward;
    } cases[] = {{BLOCKS, true}, {1, true}, {BLOCKS, false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        DsvConfig settings = settings_of(&CASES[0], true);
        DsviSparseShape shape = rig_shape(cases[i].blocks, 1, 2, 32, 1, 16, 16, DSVI_F32);
        DsviArena host;
        shape.backward = cases[i].backward;
        rig_open(&rig, "auto", 2, &settings, &shape);
        dsvi_arena_plan(&host);
        dsvi_sparse_carve_host(rig.sparse, &host);
        size_t spans = (size_t)rig.sparse->spans_capacity * sizeof(int32_t);
        assert_int_equal(host.by_class[DSVI_MEM_SPARSE], i == 0 ? (spans + 255) / 256 * 256 : 0);
        if (i == 0)
            assert_true(2 * rig.sparse->spans_room <= rig.sparse->spans_capacity + 2 * BLOCKS);
        rig_close(&rig);
    }
}

/* dsvi_sparse_lists returns the lists of the block that ran last, and NULL for a block whose lists are on the
 * host. */
static void test_visible_lists(void **state)
{
    static Rig rig;
    DsvConfig settings = settings_of(&CASES[0], true);
    DsviSparseShape shape = rig_shape(BLOCKS, 1, 2, 32, 1, 16, 16, DSVI_F32);
    (void)state;
    rig_open(&rig, "auto", 2, &settings, &shape);
    prescribe(&rig, &CASES[0]);
    rig_fill(&rig, 3, 0);
    assert_ok(dsvi_sparse_step_begin(rig.sparse, 1, true));
    for (int64_t i = 0; i < BLOCKS; i++) {
        DsviAttentionCall args = rig_pass(&rig, i);
        assert_ok(dsvi_sparse_forward(rig.sparse, i, &args));
        assert_non_null(dsvi_sparse_lists(rig.sparse, i));
        assert_true(i == 0 || !dsvi_sparse_lists(rig.sparse, i - 1));
    }
    rig_close(&rig);
}

static void test_refusal(void **state)
{
    static Rig rig;
    DsvConfig settings = settings_of(&CASES[0], true);
    DsviSparseShape shape = rig_shape(BLOCKS, 1, 2, 32, 1, 16, 16, DSVI_F32);
    (void)state;
    assert_ok(dsvi_cpu_open("auto", 1, &rig.backend));
    rig_set(&settings, "sparse.time_choices=true");
    assert_fails(DSV_E_USAGE, "sparse.time_choices is true and so is sparse.offload_lists",
                 dsvi_sparse_create(&rig.backend, &settings, &shape, NULL, NULL, &rig.sparse));
    dsvi_cpu_close(&rig.backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_kept),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_visible_lists),
        cmocka_unit_test(test_refusal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
