/* Implements wan_image_rows.h.
 *
 * The image encoder sees each picture in its own size, as diffusers passes it on: not the part that the clip
 * shows. The rows of the last picture follow those of the first one. */
#include "pipeline/wan_image_rows.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/memory_limit.h"
#include "data/picture.h"
#include "device/device_limit.h"
#include "model/vit/vit.h"

static int64_t picture_count(const DsviWanJob *job)
{
    return job->args->last_image_path ? 2 : 1;
}

/* Checks that number and width of the encoder's states are what the transformer takes. */
static DsvStatus check_sizes(const DsviWanFolder *folder, const DsviDitConfig *config, int64_t pictures,
                             const DsviVitConfig *encoder, const DsviVitProcessor *processor)
{
    const char *path = folder->part[DSVI_WAN_IMAGE_ENCODER];
    int64_t rows = pictures * dsvi_vit_rows(encoder);
    if (encoder->hidden_size != config->image_dim)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "%s: an image encoder with states of %" PRId64 ", expected %" PRId64
                         ", the image_dim of %s",
                         path, encoder->hidden_size, config->image_dim, folder->part[DSVI_WAN_TRANSFORMER]);
    if (config->pos_embed_seq_len > 0 && rows != config->pos_embed_seq_len)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "%s: an image encoder that gives %" PRId64
                         " rows for two pictures, expected %" PRId64 ", the pos_embed_seq_len of %s",
                         path, rows, config->pos_embed_seq_len, folder->part[DSVI_WAN_TRANSFORMER]);
    if (processor->crop != encoder->image_size)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "%s: crop_size is %" PRId64 ", expected %" PRId64 ", the image_size of %s",
                         folder->part[DSVI_WAN_IMAGE_PROCESSOR], processor->crop, encoder->image_size, path);
    return DSV_OK;
}

DsvStatus dsvi_wan_image_encoder_find(const DsviWanFolder *folder, const DsviDitConfig *config,
                                      int64_t pictures, DsviVitConfig *encoder, DsviVitProcessor *processor)
{
    DSVI_TRY(dsvi_wan_folder_require(folder, DSVI_WAN_IMAGE_ENCODER));
    DSVI_TRY(dsvi_wan_folder_require(folder, DSVI_WAN_IMAGE_PROCESSOR));
    DSVI_TRY(dsvi_vit_config_of(folder->part[DSVI_WAN_IMAGE_ENCODER], encoder));
    DSVI_TRY(dsvi_vit_processor_read(folder->part[DSVI_WAN_IMAGE_PROCESSOR], processor));
    return check_sizes(folder, config, pictures, encoder, processor);
}

/* Finds the memory that the encoder takes, and fails if the device, or memory_gib, does not have it. */
static DsvStatus check_memory(DsviWanJob *job, const DsviVitConfig *encoder)
{
    DsviBackend *backend = job->args->backend;
    uint64_t limit = dsvi_memory_limit(job->args->settings), left = dsvi_device_free_bytes(backend->device);
    job->encoder_bytes = dsvi_vit_plan(backend, encoder, dsvi_dit_act(job->args->settings),
                                       picture_count(job));
    if (limit == 0 || limit > left)
        limit = left;
    if (job->encoder_bytes <= limit)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_NO_MEMORY,
                     "%s: the image encoder takes %" PRIu64 " bytes of device memory, and %" PRIu64
                     " may be used",
                     job->args->folder->part[DSVI_WAN_IMAGE_ENCODER], job->encoder_bytes, limit);
}

/* Reads the pictures and prepares them for the encoder. */
static DsvStatus read_pictures(DsviWanJob *job, const DsviVitProcessor *processor)
{
    const char *const path[] = {job->args->image_path, job->args->last_image_path};
    const int64_t count = picture_count(job), picture = 3 * processor->crop * processor->crop;
    job->pixels = malloc((size_t)(count * picture) * sizeof *job->pixels);
    if (!job->pixels)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the pixels of %lld pictures", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        uint8_t *rgb;
        int64_t height, width;
        DSVI_TRY(dsvi_picture_read_rgb(path[i], &rgb, &height, &width));
        DsvStatus status = dsvi_vit_prepare(processor, height, width, rgb, job->pixels + i * picture);
        free(rgb);
        DSVI_TRY(status);
    }
    return DSV_OK;
}

DsvStatus dsvi_wan_image_rows_prepare(DsviWanJob *job)
{
    DsviVitConfig encoder;
    DsviVitProcessor processor;
    if (job->config.image_dim == 0)
        return DSV_OK;
    DSVI_TRY(dsvi_wan_image_encoder_find(job->args->folder, &job->config, picture_count(job), &encoder,
                                         &processor));
    job->image_len = picture_count(job) * dsvi_vit_rows(&encoder);
    DSVI_TRY(check_memory(job, &encoder));
    return read_pictures(job, &processor);
}

DsvStatus dsvi_wan_image_rows_encode(DsviWanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    const int64_t count = picture_count(job), elements = job->image_len * job->config.image_dim;
    DsviVit *encoder;
    if (!job->pixels)
        return DSV_OK;
    job->image_rows = malloc((size_t)elements * sizeof *job->image_rows);
    if (!job->image_rows)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld rows of pictures", (long long)job->image_len);
    DSVI_TRY(dsvi_vit_open(a->backend, a->folder->part[DSVI_WAN_IMAGE_ENCODER], dsvi_dit_act(a->settings),
                           count, &encoder));
    DsvStatus status = dsvi_vit_encode(encoder, count, job->pixels, job->image_rows);
    dsvi_vit_close(&encoder);
    return status;
}

void dsvi_wan_image_rows_free(DsviWanJob *job)
{
    free(job->pixels);
    free(job->image_rows);
    job->pixels = job->image_rows = NULL;
}
