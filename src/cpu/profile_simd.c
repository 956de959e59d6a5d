/* SIMD variant of profile (ops/profile.h): exact attention of sampled queries, sixteen at a time, one per
 * lane.
 *
 * As in profile_ref.c, the smallest number of keys that hold a given mass is found without sorting: a
 * bisection over the bits of floats finds the smallest probability p of these keys, here for all lanes at
 * once. */
#include <math.h>

#include "cpu/sampled_rows.h"
#include "cpu/simd_fill.h"
#include "cpu/simd_math.h"

typedef struct Profile {
    const DsviProfileArgs *args;
    int64_t blocks; /* blocks of sixteen samples per (batch, head) */
    int64_t pieces, width;
    size_t floats; /* floats of scratch for one piece of work */
} Profile;

/* Scratch of one piece of work. */
typedef struct Scratch {
    float *p;          /* (keys rounded up to a tile, 16) */
    float *transposed; /* (width, 16) */
    float *rows;       /* (KEYS, width) */
} Scratch;

/* Sets the pointers of `s` to consecutive buffers starting at `base`, and returns the number of floats that
 * they hold together. If `base` is NULL, only computes this number. */
static size_t profile_scratch_layout(const Profile *w, float *base, Scratch *s)
{
    size_t used = 0;
    s->p = dsvi_take_floats(base, &used, dsvi_round_up(w->args->keys, DSVI_TILE_KEYS) * DSVI_SAMPLES);
    s->transposed = dsvi_take_floats(base, &used, w->width * DSVI_SAMPLES);
    s->rows = dsvi_take_floats(base, &used, DSVI_TILE_KEYS * w->width);
    return used;
}

static Profile profile_setup(const DsviProfileArgs *args)
{
    Scratch s;
    Profile w = {.args = args,
                 .blocks = (args->samples + DSVI_SAMPLES - 1) / DSVI_SAMPLES,
                 .width = dsvi_round_up(args->head_dim, DSVI_LANES)};
    w.pieces = args->batch * args->heads * w.blocks;
    w.floats = profile_scratch_layout(&w, NULL, &s);
    return w;
}

static size_t profile_workspace(DsviStream *stream, const DsviProfileArgs *args)
{
    (void)stream;
    Profile w = profile_setup(args);
    return w.floats * sizeof(float) * (size_t)dsvi_scratch_count(w.pieces);
}

/* Computes in each lane the scores of all keys and their softmax, in s->p. */
static void cpu_profile_probabilities(const Profile *w, const Scratch *s, int64_t b, int64_t h,
                                      const int32_t *sample, int64_t count)
{
    const DsviProfileArgs *args = w->args;
    DsviSampledHead q = {args->act, &args->q, b, h, args->head_dim, w->width};
    DsviSampledHead k = {args->act, &args->k, b, h, args->head_dim, w->width};
    dsvi_samples_load(&q, sample, count, s->rows, s->transposed);
    for (int64_t from = 0; from < args->keys; from += DSVI_TILE_KEYS) {
        int64_t left = args->keys - from, keys = left < DSVI_TILE_KEYS ? left : (int64_t)DSVI_TILE_KEYS;
        dsvi_samples_score(&k, &(DsviSampleScores){.first = from,
                                                   .count = keys,
                                                   .transposed = s->transposed,
                                                   .factor = args->scale,
                                                   .keys = s->rows,
                                                   .scores = s->p + from * DSVI_SAMPLES});
    }
    for (int64_t i = 0; i < DSVI_SAMPLES; i += DSVI_LANES) {
        DsviVec largest = dsvi_vec_all(-INFINITY), total = dsvi_vec_all(0);
        for (int64_t at = i; at < args->keys * DSVI_SAMPLES; at += DSVI_SAMPLES)
            largest = dsvi_vec_max(largest, dsvi_vec_load(s->p + at));
        for (int64_t at = i; at < args->keys * DSVI_SAMPLES; at += DSVI_SAMPLES) {
            DsviVec p = dsvi_vec_exp(dsvi_vec_load(s->p + at) - largest);
            dsvi_vec_store(s->p + at, p);
            total += p;
        }
        for (int64_t at = i; at < args->keys * DSVI_SAMPLES; at += DSVI_SAMPLES)
            dsvi_vec_store(s->p + at, dsvi_vec_load(s->p + at) / total);
    }
}

/* Returns in each lane the sum of all probabilities p >= cut of its query, and stores the number of these p
 * in *count. */
static DsviVec cpu_profile_mass_from(const float *p, int64_t keys, DsviVec cut, DsviVecInt *count)
{
    DsviVec sum = dsvi_vec_all(0);
    *count = (DsviVecInt){0};
    for (int64_t from = 0; from < keys; from += DSVI_TILE_KEYS) {
        DsviVec part = dsvi_vec_all(0); /* partial sum of one tile of keys, which reduces rounding errors */
        for (int64_t j = from; j < keys && j < from + DSVI_TILE_KEYS; j++) {
            DsviVec x = dsvi_vec_load(p + j * DSVI_SAMPLES);
            DsviVecInt counts = x >= cut; /* -1 in lanes where x is counted */
            part += dsvi_vec_from_bits(dsvi_vec_bits(x) & counts);
            *count -= counts;
        }
        sum += part;
    }
    return sum;
}

/* Stores for each lane the smallest number of keys whose probabilities p sum to `mass`. */
static void cpu_profile_keys_for_mass(const float *p, int64_t keys, float mass, int64_t *out)
{
    /* `low` and `high` are the bits of two cuts. `low` starts at 0.0, where all p are >= the cut; `high`
     * starts at the first float after 1.0, which is above every p. */
    DsviVecInt low = {0}, high = low + 0x3F800001, count;
    DsviVec all = cpu_profile_mass_from(p, keys, dsvi_vec_all(0), &count), target = dsvi_vec_all(mass);
    for (int step = 0; step < 30; step++) {
        DsviVecInt middle = low + (high - low) / 2;
        DsviVecInt reached = cpu_profile_mass_from(p, keys, dsvi_vec_from_bits(middle), &count) >= target;
        low = (middle & reached) | (low & ~reached);
        high = (high & reached) | (middle & ~reached);
    }
    DsviVec smallest = dsvi_vec_from_bits(low),
            above = cpu_profile_mass_from(p, keys, dsvi_vec_from_bits(high), &count);
    for (int i = 0; i < DSVI_LANES; i++)
        out[i] = !(all[i] >= mass) ? keys
                 : mass <= 0       ? 0
                                   : count[i] + (int64_t)ceilf((mass - above[i]) / smallest[i]);
}

static void profile_block(const Profile *w, const Scratch *s, int64_t pair, int64_t block)
{
    const DsviProfileArgs *args = w->args;
    int64_t b = pair / args->heads, h = pair % args->heads, first = block * DSVI_SAMPLES;
    int64_t left = args->samples - first, count = left < DSVI_SAMPLES ? left : (int64_t)DSVI_SAMPLES;
    int64_t needed[DSVI_SAMPLES];
    cpu_profile_probabilities(w, s, b, h, args->sample + first, count);
    for (int64_t i = 0; i < count; i += DSVI_LANES)
        cpu_profile_keys_for_mass(s->p + i, args->keys, (float)args->mass, needed + i);
    for (int64_t i = 0; i < count; i++) {
        DsviList list = dsvi_list_of(args->lists, args->keys, b, h, args->sample[first + i]);
        int64_t length = dsvi_list_length(&list), at = pair * args->samples + first + i;
        double captured = 0;
        for (int64_t from = 0; from < length; from += DSVI_TILE_KEYS) {
            int32_t keys[DSVI_TILE_KEYS];
            int64_t to = from + DSVI_TILE_KEYS < length ? from + DSVI_TILE_KEYS : length;
            dsvi_tile_keys(&list, from, to, keys);
            for (int64_t j = 0; j < to - from; j++)
                captured += s->p[keys[j] * DSVI_SAMPLES + i];
        }
        args->captured[at] = (float)captured;
        args->share90[at] = (float)((double)needed[i] / (double)args->keys);
        args->listed[at] = (float)((double)length / (double)args->keys);
    }
}

static void profile_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Profile *w = context;
    for (int64_t n = begin; n < end; n++) {
        Scratch s;
        size_t before = w->floats * (size_t)dsvi_scratch_number(w->pieces, n, worker);
        profile_scratch_layout(w, (float *)w->args->workspace + before, &s);
        profile_block(w, &s, n / w->blocks, n % w->blocks);
    }
}

static DsvStatus cpu_profile(DsviStream *stream, const DsviProfileArgs *args)
{
    if (args->act != DSVI_F32 && args->act != DSVI_BF16)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "profile: this variant takes F32 and BF16, not %s",
                         dsvi_dtype_name(args->act));
    if (args->workspace_bytes < profile_workspace(stream, args))
        return DSVI_FAIL(DSV_E_SHAPE, "profile: workspace has %zu bytes, expected %zu", args->workspace_bytes,
                         profile_workspace(stream, args));
    Profile w = profile_setup(args);
    dsvi_parallel_for(w.pieces, 1, profile_range, &w);
    return DSV_OK;
}

void DSVI_SIMD(fill_profile)(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, profile, cpu_profile, profile_workspace, DSVI_SIMD_NAME);
}
