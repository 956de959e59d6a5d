/* Measuring. All calls write their figures as one JSON object to `json_path` (NULL: nowhere) and hand
 * a readable table to `line`. Times are medians over repetitions after a warm-up. */
#ifndef DSV_BENCH_H
#define DSV_BENCH_H

#include "dsv/config.h"
#include "dsv/ranks.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void DsvLine(void *context, const char *text);

/* Heads and their lists, of benchmarks of attention. */
typedef struct DsvBenchLists {
    int64_t tokens, heads, head_dim; /* 0: 8192, 4, 64, or those of heads_from */
    int64_t group, grain, repeats;
    double density;           /* of the lists; one threshold serves all heads */
    const char *dtype;        /* "bf16" or "f32" */
    const char *selector;     /* "projection" or "pooled" */
    const char *heads_from;   /* safetensors with q, k, v (heads, tokens, head_dim), or NULL: random. Of more
                               * heads the first come again; more tokens, a multiple, are the clip again */
} DsvBenchLists;

typedef struct DsvBenchAttention {
    DsvBenchLists lists;
    double target_mass;       /* > 0: the lists hold this share of the estimated mass instead of a density */
} DsvBenchAttention;

void dsv_bench_attention_defaults(DsvBenchAttention *bench);

/* dense_fwd_ms, dense_bwd_ms, select_ms, select_plain_ms, sparse_fwd_ms, sparse_bwd_ms, density,
 * captured_mass, variant, threads and the settings. select_ms is the mean over a training run's steps,
 * what measures lists and renews projections included; select_plain_ms is that of steps which only make
 * lists. config gives device, isa and threads. */
DsvStatus dsv_bench_attention(const DsvBenchAttention *bench, const DsvConfig *config,
                              const char *json_path, DsvLine *line, void *context);

typedef struct DsvBenchContext {
    DsvBenchLists lists;
    const char *head_sparsity; /* instead of a density, or NULL: the share of keys that no list of a head has,
                                * for one head after the other: a list as "0.82*4,0.9..0.98*12", where .. goes
                                * evenly from one to the other, or a JSON file with an array of numbers */
    bool transfers_only;      /* what travels between ranks that divide tokens, and no attention */
} DsvBenchContext;

void dsv_bench_context_defaults(DsvBenchContext *bench);

/* Attention over lists of ranks that share a clip, all of `ranks`, by every choice side by side:
 *     naive_heads  heads divided in order, in equal numbers
 *     naive_keys   tokens divided; all keys and values gathered, once for the forward and the backward pass
 *     heads        heads divided by how dense their lists are
 *     keys         tokens divided; keys that lists name fetched, as often as a run does
 *     planned      as a run would plan it, from costs that are measured here
 * Of each, of the slowest rank: the forward and the backward pass over lists that are there, attention in
 * them, what transfers add where attention does not hide them, and making the lists; _off tells how far
 * results are from those of naive_keys. _uneven is the share of attention of the busiest rank
 * over an even share, where heads are divided. named_share is the share of the others' keys that some list of
 * a rank names; gather, all_home and mark, fetch, home what travels where tokens are divided, without
 * attention: all keys and their gradients, and those that lists name, both forward and back once.
 * All ranks call; rank 0 tells. config gives device, isa, threads and cp_room. */
DsvStatus dsv_bench_context(DsvRanks *ranks, const DsvBenchContext *bench, const DsvConfig *config,
                            const char *json_path, DsvLine *line, void *context);

typedef struct DsvBenchStep {
    const char *densities; /* instead of what the guard and targets would say, or NULL: of all lists; or a
                            * JSON file: an array with a density for each block, or an array of those of its
                            * heads, or null where it attends densely. Where heads of a block differ all lists
                            * of a head have one number of keys; else one threshold serves all heads */
    int64_t repeats;       /* steps measured, after two to warm up; 0: 3 to 7, as many as 15 s allow */
} DsvBenchStep;

/* One training step of the model config describes, on random latents: step_ms, forward_ms, backward_ms,
 * optimizer_ms, tokens, model_tflops of one device, and the share of the time in each kind of op; exposed_ms
 * and exposed_share: of it what several ranks exchange and nothing is computed beside. All of `ranks` (NULL:
 * this process alone) call; rank 0 tells: all tokens that a step trains on, its own times. */
DsvStatus dsv_bench_step(DsvRanks *ranks, const DsvBenchStep *bench, const DsvConfig *config,
                         const char *json_path, DsvLine *line, void *context);

#ifdef __cplusplus
}
#endif
#endif
