/* Rows of keys and values that the lists of one rank name and another rank of its sequence group has
 * (ops/list_exchange.h): marks to their owners, rows back, and in the backward pass their gradients home.
 *
 *     marks     which runs of everybody's keys the own lists name, against which of the own ones others name
 *     fetch     rows of k and v, in two halves, so that attention over the own keys can be put between
 *     home      gradients of fetched rows, added to those of the own ones
 * Rows are fetched at once, beside attention. Gradients go home in a few parts, by heads: while one travels
 * the next is packed, and the one before is added.
 *
 * What a rank sends, in bytes (B samples, N_own heads, elements of e bytes, runs of `grain` keys):
 *     marks     B N_own (runs of the other ranks' keys) / 8             a bit for each run, in words of 32
 *     fetch     2 D e grain (runs of its own that others have marked, each time one has)
 *     home      2 D e grain (runs of others that it has marked itself)
 * A run marked for several groups of queries travels once. The last run of all keys, where it is short, is
 * marked for every (sample, head) and travels whole. */
#ifndef DSVI_ROWS_EXCHANGE_H
#define DSVI_ROWS_EXCHANGE_H

#include "context/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Compact tensors come in a few widths, runs of a pair, so that a workspace can be planned for each: number i
 * of them, 1 to DSV_ROWS_WIDTHS, where the others have `far_runs`. */
enum { DSV_ROWS_WIDTHS = 32 };
static inline int64_t dsvi_rows_width(int64_t far_runs, int64_t i)
{
    return (far_runs * i + DSV_ROWS_WIDTHS - 1) / DSV_ROWS_WIDTHS;
}

/* Keys of so many runs at the end of which the last of S keys is, or is not. */
static inline int64_t dsvi_rows_keys(int64_t width, int64_t grain, int64_t keys, bool ends_far)
{
    return width * grain - (ends_far && width > 0 ? (grain - keys % grain) % grain : 0);
}

/* Memory of an exchange. Device memory but `host_first`. */
typedef struct DsvRowsMemory {
    uint32_t *needs_marks, *wants_marks;      /* dsvi_rows_needs_words, dsvi_rows_wants_words */
    int32_t *needs_before, *wants_before;     /* likewise */
    int64_t *needs_first, *wants_first;       /* (sequence_ranks, B N_own + 1) */
    int64_t *host_first;                      /* host memory, both of these: outlives the pass where its
                                               * rows are fetched again */
    void *sent, *received;                    /* messages: 2 D grain elements for each run marked in wants,
                                               * or in needs */
} DsvRowsMemory;

/* Words of marks at most: of runs of all keys, whichever rank has them; of the own ones, for each rank. */
static inline int64_t dsvi_rows_needs_words(int64_t pairs, int64_t ranks, int64_t full_runs)
{
    return pairs * (full_runs / 32 + ranks);
}

static inline int64_t dsvi_rows_wants_words(int64_t pairs, int64_t ranks, int64_t own_runs)
{
    return pairs * ranks * dsvi_mark_words(own_runs);
}

/* One block's exchange; points into itself, so it stays where it was begun. */
typedef struct DsvRowsExchange {
    const DsvBackend *backend;
    DsvContextPart part;
    int64_t keys, batch, grain, head_dim;
    DsvDtype dtype;
    DsvRowsMemory memory;
    DsvRuns needs, wants;     /* of all keys, by owner; of the own keys, by the rank that wants them */
    int64_t needs_bound[DSV_RUN_PARTS_MOST + 1], wants_bound[DSV_RUN_PARTS_MOST + 1];
    int64_t width, far_keys;  /* of a compact tensor, from dsvi_rows_measure: runs and keys of each pair; 0:
                               * nothing is fetched */
} DsvRowsExchange;

/* What is to be exchanged: S keys, with those of other ranks; act. */
typedef struct DsvRowsShape {
    int64_t keys, batch, grain, head_dim;
    DsvDtype dtype;
} DsvRowsShape;

/* DSV_E_UNSUPPORTED with more sequence ranks than lists_divide serves. */
DsvStatus dsvi_rows_begin(const DsvBackend *backend, const DsvContextPart *part, const DsvRowsShape *shape,
                          const DsvRowsMemory *memory, DsvRowsExchange *exchange);

/* All ranks of the sequence group call, after lists_divide has filled needs.marks. Counts follow, and are on
 * their way to host_first; once they are there (after a sync), dsvi_rows_measure. */
DsvStatus dsvi_rows_marks(DsvRowsExchange *exchange);
/* A pass later: the counts again from the marks that are there, host_first is. */
DsvStatus dsvi_rows_count(DsvRowsExchange *exchange);
void dsvi_rows_measure(DsvRowsExchange *exchange);

/* Runs marked in all parts. */
int64_t dsvi_rows_needed(const DsvRowsExchange *exchange);
int64_t dsvi_rows_wanted(const DsvRowsExchange *exchange);

/* All ranks of the sequence group call both halves, and nothing else of the group between them. Rows of k and
 * v (B, T, N_own, D), the own keys, leave for others beside whatever the device is given next, which leaves
 * `sent` and `received` alone. */
DsvStatus dsvi_rows_fetch_begin(DsvRowsExchange *exchange, const void *k, const void *v);
/* far_k and far_v (B, far_keys, N_own, D) get what this rank has marked. */
DsvStatus dsvi_rows_fetch_end(DsvRowsExchange *exchange, void *far_k, void *far_v);

/* Likewise in two halves: far_dk and far_dv, shaped like far_k, go home beside what the device is given next,
 * which leaves `packed` and `sent` alone. `packed`: memory as large as `received`, of which the messages are
 * made. */
DsvStatus dsvi_rows_home_begin(DsvRowsExchange *exchange, const void *far_dk, const void *far_dv,
                               void *packed);
/* What has come is added to dk and dv, shaped like k. */
DsvStatus dsvi_rows_home_end(DsvRowsExchange *exchange, void *dk, void *dv);

#ifdef __cplusplus
}
#endif
#endif
