/* The learned predictor of DSV (arXiv 2502.07590): per block one linear layer from what fed the q and k
 * projections to rank features of every query and key of every head, taught on sampled queries to order keys
 * as the true scores do, with an AdamW of its own. Nothing flows back into the model. It knows no positions
 * but what the hidden state tells: on a model with RoPE it is the weaker way, kept for comparison.
 *
 * The layer's output of a token is (N, 2, R): for each head Q_lr, then K_lr. Weights are kept in acc; the
 * product is done in act. Gradients of all passes of a step, and of all ranks, are summed and averaged when
 * it ends.
 *
 * Of ranks that share samples each has the output of its own tokens. To learn, outputs go to where the exact
 * scores are, a head's two parts as one row, and their gradients come back from there: summed over the ranks
 * whose queries met the same keys. A rank's part of a pass's loss counts by its share of the scored rows. */
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "sparse/selector.h"

/* Of the loss, as DSV has it. */
#define COS_WEIGHT 0.95
#define NORM_WEIGHT 0.05

/* Streams of DSV_RNG_INIT from here on are the predictors'; the model's tensors count from 0. */
#define FIRST_STREAM 0x80000000u

typedef struct Predictor {
    DsvSelector base;
    DsvDtype acc;
    int64_t rank, inputs, outputs; /* R, C, 2 R N */
    int64_t samples;               /* queries that teach, per pass */
    int64_t size;                  /* parameters of a block: weight (outputs, C), bias (outputs) */

    /* Device memory. The first three are saved. */
    void *weight;           /* (blocks, size) acc */
    void *moment1, *moment2; /* (blocks, size) acc; what never learns has none, nor gradients */
    void *compute;          /* (blocks, outputs, C) act; the weights themselves when act is acc */
    void *grad;             /* (blocks, size) acc */
    void *loss;             /* (blocks) acc, summed over the passes of a step */
    void *pass_loss;        /* (1) acc */
    int32_t *sample;        /* (blocks, samples) */
    void *output, *doutput; /* (B, S, N, 2, R) acc, of the own tokens */
    void *doutput_act;      /* the same in act */
    void *heads_room, *dheads_room; /* the first two of the view's tokens and heads, */
    void *all_room, *dall_room;     /* and of all tokens: where a context keeps these apart */
    void *moved, *summed;   /* workspace of moves, and of sums over ranks */
    void *workspace;
    size_t workspace_bytes;

    /* Host memory. */
    int32_t *host_sample;   /* (blocks, samples) of all queries; the view's come first */
    int64_t *own_samples;   /* (blocks) the view's */
    void *host_loss;        /* (blocks) acc */
    int64_t *passes;        /* (blocks) learnt from in this step */
    int64_t updates;        /* AdamW steps done; saved */
} Predictor;

static void release(DsvSelector *s)
{
    Predictor *p = (Predictor *)s;
    free(p->host_sample);
    free(p->own_samples);
    free(p->host_loss);
    free(p->passes);
    free(p);
}

static DsvStatus create(const DsvConfig *settings, const DsvSparseShape *shape, DsvSelector **out)
{
    Predictor *p = calloc(1, sizeof *p);
    if (!p)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the predictor");
    p->acc = shape->act == DSV_F64 ? DSV_F64 : DSV_F32;
    p->rank = settings->sparse_rank;
    p->inputs = shape->heads * shape->head_dim;
    p->outputs = 2 * p->rank * shape->heads;
    p->size = p->outputs * (p->inputs + 1);
    p->samples = settings->sparse_predictor_samples < shape->tokens ? settings->sparse_predictor_samples
                                                                     : shape->tokens;
    p->base.features.chunk = settings->sparse_chunk;
    p->base.features.candidate_keys = 1;
    p->base.features.features = p->rank;
    p->base.features.coarse = true;
    p->base.features.scale = 1 / sqrt((double)p->rank);
    p->host_sample = calloc((size_t)(shape->blocks * p->samples), sizeof(int32_t));
    p->own_samples = calloc((size_t)shape->blocks, sizeof(int64_t));
    p->host_loss = calloc((size_t)shape->blocks, dsvi_dtype_size(p->acc));
    p->passes = calloc((size_t)shape->blocks, sizeof(int64_t));
    if (!p->host_sample || !p->own_samples || !p->host_loss || !p->passes) {
        release(&p->base);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the samples of %lld predictors",
                         (long long)shape->blocks);
    }
    *out = &p->base;
    return DSV_OK;
}

/* Element i of an array of acc. */
static void *acc_at(const Predictor *p, void *array, int64_t i)
{
    return (unsigned char *)array + (size_t)i * dsvi_dtype_size(p->acc);
}

static void *compute_of(const Predictor *p, int64_t block)
{
    if (p->base.shape.act == p->acc)
        return acc_at(p, p->weight, block * p->size);
    return (unsigned char *)p->compute +
           (size_t)(block * p->outputs * p->inputs) * dsvi_dtype_size(p->base.shape.act);
}

/* Q_lr (part 0) or K_lr (part 1) in an array like `output`, of so many tokens and heads. */
static DsvHeads part_of(const Predictor *p, void *output, int64_t tokens, int64_t heads, int part)
{
    int64_t row = 2 * p->rank;
    return (DsvHeads){
        .data = acc_at(p, output, part * p->rank), .batch_stride = tokens * heads * row,
        .token_stride = heads * row, .head_stride = row,
    };
}

/* An array like `output` in the forms it has: of the own tokens, and of the view's tokens and heads; of all
 * tokens of these heads. Without a context they are one. */
typedef struct Forms {
    DsvContextForms own;
    void *all;
} Forms;

static Forms forms_of(const Predictor *p, int64_t block, void *tokens, void *heads_room, void *all_room)
{
    const DsvContext *context = p->base.shape.context;
    Forms f = {{tokens, tokens}, tokens};
    if (!context)
        return f;
    f.own.heads = dsvi_context_heads_place(context, block, tokens, heads_room);
    f.all = dsvi_context_all_place(context, block, f.own.heads, all_room);
    return f;
}

/* A head's Q_lr and K_lr are one row. */
static DsvContextTensor tensor_of(const Predictor *p)
{
    return (DsvContextTensor){p->base.shape.batch, 2 * p->rank, p->acc};
}

/* Of the view's queries from `sample` on, with outputs and their gradients of all tokens. The loss is
 * linear in its weights: they carry the view's share of all that is sampled. */
static DsvPredictorLossArgs loss_args(const Predictor *p, const DsvSparseView *view, int64_t samples,
                                      const int32_t *sample, const DsvSparseScored *scored, void *output,
                                      void *doutput)
{
    const DsvSparseShape *shape = &p->base.shape;
    size_t acc = dsvi_dtype_size(p->acc);
    double share = (double)(samples * view->heads) / (double)(p->samples * shape->heads);
    DsvHeads ql = part_of(p, output, shape->tokens, view->heads, 0);
    DsvHeads dql = part_of(p, doutput, shape->tokens, view->heads, 0);
    return (DsvPredictorLossArgs){
        .batch = shape->batch, .heads = view->heads, .queries = view->queries, .keys = shape->tokens,
        .head_dim = shape->head_dim, .rank = p->rank, .cos_weight = share * COS_WEIGHT,
        .norm_weight = share * NORM_WEIGHT, .centred = p->base.settings->sparse_predictor_centred,
        .act = shape->act, .acc = p->acc,
        .q = dsvi_heads(scored->q, view->queries, view->heads, shape->head_dim),
        .k = dsvi_heads(scored->k, shape->tokens, view->heads, shape->head_dim),
        .ql = dsvi_heads_from(&ql, view->first, acc), .dql = dsvi_heads_from(&dql, view->first, acc),
        .kl = part_of(p, output, shape->tokens, view->heads, 1),
        .dkl = part_of(p, doutput, shape->tokens, view->heads, 1),
        .samples = samples, .sample = sample, .loss = p->pass_loss,
        .workspace = p->workspace, .workspace_bytes = p->workspace_bytes,
    };
}

/* Rows of the own tokens. */
static int64_t own_rows(const Predictor *p)
{
    return p->base.shape.batch * p->base.tokens;
}

static void carve_rooms(Predictor *p, DsvArena *arena)
{
    const DsvContext *context = p->base.shape.context;
    DsvContextTensor tensor = tensor_of(p);
    size_t heads = dsvi_context_heads_room_bytes(context, &tensor);
    size_t all = dsvi_context_all_room_bytes(context, &tensor);
    p->heads_room = dsvi_arena_take(arena, DSV_MEM_SCRATCH, heads);
    p->dheads_room = dsvi_arena_take(arena, DSV_MEM_SCRATCH, heads);
    p->all_room = dsvi_arena_take(arena, DSV_MEM_SCRATCH, all);
    p->dall_room = dsvi_arena_take(arena, DSV_MEM_SCRATCH, all);
    p->moved = dsvi_arena_take(arena, DSV_MEM_SCRATCH, /* one tensor at a time */
                               dsvi_context_move_bytes(context, &tensor) / DSV_CONTEXT_TOGETHER);
    p->summed = dsvi_arena_take(arena, DSV_MEM_SCRATCH, dsvi_context_sum_bytes(context));
}

/* What serves all heads and samples serves fewer. */
static size_t loss_workspace(const Predictor *p)
{
    const DsvSparseShape *shape = &p->base.shape;
    const DsvSparseView whole = {.queries = shape->tokens, .heads = shape->heads};
    const DsvSparseScored nothing = {0};
    DsvPredictorLossArgs args = loss_args(p, &whole, p->samples, p->sample, &nothing, NULL, NULL);
    return DSVI_OP_WORKSPACE(p->base.backend->ops.predictor_loss, p->base.backend->device->stream, &args);
}

static void carve(DsvSelector *s, DsvArena *arena)
{
    Predictor *p = (Predictor *)s;
    size_t acc = dsvi_dtype_size(p->acc), act = dsvi_dtype_size(s->shape.act);
    size_t blocks = (size_t)s->shape.blocks, output = (size_t)(own_rows(p) * p->outputs);
    size_t parameters = blocks * (size_t)p->size * acc;
    bool cast = s->shape.act != p->acc, backward = s->shape.backward;

    p->weight = dsvi_arena_take(arena, DSV_MEM_SPARSE, parameters);
    p->compute = dsvi_arena_take(arena, DSV_MEM_SPARSE,
                                 cast ? blocks * (size_t)(p->outputs * p->inputs) * act : 0);
    p->grad = dsvi_arena_take(arena, DSV_MEM_SPARSE, backward ? parameters : 0);
    p->moment1 = dsvi_arena_take(arena, DSV_MEM_SPARSE, backward ? parameters : 0);
    p->moment2 = dsvi_arena_take(arena, DSV_MEM_SPARSE, backward ? parameters : 0);
    p->loss = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * acc);
    p->pass_loss = dsvi_arena_take(arena, DSV_MEM_SPARSE, acc);
    p->sample = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * (size_t)p->samples * sizeof(int32_t));
    p->output = dsvi_arena_take(arena, DSV_MEM_SCRATCH, output * acc);
    p->doutput = dsvi_arena_take(arena, DSV_MEM_SCRATCH, backward ? output * acc : 0);
    p->doutput_act = dsvi_arena_take(arena, DSV_MEM_SCRATCH, backward && cast ? output * act : 0);

    if (backward && s->shape.context)
        carve_rooms(p, arena);
    p->workspace_bytes = backward ? loss_workspace(p) : 0;
    p->workspace = dsvi_arena_take(arena, DSV_MEM_SCRATCH, p->workspace_bytes);
}

static DsvStatus convert(const Predictor *p, int64_t n, double a, DsvDtype from, const void *x, double b,
                         DsvDtype to, void *y)
{
    DsvAddArgs args = {.n = n, .a = a, .b = b, .x_dtype = from, .y_dtype = to, .x = x, .y = y};
    return p->base.backend->ops.add.run(p->base.backend->device->stream, &args);
}

/* Brings the weights' copy in act up to date. */
static DsvStatus refresh_compute(DsvSelector *s)
{
    Predictor *p = (Predictor *)s;
    if (s->shape.act == p->acc)
        return DSV_OK;
    for (int64_t block = 0; block < s->shape.blocks; block++)
        DSVI_TRY(convert(p, p->outputs * p->inputs, 1, p->acc, acc_at(p, p->weight, block * p->size), 0,
                         s->shape.act, compute_of(p, block)));
    return DSV_OK;
}

/* Kaiming-normal weights for the given number of inputs, zero biases, zero moments. */
static DsvStatus setup(DsvSelector *s)
{
    Predictor *p = (Predictor *)s;
    DsvDevice *device = s->backend->device;
    DsvStatus status = DSV_OK;
    size_t bytes = (size_t)p->size * dsvi_dtype_size(p->acc);
    double deviation = sqrt(2 / (double)p->inputs);
    void *host = malloc(bytes);
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu bytes of a predictor", bytes);
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        DsvRng rng = {(uint64_t)s->settings->seed, DSV_RNG_INIT, FIRST_STREAM + (uint32_t)block};
        for (int64_t i = 0; i < p->size; i++)
            dsvi_store(p->acc, host, i, i < p->outputs * p->inputs
                                            ? deviation * dsvi_rng_normal(rng, (uint64_t)i) : 0);
        void *weight = acc_at(p, p->weight, block * p->size);
        DSVI_TRY_GOTO(status, device->upload(device->stream, weight, host, bytes), done);
        DSVI_TRY_GOTO(status, device->sync(device->stream), done);
    }
    size_t moments = s->shape.backward ? (size_t)s->shape.blocks * bytes : 0;
    DSVI_TRY_GOTO(status, device->zero(device->stream, p->moment1, moments), done);
    DSVI_TRY_GOTO(status, device->zero(device->stream, p->moment2, moments), done);
    DSVI_TRY_GOTO(status, refresh_compute(s), done);
done:
    free(host);
    return status;
}

static DsvStatus step_begin(DsvSelector *s)
{
    Predictor *p = (Predictor *)s;
    DsvDevice *device = s->backend->device;
    int64_t blocks = s->shape.blocks;
    size_t acc = dsvi_dtype_size(p->acc);
    if (!dsvi_selector_learns(s))
        return DSV_OK;
    for (int64_t block = 0; block < blocks; block++) {
        DsvSparseView view = dsvi_sparse_view_of(&s->shape, block);
        int32_t *sample = p->host_sample + block * p->samples;
        p->passes[block] = 0;
        dsvi_draw_queries((uint64_t)s->settings->seed, s->step, block, DSV_DRAW_PREDICTOR, s->shape.tokens,
                          p->samples, sample);
        p->own_samples[block] = dsvi_keep_queries(&view, p->samples, sample);
    }
    DSVI_TRY(device->upload(device->stream, p->sample, p->host_sample,
                            (size_t)(blocks * p->samples) * sizeof(int32_t)));
    DSVI_TRY(device->zero(device->stream, p->loss, (size_t)blocks * acc));
    return device->zero(device->stream, p->grad, (size_t)(blocks * p->size) * acc);
}

/* output = hidden W^T + bias */
static DsvStatus predict(const Predictor *p, int64_t block, const void *hidden)
{
    const DsvSparseShape *shape = &p->base.shape;
    DsvGemmArgs args = {
        .m = own_rows(p), .n = p->outputs, .k = p->inputs,
        .ab_dtype = shape->act, .c_dtype = p->acc, .a = hidden, .lda = p->inputs,
        .b = compute_of(p, block), .ldb = p->inputs, .trans_b = true, .c = p->output, .ldc = p->outputs,
        .bias_dtype = p->acc, .bias = acc_at(p, p->weight, block * p->size + p->outputs * p->inputs),
    };
    return p->base.backend->ops.gemm.run(p->base.backend->device->stream, &args);
}

/* Outputs of the own tokens to where the exact scores are. */
static DsvStatus spread_output(const Predictor *p, int64_t block, const Forms *output)
{
    const DsvContext *context = p->base.shape.context;
    DsvContextTensor tensor = tensor_of(p);
    if (!context)
        return DSV_OK;
    DSVI_TRY(dsvi_context_to_heads(context, block, &tensor, &output->own, 1, p->moved));
    return dsvi_context_gather(context, block, &tensor, output->own.heads, output->all);
}

/* And their gradients back. */
static DsvStatus return_gradient(const Predictor *p, int64_t block, const Forms *doutput)
{
    const DsvContext *context = p->base.shape.context;
    DsvContextTensor tensor = tensor_of(p);
    if (!context)
        return DSV_OK;
    DSVI_TRY(dsvi_context_sum(context, block, &tensor, doutput->all, doutput->own.heads, p->summed));
    return dsvi_context_to_tokens(context, block, &tensor, &doutput->own, 1, p->moved);
}

/* The loss of the view's samples, to pass_loss, and the gradient by the outputs of the own tokens. */
static DsvStatus find_loss(const Predictor *p, int64_t block, const DsvSparseScored *scored)
{
    const DsvSparseShape *shape = &p->base.shape;
    DsvDevice *device = p->base.backend->device;
    DsvSparseView view = dsvi_sparse_view_of(shape, block);
    Forms output = forms_of(p, block, p->output, p->heads_room, p->all_room);
    Forms doutput = forms_of(p, block, p->doutput, p->dheads_room, p->dall_room);
    DsvPredictorLossArgs loss = loss_args(p, &view, p->own_samples[block], p->sample + block * p->samples,
                                          scored, output.all, doutput.all);
    size_t all = (size_t)(shape->batch * shape->tokens * view.heads * 2 * p->rank) * dsvi_dtype_size(p->acc);
    DSVI_TRY(spread_output(p, block, &output));
    if (view.divided) /* of others' queries the loss says nothing */
        DSVI_TRY(device->zero(device->stream, doutput.all, all));
    DSVI_TRY(p->base.backend->ops.predictor_loss.run(device->stream, &loss));
    return return_gradient(p, block, &doutput);
}

/* Loss of this pass and its gradient, added to what the step has so far. */
static DsvStatus learn(DsvSelector *s, int64_t block, const DsvSparseAttention *pass,
                       const DsvSparseScored *scored)
{
    Predictor *p = (Predictor *)s;
    const DsvOps *ops = &s->backend->ops;
    DsvStream *stream = s->backend->device->stream;
    void *grad = acc_at(p, p->grad, block * p->size);
    const void *doutput = p->doutput;
    DSVI_TRY(find_loss(p, block, scored));
    DSVI_TRY(convert(p, 1, 1, p->acc, p->pass_loss, 1, p->acc, acc_at(p, p->loss, block)));
    if (s->shape.act != p->acc) {
        DSVI_TRY(convert(p, own_rows(p) * p->outputs, 1, p->acc, p->doutput, 0, s->shape.act,
                         p->doutput_act));
        doutput = p->doutput_act;
    }
    DsvGemmArgs weight = {
        .m = p->outputs, .n = p->inputs, .k = own_rows(p),
        .ab_dtype = s->shape.act, .c_dtype = p->acc, .a = doutput, .lda = p->outputs, .trans_a = true,
        .b = pass->hidden, .ldb = p->inputs, .c = grad, .ldc = p->inputs, .accumulate = true,
    };
    DsvColSumArgs bias = {
        .m = weight.k, .n = p->outputs, .x_dtype = p->acc, .x = p->doutput, .ldx = p->outputs,
        .y_dtype = p->acc, .y = acc_at(p, grad, p->outputs * p->inputs),
    };
    DSVI_TRY(ops->gemm.run(stream, &weight));
    DSVI_TRY(ops->col_sum.run(stream, &bias));
    p->passes[block]++;
    return DSV_OK;
}

static DsvStatus look(DsvSelector *s, int64_t block, const DsvSparseAttention *args, bool estimate)
{
    Predictor *p = (Predictor *)s;
    DsvFeatures *f = &s->features;
    if (!estimate && !dsvi_selector_learns(s))
        return DSV_OK;
    if (!args->hidden)
        return DSVI_FAIL(DSV_E_USAGE, "the predictor needs the hidden states that fed q and k, and got none");
    DSVI_TRY(predict(p, block, args->hidden));
    if (!estimate)
        return DSV_OK;
    DsvHeads queries = part_of(p, p->output, s->tokens, s->shape.heads, 0);
    DsvHeads keys = part_of(p, p->output, s->tokens, s->shape.heads, 1);
    DSVI_TRY(dsvi_selector_features(s, p->acc, queries, p->rank, f->chunk, NULL, f->proxies));
    return dsvi_selector_features(s, p->acc, keys, p->rank, f->candidate_keys, NULL, f->candidates);
}

/* Passes of a block that the sums over ranks are made of: those that share samples have one together. */
static double passes_of_all(const Predictor *p, int64_t block)
{
    return (double)(p->passes[block] * dsvi_comm_size(p->base.comm) / p->base.context_ranks);
}

static DsvStatus update(Predictor *p, int64_t block, bool sparse)
{
    const DsvConfig *settings = p->base.settings;
    int64_t at = block * p->size;
    DsvAdamwArgs args = {
        .n = p->size, .step = p->updates,
        .lr = sparse ? settings->sparse_predictor_lr_sparse : settings->sparse_predictor_lr,
        .beta1 = settings->adam_beta1, .beta2 = settings->adam_beta2, .eps = settings->adam_epsilon,
        .weight_decay = settings->weight_decay, .grad_scale = 1 / passes_of_all(p, block), .acc = p->acc,
        .grad = acc_at(p, p->grad, at), .weight = acc_at(p, p->weight, at),
        .m = acc_at(p, p->moment1, at), .v = acc_at(p, p->moment2, at),
    };
    return p->base.backend->ops.adamw.run(p->base.backend->device->stream, &args);
}

/* Gradients and losses of all ranks. */
static DsvStatus add_ranks(Predictor *p)
{
    int64_t blocks = p->base.shape.blocks;
    DSVI_TRY(dsvi_comm_all_reduce(p->base.device_comm, p->acc, p->grad, blocks * p->size));
    return dsvi_comm_all_reduce(p->base.comm, p->acc, p->host_loss, blocks);
}

static DsvStatus step_end(DsvSelector *s, const int32_t *sparse, double *loss)
{
    Predictor *p = (Predictor *)s;
    DsvDevice *device = s->backend->device;
    double sum = 0;
    int64_t learnt = 0;
    if (!dsvi_selector_learns(s))
        return DSV_OK;
    DSVI_TRY(device->download(device->stream, p->host_loss, p->loss,
                              (size_t)s->shape.blocks * dsvi_dtype_size(p->acc)));
    DSVI_TRY(device->sync(device->stream));
    DSVI_TRY(add_ranks(p));
    p->updates++;
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        if (p->passes[block] == 0)
            continue;
        sum += dsvi_load(p->acc, p->host_loss, block) / passes_of_all(p, block);
        learnt++;
        DSVI_TRY(update(p, block, sparse[block]));
    }
    if (learnt > 0)
        *loss = sum / (double)learnt;
    return refresh_compute(s);
}

static void state(DsvSelector *s, DsvStateList *list)
{
    Predictor *p = (Predictor *)s;
    int64_t blocks = s->shape.blocks;
    const DsvStateItem items[] = {
        {"predictor.weight", p->acc, 2, {blocks, p->size}, true, p->weight},
        {"predictor.updates", DSV_I64, 1, {1}, false, &p->updates},
        {"predictor.exp_avg", p->acc, 2, {blocks, p->size}, true, p->moment1},
        {"predictor.exp_avg_sq", p->acc, 2, {blocks, p->size}, true, p->moment2},
    };
    for (size_t i = 0; i < (s->shape.backward ? 4 : 2); i++)
        dsvi_state_add(list, items[i]);
}

const DsvSelectorType dsvi_selector_predictor = {
    .name = "predictor", .create = create, .free = release, .carve = carve, .setup = setup,
    .step_begin = step_begin, .look = look, .learn = learn, .step_end = step_end, .state = state,
    .restored = refresh_compute,
};
