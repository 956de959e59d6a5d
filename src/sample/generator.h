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

/* Size, steps, sampler, guidance and dtype are those of `settings`; codec, config and table are kept. */
DsvStatus dsvi_generator_create(DsvBackend *backend, const DsvConfig *settings, const DsvCodec *codec,
                                const DsvDitConfig *config, const DsvParamTable *table,
                                DsvGenerator **out);
void dsvi_generator_free(DsvGenerator **generator);
void dsvi_generator_carve(DsvGenerator *generator, DsvArena *arena);
/* After binding. The weights may change from run to run; their compute copy is then the caller's to keep up
 * to date, with dsvi_generator_refresh or through another plan over the same weights. */
DsvStatus dsvi_generator_setup(DsvGenerator *generator, const DsvDitWeights *weights);
DsvStatus dsvi_generator_refresh(DsvGenerator *generator);

/* Its sparse layer, to be loaded or copied into; NULL when settings say sparse.enabled=false. */
DsvSparse *dsvi_generator_sparse(DsvGenerator *generator);

/* Samples one clip into an .mp4 file. text: host (text_len, text_dim) F32, or NULL: unconditional. video_path
 * NULL: the clip is another rank's to write, and this one takes part for its share of the weights. */
DsvStatus dsvi_generator_run(DsvGenerator *generator, uint64_t seed, const float *text,
                             const char *video_path, const DsvEvents *events);

#ifdef __cplusplus
}
#endif
#endif
