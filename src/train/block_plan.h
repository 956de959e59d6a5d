/* Which activations each block of a chain keeps, and where they wait: the fastest choices for each amount of
 * device memory, found by an exact dynamic programme over the chain.
 *
 * A block either keeps all its activations, or shares the buffers for what it does not keep with the other
 * blocks and computes again (model/dit/dit.h). The last block that shares is still in the buffers when its
 * backward pass begins, and computes less again. What a block keeps in host memory is copied while later
 * blocks compute, up to the next block that keeps in host memory; time beyond that is lost, in both passes.
 * The last block in host memory is not copied (model/dit/dit_stack.c). */
#ifndef DSVI_BLOCK_PLAN_H
#define DSVI_BLOCK_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_BLOCK_WAYS = 5 };

/* One way in which a block may keep its activations. Times are whole picoseconds, so that sums do not depend
 * on their order. */
typedef struct DsviBlockWay {
    bool allowed;
    bool shares, waits; /* shares the buffers; waits in host memory */
    size_t bytes;       /* device memory that the block has for itself */
    int64_t again;      /* time for computing again */
    int64_t again_last; /* the same if no later block shares; at most `again` */
    int64_t copy;       /* with `waits`: time of a copy to the host or back */
} DsviBlockWay;

typedef struct DsviChainBlock {
    int64_t forward, backward; /* without computing again */
    size_t after;              /* bytes of gradients that need memory after that of this block and of those
                                * before it, and may reuse that of later blocks */
    DsviBlockWay way[DSVI_BLOCK_WAYS];
} DsviChainBlock;

typedef struct DsviChain {
    int64_t blocks;
    const DsviChainBlock *block; /* (blocks) */
    size_t end, after_end;       /* bytes that follow the blocks, and gradients that follow these */
    size_t limit;                /* plans of more bytes are not wanted */
} DsviChain;

/* Choices that nothing beats: what needs no more memory is not faster. */
typedef struct DsviBlockPlan {
    size_t bytes;       /* of device memory: end of what blocks have for themselves and of the gradients */
    int64_t time;       /* of both passes */
    const uint8_t *way; /* (blocks) numbers of ways */
} DsviBlockPlan;

typedef struct DsviBlockPlans {
    int64_t count;
    DsviBlockPlan *plan; /* (count) by rising memory, falling time; none if a block has no allowed way */
    int64_t tried;       /* partial plans that the search made */
    uint8_t *ways;       /* memory of the plans' `way` */
} DsviBlockPlans;

/* Finds all such plans of at most chain->limit bytes, or without any a smallest plan. The caller frees *out,
 * also after a failure. */
DsvStatus dsvi_block_plans_find(const DsviChain *chain, DsviBlockPlans *out);
void dsvi_block_plans_free(DsviBlockPlans *plans);
/* Returns the fastest plan of at most `bytes`; NULL: none. */
const DsviBlockPlan *dsvi_block_plans_within(const DsviBlockPlans *plans, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
