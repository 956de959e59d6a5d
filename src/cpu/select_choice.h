/* Chooses the spans of one list, as bits: the winners among the estimates of a group, and the spans that
 * exploration adds (ops/select.h). Bit r % 64 of word r / 64 stands for span r. */
#ifndef DSVI_SELECT_CHOICE_H
#define DSVI_SELECT_CHOICE_H

#include "base/rng.h"
#include "ops/select.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_CHOICE_WORD = 64 }; /* bits of a word */

/* Returns the number of words that hold one bit for each of `n` spans or units. */
static inline int64_t dsvi_choose_words(int64_t n)
{
    return (n + DSVI_CHOICE_WORD - 1) / DSVI_CHOICE_WORD;
}

/* Returns the largest number of units among which exploration draws for a list. A unit is a span or a block
 * of 64 keys. With a large grain there are more blocks than spans. */
static inline int64_t dsvi_explore_units_max(const DsviSelectArgs *args)
{
    int64_t blocks = (args->keys + DSVI_EXPLORE_BLOCK - 1) / DSVI_EXPLORE_BLOCK,
            spans = dsvi_select_spans(args);
    return blocks > spans ? blocks : spans;
}

/* Returns the float with these bits. The bits of non-negative floats order like the floats. */
static inline float dsvi_float_of_bits(int32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline int64_t dsvi_choose_count(const float *estimate, int64_t spans, float cut)
{
    int32_t count = 0;
    for (int64_t r = 0; r < spans; r++)
        count += estimate[r] >= cut;
    return count;
}

/* Returns the k-th largest estimate, 1 <= k <= spans, by bisection over the bits of floats. */
static inline float dsvi_kth_largest(const float *estimate, int64_t spans, int64_t k)
{
    int32_t low = 0, high = 0x7F800000; /* at least k estimates are >= low, fewer than k are >= high */
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (dsvi_choose_count(estimate, spans, dsvi_float_of_bits(middle)) >= k)
            low = middle;
        else
            high = middle;
    }
    return dsvi_float_of_bits(low);
}

/* Sets the bits of the spans whose estimate is above `cut`, and of the first `equal` spans whose estimate
 * equals `cut`. */
static inline void dsvi_choose_from(const float *estimate, int64_t spans, float cut, int64_t equal,
                                    uint64_t *chosen)
{
    for (int64_t first = 0; first < spans; first += DSVI_CHOICE_WORD) {
        uint64_t word = 0, ties = 0;
        int64_t count = spans - first < DSVI_CHOICE_WORD ? spans - first : (int64_t)DSVI_CHOICE_WORD;
        for (int64_t i = 0; i < count; i++) {
            word |= (uint64_t)(estimate[first + i] > cut) << i;
            ties |= (uint64_t)(estimate[first + i] == cut) << i;
        }
        for (; ties && equal > 0; ties &= ties - 1, equal--)
            word |= ties & -ties;
        chosen[first / DSVI_CHOICE_WORD] = word;
    }
}

/* Marks the winners of a list of head h, and no other spans. */
static inline void dsvi_choose_winners(const DsviSelectArgs *args, int64_t h, const float *estimate,
                                       uint64_t *chosen)
{
    int64_t spans = dsvi_select_spans(args), best = 0, k;
    float cut = args->topk ? 0 : args->threshold[h];
    for (int64_t r = 1; r < spans; r++)
        best = estimate[r] > estimate[best] ? r : best;
    if (args->topk) {
        k = args->topk[h] < 1 ? 1 : args->topk[h] > spans ? spans : args->topk[h];
        cut = dsvi_kth_largest(estimate, spans, k);
        int64_t above = dsvi_choose_count(estimate, spans, nextafterf(cut, INFINITY));
        dsvi_choose_from(estimate, spans, cut, k - above, chosen);
    } else {
        dsvi_choose_from(estimate, spans, cut, spans, chosen);
    }
    chosen[best / DSVI_CHOICE_WORD] |= (uint64_t)1 << best % DSVI_CHOICE_WORD;
}

/* Sets bit i % 64 of draws[i / 64] if unit i (a span or a block of keys) is explored. `n` is the number
 * of the list among the lists of all ranks; ops/select.h (at dsvi_explore_limit) defines the random
 * numbers. */
static inline void dsvi_explore_draw(const DsviSelectArgs *args, int64_t n, int64_t units, uint64_t *draws)
{
    DsviRng rng = {args->explore_seed, DSVI_RNG_EXPLORE, (uint32_t)args->explore_step};
    uint64_t limit = dsvi_explore_limit(args->explore_rate);
    int64_t quads = (units + 3) / 4;
    memset(draws, 0, (size_t)dsvi_choose_words(units) * sizeof *draws);
    for (int64_t u = 0; u < quads; u++) {
        uint32_t words[4];
        dsvi_rng_words(rng, (uint64_t)(n * quads + u), words);
        for (int64_t i = 0; i < 4 && 4 * u + i < units; i++)
            draws[4 * u / DSVI_CHOICE_WORD] |= (uint64_t)(words[i] < limit) << (4 * u + i) % DSVI_CHOICE_WORD;
    }
}

/* Marks the spans that exploration adds to list n, whose winners are marked. `draws` is scratch of
 * dsvi_choose_words(dsvi_explore_units_max(args)) words. */
static inline void dsvi_choose_explored(const DsviSelectArgs *args, int64_t n, uint64_t *draws,
                                        uint64_t *chosen)
{
    int64_t number = dsvi_select_number(args, n), spans = dsvi_select_spans(args);
    if (args->explore == DSVI_EXPLORE_NONE)
        return;
    if (args->explore == DSVI_EXPLORE_BLOCKS) {
        dsvi_explore_draw(args, number, (args->keys + DSVI_EXPLORE_BLOCK - 1) / DSVI_EXPLORE_BLOCK, draws);
        for (int64_t r = 0; r < spans; r++) {
            int64_t block = r * args->grain / DSVI_EXPLORE_BLOCK;
            chosen[r / DSVI_CHOICE_WORD] |= (draws[block / DSVI_CHOICE_WORD] >> block % DSVI_CHOICE_WORD & 1)
                                            << r % DSVI_CHOICE_WORD;
        }
        return;
    }
    dsvi_explore_draw(args, number, spans, draws);
    uint64_t before = 0; /* bits of the spans in the previous word that were chosen before exploration */
    for (int64_t w = 0; w < dsvi_choose_words(spans); w++) {
        uint64_t here = chosen[w], after = w + 1 < dsvi_choose_words(spans) ? chosen[w + 1] : 0;
        uint64_t adjacent = here << 1 | before >> (DSVI_CHOICE_WORD - 1) | here >> 1 |
                            after << (DSVI_CHOICE_WORD - 1);
        chosen[w] |= args->explore == DSVI_EXPLORE_NEIGHBOURS ? draws[w] & adjacent : draws[w];
        before = here;
    }
}

#ifdef __cplusplus
}
#endif
#endif
