/* The transformer from outside: make it, give it memory and weights, run it forward and backward. Blocks are
 * in dit_block.c, both ends in dit_embed.c, memory in dit_plan.c. */
#include "model/dit_internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "model/rope.h"

/* ---- parameters by name ---- */

static const DsvParam *find_param(const DsvDit *dit, const char *prefix, const char *name)
{
    char full[160];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    int64_t index = dsvi_param_find(dit->table, full);
    DSVI_ASSERT(index >= 0);
    return &dit->table->params[index];
}

static int64_t place_of(const DsvDit *dit, const char *prefix, const char *name)
{
    return find_param(dit, prefix, name)->offset;
}

static DsvDitLinear linear_of(const DsvDit *dit, const char *prefix, const char *name)
{
    char full[160];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const DsvParam *weight = find_param(dit, full, ".weight");
    return (DsvDitLinear){
        .out = weight->shape[0], .in = weight->count / weight->shape[0], .weight = weight->offset,
        .bias = place_of(dit, full, ".bias"), .dtype = weight->in_compute_dtype ? dit->act : dit->acc,
    };
}

static DsvDitAttentionParams attention_of(const DsvDit *dit, const char *prefix)
{
    return (DsvDitAttentionParams){
        .q = linear_of(dit, prefix, "to_q"), .k = linear_of(dit, prefix, "to_k"),
        .v = linear_of(dit, prefix, "to_v"), .o = linear_of(dit, prefix, "to_out.0"),
        .norm_q = place_of(dit, prefix, "norm_q.weight"), .norm_k = place_of(dit, prefix, "norm_k.weight"),
    };
}

static DsvDitBlockParams block_of(const DsvDit *dit, int64_t block)
{
    char prefix[48], self[64], cross[64];
    snprintf(prefix, sizeof prefix, "blocks.%lld.", (long long)block);
    snprintf(self, sizeof self, "%sattn1.", prefix);
    snprintf(cross, sizeof cross, "%sattn2.", prefix);
    return (DsvDitBlockParams){
        .self = attention_of(dit, self), .cross = attention_of(dit, cross),
        .ffn_in = linear_of(dit, prefix, "ffn.net.0.proj"), .ffn_out = linear_of(dit, prefix, "ffn.net.2"),
        .norm_weight = place_of(dit, prefix, "norm2.weight"),
        .norm_bias = place_of(dit, prefix, "norm2.bias"),
        .modulation = place_of(dit, prefix, "scale_shift_table"),
    };
}

static void find_params(DsvDit *dit)
{
    DsvDitParams *p = &dit->params;
    p->patch = linear_of(dit, "", "patch_embedding");
    p->text_in = linear_of(dit, "condition_embedder.", "text_embedder.linear_1");
    p->text_out = linear_of(dit, "condition_embedder.", "text_embedder.linear_2");
    p->time_in = linear_of(dit, "condition_embedder.", "time_embedder.linear_1");
    p->time_out = linear_of(dit, "condition_embedder.", "time_embedder.linear_2");
    p->time_projection = linear_of(dit, "condition_embedder.", "time_proj");
    p->head = linear_of(dit, "", "proj_out");
    p->head_modulation = place_of(dit, "", "scale_shift_table");
    for (int64_t i = 0; i < dit->config.num_layers; i++)
        p->blocks[i] = block_of(dit, i);
}

/* ---- life ---- */

static DsvStatus check_shape(const DsvDitConfig *config, const DsvDitShape *shape)
{
    static const char *const AXIS[3] = {"frames", "height", "width"};
    const int64_t size[3] = {shape->frames, shape->height, shape->width};
    if (shape->batch < 1 || shape->text_len < 1)
        return DSVI_FAIL(DSV_E_SHAPE, "batch %lld with %lld text rows: wanted at least 1 of each",
                         (long long)shape->batch, (long long)shape->text_len);
    for (int i = 0; i < 3; i++) {
        if (size[i] < 1 || size[i] % config->patch[i])
            return DSVI_FAIL(DSV_E_SHAPE, "%s of the latent is %lld, wanted a multiple of the patch's %lld",
                             AXIS[i], (long long)size[i], (long long)config->patch[i]);
        if (size[i] / config->patch[i] > config->rope_max_seq_len)
            return DSVI_FAIL(DSV_E_SHAPE, "%s of the latent is %lld tokens, the model knows %lld positions",
                             AXIS[i], (long long)(size[i] / config->patch[i]),
                             (long long)config->rope_max_seq_len);
    }
    return DSV_OK;
}

static void set_sizes(DsvDit *dit)
{
    const DsvDitConfig *config = &dit->config;
    const DsvDitShape *shape = &dit->shape;
    int64_t patch = config->patch[0] * config->patch[1] * config->patch[2];
    dit->act = shape->act;
    dit->acc = shape->act == DSV_F64 ? DSV_F64 : DSV_F32;
    dit->grid[0] = shape->frames / config->patch[0];
    dit->grid[1] = shape->height / config->patch[1];
    dit->grid[2] = shape->width / config->patch[2];
    dit->batch = shape->batch;
    dit->all_tokens = dsvi_dit_tokens(config, shape);
    dit->tokens = shape->context ? dsvi_context_tokens(shape->context) : dit->all_tokens;
    dit->first = shape->context ? dsvi_context_first(shape->context) : 0;
    dit->text_len = shape->text_len;
    dit->width = dsvi_dit_width(config);
    dit->heads = config->num_attention_heads;
    dit->head_dim = config->attention_head_dim;
    dit->ffn = config->ffn_dim;
    dit->patch_in = config->in_channels * patch;
    dit->patch_out = config->out_channels * patch;
}

DsvStatus dsvi_dit_create(DsvBackend *backend, const DsvDitConfig *config, const DsvParamTable *table,
                          const DsvDitShape *shape, DsvSparse *sparse, DsvDit **out)
{
    size_t layers = (size_t)config->num_layers;
    *out = NULL;
    DSVI_TRY(check_shape(config, shape));
    DSVI_ASSERT(sparse || !shape->context);
    DsvDit *dit = calloc(1, sizeof *dit);
    if (!dit)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the plan of a model");
    dit->backend = backend;
    dit->stream = backend->device->stream;
    dit->table = table;
    dit->sparse = sparse;
    dit->config = *config;
    dit->shape = *shape;
    set_sizes(dit);
    dit->params.blocks = calloc(layers, sizeof *dit->params.blocks);
    dit->residual = calloc(layers + 1, sizeof *dit->residual);
    dit->saved = calloc(layers, sizeof *dit->saved);
    dit->stretch = calloc((size_t)table->stretches, sizeof *dit->stretch);
    if (!dit->params.blocks || !dit->residual || !dit->saved || !dit->stretch) {
        dsvi_dit_free(&dit);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the plan of %zu blocks", layers);
    }
    find_params(dit);
    *out = dit;
    return DSV_OK;
}

void dsvi_dit_free(DsvDit **dit)
{
    if (!*dit)
        return;
    free((*dit)->params.blocks);
    free((*dit)->residual);
    free((*dit)->saved);
    free((*dit)->stretch);
    free(*dit);
    *dit = NULL;
}

/* Fills host copies of the order of all tokens, and of the RoPE tables of the own ones. */
static void make_tables(const DsvDit *dit, int32_t *order, void *rope_cos, void *rope_sin)
{
    const int32_t *chosen = dit->sparse ? dsvi_sparse_order(dit->sparse) : NULL;
    for (int64_t s = 0; s < dit->all_tokens; s++)
        order[s] = chosen ? chosen[s] : (int32_t)s;
    dsvi_rope_tables(dit->grid, dit->head_dim, dit->tokens, order + dit->first, dit->acc, rope_cos, rope_sin);
}

/* Where each stretch lies in whole arrays. */
static void find_stretches(DsvDit *dit)
{
    const DsvParamTable *table = dit->table;
    const DsvDitWeights *weights = &dit->weights;
    for (int64_t s = 0; s < table->stretches && !weights->enter; s++)
        dit->stretch[s] = (DsvDitStretch){
            .acc = dsvi_dit_at(weights->master, dit->acc, table->begin[s]),
            .act = dsvi_dit_at(weights->compute, dit->act, table->gemm[s]),
            .grad = weights->grad ? dsvi_dit_at(weights->grad, dit->acc, table->begin[s]) : NULL,
        };
}

DsvStatus dsvi_dit_setup(DsvDit *dit, const DsvDitWeights *weights)
{
    DsvStatus status;
    DsvDevice *device = dit->backend->device;
    size_t tokens = (size_t)dit->all_tokens;
    size_t table_bytes = (size_t)dit->tokens * (size_t)(dit->head_dim / 2) * dsvi_dtype_size(dit->acc);
    int32_t *order = malloc(tokens * sizeof *order);
    char *tables = malloc(2 * table_bytes);
    DSVI_ASSERT(weights->grad || weights->enter || !dit->shape.backward);
    dit->weights = *weights;
    find_stretches(dit);
    if (!order || !tables) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the tables of %zu tokens", tokens);
        goto done;
    }
    make_tables(dit, order, tables, tables + table_bytes);
    DSVI_TRY_GOTO(status, device->upload(dit->stream, dit->order, order, tokens * sizeof *order), done);
    DSVI_TRY_GOTO(status, device->upload(dit->stream, dit->rope_cos, tables, table_bytes), done);
    DSVI_TRY_GOTO(status, device->upload(dit->stream, dit->rope_sin, tables + table_bytes, table_bytes),
                  done);
    DSVI_TRY_GOTO(status, device->sync(dit->stream), done);
done:
    free(order);
    free(tables);
    return status;
}

/* All parameters in one call: those that nobody reads in the compute dtype are few. */
DsvStatus dsvi_dit_refresh_compute(DsvDit *dit)
{
    if (dit->weights.compute == dit->weights.master)
        return DSV_OK;
    return dsvi_dit_cast(dit, dit->table->elements, dit->acc, dit->weights.master, dit->act,
                         dit->weights.compute);
}

/* ---- the main path ---- */

static DsvStatus enter(DsvDit *dit, DsvDitPass pass, int64_t stretch)
{
    const DsvDitWeights *weights = &dit->weights;
    return weights->enter ? weights->enter(weights->lender, pass, stretch, &dit->stretch[stretch]) : DSV_OK;
}

static DsvStatus leave(const DsvDit *dit, DsvDitPass pass, int64_t stretch)
{
    const DsvDitWeights *weights = &dit->weights;
    return weights->leave ? weights->leave(weights->lender, pass, stretch) : DSV_OK;
}

/* All but the head, which is entered. */
static DsvStatus forward_blocks(DsvDit *dit, const void *latents, const void *timestep, const void *text)
{
    int64_t layers = dit->config.num_layers;
    DSVI_TRY(enter(dit, DSV_PASS_FORWARD, 0));
    DSVI_TRY(dsvi_dit_embed_fwd(dit, latents, timestep, text));
    DSVI_TRY(leave(dit, DSV_PASS_FORWARD, 0));
    for (int64_t block = 0; block < layers; block++) {
        DSVI_TRY(enter(dit, DSV_PASS_FORWARD, block + 1));
        DSVI_TRY(dsvi_dit_block_fwd(dit, block));
        DSVI_TRY(leave(dit, DSV_PASS_FORWARD, block + 1));
    }
    return enter(dit, DSV_PASS_FORWARD, layers + 1);
}

DsvStatus dsvi_dit_forward(DsvDit *dit, const void *latents, const void *timestep, const void *text,
                           void *output)
{
    DSVI_ASSERT(!dit->shape.loss || !dit->shape.context);
    DSVI_TRY(forward_blocks(dit, latents, timestep, text));
    DSVI_TRY(dsvi_dit_head_fwd(dit, output));
    return leave(dit, DSV_PASS_FORWARD, dit->config.num_layers + 1);
}

DsvStatus dsvi_dit_forward_loss(DsvDit *dit, const void *latents, const void *timestep, const void *text,
                                const DsvDitLoss *loss)
{
    DSVI_ASSERT(dit->shape.loss);
    DSVI_TRY(dsvi_dit_target_rows(dit, loss->target));
    DSVI_TRY(forward_blocks(dit, latents, timestep, text));
    DSVI_TRY(dsvi_dit_head_loss(dit, loss));
    return leave(dit, DSV_PASS_FORWARD, dit->config.num_layers + 1);
}

double dsvi_dit_share(const DsvDit *dit)
{
    return (double)dit->tokens / (double)dit->all_tokens;
}

/* What grows over the backward pass begins at zero. */
static DsvStatus zero_gradients(const DsvDit *dit)
{
    const DsvDitScratch *s = &dit->scratch;
    DSVI_TRY(dsvi_dit_zero(dit, dit->acc, s->dx, dit->batch * dit->tokens * dit->width));
    DSVI_TRY(dsvi_dit_zero(dit, dit->acc, s->dcontext, dit->batch * dit->text_len * dit->width));
    DSVI_TRY(dsvi_dit_zero(dit, dit->acc, s->dembedding, dit->batch * 6 * dit->width));
    DSVI_TRY(dsvi_dit_zero(dit, dit->acc, s->dmodulation,
                           dit->config.num_layers * dit->batch * 6 * dit->width));
    DSVI_TRY(dsvi_dit_zero(dit, dit->acc, s->dy_sum, dit->config.num_layers * dit->width));
    return dsvi_dit_zero(dit, dit->acc, s->dtime, dit->batch * dit->width);
}

DsvStatus dsvi_dit_backward(DsvDit *dit, const void *doutput, void *dlatents, void *dtext)
{
    int64_t layers = dit->config.num_layers;
    DSVI_ASSERT(dit->shape.backward && (doutput || dit->shape.loss));
    DSVI_TRY(zero_gradients(dit));
    DSVI_TRY(enter(dit, DSV_PASS_BACKWARD, layers + 1));
    DSVI_TRY(dsvi_dit_head_bwd(dit, doutput));
    DSVI_TRY(leave(dit, DSV_PASS_BACKWARD, layers + 1));
    for (int64_t block = layers - 1; block >= 0; block--) {
        DSVI_TRY(enter(dit, DSV_PASS_BACKWARD, block + 1));
        DSVI_TRY(dsvi_dit_block_bwd(dit, block));
        DSVI_TRY(leave(dit, DSV_PASS_BACKWARD, block + 1));
    }
    DSVI_TRY(enter(dit, DSV_PASS_BACKWARD, 0));
    DSVI_TRY(dsvi_dit_embed_bwd(dit, dlatents, dtext));
    return leave(dit, DSV_PASS_BACKWARD, 0);
}
