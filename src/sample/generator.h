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
#include "sample/sparse_use.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviGenerator DsviGenerator;

/* What a generator is made of. All but `settings` and `config` must outlive the generator; these two are
 * copied. */
typedef struct DsviGeneratorArgs {
    DsviBackend *backend;
    const DsvConfig *settings; /* size, steps, sampler, guidance and dtype */
    const DsviCodec *codec;    /* without a function `decode`, only dsvi_generator_latent may be called */
    const DsviDitConfig *config;
    const DsviParamTable *table;
    const DsviLoraParams *lora; /* a LoRA beside the weights; NULL: none */
    const DsviCp
        *cp; /* ranks that sample a clip together, and all call the generator; NULL: this rank alone */
    bool sparse_learns; /* with sparse.enabled: blocks of each clip begin dense and become sparse by what is
                         * measured while the clip is sampled, for published models. false: blocks are sparse
                         * or dense as the state of dsvi_generator_sparse says */
    const char *sparse_path; /* with sparse_learns: each clip begins with the sparse state of this file;
                              * NULL: with nothing */
    DsviSparseLog *log;      /* receives the guard's decisions, and why a loaded sparse state is not used; or
                              * NULL */
    void *log_context;       /* stays valid as long as the generator */
    /* Two experts: as DsviSampleJob (sample_loop.h). use_expert NULL: one model */
    DsvStatus (*use_expert)(void *context, int expert);
    void *expert_context;
    double boundary;   /* timestep, 0 to 1000 */
    bool image;        /* the model takes channels of a picture beside those of the latent, as
                        * DsviGeneratorClip.image holds them */
    int64_t image_len; /* rows of an image that the model attends beside the text, as
                        * DsviGeneratorClip.image_rows holds them; 0: it takes none */
    bool given_first;  /* the clip's first latent frame is given, as DsviGeneratorClip.first_frame */
    bool guided_batch; /* guided steps evaluate the model in one pass over a batch of two, which takes more
                        * memory than two passes; all clips must then be guided */
} DsviGeneratorArgs;

DsvStatus dsvi_generator_create(const DsviGeneratorArgs *args, DsviGenerator **out);
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

/* With DsviGeneratorArgs.sparse_learns: returns how the blocks of the clip that was sampled last attended.
 * NULL otherwise. */
const DsviSparseUse *dsvi_generator_sparse_use(const DsviGenerator *generator);

/* The inputs of one clip. */
typedef struct DsviGeneratorClip {
    uint64_t seed;
    const float *noise;       /* host, shaped like the latent; NULL: drawn from the seed */
    const float *text;        /* host (text_len, text_dim), or NULL for an unconditional sample */
    const float *image;       /* with DsviGeneratorArgs.image: host (channels beside the latent's, F, H, W) */
    const float *image_rows;  /* with image_len: host (image_len, image_dim) */
    const float *first_frame; /* with DsviGeneratorArgs.given_first: host (C, 1, H, W), the first frame of
                               * the latent */
    const float *negative;    /* host (text_len, text_dim): text to steer away from; NULL: rows of zeros */
    int64_t before, after;    /* clips sampled before and after this one, for the progress report */
} DsviGeneratorClip;

/* Samples and decodes one clip. */
DsvStatus dsvi_generator_run(DsviGenerator *generator, const DsviGeneratorClip *clip,
                             const DsvEvents *events);
/* Samples the latent of one clip, host F32, and does not decode it. */
DsvStatus dsvi_generator_latent(DsviGenerator *generator, const DsviGeneratorClip *clip,
                                const DsvEvents *events, float *latent);
/* Returns the FLOPs of sampling one clip with dense attention. `guided`: each step evaluates the model twice.
 */
double dsvi_generator_flops(const DsviGenerator *generator, bool guided);
/* Returns the shape of the latents. */
DsviVideoShape dsvi_generator_latent_shape(const DsviGenerator *generator);
/* Returns the clip sampled last, a host array (3, T, H, W) F32 of `count` elements. The caller may change
 * it. */
float *dsvi_generator_pixels(DsviGenerator *generator, int64_t *count);
/* Writes the clip sampled last to a video file (video_writer.h). */
DsvStatus dsvi_generator_write(const DsviGenerator *generator, const char *video_path);

#ifdef __cplusplus
}
#endif
#endif
