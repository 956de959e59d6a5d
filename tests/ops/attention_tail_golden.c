/* Reads golden files of attention with a tail, runs their inputs through a table of operations and compares
 * the results. */
#include "ops/attention_tail_golden.h"

#include "base/safetensors.h"
#include "test.h"

enum { Q, K, V, DOUT, OUT, LSE, DQ, DK, DV, TENSORS };
static const char *const NAME[TENSORS] = {"q", "k", "v", "dout", "out", "lse", "dq", "dk", "dv"};

typedef struct Golden {
    DsviSafetensors *file;
    const DsviStoredTensor *stored[TENSORS];
    void *data[TENSORS]; /* of dtype `act`; results are NaN until they are written */
    DsviLists lists;
    DsviAttentionTailArgs args;
} Golden;

/* Returns the size of the groups from the description of the files. */
static int64_t group_of(const char *folder)
{
    char path[1100], text[1 << 14];
    long long group = 0;
    snprintf(path, sizeof path, "%s/fixture.json", folder);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is missing", path);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *words = strstr(text, "group of ");
    if (!words || sscanf(words, "group of %lld queries", &group) != 1 || group < 1)
        fail_msg("%s does not say 'group of <number> queries'", path);
    return group;
}

static void load_tensors(Golden *g, const char *tail, DsviDtype act)
{
    for (int i = 0; i < TENSORS; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s%s", NAME[i], i <= DOUT ? "" : ".", i <= DOUT ? "" : tail);
        assert_ok(dsvi_safetensors_require_floating(g->file, name, -1, NULL, &g->stored[i]));
        size_t bytes = (size_t)g->stored[i]->count * dsvi_dtype_size(act);
        g->data[i] = malloc(bytes);
        assert_non_null(g->data[i]);
        memset(g->data[i], 0xff, bytes);
        if (i <= DOUT)
            dsvi_convert(act, g->data[i], g->stored[i]->dtype, g->stored[i]->data, g->stored[i]->count);
    }
}

/* Makes lists of single keys from the 0/1 matrix `listed` (B, N, groups, S). */
static void load_lists(Golden *g, int64_t group)
{
    const DsviStoredTensor *listed;
    const DsviAttentionArgs *args = &g->args.attention;
    int64_t groups = (args->queries + group - 1) / group, total = 0;
    assert_ok(dsvi_safetensors_require(
        g->file, "listed", 4, (const int64_t[]){args->batch, args->heads, groups, args->keys}, &listed));
    assert_int_equal(listed->dtype, DSVI_U8);
    g->lists = (DsviLists){.batch = args->batch,
                           .heads = args->heads,
                           .queries = args->queries,
                           .keys = args->keys,
                           .group = group,
                           .groups = groups,
                           .grain = 1,
                           .capacity = listed->count};
    g->lists.offsets = calloc((size_t)dsvi_lists_count(&g->lists) + 1, sizeof *g->lists.offsets);
    g->lists.spans = calloc((size_t)listed->count, sizeof *g->lists.spans);
    assert_true(g->lists.offsets && g->lists.spans);
    for (int64_t i = 0; i < listed->count; i++) {
        if (((const uint8_t *)listed->data)[i])
            g->lists.spans[total++] = (int32_t)(i % args->keys);
        if (i % args->keys == args->keys - 1)
            g->lists.offsets[i / args->keys + 1] = total;
    }
    g->args.attention.lists = &g->lists;
}

static DsviHeads rows_of(const Golden *g, int which)
{
    const int64_t *shape = g->stored[which]->shape;
    return dsvi_heads(g->data[which], shape[1], shape[2], shape[3]);
}

static void fill_args(Golden *g, DsviDtype act)
{
    const int64_t *q = g->stored[Q]->shape;
    g->args.attention = (DsviAttentionArgs){.batch = q[0],
                                            .queries = q[1],
                                            .heads = q[2],
                                            .head_dim = q[3],
                                            .keys = g->stored[K]->shape[1],
                                            .scale = 1 / sqrt((double)q[3]),
                                            .act = act,
                                            .acc = act,
                                            .q = rows_of(g, Q),
                                            .k = rows_of(g, K),
                                            .v = rows_of(g, V),
                                            .out = rows_of(g, OUT),
                                            .lse = g->data[LSE],
                                            .dout = rows_of(g, DOUT),
                                            .dq = rows_of(g, DQ),
                                            .dk = rows_of(g, DK),
                                            .dv = rows_of(g, DV)};
}

static void with_workspace(DsviAttentionArgs *args, size_t bytes)
{
    args->workspace_bytes = (bytes + 63) / 64 * 64;
    args->workspace = bytes > 0 ? aligned_alloc(64, args->workspace_bytes) : NULL;
    assert_true(bytes == 0 || args->workspace);
}

static void run_list(dsvi_attention_fn *run, dsvi_attention_workspace_fn *ask, DsviAttentionArgs *args)
{
    with_workspace(args, ask ? ask(NULL, args) : 0);
    assert_ok(run(NULL, args));
    free(args->workspace);
}

static void run_tail(dsvi_attention_tail_fn *run, dsvi_attention_tail_workspace_fn *ask,
                     DsviAttentionTailArgs *args)
{
    with_workspace(&args->attention, ask ? ask(NULL, args) : 0);
    assert_ok(run(NULL, args));
    free(args->attention.workspace);
}

static void run_all(const DsviOps *ops, DsviAttentionTailArgs *args)
{
    run_list(ops->attention_list_fwd.run, ops->attention_list_fwd.workspace, &args->attention);
    run_tail(ops->attention_tail_fwd.run, ops->attention_tail_fwd.workspace, args);
    run_list(ops->attention_list_bwd.run, ops->attention_list_bwd.workspace, &args->attention);
    run_tail(ops->attention_tail_bwd.run, ops->attention_tail_bwd.workspace, args);
}

/* Checks the tail that tensor names call `tail`, "4" or "4x3". */
static void check_tail(const DsviOps *ops, DsviDtype act, double bound, const char *folder, int64_t group,
                       DsviSafetensors *file, const char *tail)
{
    Golden g = {.file = file};
    long long chunk, run = 1;
    assert_true(sscanf(tail, "%lldx%lld", &chunk, &run) >= 1);
    load_tensors(&g, tail, act);
    fill_args(&g, act);
    load_lists(&g, group);
    g.args.chunk = chunk;
    g.args.run = run;
    int64_t chunks = dsvi_tail_chunks(g.args.attention.queries, chunk);
    g.args.tail_lse = malloc((size_t)(g.args.attention.batch * g.args.attention.heads * chunks) *
                             dsvi_dtype_size(act));
    assert_non_null(g.args.tail_lse);
    run_all(ops, &g.args);
    for (int i = OUT; i < TENSORS; i++)
        assert_error_below(relative_l2(act, g.data[i], g.stored[i]->dtype, g.stored[i]->data,
                                       g.stored[i]->count),
                           bound, "%s: %s.%s", folder, NAME[i], tail);
    for (int i = 0; i < TENSORS; i++)
        free(g.data[i]);
    free(g.args.tail_lse);
    free(g.lists.offsets);
    free(g.lists.spans);
}

void attention_tail_golden_check(const DsviOps *ops, DsviDtype act, double bound, const char *folder)
{
    char path[1100];
    DsviSafetensors *file;
    int tails = 0;
    snprintf(path, sizeof path, "%s/tail.safetensors", folder);
    assert_ok(dsvi_safetensors_open(path, &file));
    int64_t group = group_of(folder);
    for (size_t i = 0; i < dsvi_safetensors_count(file); i++) {
        const char *name = dsvi_safetensors_at(file, i)->name;
        if (strncmp(name, "out.", 4) != 0)
            continue;
        check_tail(ops, act, bound, folder, group, file, name + 4);
        tails++;
    }
    assert_true(tails > 0);
    dsvi_safetensors_close(&file);
}
