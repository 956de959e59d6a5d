/* A model set up for sampling: used by `dsv sample` on stored weights and by training on its own.
 *
 * It owns a plan of the transformer for one clip, its sparse layer and the buffers of the sampling loop,
 * carved from the caller's arena; weights and codec are the caller's. */
#ifndef DSVI_GENERATOR_H
#define DSVI_GENERATOR_H

#include "base/arena.h"
#include "dsv/events.h"
#include "model/codec.h"
#include "model/dit.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvGenerator DsvGenerator;

/* Size, steps, sampler, guidance and dtype are those of `settings`; codec, config, table and context are
 * kept. `context`: the ranks that sample a clip together and all run the generator; NULL: this one alone. */
DsvStatus dsvi_generator_create(DsvBackend *backend, const DsvConfig *settings, const DsvCodec *codec,
                                const DsvDitConfig *config, const DsvParamTable *table,
                                const DsvContext *context, DsvGenerator **out);
void dsvi_generator_free(DsvGenerator **generator);
/* What lasts; what a run uses, and is free for anything between runs. */
void dsvi_generator_carve(DsvGenerator *generator, DsvArena *arena);
void dsvi_generator_carve_run(DsvGenerator *generator, DsvArena *arena);
/* After binding. The weights may change from run to run; their compute copy is then the caller's to keep up
 * to date, with dsvi_generator_refresh or through another plan over the same weights. */
DsvStatus dsvi_generator_setup(DsvGenerator *generator, const DsvDitWeights *weights);
DsvStatus dsvi_generator_refresh(DsvGenerator *generator);

/* Its sparse layer, to be loaded or copied into; NULL when there is nothing to load. */
DsvSparse *dsvi_generator_sparse(DsvGenerator *generator);

/* Samples one clip. text: host (text_len, text_dim) F32, or NULL: unconditional. */
DsvStatus dsvi_generator_run(DsvGenerator *generator, uint64_t seed, const float *text,
                             const DsvEvents *events);
/* The clip that was sampled last, (3, T, H, W): `count` numbers of host memory. It may be replaced. */
float *dsvi_generator_pixels(DsvGenerator *generator, int64_t *count);
/* What lies there to an .mp4 file. */
DsvStatus dsvi_generator_write(const DsvGenerator *generator, const char *video_path);

#ifdef __cplusplus
}
#endif
#endif
