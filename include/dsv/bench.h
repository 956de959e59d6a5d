/* Measuring. Both calls write their figures as one JSON object to `json_path` (NULL: nowhere) and hand
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

typedef struct DsvBenchAttention {
    int64_t tokens, heads, head_dim; /* 0: 8192, 4, 64, or those of heads_from */
    int64_t group, grain, repeats;
    double density;           /* of the lists */
    const char *dtype;        /* "bf16" or "f32" */
    const char *selector;     /* "projection" or "pooled" */
    const char *heads_from;   /* safetensors with q, k, v (heads, tokens, head_dim), or NULL: random. Of more
                               * heads the first come again; more tokens, a multiple, are the clip again */
    double target_mass;       /* > 0: the lists hold this share of the estimated mass instead */
} DsvBenchAttention;

void dsv_bench_attention_defaults(DsvBenchAttention *bench);

/* dense_fwd_ms, dense_bwd_ms, select_ms, select_plain_ms, sparse_fwd_ms, sparse_bwd_ms, density,
 * captured_mass, variant, threads and the settings. select_ms is the mean over a training run's steps,
 * what measures lists and renews projections included; select_plain_ms is that of steps which only make
 * lists. config gives device, isa and threads. */
DsvStatus dsv_bench_attention(const DsvBenchAttention *bench, const DsvConfig *config,
                              const char *json_path, DsvLine *line, void *context);

/* One training step of the model config describes, on random latents: step_ms, forward_ms, backward_ms,
 * optimizer_ms, tokens, model_tflops of one device, and the share of the time in each kind of op; exposed_ms
 * and exposed_share: of it what several ranks exchange and nothing is computed beside. All of `ranks` (NULL:
 * this process alone) call; rank 0 tells: all tokens that a step trains on, its own times. */
DsvStatus dsv_bench_step(DsvRanks *ranks, const DsvConfig *config, const char *json_path, DsvLine *line,
                         void *context);

#ifdef __cplusplus
}
#endif
#endif
