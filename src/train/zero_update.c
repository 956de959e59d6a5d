/* The update of the weights that a rank keeps, by AdamW or Muon, and their compute weights. See zero.h. */
#include "train/train_modules.h"
#include "train/zero_internal.h"

/* A part of this rank's shard of a bucket: either its F32 parameters or its GEMM weights. */
typedef struct ShardPart {
    int64_t at, count; /* elements [at, at + count) of the shard */
    DsviDtype dtype;   /* of the compute weights */
    void *compute;     /* compute weights of the part; NULL: they are the master weights */
} ShardPart;

/* What updates a bucket: the device, or the CPU if it does so in host memory. */
typedef struct Worker {
    const DsviOps *ops;
    DsviStream *stream;
    float *grad;            /* this rank's shard of the bucket's gradients */
    unsigned char *compute; /* this rank's shard of its compute weights */
} Worker;

static Worker worker_of(const DsviZero *z, int64_t bucket)
{
    const DsviBackend *backend = z->backend;
    if (dsvi_zero_on_host(z, bucket))
        return (Worker){&backend->host_ops, NULL, dsvi_zero_host_grad(z, bucket),
                        dsvi_zero_host_weights(z, bucket)};
    return (Worker){&backend->ops, backend->device->stream, dsvi_zero_local_grad(z, bucket),
                    dsvi_zero_local_weights(z, bucket)};
}

static ShardPart shard_part(const DsviZero *z, const Worker *worker, int64_t bucket, bool gemm)
{
    int64_t border = z->table->gemm[bucket] - z->table->begin[bucket];
    int64_t first = dsvi_shard_first(&z->shard, bucket), end = first + dsvi_shard_count(&z->shard, bucket);
    int64_t from = gemm && first < border ? border : first, to = !gemm && end > border ? border : end;
    ShardPart part = {
        .at = from - first,
        .count = to > from ? to - from : 0,
        .dtype = gemm ? z->act : DSVI_F32,
    };
    if (z->act != DSVI_F32)
        part.compute = worker->compute + dsvi_zero_compute_bytes(z, bucket, from) -
                       dsvi_zero_compute_bytes(z, bucket, first);
    return part;
}

/* Returns this rank's shard of a bucket of the master weights or of their moving average. */
static float *state_floats(const DsviZero *z, DsviStateArray array, int64_t bucket)
{
    return dsvi_zero_state(z, array, bucket);
}

static void set_moments(const DsviZero *z, int64_t bucket, int64_t at, DsviAdamwArgs *args)
{
    unsigned char *data[2], *scales[2];
    for (int i = 0; i < 2; i++) {
        data[i] = dsvi_zero_state(z, dsvi_state_moment(i, false), bucket);
        scales[i] = dsvi_zero_state(z, dsvi_state_moment(i, true), bucket);
    }
    dsvi_moments_arrays(&z->moments, &z->shard, bucket, at, data, scales, args);
}

static DsvStatus update_part(DsviZero *z, const Worker *worker, int64_t bucket, bool gemm,
                             const DsviAdamwArgs *options)
{
    ShardPart part = shard_part(z, worker, bucket, gemm);
    DsviAdamwArgs args = *options;
    args.n = part.count;
    args.acc = DSVI_F32;
    args.grad = worker->grad + part.at;
    args.weight = state_floats(z, DSVI_STATE_MASTER, bucket) + part.at;
    set_moments(z, bucket, part.at, &args);
    args.ema = z->ema.data ? state_floats(z, DSVI_STATE_EMA, bucket) + part.at : NULL;
    args.copy = part.compute;
    args.copy_dtype = part.dtype;
    if (part.count == 0)
        return DSV_OK;
    return args.state_dtype == DSVI_U8 ? worker->ops->adamw_8bit.run(worker->stream, &args)
                                       : worker->ops->adamw.run(worker->stream, &args);
}

/* Converts a part of the master weights to compute weights. */
static DsvStatus convert_part(DsviZero *z, const Worker *worker, int64_t bucket, bool gemm)
{
    ShardPart part = shard_part(z, worker, bucket, gemm);
    DsviAddArgs args = {
        .n = part.count,
        .a = 1,
        .x_dtype = DSVI_F32,
        .y_dtype = part.dtype,
        .x = state_floats(z, DSVI_STATE_MASTER, bucket) + part.at,
        .y = part.compute,
    };
    if (!part.compute || part.count == 0)
        return DSV_OK;
    return worker->ops->add.run(worker->stream, &args);
}

/* ---- Muon ---- */

/* Replaces this rank's shard of a bucket's gradients by directions, in the whole buffer of the bucket. */
static DsvStatus make_directions(DsviZero *z, int64_t bucket, const ShardPart *part,
                                 const DsviAdamwArgs *options)
{
    const DsviOps *ops = &z->backend->ops;
    DsviStream *stream = z->backend->device->stream;
    DsviAdamwArgs moments;
    float *grad = dsvi_zero_local_grad(z, bucket) + part->at;
    set_moments(z, bucket, part->at, &moments);
    DsviMuonArgs args = {
        .n = part->count,
        .momentum = z->muon_momentum,
        .grad_scale = options->grad_scale,
        .acc = DSVI_F32,
        .grad = grad,
        .m = moments.m,
    };
    DsviAddArgs copy = {
        .n = part->count,
        .a = 1,
        .x_dtype = DSVI_F32,
        .y_dtype = DSVI_F32,
        .x = grad,
        .y = dsvi_zero_bucket_grad(z, bucket) + dsvi_shard_first(&z->shard, bucket) + part->at,
    };
    DSVI_TRY(ops->muon_momentum.run(stream, &args));
    return copy.x == copy.y ? DSV_OK : ops->add.run(stream, &copy);
}

/* Updates the elements of matrix `param` that are in this rank's part, [begin, end) of the bucket, from the
 * whole matrix's direction. */
static DsvStatus update_matrix(DsviZero *z, int64_t bucket, const DsviParam *param, const ShardPart *part,
                               const DsviAdamwArgs *options)
{
    int64_t shard_first = dsvi_shard_first(&z->shard, bucket);
    int64_t matrix = param->offset - z->table->begin[bucket]; /* its place in the bucket */
    int64_t first = shard_first + part->at, end = first + part->count;
    int64_t from = matrix > first ? matrix : first;
    int64_t to = matrix + param->count < end ? matrix + param->count : end;
    float *directions = dsvi_zero_bucket_grad(z, bucket);
    int64_t rows = param->shape[0], cols = param->shape[1];
    if (from >= to)
        return DSV_OK;
    DSVI_TRY(dsvi_muon_orthogonalise(&z->muon, z->backend, rows, cols, directions + matrix));
    DsviMuonArgs args = {
        .n = to - from,
        .lr = options->lr,
        .weight_decay = options->weight_decay,
        .rate = options->lr * dsvi_muon_factor(rows, cols),
        .acc = DSVI_F32,
        .grad = directions + from,
        .weight = state_floats(z, DSVI_STATE_MASTER, bucket) + (from - shard_first),
        .ema_decay = options->ema_decay,
        .ema = z->ema.data ? state_floats(z, DSVI_STATE_EMA, bucket) + (from - shard_first) : NULL,
        .copy_dtype = part->dtype,
        .copy = part->compute ? (char *)part->compute + (size_t)(from - first) * dsvi_dtype_size(part->dtype)
                              : NULL,
    };
    return z->backend->ops.muon_step.run(z->backend->device->stream, &args);
}

/* Updates the matrices of a block with Muon. Ranks gather the directions of the whole bucket, where gradients
 * have been, and each rank orthogonalises the matrices of which it keeps a part. */
static DsvStatus update_matrices(DsviZero *z, const Worker *worker, int64_t bucket,
                                 const DsviAdamwArgs *options)
{
    ShardPart part = shard_part(z, worker, bucket, true);
    if (part.count > 0)
        DSVI_TRY(make_directions(z, bucket, &part, options));
    DSVI_TRY(dsvi_zero_gather_directions(z, bucket));
    for (int64_t i = 0; i < z->table->count; i++) {
        const DsviParam *param = &z->table->params[i];
        if (param->in_compute_dtype && dsvi_param_bucket(z->table, param->offset) == bucket)
            DSVI_TRY(update_matrix(z, bucket, param, &part, options));
    }
    return DSV_OK;
}

/* ---- all weights ---- */

static DsvStatus update_bucket(DsviZero *z, int64_t bucket, const DsviAdamwArgs *step)
{
    DsviAdamwArgs options = *step;
    const Worker worker = worker_of(z, bucket);
    DSVI_TRY(dsvi_train_modules_decay(z, worker.ops, worker.stream, bucket,
                                      state_floats(z, DSVI_STATE_MASTER, bucket), options.lr,
                                      &options.weight_decay));
    DSVI_TRY(update_part(z, &worker, bucket, false, &options));
    if (z->moments.optimizer == DSVI_MUON && dsvi_moments_of_matrices(z->table, bucket))
        return update_matrices(z, &worker, bucket, &options);
    return update_part(z, &worker, bucket, true, &options);
}

/* Updates a bucket, wherever its state waits, and provides its new compute weights. If the CPU updates it,
 * its gradients are in host memory. */
static DsvStatus visit_bucket(DsviZero *z, int64_t bucket, const DsviAdamwArgs *options)
{
    DSVI_TRY(dsvi_zero_state_enter(z, bucket));
    DSVI_TRY(update_bucket(z, bucket, options));
    DSVI_TRY(dsvi_zero_state_leave(z, bucket, true));
    return dsvi_zero_publish(z, bucket);
}

DsvStatus dsvi_zero_update(DsviZero *z, const DsviAdamwArgs *options)
{
    if (dsvi_zero_on_host(z, 0))
        DSVI_TRY(dsvi_zero_fetch_grads(z, 0));
    for (int64_t b = 0; b < z->shard.buckets; b++) {
        if (dsvi_zero_on_host(z, b))
            DSVI_TRY(dsvi_zero_await_grads(z));
        if (dsvi_zero_on_host(z, b + 1))
            DSVI_TRY(dsvi_zero_fetch_grads(z, b + 1));
        DSVI_TRY(visit_bucket(z, b, options));
    }
    DSVI_TRY(dsvi_zero_state_end(z));
    return dsvi_zero_wait_for_queue(z);
}

void dsvi_zero_update_in_pass(DsviZero *z, const DsviAdamwArgs *options)
{
    DSVI_ASSERT(z->updates_in_pass);
    z->update = *options;
    z->next_update = -1;
}

/* Sends a bucket's gradients to the CPU, which meanwhile updates the bucket before. The backward pass reuses
 * that bucket's slot for gradients next, so they must have left it. */
static DsvStatus update_before(DsviZero *z, int64_t bucket)
{
    int64_t before = z->next_update;
    if (before >= 0)
        DSVI_TRY(dsvi_zero_await_grads(z));
    DSVI_TRY(dsvi_zero_fetch_grads(z, bucket));
    z->next_update = bucket;
    return before >= 0 ? visit_bucket(z, before, &z->update) : DSV_OK;
}

/* The work that computed the gradients has been given to the stream, and so has all that reads the bucket's
 * compute weights. */
DsvStatus dsvi_zero_update_bucket(DsviZero *z, int64_t bucket)
{
    bool host = dsvi_zero_on_host(z, bucket);
    DSVI_TRY(dsvi_zero_finish_grads(z, bucket));
    DSVI_TRY(host ? update_before(z, bucket) : visit_bucket(z, bucket, &z->update));
    if (bucket > 0)
        return DSV_OK;
    if (host) {
        DSVI_TRY(dsvi_zero_await_grads(z));
        DSVI_TRY(visit_bucket(z, 0, &z->update));
    }
    return dsvi_zero_state_end(z);
}

/* Converts a bucket that has been entered, and sends it to the other ranks. */
static DsvStatus renew_bucket(DsviZero *z, int64_t bucket, bool changed)
{
    const Worker worker = worker_of(z, bucket);
    DSVI_TRY(convert_part(z, &worker, bucket, false));
    DSVI_TRY(convert_part(z, &worker, bucket, true));
    DSVI_TRY(dsvi_zero_state_leave(z, bucket, changed));
    return dsvi_zero_publish(z, bucket);
}

DsvStatus dsvi_zero_refresh(DsviZero *z)
{
    for (int64_t i = 0; i < z->shard.buckets; i++) {
        int64_t b = dsvi_zero_visited(z, i);
        DSVI_TRY(dsvi_zero_state_enter(z, b));
        DSVI_TRY(renew_bucket(z, b, false));
    }
    DSVI_TRY(dsvi_zero_state_end(z));
    return dsvi_zero_wait_for_queue(z);
}

/* Exchanges this rank's shard of a bucket's weights and of their moving average. */
static DsvStatus swap_bucket(DsviZero *z, int64_t bucket)
{
    DsviDevice *device = z->backend->device;
    float *of_master = state_floats(z, DSVI_STATE_MASTER, bucket);
    float *of_average = state_floats(z, DSVI_STATE_EMA, bucket);
    int64_t count = dsvi_shard_count(&z->shard, bucket);
    if (dsvi_zero_on_host(z, bucket)) {
        dsvi_zero_host_swap(of_master, of_average, count);
        return DSV_OK;
    }
    char *weights = (char *)of_master, *average = (char *)of_average;
    size_t bytes = (size_t)count * sizeof(float);
    for (size_t at = 0, piece; at < bytes; at += piece) {
        piece = bytes - at < DSVI_SWAP_BYTES ? bytes - at : DSVI_SWAP_BYTES;
        DSVI_TRY(device->copy(device->stream, z->swap, weights + at, piece));
        DSVI_TRY(device->copy(device->stream, weights + at, average + at, piece));
        DSVI_TRY(device->copy(device->stream, average + at, z->swap, piece));
    }
    return DSV_OK;
}

DsvStatus dsvi_zero_swap_ema(DsviZero *z)
{
    for (int64_t i = 0; i < z->shard.buckets; i++) {
        int64_t b = dsvi_zero_visited(z, i);
        DSVI_TRY(dsvi_zero_state_enter(z, b));
        DSVI_TRY(swap_bucket(z, b));
        DSVI_TRY(renew_bucket(z, b, true));
    }
    DSVI_TRY(dsvi_zero_state_end(z));
    return dsvi_zero_wait_for_queue(z);
}
