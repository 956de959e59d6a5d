/* See zero.h. A reader begins best with what a pass of the model calls, enter() and leave(), and with what
 * the queue's thread does for it, gather_bucket() and sum_bucket(). */
#include "train/zero.h"

#include <math.h>

/* Bytes that a sum on a GPU takes from each rank at once: of gradients at most, and where all ranks are
 * another group than those that sum these, of what else they sum. */
enum { SUM_CHUNK = 16 << 20, OTHER_CHUNK = 1 << 18 };

/* Elements that stretches are a multiple of, bytes that chunks are. */
enum { LINE = 16, CHUNK_UNIT = 4096 };

/* ---- making ---- */

/* Bytes of a bucket's weights to compute with, up to an element of it. */
static int64_t work_bytes(const void *context, int64_t bucket, int64_t element)
{
    const DsvZero *z = context;
    int64_t acc = z->table->gemm[bucket] - z->table->begin[bucket];
    if (element <= acc)
        return element * (int64_t)sizeof(float);
    return acc * (int64_t)sizeof(float) + (element - acc) * (int64_t)dsvi_dtype_size(z->act);
}

DsvStatus dsvi_zero_make(const DsvConfig *settings, DsvBackend *backend, const DsvMesh *mesh,
                         const DsvParamTable *table, DsvZero *out)
{
    bool divided = mesh->shard_ranks > 1;
    *out = (DsvZero){
        .backend = backend, .table = table, .mesh = mesh, .act = dsvi_dit_act(settings), .last_pass = true,
        .work_whole = !divided || settings->zero_stage < 3,
        .grad.flat = !divided || settings->zero_stage < 2,
        .grad_elsewhere = settings->gradient_accumulation_steps == 1,
        .gathered = {{.bucket = -1}, {.bucket = -1}}, .summed = {{.bucket = -1}, {.bucket = -1}},
    };
    DSVI_TRY(dsvi_shard_make(mesh->shard, table->begin, table->stretches, &out->shard));
    return dsvi_shard_map(&out->shard, work_bytes, out, &out->work_shard);
}

void dsvi_zero_free(DsvZero *z)
{
    dsvi_comm_queue_free(&z->queue);
    for (int i = 0; i < 2; i++)
        dsvi_comm_close(&z->joined[i]);
    dsvi_shard_free(&z->work_shard);
    dsvi_shard_free(&z->shard);
}

const int64_t *dsvi_zero_grad_begin(const DsvZero *z)
{
    if (!z->grad_elsewhere)
        return NULL;
    return z->grad.flat ? z->shard.begin : z->shard.packed;
}

static void carve_buffers(DsvZeroBuffer buffer[2], DsvArena *arena, DsvMemClass mem_class, int64_t bytes)
{
    for (int i = 0; i < 2; i++)
        buffer[i].memory = dsvi_arena_take(arena, mem_class, (size_t)bytes);
}

static int64_t all_ranks(const DsvZero *z)
{
    return z->mesh->shard_ranks * z->mesh->replica_ranks;
}

/* Bytes taken from each rank at once where the gradients of a bucket are summed in `parts` stretches. */
static size_t sum_chunk(const DsvZero *z, int64_t parts)
{
    int64_t lines = (dsvi_shard_largest(&z->shard) + LINE - 1) / LINE;
    int64_t longest = (lines + parts - 1) / parts * LINE * (int64_t)sizeof(float);
    int64_t bytes = (longest + CHUNK_UNIT - 1) / CHUNK_UNIT * CHUNK_UNIT;
    return (size_t)(bytes < SUM_CHUNK ? bytes : SUM_CHUNK);
}

static size_t shard_chunk(const DsvZero *z)
{
    return sum_chunk(z, z->mesh->shard_ranks);
}

/* Replicas sum what each shard group has made of its own stretches. */
static size_t replica_chunk(const DsvZero *z)
{
    return sum_chunk(z, all_ranks(z));
}

/* Of the room, what the two groups share. */
static size_t own_room(const DsvZero *z)
{
    size_t shard = dsvi_comm_room_bytes(z->mesh->shard_ranks, shard_chunk(z));
    size_t replica = dsvi_comm_room_bytes(z->mesh->replica_ranks, replica_chunk(z));
    return shard > replica ? shard : replica;
}

static void carve_room(DsvZero *z, DsvArena *arena)
{
    bool apart = z->mesh->shard_ranks > 1 && z->mesh->replica_ranks > 1;
    size_t other = apart ? dsvi_comm_room_bytes(all_ranks(z), OTHER_CHUNK) : 0;
    bool wanted = z->backend->join && all_ranks(z) > 1;
    z->room = dsvi_arena_take(arena, DSV_MEM_SCRATCH, wanted ? own_room(z) + other : 0);
}

/* What has a group of its own keeps to it, for another thread may be using the other. */
static void lend_room(const DsvZero *z, DsvComm *device_all)
{
    if (!z->room)
        return;
    dsvi_comm_lend(device_all, (char *)z->room + own_room(z), OTHER_CHUNK);
    dsvi_comm_lend(z->shard_comm, z->room, shard_chunk(z));
    dsvi_comm_lend(z->replica_comm, z->room, replica_chunk(z));
}

void dsvi_zero_carve(DsvZero *z, const DsvConfig *settings, DsvArena *arena)
{
    int64_t buckets = z->shard.buckets, size = sizeof(float);
    size_t packed = (size_t)(z->shard.own * size);
    int64_t work = z->work_whole ? z->work_shard.begin[buckets] : z->work_shard.own;
    int64_t grad = (z->grad.flat ? z->shard.begin[buckets] : z->shard.own) * size;
    z->work = dsvi_arena_take(arena, DSV_MEM_WEIGHTS, (size_t)work);
    z->master.flat = z->act == DSV_F32 && z->work_whole;
    z->master.data = z->act == DSV_F32 ? (float *)z->work : dsvi_arena_take(arena, DSV_MEM_WEIGHTS, packed);
    if (!z->work_whole)
        carve_buffers(z->gathered, arena, DSV_MEM_WEIGHTS, dsvi_shard_largest(&z->work_shard));
    if (!z->grad_elsewhere)
        z->grad.data = dsvi_arena_take(arena, DSV_MEM_GRADIENTS, (size_t)grad);
    if (!z->grad.flat)
        carve_buffers(z->summed, arena, DSV_MEM_GRADIENTS, dsvi_shard_largest(&z->shard) * size);
    z->moment1.data = dsvi_arena_take(arena, DSV_MEM_OPTIMIZER, packed);
    z->moment2.data = dsvi_arena_take(arena, DSV_MEM_OPTIMIZER, packed);
    z->ema.data = settings->ema_decay > 0 ? dsvi_arena_take(arena, DSV_MEM_EMA, packed) : NULL;
    carve_room(z, arena);
    z->square = dsvi_arena_take(arena, DSV_MEM_DATA, (size_t)buckets * sizeof *z->square);
    z->made_square = dsvi_arena_take(arena, DSV_MEM_DATA, (size_t)buckets * sizeof *z->made_square);
}

void dsvi_zero_carve_host(DsvZero *z, DsvArena *arena)
{
    z->host_square = dsvi_arena_take(arena, DSV_MEM_DATA, (size_t)z->shard.buckets * sizeof *z->host_square);
}

/* Whether ranks send each other weights or gradients while a forward pass goes on, in which the caller's
 * thread may talk to them as well. */
static bool sends_in_passes(const DsvZero *z)
{
    return !z->work_whole || !z->grad.flat;
}

/* The group for device memory with the ranks of `host`, apart from what the caller's thread uses in a
 * pass. */
static DsvStatus join(DsvZero *z, DsvComm *host, DsvComm *device_all, DsvComm **joined, DsvComm **out)
{
    *out = host == z->mesh->all ? device_all : host;
    if (host && host != z->mesh->all && z->backend->join)
        DSVI_TRY(z->backend->join(z->backend, host, joined));
    else if (host && *out == z->mesh->all && sends_in_passes(z))
        DSVI_TRY(dsvi_comm_split(host, 0, joined));
    *out = *joined ? *joined : *out;
    return DSV_OK;
}

/* Mark number `mark` on both groups, behind what the device has been given. */
static DsvStatus put_mark(const DsvZero *z, int64_t mark)
{
    DSVI_TRY(dsvi_comm_mark(z->shard_comm, mark));
    return dsvi_comm_mark(z->replica_comm, mark);
}

static void come_behind(const DsvZero *z, int64_t mark)
{
    dsvi_comm_behind(z->shard_comm, mark);
    dsvi_comm_behind(z->replica_comm, mark);
}

/* Marks of what is done with a bucket: its gradients are made, its weights may be replaced. */
static int64_t made(int64_t bucket)
{
    return 2 * bucket;
}

static int64_t used(int64_t bucket)
{
    return 2 * bucket + 1;
}

DsvStatus dsvi_zero_open(DsvZero *z, DsvComm *device_all)
{
    if (dsvi_comm_size(z->mesh->all) == 1)
        return DSV_OK;
    DSVI_TRY(join(z, z->mesh->shard, device_all, &z->joined[0], &z->shard_comm));
    DSVI_TRY(join(z, z->mesh->replica, device_all, &z->joined[1], &z->replica_comm));
    lend_room(z, device_all);
    DSVI_TRY(put_mark(z, used(z->shard.buckets - 1))); /* the largest comes first: comm.h */
    bool beside = (z->mesh->context_ranks == 1 && !sends_in_passes(z)) || dsvi_comm_at_once(device_all);
    return dsvi_comm_queue_create(2 * z->shard.buckets + 1, beside, &z->queue);
}

/* ---- where things lie ---- */

/* The own stretch of a bucket's weights to compute with. */
static unsigned char *own_work(const DsvZero *z, int64_t bucket)
{
    return z->work + dsvi_shard_place(&z->work_shard, bucket, z->work_whole);
}

/* The whole bucket, where it is or comes to be. */
static unsigned char *bucket_work(const DsvZero *z, int64_t bucket)
{
    return z->work_whole ? z->work + z->work_shard.begin[bucket] : z->gathered[bucket % 2].memory;
}

static float *bucket_grad(const DsvZero *z, int64_t bucket)
{
    return z->grad.flat ? z->grad.data + z->shard.begin[bucket] : z->summed[bucket % 2].memory;
}

/* ---- what the queue's thread does ---- */

/* This rank's pass learns of a failure here when it comes to wait for the queue. A rank that waits for this
 * work may keep it from that, so the others are told at once. The sentence stays as it is, for the pass. */
static DsvStatus tell_others(const DsvZero *z, DsvStatus status)
{
    DsvStatusRecord own = *dsvi_status_record();
    (void)dsvi_comm_fail(z->mesh->all, status);
    *dsvi_status_record() = own;
    return status;
}

static DsvStatus gather_bucket(void *context, int64_t bucket)
{
    const DsvZero *z = context;
    const int64_t *bound = dsvi_shard_bound(&z->work_shard, bucket);
    come_behind(z, used(bucket));
    DsvStatus status =
        z->work_whole ? dsvi_comm_all_gather(z->shard_comm, bucket_work(z, bucket), 1, bound)
                      : dsvi_comm_all_gather_from(z->shard_comm, own_work(z, bucket), bucket_work(z, bucket),
                                                  1, bound);
    come_behind(z, -1);
    return tell_others(z, status);
}

static DsvStatus sum_bucket(void *context, int64_t bucket)
{
    const DsvZero *z = context;
    float *grad = bucket_grad(z, bucket);
    come_behind(z, made(bucket));
    DsvStatus status = dsvi_comm_reduce_scatter(z->shard_comm, DSV_F32, grad,
                                                dsvi_shard_bound(&z->shard, bucket));
    if (status == DSV_OK)
        status = dsvi_comm_all_reduce(z->replica_comm, DSV_F32, grad + dsvi_shard_first(&z->shard, bucket),
                                      dsvi_shard_count(&z->shard, bucket));
    come_behind(z, -1);
    return tell_others(z, status);
}

/* ---- what passes do ---- */

/* Has a bucket's weights gathered, unless they are or soon will be. What its buffer held is used by nothing
 * that the device will be given from here on. */
static DsvStatus want_weights(DsvZero *z, int64_t bucket)
{
    DsvZeroBuffer *buffer = &z->gathered[bucket % 2];
    if (buffer->bucket == bucket)
        return DSV_OK;
    DSVI_TRY(put_mark(z, used(bucket)));
    buffer->bucket = bucket;
    buffer->work = dsvi_comm_queue_put(z->queue, gather_bucket, z, bucket);
    return DSV_OK;
}

/* The bucket's weights, and those of the bucket that the pass comes to next are on their way. */
static DsvStatus get_weights(DsvZero *z, DsvDitPass pass, int64_t bucket)
{
    int64_t next = bucket + (pass == DSV_PASS_FORWARD ? 1 : -1);
    DSVI_TRY(want_weights(z, bucket));
    DSVI_TRY(dsvi_comm_queue_wait(z->queue, z->gathered[bucket % 2].work));
    return next >= 0 && next < z->shard.buckets ? want_weights(z, next) : DSV_OK;
}

/* Adds the own stretch of a buffer's sum to that of the micro-batches before, if there may be any. */
static DsvStatus take_sum(DsvZero *z, DsvZeroBuffer *buffer)
{
    int64_t bucket = buffer->bucket;
    if (bucket < 0)
        return DSV_OK;
    DsvAddArgs args = {
        .n = dsvi_shard_count(&z->shard, bucket), .a = 1, .b = z->grad_elsewhere ? 0 : 1,
        .x_dtype = DSV_F32, .y_dtype = DSV_F32,
        .x = (float *)buffer->memory + dsvi_shard_first(&z->shard, bucket),
        .y = dsvi_shard_at(&z->shard, z->grad, bucket),
    };
    DSVI_TRY(dsvi_comm_queue_wait(z->queue, buffer->work));
    buffer->bucket = -1;
    return z->backend->ops.add.run(z->backend->device->stream, &args);
}

/* A buffer of zeros for the bucket's gradients. */
static DsvStatus make_room(DsvZero *z, int64_t bucket)
{
    DsvDevice *device = z->backend->device;
    DsvZeroBuffer *buffer = &z->summed[bucket % 2];
    DSVI_TRY(take_sum(z, buffer));
    return device->zero(device->stream, buffer->memory,
                        (size_t)dsvi_shard_whole(&z->shard, bucket) * sizeof(float));
}

/* Clears elements `from` to `to` of whole gradients. */
static DsvStatus clear(DsvZero *z, int64_t from, int64_t to)
{
    DsvDevice *device = z->backend->device;
    size_t bytes = (size_t)(to - from) * sizeof(float);
    return bytes > 0 ? device->zero(device->stream, z->grad.data + from, bytes) : DSV_OK;
}

/* Clears what a step's first backward pass does not write of a bucket's whole gradients: what it adds to,
 * which is all but GEMM weights', and the padding behind these. */
static DsvStatus clear_unwritten(DsvZero *z, int64_t bucket)
{
    const DsvParamTable *table = z->table;
    int64_t written = table->gemm[bucket];
    DSVI_TRY(clear(z, table->begin[bucket], written));
    for (int64_t i = 0; i < table->count; i++) {
        const DsvParam *param = &table->params[i];
        if (param->offset < written || param->offset >= table->begin[bucket + 1])
            continue;
        DSVI_TRY(clear(z, written, param->offset));
        written = param->offset + param->count;
    }
    return clear(z, written, table->begin[bucket + 1]);
}

static DsvStatus enter(void *lender, DsvDitPass pass, int64_t bucket, DsvDitStretch *where)
{
    DsvZero *z = lender;
    where->fresh = pass == DSV_PASS_BACKWARD && z->grad.flat && z->fresh;
    if (where->fresh)
        DSVI_TRY(clear_unwritten(z, bucket));
    if (!z->work_whole)
        DSVI_TRY(get_weights(z, pass, bucket));
    if (!z->grad.flat && pass == DSV_PASS_BACKWARD)
        DSVI_TRY(make_room(z, bucket));
    unsigned char *work = bucket_work(z, bucket);
    where->acc = work;
    where->act = work + work_bytes(z, bucket, z->table->gemm[bucket] - z->table->begin[bucket]);
    where->grad = pass == DSV_PASS_BACKWARD ? bucket_grad(z, bucket) : NULL;
    return DSV_OK;
}

static DsvStatus find_square(const DsvZero *z, const float *x, int64_t n, double *square)
{
    DsvSumSquaresArgs args = {.n = n, .acc = DSV_F32, .x = x, .out = square};
    return z->backend->ops.sum_squares.run(z->backend->device->stream, &args);
}

/* The gradients of a bucket that will not change any more on this rank go to be summed. Their square tells,
 * should the sum not be finite, whose part in it is to blame. */
static DsvStatus leave(void *lender, DsvDitPass pass, int64_t bucket)
{
    DsvZero *z = lender;
    if (pass == DSV_PASS_BACKWARD && bucket == 0)
        z->fresh = false;
    if (pass == DSV_PASS_FORWARD || !z->queue || (z->grad.flat && !z->last_pass))
        return DSV_OK;
    DSVI_TRY(find_square(z, bucket_grad(z, bucket), dsvi_shard_whole(&z->shard, bucket),
                         z->made_square + bucket));
    DSVI_TRY(put_mark(z, made(bucket)));
    z->summed[bucket % 2].bucket = bucket;
    z->summed[bucket % 2].work = dsvi_comm_queue_put(z->queue, sum_bucket, z, bucket);
    return DSV_OK;
}

DsvDitWeights dsvi_zero_weights(DsvZero *z)
{
    return (DsvDitWeights){.enter = enter, .leave = leave, .lender = z};
}

/* ---- a step ---- */

DsvStatus dsvi_zero_clear_gradients(DsvZero *z)
{
    DsvDevice *device = z->backend->device;
    z->fresh = true;
    if (z->grad.flat || z->grad_elsewhere)
        return DSV_OK;
    return device->zero(device->stream, z->grad.data, (size_t)z->shard.own * sizeof(float));
}

void dsvi_zero_begin_pass(DsvZero *z, bool last)
{
    z->last_pass = last;
}

DsvStatus dsvi_zero_sum_gradients(DsvZero *z)
{
    if (!z->queue)
        return DSV_OK;
    DSVI_TRY(dsvi_comm_queue_finish(z->queue));
    for (int i = 0; i < 2 && !z->grad.flat; i++)
        DSVI_TRY(take_sum(z, &z->summed[i]));
    return DSV_OK;
}

/* Squares of all buckets, added on the host. */
static DsvStatus add_squares(DsvZero *z, const double *square, double *sum)
{
    DsvDevice *device = z->backend->device;
    DSVI_TRY(device->download(device->stream, z->host_square, square,
                              (size_t)z->shard.buckets * sizeof *square));
    DSVI_TRY(device->sync(device->stream));
    *sum = 0;
    for (int64_t b = 0; b < z->shard.buckets; b++)
        *sum += z->host_square[b];
    return DSV_OK;
}

DsvStatus dsvi_zero_grad_square(DsvZero *z, double *square)
{
    for (int64_t b = 0; b < z->shard.buckets; b++)
        DSVI_TRY(find_square(z, dsvi_shard_at(&z->shard, z->grad, b), dsvi_shard_count(&z->shard, b),
                             z->square + b));
    return add_squares(z, z->square, square);
}

DsvStatus dsvi_zero_grad_spoilt(DsvZero *z, bool *spoilt)
{
    double sum;
    DSVI_TRY(add_squares(z, z->made_square, &sum));
    *spoilt = !isfinite(sum);
    return DSV_OK;
}

/* The own stretch of a bucket in two parts: what is computed with in F32, and the GEMM weights. */
typedef struct Part {
    int64_t at, count; /* elements of the own stretch */
    DsvDtype dtype;
    void *work;        /* the copy to compute with; NULL: the master weights are */
} Part;

static Part part_of(const DsvZero *z, int64_t bucket, bool gemm)
{
    int64_t border = z->table->gemm[bucket] - z->table->begin[bucket];
    int64_t first = dsvi_shard_first(&z->shard, bucket), end = first + dsvi_shard_count(&z->shard, bucket);
    int64_t from = gemm && first < border ? border : first, to = !gemm && end > border ? border : end;
    Part part = {.at = from - first, .count = to > from ? to - from : 0, .dtype = gemm ? z->act : DSV_F32};
    if (z->act != DSV_F32)
        part.work = own_work(z, bucket) + work_bytes(z, bucket, from) - work_bytes(z, bucket, first);
    return part;
}

static DsvStatus update_part(DsvZero *z, int64_t bucket, bool gemm, const DsvAdamwArgs *how)
{
    Part part = part_of(z, bucket, gemm);
    DsvAdamwArgs args = *how;
    args.n = part.count;
    args.acc = DSV_F32;
    args.grad = dsvi_shard_at(&z->shard, z->grad, bucket) + part.at;
    args.weight = dsvi_shard_at(&z->shard, z->master, bucket) + part.at;
    args.m = dsvi_shard_at(&z->shard, z->moment1, bucket) + part.at;
    args.v = dsvi_shard_at(&z->shard, z->moment2, bucket) + part.at;
    args.ema = z->ema.data ? dsvi_shard_at(&z->shard, z->ema, bucket) + part.at : NULL;
    args.copy = part.work;
    args.copy_dtype = part.dtype;
    return part.count > 0 ? z->backend->ops.adamw.run(z->backend->device->stream, &args) : DSV_OK;
}

static DsvStatus copy_part(DsvZero *z, int64_t bucket, bool gemm)
{
    Part part = part_of(z, bucket, gemm);
    DsvAddArgs args = {
        .n = part.count, .a = 1, .x_dtype = DSV_F32, .y_dtype = part.dtype,
        .x = dsvi_shard_at(&z->shard, z->master, bucket) + part.at, .y = part.work,
    };
    return part.work && part.count > 0 ? z->backend->ops.add.run(z->backend->device->stream, &args) : DSV_OK;
}

/* The own stretch of the bucket's weights is new: the others get it, now or when they come to use it. */
static DsvStatus spread(DsvZero *z, int64_t bucket)
{
    z->gathered[bucket % 2].bucket = -1;
    if (!z->queue || !z->work_whole)
        return DSV_OK;
    DSVI_TRY(put_mark(z, used(bucket)));
    dsvi_comm_queue_put(z->queue, gather_bucket, z, bucket);
    return DSV_OK;
}

static DsvStatus await_spread(DsvZero *z)
{
    return z->queue ? dsvi_comm_queue_finish(z->queue) : DSV_OK;
}

DsvStatus dsvi_zero_update(DsvZero *z, const DsvAdamwArgs *how)
{
    for (int64_t b = 0; b < z->shard.buckets; b++) {
        DSVI_TRY(update_part(z, b, false, how));
        DSVI_TRY(update_part(z, b, true, how));
        DSVI_TRY(spread(z, b));
    }
    return await_spread(z);
}

/* ---- to and from the host ---- */

DsvStatus dsvi_zero_refresh(DsvZero *z)
{
    for (int64_t b = 0; b < z->shard.buckets; b++) {
        DSVI_TRY(copy_part(z, b, false));
        DSVI_TRY(copy_part(z, b, true));
        DSVI_TRY(spread(z, b));
    }
    return await_spread(z);
}

int64_t dsvi_zero_host_elements(const DsvZero *z)
{
    bool first = dsvi_comm_rank(z->mesh->all) == 0;
    return first ? z->shard.begin[z->shard.buckets] : dsvi_shard_largest(&z->shard);
}

/* Where a bucket goes in the host's memory. */
static float *host_bucket(const DsvZero *z, const float *flat, int64_t bucket)
{
    return (float *)flat + (dsvi_comm_rank(z->mesh->all) == 0 ? z->shard.begin[bucket] : 0);
}

DsvStatus dsvi_zero_store(DsvZero *z, const float *flat, DsvShardArray array)
{
    const DsvMesh *mesh = z->mesh;
    DsvDevice *device = z->backend->device;
    for (int64_t b = 0; b < z->shard.buckets; b++) {
        float *bucket = host_bucket(z, flat, b), *own = bucket + dsvi_shard_first(&z->shard, b);
        size_t bytes = (size_t)dsvi_shard_count(&z->shard, b) * sizeof *own;
        if (mesh->replica_rank == 0)
            DSVI_TRY(dsvi_comm_scatter(mesh->shard, 0, bucket, sizeof *own, dsvi_shard_bound(&z->shard, b)));
        DSVI_TRY(dsvi_comm_broadcast(mesh->replica, 0, own, bytes));
        DSVI_TRY(device->upload(device->stream, dsvi_shard_at(&z->shard, array, b), own, bytes));
        DSVI_TRY(device->sync(device->stream));
    }
    return DSV_OK;
}

DsvStatus dsvi_zero_fetch(DsvZero *z, DsvShardArray array, float *flat)
{
    DsvDevice *device = z->backend->device;
    if (z->mesh->replica_rank > 0)
        return DSV_OK;
    for (int64_t b = 0; b < z->shard.buckets; b++) {
        float *bucket = host_bucket(z, flat, b);
        DSVI_TRY(device->download(device->stream, bucket + dsvi_shard_first(&z->shard, b),
                                  dsvi_shard_at(&z->shard, array, b),
                                  (size_t)dsvi_shard_count(&z->shard, b) * sizeof *bucket));
        DSVI_TRY(device->sync(device->stream));
        DSVI_TRY(dsvi_comm_gather(z->mesh->shard, 0, bucket, sizeof *bucket, dsvi_shard_bound(&z->shard, b)));
    }
    return DSV_OK;
}

DsvStatus dsvi_zero_settle(DsvZero *z, DsvStatus status)
{
    DsvStatusRecord first = *dsvi_status_record();
    if (status == DSV_OK || !z->queue)
        return status;
    (void)dsvi_comm_queue_finish(z->queue);
    *dsvi_status_record() = first;
    return status;
}
