/* Implements trainer_sizes.h.
 *
 * One size is the main one: the one nearest to num_frames x height x width in its number of tokens. Its
 * sparse layer owns the learned projection, which the others use (dsvi_sparse_share), and serves samples, the
 * held-out loss and reports. Functions therefore begin with the main size. */
#include "train/trainer_sizes.h"

#include <math.h>
#include <stdio.h>

static int64_t video_elements(const DsviVideoShape *s)
{
    return s->channels * s->frames * s->height * s->width;
}

/* Returns the i-th size in an order that begins with the main one. */
static DsviTrainerSize *size_from_main(DsviTrainer *t, int64_t i)
{
    return &t->sizes[(t->main_size + i) % t->size_count];
}

static DsvStatus list_size(DsviTrainer *t, const DsviClipSize *clip, bool named)
{
    DsviTrainerSize *size = &t->sizes[t->size_count++];
    char text[DSVI_CLIP_SIZE_BYTES];
    size->clip = *clip;
    size->video = (DsviVideoShape){3, clip->frames, clip->height, clip->width};
    DsvStatus status = t->codec->latent_shape(t->codec, size->video, &size->latent);
    if (status == DSV_OK)
        status = dsvi_dit_check_input(&t->config, t->codec, size->latent);
    if (status == DSV_OK)
        status = dsvi_dit_check_pictures(&t->config, size->latent);
    if (status != DSV_OK)
        return named ? dsvi_fail_prefix(status, "data.buckets: %s", dsvi_clip_size_text(clip, text)) : status;
    size->elements = video_elements(&size->latent);
    size->inputs = size->elements / size->latent.channels * t->config.in_channels;
    if (size->inputs > t->inputs_max)
        t->inputs_max = size->inputs;
    return DSV_OK;
}

/* Returns by how much the pixels of a size differ from those of the settings' size, as a logarithm. */
static double distance_from_settings(const DsviTrainer *t, const DsviTrainerSize *size)
{
    const DsvConfig *s = t->settings;
    double wanted = (double)s->num_frames * (double)s->height * (double)s->width;
    return fabs(log((double)(size->clip.frames * size->clip.height * size->clip.width) / wanted));
}

DsvStatus dsvi_trainer_sizes_check(const DsvConfig *s, const DsviClipSizes *sizes, int64_t cp_ranks)
{
    const DsviClipSize window = {s->num_frames, s->height, s->width};
    bool windows = s->validation_at_end || s->validation_steps > 0 || s->validation_data[0];
    char one[DSVI_CLIP_SIZE_BYTES], other[DSVI_CLIP_SIZE_BYTES];
    if (cp_ranks <= 1 || sizes->count == 0)
        return DSV_OK;
    if (sizes->count > 1)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "data.buckets has %lld sizes and %lld ranks share a clip, expected "
                         "one size or cp_size=1",
                         (long long)sizes->count, (long long)cp_ranks);
    if (!windows || dsvi_clip_size_same(&sizes->at[0], &window))
        return DSV_OK;
    return DSVI_FAIL(
        DSV_E_UNSUPPORTED,
        "data.buckets has the size %s, sampled and held-out clips have %s (num_frames x height x "
        "width), and %lld ranks share a clip, expected equal sizes or cp_size=1",
        dsvi_clip_size_text(&sizes->at[0], one), dsvi_clip_size_text(&window, other), (long long)cp_ranks);
}

DsvStatus dsvi_trainer_sizes_list(DsviTrainer *t, const DsviClipSizes *sizes)
{
    const DsvConfig *s = t->settings;
    const DsviClipSizes one = {{{s->num_frames, s->height, s->width}}, 1};
    const DsviClipSizes *list = sizes && sizes->count > 0 ? sizes : &one;
    for (int64_t i = 0; i < list->count; i++) {
        DSVI_TRY(list_size(t, &list->at[i], list != &one));
        if (distance_from_settings(t, &t->sizes[i]) < distance_from_settings(t, &t->sizes[t->main_size]))
            t->main_size = i;
    }
    return dsvi_trainer_sizes_check(s, list, t->mesh.cp_ranks);
}

/* Passes a line of a sparse layer on, with the name of its size (DsviSparseLog). */
static void log_of_size(void *context, const char *line)
{
    const DsviTrainerSize *size = context;
    char text[DSVI_CLIP_SIZE_BYTES], named[512];
    snprintf(named, sizeof named, "%s: %s", dsvi_clip_size_text(&size->clip, text), line);
    size->log(size->log_context, named);
}

/* Makes sparse layer and transformer of a size. */
static DsvStatus create_size(DsviTrainer *t, DsviTrainerSize *size, const DsviDitShape *like, bool named)
{
    DsviDitShape shape = *like;
    shape.frames = size->latent.frames;
    shape.height = size->latent.height;
    shape.width = size->latent.width;
    DsviSparseShape sparse_shape = dsvi_dit_sparse_shape(&t->config, &shape);
    DSVI_TRY(dsvi_sparse_create(t->backend, t->settings, &sparse_shape, named ? log_of_size : size->log,
                                named ? size : size->log_context, &size->sparse));
    if (size != size_from_main(t, 0))
        DSVI_TRY(dsvi_sparse_share(size->sparse, size_from_main(t, 0)->sparse));
    return dsvi_dit_create(t->backend, &t->config, &t->table, &shape, size->sparse, &size->dit);
}

DsvStatus dsvi_trainer_sizes_create(DsviTrainer *t, const DsviDitShape *like, DsviSparseLog *log,
                                    void *log_context)
{
    for (int64_t i = 0; i < t->size_count; i++) {
        DsviTrainerSize *size = size_from_main(t, i);
        char text[DSVI_CLIP_SIZE_BYTES];
        size->log = log;
        size->log_context = log_context;
        DsvStatus status = create_size(t, size, like, log && t->size_count > 1);
        if (status != DSV_OK)
            return t->settings->data_buckets[0]
                       ? dsvi_fail_prefix(status, "data.buckets: %s", dsvi_clip_size_text(&size->clip, text))
                       : status;
    }
    dsvi_trainer_use(t, t->main_size);
    return DSV_OK;
}

void dsvi_trainer_sizes_free(DsviTrainer *t)
{
    for (int64_t i = t->size_count - 1; i >= 0; i--) {
        dsvi_dit_free(&size_from_main(t, i)->dit);
        dsvi_sparse_free(&size_from_main(t, i)->sparse);
    }
}

void dsvi_trainer_sizes_carve(DsviTrainer *t, DsviArena *arena)
{
    for (int64_t i = 0; i < t->size_count; i++) {
        dsvi_sparse_carve_state(size_from_main(t, i)->sparse, arena);
        dsvi_dit_carve(size_from_main(t, i)->dit, arena);
    }
}

/* Lets the sizes take turns in the same memory of an arena. */
static void carve_in_turns(DsviTrainer *t, DsviArena *arena, void (*carve)(DsviTrainerSize *, DsviArena *))
{
    DsviArenaOverlay over = dsvi_arena_overlay_begin(arena);
    for (int64_t i = 0; i < t->size_count; i++) {
        if (i > 0)
            dsvi_arena_overlay_next(arena, &over);
        carve(&t->sizes[i], arena);
    }
    dsvi_arena_overlay_end(arena, &over);
}

static void carve_pass(DsviTrainerSize *size, DsviArena *arena)
{
    size_t begin = arena->used;
    dsvi_sparse_carve_lists(size->sparse, arena);
    dsvi_dit_carve_pass(size->dit, arena);
    size->pass_bytes = arena->used - begin;
    DsviDitBuffers room = dsvi_dit_buffers(size->dit);
    size->latents = room.latents;
    size->noise = room.target;
    size->grad = room.grad;
}

static void carve_host_lists(DsviTrainerSize *size, DsviArena *arena)
{
    dsvi_sparse_carve_host(size->sparse, arena);
}

static void carve_host_kept(DsviTrainerSize *size, DsviArena *arena)
{
    dsvi_dit_carve_host(size->dit, arena);
}

/* The lists of a size are made and used up within a pass. */
void dsvi_trainer_sizes_carve_pass(DsviTrainer *t, DsviArena *arena)
{
    carve_in_turns(t, arena, carve_pass);
    dsvi_trainer_use(t, t->main_size);
}

void dsvi_trainer_sizes_carve_host(DsviTrainer *t, DsviArena *arena)
{
    carve_in_turns(t, arena, carve_host_lists);
}

void dsvi_trainer_sizes_carve_kept(DsviTrainer *t, DsviArena *arena)
{
    carve_in_turns(t, arena, carve_host_kept);
}

const DsviTrainerSize *dsvi_trainer_sizes_largest(const DsviTrainer *t)
{
    const DsviTrainerSize *largest = &t->sizes[0];
    for (int64_t i = 1; i < t->size_count; i++)
        if (t->sizes[i].pass_bytes > largest->pass_bytes)
            largest = &t->sizes[i];
    return largest;
}

void dsvi_trainer_sizes_set_comm(DsviTrainer *t)
{
    for (int64_t i = 0; i < t->size_count; i++)
        dsvi_sparse_set_comm(size_from_main(t, i)->sparse, t->comm, t->device_comm);
}

DsvStatus dsvi_trainer_sizes_measure(DsviTrainer *t)
{
    for (int64_t i = 0; i < t->size_count; i++)
        DSVI_TRY(dsvi_sparse_measure(size_from_main(t, i)->sparse));
    return DSV_OK;
}

DsvStatus dsvi_trainer_sizes_setup(DsviTrainer *t, const DsviDitWeights *weights)
{
    for (int64_t i = 0; i < t->size_count; i++) {
        DSVI_TRY(dsvi_sparse_setup(size_from_main(t, i)->sparse));
        DSVI_TRY(dsvi_dit_setup(size_from_main(t, i)->dit, weights));
        if (t->image_elements > 0)
            dsvi_dit_set_image(size_from_main(t, i)->dit, t->image, NULL);
    }
    return DSV_OK;
}

DsvStatus dsvi_trainer_sizes_step_begin(DsviTrainer *t, int64_t step)
{
    for (int64_t i = 0; i < t->size_count; i++)
        DSVI_TRY(dsvi_sparse_step_begin(size_from_main(t, i)->sparse, step, true));
    return DSV_OK;
}

DsvStatus dsvi_trainer_sizes_step_end(DsviTrainer *t)
{
    for (int64_t i = 0; i < t->size_count; i++)
        DSVI_TRY(dsvi_sparse_step_end(size_from_main(t, i)->sparse));
    dsvi_trainer_use(t, t->main_size);
    return DSV_OK;
}

void dsvi_trainer_use(DsviTrainer *t, int64_t index)
{
    const DsviTrainerSize *size = &t->sizes[index];
    t->video = size->video;
    t->latent = size->latent;
    t->elements = size->elements;
    t->inputs = size->inputs;
    t->sparse = size->sparse;
    t->dit = size->dit;
    t->latents = size->latents;
    t->noise = size->noise;
    if (t->zero.grad_elsewhere)
        t->zero.grad.data = size->grad;
}

void dsvi_trainer_sizes_costs(const DsviTrainer *t, double *cost)
{
    const DsvConfig *s = t->settings;
    for (int64_t i = 0; i < t->size_count; i++) {
        const DsviDitShape shape = dsvi_dit_shape_of(&t->config, s->train_batch_size, t->sizes[i].latent);
        cost[i] = dsvi_dit_flops_step(&t->config, &shape, s->lora_rank > 0,
                                      dsvi_sparse_expected_work(s, dsvi_dit_tokens(&t->config, &shape)));
    }
}
