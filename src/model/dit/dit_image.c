/* Image rows (Wan 2.1 I2V and FLF2V): their embedding, and the attention over them in each block, forward and
 * backward:
 *
 *     r = LN(Linear(gelu(Linear(LN(image + positions)))))        states of the rows, once per pass
 *     CrossAttn(x, text, image) = o(Attn(q, k, v) + Attn(q, RMSNorm(k_img r), v_img r))
 *
 * q is shared with the text. Both norms of the embedding have the eps of PyTorch's LayerNorm, and its GELU is
 * the exact one, unlike those of the rest of the model. */
#include <math.h>

#include "model/dit/dit_internal.h"

static const double EMBEDDER_EPS = 1e-5;

/* ---- embedding ---- */

/* Adds the table of positions to the image rows. */
static DsvStatus add_positions(const DsviDit *dit)
{
    int64_t cols = dit->image_len * dit->config.image_dim;
    DsviAddRowsArgs args = {
        .rows = dit->batch,
        .cols = cols,
        .x_cols = cols,
        .acc = dit->acc,
        .x = dit->image,
        .table = dsvi_dit_param(dit, dit->params.image.positions),
        .out = dit->embedded.image_rows,
    };
    return dit->backend->ops.add_rows_fwd.run(dit->stream, &args);
}

static DsviLayerNormArgs image_norm(const DsviDit *dit, int64_t channels, int64_t weight, int64_t bias)
{
    return (DsviLayerNormArgs){
        .batch = dit->batch,
        .tokens = dit->image_len,
        .channels = channels,
        .eps = EMBEDDER_EPS,
        .act = dit->act,
        .acc = dit->acc,
        .scale = dsvi_dit_param(dit, weight),
        .shift = dsvi_dit_param(dit, bias),
        .mean = dit->scratch.mean,
        .rstd = dit->scratch.rstd,
        .dscale = dsvi_dit_grad(dit, weight),
        .dshift = dsvi_dit_grad(dit, bias),
    };
}

/* The norm of the image rows, and the norm at the end of the embedding. */
static DsviLayerNormArgs first_norm(const DsviDit *dit)
{
    const DsviDitEmbedded *e = &dit->embedded;
    DsviLayerNormArgs args = image_norm(dit, dit->config.image_dim, dit->params.image.norm1,
                                        dit->params.image.norm1_bias);
    args.x = dit->params.image.positions >= 0 ? e->image_rows : dit->image;
    args.y = e->image_normed;
    args.dy = dit->scratch.dimage_normed;
    args.dx = dit->scratch.dimage_rows;
    return args;
}

static DsviLayerNormArgs second_norm(const DsviDit *dit)
{
    const DsviDitEmbedded *e = &dit->embedded;
    DsviLayerNormArgs args = image_norm(dit, dit->width, dit->params.image.norm2,
                                        dit->params.image.norm2_bias);
    args.x = e->image_out;
    args.y = e->image_states;
    args.dy = dit->scratch.dimage_act;
    args.dx = dit->scratch.dimage_out;
    return args;
}

/* Backward pass of a norm: overwrites args.dx. The forward pass is computed again for its statistics. */
static DsvStatus image_norm_bwd(const DsviDit *dit, const DsviLayerNormArgs *args)
{
    DSVI_TRY(dsvi_dit_clear(dit, dit->acc, args->dx, args->batch * args->tokens * args->channels));
    DSVI_TRY(dit->backend->ops.layer_norm_fwd.run(dit->stream, args));
    return dit->backend->ops.layer_norm_bwd.run(dit->stream, args);
}

static DsviActivationArgs image_gelu(const DsviDit *dit)
{
    const DsviDitEmbedded *e = &dit->embedded;
    return (DsviActivationArgs){
        .activation = DSVI_GELU_ERF,
        .n = dit->batch * dit->image_len * dit->config.image_dim,
        .dtype = dit->act,
        .x = e->image_hidden,
        .y = e->image_act,
        .dy = dit->scratch.dimage_hidden,
        .dx = dit->scratch.dimage_hidden,
    };
}

DsvStatus dsvi_dit_image_embed_fwd(const DsviDit *dit)
{
    const DsviDitEmbedded *e = &dit->embedded;
    const DsviDitParams *p = &dit->params;
    int64_t rows = dit->batch * dit->image_len;
    if (rows == 0)
        return DSV_OK;
    DsviLayerNormArgs first = first_norm(dit), second = second_norm(dit);
    DsviActivationArgs gelu = image_gelu(dit);
    if (p->image.positions >= 0)
        DSVI_TRY(add_positions(dit));
    DSVI_TRY(dit->backend->ops.layer_norm_fwd.run(dit->stream, &first));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->image.in, rows, e->image_normed, dit->act, e->image_hidden));
    DSVI_TRY(dit->backend->ops.activation_fwd.run(dit->stream, &gelu));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->image.out, rows, e->image_act, dit->acc, e->image_out));
    return dit->backend->ops.layer_norm_fwd.run(dit->stream, &second);
}

/* Adds the gradient of the image rows, summed over the batch, to that of the table of positions. */
static DsvStatus add_dpositions(const DsviDit *dit)
{
    int64_t cols = dit->image_len * dit->config.image_dim;
    DsviColSumArgs sum = {.m = dit->batch,
                          .n = cols,
                          .x_dtype = dit->acc,
                          .x = dit->scratch.dimage_rows,
                          .ldx = cols,
                          .y_dtype = dit->acc,
                          .y = dsvi_dit_grad(dit, dit->params.image.positions)};
    return dit->backend->ops.col_sum.run(dit->stream, &sum);
}

DsvStatus dsvi_dit_image_embed_bwd(const DsviDit *dit)
{
    const DsviDitEmbedded *e = &dit->embedded;
    const DsviDitParams *p = &dit->params;
    const DsviDitScratch *s = &dit->scratch;
    int64_t rows = dit->batch * dit->image_len, states = rows * dit->width;
    if (rows == 0)
        return DSV_OK;
    DsviLayerNormArgs first = first_norm(dit), second = second_norm(dit);
    DsviActivationArgs gelu = image_gelu(dit);
    DSVI_TRY(dsvi_dit_cast(dit, states, dit->acc, s->dimage_states, dit->act, s->dimage_act));
    DSVI_TRY(image_norm_bwd(dit, &second));
    DSVI_TRY(dsvi_dit_cast(dit, states, dit->acc, s->dimage_out, dit->act, s->dimage_act));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &p->image.out,
                                 &(DsviDitLinearGrads){.rows = rows,
                                                       .x = e->image_act,
                                                       .dy = s->dimage_act,
                                                       .dx = s->dimage_hidden,
                                                       .dx_dtype = dit->act}));
    DSVI_TRY(dit->backend->ops.activation_bwd.run(dit->stream, &gelu));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &p->image.in,
                                 &(DsviDitLinearGrads){.rows = rows,
                                                       .x = e->image_normed,
                                                       .dy = s->dimage_hidden,
                                                       .dx = s->dimage_normed,
                                                       .dx_dtype = dit->act}));
    DSVI_TRY(image_norm_bwd(dit, &first));
    if (p->image.positions >= 0)
        DSVI_TRY(add_dpositions(dit));
    return dit->dimage ? dsvi_dit_cast(dit, rows * dit->config.image_dim, dit->acc, s->dimage_rows, dit->acc,
                                       dit->dimage)
                       : DSV_OK;
}

/* ---- attention ---- */

static const DsviDitImageParams *image_params(const DsviDit *dit, int64_t block)
{
    return &dit->params.blocks[block].image;
}

static DsviRmsNormRopeArgs image_k_norm(const DsviDit *dit, int64_t block)
{
    return dsvi_dit_heads_norm(dit, dit->image_len, false, dit->saved[block].image_k,
                               image_params(dit, block)->norm_k, dit->scratch.rstd_k);
}

static DsviAttentionCall image_tensors(const DsviDit *dit, int64_t block)
{
    const DsviDitSaved *saved = &dit->saved[block];
    const DsviDitScratch *s = &dit->scratch;
    return (DsviAttentionCall){
        .scale = 1 / sqrt((double)dit->head_dim),
        .q = s->q,
        .k = s->cross_k,
        .v = saved->image_v,
        .out = saved->image_attended,
        .lse = saved->image_lse,
        .dout = s->h,
        .dq = s->k,
        .dk = s->dcross_k,
        .dv = s->dcross_v,
    };
}

/* y += x for tensors (B, S, C) act. */
static DsvStatus add_stream(const DsviDit *dit, const void *x, void *y)
{
    DsviAddArgs add = {.n = dit->batch * dit->tokens * dit->width,
                       .a = 1,
                       .b = 1,
                       .x_dtype = dit->act,
                       .y_dtype = dit->act,
                       .x = x,
                       .y = y};
    return dit->backend->ops.add.run(dit->stream, &add);
}

DsvStatus dsvi_dit_image_sum(const DsviDit *dit, int64_t block, const void **attended)
{
    void *sum = dit->scratch.k;
    if (dit->image_len == 0)
        return DSV_OK;
    DSVI_TRY(dsvi_dit_cast(dit, dit->batch * dit->tokens * dit->width, dit->act, *attended, dit->act, sum));
    *attended = sum;
    return add_stream(dit, dit->saved[block].image_attended, sum);
}

DsvStatus dsvi_dit_image_attend_fwd(const DsviDit *dit, int64_t block, const void **attended)
{
    const DsviDitImageParams *p = image_params(dit, block);
    const DsviDitSaved *saved = &dit->saved[block];
    const void *states = dit->embedded.image_states;
    int64_t rows = dit->batch * dit->image_len;
    if (rows == 0)
        return DSV_OK;
    DsviAttentionCall tensors = image_tensors(dit, block);
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->k, rows, states, dit->act, saved->image_k));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->v, rows, states, dit->act, saved->image_v));
    DSVI_TRY(dsvi_dit_heads_norm_fwd(dit, image_k_norm(dit, block), dit->scratch.cross_k));
    DSVI_TRY(dsvi_dit_attend_dense(dit, dit->image_len, &tensors, false));
    return dsvi_dit_image_sum(dit, block, attended);
}

DsvStatus dsvi_dit_image_attend_bwd(const DsviDit *dit, int64_t block)
{
    const DsviDitImageParams *p = image_params(dit, block);
    const DsviDitScratch *s = &dit->scratch;
    int64_t rows = dit->batch * dit->image_len;
    if (rows == 0)
        return DSV_OK;
    DsviDitLinear k = dsvi_dit_without_bias(&p->k);
    DsviAttentionCall tensors = image_tensors(dit, block);
    DsviDitLinearGrads grads = {
        .rows = rows,
        .x = dit->embedded.image_states,
        .dx = dit->shape.lora ? NULL : s->dimage_states, /* only frozen layers come before */
        .dx_dtype = dit->acc,
        .add_to_dx = true,
    };
    DSVI_TRY(dsvi_dit_heads_norm_fwd(dit, image_k_norm(dit, block), s->cross_k));
    DSVI_TRY(dsvi_dit_attend_dense(dit, dit->image_len, &tensors, true));
    DSVI_TRY(add_stream(dit, s->k, s->dq));
    DSVI_TRY(dsvi_dit_heads_norm_bwd(dit, image_k_norm(dit, block), &p->k, s->dcross_k));
    grads.dy = s->dcross_k;
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &k, &grads));
    grads.dy = s->dcross_v;
    return dsvi_dit_linear_bwd(dit, &p->v, &grads);
}
