/* Cases of selection against the reference implementation. The checker (check.h) compares moments and
 * features; histograms and lists may differ from the reference where rounding can change a choice. */
#include "base/rng.h"
#include "base/threads.h"
#include "ops/sparse_cases.h"
#include "test.h"

/* ---- moments and features: compared element by element by the checker ---- */

typedef struct RowsShape {
    int64_t batch, heads, tokens, dim;
    int64_t offset, stride;  /* for select_covariance */
    int64_t chunk, features; /* for select_features; features 0: no projection */
    int64_t gap;             /* elements between rows */
} RowsShape;

static DsviHeads heads_of(const CheckCase *c, const RowsShape *shape)
{
    int64_t pitch = shape->dim + shape->gap;
    DsviHeads rows = {c->buffer[0].data, shape->tokens * shape->heads * pitch, shape->heads * pitch, pitch};
    return rows;
}

static DsvStatus run_covariance(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const RowsShape *shape = c->parameters;
    DsviSelectCovarianceArgs args = {
        .batch = shape->batch,
        .heads = shape->heads,
        .tokens = shape->tokens,
        .head_dim = shape->dim,
        .offset = shape->offset,
        .stride = shape->stride,
        .act = c->act,
        .x = heads_of(c, shape),
        .second = c->buffer[1].data,
        .first = c->buffer[2].data,
    };
    return ops->select_covariance.run(stream, &args);
}

static DsvStatus run_features(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const RowsShape *shape = c->parameters;
    DsviSelectFeaturesArgs args = {
        .batch = shape->batch,
        .heads = shape->heads,
        .tokens = shape->tokens,
        .dim = shape->dim,
        .chunk = shape->chunk,
        .features = shape->features > 0 ? shape->features : shape->dim,
        .act = c->act,
        .x = heads_of(c, shape),
        .projection = shape->features > 0 ? c->buffer[2].data : NULL,
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

void check_select_features_cases(const DsviBackend *backend)
{
    static const RowsShape shapes[] = {
        {1, 1, 1, 2, 0, 1, 1, 0, 0},      {2, 3, 37, 34, 1, 3, 4, 5, 3},   {1, 2, 130, 64, 5, 7, 16, 16, 0},
        {1, 1, 65, 128, 0, 1, 1, 16, 0},  {1, 2, 100, 96, 2, 1, 64, 0, 0}, {1, 1, 9, 256, 0, 2, 5, 32, 2},
        {2, 1, 40, 32, 50, 1, 3, 256, 0}, {2, 3, 70, 96, 0, 1, 32, 12, 8}, {1, 2, 75, 128, 0, 1, 1, 7, 8},
        {2, 2, 71, 128, 0, 1, 2, 16, 0},
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

/* ---- histograms and lists: rounding may change a choice if an estimate is close to the threshold ---- */

typedef struct SelectShape {
    int64_t batch, heads, queries, keys, group, chunk, candidate_keys, grain, features;
    double logit; /* standard deviation of the scores */
} SelectShape;

typedef struct SelectRun {
    float *lse;
    double *bin_count, *bin_mass, *selected_mass;
    int64_t *offsets;
    int32_t *spans;
    int64_t needed;
} SelectRun;

static void *allocate(int64_t count, size_t size)
{
    void *memory = malloc((size_t)(count + 1) * size);
    assert_non_null(memory);
    memset(memory, 0xff, (size_t)(count + 1) * size);
    return memory;
}

static float *normal(int64_t count, double scale, uint32_t stream)
{
    float *x = allocate(count, sizeof *x);
    DsviRng rng = {21, DSVI_RNG_TEST, stream};
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(scale * dsvi_rng_normal(rng, (uint64_t)i));
    return x;
}

static void run_create(SelectRun *r, const DsviSelectArgs *args, int64_t capacity)
{
    int64_t pairs = args->batch * args->heads;
    r->lse = allocate(pairs * dsvi_select_proxies(args), sizeof *r->lse);
    r->bin_count = allocate(args->bin_heads * DSVI_SELECT_BINS, sizeof *r->bin_count);
    r->bin_mass = allocate(args->bin_heads * DSVI_SELECT_BINS, sizeof *r->bin_mass);
    r->selected_mass = allocate(args->heads, sizeof *r->selected_mass);
    r->offsets = allocate(pairs * dsvi_select_groups(args) + 1, sizeof *r->offsets);
    r->spans = allocate(capacity, sizeof *r->spans);
    r->needed = -1;
}

static void run_free(SelectRun *r)
{
    free(r->lse);
    free(r->bin_count);
    free(r->bin_mass);
    free(r->selected_mass);
    free(r->offsets);
    free(r->spans);
}

/* Runs select_histogram (unless `lse` is given) and select_lists of the table `ops` on copies of the host
 * arrays in `host`; writes the results to `r`. */
static void select_on(const DsviBackend *backend, const DsviOps *ops, const DsviSelectArgs *host,
                      int64_t capacity, const float *lse, SelectRun *r)
{
    DsviStream *stream = backend && backend->device ? backend->device->stream : NULL;
    DsviSelectArgs args = *host;
    int64_t pairs = args.batch * args.heads, lists_count = pairs * dsvi_select_groups(&args);
    size_t f = sizeof(float), bins = (size_t)args.bin_heads * DSVI_SELECT_BINS * sizeof(double);
    size_t proxies = (size_t)(pairs * dsvi_select_proxies(&args)), heads = (size_t)args.heads;
    size_t proxy_bytes = proxies * (size_t)args.features * f;
    size_t candidate_bytes = (size_t)(pairs * dsvi_select_candidates(&args) * args.features) * f;
    DsviLists lists = {args.batch, args.heads, args.queries, args.keys, args.group, dsvi_select_groups(&args),
                       args.grain, capacity,   NULL,         NULL};
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
    lists.offsets = check_upload(backend, stream, r->offsets, (size_t)(lists_count + 1) * sizeof *r->offsets);
    lists.spans = check_upload(backend, stream, r->spans, (size_t)(capacity + 1) * sizeof *r->spans);
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
    check_download(backend, stream, r->spans, lists.spans, (size_t)(capacity + 1) * sizeof *r->spans);
    check_release(backend, stream, args.proxies);
    check_release(backend, stream, args.candidates);
    check_release(backend, stream, args.threshold);
    check_release(backend, stream, args.topk);
    if (host->part.heads)
        check_release(backend, stream, args.part.head);
}

/* Returns the relative error of an estimate. The rounding error of a score grows with the score's size, and
 * becomes the relative error of the estimate, which is an exponential of the score. */
static double estimate_error(const SelectShape *shape, const DsviSelectArgs *args)
{
    return 1e-6 * (10 + 5 * shape->logit) + (args->coarse ? DSVI_SELECT_COARSE_ERROR : 0);
}

static const double FLUSHED = 0x1p-120; /* vector instructions may flush smaller estimates to zero */

/* Fails unless count and mass of the bins, summed from the highest bin down, agree with the reference.
 * Spans near the border of two bins may be counted on either side of it, with estimates that have rounding
 * errors. */
static void compare_histograms(const DsviSelectArgs *args, const SelectRun *got, const SelectRun *reference)
{
    double tipped = args->coarse ? 1 : 0.05; /* coarse errors are nearly a bin wide, so any span may move */
    double error = 1e-3 + (args->coarse ? DSVI_SELECT_COARSE_ERROR : 0);
    for (int64_t h = 0; h < args->bin_heads; h++) {
        double count = 0, mass = 0, reference_count = 0, reference_mass = 0;
        for (int64_t bin = (h + 1) * DSVI_SELECT_BINS - 1; bin >= h * DSVI_SELECT_BINS; bin--) {
            double slack_count = reference->bin_count[bin], slack_mass = reference->bin_mass[bin];
            if (bin > h * DSVI_SELECT_BINS) {
                slack_count += reference->bin_count[bin - 1];
                slack_mass += reference->bin_mass[bin - 1];
            }
            count += got->bin_count[bin];
            mass += got->bin_mass[bin];
            reference_count += reference->bin_count[bin];
            reference_mass += reference->bin_mass[bin];
            assert_error_below(fabs(count - reference_count), tipped * slack_count + 3, "count, bin %d",
                               (int)bin);
            assert_error_below(fabs(mass - reference_mass),
                               tipped * slack_mass * (1 + error) + error * reference_mass + 1e-9,
                               "mass at bin %d", (int)bin);
        }
        assert_true(count == reference_count); /* every counted span is in some bin */
    }
}

/* Computes the estimates of all spans for list number `list`, a (batch, head, group), from `lse`. */
static void estimates_of(const DsviSelectArgs *args, const float *lse, int64_t list, double *estimate)
{
    int64_t groups = dsvi_select_groups(args), pair = list / groups, g = list % groups;
    int64_t proxies = dsvi_select_proxies(args), candidates = dsvi_select_candidates(args);
    int64_t last = (g + 1) * args->group < args->queries ? (g + 1) * args->group : args->queries;
    for (int64_t r = 0; r < dsvi_select_spans(args); r++)
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
                args->coarse
                    ? dsvi_select_power(score + log2(of_proxy / of_group) - lse[p] * DSVI_LOG2_E) / of_proxy
                    : exp(score - lse[p]) / of_group;
        }
    }
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Returns the smallest estimate of the spans that the rule selects for a list. If no span reaches the
 * threshold, the rule selects the span with the largest estimate. */
static double cut_of(const DsviSelectArgs *args, int64_t list, const double *estimate)
{
    int64_t spans = dsvi_select_spans(args), head = list / dsvi_select_groups(args) % args->heads;
    int64_t k = args->topk ? args->topk[head] : 1;
    double *sorted = allocate(spans, sizeof *sorted), cut;
    memcpy(sorted, estimate, (size_t)spans * sizeof *sorted);
    qsort(sorted, (size_t)spans, sizeof *sorted, descending);
    cut = sorted[k < 1 ? 0 : k > spans ? spans - 1 : k - 1];
    free(sorted);
    return args->topk ? cut : fmin(cut, args->threshold[head]);
}

/* Returns whether rounding may change the choice of span `run`: its estimate is close to `cut`, or, if spans
 * next to selected ones are explored, the estimate of a neighbour is. */
static bool may_tip(const DsviSelectArgs *args, const double *estimate, double cut, double tolerance,
                    int64_t run)
{
    int64_t reach = args->explore == DSVI_EXPLORE_NEIGHBOURS ? 1 : 0;
    for (int64_t r = run - reach; r <= run + reach; r++)
        if (r >= 0 && r < dsvi_select_spans(args) && fabs(estimate[r] - cut) <= tolerance * cut + FLUSHED)
            return true;
    return false;
}

/* Fails unless the lists are equal, except for spans whose estimate is within the relative `tolerance` of the
 * smallest selected estimate. */
static void compare_lists(const DsviSelectArgs *args, const SelectRun *got, const SelectRun *reference,
                          double tolerance)
{
    double *estimate = allocate(dsvi_select_spans(args), sizeof *estimate);
    for (int64_t n = 0; n < args->batch * args->heads * dsvi_select_groups(args); n++) {
        int64_t a = got->offsets[n], b = reference->offsets[n];
        estimates_of(args, reference->lse, n, estimate);
        double cut = cut_of(args, n, estimate);
        while (a < got->offsets[n + 1] || b < reference->offsets[n + 1]) {
            int32_t x = a < got->offsets[n + 1] ? got->spans[a] : INT32_MAX;
            int32_t y = b < reference->offsets[n + 1] ? reference->spans[b] : INT32_MAX, run = x < y ? x : y;
            assert_true(a == got->offsets[n] || a == got->offsets[n + 1] || x > got->spans[a - 1]);
            if (x != y && !may_tip(args, estimate, cut, tolerance, run))
                fail_msg("list %d, span %d: estimate %g, selected from %g on", (int)n, (int)run,
                         estimate[run], cut);
            a += x <= y;
            b += y <= x;
        }
    }
    free(estimate);
}

static void assert_same_run(const DsviSelectArgs *args, const SelectRun *a, const SelectRun *b,
                            int64_t capacity)
{
    int64_t pairs = args->batch * args->heads;
    assert_memory_equal(a->lse, b->lse, (size_t)(pairs * dsvi_select_proxies(args)) * sizeof *a->lse);
    size_t bins = (size_t)args->bin_heads * DSVI_SELECT_BINS * sizeof(double);
    assert_memory_equal(a->bin_count, b->bin_count, bins);
    assert_memory_equal(a->bin_mass, b->bin_mass, bins);
    assert_memory_equal(a->selected_mass, b->selected_mass, (size_t)args->heads * sizeof(double));
    assert_memory_equal(a->offsets, b->offsets,
                        (size_t)(pairs * dsvi_select_groups(args) + 1) * sizeof *a->offsets);
    assert_memory_equal(a->spans, b->spans, (size_t)(capacity + 1) * sizeof *a->spans);
    assert_int_equal(a->needed, b->needed);
}

/* Computes the histogram from the estimates that follow from `lse`. */
static void histogram_of(const DsviSelectArgs *args, const float *lse, SelectRun *r)
{
    int64_t groups = dsvi_select_groups(args);
    double *estimate = malloc((size_t)dsvi_select_spans(args) * sizeof *estimate);
    for (int64_t i = 0; i < args->bin_heads * DSVI_SELECT_BINS; i++)
        r->bin_count[i] = r->bin_mass[i] = 0;
    for (int64_t n = 0; n < args->batch * args->heads * groups; n++) {
        uint32_t rotation = dsvi_select_rotation(args, n);
        estimates_of(args, lse, n, estimate);
        for (int64_t i = 0; i < dsvi_select_counted_spans(args, rotation); i++) {
            double e = estimate[dsvi_select_counted_span(args, rotation, i)];
            double bin = floor((log2(e) + DSVI_SELECT_OCTAVES) * DSVI_SELECT_PER_OCTAVE);
            int64_t at = n / groups % args->bin_heads * DSVI_SELECT_BINS +
                         (int64_t)fmin(fmax(bin, 0), DSVI_SELECT_BINS - 1);
            r->bin_count[at] += 1;
            r->bin_mass[at] += e;
        }
    }
    free(estimate);
}

/* Runs the reference and compares its lse with that of `got`. With coarse features, histogram and lists of
 * the reference are then computed again from the lse of `got`, so that errors of lse do not count twice. */
static void run_reference(const SelectShape *shape, const DsviSelectArgs *args, int64_t capacity,
                          const SelectRun *got, SelectRun *reference)
{
    DsviOps ref;
    int64_t proxies = args->batch * args->heads * dsvi_select_proxies(args);
    double error = estimate_error(shape, args);
    dsvi_ops_fill_ref(&ref);
    select_on(NULL, &ref, args, capacity, NULL, reference);
    for (int64_t p = 0; p < proxies; p++)
        assert_error_below(fabs(got->lse[p] - reference->lse[p]), error, "lse of proxy %d", (int)p);
    if (!args->coarse)
        return;
    run_free(reference);
    select_on(NULL, &ref, args, capacity, got->lse, reference);
    histogram_of(args, got->lse, reference);
}

/* Checks the offsets: if the lists need more than `capacity` spans, all lists must be empty. */
static void check_offsets(const SelectRun *r, int64_t lists, int64_t capacity)
{
    assert_int_equal(r->offsets[0], 0);
    if (r->needed <= capacity)
        assert_int_equal(r->offsets[lists], r->needed);
    for (int64_t n = 0; n < lists && r->needed > capacity; n++)
        assert_int_equal(r->offsets[n + 1], 0);
}

static void compare_with_reference(const DsviBackend *backend, const SelectShape *shape,
                                   const DsviSelectArgs *args, int64_t capacity)
{
    SelectRun reference, got, again;
    dsvi_threads_set(1);
    select_on(backend, &backend->ops, args, capacity, NULL, &got);
    dsvi_threads_set(3);
    if (!test_small()) {
        select_on(backend, &backend->ops, args, capacity, NULL, &again);
        assert_same_run(args, &got, &again, capacity);
        run_free(&again);
    }
    run_reference(shape, args, capacity, &got, &reference);
    compare_histograms(args, &got, &reference);
    check_offsets(&got, args->batch * args->heads * dsvi_select_groups(args), capacity);
    for (int64_t h = 0; h < args->heads; h++)
        assert_error_below(fabs(got.selected_mass[h] - reference.selected_mass[h]),
                           2 * estimate_error(shape, args) * (1 + reference.selected_mass[h]),
                           "selected mass");
    if (capacity < reference.needed)
        assert_true(labs((long)(got.needed - reference.needed)) <= reference.needed / 100);
    else
        compare_lists(args, &got, &reference, 4 * estimate_error(shape, args));
    assert_int_equal(got.spans[capacity], -1);
    run_free(&reference);
    run_free(&got);
}

/* Compares both rules with every kind of exploration; with test_small() only with one kind, which depends on
 * the number of the shape. */
static void check_select(const DsviBackend *backend, const SelectShape *shape, int number, bool coarse)
{
    DsviSelectArgs args = {
        .batch = shape->batch,
        .heads = shape->heads,
        .queries = shape->queries,
        .keys = shape->keys,
        .group = shape->group,
        .chunk = shape->chunk,
        .candidate_keys = shape->candidate_keys,
        .grain = shape->grain,
        .features = shape->features,
        .scale = 1 / sqrt((double)shape->features),
        .coarse = coarse,
        .bin_heads = shape->heads,
        .explore_rate = 0.2,
        .explore_seed = 3,
        .explore_step = 4,
    };
    int64_t pairs = args.batch * args.heads, spans = dsvi_select_spans(&args);
    int64_t capacity = pairs * dsvi_select_groups(&args) * spans;
    float threshold[8];
    float *proxies = normal(pairs * dsvi_select_proxies(&args) * args.features, shape->logit, 1);
    float *candidates = normal(pairs * dsvi_select_candidates(&args) * args.features, 1, 2);
    int32_t topk[8];
    args.proxies = proxies;
    args.candidates = candidates;
    for (int64_t h = 0; h < args.heads; h++) {
        threshold[h] = (float)((0.5 + 0.3 * (double)h) / (double)spans);
        topk[h] = (int32_t)(spans / 5 + h);
    }
    for (int explore = DSVI_EXPLORE_NONE; explore <= DSVI_EXPLORE_BLOCKS; explore++) {
        if (test_small() && explore != number % (DSVI_EXPLORE_BLOCKS + 1))
            continue;
        args.explore = (DsviExplore)explore;
        args.threshold = threshold;
        args.topk = NULL;
        compare_with_reference(backend, shape, &args, capacity);
        args.threshold = NULL;
        args.topk = topk;
        compare_with_reference(backend, shape, &args, capacity);
    }
    args.explore = DSVI_EXPLORE_NONE;
    args.bin_skip = 2;
    args.bin_heads = 1;
    compare_with_reference(backend, shape, &args, spans / 2);
    free(proxies);
    free(candidates);
}

/* Fails unless each list of head h consists of the first count[h] spans. */
static void assert_first_spans(const SelectRun *r, int64_t groups, const int64_t count[2])
{
    assert_int_equal(r->needed, groups * (count[0] + count[1]));
    for (int64_t n = 0; n < 2 * groups; n++) {
        assert_int_equal(r->offsets[n + 1] - r->offsets[n], count[n / groups]);
        for (int64_t i = 0; i < count[n / groups]; i++)
            if (r->spans[r->offsets[n] + i] != i)
                fail_msg("list %d, position %d: span %d", (int)n, (int)i, (int)r->spans[r->offsets[n] + i]);
    }
}

/* Checks how equal estimates are chosen. With lse and features of zero every estimate is exactly 1 on every
 * backend. */
static void check_ties(const DsviBackend *backend, bool coarse, int64_t groups, int64_t spans)
{
    enum { HEADS = 2, GROUP = 4, R = 16, FEW = 70 };
    float threshold[HEADS] = {1, 1.5f}, *zeros = calloc((size_t)(HEADS * spans * R), sizeof *zeros);
    int32_t topk[HEADS] = {FEW, (int32_t)spans};
    DsviSelectArgs args = {.batch = 1,
                           .heads = HEADS,
                           .queries = GROUP * groups - 2,
                           .keys = spans,
                           .group = GROUP,
                           .chunk = GROUP,
                           .candidate_keys = 1,
                           .grain = 1,
                           .features = R,
                           .scale = 1,
                           .coarse = coarse,
                           .bin_heads = HEADS,
                           .proxies = zeros,
                           .candidates = zeros,
                           .threshold = threshold};
    SelectRun r;
    assert_non_null(zeros);
    select_on(backend, &backend->ops, &args, HEADS * groups * spans, zeros, &r);
    assert_first_spans(&r, groups, (int64_t[]){spans, 1});
    run_free(&r);
    args.threshold = NULL;
    args.topk = topk;
    select_on(backend, &backend->ops, &args, HEADS * groups * spans, zeros, &r);
    assert_first_spans(&r, groups, (int64_t[]){FEW, spans});
    run_free(&r);
    free(zeros);
}

/* Selects for some heads, in another order, and for some of their groups alone, with the lse of the whole
 * problem. Their lists must equal the corresponding lists of the whole problem. */
static void check_part(const DsviBackend *backend, DsviExplore explore)
{
    enum {
        BATCH = 2,
        HEADS = 3,
        GROUP = 8,
        CHUNK = 4,
        GROUPS = 6,
        KEYS = 200,
        R = 16,
        PROXIES = 12,
        FIRST = 2,
        PART_HEADS = 2,
        PART_GROUPS = 3,
        PART_PROXIES = 6
    };
    static const int32_t head[PART_HEADS] = {2, 0};
    float threshold[HEADS] = {0.006f, 0.006f, 0.006f};
    float *proxies = normal(BATCH * HEADS * PROXIES * R, 1, 1);
    float *candidates = normal(BATCH * HEADS * KEYS * R, 1, 2);
    float *part_proxies = allocate(BATCH * PART_HEADS * PART_PROXIES * R, sizeof(float));
    float *part_candidates = allocate(BATCH * PART_HEADS * KEYS * R, sizeof(float));
    float *part_lse = allocate(BATCH * PART_HEADS * PART_PROXIES, sizeof(float));
    SelectRun whole, part;
    DsviSelectArgs args = {
        .batch = BATCH,
        .heads = HEADS,
        .queries = GROUPS * GROUP - 3,
        .keys = KEYS,
        .group = GROUP,
        .chunk = CHUNK,
        .candidate_keys = 1,
        .grain = 1,
        .features = R,
        .scale = 0.25,
        .bin_heads = 1,
        .explore = explore,
        .explore_rate = 0.2,
        .explore_seed = 3,
        .explore_step = 4,
        .proxies = proxies,
        .candidates = candidates,
        .threshold = threshold,
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
    args.part = (DsviSelectPart){HEADS, GROUPS, FIRST, head};
    select_on(backend, &backend->ops, &args, BATCH * HEADS * GROUPS * KEYS, part_lse, &part);
    for (int64_t n = 0; n < BATCH * PART_HEADS * PART_GROUPS; n++) {
        int64_t of_whole = dsvi_select_number(&args, n), count = part.offsets[n + 1] - part.offsets[n];
        assert_int_equal(count, whole.offsets[of_whole + 1] - whole.offsets[of_whole]);
        assert_memory_equal(part.spans + part.offsets[n], whole.spans + whole.offsets[of_whole],
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

/* Attention from even to narrow, with sizes near those at which implementations divide the work: vectors,
 * tiles of 256 candidates and 32 proxies, words of 64 spans, 16 slices of groups, proxies per group of 1, 2,
 * 4, 8, 16 and others. Candidates are single keys, whole spans, and parts of spans, of which the
 * last span may lack some. In one shape a span has as many keys as two exploration blocks, and there are more
 * such blocks than bits in the span bitmap, rounded up to whole vectors. */
void check_select_cases(const DsviBackend *backend, bool coarse)
{
    static const SelectShape shapes[] = {
        {1, 1, 1, 1, 1, 1, 1, 1, 1, 1},           {2, 3, 21, 37, 8, 4, 1, 1, 5, 1},
        {1, 2, 300, 515, 128, 16, 1, 1, 16, 2},   {1, 1, 70, 260, 64, 1, 1, 1, 16, 1},
        {1, 2, 130, 300, 32, 16, 1, 8, 16, 3},    {1, 2, 90, 1000, 64, 64, 64, 64, 34, 1},
        {1, 1, 50, 129, 16, 8, 4, 12, 8, 1},      {1, 2, 40, 65, 2, 2, 1, 1, 16, 30},
        {1, 1, 33, 513, 16, 16, 1, 1, 128, 0},    {1, 2, 64, 400, 32, 4, 1, 1, 16, 9},
        {1, 2, 200, 700, 64, 16, 1, 1, 16, 0.4},  {1, 1, 40, 33000, 16, 16, 128, 128, 4, 1},
        {1, 1, 260, 600, 128, 16, 1, 1, 16, 0.4}, {1, 2, 150, 600, 64, 16, 1, 4, 16, 3},
        {1, 2, 150, 597, 64, 16, 2, 8, 16, 3},    {1, 1, 40, 4171, 32, 16, 2, 8, 16, 1},
        {1, 2, 90, 601, 64, 8, 4, 8, 16, 2},      {1, 2, 150, 600, 64, 4, 1, 1, 16, 0.4},
        {1, 2, 150, 600, 64, 4, 1, 1, 4, 3},      {1, 2, 140, 2065, 16, 1, 1, 8, 4, 1.5},
        {2, 2, 130, 330, 32, 2, 1, 3, 12, 0.4},   {1, 2, 150, 2090, 64, 4, 2, 8, 16, 1.5},
        {1, 1, 130, 603, 64, 4, 4, 8, 16, 0.4},   {1, 2, 90, 2, 2, 2, 1, 1, 16, 100},
        {1, 2, 350, 600, 16, 4, 1, 1, 4, 1.5},
    };
    for (int i = 0; i < (int)(sizeof shapes / sizeof shapes[0]); i++)
        check_select(backend, &shapes[i], i, coarse);
    check_ties(backend, coarse, 2, 150);
    /* The first has too many lists for the estimates of all to be in memory at once; in the second the
     * estimates of a few lists are too many. */
    if (check_long(backend)) {
        check_ties(backend, coarse, 256, 20000);
        check_ties(backend, coarse, 3, 140000);
    }
}

enum { TILES_BATCH = 2, TILES_HEADS = 3, TILES_GROUP = 4, TILES_GROUPS = 40, TILES_KEYS = 301, TILES_R = 16 };

/* Computes the histogram of groups [first, first + groups) of the heads in `head` alone, from a sample of one
 * span in four, and adds it to `count`. */
static void add_counts(const DsviBackend *backend, const float *proxies, const float *candidates,
                       int64_t first, int64_t groups, int64_t heads, const int32_t *head, double *count)
{
    float threshold[TILES_HEADS] = {1, 1, 1};
    int64_t each = groups * TILES_R, of_head = TILES_KEYS * TILES_R;
    float *part_proxies = allocate(TILES_BATCH * heads * each, sizeof(float));
    float *part_candidates = allocate(TILES_BATCH * heads * of_head, sizeof(float));
    SelectRun r;
    for (int64_t n = 0; n < TILES_BATCH * heads; n++) {
        int64_t from = n / heads * TILES_HEADS + head[n % heads];
        memcpy(part_proxies + n * each, proxies + (from * TILES_GROUPS + first) * TILES_R,
               (size_t)each * sizeof(float));
        memcpy(part_candidates + n * of_head, candidates + from * of_head, (size_t)of_head * sizeof(float));
    }
    DsviSelectArgs args = {
        .batch = TILES_BATCH,
        .heads = heads,
        .queries = groups * TILES_GROUP,
        .keys = TILES_KEYS,
        .group = TILES_GROUP,
        .chunk = TILES_GROUP,
        .candidate_keys = 1,
        .grain = 1,
        .features = TILES_R,
        .scale = 0.25,
        .bin_heads = 1,
        .bin_skip = 3,
        .bin_turn = 7,
        .proxies = part_proxies,
        .candidates = part_candidates,
        .threshold = threshold,
        .part = {TILES_HEADS, TILES_GROUPS, first, head},
    };
    select_on(backend, &backend->ops, &args, TILES_BATCH * heads * groups, NULL, &r);
    for (int bin = 0; bin < DSVI_SELECT_BINS; bin++)
        count[bin] += r.bin_count[bin];
    run_free(&r);
    free(part_proxies);
    free(part_candidates);
}

/* The histograms of ranks that each have some heads and whole tiles of groups must add up to the histogram of
 * one rank that has all. */
static void check_part_counts(const DsviBackend *backend)
{
    static const int32_t all[TILES_HEADS] = {0, 1, 2}, two[2] = {2, 0}, one[1] = {1};
    double whole[DSVI_SELECT_BINS] = {0}, parts[DSVI_SELECT_BINS] = {0}, other[DSVI_SELECT_BINS] = {0};
    double moved = 0;
    float *proxies = normal(TILES_BATCH * TILES_HEADS * TILES_GROUPS * TILES_R, 1, 1);
    float *candidates = normal(TILES_BATCH * TILES_HEADS * TILES_KEYS * TILES_R, 1, 2);
    add_counts(backend, proxies, candidates, 0, TILES_GROUPS, 3, all, whole);
    add_counts(backend, proxies, candidates, 0, 16, 2, two, parts);
    add_counts(backend, proxies, candidates, 16, 24, 2, two, parts);
    add_counts(backend, proxies, candidates, 0, TILES_GROUPS, 1, one, parts);
    add_counts(backend, proxies, candidates, 0, 16, 3, all, other);
    add_counts(backend, proxies, candidates, 24, 16, 3, all, other);
    for (int bin = 0; bin < DSVI_SELECT_BINS; bin++) {
        assert_true(whole[bin] == parts[bin]);
        moved += fabs(whole[bin] - other[bin]);
    }
    assert_true(moved > 1000);
    free(proxies);
    free(candidates);
}

void check_select_part_cases(const DsviBackend *backend)
{
    check_part_counts(backend);
    for (int explore = DSVI_EXPLORE_NONE; explore <= DSVI_EXPLORE_BLOCKS; explore++)
        check_part(backend, (DsviExplore)explore);
}

/* ---- thresholds ---- */

enum { BIN_HEADS = 3, THRESHOLD_HEADS = 5 };

typedef struct Bins {
    double count[BIN_HEADS * DSVI_SELECT_BINS], mass[BIN_HEADS * DSVI_SELECT_BINS];
} Bins;

/* Fills every `stride`-th bin with counts of a normal distribution around bin `middle`. Masses are multiples
 * of 2^-30, so that their sums are exact in any order. */
static void fill_bins(Bins *bins, int middle, double width, int stride)
{
    for (int h = 0; h < BIN_HEADS; h++)
        for (int bin = 0; bin < DSVI_SELECT_BINS; bin++) {
            double x = (bin - middle - 5 * h) / width;
            double e = exp2((double)bin / DSVI_SELECT_PER_OCTAVE - DSVI_SELECT_OCTAVES);
            int at = h * DSVI_SELECT_BINS + bin;
            bins->count[at] = bin % stride == 0 ? floor(1000 * exp(-x * x / 2)) : 0;
            bins->mass[at] = bins->count[at] * floor(e * 0x1p30) * 0x1p-30;
        }
}

/* Computes the thresholds twice on `backend`. They must be close to the reference, equal for all heads and
 * bit for bit equal both times, and no byte after them may change. */
static void compare_thresholds(const DsviBackend *backend, const Bins *bins, int64_t bin_heads,
                               double mass_fraction, double span_fraction)
{
    DsviStream *stream = backend->device ? backend->device->stream : NULL;
    size_t bytes = (size_t)bin_heads * DSVI_SELECT_BINS * sizeof(double);
    float got[2][THRESHOLD_HEADS + 1], reference;
    DsviSelectThresholdArgs args = {
        1, bin_heads, bins->count, bins->mass, mass_fraction, span_fraction, &reference};
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
        assert_error_below(fabs((double)got[0][h] - reference), 4 * 0x1p-24 * reference,
                           "head %d, fraction %g of the mass, %g of the spans", h, mass_fraction,
                           span_fraction);
}

void check_select_threshold_cases(const DsviBackend *backend)
{
    static const struct {
        int middle;
        double width;
        int stride;
    } cases[] = {
        {1000, 300, 1}, {1000, 2, 1},  {1000, 0.1, 1}, {0, 0.1, 1},     {1, 0.1, 1},
        {2047, 0.1, 1}, {2046, 40, 1}, {5, 20, 1},     {1500, 200, 97}, {1, 0.01, 2048},
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
