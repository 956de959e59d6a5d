/* Making what a run holds: plan, allocate, carve, set up. See trainer.h. */
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>

#include "dist/peers.h"
#include "train/memory_explain.h"

static DsvStatus join_devices(DsvTrainer *t)
{
    t->device_comm = t->comm;
    if (dsvi_comm_size(t->comm) == 1 || !t->backend->join)
        return DSV_OK;
    t->device_comm = NULL;
    return t->backend->join(t->backend, t->comm, &t->device_comm);
}

/* Plans follow from measured times, and how sums are formed follows from plans. */
static bool chooses_plans(const DsvConfig *settings)
{
    return settings->cp_plan && !settings->deterministic;
}

static DsvStatus make_context(DsvTrainer *t, const DsvDitShape *shape)
{
    const DsvConfig *settings = t->settings;
    DsvContextShape wanted = dsvi_dit_context_shape(&t->config, shape, settings);
    double rows = (double)(wanted.tokens * wanted.heads) / (double)dsvi_context_group_size(t->group);
    wanted.rows_most = chooses_plans(settings) ? (int64_t)(settings->cp_room * rows) : 0;
    DsvStatus status = dsvi_context_create(t->group, &wanted, &t->context);
    return status == DSV_OK ? DSV_OK
                            : dsvi_fail_within(status, "cp_size is %lld, cp_heads %lld",
                                               (long long)t->mesh.context_ranks,
                                               (long long)settings->cp_heads);
}

static DsvDitShape shape_of(const DsvTrainer *t)
{
    const DsvConfig *settings = t->settings;
    return (DsvDitShape){
        .batch = settings->train_batch_size, .frames = t->latent.frames, .height = t->latent.height,
        .width = t->latent.width, .text_len = t->config.text_len, .act = dsvi_dit_act(settings),
        .backward = true, .keep = dsvi_dit_keep(settings), .loss = true,
        .grad_begin = dsvi_zero_grad_begin(&t->zero), .context = t->context,
    };
}

static DsvStatus make_plans(DsvTrainer *t, DsvSparseLog *log, void *log_context)
{
    DsvDitShape shape = shape_of(t);
    const DsvContextPlansMade made = {
        .settings = t->settings, .backend = t->backend, .all = t->comm, .group = t->group,
        .context = t->context, .sparse = t->sparse,
        .sparse_shape = dsvi_dit_sparse_shape(&t->config, &shape),
        .shape = dsvi_dit_cp_shape(&t->config, &shape, t->settings), .log = log, .log_context = log_context,
    };
    return t->context && chooses_plans(t->settings) ? dsvi_context_plans_create(&made, &t->plans) : DSV_OK;
}

static DsvStatus make_parts(DsvTrainer *t, DsvSparseLog *log, void *log_context)
{
    const DsvConfig *settings = t->settings;
    const DsvDitConfig *config = &t->config;
    DSVI_TRY(dsvi_param_table_make(config, &t->table));
    DSVI_TRY(dsvi_zero_make(settings, t->backend, &t->mesh, &t->table, &t->zero));
    DsvDitShape shape = shape_of(t);
    if (t->group)
        DSVI_TRY(make_context(t, &shape));
    shape.context = t->context;
    DsvSparseShape sparse_shape = dsvi_dit_sparse_shape(config, &shape);
    DSVI_TRY(dsvi_sparse_create(t->backend, settings, &sparse_shape, log, log_context, &t->sparse));
    DSVI_TRY(dsvi_dit_create(t->backend, config, &t->table, &shape, t->sparse, &t->dit));
    if (settings->validation_steps > 0 || settings->validation_at_end)
        DSVI_TRY(dsvi_generator_create(t->backend, settings, t->codec, config, &t->table, t->context,
                                       &t->generator));
    if (settings->validation_data[0])
        DSVI_TRY(dsvi_held_out_create(t->backend, &t->mesh, settings, t->latent, config, &t->table,
                                      t->context, &t->held_out));
    return DSV_OK;
}

/* What a training step, a sample and a measurement of the held-out loss use: each is over before another
 * begins, but for the gradients, which last to the end of a step. */
static void carve_passes(DsvTrainer *t, DsvArena *arena)
{
    DsvArenaOverlay over = dsvi_arena_overlay(arena);
    dsvi_dit_carve_pass(t->dit, arena);
    dsvi_arena_instead(arena, &over);
    if (t->generator)
        dsvi_generator_carve_run(t->generator, arena);
    dsvi_arena_instead(arena, &over);
    if (t->held_out)
        dsvi_held_out_carve_run(t->held_out, arena);
    dsvi_arena_overlay_end(arena, &over);
    DsvDitRoom room = dsvi_dit_room(t->dit);
    t->latents = room.latents;
    t->noise = room.target;
    if (t->zero.grad_elsewhere)
        t->zero.grad.data = room.grad;
}

static size_t channel_weight_bytes(const DsvTrainer *t)
{
    return (size_t)t->latent.channels * sizeof(float);
}

static bool weighs_channels(const DsvTrainer *t)
{
    return t->settings->loss_pixel_weight > 0;
}

/* Every piece of device memory a run uses, in one order for plan and use. */
static void carve(DsvTrainer *t, DsvArena *arena)
{
    size_t batch = (size_t)t->settings->train_batch_size;

    dsvi_zero_carve(&t->zero, t->settings, arena);
    t->sigma = dsvi_arena_take(arena, DSV_MEM_DATA, batch * sizeof(float));
    t->timestep = dsvi_arena_take(arena, DSV_MEM_DATA, batch * sizeof(float));
    t->text = dsvi_arena_take(arena, DSV_MEM_DATA,
                              batch * (size_t)(t->config.text_len * t->config.text_dim) * sizeof(float));
    t->loss = dsvi_arena_take(arena, DSV_MEM_DATA, batch * sizeof(float));
    if (weighs_channels(t))
        t->channel_weight = dsvi_arena_take(arena, DSV_MEM_DATA, channel_weight_bytes(t));

    dsvi_sparse_carve(t->sparse, arena);
    dsvi_dit_carve(t->dit, arena);
    if (t->generator)
        dsvi_generator_carve(t->generator, arena);
    if (t->held_out)
        dsvi_held_out_carve(t->held_out, arena);
    carve_passes(t, arena);
}

static void carve_host(DsvTrainer *t, DsvArena *arena)
{
    size_t batch = (size_t)t->settings->train_batch_size;
    size_t latents = batch * (size_t)t->elements * sizeof(float);
    t->host_latents = dsvi_arena_take(arena, DSV_MEM_DATA, latents);
    t->host_sigma = dsvi_arena_take(arena, DSV_MEM_DATA, batch * sizeof(float));
    t->host_timestep = dsvi_arena_take(arena, DSV_MEM_DATA, batch * sizeof(float));
    t->host_loss = dsvi_arena_take(arena, DSV_MEM_DATA, batch * sizeof(float));
    if (weighs_channels(t))
        t->host_channel_weight = dsvi_arena_take(arena, DSV_MEM_DATA, channel_weight_bytes(t));
    t->host_flat = dsvi_arena_take(arena, DSV_MEM_DATA,
                                   (size_t)dsvi_zero_host_elements(&t->zero) * sizeof(float));
    dsvi_zero_carve_host(&t->zero, arena);
    t->share = dsvi_arena_take(arena, DSV_MEM_DATA,
                               (size_t)dsvi_comm_size(t->comm) * sizeof(DsvStepShare));
    t->passed_over = dsvi_arena_take(arena, DSV_MEM_DATA,
                                     (size_t)t->mesh.context_ranks * sizeof *t->passed_over);
    if (t->held_out)
        dsvi_held_out_carve_host(t->held_out, arena);
    dsvi_sparse_carve_host(t->sparse, arena);
}

static DsvStatus get_host_memory(DsvTrainer *t, size_t bytes)
{
    DsvDevice *device = t->backend->device;
    if (device->host_bytes > 0 && t->here.sum > device->host_bytes)
        return dsvi_memory_explain_host(t);
    return device->host_alloc(device, bytes, &t->host_memory);
}

static DsvStatus allocate_host(DsvTrainer *t, const DsvArena *plan)
{
    DsvStatus status = get_host_memory(t, plan->used);
    if (status == DSV_E_NO_MEMORY && plan->by_class[DSV_MEM_SPARSE] > 0)
        return dsvi_fail_within(status, "sparse.offload_lists is true, and lists take %.1f GiB of the host's "
                                "memory with sparse.list_memory=%g",
                                (double)plan->by_class[DSV_MEM_SPARSE] / 1073741824.0,
                                t->settings->sparse_list_memory);
    if (status == DSV_E_NO_MEMORY && t->held_out && dsvi_held_out_bytes(t->held_out) > plan->used / 2)
        return dsvi_fail_within(status, "validation.clips is %lld, and this rank's held-out windows take "
                                "%.1f GiB of the host's memory", (long long)t->settings->validation_clips,
                                (double)dsvi_held_out_bytes(t->held_out) / 1073741824.0);
    DSVI_TRY(status);
    dsvi_arena_bind(&t->host_arena, t->host_memory, plan->used);
    carve_host(t, &t->host_arena);
    return DSV_OK;
}

static DsvStatus allocate(DsvTrainer *t)
{
    DsvDevice *device = t->backend->device;
    DsvArena plan, host_plan;

    dsvi_arena_plan(&plan);
    carve(t, &plan);
    dsvi_arena_plan(&host_plan);
    carve_host(t, &host_plan);
    DSVI_TRY(dsvi_peers_here(t->comm, host_plan.used, &t->here));
    DsvStatus status = device->mem_alloc(device, plan.used, &t->memory);
    if (status == DSV_E_NO_MEMORY)
        return dsvi_memory_explain(t, &plan);
    DSVI_TRY(status);
    /* Padding between parameters must be zero and stay so, and nothing may be read uninitialised. */
    DSVI_TRY(device->zero(device->stream, t->memory, plan.used));
    dsvi_arena_bind(&t->arena, t->memory, plan.used);
    carve(t, &t->arena);
    return allocate_host(t, &host_plan);
}

/* The weights of the loss: their mean over the channels is 1. */
static DsvStatus set_channel_weight(DsvTrainer *t)
{
    DsvDevice *device = t->backend->device;
    int64_t channels = t->latent.channels;
    double sum = 0;
    if (!weighs_channels(t))
        return DSV_OK;
    double *weight = calloc((size_t)channels, sizeof *weight);
    if (!weight)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the weights of %lld channels", (long long)channels);
    t->codec->pixel_errors(t->codec, weight);
    for (int64_t c = 0; c < channels; c++)
        sum += weight[c] = pow(weight[c], t->settings->loss_pixel_weight);
    for (int64_t c = 0; c < channels; c++)
        t->host_channel_weight[c] = (float)(weight[c] * (double)channels / sum);
    free(weight);
    return device->upload(device->stream, t->channel_weight, t->host_channel_weight, channel_weight_bytes(t));
}

/* Everything but memory on the device. Other ranks have no part in it. */
static DsvStatus prepare(const DsvConfig *settings, DsvBackend *backend, const DsvMesh *mesh,
                         DsvContextGroup *group, const DsvCodec *codec, const DsvDitConfig *config,
                         DsvSparseLog *log, void *log_context, DsvTrainer **out)
{
    DsvStatus status;
    DsvTrainer *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a trainer");
    t->settings = settings;
    t->backend = backend;
    t->comm = mesh->all;
    t->mesh = *mesh;
    t->group = group;
    t->codec = codec;
    t->config = *config;
    t->video = (DsvVideoShape){3, settings->num_frames, settings->height, settings->width};
    DSVI_TRY_GOTO(status, codec->latent_shape(codec, t->video, &t->latent), fail);
    t->elements = t->latent.channels * t->latent.frames * t->latent.height * t->latent.width;
    DSVI_TRY_GOTO(status, dsvi_dit_check_latent(config, codec, t->latent), fail);
    DSVI_TRY_GOTO(status, make_parts(t, log, log_context), fail);
    *out = t;
    return DSV_OK;
fail:
    dsvi_trainer_free(&t);
    return status;
}

DsvStatus dsvi_trainer_plan(const DsvTrainer *like, const DsvConfig *settings, DsvArena *plan,
                            DsvArena *host_plan)
{
    DsvTrainer *t;
    DSVI_TRY(prepare(settings, like->backend, &like->mesh, like->group, like->codec, &like->config, NULL,
                     NULL, &t));
    dsvi_arena_plan(plan);
    carve(t, plan);
    dsvi_arena_plan(host_plan);
    carve_host(t, host_plan);
    dsvi_trainer_free(&t);
    return DSV_OK;
}

/* Groups of ranks, which the trainer will own. */
static DsvStatus meet(const DsvConfig *settings, DsvBackend *backend, DsvComm *comm, DsvMesh *mesh,
                      DsvContextGroup **group)
{
    *group = NULL;
    DSVI_TRY(dsvi_mesh_make(settings, comm, mesh));
    DsvStatus status = DSV_OK;
    if (mesh->context)
        status = dsvi_context_group_create(backend, mesh->context, settings->cp_heads, group);
    if (status != DSV_OK)
        dsvi_mesh_free(mesh);
    return status;
}

DsvStatus dsvi_trainer_create(const DsvConfig *settings, DsvBackend *backend, DsvComm *comm,
                              const DsvCodec *codec, const DsvDitConfig *config, DsvSparseLog *log,
                              void *log_context, DsvTrainer **out)
{
    DsvStatus status;
    DsvTrainer *t;
    DsvMesh mesh;
    DsvContextGroup *group;
    *out = NULL;
    DSVI_TRY(meet(settings, backend, comm, &mesh, &group));
    status = prepare(settings, backend, &mesh, group, codec, config, log, log_context, &t);
    if (status != DSV_OK) {
        dsvi_context_group_close(&group);
        dsvi_mesh_free(&mesh);
        return status;
    }
    t->owns_groups = true;
    DSVI_TRY_GOTO(status, join_devices(t), fail);
    dsvi_sparse_share(t->sparse, t->comm, t->device_comm);
    DSVI_TRY_GOTO(status, allocate(t), fail);
    DSVI_TRY_GOTO(status, set_channel_weight(t), fail);
    DSVI_TRY_GOTO(status, dsvi_zero_open(&t->zero, t->device_comm), fail);
    DSVI_TRY_GOTO(status, dsvi_sparse_setup(t->sparse), fail);
    DsvDitWeights weights = dsvi_zero_weights(&t->zero);
    DSVI_TRY_GOTO(status, dsvi_dit_setup(t->dit, &weights), fail);
    if (t->generator)
        DSVI_TRY_GOTO(status, dsvi_generator_setup(t->generator, &weights), fail);
    if (t->held_out)
        DSVI_TRY_GOTO(status, dsvi_held_out_setup(t->held_out, &weights), fail);
    DSVI_TRY_GOTO(status, make_plans(t, log, log_context), fail);
    *out = t;
    return DSV_OK;
fail:
    dsvi_trainer_free(&t);
    return status;
}

void dsvi_trainer_free(DsvTrainer **trainer)
{
    DsvTrainer *t = *trainer;
    if (!t)
        return;
    dsvi_zero_free(&t->zero);
    if (t->device_comm != t->comm)
        dsvi_comm_close(&t->device_comm);
    if (t->owns_groups) {
        dsvi_context_group_close(&t->group);
        dsvi_mesh_free(&t->mesh);
    }
    dsvi_generator_free(&t->generator);
    dsvi_held_out_free(&t->held_out);
    dsvi_dit_free(&t->dit);
    dsvi_context_plans_free(&t->plans);
    dsvi_sparse_free(&t->sparse);
    dsvi_context_free(&t->context);
    dsvi_param_table_free(&t->table);
    t->backend->device->mem_free(t->backend->device, t->memory);
    t->backend->device->host_free(t->backend->device, t->host_memory);
    free(t);
    *trainer = NULL;
}

uint64_t dsvi_trainer_first_sample(const DsvTrainer *t)
{
    return t->sample + (uint64_t)(t->mesh.data_rank * t->settings->train_batch_size);
}

uint64_t dsvi_trainer_samples(const DsvTrainer *t)
{
    return (uint64_t)(t->mesh.data_ranks * t->settings->train_batch_size);
}

DsvStatus dsvi_trainer_start(DsvTrainer *t)
{
    DsvDevice *device = t->backend->device;
    DsvZero *z = &t->zero;
    size_t packed = (size_t)z->shard.own * sizeof(float);
    DSVI_TRY(dsvi_zero_store(z, t->host_flat, z->master));
    DSVI_TRY(dsvi_zero_refresh(z));
    DSVI_TRY(device->zero(device->stream, z->moment1.data, packed));
    DSVI_TRY(device->zero(device->stream, z->moment2.data, packed));
    if (z->ema.data)
        DSVI_TRY(dsvi_zero_store(z, t->host_flat, z->ema));
    return device->sync(device->stream);
}
