/* The learned predictor of the DSV paper (arXiv 2502.07590). Each block has one linear layer, whose input is
 * the input of the block's q and k projections, and whose output is R features for each query and key of each
 * head. The layer learns from exact scores of sampled queries to order keys as the scores do, with an AdamW
 * optimizer of its own. No gradient flows into the model. The layer sees positions only as far as hidden
 * states contain them, so the predictor is less accurate on models with RoPE; it exists for comparison.
 *
 * The output for a token is (N, 2, R): for each head its query features Q_lr, then its key features K_lr. The
 * layer's weights are stored in the accumulation dtype (acc); the product with the weights is computed in the
 * activation dtype (act). Gradients of all passes of a step and of all ranks are summed, and averaged at the
 * end of the step.
 *
 * With context parallelism each rank computes the output for its own tokens. To learn, outputs are
 * exchanged to the ranks that have the exact scores, with query features and key features of a head as one
 * row. The gradients of these outputs are exchanged back; the gradients of a key's features are summed
 * over all ranks whose queries attended to this key. A rank's part of the loss is weighted with its
 * fraction of the scored rows. */
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "sparse/selector.h"

/* Weights of the two terms of the loss (ops/predictor_loss.h), as in the DSV paper. */
#define COS_WEIGHT 0.95
#define NORM_WEIGHT 0.05

/* First random stream of predictors for DSVI_RNG_INIT (initial weights). The model's tensors use the streams
 * from 0 on. */
#define FIRST_STREAM 0x80000000u

typedef struct Predictor {
    DsviSelector base;
    DsviDtype acc;
    int64_t rank, inputs, outputs; /* R, C, 2 R N */
    int64_t samples;               /* sampled queries of each head and pass from which the predictor learns */
    int64_t size;                  /* parameters of a block: weight (outputs, C), bias (outputs) */

    /* Device memory. weight, moment1 and moment2 are saved. */
    void *weight;            /* (blocks, size) acc */
    void *moment1, *moment2; /* (blocks, size) acc; NULL without a backward pass, as is grad */
    void *compute;           /* (blocks, outputs, C) act; the weights themselves when act is acc */
    void *grad;              /* (blocks, size) acc */
    void *loss;              /* (blocks) acc, sum of the predictor's losses over all passes of a step */
    void *pass_loss;         /* (1) acc */
    int32_t *sample;         /* (blocks, samples) */
    void *output, *doutput;  /* (B, S, N, 2, R) acc, of this rank's tokens */
    void *doutput_act;       /* doutput converted to the activation dtype */
    /* Context parallelism: buffers for output and doutput with the tokens and heads that an exchange
     * between ranks delivers (struct Forms); used if these differ from this rank's tokens with all heads. */
    void *heads_room, *dheads_room; /* (B, T, N_local, 2, R) acc */
    void *all_room, *dall_room;     /* (B, S, N_local, 2, R) acc, S the tokens of all ranks */
    void *moved, *summed;           /* workspace of exchanges, and of sums over ranks */
    void *workspace;                /* workspace of the op predictor_loss */
    size_t workspace_bytes;

    /* Host memory. */
    int32_t *host_sample;  /* (blocks, samples) sampled queries; those whose attention this rank computes come
                            * first */
    int64_t *view_samples; /* (blocks) for how many queries of host_sample this rank computes attention */
    void *host_loss;       /* (blocks) acc */
    int64_t *passes;       /* (blocks) passes of this step from which the predictor has learned */
    int64_t updates;       /* AdamW steps that the predictor has made; saved */
} Predictor;

static void selector_predictor_release(DsviSelector *s)
{
    Predictor *p = (Predictor *)s;
    free(p->host_sample);
    free(p->view_samples);
    free(p->host_loss);
    free(p->passes);
    free(p);
}

static DsvStatus selector_predictor_create(const DsvConfig *settings, const DsviSparseShape *shape,
                                           DsviSelector **out)
{
    Predictor *p = calloc(1, sizeof *p);
    if (!p)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the predictor");
    p->acc = shape->act == DSVI_F64 ? DSVI_F64 : DSVI_F32;
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
    p->view_samples = calloc((size_t)shape->blocks, sizeof(int64_t));
    p->host_loss = calloc((size_t)shape->blocks, dsvi_dtype_size(p->acc));
    p->passes = calloc((size_t)shape->blocks, sizeof(int64_t));
    if (!p->host_sample || !p->view_samples || !p->host_loss || !p->passes) {
        selector_predictor_release(&p->base);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the samples of %lld predictors",
                         (long long)shape->blocks);
    }
    *out = &p->base;
    return DSV_OK;
}

/* Returns the address of element i of an array in the accumulation dtype. */
static void *acc_at(const Predictor *p, void *array, int64_t i)
{
    return (unsigned char *)array + (size_t)i * dsvi_dtype_size(p->acc);
}

/* Returns the block's weight matrix in the activation dtype. */
static void *compute_of(const Predictor *p, int64_t block)
{
    if (p->base.shape.act == p->acc)
        return acc_at(p, p->weight, block * p->size);
    return (unsigned char *)p->compute +
           (size_t)(block * p->outputs * p->inputs) * dsvi_dtype_size(p->base.shape.act);
}

/* Returns the rows of Q_lr (part 0) or K_lr (part 1) in an array (B, tokens, heads, 2, R). */
static DsviHeads selector_predictor_part_of(const Predictor *p, void *output, int64_t tokens, int64_t heads,
                                            int part)
{
    int64_t row = 2 * p->rank;
    return (DsviHeads){
        .data = acc_at(p, output, part * p->rank),
        .batch_stride = tokens * heads * row,
        .token_stride = heads * row,
        .head_stride = row,
    };
}

/* An array like Predictor.output in the three layouts between which context-parallel ranks exchange it.
 * Without context parallelism all three are the same memory. */
typedef struct Forms {
    DsviCpForms view; /* token form: this rank's tokens, all heads; heads form: the tokens and heads whose
                       * attention this rank computes (the view) */
    void *all;        /* all tokens, with the heads whose attention this rank computes */
} Forms;

static Forms selector_predictor_forms_of(const Predictor *p, int64_t block, void *tokens, void *heads_room,
                                         void *all_room)
{
    const DsviCp *cp = p->base.shape.cp;
    Forms f = {{tokens, tokens}, tokens};
    if (!cp)
        return f;
    f.view.heads = dsvi_cp_heads_address(cp, block, tokens, heads_room);
    f.all = dsvi_cp_gathered_address(cp, block, f.view.heads, all_room);
    return f;
}

/* Describes Predictor.output (features Q_lr of queries and K_lr of keys) for exchanges between ranks: Q_lr
 * and K_lr of a head travel as one row of 2 R elements. */
static DsviCpTensor selector_predictor_tensor_of(const Predictor *p)
{
    return (DsviCpTensor){p->base.shape.batch, 2 * p->rank, p->acc};
}

/* Returns arguments of the op predictor_loss for `samples` of the queries whose attention this rank
 * computes (the view); `output` and `doutput` hold all tokens. The two weights of the loss are multiplied
 * by this rank's fraction of all sampled rows (query and head), so that the losses of all ranks add up to
 * the loss of all rows. */
static DsviPredictorLossArgs loss_args(const Predictor *p, const DsviSparseView *view, int64_t samples,
                                       const int32_t *sample, const DsviSparseScored *scored, void *output,
                                       void *doutput)
{
    const DsviSparseShape *shape = &p->base.shape;
    size_t acc = dsvi_dtype_size(p->acc);
    double fraction = (double)(samples * view->heads) / (double)(p->samples * shape->heads);
    DsviHeads ql = selector_predictor_part_of(p, output, shape->tokens, view->heads, 0);
    DsviHeads dql = selector_predictor_part_of(p, doutput, shape->tokens, view->heads, 0);
    return (DsviPredictorLossArgs){
        .batch = shape->batch,
        .heads = view->heads,
        .queries = view->queries,
        .keys = shape->tokens,
        .head_dim = shape->head_dim,
        .rank = p->rank,
        .cos_weight = fraction * COS_WEIGHT,
        .norm_weight = fraction * NORM_WEIGHT,
        .centred = p->base.settings->sparse_predictor_centred,
        .act = shape->act,
        .acc = p->acc,
        .q = scored->q,
        .k = scored->k,
        .ql = dsvi_heads_from(&ql, view->first, acc),
        .dql = dsvi_heads_from(&dql, view->first, acc),
        .kl = selector_predictor_part_of(p, output, shape->tokens, view->heads, 1),
        .dkl = selector_predictor_part_of(p, doutput, shape->tokens, view->heads, 1),
        .samples = samples,
        .sample = sample,
        .loss = p->pass_loss,
        .workspace = p->workspace,
        .workspace_bytes = p->workspace_bytes,
    };
}

/* Returns the number of tokens of this rank in the whole batch. */
static int64_t local_rows(const Predictor *p)
{
    return p->base.shape.batch * p->base.tokens;
}

static void carve_rooms(Predictor *p, DsviArena *arena)
{
    const DsviCp *cp = p->base.shape.cp;
    DsviCpTensor tensor = selector_predictor_tensor_of(p);
    size_t heads = dsvi_cp_heads_buffer_bytes(cp, &tensor);
    size_t all = dsvi_cp_gathered_bytes(cp, &tensor);
    p->heads_room = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, heads);
    p->dheads_room = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, heads);
    p->all_room = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, all);
    p->dall_room = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, all);
    /* workspace of exchanges between ranks, which move one tensor at a time */
    p->moved = dsvi_arena_take(arena, DSVI_MEM_SCRATCH,
                               dsvi_cp_move_bytes(cp, &tensor) / DSVI_CP_TENSORS_MAX);
    p->summed = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, dsvi_cp_sum_bytes(cp));
}

/* Returns the bytes of workspace that the op predictor_loss needs for all heads and all sampled queries,
 * which is enough for fewer too. */
static size_t loss_workspace(const Predictor *p)
{
    const DsviSparseShape *shape = &p->base.shape;
    const DsviSparseView whole = {.queries = shape->tokens, .heads = shape->heads};
    const DsviSparseScored nothing = {0};
    DsviPredictorLossArgs args = loss_args(p, &whole, p->samples, p->sample, &nothing, NULL, NULL);
    return DSVI_OP_WORKSPACE(p->base.backend->ops.predictor_loss, p->base.backend->device->stream, &args);
}

static void selector_predictor_carve(DsviSelector *s, DsviArena *arena)
{
    Predictor *p = (Predictor *)s;
    size_t acc = dsvi_dtype_size(p->acc), act = dsvi_dtype_size(s->shape.act);
    size_t blocks = (size_t)s->shape.blocks, output = (size_t)(local_rows(p) * p->outputs);
    size_t parameters = blocks * (size_t)p->size * acc;
    bool cast = s->shape.act != p->acc, backward = s->shape.backward;

    p->weight = dsvi_arena_take(arena, DSVI_MEM_SPARSE, parameters);
    p->compute = dsvi_arena_take(arena, DSVI_MEM_SPARSE,
                                 cast ? blocks * (size_t)(p->outputs * p->inputs) * act : 0);
    p->grad = dsvi_arena_take(arena, DSVI_MEM_SPARSE, backward ? parameters : 0);
    p->moment1 = dsvi_arena_take(arena, DSVI_MEM_SPARSE, backward ? parameters : 0);
    p->moment2 = dsvi_arena_take(arena, DSVI_MEM_SPARSE, backward ? parameters : 0);
    p->loss = dsvi_arena_take(arena, DSVI_MEM_SPARSE, blocks * acc);
    p->pass_loss = dsvi_arena_take(arena, DSVI_MEM_SPARSE, acc);
    p->sample = dsvi_arena_take(arena, DSVI_MEM_SPARSE, blocks * (size_t)p->samples * sizeof(int32_t));
    p->output = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, output * acc);
    p->doutput = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, backward ? output * acc : 0);
    p->doutput_act = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, backward && cast ? output * act : 0);

    if (backward && s->shape.cp)
        carve_rooms(p, arena);
    p->workspace_bytes = backward ? loss_workspace(p) : 0;
    p->workspace = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, p->workspace_bytes);
}

/* Computes y = a x + b y (ops/pointwise.h). */
static DsvStatus add_scaled(const Predictor *p, DsviAddArgs args)
{
    return p->base.backend->ops.add.run(p->base.backend->device->stream, &args);
}

/* Updates the copy of the predictor's weights in the activation dtype. */
static DsvStatus refresh_compute(DsviSelector *s)
{
    Predictor *p = (Predictor *)s;
    if (s->shape.act == p->acc)
        return DSV_OK;
    for (int64_t block = 0; block < s->shape.blocks; block++)
        DSVI_TRY(add_scaled(p, (DsviAddArgs){.n = p->outputs * p->inputs,
                                             .a = 1,
                                             .b = 0,
                                             .x_dtype = p->acc,
                                             .y_dtype = s->shape.act,
                                             .x = acc_at(p, p->weight, block * p->size),
                                             .y = compute_of(p, block)}));
    return DSV_OK;
}

/* Sets the predictor's weights to Kaiming-normal numbers (fan-in: number of inputs), its biases and AdamW
 * moments to zero. */
static DsvStatus selector_predictor_setup(DsviSelector *s)
{
    Predictor *p = (Predictor *)s;
    DsviDevice *device = s->backend->device;
    DsvStatus status = DSV_OK;
    size_t bytes = (size_t)p->size * dsvi_dtype_size(p->acc);
    double deviation = sqrt(2 / (double)p->inputs);
    void *host = malloc(bytes);
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu bytes of a predictor", bytes);
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        DsviRng rng = {(uint64_t)s->settings->seed, DSVI_RNG_INIT, FIRST_STREAM + (uint32_t)block};
        for (int64_t i = 0; i < p->size; i++)
            dsvi_store(p->acc, host, i,
                       i < p->outputs * p->inputs ? deviation * dsvi_rng_normal(rng, (uint64_t)i) : 0);
        void *weight = acc_at(p, p->weight, block * p->size);
        DSVI_TRY_GOTO(status, device->upload(device->stream, weight, host, bytes), done);
        DSVI_TRY_GOTO(status, device->sync(device->stream), done);
    }
    size_t moments = s->shape.backward ? (size_t)s->shape.blocks * bytes : 0;
    DSVI_TRY_GOTO(status, device->clear(device->stream, p->moment1, moments), done);
    DSVI_TRY_GOTO(status, device->clear(device->stream, p->moment2, moments), done);
    DSVI_TRY_GOTO(status, refresh_compute(s), done);
done:
    free(host);
    return status;
}

static DsvStatus step_begin(DsviSelector *s)
{
    Predictor *p = (Predictor *)s;
    DsviDevice *device = s->backend->device;
    int64_t blocks = s->shape.blocks;
    size_t acc = dsvi_dtype_size(p->acc);
    if (!dsvi_selector_learns(s))
        return DSV_OK;
    for (int64_t block = 0; block < blocks; block++) {
        DsviSparseView view = dsvi_sparse_view_of(&s->shape, block);
        int32_t *sample = p->host_sample + block * p->samples;
        p->passes[block] = 0;
        dsvi_draw_queries((uint64_t)s->settings->seed, s->step, block, DSVI_DRAW_PREDICTOR, s->shape.tokens,
                          p->samples, sample);
        p->view_samples[block] = dsvi_keep_queries(&view, p->samples, sample);
    }
    DSVI_TRY(device->upload(device->stream, p->sample, p->host_sample,
                            (size_t)(blocks * p->samples) * sizeof(int32_t)));
    DSVI_TRY(device->clear(device->stream, p->loss, (size_t)blocks * acc));
    return device->clear(device->stream, p->grad, (size_t)(blocks * p->size) * acc);
}

/* Computes output = hidden W^T + bias for this rank's tokens. */
static DsvStatus predict(const Predictor *p, int64_t block, const void *hidden)
{
    const DsviSparseShape *shape = &p->base.shape;
    DsviGemmArgs args = {
        .m = local_rows(p),
        .n = p->outputs,
        .k = p->inputs,
        .ab_dtype = shape->act,
        .c_dtype = p->acc,
        .a = hidden,
        .lda = p->inputs,
        .b = compute_of(p, block),
        .ldb = p->inputs,
        .trans_b = true,
        .c = p->output,
        .ldc = p->outputs,
        .bias_dtype = p->acc,
        .bias = acc_at(p, p->weight, block * p->size + p->outputs * p->inputs),
    };
    return p->base.backend->ops.gemm.run(p->base.backend->device->stream, &args);
}

/* Exchanges the predictor's outputs between ranks: from this rank's tokens with all heads to the tokens
 * and heads for which this rank has exact scores. */
static DsvStatus exchange_output(const Predictor *p, int64_t block, const Forms *output)
{
    const DsviCp *cp = p->base.shape.cp;
    DsviCpTensor tensor = selector_predictor_tensor_of(p);
    if (!cp)
        return DSV_OK;
    DSVI_TRY(dsvi_cp_to_heads(cp, block, &tensor, &output->view, 1, p->moved));
    return dsvi_cp_gather(cp, block, &tensor, output->view.heads, output->all);
}

/* Exchanges the gradients of the predictor's outputs back to the ranks that own the tokens, and sums them
 * over ranks. */
static DsvStatus exchange_gradient(const Predictor *p, int64_t block, const Forms *doutput)
{
    const DsviCp *cp = p->base.shape.cp;
    DsviCpTensor tensor = selector_predictor_tensor_of(p);
    if (!cp)
        return DSV_OK;
    DSVI_TRY(dsvi_cp_sum(cp, block, &tensor, doutput->all, doutput->view.heads, p->summed));
    return dsvi_cp_to_tokens(cp, block, &tensor, &doutput->view, 1, p->moved);
}

/* Writes the predictor's loss over those sampled queries whose attention this rank computes to pass_loss,
 * and the gradient of the predictor's outputs for this rank's tokens to doutput. */
static DsvStatus selector_predictor_find_loss(const Predictor *p, int64_t block,
                                              const DsviSparseScored *scored)
{
    const DsviSparseShape *shape = &p->base.shape;
    DsviDevice *device = p->base.backend->device;
    DsviSparseView view = dsvi_sparse_view_of(shape, block);
    Forms output = selector_predictor_forms_of(p, block, p->output, p->heads_room, p->all_room);
    Forms doutput = selector_predictor_forms_of(p, block, p->doutput, p->dheads_room, p->dall_room);
    DsviPredictorLossArgs loss = loss_args(p, &view, p->view_samples[block], p->sample + block * p->samples,
                                           scored, output.all, doutput.all);
    size_t all = (size_t)(shape->batch * shape->tokens * view.heads * 2 * p->rank) * dsvi_dtype_size(p->acc);
    DSVI_TRY(exchange_output(p, block, &output));
    if (view.divided) /* the op predictor_loss writes no gradients for queries of other ranks: clear them */
        DSVI_TRY(device->clear(device->stream, doutput.all, all));
    DSVI_TRY(p->base.backend->ops.predictor_loss.run(device->stream, &loss));
    return exchange_gradient(p, block, &doutput);
}

/* Adds the predictor's loss and gradient in this pass to the sums over all passes of the step. */
static DsvStatus learn(DsviSelector *s, int64_t block, const DsviAttentionCall *pass,
                       const DsviSparseScored *scored)
{
    Predictor *p = (Predictor *)s;
    const DsviOps *ops = &s->backend->ops;
    DsviStream *stream = s->backend->device->stream;
    void *grad = acc_at(p, p->grad, block * p->size);
    const void *doutput = p->doutput;
    DSVI_TRY(selector_predictor_find_loss(p, block, scored));
    DSVI_TRY(add_scaled(p, (DsviAddArgs){.n = 1,
                                         .a = 1,
                                         .b = 1,
                                         .x_dtype = p->acc,
                                         .y_dtype = p->acc,
                                         .x = p->pass_loss,
                                         .y = acc_at(p, p->loss, block)}));
    if (s->shape.act != p->acc) {
        DSVI_TRY(add_scaled(p, (DsviAddArgs){.n = local_rows(p) * p->outputs,
                                             .a = 1,
                                             .b = 0,
                                             .x_dtype = p->acc,
                                             .y_dtype = s->shape.act,
                                             .x = p->doutput,
                                             .y = p->doutput_act}));
        doutput = p->doutput_act;
    }
    DsviGemmArgs weight = {
        .m = p->outputs,
        .n = p->inputs,
        .k = local_rows(p),
        .ab_dtype = s->shape.act,
        .c_dtype = p->acc,
        .a = doutput,
        .lda = p->outputs,
        .trans_a = true,
        .b = pass->hidden,
        .ldb = p->inputs,
        .c = grad,
        .ldc = p->inputs,
        .accumulate = true,
    };
    DsviColSumArgs bias = {
        .m = weight.k,
        .n = p->outputs,
        .x_dtype = p->acc,
        .x = p->doutput,
        .ldx = p->outputs,
        .y_dtype = p->acc,
        .y = acc_at(p, grad, p->outputs * p->inputs),
    };
    DSVI_TRY(ops->gemm.run(stream, &weight));
    DSVI_TRY(ops->col_sum.run(stream, &bias));
    p->passes[block]++;
    return DSV_OK;
}

static DsvStatus selector_predictor_observe(DsviSelector *s, int64_t block, const DsviAttentionCall *args,
                                            bool estimate)
{
    Predictor *p = (Predictor *)s;
    DsviFeatures *f = &s->features;
    if (!estimate && !dsvi_selector_learns(s))
        return DSV_OK;
    if (!args->hidden)
        return DSVI_FAIL(DSV_E_USAGE, "the predictor needs the hidden states that fed q and k, and got none");
    DSVI_TRY(predict(p, block, args->hidden));
    if (!estimate)
        return DSV_OK;
    DsviHeads queries = selector_predictor_part_of(p, p->output, s->tokens, s->shape.heads, 0);
    DsviHeads keys = selector_predictor_part_of(p, p->output, s->tokens, s->shape.heads, 1);
    DSVI_TRY(dsvi_selector_features(s, p->acc, queries, p->rank, f->chunk, NULL, f->proxies));
    return dsvi_selector_features(s, p->acc, keys, p->rank, f->candidate_keys, NULL, f->candidates);
}

/* Returns how many passes the losses and gradients summed over all ranks contain. Context-parallel ranks
 * compute one pass together, which counts once. */
static double passes_of_all(const Predictor *p, int64_t block)
{
    return (double)(p->passes[block] * dsvi_comm_size(p->base.comm) / p->base.cp_ranks);
}

static DsvStatus selector_predictor_update(Predictor *p, int64_t block, bool sparse)
{
    const DsvConfig *settings = p->base.settings;
    int64_t at = block * p->size;
    DsviAdamwArgs args = {
        .n = p->size,
        .step = p->updates,
        .lr = sparse ? settings->sparse_predictor_lr_sparse : settings->sparse_predictor_lr,
        .beta1 = settings->adam_beta1,
        .beta2 = settings->adam_beta2,
        .eps = settings->adam_epsilon,
        .weight_decay = settings->weight_decay,
        .grad_scale = 1 / passes_of_all(p, block),
        .acc = p->acc,
        .grad = acc_at(p, p->grad, at),
        .weight = acc_at(p, p->weight, at),
        .state_dtype = p->acc,
        .m = acc_at(p, p->moment1, at),
        .v = acc_at(p, p->moment2, at),
    };
    return p->base.backend->ops.adamw.run(p->base.backend->device->stream, &args);
}

/* Sums the predictor's gradients and losses over all ranks. */
static DsvStatus selector_predictor_add_ranks(Predictor *p)
{
    int64_t blocks = p->base.shape.blocks;
    DSVI_TRY(dsvi_comm_all_reduce(p->base.device_comm, p->acc, p->grad, blocks * p->size));
    return dsvi_comm_all_reduce(p->base.comm, p->acc, p->host_loss, blocks);
}

static DsvStatus selector_predictor_step_end(DsviSelector *s, const int32_t *sparse, double *loss)
{
    Predictor *p = (Predictor *)s;
    DsviDevice *device = s->backend->device;
    double sum = 0;
    int64_t learned = 0;
    if (!dsvi_selector_learns(s))
        return DSV_OK;
    DSVI_TRY(device->download(device->stream, p->host_loss, p->loss,
                              (size_t)s->shape.blocks * dsvi_dtype_size(p->acc)));
    DSVI_TRY(device->sync(device->stream));
    DSVI_TRY(selector_predictor_add_ranks(p));
    p->updates++;
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        if (p->passes[block] == 0)
            continue;
        sum += dsvi_load(p->acc, p->host_loss, block) / passes_of_all(p, block);
        learned++;
        DSVI_TRY(selector_predictor_update(p, block, sparse[block]));
    }
    if (learned > 0)
        *loss = sum / (double)learned;
    return refresh_compute(s);
}

static void selector_predictor_state(DsviSelector *s, DsviStateList *list)
{
    Predictor *p = (Predictor *)s;
    int64_t blocks = s->shape.blocks;
    const DsviStateItem items[] = {
        {"predictor.weight", p->acc, 2, {blocks, p->size}, true, p->weight},
        {"predictor.updates", DSVI_I64, 1, {1}, false, &p->updates},
        {"predictor.exp_avg", p->acc, 2, {blocks, p->size}, true, p->moment1},
        {"predictor.exp_avg_sq", p->acc, 2, {blocks, p->size}, true, p->moment2},
    };
    for (size_t i = 0; i < (s->shape.backward ? 4 : 2); i++)
        dsvi_state_add(list, items[i]);
}

const DsviSelectorType dsvi_selector_predictor = {
    .name = "predictor",
    .create = selector_predictor_create,
    .free = selector_predictor_release,
    .carve = selector_predictor_carve,
    .setup = selector_predictor_setup,
    .step_begin = step_begin,
    .observe = selector_predictor_observe,
    .learn = learn,
    .step_end = selector_predictor_step_end,
    .state = selector_predictor_state,
    .restored = refresh_compute,
};
