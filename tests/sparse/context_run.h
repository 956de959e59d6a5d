/* Steps of a sparse layer on one rank, and the same on ranks that share the samples: what
 * each writes down. */
#ifndef DSVI_TEST_CONTEXT_RUN_H
#define DSVI_TEST_CONTEXT_RUN_H

#include "dist/local_ranks.h"
#include "sparse/sparse_rig.h"

enum { RUN_STEPS_MOST = 6 };

typedef struct ContextRun {
    DsvConfig settings;
    DsvSparseShape shape;  /* of one rank alone */
    const char *isa;       /* as dsvi_cpu_open takes it */
    DsvStatus (*open)(int64_t rank, DsvBackend *backend); /* what a rank runs on; NULL: the CPU */
    int64_t ranks;
    int64_t head_ranks;    /* of every block; 0: blocks take turns */
    bool uneven;           /* heads in random order, shared out at random */
    bool forced;           /* all blocks over lists */
    const double *density; /* (blocks, N) prescribed, or NULL */
    bool recompute;        /* the forward pass again before each backward pass */
    bool watches;          /* steps are none of training */
    int64_t steps;
    int64_t focus[RUN_STEPS_MOST]; /* of rig_fill, step by step */
    int64_t wide_heads;    /* the first so many heads attend to all keys alike */
    bool drifts;           /* moments that rank 1 has gathered by the second step are not those of the others:
                            * it would find another projection */
} ContextRun;

/* One block after one step. Lists are those of the whole; where a block ran dense they are empty. */
typedef struct BlockSeen {
    void *out, *dq, *dk, *dv;
    bool dense;            /* on some rank at least */
    int64_t *lengths;      /* (B N groups) */
    int32_t *runs;         /* (B N groups, full) */
    /* Bytes that each rank that shares has sent in its row and column: in the forward pass, and backward. */
    uint64_t sent[RANKS_MOST], sent_back[RANKS_MOST];
    DsvSparseBlockReport report;
    double burden[16];
} BlockSeen;

typedef struct RunSeen {
    BlockSeen block[RUN_STEPS_MOST][RIG_BLOCKS_MOST];
    double predictor_loss[RUN_STEPS_MOST];  /* NaN without a predictor */
    void *predictor_moment[RUN_STEPS_MOST]; /* (moment_count) F32, or F64 with F64: its running mean of
                                             * gradients; NULL without */
    int64_t moment_count;
    void *projection[RANKS_MOST]; /* (projection_count) F32, of queries, as each rank has it; NULL without */
    int64_t projection_count;
} RunSeen;

/* On one rank; on run->ranks, whose parts are put together (reports are those of rank `teller`). */
void run_alone(const ContextRun *run, RunSeen *seen);
void run_shared(const ContextRun *run, int64_t teller, RunSeen *seen);
void run_free(const ContextRun *run, RunSeen *seen);

/* How far both may be apart: the share of listed runs that differ; tensors, where none do, and as much more
 * as follows from those that do, and what a predictor learns; what is reported. */
typedef struct RunSlack {
    double lists, tensors, reports;
} RunSlack;
void assert_same_run(const ContextRun *run, const RunSeen *alone, const RunSeen *shared, RunSlack slack);

#endif
