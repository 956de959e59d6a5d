/* Reads the golden files of attention, runs their inputs through a table of operations and compares the
 * results. */
#include "ops/attention_golden.h"

#include "base/safetensors.h"
#include "golden/golden_files.h"
#include "test.h"

enum { Q, K, V, DO, OUT, LSE, DQ, DK, DV, TENSORS };
static const char *const NAME[TENSORS] = {"q", "k", "v", "do", "out", "lse", "dq", "dk", "dv"};

typedef struct Golden {
    DsviSafetensors *file;
    const DsviStoredTensor *stored[TENSORS];
    void *data[TENSORS]; /* of dtype `act`; results are NaN until they are written */
    DsviAttentionArgs args;
    DsviLists lists;
} Golden;

/* Golden files store tensors as (B, N, S, D). */
static DsviHeads rows_of(const Golden *g, int which)
{
    int64_t tokens = g->stored[which]->shape[2], dim = g->stored[which]->shape[3];
    DsviHeads rows = {g->data[which], g->args.heads * tokens * dim, dim, tokens * dim};
    return rows;
}

static void load_tensors(Golden *g, DsviDtype act)
{
    for (int i = 0; i < TENSORS; i++) {
        assert_ok(dsvi_safetensors_require(g->file, NAME[i], -1, NULL, &g->stored[i]));
        size_t bytes = (size_t)g->stored[i]->count * dsvi_dtype_size(act);
        g->data[i] = malloc(bytes);
        assert_non_null(g->data[i]);
        memset(g->data[i], 0xff, bytes);
        if (i <= DO)
            dsvi_convert(act, g->data[i], g->stored[i]->dtype, g->stored[i]->data, g->stored[i]->count);
    }
}

static void fill_args(Golden *g, DsviDtype act)
{
    const int64_t *q = g->stored[Q]->shape;
    DsviAttentionArgs *args = &g->args;
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
    DsviLists *lists = &g->lists;
    lists->batch = g->args.batch;
    lists->heads = g->args.heads;
    lists->queries = g->args.queries;
    lists->keys = g->args.keys;
    lists->group = group;
    lists->groups = (lists->queries + group - 1) / group;
    lists->grain = grain;
    lists->capacity = capacity;
    lists->offsets = calloc((size_t)dsvi_lists_count(lists) + 1, sizeof *lists->offsets);
    lists->spans = calloc((size_t)capacity, sizeof *lists->spans);
    g->args.lists = lists;
}

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Makes lists of single keys for groups of 8 queries. The file stores the keys of a list in any order. */
static void lists_from_indices(Golden *g, const DsviStoredTensor *indices)
{
    const DsviStoredTensor *offsets;
    assert_ok(dsvi_safetensors_require(g->file, "offsets", 1, (const int64_t[]){-1}, &offsets));
    lists_begin(g, 8, 1, indices->count);
    assert_int_equal(offsets->count, dsvi_lists_count(&g->lists) + 1);
    memcpy(g->lists.spans, indices->data, indices->bytes);
    for (int64_t n = 0; n < offsets->count; n++)
        g->lists.offsets[n] = ((const int32_t *)offsets->data)[n];
    for (int64_t n = 0; n + 1 < offsets->count; n++)
        qsort(g->lists.spans + g->lists.offsets[n], (size_t)(g->lists.offsets[n + 1] - g->lists.offsets[n]),
              sizeof *g->lists.spans, ascending);
}

/* Makes lists from a mask (B, N, query blocks, key blocks) of blocks of 64 queries and 64 keys. */
static void lists_from_map(Golden *g, const DsviStoredTensor *map)
{
    int64_t total = 0, columns = map->shape[3];
    lists_begin(g, 64, 64, map->count);
    for (int64_t i = 0; i < map->count; i++) {
        if (((const uint8_t *)map->data)[i])
            g->lists.spans[total++] = (int32_t)(i % columns);
        if (i % columns == columns - 1)
            g->lists.offsets[i / columns + 1] = total;
    }
}

static void *workspace(dsvi_attention_workspace_fn *ask, DsviAttentionArgs *args)
{
    args->workspace_bytes = ask ? (ask(NULL, args) + 63) / 64 * 64 : 0;
    args->workspace = args->workspace_bytes > 0 ? aligned_alloc(64, args->workspace_bytes) : NULL;
    return args->workspace;
}

static void run(const DsviOps *ops, DsviAttentionArgs *args)
{
    void *scratch = workspace(args->lists ? ops->attention_list_fwd.workspace : ops->attention_fwd.workspace,
                              args);
    assert_ok((args->lists ? ops->attention_list_fwd.run : ops->attention_fwd.run)(NULL, args));
    free(scratch);
    scratch = workspace(args->lists ? ops->attention_list_bwd.workspace : ops->attention_bwd.workspace, args);
    assert_ok((args->lists ? ops->attention_list_bwd.run : ops->attention_bwd.run)(NULL, args));
    free(scratch);
}

static void check_case(const DsviOps *ops, DsviDtype act, double bound, const char *name)
{
    char path[256];
    Golden g = {0};
    snprintf(path, sizeof path, "attention/%s.safetensors", name);
    assert_ok(dsvi_safetensors_open(golden_path(path), &g.file));
    load_tensors(&g, act);
    fill_args(&g, act);
    const DsviStoredTensor *indices = dsvi_safetensors_find(g.file, "indices");
    const DsviStoredTensor *map = dsvi_safetensors_find(g.file, "block_map");
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
    free(g.lists.spans);
    dsvi_safetensors_close(&g.file);
}

void attention_golden_check(const DsviOps *ops, DsviDtype act, double bound)
{
    char name[GOLDEN_CASES_MAX][GOLDEN_NAME];
    int count = golden_cases("attention", name);
    for (int i = 0; i < count; i++)
        check_case(ops, act, bound, name[i]);
}
