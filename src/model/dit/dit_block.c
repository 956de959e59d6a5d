/* One block of the transformer, forward and backward, as in Wan 2.1 (arXiv 2503.20314):
 *
 *     y = SelfAttn(LN(x) (1 + m1) + m0)           x1 = x + m2 y
 *     y = CrossAttn(LN(x1) w + b, text, image)    x2 = x1 + y
 *     y = FFN(LN(x2) (1 + m4) + m3)               x3 = x2 + m5 y
 *
 * with m = modulation + e0. Each sum on the right is computed by the op of the norm that follows it; the last
 * sum by the first norm of the next block, or by that of the head. The backward pass goes through the list in
 * reverse order, and each norm's backward op also goes back through the sum before it. DsviDitSaved
 * (dit_internal.h) says which activations are kept and which are computed again. Activations are computed
 * again with the same functions, so their bits are the same. */
#include "model/dit/dit_internal.h"

#include <math.h>

/* Rows m0 to m5 of a block's modulation, their number ROWS, and NO_GATE for a sum without a gate. */
enum { SHIFT_SELF, SCALE_SELF, GATE_SELF, SHIFT_FFN, SCALE_FFN, GATE_FFN, ROWS, NO_GATE };

static const DsviDitBlockParams *params_of(const DsviDit *dit, int64_t block)
{
    return &dit->params.blocks[block];
}

/* Returns whether the block's forward pass is computed again before its backward pass. The last block that
 * uses the shared buffers does not need that: they still contain its activations, except those of the
 * feed-forward layer. */
static bool runs_again(const DsviDit *dit, int64_t block)
{
    return !dsvi_dit_keeps_all(dit, block) && block != dit->last_shared;
}

/* Returns whether the block's backward pass goes through the block's last sum itself, part by part of the
 * rows: because the sum is only known then or, whatever the block keeps, because sums over rows depend on the
 * parts. In deterministic mode all blocks do so: otherwise the next norm's op would add up over the rows in
 * another order, and the last bits of the gradients would depend on what blocks keep. */
static bool sums_itself(const DsviDit *dit, int64_t block)
{
    return runs_again(dit, block) || dsvi_dit_ffn_rows(dit) < dit->batch * dit->tokens ||
           dit->backend->device->deterministic;
}

/* ---- modulation: m = table + e0 ---- */

/* Returns row `row` of the block's modulation, in the first sample and at its first time. */
static void *dit_block_modulation_of(const DsviDit *dit, int64_t block, int row)
{
    return dsvi_dit_at(dit->scratch.modulation, dit->acc, (block * dit->time_rows * ROWS + row) * dit->width);
}

/* Returns the gradient of row `row` of the block's modulation, or NULL without backward. */
static void *dmodulation_of(const DsviDit *dit, int64_t block, int row)
{
    void *all = dit->scratch.dmodulation;
    return all ? dsvi_dit_at(all, dit->acc, (block * dit->time_rows * ROWS + row) * dit->width) : NULL;
}

static DsviAddRowsArgs modulation_args(const DsviDit *dit, int64_t block)
{
    int64_t place = params_of(dit, block)->modulation, cols = ROWS * dit->width;
    return (DsviAddRowsArgs){
        .rows = dit->time_rows,
        .cols = cols,
        .x_cols = cols,
        .acc = dit->acc,
        .x = dit->embedded.modulation,
        .table = dsvi_dit_param(dit, place),
        .out = dit_block_modulation_of(dit, block, 0),
        .dout = dmodulation_of(dit, block, 0),
        .dx = dit->scratch.dembedding,
        .dtable = dsvi_dit_grad(dit, place),
    };
}

static DsvStatus modulate(const DsviDit *dit, int64_t block)
{
    DsviAddRowsArgs args = modulation_args(dit, block);
    return dit->backend->ops.add_rows_fwd.run(dit->stream, &args);
}

static DsvStatus modulate_bwd(const DsviDit *dit, int64_t block)
{
    DsviAddRowsArgs args = modulation_args(dit, block);
    return dit->backend->ops.add_rows_bwd.run(dit->stream, &args);
}

/* ---- the three norms ---- */

static DsviDitNorm norm_self(const DsviDit *dit, int64_t block)
{
    return dsvi_dit_modulated(dit, dit->residual[block], dit_block_modulation_of(dit, block, 0),
                              dmodulation_of(dit, block, 0), ROWS, SHIFT_SELF);
}

static DsviDitNorm norm_cross(const DsviDit *dit, int64_t block)
{
    const DsviDitBlockParams *p = params_of(dit, block);
    return (DsviDitNorm){
        .x = dit->scratch.x1,
        .scale = dsvi_dit_param(dit, p->norm_weight),
        .shift = dsvi_dit_param(dit, p->norm_bias),
        .dscale = dsvi_dit_grad_or_unread(dit, p->norm_weight, 0),
        .dshift = dsvi_dit_grad_or_unread(dit, p->norm_bias, 1),
    };
}

static DsviDitNorm norm_ffn(const DsviDit *dit, int64_t block)
{
    return dsvi_dit_modulated(dit, dit->saved[block].x2, dit_block_modulation_of(dit, block, 0),
                              dmodulation_of(dit, block, 0), ROWS, SHIFT_FFN);
}

/* ---- the residual stream: out = x + gate y ---- */

static DsviGateResidualArgs residual_args(const DsviDit *dit, int64_t block, int gate, const void *y)
{
    DsviGateResidualArgs args = {
        .batch = dit->batch,
        .tokens = dit->tokens,
        .channels = dit->width,
        .gate_stride = dit->times * ROWS * dit->width,
        .act = dit->act,
        .acc = dit->acc,
        .y = y,
    };
    if (gate == NO_GATE)
        return args;
    args.gate = dit_block_modulation_of(dit, block, gate);
    args.dgate = dmodulation_of(dit, block, gate);
    return args;
}

static DsviGateResidualArgs sum_of(const DsviDit *dit, int64_t block, const void *x, int gate, const void *y,
                                   void *out)
{
    DsviGateResidualArgs args = residual_args(dit, block, gate, y);
    args.x = x;
    args.out = out;
    return args;
}

static DsviGateResidualArgs sum_self(const DsviDit *dit, int64_t block)
{
    return sum_of(dit, block, dit->residual[block], GATE_SELF, dit->saved[block].y_self, dit->scratch.x1);
}

static DsviGateResidualArgs sum_cross(const DsviDit *dit, int64_t block)
{
    return sum_of(dit, block, dit->scratch.x1, NO_GATE, dit->scratch.h, dit->saved[block].x2);
}

DsviGateResidualArgs dsvi_dit_block_sum(const DsviDit *dit, int64_t block)
{
    const DsviDitSaved *saved = &dit->saved[block];
    return sum_of(dit, block, saved->x2, GATE_FFN, saved->y_ffn, dit->residual[block + 1]);
}

/* Returns arguments for the backward pass of a sum x + gate y. It computes dy = gate dx, the gradient of the
 * gate, and `dbias`, the gradient of the bias that the layer before the sum has added to y. */
static DsviGateResidualArgs sum_bwd_of(const DsviDit *dit, int64_t block, int gate, const void *y,
                                       void *dbias)
{
    DsviGateResidualArgs args = residual_args(dit, block, gate, y);
    args.dout = dit->scratch.dx;
    args.dy = dit->scratch.dy;
    args.dy_sum = dbias;
    return args;
}

static DsviGateResidualArgs sum_self_bwd(const DsviDit *dit, int64_t block)
{
    return sum_bwd_of(dit, block, GATE_SELF, dit->saved[block].y_self,
                      dsvi_dit_grad(dit, params_of(dit, block)->self.o.bias));
}

static DsviGateResidualArgs sum_cross_bwd(const DsviDit *dit, int64_t block)
{
    return sum_bwd_of(dit, block, NO_GATE, NULL, dsvi_dit_grad(dit, params_of(dit, block)->cross.o.bias));
}

/* Returns where the gradient of the bias of ffn_out is summed. It is scratch memory because the following
 * block computes it, while only that block's gradients may be acquired. */
static void *ffn_dy_sum(const DsviDit *dit, int64_t block)
{
    return dsvi_dit_at(dit->scratch.dy_sum, dit->acc, block * dit->width);
}

static DsviGateResidualArgs sum_ffn_bwd(const DsviDit *dit, int64_t block)
{
    return sum_bwd_of(dit, block, GATE_FFN, dit->saved[block].y_ffn, ffn_dy_sum(dit, block));
}

const DsviGateResidualArgs *dsvi_dit_block_sum_bwd(const DsviDit *dit, int64_t block,
                                                   DsviGateResidualArgs *args)
{
    if (block < 0 || sums_itself(dit, block))
        return NULL;
    *args = sum_ffn_bwd(dit, block);
    return args;
}

/* ---- self-attention ---- */

static DsviRmsNormRopeArgs self_q_norm(const DsviDit *dit, int64_t block)
{
    return dsvi_dit_heads_norm(dit, dit->tokens, true, dit->saved[block].q,
                               params_of(dit, block)->self.norm_q, dit->scratch.rstd);
}

static DsviRmsNormRopeArgs self_k_norm(const DsviDit *dit, int64_t block)
{
    return dsvi_dit_heads_norm(dit, dit->tokens, true, dit->saved[block].k,
                               params_of(dit, block)->self.norm_k, dit->scratch.rstd_k);
}

static DsviAttentionCall self_tensors(const DsviDit *dit, int64_t block)
{
    const DsviDitSaved *saved = &dit->saved[block];
    return (DsviAttentionCall){
        .scale = 1 / sqrt((double)dit->head_dim),
        .q = dit->scratch.q,
        .k = dit->scratch.k,
        .v = saved->v,
        .out = saved->attended,
        .lse = saved->lse,
    };
}

static DsvStatus self_fwd(DsviDit *dit, int64_t block, bool recompute)
{
    const DsviDitAttentionParams *p = &params_of(dit, block)->self;
    const DsviDitSaved *saved = &dit->saved[block];
    const DsviDitScratch *s = &dit->scratch;
    DsviDitNorm norm = norm_self(dit, block);
    DsviGateResidualArgs sum;
    DsviAttentionCall tensors = self_tensors(dit, block);
    int64_t rows = dit->batch * dit->tokens;
    bool first = recompute || block == 0; /* residual[block] has been computed already */
    if (!first)
        sum = dsvi_dit_block_sum(dit, block - 1);
    DSVI_TRY(dsvi_dit_norm_fwd(dit, &norm, first ? NULL : &sum));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->q, rows, s->h, dit->act, saved->q));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->k, rows, s->h, dit->act, saved->k));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->v, rows, s->h, dit->act, saved->v));
    tensors.hidden = s->h;
    tensors.recompute = recompute;
    if (!recompute || dit->kept[block].keep == DSVI_KEEP_INPUT) {
        DSVI_TRY(dsvi_dit_heads_norm_fwd(dit, self_q_norm(dit, block), s->q));
        DSVI_TRY(dsvi_dit_heads_norm_fwd(dit, self_k_norm(dit, block), s->k));
        DSVI_TRY(dit->sparse ? dsvi_sparse_forward(dit->sparse, block, &tensors)
                             : dsvi_dit_attend_dense(dit, dit->tokens, &tensors, false));
    }
    return dsvi_dit_linear_fwd(dit, &p->o, rows, saved->attended, dit->act, saved->y_self);
}

static DsvStatus self_bwd(DsviDit *dit, int64_t block)
{
    const DsviDitAttentionParams *p = &params_of(dit, block)->self;
    const DsviDitSaved *saved = &dit->saved[block];
    const DsviDitScratch *s = &dit->scratch;
    DsviDitNorm norm = norm_self(dit, block);
    DsviDitLinear q = dsvi_dit_without_bias(&p->q), k = dsvi_dit_without_bias(&p->k),
                  o = dsvi_dit_without_bias(&p->o);
    DsviGateResidualArgs args;
    const DsviGateResidualArgs *sum = dsvi_dit_block_sum_bwd(dit, block - 1, &args);
    DsviAttentionCall tensors = self_tensors(dit, block);
    DsviDtype act = dit->act;
    int64_t rows = dit->batch * dit->tokens;
    DSVI_TRY(dsvi_dit_linear_bwd(
        dit, &o,
        &(DsviDitLinearGrads){.rows = rows, .x = saved->attended, .dy = s->dy, .dx = s->h, .dx_dtype = act}));
    DSVI_TRY(dsvi_dit_heads_norm_fwd(dit, self_q_norm(dit, block), s->q));
    DSVI_TRY(dsvi_dit_heads_norm_fwd(dit, self_k_norm(dit, block), s->k));
    tensors.dout = s->h;
    tensors.dq = s->dq;
    tensors.dk = s->dk;
    tensors.dv = s->dv;
    DSVI_TRY(dit->sparse ? dsvi_sparse_backward(dit->sparse, block, &tensors)
                         : dsvi_dit_attend_dense(dit, dit->tokens, &tensors, true));
    DSVI_TRY(dsvi_dit_heads_norm_bwd(dit, self_q_norm(dit, block), &p->q, s->dq));
    DSVI_TRY(dsvi_dit_heads_norm_bwd(dit, self_k_norm(dit, block), &p->k, s->dk));
    DSVI_TRY(dsvi_dit_norm_fwd(dit, &norm, NULL));
    DSVI_TRY(dsvi_dit_linear_bwd(
        dit, &q, &(DsviDitLinearGrads){.rows = rows, .x = s->h, .dy = s->dq, .dx = s->dy, .dx_dtype = act}));
    DSVI_TRY(dsvi_dit_linear_bwd(
        dit, &k,
        &(DsviDitLinearGrads){
            .rows = rows, .x = s->h, .dy = s->dk, .dx = s->dy, .dx_dtype = act, .add_to_dx = true}));
    DSVI_TRY(dsvi_dit_linear_bwd(
        dit, &p->v,
        &(DsviDitLinearGrads){
            .rows = rows, .x = s->h, .dy = s->dv, .dx = s->dy, .dx_dtype = act, .add_to_dx = true}));
    return dsvi_dit_norm_bwd(dit, &norm, sum);
}

/* ---- cross-attention ---- */

static DsviRmsNormRopeArgs cross_q_norm(const DsviDit *dit, int64_t block)
{
    return dsvi_dit_heads_norm(dit, dit->tokens, false, dit->saved[block].cross_q,
                               params_of(dit, block)->cross.norm_q, dit->scratch.rstd);
}

static DsviRmsNormRopeArgs cross_k_norm(const DsviDit *dit, int64_t block)
{
    return dsvi_dit_heads_norm(dit, dit->text_len, false, dit->saved[block].cross_k,
                               params_of(dit, block)->cross.norm_k, dit->scratch.rstd_k);
}

static DsviAttentionCall cross_tensors(const DsviDit *dit, int64_t block)
{
    const DsviDitSaved *saved = &dit->saved[block];
    return (DsviAttentionCall){
        .scale = 1 / sqrt((double)dit->head_dim),
        .q = dit->scratch.q,
        .k = dit->scratch.cross_k,
        .v = saved->cross_v,
        .out = saved->cross_attended,
        .lse = saved->cross_lse,
    };
}

static DsvStatus cross_fwd(DsviDit *dit, int64_t block)
{
    const DsviDitAttentionParams *p = &params_of(dit, block)->cross;
    const DsviDitSaved *saved = &dit->saved[block];
    const DsviDitScratch *s = &dit->scratch;
    const void *text_states = dit->embedded.text_states;
    DsviDitNorm norm = norm_cross(dit, block);
    DsviGateResidualArgs sum = sum_self(dit, block);
    DsviAttentionCall tensors = cross_tensors(dit, block);
    int64_t rows = dit->batch * dit->tokens, text_rows = dit->batch * dit->text_len;
    DSVI_TRY(dsvi_dit_norm_fwd(dit, &norm, &sum));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->q, rows, s->h, dit->act, saved->cross_q));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->k, text_rows, text_states, dit->act, saved->cross_k));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->v, text_rows, text_states, dit->act, saved->cross_v));
    DSVI_TRY(dsvi_dit_heads_norm_fwd(dit, cross_q_norm(dit, block), s->q));
    DSVI_TRY(dsvi_dit_heads_norm_fwd(dit, cross_k_norm(dit, block), s->cross_k));
    DSVI_TRY(dsvi_dit_attend_dense(dit, dit->text_len, &tensors, false));
    const void *attended = saved->cross_attended;
    DSVI_TRY(dsvi_dit_image_attend_fwd(dit, block, &attended));
    return dsvi_dit_linear_fwd(dit, &p->o, rows, attended, dit->act, s->h);
}

static DsvStatus cross_bwd(DsviDit *dit, int64_t block)
{
    const DsviDitAttentionParams *p = &params_of(dit, block)->cross;
    const DsviDitSaved *saved = &dit->saved[block];
    const DsviDitScratch *s = &dit->scratch;
    const void *text_states = dit->embedded.text_states;
    DsviDitNorm norm = norm_cross(dit, block);
    DsviDitLinear q = dsvi_dit_without_bias(&p->q), k = dsvi_dit_without_bias(&p->k),
                  o = dsvi_dit_without_bias(&p->o);
    DsviGateResidualArgs sum = sum_self(dit, block), sum_bwd = sum_self_bwd(dit, block);
    void *dtext_states = dit->shape.lora ? NULL : s->dtext_states; /* only frozen layers come before */
    DsviAttentionCall tensors = cross_tensors(dit, block);
    int64_t rows = dit->batch * dit->tokens, text_rows = dit->batch * dit->text_len;
    const void *attended = saved->cross_attended;
    DSVI_TRY(dsvi_dit_image_sum(dit, block, &attended));
    DSVI_TRY(dsvi_dit_linear_bwd(
        dit, &o,
        &(DsviDitLinearGrads){.rows = rows, .x = attended, .dy = s->dy, .dx = s->h, .dx_dtype = dit->act}));
    DSVI_TRY(dsvi_dit_heads_norm_fwd(dit, cross_q_norm(dit, block), s->q));
    DSVI_TRY(dsvi_dit_heads_norm_fwd(dit, cross_k_norm(dit, block), s->cross_k));
    tensors.dout = s->h;
    tensors.dq = s->dq;
    tensors.dk = s->dcross_k;
    tensors.dv = s->dcross_v;
    DSVI_TRY(dsvi_dit_attend_dense(dit, dit->text_len, &tensors, true));
    DSVI_TRY(dsvi_dit_heads_norm_bwd(dit, cross_k_norm(dit, block), &p->k, s->dcross_k));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &k,
                                 &(DsviDitLinearGrads){.rows = text_rows,
                                                       .x = text_states,
                                                       .dy = s->dcross_k,
                                                       .dx = dtext_states,
                                                       .dx_dtype = dit->acc,
                                                       .add_to_dx = true}));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &p->v,
                                 &(DsviDitLinearGrads){.rows = text_rows,
                                                       .x = text_states,
                                                       .dy = s->dcross_v,
                                                       .dx = dtext_states,
                                                       .dx_dtype = dit->acc,
                                                       .add_to_dx = true}));
    DSVI_TRY(dsvi_dit_image_attend_bwd(dit, block));
    DSVI_TRY(dsvi_dit_heads_norm_bwd(dit, cross_q_norm(dit, block), &p->q, s->dq));
    DSVI_TRY(dsvi_dit_norm_fwd(dit, &norm, runs_again(dit, block) ? NULL : &sum));
    DSVI_TRY(dsvi_dit_linear_bwd(
        dit, &q,
        &(DsviDitLinearGrads){.rows = rows, .x = s->h, .dy = s->dq, .dx = s->dy, .dx_dtype = dit->act}));
    return dsvi_dit_norm_bwd(dit, &norm, &sum_bwd);
}

/* ---- feed-forward ----
 *
 * The rows are processed in parts: a part goes through the whole layer before the next begins. Unless all
 * activations are kept, the backward pass computes the activations of a part again directly before its
 * gradients, and they need memory for one part only. Blocks that keep all have the same parts, because sums
 * over rows depend on them. */

bool dsvi_dit_keeps_all(const DsviDit *dit, int64_t block)
{
    return dit->shape.backward && dit->kept[block].keep == DSVI_KEEP_ALL;
}

/* A part of the rows: whole samples, or some tokens of one sample, because gates differ between samples. */
typedef struct Part {
    int64_t sample, samples;
    int64_t token, tokens;
} Part;

/* Number of rows (tokens of all samples) above which GEMMs on a GPU do not become more efficient
 * (docs/performance.md). */
enum { FFN_ROWS = 32768 };

static Part ffn_largest_part(const DsviDit *dit)
{
    int64_t max = dit->shape.ffn_rows > 0 ? dit->shape.ffn_rows : FFN_ROWS, tokens = dit->tokens;
    if (dit->batch * tokens <= max)
        return (Part){.samples = dit->batch, .tokens = tokens};
    if (tokens <= max)
        return (Part){.samples = max / tokens, .tokens = tokens};
    int64_t parts = (tokens + max - 1) / max;
    return (Part){.samples = 1, .tokens = (tokens + parts - 1) / parts};
}

int64_t dsvi_dit_ffn_rows(const DsviDit *dit)
{
    Part part = ffn_largest_part(dit);
    return part.samples * part.tokens;
}

static int64_t dit_block_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

typedef DsvStatus part_fn(DsviDit *dit, int64_t block, const Part *part);

static DsvStatus for_each_part(DsviDit *dit, int64_t block, part_fn *fn)
{
    Part largest = ffn_largest_part(dit), part = largest;
    for (part.sample = 0; part.sample < dit->batch; part.sample += largest.samples)
        for (part.token = 0; part.token < dit->tokens; part.token += largest.tokens) {
            part.samples = dit_block_smaller(largest.samples, dit->batch - part.sample);
            part.tokens = dit_block_smaller(largest.tokens, dit->tokens - part.token);
            DSVI_TRY(fn(dit, block, &part));
        }
    return DSV_OK;
}

static int64_t dit_block_rows_of(const Part *part)
{
    return part->samples * part->tokens;
}

/* Returns the address at which the part of the rows begins in an array (B, S, C). */
static void *dit_block_part_at(const DsviDit *dit, const Part *part, DsviDtype dtype, const void *stream)
{
    return dsvi_dit_at(stream, dtype, (part->sample * dit->tokens + part->token) * dit->width);
}

/* Returns where the part's rows of ffn_hidden or ffn_act are: with all rows or with those of one part. */
static void *part_ffn(const DsviDit *dit, int64_t block, const Part *part, void *rows)
{
    int64_t row = dsvi_dit_keeps_all(dit, block) ? part->sample * dit->tokens + part->token : 0;
    return dsvi_dit_at(rows, dit->act, row * dit->ffn);
}

/* Returns the layer for the part of the rows. */
static DsviDitLinear linear_of_part(const DsviDit *dit, const DsviDitLinear *linear, const Part *part)
{
    DsviDitLinear some = *linear;
    some.row = part->sample * dit->tokens + part->token;
    some.begun = some.row > 0;
    return some;
}

static DsvStatus part_hidden(DsviDit *dit, int64_t block, const Part *part)
{
    const DsviDitSaved *saved = &dit->saved[block];
    DsviDitLinear in = linear_of_part(dit, &params_of(dit, block)->ffn_in, part);
    return dsvi_dit_linear_gelu_fwd(dit, &in, dit_block_rows_of(part),
                                    dit_block_part_at(dit, part, dit->act, dit->scratch.h),
                                    part_ffn(dit, block, part, saved->ffn_hidden),
                                    part_ffn(dit, block, part, saved->ffn_act));
}

static DsvStatus part_out(DsviDit *dit, int64_t block, const Part *part)
{
    const DsviDitSaved *saved = &dit->saved[block];
    DsviDitLinear out = linear_of_part(dit, &params_of(dit, block)->ffn_out, part);
    return dsvi_dit_linear_fwd(dit, &out, dit_block_rows_of(part), part_ffn(dit, block, part, saved->ffn_act),
                               dit->act, dit_block_part_at(dit, part, dit->act, saved->y_ffn));
}

static DsvStatus part_fwd(DsviDit *dit, int64_t block, const Part *part)
{
    DSVI_TRY(part_hidden(dit, block, part));
    return part_out(dit, block, part);
}

/* Backward pass of the block's last sum for one part of the rows: from the gradient of the residual stream
 * to the gradient of the feed-forward layer's output. */
static DsvStatus part_sum_bwd(DsviDit *dit, int64_t block, const Part *part)
{
    /* Lists of tokens count from the beginning of a sample. */
    Part whole = {.sample = part->sample, .samples = part->samples, .tokens = dit->tokens};
    const Part *from = dit->times > 1 ? &whole : part;
    for (int64_t time = 0; time < dit->times; time++) {
        DsviGateResidualArgs sum = sum_ffn_bwd(dit, block);
        DsviTokenList only = dsvi_dit_tokens_of_time(dit, time, part->token, part->token + part->tokens);
        int64_t gate = part->sample * sum.gate_stride;
        sum.batch = from->samples;
        sum.tokens = from->tokens;
        sum.y = dit_block_part_at(dit, from, dit->act, sum.y);
        sum.dout = dit_block_part_at(dit, from, dit->acc, sum.dout);
        sum.dy = dit_block_part_at(dit, from, dit->act, sum.dy);
        sum.gate = dsvi_dit_at(sum.gate, dit->acc, gate);
        sum.dgate = dsvi_dit_at(sum.dgate, dit->acc, gate);
        dsvi_dit_sum_of_time(dit, time, only, &sum);
        if (only.count > 0)
            DSVI_TRY(dit->backend->ops.gate_residual_bwd.run(dit->stream, &sum));
    }
    return DSV_OK;
}

/* Backward pass of the feed-forward layer for one part of the rows: replaces the gradient of the layer's
 * output, in scratch.dy, by the gradient of its input. */
static DsvStatus part_bwd(DsviDit *dit, int64_t block, const Part *part)
{
    const DsviDitBlockParams *p = params_of(dit, block);
    const DsviDitSaved *saved = &dit->saved[block];
    const DsviDitLinear without = dsvi_dit_without_bias(&p->ffn_out);
    DsviDitLinear in = linear_of_part(dit, &p->ffn_in, part), out = linear_of_part(dit, &without, part);
    void *h = dit_block_part_at(dit, part, dit->act, dit->scratch.h);
    void *dy = dit_block_part_at(dit, part, dit->act, dit->scratch.dy);
    if (!dsvi_dit_keeps_all(dit, block))
        DSVI_TRY(part_hidden(dit, block, part));
    if (runs_again(dit, block))
        DSVI_TRY(part_out(dit, block, part));
    if (sums_itself(dit, block))
        DSVI_TRY(part_sum_bwd(dit, block, part));
    DSVI_TRY(dsvi_dit_linear_gelu_bwd(dit, &out, dit_block_rows_of(part),
                                      part_ffn(dit, block, part, saved->ffn_hidden),
                                      part_ffn(dit, block, part, saved->ffn_act), dy, dit->scratch.dffn));
    return dsvi_dit_linear_bwd(dit, &in,
                               &(DsviDitLinearGrads){.rows = dit_block_rows_of(part),
                                                     .x = h,
                                                     .dy = dit->scratch.dffn,
                                                     .dx = dy,
                                                     .dx_dtype = dit->act});
}

/* Computes x2, the residual stream after cross-attention, and writes the norm of x2 to scratch.h. */
static DsvStatus ffn_norm(DsviDit *dit, int64_t block)
{
    DsviDitNorm norm = norm_ffn(dit, block);
    DsviGateResidualArgs sum = sum_cross(dit, block);
    return dsvi_dit_norm_fwd(dit, &norm, &sum);
}

static DsvStatus ffn_fwd(DsviDit *dit, int64_t block)
{
    DSVI_TRY(ffn_norm(dit, block));
    return for_each_part(dit, block, part_fwd);
}

/* Adds the gradient of the bias of ffn_out, which the backward pass of the block's last sum has left in
 * scratch.dy_sum, to the gradients of the weights. */
static DsvStatus add_ffn_dbias(const DsviDit *dit, int64_t block)
{
    DsviAddArgs add = {
        .n = dit->width,
        .a = 1,
        .b = 1,
        .x_dtype = dit->acc,
        .y_dtype = dit->acc,
        .x = ffn_dy_sum(dit, block),
        .y = dsvi_dit_grad(dit, params_of(dit, block)->ffn_out.bias),
    };
    return dit->backend->ops.add.run(dit->stream, &add);
}

static DsvStatus ffn_bwd(DsviDit *dit, int64_t block)
{
    DsviDitNorm norm = norm_ffn(dit, block);
    DsviGateResidualArgs sum = sum_cross_bwd(dit, block);
    if (!runs_again(dit, block)) /* otherwise run_again has just computed this norm */
        DSVI_TRY(dsvi_dit_norm_fwd(dit, &norm, NULL));
    DSVI_TRY(for_each_part(dit, block, part_bwd));
    if (!dit->shape.lora)
        DSVI_TRY(add_ffn_dbias(dit, block));
    return dsvi_dit_norm_bwd(dit, &norm, &sum);
}

/* ---- the block ---- */

DsvStatus dsvi_dit_block_fwd(DsviDit *dit, int64_t block)
{
    DSVI_TRY(modulate(dit, block));
    DSVI_TRY(self_fwd(dit, block, false));
    DSVI_TRY(cross_fwd(dit, block));
    return ffn_fwd(dit, block);
}

/* Computes the block's forward pass again, up to the norm before the feed-forward layer. */
static DsvStatus run_again(DsviDit *dit, int64_t block)
{
    DSVI_TRY(self_fwd(dit, block, true));
    DSVI_TRY(cross_fwd(dit, block));
    return ffn_norm(dit, block);
}

DsvStatus dsvi_dit_block_bwd(DsviDit *dit, int64_t block)
{
    if (runs_again(dit, block))
        DSVI_TRY(run_again(dit, block));
    DSVI_TRY(ffn_bwd(dit, block));
    DSVI_TRY(cross_bwd(dit, block));
    DSVI_TRY(self_bwd(dit, block));
    return dit->shape.lora ? DSV_OK : modulate_bwd(dit, block);
}
