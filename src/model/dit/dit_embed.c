/* Both ends of the transformer, forward and backward: the embeddings of latents, time and text, and the head.
 * The time embedding is computed in acc even if act is BF16, as in the original implementation. */
#include "model/dit/dit_internal.h"

enum { HEAD_ROWS = 2 }; /* rows of the head's modulation: shift and scale */

/* Computes the SiLU of the time embedding, over (B, T, C). */
static DsvStatus apply_silu(const DsviDit *dit, const void *x, void *y)
{
    DsviActivationArgs args = {
        .activation = DSVI_SILU, .n = dit->time_rows * dit->width, .dtype = dit->acc, .x = x, .y = y};
    return dit->backend->ops.activation_fwd.run(dit->stream, &args);
}

/* Backward pass of apply_silu: replaces dy, the gradient of y, by dx, the gradient of x, in place. */
static DsvStatus apply_silu_bwd(const DsviDit *dit, const void *x, void *dy)
{
    DsviActivationArgs args = {.activation = DSVI_SILU,
                               .n = dit->time_rows * dit->width,
                               .dtype = dit->acc,
                               .x = x,
                               .dy = dy,
                               .dx = dy};
    return dit->backend->ops.activation_bwd.run(dit->stream, &args);
}

/* ---- latents ---- */

/* Returns arguments of the ops that copy between a latent and the patches of this rank's tokens. */
static DsviPatchArgs patch_args(const DsviDit *dit, int64_t channels, bool channel_last, void *latent,
                                DsviDtype row_dtype, void *rows)
{
    return (DsviPatchArgs){
        .batch = dit->batch,
        .channels = channels,
        .frames = dit->shape.frames,
        .height = dit->shape.height,
        .width = dit->shape.width,
        .patch = {dit->config.patch[0], dit->config.patch[1], dit->config.patch[2]},
        .channel_last = channel_last,
        .tokens = dit->tokens,
        .order = dit->order + dit->first,
        .latent_dtype = dit->acc,
        .row_dtype = row_dtype,
        .latent = latent,
        .rows = rows,
    };
}

static DsvStatus patch_fwd(const DsviDit *dit, const void *latents)
{
    void *rows = dit->embedded.patch_rows;
    DsviPatchArgs args = patch_args(dit, dit->config.in_channels, false, (void *)latents, dit->act, rows);
    DSVI_TRY(dit->backend->ops.patch_gather.run(dit->stream, &args));
    return dsvi_dit_linear_fwd(dit, &dit->params.patch, dit->batch * dit->tokens, rows, dit->acc,
                               dit->residual[0]);
}

static DsvStatus patch_bwd(const DsviDit *dit, void *dlatents)
{
    const DsviDitScratch *s = &dit->scratch;
    int64_t rows = dit->batch * dit->tokens;
    void *drows = dlatents ? s->dpatch_rows : NULL;
    DsviPatchArgs args = patch_args(dit, dit->config.in_channels, false, dlatents, dit->acc, drows);
    DSVI_TRY(dsvi_dit_cast(dit, rows * dit->width, dit->acc, s->dx, dit->act, s->dy));
    DSVI_TRY(dsvi_dit_linear_bwd(
        dit, &dit->params.patch,
        &(DsviDitLinearGrads){
            .rows = rows, .x = dit->embedded.patch_rows, .dy = s->dy, .dx = drows, .dx_dtype = dit->acc}));
    if (!dlatents)
        return DSV_OK;
    if (dit->shape.cp) /* patches of other ranks' tokens must be zero */
        DSVI_TRY(dsvi_dit_clear(dit, dit->acc, dlatents, dit->batch * dit->all_tokens * dit->patch_in));
    return dit->backend->ops.patch_scatter.run(dit->stream, &args);
}

/* ---- time ---- */

static DsvStatus time_fwd(const DsviDit *dit, const void *timestep)
{
    const DsviDitEmbedded *e = &dit->embedded;
    const DsviDitParams *p = &dit->params;
    DsviTimeEmbedArgs args = {.batch = dit->time_rows,
                              .dim = dit->config.freq_dim,
                              .acc = dit->acc,
                              .t = timestep,
                              .row = e->time_row};
    DSVI_TRY(dit->backend->ops.time_embed.run(dit->stream, &args));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->time_in, dit->time_rows, e->time_row, dit->acc, e->time_hidden));
    DSVI_TRY(apply_silu(dit, e->time_hidden, e->time_act));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->time_out, dit->time_rows, e->time_act, dit->acc, e->time));
    DSVI_TRY(apply_silu(dit, e->time, e->time_silu));
    return dsvi_dit_linear_fwd(dit, &p->time_projection, dit->time_rows, e->time_silu, dit->acc,
                               e->modulation);
}

static DsvStatus time_bwd(const DsviDit *dit)
{
    const DsviDitEmbedded *e = &dit->embedded;
    const DsviDitParams *p = &dit->params;
    const DsviDitScratch *s = &dit->scratch;
    DsviDtype acc = dit->acc;
    DsviAddArgs join = {.n = dit->time_rows * dit->width,
                        .a = 1,
                        .b = 1,
                        .x_dtype = acc,
                        .y_dtype = acc,
                        .x = s->dtime_hidden,
                        .y = s->dtime};
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &p->time_projection,
                                 &(DsviDitLinearGrads){.rows = dit->time_rows,
                                                       .x = e->time_silu,
                                                       .dy = s->dembedding,
                                                       .dx = s->dtime_hidden,
                                                       .dx_dtype = acc}));
    DSVI_TRY(apply_silu_bwd(dit, e->time, s->dtime_hidden));
    DSVI_TRY(dit->backend->ops.add.run(dit->stream, &join));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &p->time_out,
                                 &(DsviDitLinearGrads){.rows = dit->time_rows,
                                                       .x = e->time_act,
                                                       .dy = s->dtime,
                                                       .dx = s->dtime_hidden,
                                                       .dx_dtype = acc}));
    DSVI_TRY(apply_silu_bwd(dit, e->time_hidden, s->dtime_hidden));
    return dsvi_dit_linear_bwd(
        dit, &p->time_in,
        &(DsviDitLinearGrads){.rows = dit->time_rows, .x = e->time_row, .dy = s->dtime_hidden});
}

/* ---- text ---- */

static DsvStatus text_fwd(const DsviDit *dit, const void *text)
{
    const DsviDitEmbedded *e = &dit->embedded;
    const DsviDitParams *p = &dit->params;
    DsviDtype act = dit->act;
    int64_t rows = dit->batch * dit->text_len;
    DSVI_TRY(dsvi_dit_cast(dit, rows * dit->config.text_dim, dit->acc, text, act, e->text));
    DSVI_TRY(dsvi_dit_linear_gelu_fwd(dit, &p->text_in, rows, e->text, e->text_hidden, e->text_act));
    return dsvi_dit_linear_fwd(dit, &p->text_out, rows, e->text_act, act, e->text_states);
}

static DsvStatus text_bwd(const DsviDit *dit, void *dtext)
{
    const DsviDitEmbedded *e = &dit->embedded;
    const DsviDitParams *p = &dit->params;
    const DsviDitScratch *s = &dit->scratch;
    DsviDtype act = dit->act;
    int64_t rows = dit->batch * dit->text_len;
    DSVI_TRY(dsvi_dit_cast(dit, rows * dit->width, dit->acc, s->dtext_states, act, s->dtext));
    DSVI_TRY(dsvi_dit_linear_gelu_bwd(dit, &p->text_out, rows, e->text_hidden, e->text_act, s->dtext,
                                      s->dtext_hidden));
    return dsvi_dit_linear_bwd(
        dit, &p->text_in,
        &(DsviDitLinearGrads){
            .rows = rows, .x = e->text, .dy = s->dtext_hidden, .dx = dtext, .dx_dtype = dit->acc});
}

DsvStatus dsvi_dit_embed_fwd(DsviDit *dit, const void *latents, const void *timestep, const void *text)
{
    DSVI_TRY(patch_fwd(dit, latents));
    DSVI_TRY(time_fwd(dit, timestep));
    DSVI_TRY(dsvi_dit_image_embed_fwd(dit));
    return text_fwd(dit, text);
}

DsvStatus dsvi_dit_embed_bwd(DsviDit *dit, void *dlatents, void *dtext)
{
    DSVI_TRY(patch_bwd(dit, dlatents));
    DSVI_TRY(time_bwd(dit));
    DSVI_TRY(dsvi_dit_image_embed_bwd(dit));
    return text_bwd(dit, dtext);
}

/* ---- head: out = Linear(LN(x) (1 + m1) + m0), m = table + e in both rows ---- */

static DsviAddRowsArgs head_modulation(const DsviDit *dit)
{
    int64_t place = dit->params.head_modulation;
    return (DsviAddRowsArgs){
        .rows = dit->time_rows,
        .cols = HEAD_ROWS * dit->width,
        .x_cols = dit->width,
        .acc = dit->acc,
        .x = dit->embedded.time,
        .table = dsvi_dit_param(dit, place),
        .out = dit->embedded.head_modulation,
        .dout = dit->scratch.dhead_modulation,
        .dx = dit->scratch.dtime,
        .dtable = dsvi_dit_grad(dit, place),
    };
}

static DsviDitNorm head_norm(const DsviDit *dit)
{
    return dsvi_dit_modulated(dit, dit->residual[dit->config.num_layers], dit->embedded.head_modulation,
                              dit->scratch.dhead_modulation, HEAD_ROWS, 0);
}

/* Computes the output patches of this rank's tokens from scratch.h, contiguous over the batch. */
static DsvStatus head_rows(const DsviDit *dit)
{
    return dsvi_dit_linear_fwd(dit, &dit->params.head, dit->batch * dit->tokens, dit->scratch.h, dit->acc,
                               dit->scratch.head_rows);
}

/* Computes the output patches of this rank's tokens, and writes them to their places among the patches of
 * all tokens. */
static DsvStatus place_head_rows(const DsviDit *dit)
{
    const DsviDitScratch *s = &dit->scratch;
    if (!dit->shape.cp)
        return head_rows(dit);
    for (int64_t b = 0; b < dit->batch; b++) {
        const void *h = dsvi_dit_at(s->h, dit->act, b * dit->tokens * dit->width);
        void *rows = dsvi_dit_at(s->head_rows, dit->acc, (b * dit->all_tokens + dit->first) * dit->patch_out);
        DSVI_TRY(dsvi_dit_linear_fwd(dit, &dit->params.head, dit->tokens, h, dit->acc, rows));
    }
    return DSV_OK;
}

/* Gathers the output patches of all tokens on all ranks. */
static DsvStatus gather_head_rows(const DsviDit *dit)
{
    const DsviCp *cp = dit->shape.cp;
    DsviComm *comm = dsvi_cp_group_device(dsvi_cp_group(cp));
    size_t row_bytes = (size_t)dit->patch_out * dsvi_dtype_size(dit->acc);
    for (int64_t b = 0; b < dit->batch; b++) {
        void *rows = dsvi_dit_at(dit->scratch.head_rows, dit->acc, b * dit->all_tokens * dit->patch_out);
        DSVI_TRY(dsvi_comm_all_gather(comm, rows, row_bytes, dsvi_cp_bound(cp)));
    }
    return DSV_OK;
}

/* Computes the residual sum at the end of the last block, and writes the norm of the head to scratch.h. */
static DsvStatus norm_and_modulate(const DsviDit *dit)
{
    DsviAddRowsArgs modulation = head_modulation(dit);
    DsviGateResidualArgs sum = dsvi_dit_block_sum(dit, dit->config.num_layers - 1);
    DsviDitNorm norm = head_norm(dit);
    DSVI_TRY(dit->backend->ops.add_rows_fwd.run(dit->stream, &modulation));
    return dsvi_dit_norm_fwd(dit, &norm, &sum);
}

DsvStatus dsvi_dit_head_fwd(DsviDit *dit, void *output)
{
    void *rows = dit->scratch.head_rows;
    DsviPatchArgs args = patch_args(dit, dit->config.out_channels, true, output, dit->acc, rows);
    DSVI_TRY(norm_and_modulate(dit));
    DSVI_TRY(place_head_rows(dit));
    if (dit->shape.cp)
        DSVI_TRY(gather_head_rows(dit));
    args.tokens = dit->all_tokens;
    args.order = dit->order;
    return dit->backend->ops.patch_scatter.run(dit->stream, &args);
}

/* The loss compares patches, so the target is converted to patches of this rank's tokens. With context
 * parallelism the ranks therefore exchange neither target nor output. */
DsvStatus dsvi_dit_target_rows(DsviDit *dit, const void *target)
{
    DsviPatchArgs args = patch_args(dit, dit->config.out_channels, true, (void *)target, dit->acc,
                                    dit->scratch.target_rows);
    return dit->backend->ops.patch_gather.run(dit->stream, &args);
}

/* Computes the loss of each sample alone, because their gradients have different factors. */
static DsvStatus weighted_samples(DsviDit *dit, const DsviMseArgs *whole, const double *weight)
{
    size_t sample = (size_t)whole->n * dsvi_dtype_size(dit->acc);
    for (int64_t b = 0; b < whole->batch; b++) {
        DsviMseArgs one = *whole;
        size_t at = (size_t)b * sample;
        one.batch = 1;
        one.grad_scale = whole->grad_scale * weight[b] / (double)whole->batch;
        one.output = (const char *)whole->output + at;
        one.target = (const char *)whole->target + at;
        one.loss = (char *)whole->loss + (size_t)b * dsvi_dtype_size(dit->acc);
        one.doutput = whole->doutput ? (char *)whole->doutput + at : NULL;
        DSVI_TRY(dit->backend->ops.mse.run(dit->stream, &one));
    }
    return DSV_OK;
}

DsvStatus dsvi_dit_head_loss(DsviDit *dit, const DsviDitLoss *loss)
{
    const DsviDitScratch *s = &dit->scratch;
    int64_t n = dit->batch * dit->tokens * dit->patch_out;
    DsviMseArgs mse = {
        .batch = dit->batch,
        .n = dit->tokens * dit->patch_out,
        .acc = dit->acc,
        .grad_scale = loss->grad_scale * dsvi_dit_token_fraction(dit),
        .output = s->head_rows,
        .period = dit->loss_weight ? dit->tokens * dit->patch_out : dit->config.out_channels,
        .weight = dit->loss_weight ? dit->loss_weight
                                   : loss->channel_weight, /* channels are the last dimension of a patch */
        .target = s->target_rows,
        .loss = loss->loss,
        .doutput = dit->shape.backward ? s->head_rows : NULL,
    };
    DSVI_ASSERT(!dit->loss_weight || !loss->channel_weight);
    DSVI_TRY(norm_and_modulate(dit));
    DSVI_TRY(head_rows(dit));
    DSVI_TRY(loss->sample_weight ? weighted_samples(dit, &mse, loss->sample_weight)
                                 : dit->backend->ops.mse.run(dit->stream, &mse));
    return dit->shape.backward ? dsvi_dit_cast(dit, n, dit->acc, s->head_rows, dit->act, s->dhead_rows)
                               : DSV_OK;
}

DsvStatus dsvi_dit_head_bwd(DsviDit *dit, const void *doutput)
{
    const DsviDitScratch *s = &dit->scratch;
    DsviAddRowsArgs modulation = head_modulation(dit);
    DsviDitNorm norm = head_norm(dit);
    DsviGateResidualArgs args;
    const DsviGateResidualArgs *sum = dsvi_dit_block_sum_bwd(dit, dit->config.num_layers - 1, &args);
    DsviPatchArgs drows = patch_args(dit, dit->config.out_channels, true, (void *)doutput, dit->act,
                                     s->dhead_rows);
    if (doutput)
        DSVI_TRY(dit->backend->ops.patch_gather.run(dit->stream, &drows));
    DSVI_TRY(dsvi_dit_clear(dit, dit->acc, s->dhead_modulation, dit->time_rows * HEAD_ROWS * dit->width));
    DSVI_TRY(dsvi_dit_norm_fwd(dit, &norm, NULL));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &dit->params.head,
                                 &(DsviDitLinearGrads){.rows = dit->batch * dit->tokens,
                                                       .x = s->h,
                                                       .dy = s->dhead_rows,
                                                       .dx = s->dy,
                                                       .dx_dtype = dit->act}));
    DSVI_TRY(dsvi_dit_norm_bwd(dit, &norm, sum));
    return dit->shape.lora ? DSV_OK : dit->backend->ops.add_rows_bwd.run(dit->stream, &modulation);
}
