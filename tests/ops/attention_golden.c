/* Reads the golden files of attention, runs them through an op table and compares. */
#include "ops/attention_golden.h"

#include "base/safetensors.h"
#include "test.h"

enum { Q, K, V, DO, OUT, LSE, DQ, DK, DV, TENSORS };
static const char *const NAME[TENSORS] = {"q", "k", "v", "do", "out", "lse", "dq", "dk", "dv"};

typedef struct Golden {
    DsvSafetensors *file;
    const DsvStoredTensor *stored[TENSORS];
    void *data[TENSORS]; /* in `act`; results start as NaN */
    DsvAttentionArgs args;
    DsvLists lists;
} Golden;

/* Files hold (B, N, S, D). */
static DsvHeads rows_of(const Golden *g, int which)
{
    int64_t tokens = g->stored[which]->shape[2], dim = g->stored[which]->shape[3];
    DsvHeads rows = {g->data[which], g->args.heads * tokens * dim, dim, tokens * dim};
    return rows;
}

static void load_tensors(Golden *g, DsvDtype act)
{
    for (int i = 0; i < TENSORS; i++) {
        assert_ok(dsvi_safetensors_want(g->file, NAME[i], -1, NULL, &g->stored[i]));
        size_t bytes = (size_t)g->stored[i]->count * dsvi_dtype_size(act);
        g->data[i] = malloc(bytes);
        assert_non_null(g->data[i]);
        memset(g->data[i], 0xff, bytes);
        if (i <= DO)
            dsvi_convert(act, g->data[i], g->stored[i]->dtype, g->stored[i]->data, g->stored[i]->count);
    }
}

static void fill_args(Golden *g, DsvDtype act)
{
    const int64_t *q = g->stored[Q]->shape;
    DsvAttentionArgs *args = &g->args;
    args->batch = q[0];
    args->heads = q[1];
    args->queries = q[2];
    args->keys = g->stored[K]->shape[2];
    args->head_dim = q[3];
    args->scale = 1 / sqrt((double)q[3]);
    args->act = args->acc = act;
    args->q = rows_of(g, Q);
    args->k = rows_of(g, K);
    args->v = rows_of(g, V);
    args->out = rows_of(g, OUT);
    args->lse = g->data[LSE];
    args->dout = rows_of(g, DO);
    args->dq = rows_of(g, DQ);
    args->dk = rows_of(g, DK);
    args->dv = rows_of(g, DV);
}

static void lists_begin(Golden *g, int64_t group, int64_t grain, int64_t capacity)
{
    DsvLists *lists = &g->lists;
    lists->batch = g->args.batch;
    lists->heads = g->args.heads;
    lists->queries = g->args.queries;
    lists->keys = g->args.keys;
    lists->group = group;
    lists->groups = (lists->queries + group - 1) / group;
    lists->grain = grain;
    lists->capacity = capacity;
    lists->offsets = calloc((size_t)dsvi_lists_count(lists) + 1, sizeof *lists->offsets);
    lists->runs = calloc((size_t)capacity, sizeof *lists->runs);
    g->args.lists = lists;
}

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Single-key lists for groups of 8, stored in any order. */
static void lists_from_indices(Golden *g, const DsvStoredTensor *indices)
{
    const DsvStoredTensor *offsets;
    assert_ok(dsvi_safetensors_want(g->file, "offsets", 1, (const int64_t[]){-1}, &offsets));
    lists_begin(g, 8, 1, indices->count);
    assert_int_equal(offsets->count, dsvi_lists_count(&g->lists) + 1);
    memcpy(g->lists.runs, indices->data, indices->bytes);
    for (int64_t n = 0; n < offsets->count; n++)
        g->lists.offsets[n] = ((const int32_t *)offsets->data)[n];
    for (int64_t n = 0; n + 1 < offsets->count; n++)
        qsort(g->lists.runs + g->lists.offsets[n], (size_t)(g->lists.offsets[n + 1] - g->lists.offsets[n]),
              sizeof *g->lists.runs, ascending);
}

/* (B, N, query blocks, key blocks) of 64 x 64. */
static void lists_from_map(Golden *g, const DsvStoredTensor *map)
{
    int64_t total = 0, columns = map->shape[3];
    lists_begin(g, 64, 64, map->count);
    for (int64_t i = 0; i < map->count; i++) {
        if (((const uint8_t *)map->data)[i])
            g->lists.runs[total++] = (int32_t)(i % columns);
        if (i % columns == columns - 1)
            g->lists.offsets[i / columns + 1] = total;
    }
}

static void *workspace(dsvi_attention_workspace_fn *ask, DsvAttentionArgs *args)
{
    args->workspace_bytes = ask ? (ask(NULL, args) + 63) / 64 * 64 : 0;
    args->workspace = args->workspace_bytes > 0 ? aligned_alloc(64, args->workspace_bytes) : NULL;
    return args->workspace;
}

static void run(const DsvOps *ops, DsvAttentionArgs *args)
{
    void *scratch = workspace(args->lists ? ops->attention_list_fwd.workspace : ops->attention_fwd.workspace,
                              args);
    assert_ok((args->lists ? ops->attention_list_fwd.run : ops->attention_fwd.run)(NULL, args));
    free(scratch);
    scratch = workspace(args->lists ? ops->attention_list_bwd.workspace : ops->attention_bwd.workspace, args);
    assert_ok((args->lists ? ops->attention_list_bwd.run : ops->attention_bwd.run)(NULL, args));
    free(scratch);
}

static void check_case(const DsvOps *ops, DsvDtype act, double bound, const char *name)
{
    char path[256];
    Golden g = {0};
    snprintf(path, sizeof path, "fixtures/attention/%s.safetensors", name);
    assert_ok(dsvi_safetensors_open(shared_path(path), &g.file));
    load_tensors(&g, act);
    fill_args(&g, act);
    const DsvStoredTensor *indices = dsvi_safetensors_find(g.file, "indices");
    const DsvStoredTensor *map = dsvi_safetensors_find(g.file, "block_map");
    if (indices)
        lists_from_indices(&g, indices);
    if (map)
        lists_from_map(&g, map);
    run(ops, &g.args);
    for (int i = OUT; i < TENSORS; i++)
        assert_error_below(relative_l2(act, g.data[i], g.stored[i]->dtype, g.stored[i]->data,
                                       g.stored[i]->count),
                           bound, "%s: %s", name, NAME[i]);
    for (int i = 0; i < TENSORS; i++)
        free(g.data[i]);
    free(g.lists.offsets);
    free(g.lists.runs);
    dsvi_safetensors_close(&g.file);
}

void attention_golden_check(const DsvOps *ops, DsvDtype act, double bound)
{
    static const char *const name[] = {
        "dense_b1h2_37x53_d32",       "dense_b2h3_40x48_d128", "dense_b1h1_130x200_d128",
        "list8_b1h2_64x128_d128", "list8_empty_b1h2_40x48_d64", "block64_b1h2_192x236_d128",
    };
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++)
        check_case(ops, act, bound, name[i]);
}
