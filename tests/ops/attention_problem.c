/* Allocates and fills a random attention problem; see attention_problem.h. */
#include "ops/attention_problem.h"

#include "base/rng.h"
#include "ops/random_lists.h"
#include "test.h"

enum { Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, TENSORS };
enum { GAP = 6 }; /* elements between the rows of a tensor, before the first row and after the last */

static DsviRng random_of(uint64_t seed, uint32_t stream)
{
    DsviRng rng = {seed, DSVI_RNG_TEST, stream};
    return rng;
}

static void *take(AttentionProblem *c, int which, size_t bytes)
{
    c->bytes[which] = bytes;
    c->memory[which] = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    assert_non_null(c->memory[which]);
    memset(c->memory[which], 0xff, (bytes + 63) / 64 * 64 + 64);
    return c->memory[which];
}

/* Allocates a tensor whose rows start D + GAP elements apart, with GAP elements before the first row. */
static DsviHeads take_rows(AttentionProblem *c, int which, int64_t tokens)
{
    const DsviAttentionArgs *args = &c->args;
    size_t size = dsvi_dtype_size(args->act);
    int64_t pitch = args->head_dim + GAP;
    DsviHeads rows = {NULL, tokens * args->heads * pitch, args->heads * pitch, pitch};
    char *memory = take(c, which, (size_t)(args->batch * rows.batch_stride + GAP) * size);
    rows.data = memory + GAP * size;
    return rows;
}

static void fill_rows(AttentionProblem *c, const DsviHeads *rows, int64_t tokens, DsviRng rng,
                      double deviation)
{
    const DsviAttentionArgs *args = &c->args;
    uint64_t index = 0;
    for (int64_t b = 0; b < args->batch; b++)
        for (int64_t s = 0; s < tokens; s++)
            for (int64_t h = 0; h < args->heads; h++)
                for (int64_t d = 0; d < args->head_dim; d++)
                    dsvi_store(args->act, rows->data, dsvi_heads_at(rows, b, s, h) + d,
                               deviation * dsvi_rng_normal(rng, index++));
}

static void create_lists(AttentionProblem *c, const AttentionShape *shape, uint64_t seed)
{
    c->own_lists = (DsviLists){.batch = shape->batch,
                               .heads = shape->heads,
                               .queries = shape->queries,
                               .keys = shape->keys,
                               .group = shape->group,
                               .grain = shape->grain};
    random_lists_create(&c->own_lists, shape->density, seed);
    c->args.lists = &c->own_lists;
}

static void create_memory(AttentionProblem *c, const AttentionShape *shape, DsviDtype act, DsviDtype acc)
{
    DsviAttentionArgs *args = &c->args;
    memset(c, 0, sizeof *c);
    args->batch = shape->batch;
    args->heads = shape->heads;
    args->queries = shape->queries;
    args->keys = shape->keys;
    args->head_dim = shape->head_dim;
    args->scale = 1 / sqrt((double)shape->head_dim);
    args->act = act;
    args->acc = acc;
    args->q = take_rows(c, Q, args->queries);
    args->k = take_rows(c, K, args->keys);
    args->v = take_rows(c, V, args->keys);
    args->out = take_rows(c, OUT, args->queries);
    args->lse = take(c, LSE, (size_t)(args->batch * args->heads * args->queries) * dsvi_dtype_size(acc));
    args->dout = take_rows(c, DOUT, args->queries);
    args->dq = take_rows(c, DQ, args->queries);
    args->dk = take_rows(c, DK, args->keys);
    args->dv = take_rows(c, DV, args->keys);
}

void attention_problem_create(AttentionProblem *c, const AttentionShape *shape, DsviDtype act, DsviDtype acc,
                              uint64_t seed)
{
    create_memory(c, shape, act, acc);
    if (shape->group > 0)
        create_lists(c, shape, seed);
    fill_rows(c, &c->args.q, shape->queries, random_of(seed, Q), shape->logit);
    fill_rows(c, &c->args.k, shape->keys, random_of(seed, K), 1);
    fill_rows(c, &c->args.v, shape->keys, random_of(seed, V), 1);
    fill_rows(c, &c->args.dout, shape->queries, random_of(seed, DOUT), 1);
}

void attention_problem_free(AttentionProblem *c)
{
    for (int i = Q; i < TENSORS; i++)
        free(c->memory[i]);
    random_lists_free(&c->own_lists);
    memset(c, 0, sizeof *c);
}

static bool all_set(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != 0xff)
            return false;
    return true;
}

void attention_problem_check_gaps(const AttentionProblem *c, const char *what)
{
    static const char *const name[] = {"q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv"};
    size_t gap = GAP * dsvi_dtype_size(c->args.act);
    size_t pitch = (size_t)(c->args.head_dim + GAP) * dsvi_dtype_size(c->args.act);
    for (int i = Q; i < TENSORS; i++) {
        const unsigned char *memory = c->memory[i];
        if (!all_set(memory + c->bytes[i], 64))
            fail_msg("%s: wrote after the end of %s", what, name[i]);
        for (size_t at = 0; i != LSE && at < c->bytes[i]; at += pitch)
            if (!all_set(memory + at, gap))
                fail_msg("%s: wrote between the rows of %s, byte %zu", what, name[i], at);
    }
}

double *attention_problem_rows(const AttentionProblem *c, const DsviHeads *rows, int64_t tokens)
{
    const DsviAttentionArgs *args = &c->args;
    double *out = malloc((size_t)(args->batch * tokens * args->heads * args->head_dim) * sizeof *out);
    double *next = out;
    assert_non_null(out);
    for (int64_t b = 0; b < args->batch; b++)
        for (int64_t s = 0; s < tokens; s++)
            for (int64_t h = 0; h < args->heads; h++)
                for (int64_t d = 0; d < args->head_dim; d++)
                    *next++ = dsvi_load(args->act, rows->data, dsvi_heads_at(rows, b, s, h) + d);
    return out;
}
