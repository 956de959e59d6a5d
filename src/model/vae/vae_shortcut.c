/* The shortcuts around levels of the VAE of Wan 2.2 (formulas: vae_parts.h), in pieces.
 *
 * The stages between a save and the end of its shortcut lag behind in rows. The saved piece therefore begins
 * with the rows of the strips above that the shortcut still reads; between strips such rows of all frames
 * wait in DsviVaeSaved.rows. Frames need no such memory: a chunk holds whole latent frames at each boundary.
 */
#include "model/vae/vae_pass.h"

/* The first row at boundary i that output rows from `row` on read, in the shortcut of stage i. */
static int64_t saved_row(const DsviVaePass *pass, int64_t i, int64_t row)
{
    int64_t end = i + pass->stages[i].shortcut + 1;
    return row * pass->bounds[i].height / pass->bounds[end].height;
}

static const DsviVaeBlock *end_block(const DsviVaePass *pass, int64_t i)
{
    return &pass->blocks[i + pass->stages[i].shortcut + 1];
}

void dsvi_vae_shortcuts_raise(DsviVaePass *pass)
{
    for (int64_t i = 0; i < pass->count; i++) {
        if (pass->stages[i].kind != DSVI_VAE_SAVE)
            continue;
        int64_t keep = pass->blocks[i].lo - saved_row(pass, i, end_block(pass, i)->lo);
        DSVI_ASSERT(keep >= 0);
        if (keep > pass->steps[i].saved.keep)
            pass->steps[i].saved.keep = keep;
    }
}

void dsvi_vae_saved_carve(DsviVaePass *pass, int64_t i, DsviArena *arena)
{
    DsviVaeSaved *saved = &pass->steps[i].saved;
    size_t line = (size_t)(pass->bounds[i].width * pass->bounds[i].channels) * dsvi_dtype_size(pass->act);
    int64_t rows = saved->keep + pass->most_rows[i];
    int64_t frames = dsvi_vae_frames_before(pass, i, pass->latent_frames);
    saved->piece = dsvi_arena_take(arena, DSVI_MEM_ACTIVATIONS,
                                   (size_t)(dsvi_vae_most_frames(pass, i) * rows) * line);
    saved->rows = saved->keep > 0
                      ? dsvi_arena_take(arena, DSVI_MEM_ACTIVATIONS, (size_t)(frames * saved->keep) * line)
                      : NULL;
}

/* The saved piece of stage i: the rows from the first that the shortcut reads in this strip on. */
static DsviVaeBlock saved_block(const DsviVaePass *pass, int64_t i)
{
    const DsviVaeSaved *saved = &pass->steps[i].saved;
    DsviVaeBlock block = pass->blocks[i];
    block.data = saved->piece;
    block.row = block.width * block.channels;
    block.frame = (saved->keep + pass->most_rows[i]) * block.row;
    block.lo = saved_row(pass, i, end_block(pass, i)->lo);
    return block;
}

DsvStatus dsvi_vae_save(DsviVaePass *pass, int64_t i, int64_t first)
{
    const DsviVaeSaved *saved = &pass->steps[i].saved;
    const DsviVaeBlock *x = &pass->blocks[i];
    DsviVaeBlock piece = saved_block(pass, i), kept = piece;
    kept.frame = saved->keep * kept.row;
    kept.data = saved->rows;
    kept = dsvi_vae_block_from(pass, &kept, first, 0);
    kept.frames = x->frames;
    kept.hi = x->lo;
    DSVI_TRY(dsvi_vae_move(pass, &kept, 1, &piece));
    DsviVaeBlock added = dsvi_vae_block_from(pass, &piece, 0, x->lo - piece.lo);
    DSVI_TRY(dsvi_vae_move(pass, x, 1, &added));
    int64_t next = saved_row(pass, i, end_block(pass, i)->hi);
    DsviVaeBlock rest = dsvi_vae_block_from(pass, &piece, 0, next - piece.lo);
    kept.lo = next;
    kept.hi = x->hi;
    return dsvi_vae_move(pass, &rest, 1, &kept);
}

DsvStatus dsvi_vae_add_mean(DsviVaePass *pass, int64_t i)
{
    const DsviVaeStage *stage = &pass->stages[i];
    DsviVaeBlock saved = saved_block(pass, i - stage->shortcut);
    return dsvi_vae_conv(pass, &stage->conv[0], &saved, 0, 0, &pass->blocks[i + 1], true);
}

/* Copies the saved elements of output frames `t`, rows `row` and columns `column`, each counted from the
 * first output of an input pixel. `skip`: output frames that are left out at the beginning. */
static DsvStatus repeat_part(DsviVaePass *pass, const DsviVaeBlock *x, const DsviVaeBlock *y, int64_t times,
                             int64_t skip, int64_t t, int64_t row, int64_t column)
{
    int64_t element = (int64_t)dsvi_dtype_size(pass->act), factor = 4 * times;
    int64_t step = x->channels / y->channels, part = (t * 2 + row) * 2 + column;
    int64_t from = t < skip ? 1 : 0, lo = (y->lo - row + 1) / 2, hi = (y->hi - row + 1) / 2;
    DsviVaeBlock in = dsvi_vae_block_from(pass, x, from, lo - x->lo);
    DsviVaeBlock out = dsvi_vae_block_from(pass, y, from * times + t - skip, 2 * lo + row - y->lo);
    if (pass->measuring || in.frames <= 0 || hi <= lo)
        return DSV_OK;
    DsviFramesMoveArgs args = {
        .frames = in.frames,
        .height = hi - lo,
        .width = x->width,
        .channels = y->channels,
        .upscale = 1,
        .acc = DSVI_F32,
        .x = {(char *)in.data + part * step / factor * element, pass->act, x->frame, x->row, x->channels,
              step},
        .y = {(char *)out.data + column * y->channels * element, pass->act, y->frame * times, 2 * y->row,
              2 * y->channels, 1},
    };
    return pass->backend->ops.frames_move.run(pass->backend->device->stream, &args);
}

DsvStatus dsvi_vae_repeat_saved(DsviVaePass *pass, int64_t i, DsviVaeChunk chunk)
{
    int64_t begin = i - pass->stages[i].shortcut;
    int64_t times = pass->bounds[i + 1].factor / pass->bounds[begin].factor;
    DsviVaeBlock saved = saved_block(pass, begin);
    for (int64_t t = 0; t < times; t++)
        for (int64_t pixel = 0; pixel < 4; pixel++)
            DSVI_TRY(repeat_part(pass, &saved, &pass->blocks[i + 1], times, chunk.from == 0 ? times - 1 : 0,
                                 t, pixel / 2, pixel % 2));
    return DSV_OK;
}
