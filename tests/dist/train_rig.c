/* See train_rig.h. */
#include "train_rig.h"

#include "backend/backend.h"
#include "run/checkpoint.h"
#include "train/tiny.h"

typedef struct Source {
    const DsviTrainer *trainer;
    const Rig *rig;
    uint64_t taken; /* by this rank */
} Source;

static void fill_text(const DsviTrainer *t, uint64_t number, DsviSample *sample)
{
    sample->text_rows = 1 + (int64_t)(number % (uint64_t)t->config.text_len);
    for (int64_t i = 0; i < sample->text_rows * t->config.text_dim; i++)
        sample->text[i] = (float)cos(0.07 * (double)i * (double)(number % 13 + 1));
}

/* Fills the latent with waves whose length depends on the number of the sample. */
static DsvStatus next_latent(void *context, DsviSample *sample)
{
    Source *source = context;
    float *latent = sample->latent;
    const DsviTrainer *t = source->trainer;
    const Rig *rig = source->rig;
    uint64_t batch = (uint64_t)t->settings->train_batch_size, taken = source->taken++;
    int64_t size;
    uint64_t number = dsvi_trainer_next_batch(t, &size) + taken % batch;
    bool here = dsvi_comm_rank(t->comm) == rig->fault_rank && (int64_t)(taken / batch) + 1 >= rig->fault_step;
    if (here && rig->fault == RIG_NO_SAMPLE)
        return DSVI_FAIL(DSV_E_IO, "the disk is gone");
    for (int64_t i = 0; i < t->sizes[size].elements; i++)
        latent[i] = (float)sin(0.1 * (double)(i % 97) * (double)(number % 11 + 1) + (double)number);
    if (rig->text)
        fill_text(t, number, sample);
    if (here && rig->fault == RIG_NAN_SAMPLE)
        latent[5] = NAN;
    return DSV_OK;
}

/* One step, with NaN written to rank 1's gradient buffer before the micro-batches are added to it. The buffer
 * must not alias other buffers, so it needs several micro-batches. */
static DsvStatus spoilt_step(DsviTrainer *t, DsviStepResult *result)
{
    size_t latents = (size_t)(t->settings->train_batch_size * t->elements) * sizeof(float);
    if (t->settings->gradient_accumulation_steps == 1)
        return DSVI_FAIL(DSV_E_USAGE, "a gradient that shares memory cannot be spoilt");
    memset(result, 0, sizeof *result);
    result->step = t->step + 1;
    memset(t->latents, 0, latents);
    memset(t->noise, 0, latents);
    memset(t->zero.grad.data, dsvi_comm_rank(t->comm) == 1 ? 0xff : 0,
           (size_t)t->table.elements * sizeof(float));
    DSVI_TRY(dsvi_sparse_step_begin(t->sparse, result->step, true));
    DSVI_TRY(dsvi_train_gradients(t, true, NULL, result));
    return dsvi_train_update(t, result);
}

static DsvStatus keep_whole(DsviTrainer *t, DsviStateArray array, float **out)
{
    size_t bytes = (size_t)t->table.elements * sizeof(float);
    if (dsvi_comm_rank(t->comm) == 0)
        *out = malloc(bytes);
    return dsvi_zero_fetch_whole(&t->zero, array, *out);
}

/* Keeps the bytes of a moment, and after them bytes of zero up to those of an F32 array. */
static DsvStatus keep_moment(DsviTrainer *t, int moment, float **out)
{
    size_t bytes = (size_t)t->table.elements * sizeof(float);
    if (dsvi_comm_rank(t->comm) == 0)
        *out = calloc(1, bytes);
    return dsvi_zero_fetch_whole(&t->zero, dsvi_state_moment(moment, false), *out);
}

/* Copies the weights with which a pass would compute. */
static DsvStatus keep_work(DsviTrainer *t, RigRank *rank)
{
    DsviDevice *device = t->backend->device;
    const DsviShard *shard = &t->zero.compute_shard;
    DsviDitWeights weights = dsvi_zero_weights(&t->zero);
    rank->work_bytes = shard->begin[shard->buckets];
    rank->work = calloc((size_t)rank->work_bytes, 1);
    for (int64_t b = 0; b < shard->buckets; b++) {
        DsviDitBucket where;
        DSVI_TRY(weights.acquire(weights.owner, DSVI_PASS_FORWARD, b, &where));
        DSVI_TRY(device->download(device->stream, rank->work + shard->begin[b], where.acc,
                                  (size_t)dsvi_shard_bucket_size(shard, b)));
        DSVI_TRY(device->sync(device->stream));
        DSVI_TRY(weights.release(weights.owner, DSVI_PASS_FORWARD, b));
    }
    return DSV_OK;
}

static DsvStatus keep(DsviTrainer *t, RigRank *rank)
{
    rank->elements = t->table.elements;
    rank->own = t->zero.shard.own;
    rank->largest = dsvi_shard_largest_bucket(&t->zero.shard);
    const DsviShard *work = &t->zero.compute_shard;
    rank->own_work = work->own;
    rank->largest_work = dsvi_shard_largest_bucket(work);
    rank->own_first_two = dsvi_shard_count(work, 0) + dsvi_shard_count(work, 1);
    rank->own_last_two = dsvi_shard_count(work, work->buckets - 1) +
                         dsvi_shard_count(work, work->buckets - 2);
    rank->plan = t->arena;
    rank->host_plan = t->host_arena;
    dsvi_sparse_report(t->sparse, &rank->report);
    for (int64_t b = 0; b < rank->report.blocks; b++) {
        DsviSparseBlockReport block;
        dsvi_sparse_block_report(t->sparse, b, &block);
        rank->captured[b] = block.captured_mass;
        rank->density[b] = block.density;
        rank->sparse[b] = block.sparse;
    }
    DSVI_TRY(keep_work(t, rank));
    DSVI_TRY(keep_whole(t, DSVI_STATE_MASTER, &rank->weights));
    DSVI_TRY(keep_moment(t, 0, &rank->moment1));
    DSVI_TRY(keep_moment(t, 1, &rank->moment2));
    return t->zero.ema.data ? keep_whole(t, DSVI_STATE_EMA, &rank->ema) : DSV_OK;
}

static DsvStatus take_steps(Rig *rig, DsviTrainer *t, RigRank *rank)
{
    Source source = {t, rig, 0};
    DsviSampleSource samples = {.context = &source, .next = next_latent, .text = rig->text};
    DSVI_TRY(dsvi_trainer_start_new(t, 1));
    for (int step = 0; step < rig->steps; step++) {
        if (rig->between)
            DSVI_TRY(rig->between(t, step));
        bool spoilt = rig->fault == RIG_NAN_GRADIENT && step + 1 >= rig->fault_step;
        DSVI_TRY(spoilt ? spoilt_step(t, &rank->step[step])
                        : dsvi_train_step(t, &samples, &rank->step[step]));
        rank->sent[step] = dsvi_comm_sent(t->comm).bytes;
        if (t->zero.shard_comm != t->comm)
            rank->sent[step] += dsvi_comm_sent(t->zero.shard_comm).bytes;
        rank->sent[step] += dsvi_comm_sent(t->zero.replica_comm).bytes;
    }
    return keep(t, rank);
}

typedef struct Parts {
    DsvConfig settings;
    DsviBackend backend;
    DsviCodec *codec;
    DsviDitConfig config;
    DsviClipSizes sizes; /* of data.buckets */
    int64_t only_size;
    DsviTrainer *trainer;
} Parts;

static size_t nothing_used(DsviDevice *device)
{
    (void)device;
    return 0;
}

/* Batches of all sizes in an order without rule. */
static int64_t rig_size_of(void *context, uint64_t batch)
{
    const Parts *p = context;
    const DsviClipSizes *sizes = &p->sizes;
    if (p->only_size > 0)
        return p->only_size - 1;
    return (int64_t)((batch * 2654435761u >> 7) % (uint64_t)sizes->count);
}

/* With one compute thread per rank, the ranks need not share a thread pool. */
static DsvStatus open_parts(const Rig *rig, Parts *p, DsviComm *comm)
{
    DsviVideoShape video = {3, TINY_FRAMES, TINY_SIDE, TINY_SIDE}, latent;
    DSVI_TRY(dsvi_backend_open_rank(&p->settings, comm, &p->backend));
    if (rig->memory_bytes > 0) {
        p->backend.device->memory_bytes = rig->memory_bytes;
        p->backend.device->memory_used = nothing_used;
    }
    if (rig->host_bytes > 0)
        p->backend.device->host_bytes = rig->host_bytes;
    DSVI_TRY(dsvi_codec_open(&p->settings, &p->codec));
    DSVI_TRY(p->codec->latent_shape(p->codec, video, &latent));
    DSVI_TRY(dsvi_dit_config_make(&p->settings, &p->config));
    p->config.in_channels = p->config.out_channels = latent.channels;
    p->only_size = rig->only_size;
    if (p->settings.data_buckets[0])
        DSVI_TRY(dsvi_clip_sizes_parse(p->settings.data_buckets, &p->sizes));
    int64_t groups = rig->ranks / p->settings.cp_size;
    p->settings.train_batch_size = (rig->samples ? rig->samples : RIG_SAMPLES) / groups;
    return dsvi_trainer_create(&(DsviTrainerArgs){.settings = &p->settings,
                                                  .backend = &p->backend,
                                                  .comm = comm,
                                                  .codec = p->codec,
                                                  .config = &p->config,
                                                  .sizes = &p->sizes,
                                                  .size_of = rig_size_of,
                                                  .size_context = p},
                               &p->trainer);
}

static Parts parts[RANKS_MAX];

static DsvStatus train(DsviComm *comm, void *context)
{
    Rig *rig = context;
    Parts *p = &parts[dsvi_comm_rank(comm)];
    DsvStatus status = open_parts(rig, p, comm);
    if (status == DSV_OK)
        status = take_steps(rig, p->trainer, &rig->rank[dsvi_comm_rank(comm)]);
    if (status != DSV_E_DIVERGED) /* a failure that all ranks know */
        status = dsvi_comm_fail(comm, status);
    dsvi_trainer_free(&p->trainer);
    if (p->codec)
        p->codec->close(p->codec);
    dsvi_backend_close(&p->backend);
    return status;
}

void rig_train(Rig *rig)
{
    memset(rig->rank, 0, sizeof rig->rank);
    memset(parts, 0, sizeof parts);
    for (int64_t r = 0; r < rig->ranks; r++) {
        tiny_settings(&parts[r].settings);
        for (const char *const *a = rig->assignment; *a; a++)
            assert_ok(dsv_config_set(&parts[r].settings, *a));
        parts[r].settings.zero_stage = rig->stage ? rig->stage : parts[r].settings.zero_stage;
        parts[r].settings.hsdp_shard_dim = rig->shard_ranks;
        parts[r].settings.cp_size = rig->cp_ranks ? rig->cp_ranks : 1;
        parts[r].settings.cp_heads = rig->head_ranks;
        snprintf(parts[r].settings.device, sizeof parts[r].settings.device, "%s", rig->device);
        parts[r].settings.threads = 1;
        parts[r].settings.deterministic = !rig->free;
    }
    run_ranks(rig->ranks, 60, train, rig, rig->outcome);
    for (int64_t r = 0; r < rig->ranks && rig->fault == RIG_SOUND; r++)
        if (rig->outcome[r].status != DSV_OK)
            fail_msg("rank %d of %d: %s", (int)r, (int)rig->ranks, rig->outcome[r].sentence);
}

void rig_free(Rig *rig)
{
    for (int64_t r = 0; r < rig->ranks; r++) {
        free(rig->rank[r].weights);
        free(rig->rank[r].work);
        free(rig->rank[r].moment1);
        free(rig->rank[r].moment2);
        free(rig->rank[r].ema);
    }
}

static void same_steps(const RigRank *x, const RigRank *y, int steps)
{
    for (int step = 0; step < steps; step++) {
        assert_memory_equal(&x->step[step].loss, &y->step[step].loss, sizeof(double));
        assert_memory_equal(&x->step[step].grad_norm, &y->step[step].grad_norm, sizeof(double));
    }
}

void rig_same_on_all_ranks(const Rig *rig)
{
    const RigRank *first = &rig->rank[0];
    for (int64_t r = 1; r < rig->ranks; r++) {
        const RigRank *rank = &rig->rank[r];
        assert_int_equal(rank->work_bytes, first->work_bytes);
        assert_memory_equal(rank->work, first->work, (size_t)first->work_bytes);
        same_steps(rank, first, rig->steps);
        assert_memory_equal(&rank->report.predictor_loss, &first->report.predictor_loss, sizeof(double));
        assert_memory_equal(&rank->report.output_error, &first->report.output_error, sizeof(double));
        assert_memory_equal(rank->captured, first->captured, sizeof rank->captured);
        assert_memory_equal(rank->density, first->density, sizeof rank->density);
        assert_memory_equal(rank->sparse, first->sparse, sizeof rank->sparse);
    }
}

void rig_same_bits(const Rig *a, const Rig *b)
{
    const RigRank *x = &a->rank[0], *y = &b->rank[0];
    size_t bytes = (size_t)x->elements * sizeof(float);
    assert_int_equal(x->elements, y->elements);
    same_steps(x, y, a->steps);
    assert_memory_equal(x->weights, y->weights, bytes);
    assert_memory_equal(x->moment1, y->moment1, bytes);
    assert_memory_equal(x->moment2, y->moment2, bytes);
    assert_int_equal(x->ema != NULL, y->ema != NULL);
    if (x->ema)
        assert_memory_equal(x->ema, y->ema, bytes);
    for (int64_t r = 0; r < b->ranks; r++) {
        assert_int_equal(x->work_bytes, b->rank[r].work_bytes);
        assert_memory_equal(x->work, b->rank[r].work, (size_t)x->work_bytes);
    }
}

void rig_close_to(const Rig *one, const Rig *many, double bound)
{
    const RigRank *a = &one->rank[0], *b = &many->rank[0];
    int ranks = (int)many->ranks;
    for (int step = 0; step < one->steps; step++) {
        const DsviStepResult *x = &a->step[step], *y = &b->step[step];
        assert_error_below(fabs(y->loss / x->loss - 1), bound, "loss of step %d, %d ranks", step + 1, ranks);
        assert_error_below(fabs(y->grad_norm / x->grad_norm - 1), bound, "norm of step %d, %d ranks",
                           step + 1, ranks);
        for (int bin = 0; bin < DSVI_SIGMA_BINS; bin++)
            assert_int_equal(x->bin_samples[bin], y->bin_samples[bin]);
    }
    double x = a->report.predictor_loss, y = b->report.predictor_loss;
    if (!isnan(x) || !isnan(y))
        assert_error_below(fabs(y / x - 1), bound, "the predictor's loss, %d ranks", ranks);
    assert_error_below(relative_l2(DSVI_F32, b->weights, DSVI_F32, a->weights, a->elements), bound,
                       "weights");
    assert_error_below(relative_l2(DSVI_F32, b->ema, DSVI_F32, a->ema, a->elements), bound, "moving average");
    /* The first moment averages gradients, the second moment averages their squares. */
    assert_error_below(relative_l2(DSVI_F32, b->moment1, DSVI_F32, a->moment1, a->elements), bound,
                       "gradients");
    assert_error_below(relative_l2(DSVI_F32, b->moment2, DSVI_F32, a->moment2, a->elements), 2 * bound,
                       "squares of gradients");
}

void rig_expect_diverged(const Rig *rig)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, "rank %d: step %d: loss ", (int)rig->fault_rank, (int)rig->fault_step);
    for (int r = 0; r < rig->ranks; r++) {
        const RankOutcome *o = &rig->outcome[r];
        assert_int_equal(o->status, DSV_E_DIVERGED);
        if (!strstr(o->sentence, wanted) || !strstr(o->sentence, "are not both finite"))
            fail_msg("stage %d: %s", (int)rig->stage, o->sentence);
    }
}

static char saved[DSVI_PATH_MAX], saved_again[DSVI_PATH_MAX];

void rig_checkpoints_begin(void)
{
    snprintf(saved, sizeof saved, "%s", tiny_folder());
    snprintf(saved_again, sizeof saved_again, "%s", tiny_folder());
}

DsvStatus rig_save_after_three_steps(DsviTrainer *t, int step)
{
    char path[DSVI_PATH_MAX];
    return step == 3 ? dsvi_checkpoint_save(t, saved, path) : DSV_OK;
}

DsvStatus rig_load_then_save(DsviTrainer *t, int step)
{
    char path[DSVI_PATH_MAX];
    if (step > 0)
        return DSV_OK;
    snprintf(path, sizeof path, "%s/checkpoint-3", saved);
    DSVI_TRY(dsvi_checkpoint_load(t, path));
    return dsvi_checkpoint_save(t, saved_again, path);
}

void rig_same_checkpoints(void)
{
    tiny_same_checkpoints(saved, saved_again, 3);
}

void rig_checkpoints_end(void)
{
    assert_ok(dsvi_folder_remove(saved));
    assert_ok(dsvi_folder_remove(saved_again));
}

bool rig_two_gpus(void)
{
    static const char *const dense[] = {"sparse.enabled=false", NULL};
    Rig rig = {.device = "cuda",
               .assignment = dense,
               .ranks = 2,
               .steps = 1,
               .fault = RIG_NO_SAMPLE,
               .fault_rank = -1};
    rig_train(&rig);
    rig_free(&rig);
    return gpus_were_joined(rig.outcome);
}
