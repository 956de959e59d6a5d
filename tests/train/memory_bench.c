/* See memory_bench.h. */
#include "memory_bench.h"

#include "cpu/cpu.h"
#include "tiny.h"

static size_t nothing_used(DsviDevice *device)
{
    (void)device;
    return 0;
}

void open_bench(Bench *b)
{
    enum { FRAMES = 17, SIDE = 64 };
    DsviVideoShape video = {3, FRAMES, SIDE, SIDE}, latent;
    DsviTrainer *trainer;
    DsviArena plan, host;
    memset(b, 0, sizeof *b);
    tiny_settings(&b->settings);
    b->settings.num_frames = FRAMES;
    b->settings.height = b->settings.width = SIDE;
    b->settings.model_num_layers = 6;
    assert_ok(dsvi_codec_open(&b->settings, &b->codec));
    assert_ok(b->codec->latent_shape(b->codec, video, &latent));
    assert_ok(dsvi_dit_config_make(&b->settings, &b->config));
    b->in_channels = b->config.in_channels = b->config.out_channels = latent.channels;
    assert_ok(dsvi_cpu_open("auto", 1, &b->backend));
    b->backend.device->memory_used = nothing_used;
    assert_ok(dsvi_trainer_create(
        &(DsviTrainerArgs){
            .settings = &b->settings, .backend = &b->backend, .codec = b->codec, .config = &b->config},
        &trainer));
    DsvConfig recomputing = b->settings;
    assert_ok(dsv_config_set(&recomputing, "gradient_checkpointing=true"));
    assert_ok(dsvi_trainer_plan(trainer, &recomputing, &plan, &host));
    b->kept = trainer->arena.used;
    b->recomputed = plan.used;
    dsvi_trainer_free(&trainer);
}

void close_bench(Bench *b)
{
    b->codec->close(b->codec);
    dsvi_cpu_close(&b->backend);
}

void plan_with(Bench *b, const char *option, DsviArena *device, DsviArena *host)
{
    DsviTrainer like = {
        .settings = &b->settings, .backend = &b->backend, .codec = b->codec, .config = b->config};
    if (option)
        assert_ok(dsv_config_set(&b->settings, option));
    assert_ok(dsvi_mesh_make(&b->settings, NULL, &like.mesh));
    assert_ok(dsvi_trainer_plan(&like, &b->settings, device, host));
    dsvi_mesh_free(&like.mesh);
}
