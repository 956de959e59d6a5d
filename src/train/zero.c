/* Implements zero.h: weights, gradients and optimizer state divided over ranks. Read first zero_acquire()
 * and zero_release(), which passes of the model call, and gather_bucket() and sum_bucket(), which the
 * queue's thread runs for them. */
#include "train/zero_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/train_modules.h"

/* A sum over ranks on a GPU processes the data in chunks. SUM_CHUNK_MAX is the largest chunk for gradients,
 * in bytes per rank. OTHER_CHUNK is the chunk for other sums of all ranks, when all ranks are a separate
 * group from the groups that sum gradients. */
enum { SUM_CHUNK_MAX = 16 << 20, OTHER_CHUNK = 1 << 18 };

/* The size of a shard is a multiple of LINE elements; the size of a chunk of a sum over ranks is a
 * multiple of CHUNK_UNIT bytes. */
enum { LINE = 16, CHUNK_UNIT = 4096 };

/* ---- creation ---- */

/* Returns the bytes of the first `element` elements of a bucket's compute weights. The bucket's F32
 * parameters come first, then its GEMM weights in the compute dtype. */
int64_t dsvi_zero_compute_bytes(const void *context, int64_t bucket, int64_t element)
{
    const DsviZero *z = context;
    int64_t acc = z->table->gemm[bucket] - z->table->begin[bucket];
    if (element <= acc)
        return element * (int64_t)sizeof(float);
    return acc * (int64_t)sizeof(float) + (element - acc) * (int64_t)dsvi_dtype_size(z->act);
}

/* The update of a bucket in the backward pass needs all of its gradient, and a factor of the gradients that
 * does not depend on other buckets. */
static bool updates_in_pass(const DsvConfig *settings, const DsviMesh *mesh)
{
    return strcmp(settings->offload, "none") != 0 && settings->lora_rank == 0 &&
           settings->gradient_accumulation_steps == 1 && settings->max_grad_norm == 0 &&
           dsvi_comm_size(mesh->all) == 1;
}

DsvStatus dsvi_zero_make(const DsvConfig *settings, DsviBackend *backend, const DsviMesh *mesh,
                         const DsviParamTable *table, DsviZero *out)
{
    bool divided = mesh->shard_ranks > 1;
    *out = (DsviZero){
        .backend = backend,
        .table = table,
        .mesh = mesh,
        .act = dsvi_dit_act(settings),
        .muon_momentum = settings->muon_momentum,
        .last_pass = true,
        .compute_whole = !divided || settings->zero_stage < 3,
        .grad.flat = !divided || settings->zero_stage < 2,
        .grad_elsewhere = settings->gradient_accumulation_steps == 1,
        .gathered = {{.bucket = -1}, {.bucket = -1}},
        .summed = {{.bucket = -1}, {.bucket = -1}},
        .next_update = -1,
    };
    DSVI_TRY(dsvi_shard_make(mesh->shard, table->begin, table->buckets, &out->shard));
    DSVI_TRY(dsvi_moments_make(dsvi_optimizer(settings), table, &out->shard, &out->moments));
    if (out->moments.optimizer == DSVI_MUON)
        out->muon = dsvi_muon_make(table, out->act);
    out->updates_in_pass = updates_in_pass(settings, mesh);
    DSVI_TRY(dsvi_train_modules_make(settings, table, &out->frozen));
    DSVI_TRY(dsvi_shard_map(&out->shard, dsvi_zero_compute_bytes, out, &out->compute_shard));
    return dsvi_zero_lend_make(out);
}

void dsvi_zero_free(DsviZero *z)
{
    dsvi_zero_settle_state(z);
    dsvi_comm_queue_free(&z->queue);
    for (int i = 0; i < 2; i++)
        dsvi_comm_close(&z->joined[i]);
    dsvi_zero_lend_free(z);
    free(z->frozen);
    dsvi_moments_free(&z->moments);
    dsvi_shard_free(&z->compute_shard);
    dsvi_shard_free(&z->shard);
}

const int64_t *dsvi_zero_grad_begin(const DsviZero *z)
{
    return z->grad_elsewhere ? z->grad_begin : NULL;
}

static void carve_buffers(DsviZeroBuffer buffer[2], DsviArena *arena, DsviMemClass mem_class, int64_t bytes)
{
    for (int i = 0; i < 2; i++)
        buffer[i].memory = dsvi_arena_take(arena, mem_class, (size_t)bytes);
}

static int64_t all_ranks(const DsviZero *z)
{
    return z->mesh->shard_ranks * z->mesh->replica_ranks;
}

/* Returns the chunk in bytes per rank for summing the gradients of a bucket that is divided into `parts`. */
static size_t sum_chunk(const DsviZero *z, int64_t parts)
{
    int64_t lines = (dsvi_shard_largest_bucket(&z->shard) + LINE - 1) / LINE;
    int64_t longest = (lines + parts - 1) / parts * LINE * (int64_t)sizeof(float);
    int64_t bytes = (longest + CHUNK_UNIT - 1) / CHUNK_UNIT * CHUNK_UNIT;
    return (size_t)(bytes < SUM_CHUNK_MAX ? bytes : SUM_CHUNK_MAX);
}

static size_t shard_chunk(const DsviZero *z)
{
    return sum_chunk(z, z->mesh->shard_ranks);
}

/* Returns the chunk in bytes per rank for sums over replicas (ranks that keep the same shard). Replicas sum
 * one shard of a bucket, and divide this shard again among themselves. */
static size_t replica_chunk(const DsviZero *z)
{
    return sum_chunk(z, all_ranks(z));
}

/* Returns the bytes of workspace that shard_comm and replica_comm share. They are never used at
 * once. */
static size_t group_workspace_bytes(const DsviZero *z)
{
    size_t shard = dsvi_comm_workspace_bytes(z->mesh->shard_ranks, shard_chunk(z));
    size_t replica = dsvi_comm_workspace_bytes(z->mesh->replica_ranks, replica_chunk(z));
    return shard > replica ? shard : replica;
}

static void carve_sum_workspace(DsviZero *z, DsviArena *arena)
{
    bool separate = z->mesh->shard_ranks > 1 && z->mesh->replica_ranks > 1;
    size_t other = separate ? dsvi_comm_workspace_bytes(all_ranks(z), OTHER_CHUNK) : 0;
    bool needed = z->backend->join && all_ranks(z) > 1;
    z->workspace = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, needed ? group_workspace_bytes(z) + other : 0);
}

/* Gives each group its workspace. The group of all ranks gets a separate part, because the caller's thread
 * may use it while the queue's thread uses the others. If the group of all ranks is itself shard_comm or
 * replica_comm, the later call replaces its workspace. */
static void zero_set_workspace(const DsviZero *z, DsviComm *device_all)
{
    if (!z->workspace)
        return;
    dsvi_comm_set_workspace(device_all, (char *)z->workspace + group_workspace_bytes(z), OTHER_CHUNK);
    dsvi_comm_set_workspace(z->shard_comm, z->workspace, shard_chunk(z));
    dsvi_comm_set_workspace(z->replica_comm, z->workspace, replica_chunk(z));
}

void dsvi_zero_carve(DsviZero *z, const DsvConfig *settings, DsviArena *arena)
{
    int64_t buckets = z->shard.buckets, size = sizeof(float);
    size_t resident = (size_t)((z->shard.own - z->shard.packed[z->hosted]) * size);
    z->compute = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, (size_t)z->compute_begin[buckets]);
    z->master.flat = z->act == DSVI_F32 && z->compute_whole;
    z->master.data = z->act == DSVI_F32 ? (float *)z->compute
                                        : dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, resident);
    if (!z->compute_whole)
        carve_buffers(z->gathered, arena, DSVI_MEM_WEIGHTS, dsvi_shard_largest_bucket(&z->compute_shard));
    if (!z->grad_elsewhere)
        z->grad.data = dsvi_arena_take(arena, DSVI_MEM_GRADIENTS, (size_t)(z->grad_begin[buckets] * size));
    if (!z->grad.flat)
        carve_buffers(z->summed, arena, DSVI_MEM_GRADIENTS, dsvi_shard_largest_bucket(&z->shard) * size);
    dsvi_moments_carve(&z->moments, z->hosted, arena);
    if (z->moments.optimizer == DSVI_MUON)
        dsvi_muon_carve(&z->muon, arena);
    z->ema.data = settings->ema_decay > 0 ? dsvi_arena_take(arena, DSVI_MEM_EMA, resident) : NULL;
    z->swap = settings->validation_ema ? dsvi_arena_take(arena, DSVI_MEM_EMA, DSVI_SWAP_BYTES) : NULL;
    dsvi_zero_carve_slots(z, settings, arena);
    dsvi_zero_carve_lend_slots(z, arena);
    carve_sum_workspace(z, arena);
    z->square = dsvi_arena_take(arena, DSVI_MEM_DATA, (size_t)buckets * sizeof *z->square);
    z->local_square = dsvi_arena_take(arena, DSVI_MEM_DATA, (size_t)buckets * sizeof *z->local_square);
}

void dsvi_zero_carve_host(DsviZero *z, DsviArena *arena)
{
    if (z->moments.optimizer == DSVI_MUON)
        dsvi_muon_carve_host(&z->muon, arena);
    z->host_square = dsvi_arena_take(arena, DSVI_MEM_DATA, (size_t)z->shard.buckets * sizeof *z->host_square);
    z->host_bucket = dsvi_arena_take(arena, DSVI_MEM_DATA,
                                     (size_t)dsvi_shard_largest_bucket(&z->shard) * sizeof(float));
}

/* Returns whether the queue may transfer weights or gradients during a forward pass. The caller's thread may
 * communicate with other ranks then as well. */
static bool sends_in_passes(const DsviZero *z)
{
    return !z->compute_whole || !z->grad.flat;
}

/* Sets *out to the group for device memory with the ranks of `host`; NULL if `host` is NULL. A newly created
 * group is also stored in *joined. If the queue uses the group of all ranks during passes, it gets a second
 * group of the same ranks, because the caller's thread may use the first one at the same time. */
static DsvStatus zero_join(DsviZero *z, DsviComm *host, DsviComm *device_all, DsviComm **joined,
                           DsviComm **out)
{
    *out = host == z->mesh->all ? device_all : host;
    if (host && host != z->mesh->all && z->backend->join)
        DSVI_TRY(z->backend->join(z->backend, host, joined));
    else if (host && *out == z->mesh->all && sends_in_passes(z))
        DSVI_TRY(dsvi_comm_split(host, 0, joined));
    *out = *joined ? *joined : *out;
    return DSV_OK;
}

/* Records mark number `mark` on both groups, after the work given to the device's stream so far (like a CUDA
 * event; dsvi_comm_record_mark in dist/comm.h). */
static DsvStatus zero_record_mark(const DsviZero *z, int64_t mark)
{
    DSVI_TRY(dsvi_comm_record_mark(z->shard_comm, mark));
    return dsvi_comm_record_mark(z->replica_comm, mark);
}

/* Makes transfers that this thread starts from now on wait until the device's stream has reached mark
 * number `mark`; -1: until all work given to the stream is done. */
static void zero_start_after(const DsviZero *z, int64_t mark)
{
    dsvi_comm_start_after(z->shard_comm, mark);
    dsvi_comm_start_after(z->replica_comm, mark);
}

/* Number of the mark after which the bucket's gradients are complete on this rank. */
static int64_t grad_ready_mark(int64_t bucket)
{
    return 2 * bucket;
}

/* Number of the mark after which the bucket's compute weights may be gathered: the new weights are
 * written, and no kernel uses the buffer into which they are gathered any more. */
static int64_t may_gather_mark(int64_t bucket)
{
    return 2 * bucket + 1;
}

DsvStatus dsvi_zero_open(DsviZero *z, DsviComm *device_all)
{
    if (dsvi_comm_size(z->mesh->all) == 1)
        return DSV_OK;
    DSVI_TRY(zero_join(z, z->mesh->shard, device_all, &z->joined[0], &z->shard_comm));
    DSVI_TRY(zero_join(z, z->mesh->replica, device_all, &z->joined[1], &z->replica_comm));
    zero_set_workspace(z, device_all);
    /* The largest mark must be recorded first (dist/comm.h). */
    DSVI_TRY(zero_record_mark(z, may_gather_mark(z->shard.buckets - 1)));
    bool background = (z->mesh->cp_ranks == 1 && !sends_in_passes(z)) || dsvi_comm_is_concurrent(device_all);
    return dsvi_comm_queue_create(2 * z->shard.buckets + 1, background, &z->queue);
}

/* ---- addresses ---- */

/* Returns this rank's shard of a bucket's compute weights. */
unsigned char *dsvi_zero_local_weights(const DsviZero *z, int64_t bucket)
{
    if (dsvi_zero_weights_wait(z, bucket))
        return dsvi_zero_weight_slot(z, bucket);
    return z->compute + z->compute_begin[bucket] +
           (z->compute_whole ? dsvi_shard_first(&z->compute_shard, bucket) : 0);
}

/* Returns the address of the bucket's whole compute weights. At stage 3 this is a buffer, valid once
 * gathered. */
static unsigned char *bucket_compute_weights(const DsviZero *z, int64_t bucket)
{
    return z->compute_whole ? z->compute + z->compute_begin[bucket] : z->gathered[bucket % 2].memory;
}

float *dsvi_zero_bucket_grad(const DsviZero *z, int64_t bucket)
{
    if (z->updates_in_pass)
        return dsvi_zero_grad_slot(z, bucket);
    if (!z->grad.flat)
        return z->summed[bucket % 2].memory;
    return dsvi_zero_grads_wait(z, bucket) ? dsvi_zero_grad_slot(z, bucket)
                                           : z->grad.data + z->grad_begin[bucket];
}

float *dsvi_zero_local_grad(const DsviZero *z, int64_t bucket)
{
    if (z->grad.flat)
        return dsvi_zero_bucket_grad(z, bucket) + dsvi_shard_first(&z->shard, bucket);
    return dsvi_zero_grads_wait(z, bucket) ? dsvi_zero_grad_slot(z, bucket)
                                           : z->grad.data + z->grad_begin[bucket];
}

/* ---- transfers, run by the queue's thread ---- */

/* Reports a failure to the other ranks at once. This rank's pass gets the failure when it waits for the
 * queue, but before this it may itself wait for a rank that waits for the failed transfer. The error message
 * is left unchanged for the pass. */
static DsvStatus zero_report_failure(const DsviZero *z, DsvStatus status)
{
    DsviStatusRecord record = *dsvi_status_record();
    (void)dsvi_comm_fail(z->mesh->all, status);
    *dsvi_status_record() = record;
    return status;
}

static DsvStatus gather_bucket(void *context, int64_t bucket)
{
    const DsviZero *z = context;
    const int64_t *bound = dsvi_shard_bound(&z->compute_shard, bucket);
    zero_start_after(z, may_gather_mark(bucket));
    void *whole = bucket_compute_weights(z, bucket);
    DsvStatus status = z->compute_whole
                           ? dsvi_comm_all_gather(z->shard_comm, whole, 1, bound)
                           : dsvi_comm_all_gather_from(z->shard_comm, z->gathered[bucket % 2].shard, whole, 1,
                                                       bound);
    zero_start_after(z, -1);
    return zero_report_failure(z, status);
}

static DsvStatus sum_bucket(void *context, int64_t bucket)
{
    const DsviZero *z = context;
    float *grad = dsvi_zero_bucket_grad(z, bucket);
    zero_start_after(z, grad_ready_mark(bucket));
    DsvStatus status = dsvi_comm_reduce_scatter(z->shard_comm, DSVI_F32, grad,
                                                dsvi_shard_bound(&z->shard, bucket));
    if (status == DSV_OK)
        status = dsvi_comm_all_reduce(z->replica_comm, DSVI_F32, grad + dsvi_shard_first(&z->shard, bucket),
                                      dsvi_shard_count(&z->shard, bucket));
    zero_start_after(z, -1);
    return zero_report_failure(z, status);
}

/* ---- calls from passes ---- */

/* Queues the gathering of a bucket's compute weights unless this was done before. Replaces the contents of
 * the bucket's buffer, so no kernel that is launched later may use them. A lent shard has been uploaded while
 * the block before was computed. */
static DsvStatus request_weights(DsviZero *z, DsviDitPass pass, int64_t bucket)
{
    DsviZeroBuffer *buffer = &z->gathered[bucket % 2];
    unsigned char *shard;
    if (buffer->bucket == bucket)
        return DSV_OK;
    if (dsvi_zero_weights_wait(z, bucket))
        DSVI_TRY(dsvi_zero_lend_acquire(z, pass, bucket, &shard));
    else
        shard = dsvi_zero_local_weights(z, bucket);
    buffer->shard = shard;
    DSVI_TRY(zero_record_mark(z, may_gather_mark(bucket)));
    buffer->bucket = bucket;
    buffer->queued = dsvi_comm_queue_put(z->queue, gather_bucket, z, bucket);
    return DSV_OK;
}

/* Waits for the bucket's compute weights and starts gathering those of the bucket that the pass needs
 * next. */
static DsvStatus wait_for_weights(DsviZero *z, DsviDitPass pass, int64_t bucket)
{
    int64_t next = bucket + (pass == DSVI_PASS_FORWARD ? 1 : -1);
    DSVI_TRY(request_weights(z, pass, bucket));
    DSVI_TRY(dsvi_comm_queue_wait(z->queue, z->gathered[bucket % 2].queued));
    return next >= 0 && next < z->shard.buckets ? request_weights(z, pass, next) : DSV_OK;
}

/* Waits for the sum over ranks in `buffer` and adds this rank's shard of it to the sum of earlier
 * micro-batches, or stores it if the step has one micro-batch. Afterwards the buffer may be used for
 * another bucket. */
static DsvStatus accumulate_sum(DsviZero *z, DsviZeroBuffer *buffer)
{
    int64_t bucket = buffer->bucket;
    if (bucket < 0)
        return DSV_OK;
    DsviAddArgs args = {
        .n = dsvi_shard_count(&z->shard, bucket),
        .a = 1,
        .b = z->grad_elsewhere ? 0 : 1,
        .x_dtype = DSVI_F32,
        .y_dtype = DSVI_F32,
        .x = (float *)buffer->memory + dsvi_shard_first(&z->shard, bucket),
        .y = dsvi_zero_local_grad(z, bucket),
    };
    DSVI_TRY(dsvi_comm_queue_wait(z->queue, buffer->queued));
    buffer->bucket = -1;
    DSVI_TRY(z->backend->ops.add.run(z->backend->device->stream, &args));
    return dsvi_zero_grads_wait(z, bucket) ? dsvi_zero_send_grads(z, bucket) : DSV_OK;
}

/* Provides a cleared buffer for the bucket's gradients. Before, accumulates the sum over ranks that the
 * buffer still holds. */
static DsvStatus prepare_grad_buffer(DsviZero *z, int64_t bucket)
{
    DsviDevice *device = z->backend->device;
    DsviZeroBuffer *buffer = &z->summed[bucket % 2];
    DSVI_TRY(accumulate_sum(z, buffer));
    return device->clear(device->stream, buffer->memory,
                         (size_t)dsvi_shard_bucket_size(&z->shard, bucket) * sizeof(float));
}

/* Clears elements [from, to) of the parameters, which are in one bucket, in its whole gradients. */
static DsvStatus clear_grads(DsviZero *z, int64_t bucket, int64_t from, int64_t to)
{
    DsviDevice *device = z->backend->device;
    float *grad = dsvi_zero_bucket_grad(z, bucket) + (from - z->table->begin[bucket]);
    size_t bytes = (size_t)(to - from) * sizeof(float);
    return bytes > 0 ? device->clear(device->stream, grad, bytes) : DSV_OK;
}

/* Clears a bucket's whole gradients before the first backward pass of a step, except the gradients of GEMM
 * weights, which this pass overwrites. The pass adds to the other gradients, which must therefore start at
 * zero, as must the padding. */
static DsvStatus clear_accumulated_grads(DsviZero *z, int64_t bucket)
{
    const DsviParamTable *table = z->table;
    int64_t written = table->gemm[bucket];
    DSVI_TRY(clear_grads(z, bucket, table->begin[bucket], written));
    for (int64_t i = 0; i < table->count; i++) {
        const DsviParam *param = &table->params[i];
        if (param->offset < written || param->offset >= table->begin[bucket + 1])
            continue;
        DSVI_TRY(clear_grads(z, bucket, written, param->offset));
        written = param->offset + param->count;
    }
    return clear_grads(z, bucket, written, table->begin[bucket + 1]);
}

/* DsviDitWeights.acquire: provides a bucket's weights, and in a backward pass memory for its gradients. */
static DsvStatus zero_acquire(void *owner, DsviDitPass pass, int64_t bucket, DsviDitBucket *where)
{
    DsviZero *z = owner;
    where->fresh = pass == DSVI_PASS_BACKWARD && z->grad.flat && z->fresh;
    if (where->fresh)
        DSVI_TRY(clear_accumulated_grads(z, bucket));
    if (!z->compute_whole)
        DSVI_TRY(wait_for_weights(z, pass, bucket));
    if (!z->grad.flat && pass == DSVI_PASS_BACKWARD)
        DSVI_TRY(prepare_grad_buffer(z, bucket));
    unsigned char *weights;
    if (z->compute_whole && dsvi_zero_weights_wait(z, bucket))
        DSVI_TRY(dsvi_zero_lend_acquire(z, pass, bucket, &weights));
    else
        weights = bucket_compute_weights(z, bucket);
    where->acc = weights;
    where->act = weights +
                 dsvi_zero_compute_bytes(z, bucket, z->table->gemm[bucket] - z->table->begin[bucket]);
    where->grad = pass == DSVI_PASS_BACKWARD ? dsvi_zero_bucket_grad(z, bucket) : NULL;
    return DSV_OK;
}

static DsvStatus zero_sum_of_squares(const DsviZero *z, const float *x, int64_t n, double *square)
{
    DsviSumSquaresArgs args = {.n = n, .acc = DSVI_F32, .x = x, .out = square};
    return z->backend->ops.sum_squares.run(z->backend->device->stream, &args);
}

/* DsviDitWeights.release: once a bucket's gradients are complete on this rank, queues their sum over ranks.
 * Their sum of squares is computed first: if the summed gradients are not finite, it shows which rank caused
 * this. */
static DsvStatus zero_release(void *owner, DsviDitPass pass, int64_t bucket)
{
    DsviZero *z = owner;
    if (pass == DSVI_PASS_BACKWARD && bucket == 0)
        z->fresh = false;
    if (pass == DSVI_PASS_BACKWARD && z->grad.flat && dsvi_zero_grads_wait(z, bucket))
        return dsvi_zero_send_grads(z, bucket);
    if (pass == DSVI_PASS_BACKWARD && z->updates_in_pass)
        return dsvi_zero_update_bucket(z, bucket);
    if (pass == DSVI_PASS_FORWARD || !z->queue || (z->grad.flat && !z->last_pass))
        return DSV_OK;
    DSVI_TRY(zero_sum_of_squares(z, dsvi_zero_bucket_grad(z, bucket),
                                 dsvi_shard_bucket_size(&z->shard, bucket), z->local_square + bucket));
    DSVI_TRY(zero_record_mark(z, grad_ready_mark(bucket)));
    z->summed[bucket % 2].bucket = bucket;
    z->summed[bucket % 2].queued = dsvi_comm_queue_put(z->queue, sum_bucket, z, bucket);
    return DSV_OK;
}

DsviDitWeights dsvi_zero_weights(DsviZero *z)
{
    return (DsviDitWeights){.acquire = zero_acquire, .release = zero_release, .owner = z};
}

/* ---- a step ---- */

DsvStatus dsvi_zero_clear_gradients(DsviZero *z)
{
    DsviDevice *device = z->backend->device;
    z->fresh = true;
    if (z->grad.flat || z->grad_elsewhere)
        return DSV_OK;
    return device->clear(device->stream, z->grad.data, (size_t)z->shard.own * sizeof(float));
}

void dsvi_zero_begin_pass(DsviZero *z, bool last)
{
    z->last_pass = last;
}

DsvStatus dsvi_zero_sum_gradients(DsviZero *z)
{
    if (!z->queue)
        return DSV_OK;
    DSVI_TRY(dsvi_comm_queue_finish(z->queue));
    for (int i = 0; i < 2 && !z->grad.flat; i++)
        DSVI_TRY(accumulate_sum(z, &z->summed[i]));
    return DSV_OK;
}

/* Downloads the sums of squares of all buckets and adds them on the host. */
static DsvStatus add_squares(DsviZero *z, const double *square, double *sum)
{
    DsviDevice *device = z->backend->device;
    DSVI_TRY(
        device->download(device->stream, z->host_square, square, (size_t)z->shard.buckets * sizeof *square));
    DSVI_TRY(device->sync(device->stream));
    *sum = 0;
    for (int64_t b = 0; b < z->shard.buckets; b++)
        *sum += z->host_square[b];
    return DSV_OK;
}

DsvStatus dsvi_zero_finish_grads(const DsviZero *z, int64_t bucket)
{
    DSVI_TRY(dsvi_train_modules_clear(z, bucket));
    return zero_sum_of_squares(z, dsvi_zero_local_grad(z, bucket), dsvi_shard_count(&z->shard, bucket),
                               z->square + bucket);
}

DsvStatus dsvi_zero_grad_square(DsviZero *z, double *square)
{
    for (int64_t b = 0; b < z->shard.buckets; b++)
        if (!dsvi_zero_grads_wait(z, b) && !z->updates_in_pass) /* else the backward pass has done it */
            DSVI_TRY(dsvi_zero_finish_grads(z, b));
    return add_squares(z, z->square, square);
}

DsvStatus dsvi_zero_grad_nonfinite(DsviZero *z, bool *spoilt)
{
    double sum;
    DSVI_TRY(add_squares(z, z->local_square, &sum));
    *spoilt = !isfinite(sum);
    return DSV_OK;
}

/* Call when this rank's shard of the bucket's weights has changed. At stages 1 and 2 queues the all-gather;
 * at stage 3 only invalidates the buffer, and the next pass gathers. */
DsvStatus dsvi_zero_publish(DsviZero *z, int64_t bucket)
{
    z->gathered[bucket % 2].bucket = -1;
    if (!z->queue || !z->compute_whole)
        return DSV_OK;
    DSVI_TRY(zero_record_mark(z, may_gather_mark(bucket)));
    dsvi_comm_queue_put(z->queue, gather_bucket, z, bucket);
    return DSV_OK;
}

DsvStatus dsvi_zero_wait_for_queue(DsviZero *z)
{
    return z->queue ? dsvi_comm_queue_finish(z->queue) : DSV_OK;
}

/* Gathers the directions of a bucket in its buffer for gradients, in the queue's thread. */
static DsvStatus gather_directions(void *context, int64_t bucket)
{
    const DsviZero *z = context;
    DsvStatus status = dsvi_comm_all_gather(z->shard_comm, dsvi_zero_bucket_grad(z, bucket), sizeof(float),
                                            dsvi_shard_bound(&z->shard, bucket));
    return zero_report_failure(z, status);
}

DsvStatus dsvi_zero_gather_directions(DsviZero *z, int64_t bucket)
{
    if (z->mesh->shard_ranks == 1)
        return DSV_OK;
    return dsvi_comm_queue_wait(z->queue, dsvi_comm_queue_put(z->queue, gather_directions, z, bucket));
}

DsvStatus dsvi_zero_await_transfers(DsviZero *z, DsvStatus status)
{
    DsviStatusRecord first = *dsvi_status_record();
    if (status == DSV_OK || !z->queue)
        return status;
    (void)dsvi_comm_queue_finish(z->queue);
    *dsvi_status_record() = first;
    return status;
}
