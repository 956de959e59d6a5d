/* Counter-based random numbers: Philox 4x32-10 (Salmon et al., SC'11).
 *
 * The generator has no state. A number is a function of (seed, purpose, stream, index). A run that resumes,
 * or that is divided among ranks, therefore draws the same numbers, and a checkpoint stores only the step. */
#ifndef DSVI_RNG_H
#define DSVI_RNG_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a random number is drawn for. Different purposes have independent numbers. Old checkpoints resume
 * bit-exactly only if these values stay: add new ones at the end, never renumber. */
typedef enum DsviRngPurpose {
    DSVI_RNG_INIT,     /* initial weights */
    DSVI_RNG_NOISE,    /* diffusion noise */
    DSVI_RNG_TIMESTEP, /* flow-matching times */
    DSVI_RNG_DATA,     /* choice of clip, window and crop */
    DSVI_RNG_TEXT,     /* dropping of text conditioning */
    DSVI_RNG_EXPLORE,  /* spans of keys that exploration adds to key lists at random */
    DSVI_RNG_PROFILE,  /* choice of the queries whose exact attention is measured */
    DSVI_RNG_TEST,     /* data of tests and benchmarks */
    DSVI_RNG_SAMPLE,   /* noise from which sampling starts */
    DSVI_RNG_HELD_OUT, /* diffusion noise of held-out windows */
    DSVI_RNG_ROUNDING, /* rounding of the optimizer's state to BF16 */
    DSVI_RNG_DROPOUT   /* inputs of a LoRA that are dropped */
} DsviRngPurpose;

typedef struct DsviRng {
    uint64_t seed;
    uint32_t purpose; /* DsviRngPurpose */
    uint32_t stream;  /* chosen by the caller: a step, the number of a tensor, ... */
} DsviRng;

/* Writes the four random 32-bit words with number `index`. */
void dsvi_rng_words(DsviRng rng, uint64_t index, uint32_t out[4]);
/* Returns a uniform number in [0, 1) with 53 random bits. */
double dsvi_rng_uniform(DsviRng rng, uint64_t index);
/* Returns a uniform integer in [0, n), n >= 1. */
uint64_t dsvi_rng_below(DsviRng rng, uint64_t index, uint64_t n);
/* Returns a standard normal number, by Box-Muller in double precision. */
double dsvi_rng_normal(DsviRng rng, uint64_t index);
/* dst[i] = dsvi_rng_normal(rng, first_index + i) as F32, 0 <= i < n. Multithreaded; the values do not depend
 * on how a range is split into calls. */
void dsvi_rng_fill_normal(DsviRng rng, uint64_t first_index, float *dst, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
