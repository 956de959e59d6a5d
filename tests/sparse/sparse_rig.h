/* A sparse layer with memory and tensors for every block, as a model would hold it, for tests. */
#ifndef DSVI_SPARSE_RIG_H
#define DSVI_SPARSE_RIG_H

#include "test.h"

#include "cpu/cpu.h"
#include "sparse/sparse.h"

enum { RIG_BLOCKS_MOST = 4, RIG_LOG_BYTES = 8192 };

typedef struct Rig {
    DsvBackend backend;
    DsvConfig settings;
    DsvSparseShape shape;
    DsvSparse *sparse;
    void *memory, *host_memory;
    size_t tensor_bytes, lse_bytes;
    struct {
        void *q, *k, *v, *hidden, *dout; /* (B, S, N, D) act: read */
        void *out, *dq, *dk, *dv, *lse;  /* written */
    } block[RIG_BLOCKS_MOST];
    char log[RIG_LOG_BYTES];             /* all lines so far, each ended by a newline */
} Rig;

/* Settings for tests: defaults, but small groups and no timing, and lists that hold their target mass
 * whatever it takes, under a guard that wants most of it. */
DsvConfig rig_settings(void);
/* blocks, batch, heads, head_dim, act; the tokens are grid's. With a backward pass. */
DsvSparseShape rig_shape(int64_t blocks, int64_t batch, int64_t heads, int64_t head_dim, int64_t frames,
                         int64_t height, int64_t width, DsvDtype act);

/* Host memory for the layer's lists where they are offloaded; the caller's to free, after the layer. */
DsvStatus rig_host_memory(DsvSparse *sparse, DsvDevice *device, void **memory);

void rig_open(Rig *rig, const char *isa, int threads, const DsvConfig *settings, const DsvSparseShape *shape);
void rig_close(Rig *rig);

/* Random tensors. `focus` > 0: queries of one group attend to one key in `focus`, nearly all of their mass;
 * 0: long normal q, normal k, attention uneven but wide; < 0: q zero, attention all equal. */
void rig_fill(Rig *rig, uint64_t seed, int64_t focus);

/* "key=value", which must be good. */
void rig_set(DsvConfig *settings, const char *assignment);

DsvSparseAttention rig_pass(Rig *rig, int64_t block);
/* Forward of all blocks, then backward in reverse. */
void rig_run(Rig *rig);
/* step_begin, rig_run, step_end. */
void rig_step(Rig *rig, int64_t step, bool train);

/* Largest relative L2 difference of out, dq, dk, dv over the blocks; lse too. */
double rig_difference(const Rig *a, const Rig *b);
/* Whether all that was written is the same to the bit. */
bool rig_same(const Rig *a, const Rig *b);
/* Whether the states of both, as saved, are the same to the bit. */
bool rig_same_state(Rig *a, Rig *b);

#endif
