/* Dense attention by cuDNN: the formulas of ops/attention.h as two graphs that cuDNN's flash attention
 * engines recognise.
 *
 * cuDNN compiles an execution plan for each set of shapes and strides, when the workspace is first asked for
 * or at the first run. This takes about half a second. Plans are kept as long as the device. The scale is an
 * input of the plan, not part of it.
 *
 * The kernels of attention_list.cu serve what cuDNN does not: F32; head sizes, strides and addresses that are
 * not multiples of 8 elements; whatever else cuDNN's engines decline; and short sequences. For these, cuDNN
 * is slower (on one H200 with 6 heads of size 128, 4,096 queries and 4 keys, its backward pass takes 0.16 ms,
 * attention_list.cu 0.03 ms) and less exact: with logits of a million, cuDNN's gradient of a row whose
 * softmax is saturated is not quite zero. */
#include "cuda/attention/attention_cudnn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/attention/attention_parts.h"
#include "cuda/common/cudnn_graph.h"
#include "cuda/common/cuda.h"

enum {
    VERSION_MIN = 91002,      /* 9.10.2: NVIDIA's front end refuses 9.10.0 and 9.10.1 as faulty, and 9.9 does
                               * not support -inf in a mask */
    UNMASKED_VERSION = 91501, /* 9.15.1: earlier versions compute wrong gradients if the number of keys is no
                               * multiple of KEY_TILE, unless a mask marks where the keys end */
    KEY_TILE = 128,
    QUERIES_MIN = 256,
    KEYS_MIN = 256,
    VECTOR_BYTES = 16,
    VECTOR = VECTOR_BYTES / 2, /* number of BF16 elements in VECTOR_BYTES bytes */
    PIECE_BYTES = 256          /* offsets of buffers in the workspace are multiples of this number of bytes */
};

/* To add in a fixed order, cuDNN's backward pass keeps the gradient ds of the score of each pair of a query
 * and a key, 2 bytes each: 26 GB for 12 heads with 32,760 queries and keys. Deterministic plans that need
 * more workspace than this limit are not used; the kernels of attention_list.cu run instead. */
#define DETERMINISTIC_BYTES_MAX ((size_t)1 << 30)

/* Tensors and scalars that a plan reads or writes. The id of a tensor in cuDNN is 1 + its number in this
 * enum. */
enum {
    Q,
    K,
    V,
    OUT,
    DOUT,
    DQ,
    DK,
    DV,
    ROWS,
    LSE = ROWS,
    SCALE,
    ONE,
    DELTA,
    DQ_SUM,
    QUERIES,
    KEYS,
    MASKED_SCORE,
    TENSORS
};

/* The shapes and strides for which cuDNN compiles a plan. All fields are int64_t, without padding, so memcmp
 * compares problems. */
typedef struct Problem {
    int64_t backward, batch, heads, queries, keys, dim;
    int64_t stride[ROWS][3]; /* strides of each tensor along batch, head and token; the strides of gradients
                                are 0 in a forward problem */
} Problem;

typedef struct Plan {
    Problem problem;
    DsviCudnnGraph graph;
    size_t workspace_bytes; /* bytes of workspace for cuDNN itself, the tensor DELTA and the tensor DQ_SUM, in
                               this order */
    size_t delta_at, dq_sum_at; /* byte offsets of DELTA and DQ_SUM in the workspace; dq_sum_at is 0 if there
                                 * is no DQ_SUM */
    bool masked;
    bool too_large;   /* this is a deterministic plan and needs more workspace than DETERMINISTIC_BYTES_MAX */
    int32_t *lengths; /* in host memory, for a plan with a mask: the number of queries of each sample, then
                         the number of keys of each sample */
    char *lengths_on_gpu; /* copy of `lengths` in device memory; the plan owns both copies */
    struct Plan *next;
} Plan;

struct DsviAttentionCudnn {
    cudnnHandle_t handle;
    Plan *plans;
};

/* ---- the graphs ---- */

/* Shape of a contiguous tensor (B, N, rows, columns). */
static DsviCudnnShape contiguous_shape(const Problem *problem, int64_t rows, int64_t columns)
{
    int64_t matrix = rows * columns;
    return (DsviCudnnShape){{problem->batch, problem->heads, rows, columns},
                            {problem->heads * matrix, matrix, columns, 1}};
}

/* Shape (B, N, S, D) of tensor `which` of DsviAttentionArgs, with its strides. */
static DsviCudnnShape heads_shape(const Problem *problem, int which)
{
    bool of_keys = which == K || which == V || which == DK || which == DV;
    const int64_t *stride = problem->stride[which];
    return (DsviCudnnShape){{problem->batch, problem->heads, of_keys ? problem->keys : problem->queries,
                             problem->dim},
                            {stride[0], stride[1], stride[2], 1}};
}

static DsviCudnnShape transposed(DsviCudnnShape shape)
{
    return (DsviCudnnShape){{shape.size[0], shape.size[1], shape.size[3], shape.size[2]},
                            {shape.stride[0], shape.stride[1], shape.stride[3], shape.stride[2]}};
}

/* Tensor `which` of DsviAttentionArgs, (B, N, S, D). */
static DsviCudnnTensor heads_tensor(Plan *plan, int which)
{
    DsviCudnnShape shape = heads_shape(&plan->problem, which);
    return dsvi_cudnn_memory(&plan->graph, 1 + which, CUDNN_DATA_BFLOAT16, &shape);
}

/* Tensor `which` of DsviAttentionArgs with its last two dimensions exchanged, (B, N, D, S): the same memory
 * with other strides. */
static DsviCudnnTensor transposed_tensor(Plan *plan, int which)
{
    DsviCudnnShape shape = transposed(heads_shape(&plan->problem, which));
    return dsvi_cudnn_memory(&plan->graph, 1 + which, CUDNN_DATA_BFLOAT16, &shape);
}

/* An F32 tensor in memory, (B, N, Sq, columns). */
static DsviCudnnTensor float_tensor(Plan *plan, int which, int64_t columns)
{
    DsviCudnnShape shape = contiguous_shape(&plan->problem, plan->problem.queries, columns);
    return dsvi_cudnn_memory(&plan->graph, 1 + which, CUDNN_DATA_FLOAT, &shape);
}

/* An F32 tensor (B, N, Sq, columns) between two operations of the graph; cuDNN need not store it in memory.
 */
static DsviCudnnTensor intermediate(Plan *plan, int64_t columns)
{
    DsviCudnnShape shape = contiguous_shape(&plan->problem, plan->problem.queries, columns);
    return dsvi_cudnn_intermediate(&plan->graph, CUDNN_DATA_FLOAT, &shape);
}

/* A tensor with one element for each score, (B, N, Sq, Sk), between two operations of the graph; cuDNN need
 * not store it in memory. */
static DsviCudnnTensor scores_as(Plan *plan, cudnnDataType_t type)
{
    DsviCudnnShape shape = contiguous_shape(&plan->problem, plan->problem.queries, plan->problem.keys);
    return dsvi_cudnn_intermediate(&plan->graph, type, &shape);
}

static DsviCudnnTensor scores(Plan *plan)
{
    return scores_as(plan, CUDNN_DATA_FLOAT);
}

/* A tensor with one F32 for each query, (B, N, Sq, 1), between two operations of the graph. */
static DsviCudnnTensor row_sums(Plan *plan)
{
    return intermediate(plan, 1);
}

/* A new intermediate tensor of the shape of the scores, or of their transpose, in BF16: the left operand of a
 * product. */
static DsviCudnnTensor left_operand(Plan *plan, bool transpose)
{
    DsviCudnnShape shape = contiguous_shape(&plan->problem, plan->problem.queries, plan->problem.keys);
    if (transpose)
        shape = transposed(shape);
    return dsvi_cudnn_intermediate(&plan->graph, CUDNN_DATA_BFLOAT16, &shape);
}

/* The tensors in device memory that hold the number of queries, and of keys, of each sample; NULL in a plan
 * without a mask. */
typedef struct Lengths {
    DsviCudnnTensor queries, keys;
} Lengths;

static Lengths lengths_of(Plan *plan)
{
    const DsviCudnnShape shape = {{plan->problem.batch, 1, 1, 1}, {1, 1, 1, 1}};
    if (!plan->masked)
        return (Lengths){0};
    return (Lengths){dsvi_cudnn_memory(&plan->graph, 1 + QUERIES, CUDNN_DATA_INT32, &shape),
                     dsvi_cudnn_memory(&plan->graph, 1 + KEYS, CUDNN_DATA_INT32, &shape)};
}

/* Limits of the sizes of the three kinds of matrix products in a plan with a mask: products that compute
 * scores, sums over queries, and sums over keys. */
static DsviCudnnMatmulSize size_of_scores(Lengths n)
{
    return (DsviCudnnMatmulSize){.rows = n.queries, .columns = n.keys};
}

static DsviCudnnMatmulSize size_over_queries(Lengths n)
{
    return (DsviCudnnMatmulSize){.rows = n.keys, .inner = n.queries};
}

static DsviCudnnMatmulSize size_over_keys(Lengths n)
{
    return (DsviCudnnMatmulSize){.rows = n.queries, .inner = n.keys};
}

/* Adds the attention scores, scale times q . k, to the graph. */
static DsviCudnnTensor scaled_scores(Plan *plan, DsviCudnnTensor q, DsviCudnnTensor kt, DsviCudnnTensor scale,
                                     Lengths n)
{
    DsviCudnnTensor s = dsvi_cudnn_matmul(&plan->graph, q, kt, size_of_scores(n), scores(plan));
    return dsvi_cudnn_combine(&plan->graph, CUDNN_POINTWISE_MUL, s, scale, scores(plan));
}

static void build_forward(Plan *plan)
{
    DsviCudnnGraph *g = &plan->graph;
    const Lengths all = {0};
    DsviCudnnTensor s = scaled_scores(plan, heads_tensor(plan, Q), transposed_tensor(plan, K),
                                      dsvi_cudnn_scalar(g, 1 + SCALE), all);
    DsviCudnnTensor row_max = dsvi_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, row_sums(plan));
    DsviCudnnTensor below = dsvi_cudnn_combine(g, CUDNN_POINTWISE_SUB, s, row_max, scores(plan));
    DsviCudnnTensor e = dsvi_cudnn_map(g, CUDNN_POINTWISE_EXP, below, scores(plan));
    DsviCudnnTensor total = dsvi_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, row_sums(plan));
    DsviCudnnTensor log_total = dsvi_cudnn_map(g, CUDNN_POINTWISE_LOG, total, row_sums(plan));
    dsvi_cudnn_combine(g, CUDNN_POINTWISE_ADD, row_max, log_total, float_tensor(plan, LSE, 1));
    DsviCudnnTensor p = dsvi_cudnn_combine(g, CUDNN_POINTWISE_DIV, e, total, left_operand(plan, false));
    dsvi_cudnn_matmul(g, p, heads_tensor(plan, V), size_over_keys(all), heads_tensor(plan, OUT));
}

/* Adds delta_i = dout_i . out_i (of query i) to the graph. The multiplication by 1 stands where a graph with
 * dropout has its factor: without this multiplication, cuDNN does not recognise the graph as flash attention
 * and keeps all scores in memory. */
static DsviCudnnTensor build_delta(Plan *plan, DsviCudnnTensor dout)
{
    DsviCudnnGraph *g = &plan->graph;
    DsviCudnnTensor products = dsvi_cudnn_combine(g, CUDNN_POINTWISE_MUL, dout, heads_tensor(plan, OUT),
                                                  intermediate(plan, plan->problem.dim));
    DsviCudnnTensor sum = dsvi_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, products, row_sums(plan));
    return dsvi_cudnn_combine(g, CUDNN_POINTWISE_MUL, sum, dsvi_cudnn_scalar(g, 1 + ONE),
                              float_tensor(plan, DELTA, 1));
}

/* Adds dq = ds k (ds: gradient of the scores) to the graph. With an F32 sum of dq in memory, cuDNN's thread
 * blocks add to it in no fixed order. A deterministic graph has no such sum: cuDNN keeps ds in its workspace
 * and computes dq as one product. */
static void build_dq(Plan *plan, DsviCudnnTensor ds, DsviCudnnTensor kt, Lengths n, bool deterministic)
{
    DsviCudnnGraph *g = &plan->graph;
    DsviCudnnShape shape = heads_shape(&plan->problem, K);
    DsviCudnnTensor k = dsvi_cudnn_view(g, kt, dsvi_cudnn_intermediate(g, CUDNN_DATA_BFLOAT16, &shape));
    DsviCudnnTensor dq = heads_tensor(plan, DQ);
    if (deterministic)
        dsvi_cudnn_matmul(g, ds, k, size_over_keys(n), dq);
    else
        dsvi_cudnn_map(g, CUDNN_POINTWISE_IDENTITY,
                       dsvi_cudnn_matmul(g, ds, k, size_over_keys(n),
                                         float_tensor(plan, DQ_SUM, plan->problem.dim)),
                       dq);
}

/* A boolean tensor with one element for each score s: true if the score's row (axis 2) or column (axis 3)
 * number is less than `length`. */
static DsviCudnnTensor below_length(Plan *plan, DsviCudnnTensor s, int64_t axis, DsviCudnnTensor length)
{
    DsviCudnnTensor index = dsvi_cudnn_index(&plan->graph, axis, s, scores_as(plan, CUDNN_DATA_INT32));
    return dsvi_cudnn_test(&plan->graph, CUDNN_POINTWISE_CMP_LT, index, length,
                           scores_as(plan, CUDNN_DATA_BOOLEAN));
}

/* Adds a mask to the graph: returns the scores s, with -inf in rows beyond the last query and columns beyond
 * the last key. cuDNN's kernel reads the lengths only if the products also have them as sizes
 * (DsviCudnnMatmulSize). */
static DsviCudnnTensor mask_scores(Plan *plan, DsviCudnnTensor s, Lengths n)
{
    DsviCudnnGraph *g = &plan->graph;
    DsviCudnnTensor row = below_length(plan, s, 2, n.queries), column = below_length(plan, s, 3, n.keys);
    DsviCudnnTensor both = dsvi_cudnn_test(g, CUDNN_POINTWISE_LOGICAL_AND, row, column,
                                           scores_as(plan, CUDNN_DATA_BOOLEAN));
    return dsvi_cudnn_select(g, both, s, dsvi_cudnn_scalar(g, 1 + MASKED_SCORE), scores(plan));
}

static void build_backward(Plan *plan, bool deterministic)
{
    DsviCudnnGraph *g = &plan->graph;
    DsviCudnnTensor scale = dsvi_cudnn_scalar(g, 1 + SCALE);
    DsviCudnnTensor q = heads_tensor(plan, Q), kt = transposed_tensor(plan, K);
    DsviCudnnTensor dout = heads_tensor(plan, DOUT);
    DsviCudnnTensor delta = build_delta(plan, dout);
    Lengths n = lengths_of(plan);

    DsviCudnnTensor s = scaled_scores(plan, q, kt, scale, n);
    if (plan->masked)
        s = mask_scores(plan, s, n);
    DsviCudnnTensor below = dsvi_cudnn_combine(g, CUDNN_POINTWISE_SUB, s, float_tensor(plan, LSE, 1),
                                               scores(plan));
    DsviCudnnTensor p = dsvi_cudnn_map(g, CUDNN_POINTWISE_EXP, below, scores(plan));
    DsviCudnnTensor pt = dsvi_cudnn_view(g, p, left_operand(plan, true));
    dsvi_cudnn_matmul(g, pt, dout, size_over_queries(n), heads_tensor(plan, DV));

    DsviCudnnTensor vt = transposed_tensor(plan, V);
    DsviCudnnTensor dp = dsvi_cudnn_matmul(g, dout, vt, size_of_scores(n), scores(plan));
    DsviCudnnTensor off = dsvi_cudnn_combine(g, CUDNN_POINTWISE_SUB, dp, delta, scores(plan));
    DsviCudnnTensor ds = dsvi_cudnn_combine(g, CUDNN_POINTWISE_MUL, off, p, scores(plan));
    ds = dsvi_cudnn_combine(g, CUDNN_POINTWISE_MUL, ds, scale, scores(plan));
    DsviCudnnTensor dst = dsvi_cudnn_view(g, ds, left_operand(plan, true));
    dsvi_cudnn_matmul(g, dst, q, size_over_queries(n), heads_tensor(plan, DK));
    build_dq(plan, ds, kt, n, deterministic);
}

/* ---- plans ---- */

static size_t round_to_piece(size_t bytes)
{
    return (bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
}

/* Bytes of an array with one length (number of queries, or of keys) for each sample. */
static size_t length_bytes(const Plan *plan)
{
    return round_to_piece((size_t)plan->problem.batch * sizeof(int32_t));
}

static void layout_workspace(Plan *plan, bool deterministic)
{
    const Problem *p = &plan->problem;
    size_t column_bytes = (size_t)(p->batch * p->heads * p->queries) * sizeof(float);
    plan->workspace_bytes = (size_t)plan->graph.workspace_bytes;
    if (!p->backward)
        return;
    plan->delta_at = round_to_piece(plan->workspace_bytes);
    plan->workspace_bytes = plan->delta_at + column_bytes;
    if (deterministic)
        return;
    plan->dq_sum_at = round_to_piece(plan->workspace_bytes);
    plan->workspace_bytes = plan->dq_sum_at + column_bytes * (size_t)p->dim;
}

/* Builds the graph and its execution plan. plan->graph.status is DSV_OK if cuDNN can compute attention of
 * these shapes and strides. */
static void make_attention_plan(Plan *plan, cudnnHandle_t handle, bool deterministic)
{
    DsviCudnnGraph *g = &plan->graph;
    if (plan->problem.backward)
        build_backward(plan, deterministic);
    else
        build_forward(plan);
    dsvi_cudnn_graph_plan(g, handle);
    layout_workspace(plan, deterministic);
    if (g->status != DSV_OK || !deterministic || plan->workspace_bytes <= DETERMINISTIC_BYTES_MAX)
        return;
    plan->too_large = true;
    g->status = DSV_E_UNSUPPORTED;
    snprintf(g->why, sizeof g->why, "cuDNN would need %zu bytes to be deterministic", plan->workspace_bytes);
}

static bool needs_mask(const Problem *problem)
{
    return problem->backward && problem->keys % KEY_TILE != 0 && cudnnGetVersion() < UNMASKED_VERSION;
}

/* A masked plan owns a few hundred bytes of device memory for its lengths. The lengths are not in the
 * workspace because each run would then have to write them again. The copy of the lengths to the device is
 * enqueued on the stream before the plan's first run. The host memory of the lengths is kept, because the
 * copy may read it after this function has returned. */
static DsvStatus upload_lengths(DsviStream *stream, Plan *plan)
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
    DSVI_CUDA_TRY(
        cudaMemcpyAsync(plan->lengths_on_gpu, plan->lengths, bytes, cudaMemcpyHostToDevice, stream->handle));
    return DSV_OK;
}

static void release_plan(Plan *plan)
{
    cudaFree(plan->lengths_on_gpu);
    free(plan->lengths);
    dsvi_cudnn_graph_release(&plan->graph);
    free(plan);
}

/* Returns how many tensors of DsviAttentionArgs a forward or backward pass uses. They are the first ones of
 * the enum whose first entry is Q. */
static int rows_in(bool backward)
{
    return backward ? ROWS : DOUT;
}

static void list_rows(const DsviAttentionArgs *args, const DsviHeads *rows[ROWS])
{
    const DsviHeads *all[ROWS] = {
        [Q] = &args->q,       [K] = &args->k,   [V] = &args->v,   [OUT] = &args->out,
        [DOUT] = &args->dout, [DQ] = &args->dq, [DK] = &args->dk, [DV] = &args->dv,
    };
    memcpy(rows, all, sizeof all);
}

static Problem attention_cudnn_problem_of(const DsviAttentionArgs *args, bool backward)
{
    const DsviHeads *rows[ROWS];
    Problem problem = {.backward = backward,
                       .batch = args->batch,
                       .heads = args->heads,
                       .queries = args->queries,
                       .keys = args->keys,
                       .dim = args->head_dim};
    list_rows(args, rows);
    for (int i = 0; i < rows_in(backward); i++) {
        problem.stride[i][0] = rows[i]->batch_stride;
        problem.stride[i][1] = rows[i]->head_stride;
        problem.stride[i][2] = rows[i]->token_stride;
    }
    return problem;
}

/* Returns cuDNN's plan for these shapes and strides: one of the stream's plans, or a new one that is added to
 * them. The plan's graph.status is DSV_E_UNSUPPORTED if cuDNN declines these shapes and strides. */
static DsvStatus plan_of(DsviStream *stream, const DsviAttentionArgs *args, bool backward, Plan **out)
{
    DsviAttentionCudnn *attention = stream->attention;
    Problem problem = attention_cudnn_problem_of(args, backward);
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
    make_attention_plan(plan, attention->handle, stream->deterministic);
    DsvStatus status = plan->masked && plan->graph.status == DSV_OK ? upload_lengths(stream, plan) : DSV_OK;
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

/* Returns whether dtypes, sizes and strides of the arguments are such that cuDNN may have a plan for them.
 * The addresses of the tensors are not read. */
static bool supports_shapes(const DsviAttentionArgs *args, bool backward)
{
    const DsviHeads *rows[ROWS];
    if (args->lists || args->act != DSVI_BF16 || args->acc != DSVI_F32 || args->head_dim % VECTOR != 0 ||
        args->batch == 0 || args->heads == 0 || args->queries < QUERIES_MIN || args->keys < KEYS_MIN)
        return false;
    list_rows(args, rows);
    for (int i = 0; i < rows_in(backward); i++)
        if (rows[i]->batch_stride % VECTOR != 0 || rows[i]->head_stride % VECTOR != 0 ||
            rows[i]->token_stride % VECTOR != 0)
            return false;
    return true;
}

static bool supports_addresses(const DsviAttentionArgs *args, bool backward)
{
    const DsviHeads *rows[ROWS];
    list_rows(args, rows);
    for (int i = 0; i < rows_in(backward); i++)
        if ((uintptr_t)rows[i]->data % VECTOR_BYTES != 0)
            return false;
    return (uintptr_t)args->lse % VECTOR_BYTES == 0;
}

static DsvStatus attention_cudnn_run_plan(DsviStream *stream, const Plan *plan, const DsviAttentionArgs *args)
{
    bool backward = plan->problem.backward != 0;
    float scale = (float)args->scale, one = 1, masked_score = -INFINITY;
    char *workspace = args->workspace;
    void *of[TENSORS] = {[LSE] = args->lse, [SCALE] = &scale}, *data[TENSORS];
    int64_t id[TENSORS];
    const DsviHeads *rows[ROWS];
    int count = 0;
    list_rows(args, rows);
    for (int i = 0; i < rows_in(backward); i++)
        of[i] = rows[i]->data;
    if (backward) {
        of[ONE] = &one;
        of[DELTA] = workspace + plan->delta_at;
        of[DQ_SUM] = plan->dq_sum_at > 0 ? workspace + plan->dq_sum_at : NULL;
        /* cuDNN adds to DQ_SUM. Version 9.19 clears it first on Hopper, but no contract promises this: with
         * another version dq could be wrong without any error. */
        if (of[DQ_SUM])
            DSVI_CUDA_TRY(
                cudaMemsetAsync(of[DQ_SUM], 0, plan->workspace_bytes - plan->dq_sum_at, stream->handle));
    }
    if (plan->masked) {
        of[QUERIES] = plan->lengths_on_gpu;
        of[KEYS] = plan->lengths_on_gpu + length_bytes(plan);
        of[MASKED_SCORE] = &masked_score;
    }
    for (int i = 0; i < TENSORS; i++) {
        if (!of[i])
            continue;
        id[count] = 1 + i;
        data[count++] = of[i];
    }
    DSVI_CUDNN_TRY(cudnnSetStream(stream->attention->handle, stream->handle)); /* use_stream replaces it */
    return dsvi_cudnn_graph_run(&plan->graph, stream->attention->handle, count, id, data, workspace);
}

/* Returns DSV_OK if cuDNN has a plan. Otherwise records the reason that is stored in the plan as the failure
 * of this call. */
static DsvStatus plan_status(const Plan *plan)
{
    const DsviCudnnGraph *g = &plan->graph;
    return g->status == DSV_OK ? DSV_OK : DSVI_FAIL(g->status, "attention: %s", g->why);
}

/* Enqueues one call on cuDNN, or on `fallback` if cuDNN declines it. `fallback` writes the name of its
 * kernels to the `variant` of the op table itself. */
static DsvStatus attend_by_cudnn(DsviStream *stream, const DsviAttentionArgs *args, bool backward,
                                 dsvi_attention_fn *fallback)
{
    Plan *plan;
    char *variant = backward ? stream->attention_bwd : stream->attention_fwd;
    DSVI_TRY(dsvi_attention_check(args));
    if (!supports_shapes(args, backward) || !supports_addresses(args, backward))
        return fallback(stream, args);
    DSVI_TRY(plan_of(stream, args, backward, &plan));
    if (plan->graph.status == DSV_E_UNSUPPORTED)
        return fallback(stream, args);
    DSVI_TRY(plan_status(plan));
    if (args->workspace_bytes < plan->workspace_bytes)
        return DSVI_FAIL(DSV_E_SHAPE, "attention: workspace has %zu bytes, expected %zu",
                         args->workspace_bytes, plan->workspace_bytes);
    if (!variant[0])
        snprintf(variant, sizeof stream->attention_fwd, "cudnn");
    return attention_cudnn_run_plan(stream, plan, args);
}

static DsvStatus attend_fwd(DsviStream *stream, const DsviAttentionArgs *args)
{
    return attend_by_cudnn(stream, args, false, dsvi_cuda_attention_list_fwd);
}

static DsvStatus attend_bwd(DsviStream *stream, const DsviAttentionArgs *args)
{
    return attend_by_cudnn(stream, args, true, dsvi_cuda_attention_list_bwd);
}

static DsviAttentionParts parts_of(const DsviStream *stream, const DsviAttentionArgs *args, bool backward)
{
    return supports_shapes(args, backward) ? dsvi_attention_parts_choose(stream, args, backward)
                                           : dsvi_attention_parts_whole(args, backward);
}

static size_t larger_of(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Bytes of workspace that one pass needs which is not divided into several calls. The bytes are enough for
 * cuDNN and for the fallback, because addresses, known only at the call, decide between the two. The bytes
 * are also enough for fewer heads, even if a deterministic plan exceeds DETERMINISTIC_BYTES_MAX with all
 * heads but not with fewer. */
static size_t attention_cudnn_workspace_of(DsviStream *stream, const DsviAttentionArgs *args, bool backward)
{
    Plan *plan;
    size_t fallback = backward ? dsvi_cuda_attention_list_workspace(stream, args) : 0;
    if (dsvi_attention_check(args) != DSV_OK || !supports_shapes(args, backward) ||
        plan_of(stream, args, backward, &plan) != DSV_OK)
        return fallback;
    if (plan->graph.status == DSV_OK)
        return larger_of(plan->workspace_bytes, fallback);
    return plan->too_large ? larger_of(DETERMINISTIC_BYTES_MAX, fallback) : fallback;
}

/* Bytes of workspace that a pass needs which is divided into several calls of cuDNN (attention_parts.h). */
static size_t attention_cudnn_workspace(DsviStream *stream, const DsviAttentionArgs *args,
                                        DsviAttentionParts parts)
{
    size_t bytes = parts.backward ? dsvi_cuda_attention_list_workspace(stream, args) : 0;
    for (int i = 0; i < DSVI_ATTENTION_CALLS; i++) {
        DsviAttentionArgs call = dsvi_attention_parts_call(args, parts, (DsviAttentionCall)i);
        if (call.queries > 0 && call.keys > 0)
            bytes = larger_of(bytes, dsvi_attention_parts_offset(args, parts, (DsviAttentionCall)i) +
                                         attention_cudnn_workspace_of(stream, &call, parts.backward));
    }
    return bytes;
}

static size_t attention_fwd_workspace(DsviStream *stream, const DsviAttentionArgs *args)
{
    return attention_cudnn_workspace(stream, args, parts_of(stream, args, false));
}

static size_t attention_bwd_workspace(DsviStream *stream, const DsviAttentionArgs *args)
{
    return attention_cudnn_workspace(stream, args, parts_of(stream, args, true));
}

/* Enqueues a pass of dense attention, divided into several calls of cuDNN if the workspace has room for all
 * of these calls: the caller may have asked for the size of the workspace with more heads, for which the
 * division can need less workspace. */
static DsvStatus attention_dense(DsviStream *stream, const DsviAttentionArgs *args, bool backward,
                                 dsvi_attention_fn *attend)
{
    DsviAttentionParts parts = parts_of(stream, args, backward);
    char *variant = backward ? stream->attention_bwd : stream->attention_fwd;
    variant[0] = 0; /* the first call writes the name of its kernels (name_variant of attention_list.cu) */
    if (dsvi_attention_parts_is_whole(args, parts) || !supports_addresses(args, backward) ||
        args->workspace_bytes < attention_cudnn_workspace(stream, args, parts))
        return attend(stream, args);
    return dsvi_attention_parts_run(stream, args, parts, attend);
}

static DsvStatus attention_fwd(DsviStream *stream, const DsviAttentionArgs *args)
{
    return attention_dense(stream, args, false, attend_fwd);
}

static DsvStatus attention_bwd(DsviStream *stream, const DsviAttentionArgs *args)
{
    return attention_dense(stream, args, true, attend_bwd);
}

DsvStatus dsvi_attention_cudnn_serves(DsviStream *stream, const DsviAttentionArgs *args, bool backward)
{
    Plan *plan;
    DSVI_TRY(dsvi_attention_check(args));
    if (!supports_shapes(args, backward))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "attention: cuDNN does not serve these types, sizes or strides");
    DSVI_TRY(plan_of(stream, args, backward, &plan));
    return plan_status(plan);
}

/* ---- set-up ---- */

DsvStatus dsvi_cuda_fill_attention_cudnn(DsviStream *stream, DsviOps *ops)
{
    if (cudnnGetVersion() < VERSION_MIN)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "device=cuda: cuDNN is version %zu, expected at least %d",
                         cudnnGetVersion(), VERSION_MIN);
    stream->attention = calloc(1, sizeof *stream->attention);
    if (!stream->attention)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes for attention", sizeof *stream->attention);
    DSVI_CUDNN_TRY(cudnnCreate(&stream->attention->handle));
    snprintf(stream->attention_fwd, sizeof stream->attention_fwd, "cudnn");
    snprintf(stream->attention_bwd, sizeof stream->attention_bwd, "cudnn");
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_fwd, attention_fwd, attention_fwd_workspace,
                                stream->attention_fwd);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_bwd, attention_bwd, attention_bwd_workspace,
                                stream->attention_bwd);
    return DSV_OK;
}

void dsvi_attention_cudnn_free(DsviAttentionCudnn **attention)
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
