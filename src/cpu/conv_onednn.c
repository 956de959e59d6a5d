/* The convolution by oneDNN, one row of y at a time, one thread per row.
 *
 *      frames          rows of x, gathered             row of y
 *      of x      +---+----------------------+---+
 *       t - 2    | 0 |                      | 0 |  \
 *       t - 1    | 0 |                      | 0 |   > row h - 1
 *       t        | 0 |                      | 0 |  /
 *       t - 2    | 0 |                      | 0 |          +----------------------+
 *       ...                                            ->  |                      |
 *                                                          +----------------------+
 *
 * A piece of work is PIECE_ROWS rows of one frame of y. The worker copies the rows of x that these rows read
 * into its part of the workspace, in the order of rows, then frames, with the zeros of the padding written
 * out. The kernel[1] * kernel[0] rows that one row of y reads are then consecutive, and consecutive rows of y
 * share them. A convolution of single pixels (kernel 1 x 1 x 1) reads x in place where x has all columns.
 *
 * oneDNN's own parallelisation would choose another division of the work, and other kernels, for another
 * number of frames or rows. Here the primitive of a row does not know these numbers, so conv.h's promise
 * about bits holds.
 *
 * If the instruction set has no products of BF16, x and weight are converted to F32 while they are copied,
 * and a row of y is computed in F32 in the workspace. */
#include "cpu/conv_onednn.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "cpu/conv_primitive.h"

enum { PIECE_ROWS = 4, ALIGNMENT = 64, WIDEN_GRAIN = 16384 };

struct DsviConvOnednn {
    DsviConvPrimitives *primitives;
    bool have_bf16;
};

/* One call, and how the call divides its workspace. */
typedef struct ConvPlan {
    const DsviConvArgs *args;
    const DsviConvPrimitives *primitives;
    const DsviConvPrimitive *primitive;
    DsviDtype dtype;      /* of the products */
    int64_t columns;      /* columns of a gathered row, with the padding */
    int64_t row_elements; /* elements of a gathered row */
    int64_t pieces;       /* pieces of a frame of y */
    const void *weight;   /* as the primitive reads the weight */
    size_t wide_bytes;    /* weight in F32; 0: not converted */
    size_t rows_bytes;    /* gathered rows of one worker */
    size_t y_bytes;       /* row of y in F32 of one worker; 0: rows are computed in y itself */
    size_t worker_bytes;  /* all of one worker */
    size_t workspace_bytes;
    atomic_int failure; /* dnnl_status_t of some worker that failed, else 0 */
} ConvPlan;

/* ---- set-up ---- */

DsvStatus dsvi_conv_onednn_create(DsviIsa isa, DsviConvOnednn **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes for convolutions", sizeof **out);
    (*out)->have_bf16 = isa >= DSVI_ISA_AVX512_BF16;
    DsvStatus status = dsvi_conv_primitives_create(dsvi_threads_count(), &(*out)->primitives);
    if (status != DSV_OK)
        dsvi_conv_onednn_free(out);
    return status;
}

void dsvi_conv_onednn_free(DsviConvOnednn **conv)
{
    if (!*conv)
        return;
    dsvi_conv_primitives_free(&(*conv)->primitives);
    free(*conv);
    *conv = NULL;
}

/* Recreates the primitives if the number of threads grew, because each worker has a stream. */
static DsvStatus conv_resize_workers(DsviConvOnednn *conv)
{
    int workers = dsvi_threads_count();
    if (conv->primitives && workers <= dsvi_conv_primitives_workers(conv->primitives))
        return DSV_OK;
    dsvi_conv_primitives_free(&conv->primitives);
    return dsvi_conv_primitives_create(workers, &conv->primitives);
}

static size_t conv_align(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int64_t conv_weight_elements(const DsviConvArgs *args)
{
    return args->out_channels * args->kernel[0] * args->kernel[1] * args->kernel[2] * args->channels;
}

static DsvStatus conv_plan(DsviConvOnednn *conv, const DsviConvArgs *args, ConvPlan *plan)
{
    const int64_t *kernel = args->kernel;
    bool widen = args->act == DSVI_BF16 && !conv->have_bf16;
    memset(plan, 0, sizeof *plan);
    plan->args = args;
    plan->dtype = widen ? DSVI_F32 : args->act;
    if (args->out_frames == 0 || args->out_height == 0 || args->out_width == 0)
        return DSV_OK;
    DsviConvKey key = {
        .out_width = args->out_width,
        .channels = args->channels,
        .out_channels = args->out_channels,
        .kernel = {kernel[0], kernel[1], kernel[2]},
        .stride_width = args->stride[2],
        .dtype = plan->dtype,
        .bias = args->bias != NULL,
        .accumulate = args->add != NULL,
    };
    DSVI_TRY(conv_resize_workers(conv));
    DsvStatus status = dsvi_conv_primitives_get(conv->primitives, &key, &plan->primitive);
    if (status == DSV_E_UNSUPPORTED && key.dtype == DSVI_BF16) { /* oneDNN lacks some shapes in BF16 */
        widen = true;
        key.dtype = plan->dtype = DSVI_F32;
        status = dsvi_conv_primitives_get(conv->primitives, &key, &plan->primitive);
    }
    DSVI_TRY(status);
    size_t size = dsvi_dtype_size(plan->dtype);
    int64_t rows = (PIECE_ROWS - 1) * args->stride[1] + kernel[1];
    plan->primitives = conv->primitives;
    plan->columns = (args->out_width - 1) * args->stride[2] + kernel[2];
    plan->row_elements = plan->columns * args->channels;
    plan->pieces = (args->out_height + PIECE_ROWS - 1) / PIECE_ROWS;
    plan->wide_bytes = widen ? conv_align((size_t)conv_weight_elements(args) * size) : 0;
    plan->rows_bytes = conv_align((size_t)(rows * kernel[0] * plan->row_elements) * size);
    plan->y_bytes = widen ? conv_align((size_t)(args->out_width * args->out_channels) * size) : 0;
    plan->worker_bytes = plan->rows_bytes + plan->y_bytes + conv_align(plan->primitive->scratchpad_bytes);
    plan->workspace_bytes = plan->wide_bytes + conv_align(plan->primitive->packed_bytes) +
                            (size_t)dsvi_threads_count() * plan->worker_bytes;
    return DSV_OK;
}

/* ---- rows ---- */

static void *conv_at(DsviDtype dtype, const void *array, int64_t i)
{
    return (unsigned char *)array + i * (int64_t)dsvi_dtype_size(dtype);
}

/* Returns row h of frame t of x, or NULL if x has no such row. */
static const void *conv_row_of_x(const DsviConvArgs *args, int64_t t, int64_t h)
{
    if (t < 0 || t >= args->frames || h < 0 || h >= args->height)
        return NULL;
    return conv_at(args->act, args->x, t * args->x_frame + h * args->x_row);
}

/* Copies the columns of a row of x (NULL: zeros) that a row of y reads. */
static void gather_row(const ConvPlan *plan, const void *row, void *out)
{
    const DsviConvArgs *args = plan->args;
    int64_t before = args->pad[2] < plan->columns ? args->pad[2] : plan->columns;
    int64_t count = plan->columns - before < args->width ? plan->columns - before : args->width;
    int64_t first = before * args->channels, last = first + count * args->channels;
    size_t size = dsvi_dtype_size(plan->dtype);
    if (!row) {
        memset(out, 0, (size_t)plan->row_elements * size);
        return;
    }
    memset(out, 0, (size_t)first * size);
    dsvi_convert(plan->dtype, conv_at(plan->dtype, out, first), args->act, row, last - first);
    memset(conv_at(plan->dtype, out, last), 0, (size_t)(plan->row_elements - last) * size);
}

/* Returns whether a row of x can be read in place. */
static bool reads_in_place(const ConvPlan *plan)
{
    const DsviConvArgs *args = plan->args;
    return args->kernel[0] == 1 && args->kernel[1] == 1 && args->pad[2] == 0 &&
           plan->columns <= args->width && plan->dtype == args->act;
}

/* Gathers what `count` rows of y from row `first` of frame `t` on read. */
static void gather_rows(const ConvPlan *plan, int64_t t, int64_t first, int64_t count, void *out)
{
    const DsviConvArgs *args = plan->args;
    const int64_t *kernel = args->kernel;
    int64_t rows = (count - 1) * args->stride[1] + kernel[1];
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t a = 0; a < kernel[0]; a++) {
            const void *row = conv_row_of_x(args, t * args->stride[0] - args->pad[0] + a,
                                            first * args->stride[1] - args->pad[1] + r);
            gather_row(plan, row, conv_at(plan->dtype, out, (r * kernel[0] + a) * plan->row_elements));
        }
    }
}

/* Computes row h of frame t of y from gathered rows. `y_scratch` is the worker's row of y in F32. */
static dnnl_status_t conv_row(const ConvPlan *plan, const DsviConvWorker *worker, int64_t t, int64_t h,
                              const void *rows, void *y_scratch)
{
    const DsviConvArgs *args = plan->args;
    int64_t at = t * args->y_frame + h * args->y_row, n = args->out_width * args->out_channels;
    void *y = conv_at(args->act, args->y, at), *sum = plan->y_bytes ? y_scratch : y;
    if (args->add && (args->add != args->y || sum != y))
        dsvi_convert(plan->dtype, sum, args->act, conv_at(args->act, args->add, at), n);
    dnnl_status_t status = dsvi_conv_worker_run(worker, plan->primitive, rows, sum);
    if (sum != y)
        dsvi_convert(args->act, y, plan->dtype, sum, n);
    return status;
}

static dnnl_status_t conv_piece(const ConvPlan *plan, const DsviConvWorker *worker, int64_t piece,
                                unsigned char *scratch)
{
    const DsviConvArgs *args = plan->args;
    int64_t t = piece / plan->pieces, first = piece % plan->pieces * PIECE_ROWS;
    int64_t count = args->out_height - first < PIECE_ROWS ? args->out_height - first : PIECE_ROWS;
    bool in_place = reads_in_place(plan);
    dnnl_status_t status = dnnl_success;
    if (!in_place)
        gather_rows(plan, t, first, count, scratch);
    for (int64_t i = 0; i < count && status == dnnl_success; i++) {
        const void *rows = conv_at(plan->dtype, scratch,
                                   i * args->stride[1] * args->kernel[0] * plan->row_elements);
        if (in_place) {
            rows = conv_row_of_x(args, t * args->stride[0] - args->pad[0],
                                 (first + i) * args->stride[1] - args->pad[1]);
            if (!rows) {
                gather_row(plan, NULL, scratch);
                rows = scratch;
            }
        }
        status = conv_row(plan, worker, t, first + i, rows, scratch + plan->rows_bytes);
    }
    return status;
}

static void conv_pieces(void *context, int64_t begin, int64_t end, int worker)
{
    ConvPlan *plan = context;
    const DsviConvArgs *args = plan->args;
    unsigned char *scratch = (unsigned char *)args->workspace + plan->wide_bytes +
                             conv_align(plan->primitive->packed_bytes) + (size_t)worker * plan->worker_bytes;
    DsviConvWorker objects;
    dnnl_status_t status = dsvi_conv_worker_begin(plan->primitives, plan->primitive, worker, plan->weight,
                                                  args->bias, scratch + plan->rows_bytes + plan->y_bytes,
                                                  &objects);
    for (int64_t i = begin; i < end && status == dnnl_success; i++)
        status = conv_piece(plan, &objects, i, scratch);
    dsvi_conv_worker_end(&objects);
    if (status != dnnl_success)
        atomic_store(&plan->failure, (int)status);
}

/* ---- the conv op ---- */

static void conv_widen_weight(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviConvArgs *args = ((const ConvPlan *)context)->args;
    (void)worker;
    dsvi_convert(DSVI_F32, (float *)args->workspace + begin, args->act,
                 conv_at(args->act, args->weight, begin), end - begin);
}

static DsvStatus conv_prepare_weight(ConvPlan *plan)
{
    const DsviConvArgs *args = plan->args;
    void *packed = (unsigned char *)args->workspace + plan->wide_bytes;
    plan->weight = args->weight;
    if (plan->wide_bytes) {
        dsvi_parallel_for(conv_weight_elements(args), WIDEN_GRAIN, conv_widen_weight, plan);
        plan->weight = args->workspace;
    }
    if (!plan->primitive->pack)
        return DSV_OK;
    DSVI_TRY(dsvi_conv_primitive_pack(plan->primitives, plan->primitive, plan->weight, packed));
    plan->weight = packed;
    return DSV_OK;
}

static size_t conv_onednn_workspace(DsviStream *stream, const DsviConvArgs *args)
{
    ConvPlan plan;
    /* A shape that oneDNN refuses needs no workspace: conv_onednn fails for the same reason. */
    return conv_plan(stream->conv, args, &plan) == DSV_OK ? plan.workspace_bytes : 0;
}

static DsvStatus conv_onednn(DsviStream *stream, const DsviConvArgs *args)
{
    ConvPlan plan;
    if ((args->act != DSVI_F32 && args->act != DSVI_BF16) || args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "conv: variant onednn takes F32 and BF16 with F32, not %s with %s",
                         dsvi_dtype_name(args->act), dsvi_dtype_name(args->acc));
    DSVI_TRY(conv_plan(stream->conv, args, &plan));
    if (!plan.primitive)
        return DSV_OK;
    if (args->workspace_bytes < plan.workspace_bytes)
        return DSVI_FAIL(DSV_E_SHAPE, "conv: workspace has %zu bytes, expected %zu", args->workspace_bytes,
                         plan.workspace_bytes);
    DSVI_TRY(conv_prepare_weight(&plan));
    dsvi_parallel_for(args->out_frames * plan.pieces, 1, conv_pieces, &plan);
    return dsvi_conv_primitive_status((dnnl_status_t)atomic_load(&plan.failure), "convolution failed",
                                      &plan.primitive->key);
}

void dsvi_conv_onednn_fill(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, conv, conv_onednn, conv_onednn_workspace, "onednn");
}
