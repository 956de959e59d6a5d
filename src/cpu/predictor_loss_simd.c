/* SIMD variant of the predictor's loss and gradient (ops/predictor_loss.h; formulas in
 * predictor_loss_ref.c). Sixteen sampled queries are processed at a time, one per lane. A (batch, head)
 * is one piece of work, because all its sampled queries add to the same dkl, the gradient of the keys'
 * features. */
#include <math.h>

#include "cpu/sampled_rows.h"
#include "cpu/simd_fill.h"

typedef struct Predictor {
    const DsviPredictorLossArgs *args;
    int64_t pieces;
    int64_t width, rank_width; /* head_dim and rank, rounded up to whole vectors */
    int64_t padded_keys;       /* keys rounded up to a multiple of DSVI_TILE_KEYS */
    size_t floats;             /* floats of scratch for one piece of work */
    double *losses;            /* (pieces) loss of each piece, summed over samples */
} Predictor;

/* Scratch of one piece of work. */
typedef struct Scratch {
    float *u, *t;    /* (padded_keys, 16) predicted (u) and true (t) scores of sixteen queries, then the
                      * same scaled to norm 1; finally u holds the gradient of the predicted scores */
    float *kl, *dkl; /* (padded_keys, rank_width) */
    float *qt;       /* (width or rank_width, 16) */
    float *rows;     /* (KEYS, width) */
    float *ql, *dql; /* (16, rank_width) */
} Scratch;

/* Sets the pointers of `s` to consecutive buffers starting at `base`, and returns the number of floats that
 * they hold together. If `base` is NULL, only computes this number. */
static size_t predictor_loss_scratch_layout(const Predictor *w, float *base, Scratch *s)
{
    size_t used = 0;
    int64_t widest = w->width > w->rank_width ? w->width : w->rank_width;
    s->u = dsvi_take_floats(base, &used, w->padded_keys * DSVI_SAMPLES);
    s->t = dsvi_take_floats(base, &used, w->padded_keys * DSVI_SAMPLES);
    s->kl = dsvi_take_floats(base, &used, w->padded_keys * w->rank_width);
    s->dkl = dsvi_take_floats(base, &used, w->padded_keys * w->rank_width);
    s->qt = dsvi_take_floats(base, &used, widest * DSVI_SAMPLES);
    s->rows = dsvi_take_floats(base, &used, DSVI_TILE_KEYS * w->width);
    s->ql = dsvi_take_floats(base, &used, DSVI_SAMPLES * w->rank_width);
    s->dql = dsvi_take_floats(base, &used, DSVI_SAMPLES * w->rank_width);
    return used;
}

static Predictor predictor_loss_setup(const DsviPredictorLossArgs *args)
{
    Scratch s;
    Predictor w = {.args = args,
                   .pieces = args->batch * args->heads,
                   .width = dsvi_round_up(args->head_dim, DSVI_LANES),
                   .rank_width = dsvi_round_up(args->rank, DSVI_LANES),
                   .padded_keys = dsvi_round_up(args->keys, DSVI_TILE_KEYS)};
    w.floats = predictor_loss_scratch_layout(&w, NULL, &s);
    return w;
}

static size_t scratch_bytes(const Predictor *w)
{
    return w->floats * sizeof(float) * (size_t)dsvi_scratch_count(w->pieces);
}

static size_t predictor_loss_workspace(DsviStream *stream, const DsviPredictorLossArgs *args)
{
    (void)stream;
    Predictor w = predictor_loss_setup(args);
    return scratch_bytes(&w) + (size_t)w.pieces * sizeof(double);
}

/* Computes the true scores t and the predicted scores u of up to sixteen sampled queries. s->kl must hold
 * the keys' features. */
static void predictor_loss_score(const Predictor *w, const Scratch *s, int64_t b, int64_t h,
                                 const int32_t *sample, int64_t count)
{
    const DsviPredictorLossArgs *args = w->args;
    DsviSampledHead q = {args->act, &args->q, b, h, args->head_dim, w->width};
    DsviSampledHead k = {args->act, &args->k, b, h, args->head_dim, w->width};
    DsviSampledHead ql = {args->acc, &args->ql, b, h, args->rank, w->rank_width};
    dsvi_samples_load(&q, sample, count, s->rows, s->qt);
    for (int64_t from = 0; from < args->keys; from += DSVI_TILE_KEYS) {
        int64_t left = args->keys - from, keys = left < DSVI_TILE_KEYS ? left : (int64_t)DSVI_TILE_KEYS;
        dsvi_samples_score(&k, &(DsviSampleScores){.first = from,
                                                   .count = keys,
                                                   .transposed = s->qt,
                                                   .factor = 1 / sqrt((double)args->head_dim),
                                                   .keys = s->rows,
                                                   .scores = s->t + from * DSVI_SAMPLES});
    }
    dsvi_samples_load(&ql, sample, count, s->ql, s->qt);
    dsvi_tile_product(&(DsviTileProduct){.m = w->padded_keys,
                                         .n = DSVI_SAMPLES,
                                         .k = args->rank,
                                         .a = s->kl,
                                         .a_row = w->rank_width,
                                         .a_col = 1,
                                         .b = s->qt,
                                         .ldb = DSVI_SAMPLES,
                                         .c = s->u,
                                         .ldc = DSVI_SAMPLES,
                                         .factor = (float)(1 / sqrt((double)args->rank))});
}

/* Returns, in each lane, the sum over keys of a[j] b[j], or of a[j] if b is NULL. Summing tile by tile
 * reduces rounding errors. */
static DsviVec lane_sum(const float *a, const float *b, int64_t keys)
{
    DsviVec sum = dsvi_vec_all(0);
    for (int64_t from = 0; from < keys; from += DSVI_TILE_KEYS) {
        DsviVec part = dsvi_vec_all(0);
        for (int64_t j = from; j < keys && j < from + DSVI_TILE_KEYS; j++) {
            DsviVec x = dsvi_vec_load(a + j * DSVI_SAMPLES);
            part += b ? x * dsvi_vec_load(b + j * DSVI_SAMPLES) : x;
        }
        sum += part;
    }
    return sum;
}

/* For each lane: subtracts the mean of its row if `centred`, then scales the row to norm 1. A row whose norm
 * is too small (ops/predictor_loss.h) becomes 0. Returns the norms before scaling, or 0 for such rows. */
static DsviVec cpu_predictor_loss_make_unit(float *rows, int64_t keys, bool centred)
{
    DsviVec mean = centred ? lane_sum(rows, NULL, keys) / (float)keys : dsvi_vec_all(0), norm, inverse;
    for (int64_t j = 0; centred && j < keys; j++)
        dsvi_vec_store(rows + j * DSVI_SAMPLES, dsvi_vec_load(rows + j * DSVI_SAMPLES) - mean);
    DsviVec squares = lane_sum(rows, rows, keys);
    for (int i = 0; i < DSVI_LANES; i++) {
        double root = sqrt((double)squares[i]);
        double least = DSVI_PREDICTOR_MIN_FRACTION * fabs((double)mean[i]) * sqrt((double)keys);
        bool nothing = root < fmax(least, DSVI_PREDICTOR_MIN_NORM);
        norm[i] = nothing ? 0 : (float)root;
        inverse[i] = nothing ? 0 : (float)(1 / root);
    }
    for (int64_t j = 0; j < keys; j++)
        dsvi_vec_store(rows + j * DSVI_SAMPLES, dsvi_vec_load(rows + j * DSVI_SAMPLES) * inverse);
    return norm;
}

/* Computes the losses of a vector of lanes starting at `lane`. Replaces u by the gradient with respect to
 * the predicted scores ql . kl. */
static void predictor_loss_gradient(const DsviPredictorLossArgs *args, const Scratch *s, int64_t lane,
                                    double *losses)
{
    double rows = (double)(args->batch * args->heads * args->samples), root = sqrt((double)args->rank);
    double norm_weight = args->norm_weight / (double)args->keys;
    float *u = s->u + lane, *t = s->t + lane;
    DsviVec t_norm = cpu_predictor_loss_make_unit(t, args->keys, args->centred),
            u_norm = cpu_predictor_loss_make_unit(u, args->keys, args->centred);
    DsviVec cosine = lane_sum(u, t, args->keys), slope;
    for (int i = 0; i < DSVI_LANES; i++) {
        bool both = t_norm[i] != 0 && u_norm[i] != 0;
        slope[i] = both ? (float)(-(args->cos_weight + 2 * norm_weight) / (u_norm[i] * root * rows)) : 0;
        losses[lane + i] = args->cos_weight * (1 - (double)cosine[i]) +
                           norm_weight * ((t_norm[i] != 0) + (u_norm[i] != 0) - 2 * (double)cosine[i]);
    }
    for (int64_t at = 0; at < args->keys * DSVI_SAMPLES; at += DSVI_SAMPLES)
        dsvi_vec_store(u + at, slope * (dsvi_vec_load(t + at) - cosine * dsvi_vec_load(u + at)));
}

/* Processes up to sixteen sampled queries: adds to dql, the gradient of these queries' features, and to
 * dkl, that of all keys' features. Returns the sum of their losses. */
static double sample_block(const Predictor *w, const Scratch *s, int64_t b, int64_t h, const int32_t *sample,
                           int64_t count)
{
    const DsviPredictorLossArgs *args = w->args;
    double losses[DSVI_SAMPLES], sum = 0;
    predictor_loss_score(w, s, b, h, sample, count);
    for (int64_t lane = 0; lane < DSVI_SAMPLES; lane += DSVI_LANES)
        predictor_loss_gradient(args, s, lane, losses);
    dsvi_tile_product(&(DsviTileProduct){.m = DSVI_SAMPLES,
                                         .n = w->rank_width,
                                         .k = args->keys,
                                         .a = s->u,
                                         .a_row = 1,
                                         .a_col = DSVI_SAMPLES,
                                         .b = s->kl,
                                         .ldb = w->rank_width,
                                         .c = s->dql,
                                         .ldc = w->rank_width,
                                         .factor = 1});
    dsvi_tile_product(&(DsviTileProduct){.m = dsvi_round_up(args->keys, DSVI_TILE_ROWS),
                                         .n = w->rank_width,
                                         .k = DSVI_SAMPLES,
                                         .a = s->u,
                                         .a_row = DSVI_SAMPLES,
                                         .a_col = 1,
                                         .b = s->ql,
                                         .ldb = w->rank_width,
                                         .c = s->dkl,
                                         .ldc = w->rank_width,
                                         .factor = 1,
                                         .add = true});
    for (int64_t i = 0; i < count; i++) {
        float *dql = (float *)args->dql.data + dsvi_heads_at(&args->dql, b, sample[i], h);
        for (int64_t r = 0; r < args->rank; r++)
            dql[r] += s->dql[i * w->rank_width + r];
        sum += losses[i];
    }
    return sum;
}

/* Processes all samples of one (batch, head). Returns the sum of their losses. */
static double pair_loss(const Predictor *w, const Scratch *s, int64_t b, int64_t h)
{
    const DsviPredictorLossArgs *args = w->args;
    double sum = 0;
    memset(s->kl, 0, (size_t)(w->padded_keys * w->rank_width) * sizeof(float));
    memset(s->dkl, 0, (size_t)(w->padded_keys * w->rank_width) * sizeof(float));
    for (int64_t j = 0; j < args->keys; j++)
        dsvi_row_load(args->acc, args->kl.data, dsvi_heads_at(&args->kl, b, j, h), args->rank, w->rank_width,
                      s->kl + j * w->rank_width);
    for (int64_t i = 0; i < args->queries; i++)
        memset((float *)args->dql.data + dsvi_heads_at(&args->dql, b, i, h), 0,
               (size_t)args->rank * sizeof(float));
    for (int64_t first = 0; first < args->samples; first += DSVI_SAMPLES) {
        int64_t left = args->samples - first, count = left < DSVI_SAMPLES ? left : (int64_t)DSVI_SAMPLES;
        sum += sample_block(w, s, b, h, args->sample + first, count);
    }
    for (int64_t j = 0; j < args->keys; j++)
        dsvi_row_store(args->acc, args->dkl.data, dsvi_heads_at(&args->dkl, b, j, h), args->rank,
                       s->dkl + j * w->rank_width, 1);
    return sum;
}

static void pair_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Predictor *w = context;
    for (int64_t n = begin; n < end; n++) {
        Scratch s;
        size_t before = w->floats * (size_t)dsvi_scratch_number(w->pieces, n, worker);
        predictor_loss_scratch_layout(w, (float *)w->args->workspace + before, &s);
        w->losses[n] = pair_loss(w, &s, n / w->args->heads, n % w->args->heads);
    }
}

static DsvStatus cpu_predictor_loss(DsviStream *stream, const DsviPredictorLossArgs *args)
{
    if ((args->act != DSVI_F32 && args->act != DSVI_BF16) || args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "predictor_loss: this variant takes F32 and BF16 with F32 sums, "
                         "not %s with %s",
                         dsvi_dtype_name(args->act), dsvi_dtype_name(args->acc));
    if (args->workspace_bytes < predictor_loss_workspace(stream, args))
        return DSVI_FAIL(DSV_E_SHAPE, "predictor_loss: workspace has %zu bytes, expected %zu",
                         args->workspace_bytes, predictor_loss_workspace(stream, args));
    Predictor w = predictor_loss_setup(args);
    double loss = 0;
    w.losses = (double *)((char *)args->workspace + scratch_bytes(&w));
    dsvi_parallel_for(w.pieces, 1, pair_range, &w);
    for (int64_t n = 0; n < w.pieces; n++)
        loss += w.losses[n];
    *(float *)args->loss = args->samples > 0 ? (float)(loss / (double)(w.pieces * args->samples)) : 0;
    return DSV_OK;
}

void DSVI_SIMD(fill_predictor_loss)(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, predictor_loss, cpu_predictor_loss, predictor_loss_workspace,
                                DSVI_SIMD_NAME);
}
