/* Dividing lists and moving rows, all ranks in one place: what a rank's near and far lists reach is what its
 * whole lists speak of, and what it sends home arrives at the row it came from. */
#include "ops/list_exchange.h"

#include "ops/ops.h"
#include "ops/random_lists.h"
#include "test.h"

enum { BATCH = 2, HEADS = 3, PAIRS = BATCH * HEADS, QUERIES = 21, GROUP = 4, RANKS_MOST = 4 };

typedef struct Rank {
    DsvLists whole, near, far;
    DsvRuns needs, wants;       /* of others' keys; of the own ones, by others */
    int64_t wants_bound[RANKS_MOST + 1];
    int64_t first_key, keys, width;
    double *own, *compact;      /* (BATCH, keys, HEADS, 1), compact likewise: numbers of keys */
    double *own_values, *compact_values; /* less than nothing by as much */
    double *needed, *wanted;    /* messages */
} Rank;

typedef struct World {
    int64_t keys, grain, ranks;
    int64_t bound[RANKS_MOST + 1];
    DsvOps ops;
    Rank rank[RANKS_MOST];
} World;

static void *room(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count + 1, size);
    assert_non_null(memory);
    return memory;
}

/* What stands for key `key` of a pair. */
static double name_of(int64_t pair, int64_t key)
{
    return (double)(pair * 1000 + key + 1);
}

static DsvRuns runs_create(const World *w, const int64_t *bound)
{
    DsvRuns runs = {.batch = BATCH, .heads = HEADS, .parts = w->ranks, .grain = w->grain, .bound = bound};
    runs.marks = room(dsvi_runs_words(&runs), sizeof *runs.marks);
    runs.before = room(dsvi_runs_words(&runs), sizeof *runs.before);
    runs.first = room(w->ranks * (PAIRS + 1), sizeof *runs.first);
    return runs;
}

static void runs_free(DsvRuns *runs)
{
    free(runs->marks);
    free(runs->before);
    free(runs->first);
}

static int64_t slots_of(const DsvRuns *runs, int64_t part)
{
    return runs->first[part * (PAIRS + 1) + PAIRS];
}

static int64_t slots_before(const DsvRuns *runs, int64_t part)
{
    int64_t slots = 0;
    for (int64_t j = 0; j < part; j++)
        slots += slots_of(runs, j);
    return slots;
}

static void create_rank(World *w, int64_t self, double density)
{
    Rank *r = &w->rank[self];
    r->whole = (DsvLists){.batch = BATCH, .heads = HEADS, .queries = QUERIES, .keys = w->keys,
                          .group = GROUP, .grain = w->grain};
    random_lists_create(&r->whole, density, (uint64_t)self);
    r->near = r->far = r->whole;
    r->near.offsets = room(dsvi_lists_count(&r->whole) + 1, sizeof(int64_t));
    r->far.offsets = room(dsvi_lists_count(&r->whole) + 1, sizeof(int64_t));
    r->near.runs = room(r->whole.capacity, sizeof(int32_t));
    r->far.runs = room(r->whole.capacity, sizeof(int32_t));
    int64_t end = w->bound[self + 1] * w->grain;
    r->first_key = w->bound[self] * w->grain;
    r->keys = (end < w->keys ? end : w->keys) - r->first_key;
    for (int64_t j = 0; j <= w->ranks; j++)
        r->wants_bound[j] = j * (w->bound[self + 1] - w->bound[self]);
    r->needs = runs_create(w, w->bound);
    r->wants = runs_create(w, r->wants_bound);
    r->own = room(BATCH * r->keys * HEADS, sizeof(double));
    r->own_values = room(BATCH * r->keys * HEADS, sizeof(double));
    for (int64_t i = 0; i < BATCH * r->keys * HEADS; i++) {
        r->own[i] = name_of(i / HEADS / r->keys * HEADS + i % HEADS, r->first_key + i / HEADS % r->keys);
        r->own_values[i] = -r->own[i];
    }
}

static void free_rank(Rank *r)
{
    void *const memory[] = {r->near.offsets, r->far.offsets, r->near.runs, r->far.runs, r->own,
                            r->own_values, r->compact, r->compact_values, r->needed, r->wanted};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
    random_lists_free(&r->whole);
    runs_free(&r->needs);
    runs_free(&r->wants);
}

static DsvRowsArgs home_rows(Rank *r)
{
    return (DsvRowsArgs){.runs = &r->wants, .end_pair = PAIRS, .rows = r->keys, .head_dim = 1,
                         .dtype = DSV_F64, .k = dsvi_heads(r->own, r->keys, HEADS, 1),
                         .v = dsvi_heads(r->own_values, r->keys, HEADS, 1), .message = r->wanted};
}

static DsvRowsArgs compact_rows(Rank *r)
{
    return (DsvRowsArgs){.runs = &r->needs, .end_pair = PAIRS, .width = r->width, .rows = r->far.keys,
                         .head_dim = 1, .dtype = DSV_F64, .k = dsvi_heads(r->compact, r->far.keys, HEADS, 1),
                         .v = dsvi_heads(r->compact_values, r->far.keys, HEADS, 1), .message = r->needed};
}

/* An op on all pairs, in two parts. */
static void run_rows(dsvi_rows_fn *op, DsvRowsArgs args)
{
    args.end_pair = PAIRS / 3;
    assert_ok(op(NULL, &args));
    args.first_pair = args.end_pair;
    args.end_pair = PAIRS;
    assert_ok(op(NULL, &args));
}

/* Marks travel: the needs of all ranks become the wants that each has to serve. */
static void divide(World *w)
{
    for (int64_t s = 0; s < w->ranks; s++) {
        Rank *r = &w->rank[s];
        DsvListDivideArgs args = {&r->whole, &r->needs, s, &r->near, &r->far, 0};
        assert_ok(w->ops.lists_divide.run(NULL, &args));
        assert_ok(w->ops.runs_count.run(NULL, &r->needs));
        assert_int_equal(slots_of(&r->needs, s), 0);
        for (int64_t o = 0; o < w->ranks; o++)
            memcpy(w->rank[o].wants.marks + dsvi_runs_word(&w->rank[o].wants, s, 0),
                   r->needs.marks + dsvi_runs_word(&r->needs, o, 0),
                   (size_t)(dsvi_runs_word(&r->needs, o + 1, 0) - dsvi_runs_word(&r->needs, o, 0)) *
                       sizeof *r->needs.marks);
    }
    for (int64_t o = 0; o < w->ranks; o++) {
        Rank *r = &w->rank[o];
        assert_ok(w->ops.runs_count.run(NULL, &r->wants));
        r->wanted = room(2 * slots_before(&r->wants, w->ranks) * w->grain, sizeof(double));
        r->needed = room(2 * slots_before(&r->needs, w->ranks) * w->grain, sizeof(double));
    }
}

/* Messages of all wants to those who need, or back. */
static void travel(World *w, bool home)
{
    for (int64_t o = 0; o < w->ranks; o++)
        for (int64_t s = 0; s < w->ranks; s++) {
            Rank *owner = &w->rank[o], *other = &w->rank[s];
            double *there = owner->wanted + 2 * slots_before(&owner->wants, s) * w->grain;
            double *here = other->needed + 2 * slots_before(&other->needs, o) * w->grain;
            assert_int_equal(slots_of(&owner->wants, s), slots_of(&other->needs, o));
            memcpy(home ? there : here, home ? here : there,
                   (size_t)(2 * slots_of(&owner->wants, s) * w->grain) * sizeof(double));
        }
}

static void make_compact(World *w, int64_t self)
{
    Rank *r = &w->rank[self];
    int64_t most = 0, missing = w->bound[w->ranks] * w->grain - w->keys;
    for (int64_t pair = 0; pair < PAIRS; pair++) {
        int64_t count = 0;
        for (int64_t j = 0; j < w->ranks; j++)
            count += r->needs.first[j * (PAIRS + 1) + pair + 1] - r->needs.first[j * (PAIRS + 1) + pair];
        most = count > most ? count : most;
    }
    r->width = most + self; /* any that is enough */
    r->near.keys = r->keys;
    r->far.keys = r->width * w->grain - (self + 1 < w->ranks && r->width > 0 ? missing : 0);
    r->compact = room(BATCH * r->far.keys * HEADS, sizeof(double));
    r->compact_values = room(BATCH * r->far.keys * HEADS, sizeof(double));
    DsvListDivideArgs args = {&r->whole, &r->needs, self, &r->near, &r->far, r->width};
    assert_ok(w->ops.lists_emit.run(NULL, &args));
    if (r->width > 0)
        run_rows(w->ops.rows_put.run, compact_rows(r));
    for (int64_t i = 0; i < BATCH * r->far.keys * HEADS; i++)
        assert_true(r->compact_values[i] == -r->compact[i]);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The names that list n reaches in `rows`. */
static int64_t reach(const DsvLists *lists, int64_t n, const double *rows, double *names)
{
    DsvList list = dsvi_list_at(lists, n);
    int64_t pair = n / lists->groups, length = dsvi_list_length(&list);
    for (int64_t i = 0; i < length; i++) {
        assert_true(i == 0 || dsvi_list_key(&list, i) > dsvi_list_key(&list, i - 1));
        names[i] = rows[(pair / HEADS * lists->keys + dsvi_list_key(&list, i)) * HEADS + pair % HEADS];
    }
    return length;
}

static void compare_reach(const Rank *r)
{
    double names[1024];
    for (int64_t n = 0; n < dsvi_lists_count(&r->whole); n++) {
        DsvList list = dsvi_list_at(&r->whole, n);
        int64_t count = reach(&r->near, n, r->own, names);
        count += reach(&r->far, n, r->compact, names + count);
        assert_int_equal(count, dsvi_list_length(&list));
        qsort(names, (size_t)count, sizeof *names, by_size);
        for (int64_t i = 0; i < count; i++)
            assert_true(names[i] == name_of(n / r->whole.groups, dsvi_list_key(&list, i)));
    }
}

/* Each rank sends the names home that it was sent: a row grows by its own for each that needed it. */
static void compare_sums(World *w, int64_t self)
{
    Rank *r = &w->rank[self];
    run_rows(w->ops.rows_add.run, home_rows(r));
    for (int64_t i = 0; i < BATCH * r->keys * HEADS; i++) {
        int64_t pair = i / HEADS / r->keys * HEADS + i % HEADS, key = i / HEADS % r->keys, times = 1;
        for (int64_t s = 0; s < w->ranks; s++)
            times += dsvi_runs_marked(&r->wants, s, pair, key / w->grain);
        assert_true(r->own[i] == (double)times * name_of(pair, r->first_key + key));
        assert_true(r->own_values[i] == -r->own[i]);
    }
}

static void check(int64_t keys, int64_t grain, int64_t ranks, double density)
{
    World w = {.keys = keys, .grain = grain, .ranks = ranks};
    int64_t full = (keys + grain - 1) / grain;
    dsvi_ops_fill_ref(&w.ops);
    for (int64_t j = 0; j <= ranks; j++)
        w.bound[j] = j * full / ranks;
    for (int64_t s = 0; s < ranks; s++)
        create_rank(&w, s, density);
    divide(&w);
    for (int64_t o = 0; o < ranks; o++)
        run_rows(w.ops.rows_take.run, home_rows(&w.rank[o]));
    travel(&w, false);
    for (int64_t s = 0; s < ranks; s++) {
        make_compact(&w, s);
        compare_reach(&w.rank[s]);
        memset(w.rank[s].needed, 0xff,
               (size_t)(2 * slots_before(&w.rank[s].needs, ranks) * grain) * sizeof(double));
        if (w.rank[s].width > 0)
            run_rows(w.ops.rows_take.run, compact_rows(&w.rank[s]));
    }
    travel(&w, true);
    for (int64_t s = 0; s < ranks; s++)
        compare_sums(&w, s);
    for (int64_t s = 0; s < ranks; s++)
        free_rank(&w.rank[s]);
}

static void all_ranks_together(void **state)
{
    (void)state;
    const double densities[] = {0, 0.05, 0.4, 1};
    for (size_t i = 0; i < sizeof densities / sizeof *densities; i++)
        for (int64_t ranks = 1; ranks <= RANKS_MOST; ranks++) {
            check(61, 1, ranks, densities[i]);
            check(61, 4, ranks, densities[i]);
            check(64, 16, ranks, densities[i]);
            check(200, 7, ranks, densities[i]);
        }
}

static void refusals(void **state)
{
    (void)state;
    int64_t bound[3] = {0, 4, 2};
    DsvRuns runs = {.batch = 1, .heads = 1, .parts = 2, .grain = 1, .bound = bound};
    assert_fails(DSV_E_SHAPE, "the runs of rank 1 begin at 4 and end at 2",
                 dsvi_runs_count_ref(NULL, &runs));
    runs.parts = 65;
    assert_fails(DSV_E_UNSUPPORTED, "keys of 65 ranks, wanted 1 to 64", dsvi_runs_count_ref(NULL, &runs));
    runs.parts = 2;
    bound[2] = 6;
    DsvRowsArgs rows = {.runs = &runs, .end_pair = 1, .head_dim = 2, .dtype = DSV_F32};
    assert_fails(DSV_E_SHAPE, "parts of one length", dsvi_rows_add_ref(NULL, &rows));
    assert_fails(DSV_E_SHAPE, "rows_put wants compact keys", dsvi_rows_put_ref(NULL, &rows));
    rows.end_pair = 2;
    assert_fails(DSV_E_SHAPE, "rows of pairs 0 to 1, of 1", dsvi_rows_take_ref(NULL, &rows));
    DsvLists lists = {.batch = 1, .heads = 1, .queries = 4, .keys = 7, .group = 4, .groups = 1, .grain = 1};
    DsvListDivideArgs args = {&lists, &runs, 0, &lists, &lists, 0};
    assert_fails(DSV_E_SHAPE, "lists of 7 runs of 1 keys do not divide into 6",
                 dsvi_lists_divide_ref(NULL, &args));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_together),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
