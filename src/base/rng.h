/* Counter-based random numbers: Philox 4x32-10 (Salmon et al., SC'11).
 *
 * There is no generator state. A number is a function of (seed, purpose, index), so a run that stops
 * and resumes, or is spread over ranks, draws the same numbers without saving anything but the step. */
#ifndef DSVI_RNG_H
#define DSVI_RNG_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Separate streams: two purposes never share a number. The values are part of what makes an old
 * checkpoint resume bit-exactly: add at the end, never renumber. */
typedef enum DsvRngPurpose {
    DSV_RNG_INIT,     /* initial weights */
    DSV_RNG_NOISE,    /* diffusion noise */
    DSV_RNG_TIMESTEP, /* flow-matching times */
    DSV_RNG_DATA,     /* which clip, where in it, which crop */
    DSV_RNG_TEXT,     /* dropping of text conditioning */
    DSV_RNG_EXPLORE,  /* exploration keys of sparse lists */
    DSV_RNG_PROFILE,  /* which queries are profiled */
    DSV_RNG_TEST,
    DSV_RNG_SAMPLE,   /* the noise that sampling starts from */
    DSV_RNG_HELD_OUT  /* diffusion noise of held-out windows */
} DsvRngPurpose;

typedef struct DsvRng {
    uint64_t seed;
    uint32_t purpose; /* DsvRngPurpose */
    uint32_t stream;  /* free: a step, a tensor number, ... */
} DsvRng;

/* Four 32-bit words for `index`. */
void dsvi_rng_words(DsvRng rng, uint64_t index, uint32_t out[4]);
/* Uniform in [0, 1), 53 bits. */
double dsvi_rng_uniform(DsvRng rng, uint64_t index);
/* Uniform integer in [0, n), n >= 1. */
uint64_t dsvi_rng_below(DsvRng rng, uint64_t index, uint64_t n);
/* Standard normal, Box-Muller in double. */
double dsvi_rng_normal(DsvRng rng, uint64_t index);
/* dst[i] = normal number (first_index + i), i in [0, n): the same values however the range is split. */
void dsvi_rng_fill_normal(DsvRng rng, uint64_t first_index, float *dst, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
