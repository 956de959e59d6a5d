/* Implements sampled_pictures.h. A sample read from a latent cache is a latent, then the condition, then the
 * states of its pictures; of the latent only the first frame is used, if it is given. */
#include "run/sampled_pictures.h"

#include <stdlib.h>
#include <string.h>

#include "data/latent_cache.h"

bool dsvi_sampled_pictures_needed(const DsviTrainer *t)
{
    return t->generator && (dsvi_dit_takes_condition(&t->config) || dsvi_dit_given_first(t->settings));
}

/* Elements of the latent and of the model's input of a sampled clip. */
static void count_elements(const DsviTrainer *t, int64_t *latent, int64_t *input)
{
    const DsviVideoShape shape = dsvi_generator_latent_shape(t->generator);
    *latent = shape.channels * shape.frames * shape.height * shape.width;
    *input = *latent / shape.channels * t->config.in_channels;
}

/* Reads a window's sample; `pixels` is room for its frames, NULL if the data set is a latent cache. */
static DsvStatus read_sample(const DsviTrainer *t, const DsviDataset *d, const DsviSampleRef *ref,
                             float *pixels, int64_t stride, float *sample)
{
    const DsvConfig *s = t->settings;
    const char *path = d->items[ref->item].path;
    if (!pixels)
        return dsvi_latent_read(path, stride, sample);
    DSVI_TRY(dsvi_clip_read(path, &ref->window, pixels));
    return t->codec->encode(t->codec, (DsviVideoShape){3, s->num_frames, s->height, s->width}, pixels,
                            sample);
}

/* Reads window `number` of `total`, or the first after it that can be read. */
static DsvStatus find_sample(const DsviTrainer *t, const DsviDataset *d, int64_t number, int64_t total,
                             float *pixels, int64_t stride, DsviSampleRef *ref, float *sample)
{
    DsvStatus status = DSV_OK;
    for (int64_t attempt = 0; attempt < dsvi_dataset_tries(d, 0); attempt++) {
        *ref = dsvi_dataset_spread_again(d, t->settings, number, total, attempt);
        status = read_sample(t, d, ref, pixels, stride, sample);
        if (status == DSV_OK || !dsvi_dataset_is_broken(status))
            break;
    }
    return status == DSV_OK ? DSV_OK : dsvi_fail_prefix(status, "the picture of a sampled clip");
}

/* Gives all ranks that share a clip the sample of the first of these ranks, which alone reads: ranks that
 * cannot read a file would take a later window. */
static DsvStatus share_sample(const DsviTrainer *t, DsviSampleRef *ref, float *sample, int64_t stride)
{
    DSVI_TRY(dsvi_comm_broadcast(t->mesh.cp, 0, ref, sizeof *ref));
    return dsvi_comm_broadcast(t->mesh.cp, 0, sample, (size_t)stride * sizeof *sample);
}

static void copy_first_frame(const DsviTrainer *t, const float *latent, float *out)
{
    const DsviVideoShape shape = dsvi_generator_latent_shape(t->generator);
    size_t places = (size_t)(shape.height * shape.width), frames = (size_t)shape.frames;
    for (size_t c = 0; c < (size_t)shape.channels; c++)
        memcpy(out + c * places, latent + c * frames * places, places * sizeof *out);
}

DsvStatus dsvi_sampled_pictures_read(const DsviTrainer *t, const DsviDataset *dataset, const int64_t *numbers,
                                     int64_t count, int64_t total, DsviSampledPictures *out)
{
    const DsvConfig *s = t->settings;
    int64_t latent, input, frame;
    float *pixels = NULL;
    count_elements(t, &latent, &input);
    frame = latent / dsvi_generator_latent_shape(t->generator).frames;
    *out = (DsviSampledPictures){.count = count, .stride = input + t->image_elements};
    out->ref = calloc((size_t)count, sizeof *out->ref);
    out->samples = malloc((size_t)(count * out->stride) * sizeof *out->samples);
    if (dsvi_dit_given_first(s))
        out->first_frames = malloc((size_t)(count * frame) * sizeof *out->first_frames);
    bool decodes = !dataset->latents && t->mesh.cp_rank == 0;
    if (decodes)
        pixels = malloc((size_t)(3 * s->num_frames * s->height * s->width) * sizeof *pixels);
    bool room = out->ref && out->samples && (out->first_frames || !dsvi_dit_given_first(s)) &&
                (pixels || !decodes);
    DsvStatus status = room ? DSV_OK
                            : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the pictures of sampled clips");
    for (int64_t i = 0; i < count && status == DSV_OK; i++) {
        float *sample = out->samples + i * out->stride;
        if (t->mesh.cp_rank == 0)
            status = find_sample(t, dataset, numbers[i], total, pixels, out->stride, &out->ref[i], sample);
        if (status == DSV_OK)
            status = share_sample(t, &out->ref[i], sample, out->stride);
        if (status == DSV_OK && out->first_frames)
            copy_first_frame(t, sample, out->first_frames + i * frame);
    }
    free(pixels);
    return status;
}

void dsvi_sampled_pictures_free(DsviSampledPictures *pictures)
{
    free(pictures->ref);
    free(pictures->samples);
    free(pictures->first_frames);
    *pictures = (DsviSampledPictures){0};
}

void dsvi_sampled_pictures_use(const DsviSampledPictures *pictures, const DsviTrainer *t, int64_t i,
                               DsviGeneratorClip *clip)
{
    int64_t latent, input;
    if (pictures->count == 0)
        return;
    count_elements(t, &latent, &input);
    const float *sample = pictures->samples + i * pictures->stride;
    int64_t frame = latent / dsvi_generator_latent_shape(t->generator).frames;
    clip->image = sample + latent;
    clip->image_rows = sample + input;
    clip->first_frame = pictures->first_frames ? pictures->first_frames + i * frame : NULL;
}
