/* Cases of the convolution for the checker (check.h), and a test of the bits of its results: a video that is
 * convolved in pieces gives the bits of the whole. */
#include "base/rng.h"
#include "ops/cases.h"
#include "ops/sparse_cases.h"
#include "test.h"

typedef enum Added { ADDED_NONE, ADDED_OTHER, ADDED_IN_PLACE } Added;

typedef struct ConvShape {
    int64_t size[3], out[3]; /* frames, rows, columns of x and y */
    int64_t channels, out_channels;
    int64_t kernel[3], stride[3], pad[3];
    int64_t gap; /* elements after each row and after each frame, of x, y and add */
    bool biased;
    Added added;
} ConvShape;

typedef struct ConvProblem {
    ConvShape shape;
    const DsviBackend *backend;
} ConvProblem;

enum { CONV_X, CONV_WEIGHT, CONV_BIAS, CONV_ADD, CONV_Y };

static int64_t row_elements(const int64_t size[3], int64_t channels, int64_t gap)
{
    return size[2] * channels + gap;
}

static int64_t frame_elements(const int64_t size[3], int64_t channels, int64_t gap)
{
    return size[1] * row_elements(size, channels, gap) + gap;
}

static int64_t weight_elements(const ConvShape *shape)
{
    return shape->out_channels * shape->kernel[0] * shape->kernel[1] * shape->kernel[2] * shape->channels;
}

/* Sets everything but the data pointers and the workspace. */
static DsviConvArgs conv_args(const ConvShape *shape, DsviDtype act, DsviDtype acc)
{
    DsviConvArgs args = {
        .frames = shape->size[0],
        .height = shape->size[1],
        .width = shape->size[2],
        .out_frames = shape->out[0],
        .out_height = shape->out[1],
        .out_width = shape->out[2],
        .channels = shape->channels,
        .out_channels = shape->out_channels,
        .act = act,
        .acc = acc,
        .x_frame = frame_elements(shape->size, shape->channels, shape->gap),
        .x_row = row_elements(shape->size, shape->channels, shape->gap),
        .y_frame = frame_elements(shape->out, shape->out_channels, shape->gap),
        .y_row = row_elements(shape->out, shape->out_channels, shape->gap),
    };
    for (int i = 0; i < 3; i++) {
        args.kernel[i] = shape->kernel[i];
        args.stride[i] = shape->stride[i];
        args.pad[i] = shape->pad[i];
    }
    return args;
}

/* Calls the operation with a workspace of the size that it requests. */
static DsvStatus conv_call(const DsviBackend *backend, const DsviOps *ops, DsviStream *stream,
                           DsviConvArgs *args)
{
    args->workspace_bytes = DSVI_OP_WORKSPACE(ops->conv, stream, args);
    args->workspace = check_workspace(backend, stream, args->workspace_bytes);
    DsvStatus status = ops->conv.run(stream, args);
    check_workspace_release(backend, stream, args->workspace, args->workspace_bytes);
    return status;
}

static DsvStatus run_conv(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const ConvProblem *p = c->parameters;
    const CheckBuffer *buffer = c->buffer;
    DsviConvArgs args = conv_args(&p->shape, c->act, c->acc);
    args.x = buffer[CONV_X].data;
    args.weight = buffer[CONV_WEIGHT].data;
    args.bias = p->shape.biased ? buffer[CONV_BIAS].data : NULL;
    args.y = buffer[CONV_Y].data;
    args.add = p->shape.added == ADDED_NONE    ? NULL
               : p->shape.added == ADDED_OTHER ? buffer[CONV_ADD].data
                                               : args.y;
    return conv_call(p->backend, ops, stream, &args);
}

static void check_conv(const DsviBackend *backend, const ConvShape *shape)
{
    ConvProblem p = {*shape, backend};
    CheckCase c = {.op = "conv", .parameters = &p, .run = run_conv, .ulps = 4};
    int64_t x = shape->size[0] * frame_elements(shape->size, shape->channels, shape->gap);
    int64_t y = shape->out[0] * frame_elements(shape->out, shape->out_channels, shape->gap);
    /* A gap must keep its bytes, so y has values before the call. Without a gap y begins as NaN. */
    bool kept = shape->gap > 0 || shape->added == ADDED_IN_PLACE;
    snprintf(c.shape, sizeof c.shape,
             "%lldx%lldx%lldx%lld to %lldx%lldx%lldx%lld kernel %lldx%lldx%lld gap %lld%s%s",
             (long long)shape->size[0], (long long)shape->size[1], (long long)shape->size[2],
             (long long)shape->channels, (long long)shape->out[0], (long long)shape->out[1],
             (long long)shape->out[2], (long long)shape->out_channels, (long long)shape->kernel[0],
             (long long)shape->kernel[1], (long long)shape->kernel[2], (long long)shape->gap,
             shape->biased ? " bias" : "", shape->added != ADDED_NONE ? " add" : "");
    check_buffer(&c, "x", CHECK_ACT, CHECK_IN, x);
    check_buffer(&c, "weight", CHECK_ACT, CHECK_IN, weight_elements(shape));
    check_buffer(&c, "bias", CHECK_ACC, CHECK_IN, shape->out_channels);
    check_buffer(&c, "add", CHECK_ACT, CHECK_IN, y);
    check_buffer(&c, "y", CHECK_ACT, kept ? CHECK_IN_OUT : CHECK_OUT, y);
    assert_case(&c, backend);
}

/* ---- the bits of pieces ---- */

/* Arrays of the test of pieces, in host memory. `padded` is x with the zeros of the padding of frames and
 * rows written out, and one frame and row of NaN around, which no piece may read. */
typedef struct Pieces {
    const DsviBackend *backend;
    ConvShape shape, padded_shape;
    DsviDtype act;
    void *x, *padded, *weight, *bias, *whole;
    size_t x_bytes, padded_bytes, weight_bytes, bias_bytes, y_bytes;
} Pieces;

static void *normal_values(DsviDtype dtype, int64_t n, uint32_t number, size_t *bytes)
{
    DsviRng rng = {17, DSVI_RNG_TEST, number};
    *bytes = (size_t)n * dsvi_dtype_size(dtype);
    void *values = malloc(*bytes);
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++)
        dsvi_store(dtype, values, i, dsvi_rng_normal(rng, (uint64_t)i));
    return values;
}

static void pad_explicitly(Pieces *p)
{
    const ConvShape *shape = &p->shape;
    ConvShape *padded = &p->padded_shape;
    int64_t first[2];
    *padded = *shape;
    padded->gap = 0;
    for (int i = 0; i < 2; i++) {
        int64_t read = (shape->out[i] - 1) * shape->stride[i] + shape->kernel[i];
        padded->size[i] = read + 2;
        padded->pad[i] = 0;
        first[i] = 1 + shape->pad[i];
    }
    int64_t row = row_elements(padded->size, padded->channels, 0), rows = padded->size[1];
    size_t size = dsvi_dtype_size(p->act), row_bytes = (size_t)row * size;
    p->padded_bytes = (size_t)(padded->size[0] * rows) * row_bytes;
    p->padded = malloc(p->padded_bytes);
    assert_non_null(p->padded);
    memset(p->padded, 0xff, p->padded_bytes);
    for (int64_t t = 1; t + 1 < padded->size[0]; t++) {
        for (int64_t h = 1; h + 1 < rows; h++) {
            unsigned char *to = (unsigned char *)p->padded + (size_t)(t * rows + h) * row_bytes;
            int64_t from_t = t - first[0], from_h = h - first[1];
            memset(to, 0, row_bytes);
            if (from_t < 0 || from_t >= shape->size[0] || from_h < 0 || from_h >= shape->size[1])
                continue;
            int64_t from = from_t * frame_elements(shape->size, shape->channels, shape->gap) +
                           from_h * row_elements(shape->size, shape->channels, shape->gap);
            memcpy(to, (const unsigned char *)p->x + (size_t)from * size, row_bytes);
        }
    }
}

/* Convolves frames and rows [from, to) of y, from the whole x or, if `explicit_zeros`, from the piece of
 * `padded` that they need. Returns the host memory of y, shaped as the whole y. */
static void *convolve_piece(const Pieces *p, const int64_t from[2], const int64_t to[2], bool explicit_zeros)
{
    const DsviBackend *backend = p->backend;
    DsviStream *stream = backend->device->stream;
    const ConvShape *shape = explicit_zeros ? &p->padded_shape : &p->shape;
    size_t size = dsvi_dtype_size(p->act), x_bytes = explicit_zeros ? p->padded_bytes : p->x_bytes;
    DsviConvArgs args = conv_args(shape, p->act, DSVI_F32);
    unsigned char *y = malloc(p->y_bytes);
    assert_non_null(y);
    memset(y, 0xff, p->y_bytes);
    void *x_memory = check_upload(backend, stream, explicit_zeros ? p->padded : p->x, x_bytes);
    void *y_memory = check_upload(backend, stream, y, p->y_bytes);
    void *weight = check_upload(backend, stream, p->weight, p->weight_bytes);
    void *bias = check_upload(backend, stream, p->bias, p->bias_bytes);
    args.weight = weight;
    args.bias = bias;
    args.x = x_memory;
    if (explicit_zeros) {
        int64_t corner = (1 + from[0] * shape->stride[0]) * args.x_frame +
                         (1 + from[1] * shape->stride[1]) * args.x_row;
        args.x = (const unsigned char *)x_memory + (size_t)corner * size;
        args.frames = (to[0] - from[0] - 1) * shape->stride[0] + shape->kernel[0];
        args.height = (to[1] - from[1] - 1) * shape->stride[1] + shape->kernel[1];
    }
    args.out_frames = to[0] - from[0];
    args.out_height = to[1] - from[1];
    args.y_frame = frame_elements(p->shape.out, p->shape.out_channels, p->shape.gap);
    args.y_row = row_elements(p->shape.out, p->shape.out_channels, p->shape.gap);
    args.y = (unsigned char *)y_memory + (size_t)(from[0] * args.y_frame + from[1] * args.y_row) * size;
    assert_ok(conv_call(backend, &backend->ops, stream, &args));
    check_download(backend, stream, y, y_memory, p->y_bytes);
    check_release(backend, stream, x_memory);
    check_release(backend, stream, weight);
    check_release(backend, stream, bias);
    return y;
}

/* Fails unless the rows of the piece [from, to) equal those of the whole, and all other bytes are 0xff. */
static void assert_piece(const Pieces *p, const unsigned char *y, const int64_t from[2], const int64_t to[2],
                         bool explicit_zeros)
{
    const ConvShape *shape = &p->shape;
    size_t size = dsvi_dtype_size(p->act);
    size_t row_bytes = (size_t)(shape->out[2] * shape->out_channels) * size;
    unsigned char *expected = malloc(p->y_bytes);
    assert_non_null(expected);
    memset(expected, 0xff, p->y_bytes);
    for (int64_t t = from[0]; t < to[0]; t++) {
        for (int64_t h = from[1]; h < to[1]; h++) {
            size_t at = (size_t)(t * frame_elements(shape->out, shape->out_channels, shape->gap) +
                                 h * row_elements(shape->out, shape->out_channels, shape->gap)) *
                        size;
            memcpy(expected + at, (const unsigned char *)p->whole + at, row_bytes);
        }
    }
    for (size_t i = 0; i < p->y_bytes; i++)
        if (y[i] != expected[i])
            fail_msg("conv %s: frames [%lld, %lld) rows [%lld, %lld)%s: byte %zu differs from the whole",
                     dsvi_dtype_name(p->act), (long long)from[0], (long long)to[0], (long long)from[1],
                     (long long)to[1], explicit_zeros ? " with explicit zeros" : "", i);
    free(expected);
}

static void check_piece(const Pieces *p, int64_t t0, int64_t t1, int64_t h0, int64_t h1, bool explicit_zeros)
{
    const int64_t from[2] = {t0, h0}, to[2] = {t1, h1};
    void *y = convolve_piece(p, from, to, explicit_zeros);
    assert_piece(p, y, from, to, explicit_zeros);
    free(y);
}

static void check_conv_pieces(const DsviBackend *backend, const ConvShape *shape, DsviDtype act)
{
    const int64_t zero[2] = {0, 0}, *out = shape->out;
    Pieces p = {.backend = backend, .shape = *shape, .act = act};
    p.x = normal_values(act, shape->size[0] * frame_elements(shape->size, shape->channels, shape->gap), 1,
                        &p.x_bytes);
    p.weight = normal_values(act, weight_elements(shape), 2, &p.weight_bytes);
    p.bias = normal_values(DSVI_F32, shape->out_channels, 3, &p.bias_bytes);
    p.y_bytes = (size_t)(out[0] * frame_elements(out, shape->out_channels, shape->gap)) *
                dsvi_dtype_size(act);
    pad_explicitly(&p);
    p.whole = convolve_piece(&p, zero, out, false);
    assert_piece(&p, p.whole, zero, out, false); /* its gaps are untouched */
    check_piece(&p, 0, out[0], 0, out[1], true);
    /* the first frames and rows, whose padding stays implicit */
    check_piece(&p, 0, 1, 0, out[1], false);
    check_piece(&p, 0, out[0], 0, out[1] - 1, false);
    for (int64_t t = 0; t < out[0]; t++)
        check_piece(&p, t, t + 1, 0, out[1], true);
    for (int64_t h = 0; h < out[1]; h++)
        check_piece(&p, 0, out[0], h, h + 1, true);
    check_piece(&p, out[0] / 2, out[0], out[1] / 3, out[1], true);
    free(p.x);
    free(p.padded);
    free(p.weight);
    free(p.bias);
    free(p.whole);
}

static void check_conv_bits(const DsviBackend *backend)
{
    /* Rows of one tile and of several; channels that fill vectors and others; the strides of the VAE. */
    static const ConvShape shapes[] = {
        {{4, 5, 9}, {4, 5, 9}, 16, 16, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, 0, true, ADDED_NONE},
        {{3, 6, 70}, {3, 6, 70}, 32, 48, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, 8, true, ADDED_NONE},
        {{3, 7, 13}, {3, 7, 13}, 3, 5, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, 3, true, ADDED_NONE},
        {{3, 9, 21}, {3, 5, 11}, 24, 16, {1, 3, 3}, {1, 2, 2}, {0, 0, 0}, 0, true, ADDED_NONE},
        {{7, 4, 10}, {4, 4, 10}, 16, 32, {3, 1, 1}, {2, 1, 1}, {1, 0, 0}, 0, true, ADDED_NONE},
        {{2, 4, 40}, {2, 4, 40}, 16, 24, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, 0, true, ADDED_NONE},
    };
    if (!backend->device || !backend->device->deterministic)
        return;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_conv_pieces(backend, &shapes[i], DSVI_F32);
        check_conv_pieces(backend, &shapes[i], DSVI_BF16);
    }
}

void check_conv_cases(const DsviBackend *backend)
{
    static const ConvShape shapes[] = {
        {{1, 1, 1}, {1, 1, 1}, 1, 1, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, 0, false, ADDED_NONE},
        {{3, 4, 5}, {3, 4, 5}, 3, 5, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, 0, true, ADDED_NONE},
        {{3, 4, 5}, {3, 4, 5}, 5, 3, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, 3, false, ADDED_OTHER},
        {{2, 5, 19}, {2, 5, 19}, 16, 16, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, 0, true, ADDED_IN_PLACE},
        {{2, 3, 67}, {2, 3, 67}, 32, 24, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, 8, true, ADDED_OTHER},
        {{1, 9, 7}, {1, 9, 7}, 40, 72, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, 1, true, ADDED_IN_PLACE},
        {{2, 3, 35}, {2, 3, 35}, 96, 3, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, 0, true, ADDED_NONE},
        {{2, 3, 18}, {2, 3, 18}, 16, 130, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, 16, true, ADDED_NONE},
        /* strides: columns, rows and frames after the last ones count as zero */
        {{2, 8, 12}, {2, 4, 6}, 16, 16, {1, 3, 3}, {1, 2, 2}, {0, 0, 0}, 0, true, ADDED_NONE},
        {{2, 7, 11}, {2, 4, 6}, 7, 9, {1, 3, 3}, {1, 2, 2}, {0, 0, 0}, 2, true, ADDED_OTHER},
        {{5, 3, 6}, {2, 3, 6}, 16, 16, {3, 1, 1}, {2, 1, 1}, {0, 0, 0}, 0, true, ADDED_NONE},
        {{6, 3, 6}, {4, 3, 6}, 9, 7, {3, 1, 1}, {2, 1, 1}, {2, 0, 0}, 5, false, ADDED_NONE},
        {{3, 4, 6}, {3, 4, 6}, 12, 20, {3, 1, 1}, {1, 1, 1}, {2, 0, 0}, 0, true, ADDED_NONE},
        {{4, 7, 9}, {2, 3, 4}, 6, 4, {2, 3, 4}, {3, 2, 2}, {1, 0, 1}, 0, true, ADDED_NONE},
        /* products of pixels */
        {{2, 3, 17}, {2, 3, 17}, 16, 32, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, 0, true, ADDED_OTHER},
        {{1, 3, 33}, {1, 3, 33}, 33, 17, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, 7, false, ADDED_IN_PLACE},
        /* y needs only some of x, or more than there is */
        {{5, 6, 7}, {1, 2, 3}, 8, 8, {3, 3, 3}, {1, 1, 1}, {0, 1, 0}, 0, true, ADDED_NONE},
        {{1, 1, 2}, {4, 4, 5}, 8, 8, {3, 3, 3}, {1, 1, 1}, {3, 3, 3}, 0, true, ADDED_NONE},
        {{0, 3, 3}, {2, 3, 3}, 4, 6, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, 0, true, ADDED_NONE},
        /* nothing to do */
        {{2, 3, 3}, {0, 3, 3}, 4, 6, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, 0, true, ADDED_NONE},
        {{2, 3, 3}, {2, 0, 3}, 4, 6, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, 0, true, ADDED_NONE},
        {{2, 3, 3}, {2, 3, 0}, 4, 6, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, 0, true, ADDED_NONE},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_conv(backend, &shapes[i]);
    check_conv_bits(backend);
}
