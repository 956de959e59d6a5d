/* Convolution by cuDNN: one graph that convolves, adds the bias and adds `add`. cuDNN sees arrays of frames
 * with channels last as tensors (1, channels, frames, rows, columns) whose channels have stride 1.
 *
 * cuDNN makes an execution plan for each set of sizes and strides, when the workspace is first asked for or
 * at the first run. Plans are kept as long as the device.
 *
 * In F32 only engines that multiply in F32 are used (no TF32). If none of them can add the bias and `add`,
 * cuDNN convolves alone and the caller adds. In BF16 the result would then be rounded twice, so cuDNN
 * declines. */
#include "cuda/conv/conv_cudnn.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/common/cudnn_graph.h"

/* Ids of tensors in cuDNN. */
enum { CONV_X = 1, CONV_WEIGHT, CONV_Y, CONV_BIAS, CONV_ADD, CONV_IDS };

enum { CONV_ALIGNMENT = 16 };

/* What a plan depends on. All fields are int64_t, without padding, so memcmp compares problems. */
typedef struct ConvKey {
    int64_t frames, height, width, out_frames, out_height, out_width, channels, out_channels;
    int64_t kernel[3], stride[3], pad[3];
    int64_t x_frame, x_row, y_frame, y_row;
    int64_t act, has_bias, has_add;
} ConvKey;

typedef struct ConvPlan {
    ConvKey key;
    DsviCudnnGraph graph;
    bool bare; /* the graph leaves out the bias and `add` */
    struct ConvPlan *next;
} ConvPlan;

struct DsviConvCudnn {
    cudnnHandle_t handle;
    ConvPlan *plans;
};

static ConvKey conv_key(const DsviConvArgs *args)
{
    ConvKey key = {.frames = args->frames,
                   .height = args->height,
                   .width = args->width,
                   .out_frames = args->out_frames,
                   .out_height = args->out_height,
                   .out_width = args->out_width,
                   .channels = args->channels,
                   .out_channels = args->out_channels,
                   .x_frame = args->x_frame,
                   .x_row = args->x_row,
                   .y_frame = args->y_frame,
                   .y_row = args->y_row,
                   .act = args->act,
                   .has_bias = args->bias != NULL,
                   .has_add = args->add != NULL};
    memcpy(key.kernel, args->kernel, sizeof key.kernel);
    memcpy(key.stride, args->stride, sizeof key.stride);
    memcpy(key.pad, args->pad, sizeof key.pad);
    return key;
}

/* ---- the graph ---- */

/* Shape of (frames, rows, columns, channels) in cuDNN's order. */
static DsviCudnnShape frames_shape(const int64_t size[3], int64_t channels, int64_t frame, int64_t row)
{
    return (DsviCudnnShape){
        5, {1, channels, size[0], size[1], size[2]}, {size[0] * frame, 1, frame, row, channels}};
}

/* Computes how many of x's elements along an axis are read, and the zeros before and after them: elements
 * after the last tap are left out, because cuDNN knows no negative padding. */
static void conv_axis(const ConvKey *key, int axis, int64_t in, int64_t out,
                      DsviCudnnConvolution *convolution, int64_t *size)
{
    int64_t end = (out - 1) * key->stride[axis] + key->kernel[axis] - key->pad[axis];
    convolution->stride[axis] = key->stride[axis];
    convolution->before[axis] = key->pad[axis];
    convolution->after[axis] = end > in ? end - in : 0;
    *size = end < in ? end : in;
}

static void build_conv(ConvPlan *plan)
{
    const ConvKey *key = &plan->key;
    DsviCudnnGraph *g = &plan->graph;
    const cudnnDataType_t type = key->act == DSVI_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    const int64_t *k = key->kernel, out[3] = {key->out_frames, key->out_height, key->out_width};
    int64_t in[3];
    DsviCudnnConvolution how;
    conv_axis(key, 0, key->frames, key->out_frames, &how, &in[0]);
    conv_axis(key, 1, key->height, key->out_height, &how, &in[1]);
    conv_axis(key, 2, key->width, key->out_width, &how, &in[2]);
    DsviCudnnShape x = frames_shape(in, key->channels, key->x_frame, key->x_row);
    DsviCudnnShape w = frames_shape(k, key->channels, k[1] * k[2] * key->channels, k[2] * key->channels);
    w.size[0] = key->out_channels;
    DsviCudnnShape y = frames_shape(out, key->out_channels, key->y_frame, key->y_row);
    DsviCudnnShape sums = frames_shape(out, key->out_channels, out[1] * out[2] * key->out_channels,
                                       out[2] * key->out_channels);
    DsviCudnnShape bias = {5,
                           {1, key->out_channels, 1, 1, 1},
                           {key->out_channels, 1, key->out_channels, key->out_channels, key->out_channels}};
    bool biased = key->has_bias && !plan->bare, added = key->has_add && !plan->bare;
    DsviCudnnTensor result = dsvi_cudnn_memory(g, CONV_Y, type, &y);
    DsviCudnnTensor sum = dsvi_cudnn_convolution(
        g, &how, dsvi_cudnn_memory(g, CONV_X, type, &x), dsvi_cudnn_memory(g, CONV_WEIGHT, type, &w),
        biased || added ? dsvi_cudnn_intermediate(g, CUDNN_DATA_FLOAT, &sums) : result);
    if (biased)
        sum = dsvi_cudnn_combine(g, CUDNN_POINTWISE_ADD, sum,
                                 dsvi_cudnn_memory(g, CONV_BIAS, CUDNN_DATA_FLOAT, &bias),
                                 added ? dsvi_cudnn_intermediate(g, CUDNN_DATA_FLOAT, &sums) : result);
    if (added)
        dsvi_cudnn_combine(g, CUDNN_POINTWISE_ADD, sum, dsvi_cudnn_memory(g, CONV_ADD, type, &y), result);
    g->exact = key->act == DSVI_F32;
}

/* ---- plans ---- */

/* Makes cuDNN's handle at the first convolution: programs without convolutions do without. */
static DsvStatus open_conv_cudnn(DsviStream *stream)
{
    if (stream->conv)
        return DSV_OK;
    stream->conv = calloc(1, sizeof *stream->conv);
    if (!stream->conv)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes for convolutions", sizeof *stream->conv);
    DSVI_CUDNN_TRY(cudnnCreate(&stream->conv->handle));
    DSVI_CUDNN_TRY(cudnnSetStream(stream->conv->handle, stream->handle));
    return DSV_OK;
}

static void make_conv_plan(ConvPlan *plan, cudnnHandle_t handle)
{
    build_conv(plan);
    dsvi_cudnn_graph_plan(&plan->graph, handle);
    if (plan->graph.status == DSV_OK || plan->key.act != DSVI_F32 ||
        !(plan->key.has_bias || plan->key.has_add))
        return;
    dsvi_cudnn_graph_release(&plan->graph);
    plan->bare = true;
    build_conv(plan);
    dsvi_cudnn_graph_plan(&plan->graph, handle);
}

/* Returns cuDNN's plan for these sizes and strides: one of the stream's plans, or a new one that is added to
 * them. The plan's graph.status is not DSV_OK if cuDNN declines, for whatever reason: dsv has other kernels
 * for all convolutions. */
static DsvStatus conv_plan_of(DsviStream *stream, const DsviConvArgs *args, ConvPlan **out)
{
    const ConvKey key = conv_key(args);
    DSVI_TRY(open_conv_cudnn(stream));
    for (ConvPlan *plan = stream->conv->plans; plan; plan = plan->next) {
        if (memcmp(&plan->key, &key, sizeof key) == 0) {
            *out = plan;
            return DSV_OK;
        }
    }
    ConvPlan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "conv: no %zu bytes for a plan", sizeof *plan);
    plan->key = key;
    make_conv_plan(plan, stream->conv->handle);
    plan->next = stream->conv->plans;
    stream->conv->plans = plan;
    *out = plan;
    return DSV_OK;
}

/* Returns whether sizes and strides are such that cuDNN may have a plan. */
static bool conv_cudnn_may_serve(const DsviConvArgs *args)
{
    int64_t size = (int64_t)dsvi_dtype_size(args->act);
    const int64_t stride[] = {args->channels,     args->x_frame, args->x_row,
                              args->out_channels, args->y_frame, args->y_row};
    for (size_t i = 0; i < sizeof stride / sizeof *stride; i++)
        if (stride[i] <= 0 || stride[i] * size % CONV_ALIGNMENT != 0)
            return false;
    for (int axis = 0; axis < 3; axis++)
        if (args->pad[axis] < 0)
            return false;
    return true;
}

static bool conv_addresses_are_aligned(const DsviConvArgs *args)
{
    return (uintptr_t)args->x % CONV_ALIGNMENT == 0 && (uintptr_t)args->weight % CONV_ALIGNMENT == 0 &&
           (uintptr_t)args->y % CONV_ALIGNMENT == 0 && (uintptr_t)args->add % CONV_ALIGNMENT == 0 &&
           (uintptr_t)args->bias % CONV_ALIGNMENT == 0;
}

size_t dsvi_conv_cudnn_workspace(DsviStream *stream, const DsviConvArgs *args)
{
    ConvPlan *plan;
    if (!conv_cudnn_may_serve(args) || conv_plan_of(stream, args, &plan) != DSV_OK ||
        plan->graph.status != DSV_OK)
        return 0;
    return (size_t)plan->graph.workspace_bytes;
}

DsvStatus dsvi_conv_cudnn(DsviStream *stream, const DsviConvArgs *args, bool *served, bool *bare)
{
    ConvPlan *plan;
    void *const of[CONV_IDS] = {[CONV_X] = (void *)args->x,
                                [CONV_WEIGHT] = (void *)args->weight,
                                [CONV_Y] = args->y,
                                [CONV_BIAS] = (void *)args->bias,
                                [CONV_ADD] = (void *)args->add};
    void *data[CONV_IDS];
    int64_t id[CONV_IDS];
    int count = 0;
    *served = *bare = false;
    if (!conv_cudnn_may_serve(args) || !conv_addresses_are_aligned(args))
        return DSV_OK;
    DSVI_TRY(conv_plan_of(stream, args, &plan));
    /* A convolution alone would overwrite `add` before it is added. */
    if (plan->graph.status != DSV_OK || (plan->bare && args->add == args->y))
        return DSV_OK;
    if (args->workspace_bytes < (size_t)plan->graph.workspace_bytes)
        return DSVI_FAIL(DSV_E_SHAPE, "conv: workspace has %zu bytes, expected %zu", args->workspace_bytes,
                         (size_t)plan->graph.workspace_bytes);
    for (int i = 1; i < CONV_IDS; i++) {
        if (!of[i] || (plan->bare && i >= CONV_BIAS))
            continue;
        id[count] = i;
        data[count++] = of[i];
    }
    *served = true;
    *bare = plan->bare;
    return dsvi_cudnn_graph_run(&plan->graph, stream->conv->handle, count, id, data, args->workspace);
}

void dsvi_conv_cudnn_free(DsviConvCudnn **conv)
{
    if (!*conv)
        return;
    for (ConvPlan *plan = (*conv)->plans, *next; plan; plan = next) {
        next = plan->next;
        dsvi_cudnn_graph_release(&plan->graph);
        free(plan);
    }
    if ((*conv)->handle)
        cudnnDestroy((*conv)->handle);
    free(*conv);
    *conv = NULL;
}
