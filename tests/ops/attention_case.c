#include "ops/attention_case.h"

#include "base/rng.h"
#include "test.h"

enum { Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, WORKSPACE };
enum { GAP = 6 }; /* elements between rows of a tensor and round it */

static DsvRng random_of(uint64_t seed, uint32_t stream)
{
    DsvRng rng = {seed, DSV_RNG_TEST, stream};
    return rng;
}

static void *take(AttentionCase *c, int which, size_t bytes)
{
    c->bytes[which] = bytes;
    c->memory[which] = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    assert_non_null(c->memory[which]);
    memset(c->memory[which], 0xff, (bytes + 63) / 64 * 64 + 64);
    return c->memory[which];
}

/* Rows of a tensor with a gap after each: heads lie D + GAP apart, and GAP elements stand in front. */
static DsvHeads take_rows(AttentionCase *c, int which, int64_t tokens)
{
    const DsvAttentionArgs *args = &c->args;
    size_t size = dsvi_dtype_size(args->act);
    int64_t pitch = args->head_dim + GAP;
    DsvHeads rows = {NULL, tokens * args->heads * pitch, args->heads * pitch, pitch};
    char *memory = take(c, which, (size_t)(args->batch * rows.batch_stride + GAP) * size);
    rows.data = memory + GAP * size;
    return rows;
}

static void fill_rows(AttentionCase *c, const DsvHeads *rows, int64_t tokens, DsvRng rng, double deviation)
{
    const DsvAttentionArgs *args = &c->args;
    uint64_t index = 0;
    for (int64_t b = 0; b < args->batch; b++)
        for (int64_t s = 0; s < tokens; s++)
            for (int64_t h = 0; h < args->heads; h++)
                for (int64_t d = 0; d < args->head_dim; d++)
                    dsvi_store(args->act, rows->data, dsvi_heads_at(rows, b, s, h) + d,
                               deviation * dsvi_rng_normal(rng, index++));
}

static void fill_lists(DsvLists *lists, const AttentionShape *shape, DsvRng rng)
{
    int64_t total = 0;
    lists->offsets[0] = 0;
    for (int64_t n = 0; n < dsvi_lists_count(lists); n++) {
        for (int64_t run = 0; run < dsvi_lists_full(lists); run++) {
            uint64_t index = (uint64_t)(n * dsvi_lists_full(lists) + run);
            if (shape->lists == EMPTY_LISTS && n % 2)
                continue;
            if (shape->lists == FULL_LISTS || dsvi_rng_uniform(rng, index) < shape->density)
                lists->runs[total++] = (int32_t)run;
        }
        lists->offsets[n + 1] = total;
    }
}

static void create_lists(AttentionCase *c, const AttentionShape *shape, DsvRng rng)
{
    DsvLists *lists = &c->own_lists;
    lists->batch = shape->batch;
    lists->heads = shape->heads;
    lists->queries = shape->queries;
    lists->keys = shape->keys;
    lists->group = shape->group;
    lists->groups = (shape->queries + shape->group - 1) / shape->group;
    lists->grain = shape->grain;
    lists->capacity = dsvi_lists_count(lists) * dsvi_lists_full(lists);
    lists->offsets = malloc((size_t)(dsvi_lists_count(lists) + 1) * sizeof *lists->offsets);
    lists->runs = malloc((size_t)lists->capacity * sizeof *lists->runs);
    fill_lists(lists, shape, rng);
    c->args.lists = lists;
}

static void create_memory(AttentionCase *c, const AttentionShape *shape, DsvDtype act, DsvDtype acc)
{
    DsvAttentionArgs *args = &c->args;
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

void attention_case_create(AttentionCase *c, const AttentionShape *shape, DsvDtype act, DsvDtype acc,
                           uint64_t seed)
{
    create_memory(c, shape, act, acc);
    if (shape->lists != DENSE)
        create_lists(c, shape, random_of(seed, 100));
    fill_rows(c, &c->args.q, shape->queries, random_of(seed, Q), shape->logit);
    fill_rows(c, &c->args.k, shape->keys, random_of(seed, K), 1);
    fill_rows(c, &c->args.v, shape->keys, random_of(seed, V), 1);
    fill_rows(c, &c->args.dout, shape->queries, random_of(seed, DOUT), 1);
}

static void convert_rows(AttentionCase *c, const DsvHeads *rows, const AttentionCase *from,
                         const DsvHeads *from_rows, int64_t tokens)
{
    for (int64_t b = 0; b < c->args.batch; b++)
        for (int64_t s = 0; s < tokens; s++)
            for (int64_t h = 0; h < c->args.heads; h++)
                for (int64_t d = 0; d < c->args.head_dim; d++)
                    dsvi_store(c->args.act, rows->data, dsvi_heads_at(rows, b, s, h) + d,
                               dsvi_load(from->args.act, from_rows->data,
                                         dsvi_heads_at(from_rows, b, s, h) + d));
}

void attention_case_convert(AttentionCase *c, const AttentionShape *shape, DsvDtype act, DsvDtype acc,
                            const AttentionCase *from)
{
    create_memory(c, shape, act, acc);
    if (from->args.lists) {
        create_lists(c, shape, random_of(0, 0));
        memcpy(c->own_lists.offsets, from->own_lists.offsets,
               (size_t)(dsvi_lists_count(&c->own_lists) + 1) * sizeof *c->own_lists.offsets);
        memcpy(c->own_lists.runs, from->own_lists.runs,
               (size_t)c->own_lists.capacity * sizeof *c->own_lists.runs);
    }
    convert_rows(c, &c->args.q, from, &from->args.q, shape->queries);
    convert_rows(c, &c->args.k, from, &from->args.k, shape->keys);
    convert_rows(c, &c->args.v, from, &from->args.v, shape->keys);
    convert_rows(c, &c->args.dout, from, &from->args.dout, shape->queries);
}

void attention_case_free(AttentionCase *c)
{
    for (int i = Q; i <= WORKSPACE; i++)
        free(c->memory[i]);
    free(c->own_lists.offsets);
    free(c->own_lists.runs);
    memset(c, 0, sizeof *c);
}

void attention_case_workspace(AttentionCase *c, size_t bytes)
{
    free(c->memory[WORKSPACE]);
    c->args.workspace = take(c, WORKSPACE, bytes);
    c->args.workspace_bytes = bytes;
}

static bool all_set(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != 0xff)
            return false;
    return true;
}

void attention_case_check_gaps(const AttentionCase *c, const char *what)
{
    static const char *const name[] = {"q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv", "workspace"};
    size_t gap = GAP * dsvi_dtype_size(c->args.act);
    size_t pitch = (size_t)(c->args.head_dim + GAP) * dsvi_dtype_size(c->args.act);
    for (int i = Q; i <= WORKSPACE; i++) {
        const unsigned char *memory = c->memory[i];
        if (!memory)
            continue;
        if (!all_set(memory + c->bytes[i], 64))
            fail_msg("%s: wrote behind %s", what, name[i]);
        for (size_t at = 0; i != LSE && i != WORKSPACE && at < c->bytes[i]; at += pitch)
            if (!all_set(memory + at, gap))
                fail_msg("%s: wrote between the rows of %s, byte %zu", what, name[i], at);
    }
}

double *attention_case_rows(const AttentionCase *c, const DsvHeads *rows, int64_t tokens)
{
    const DsvAttentionArgs *args = &c->args;
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

double attention_case_error(const AttentionCase *c, const DsvHeads *rows, const AttentionCase *truth,
                            const DsvHeads *truth_rows, int64_t tokens)
{
    double *got = attention_case_rows(c, rows, tokens);
    double *wanted = attention_case_rows(truth, truth_rows, tokens);
    double error = relative_l2(DSV_F64, got, DSV_F64, wanted,
                               c->args.batch * tokens * c->args.heads * c->args.head_dim);
    free(got);
    free(wanted);
    return error;
}
