/* The functions of dit.h: creation, weights, forward and backward pass. Blocks are in dit_block.c, embeddings
 * and head in dit_embed.c, memory in dit_plan.c. */
#include "model/dit/dit_internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "model/dit/rope.h"

/* ---- parameters by name ---- */

static const DsviParam *find_param(const DsviDit *dit, const char *prefix, const char *name)
{
    char full[160];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    int64_t index = dsvi_param_find(dit->table, full);
    DSVI_ASSERT(index >= 0);
    return &dit->table->params[index];
}

static int64_t dit_place_of(const DsviDit *dit, const char *prefix, const char *name)
{
    return find_param(dit, prefix, name)->offset;
}

static DsviDitLinear linear_of(const DsviDit *dit, const char *prefix, const char *name)
{
    char full[160];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const DsviParam *weight = find_param(dit, full, ".weight");
    return (DsviDitLinear){
        .out = weight->shape[0],
        .in = weight->count / weight->shape[0],
        .weight = weight->offset,
        .bias = dit_place_of(dit, full, ".bias"),
        .dtype = weight->in_compute_dtype ? dit->act : dit->acc,
        .lora = dit->shape.lora ? dsvi_lora_params_find(dit->shape.lora, weight->offset) : NULL,
    };
}

static DsviDitAttentionParams attention_of(const DsviDit *dit, const char *prefix)
{
    return (DsviDitAttentionParams){
        .q = linear_of(dit, prefix, "to_q"),
        .k = linear_of(dit, prefix, "to_k"),
        .v = linear_of(dit, prefix, "to_v"),
        .o = linear_of(dit, prefix, "to_out.0"),
        .norm_q = dit_place_of(dit, prefix, "norm_q.weight"),
        .norm_k = dit_place_of(dit, prefix, "norm_k.weight"),
    };
}

static DsviDitImageParams image_attention_of(const DsviDit *dit, const char *prefix)
{
    DsviDitImageParams params = {
        .k = linear_of(dit, prefix, "add_k_proj"),
        .v = linear_of(dit, prefix, "add_v_proj"),
        .norm_k = dit_place_of(dit, prefix, "norm_added_k.weight"),
    };
    params.k.of_condition = params.v.of_condition = dit->image_len;
    return params;
}

static DsviDitBlockParams block_of(const DsviDit *dit, int64_t block)
{
    char prefix[48], self[64], cross[64];
    snprintf(prefix, sizeof prefix, "blocks.%lld.", (long long)block);
    snprintf(self, sizeof self, "%sattn1.", prefix);
    snprintf(cross, sizeof cross, "%sattn2.", prefix);
    DsviDitBlockParams params = {
        .self = attention_of(dit, self),
        .cross = attention_of(dit, cross),
        .ffn_in = linear_of(dit, prefix, "ffn.net.0.proj"),
        .ffn_out = linear_of(dit, prefix, "ffn.net.2"),
        .norm_weight = dit_place_of(dit, prefix, "norm2.weight"),
        .norm_bias = dit_place_of(dit, prefix, "norm2.bias"),
        .modulation = dit_place_of(dit, prefix, "scale_shift_table"),
    };
    params.cross.k.of_condition = params.cross.v.of_condition = dit->text_len;
    if (dit->image_len > 0)
        params.image = image_attention_of(dit, cross);
    return params;
}

static void find_image_params(DsviDit *dit)
{
    static const char PREFIX[] = "condition_embedder.image_embedder.";
    DsviDitParams *p = &dit->params;
    p->image.in = linear_of(dit, PREFIX, "ff.net.0.proj");
    p->image.out = linear_of(dit, PREFIX, "ff.net.2");
    p->image.norm1 = dit_place_of(dit, PREFIX, "norm1.weight");
    p->image.norm1_bias = dit_place_of(dit, PREFIX, "norm1.bias");
    p->image.norm2 = dit_place_of(dit, PREFIX, "norm2.weight");
    p->image.norm2_bias = dit_place_of(dit, PREFIX, "norm2.bias");
    p->image.positions = dit->config.pos_embed_seq_len > 0 ? dit_place_of(dit, PREFIX, "pos_embed") : -1;
}

static void find_params(DsviDit *dit)
{
    DsviDitParams *p = &dit->params;
    p->patch = linear_of(dit, "", "patch_embedding");
    p->text_in = linear_of(dit, "condition_embedder.", "text_embedder.linear_1");
    p->text_out = linear_of(dit, "condition_embedder.", "text_embedder.linear_2");
    p->time_in = linear_of(dit, "condition_embedder.", "time_embedder.linear_1");
    p->time_out = linear_of(dit, "condition_embedder.", "time_embedder.linear_2");
    p->time_projection = linear_of(dit, "condition_embedder.", "time_proj");
    p->head = linear_of(dit, "", "proj_out");
    p->head_modulation = dit_place_of(dit, "", "scale_shift_table");
    if (dit->image_len > 0)
        find_image_params(dit);
    for (int64_t i = 0; i < dit->config.num_layers; i++)
        p->blocks[i] = block_of(dit, i);
}

/* ---- creation ---- */

static DsvStatus check_image_len(const DsviDitConfig *config, int64_t image_len)
{
    if (config->image_dim > 0 && image_len < 1)
        return DSVI_FAIL(
            DSV_E_UNSUPPORTED,
            "the model takes rows of an image encoder beside the text (image_dim is %lld), and gets none",
            (long long)config->image_dim);
    if (config->image_dim == 0 && image_len != 0)
        return DSVI_FAIL(DSV_E_SHAPE, "%lld image rows: the model takes none", (long long)image_len);
    if (config->pos_embed_seq_len > 0 && image_len != config->pos_embed_seq_len)
        return DSVI_FAIL(DSV_E_SHAPE, "%lld image rows, expected %lld, the model's pos_embed_seq_len",
                         (long long)image_len, (long long)config->pos_embed_seq_len);
    return DSV_OK;
}

static DsvStatus check_shape(const DsviDitConfig *config, const DsviDitShape *shape)
{
    static const char *const AXIS[3] = {"frames", "height", "width"};
    const int64_t size[3] = {shape->frames, shape->height, shape->width};
    if (shape->batch < 1 || shape->text_len < 1)
        return DSVI_FAIL(DSV_E_SHAPE, "batch %lld with %lld text rows: expected at least 1 of each",
                         (long long)shape->batch, (long long)shape->text_len);
    DSVI_TRY(check_image_len(config, shape->image_len));
    for (int i = 0; i < 3; i++) {
        if (size[i] < 1 || size[i] % config->patch[i])
            return DSVI_FAIL(DSV_E_SHAPE, "%s of the latent is %lld, expected a multiple of the patch's %lld",
                             AXIS[i], (long long)size[i], (long long)config->patch[i]);
        if (size[i] / config->patch[i] > config->rope_max_seq_len)
            return DSVI_FAIL(DSV_E_SHAPE, "%s of the latent is %lld tokens, the model knows %lld positions",
                             AXIS[i], (long long)(size[i] / config->patch[i]),
                             (long long)config->rope_max_seq_len);
    }
    if (shape->given_first && (config->patch[0] != 1 || shape->frames < 2))
        return DSVI_FAIL(
            DSV_E_SHAPE,
            "%lld latent frames in patches of %lld frames: a clip that begins with a given frame "
            "needs at least 2 frames in patches of 1",
            (long long)shape->frames, (long long)config->patch[0]);
    return DSV_OK;
}

static void set_sizes(DsviDit *dit)
{
    const DsviDitConfig *config = &dit->config;
    const DsviDitShape *shape = &dit->shape;
    int64_t patch = config->patch[0] * config->patch[1] * config->patch[2];
    dit->act = shape->act;
    dit->acc = shape->act == DSVI_F64 ? DSVI_F64 : DSVI_F32;
    dit->grid[0] = shape->frames / config->patch[0];
    dit->grid[1] = shape->height / config->patch[1];
    dit->grid[2] = shape->width / config->patch[2];
    dit->batch = shape->batch;
    dit->all_tokens = dsvi_dit_tokens(config, shape);
    dit->tokens = shape->cp ? dsvi_cp_tokens(shape->cp) : dit->all_tokens;
    dit->first = shape->cp ? dsvi_cp_first(shape->cp) : 0;
    dit->text_len = shape->text_len;
    dit->image_len = shape->image_len;
    dit->times = shape->given_first ? 2 : 1;
    dit->time_rows = dit->batch * dit->times;
    dit->longest = dit->tokens > dit->text_len ? dit->tokens : dit->text_len;
    dit->longest = dit->longest > dit->image_len ? dit->longest : dit->image_len;
    dit->width = dsvi_dit_width(config);
    dit->heads = config->num_attention_heads;
    dit->head_dim = config->attention_head_dim;
    dit->ffn = config->ffn_dim;
    dit->patch_in = config->in_channels * patch;
    dit->patch_out = config->out_channels * patch;
}

DsvStatus dsvi_dit_create(DsviBackend *backend, const DsviDitConfig *config, const DsviParamTable *table,
                          const DsviDitShape *shape, DsviSparse *sparse, DsviDit **out)
{
    size_t layers = (size_t)config->num_layers;
    *out = NULL;
    DSVI_TRY(check_shape(config, shape));
    DSVI_ASSERT(sparse || !shape->cp);
    DsviDit *dit = calloc(1, sizeof *dit);
    if (!dit)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a model");
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
    dit->bucket = calloc((size_t)table->buckets, sizeof *dit->bucket);
    dit->lora_bucket = calloc((size_t)table->buckets, sizeof *dit->lora_bucket);
    dit->host_kept = calloc(3 * layers, sizeof *dit->host_kept);
    dit->kept = calloc(layers, sizeof *dit->kept);
    dit->number = calloc(layers + 1, sizeof *dit->number);
    dit->host_of_time = calloc(shape->given_first ? (size_t)dit->tokens : 1, sizeof *dit->host_of_time);
    DsviDitKept *uniform = calloc(layers, sizeof *uniform);
    if (!dit->params.blocks || !dit->host_of_time || !dit->residual || !dit->host_kept || !dit->saved ||
        !dit->bucket || !dit->lora_bucket || !dit->kept || !dit->number || !uniform) {
        free(uniform);
        dsvi_dit_free(&dit);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a model of %zu blocks", layers);
    }
    find_params(dit);
    for (size_t block = 0; block < layers; block++)
        uniform[block] = (DsviDitKept){shape->keep, shape->offload};
    dsvi_dit_keep_blocks(dit, uniform);
    free(uniform);
    *out = dit;
    return DSV_OK;
}

void dsvi_dit_free(DsviDit **dit)
{
    if (!*dit)
        return;
    free((*dit)->params.blocks);
    free((*dit)->residual);
    free((*dit)->host_kept);
    free((*dit)->kept);
    free((*dit)->number);
    free((*dit)->host_of_time);
    free((*dit)->saved);
    free((*dit)->bucket);
    free((*dit)->lora_bucket);
    free(*dit);
    *dit = NULL;
}

/* Fills host arrays with the order of all tokens and the RoPE tables of this rank's tokens. */
static void fill_tables(const DsviDit *dit, int32_t *order, void *rope_cos, void *rope_sin)
{
    const int32_t *chosen = dit->sparse ? dsvi_sparse_order(dit->sparse) : NULL;
    for (int64_t s = 0; s < dit->all_tokens; s++)
        order[s] = chosen ? chosen[s] : (int32_t)s;
    dsvi_rope_tables(dit->grid, dit->head_dim, dit->tokens, order + dit->first, dit->acc, rope_cos, rope_sin);
}

/* Returns whether a token is of the first latent frame; `order` is that of this rank's tokens. */
static bool in_first_frame(const DsviDit *dit, const int32_t *order, int64_t token)
{
    return order[token] < dit->grid[1] * dit->grid[2];
}

/* With shape.given_first: sorts this rank's tokens by their time, and uploads them. */
static DsvStatus set_times(DsviDit *dit, const int32_t *order)
{
    DsviDevice *device = dit->backend->device;
    int64_t n = 0;
    if (!dit->shape.given_first)
        return DSV_OK;
    for (int time = 0; time < 2; time++) {
        for (int64_t token = 0; token < dit->tokens; token++)
            if (in_first_frame(dit, order, token) == (time == 0))
                dit->host_of_time[n++] = (int32_t)token;
        dit->time_begin[time + 1] = n;
    }
    return device->upload(dit->stream, dit->of_time, dit->host_of_time,
                          (size_t)n * sizeof *dit->host_of_time);
}

/* With shape.given_first and shape.loss: computes and uploads the weights of the loss. */
static DsvStatus set_loss_weight(DsviDit *dit, const int32_t *order)
{
    DsvStatus status;
    DsviDevice *device = dit->backend->device;
    int64_t n = dit->tokens * dit->patch_out;
    size_t bytes = (size_t)n * dsvi_dtype_size(dit->acc);
    if (!dit->loss_weight)
        return DSV_OK;
    void *weight = malloc(bytes);
    if (!weight)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the weights of a loss of %lld tokens",
                         (long long)dit->tokens);
    for (int64_t i = 0; i < n; i++)
        dsvi_store(dit->acc, weight, i,
                   in_first_frame(dit, order, i / dit->patch_out)
                       ? 0
                       : (double)dit->grid[0] / (double)(dit->grid[0] - 1));
    DSVI_TRY_GOTO(status, device->upload(dit->stream, dit->loss_weight, weight, bytes), done);
    DSVI_TRY_GOTO(status, device->sync(dit->stream), done);
done:
    free(weight);
    return status;
}

/* Sets the addresses of each bucket's parameters if the weights are arrays with all parameters; otherwise
 * buckets get their addresses when they are acquired. */
static void set_buckets(const DsviDit *dit, const DsviParamTable *table, const DsviDitWeights *weights,
                        DsviDitBucket *bucket)
{
    for (int64_t s = 0; s < table->buckets && !weights->acquire; s++)
        bucket[s] = (DsviDitBucket){
            .acc = dsvi_dit_at(weights->master, dit->acc, table->begin[s]),
            .act = dsvi_dit_at(weights->compute, dit->act, table->gemm[s]),
            .grad = weights->grad ? dsvi_dit_at(weights->grad, dit->acc, table->begin[s]) : NULL,
        };
}

DsvStatus dsvi_dit_setup(DsviDit *dit, const DsviDitWeights *weights)
{
    DsvStatus status;
    DsviDevice *device = dit->backend->device;
    size_t tokens = (size_t)dit->all_tokens;
    size_t table_bytes = (size_t)dit->tokens * (size_t)(dit->head_dim / 2) * dsvi_dtype_size(dit->acc);
    int32_t *order = malloc(tokens * sizeof *order);
    char *tables = malloc(2 * table_bytes);
    DSVI_ASSERT(weights->grad || weights->acquire || !dit->shape.backward || dit->shape.lora);
    dit->weights = *weights;
    set_buckets(dit, dit->table, weights, dit->bucket);
    DSVI_ASSERT(!weights->lora == !dit->shape.lora);
    if (weights->lora) {
        dit->lora_weights = *weights->lora;
        set_buckets(dit, &dit->shape.lora->table, weights->lora, dit->lora_bucket);
    }
    if (!order || !tables) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the tables of %zu tokens", tokens);
        goto done;
    }
    fill_tables(dit, order, tables, tables + table_bytes);
    DSVI_TRY_GOTO(status, device->upload(dit->stream, dit->order, order, tokens * sizeof *order), done);
    DSVI_TRY_GOTO(status, set_times(dit, order + dit->first), done);
    DSVI_TRY_GOTO(status, set_loss_weight(dit, order + dit->first), done);
    DSVI_TRY_GOTO(status, device->upload(dit->stream, dit->rope_cos, tables, table_bytes), done);
    DSVI_TRY_GOTO(status, device->upload(dit->stream, dit->rope_sin, tables + table_bytes, table_bytes),
                  done);
    DSVI_TRY_GOTO(status, device->sync(dit->stream), done);
done:
    free(order);
    free(tables);
    return status;
}

/* Converts all parameters to the compute dtype in one call, even the few never read in this dtype. */
DsvStatus dsvi_dit_refresh_compute(DsviDit *dit)
{
    if (dit->weights.compute == dit->weights.master)
        return DSV_OK;
    return dsvi_dit_cast(dit, dit->table->elements, dit->acc, dit->weights.master, dit->act,
                         dit->weights.compute);
}

/* ---- the main path ---- */

static DsvStatus dit_acquire(DsviDit *dit, DsviDitPass pass, int64_t bucket)
{
    const DsviDitWeights *weights = &dit->weights, *lora = &dit->lora_weights;
    if (weights->acquire)
        DSVI_TRY(weights->acquire(weights->owner, pass, bucket, &dit->bucket[bucket]));
    return lora->acquire ? lora->acquire(lora->owner, pass, bucket, &dit->lora_bucket[bucket]) : DSV_OK;
}

static DsvStatus dit_release(const DsviDit *dit, DsviDitPass pass, int64_t bucket)
{
    const DsviDitWeights *weights = &dit->weights, *lora = &dit->lora_weights;
    if (lora->release)
        DSVI_TRY(lora->release(lora->owner, pass, bucket));
    return weights->release ? weights->release(weights->owner, pass, bucket) : DSV_OK;
}

DsvStatus dsvi_dit_forward(DsviDit *dit, const void *latents, const void *timestep, const void *text,
                           void *output, const DsviDitLoss *loss)
{
    int64_t layers = dit->config.num_layers;
    DSVI_ASSERT(!dit->image_len == !dit->image);
    DSVI_ASSERT(loss ? dit->shape.loss && !output : output && (!dit->shape.loss || !dit->shape.cp));
    if (loss)
        DSVI_TRY(dsvi_dit_target_rows(dit, loss->target));
    DSVI_TRY(dit_acquire(dit, DSVI_PASS_FORWARD, 0));
    DSVI_TRY(dsvi_dit_stack_push(dit, 0));
    DSVI_TRY(dsvi_dit_embed_fwd(dit, latents, timestep, text));
    DSVI_TRY(dit_release(dit, DSVI_PASS_FORWARD, 0));
    for (int64_t block = 0; block < layers; block++) {
        DSVI_TRY(dit_acquire(dit, DSVI_PASS_FORWARD, block + 1));
        DSVI_TRY(block > 0 ? dsvi_dit_stack_push(dit, block) : DSV_OK);
        DSVI_TRY(dsvi_dit_block_fwd(dit, block));
        DSVI_TRY(dit_release(dit, DSVI_PASS_FORWARD, block + 1));
    }
    DSVI_TRY(dit_acquire(dit, DSVI_PASS_FORWARD, layers + 1));
    DSVI_TRY(dsvi_dit_stack_push(dit, layers));
    DSVI_TRY(loss ? dsvi_dit_head_loss(dit, loss) : dsvi_dit_head_fwd(dit, output));
    return dit_release(dit, DSVI_PASS_FORWARD, layers + 1);
}

void dsvi_dit_set_image(DsviDit *dit, const void *image, void *dimage)
{
    DSVI_ASSERT(dit->image_len > 0 && !(dit->shape.lora && dimage));
    dit->image = image;
    dit->dimage = dimage;
}

void dsvi_dit_set_samples(DsviDit *dit, uint64_t seed, uint64_t first)
{
    dit->dropout_seed = seed;
    dit->first_sample = first;
}

double dsvi_dit_token_fraction(const DsviDit *dit)
{
    return (double)dit->tokens / (double)dit->all_tokens;
}

/* Sets to zero the gradients to which each block of the backward pass adds. */
static DsvStatus zero_gradients(const DsviDit *dit)
{
    const DsviDitScratch *s = &dit->scratch;
    DSVI_TRY(dsvi_dit_clear(dit, dit->acc, s->dx, dit->batch * dit->tokens * dit->width));
    DSVI_TRY(dsvi_dit_clear(dit, dit->acc, s->dtext_states, dit->batch * dit->text_len * dit->width));
    DSVI_TRY(dsvi_dit_clear(dit, dit->acc, s->dimage_states, dit->batch * dit->image_len * dit->width));
    DSVI_TRY(dsvi_dit_clear(dit, dit->acc, s->dembedding, dit->time_rows * 6 * dit->width));
    DSVI_TRY(dsvi_dit_clear(dit, dit->acc, s->dmodulation,
                            dit->config.num_layers * dit->time_rows * 6 * dit->width));
    DSVI_TRY(dsvi_dit_clear(dit, dit->acc, s->dy_sum, dit->config.num_layers * dit->width));
    return dsvi_dit_clear(dit, dit->acc, s->dtime, dit->time_rows * dit->width);
}

DsvStatus dsvi_dit_backward(DsviDit *dit, const void *doutput, void *dlatents, void *dtext)
{
    int64_t layers = dit->config.num_layers;
    DSVI_ASSERT(dit->shape.backward && (doutput || dit->shape.loss));
    DSVI_ASSERT(!dit->shape.lora || (!dlatents && !dtext));
    DSVI_TRY(zero_gradients(dit));
    DSVI_TRY(dit_acquire(dit, DSVI_PASS_BACKWARD, layers + 1));
    DSVI_TRY(dsvi_dit_head_bwd(dit, doutput));
    DSVI_TRY(dit_release(dit, DSVI_PASS_BACKWARD, layers + 1));
    for (int64_t block = layers - 1; block >= 0; block--) {
        DSVI_TRY(dit_acquire(dit, DSVI_PASS_BACKWARD, block + 1));
        DSVI_TRY(dsvi_dit_stack_pop(dit, block));
        DSVI_TRY(dsvi_dit_block_bwd(dit, block));
        DSVI_TRY(dit_release(dit, DSVI_PASS_BACKWARD, block + 1));
    }
    DSVI_TRY(dit_acquire(dit, DSVI_PASS_BACKWARD, 0));
    if (!dit->shape.lora)
        DSVI_TRY(dsvi_dit_embed_bwd(dit, dlatents, dtext));
    return dit_release(dit, DSVI_PASS_BACKWARD, 0);
}
