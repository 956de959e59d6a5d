/* The scalar truth of dividing lists and moving their rows (ops/list_exchange.h). */
#include "ops/list_exchange.h"

#include <string.h>

DsvStatus dsvi_runs_check(const DsvRuns *runs)
{
    if (runs->parts < 1 || runs->parts > DSV_RUN_PARTS_MOST)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "keys of %lld ranks, wanted 1 to %d", (long long)runs->parts,
                         DSV_RUN_PARTS_MOST);
    if (runs->grain < 1)
        return DSVI_FAIL(DSV_E_SHAPE, "runs of %lld keys, wanted 1 or more", (long long)runs->grain);
    for (int64_t j = 0; j < runs->parts; j++)
        if (runs->bound[0] != 0 || runs->bound[j + 1] < runs->bound[j])
            return DSVI_FAIL(DSV_E_SHAPE, "the runs of rank %lld begin at %lld and end at %lld", (long long)j,
                             (long long)runs->bound[j], (long long)runs->bound[j + 1]);
    return DSV_OK;
}

DsvStatus dsvi_list_divide_check(const DsvListDivideArgs *args)
{
    const DsvLists *whole = args->lists, *halves[2] = {args->near, args->far};
    const DsvRuns *runs = args->runs;
    DSVI_TRY(dsvi_runs_check(runs));
    if (whole->batch != runs->batch || whole->heads != runs->heads || whole->grain != runs->grain ||
        dsvi_lists_full(whole) != runs->bound[runs->parts] || args->self < 0 || args->self >= runs->parts)
        return DSVI_FAIL(DSV_E_SHAPE, "lists of %lld runs of %lld keys do not divide into %lld runs of %lld, "
                         "part %lld of %lld", (long long)dsvi_lists_full(whole), (long long)whole->grain,
                         (long long)runs->bound[runs->parts], (long long)runs->grain, (long long)args->self,
                         (long long)runs->parts);
    for (int i = 0; i < 2; i++)
        if (halves[i]->groups != whole->groups || halves[i]->batch != whole->batch ||
            halves[i]->heads != whole->heads || halves[i]->grain != whole->grain)
            return DSVI_FAIL(DSV_E_SHAPE, "lists of %lld groups do not divide into lists of %lld",
                             (long long)whole->groups, (long long)halves[i]->groups);
    return DSV_OK;
}

DsvStatus dsvi_rows_check(const DsvRowsArgs *args, DsvRowsOp op)
{
    const DsvRuns *runs = args->runs;
    DSVI_TRY(dsvi_runs_check(runs));
    if (args->first_pair < 0 || args->first_pair > args->end_pair || args->end_pair > dsvi_runs_pairs(runs))
        return DSVI_FAIL(DSV_E_SHAPE, "rows of pairs %lld to %lld, of %lld", (long long)args->first_pair,
                         (long long)args->end_pair - 1, (long long)dsvi_runs_pairs(runs));
    if (op == DSV_ROWS_PUT && args->width == 0)
        return DSVI_FAIL(DSV_E_SHAPE, "rows_put wants compact keys");
    if (op != DSV_ROWS_ADD)
        return DSV_OK;
    if (args->dtype != DSV_F32 && args->dtype != DSV_BF16 && args->dtype != DSV_F64)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "rows_add takes F32, BF16 and F64, not %s",
                         dsvi_dtype_name(args->dtype));
    for (int64_t j = 0; j < runs->parts; j++)
        if (args->width != 0 || runs->bound[j + 1] != (j + 1) * runs->bound[1])
            return DSVI_FAIL(DSV_E_SHAPE, "rows_add wants parts of one length and no compact keys");
    return DSV_OK;
}

/* ---- lists ---- */

static int64_t part_of(const DsvRuns *runs, int64_t run)
{
    int64_t part = 0;
    while (run >= runs->bound[part + 1])
        part++;
    return part;
}

/* Marks a run, by its number in the whole lists. */
static void mark(const DsvRuns *runs, int64_t pair, int64_t run)
{
    int64_t part = part_of(runs, run), i = run - runs->bound[part];
    runs->marks[dsvi_runs_word(runs, part, pair) + i / 32] |= (uint32_t)1 << i % 32;
}

static void mark_last(const DsvListDivideArgs *args)
{
    const DsvRuns *runs = args->runs;
    int64_t last = runs->bound[runs->parts] - 1;
    if (args->lists->keys % runs->grain == 0 || part_of(runs, last) == args->self)
        return;
    for (int64_t pair = 0; pair < dsvi_runs_pairs(runs); pair++)
        mark(runs, pair, last);
}

DsvStatus dsvi_lists_divide_ref(DsvStream *stream, const DsvListDivideArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_list_divide_check(args));
    const DsvRuns *runs = args->runs;
    memset(runs->marks, 0, (size_t)dsvi_runs_words(runs) * sizeof *runs->marks);
    mark_last(args);
    args->near->offsets[0] = args->far->offsets[0] = 0;
    for (int64_t n = 0; n < dsvi_lists_count(args->lists); n++) {
        DsvList list = dsvi_list_at(args->lists, n);
        int64_t near = 0;
        for (int64_t i = 0; i < list.count; i++) {
            if (part_of(runs, list.runs[i]) == args->self)
                near++;
            else
                mark(runs, n / args->lists->groups, list.runs[i]);
        }
        args->near->offsets[n + 1] = args->near->offsets[n] + near;
        args->far->offsets[n + 1] = args->far->offsets[n] + list.count - near;
    }
    return DSV_OK;
}

int64_t dsvi_runs_number(const DsvRuns *runs, int64_t part, int64_t pair, int64_t i)
{
    int64_t word = dsvi_runs_word(runs, part, pair) + i / 32;
    return runs->before[word] + __builtin_popcount(runs->marks[word] & (((uint32_t)1 << i % 32) - 1));
}

DsvStatus dsvi_runs_count_ref(DsvStream *stream, const DsvRuns *runs)
{
    (void)stream;
    DSVI_TRY(dsvi_runs_check(runs));
    int64_t pairs = dsvi_runs_pairs(runs);
    for (int64_t j = 0; j < runs->parts; j++) {
        int64_t *first = runs->first + j * (pairs + 1);
        first[0] = 0;
        for (int64_t pair = 0; pair < pairs; pair++) {
            int64_t begin = dsvi_runs_word(runs, j, pair), end = dsvi_runs_word(runs, j, pair + 1);
            int32_t count = 0;
            for (int64_t word = begin; word < end; word++) {
                runs->before[word] = count;
                count += __builtin_popcount(runs->marks[word]);
            }
            first[pair + 1] = first[pair] + count;
        }
    }
    return DSV_OK;
}

/* Marked runs of (part, pair). */
static int64_t marked(const DsvRuns *runs, int64_t part, int64_t pair)
{
    const int64_t *first = runs->first + part * (dsvi_runs_pairs(runs) + 1) + pair;
    return first[1] - first[0];
}

/* The compact run of number 0 of (part, pair). */
static int64_t compact_first(const DsvRuns *runs, int64_t width, int64_t part, int64_t pair)
{
    int64_t first = width;
    for (int64_t j = part; j < runs->parts; j++)
        first -= marked(runs, j, pair);
    return first;
}

DsvStatus dsvi_lists_emit_ref(DsvStream *stream, const DsvListDivideArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_list_divide_check(args));
    const DsvRuns *runs = args->runs;
    for (int64_t n = 0; n < dsvi_lists_count(args->lists); n++) {
        DsvList list = dsvi_list_at(args->lists, n);
        int32_t *near = args->near->runs + args->near->offsets[n];
        int32_t *far = args->far->runs + args->far->offsets[n];
        int64_t pair = n / args->lists->groups;
        for (int64_t i = 0; i < list.count; i++) {
            int64_t part = part_of(runs, list.runs[i]);
            if (part == args->self)
                *near++ = (int32_t)(list.runs[i] - runs->bound[part]);
            else
                *far++ = (int32_t)(compact_first(runs, args->width, part, pair) +
                                   dsvi_runs_number(runs, part, pair, list.runs[i] - runs->bound[part]));
        }
    }
    return DSV_OK;
}

/* ---- rows ---- */

/* Where the marked runs of (part, pair) begin. */
typedef struct Stretch {
    int64_t slot;
    int64_t row; /* of compact keys */
} Stretch;

static Stretch stretch_of(const DsvRowsArgs *args, int64_t part, int64_t pair)
{
    const DsvRuns *runs = args->runs;
    int64_t pairs = dsvi_runs_pairs(runs);
    Stretch at = {runs->first[part * (pairs + 1) + pair],
                  args->width > 0 ? runs->grain * compact_first(runs, args->width, part, pair) : 0};
    for (int64_t j = 0; j < part; j++)
        at.slot += runs->first[j * (pairs + 1) + pairs];
    return at;
}

/* The rows of run i of a pair, from `row` on, in one of k and v, and in a slot. */
typedef struct RunRows {
    const DsvHeads *x;
    int64_t pair, row;
    int64_t message; /* element where its rows in the slot begin */
} RunRows;

static RunRows run_rows(const DsvRowsArgs *args, bool values, int64_t pair, int64_t row, int64_t slot)
{
    return (RunRows){values ? &args->v : &args->k, pair, row,
                     (2 * slot + values) * args->runs->grain * args->head_dim};
}

/* Element where row `t` of a run begins in the tensor. */
static int64_t row_at(const DsvRowsArgs *args, const RunRows *of, int64_t t)
{
    return dsvi_heads_at(of->x, of->pair / args->runs->heads, of->row + t, of->pair % args->runs->heads);
}

static void copy_run(const DsvRowsArgs *args, RunRows of, bool take)
{
    size_t size = dsvi_dtype_size(args->dtype), bytes = (size_t)args->head_dim * size;
    for (int64_t t = 0; t < args->runs->grain; t++) {
        unsigned char *there = (unsigned char *)args->message + (size_t)of.message * size + (size_t)t * bytes;
        if (of.row + t >= args->rows) {
            if (take)
                memset(there, 0, bytes);
            continue;
        }
        unsigned char *here = (unsigned char *)of.x->data + (size_t)row_at(args, &of, t) * size;
        memcpy(take ? there : here, take ? here : there, bytes);
    }
}

static void copy_stretch(const DsvRowsArgs *args, int64_t part, int64_t pair, bool take)
{
    const DsvRuns *runs = args->runs;
    Stretch at = stretch_of(args, part, pair);
    for (int64_t i = 0, number = 0; i < runs->bound[part + 1] - runs->bound[part]; i++) {
        if (!dsvi_runs_marked(runs, part, pair, i))
            continue;
        int64_t row = args->width > 0 ? at.row + number * runs->grain : i * runs->grain;
        for (int values = 0; values < 2; values++)
            copy_run(args, run_rows(args, values, pair, row, at.slot + number), take);
        number++;
    }
}

static DsvStatus copy_all(const DsvRowsArgs *args, bool take)
{
    DSVI_TRY(dsvi_rows_check(args, take ? DSV_ROWS_TAKE : DSV_ROWS_PUT));
    for (int64_t part = 0; part < args->runs->parts; part++)
        for (int64_t pair = args->first_pair; pair < args->end_pair; pair++)
            copy_stretch(args, part, pair, take);
    return DSV_OK;
}

DsvStatus dsvi_rows_take_ref(DsvStream *stream, const DsvRowsArgs *args)
{
    (void)stream;
    return copy_all(args, true);
}

DsvStatus dsvi_rows_put_ref(DsvStream *stream, const DsvRowsArgs *args)
{
    (void)stream;
    return copy_all(args, false);
}

/* Run i of a pair; its slots are in `slot` (slots). */
static void add_run(const DsvRowsArgs *args, bool values, int64_t pair, int64_t i, const int64_t *slot,
                    int slots)
{
    int64_t grain = args->runs->grain, dim = args->head_dim;
    RunRows here = run_rows(args, values, pair, i * grain, 0);
    for (int64_t t = 0; t < grain && here.row + t < args->rows; t++) {
        int64_t row = row_at(args, &here, t);
        for (int64_t d = 0; d < dim; d++) {
            double sum = dsvi_load(args->dtype, here.x->data, row + d);
            for (int n = 0; n < slots; n++) {
                RunRows there = run_rows(args, values, pair, 0, slot[n]);
                sum += dsvi_load(args->dtype, args->message, there.message + t * dim + d);
            }
            dsvi_store(args->dtype, here.x->data, row + d, sum);
        }
    }
}

static void add_pair(const DsvRowsArgs *args, int64_t pair)
{
    const DsvRuns *runs = args->runs;
    Stretch at[DSV_RUN_PARTS_MOST];
    int64_t slot[DSV_RUN_PARTS_MOST];
    for (int64_t j = 0; j < runs->parts; j++)
        at[j] = stretch_of(args, j, pair);
    for (int64_t i = 0; i < runs->bound[1]; i++) {
        int slots = 0;
        for (int64_t j = 0; j < runs->parts; j++)
            if (dsvi_runs_marked(runs, j, pair, i))
                slot[slots++] = at[j].slot++;
        for (int values = 0; values < (slots > 0 ? 2 : 0); values++)
            add_run(args, values, pair, i, slot, slots);
    }
}

DsvStatus dsvi_rows_add_ref(DsvStream *stream, const DsvRowsArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_rows_check(args, DSV_ROWS_ADD));
    for (int64_t pair = args->first_pair; pair < args->end_pair; pair++)
        add_pair(args, pair);
    return DSV_OK;
}
