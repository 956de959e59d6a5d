/* Implements flow_batch.h. */
#include "train/flow_batch.h"

#include "model/dit/dit.h"

int64_t dsvi_flow_times(const DsvConfig *settings)
{
    return dsvi_dit_given_first(settings) ? 2 : 1;
}

void dsvi_flow_set_times(const DsvConfig *settings, double sigma, int64_t b, float *timestep)
{
    float *times = timestep + b * dsvi_flow_times(settings);
    if (dsvi_dit_given_first(settings))
        *times++ = 0;
    *times = (float)(1000 * sigma);
}

/* Makes the noise of the first frame equal to its latent, so that their mixture is the latent. The model
 * takes no channels beside the latent's. */
static DsvStatus clean_first_frame(const DsviFlowBatch *b)
{
    int64_t places = b->latent.height * b->latent.width, stride = b->latent.frames * places;
    DsviFramesMoveArgs copy = {
        .frames = b->batch * b->latent.channels,
        .height = 1,
        .width = places,
        .channels = 1,
        .upscale = 1,
        .acc = DSVI_F32,
        .x = {b->latents, DSVI_F32, stride, places, 1, 1},
        .y = {b->noise, DSVI_F32, stride, places, 1, 1},
    };
    return b->backend->ops.frames_move.run(b->backend->device->stream, &copy);
}

DsvStatus dsvi_flow_mix_batch(const DsviFlowBatch *b)
{
    int64_t elements = b->latent.channels * b->latent.frames * b->latent.height * b->latent.width;
    bool apart = b->inputs > elements;
    if (dsvi_dit_given_first(b->settings))
        DSVI_TRY(clean_first_frame(b));
    for (int64_t i = 0; i < (apart ? b->batch : 1); i++) {
        float *latents = b->latents + i * b->inputs, *noise = b->noise + i * elements;
        DsviFlowMixArgs args = {
            .batch = apart ? 1 : b->batch,
            .n = elements,
            .acc = DSVI_F32,
            .x0 = latents,
            .noise = noise,
            .sigma = b->sigma + i,
            .x_t = latents,
            .target = noise,
        };
        DSVI_TRY(b->backend->ops.flow_mix.run(b->backend->device->stream, &args));
    }
    return DSV_OK;
}
