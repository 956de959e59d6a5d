/* A sparse layer (src/sparse/sparse.h) on the CPU with memory and tensors for every block, as a model would
 * hold them, for tests. */
#ifndef DSVI_SPARSE_RIG_H
#define DSVI_SPARSE_RIG_H

#include "test.h"

#include "cpu/cpu.h"
#include "sparse/sparse.h"

enum { RIG_BLOCKS_MAX = 4, RIG_LOG_BYTES = 8192 };

typedef struct Rig {
    DsviBackend backend;
    DsvConfig settings;
    DsviSparseShape shape;
    DsviSparse *sparse;
    void *memory, *host_memory;
    size_t tensor_bytes, lse_bytes;
    struct {
        void *q, *k, *v, *hidden, *dout; /* (B, S, N, D) act: read */
        void *out, *dq, *dk, *dv, *lse;  /* written */
    } block[RIG_BLOCKS_MAX];
    char log[RIG_LOG_BYTES]; /* lines that the layer has logged, each with a final newline */
} Rig;

/* Returns a configuration for tests: defaults, but small groups, no timing, lists of any length that holds
 * the target mass, and a guard that requires most of the mass. */
DsvConfig rig_settings(void);
/* Returns the shape of a layer with backward pass and frames x height x width tokens. */
DsviSparseShape rig_shape(int64_t blocks, int64_t batch, int64_t heads, int64_t head_dim, int64_t frames,
                          int64_t height, int64_t width, DsviDtype act);

/* Allocates host memory for offloaded lists (sparse.offload_lists) and gives it to the layer. The caller
 * frees *memory with device->host_free after it has freed the layer. */
DsvStatus rig_host_memory(DsviSparse *sparse, DsviDevice *device, void **memory);

void rig_open(Rig *rig, const char *isa, int threads, const DsvConfig *settings,
              const DsviSparseShape *shape);
void rig_close(Rig *rig);

/* Fills the input tensors with random numbers. focus > 0: the queries of a group attend almost only to one
 * key of every `focus` keys. focus == 0: normal k and three times longer normal q, so that attention is
 * uneven but wide. focus < 0: q is zero, so that all keys get equal attention. */
void rig_fill(Rig *rig, uint64_t seed, int64_t focus);

/* Sets the option "key=value"; fails the test if the configuration refuses it. */
void rig_set(DsvConfig *settings, const char *assignment);

/* Returns the call of the layer for a block, with the block's tensors. */
DsviAttentionCall rig_pass(Rig *rig, int64_t block);
/* Runs the forward passes of all blocks, then the backward passes in reverse order. */
void rig_run(Rig *rig);
/* Runs one whole step: dsvi_sparse_step_begin, rig_run, dsvi_sparse_step_end. */
void rig_step(Rig *rig, int64_t step, bool train);

/* Returns the largest relative L2 difference of any out, dq, dk, dv or lse of a block. */
double rig_difference(const Rig *a, const Rig *b);
/* Returns whether out, dq, dk, dv and lse of all blocks have the same bits. */
bool rig_same(const Rig *a, const Rig *b);
/* Returns whether both layers save the same state, bit for bit. */
bool rig_same_state(Rig *a, Rig *b);

#endif
