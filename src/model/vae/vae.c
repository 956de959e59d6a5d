/* Opens a VAE, encodes and decodes. See vae.h. */
#include "model/vae/vae.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "device/device_limit.h"
#include "model/vae/vae_layout.h"

struct DsviVae {
    DsviBackend *backend;
    DsviVaeConfig config;
    DsviVaeOptions options;
    DsviVaeHalf halves[2]; /* encoder, decoder */
    DsviVaeLayout layout;  /* of the last call; memory NULL: none */
    double worked;         /* seconds (dsvi_vae_worked) */
};

static DsvStatus vae_read_config(const char *path, const DsviTensorSet *set, DsviVaeConfig *out)
{
    char config[DSVI_PATH_MAX];
    if (!dsvi_path_is_folder(path))
        return dsvi_vae_config_derive(set, path, out);
    DSVI_TRY(dsvi_path_join(config, path, "config.json"));
    return dsvi_path_exists(config) ? dsvi_vae_config_read(config, out)
                                    : dsvi_vae_config_derive(set, path, out);
}

static DsvStatus vae_load(DsviVae *vae, const char *path)
{
    DsvStatus status;
    DsviTensorSet *set = NULL;
    const bool wanted[2] = {vae->options.encode, vae->options.decode};
    DSVI_TRY_GOTO(status, dsvi_tensor_set_open(path, &set), done);
    DSVI_TRY_GOTO(status, vae_read_config(path, set, &vae->config), done);
    for (int i = 0; i < 2; i++) {
        DSVI_TRY_GOTO(status, dsvi_vae_half_make(&vae->config, i == 1, &vae->halves[i]), done);
        DSVI_TRY_GOTO(status, dsvi_vae_half_check(&vae->halves[i], set), done);
    }
    DSVI_TRY_GOTO(status, dsvi_tensor_set_finish(set), done);
    for (int i = 0; i < 2; i++)
        if (wanted[i])
            DSVI_TRY_GOTO(status,
                          dsvi_vae_half_load(vae->backend->device, &vae->halves[i], set, vae->options.act),
                          done);
done:
    dsvi_tensor_set_close(&set);
    return status;
}

DsvStatus dsvi_vae_open(DsviBackend *backend, const char *path, const DsviVaeOptions *options, DsviVae **out)
{
    DsviVae *vae = calloc(1, sizeof *vae);
    *out = NULL;
    if (!vae)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to open it", path);
    vae->backend = backend;
    vae->options = *options;
    DsvStatus status = vae_load(vae, path);
    if (status == DSV_OK)
        *out = vae;
    else
        dsvi_vae_close(&vae);
    return status;
}

void dsvi_vae_close(DsviVae **vae)
{
    if (!*vae)
        return;
    dsvi_vae_layout_free(&(*vae)->layout);
    for (int i = 0; i < 2; i++)
        dsvi_vae_half_free((*vae)->backend->device, &(*vae)->halves[i]);
    free(*vae);
    *vae = NULL;
}

const DsviVaeConfig *dsvi_vae_config(const DsviVae *vae)
{
    return &vae->config;
}

static double gib(uint64_t bytes)
{
    return ceil((double)bytes / (double)(1 << 30) * 1000) / 1000;
}

/* Bytes that are free on the device, at least 1. */
static uint64_t device_room(DsviDevice *device)
{
    size_t room = dsvi_device_free_bytes(device);
    return room > 0 ? room : 1;
}

/* Makes the layout for a call. The caller frees it, also after failure. If the options set no limit and the
 * device has too little free memory, the layout takes the least memory, and allocating it fails. */
static DsvStatus make_layout(const DsviVae *vae, bool decode, int64_t frames, int64_t height, int64_t width,
                             DsviVaeLayout *out)
{
    uint64_t wanted = vae->options.memory_bytes, weights = vae->halves[0].bytes + vae->halves[1].bytes;
    uint64_t limit = device_room(vae->backend->device), least;
    *out = (DsviVaeLayout){0};
    if (!vae->halves[decode].memory)
        return DSVI_FAIL(DSV_E_USAGE, "the %s of the VAE is not loaded, expected it to be",
                         decode ? "decoder" : "encoder");
    DSVI_TRY(dsvi_vae_check_size(&vae->config, frames, height, width));
    if (wanted > 0)
        limit = wanted > weights ? wanted - weights : 1;
    DsvStatus status = dsvi_vae_layout_make(vae->backend, vae->options.act, &vae->config,
                                            &vae->halves[decode], decode, frames, height, width, limit, out,
                                            &least);
    if (status != DSV_E_NO_MEMORY || least == 0)
        return status;
    if (wanted > 0)
        return DSVI_FAIL(DSV_E_NO_MEMORY,
                         "memory_gib=%.6g does not suffice to %s %lld frames of %lld x %lld with the VAE, "
                         "expected at least %.3f",
                         (double)wanted / (double)(1 << 30), decode ? "decode" : "encode", (long long)frames,
                         (long long)height, (long long)width, gib(least + weights));
    dsvi_vae_layout_free(out);
    return dsvi_vae_layout_make(vae->backend, vae->options.act, &vae->config, &vae->halves[decode], decode,
                                frames, height, width, least, out, &least);
}

uint64_t dsvi_vae_memory_limit(DsviDevice *device, uint64_t wanted)
{
    uint64_t room = device_room(device);
    return wanted <= room ? wanted : room;
}

double dsvi_vae_worked(const DsviVae *vae)
{
    return vae->worked;
}

DsvStatus dsvi_vae_plan(const DsviVae *vae, bool decode, int64_t frames, int64_t height, int64_t width,
                        uint64_t *bytes)
{
    DsviVaeLayout layout;
    DsvStatus status = make_layout(vae, decode, frames, height, width, &layout);
    *bytes = layout.bytes + vae->halves[0].bytes + vae->halves[1].bytes;
    dsvi_vae_layout_free(&layout);
    return status;
}

/* Prepares vae->layout for a call, unless the call before was alike. */
static DsvStatus prepare(DsviVae *vae, bool decode, int64_t frames, int64_t height, int64_t width)
{
    DsviVaeLayout *layout = &vae->layout;
    if (layout->memory && layout->decode == decode && layout->frames == frames && layout->height == height &&
        layout->width == width)
        return DSV_OK;
    dsvi_vae_layout_free(layout);
    DSVI_TRY(make_layout(vae, decode, frames, height, width, layout));
    return dsvi_vae_layout_allocate(layout);
}

/* Runs both passes over a video. */
static DsvStatus vae_run(DsviVae *vae, DsviVaePass *first, DsviVaePass *second, DsviVaeEnd source,
                         DsviVaeEnd target)
{
    const DsviVaeEnd between = {.tensor = vae->layout.between};
    DSVI_TRY(dsvi_vae_pass_run(first, source, between));
    DSVI_TRY(dsvi_vae_pass_run(second, between, target));
    vae->worked += first->worked + second->worked;
    return DSV_OK;
}

DsvStatus dsvi_vae_encode(DsviVae *vae, int64_t frames, int64_t height, int64_t width, const float *video,
                          float *moments)
{
    DSVI_TRY(prepare(vae, false, frames, height, width));
    return vae_run(vae, &vae->layout.strips, &vae->layout.whole, (DsviVaeEnd){.host = (float *)video},
                   (DsviVaeEnd){.host = moments});
}

DsvStatus dsvi_vae_decode(DsviVae *vae, int64_t frames, int64_t height, int64_t width, const float *latents,
                          float *video)
{
    DSVI_TRY(prepare(vae, true, frames, height, width));
    return vae_run(vae, &vae->layout.whole, &vae->layout.strips, (DsviVaeEnd){.host = (float *)latents},
                   (DsviVaeEnd){.host = video, .limit = 1});
}
