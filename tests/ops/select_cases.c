/* Selection against the truth: moments and features by the checker, choices up to what rounding may tip. */
#include "base/rng.h"
#include "base/threads.h"
#include "ops/sparse_cases.h"
#include "test.h"

/* ---- moments and features: element by element, by the checker ---- */

typedef struct RowsShape {
    int64_t batch, heads, tokens, dim;
    int64_t offset, stride;  /* covariance */
    int64_t chunk, features; /* features; 0: no projection */
    int64_t gap;             /* elements between rows */
} RowsShape;

static DsvHeads heads_of(const CheckCase *c, const RowsShape *shape)
{
    int64_t pitch = shape->dim + shape->gap;
    DsvHeads rows = {c->buffer[0].data, shape->tokens * shape->heads * pitch, shape->heads * pitch, pitch};
    return rows;
}

static DsvStatus run_covariance(const CheckCase *c, const DsvOps *ops, DsvStream *stream)
{
    const RowsShape *shape = c->parameters;
    DsvSelectCovarianceArgs args = {
        .batch = shape->batch, .heads = shape->heads, .tokens = shape->tokens, .head_dim = shape->dim,
        .offset = shape->offset, .stride = shape->stride, .act = c->act, .x = heads_of(c, shape),
        .second = c->buffer[1].data, .first = c->buffer[2].data,
    };
    return ops->select_covariance.run(stream, &args);
}

static DsvStatus run_features(const CheckCase *c, const DsvOps *ops, DsvStream *stream)
{
    const RowsShape *shape = c->parameters;
    DsvSelectFeaturesArgs args = {
        .batch = shape->batch, .heads = shape->heads, .tokens = shape->tokens, .dim = shape->dim,
        .chunk = shape->chunk, .features = shape->features > 0 ? shape->features : shape->dim, .act = c->act,
        .x = heads_of(c, shape), .projection = shape->features > 0 ? c->buffer[2].data : NULL,
        .y = c->buffer[1].data,
    };
    return ops->select_features.run(stream, &args);
}

static CheckCase rows_case(const char *op, const RowsShape *shape, check_run_fn *run)
{
    CheckCase c = {.op = op, .parameters = shape, .run = run, .ulps = 8};
    snprintf(c.shape, sizeof c.shape, "b %lld h %lld s %lld d %lld offset %lld stride %lld chunk %lld r %lld",
             (long long)shape->batch, (long long)shape->heads, (long long)shape->tokens,
             (long long)shape->dim, (long long)shape->offset, (long long)shape->stride,
             (long long)shape->chunk, (long long)shape->features);
    check_buffer(&c, "x", CHECK_ACT, CHECK_IN,
                 shape->batch * shape->tokens * shape->heads * (shape->dim + shape->gap));
    return c;
}

void check_select_features_cases(const DsvBackend *backend)
{
    static const RowsShape shapes[] = {
        {1, 1, 1, 2, 0, 1, 1, 0, 0},     {2, 3, 37, 34, 1, 3, 4, 5, 3},  {1, 2, 130, 64, 5, 7, 16, 16, 0},
        {1, 1, 65, 128, 0, 1, 1, 16, 0}, {1, 2, 100, 96, 2, 1, 64, 0, 0}, {1, 1, 9, 256, 0, 2, 5, 32, 2},
        {2, 1, 40, 32, 50, 1, 3, 256, 0}, {2, 3, 70, 96, 0, 1, 32, 12, 8}, {1, 2, 75, 128, 0, 1, 1, 7, 8},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const RowsShape *s = &shapes[i];
        int64_t chunks = (s->tokens + s->chunk - 1) / s->chunk;
        CheckCase covariance = rows_case("select_covariance", s, run_covariance);
        check_buffer(&covariance, "second", CHECK_FLOAT, CHECK_IN_OUT, s->heads * s->dim * s->dim);
        check_buffer(&covariance, "first", CHECK_FLOAT, CHECK_IN_OUT, s->heads * s->dim);
        assert_case(&covariance, backend);
        CheckCase features = rows_case("select_features", s, run_features);
        check_buffer(&features, "y", CHECK_FLOAT, CHECK_OUT,
                     s->batch * s->heads * chunks * (s->features > 0 ? s->features : s->dim));
        if (s->features > 0)
            check_buffer(&features, "projection", CHECK_FLOAT, CHECK_IN, s->heads * s->dim * s->features);
        assert_case(&features, backend);
    }
}

/* ---- histograms and lists: choices, which rounding may tip where an estimate lies at the threshold ---- */

typedef struct SelectShape {
    int64_t batch, heads, queries, keys, group, chunk, candidate_keys, grain, features;
    double logit; /* standard deviation of the scores */
} SelectShape;

typedef struct SelectRun {
    float *lse;
    double *bin_count, *bin_mass, *selected_mass;
    int64_t *offsets;
    int32_t *runs;
    int64_t needed;
} SelectRun;

static void *room(int64_t count, size_t size)
{
    void *memory = malloc((size_t)(count + 1) * size);
    assert_non_null(memory);
    memset(memory, 0xff, (size_t)(count + 1) * size);
    return memory;
}

static float *normal(int64_t count, double scale, uint32_t stream)
{
    float *x = room(count, sizeof *x);
    DsvRng rng = {21, DSV_RNG_TEST, stream};
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(scale * dsvi_rng_normal(rng, (uint64_t)i));
    return x;
}

static void run_create(SelectRun *r, const DsvSelectArgs *args, int64_t capacity)
{
    int64_t pairs = args->batch * args->heads;
    r->lse = room(pairs * dsvi_select_proxies(args), sizeof *r->lse);
    r->bin_count = room(args->bin_heads * DSV_SELECT_BINS, sizeof *r->bin_count);
    r->bin_mass = room(args->bin_heads * DSV_SELECT_BINS, sizeof *r->bin_mass);
    r->selected_mass = room(args->heads, sizeof *r->selected_mass);
    r->offsets = room(pairs * dsvi_select_groups(args) + 1, sizeof *r->offsets);
    r->runs = room(capacity, sizeof *r->runs);
    r->needed = -1;
}

static void run_free(SelectRun *r)
{
    free(r->lse);
    free(r->bin_count);
    free(r->bin_mass);
    free(r->selected_mass);
    free(r->offsets);
    free(r->runs);
}

/* Histogram (unless `lse` is given) and lists on `ops`; `args` has host memory. */
static void select_on(const DsvBackend *backend, const DsvOps *ops, const DsvSelectArgs *host,
                      int64_t capacity, const float *lse, SelectRun *r)
{
    DsvStream *stream = backend && backend->device ? backend->device->stream : NULL;
    DsvSelectArgs args = *host;
    int64_t pairs = args.batch * args.heads, lists_count = pairs * dsvi_select_groups(&args);
    size_t f = sizeof(float), bins = (size_t)args.bin_heads * DSV_SELECT_BINS * sizeof(double);
    size_t proxies = (size_t)(pairs * dsvi_select_proxies(&args)), heads = (size_t)args.heads;
    size_t proxy_bytes = proxies * (size_t)args.features * f;
    size_t candidate_bytes = (size_t)(pairs * dsvi_select_candidates(&args) * args.features) * f;
    DsvLists lists = {args.batch, args.heads, args.queries, args.keys, args.group, dsvi_select_groups(&args),
                      args.grain, capacity, NULL, NULL};
    run_create(r, &args, capacity);
    if (lse)
        memcpy(r->lse, lse, proxies * f);
    args.proxies = check_upload(backend, stream, host->proxies, proxy_bytes);
    args.candidates = check_upload(backend, stream, host->candidates, candidate_bytes);
    if (host->threshold)
        args.threshold = check_upload(backend, stream, host->threshold, heads * f);
    if (host->topk)
        args.topk = check_upload(backend, stream, host->topk, heads * f);
    if (host->part.heads)
        args.part.head = check_upload(backend, stream, host->part.head, heads * sizeof(int32_t));
    args.lse = check_upload(backend, stream, r->lse, proxies * f);
    args.bin_count = check_upload(backend, stream, r->bin_count, bins);
    args.bin_mass = check_upload(backend, stream, r->bin_mass, bins);
    args.selected_mass = check_upload(backend, stream, r->selected_mass, heads * sizeof(double));
    lists.offsets = check_upload(backend, stream, r->offsets,
                                 (size_t)(lists_count + 1) * sizeof *r->offsets);
    lists.runs = check_upload(backend, stream, r->runs, (size_t)(capacity + 1) * sizeof *r->runs);
    args.lists = &lists;
    args.needed = check_upload(backend, stream, &r->needed, sizeof r->needed);
    args.workspace_bytes = ops->select_histogram.workspace(stream, &args);
    args.workspace = check_workspace(backend, stream, args.workspace_bytes);
    if (!lse)
        assert_ok(ops->select_histogram.run(stream, &args));
    args.again = !lse;
    assert_ok(ops->select_lists.run(stream, &args));
    check_workspace_release(backend, stream, args.workspace, args.workspace_bytes);
    check_download(backend, stream, r->lse, args.lse, proxies * f);
    check_download(backend, stream, r->bin_count, args.bin_count, bins);
    check_download(backend, stream, r->bin_mass, args.bin_mass, bins);
    check_download(backend, stream, &r->needed, args.needed, sizeof r->needed);
    check_download(backend, stream, r->selected_mass, args.selected_mass, heads * sizeof(double));
    check_download(backend, stream, r->offsets, lists.offsets,
                   (size_t)(lists_count + 1) * sizeof *r->offsets);
    check_download(backend, stream, r->runs, lists.runs, (size_t)(capacity + 1) * sizeof *r->runs);
    check_release(backend, stream, args.proxies);
    check_release(backend, stream, args.candidates);
    check_release(backend, stream, args.threshold);
    check_release(backend, stream, args.topk);
    if (host->part.heads)
        check_release(backend, stream, args.part.head);
}

/* Scores are rounded at their size; so is every estimate, relatively. */
static double estimate_error(const SelectShape *shape, const DsvSelectArgs *args)
{
    return 1e-6 * (10 + 5 * shape->logit) + (args->coarse ? DSVI_SELECT_COARSE_ERROR : 0);
}

static const double FLUSHED = 0x1p-120; /* estimates below may come out as zero */

/* Cumulated from the top, count and mass of the bins agree but for what lies next to a border. What came
 * across it counts with an estimate that has its own error. */
static void compare_histograms(const DsvSelectArgs *args, const SelectRun *got, const SelectRun *truth)
{
    double tipped = args->coarse ? 1 : 0.05; /* the error is most of a bin: any run may lie so near */
    double error = 1e-3 + (args->coarse ? DSVI_SELECT_COARSE_ERROR : 0);
    for (int64_t h = 0; h < args->bin_heads; h++) {
        double count = 0, mass = 0, truth_count = 0, truth_mass = 0;
        for (int64_t bin = (h + 1) * DSV_SELECT_BINS - 1; bin >= h * DSV_SELECT_BINS; bin--) {
            double slack_count = truth->bin_count[bin], slack_mass = truth->bin_mass[bin];
            if (bin > h * DSV_SELECT_BINS) {
                slack_count += truth->bin_count[bin - 1];
                slack_mass += truth->bin_mass[bin - 1];
            }
            count += got->bin_count[bin];
            mass += got->bin_mass[bin];
            truth_count += truth->bin_count[bin];
            truth_mass += truth->bin_mass[bin];
            assert_error_below(fabs(count - truth_count), tipped * slack_count + 3, "count, bin %d",
                               (int)bin);
            assert_error_below(fabs(mass - truth_mass),
                               tipped * slack_mass * (1 + error) + error * truth_mass + 1e-9,
                               "mass at bin %d", (int)bin);
        }
        assert_true(count == truth_count); /* every counted run is in some bin */
    }
}

/* All estimates of a (batch, head, group), from this lse. */
static void estimates_of(const DsvSelectArgs *args, const float *lse, int64_t list, double *estimate)
{
    int64_t groups = dsvi_select_groups(args), pair = list / groups, g = list % groups;
    int64_t proxies = dsvi_select_proxies(args), candidates = dsvi_select_candidates(args);
    int64_t last = (g + 1) * args->group < args->queries ? (g + 1) * args->group : args->queries;
    for (int64_t r = 0; r < dsvi_select_runs(args); r++)
        estimate[r] = 0;
    for (int64_t i = g * args->group; i < last; i++) {
        int64_t p = pair * proxies + i / args->chunk, first = i / args->chunk * args->chunk;
        double of_proxy = (double)(first + args->chunk < last ? args->chunk : last - first);
        double of_group = (double)(last - g * args->group);
        for (int64_t c = 0; c < candidates; c++) {
            double score = 0;
            for (int64_t f = 0; f < args->features; f++) {
                float x = args->proxies[p * args->features + f];
                float y = args->candidates[(pair * candidates + c) * args->features + f];
                score += args->coarse ? (double)dsvi_select_coarse(x, args->scale * DSVI_LOG2_E) *
                                            dsvi_select_coarse(y, 1)
                                      : args->scale * x * y;
            }
            estimate[c * args->candidate_keys / args->grain] +=
                args->coarse ? dsvi_select_power(score + log2(of_proxy / of_group) - lse[p] * DSVI_LOG2_E) /
                                   of_proxy
                             : exp(score - lse[p]) / of_group;
        }
    }
}

static int falling(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* The estimate from which on a list's runs are winners. Where none reaches the threshold the largest is. */
static double cut_of(const DsvSelectArgs *args, int64_t list, const double *estimate)
{
    int64_t runs = dsvi_select_runs(args), head = list / dsvi_select_groups(args) % args->heads;
    int64_t k = args->topk ? args->topk[head] : 1;
    double *sorted = room(runs, sizeof *sorted), cut;
    memcpy(sorted, estimate, (size_t)runs * sizeof *sorted);
    qsort(sorted, (size_t)runs, sizeof *sorted, falling);
    cut = sorted[k < 1 ? 0 : k > runs ? runs - 1 : k - 1];
    free(sorted);
    return args->topk ? cut : fmin(cut, args->threshold[head]);
}

/* Whether rounding may tip a run's choice: its estimate is near the cut, or, where it is explored for a
 * winner's sake, that of a run beside it. */
static bool may_tip(const DsvSelectArgs *args, const double *estimate, double cut, double tolerance,
                    int64_t run)
{
    int64_t reach = args->explore == DSV_EXPLORE_NEIGHBOURS ? 1 : 0;
    for (int64_t r = run - reach; r <= run + reach; r++)
        if (r >= 0 && r < dsvi_select_runs(args) &&
            fabs(estimate[r] - cut) <= tolerance * cut + FLUSHED)
            return true;
    return false;
}

/* Lists agree but for runs whose estimate is within `tolerance` of the smallest winner's. */
static void compare_lists(const DsvSelectArgs *args, const SelectRun *got, const SelectRun *truth,
                          double tolerance)
{
    double *estimate = room(dsvi_select_runs(args), sizeof *estimate);
    for (int64_t n = 0; n < args->batch * args->heads * dsvi_select_groups(args); n++) {
        int64_t a = got->offsets[n], b = truth->offsets[n];
        estimates_of(args, truth->lse, n, estimate);
        double cut = cut_of(args, n, estimate);
        while (a < got->offsets[n + 1] || b < truth->offsets[n + 1]) {
            int32_t x = a < got->offsets[n + 1] ? got->runs[a] : INT32_MAX;
            int32_t y = b < truth->offsets[n + 1] ? truth->runs[b] : INT32_MAX, run = x < y ? x : y;
            assert_true(a == got->offsets[n] || a == got->offsets[n + 1] || x > got->runs[a - 1]);
            if (x != y && !may_tip(args, estimate, cut, tolerance, run))
                fail_msg("list %d, run %d: estimate %g, of winners from %g on", (int)n, (int)run,
                         estimate[run], cut);
            a += x <= y;
            b += y <= x;
        }
    }
    free(estimate);
}

static void assert_same_run(const DsvSelectArgs *args, const SelectRun *a, const SelectRun *b,
                            int64_t capacity)
{
    int64_t pairs = args->batch * args->heads;
    assert_memory_equal(a->lse, b->lse, (size_t)(pairs * dsvi_select_proxies(args)) * sizeof *a->lse);
    size_t bins = (size_t)args->bin_heads * DSV_SELECT_BINS * sizeof(double);
    assert_memory_equal(a->bin_count, b->bin_count, bins);
    assert_memory_equal(a->bin_mass, b->bin_mass, bins);
    assert_memory_equal(a->selected_mass, b->selected_mass, (size_t)args->heads * sizeof(double));
    assert_memory_equal(a->offsets, b->offsets,
                        (size_t)(pairs * dsvi_select_groups(args) + 1) * sizeof *a->offsets);
    assert_memory_equal(a->runs, b->runs, (size_t)(capacity + 1) * sizeof *a->runs);
    assert_int_equal(a->needed, b->needed);
}

/* The histogram that follows from this lse. */
static void histogram_of(const DsvSelectArgs *args, const float *lse, SelectRun *r)
{
    int64_t groups = dsvi_select_groups(args);
    double *estimate = malloc((size_t)dsvi_select_runs(args) * sizeof *estimate);
    for (int64_t i = 0; i < args->bin_heads * DSV_SELECT_BINS; i++)
        r->bin_count[i] = r->bin_mass[i] = 0;
    for (int64_t n = 0; n < args->batch * args->heads * groups; n++) {
        uint32_t rotation = dsvi_select_rotation(args, n);
        estimates_of(args, lse, n, estimate);
        for (int64_t i = 0; i < dsvi_select_counted_runs(args, rotation); i++) {
            double e = estimate[dsvi_select_counted(args, rotation, i)];
            double bin = floor((log2(e) + DSV_SELECT_OCTAVES) * DSV_SELECT_PER_OCTAVE);
            int64_t at = n / groups % args->bin_heads * DSV_SELECT_BINS +
                         (int64_t)fmin(fmax(bin, 0), DSV_SELECT_BINS - 1);
            r->bin_count[at] += 1;
            r->bin_mass[at] += e;
        }
    }
    free(estimate);
}

/* The truth. With coarse features all but the lse is judged by what follows from the lse of `got`. */
static void run_truth(const SelectShape *shape, const DsvSelectArgs *args, int64_t capacity,
                      const SelectRun *got, SelectRun *truth)
{
    DsvOps ref;
    int64_t proxies = args->batch * args->heads * dsvi_select_proxies(args);
    double error = estimate_error(shape, args);
    dsvi_ops_fill_ref(&ref);
    select_on(NULL, &ref, args, capacity, NULL, truth);
    for (int64_t p = 0; p < proxies; p++)
        assert_error_below(fabs(got->lse[p] - truth->lse[p]), error, "lse of proxy %d", (int)p);
    if (!args->coarse)
        return;
    run_free(truth);
    select_on(NULL, &ref, args, capacity, got->lse, truth);
    histogram_of(args, got->lse, truth);
}

/* Lists that do not fit are empty. */
static void check_offsets(const SelectRun *r, int64_t lists, int64_t capacity)
{
    assert_int_equal(r->offsets[0], 0);
    if (r->needed <= capacity)
        assert_int_equal(r->offsets[lists], r->needed);
    for (int64_t n = 0; n < lists && r->needed > capacity; n++)
        assert_int_equal(r->offsets[n + 1], 0);
}

static void compare_with_truth(const DsvBackend *backend, const SelectShape *shape, const DsvSelectArgs *args,
                               int64_t capacity)
{
    SelectRun truth, got, again;
    dsvi_threads_set(1);
    select_on(backend, &backend->ops, args, capacity, NULL, &got);
    dsvi_threads_set(3);
    if (!test_small()) {
        select_on(backend, &backend->ops, args, capacity, NULL, &again);
        assert_same_run(args, &got, &again, capacity);
        run_free(&again);
    }
    run_truth(shape, args, capacity, &got, &truth);
    compare_histograms(args, &got, &truth);
    check_offsets(&got, args->batch * args->heads * dsvi_select_groups(args), capacity);
    for (int64_t h = 0; h < args->heads; h++)
        assert_error_below(fabs(got.selected_mass[h] - truth.selected_mass[h]),
                           2 * estimate_error(shape, args) * (1 + truth.selected_mass[h]), "selected mass");
    if (capacity < truth.needed)
        assert_true(labs((long)(got.needed - truth.needed)) <= truth.needed / 100);
    else
        compare_lists(args, &got, &truth, 4 * estimate_error(shape, args));
    assert_int_equal(got.runs[capacity], -1);
    run_free(&truth);
    run_free(&got);
}

/* With test_small one way to explore, another with each shape. */
static void check_select(const DsvBackend *backend, const SelectShape *shape, int number, bool coarse)
{
    DsvSelectArgs args = {
        .batch = shape->batch, .heads = shape->heads, .queries = shape->queries, .keys = shape->keys,
        .group = shape->group, .chunk = shape->chunk, .candidate_keys = shape->candidate_keys,
        .grain = shape->grain, .features = shape->features, .scale = 1 / sqrt((double)shape->features),
        .coarse = coarse, .bin_heads = shape->heads,
        .explore_rate = 0.2, .explore_seed = 3, .explore_step = 4,
    };
    int64_t pairs = args.batch * args.heads, runs = dsvi_select_runs(&args);
    int64_t capacity = pairs * dsvi_select_groups(&args) * runs;
    float threshold[8];
    float *proxies = normal(pairs * dsvi_select_proxies(&args) * args.features, shape->logit, 1);
    float *candidates = normal(pairs * dsvi_select_candidates(&args) * args.features, 1, 2);
    int32_t topk[8];
    args.proxies = proxies;
    args.candidates = candidates;
    for (int64_t h = 0; h < args.heads; h++) {
        threshold[h] = (float)((0.5 + 0.3 * (double)h) / (double)runs);
        topk[h] = (int32_t)(runs / 5 + h);
    }
    for (int explore = DSV_EXPLORE_NONE; explore <= DSV_EXPLORE_BLOCKS; explore++) {
        if (test_small() && explore != number % (DSV_EXPLORE_BLOCKS + 1))
            continue;
        args.explore = (DsvExplore)explore;
        args.threshold = threshold;
        args.topk = NULL;
        compare_with_truth(backend, shape, &args, capacity);
        args.threshold = NULL;
        args.topk = topk;
        compare_with_truth(backend, shape, &args, capacity);
    }
    args.explore = DSV_EXPLORE_NONE;
    args.bin_skip = 2;
    args.bin_heads = 1;
    compare_with_truth(backend, shape, &args, runs / 2);
    free(proxies);
    free(candidates);
}

/* Lists of a head are the first `count` runs each. */
static void assert_first_runs(const SelectRun *r, int64_t groups, const int64_t count[2])
{
    assert_int_equal(r->needed, groups * (count[0] + count[1]));
    for (int64_t n = 0; n < 2 * groups; n++) {
        assert_int_equal(r->offsets[n + 1] - r->offsets[n], count[n / groups]);
        for (int64_t i = 0; i < count[n / groups]; i++)
            if (r->runs[r->offsets[n] + i] != i)
                fail_msg("list %d, place %d: run %d", (int)n, (int)i, (int)r->runs[r->offsets[n] + i]);
    }
}

/* lse and features of zero make every estimate exactly 1, and exact on every backend: the rules on ties. */
static void check_ties(const DsvBackend *backend, bool coarse, int64_t groups, int64_t runs)
{
    enum { HEADS = 2, GROUP = 4, R = 16, FEW = 70 };
    float threshold[HEADS] = {1, 1.5f}, *zeros = calloc((size_t)(HEADS * runs * R), sizeof *zeros);
    int32_t topk[HEADS] = {FEW, (int32_t)runs};
    DsvSelectArgs args = {.batch = 1, .heads = HEADS, .queries = GROUP * groups - 2, .keys = runs,
                          .group = GROUP, .chunk = GROUP, .candidate_keys = 1, .grain = 1, .features = R,
                          .scale = 1, .coarse = coarse, .bin_heads = HEADS, .proxies = zeros,
                          .candidates = zeros, .threshold = threshold};
    SelectRun r;
    assert_non_null(zeros);
    select_on(backend, &backend->ops, &args, HEADS * groups * runs, zeros, &r);
    assert_first_runs(&r, groups, (int64_t[]){runs, 1});
    run_free(&r);
    args.threshold = NULL;
    args.topk = topk;
    select_on(backend, &backend->ops, &args, HEADS * groups * runs, zeros, &r);
    assert_first_runs(&r, groups, (int64_t[]){FEW, runs});
    run_free(&r);
    free(zeros);
}

/* Some heads, in another order, and some groups of each, made alone from the lse of the whole: their lists
 * are the whole's. */
static void check_part(const DsvBackend *backend, DsvExplore explore)
{
    enum { BATCH = 2, HEADS = 3, GROUP = 8, CHUNK = 4, GROUPS = 6, KEYS = 200, R = 16, PROXIES = 12,
           FIRST = 2, PART_HEADS = 2, PART_GROUPS = 3, PART_PROXIES = 6 };
    static const int32_t head[PART_HEADS] = {2, 0};
    float threshold[HEADS] = {0.006f, 0.006f, 0.006f};
    float *proxies = normal(BATCH * HEADS * PROXIES * R, 1, 1);
    float *candidates = normal(BATCH * HEADS * KEYS * R, 1, 2);
    float *part_proxies = room(BATCH * PART_HEADS * PART_PROXIES * R, sizeof(float));
    float *part_candidates = room(BATCH * PART_HEADS * KEYS * R, sizeof(float));
    float *part_lse = room(BATCH * PART_HEADS * PART_PROXIES, sizeof(float));
    SelectRun whole, part;
    DsvSelectArgs args = {
        .batch = BATCH, .heads = HEADS, .queries = GROUPS * GROUP - 3, .keys = KEYS, .group = GROUP,
        .chunk = CHUNK, .candidate_keys = 1, .grain = 1, .features = R, .scale = 0.25, .bin_heads = 1,
        .explore = explore, .explore_rate = 0.2, .explore_seed = 3, .explore_step = 4,
        .proxies = proxies, .candidates = candidates, .threshold = threshold,
    };
    select_on(backend, &backend->ops, &args, BATCH * HEADS * GROUPS * KEYS, NULL, &whole);
    for (int64_t n = 0; n < BATCH * PART_HEADS; n++) {
        int64_t from = n / PART_HEADS * HEADS + head[n % PART_HEADS];
        int64_t first = from * PROXIES + FIRST * GROUP / CHUNK;
        memcpy(part_proxies + n * PART_PROXIES * R, proxies + first * R, PART_PROXIES * R * sizeof(float));
        memcpy(part_candidates + n * KEYS * R, candidates + from * KEYS * R, KEYS * R * sizeof(float));
        memcpy(part_lse + n * PART_PROXIES, whole.lse + first, PART_PROXIES * sizeof(float));
    }
    args.heads = PART_HEADS;
    args.queries = PART_GROUPS * GROUP;
    args.proxies = part_proxies;
    args.candidates = part_candidates;
    args.part = (DsvSelectPart){HEADS, GROUPS, FIRST, head};
    select_on(backend, &backend->ops, &args, BATCH * HEADS * GROUPS * KEYS, part_lse, &part);
    for (int64_t n = 0; n < BATCH * PART_HEADS * PART_GROUPS; n++) {
        int64_t of_whole = dsvi_select_number(&args, n), count = part.offsets[n + 1] - part.offsets[n];
        assert_int_equal(count, whole.offsets[of_whole + 1] - whole.offsets[of_whole]);
        assert_memory_equal(part.runs + part.offsets[n], whole.runs + whole.offsets[of_whole],
                            (size_t)count * sizeof(int32_t));
    }
    run_free(&whole);
    run_free(&part);
    free(proxies);
    free(candidates);
    free(part_proxies);
    free(part_candidates);
    free(part_lse);
}

/* Attention from even to narrow, round the sizes at which an implementation may cut: lanes, tiles of 256
 * candidates and 32 proxies, words of 64 runs, 16 slices of groups, parts of a group that are 1, 2, 4, 8 or
 * others. One has runs of two blocks of exploration, and of these more than there is room for in what vectors
 * round the words of its runs up to. */
void check_select_cases(const DsvBackend *backend, bool coarse)
{
    static const SelectShape shapes[] = {
        {1, 1, 1, 1, 1, 1, 1, 1, 1, 1},           {2, 3, 21, 37, 8, 4, 1, 1, 5, 1},
        {1, 2, 300, 515, 128, 16, 1, 1, 16, 2},   {1, 1, 70, 260, 64, 1, 1, 1, 16, 1},
        {1, 2, 130, 300, 32, 16, 1, 8, 16, 3},    {1, 2, 90, 1000, 64, 64, 64, 64, 34, 1},
        {1, 1, 50, 129, 16, 8, 4, 12, 8, 1},      {1, 2, 40, 65, 2, 2, 1, 1, 16, 30},
        {1, 1, 33, 513, 16, 16, 1, 1, 128, 0},    {1, 2, 64, 400, 32, 4, 1, 1, 16, 9},
        {1, 2, 200, 700, 64, 16, 1, 1, 16, 0.4},  {1, 1, 40, 33000, 16, 16, 128, 128, 4, 1},
        {1, 1, 260, 600, 128, 16, 1, 1, 16, 0.4}, {1, 2, 150, 600, 64, 16, 1, 4, 16, 3},
    };
    for (int i = 0; i < (int)(sizeof shapes / sizeof shapes[0]); i++)
        check_select(backend, &shapes[i], i, coarse);
    check_ties(backend, coarse, 2, 150);
    if (check_long(backend)) { /* estimates that find room in parts, and not even those of a few lists */
        check_ties(backend, coarse, 256, 20000);
        check_ties(backend, coarse, 3, 140000);
    }
}

enum { TILES_BATCH = 2, TILES_HEADS = 3, TILES_GROUP = 4, TILES_GROUPS = 40, TILES_KEYS = 301, TILES_R = 16 };

/* Adds to `count` the histogram of groups [first, first + groups) of the heads in `head`, made alone: a
 * sample of one run of four. */
static void add_counts(const DsvBackend *backend, const float *proxies, const float *candidates,
                       int64_t first, int64_t groups, int64_t heads, const int32_t *head, double *count)
{
    float threshold[TILES_HEADS] = {1, 1, 1};
    int64_t each = groups * TILES_R, of_head = TILES_KEYS * TILES_R;
    float *part_proxies = room(TILES_BATCH * heads * each, sizeof(float));
    float *part_candidates = room(TILES_BATCH * heads * of_head, sizeof(float));
    SelectRun r;
    for (int64_t n = 0; n < TILES_BATCH * heads; n++) {
        int64_t from = n / heads * TILES_HEADS + head[n % heads];
        memcpy(part_proxies + n * each, proxies + (from * TILES_GROUPS + first) * TILES_R,
               (size_t)each * sizeof(float));
        memcpy(part_candidates + n * of_head, candidates + from * of_head, (size_t)of_head * sizeof(float));
    }
    DsvSelectArgs args = {
        .batch = TILES_BATCH, .heads = heads, .queries = groups * TILES_GROUP, .keys = TILES_KEYS,
        .group = TILES_GROUP, .chunk = TILES_GROUP, .candidate_keys = 1, .grain = 1, .features = TILES_R,
        .scale = 0.25, .bin_heads = 1, .bin_skip = 3, .bin_turn = 7, .proxies = part_proxies,
        .candidates = part_candidates, .threshold = threshold,
        .part = {TILES_HEADS, TILES_GROUPS, first, head},
    };
    select_on(backend, &backend->ops, &args, TILES_BATCH * heads * groups, NULL, &r);
    for (int bin = 0; bin < DSV_SELECT_BINS; bin++)
        count[bin] += r.bin_count[bin];
    run_free(&r);
    free(part_proxies);
    free(part_candidates);
}

/* Ranks that have some heads and some whole tiles of groups count together what one rank counts. */
static void check_part_counts(const DsvBackend *backend)
{
    static const int32_t all[TILES_HEADS] = {0, 1, 2}, two[2] = {2, 0}, one[1] = {1};
    double whole[DSV_SELECT_BINS] = {0}, parts[DSV_SELECT_BINS] = {0}, other[DSV_SELECT_BINS] = {0};
    double moved = 0;
    float *proxies = normal(TILES_BATCH * TILES_HEADS * TILES_GROUPS * TILES_R, 1, 1);
    float *candidates = normal(TILES_BATCH * TILES_HEADS * TILES_KEYS * TILES_R, 1, 2);
    add_counts(backend, proxies, candidates, 0, TILES_GROUPS, 3, all, whole);
    add_counts(backend, proxies, candidates, 0, 16, 2, two, parts);
    add_counts(backend, proxies, candidates, 16, 24, 2, two, parts);
    add_counts(backend, proxies, candidates, 0, TILES_GROUPS, 1, one, parts);
    add_counts(backend, proxies, candidates, 0, 16, 3, all, other);
    add_counts(backend, proxies, candidates, 24, 16, 3, all, other);
    for (int bin = 0; bin < DSV_SELECT_BINS; bin++) {
        assert_true(whole[bin] == parts[bin]);
        moved += fabs(whole[bin] - other[bin]);
    }
    assert_true(moved > 1000);
    free(proxies);
    free(candidates);
}

void check_select_part_cases(const DsvBackend *backend)
{
    check_part_counts(backend);
    for (int explore = DSV_EXPLORE_NONE; explore <= DSV_EXPLORE_BLOCKS; explore++)
        check_part(backend, (DsvExplore)explore);
}

/* ---- thresholds ---- */

enum { BIN_HEADS = 3, THRESHOLD_HEADS = 5 };

typedef struct Bins {
    double count[BIN_HEADS * DSV_SELECT_BINS], mass[BIN_HEADS * DSV_SELECT_BINS];
} Bins;

/* Counts like a normal distribution round bin `middle`, in every `stride`-th bin. Masses are multiples of
 * 2^-30, so that sums are exact in any order. */
static void fill_bins(Bins *bins, int middle, double width, int stride)
{
    for (int h = 0; h < BIN_HEADS; h++)
        for (int bin = 0; bin < DSV_SELECT_BINS; bin++) {
            double x = (bin - middle - 5 * h) / width;
            double e = exp2((double)bin / DSV_SELECT_PER_OCTAVE - DSV_SELECT_OCTAVES);
            int at = h * DSV_SELECT_BINS + bin;
            bins->count[at] = bin % stride == 0 ? floor(1000 * exp(-x * x / 2)) : 0;
            bins->mass[at] = bins->count[at] * floor(e * 0x1p30) * 0x1p-30;
        }
}

/* Twice on `backend`: near the truth, the same for all heads, the same bits, no byte beyond. */
static void compare_thresholds(const DsvBackend *backend, const Bins *bins, int64_t bin_heads,
                               double mass_share, double run_share)
{
    DsvStream *stream = backend->device ? backend->device->stream : NULL;
    size_t bytes = (size_t)bin_heads * DSV_SELECT_BINS * sizeof(double);
    float got[2][THRESHOLD_HEADS + 1], truth;
    DsvSelectThresholdArgs args = {1, bin_heads, bins->count, bins->mass, mass_share, run_share,
                                   &truth};
    assert_ok(dsvi_select_threshold_ref(NULL, &args));
    memset(got, 0xff, sizeof got);
    args.heads = THRESHOLD_HEADS;
    args.bin_count = check_upload(backend, stream, bins->count, bytes);
    args.bin_mass = check_upload(backend, stream, bins->mass, bytes);
    for (int i = 0; i < 2; i++) {
        args.threshold = check_upload(backend, stream, got[i], sizeof got[i]);
        assert_ok(backend->ops.select_threshold.run(stream, &args));
        check_download(backend, stream, got[i], args.threshold, sizeof got[i]);
    }
    check_release(backend, stream, args.bin_count);
    check_release(backend, stream, args.bin_mass);
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    assert_true(isnan(got[0][THRESHOLD_HEADS]));
    for (int h = 0; h < THRESHOLD_HEADS; h++)
        assert_error_below(fabs((double)got[0][h] - truth), 4 * 0x1p-24 * truth,
                           "head %d, share %g of the mass, %g of the runs", h, mass_share, run_share);
}

void check_select_threshold_cases(const DsvBackend *backend)
{
    static const struct {
        int middle;
        double width;
        int stride;
    } cases[] = {
        {1000, 300, 1}, {1000, 2, 1}, {1000, 0.1, 1}, {0, 0.1, 1}, {1, 0.1, 1}, {2047, 0.1, 1},
        {2046, 40, 1},  {5, 20, 1},   {1500, 200, 97}, {1, 0.01, 2048},
    };
    static const double shares[] = {0, 1e-6, 0.1, 0.35, 0.5, 0.9, 1 - 1e-9, 1};
    static Bins bins;
    size_t step = test_small() ? 4 : 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fill_bins(&bins, cases[i].middle, cases[i].width, cases[i].stride);
        for (size_t n = 0; n < sizeof shares / sizeof *shares; n += step) {
            for (size_t m = 0; m < sizeof shares / sizeof *shares; m += step) {
                compare_thresholds(backend, &bins, 1, shares[n], shares[m]);
                compare_thresholds(backend, &bins, BIN_HEADS, shares[n], shares[m]);
            }
        }
    }
}
