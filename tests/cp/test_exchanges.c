/* features_exchange and rows_exchange: features, marks, rows and their gradients arrive in the right place,
 * and the bytes sent equal the formulas of the headers. */
#include "cp/features_exchange.h"
#include "cp/rows_exchange.h"

#include "base/rng.h"
#include "cp/cp_rig.h"
#include "cpu/cpu.h"
#include "ops/random_lists.h"
#include "test.h"

static DsviBackend backend;

enum { FEATURES = 3 };

static void *room(int64_t count, size_t size)
{
    return calloc((size_t)count + 1, size);
}

static uint64_t sent_of(const DsviComm *comm)
{
    return dsvi_comm_sent(comm).bytes;
}

static DsvStatus wrong(const char *what, int64_t at, double got, double expected)
{
    return DSVI_FAIL(DSV_E_INTERNAL, "%s %lld is %g, expected %g", what, (long long)at, got, expected);
}

/* ---- features ---- */

static int64_t rows_before(int64_t tokens, int64_t each)
{
    return (tokens + each - 1) / each;
}

/* Value of feature r of feature row `row`, counted over all tokens. */
static float feature(const CpCase *c, int64_t b, int64_t head, int64_t row, int64_t r)
{
    return (float)(((b * c->heads + head) * 1000 + row) * FEATURES + r);
}

static uint64_t features_bytes(const DsviCp *cp, const DsviFeaturesExchange *x)
{
    const DsviCpPlan *plan = dsvi_cp_plan(cp, 0);
    DsviCpPart part = dsvi_cp_part(cp, 0);
    int64_t first = dsvi_cp_first(cp), heads = 0, self = dsvi_cp_rank(cp);
    int64_t rows = rows_before(first + dsvi_cp_tokens(cp), x->tokens_each) -
                   rows_before(first, x->tokens_each);
    for (int64_t r = 0; r < dsvi_cp_ranks(cp); r++)
        if (r != self && (x->all_tokens || r / part.head_ranks == part.sequence_index))
            heads += plan->bound[r % part.head_ranks + 1] - plan->bound[r % part.head_ranks];
    return (uint64_t)(x->batch * rows * heads * FEATURES) * sizeof(float);
}

static DsvStatus check_features(DsviCp *cp, const CpCase *c, bool all_tokens, int64_t each)
{
    DsviCpPart part = dsvi_cp_part(cp, 0);
    int64_t begin = rows_before(dsvi_cp_first(cp), each);
    int64_t rows = rows_before(dsvi_cp_first(cp) + dsvi_cp_tokens(cp), each) - begin;
    int64_t first = all_tokens ? 0 : rows_before(part.first, each);
    int64_t end = all_tokens ? rows_before(c->tokens, each) : rows_before(part.first + part.tokens, each);
    float *own = room(c->batch * c->heads * rows * FEATURES, sizeof *own), *at = own;
    float *heads = room(c->batch * part.heads * (end - first) * FEATURES, sizeof *heads);
    DsviFeaturesExchange x = {.batch = c->batch,
                              .features = FEATURES,
                              .tokens_each = each,
                              .all_tokens = all_tokens,
                              .own = own,
                              .heads = heads};
    DsviComm *comm = all_tokens ? dsvi_cp_group_device(dsvi_cp_group(cp)) : part.head_device;
    uint64_t before = sent_of(comm);
    DsvStatus status = DSV_OK;
    x.workspace = room((int64_t)dsvi_features_exchange_bytes(cp, part.head_ranks, &x), 1);
    for (int64_t n = 0; n < c->batch * c->heads; n++)
        for (int64_t row = 0; row < rows; row++)
            for (int64_t r = 0; r < FEATURES; r++)
                *at++ = feature(c, n / c->heads, n % c->heads, begin + row, r);
    DSVI_TRY_GOTO(status, dsvi_features_exchange(cp, 0, &x), done);
    for (int64_t i = 0; i < c->batch * part.heads * (end - first) * FEATURES && status == DSV_OK; i++) {
        int64_t row = i / FEATURES % (end - first), n = i / FEATURES / (end - first);
        float expected = feature(c, n / part.heads, part.head[n % part.heads], first + row, i % FEATURES);
        if (heads[i] != expected)
            status = wrong("feature", i, heads[i], expected);
    }
    if (status == DSV_OK && sent_of(comm) - before != features_bytes(cp, &x))
        status = wrong("bytes of features on rank", dsvi_cp_rank(cp), (double)(sent_of(comm) - before),
                       (double)features_bytes(cp, &x));
done:
    free(own);
    free(heads);
    free(x.workspace);
    return status;
}

static DsvStatus features_on_rank(DsviCp *cp, const CpCase *c, void *nothing)
{
    (void)nothing;
    DSVI_TRY(check_features(cp, c, false, 1));
    DSVI_TRY(check_features(cp, c, true, 1));
    DSVI_TRY(check_features(cp, c, false, c->unit));
    return check_features(cp, c, true, c->unit);
}

static void features_case(const CpCase *c)
{
    run_cp(c, features_on_rank, NULL);
}

static void features(void **state)
{
    (void)state;
    for_cp_cases(&backend, features_case);
}

/* ---- rows ---- */

/* One rank's keys and values, the rows that it fetches, and their gradients. */
typedef struct Keys {
    const CpCase *c;
    DsviCpPart part;
    DsviRowsExchange x;
    DsviRowsMemory memory;
    DsviLists whole, near, far;
    float *k, *v, *dk, *dv; /* (B, T, N_own, D) */
    float *far_k, *far_v, *far_dk, *far_dv;
    void *packed;
} Keys;

/* The value of all elements of key `key` of a head; identifies the key. */
static float name_of(const Keys *s, int64_t b, int64_t h, int64_t key)
{
    return (float)((b * s->c->heads + s->part.head[h]) * 1000 + key + 1);
}

static DsvStatus open_keys(Keys *s, DsviCp *cp, const CpCase *c)
{
    *s = (Keys){.c = c, .part = dsvi_cp_part(cp, 0)};
    int64_t pairs = c->batch * s->part.heads, ranks = s->part.sequence_ranks, grain = c->unit;
    int64_t full = rows_before(c->tokens, grain), own = rows_before(s->part.tokens, grain);
    int64_t needs = dsvi_rows_needs_words(pairs, ranks, full);
    int64_t wants = dsvi_rows_served_words(pairs, ranks, own);
    int64_t elements = pairs * s->part.tokens * c->head_dim, message = 2 * pairs * full * grain * c->head_dim;
    s->memory = (DsviRowsMemory){
        .needs_marks = room(needs, sizeof(uint32_t)),
        .served_marks = room(wants, sizeof(uint32_t)),
        .needs_before = room(needs, sizeof(int32_t)),
        .served_before = room(wants, sizeof(int32_t)),
        .needs_first = room(ranks * (pairs + 1), sizeof(int64_t)),
        .served_first = room(ranks * (pairs + 1), sizeof(int64_t)),
        .host_first = room(2 * ranks * (pairs + 1), sizeof(int64_t)),
        .sent = room(ranks * message, sizeof(float)),
        .received = room(message, sizeof(float)),
    };
    s->k = room(elements, sizeof(float));
    s->v = room(elements, sizeof(float));
    s->dk = room(elements, sizeof(float));
    s->dv = room(elements, sizeof(float));
    s->packed = room(message, sizeof(float));
    const DsviRowsShape shape = {c->tokens, c->batch, grain, c->head_dim, DSVI_F32};
    return dsvi_rows_begin(c->backend, &s->part, &shape, &s->memory, &s->x);
}

static void close_keys(Keys *s)
{
    void *const memory[] = {
        s->memory.needs_marks,
        s->memory.served_marks,
        s->memory.needs_before,
        s->memory.served_before,
        s->memory.needs_first,
        s->memory.served_first,
        s->memory.host_first,
        s->memory.sent,
        s->memory.received,
        s->k,
        s->v,
        s->dk,
        s->dv,
        s->far_k,
        s->far_v,
        s->far_dk,
        s->far_dv,
        s->packed,
        s->near.offsets,
        s->far.offsets,
    };
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
    random_lists_free(&s->whole);
}

static DsvStatus divide(Keys *s)
{
    const CpCase *c = s->c;
    s->whole = (DsviLists){.batch = c->batch,
                           .heads = s->part.heads,
                           .queries = s->part.tokens,
                           .keys = c->tokens,
                           .group = c->unit,
                           .grain = c->unit};
    random_lists_create(&s->whole, 0.3, (uint64_t)s->part.sequence_index);
    s->near = s->far = s->whole;
    s->near.offsets = room(dsvi_lists_count(&s->whole) + 1, sizeof(int64_t));
    s->far.offsets = room(dsvi_lists_count(&s->whole) + 1, sizeof(int64_t));
    DsviListDivideArgs args = {&s->whole, &s->x.needs, s->part.sequence_index, &s->near, &s->far, 0};
    DSVI_TRY(c->backend->ops.lists_divide.run(c->backend->device->stream, &args));
    DSVI_TRY(dsvi_rows_marks(&s->x));
    dsvi_rows_measure(&s->x);
    int64_t far = c->batch * s->x.far_keys * s->part.heads * c->head_dim;
    s->far_k = room(far, sizeof(float));
    s->far_v = room(far, sizeof(float));
    s->far_dk = room(far, sizeof(float));
    s->far_dv = room(far, sizeof(float));
    return DSV_OK;
}

static void name_keys(Keys *s)
{
    int64_t dim = s->c->head_dim, heads = s->part.heads, tokens = s->part.tokens;
    for (int64_t i = 0; i < s->c->batch * tokens * heads * dim; i++) {
        int64_t row = i / dim, h = row % heads, key = row / heads % tokens, b = row / heads / tokens;
        s->k[i] = s->dk[i] = name_of(s, b, h, s->part.first + key);
        s->v[i] = s->dv[i] = -s->k[i];
    }
}

/* Checks that every fetched row is the marked key, and sets its gradient. */
static DsvStatus check_far(Keys *s)
{
    const DsviSpans *needs = &s->x.needs;
    int64_t dim = s->c->head_dim, heads = s->part.heads;
    for (int64_t pair = 0; pair < dsvi_spans_pairs(needs); pair++) {
        int64_t compact = s->x.width;
        for (int64_t run = needs->bound[needs->parts] - 1; run >= 0; run--) {
            int64_t part = 0;
            while (run >= needs->bound[part + 1])
                part++;
            if (!dsvi_spans_marked(needs, part, pair, run - needs->bound[part]))
                continue;
            compact--;
            for (int64_t t = 0; t < s->x.grain && run * s->x.grain + t < s->c->tokens; t++) {
                int64_t row = compact * s->x.grain + t;
                int64_t at = ((pair / heads * s->x.far_keys + row) * heads + pair % heads) * dim;
                float name = name_of(s, pair / heads, pair % heads, run * s->x.grain + t);
                for (int64_t d = 0; d < dim; d++) {
                    if (s->far_k[at + d] != name || s->far_v[at + d] != -name)
                        return wrong("fetched row", row, s->far_k[at + d], name);
                    s->far_dk[at + d] = 2 * name;
                    s->far_dv[at + d] = 3 * name;
                }
            }
        }
    }
    return DSV_OK;
}

/* Checks that the gradient of a row is its initial value plus the gradients of all ranks that requested
 * it. */
static DsvStatus check_home(const Keys *s)
{
    const DsviSpans *wants = &s->x.wants;
    int64_t dim = s->c->head_dim, heads = s->part.heads, tokens = s->part.tokens;
    for (int64_t i = 0; i < s->c->batch * tokens * heads * dim; i++) {
        int64_t row = i / dim, h = row % heads, key = row / heads % tokens, b = row / heads / tokens;
        float times = 0;
        for (int64_t j = 0; j < wants->parts; j++)
            times += dsvi_spans_marked(wants, j, b * heads + h, key / s->x.grain);
        if (s->dk[i] != (1 + 2 * times) * s->k[i] || s->dv[i] != (3 * times - 1) * s->k[i])
            return wrong("gradient of key", key, s->dk[i], (1 + 2 * times) * s->k[i]);
    }
    return DSV_OK;
}

static DsvStatus check_bytes(const Keys *s, const uint64_t sent[4])
{
    int64_t pairs = s->c->batch * s->part.heads;
    int64_t row = 2 * s->c->head_dim * s->x.grain * (int64_t)sizeof(float);
    int64_t marks = 0;
    for (int64_t j = 0; j < s->part.sequence_ranks; j++) {
        int64_t spans = s->x.needs.bound[j + 1] - s->x.needs.bound[j];
        marks += j == s->part.sequence_index ? 0 : pairs * ((spans + 31) / 32) * (int64_t)sizeof(uint32_t);
    }
    const int64_t expected[3] = {marks, row * dsvi_rows_served(&s->x), row * dsvi_rows_needed(&s->x)};
    for (int i = 0; i < 3; i++)
        if (sent[i + 1] - sent[i] != (uint64_t)expected[i])
            return wrong("bytes of step", i, (double)(sent[i + 1] - sent[i]), (double)expected[i]);
    return DSV_OK;
}

static DsvStatus exchange_rows(Keys *s)
{
    const DsviComm *comm = s->part.sequence_device;
    uint64_t sent[4] = {sent_of(comm)};
    DSVI_TRY(divide(s));
    sent[1] = sent_of(comm);
    name_keys(s);
    DSVI_TRY(dsvi_rows_fetch_begin(&s->x, s->k, s->v));
    DSVI_TRY(dsvi_rows_fetch_end(&s->x, s->far_k, s->far_v));
    sent[2] = sent_of(comm);
    DSVI_TRY(check_far(s));
    DSVI_TRY(dsvi_rows_return_begin(&s->x, s->far_dk, s->far_dv, s->packed));
    DSVI_TRY(dsvi_rows_return_end(&s->x, s->dk, s->dv));
    sent[3] = sent_of(comm);
    DSVI_TRY(check_home(s));
    return check_bytes(s, sent);
}

static DsvStatus rows_on_rank(DsviCp *cp, const CpCase *c, void *nothing)
{
    Keys keys;
    (void)nothing;
    DsvStatus status = open_keys(&keys, cp, c);
    if (status == DSV_OK && keys.part.sequence_ranks > 1)
        status = exchange_rows(&keys);
    close_keys(&keys);
    return status;
}

static void rows_case(const CpCase *c)
{
    run_cp(c, rows_on_rank, NULL);
}

static void rows(void **state)
{
    (void)state;
    for_cp_cases(&backend, rows_case);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(features), cmocka_unit_test(rows)};
    assert_ok(dsvi_cpu_open("auto", 2, &backend));
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    dsvi_cpu_close(&backend);
    return failures;
}
