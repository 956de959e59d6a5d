/* The reference implementation of list exchange, with all ranks in one process. The near and far lists of a
 * rank must reach exactly the keys that its whole lists name, and a row that is sent back to its owner must
 * arrive at the row from which it came. */
#include "ops/list_exchange.h"

#include "ops/ops.h"
#include "ops/random_lists.h"
#include "test.h"

enum { BATCH = 2, HEADS = 3, PAIRS = BATCH * HEADS, QUERIES = 21, GROUP = 4, RANKS_MAX = 4 };

typedef struct Rank {
    DsviLists whole, near, far;
    DsviSpans needs, requests; /* spans this rank requests from others; spans others request from it */
    int64_t requests_bound[RANKS_MAX + 1];
    int64_t first_key, keys, width;
    double *local, *compact; /* (BATCH, keys, HEADS, 1) and (BATCH, compact keys, HEADS, 1): key names */
    double *local_values, *compact_values; /* the same with negative sign */
    double *needed, *requested;            /* messages with the rows of `needs` and of `requests` */
} Rank;

typedef struct World {
    int64_t keys, grain, ranks;
    int64_t bound[RANKS_MAX + 1];
    DsviOps ops;
    Rank rank[RANKS_MAX];
} World;

static void *allocate(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count + 1, size);
    assert_non_null(memory);
    return memory;
}

/* Returns the number that stands for key `key` of a (batch, head) pair, instead of its vector. */
static double name_of(int64_t pair, int64_t key)
{
    return (double)(pair * 1000 + key + 1);
}

static DsviSpans spans_create(const World *w, const int64_t *bound)
{
    DsviSpans spans = {.batch = BATCH, .heads = HEADS, .parts = w->ranks, .grain = w->grain, .bound = bound};
    spans.marks = allocate(dsvi_spans_words(&spans), sizeof *spans.marks);
    spans.before = allocate(dsvi_spans_words(&spans), sizeof *spans.before);
    spans.first = allocate(w->ranks * (PAIRS + 1), sizeof *spans.first);
    return spans;
}

static void spans_free(DsviSpans *spans)
{
    free(spans->marks);
    free(spans->before);
    free(spans->first);
}

static int64_t slots_of(const DsviSpans *spans, int64_t part)
{
    return spans->first[part * (PAIRS + 1) + PAIRS];
}

static int64_t slots_before(const DsviSpans *spans, int64_t part)
{
    int64_t slots = 0;
    for (int64_t j = 0; j < part; j++)
        slots += slots_of(spans, j);
    return slots;
}

static void create_rank(World *w, int64_t self, double density)
{
    Rank *r = &w->rank[self];
    r->whole = (DsviLists){.batch = BATCH,
                           .heads = HEADS,
                           .queries = QUERIES,
                           .keys = w->keys,
                           .group = GROUP,
                           .grain = w->grain};
    random_lists_create(&r->whole, density, (uint64_t)self);
    r->near = r->far = r->whole;
    r->near.offsets = allocate(dsvi_lists_count(&r->whole) + 1, sizeof(int64_t));
    r->far.offsets = allocate(dsvi_lists_count(&r->whole) + 1, sizeof(int64_t));
    r->near.spans = allocate(r->whole.capacity, sizeof(int32_t));
    r->far.spans = allocate(r->whole.capacity, sizeof(int32_t));
    int64_t end = w->bound[self + 1] * w->grain;
    r->first_key = w->bound[self] * w->grain;
    r->keys = (end < w->keys ? end : w->keys) - r->first_key;
    for (int64_t j = 0; j <= w->ranks; j++)
        r->requests_bound[j] = j * (w->bound[self + 1] - w->bound[self]);
    r->needs = spans_create(w, w->bound);
    r->requests = spans_create(w, r->requests_bound);
    r->local = allocate(BATCH * r->keys * HEADS, sizeof(double));
    r->local_values = allocate(BATCH * r->keys * HEADS, sizeof(double));
    for (int64_t i = 0; i < BATCH * r->keys * HEADS; i++) {
        r->local[i] = name_of(i / HEADS / r->keys * HEADS + i % HEADS, r->first_key + i / HEADS % r->keys);
        r->local_values[i] = -r->local[i];
    }
}

static void free_rank(Rank *r)
{
    void *const memory[] = {r->near.offsets, r->far.offsets, r->near.spans,     r->far.spans, r->local,
                            r->local_values, r->compact,     r->compact_values, r->needed,    r->requested};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
    random_lists_free(&r->whole);
    spans_free(&r->needs);
    spans_free(&r->requests);
}

static DsviRowsArgs local_rows(Rank *r)
{
    return (DsviRowsArgs){.spans = &r->requests,
                          .end_pair = PAIRS,
                          .rows = r->keys,
                          .head_dim = 1,
                          .dtype = DSVI_F64,
                          .k = dsvi_heads(r->local, r->keys, HEADS, 1),
                          .v = dsvi_heads(r->local_values, r->keys, HEADS, 1),
                          .message = r->requested};
}

static DsviRowsArgs compact_rows(Rank *r)
{
    return (DsviRowsArgs){.spans = &r->needs,
                          .end_pair = PAIRS,
                          .width = r->width,
                          .rows = r->far.keys,
                          .head_dim = 1,
                          .dtype = DSVI_F64,
                          .k = dsvi_heads(r->compact, r->far.keys, HEADS, 1),
                          .v = dsvi_heads(r->compact_values, r->far.keys, HEADS, 1),
                          .message = r->needed};
}

/* Runs an operation on all pairs, with two calls. */
static void run_rows(dsvi_rows_fn *op, DsviRowsArgs args)
{
    args.end_pair = PAIRS / 3;
    assert_ok(op(NULL, &args));
    args.first_pair = args.end_pair;
    args.end_pair = PAIRS;
    assert_ok(op(NULL, &args));
}

/* Divides the lists of all ranks, and copies marks between ranks: what each rank needs becomes what the
 * owners of the keys have to send. */
static void divide(World *w)
{
    for (int64_t s = 0; s < w->ranks; s++) {
        Rank *r = &w->rank[s];
        DsviListDivideArgs args = {&r->whole, &r->needs, s, &r->near, &r->far, 0};
        assert_ok(w->ops.lists_divide.run(NULL, &args));
        assert_ok(w->ops.spans_count.run(NULL, &r->needs));
        assert_int_equal(slots_of(&r->needs, s), 0);
        for (int64_t o = 0; o < w->ranks; o++)
            memcpy(w->rank[o].requests.marks + dsvi_spans_word(&w->rank[o].requests, s, 0),
                   r->needs.marks + dsvi_spans_word(&r->needs, o, 0),
                   (size_t)(dsvi_spans_word(&r->needs, o + 1, 0) - dsvi_spans_word(&r->needs, o, 0)) *
                       sizeof *r->needs.marks);
    }
    for (int64_t o = 0; o < w->ranks; o++) {
        Rank *r = &w->rank[o];
        assert_ok(w->ops.spans_count.run(NULL, &r->requests));
        r->requested = allocate(2 * slots_before(&r->requests, w->ranks) * w->grain, sizeof(double));
        r->needed = allocate(2 * slots_before(&r->needs, w->ranks) * w->grain, sizeof(double));
    }
}

/* Copies the messages of all owners to the ranks that need them, or, with `to_owner`, back to the owners. */
static void move_messages(World *w, bool to_owner)
{
    for (int64_t o = 0; o < w->ranks; o++)
        for (int64_t s = 0; s < w->ranks; s++) {
            Rank *owner = &w->rank[o], *other = &w->rank[s];
            double *there = owner->requested + 2 * slots_before(&owner->requests, s) * w->grain;
            double *here = other->needed + 2 * slots_before(&other->needs, o) * w->grain;
            assert_int_equal(slots_of(&owner->requests, s), slots_of(&other->needs, o));
            memcpy(to_owner ? there : here, to_owner ? here : there,
                   (size_t)(2 * slots_of(&owner->requests, s) * w->grain) * sizeof(double));
        }
}

static void make_compact(World *w, int64_t self)
{
    Rank *r = &w->rank[self];
    int64_t largest = 0, missing = w->bound[w->ranks] * w->grain - w->keys;
    for (int64_t pair = 0; pair < PAIRS; pair++) {
        int64_t count = 0;
        for (int64_t j = 0; j < w->ranks; j++)
            count += r->needs.first[j * (PAIRS + 1) + pair + 1] - r->needs.first[j * (PAIRS + 1) + pair];
        largest = count > largest ? count : largest;
    }
    r->width = largest + self; /* any width that is large enough */
    r->near.keys = r->keys;
    r->far.keys = r->width * w->grain - (self + 1 < w->ranks && r->width > 0 ? missing : 0);
    r->compact = allocate(BATCH * r->far.keys * HEADS, sizeof(double));
    r->compact_values = allocate(BATCH * r->far.keys * HEADS, sizeof(double));
    DsviListDivideArgs args = {&r->whole, &r->needs, self, &r->near, &r->far, r->width};
    assert_ok(w->ops.lists_emit.run(NULL, &args));
    if (r->width > 0)
        run_rows(w->ops.rows_put.run, compact_rows(r));
    for (int64_t i = 0; i < BATCH * r->far.keys * HEADS; i++)
        assert_true(r->compact_values[i] == -r->compact[i]);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Collects the names of the keys that list n reaches in `rows`; returns their number. */
static int64_t reach(const DsviLists *lists, int64_t n, const double *rows, double *names)
{
    DsviList list = dsvi_list_at(lists, n);
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
        DsviList list = dsvi_list_at(&r->whole, n);
        int64_t count = reach(&r->near, n, r->local, names);
        count += reach(&r->far, n, r->compact, names + count);
        assert_int_equal(count, dsvi_list_length(&list));
        qsort(names, (size_t)count, sizeof *names, ascending);
        for (int64_t i = 0; i < count; i++)
            assert_true(names[i] == name_of(n / r->whole.groups, dsvi_list_key(&list, i)));
    }
}

/* Each rank sends the names that it received back to the owners, which add them: a row grows by its own name
 * for each rank that needed it. */
static void compare_sums(World *w, int64_t self)
{
    Rank *r = &w->rank[self];
    run_rows(w->ops.rows_add.run, local_rows(r));
    for (int64_t i = 0; i < BATCH * r->keys * HEADS; i++) {
        int64_t pair = i / HEADS / r->keys * HEADS + i % HEADS, key = i / HEADS % r->keys, times = 1;
        for (int64_t s = 0; s < w->ranks; s++)
            times += dsvi_spans_marked(&r->requests, s, pair, key / w->grain);
        assert_true(r->local[i] == (double)times * name_of(pair, r->first_key + key));
        assert_true(r->local_values[i] == -r->local[i]);
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
        run_rows(w.ops.rows_take.run, local_rows(&w.rank[o]));
    move_messages(&w, false);
    for (int64_t s = 0; s < ranks; s++) {
        make_compact(&w, s);
        compare_reach(&w.rank[s]);
        memset(w.rank[s].needed, 0xff,
               (size_t)(2 * slots_before(&w.rank[s].needs, ranks) * grain) * sizeof(double));
        if (w.rank[s].width > 0)
            run_rows(w.ops.rows_take.run, compact_rows(&w.rank[s]));
    }
    move_messages(&w, true);
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
        for (int64_t ranks = 1; ranks <= RANKS_MAX; ranks++) {
            check(61, 1, ranks, densities[i]);
            check(61, 4, ranks, densities[i]);
            check(64, 16, ranks, densities[i]);
            check(200, 7, ranks, densities[i]);
        }
}

/* The lists of the parts name the keys that the lists name, each in the part that owns the key. */
static void parts(void **state)
{
    enum { KEYS = 61, GRAIN = 4, FULL = 16, GROUPS = 3 };
    const int64_t bound[] = {0, 5, 5, 14, FULL};
    int32_t spans[GROUPS * FULL], found[GROUPS * FULL];
    int64_t offsets[GROUPS + 1] = {0}, found_offsets[GROUPS + 1];
    DsviLists lists = {.batch = 1, .heads = 1, .queries = 40, .keys = KEYS, .group = 16, .groups = GROUPS};
    (void)state;
    lists.grain = GRAIN;
    lists.capacity = GROUPS * FULL;
    lists.offsets = offsets;
    lists.spans = spans;
    for (int64_t n = 0; n < GROUPS; n++) {
        offsets[n + 1] = offsets[n];
        for (int32_t span = 0; span < FULL && n != 1; span++)
            if (n == 0 || span % 3 == 0)
                spans[offsets[n + 1]++] = span;
    }
    for (int j = 0; j < 4; j++) {
        DsviLists part = {.offsets = found_offsets};
        DsviListPartArgs args = {&lists, bound[j], bound[j + 1], &part};
        dsvi_lists_copy_shape(&lists, &part);
        part.spans = found;
        part.keys = (bound[j + 1] < FULL ? bound[j + 1] * GRAIN : KEYS) - bound[j] * GRAIN;
        assert_ok(dsvi_lists_part_ref(NULL, &args));
        for (int64_t n = 0; n < GROUPS; n++) {
            DsviList whole = dsvi_list_at(&lists, n), own = dsvi_list_at(&part, n);
            int64_t named = 0;
            for (int64_t key = 0; key < part.keys; key++) {
                bool expected = dsvi_list_contains(&whole, bound[j] * GRAIN + key);
                assert_true(dsvi_list_contains(&own, key) == expected);
                named += expected;
            }
            assert_int_equal(dsvi_list_length(&own), named);
            assert_true(own.count == 0 || own.spans[own.count - 1] < dsvi_lists_full(&part));
        }
    }
}

static void refusals(void **state)
{
    (void)state;
    int64_t bound[3] = {0, 4, 2};
    DsviSpans spans = {.batch = 1, .heads = 1, .parts = 2, .grain = 1, .bound = bound};
    assert_fails(DSV_E_SHAPE, "the spans of part 1 begin at 4 and end at 2",
                 dsvi_spans_count_ref(NULL, &spans));
    spans.parts = 65;
    assert_fails(DSV_E_UNSUPPORTED, "keys are divided over 65 ranks, expected 1 to 64",
                 dsvi_spans_count_ref(NULL, &spans));
    spans.parts = 2;
    bound[2] = 6;
    DsviRowsArgs rows = {.spans = &spans, .end_pair = 1, .head_dim = 2, .dtype = DSVI_F32};
    assert_fails(DSV_E_SHAPE, "parts of equal length", dsvi_rows_add_ref(NULL, &rows));
    assert_fails(DSV_E_SHAPE, "rows_put requires compact keys", dsvi_rows_put_ref(NULL, &rows));
    rows.end_pair = 2;
    assert_fails(DSV_E_SHAPE, "rows of pairs 0 to 1 requested, but there are 1",
                 dsvi_rows_take_ref(NULL, &rows));
    DsviLists lists = {.batch = 1, .heads = 1, .queries = 4, .keys = 7, .group = 4, .groups = 1, .grain = 1};
    DsviListDivideArgs args = {&lists, &spans, 0, &lists, &lists, 0};
    assert_fails(DSV_E_SHAPE, "lists over 7 spans of 1 keys do not match parts of 6",
                 dsvi_lists_divide_ref(NULL, &args));
    DsviListPartArgs part = {&lists, 2, 8, &lists};
    assert_fails(DSV_E_SHAPE, "spans 2 to 7 requested of lists over 7 spans",
                 dsvi_lists_part_ref(NULL, &part));
    part.end = 5;
    assert_fails(DSV_E_SHAPE, "the result has 1 groups and 7 keys, expected 1 and 3",
                 dsvi_lists_part_ref(NULL, &part));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_together),
        cmocka_unit_test(parts),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
