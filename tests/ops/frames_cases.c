/* Cases of channel_norm and frames_move for the checker (check.h). */
#include "ops/cases.h"
#include "test.h"

typedef struct ChannelNormShape {
    int64_t frames, height, width, channels;
    int64_t gap; /* elements after each row and after each frame, of x and y */
    bool silu, in_place;
    double scale; /* size of x; norms below 1e-12 count as 1e-12 */
} ChannelNormShape;

enum { CHANNEL_NORM_GAMMA, CHANNEL_NORM_X, CHANNEL_NORM_Y };

static DsvStatus run_channel_norm(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const ChannelNormShape *shape = c->parameters;
    int64_t row = shape->width * shape->channels + shape->gap, frame = shape->height * row + shape->gap;
    DsviChannelNormArgs args = {
        .frames = shape->frames,
        .height = shape->height,
        .width = shape->width,
        .channels = shape->channels,
        .silu = shape->silu,
        .act = c->act,
        .acc = c->acc,
        .gamma = c->buffer[CHANNEL_NORM_GAMMA].data,
        .x = c->buffer[CHANNEL_NORM_X].data,
        .x_frame = frame,
        .x_row = row,
        .y = c->buffer[CHANNEL_NORM_Y].data,
        .y_frame = frame,
        .y_row = row,
    };
    return ops->channel_norm.run(stream, &args);
}

static void check_channel_norm(const DsviBackend *backend, const ChannelNormShape *shape)
{
    CheckCase c = {.op = "channel_norm", .parameters = shape, .run = run_channel_norm, .ulps = 8};
    int64_t row = shape->width * shape->channels + shape->gap;
    int64_t n = shape->frames * (shape->height * row + shape->gap);
    bool kept = shape->gap > 0 || shape->in_place;
    snprintf(c.shape, sizeof c.shape, "%lldx%lldx%lldx%lld gap %lld%s%s of size %g", (long long)shape->frames,
             (long long)shape->height, (long long)shape->width, (long long)shape->channels,
             (long long)shape->gap, shape->silu ? " silu" : "", shape->in_place ? " in place" : "",
             shape->scale);
    check_buffer(&c, "gamma", CHECK_ACC, CHECK_IN, shape->channels)->steady = true;
    check_buffer(&c, "x", CHECK_ACT, CHECK_IN, n)->scale = shape->scale;
    CheckBuffer *y = check_buffer(&c, "y", CHECK_ACT, kept ? CHECK_IN_OUT : CHECK_OUT, n);
    y->alias = shape->in_place ? CHANNEL_NORM_X + 1 : 0;
    assert_case(&c, backend);
}

void check_channel_norm_cases(const DsviBackend *backend)
{
    static const ChannelNormShape shapes[] = {
        {1, 1, 1, 1, 0, false, false, 1},    {2, 3, 5, 7, 0, true, false, 1},
        {2, 3, 5, 16, 0, false, true, 1},    {1, 2, 33, 96, 0, true, true, 1},
        {3, 2, 9, 20, 4, true, false, 1},    {2, 3, 7, 65, 3, false, true, 1},
        {2, 2, 11, 384, 8, true, true, 1},   {1, 3, 5, 1029, 1, true, false, 1},
        {2, 1, 3, 96, 0, false, false, 0},   {2, 3, 5, 24, 0, false, false, 3e-13},
        {1, 20, 30, 48, 16, true, false, 1}, {0, 3, 5, 8, 0, true, false, 1},
        {2, 0, 5, 8, 0, false, false, 1},    {2, 3, 0, 8, 0, true, false, 1},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_channel_norm(backend, &shapes[i]);
}

/* The order of the axes in memory. */
typedef enum Layout {
    CHANNELS_LAST,     /* (T, H, W, C) */
    CHANNELS_FIRST,    /* (C, T, H, W) */
    CHANNELS_IN_FRAME, /* (T, C, H, W) */
    CHANNELS_IN_ROW    /* (T, H, C, W) */
} Layout;

typedef struct MoveSide {
    Layout layout;
    CheckKind kind; /* CHECK_ACT or CHECK_ACC */
    int64_t gap;    /* elements after each row, frame and plane of a channel */
} MoveSide;

typedef struct MoveShape {
    int64_t frames, height, width, channels, upscale;
    MoveSide x, y;
    bool scaled, shifted;
    double limit;
} MoveShape;

enum { MOVE_SCALE, MOVE_SHIFT, MOVE_X, MOVE_Y };

/* Sets the strides of `f` for an array of these sizes, and returns its number of elements. */
static int64_t lay_out(const MoveSide *side, int64_t frames, int64_t height, int64_t width, int64_t channels,
                       DsviFrames *f)
{
    int64_t gap = side->gap;
    f->pixel = f->channel = 1;
    switch (side->layout) {
    case CHANNELS_LAST:
        f->pixel = channels;
        f->row = width * channels + gap;
        f->frame = height * f->row + gap;
        return frames * f->frame;
    case CHANNELS_FIRST:
        f->row = width + gap;
        f->frame = height * f->row + gap;
        f->channel = frames * f->frame + gap;
        return channels * f->channel;
    case CHANNELS_IN_FRAME:
        f->row = width + gap;
        f->channel = height * f->row + gap;
        f->frame = channels * f->channel + gap;
        return frames * f->frame;
    case CHANNELS_IN_ROW: break;
    }
    f->channel = width + gap;
    f->row = channels * f->channel;
    f->frame = height * f->row + gap;
    return frames * f->frame;
}

static int64_t lay_out_x(const MoveShape *shape, DsviFrames *x)
{
    return lay_out(&shape->x, shape->frames, shape->height, shape->width, shape->channels, x);
}

static int64_t lay_out_y(const MoveShape *shape, DsviFrames *y)
{
    return lay_out(&shape->y, shape->frames, shape->height * shape->upscale, shape->width * shape->upscale,
                   shape->channels, y);
}

static DsvStatus run_frames_move(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const MoveShape *shape = c->parameters;
    const CheckBuffer *buffer = c->buffer;
    DsviFramesMoveArgs args = {
        .frames = shape->frames,
        .height = shape->height,
        .width = shape->width,
        .channels = shape->channels,
        .upscale = shape->upscale,
        .acc = c->acc,
        .scale = shape->scaled ? buffer[MOVE_SCALE].data : NULL,
        .shift = shape->shifted ? buffer[MOVE_SHIFT].data : NULL,
        .limit = shape->limit,
        .x = {.data = buffer[MOVE_X].data, .dtype = buffer[MOVE_X].dtype},
        .y = {.data = buffer[MOVE_Y].data, .dtype = buffer[MOVE_Y].dtype},
    };
    lay_out_x(shape, &args.x);
    lay_out_y(shape, &args.y);
    return ops->frames_move.run(stream, &args);
}

static void check_frames_move(const DsviBackend *backend, const MoveShape *shape)
{
    static const char *const layout[] = {"THWC", "CTHW", "TCHW", "THCW"};
    CheckCase c = {.op = "frames_move", .parameters = shape, .run = run_frames_move, .ulps = 2};
    DsviFrames strides;
    snprintf(c.shape, sizeof c.shape,
             "%lldx%lldx%lldx%lld times %lld from %s gap %lld to %s gap %lld%s%s limit %g",
             (long long)shape->frames, (long long)shape->height, (long long)shape->width,
             (long long)shape->channels, (long long)shape->upscale, layout[shape->x.layout],
             (long long)shape->x.gap, layout[shape->y.layout], (long long)shape->y.gap,
             shape->scaled ? " scale" : "", shape->shifted ? " shift" : "", shape->limit);
    check_buffer(&c, "scale", CHECK_ACC, CHECK_IN, shape->channels)->steady = true;
    check_buffer(&c, "shift", CHECK_ACC, CHECK_IN, shape->channels)->steady = true;
    check_buffer(&c, "x", shape->x.kind, CHECK_IN, lay_out_x(shape, &strides));
    check_buffer(&c, "y", shape->y.kind, shape->y.gap > 0 ? CHECK_IN_OUT : CHECK_OUT,
                 lay_out_y(shape, &strides));
    assert_case(&c, backend);
}

void check_frames_move_cases(const DsviBackend *backend)
{
    static const int64_t sizes[][4] = {
        {1, 1, 1, 1}, {2, 3, 5, 7}, {3, 2, 19, 3}, {1, 3, 67, 16}, {2, 2, 33, 19}, {2, 2, 9, 33},
    };
    /* All pairs of layouts, dtypes and enlargements; every third with a gap, scale, shift or limit. */
    int number = 0;
    for (int from = CHANNELS_LAST; from <= CHANNELS_IN_ROW; from++) {
        for (int to = CHANNELS_LAST; to <= CHANNELS_IN_ROW; to++) {
            for (int kinds = 0; kinds < 4; kinds++) {
                for (int upscale = 1; upscale <= 2; upscale++, number++) {
                    const int64_t *size = sizes[number % 6];
                    MoveShape shape = {
                        .frames = size[0],
                        .height = size[1],
                        .width = size[2],
                        .channels = size[3],
                        .upscale = upscale,
                        .x = {(Layout)from, kinds & 1 ? CHECK_ACC : CHECK_ACT, number % 3 == 1 ? 5 : 0},
                        .y = {(Layout)to, kinds & 2 ? CHECK_ACC : CHECK_ACT, number % 5 == 1 ? 3 : 0},
                        .scaled = number % 7 < 2,
                        .shifted = number % 4 == 1,
                        .limit = number % 5 == 2 ? 0.5 : 0,
                    };
                    check_frames_move(backend, &shape);
                }
            }
        }
    }
    /* Arrays that are divided among threads, and empty ones. */
    static const MoveShape others[] = {
        {2, 20, 40, 17, 2, {CHANNELS_LAST, CHECK_ACT, 0}, {CHANNELS_LAST, CHECK_ACT, 0}, true, true, 0},
        {2, 20, 40, 17, 1, {CHANNELS_LAST, CHECK_ACT, 0}, {CHANNELS_FIRST, CHECK_ACC, 0}, true, true, 1},
        {0, 3, 5, 7, 1, {CHANNELS_LAST, CHECK_ACT, 0}, {CHANNELS_FIRST, CHECK_ACT, 0}, false, false, 0},
        {2, 0, 5, 7, 2, {CHANNELS_FIRST, CHECK_ACC, 0}, {CHANNELS_LAST, CHECK_ACT, 0}, true, true, 1},
        {2, 3, 0, 7, 1, {CHANNELS_LAST, CHECK_ACT, 0}, {CHANNELS_LAST, CHECK_ACT, 0}, false, false, 0},
        {2, 3, 5, 0, 1, {CHANNELS_FIRST, CHECK_ACT, 0}, {CHANNELS_LAST, CHECK_ACT, 0}, false, false, 0},
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        check_frames_move(backend, &others[i]);
}
