/* Activations that are kept for the backward pass and wait in host memory until then (shape.offload): the
 * input of each block, and with DSVI_KEEP_ATTENTION the output of its self-attention.
 *
 * The forward pass puts blocks on a stack, the backward pass takes them off. On the device they have two sets
 * of buffers, which blocks with even and with odd numbers use. While a block computes in one set, the other
 * set is copied to the host, or in the backward pass filled with the block that comes next:
 *
 *     forward   compute | 0 | 1         | 2         | 3         | head
 *               copies      | 0 to host | 1 to host | 2 to host |
 *     backward  compute | head | 3           | 2           | 1           | 0
 *               copies         | 2 to device | 1 to device | 0 to device |
 *
 * The last block and the input of the head stay on the device. The host waits for no copy. All copies run on
 * the stream of downloads, so that the uploads of lent blocks (dit_lent.h) do not delay them. */
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
    bool attention = dit->shape.keep == DSVI_KEEP_ATTENTION;
    const DsviDitSaved *saved = &dit->saved[block];
    piece[0] = (KeptPiece){dit->residual[block], elements * dsvi_dtype_size(dit->acc)};
    piece[1] = (KeptPiece){saved->attended, attention ? elements * dsvi_dtype_size(dit->act) : 0};
    piece[2] = (KeptPiece){saved->lse, attention ? dsvi_dit_lse_bytes(dit) : 0};
}

void dsvi_dit_carve_host(DsviDit *dit, DsviArena *arena)
{
    KeptPiece piece[PIECES];
    for (int64_t block = 0; dsvi_dit_stacks(dit) && block + 1 < dit->config.num_layers; block++) {
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
    if (!dsvi_dit_stacks(dit))
        return DSV_OK;
    DSVI_TRY(device->follow(dit->stream, device->downloads));
    return block > 0 && block < dit->config.num_layers ? copy_block(dit, block - 1, true) : DSV_OK;
}

DsvStatus dsvi_dit_stack_pop(DsviDit *dit, int64_t block)
{
    DsviDevice *device = dit->backend->device;
    if (!dsvi_dit_stacks(dit))
        return DSV_OK;
    DSVI_TRY(device->follow(dit->stream, device->downloads));
    return block > 0 ? copy_block(dit, block - 1, false) : DSV_OK;
}
