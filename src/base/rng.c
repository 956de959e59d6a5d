/* Implements rng.h: numbers and fills from the words of Philox. */
#include "base/rng.h"

#include <math.h>
#include <string.h>

#include "base/philox.h"
#include "base/threads.h"

enum { FILL_PIECE = 8192 }; /* numbers that a thread draws at a time */

void dsvi_rng_words(DsviRng rng, uint64_t index, uint32_t out[4])
{
    DsviPhiloxWords words = dsvi_philox(rng, index);
    memcpy(out, words.word, sizeof words.word);
}

static double unit_from(uint32_t high, uint32_t low)
{
    return (double)((((uint64_t)high << 32) | low) >> 11) * 0x1p-53;
}

double dsvi_rng_uniform(DsviRng rng, uint64_t index)
{
    uint32_t words[4];
    dsvi_rng_words(rng, index, words);
    return unit_from(words[0], words[1]);
}

uint64_t dsvi_rng_below(DsviRng rng, uint64_t index, uint64_t n)
{
    uint32_t words[4];
    dsvi_rng_words(rng, index, words);
    uint64_t word = ((uint64_t)words[0] << 32) | words[1];
    return (uint64_t)(((unsigned __int128)word * n) >> 64);
}

/* Computes the normal numbers with indices 2 * block and 2 * block + 1 from one set of four words. */
static void normal_pair(DsviRng rng, uint64_t block, double pair[2])
{
    uint32_t words[4];
    dsvi_rng_words(rng, block, words);
    double radius = sqrt(-2.0 * log(1.0 - unit_from(words[0], words[1])));
    double angle = 6.283185307179586476925 * unit_from(words[2], words[3]);
    pair[0] = radius * cos(angle);
    pair[1] = radius * sin(angle);
}

double dsvi_rng_normal(DsviRng rng, uint64_t index)
{
    double pair[2];
    normal_pair(rng, index / 2, pair);
    return pair[index % 2];
}

typedef struct NormalFill {
    DsviRng rng;
    uint64_t first_index;
    float *dst;
} NormalFill;

static void fill_normal(void *context, int64_t begin, int64_t end, int worker)
{
    const NormalFill *f = context;
    double pair[2] = {0, 0};
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        uint64_t index = f->first_index + (uint64_t)i;
        if (i == begin || index % 2 == 0)
            normal_pair(f->rng, index / 2, pair);
        f->dst[i] = (float)pair[index % 2];
    }
}

void dsvi_rng_fill_normal(DsviRng rng, uint64_t first_index, float *dst, int64_t n)
{
    NormalFill f = {rng, first_index, dst};
    dsvi_parallel_for(n, FILL_PIECE, fill_normal, &f);
}
