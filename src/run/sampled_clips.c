/* Implements sampled_clips.h: samples validation clips during training. */
#include "run/sampled_clips.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sets `path` to the file of the clip that cp group number `group` (ranks that share clips) has sampled,
 * and creates its folder. */
static DsvStatus name_clip(const DsviTrainer *t, const char *folder, int64_t group, char path[DSVI_PATH_MAX])
{
    char name[64], inner[DSVI_PATH_MAX];
    snprintf(name, sizeof name, "step-%06" PRId64 ".mp4", t->step);
    if (group == 0)
        return dsvi_path_join(path, folder, name);
    char seed[64];
    snprintf(seed, sizeof seed, "seed-%" PRId64, t->settings->seed + group);
    DSVI_TRY(dsvi_path_join(inner, folder, seed));
    DSVI_TRY(dsvi_folder_make(inner));
    return dsvi_path_join(path, inner, name);
}

/* Sends the pixels of a cp group's clip from the group's first rank to rank 0, where they replace those of
 * the clip before. Called by all ranks. */
static DsvStatus send_clip(DsviTrainer *t, int64_t group, int64_t *bound)
{
    int64_t count;
    float *pixels = dsvi_generator_pixels(t->generator, &count);
    for (int64_t r = 0; r <= dsvi_comm_size(t->comm); r++)
        bound[r] = r <= group * t->mesh.cp_ranks ? 0 : count;
    return dsvi_comm_gather(t->comm, 0, pixels, sizeof *pixels, bound);
}

static DsvStatus write_clip(DsviTrainer *t, const char *folder, int64_t group, char path[DSVI_PATH_MAX])
{
    DSVI_TRY(name_clip(t, folder, group, path));
    return dsvi_generator_write(t->generator, path);
}

static DsvStatus write_clips(DsviTrainer *t, const char *folder, const DsvEvents *events, int64_t *bound,
                             char first[DSVI_PATH_MAX])
{
    char path[DSVI_PATH_MAX];
    first[0] = 0;
    for (int64_t group = 0; group < t->mesh.data_ranks; group++) {
        if (group > 0)
            DSVI_TRY(send_clip(t, group, bound));
        if (dsvi_comm_rank(t->comm) != 0)
            continue;
        if (write_clip(t, folder, group, group == 0 ? first : path) == DSV_OK)
            continue;
        if (group == 0)
            first[0] = 0;
        if (events->log)
            events->log(events->context, DSV_LOG_WARNING, dsv_error_message());
    }
    return DSV_OK;
}

DsvStatus dsvi_sample_clips(DsviTrainer *t, const DsviSampledTexts *texts, const char *folder,
                            const DsvEvents *events, char path[DSVI_PATH_MAX])
{
    if (dsvi_generator_sparse(t->generator))
        DSVI_TRY(dsvi_sparse_copy(dsvi_generator_sparse(t->generator), t->sparse));
    const DsviGeneratorClip clip = {
        .seed = (uint64_t)(t->settings->seed + t->mesh.data_rank),
        .text = texts->text,
        .negative = texts->negative,
    };
    DSVI_TRY(dsvi_generator_run(t->generator, &clip, events));
    int64_t *bound = calloc((size_t)dsvi_comm_size(t->comm) + 1, sizeof *bound);
    if (!bound)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to gather clips");
    DsvStatus status = write_clips(t, folder, events, bound, path);
    free(bound);
    return status;
}

/* A folder of clips: samples/, or a folder seed-<n>/ in it. */
typedef struct ClipFolder {
    const char *path, *name; /* full path; path relative to the run folder */
    int64_t after;           /* clips of steps later than this are moved into superseded/ */
    DsviSuperseded *superseded;
} ClipFolder;

static DsvStatus set_aside_clip(void *context, const char *name)
{
    const ClipFolder *in = context;
    char path[DSVI_PATH_MAX], below[DSVI_PATH_MAX];
    int64_t step;
    int end = 0;
    DSVI_TRY(dsvi_path_join(path, in->path, name));
    DSVI_TRY(dsvi_path_join(below, in->name, name));
    if (sscanf(name, "step-%" SCNd64 ".mp4%n", &step, &end) == 1 && end > 0 && !name[end])
        return step > in->after ? dsvi_superseded_move(in->superseded, below, below) : DSV_OK;
    if (strncmp(name, "seed-", 5) != 0 || !dsvi_path_is_folder(path))
        return DSV_OK;
    ClipFolder inner = {path, below, in->after, in->superseded};
    return dsvi_folder_list(path, set_aside_clip, &inner);
}

DsvStatus dsvi_sampled_clips_set_aside(const char *folder, int64_t after, DsviSuperseded *superseded)
{
    ClipFolder samples = {folder, "samples", after, superseded};
    return dsvi_folder_list(folder, set_aside_clip, &samples);
}
