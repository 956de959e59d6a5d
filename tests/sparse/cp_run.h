/* Runs steps of a sparse layer on one rank and the same steps with context parallelism, where the ranks share
 * each sample, and compares the results. */
#ifndef DSVI_TEST_CONTEXT_RUN_H
#define DSVI_TEST_CONTEXT_RUN_H

#include "dist/local_ranks.h"
#include "sparse/sparse_rig.h"

enum { RUN_STEPS_MAX = 6 };

typedef struct CpRun {
    DsvConfig settings;
    DsviSparseShape shape;                                 /* of the whole problem, as one rank runs it */
    const char *isa;                                       /* instruction set, an argument of dsvi_cpu_open */
    DsvStatus (*open)(int64_t rank, DsviBackend *backend); /* opens a rank's backend; NULL: the CPU */
    int64_t ranks;
    int64_t head_ranks;    /* number of ranks that divide the heads; 0: changes from block to block and step
                            * to step */
    bool uneven;           /* random order of heads, random number of heads on each rank */
    bool forced;           /* all blocks are sparse, whatever the guard decides */
    const double *density; /* (blocks, N) prescribed densities, or NULL */
    bool recompute;        /* repeat the forward pass before each backward pass */
    bool validation;       /* the steps are not training steps */
    int64_t steps;
    int64_t focus[RUN_STEPS_MAX]; /* argument `focus` of rig_fill in each step */
    int64_t wide_heads;           /* the first `wide_heads` heads attend to all keys equally */
    bool drifts; /* before the second step, change the moments that rank 1 has gathered, so that
                  * rank 1 alone would compute another projection than the others */
} CpRun;

/* The results of one block after one step. Tensors and lists are of the whole problem, put together from all
 * ranks. The lists of a block that ran dense are empty. */
typedef struct BlockSeen {
    void *out, *dq, *dk, *dv;
    bool dense;       /* at least one rank ran the block dense */
    int64_t *lengths; /* (B N groups) spans in each list */
    int32_t *spans;   /* (B N groups, number of all spans) */
    /* Bytes that each rank has sent in its row and its column, in the forward and in the backward pass. */
    uint64_t sent[RANKS_MAX], sent_back[RANKS_MAX];
    DsviSparseBlockReport report;
    double burden[16];
} BlockSeen;

typedef struct RunSeen {
    BlockSeen block[RUN_STEPS_MAX][RIG_BLOCKS_MAX];
    double predictor_loss[RUN_STEPS_MAX];  /* NaN if the selector is not the predictor */
    void *predictor_moment[RUN_STEPS_MAX]; /* (moment_count) F32, or F64 if act is F64: the predictor's
                                            * running mean of gradients; NULL with another selector */
    int64_t moment_count;
    void *projection[RANKS_MAX]; /* (projection_count) F32: each rank's projection of queries; NULL with
                                  * another selector */
    int64_t projection_count;
} RunSeen;

/* Run the steps on one rank, and on run->ranks ranks. Reports are taken from rank `reporting_rank`. run_free
 * releases the arrays of `seen`. */
void run_alone(const CpRun *run, RunSeen *seen);
void run_shared(const CpRun *run, int64_t reporting_rank, RunSeen *seen);
void run_free(const CpRun *run, RunSeen *seen);

/* Largest allowed differences between the run on one rank and the run on several ranks.
 *     lists    fraction of the listed spans that are in the lists of one run only
 *     tensors  relative L2 error of tensors, to which assert_same_run adds where lists differ; also relative
 *              error of the predictor's loss and gradients
 *     reports  absolute error of each reported number */
typedef struct RunSlack {
    double lists, tensors, reports;
} RunSlack;
/* Fails the test if the results of both runs differ by more than `slack`. */
void assert_same_run(const CpRun *run, const RunSeen *alone, const RunSeen *shared, RunSlack slack);

#endif
