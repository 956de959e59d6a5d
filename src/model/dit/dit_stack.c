/* Activations that are kept for the backward pass and wait in host memory until then (DsviDitKept.host): the
 * input of a block, and with DSVI_KEEP_ATTENTION the output of its self-attention.
 *
 * The forward pass puts such blocks on a stack, the backward pass takes them off. On the device they have two
 * sets of buffers, which blocks with even and with odd numbers in the stack use. While blocks compute up to
 * the next one of the stack, in the other set, a set is copied to the host, or in the backward pass filled
 * with the block that the stack yields next. With every block in the stack:
 *
 *     forward   compute | 0 | 1         | 2         | 3         | head
 *               copies      | 0 to host | 1 to host | 2 to host |
 *     backward  compute | head | 3           | 2           | 1           | 0
 *               copies         | 2 to device | 1 to device | 0 to device |
 *
 * The last block of the stack stays on the device: after it only the input of the head takes a set, the other
 * one. The host waits for no copy. All copies run on the stream of downloads, so that the uploads of lent
 * blocks (dit_lent.h) do not delay them. */
#include "model/dit/dit_internal.h"

enum { PIECES = 3 };

/* Device memory of what is kept of a block. */
typedef struct KeptPiece {
    void *memory;
    size_t bytes;
} KeptPiece;

static void kept_pieces(const DsviDit *dit, int64_t block, KeptPiece piece[PIECES])
{
    size_t elements = (size_t)(dit->batch * dit->tokens * dit->width);
    bool attention = dit->kept[block].keep == DSVI_KEEP_ATTENTION;
    const DsviDitSaved *saved = &dit->saved[block];
    piece[0] = (KeptPiece){dit->residual[block], elements * dsvi_dtype_size(dit->acc)};
    piece[1] = (KeptPiece){saved->attended, attention ? elements * dsvi_dtype_size(dit->act) : 0};
    piece[2] = (KeptPiece){saved->lse, attention ? dsvi_dit_lse_bytes(dit) : 0};
}

/* Returns whether the block is in the stack and a later block or the head takes its set of buffers. */
static bool is_copied(const DsviDit *dit, int64_t block)
{
    return dit->number[block] >= 0 && dit->number[block] + DSVI_STACK_SETS <= dit->stacked;
}

void dsvi_dit_carve_host(DsviDit *dit, DsviArena *arena)
{
    KeptPiece piece[PIECES];
    for (int64_t block = 0; block < dit->config.num_layers; block++) {
        if (!is_copied(dit, block))
            continue;
        kept_pieces(dit, block, piece);
        for (int i = 0; i < PIECES; i++) {
            void *host = dsvi_arena_take(arena, DSVI_MEM_ACTIVATIONS, piece[i].bytes);
            dit->host_kept[PIECES * block + i] = host;
        }
    }
}

static DsvStatus copy_block(DsviDit *dit, int64_t block, bool to_host)
{
    DsviDevice *device = dit->backend->device;
    KeptPiece piece[PIECES];
    kept_pieces(dit, block, piece);
    DSVI_TRY(device->follow(device->downloads, dit->stream));
    for (int i = 0; i < PIECES; i++) {
        void *host = dit->host_kept[PIECES * block + i];
        DSVI_TRY(to_host ? device->download(device->downloads, host, piece[i].memory, piece[i].bytes)
                         : device->upload(device->downloads, piece[i].memory, host, piece[i].bytes));
    }
    return DSV_OK;
}

/* The compute stream waits for the earlier copies before a new copy is given to the other stream, so that it
 * does not wait for the new one. */
DsvStatus dsvi_dit_stack_push(DsviDit *dit, int64_t block)
{
    DsviDevice *device = dit->backend->device;
    if (block == 0 || dit->number[block - 1] < 0)
        return DSV_OK;
    DSVI_TRY(device->follow(dit->stream, device->downloads));
    return is_copied(dit, block - 1) ? copy_block(dit, block - 1, true) : DSV_OK;
}

DsvStatus dsvi_dit_stack_pop(DsviDit *dit, int64_t block)
{
    DsviDevice *device = dit->backend->device;
    if (dit->number[block] < 0)
        return DSV_OK;
    DSVI_TRY(device->follow(dit->stream, device->downloads));
    for (int64_t next = block - 1; next >= 0; next--)
        if (dit->number[next] >= 0)
            return copy_block(dit, next, false);
    return DSV_OK;
}
