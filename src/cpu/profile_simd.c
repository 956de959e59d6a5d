/* The exact attention of sampled queries (ops/profile.h): sixteen queries at a time, a lane each.
 *
 * As in the truth, the keys for a share of the mass are counted without sorting, by halving the interval of
 * floats round the smallest p of the set; here for all lanes at once. */
#include <math.h>

#include "cpu/sampled_rows.h"
#include "cpu/simd_fill.h"
#include "cpu/simd_math.h"

typedef struct Profile {
    const DsvProfileArgs *args;
    int64_t blocks; /* of sixteen samples, per (batch, head) */
    int64_t pieces, width;
    size_t floats;  /* scratch of a piece of work */
} Profile;

/* Scratch of one piece of work. */
typedef struct Scratch {
    float *p;          /* (keys rounded up to a tile, 16) */
    float *transposed; /* (width, 16) */
    float *rows;       /* (KEYS, width) */
} Scratch;

/* Lays the pieces out from `base` on (NULL: only counts) and gives their floats. */
static size_t lay_scratch(const Profile *w, float *base, Scratch *s)
{
    size_t used = 0;
    s->p = dsvi_take_floats(base, &used, dsvi_round_up(w->args->keys, DSVI_TILE_KEYS) * DSVI_SAMPLES);
    s->transposed = dsvi_take_floats(base, &used, w->width * DSVI_SAMPLES);
    s->rows = dsvi_take_floats(base, &used, DSVI_TILE_KEYS * w->width);
    return used;
}

static Profile plan(const DsvProfileArgs *args)
{
    Scratch s;
    Profile w = {.args = args, .blocks = (args->samples + DSVI_SAMPLES - 1) / DSVI_SAMPLES,
                 .width = dsvi_round_up(args->head_dim, DSVI_LANES)};
    w.pieces = args->batch * args->heads * w.blocks;
    w.floats = lay_scratch(&w, NULL, &s);
    return w;
}

static size_t workspace(DsvStream *stream, const DsvProfileArgs *args)
{
    (void)stream;
    Profile w = plan(args);
    return w.floats * sizeof(float) * (size_t)dsvi_scratch_count(w.pieces);
}

/* Scores of all keys, then their softmax, down each lane. */
static void probabilities(const Profile *w, const Scratch *s, int64_t b, int64_t h, const int32_t *sample,
                          int64_t count)
{
    const DsvProfileArgs *args = w->args;
    dsvi_samples_load(args->act, &args->q, b, h, sample, count, args->head_dim, w->width, s->rows,
                      s->transposed);
    for (int64_t from = 0; from < args->keys; from += DSVI_TILE_KEYS) {
        int64_t left = args->keys - from, keys = left < DSVI_TILE_KEYS ? left : (int64_t)DSVI_TILE_KEYS;
        dsvi_samples_score(args->act, &args->k, b, h, from, keys, args->head_dim, w->width, s->transposed,
                           args->scale, s->rows, s->p + from * DSVI_SAMPLES);
    }
    for (int64_t i = 0; i < DSVI_SAMPLES; i += DSVI_LANES) {
        DsvVec largest = dsvi_vec_all(-INFINITY), total = dsvi_vec_all(0);
        for (int64_t at = i; at < args->keys * DSVI_SAMPLES; at += DSVI_SAMPLES)
            largest = dsvi_vec_max(largest, dsvi_vec_load(s->p + at));
        for (int64_t at = i; at < args->keys * DSVI_SAMPLES; at += DSVI_SAMPLES) {
            DsvVec p = dsvi_vec_exp(dsvi_vec_load(s->p + at) - largest);
            dsvi_vec_store(s->p + at, p);
            total += p;
        }
        for (int64_t at = i; at < args->keys * DSVI_SAMPLES; at += DSVI_SAMPLES)
            dsvi_vec_store(s->p + at, dsvi_vec_load(s->p + at) / total);
    }
}

/* Per lane: the sum of the p >= cut, and their number. */
static DsvVec mass_from(const float *p, int64_t keys, DsvVec cut, DsvVecInt *count)
{
    DsvVec sum = dsvi_vec_all(0);
    *count = (DsvVecInt){0};
    for (int64_t from = 0; from < keys; from += DSVI_TILE_KEYS) {
        DsvVec part = dsvi_vec_all(0); /* a tile at a time: rounds less */
        for (int64_t j = from; j < keys && j < from + DSVI_TILE_KEYS; j++) {
            DsvVec x = dsvi_vec_load(p + j * DSVI_SAMPLES);
            DsvVecInt counts = x >= cut; /* -1 where it does */
            part += dsvi_vec_from_bits(dsvi_vec_bits(x) & counts);
            *count -= counts;
        }
        sum += part;
    }
    return sum;
}

/* Per lane: the smallest number of keys whose p sum to `mass`. */
static void keys_for_mass(const float *p, int64_t keys, float mass, int64_t *out)
{
    /* Bits of 0, from where the mass is reached unless it never is, and of the float after 1. */
    DsvVecInt low = {0}, high = low + 0x3F800001, count;
    DsvVec all = mass_from(p, keys, dsvi_vec_all(0), &count), wanted = dsvi_vec_all(mass);
    for (int step = 0; step < 30; step++) {
        DsvVecInt middle = low + (high - low) / 2;
        DsvVecInt reached = mass_from(p, keys, dsvi_vec_from_bits(middle), &count) >= wanted;
        low = (middle & reached) | (low & ~reached);
        high = (high & reached) | (middle & ~reached);
    }
    DsvVec smallest = dsvi_vec_from_bits(low), above = mass_from(p, keys, dsvi_vec_from_bits(high), &count);
    for (int i = 0; i < DSVI_LANES; i++)
        out[i] = !(all[i] >= mass) ? keys
                 : mass <= 0       ? 0
                                   : count[i] + (int64_t)ceilf((mass - above[i]) / smallest[i]);
}

static void profile_block(const Profile *w, const Scratch *s, int64_t pair, int64_t block)
{
    const DsvProfileArgs *args = w->args;
    int64_t b = pair / args->heads, h = pair % args->heads, first = block * DSVI_SAMPLES;
    int64_t left = args->samples - first, count = left < DSVI_SAMPLES ? left : (int64_t)DSVI_SAMPLES;
    int64_t needed[DSVI_SAMPLES];
    probabilities(w, s, b, h, args->sample + first, count);
    for (int64_t i = 0; i < count; i += DSVI_LANES)
        keys_for_mass(s->p + i, args->keys, (float)args->mass, needed + i);
    for (int64_t i = 0; i < count; i++) {
        DsvList list = dsvi_list_of(args->lists, args->keys, b, h, args->sample[first + i]);
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
        lay_scratch(w, (float *)w->args->workspace + before, &s);
        profile_block(w, &s, n / w->blocks, n % w->blocks);
    }
}

static DsvStatus profile(DsvStream *stream, const DsvProfileArgs *args)
{
    if (args->act != DSV_F32 && args->act != DSV_BF16)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "profile: this variant takes F32 and BF16, not %s",
                         dsvi_dtype_name(args->act));
    if (args->workspace_bytes < workspace(stream, args))
        return DSVI_FAIL(DSV_E_SHAPE, "profile: workspace has %zu bytes, wanted %zu", args->workspace_bytes,
                         workspace(stream, args));
    Profile w = plan(args);
    dsvi_parallel_for(w.pieces, 1, profile_range, &w);
    return DSV_OK;
}

void DSVI_SIMD(fill_profile)(DsvOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, profile, profile, workspace, DSVI_SIMD_NAME);
}
