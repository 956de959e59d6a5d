/* SIMD variant of attention_error (ops/attention_error.h): sixteen sampled queries at a time, one per lane.
 *
 * As in attention_error_ref.c, both outputs are weighted means of the values. The weights are (keys, 16)
 * arrays; one matrix product for each tile of 64 values adds them to the outputs of all sixteen queries. */
#include <math.h>

#include "cpu/sampled_rows.h"
#include "cpu/simd_fill.h"
#include "cpu/simd_math.h"

typedef struct ErrorWork {
    const DsviAttentionErrorArgs *args;
    int64_t blocks; /* blocks of sixteen samples per (batch, head) */
    int64_t pieces, width;
    size_t floats; /* floats of scratch for one piece of work */
} ErrorWork;

/* Scratch of one piece of work. */
typedef struct ErrorScratch {
    float *exact, *listed;         /* (keys rounded up to a tile, 16) scores, then weights */
    float *queries;                /* (16, width) */
    float *transposed;             /* (width, 16) */
    float *rows;                   /* (KEYS, width) */
    float *exact_out, *listed_out; /* (16, width) */
} ErrorScratch;

/* Sets the pointers of `s` to consecutive buffers starting at `base`, and returns the number of floats that
 * they hold together. If `base` is NULL, only computes this number. */
static size_t error_scratch_layout(const ErrorWork *w, float *base, ErrorScratch *s)
{
    size_t used = 0;
    int64_t keys = dsvi_round_up(w->args->keys, DSVI_TILE_KEYS);
    s->exact = dsvi_take_floats(base, &used, keys * DSVI_SAMPLES);
    s->listed = dsvi_take_floats(base, &used, keys * DSVI_SAMPLES);
    s->queries = dsvi_take_floats(base, &used, DSVI_SAMPLES * w->width);
    s->transposed = dsvi_take_floats(base, &used, w->width * DSVI_SAMPLES);
    s->rows = dsvi_take_floats(base, &used, DSVI_TILE_KEYS * w->width);
    s->exact_out = dsvi_take_floats(base, &used, DSVI_SAMPLES * w->width);
    s->listed_out = dsvi_take_floats(base, &used, DSVI_SAMPLES * w->width);
    return used;
}

static ErrorWork error_setup(const DsviAttentionErrorArgs *args)
{
    ErrorScratch s;
    ErrorWork w = {.args = args,
                   .blocks = (args->samples + DSVI_SAMPLES - 1) / DSVI_SAMPLES,
                   .width = dsvi_round_up(args->head_dim, DSVI_LANES)};
    w.pieces = args->batch * args->heads * w.blocks;
    w.floats = error_scratch_layout(&w, NULL, &s);
    return w;
}

static size_t error_workspace(DsviStream *stream, const DsviAttentionErrorArgs *args)
{
    (void)stream;
    ErrorWork w = error_setup(args);
    return w.floats * sizeof(float) * (size_t)dsvi_scratch_count(w.pieces);
}

/* Loads the mean queries of the chunks of the samples, transposed, into s->transposed. */
static void load_chunk_means(const DsviSampledHead *q, const DsviAttentionErrorArgs *args,
                             const int32_t *sample, int64_t count, const ErrorScratch *s)
{
    for (int64_t n = 0; n < count; n++) {
        int64_t first = sample[n] / args->chunk * args->chunk;
        int64_t end = first + args->chunk < args->queries ? first + args->chunk : args->queries;
        float *mean = s->queries + n * q->width, part = 1 / (float)(end - first);
        memset(mean, 0, (size_t)q->width * sizeof *mean);
        for (int64_t i = first; i < end; i++) {
            dsvi_row_load(q->dtype, q->rows->data, dsvi_heads_at(q->rows, q->b, i, q->h), q->dim, q->width,
                          s->rows);
            for (int64_t d = 0; d < q->width; d++)
                mean[d] += s->rows[d] * part;
        }
    }
    dsvi_rows_transpose(s->queries, q->width, q->width, count, s->transposed, DSVI_SAMPLES);
}

/* Computes the scores of all keys with the queries in s->transposed. */
static void score_all_keys(const DsviSampledHead *k, const DsviAttentionErrorArgs *args,
                           const ErrorScratch *s, float *scores)
{
    for (int64_t from = 0; from < args->keys; from += DSVI_TILE_KEYS) {
        int64_t left = args->keys - from;
        dsvi_samples_score(k, &(DsviSampleScores){.first = from,
                                                  .count = left < DSVI_TILE_KEYS ? left : DSVI_TILE_KEYS,
                                                  .transposed = s->transposed,
                                                  .factor = args->scale,
                                                  .keys = s->rows,
                                                  .scores = scores + from * DSVI_SAMPLES});
    }
}

static DsviVec larger_of_scores(const float *scores, int64_t keys, DsviVec largest)
{
    for (int64_t at = 0; at < keys * DSVI_SAMPLES; at += DSVI_SAMPLES)
        largest = dsvi_vec_max(largest, dsvi_vec_load(scores + at));
    return largest;
}

/* Replaces in each lane the scores of every run of keys by the weight of one left-out key of the run, divided
 * by the number of the run's keys. */
static void weigh_runs(float *scores, int64_t keys, int64_t run, DsviVec largest)
{
    for (int64_t first = 0; first < keys; first += run) {
        int64_t end = first + run < keys ? first + run : keys;
        float count = (float)(end - first);
        DsviVec mean = dsvi_vec_all(0);
        for (int64_t j = first; j < end; j++)
            mean += dsvi_vec_load(scores + j * DSVI_SAMPLES);
        DsviVec weight = dsvi_vec_exp(mean / dsvi_vec_all(count) - largest) / dsvi_vec_all(count);
        for (int64_t j = first; j < end; j++)
            dsvi_vec_store(scores + j * DSVI_SAMPLES, weight);
    }
}

/* Replaces the scores in s->exact and s->listed by weights. Afterwards s->listed contains the weights of
 * left-out keys as if no key were listed. */
static void weigh_lanes(const DsviAttentionErrorArgs *args, const ErrorScratch *s)
{
    for (int64_t i = 0; i < DSVI_SAMPLES; i += DSVI_LANES) {
        DsviVec largest = larger_of_scores(s->exact + i, args->keys, dsvi_vec_all(-INFINITY));
        if (args->chunk > 0) {
            largest = larger_of_scores(s->listed + i, args->keys, largest);
            weigh_runs(s->listed + i, args->keys, args->run, largest);
        }
        for (int64_t at = i; at < args->keys * DSVI_SAMPLES; at += DSVI_SAMPLES)
            dsvi_vec_store(s->exact + at, dsvi_vec_exp(dsvi_vec_load(s->exact + at) - largest));
    }
    if (args->chunk == 0)
        memset(s->listed, 0, (size_t)(args->keys * DSVI_SAMPLES) * sizeof *s->listed);
}

/* Completes the weights in lane `lane` of s->listed, by the list of its query. */
static void weigh_list(const DsviAttentionErrorArgs *args, const DsviList *list, const ErrorScratch *s,
                       int64_t lane)
{
    int64_t length = dsvi_list_length(list), next = 0, run = args->chunk > 0 ? args->run : args->keys;
    for (int64_t first = 0; first < args->keys; first += run) {
        int64_t end = first + run < args->keys ? first + run : args->keys, from = next;
        while (next < length && dsvi_list_key(list, next) < end)
            next++;
        if (next == from && run == 1)
            continue;
        for (int64_t j = first; j < end; j++)
            s->listed[j * DSVI_SAMPLES + lane] *= (float)(end - first - (next - from));
        for (int64_t n = from; n < next; n++) {
            int64_t at = dsvi_list_key(list, n) * DSVI_SAMPLES + lane;
            s->listed[at] += s->exact[at];
        }
    }
}

/* Adds weight times value over all keys to out (16, width), and stores the sum of the weights of each lane in
 * total (16). */
static void weighted_sums(const ErrorWork *w, const ErrorScratch *s, int64_t b, int64_t h,
                          const float *weight, float *out, double *total)
{
    const DsviAttentionErrorArgs *args = w->args;
    memset(out, 0, (size_t)(DSVI_SAMPLES * w->width) * sizeof *out);
    for (int64_t i = 0; i < DSVI_SAMPLES; i++)
        total[i] = 0;
    for (int64_t from = 0; from < args->keys; from += DSVI_TILE_KEYS) {
        int64_t left = args->keys - from, keys = left < DSVI_TILE_KEYS ? left : (int64_t)DSVI_TILE_KEYS;
        DsviTileProduct product = {.m = DSVI_SAMPLES,
                                   .n = w->width,
                                   .k = keys,
                                   .a = weight + from * DSVI_SAMPLES,
                                   .a_row = 1,
                                   .a_col = DSVI_SAMPLES,
                                   .b = s->rows,
                                   .ldb = w->width,
                                   .c = out,
                                   .ldc = w->width,
                                   .factor = 1,
                                   .add = true,
                                   .pairs = false};
        for (int64_t j = 0; j < keys; j++) {
            dsvi_row_load(args->act, args->v.data, dsvi_heads_at(&args->v, b, from + j, h), args->head_dim,
                          w->width, s->rows + j * w->width);
            for (int64_t i = 0; i < DSVI_SAMPLES; i++)
                total[i] += weight[(from + j) * DSVI_SAMPLES + i];
        }
        dsvi_tile_product(&product);
    }
}

/* Writes the results of `count` samples, from result number `at` on. */
static void store_errors(const ErrorWork *w, const ErrorScratch *s, const double *exact, const double *listed,
                         int64_t count, int64_t at)
{
    for (int64_t i = 0; i < count; i++) {
        double error = 0, norm = 0, factor = listed[i] > 0 ? 1 / listed[i] : 0;
        for (int64_t d = 0; d < w->args->head_dim; d++) {
            double expected = s->exact_out[i * w->width + d] / exact[i];
            double difference = s->listed_out[i * w->width + d] * factor - expected;
            error += difference * difference;
            norm += expected * expected;
        }
        w->args->error[at + i] = (float)error;
        w->args->norm[at + i] = (float)norm;
    }
}

static void error_block(const ErrorWork *w, const ErrorScratch *s, int64_t pair, int64_t block)
{
    const DsviAttentionErrorArgs *args = w->args;
    int64_t b = pair / args->heads, h = pair % args->heads, first = block * DSVI_SAMPLES;
    int64_t left = args->samples - first, count = left < DSVI_SAMPLES ? left : (int64_t)DSVI_SAMPLES;
    const int32_t *sample = args->sample + first;
    const DsviSampledHead q = {args->act, &args->q, b, h, args->head_dim, w->width};
    const DsviSampledHead k = {args->act, &args->k, b, h, args->head_dim, w->width};
    double exact[DSVI_SAMPLES], listed[DSVI_SAMPLES];
    dsvi_samples_load(&q, sample, count, s->queries, s->transposed);
    score_all_keys(&k, args, s, s->exact);
    if (args->chunk > 0) {
        load_chunk_means(&q, args, sample, count, s);
        score_all_keys(&k, args, s, s->listed);
    }
    weigh_lanes(args, s);
    for (int64_t i = 0; i < count; i++) {
        DsviList list = dsvi_list_of(args->lists, args->keys, b, h, sample[i]);
        weigh_list(args, &list, s, i);
    }
    weighted_sums(w, s, b, h, s->exact, s->exact_out, exact);
    weighted_sums(w, s, b, h, s->listed, s->listed_out, listed);
    store_errors(w, s, exact, listed, count, pair * args->samples + first);
}

static void error_range(void *context, int64_t begin, int64_t end, int worker)
{
    const ErrorWork *w = context;
    for (int64_t n = begin; n < end; n++) {
        ErrorScratch s;
        size_t before = w->floats * (size_t)dsvi_scratch_number(w->pieces, n, worker);
        error_scratch_layout(w, (float *)w->args->workspace + before, &s);
        error_block(w, &s, n / w->blocks, n % w->blocks);
    }
}

static DsvStatus cpu_attention_error(DsviStream *stream, const DsviAttentionErrorArgs *args)
{
    if (args->act != DSVI_F32 && args->act != DSVI_BF16)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "attention error: this variant takes F32 and BF16, not %s",
                         dsvi_dtype_name(args->act));
    DSVI_TRY(dsvi_attention_error_check(args, error_workspace(stream, args)));
    ErrorWork w = error_setup(args);
    dsvi_parallel_for(w.pieces, 1, error_range, &w);
    return DSV_OK;
}

void DSVI_SIMD(fill_attention_error)(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_error, cpu_attention_error, error_workspace, DSVI_SIMD_NAME);
}
