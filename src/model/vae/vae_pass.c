/* Divides a pass into pieces, gives its blocks memory, and runs the pieces. See vae_pass.h. */
#include "model/vae/vae_pass.h"

#include <stdlib.h>
#include <string.h>

#include "base/threads.h"

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t divided_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* --- rows --- */

/* The output row r of a convolution reads the rows from stride r - pad to stride r - pad + kernel - 1 of the
 * enlarged input; rows outside are zero. */
static int64_t conv_rows_out(const DsviVaeConv *conv, int64_t upscale, int64_t in, int64_t height_in,
                             int64_t height_out)
{
    int64_t room = upscale * in + conv->pad - conv->kernel[1];
    if (in == height_in)
        return height_out;
    return room < 0 ? 0 : smaller(height_out, room / conv->stride + 1);
}

static int64_t conv_rows_in(const DsviVaeConv *conv, int64_t upscale, int64_t out, int64_t height_in)
{
    int64_t needed = conv->stride * (out - 1) - conv->pad + conv->kernel[1];
    return out == 0 ? 0 : smaller(height_in, divided_up(larger(needed, 0), upscale));
}

int64_t dsvi_vae_rows_out(const DsviVaeStage *stage, const DsviVaeBound bounds[2], int64_t in, int64_t *mid)
{
    *mid = 0;
    if (stage->kind == DSVI_VAE_CONV)
        return conv_rows_out(&stage->conv[0], stage->upscale, in, bounds[0].height, bounds[1].height);
    if (stage->kind != DSVI_VAE_RESIDUAL)
        return in;
    *mid = conv_rows_out(&stage->conv[0], 1, in, bounds[0].height, bounds[0].height);
    return conv_rows_out(&stage->conv[1], 1, *mid, bounds[0].height, bounds[1].height);
}

int64_t dsvi_vae_rows_in(const DsviVaeStage *stage, const DsviVaeBound bounds[2], int64_t out, int64_t *mid)
{
    *mid = 0;
    if (stage->kind == DSVI_VAE_CONV)
        return conv_rows_in(&stage->conv[0], stage->upscale, out, bounds[0].height);
    if (stage->kind != DSVI_VAE_RESIDUAL)
        return out;
    *mid = conv_rows_in(&stage->conv[1], 1, out, bounds[0].height);
    return conv_rows_in(&stage->conv[0], 1, *mid, bounds[0].height);
}

static int64_t equal_end(const DsviVaePass *pass)
{
    return pass->from_output ? pass->count : 0;
}

int64_t dsvi_vae_strips(const DsviVaePass *pass)
{
    return divided_up(pass->bounds[equal_end(pass)].height, pass->strip_rows);
}

/* Sets the new rows of strip `strip` at all boundaries. Before strip 0 all blocks must have hi 0. */
static void pass_set_rows(DsviVaePass *pass, int64_t strip)
{
    int64_t n = pass->count, end = equal_end(pass), mid;
    for (int64_t b = 0; b <= n; b++)
        pass->blocks[b].lo = pass->blocks[b].hi;
    for (int64_t i = 0; i < n; i++)
        pass->steps[i].mid_lo = pass->steps[i].mid_hi;
    pass->blocks[end].hi = smaller(pass->bounds[end].height, (strip + 1) * pass->strip_rows);
    for (int64_t k = 0; k < n; k++) {
        int64_t i = pass->from_output ? n - 1 - k : k;
        const DsviVaeStage *stage = &pass->stages[i];
        if (pass->from_output)
            pass->blocks[i].hi = dsvi_vae_rows_in(stage, &pass->bounds[i], pass->blocks[i + 1].hi, &mid);
        else
            pass->blocks[i + 1].hi = dsvi_vae_rows_out(stage, &pass->bounds[i], pass->blocks[i].hi, &mid);
        pass->steps[i].mid_hi = mid;
    }
}

static void pass_reset_rows(DsviVaePass *pass)
{
    for (int64_t b = 0; b <= pass->count; b++)
        pass->blocks[b].lo = pass->blocks[b].hi = 0;
    for (int64_t i = 0; i < pass->count; i++)
        pass->steps[i].mid_lo = pass->steps[i].mid_hi = 0;
}

/* --- frames --- */

int64_t dsvi_vae_chunks(const DsviVaePass *pass)
{
    return divided_up(pass->latent_frames, pass->chunk_frames);
}

int64_t dsvi_vae_frames_before(const DsviVaePass *pass, int64_t b, int64_t latent)
{
    return latent == 0 ? 0 : 1 + (latent - 1) * pass->bounds[b].factor;
}

int64_t dsvi_vae_most_frames(const DsviVaePass *pass, int64_t b)
{
    if (dsvi_vae_chunks(pass) == 1)
        return dsvi_vae_frames_before(pass, b, pass->latent_frames);
    return pass->chunk_frames * pass->bounds[b].factor;
}

static DsviVaeChunk chunk_at(const DsviVaePass *pass, int64_t chunk)
{
    int64_t from = chunk * pass->chunk_frames;
    return (DsviVaeChunk){from, smaller(pass->latent_frames, from + pass->chunk_frames)};
}

static void pass_set_frames(DsviVaePass *pass, DsviVaeChunk chunk)
{
    for (int64_t b = 0; b <= pass->count; b++)
        pass->blocks[b].frames = dsvi_vae_frames_before(pass, b, chunk.to) -
                                 dsvi_vae_frames_before(pass, b, chunk.from);
}

/* --- sizes and memory --- */

static DsviVaeBound bound_after(const DsviVaeStage *stage, DsviVaeBound in)
{
    DsviVaeBound out = in;
    out.channels = stage->out;
    if (stage->kind == DSVI_VAE_CONV) {
        out.height = in.height * stage->upscale / stage->conv[0].stride;
        out.width = in.width * stage->upscale / stage->conv[0].stride;
    }
    if (stage->kind == DSVI_VAE_TIME_DOWN)
        out.factor = in.factor / 2;
    if (stage->kind == DSVI_VAE_TIME_UP)
        out.factor = in.factor * 2;
    return out;
}

DsvStatus dsvi_vae_pass_make(DsviBackend *backend, DsviDtype act, const DsviVaeStage *stages, int64_t count,
                             DsviVaeBound input, int64_t latent_frames, bool decode, bool whole,
                             DsviVaePass *out)
{
    size_t n = (size_t)count;
    *out = (DsviVaePass){
        .backend = backend,
        .act = act,
        .stages = stages,
        .count = count,
        .from_output = decode,
        .from_host = decode == whole,
        .to_host = decode != whole,
        .patch = 1,
        .latent_frames = latent_frames,
        .bounds = calloc(n + 1, sizeof *out->bounds),
        .steps = calloc(n, sizeof *out->steps),
        .blocks = calloc(n + 1, sizeof *out->blocks),
        .most_rows = calloc(n + 1, sizeof *out->most_rows),
        .slack_rows = calloc(n + 1, sizeof *out->slack_rows),
        .slack_frames = calloc(n + 1, sizeof *out->slack_frames),
    };
    if (!out->bounds || !out->steps || !out->blocks || !out->most_rows || !out->slack_rows ||
        !out->slack_frames)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu layers of a VAE", n);
    out->bounds[0] = input;
    for (int64_t i = 0; i < count; i++)
        out->bounds[i + 1] = bound_after(&stages[i], out->bounds[i]);
    for (int64_t b = 0; b <= count; b++) {
        out->blocks[b].width = out->bounds[b].width;
        out->blocks[b].channels = out->bounds[b].channels;
    }
    return DSV_OK;
}

void dsvi_vae_pass_free(DsviVaePass *pass)
{
    if (pass->host_staging)
        pass->backend->device->host_free(pass->backend->device, pass->host_staging);
    free(pass->bounds);
    free(pass->steps);
    free(pass->blocks);
    free(pass->most_rows);
    free(pass->slack_rows);
    free(pass->slack_frames);
    *pass = (DsviVaePass){0};
}

bool dsvi_vae_in_place(const DsviVaeStage *stage)
{
    return stage->kind == DSVI_VAE_ATTENTION || stage->kind == DSVI_VAE_SAVE ||
           stage->kind == DSVI_VAE_MEAN || (stage->kind == DSVI_VAE_RESIDUAL && stage->conv[2].out == 0);
}

/* Sets how many rows and frames a block needs before its new ones: those that the next stage keeps, and where
 * stages compute in place, those by which their output lags behind. */
static void pass_set_slack(DsviVaePass *pass)
{
    int64_t rows_kept = dsvi_vae_strips(pass) > 1 ? DSVI_VAE_ROWS_KEPT : 0;
    int64_t frames_kept = dsvi_vae_chunks(pass) > 1 ? DSVI_VAE_FRAMES_KEPT : 0;
    pass->slack_rows[pass->count] = pass->slack_frames[pass->count] = 0;
    for (int64_t i = pass->count - 1; i >= 0; i--) {
        const DsviVaeStage *stage = &pass->stages[i];
        bool in_place = dsvi_vae_in_place(stage), scratch = stage->gamma[0] || in_place;
        bool reads_rows = stage->kind == DSVI_VAE_RESIDUAL ||
                          (stage->kind == DSVI_VAE_CONV && !stage->gamma[0] && stage->conv[0].kernel[1] > 1);
        bool reads_frames = !scratch && stage->kind != DSVI_VAE_RESIDUAL && stage->conv[0].kernel[0] > 1;
        pass->slack_rows[i] = (reads_rows ? rows_kept : 0) + (in_place ? pass->slack_rows[i + 1] : 0);
        pass->slack_frames[i] = (reads_frames ? frames_kept : 0) + (in_place ? pass->slack_frames[i + 1] : 0);
    }
}

void dsvi_vae_pass_divide(DsviVaePass *pass, int64_t strip_rows, int64_t chunk_frames)
{
    pass->strip_rows = strip_rows;
    pass->chunk_frames = chunk_frames;
    pass->workspace_bytes = 0;
    pass->products = pass->tile_products = 0;
    memset(pass->most_rows, 0, (size_t)(pass->count + 1) * sizeof *pass->most_rows);
    pass_reset_rows(pass);
    for (int64_t i = 0; i < pass->count; i++)
        pass->steps[i].mid_rows = pass->steps[i].saved.keep = 0;
    for (int64_t s = 0; s < dsvi_vae_strips(pass); s++) {
        pass_set_rows(pass, s);
        dsvi_vae_shortcuts_raise(pass);
        for (int64_t b = 0; b <= pass->count; b++)
            pass->most_rows[b] = larger(pass->most_rows[b], pass->blocks[b].hi - pass->blocks[b].lo);
        for (int64_t i = 0; i < pass->count; i++) {
            pass->steps[i].mid_rows = larger(pass->steps[i].mid_rows,
                                             pass->steps[i].mid_hi - pass->steps[i].mid_lo);
            dsvi_vae_stage_count_products(pass, i);
        }
    }
    pass_set_slack(pass);
}

double dsvi_vae_tile_waste(const DsviVaePass *pass)
{
    return pass->products > 0 ? pass->tile_products / pass->products - 1 : 0;
}

/* Sets strides of all blocks, and the memory of those that do not share the memory of the block before.
 * Blocks use the two buffers in turn. */
static void pass_place_blocks(DsviVaePass *pass)
{
    size_t element = dsvi_dtype_size(pass->act);
    int turn = 0;
    pass->buffer_bytes[0] = pass->buffer_bytes[1] = 0;
    for (int64_t b = 0; b <= pass->count; b++) {
        const DsviVaeBound *bound = &pass->bounds[b];
        DsviVaeBlock *block = &pass->blocks[b];
        if (b > 0 && dsvi_vae_in_place(&pass->stages[b - 1])) {
            block->frame = pass->blocks[b - 1].frame;
            block->row = pass->blocks[b - 1].row;
            continue;
        }
        block->row = bound->width * bound->channels;
        block->frame = (pass->slack_rows[b] + pass->most_rows[b]) * block->row;
        size_t bytes = (size_t)((pass->slack_frames[b] + dsvi_vae_most_frames(pass, b)) * block->frame) *
                       element;
        turn = 1 - turn;
        if (bytes > pass->buffer_bytes[turn])
            pass->buffer_bytes[turn] = bytes;
        /* the first row and frame after the slack, once the buffers have addresses */
        char *base = pass->buffers[turn];
        size_t offset = (size_t)(pass->slack_frames[b] * block->frame + pass->slack_rows[b] * block->row) *
                        element;
        block->data = base ? base + offset : NULL;
    }
}

/* Sets the addresses of blocks that stages compute in place: their rows lag behind. */
static void pass_place_in_place(DsviVaePass *pass)
{
    for (int64_t b = 1; b <= pass->count; b++) {
        if (!dsvi_vae_in_place(&pass->stages[b - 1]))
            continue;
        const DsviVaeBlock *before = &pass->blocks[b - 1];
        pass->blocks[b].data = dsvi_vae_block_from(pass, before, 0, pass->blocks[b].lo - before->lo).data;
    }
}

/* Elements of the largest piece at boundary b. */
static int64_t piece_elements(const DsviVaePass *pass, int64_t b)
{
    return dsvi_vae_most_frames(pass, b) * pass->most_rows[b] * pass->bounds[b].width *
           pass->bounds[b].channels;
}

void dsvi_vae_pass_carve(DsviVaePass *pass, DsviArena *arena)
{
    pass->buffers[0] = pass->buffers[1] = NULL;
    pass_place_blocks(pass);
    for (int i = 0; i < 2; i++)
        pass->buffers[i] = dsvi_arena_take(arena, DSVI_MEM_ACTIVATIONS, pass->buffer_bytes[i]);
    pass_place_blocks(pass);
    for (int64_t i = 0; i < pass->count; i++)
        dsvi_vae_stage_carve_edges(pass, i, arena);
    pass->staging_bytes = 0;
    if (pass->from_host)
        pass->staging_bytes = (size_t)piece_elements(pass, 0) * sizeof(float);
    if (pass->to_host && (size_t)piece_elements(pass, pass->count) * sizeof(float) > pass->staging_bytes)
        pass->staging_bytes = (size_t)piece_elements(pass, pass->count) * sizeof(float);
    DsviArenaOverlay overlay = dsvi_arena_overlay_begin(arena);
    for (int64_t i = 0; i < pass->count; i++) {
        dsvi_vae_stage_carve_scratch(pass, i, arena);
        dsvi_arena_overlay_next(arena, &overlay);
    }
    pass->staging = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, pass->staging_bytes);
    dsvi_arena_overlay_end(arena, &overlay);
    pass->workspace = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, pass->workspace_bytes);
}

/* --- ends --- */

/* The piece of an end that is in host memory. Copies between (C, T, H, W) and staging memory (C, frames,
 * rows, W). */
typedef struct Transfer {
    float *host, *staging;
    const DsviVaeBound *bound;
    const DsviVaeBlock *block;
    int64_t patch;
    int64_t first, total; /* first frame; frames of the video */
    bool to_host;
} Transfer;

static void transfer_planes(void *context, int64_t begin, int64_t end, int worker)
{
    const Transfer *t = context;
    const DsviVaeBlock *block = t->block;
    int64_t width = block->width * t->patch, height = t->bound->height * t->patch;
    int64_t plane = (block->hi - block->lo) * t->patch * width;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t channel = i / block->frames, frame = t->first + i % block->frames;
        float *staging = t->staging + i * plane;
        float *host = t->host + ((channel * t->total + frame) * height + block->lo * t->patch) * width;
        memcpy(t->to_host ? host : staging, t->to_host ? staging : host, (size_t)plane * sizeof(float));
    }
}

/* Copies the current piece of boundary b between host memory and the pinned staging memory. `first`,
 * `frames`: its frames. */
static void transfer(DsviVaePass *pass, int64_t b, float *host, const DsviVaeBlock *block, int64_t first,
                     bool to_host)
{
    Transfer t = {
        .host = host,
        .staging = pass->host_staging,
        .bound = &pass->bounds[b],
        .block = block,
        .patch = pass->patch,
        .first = first,
        .total = dsvi_vae_frames_before(pass, b, pass->latent_frames),
        .to_host = to_host,
    };
    dsvi_parallel_for(block->channels / (pass->patch * pass->patch) * block->frames, 1, transfer_planes, &t);
}

/* Moves a block to or from the staging memory, one pixel of all patches at a time. */
static DsvStatus staging_move(DsviVaePass *pass, const DsviVaeBlock *block, double limit, bool from_block)
{
    int64_t p = pass->patch, rows = block->hi - block->lo, width = p * block->width;
    int64_t plane = p * rows * width, element = (int64_t)dsvi_dtype_size(pass->act);
    for (int64_t k = 0; k < p * p; k++) {
        int64_t column = k / p, row = k % p;
        DsviFrames inside = {
            (char *)block->data + k * element, pass->act, block->frame, block->row, block->channels, p * p};
        DsviFrames outside = {(float *)pass->staging + row * width + column,
                              DSVI_F32,
                              plane,
                              p * width,
                              p,
                              block->frames * plane};
        DsviFramesMoveArgs args = {
            .frames = block->frames,
            .height = rows,
            .width = block->width,
            .channels = block->channels / (p * p),
            .upscale = 1,
            .acc = DSVI_F32,
            .limit = limit,
            .x = from_block ? inside : outside,
            .y = from_block ? outside : inside,
        };
        DSVI_TRY(pass->backend->ops.frames_move.run(pass->backend->device->stream, &args));
    }
    return DSV_OK;
}

/* Moves the current piece of boundary b between its block and the staging memory or the tensor of an end. */
static DsvStatus end_move(DsviVaePass *pass, int64_t b, const DsviVaeEnd *end, int64_t first, bool from_block)
{
    const DsviVaeBlock *block = &pass->blocks[b];
    int64_t rows = block->hi - block->lo, channels = block->channels;
    DsviFrames inside = {block->data, pass->act, block->frame, block->row, channels, 1};
    if (end->host)
        return staging_move(pass, block, end->limit, from_block);
    int64_t row = block->width * channels, frame = pass->bounds[b].height * row;
    DsviFrames outside = {(char *)end->tensor +
                              (first * frame + block->lo * row) * (int64_t)dsvi_dtype_size(pass->act),
                          pass->act,
                          frame,
                          row,
                          channels,
                          1};
    DsviFramesMoveArgs args = {
        .frames = block->frames,
        .height = rows,
        .width = block->width,
        .channels = channels,
        .upscale = 1,
        .acc = DSVI_F32,
        .limit = end->limit,
        .x = from_block ? inside : outside,
        .y = from_block ? outside : inside,
    };
    return pass->backend->ops.frames_move.run(pass->backend->device->stream, &args);
}

static size_t piece_bytes(const DsviVaeBlock *block)
{
    return (size_t)(block->channels * block->frames * (block->hi - block->lo) * block->width) * sizeof(float);
}

/* Fills the first block. The host copies while the device computes the piece before. The device's work on the
 * piece begins with the upload. */
static DsvStatus pass_read(DsviVaePass *pass, int64_t first)
{
    DsviDevice *device = pass->backend->device;
    const DsviVaeBlock *block = &pass->blocks[0];
    bool empty = block->lo == block->hi;
    if (pass->from_host && !empty) {
        DSVI_TRY(device->await(device->stream)); /* the upload of the piece before, from the same memory */
        transfer(pass, 0, pass->source.host, block, first, false);
    }
    DSVI_TRY(device->mark(device->stream, 2 * pass->piece));
    if (empty)
        return DSV_OK;
    if (pass->from_host) {
        DSVI_TRY(device->upload(device->stream, pass->staging, pass->host_staging, piece_bytes(block)));
        DSVI_TRY(device->flag(device->stream));
    }
    return end_move(pass, 0, &pass->source, first, false);
}

/* A piece of the output that is on its way to the staging memory. */
typedef struct Pending {
    DsviVaeBlock block;
    int64_t first;
    bool waits;
} Pending;

/* Copies the pending piece to its place in host memory, once the device has sent it. */
static DsvStatus pass_finish_piece(DsviVaePass *pass, Pending *pending)
{
    DsviDevice *device = pass->backend->device;
    if (!pending->waits)
        return DSV_OK;
    pending->waits = false;
    DSVI_TRY(device->await(device->stream));
    transfer(pass, pass->count, pass->target.host, &pending->block, pending->first, true);
    return DSV_OK;
}

static DsvStatus pass_write(DsviVaePass *pass, int64_t first, Pending *pending)
{
    DsviDevice *device = pass->backend->device;
    const DsviVaeBlock *block = &pass->blocks[pass->count];
    bool empty = block->lo == block->hi;
    if (!empty)
        DSVI_TRY(end_move(pass, pass->count, &pass->target, first, true));
    DSVI_TRY(device->mark(device->stream, 2 * pass->piece + 1));
    if (empty || !pass->to_host)
        return DSV_OK;
    DSVI_TRY(pass_finish_piece(pass, pending));
    DSVI_TRY(device->download(device->stream, pass->host_staging, pass->staging, piece_bytes(block)));
    DSVI_TRY(device->flag(device->stream));
    *pending = (Pending){*block, first, true};
    return DSV_OK;
}

/* --- pieces --- */

static void strip_begin(DsviVaePass *pass, int64_t strip)
{
    pass_set_rows(pass, strip);
    pass_place_in_place(pass);
    for (int64_t i = 0; i < pass->count; i++) {
        DsviVaeStep *step = &pass->steps[i];
        step->input.held = step->middle[0].held = step->middle[1].held = 0;
    }
}

static DsvStatus run_stages(DsviVaePass *pass, DsviVaeChunk chunk)
{
    for (int64_t i = 0; i < pass->count; i++)
        DSVI_TRY(dsvi_vae_stage_run(pass, i, chunk));
    return DSV_OK;
}

/* Computes a number that is equal for strips of equal rows: then they need equal workspace. */
static uint64_t strip_signature(const DsviVaePass *pass)
{
    uint64_t hash = 0;
    for (int64_t b = 0; b <= pass->count; b++) {
        const DsviVaeBlock *block = &pass->blocks[b];
        hash = hash * 1000003 + (uint64_t)(block->hi - block->lo);
        hash = hash * 1000003 + (uint64_t)smaller(block->lo, DSVI_VAE_ROWS_KEPT) * 4 +
               (uint64_t)(block->lo % 2);
    }
    return hash;
}

DsvStatus dsvi_vae_pass_measure(DsviVaePass *pass)
{
    int64_t chunks = dsvi_vae_chunks(pass);
    uint64_t before = 0;
    DsvStatus status = DSV_OK;
    pass->measuring = true;
    pass->workspace_bytes = 0;
    pass_reset_rows(pass);
    for (int64_t s = 0; s < dsvi_vae_strips(pass) && status == DSV_OK; s++) {
        strip_begin(pass, s);
        uint64_t signature = strip_signature(pass);
        if (s > 0 && signature == before)
            continue;
        before = signature;
        for (int64_t c = 0; c < chunks && status == DSV_OK; c++) {
            if (c > 2 && c < chunks - 1)
                continue; /* as the chunk before */
            pass_set_frames(pass, chunk_at(pass, c));
            status = run_stages(pass, chunk_at(pass, c));
        }
    }
    pass->measuring = false;
    return status;
}

static DsvStatus run_piece(DsviVaePass *pass, DsviVaeChunk chunk, Pending *pending)
{
    pass_set_frames(pass, chunk);
    DSVI_TRY(pass_read(pass, dsvi_vae_frames_before(pass, 0, chunk.from)));
    DSVI_TRY(run_stages(pass, chunk));
    return pass_write(pass, dsvi_vae_frames_before(pass, pass->count, chunk.from), pending);
}

/* Adds up the seconds between the two marks of each piece. */
static DsvStatus pass_add_work(DsviVaePass *pass)
{
    DsviDevice *device = pass->backend->device;
    double seconds;
    pass->worked = 0;
    for (int64_t piece = 0; piece < pass->piece; piece++) {
        DSVI_TRY(device->between(device->stream, 2 * piece, 2 * piece + 1, &seconds));
        pass->worked += seconds;
    }
    return DSV_OK;
}

DsvStatus dsvi_vae_pass_run(DsviVaePass *pass, DsviVaeEnd source, DsviVaeEnd target)
{
    DsviDevice *device = pass->backend->device;
    Pending pending = {.waits = false};
    pass->source = source;
    pass->target = target;
    if (!pass->host_staging && pass->staging_bytes > 0)
        DSVI_TRY(device->host_alloc(device, pass->staging_bytes, (void **)&pass->host_staging));
    DSVI_TRY(device->flag(device->stream));
    pass_reset_rows(pass);
    pass->piece = 0;
    for (int64_t s = 0; s < dsvi_vae_strips(pass); s++) {
        strip_begin(pass, s);
        for (int64_t c = 0; c < dsvi_vae_chunks(pass); c++, pass->piece++)
            DSVI_TRY(run_piece(pass, chunk_at(pass, c), &pending));
    }
    DSVI_TRY(pass_finish_piece(pass, &pending));
    DSVI_TRY(device->sync(device->stream));
    return pass_add_work(pass);
}
