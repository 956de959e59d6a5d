/* Implements wan_image.h.
 *
 * I2V-A14B takes the pictures as wan_condition.h says. TI2V-5B of Wan 2.2 takes the latent of the picture
 * alone as the first frame of the clip's latent. */
#include "pipeline/wan_image.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/picture.h"
#include "model/vae/vae.h"
#include "pipeline/wan_condition.h"

/* Returns the largest size near `wanted` that the model takes. */
static int64_t size_near(double wanted, int64_t unit)
{
    int64_t size = (int64_t)wanted / unit * unit;
    return size > unit ? size : unit;
}

/* Logs that a picture is scaled and cropped, and which size of the same area has the picture's aspect. */
static void report_size(const DsviWanJob *job, const char *path, int64_t height, int64_t width)
{
    const DsviWanShape *shape = &job->shape;
    double area = (double)job->video.height * (double)job->video.width;
    double aspect = (double)height / (double)width;
    if (height == job->video.height && width == job->video.width)
        return;
    dsvi_wan_log(job,
                 "%s has %lld x %lld pixels and is scaled and cropped to %lld x %lld; height=%lld width=%lld "
                 "come close to its aspect",
                 path, (long long)width, (long long)height, (long long)job->video.width,
                 (long long)job->video.height,
                 (long long)size_near(sqrt(area * aspect), shape->spatial * shape->patch[1]),
                 (long long)size_near(sqrt(area / aspect), shape->spatial * shape->patch[2]));
}

/* Reads a picture in the size of the clip; NULL for no path. */
static DsvStatus read_picture(const DsviWanJob *job, const char *path, float **out)
{
    DsviVideoShape video = job->video;
    int64_t height, width;
    if (!path)
        return DSV_OK;
    *out = malloc((size_t)(video.channels * video.height * video.width) * sizeof **out);
    if (!*out)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a picture", path);
    DSVI_TRY(dsvi_picture_read(path, video.height, video.width, *out, &height, &width));
    report_size(job, path, height, width);
    return DSV_OK;
}

/* Checks the arguments against a model whose transformer takes no channels beside the latent's. */
static DsvStatus check_given_first(DsviWanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    if (!a->folder->expand_timesteps && (a->image_path || a->last_image_path))
        return DSVI_FAIL(DSV_E_USAGE, "%s: %s is a text-to-video model, which takes no picture",
                         a->image_path ? a->image_path : a->last_image_path, a->folder->path);
    if (a->last_image_path)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s: %s is TI2V-5B of Wan 2.2, which takes a picture of the first frame and none of "
                         "the last",
                         a->last_image_path, a->folder->path);
    job->given_first = a->image_path != NULL;
    if (job->given_first && job->latent.frames < 2)
        return DSVI_FAIL(DSV_E_USAGE, "%s: a clip of num_frames=%lld has no frame beside its first",
                         a->image_path, (long long)job->video.frames);
    return DSV_OK;
}

static DsviWanCondition condition_of(const DsviWanJob *job)
{
    return (DsviWanCondition){job->video, job->latent, job->shape.temporal};
}

/* Checks the arguments against the model. */
static DsvStatus check_arguments(DsviWanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    const DsviDitConfig *config = &job->config;
    const DsviWanCondition condition = condition_of(job);
    if (config->in_channels == config->out_channels)
        return check_given_first(job);
    if (!a->image_path)
        return DSVI_FAIL(
            DSV_E_USAGE,
            "%s is an image-to-video model, expected a picture of the first frame (--image FILE)",
            a->folder->path);
    if (config->pos_embed_seq_len > 0 && !a->last_image_path)
        return DSVI_FAIL(
            DSV_E_USAGE,
            "%s makes a clip between two pictures, expected one of the last frame, too (--last-image FILE)",
            a->folder->path);
    if (config->image_dim > 0 && config->pos_embed_seq_len == 0 && a->last_image_path)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s: %s takes a picture of the first frame only, and not of the last frame, as "
                         "FLF2V of Wan 2.1 and I2V-A14B of Wan 2.2 do",
                         a->last_image_path, a->folder->path);
    DSVI_TRY(dsvi_wan_condition_check(&condition, config, a->folder->part[DSVI_WAN_TRANSFORMER]));
    if (a->last_image_path && job->video.frames < 2)
        return DSVI_FAIL(DSV_E_USAGE, "%s: a clip of num_frames=1 has no last frame beside its first",
                         a->last_image_path);
    return DSV_OK;
}

/* Returns how many frames are encoded: of the clip, or the picture alone. */
static int64_t encoded_frames(const DsviWanJob *job)
{
    return job->given_first ? 1 : job->video.frames;
}

static DsviVaeOptions encoder_options(const DsviWanJob *job)
{
    return (DsviVaeOptions){
        .act = dsvi_dit_act(job->args->settings), .encode = true, .memory_bytes = dsvi_wan_vae_memory(job)};
}

DsvStatus dsvi_wan_image_prepare(DsviWanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    DsviVideoShape video = job->video;
    DsviVaeOptions options;
    DsviVae *vae;
    DSVI_TRY(check_arguments(job));
    if (!a->image_path)
        return DSV_OK;
    DSVI_TRY(read_picture(job, a->image_path, &job->first_picture));
    DSVI_TRY(read_picture(job, a->last_image_path, &job->last_picture));
    options = encoder_options(job);
    DSVI_TRY(dsvi_vae_open(a->backend, a->folder->part[DSVI_WAN_VAE], &options, &vae));
    DsvStatus status = dsvi_vae_plan(vae, false, encoded_frames(job), video.height, video.width,
                                     &job->image_bytes);
    dsvi_vae_close(&vae);
    return status;
}

/* Writes the latent of a video, (latent.channels, F, H, W), normalised: the posterior's mean. F is 1 with
 * job->given_first. */
static DsvStatus encode_video(const DsviWanJob *job, const float *video, float *latent)
{
    DsviVae *vae;
    DsviVaeOptions options = encoder_options(job);
    DsviVideoShape size = job->video;
    int64_t elements = job->given_first ? job->elements / job->latent.frames : job->elements;
    float *moments = malloc(2 * (size_t)elements * sizeof *moments);
    if (!moments)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the latent of a picture");
    DsvStatus status = dsvi_vae_open(job->args->backend, job->args->folder->part[DSVI_WAN_VAE], &options,
                                     &vae);
    if (status == DSV_OK)
        status = dsvi_vae_encode(vae, encoded_frames(job), size.height, size.width, video, moments);
    if (status == DSV_OK) {
        memcpy(latent, moments, (size_t)elements * sizeof *latent);
        dsvi_vae_normalize(dsvi_vae_config(vae), elements / job->latent.channels, latent);
    }
    dsvi_vae_close(&vae);
    free(moments);
    return status;
}

/* Encodes the picture to the first frame of the clip's latent. */
static DsvStatus encode_first_frame(DsviWanJob *job)
{
    job->first_frame = malloc((size_t)(job->elements / job->latent.frames) * sizeof *job->first_frame);
    if (!job->first_frame)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the latent of a picture");
    return encode_video(job, job->first_picture, job->first_frame);
}

DsvStatus dsvi_wan_image_encode(DsviWanJob *job)
{
    const DsviWanCondition condition = condition_of(job);
    int64_t mask = dsvi_wan_condition_mask_elements(&condition);
    if (!job->first_picture)
        return DSV_OK;
    if (job->given_first)
        return encode_first_frame(job);
    float *video = dsvi_wan_condition_video(&condition, job->first_picture,
                                            job->video.height * job->video.width, job->last_picture);
    job->image = malloc((size_t)(mask + job->elements) * sizeof *job->image);
    if (!video || !job->image) {
        free(video);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the video that begins with the picture");
    }
    dsvi_wan_condition_mask(&condition, job->last_picture != NULL, job->image);
    DsvStatus status = encode_video(job, video, job->image + mask);
    free(video);
    return status;
}

void dsvi_wan_image_free(DsviWanJob *job)
{
    free(job->first_picture);
    free(job->last_picture);
    free(job->image);
    free(job->first_frame);
    job->first_picture = job->last_picture = job->image = job->first_frame = NULL;
}
