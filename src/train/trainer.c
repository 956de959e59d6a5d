/* Creates a trainer: plans, allocates, carves and sets up everything that a run holds. See trainer.h. */
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory_limit.h"
#include "base/offload.h"
#include "dist/peers.h"
#include "train/flow_batch.h"
#include "train/memory_explain.h"
#include "train/plan_speeds.h"
#include "train/trainer_offload.h"
#include "train/trainer_sizes.h"

static DsvStatus trainer_join_devices(DsviTrainer *t)
{
    t->device_comm = t->comm;
    if (dsvi_comm_size(t->comm) == 1 || !t->backend->join)
        return DSV_OK;
    t->device_comm = NULL;
    return t->backend->join(t->backend, t->comm, &t->device_comm);
}

/* Returns whether the run chooses parallel plans for attention. With `deterministic` it does not: plans
 * depend on measured times and change the order of sums, so results would not be reproducible. */
static bool chooses_plans(const DsvConfig *settings)
{
    return settings->cp_plan && !settings->deterministic;
}

static DsvStatus trainer_make_cp(DsviTrainer *t, const DsviDitShape *shape)
{
    const DsvConfig *settings = t->settings;
    DsviCpClip clip = dsvi_dit_cp_clip(&t->config, shape, settings);
    double rows = (double)(clip.tokens * clip.heads) / (double)dsvi_cp_group_size(t->group);
    clip.rows_max = chooses_plans(settings) ? (int64_t)(settings->cp_room * rows) : 0;
    DsvStatus status = dsvi_cp_create(t->group, &clip, &t->cp);
    return status == DSV_OK ? DSV_OK
                            : dsvi_fail_prefix(status, "cp_size is %lld, cp_heads %lld",
                                               (long long)t->mesh.cp_ranks, (long long)settings->cp_heads);
}

static const DsviLoraParams *trainer_lora(const DsviTrainer *t)
{
    return t->frozen ? &t->lora : NULL;
}

static DsviDitShape trainer_dit_shape(const DsviTrainer *t)
{
    const DsvConfig *settings = t->settings;
    DsviDitShape shape = dsvi_dit_shape_of(&t->config, settings->train_batch_size,
                                           t->sizes[t->main_size].latent);
    shape.given_first = dsvi_dit_given_first(settings);
    shape.act = dsvi_dit_act(settings);
    shape.backward = true;
    shape.keep = dsvi_dit_keep(settings);
    shape.offload = dsvi_offloads(settings, "residual");
    shape.loss = true;
    shape.grad_begin = dsvi_zero_grad_begin(&t->zero);
    shape.lora = trainer_lora(t);
    shape.lora_dropout = settings->lora_dropout;
    shape.cp = t->cp;
    return shape;
}

static DsvStatus trainer_make_plans(DsviTrainer *t, DsviSparseLog *log, void *log_context)
{
    DsviDitShape shape = trainer_dit_shape(t);
    const DsviCpPlansArgs args = {
        .settings = t->settings,
        .backend = t->backend,
        .all = t->comm,
        .group = t->group,
        .cp = t->cp,
        .sparse = t->sparse,
        .sparse_shape = dsvi_dit_sparse_shape(&t->config, &shape),
        .shape = dsvi_dit_cp_shape(&t->config, &shape, t->settings),
        .log = log,
        .log_context = log_context,
    };
    return t->cp && chooses_plans(t->settings) ? dsvi_cp_plans_create(&args, &t->plans) : DSV_OK;
}

/* Makes the table of the LoRA's matrices, which are trained instead of the weights. */
static DsvStatus trainer_make_lora(DsviTrainer *t)
{
    const DsvConfig *settings = t->settings;
    const DsviLoraOptions options = {
        .rank = settings->lora_rank,
        .alpha = settings->lora_alpha > 0 ? settings->lora_alpha : (double)settings->lora_rank,
        .layers = settings->lora_target_modules,
    };
    DSVI_TRY(dsvi_lora_params_make(&t->table, &options, &t->lora));
    t->trained = &t->lora.table;
    DSVI_TRY(dsvi_dit_frozen_create(&t->table, dsvi_dit_act(settings), &t->frozen));
    return dsvi_dit_stores_f8(settings) ? dsvi_dit_frozen_use_f8(t->frozen, t->backend) : DSV_OK;
}

/* Returns the bytes of the timesteps of a micro-batch. */
static size_t timestep_bytes(const DsviTrainer *t)
{
    return (size_t)(t->settings->train_batch_size * dsvi_flow_times(t->settings)) * sizeof(float);
}

/* Checks the options with which the first latent frame is given. */
static DsvStatus check_first_frame(const DsvConfig *settings, const DsviDitConfig *config)
{
    bool condition = dsvi_dit_takes_condition(config);
    if (condition && dsvi_dit_given_first(settings))
        return DSVI_FAIL(
            DSV_E_USAGE,
            "model.first_frame=given: the model takes the picture in channels beside the latent, "
            "expected noise");
    if (!dsvi_dit_given_first(settings) || settings->loss_pixel_weight == 0)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE, "loss_pixel_weight=%g: expected 0 with model.first_frame=given",
                     settings->loss_pixel_weight);
}

static DsvStatus trainer_make_parts(DsviTrainer *t, DsviSparseLog *log, void *log_context)
{
    const DsvConfig *settings = t->settings;
    const DsviDitConfig *config = &t->config;
    DSVI_TRY(dsvi_trainer_offload_check(settings, dsvi_comm_size(t->mesh.all), t->mesh.shard_ranks));
    DSVI_TRY(check_first_frame(settings, config));
    DSVI_TRY(dsvi_param_table_make(config, &t->table));
    t->trained = &t->table;
    if (settings->lora_rank > 0)
        DSVI_TRY(trainer_make_lora(t));
    DSVI_TRY(dsvi_zero_make(settings, t->backend, &t->mesh, t->trained, &t->zero));
    DsviDitShape shape = trainer_dit_shape(t);
    if (t->group)
        DSVI_TRY(trainer_make_cp(t, &shape));
    shape.cp = t->cp;
    DSVI_TRY(dsvi_trainer_sizes_create(t, &shape, log, log_context));
    bool samples = settings->validation_steps > 0 || settings->validation_at_end;
    const DsviVideoShape video = {3, settings->num_frames, settings->height, settings->width};
    /* The latent of clips that are sampled or held out, whose size data.buckets need not list. */
    DsviVideoShape window;
    DSVI_TRY(t->codec->latent_shape(t->codec, video, &window));
    if (samples || settings->validation_data[0]) {
        DSVI_TRY(dsvi_dit_check_input(config, t->codec, window));
        DSVI_TRY(dsvi_dit_check_pictures(config, window));
    }
    if (samples)
        DSVI_TRY(dsvi_generator_create(&(DsviGeneratorArgs){.backend = t->backend,
                                                            .settings = settings,
                                                            .codec = t->codec,
                                                            .config = config,
                                                            .table = &t->table,
                                                            .lora = trainer_lora(t),
                                                            .cp = t->cp,
                                                            .use_expert = t->experts ? dsvi_trainer_use_expert
                                                                                     : NULL,
                                                            .expert_context = t,
                                                            .boundary = t->experts ? t->experts->boundary : 0,
                                                            .image = dsvi_dit_takes_condition(config),
                                                            .image_len = dsvi_dit_image_len(config),
                                                            .given_first = dsvi_dit_given_first(settings)},
                                       &t->generator));
    if (settings->validation_data[0])
        DSVI_TRY(dsvi_held_out_create(&(DsviHeldOutArgs){.backend = t->backend,
                                                         .mesh = &t->mesh,
                                                         .settings = settings,
                                                         .latent = window,
                                                         .config = config,
                                                         .table = &t->table,
                                                         .lora = trainer_lora(t),
                                                         .cp = t->cp},
                                      &t->held_out));
    return DSV_OK;
}

/* Memory of training passes, of sampling and of held-out measurements. The three never run at the same time
 * and therefore share memory. If the gradients are stored in the memory of training passes, the three still
 * do not overlap: gradients are used up at the end of a step. */
static void trainer_carve_passes(DsviTrainer *t, DsviArena *arena)
{
    DsviArenaOverlay over = dsvi_arena_overlay_begin(arena);
    size_t sampling, begin = arena->used;
    dsvi_trainer_sizes_carve_pass(t, arena);
    dsvi_arena_overlay_next(arena, &over);
    if (t->generator)
        dsvi_generator_carve_run(t->generator, arena);
    sampling = arena->used - begin;
    dsvi_arena_overlay_next(arena, &over);
    if (t->held_out)
        dsvi_held_out_carve_run(t->held_out, arena);
    t->passes_begin = begin;
    t->others_bytes = arena->used - begin > sampling ? arena->used - begin : sampling;
    dsvi_arena_overlay_end(arena, &over);
}

static size_t channel_weight_bytes(const DsviTrainer *t)
{
    return (size_t)t->latent.channels * sizeof(float);
}

static bool has_channel_weights(const DsviTrainer *t)
{
    return t->settings->loss_pixel_weight > 0;
}

/* Lays out all device memory of a run. Called once to count bytes and once to assign addresses
 * (base/arena.h). */
static void trainer_carve(void *trainer, DsviArena *arena)
{
    DsviTrainer *t = trainer;
    size_t batch = (size_t)t->settings->train_batch_size;

    if (t->frozen)
        dsvi_dit_frozen_carve(t->frozen, arena);
    dsvi_zero_carve(&t->zero, t->settings, arena);
    t->sigma = dsvi_arena_take(arena, DSVI_MEM_DATA, batch * sizeof(float));
    t->timestep = dsvi_arena_take(arena, DSVI_MEM_DATA, timestep_bytes(t));
    t->text = dsvi_arena_take(arena, DSVI_MEM_DATA,
                              batch * (size_t)(t->config.text_len * t->config.text_dim) * sizeof(float));
    t->image = dsvi_arena_take(arena, DSVI_MEM_DATA, batch * (size_t)t->image_elements * sizeof(float));
    t->loss = dsvi_arena_take(arena, DSVI_MEM_DATA, batch * sizeof(float));
    if (has_channel_weights(t))
        t->channel_weight = dsvi_arena_take(arena, DSVI_MEM_DATA, channel_weight_bytes(t));

    dsvi_trainer_sizes_carve(t, arena);
    if (t->generator)
        dsvi_generator_carve(t->generator, arena);
    if (t->held_out)
        dsvi_held_out_carve(t->held_out, arena);
    trainer_carve_passes(t, arena);
}

static void trainer_carve_host(DsviTrainer *t, DsviArena *arena)
{
    size_t batch = (size_t)t->settings->train_batch_size;
    size_t latents = batch * (size_t)(t->inputs_max + t->image_elements) * sizeof(float);
    t->host_latents = dsvi_arena_take(arena, DSVI_MEM_DATA, latents);
    t->host_text = dsvi_arena_take(arena, DSVI_MEM_DATA,
                                   batch * (size_t)(t->config.text_len * t->config.text_dim) * sizeof(float));
    t->host_sigma = dsvi_arena_take(arena, DSVI_MEM_DATA, batch * sizeof(float));
    t->host_timestep = dsvi_arena_take(arena, DSVI_MEM_DATA, timestep_bytes(t));
    t->host_loss = dsvi_arena_take(arena, DSVI_MEM_DATA, batch * sizeof(float));
    t->host_weight = dsvi_arena_take(arena, DSVI_MEM_DATA, batch * sizeof(double));
    if (has_channel_weights(t))
        t->host_channel_weight = dsvi_arena_take(arena, DSVI_MEM_DATA, channel_weight_bytes(t));
    if (t->frozen && dsvi_comm_rank(t->comm) == 0)
        t->host_lora = dsvi_arena_take(arena, DSVI_MEM_DATA, (size_t)t->trained->elements * sizeof(float));
    dsvi_zero_carve_host(&t->zero, arena);
    t->step_parts = dsvi_arena_take(arena, DSVI_MEM_DATA,
                                    (size_t)dsvi_comm_size(t->comm) * sizeof(DsviStepPart));
    t->passed_over = dsvi_arena_take(arena, DSVI_MEM_DATA, (size_t)t->mesh.cp_ranks * sizeof *t->passed_over);
    if (t->held_out)
        dsvi_held_out_carve_host(t->held_out, arena);
    dsvi_trainer_sizes_carve_host(t, arena);
}

/* Counts the memory that a run takes, of the device and of the host. */
static void trainer_count(DsviTrainer *t, DsviArena *plan, DsviArena *host_plan)
{
    dsvi_arena_plan(plan);
    trainer_carve(t, plan);
    dsvi_arena_plan(host_plan);
    trainer_carve_host(t, host_plan);
    dsvi_trainer_offload_carve(t, host_plan);
}

static DsvStatus trainer_allocate_host(DsviTrainer *t)
{
    DsviDevice *device = t->backend->device;
    DsviArena host_plan;
    const DsviArena *plan = &host_plan;
    dsvi_arena_plan(&host_plan);
    trainer_carve_host(t, &host_plan);
    DsvStatus status = device->host_alloc(device, plan->used, &t->host_memory);
    if (status == DSV_E_NO_MEMORY && plan->by_class[DSVI_MEM_SPARSE] > 0)
        return dsvi_fail_prefix(status,
                                "sparse.offload_lists is true, and lists take %.1f GiB of the host's "
                                "memory with sparse.list_memory=%g and sparse.min_keys=%lld",
                                (double)plan->by_class[DSVI_MEM_SPARSE] / 1073741824.0,
                                t->settings->sparse_list_memory, (long long)t->settings->sparse_min_keys);
    if (status == DSV_E_NO_MEMORY && t->held_out && dsvi_held_out_bytes(t->held_out) > plan->used / 2)
        return dsvi_fail_prefix(status,
                                "validation.clips is %lld, and this rank's held-out windows take "
                                "%.1f GiB of the host's memory",
                                (long long)t->settings->validation_clips,
                                (double)dsvi_held_out_bytes(t->held_out) / 1073741824.0);
    DSVI_TRY(status);
    dsvi_arena_bind(&t->host_arena, t->host_memory, plan->used);
    trainer_carve_host(t, &t->host_arena);
    return DSV_OK;
}

/* Plans the memory and checks that there is so much. From now on the device refuses more than memory_gib. */
static DsvStatus trainer_check_room(DsviTrainer *t, DsviArena *plan)
{
    DsviDevice *device = t->backend->device;
    DsviArena host_plan;
    trainer_count(t, plan, &host_plan);
    t->host_available = device->host_available(device);
    DSVI_TRY(dsvi_peers_on_machine(t->comm, host_plan.used, &t->here));
    DSVI_TRY(dsvi_memory_check(t, plan, &host_plan));
    device->limit = (size_t)dsvi_memory_limit(t->settings);
    return DSV_OK;
}

/* Measures the costs of attention and of transfers between ranks, in device memory that is freed again before
 * the run takes its own: the two together could exceed memory_gib, or the memory of the device. */
static DsvStatus trainer_measure(DsviTrainer *t, DsviSparseLog *log, void *log_context)
{
    DSVI_TRY(dsvi_trainer_sizes_measure(t));
    return trainer_make_plans(t, log, log_context);
}

static DsvStatus trainer_allocate(DsviTrainer *t, const DsviArena *plan, DsviSparseLog *log,
                                  void *log_context)
{
    DsviDevice *device = t->backend->device;
    DsvStatus status = device->mem_alloc(device, plan->used, &t->memory);
    if (status == DSV_E_NO_MEMORY)
        return dsvi_memory_explain(t, plan, NULL);
    DSVI_TRY(status);
    /* Padding between parameters must be zero; updates keep it zero. */
    DSVI_TRY(device->clear(device->stream, t->memory, plan->used));
    dsvi_arena_bind(&t->arena, t->memory, plan->used);
    trainer_carve(t, &t->arena);
    DSVI_TRY(trainer_allocate_host(t));
    return dsvi_trainer_offload_open(t, log, log_context);
}

/* Uploads the loss weight of each latent channel: the pixel error that an error of the channel causes, to
 * the power loss_pixel_weight, scaled to mean 1 over channels. */
static DsvStatus set_channel_weight(DsviTrainer *t)
{
    DsviDevice *device = t->backend->device;
    int64_t channels = t->latent.channels;
    double sum = 0;
    if (!has_channel_weights(t))
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

/* Creates a trainer without its memory. `mesh` and `group` replace args->comm; the trainer does not own them.
 * Does not communicate with other ranks. */
static DsvStatus trainer_prepare(const DsviTrainerArgs *args, const DsviMesh *mesh, DsviCpGroup *group,
                                 DsviTrainer **out)
{
    const DsvConfig *settings = args->settings;
    const DsviCodec *codec = args->codec;
    DsvStatus status;
    DsviTrainer *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a trainer");
    t->settings = settings;
    t->backend = args->backend;
    t->comm = mesh->all;
    t->mesh = *mesh;
    t->group = group;
    t->codec = codec;
    t->config = *args->config;
    t->image_elements = dsvi_dit_image_len(&t->config) * t->config.image_dim;
    t->experts = args->experts;
    t->expert = t->experts ? t->experts->trained : 0;
    if (args->sizes)
        t->clips = *args->sizes;
    DSVI_TRY_GOTO(status, dsvi_trainer_sizes_list(t, &t->clips), fail);
    t->latent = t->sizes[t->main_size].latent;
    DSVI_TRY_GOTO(status, trainer_make_parts(t, args->log, args->log_context), fail);
    if (args->speeds)
        t->speeds = *args->speeds;
    t->here.ranks = args->ranks_here;
    DsviArena host;
    dsvi_arena_plan(&host);
    trainer_carve_host(t, &host);
    DSVI_TRY_GOTO(status,
                  dsvi_trainer_offload_choose(t, trainer_carve, host.used, args->plan_log, args->log_context),
                  fail);
    *out = t;
    return DSV_OK;
fail:
    dsvi_trainer_free(&t);
    return status;
}

DsvStatus dsvi_trainer_plan(const DsviTrainer *like, const DsvConfig *settings, DsviArena *plan,
                            DsviArena *host_plan)
{
    return dsvi_trainer_plan_report(like, settings, NULL, NULL, plan, host_plan);
}

DsvStatus dsvi_trainer_plan_report(const DsviTrainer *like, const DsvConfig *settings, DsviSparseLog *log,
                                   void *log_context, DsviArena *plan, DsviArena *host_plan)
{
    DsviTrainer *t;
    const DsviTrainerArgs args = {
        .settings = settings,
        .backend = like->backend,
        .codec = like->codec,
        .config = &like->config,
        .sizes = &like->clips,
        .speeds = &like->speeds,
        .ranks_here = like->here.ranks,
        .plan_log = log,
        .log_context = log_context,
    };
    DSVI_TRY(trainer_prepare(&args, &like->mesh, like->group, &t));
    trainer_count(t, plan, host_plan);
    dsvi_trainer_free(&t);
    return DSV_OK;
}

/* Creates the groups of ranks, which the trainer will own. *group is NULL if ranks do not share clips. */
static DsvStatus trainer_make_groups(const DsviTrainerArgs *args, DsviMesh *mesh, DsviCpGroup **group)
{
    *group = NULL;
    DSVI_TRY(dsvi_mesh_make(args->settings, args->comm, mesh));
    DsvStatus status = DSV_OK;
    if (mesh->cp)
        status = dsvi_cp_group_create(args->backend, mesh->cp, args->settings->cp_heads, group);
    if (status != DSV_OK)
        dsvi_mesh_free(mesh);
    return status;
}

/* Returns the weights with which passes compute. */
static DsviDitWeights trainer_weights(DsviTrainer *t)
{
    if (!t->frozen)
        return dsvi_zero_weights(&t->zero);
    DsviDitWeights weights = dsvi_dit_frozen_weights(t->frozen);
    t->lora_weights = dsvi_zero_weights(&t->zero);
    weights.lora = &t->lora_weights;
    return weights;
}

/* Creates what deals batches of several sizes to ranks. */
static DsvStatus trainer_make_dealer(DsviTrainer *t, const DsviTrainerArgs *args)
{
    double cost[DSVI_CLIP_SIZES_MAX];
    if (t->size_count == 1)
        return DSV_OK;
    dsvi_trainer_sizes_costs(t, cost);
    return dsvi_dealer_create(&(DsviDealerArgs){.ranks = t->mesh.data_ranks,
                                                .passes = t->settings->gradient_accumulation_steps,
                                                .sizes = t->size_count,
                                                .cost = cost,
                                                .balance = t->settings->data_balance,
                                                .size_of = args->size_of,
                                                .context = args->size_context},
                              &t->dealer);
}

DsvStatus dsvi_trainer_create(const DsviTrainerArgs *args, DsviTrainer **out)
{
    DsvStatus status;
    DsviTrainer *t;
    DsviMesh mesh;
    DsviCpGroup *group;
    DsviDeviceSpeeds speeds;
    DsviArena plan;
    DsviTrainerArgs with_speeds = *args;
    *out = NULL;
    if (dsvi_plan_needs_speeds(args->settings, args->backend->device) && !args->speeds) {
        DsviPeersOnMachine here;
        DSVI_TRY(dsvi_peers_on_machine(args->comm, 0, &here));
        DSVI_TRY(dsvi_plan_speeds(args->settings, args->backend, &speeds));
        with_speeds.ranks_here = here.ranks;
        with_speeds.speeds = &speeds;
    }
    DSVI_TRY(trainer_make_groups(args, &mesh, &group));
    status = trainer_prepare(&with_speeds, &mesh, group, &t);
    if (status != DSV_OK) {
        dsvi_cp_group_close(&group);
        dsvi_mesh_free(&mesh);
        return status;
    }
    t->owns_groups = true;
    DSVI_TRY_GOTO(status, trainer_join_devices(t), fail);
    dsvi_trainer_sizes_set_comm(t);
    DSVI_TRY_GOTO(status, trainer_make_dealer(t, args), fail);
    DSVI_TRY_GOTO(status, trainer_check_room(t, &plan), fail);
    DSVI_TRY_GOTO(status, trainer_measure(t, args->log, args->log_context), fail);
    DSVI_TRY_GOTO(status, trainer_allocate(t, &plan, args->log, args->log_context), fail);
    DSVI_TRY_GOTO(status, set_channel_weight(t), fail);
    DSVI_TRY_GOTO(status, dsvi_zero_open(&t->zero, t->device_comm), fail);
    DsviDitWeights weights = trainer_weights(t);
    DSVI_TRY_GOTO(status, dsvi_trainer_sizes_setup(t, &weights), fail);
    if (t->generator)
        DSVI_TRY_GOTO(status, dsvi_generator_setup(t->generator, &weights), fail);
    if (t->held_out)
        DSVI_TRY_GOTO(status, dsvi_held_out_setup(t->held_out, &weights), fail);
    *out = t;
    return DSV_OK;
fail:
    dsvi_trainer_free(&t);
    return status;
}

void dsvi_trainer_free(DsviTrainer **trainer)
{
    DsviTrainer *t = *trainer;
    if (!t)
        return;
    dsvi_trainer_offload_settle(t);
    dsvi_zero_free(&t->zero);
    if (t->device_comm != t->comm)
        dsvi_comm_close(&t->device_comm);
    if (t->owns_groups) {
        dsvi_cp_group_close(&t->group);
        dsvi_mesh_free(&t->mesh);
        t->backend->device->limit = 0;
    }
    dsvi_generator_free(&t->generator);
    dsvi_held_out_free(&t->held_out);
    dsvi_cp_plans_free(&t->plans);
    dsvi_trainer_sizes_free(t);
    dsvi_dealer_free(&t->dealer);
    dsvi_cp_free(&t->cp);
    dsvi_dit_frozen_free(&t->frozen);
    dsvi_lora_params_free(&t->lora);
    dsvi_param_table_free(&t->table);
    t->backend->device->mem_free(t->backend->device, t->memory);
    t->backend->device->host_free(t->backend->device, t->host_memory);
    dsvi_host_pool_close(t->backend->device, &t->waiting);
    free(t);
    *trainer = NULL;
}

uint64_t dsvi_trainer_next_batch(const DsviTrainer *t, int64_t *size)
{
    uint64_t batch = (uint64_t)t->settings->train_batch_size;
    if (size)
        *size = t->main_size;
    if (!t->dealer)
        return t->sample + (uint64_t)t->mesh.data_rank * batch;
    uint64_t first = t->sample - (uint64_t)t->pass * dsvi_trainer_samples(t); /* of the step */
    return batch * dsvi_dealer_batch(t->dealer, first / batch, t->mesh.data_rank, t->pass, size);
}

uint64_t dsvi_trainer_first_sample(const DsviTrainer *t)
{
    return dsvi_trainer_next_batch(t, NULL);
}

uint64_t dsvi_trainer_samples(const DsviTrainer *t)
{
    return (uint64_t)(t->mesh.data_ranks * t->settings->train_batch_size);
}
