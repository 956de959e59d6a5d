/* One block of the transformer, forward and backward, as in Wan 2.1 (arXiv 2503.20314):
 *
 *     y = SelfAttn(LN(x) (1 + m1) + m0)           x1 = x + m2 y
 *     y = CrossAttn(LN(x1) w + b, context)        x2 = x1 + y
 *     y = FFN(LN(x2) (1 + m4) + m3)               x3 = x2 + m5 y
 *
 * with m = modulation + e0. Each sum is done by the norm behind it, the last by that of the next block or the
 * head, and so is the way back through it. The backward pass walks up the same list. What it finds kept and
 * what it computes again is said at DsvDitSaved; the same functions do it both times, so the bits are the
 * same. */
#include "model/dit_internal.h"

#include <math.h>

enum { SHIFT_SELF, SCALE_SELF, GATE_SELF, SHIFT_FFN, SCALE_FFN, GATE_FFN, ROWS, NO_GATE };

static const DsvDitBlockParams *params_of(const DsvDit *dit, int64_t block)
{
    return &dit->params.blocks[block];
}

/* Whether the block's forward pass runs again before its backward pass. What it left in the activations that
 * all blocks use is still there where it was the last, but for the feed-forward layer's. */
static bool runs_again(const DsvDit *dit, int64_t block)
{
    return dit->shape.keep != DSV_KEEP_ALL && block + 1 < dit->config.num_layers;
}

/* ---- modulation: m = table + e0 ---- */

/* Row `row` of the block's modulation. */
static void *modulation_of(const DsvDit *dit, int64_t block, int row)
{
    return dsvi_dit_at(dit->scratch.modulation, dit->acc, (block * dit->batch * ROWS + row) * dit->width);
}

/* NULL without backward. */
static void *dmodulation_of(const DsvDit *dit, int64_t block, int row)
{
    void *all = dit->scratch.dmodulation;
    return all ? dsvi_dit_at(all, dit->acc, (block * dit->batch * ROWS + row) * dit->width) : NULL;
}

static DsvAddRowsArgs modulation_args(const DsvDit *dit, int64_t block)
{
    int64_t place = params_of(dit, block)->modulation, cols = ROWS * dit->width;
    return (DsvAddRowsArgs){
        .rows = dit->batch, .cols = cols, .x_cols = cols, .acc = dit->acc,
        .x = dit->embedded.modulation, .table = dsvi_dit_param(dit, place),
        .out = modulation_of(dit, block, 0), .dout = dmodulation_of(dit, block, 0),
        .dx = dit->scratch.dembedding, .dtable = dsvi_dit_grad(dit, place),
    };
}

static DsvStatus modulate(const DsvDit *dit, int64_t block)
{
    DsvAddRowsArgs args = modulation_args(dit, block);
    return dit->backend->ops.add_rows_fwd.run(dit->stream, &args);
}

static DsvStatus modulate_bwd(const DsvDit *dit, int64_t block)
{
    DsvAddRowsArgs args = modulation_args(dit, block);
    return dit->backend->ops.add_rows_bwd.run(dit->stream, &args);
}

/* ---- the three norms ---- */

static DsvDitNorm norm_self(const DsvDit *dit, int64_t block)
{
    return dsvi_dit_modulated(dit, dit->residual[block], modulation_of(dit, block, 0),
                              dmodulation_of(dit, block, 0), ROWS, SHIFT_SELF);
}

static DsvDitNorm norm_cross(const DsvDit *dit, int64_t block)
{
    const DsvDitBlockParams *p = params_of(dit, block);
    return (DsvDitNorm){
        .x = dit->scratch.x1,
        .scale = dsvi_dit_param(dit, p->norm_weight), .shift = dsvi_dit_param(dit, p->norm_bias),
        .dscale = dsvi_dit_grad(dit, p->norm_weight), .dshift = dsvi_dit_grad(dit, p->norm_bias),
    };
}

static DsvDitNorm norm_ffn(const DsvDit *dit, int64_t block)
{
    return dsvi_dit_modulated(dit, dit->saved[block].x2, modulation_of(dit, block, 0),
                              dmodulation_of(dit, block, 0), ROWS, SHIFT_FFN);
}

/* ---- the residual stream: out = x + gate y ---- */

static DsvGateResidualArgs residual_args(const DsvDit *dit, int64_t block, int gate, const void *y)
{
    DsvGateResidualArgs args = {
        .batch = dit->batch, .tokens = dit->tokens, .channels = dit->width, .gate_stride = ROWS * dit->width,
        .act = dit->act, .acc = dit->acc, .y = y,
    };
    if (gate == NO_GATE)
        return args;
    args.gate = modulation_of(dit, block, gate);
    args.dgate = dmodulation_of(dit, block, gate);
    return args;
}

static DsvGateResidualArgs sum_of(const DsvDit *dit, int64_t block, const void *x, int gate, const void *y,
                                  void *out)
{
    DsvGateResidualArgs args = residual_args(dit, block, gate, y);
    args.x = x;
    args.out = out;
    return args;
}

static DsvGateResidualArgs sum_self(const DsvDit *dit, int64_t block)
{
    return sum_of(dit, block, dit->residual[block], GATE_SELF, dit->saved[block].y_self, dit->scratch.x1);
}

static DsvGateResidualArgs sum_cross(const DsvDit *dit, int64_t block)
{
    return sum_of(dit, block, dit->scratch.x1, NO_GATE, dit->scratch.h, dit->saved[block].x2);
}

DsvGateResidualArgs dsvi_dit_block_sum(const DsvDit *dit, int64_t block)
{
    const DsvDitSaved *saved = &dit->saved[block];
    return sum_of(dit, block, saved->x2, GATE_FFN, saved->y_ffn, dit->residual[block + 1]);
}

/* dy = gate dx, and the gradients of the gate and of the bias that y ends with. */
static DsvGateResidualArgs sum_bwd_of(const DsvDit *dit, int64_t block, int gate, const void *y, void *dbias)
{
    DsvGateResidualArgs args = residual_args(dit, block, gate, y);
    args.dout = dit->scratch.dx;
    args.dy = dit->scratch.dy;
    args.dy_sum = dbias;
    return args;
}

static DsvGateResidualArgs sum_self_bwd(const DsvDit *dit, int64_t block)
{
    return sum_bwd_of(dit, block, GATE_SELF, dit->saved[block].y_self,
                      dsvi_dit_grad(dit, params_of(dit, block)->self.o.bias));
}

static DsvGateResidualArgs sum_cross_bwd(const DsvDit *dit, int64_t block)
{
    return sum_bwd_of(dit, block, NO_GATE, NULL, dsvi_dit_grad(dit, params_of(dit, block)->cross.o.bias));
}

/* While another block's weights may be the ones at hand. */
static void *ffn_dy_sum(const DsvDit *dit, int64_t block)
{
    return dsvi_dit_at(dit->scratch.dy_sum, dit->acc, block * dit->width);
}

static DsvGateResidualArgs sum_ffn_bwd(const DsvDit *dit, int64_t block)
{
    return sum_bwd_of(dit, block, GATE_FFN, dit->saved[block].y_ffn, ffn_dy_sum(dit, block));
}

const DsvGateResidualArgs *dsvi_dit_block_sum_bwd(const DsvDit *dit, int64_t block,
                                                  DsvGateResidualArgs *args)
{
    if (block < 0 || runs_again(dit, block))
        return NULL;
    *args = sum_ffn_bwd(dit, block);
    return args;
}

/* The layer, for a backward pass in which whoever made dy has summed the bias's gradient. */
static DsvDitLinear without_bias(const DsvDitLinear *linear)
{
    DsvDitLinear bare = *linear;
    bare.bias = DSVI_DIT_NO_BIAS;
    return bare;
}

/* ---- q and k: RMSNorm over all heads, and RoPE in self-attention ---- */

static DsvRmsNormRopeArgs heads_norm(const DsvDit *dit, int64_t tokens, bool turn, const void *x,
                                     int64_t place, void *rstd)
{
    return (DsvRmsNormRopeArgs){
        .batch = dit->batch, .tokens = tokens, .heads = dit->heads, .head_dim = dit->head_dim,
        .eps = dit->config.eps, .act = dit->act, .acc = dit->acc, .x = x,
        .weight = dsvi_dit_param(dit, place), .dweight = dsvi_dit_grad(dit, place),
        .cos = turn ? dit->rope_cos : NULL, .sin = turn ? dit->rope_sin : NULL, .rstd = rstd,
    };
}

static DsvStatus heads_norm_fwd(const DsvDit *dit, DsvRmsNormRopeArgs args, void *y)
{
    args.y = y;
    return dit->backend->ops.rms_norm_rope_fwd.run(dit->stream, &args);
}

/* In place: dy becomes dx. Sums the gradient of the bias that x ends with, too. */
static DsvStatus heads_norm_bwd(const DsvDit *dit, DsvRmsNormRopeArgs args, const DsvDitLinear *linear,
                                void *dy)
{
    args.dy = args.dx = dy;
    args.dx_sum = dsvi_dit_grad(dit, linear->bias);
    return dit->backend->ops.rms_norm_rope_bwd.run(dit->stream, &args);
}

/* ---- self-attention ---- */

static DsvRmsNormRopeArgs self_q_norm(const DsvDit *dit, int64_t block)
{
    return heads_norm(dit, dit->tokens, true, dit->saved[block].q, params_of(dit, block)->self.norm_q,
                      dit->scratch.rstd);
}

static DsvRmsNormRopeArgs self_k_norm(const DsvDit *dit, int64_t block)
{
    return heads_norm(dit, dit->tokens, true, dit->saved[block].k, params_of(dit, block)->self.norm_k,
                      dit->scratch.rstd_k);
}

static DsvSparseAttention self_tensors(const DsvDit *dit, int64_t block)
{
    const DsvDitSaved *saved = &dit->saved[block];
    return (DsvSparseAttention){
        .scale = 1 / sqrt((double)dit->head_dim),
        .q = dit->scratch.q, .k = dit->scratch.k, .v = saved->v,
        .out = saved->attended, .lse = saved->lse,
    };
}

static DsvStatus self_fwd(DsvDit *dit, int64_t block, bool recompute)
{
    const DsvDitAttentionParams *p = &params_of(dit, block)->self;
    const DsvDitSaved *saved = &dit->saved[block];
    const DsvDitScratch *s = &dit->scratch;
    DsvDitNorm norm = norm_self(dit, block);
    DsvGateResidualArgs sum;
    DsvSparseAttention tensors = self_tensors(dit, block);
    int64_t rows = dit->batch * dit->tokens;
    bool first = recompute || block == 0; /* x is there */
    if (!first)
        sum = dsvi_dit_block_sum(dit, block - 1);
    DSVI_TRY(dsvi_dit_norm_fwd(dit, &norm, first ? NULL : &sum));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->q, rows, s->h, dit->act, saved->q));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->k, rows, s->h, dit->act, saved->k));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->v, rows, s->h, dit->act, saved->v));
    tensors.hidden = s->h;
    tensors.recompute = recompute;
    if (!recompute || dit->shape.keep == DSV_KEEP_INPUT) {
        DSVI_TRY(heads_norm_fwd(dit, self_q_norm(dit, block), s->q));
        DSVI_TRY(heads_norm_fwd(dit, self_k_norm(dit, block), s->k));
        DSVI_TRY(dsvi_dit_self_attend(dit, block, &tensors, false));
    }
    return dsvi_dit_linear_fwd(dit, &p->o, rows, saved->attended, dit->act, saved->y_self);
}

static DsvStatus self_bwd(DsvDit *dit, int64_t block)
{
    const DsvDitAttentionParams *p = &params_of(dit, block)->self;
    const DsvDitSaved *saved = &dit->saved[block];
    const DsvDitScratch *s = &dit->scratch;
    DsvDitNorm norm = norm_self(dit, block);
    DsvDitLinear q = without_bias(&p->q), k = without_bias(&p->k), o = without_bias(&p->o);
    DsvGateResidualArgs args;
    const DsvGateResidualArgs *sum = dsvi_dit_block_sum_bwd(dit, block - 1, &args);
    DsvSparseAttention tensors = self_tensors(dit, block);
    DsvDtype act = dit->act;
    int64_t rows = dit->batch * dit->tokens;
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &o, rows, saved->attended, s->dy, act, s->h, false));
    DSVI_TRY(heads_norm_fwd(dit, self_q_norm(dit, block), s->q));
    DSVI_TRY(heads_norm_fwd(dit, self_k_norm(dit, block), s->k));
    tensors.dout = s->h;
    tensors.dq = s->dq;
    tensors.dk = s->dk;
    tensors.dv = s->dv;
    DSVI_TRY(dsvi_dit_self_attend(dit, block, &tensors, true));
    DSVI_TRY(heads_norm_bwd(dit, self_q_norm(dit, block), &p->q, s->dq));
    DSVI_TRY(heads_norm_bwd(dit, self_k_norm(dit, block), &p->k, s->dk));
    DSVI_TRY(dsvi_dit_norm_fwd(dit, &norm, NULL));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &q, rows, s->h, s->dq, act, s->dy, false));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &k, rows, s->h, s->dk, act, s->dy, true));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &p->v, rows, s->h, s->dv, act, s->dy, true));
    return dsvi_dit_norm_bwd(dit, &norm, sum);
}

/* ---- cross-attention ---- */

static DsvRmsNormRopeArgs cross_q_norm(const DsvDit *dit, int64_t block)
{
    return heads_norm(dit, dit->tokens, false, dit->saved[block].cross_q, params_of(dit, block)->cross.norm_q,
                      dit->scratch.rstd);
}

static DsvRmsNormRopeArgs cross_k_norm(const DsvDit *dit, int64_t block)
{
    return heads_norm(dit, dit->text_len, false, dit->saved[block].cross_k,
                      params_of(dit, block)->cross.norm_k, dit->scratch.rstd_k);
}

static DsvSparseAttention cross_tensors(const DsvDit *dit, int64_t block)
{
    const DsvDitSaved *saved = &dit->saved[block];
    return (DsvSparseAttention){
        .scale = 1 / sqrt((double)dit->head_dim),
        .q = dit->scratch.q, .k = dit->scratch.cross_k, .v = saved->cross_v,
        .out = saved->cross_attended, .lse = saved->cross_lse,
    };
}

static DsvStatus cross_fwd(DsvDit *dit, int64_t block)
{
    const DsvDitAttentionParams *p = &params_of(dit, block)->cross;
    const DsvDitSaved *saved = &dit->saved[block];
    const DsvDitScratch *s = &dit->scratch;
    const void *context = dit->embedded.context;
    DsvDitNorm norm = norm_cross(dit, block);
    DsvGateResidualArgs sum = sum_self(dit, block);
    DsvSparseAttention tensors = cross_tensors(dit, block);
    int64_t rows = dit->batch * dit->tokens, text_rows = dit->batch * dit->text_len;
    DSVI_TRY(dsvi_dit_norm_fwd(dit, &norm, &sum));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->q, rows, s->h, dit->act, saved->cross_q));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->k, text_rows, context, dit->act, saved->cross_k));
    DSVI_TRY(dsvi_dit_linear_fwd(dit, &p->v, text_rows, context, dit->act, saved->cross_v));
    DSVI_TRY(heads_norm_fwd(dit, cross_q_norm(dit, block), s->q));
    DSVI_TRY(heads_norm_fwd(dit, cross_k_norm(dit, block), s->cross_k));
    DSVI_TRY(dsvi_dit_cross_attend(dit, &tensors, false));
    return dsvi_dit_linear_fwd(dit, &p->o, rows, saved->cross_attended, dit->act, s->h);
}

static DsvStatus cross_bwd(DsvDit *dit, int64_t block)
{
    const DsvDitAttentionParams *p = &params_of(dit, block)->cross;
    const DsvDitSaved *saved = &dit->saved[block];
    const DsvDitScratch *s = &dit->scratch;
    const void *context = dit->embedded.context;
    DsvDitNorm norm = norm_cross(dit, block);
    DsvDitLinear q = without_bias(&p->q), k = without_bias(&p->k), o = without_bias(&p->o);
    DsvGateResidualArgs sum = sum_self(dit, block), sum_bwd = sum_self_bwd(dit, block);
    DsvSparseAttention tensors = cross_tensors(dit, block);
    int64_t rows = dit->batch * dit->tokens, text_rows = dit->batch * dit->text_len;
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &o, rows, saved->cross_attended, s->dy, dit->act, s->h, false));
    DSVI_TRY(heads_norm_fwd(dit, cross_q_norm(dit, block), s->q));
    DSVI_TRY(heads_norm_fwd(dit, cross_k_norm(dit, block), s->cross_k));
    tensors.dout = s->h;
    tensors.dq = s->dq;
    tensors.dk = s->dcross_k;
    tensors.dv = s->dcross_v;
    DSVI_TRY(dsvi_dit_cross_attend(dit, &tensors, true));
    DSVI_TRY(heads_norm_bwd(dit, cross_q_norm(dit, block), &p->q, s->dq));
    DSVI_TRY(heads_norm_bwd(dit, cross_k_norm(dit, block), &p->k, s->dcross_k));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &k, text_rows, context, s->dcross_k, dit->acc, s->dcontext, true));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &p->v, text_rows, context, s->dcross_v, dit->acc, s->dcontext, true));
    DSVI_TRY(dsvi_dit_norm_fwd(dit, &norm, runs_again(dit, block) ? NULL : &sum));
    DSVI_TRY(dsvi_dit_linear_bwd(dit, &q, rows, s->h, s->dq, dit->act, s->dy, false));
    return dsvi_dit_norm_bwd(dit, &norm, &sum_bwd);
}

/* ---- feed-forward ----
 *
 * Where its activations are not kept, a part of the rows goes all the way before the next begins, and the
 * backward pass computes a part's again beside its gradients: they take the memory of a part. */

bool dsvi_dit_keeps_all(const DsvDit *dit)
{
    return dit->shape.backward && dit->shape.keep == DSV_KEEP_ALL;
}

/* Whole samples, or tokens of one, for a gate is of a sample. */
typedef struct Part {
    int64_t sample, samples;
    int64_t token, tokens;
} Part;

/* Rows with which a GPU's products are as fast as with more (docs/gpu.md). */
enum { FFN_ROWS = 32768 };

static Part largest_part(const DsvDit *dit)
{
    int64_t most = dit->shape.ffn_rows > 0 ? dit->shape.ffn_rows : FFN_ROWS, tokens = dit->tokens;
    if (dsvi_dit_keeps_all(dit) || dit->batch * tokens <= most)
        return (Part){.samples = dit->batch, .tokens = tokens};
    if (tokens <= most)
        return (Part){.samples = most / tokens, .tokens = tokens};
    int64_t parts = (tokens + most - 1) / most;
    return (Part){.samples = 1, .tokens = (tokens + parts - 1) / parts};
}

int64_t dsvi_dit_ffn_rows(const DsvDit *dit)
{
    Part part = largest_part(dit);
    return part.samples * part.tokens;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

typedef DsvStatus part_fn(DsvDit *dit, int64_t block, const Part *part);

static DsvStatus for_each_part(DsvDit *dit, int64_t block, part_fn *fn)
{
    Part most = largest_part(dit), part = most;
    for (part.sample = 0; part.sample < dit->batch; part.sample += most.samples)
        for (part.token = 0; part.token < dit->tokens; part.token += most.tokens) {
            part.samples = smaller(most.samples, dit->batch - part.sample);
            part.tokens = smaller(most.tokens, dit->tokens - part.token);
            DSVI_TRY(fn(dit, block, &part));
        }
    return DSV_OK;
}

static int64_t rows_of(const Part *part)
{
    return part->samples * part->tokens;
}

/* Where the part begins in (B, S, C). */
static void *part_at(const DsvDit *dit, const Part *part, DsvDtype dtype, const void *stream)
{
    return dsvi_dit_at(stream, dtype, (part->sample * dit->tokens + part->token) * dit->width);
}

static DsvStatus part_hidden(DsvDit *dit, int64_t block, const Part *part)
{
    const DsvDitSaved *saved = &dit->saved[block];
    return dsvi_dit_linear_gelu_fwd(dit, &params_of(dit, block)->ffn_in, rows_of(part),
                                    part_at(dit, part, dit->act, dit->scratch.h), saved->ffn_hidden,
                                    saved->ffn_act);
}

static DsvStatus part_out(DsvDit *dit, int64_t block, const Part *part)
{
    const DsvDitSaved *saved = &dit->saved[block];
    return dsvi_dit_linear_fwd(dit, &params_of(dit, block)->ffn_out, rows_of(part), saved->ffn_act, dit->act,
                               part_at(dit, part, dit->act, saved->y_ffn));
}

static DsvStatus part_fwd(DsvDit *dit, int64_t block, const Part *part)
{
    DSVI_TRY(part_hidden(dit, block, part));
    return part_out(dit, block, part);
}

/* From the gradient of the residual stream to that of the part's output. */
static DsvStatus part_sum_bwd(DsvDit *dit, int64_t block, const Part *part)
{
    DsvGateResidualArgs sum = sum_ffn_bwd(dit, block);
    int64_t gate = part->sample * sum.gate_stride;
    sum.batch = part->samples;
    sum.tokens = part->tokens;
    sum.y = part_at(dit, part, dit->act, sum.y);
    sum.dout = part_at(dit, part, dit->acc, sum.dout);
    sum.dy = part_at(dit, part, dit->act, sum.dy);
    sum.gate = dsvi_dit_at(sum.gate, dit->acc, gate);
    sum.dgate = dsvi_dit_at(sum.dgate, dit->acc, gate);
    return dit->backend->ops.gate_residual_bwd.run(dit->stream, &sum);
}

/* The gradient of the output, in scratch.dy, becomes that of the input. */
static DsvStatus part_bwd(DsvDit *dit, int64_t block, const Part *part)
{
    const DsvDitBlockParams *p = params_of(dit, block);
    const DsvDitSaved *saved = &dit->saved[block];
    DsvDitLinear in = p->ffn_in, out = without_bias(&p->ffn_out);
    void *h = part_at(dit, part, dit->act, dit->scratch.h);
    void *dy = part_at(dit, part, dit->act, dit->scratch.dy);
    in.begun = out.begun = part->sample + part->token > 0;
    if (!dsvi_dit_keeps_all(dit))
        DSVI_TRY(part_hidden(dit, block, part));
    if (runs_again(dit, block)) {
        DSVI_TRY(part_out(dit, block, part));
        DSVI_TRY(part_sum_bwd(dit, block, part));
    }
    DSVI_TRY(dsvi_dit_linear_gelu_bwd(dit, &out, rows_of(part), saved->ffn_hidden, saved->ffn_act, dy,
                                      dit->scratch.dffn));
    return dsvi_dit_linear_bwd(dit, &in, rows_of(part), h, dit->scratch.dffn, dit->act, dy, false);
}

/* The sum that makes x2, and the residual stream to scratch.h. */
static DsvStatus ffn_norm(DsvDit *dit, int64_t block)
{
    DsvDitNorm norm = norm_ffn(dit, block);
    DsvGateResidualArgs sum = sum_cross(dit, block);
    return dsvi_dit_norm_fwd(dit, &norm, &sum);
}

static DsvStatus ffn_fwd(DsvDit *dit, int64_t block)
{
    DSVI_TRY(ffn_norm(dit, block));
    return for_each_part(dit, block, part_fwd);
}

/* The gradient of ffn_out's bias, which the sum's backward pass has left. */
static DsvStatus take_ffn_dbias(const DsvDit *dit, int64_t block)
{
    DsvAddArgs add = {
        .n = dit->width, .a = 1, .b = 1, .x_dtype = dit->acc, .y_dtype = dit->acc,
        .x = ffn_dy_sum(dit, block), .y = dsvi_dit_grad(dit, params_of(dit, block)->ffn_out.bias),
    };
    return dit->backend->ops.add.run(dit->stream, &add);
}

static DsvStatus ffn_bwd(DsvDit *dit, int64_t block)
{
    DsvDitNorm norm = norm_ffn(dit, block);
    DsvGateResidualArgs sum = sum_cross_bwd(dit, block);
    if (!runs_again(dit, block)) /* else scratch has it */
        DSVI_TRY(dsvi_dit_norm_fwd(dit, &norm, NULL));
    DSVI_TRY(for_each_part(dit, block, part_bwd));
    DSVI_TRY(take_ffn_dbias(dit, block));
    return dsvi_dit_norm_bwd(dit, &norm, &sum);
}

/* ---- the block ---- */

DsvStatus dsvi_dit_block_fwd(DsvDit *dit, int64_t block)
{
    DSVI_TRY(modulate(dit, block));
    DSVI_TRY(self_fwd(dit, block, false));
    DSVI_TRY(cross_fwd(dit, block));
    return ffn_fwd(dit, block);
}

/* The forward pass again, up to where the feed-forward layer's parts begin. */
static DsvStatus run_again(DsvDit *dit, int64_t block)
{
    DSVI_TRY(self_fwd(dit, block, true));
    DSVI_TRY(cross_fwd(dit, block));
    return ffn_norm(dit, block);
}

DsvStatus dsvi_dit_block_bwd(DsvDit *dit, int64_t block)
{
    if (runs_again(dit, block))
        DSVI_TRY(run_again(dit, block));
    DSVI_TRY(ffn_bwd(dit, block));
    DSVI_TRY(cross_bwd(dit, block));
    DSVI_TRY(self_bwd(dit, block));
    return modulate_bwd(dit, block);
}
