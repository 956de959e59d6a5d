/* The ends of the transformer, forward and backward: embeddings of latents, time and text, and the head.
 * The time embedding is computed in acc whatever act is, as in the original implementation. */
#include "model/dit_internal.h"

enum { HEAD_ROWS = 2 };

/* The time embedding's SiLU. */
static DsvStatus activate(const DsvDit *dit, const void *x, void *y)
{
    DsvActivationArgs args = {.activation = DSV_SILU, .n = dit->batch * dit->width, .dtype = dit->acc, .x = x,
                              .y = y};
    return dit->backend->ops.activation_fwd.run(dit->stream, &args);
}

/* In place: dy becomes dx. */
static DsvStatus activate_bwd(const DsvDit *dit, const void *x, void *dy)
{
    DsvActivationArgs args = {.activation = DSV_SILU, .n = dit->batch * dit->width, .dtype = dit->acc, .x = x,
                              .dy = dy, .dx = dy};
    return dit->backend->ops.activation_bwd.run(dit->stream, &args);
}

/* ---- latents ---- */

/* Of the own tokens. */
static DsvPatchArgs patch_args(const DsvDit *dit, int64_t channels, bool channel_last, void *latent,
                               DsvDtype row_dtype, void *rows)
{
    return (DsvPatchArgs){
        .batch = dit->batch, .channels = channels, .frames = dit->shape.frames, .height = dit->shape.height,
        .width = dit->shape.width,
        .patch = {dit->config.patch[0], dit->config.patch[1], dit->config.patch[2]},
        .channel_last = channel_last, .tokens = dit->tokens, .order = dit->order + dit->first,
        .latent_dtype = dit->acc, .row_dtype = row_dtype, .latent = latent, .rows = rows,
    };
}

static DsvStatus patch_fwd(const DsvDit *dit, const void *latents)
{
    void *rows = dit->embedded.patch_rows;
    DsvPatchArgs args = patch_args(dit, dit->config.in_channels, false, (void *)latents, dit->act, rows);
    DSVI_TRY(dit->backend->ops.patch_gather.run(dit->stream, &args));
    return dsvi_dit_linear_fwd(dit, &dit->params.patch, dit->batch * dit->tokens, rows, dit->acc,
                               dit->residual[0]);
}

static DsvStatus patch_bwd(const DsvDit *dit, void *dlatents)
{
    const DsvDitScratch *s = &dit->scratch;
    int64_t rows = dit->batch * dit->tokens;
    void *drows = dlatents ? s->dpatch_rows : NULL;
    DsvPatchArgs args = patch_args(dit, dit->config.in_channels, false, dlatents, dit->acc, drows);
    DSVI_TRY(dsvi_dit_cast(dit, rows * dit->width, dit->acc, s->dx, dit->act, s->dy));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &dit->params.patch, rows, dit->embedded.patch_rows, s->dy, dit->acc,
                                 drows, false));
    if (!dlatents)
        return DSV_OK;
    if (dit->shape.context) /* the other ranks' patches */
        DSVI_TRY(dsvi_dit_zero(dit, dit->acc, dlatents, dit->batch * dit->all_tokens * dit->patch_in));
    return dit->backend->ops.patch_scatter.run(dit->stream, &args);
}

/* ---- time ---- */

static DsvStatus time_fwd(const DsvDit *dit, const void *timestep)
{
    const DsvDitEmbedded *e = &dit->embedded;
    const DsvDitParams *p = &dit->params;
    DsvTimeEmbedArgs args = {.batch = dit->batch, .dim = dit->config.freq_dim, .acc = dit->acc, .t = timestep,
                             .row = e->time_row};
    DSVI_TRY(dit->backend->ops.time_embed.run(dit->stream, &args));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->time_in, dit->batch, e->time_row, dit->acc, e->time_hidden));
    DSVI_TRY(activate(dit, e->time_hidden, e->time_act));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->time_out, dit->batch, e->time_act, dit->acc, e->time));
    DSVI_TRY(activate(dit, e->time, e->time_silu));
    return dsvi_dit_linear_fwd(dit, &p->time_projection, dit->batch, e->time_silu, dit->acc, e->modulation);
}

static DsvStatus time_bwd(const DsvDit *dit)
{
    const DsvDitEmbedded *e = &dit->embedded;
    const DsvDitParams *p = &dit->params;
    const DsvDitScratch *s = &dit->scratch;
    DsvDtype acc = dit->acc;
    DsvAddArgs join = {.n = dit->batch * dit->width, .a = 1, .b = 1, .x_dtype = acc, .y_dtype = acc,
                       .x = s->dtime_hidden, .y = s->dtime};
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &p->time_projection, dit->batch, e->time_silu, s->dembedding, acc,
                                 s->dtime_hidden, false));
    DSVI_TRY(activate_bwd(dit, e->time, s->dtime_hidden));
    DSVI_TRY(dit->backend->ops.add.run(dit->stream, &join));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &p->time_out, dit->batch, e->time_act, s->dtime, acc, s->dtime_hidden,
                                 false));
    DSVI_TRY(activate_bwd(dit, e->time_hidden, s->dtime_hidden));
    return dsvi_dit_linear_bwd(dit, &p->time_in, dit->batch, e->time_row, s->dtime_hidden, acc, NULL, false);
}

/* ---- text ---- */

static DsvStatus text_fwd(const DsvDit *dit, const void *text)
{
    const DsvDitEmbedded *e = &dit->embedded;
    const DsvDitParams *p = &dit->params;
    DsvDtype act = dit->act;
    int64_t rows = dit->batch * dit->text_len;
    DSVI_TRY(dsvi_dit_cast(dit, rows * dit->config.text_dim, dit->acc, text, act, e->text));
    DSVI_TRY(dsvi_dit_linear_gelu_fwd(dit, &p->text_in, rows, e->text, e->text_hidden, e->text_act));
    return dsvi_dit_linear_fwd(dit, &p->text_out, rows, e->text_act, act, e->context);
}

static DsvStatus text_bwd(const DsvDit *dit, void *dtext)
{
    const DsvDitEmbedded *e = &dit->embedded;
    const DsvDitParams *p = &dit->params;
    const DsvDitScratch *s = &dit->scratch;
    DsvDtype act = dit->act;
    int64_t rows = dit->batch * dit->text_len;
    DSVI_TRY(dsvi_dit_cast(dit, rows * dit->width, dit->acc, s->dcontext, act, s->dtext));
    DSVI_TRY(dsvi_dit_linear_gelu_bwd(dit, &p->text_out, rows, e->text_hidden, e->text_act, s->dtext,
                                      s->dtext_hidden));
    return dsvi_dit_linear_bwd(dit, &p->text_in, rows, e->text, s->dtext_hidden, dit->acc, dtext, false);
}

DsvStatus dsvi_dit_embed_fwd(DsvDit *dit, const void *latents, const void *timestep, const void *text)
{
    DSVI_TRY(patch_fwd(dit, latents));
    DSVI_TRY(time_fwd(dit, timestep));
    return text_fwd(dit, text);
}

DsvStatus dsvi_dit_embed_bwd(DsvDit *dit, void *dlatents, void *dtext)
{
    DSVI_TRY(patch_bwd(dit, dlatents));
    DSVI_TRY(time_bwd(dit));
    return text_bwd(dit, dtext);
}

/* ---- head: out = Linear(LN(x) (1 + m1) + m0), m = table + e in both rows ---- */

static DsvAddRowsArgs head_modulation(const DsvDit *dit)
{
    int64_t place = dit->params.head_modulation;
    return (DsvAddRowsArgs){
        .rows = dit->batch, .cols = HEAD_ROWS * dit->width, .x_cols = dit->width, .acc = dit->acc,
        .x = dit->embedded.time, .table = dsvi_dit_param(dit, place), .out = dit->embedded.head_modulation,
        .dout = dit->scratch.dhead_modulation, .dx = dit->scratch.dtime, .dtable = dsvi_dit_grad(dit, place),
    };
}

static DsvDitNorm head_norm(const DsvDit *dit)
{
    return dsvi_dit_modulated(dit, dit->residual[dit->config.num_layers], dit->embedded.head_modulation,
                              dit->scratch.dhead_modulation, HEAD_ROWS, 0);
}

/* Own tokens' rows, from scratch.h, one behind the other. */
static DsvStatus head_rows(const DsvDit *dit)
{
    return dsvi_dit_linear_fwd(dit, &dit->params.head, dit->batch * dit->tokens, dit->scratch.h, dit->acc,
                               dit->scratch.head_rows);
}

/* The same where they are among those of all tokens. */
static DsvStatus own_head_rows(const DsvDit *dit)
{
    const DsvDitScratch *s = &dit->scratch;
    if (!dit->shape.context)
        return head_rows(dit);
    for (int64_t b = 0; b < dit->batch; b++) {
        const void *h = dsvi_dit_at(s->h, dit->act, b * dit->tokens * dit->width);
        void *rows = dsvi_dit_at(s->head_rows, dit->acc,
                                 (b * dit->all_tokens + dit->first) * dit->patch_out);
        DSVI_TRY(dsvi_dit_linear_fwd(dit, &dit->params.head, dit->tokens, h, dit->acc, rows));
    }
    return DSV_OK;
}

/* All ranks get all rows: the velocity is whole again. */
static DsvStatus gather_head_rows(const DsvDit *dit)
{
    const DsvContext *context = dit->shape.context;
    DsvComm *comm = dsvi_context_group_device(dsvi_context_group(context));
    size_t row_bytes = (size_t)dit->patch_out * dsvi_dtype_size(dit->acc);
    for (int64_t b = 0; b < dit->batch; b++) {
        void *rows = dsvi_dit_at(dit->scratch.head_rows, dit->acc, b * dit->all_tokens * dit->patch_out);
        DSVI_TRY(dsvi_comm_all_gather(comm, rows, row_bytes, dsvi_context_bound(context)));
    }
    return DSV_OK;
}

/* The last block's sum, and the residual stream to scratch.h. */
static DsvStatus norm_and_modulate(const DsvDit *dit)
{
    DsvAddRowsArgs modulation = head_modulation(dit);
    DsvGateResidualArgs sum = dsvi_dit_block_sum(dit, dit->config.num_layers - 1);
    DsvDitNorm norm = head_norm(dit);
    DSVI_TRY(dit->backend->ops.add_rows_fwd.run(dit->stream, &modulation));
    return dsvi_dit_norm_fwd(dit, &norm, &sum);
}

DsvStatus dsvi_dit_head_fwd(DsvDit *dit, void *output)
{
    void *rows = dit->scratch.head_rows;
    DsvPatchArgs args = patch_args(dit, dit->config.out_channels, true, output, dit->acc, rows);
    DSVI_TRY(norm_and_modulate(dit));
    DSVI_TRY(own_head_rows(dit));
    if (dit->shape.context)
        DSVI_TRY(gather_head_rows(dit));
    args.tokens = dit->all_tokens;
    args.order = dit->order;
    return dit->backend->ops.patch_scatter.run(dit->stream, &args);
}

/* The target becomes rows, not the rows an output: each rank's are its own tokens', and nothing is sent. */
DsvStatus dsvi_dit_target_rows(DsvDit *dit, const void *target)
{
    DsvPatchArgs args = patch_args(dit, dit->config.out_channels, true, (void *)target, dit->acc,
                                   dit->scratch.target_rows);
    return dit->backend->ops.patch_gather.run(dit->stream, &args);
}

DsvStatus dsvi_dit_head_loss(DsvDit *dit, const DsvDitLoss *loss)
{
    const DsvDitScratch *s = &dit->scratch;
    int64_t n = dit->batch * dit->tokens * dit->patch_out;
    DsvMseArgs mse = {
        .batch = dit->batch, .n = dit->tokens * dit->patch_out, .acc = dit->acc,
        .grad_scale = loss->grad_scale * dsvi_dit_share(dit), .output = s->head_rows,
        .period = dit->config.out_channels, .weight = loss->channel_weight, /* channels come last in a row */
        .target = s->target_rows, .loss = loss->loss, .doutput = dit->shape.backward ? s->head_rows : NULL,
    };
    DSVI_TRY(norm_and_modulate(dit));
    DSVI_TRY(head_rows(dit));
    DSVI_TRY(dit->backend->ops.mse.run(dit->stream, &mse));
    return dit->shape.backward ? dsvi_dit_cast(dit, n, dit->acc, s->head_rows, dit->act, s->dhead_rows)
                               : DSV_OK;
}

DsvStatus dsvi_dit_head_bwd(DsvDit *dit, const void *doutput)
{
    const DsvDitScratch *s = &dit->scratch;
    DsvAddRowsArgs modulation = head_modulation(dit);
    DsvDitNorm norm = head_norm(dit);
    DsvGateResidualArgs args;
    const DsvGateResidualArgs *sum = dsvi_dit_block_sum_bwd(dit, dit->config.num_layers - 1, &args);
    DsvPatchArgs drows = patch_args(dit, dit->config.out_channels, true, (void *)doutput, dit->act,
                                    s->dhead_rows);
    if (doutput)
        DSVI_TRY(dit->backend->ops.patch_gather.run(dit->stream, &drows));
    DSVI_TRY(dsvi_dit_zero(dit, dit->acc, s->dhead_modulation, dit->batch * HEAD_ROWS * dit->width));
    DSVI_TRY(dsvi_dit_norm_fwd(dit, &norm, NULL));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &dit->params.head, dit->batch * dit->tokens, s->h, s->dhead_rows,
                                 dit->act, s->dy, false));
    DSVI_TRY(dsvi_dit_norm_bwd(dit, &norm, sum));
    return dit->backend->ops.add_rows_bwd.run(dit->stream, &modulation);
}
