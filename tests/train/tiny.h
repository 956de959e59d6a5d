/* A model and a run small enough to train for a few steps inside a test. */
#ifndef DSVI_TEST_TINY_H
#define DSVI_TEST_TINY_H

#include <unistd.h>

#include "base/fs.h"
#include "base/rng.h"
#include "dsv/config.h"
#include "sample/video_writer.h"
#include "test.h"

enum { TINY_FRAMES = 5, TINY_SIDE = 32 };

/* Two blocks of two heads, clips of 5 x 32 x 32. Every block may become sparse at once. */
static inline void tiny_settings(DsvConfig *settings)
{
    static const char *const assignment[] = {
        "model.num_layers=2",
        "model.num_attention_heads=2",
        "model.attention_head_dim=32",
        "model.ffn_dim=96",
        "num_frames=5",
        "height=32",
        "width=32",
        "fps=8",
        "train_batch_size=2",
        "lr=1e-3",
        "warmup_steps=2",
        "mixed_precision=bf16",
        "data.workers=1",
        "data.prefetch=2",
        "checkpointing_steps=4",
        "validation_at_end=false",
        "ema_decay=0.9",
        "seed=7",
        "sparse.group=16",
        "sparse.chunk=8",
        "sparse.rank=8",
        "sparse.order=tube",
        "sparse.grain=1",
        "sparse.tail=none",
        "sparse.dense_finish=0",
        "sparse.target_mass=0.8",
        "sparse.target_density=0",
        "sparse.min_keys=0",
        "sparse.min_mass=0.5",
        "sparse.max_density=0.95",
        "sparse.list_memory=1",
        "sparse.measure_cost=false",
        "sparse.profile_every=2",
        "sparse.refresh_every=3",
        "sparse.explore_kind=random",
    };
    dsv_config_defaults(settings);
    for (size_t i = 0; i < sizeof assignment / sizeof *assignment; i++)
        assert_ok(dsv_config_set(settings, assignment[i]));
}

/* Makes a new folder in the system's temporary folder. */
static inline const char *tiny_folder(void)
{
    static char path[16][64];
    static int next;
    char *out = path[next++ % 16];
    snprintf(out, sizeof path[0], "/tmp/dsv-test-XXXXXX");
    assert_non_null(mkdtemp(out));
    return out;
}

/* Writes `count` clips of drifting waves to `folder`. */
static inline void tiny_clips(const char *folder, int count)
{
    enum { FRAMES = 12, SIDE = 40, PLANE = FRAMES * SIDE * SIDE };
    static float pixels[3 * PLANE];
    char path[DSVI_PATH_MAX];
    for (int clip = 0; clip < count; clip++) {
        for (int i = 0; i < 3 * PLANE; i++) {
            int channel = i / PLANE, frame = i / (SIDE * SIDE) % FRAMES, y = i / SIDE % SIDE, x = i % SIDE;
            pixels[i] = (float)sin(0.2 * (clip + 1) * x + 0.3 * y + 0.4 * frame * (clip + 1) + channel);
        }
        snprintf(path, sizeof path, "%s/waves-%d.mp4", folder, clip);
        assert_ok(dsvi_video_write(path, pixels, FRAMES, SIDE, SIDE, 8));
    }
}

/* Checks that the file `name` has the same bytes in both folders. */
static inline void same_file(const char *folder_a, const char *folder_b, const char *name)
{
    char path[DSVI_PATH_MAX];
    uint64_t a, b;
    snprintf(path, sizeof path, "%s/%s", folder_a, name);
    assert_ok(dsvi_file_checksum(path, &a));
    snprintf(path, sizeof path, "%s/%s", folder_b, name);
    assert_ok(dsvi_file_checksum(path, &b));
    if (a != b)
        fail_msg("%s differs", name);
}

/* Checks that the file `name` has the same bytes in both folders' checkpoints of this step. */
static inline void same_in_checkpoint(const char *folder_a, const char *folder_b, int step, const char *name)
{
    char path[DSVI_PATH_MAX];
    snprintf(path, sizeof path, "checkpoint-%d/%s", step, name);
    same_file(folder_a, folder_b, path);
}

/* Compares all stored numbers of both folders' checkpoints of this step: weights, moments, average, sparse
 * state. */
static inline void tiny_same_checkpoints(const char *folder_a, const char *folder_b, int step)
{
    static const char *const file[] = {
        "transformer/diffusion_pytorch_model.safetensors",
        "sparse.safetensors",
        "state.json",
        "transformer_ema/diffusion_pytorch_model.safetensors",
        "optimizer/exp_avg.safetensors",
        "optimizer/exp_avg_sq.safetensors",
    };
    for (size_t i = 0; i < sizeof file / sizeof *file; i++)
        same_in_checkpoint(folder_a, folder_b, step, file[i]);
}

#endif
