/* Dense attention by cuDNN: the formulas of attention.h as two graphs that its flash attention engines know.
 *
 * A plan is made when its workspace is first asked for, or at its first run, which takes about half a second,
 * and is kept as long as the device. The scale is not part of it.
 *
 * What cuDNN does not do goes to the kernels of attention_list.cu: F32; head sizes, strides and addresses
 * that are not multiples of 8 elements; whatever else its engines decline; and short sequences, where it is
 * the slower one (H200, 6 heads of 128, 4,096 queries, 4 keys: backward 0.16 ms against 0.03) and the less
 * exact: with logits of a million its gradient of a saturated row is not quite zero. */
#include "cuda/attention_cudnn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/attention_parts.h"
#include "cuda/attention_split.h"
#include "cuda/cuda.h"
#include "cuda/cudnn_graph.h"

enum {
    OLDEST = 91002,        /* 9.10.2: NVIDIA's front end refuses 9.10.0 and 9.10.1 as faulty, and 9.9 does not
                            * take -inf in a mask */
    UNMASKED_FROM = 91501, /* 9.15.1: before, backward goes wrong where keys do not fill tiles of KEY_TILE,
                            * unless a mask says where they end */
    KEY_TILE = 128,
    QUERIES_LEAST = 256,
    KEYS_LEAST = 256,
    VECTOR_BYTES = 16,
    VECTOR = VECTOR_BYTES / 2, /* BF16 elements */
    PIECE_BYTES = 256          /* pieces of the workspace begin at multiples of this from its beginning */
};

/* To add in a fixed order cuDNN's backward pass keeps ds of all pairs, 2 bytes each: 26 GB for 12 heads with
 * 32760 queries and keys. Where it wants more workspace than this, other kernels do the work. */
#define DETERMINISTIC_BYTES_MOST ((size_t)1 << 30)

/* Tensors in memory; a graph knows each by 1 + its number here. */
enum {
    Q, K, V, OUT, DOUT, DQ, DK, DV, ROWS,
    LSE = ROWS, SCALE, ONE, DELTA, DQ_SUM, QUERIES, KEYS, NEVER, TENSORS
};

/* Everything that a plan depends on; only int64_t, to be compared as bytes. */
typedef struct Problem {
    int64_t backward, batch, heads, queries, keys, dim;
    int64_t stride[ROWS][3]; /* of batch, head, token; those of gradients are 0 in a forward problem */
} Problem;

typedef struct Plan {
    Problem problem;
    DsvCudnnGraph graph;
    size_t workspace_bytes; /* what cuDNN uses itself, DELTA, DQ_SUM */
    size_t delta_at, dq_sum_at;
    bool masked;
    bool too_large; /* to be deterministic */
    int32_t *lengths;     /* of a masked plan: QUERIES for each of the batch, then KEYS */
    char *lengths_on_gpu; /* the same */
    struct Plan *next;
} Plan;

struct DsvAttentionCudnn {
    cudnnHandle_t handle;
    Plan *plans;
};

/* ---- the graphs ---- */

/* (B, N, rows, columns), contiguous. */
static DsvCudnnShape packed(const Problem *problem, int64_t rows, int64_t columns)
{
    int64_t matrix = rows * columns;
    return (DsvCudnnShape){{problem->batch, problem->heads, rows, columns},
                           {problem->heads * matrix, matrix, columns, 1}};
}

static DsvCudnnShape in_memory(const Problem *problem, int which)
{
    bool of_keys = which == K || which == V || which == DK || which == DV;
    const int64_t *stride = problem->stride[which];
    return (DsvCudnnShape){
        {problem->batch, problem->heads, of_keys ? problem->keys : problem->queries, problem->dim},
        {stride[0], stride[1], stride[2], 1}};
}

static DsvCudnnShape transposed(DsvCudnnShape shape)
{
    return (DsvCudnnShape){{shape.size[0], shape.size[1], shape.size[3], shape.size[2]},
                           {shape.stride[0], shape.stride[1], shape.stride[3], shape.stride[2]}};
}

/* A tensor of attention.h as it lies in memory, (B, N, S, D). */
static DsvCudnnTensor rows_of(Plan *plan, int which)
{
    DsvCudnnShape shape = in_memory(&plan->problem, which);
    return dsvi_cudnn_memory(&plan->graph, 1 + which, CUDNN_DATA_BFLOAT16, &shape);
}

/* The same memory as (B, N, D, S). */
static DsvCudnnTensor columns_of(Plan *plan, int which)
{
    DsvCudnnShape shape = transposed(in_memory(&plan->problem, which));
    return dsvi_cudnn_memory(&plan->graph, 1 + which, CUDNN_DATA_BFLOAT16, &shape);
}

/* F32 in memory, (B, N, Sq, columns). */
static DsvCudnnTensor floats(Plan *plan, int which, int64_t columns)
{
    DsvCudnnShape shape = packed(&plan->problem, plan->problem.queries, columns);
    return dsvi_cudnn_memory(&plan->graph, 1 + which, CUDNN_DATA_FLOAT, &shape);
}

/* A new intermediate F32 tensor, (B, N, Sq, columns). */
static DsvCudnnTensor between(Plan *plan, int64_t columns)
{
    DsvCudnnShape shape = packed(&plan->problem, plan->problem.queries, columns);
    return dsvi_cudnn_between(&plan->graph, CUDNN_DATA_FLOAT, &shape);
}

static DsvCudnnTensor scores_of(Plan *plan, cudnnDataType_t type)
{
    DsvCudnnShape shape = packed(&plan->problem, plan->problem.queries, plan->problem.keys);
    return dsvi_cudnn_between(&plan->graph, type, &shape);
}

static DsvCudnnTensor scores(Plan *plan)
{
    return scores_of(plan, CUDNN_DATA_FLOAT);
}

static DsvCudnnTensor sums(Plan *plan)
{
    return between(plan, 1);
}

/* Scores as left operand of a product: BF16, as they are or transposed. */
static DsvCudnnTensor operand(Plan *plan, bool transpose)
{
    DsvCudnnShape shape = packed(&plan->problem, plan->problem.queries, plan->problem.keys);
    if (transpose)
        shape = transposed(shape);
    return dsvi_cudnn_between(&plan->graph, CUDNN_DATA_BFLOAT16, &shape);
}

/* How many queries and keys there are, as tensors in device memory; NULL without a mask. */
typedef struct Lengths {
    DsvCudnnTensor queries, keys;
} Lengths;

static Lengths lengths_of(Plan *plan)
{
    const DsvCudnnShape shape = {{plan->problem.batch, 1, 1, 1}, {1, 1, 1, 1}};
    if (!plan->masked)
        return (Lengths){0};
    return (Lengths){dsvi_cudnn_memory(&plan->graph, 1 + QUERIES, CUDNN_DATA_INT32, &shape),
                     dsvi_cudnn_memory(&plan->graph, 1 + KEYS, CUDNN_DATA_INT32, &shape)};
}

/* The sizes of products that give scores, sums over queries, sums over keys. */
static DsvCudnnMatmulSize of_scores(Lengths n)
{
    return (DsvCudnnMatmulSize){.rows = n.queries, .columns = n.keys};
}

static DsvCudnnMatmulSize over_queries(Lengths n)
{
    return (DsvCudnnMatmulSize){.rows = n.keys, .inner = n.queries};
}

static DsvCudnnMatmulSize over_keys(Lengths n)
{
    return (DsvCudnnMatmulSize){.rows = n.queries, .inner = n.keys};
}

/* scale q . k */
static DsvCudnnTensor scaled_scores(Plan *plan, DsvCudnnTensor q, DsvCudnnTensor kt, DsvCudnnTensor scale,
                                    Lengths n)
{
    DsvCudnnTensor s = dsvi_cudnn_matmul(&plan->graph, q, kt, of_scores(n), scores(plan));
    return dsvi_cudnn_combine(&plan->graph, CUDNN_POINTWISE_MUL, s, scale, scores(plan));
}

static void draw_forward(Plan *plan)
{
    DsvCudnnGraph *g = &plan->graph;
    const Lengths all = {0};
    DsvCudnnTensor s = scaled_scores(plan, rows_of(plan, Q), columns_of(plan, K),
                                     dsvi_cudnn_number(g, 1 + SCALE), all);
    DsvCudnnTensor most = dsvi_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, sums(plan));
    DsvCudnnTensor below = dsvi_cudnn_combine(g, CUDNN_POINTWISE_SUB, s, most, scores(plan));
    DsvCudnnTensor e = dsvi_cudnn_map(g, CUDNN_POINTWISE_EXP, below, scores(plan));
    DsvCudnnTensor total = dsvi_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, sums(plan));
    DsvCudnnTensor log_total = dsvi_cudnn_map(g, CUDNN_POINTWISE_LOG, total, sums(plan));
    dsvi_cudnn_combine(g, CUDNN_POINTWISE_ADD, most, log_total, floats(plan, LSE, 1));
    DsvCudnnTensor p = dsvi_cudnn_combine(g, CUDNN_POINTWISE_DIV, e, total, operand(plan, false));
    dsvi_cudnn_matmul(g, p, rows_of(plan, V), over_keys(all), rows_of(plan, OUT));
}

/* delta_i = dout_i . out_i. The one stands where dropout would have its factor: without it cuDNN does not
 * know the graph for flash attention, and keeps all scores in memory. */
static DsvCudnnTensor draw_delta(Plan *plan, DsvCudnnTensor dout)
{
    DsvCudnnGraph *g = &plan->graph;
    DsvCudnnTensor products = dsvi_cudnn_combine(g, CUDNN_POINTWISE_MUL, dout, rows_of(plan, OUT),
                                                 between(plan, plan->problem.dim));
    DsvCudnnTensor sum = dsvi_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, products, sums(plan));
    return dsvi_cudnn_combine(g, CUDNN_POINTWISE_MUL, sum, dsvi_cudnn_number(g, 1 + ONE),
                              floats(plan, DELTA, 1));
}

/* dq = ds k. Given an F32 sum of dq in memory, blocks of keys add to it in whatever order they come; without,
 * they keep their ds, and dq is a product made of that. */
static void draw_dq(Plan *plan, DsvCudnnTensor ds, DsvCudnnTensor kt, Lengths n, bool deterministic)
{
    DsvCudnnGraph *g = &plan->graph;
    DsvCudnnShape shape = in_memory(&plan->problem, K);
    DsvCudnnTensor k = dsvi_cudnn_view(g, kt, dsvi_cudnn_between(g, CUDNN_DATA_BFLOAT16, &shape));
    DsvCudnnTensor dq = rows_of(plan, DQ);
    if (deterministic)
        dsvi_cudnn_matmul(g, ds, k, over_keys(n), dq);
    else
        dsvi_cudnn_map(
            g, CUDNN_POINTWISE_IDENTITY,
            dsvi_cudnn_matmul(g, ds, k, over_keys(n), floats(plan, DQ_SUM, plan->problem.dim)), dq);
}

/* Whether the row or the column of a score, by axis, is below a length. */
static DsvCudnnTensor within(Plan *plan, DsvCudnnTensor s, int64_t axis, DsvCudnnTensor length)
{
    DsvCudnnTensor index = dsvi_cudnn_index(&plan->graph, axis, s, scores_of(plan, CUDNN_DATA_INT32));
    return dsvi_cudnn_test(&plan->graph, CUDNN_POINTWISE_CMP_LT, index, length,
                           scores_of(plan, CUDNN_DATA_BOOLEAN));
}

/* s, but -inf where a tile reaches beyond the last query or key. The kernel reads the lengths only if the
 * products have them as their sizes too. */
static DsvCudnnTensor mask(Plan *plan, DsvCudnnTensor s, Lengths n)
{
    DsvCudnnGraph *g = &plan->graph;
    DsvCudnnTensor row = within(plan, s, 2, n.queries), column = within(plan, s, 3, n.keys);
    DsvCudnnTensor both = dsvi_cudnn_test(g, CUDNN_POINTWISE_LOGICAL_AND, row, column,
                                          scores_of(plan, CUDNN_DATA_BOOLEAN));
    return dsvi_cudnn_select(g, both, s, dsvi_cudnn_number(g, 1 + NEVER), scores(plan));
}

static void draw_backward(Plan *plan, bool deterministic)
{
    DsvCudnnGraph *g = &plan->graph;
    DsvCudnnTensor scale = dsvi_cudnn_number(g, 1 + SCALE);
    DsvCudnnTensor q = rows_of(plan, Q), kt = columns_of(plan, K), dout = rows_of(plan, DOUT);
    DsvCudnnTensor delta = draw_delta(plan, dout);
    Lengths n = lengths_of(plan);

    DsvCudnnTensor s = scaled_scores(plan, q, kt, scale, n);
    if (plan->masked)
        s = mask(plan, s, n);
    DsvCudnnTensor below = dsvi_cudnn_combine(g, CUDNN_POINTWISE_SUB, s, floats(plan, LSE, 1), scores(plan));
    DsvCudnnTensor p = dsvi_cudnn_map(g, CUDNN_POINTWISE_EXP, below, scores(plan));
    DsvCudnnTensor pt = dsvi_cudnn_view(g, p, operand(plan, true));
    dsvi_cudnn_matmul(g, pt, dout, over_queries(n), rows_of(plan, DV));

    DsvCudnnTensor dp = dsvi_cudnn_matmul(g, dout, columns_of(plan, V), of_scores(n), scores(plan));
    DsvCudnnTensor off = dsvi_cudnn_combine(g, CUDNN_POINTWISE_SUB, dp, delta, scores(plan));
    DsvCudnnTensor ds = dsvi_cudnn_combine(g, CUDNN_POINTWISE_MUL, off, p, scores(plan));
    ds = dsvi_cudnn_combine(g, CUDNN_POINTWISE_MUL, ds, scale, scores(plan));
    DsvCudnnTensor dst = dsvi_cudnn_view(g, ds, operand(plan, true));
    dsvi_cudnn_matmul(g, dst, q, over_queries(n), rows_of(plan, DK));
    draw_dq(plan, ds, kt, n, deterministic);
}

/* ---- plans ---- */

static size_t pieces(size_t bytes)
{
    return (bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
}

/* Of the lengths of all batches' queries, or keys. */
static size_t length_bytes(const Plan *plan)
{
    return pieces((size_t)plan->problem.batch * sizeof(int32_t));
}

static void divide_workspace(Plan *plan, bool deterministic)
{
    const Problem *p = &plan->problem;
    size_t column_bytes = (size_t)(p->batch * p->heads * p->queries) * sizeof(float);
    plan->workspace_bytes = (size_t)plan->graph.workspace_bytes;
    if (!p->backward)
        return;
    plan->delta_at = pieces(plan->workspace_bytes);
    plan->workspace_bytes = plan->delta_at + column_bytes;
    if (deterministic)
        return;
    plan->dq_sum_at = pieces(plan->workspace_bytes);
    plan->workspace_bytes = plan->dq_sum_at + column_bytes * (size_t)p->dim;
}

/* Draws the graph and has it planned. */
static void make_plan(Plan *plan, cudnnHandle_t handle, bool deterministic)
{
    DsvCudnnGraph *g = &plan->graph;
    if (plan->problem.backward)
        draw_backward(plan, deterministic);
    else
        draw_forward(plan);
    dsvi_cudnn_graph_plan(g, handle);
    divide_workspace(plan, deterministic);
    if (g->status != DSV_OK || !deterministic || plan->workspace_bytes <= DETERMINISTIC_BYTES_MOST)
        return;
    plan->too_large = true;
    g->status = DSV_E_UNSUPPORTED;
    snprintf(g->why, sizeof g->why, "cuDNN would need %zu bytes to be deterministic", plan->workspace_bytes);
}

static bool needs_mask(const Problem *problem)
{
    return problem->backward && problem->keys % KEY_TILE != 0 && cudnnGetVersion() < UNMASKED_FROM;
}

/* A masked plan has its lengths in device memory of its own, a few hundred bytes, and not in the workspace,
 * which each run would have to fill anew. They are copied once, in the order of the stream, so before its
 * first run; the host's are kept, as the copy may read them after the call returns. */
static DsvStatus put_lengths(DsvStream *stream, Plan *plan)
{
    const Problem *p = &plan->problem;
    size_t bytes = 2 * length_bytes(plan), keys_at = length_bytes(plan) / sizeof(int32_t);
    plan->lengths = calloc(1, bytes);
    if (!plan->lengths)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "attention: no %zu bytes for lengths", bytes);
    for (size_t b = 0; b < (size_t)p->batch; b++) {
        plan->lengths[b] = (int32_t)p->queries;
        plan->lengths[keys_at + b] = (int32_t)p->keys;
    }
    DSVI_CUDA_TRY(cudaMalloc((void **)&plan->lengths_on_gpu, bytes));
    DSVI_CUDA_TRY(cudaMemcpyAsync(plan->lengths_on_gpu, plan->lengths, bytes, cudaMemcpyHostToDevice,
                                  stream->handle));
    return DSV_OK;
}

static void release_plan(Plan *plan)
{
    cudaFree(plan->lengths_on_gpu);
    free(plan->lengths);
    dsvi_cudnn_graph_release(&plan->graph);
    free(plan);
}

static int rows_in(bool backward)
{
    return backward ? ROWS : DOUT;
}

static void list_rows(const DsvAttentionArgs *args, const DsvHeads *rows[ROWS])
{
    const DsvHeads *all[ROWS] = {
        [Q] = &args->q, [K] = &args->k, [V] = &args->v, [OUT] = &args->out,
        [DOUT] = &args->dout, [DQ] = &args->dq, [DK] = &args->dk, [DV] = &args->dv,
    };
    memcpy(rows, all, sizeof all);
}

static Problem problem_of(const DsvAttentionArgs *args, bool backward)
{
    const DsvHeads *rows[ROWS];
    Problem problem = {.backward = backward, .batch = args->batch, .heads = args->heads,
                       .queries = args->queries, .keys = args->keys, .dim = args->head_dim};
    list_rows(args, rows);
    for (int i = 0; i < rows_in(backward); i++) {
        problem.stride[i][0] = rows[i]->batch_stride;
        problem.stride[i][1] = rows[i]->head_stride;
        problem.stride[i][2] = rows[i]->token_stride;
    }
    return problem;
}

/* The plan for such arguments, from earlier or new. Whether there is one is in its graph.status. */
static DsvStatus plan_of(DsvStream *stream, const DsvAttentionArgs *args, bool backward, Plan **out)
{
    DsvAttentionCudnn *attention = stream->attention;
    Problem problem = problem_of(args, backward);
    for (Plan *plan = attention->plans; plan; plan = plan->next) {
        if (memcmp(&plan->problem, &problem, sizeof problem) == 0) {
            *out = plan;
            return DSV_OK;
        }
    }
    Plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "attention: no %zu bytes for a plan", sizeof *plan);
    plan->problem = problem;
    plan->masked = needs_mask(&problem);
    make_plan(plan, attention->handle, stream->deterministic);
    DsvStatus status = plan->masked && plan->graph.status == DSV_OK ? put_lengths(stream, plan) : DSV_OK;
    if (status != DSV_OK) {
        release_plan(plan);
        return status;
    }
    plan->next = attention->plans;
    attention->plans = plan;
    *out = plan;
    return DSV_OK;
}

/* ---- the ops ---- */

/* Whether cuDNN's engines take such shapes, wherever the tensors lie. */
static bool takes_shapes(const DsvAttentionArgs *args, bool backward)
{
    const DsvHeads *rows[ROWS];
    if (args->lists || args->act != DSV_BF16 || args->acc != DSV_F32 || args->head_dim % VECTOR != 0 ||
        args->batch == 0 || args->heads == 0 || args->queries < QUERIES_LEAST || args->keys < KEYS_LEAST)
        return false;
    list_rows(args, rows);
    for (int i = 0; i < rows_in(backward); i++)
        if (rows[i]->batch_stride % VECTOR != 0 || rows[i]->head_stride % VECTOR != 0 ||
            rows[i]->token_stride % VECTOR != 0)
            return false;
    return true;
}

static bool takes_addresses(const DsvAttentionArgs *args, bool backward)
{
    const DsvHeads *rows[ROWS];
    list_rows(args, rows);
    for (int i = 0; i < rows_in(backward); i++)
        if ((uintptr_t)rows[i]->data % VECTOR_BYTES != 0)
            return false;
    return (uintptr_t)args->lse % VECTOR_BYTES == 0;
}

static DsvStatus run_plan(DsvStream *stream, const Plan *plan, const DsvAttentionArgs *args)
{
    bool backward = plan->problem.backward != 0;
    float scale = (float)args->scale, one = 1, never = -INFINITY;
    char *workspace = args->workspace;
    void *of[TENSORS] = {[LSE] = args->lse, [SCALE] = &scale}, *data[TENSORS];
    int64_t id[TENSORS];
    const DsvHeads *rows[ROWS];
    int count = 0;
    list_rows(args, rows);
    for (int i = 0; i < rows_in(backward); i++)
        of[i] = rows[i]->data;
    if (backward) {
        of[ONE] = &one;
        of[DELTA] = workspace + plan->delta_at;
        of[DQ_SUM] = plan->dq_sum_at > 0 ? workspace + plan->dq_sum_at : NULL;
        /* cuDNN adds dq here. Version 9.19 clears the buffer itself on Hopper, but no contract promises it:
         * without clearing, another version's dq would be wrong, and nothing would tell. */
        if (of[DQ_SUM])
            DSVI_CUDA_TRY(cudaMemsetAsync(of[DQ_SUM], 0, plan->workspace_bytes - plan->dq_sum_at,
                                          stream->handle));
    }
    if (plan->masked) {
        of[QUERIES] = plan->lengths_on_gpu;
        of[KEYS] = plan->lengths_on_gpu + length_bytes(plan);
        of[NEVER] = &never;
    }
    for (int i = 0; i < TENSORS; i++) {
        if (!of[i])
            continue;
        id[count] = 1 + i;
        data[count++] = of[i];
    }
    return dsvi_cudnn_graph_run(&plan->graph, stream->attention->handle, count, id, data, workspace);
}

/* The failure to make it, if it was one, as this call's. */
static DsvStatus plan_status(const Plan *plan)
{
    const DsvCudnnGraph *g = &plan->graph;
    return g->status == DSV_OK ? DSV_OK : DSVI_FAIL(g->status, "attention: %s", g->why);
}

/* Other kernels name themselves. */
static DsvStatus attend(DsvStream *stream, const DsvAttentionArgs *args, bool backward,
                        dsvi_attention_fn *elsewhere)
{
    Plan *plan;
    char *variant = backward ? stream->attention_bwd : stream->attention_fwd;
    DSVI_TRY(dsvi_attention_check(args));
    if (!takes_shapes(args, backward) || !takes_addresses(args, backward))
        return elsewhere(stream, args);
    DSVI_TRY(plan_of(stream, args, backward, &plan));
    if (plan->graph.status == DSV_E_UNSUPPORTED)
        return elsewhere(stream, args);
    DSVI_TRY(plan_status(plan));
    if (args->workspace_bytes < plan->workspace_bytes)
        return DSVI_FAIL(DSV_E_SHAPE, "attention: workspace has %zu bytes, wanted %zu", args->workspace_bytes,
                         plan->workspace_bytes);
    if (!variant[0])
        snprintf(variant, sizeof stream->attention_fwd, "cudnn");
    return run_plan(stream, plan, args);
}

static DsvStatus attend_fwd(DsvStream *stream, const DsvAttentionArgs *args)
{
    return attend(stream, args, false, dsvi_cuda_attention_list_fwd);
}

static DsvAttentionSplit split_of(const DsvStream *stream, const DsvAttentionArgs *args)
{
    const DsvAttentionSplit whole = {.queries = args->queries, .keys = args->keys};
    return takes_shapes(args, false) ? dsvi_attention_split_of(stream, args) : whole;
}

static DsvStatus attend_bwd(DsvStream *stream, const DsvAttentionArgs *args)
{
    return attend(stream, args, true, dsvi_cuda_attention_list_bwd);
}

static DsvAttentionParts parts_of(const DsvStream *stream, const DsvAttentionArgs *args)
{
    return takes_shapes(args, true) ? dsvi_attention_parts_of(stream, args) : (DsvAttentionParts){0};
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Enough for cuDNN and for the kernels that stand in for it: addresses will decide between them. For fewer
 * heads too, with which cuDNN may not want more than deterministic plans may have. */
static size_t workspace_of(DsvStream *stream, const DsvAttentionArgs *args, bool backward)
{
    Plan *plan;
    size_t elsewhere = backward ? dsvi_cuda_attention_list_workspace(stream, args) : 0;
    if (dsvi_attention_check(args) != DSV_OK || !takes_shapes(args, backward) ||
        plan_of(stream, args, backward, &plan) != DSV_OK)
        return elsewhere;
    if (plan->graph.status == DSV_OK)
        return most(plan->workspace_bytes, elsewhere);
    return plan->too_large ? most(DETERMINISTIC_BYTES_MOST, elsewhere) : elsewhere;
}

static size_t attention_fwd_workspace(DsvStream *stream, const DsvAttentionArgs *args)
{
    DsvAttentionSplit split = split_of(stream, args);
    size_t bytes = 0;
    for (int i = 0; i < DSVI_ATTENTION_PIECES; i++) {
        DsvAttentionArgs piece = dsvi_attention_split_piece(args, split, (DsvAttentionPiece)i);
        bytes = most(bytes, workspace_of(stream, &piece, false));
    }
    return dsvi_attention_split_bytes(args, split) + bytes;
}

static size_t attention_bwd_workspace(DsvStream *stream, const DsvAttentionArgs *args)
{
    DsvAttentionParts parts = parts_of(stream, args);
    if (parts.parts == 0)
        return workspace_of(stream, args, true);
    DsvAttentionArgs first = dsvi_attention_parts_first(args, parts);
    DsvAttentionArgs rest = dsvi_attention_parts_rest(args, parts);
    size_t a = parts.first > 0 ? workspace_of(stream, &first, true) : 0;
    size_t b = dsvi_attention_parts_bytes(args, parts) + workspace_of(stream, &rest, true);
    return most(dsvi_cuda_attention_list_workspace(stream, args), most(a, b));
}

/* In pieces where there is room for them: fewer heads may want more than many. */
static DsvStatus attention_fwd(DsvStream *stream, const DsvAttentionArgs *args)
{
    stream->attention_fwd[0] = 0;
    if (!takes_addresses(args, false) || args->workspace_bytes < attention_fwd_workspace(stream, args))
        return attend_fwd(stream, args);
    return dsvi_attention_split_fwd(stream, args, split_of(stream, args), attend_fwd);
}

static DsvStatus attention_bwd(DsvStream *stream, const DsvAttentionArgs *args)
{
    DsvAttentionParts parts = parts_of(stream, args);
    stream->attention_bwd[0] = 0;
    if (parts.parts == 0 || !takes_addresses(args, true) ||
        args->workspace_bytes < attention_bwd_workspace(stream, args))
        return attend_bwd(stream, args);
    return dsvi_attention_parts_bwd(stream, args, parts, attend_bwd);
}

DsvStatus dsvi_attention_cudnn_serves(DsvStream *stream, const DsvAttentionArgs *args, bool backward)
{
    Plan *plan;
    DSVI_TRY(dsvi_attention_check(args));
    if (!takes_shapes(args, backward))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "attention: such types, sizes or strides are not for cuDNN");
    DSVI_TRY(plan_of(stream, args, backward, &plan));
    return plan_status(plan);
}

/* ---- set-up ---- */

DsvStatus dsvi_cuda_fill_attention_cudnn(DsvStream *stream, DsvOps *ops)
{
    if (cudnnGetVersion() < OLDEST)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "device=cuda: cuDNN is version %zu, wanted at least %d",
                         cudnnGetVersion(), OLDEST);
    stream->attention = calloc(1, sizeof *stream->attention);
    if (!stream->attention)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes for attention", sizeof *stream->attention);
    DSVI_CUDNN_TRY(cudnnCreate(&stream->attention->handle));
    DSVI_CUDNN_TRY(cudnnSetStream(stream->attention->handle, stream->handle));
    snprintf(stream->attention_fwd, sizeof stream->attention_fwd, "cudnn");
    snprintf(stream->attention_bwd, sizeof stream->attention_bwd, "cudnn");
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_fwd, attention_fwd, attention_fwd_workspace,
                                stream->attention_fwd);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_bwd, attention_bwd, attention_bwd_workspace,
                                stream->attention_bwd);
    return DSV_OK;
}

void dsvi_attention_cudnn_free(DsvAttentionCudnn **attention)
{
    if (!*attention)
        return;
    for (Plan *plan = (*attention)->plans, *next; plan; plan = next) {
        next = plan->next;
        release_plan(plan);
    }
    if ((*attention)->handle)
        cudnnDestroy((*attention)->handle);
    free(*attention);
    *attention = NULL;
}
