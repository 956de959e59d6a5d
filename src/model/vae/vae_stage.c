/* Runs one stage of a VAE on one piece, and keeps what the next pieces need. See vae_pass.h. */
#include "model/vae/vae_pass.h"

enum {
    UPSCALED_FRAMES = 4, /* frames that are enlarged together; all frames are independent here */
    TILE_ROWS = 16       /* of kernels that convolve on Hopper */
};

static int64_t smaller_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

DsviVaeBlock dsvi_vae_block_from(const DsviVaePass *pass, const DsviVaeBlock *block, int64_t frames,
                                 int64_t rows)
{
    DsviVaeBlock out = *block;
    int64_t elements = frames * block->frame + rows * block->row;
    if (block->data)
        out.data = (char *)block->data + elements * (int64_t)dsvi_dtype_size(pass->act);
    out.frames -= frames;
    out.lo += rows;
    return out;
}

DsvStatus dsvi_vae_move(DsviVaePass *pass, const DsviVaeBlock *x, int64_t upscale, const DsviVaeBlock *y)
{
    DsviFramesMoveArgs args = {
        .frames = x->frames,
        .height = x->hi - x->lo,
        .width = x->width,
        .channels = x->channels,
        .upscale = upscale,
        .acc = DSVI_F32,
        .x = {x->data, pass->act, x->frame, x->row, x->channels, 1},
        .y = {y->data, pass->act, y->frame, y->row, y->channels, 1},
    };
    if (pass->measuring || args.frames <= 0 || args.height <= 0)
        return DSV_OK;
    return pass->backend->ops.frames_move.run(pass->backend->device->stream, &args);
}

DsvStatus dsvi_vae_norm(DsviVaePass *pass, const void *gamma, bool silu, const DsviVaeBlock *x,
                        const DsviVaeBlock *y)
{
    DsviChannelNormArgs args = {
        .frames = x->frames,
        .height = x->hi - x->lo,
        .width = x->width,
        .channels = x->channels,
        .silu = silu,
        .act = pass->act,
        .acc = DSVI_F32,
        .gamma = gamma,
        .x = x->data,
        .x_frame = x->frame,
        .x_row = x->row,
        .y = y->data,
        .y_frame = y->frame,
        .y_row = y->row,
    };
    if (pass->measuring || args.frames <= 0 || args.height <= 0)
        return DSV_OK;
    return pass->backend->ops.channel_norm.run(pass->backend->device->stream, &args);
}

DsvStatus dsvi_vae_conv(DsviVaePass *pass, const DsviVaeConv *conv, const DsviVaeBlock *x, int64_t above,
                        int64_t before, const DsviVaeBlock *y, bool add)
{
    int64_t first = x->lo - above, needed = conv->stride * y->lo - conv->pad;
    int64_t row_pad = larger_of(first - needed, 0);
    DsviVaeBlock from = dsvi_vae_block_from(pass, x, -before, larger_of(needed - first, 0) - above);
    DsviVaeBlock to = *y;
    /* zeros for the frames that the first output reads before the video; frames are always complete at the
     * end */
    int64_t frame_pad = (to.frames - 1) * conv->time_stride + conv->kernel[0] - from.frames;
    DSVI_ASSERT(row_pad <= conv->pad);
    DsviConvArgs args = {
        .frames = from.frames,
        .height = from.hi - from.lo,
        .width = from.width,
        .out_frames = to.frames,
        .out_height = to.hi - to.lo,
        .out_width = to.width,
        .channels = conv->in,
        .out_channels = conv->out,
        .kernel = {conv->kernel[0], conv->kernel[1], conv->kernel[2]},
        .stride = {conv->time_stride, conv->stride, conv->stride},
        .pad = {larger_of(frame_pad, 0), row_pad, conv->pad},
        .act = pass->act,
        .acc = DSVI_F32,
        .x = from.data,
        .x_frame = from.frame,
        .x_row = from.row,
        .weight = conv->weight,
        .bias = conv->bias,
        .add = add ? to.data : NULL,
        .y = to.data,
        .y_frame = to.frame,
        .y_row = to.row,
        .workspace = pass->workspace,
        .workspace_bytes = pass->workspace_bytes,
    };
    DsviStream *stream = pass->backend->device->stream;
    if (args.out_frames <= 0 || args.out_height <= 0)
        return DSV_OK;
    if (!pass->measuring)
        return pass->backend->ops.conv.run(stream, &args);
    args.add = add ? conv->weight : NULL; /* any address: only whether an array is added counts */
    size_t bytes = DSVI_OP_WORKSPACE(pass->backend->ops.conv, stream, &args);
    pass->workspace_bytes = bytes > pass->workspace_bytes ? bytes : pass->workspace_bytes;
    return DSV_OK;
}

static void count_products(DsviVaePass *pass, int64_t i, const DsviVaeConv *conv, int64_t rows)
{
    const DsviVaeBound *bound = &pass->bounds[i + 1];
    double row = (double)(bound->factor * bound->width) * (double)(conv->in * conv->out) *
                 (double)(conv->kernel[0] * conv->kernel[1] * conv->kernel[2]);
    pass->products += row * (double)rows;
    pass->tile_products += row * (double)((rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS);
}

void dsvi_vae_stage_count_products(DsviVaePass *pass, int64_t i)
{
    const DsviVaeStage *stage = &pass->stages[i];
    const DsviVaeStep *step = &pass->steps[i];
    int64_t rows = pass->blocks[i + 1].hi - pass->blocks[i + 1].lo;
    if (stage->kind == DSVI_VAE_SAVE)
        return;
    for (int k = 0; k < 3; k++)
        count_products(pass, i, &stage->conv[k],
                       stage->kind == DSVI_VAE_RESIDUAL && k == 0 ? step->mid_hi - step->mid_lo : rows);
}

/* Rows of the strip above that are kept for a strip whose new rows begin at `lo`. */
static int64_t rows_kept(int64_t lo)
{
    return smaller_of(lo, DSVI_VAE_ROWS_KEPT);
}

/* Puts the kept rows above a block, and keeps its last rows instead. `chunk`: frames [first, first +
 * block->frames) of the video are the block's. */
static DsvStatus edge_swap_rows(DsviVaePass *pass, const DsviVaeEdge *edge, const DsviVaeBlock *block,
                                int64_t first)
{
    int64_t line = block->width * block->channels, above = rows_kept(block->lo), below = rows_kept(block->hi);
    if (!edge->rows && !pass->measuring)
        return DSV_OK;
    DsviVaeBlock kept = {
        .data = edge->rows,
        .frame = DSVI_VAE_ROWS_KEPT * line,
        .row = line,
        .frames = first + block->frames,
        .hi = above,
        .width = block->width,
        .channels = block->channels,
    };
    kept = dsvi_vae_block_from(pass, &kept, first, 0);
    DsviVaeBlock to = dsvi_vae_block_from(pass, block, 0, -above);
    DSVI_TRY(dsvi_vae_move(pass, &kept, 1, &to));
    if (block->lo == block->hi)
        return DSV_OK;
    DsviVaeBlock from = dsvi_vae_block_from(pass, block, 0, block->hi - below - block->lo);
    return dsvi_vae_move(pass, &from, 1, &kept);
}

/* Puts the kept frames before a block that has `above` rows more than its new ones, and keeps its last frames
 * instead. *before: how many frames there are before the block now. */
static DsvStatus edge_swap_frames(DsviVaePass *pass, DsviVaeEdge *edge, const DsviVaeBlock *block,
                                  int64_t above, int64_t *before)
{
    int64_t line = block->width * block->channels, keep;
    *before = edge->held;
    DsviVaeBlock kept = {
        .data = edge->frames,
        .frame = edge->height * line,
        .row = line,
        .frames = edge->held,
        .lo = block->lo - above,
        .hi = block->hi,
        .width = block->width,
        .channels = block->channels,
    };
    if (!edge->frames && !pass->measuring)
        return DSV_OK;
    DsviVaeBlock to = dsvi_vae_block_from(pass, block, -edge->held, -above);
    DSVI_TRY(dsvi_vae_move(pass, &kept, 1, &to));
    keep = smaller_of(edge->keep, edge->held + block->frames);
    DsviVaeBlock from = dsvi_vae_block_from(pass, block, block->frames - keep, -above);
    edge->held = keep;
    return dsvi_vae_move(pass, &from, 1, &kept);
}

static int64_t rows_slack(const DsviVaePass *pass)
{
    return dsvi_vae_strips(pass) > 1 ? DSVI_VAE_ROWS_KEPT : 0;
}

static int64_t frames_slack(const DsviVaePass *pass)
{
    return dsvi_vae_chunks(pass) > 1 ? DSVI_VAE_FRAMES_KEPT : 0;
}

/* `rows`: most new rows of a piece; `keep`: frames. */
static void edge_carve(const DsviVaePass *pass, int64_t b, int64_t channels, bool with_rows, int64_t rows,
                       int64_t keep, DsviArena *arena, DsviVaeEdge *edge)
{
    const DsviVaeBound *bound = &pass->bounds[b];
    size_t line = (size_t)(bound->width * channels) * dsvi_dtype_size(pass->act);
    int64_t frames = dsvi_vae_frames_before(pass, b, pass->latent_frames);
    *edge = (DsviVaeEdge){.height = rows + (with_rows ? rows_slack(pass) : 0), .keep = keep};
    if (with_rows && rows_slack(pass) > 0)
        edge->rows = dsvi_arena_take(arena, DSVI_MEM_ACTIVATIONS,
                                     (size_t)(frames * DSVI_VAE_ROWS_KEPT) * line);
    if (keep > 0 && frames_slack(pass) > 0)
        edge->frames = dsvi_arena_take(arena, DSVI_MEM_ACTIVATIONS, (size_t)(keep * edge->height) * line);
}

void dsvi_vae_stage_carve_edges(DsviVaePass *pass, int64_t i, DsviArena *arena)
{
    const DsviVaeStage *stage = &pass->stages[i];
    const DsviVaeConv *conv = &stage->conv[0];
    DsviVaeStep *step = &pass->steps[i];
    int64_t rows = pass->most_rows[i];
    switch (stage->kind) {
    case DSVI_VAE_CONV:
        edge_carve(pass, i, stage->in, conv->kernel[1] > 1, rows, conv->kernel[0] - 1, arena,
                   stage->gamma[0] ? &step->middle[0] : &step->input);
        break;
    case DSVI_VAE_RESIDUAL:
        edge_carve(pass, i, stage->in, true, rows, 0, arena, &step->input);
        edge_carve(pass, i, stage->in, false, rows + rows_slack(pass), conv->kernel[0] - 1, arena,
                   &step->middle[0]);
        edge_carve(pass, i, stage->out, true, step->mid_rows, conv->kernel[0] - 1, arena, &step->middle[1]);
        break;
    case DSVI_VAE_TIME_DOWN: edge_carve(pass, i, stage->in, false, rows, 1, arena, &step->input); break;
    case DSVI_VAE_TIME_UP:
        edge_carve(pass, i, stage->in, false, rows, conv->kernel[0] - 1, arena, &step->input);
        break;
    case DSVI_VAE_SAVE: dsvi_vae_saved_carve(pass, i, arena); break;
    case DSVI_VAE_ATTENTION:
    case DSVI_VAE_MEAN: break;
    }
}

/* Bytes of a block of a stage's scratch memory. */
static size_t scratch_bytes(const DsviVaePass *pass, int64_t frames, int64_t rows, int64_t width,
                            int64_t channels)
{
    return (size_t)(frames * rows * width * channels) * dsvi_dtype_size(pass->act);
}

void dsvi_vae_stage_carve_scratch(DsviVaePass *pass, int64_t i, DsviArena *arena)
{
    const DsviVaeStage *stage = &pass->stages[i];
    DsviVaeStep *step = &pass->steps[i];
    int64_t frames = dsvi_vae_most_frames(pass, i), width = pass->bounds[i].width;
    int64_t rows = pass->most_rows[i] + rows_slack(pass), kept = frames_slack(pass);
    if (stage->kind == DSVI_VAE_ATTENTION)
        dsvi_vae_attention_carve(pass, i, arena);
    if (stage->kind == DSVI_VAE_RESIDUAL || (stage->kind == DSVI_VAE_CONV && stage->gamma[0]))
        step->scratch[0] = dsvi_arena_take(arena, DSVI_MEM_SCRATCH,
                                           scratch_bytes(pass, frames + kept, rows, width, stage->in));
    if (stage->kind == DSVI_VAE_RESIDUAL)
        step->scratch[1] = dsvi_arena_take(
            arena, DSVI_MEM_SCRATCH,
            scratch_bytes(pass, frames + kept, step->mid_rows + rows_slack(pass), width, stage->out));
    if (stage->upscale > 1)
        step->scratch[2] = dsvi_arena_take(arena, DSVI_MEM_SCRATCH,
                                           scratch_bytes(pass, smaller_of(frames, UPSCALED_FRAMES),
                                                         stage->upscale * rows, stage->upscale * width,
                                                         stage->in));
}

/* A block in a stage's scratch memory with the new rows [lo, hi), of which any piece has at most `rows`, and
 * room for kept rows and frames before. */
static DsviVaeBlock scratch_block(const DsviVaePass *pass, void *data, int64_t frames, int64_t rows,
                                  int64_t lo, int64_t hi, int64_t width, int64_t channels)
{
    DsviVaeBlock block = {
        .data = data,
        .frame = (rows + rows_slack(pass)) * width * channels,
        .row = width * channels,
        .frames = frames + frames_slack(pass),
        .lo = lo - rows_slack(pass),
        .hi = hi,
        .width = width,
        .channels = channels,
    };
    return dsvi_vae_block_from(pass, &block, frames_slack(pass), rows_slack(pass));
}

static DsvStatus run_residual(DsviVaePass *pass, int64_t i, int64_t first)
{
    const DsviVaeStage *stage = &pass->stages[i];
    DsviVaeStep *step = &pass->steps[i];
    const DsviVaeBlock *x = &pass->blocks[i], *y = &pass->blocks[i + 1];
    int64_t above = rows_kept(x->lo), middle_above = rows_kept(step->mid_lo), before;
    DsviVaeBlock a = scratch_block(pass, step->scratch[0], x->frames, pass->most_rows[i], x->lo, x->hi,
                                   x->width, stage->in);
    DsviVaeBlock b = scratch_block(pass, step->scratch[1], x->frames, step->mid_rows, step->mid_lo,
                                   step->mid_hi, x->width, stage->out);
    /* The norm of the kept rows is computed again: this takes as long as to copy it. */
    DSVI_TRY(edge_swap_rows(pass, &step->input, x, first));
    DsviVaeBlock x_all = dsvi_vae_block_from(pass, x, 0, -above),
                 a_all = dsvi_vae_block_from(pass, &a, 0, -above);
    DSVI_TRY(dsvi_vae_norm(pass, stage->gamma[0], true, &x_all, &a_all));
    DSVI_TRY(edge_swap_frames(pass, &step->middle[0], &a, above, &before));
    DSVI_TRY(dsvi_vae_conv(pass, &stage->conv[0], &a, above, before, &b, false));

    DSVI_TRY(dsvi_vae_norm(pass, stage->gamma[1], true, &b, &b));
    DSVI_TRY(edge_swap_rows(pass, &step->middle[1], &b, first));
    DSVI_TRY(edge_swap_frames(pass, &step->middle[1], &b, middle_above, &before));
    if (stage->conv[2].out)
        DSVI_TRY(dsvi_vae_conv(pass, &stage->conv[2], x, above, 0, y, false));
    return dsvi_vae_conv(pass, &stage->conv[1], &b, middle_above, before, y, true);
}

/* Enlarges the block, a few frames at a time, and convolves. */
static DsvStatus run_enlarged(DsviVaePass *pass, int64_t i, int64_t above)
{
    const DsviVaeStage *stage = &pass->stages[i];
    const int64_t u = stage->upscale;
    for (int64_t f = 0; f < pass->blocks[i].frames; f += UPSCALED_FRAMES) {
        DsviVaeBlock x = dsvi_vae_block_from(pass, &pass->blocks[i], f, -above);
        DsviVaeBlock y = dsvi_vae_block_from(pass, &pass->blocks[i + 1], f, 0);
        x.frames = y.frames = smaller_of(x.frames, UPSCALED_FRAMES);
        DsviVaeBlock large = {
            .data = pass->steps[i].scratch[2],
            .frame = u * (x.hi - x.lo) * u * x.width * x.channels,
            .row = u * x.width * x.channels,
            .frames = x.frames,
            .lo = u * x.lo,
            .hi = u * x.hi,
            .width = u * x.width,
            .channels = x.channels,
        };
        DSVI_TRY(dsvi_vae_move(pass, &x, u, &large));
        DSVI_TRY(dsvi_vae_conv(pass, &stage->conv[0], &large, 0, 0, &y, stage->shortcut > 0));
    }
    return DSV_OK;
}

static DsvStatus run_conv(DsviVaePass *pass, int64_t i, DsviVaeChunk chunk, int64_t first)
{
    const DsviVaeStage *stage = &pass->stages[i];
    const DsviVaeConv *conv = &stage->conv[0];
    DsviVaeStep *step = &pass->steps[i];
    DsviVaeBlock x = pass->blocks[i];
    DsviVaeEdge *edge = &step->input;
    int64_t above = conv->kernel[1] > 1 ? rows_kept(x.lo) : 0, before = 0;
    if (stage->gamma[0]) {
        x = scratch_block(pass, step->scratch[0], x.frames, pass->most_rows[i], x.lo, x.hi, x.width,
                          stage->in);
        edge = &step->middle[0];
        DSVI_TRY(dsvi_vae_norm(pass, stage->gamma[0], true, &pass->blocks[i], &x));
    }
    if (conv->kernel[1] > 1)
        DSVI_TRY(edge_swap_rows(pass, edge, &x, first));
    if (conv->kernel[0] > 1)
        DSVI_TRY(edge_swap_frames(pass, edge, &x, above, &before));
    if (stage->shortcut > 0)
        DSVI_TRY(dsvi_vae_repeat_saved(pass, i, chunk));
    if (stage->upscale > 1)
        return run_enlarged(pass, i, above);
    return dsvi_vae_conv(pass, conv, &x, above, before, &pass->blocks[i + 1], false);
}

/* Copies the first frame of the video past a stage that changes the number of frames, if this chunk has the
 * first frame. Moves x and y to the frames after it. */
static DsvStatus pass_first_frame(DsviVaePass *pass, DsviVaeChunk chunk, DsviVaeBlock *x, DsviVaeBlock *y)
{
    if (chunk.from > 0)
        return DSV_OK;
    DsviVaeBlock one = *x;
    one.frames = 1;
    DSVI_TRY(dsvi_vae_move(pass, &one, 1, y));
    *x = dsvi_vae_block_from(pass, x, 1, 0);
    *y = dsvi_vae_block_from(pass, y, 1, 0);
    return DSV_OK;
}

static DsvStatus run_time_down(DsviVaePass *pass, int64_t i, DsviVaeChunk chunk)
{
    const DsviVaeStage *stage = &pass->stages[i];
    DsviVaeBlock x = pass->blocks[i], y = pass->blocks[i + 1];
    int64_t before;
    DSVI_TRY(edge_swap_frames(pass, &pass->steps[i].input, &x, 0, &before));
    DSVI_TRY(pass_first_frame(pass, chunk, &x, &y));
    return dsvi_vae_conv(pass, &stage->conv[0], &x, 0, 1, &y, false); /* the frame before x exists */
}

static DsvStatus run_time_up(DsviVaePass *pass, int64_t i, DsviVaeChunk chunk)
{
    DsviVaeBlock x = pass->blocks[i], y = pass->blocks[i + 1];
    DsviVaeConv half = pass->stages[i].conv[0];
    int64_t before;
    half.out /= 2;
    DSVI_TRY(pass_first_frame(pass, chunk, &x, &y));
    if (x.frames == 0)
        return DSV_OK;
    DSVI_TRY(edge_swap_frames(pass, &pass->steps[i].input, &x, 0, &before));
    for (int64_t part = 0; part < 2; part++) {
        DsviVaeBlock every_second = dsvi_vae_block_from(pass, &y, part, 0);
        every_second.frames = x.frames;
        every_second.frame *= 2;
        DSVI_TRY(dsvi_vae_conv(pass, &half, &x, 0, before, &every_second, false));
        half.weight = (const char *)half.weight +
                      (size_t)(half.out * half.in * half.kernel[0]) * dsvi_dtype_size(pass->act);
        half.bias = (const float *)half.bias + half.out;
    }
    return DSV_OK;
}

DsvStatus dsvi_vae_stage_run(DsviVaePass *pass, int64_t i, DsviVaeChunk chunk)
{
    int64_t first = dsvi_vae_frames_before(pass, i, chunk.from);
    switch (pass->stages[i].kind) {
    case DSVI_VAE_CONV: return run_conv(pass, i, chunk, first);
    case DSVI_VAE_RESIDUAL: return run_residual(pass, i, first);
    case DSVI_VAE_ATTENTION: return dsvi_vae_attention_run(pass, i);
    case DSVI_VAE_TIME_DOWN: return run_time_down(pass, i, chunk);
    case DSVI_VAE_TIME_UP: return run_time_up(pass, i, chunk);
    case DSVI_VAE_SAVE: return dsvi_vae_save(pass, i, first);
    case DSVI_VAE_MEAN: return dsvi_vae_add_mean(pass, i);
    }
    return DSV_OK;
}
