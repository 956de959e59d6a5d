/** @file
 * Benchmarks. Each call reports its figures as a table, line by line, and writes them as one JSON object.
 * Times are in milliseconds and medians over repetitions after a warm-up. */
#ifndef DSV_BENCH_H
#define DSV_BENCH_H

#include "dsv/config.h"
#include "dsv/ranks.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Receives one line of a report, without a newline. The text is valid during the callback only. */
typedef void DsvLine(void *context, const char *text);

/** The heads and key lists (which keys a query attends to) of a benchmark of attention. The strings must stay
 * valid during the call. */
typedef struct DsvBenchLists {
    int64_t tokens;   /**< tokens of the sequence; 0: 8192, or as in the file `heads_from` */
    int64_t heads;    /**< attention heads; 0: 4, or as in the file `heads_from` */
    int64_t head_dim; /**< elements of a head; 0: 64, or as in the file `heads_from` */
    int64_t group;    /**< consecutive queries that share a key list; 0: those of sparse.group */
    int64_t grain;    /**< consecutive keys of one entry of a key list; 0: those of sparse.grain */
    int64_t repeats;  /**< how often each part of the benchmark is timed */
    /** Mean fraction of all keys in a key list; one threshold serves all heads. 0: as in training,
     * sparse.target_density, or sparse.min_keys divided by the number of tokens if that is more. */
    double density;
    const char *dtype; /**< dtype of queries, keys and values: "bf16" or "f32" */
    /** What chooses the keys of a list: "projection", "pooled" or "window"; NULL: that of sparse.selector. */
    const char *selector;
    /** Safetensors file with the tensors q, k and v, each (heads, tokens, head_dim); NULL: random tensors. If
     * `heads` is larger than in the file, the file's heads are repeated; if `tokens` is a multiple of the
     * file's tokens, they are repeated too. */
    const char *heads_from;
} DsvBenchLists;

/** What dsv_bench_attention() measures. */
typedef struct DsvBenchAttention {
    DsvBenchLists lists; /**< heads and lists */
    /** If above 0: each key list holds as many keys as have this fraction of the estimated attention
     * (softmax) weights, and lists.density is ignored. */
    double target_mass;
} DsvBenchAttention;

/** Sets the default heads and lists.
 * @param bench overwritten */
void dsv_bench_attention_defaults(DsvBenchAttention *bench);

/** Times dense attention, the selection of key lists, and attention over these lists, forward and backward,
 * on one device.
 *
 * Figures: dense_fwd_ms, dense_bwd_ms, select_ms, select_plain_ms, sparse_fwd_ms, sparse_bwd_ms, density,
 * captured_mass, output_error, list_error, speedup, dense_fwd_gflops, dense_bwd_gflops, sparse_fwd_gflops,
 * sparse_bwd_gflops, the variants of the kernels, threads and the options of the lists.
 *   - select_ms is the time of selection, as the mean over the steps of a training run, including the steps
 *     that measure the lists or update the selector's projections; select_plain_ms is the time of selection
 *     in a step that only makes lists.
 *   - density is the mean fraction of all keys that a list holds, captured_mass the fraction of the exact
 *     attention weights that falls on listed keys.
 *   - output_error is the relative error of attention's output over lists and tail (sparse.tail) against
 *     exact attention, on sampled queries, mean over heads; list_error is the same without the tail.
 *   - speedup is the time of dense attention divided by the time of selection and attention over lists,
 *     forward and backward together.
 *   - The figures in GFLOP/s count, for each pair of a query and a key and each element of a head, 4 FLOPs
 *     forward and 10 backward; over lists only the listed keys count.
 *
 * @param bench     what is measured
 * @param config    device, isa, threads, memory_gib, seed and the sparse options
 * @param json_path the figures as one JSON object; NULL: nowhere
 * @param line      receives the table; may be NULL
 * @param context   handed to `line`
 * @return DSV_E_USAGE for an impossible number; DSV_E_NOT_FOUND, DSV_E_FORMAT and DSV_E_SHAPE for
 *     `heads_from`; DSV_E_NO_MEMORY; DSV_E_DEVICE; DSV_E_IO */
DsvStatus dsv_bench_attention(const DsvBenchAttention *bench, const DsvConfig *config, const char *json_path,
                              DsvLine *line, void *context);

/** What dsv_bench_context() measures. */
typedef struct DsvBenchContext {
    DsvBenchLists lists; /**< heads and lists */
    /** Replaces lists.density: for one head after the other, the fraction of keys that no list of the head
     * holds. A list such as "0.82*4,0.9..0.98*12", where .. interpolates evenly, or a JSON file with an
     * array of numbers; NULL: lists.density holds. */
    const char *head_sparsity;
    bool transfers_only; /**< measures only the exchanges between ranks that divide tokens, not
                            attention */
} DsvBenchContext;

/** Sets the default heads and lists.
 * @param bench overwritten */
void dsv_bench_context_defaults(DsvBenchContext *bench);

/** Times attention over lists on ranks that share a clip (context parallelism), by each way of dividing it:
 *
 * | name | ranks divide | and exchange |
 * |---|---|---|
 * | `naive_heads` | heads, in order and in equal numbers | tokens for heads |
 * | `naive_keys` | tokens | all keys and values, gathered once for both passes |
 * | `heads` | heads, by how dense their lists are | tokens for heads |
 * | `keys` | tokens | listed keys, as often as a run fetches them |
 * | `planned` | as a run would plan it from costs measured | as planned |
 *
 * For each way it reports times of the slowest rank: of the forward and the backward pass with key lists that
 * are already made, of the attention inside these passes, of the exchanges that do not overlap with
 * attention, and of the selection of lists. Figures that end in `_off` are the deviation of the way's results
 * from those of `naive_keys`. Figures that end in `_uneven`, for ways that divide heads, are the attention
 * work of the busiest rank divided by the mean over ranks. named_share is the fraction of the other ranks'
 * keys that occurs in at least one key list of a rank.
 *
 * For ranks that divide tokens, the times of these exchanges are also measured alone. Each has a figure that
 * ends in `_ms`, and one in `_mib`, the MiB sent by the rank that sends most:
 *
 * | name | what ranks send to each other |
 * |---|---|
 * | `gather` | all keys and values |
 * | `all_home` | the gradients of all keys and values, to the ranks that own the keys |
 * | `mark` | which keys their lists name |
 * | `fetch` | the listed keys and their values |
 * | `home` | the gradients of the listed keys and values, to the ranks that own the keys |
 *
 * @param ranks     all of them call; rank 0 reports and writes
 * @param bench     what is measured
 * @param config    device, isa, threads, memory_gib, seed, cp_room and the sparse options
 * @param json_path the figures as one JSON object; NULL: nowhere
 * @param line      receives the table; may be NULL
 * @param context   handed to `line`
 * @return as dsv_bench_attention(); DSV_E_RANK */
DsvStatus dsv_bench_context(DsvRanks *ranks, const DsvBenchContext *bench, const DsvConfig *config,
                            const char *json_path, DsvLine *line, void *context);

/** What dsv_bench_part() measures. */
typedef struct DsvBenchPart {
    const char *path; /**< a VAE or a text encoder of a published model: its folder or its safetensors file */
    int64_t rows;     /**< text encoder: ids of a prompt */
    int64_t prompts;  /**< text encoder: prompts that are encoded together */
    int64_t repeats;  /**< how often each pass is timed; 0: 3 times */
} DsvBenchPart;

/** Times one part of a published model alone, on random inputs, after one pass to warm up.
 *
 * Figures of a VAE, for a video of num_frames, height and width: encode_ms, decode_ms, and the device memory
 * encode_mib and decode_mib, each with only that half loaded. Figures of a text encoder: text_ms of all
 * prompts together, prompt_ms of each, and the device memory text_mib. Times include copies to and from the
 * device; loading does not count.
 *
 * @param bench     what is measured
 * @param config    size of the video, mixed_precision, memory_gib, device and threads
 * @param json_path the figures as one JSON object; NULL: nowhere
 * @param line      receives the table; may be NULL
 * @param context   handed to `line`
 * @return DSV_E_USAGE for an impossible number; DSV_E_NOT_FOUND, DSV_E_FORMAT, DSV_E_SHAPE and
 *     DSV_E_UNSUPPORTED for the part; DSV_E_NO_MEMORY; DSV_E_DEVICE; DSV_E_IO */
DsvStatus dsv_bench_part(const DsvBenchPart *bench, const DsvConfig *config, const char *json_path,
                         DsvLine *line, void *context);

/** What dsv_bench_step() measures. */
typedef struct DsvBenchStep {
    /** Densities of the key lists (fractions of all keys). They replace the densities that the guard and the
     * target options of sparse attention choose: a number for all lists, or a JSON file with an array
     * that holds, for each block, a density, an array with one density for each head, or null for a block
     * that attends densely. If heads of a block differ, all lists of a head have the same number of keys;
     * otherwise one threshold serves all heads. NULL: the guard decides, as in training. */
    const char *densities;
    int64_t repeats; /**< steps that are measured, after two to warm up; 0: 3 to 7, as many as take 15 s */
} DsvBenchStep;

/** Times one training step of the model that `config` describes, on random latents.
 *
 * Figures: step_ms, forward_ms, backward_ms, optimizer_ms, tokens (of all ranks), model_tflops (TFLOP/s of
 * one device), the fraction of the time in each kind of op, exposed_ms and exposed_share (the part of a step
 * in which ranks exchange data and compute nothing), density (mean over blocks of the density of key lists; 1
 * for a block that attends densely) and sparse_blocks (blocks that attend over lists). Times are those of
 * rank 0.
 *
 * @param ranks     all of them call; rank 0 reports and writes. NULL: this process alone.
 * @param bench     what is measured
 * @param config    the model, the clip and the device
 * @param json_path the figures as one JSON object; NULL: nowhere
 * @param line      receives the table; may be NULL
 * @param context   handed to `line`
 * @return DSV_E_USAGE, also if the memory reserved for key lists was too small; DSV_E_NO_MEMORY; DSV_E_RANK;
 *     DSV_E_DEVICE; DSV_E_IO */
DsvStatus dsv_bench_step(DsvRanks *ranks, const DsvBenchStep *bench, const DsvConfig *config,
                         const char *json_path, DsvLine *line, void *context);

#ifdef __cplusplus
}
#endif
#endif
