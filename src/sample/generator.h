/* A model prepared for sampling: `dsv sample` uses it with stored weights, and training with the weights in
 * training.
 *
 * A generator owns a transformer for one clip and its sparse layer. Device memory comes from the caller's
 * arenas; weights and codec are the caller's. */
#ifndef DSVI_GENERATOR_H
#define DSVI_GENERATOR_H

#include "base/arena.h"
#include "dsv/events.h"
#include "model/codec/codec.h"
#include "model/dit/dit.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviGenerator DsviGenerator;

/* Creates a generator. `settings` gives size, steps, sampler, guidance and dtype, and is copied. `codec`,
 * `table` and `cp` must outlive the generator. `cp`: ranks that sample a clip together, and all call
 * dsvi_generator_run; NULL: this rank alone. */
DsvStatus dsvi_generator_create(DsviBackend *backend, const DsvConfig *settings, const DsviCodec *codec,
                                const DsviDitConfig *config, const DsviParamTable *table, const DsviCp *cp,
                                DsviGenerator **out);
void dsvi_generator_free(DsviGenerator **generator);
/* Take device memory from an arena; to be called twice: while the arena only counts bytes, and when it is
 * bound to memory. dsvi_generator_carve takes what must persist; dsvi_generator_carve_run takes what a run
 * uses: this memory is free for other uses between runs. */
void dsvi_generator_carve(DsviGenerator *generator, DsviArena *arena);
void dsvi_generator_carve_run(DsviGenerator *generator, DsviArena *arena);
/* To be called once after the generator's arenas are bound to memory. The weights may change between runs;
 * the caller must then update the copy of the weights in the compute dtype, with dsvi_generator_refresh or
 * through another model with the same weights. */
DsvStatus dsvi_generator_setup(DsviGenerator *generator, const DsviDitWeights *weights);
DsvStatus dsvi_generator_refresh(DsviGenerator *generator);

/* Returns the sparse layer, so that its state can be loaded or copied; NULL if sparse.enabled is false. */
DsviSparse *dsvi_generator_sparse(DsviGenerator *generator);

/* Samples one clip. text: host array (text_len, text_dim) F32, or NULL for an unconditional sample. */
DsvStatus dsvi_generator_run(DsviGenerator *generator, uint64_t seed, const float *text,
                             const DsvEvents *events);
/* Returns the clip sampled last, a host array (3, T, H, W) F32 of `count` elements. The caller may change
 * it. */
float *dsvi_generator_pixels(DsviGenerator *generator, int64_t *count);
/* Writes the clip sampled last to a video file (video_writer.h). */
DsvStatus dsvi_generator_write(const DsviGenerator *generator, const char *video_path);

#ifdef __cplusplus
}
#endif
#endif
