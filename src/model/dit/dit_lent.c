/* Implements dit_lent.h: which blocks are lent, and their uploads. */
#include "model/dit/dit_lent.h"

/* Of every n / k blocks the last one is lent: block i if the whole numbers (i + 1) k / n and i k / n differ.
 */
int64_t dsvi_lent_number(const DsviDitLent *lent, int64_t block)
{
    int64_t before = block * lent->count / lent->blocks, after = (block + 1) * lent->count / lent->blocks;
    return before < after ? before : -1;
}

int64_t dsvi_lent_block(const DsviDitLent *lent, int64_t number)
{
    return ((number + 1) * lent->blocks + lent->count - 1) / lent->count - 1;
}

static int lent_slot(const DsviDitLent *lent, int64_t number)
{
    for (int slot = 0; slot < DSVI_LENT_SLOTS; slot++)
        if (lent->in_slot[slot] == number)
            return slot;
    return -1;
}

/* Returns the lent block that is acquired after `number`; -1: the one that is acquired now, or one that the
 * slots still hold. */
static int64_t lent_next(const DsviDitLent *lent, DsviDitPass pass, int64_t number)
{
    if (pass == DSVI_PASS_BACKWARD)
        return number - 1;
    if (number + 1 < lent->count)
        return number + 1;
    return lent->turns ? -1 : 0;
}

DsvStatus dsvi_lent_acquire(DsviDitLent *lent, DsviDitPass pass, int64_t block,
                            DsviLentSource (*source)(const void *owner, int64_t block), const void *owner,
                            unsigned char **where)
{
    DsviDevice *device = lent->device;
    int64_t number = dsvi_lent_number(lent, block), wanted[] = {number, lent_next(lent, pass, number)};
    for (int i = 0; i < 2; i++) {
        int slot = lent_slot(lent, wanted[i]);
        if (wanted[i] >= 0 && slot < 0) {
            DsviLentSource from = source(owner, dsvi_lent_block(lent, wanted[i]));
            slot = 1 - lent->latest;
            /* Earlier work may still read the slot. The compute stream has no later work yet. */
            DSVI_TRY(device->follow(device->uploads, device->stream));
            lent->in_slot[slot] = -1;
            DSVI_TRY(device->upload(device->uploads, lent->slot[slot], from.host, from.bytes));
            lent->in_slot[slot] = wanted[i];
        }
        if (i == 0) { /* before the next block is uploaded, for which the compute stream must not wait */
            DSVI_TRY(device->follow(device->stream, device->uploads));
            lent->latest = slot;
            *where = lent->slot[slot];
        }
    }
    return DSV_OK;
}

void dsvi_lent_forget(DsviDitLent *lent)
{
    for (int slot = 0; slot < DSVI_LENT_SLOTS; slot++)
        lent->in_slot[slot] = -1;
}

DsvStatus dsvi_lent_settle(DsviDitLent *lent)
{
    dsvi_lent_forget(lent);
    return lent->count > 0 ? lent->device->sync(lent->device->uploads) : DSV_OK;
}
