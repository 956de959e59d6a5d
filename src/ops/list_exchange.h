/* Lists whose keys lie on several ranks: what of a list is near, what has to be fetched, and where it goes.
 *
 * The ranks are the *parts*: part j has the keys of runs bound[j] <= r < bound[j + 1], the rank itself is
 * part `self`. A list divides into its near runs, which are the own part's, and the far ones. Far runs that
 * any group of a pair (batch, head) lists are *marked*: their rows are fetched, once for all groups, into
 * compact keys, and the far lists speak of those.
 *
 *     lists_divide   marks, and how long the near and the far half of every list are
 *     runs_count     the places of marked runs in messages
 *     lists_emit     near lists in runs of the own keys, far lists in runs of the compact keys
 *     rows_take      rows of marked runs into a message
 *     rows_put       from a message to where they belong
 *     rows_add       from the messages of several ranks, added to what is where they belong
 *
 * A rank sends part j the marks of j's runs, and gets from every rank those of its own: the wants it has to
 * serve, a part for each rank. From there on both count alike, and no place needs to be sent:
 *
 *     a message for part j holds its marked runs, pair by pair, ascending: a *slot* each, of `grain` rows
 *                          of k, then as many of v
 *     number of a run      how many marked runs of (part, pair) are before it: dsvi_runs_number
 *     first[j, pair]       slots of the pairs before, in the message of part j; first[j, pairs]: of all
 *
 * Compact keys of a pair are its marked runs, ascending, at the END of `width` runs: run `number` of part j
 * is
 *     width - (marked in all parts) + (marked in parts before j) + number.
 * Only the last run of all keys can be short. Where it is far it is marked for every pair, and so ends the
 * compact keys of each as lists.h wants it. What is before a pair's runs is never listed. */
#ifndef DSVI_LIST_EXCHANGE_H
#define DSVI_LIST_EXCHANGE_H

#include "ops/attention.h"
#include "ops/lists.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSV_RUN_PARTS_MOST 64

/* Marked runs. Arrays but `bound` are device memory. Marks are bits, from the lowest of a word on; every
 * (part, pair) begins a word, and bits behind its last run are 0. */
typedef struct DsvRuns {
    int64_t batch, heads;   /* B, N: pair = b * heads + h */
    int64_t parts;          /* at most DSV_RUN_PARTS_MOST */
    int64_t grain;
    const int64_t *bound;   /* (parts + 1) host memory, from 0 on, not falling; read before a call returns */
    uint32_t *marks;        /* (dsvi_runs_words) 1: marked; dsvi_runs_word says where */
    int32_t *before;        /* (dsvi_runs_words) marked runs of (part, pair) before the word's */
    int64_t *first;         /* (parts, pairs + 1) */
} DsvRuns;

static inline int64_t dsvi_runs_pairs(const DsvRuns *runs)
{
    return runs->batch * runs->heads;
}

/* Words of marks that so many runs of a pair take. */
static inline int64_t dsvi_mark_words(int64_t runs)
{
    return (runs + 31) / 32;
}

/* Where the words of (part, pair) begin: those of a part lie together, (pairs, its words). */
static inline int64_t dsvi_runs_word(const DsvRuns *runs, int64_t part, int64_t pair)
{
    int64_t before = 0;
    for (int64_t j = 0; j < part; j++)
        before += dsvi_mark_words(runs->bound[j + 1] - runs->bound[j]);
    return dsvi_runs_pairs(runs) * before +
           pair * (part < runs->parts ? dsvi_mark_words(runs->bound[part + 1] - runs->bound[part]) : 0);
}

/* Words of all parts and pairs. */
static inline int64_t dsvi_runs_words(const DsvRuns *runs)
{
    return dsvi_runs_word(runs, runs->parts, 0);
}

/* Run bound[part] + i of a pair, where marks are host memory. */
static inline bool dsvi_runs_marked(const DsvRuns *runs, int64_t part, int64_t pair, int64_t i)
{
    return runs->marks[dsvi_runs_word(runs, part, pair) + i / 32] >> i % 32 & 1;
}

/* Its number, if it is marked; marks and `before` are host memory. */
int64_t dsvi_runs_number(const DsvRuns *runs, int64_t part, int64_t pair, int64_t i);

/* runs_count: `before` and `first` from `marks`. */
typedef DsvStatus dsvi_runs_count_fn(DsvStream *stream, const DsvRuns *runs);

typedef struct DsvListDivideArgs {
    const DsvLists *lists;   /* over the keys of all parts */
    const DsvRuns *runs;     /* batch, heads, grain as in `lists`, bound[parts] its full length */
    int64_t self;            /* < parts */
    /* Shaped by the caller: queries and grain as in `lists`, keys those of the own part and the compact ones
     * (lists_divide does not read them). divide fills the offsets and the marks of all parts; emit the runs,
     * for which there must be room, and reads `before` and `first`, offsets as divide has left them. */
    DsvLists *near, *far;
    int64_t width;           /* emit: runs of the compact keys */
} DsvListDivideArgs;
typedef DsvStatus dsvi_list_divide_fn(DsvStream *stream, const DsvListDivideArgs *args);

/* `near` or `far`, which has offsets, gets the shape that divide wants. */
static inline void dsvi_lists_shape_half(const DsvLists *whole, DsvLists *half)
{
    int64_t *offsets = half->offsets;
    *half = *whole;
    half->offsets = offsets;
}

/* Rows of marked runs between k and v and messages, which lie one behind the other by rising part. */
typedef struct DsvRowsArgs {
    const DsvRuns *runs;
    int64_t first_pair, end_pair; /* these pairs' alone */
    int64_t width;      /* k and v are compact keys, so many runs of them; 0: they are the own keys, and run
                         * bound[j] + i of every part is their rows [i * grain, (i + 1) * grain) */
    int64_t rows;       /* S of both; of a slot, rows beyond are zero when taken, else left out */
    int64_t head_dim;
    DsvDtype dtype;     /* any; of rows_add F32, BF16 or F64, sums are in F32 or wider and rounded once */
    DsvHeads k, v;      /* (B, S, N, D) */
    void *message;      /* (slots of all parts, 2, grain, D) */
} DsvRowsArgs;
typedef DsvStatus dsvi_rows_fn(DsvStream *stream, const DsvRowsArgs *args);

/* rows_put wants compact keys, for of the own ones several parts may have the same run; rows_add wants the
 * own keys and parts of one length: to each row it adds what every part has for it, by rising part. */

/* Refuse what no variant serves. */
typedef enum DsvRowsOp { DSV_ROWS_TAKE, DSV_ROWS_PUT, DSV_ROWS_ADD } DsvRowsOp;
DsvStatus dsvi_runs_check(const DsvRuns *runs);
DsvStatus dsvi_list_divide_check(const DsvListDivideArgs *args);
DsvStatus dsvi_rows_check(const DsvRowsArgs *args, DsvRowsOp op);

dsvi_runs_count_fn dsvi_runs_count_ref;
dsvi_list_divide_fn dsvi_lists_divide_ref, dsvi_lists_emit_ref;
dsvi_rows_fn dsvi_rows_take_ref, dsvi_rows_put_ref, dsvi_rows_add_ref;

#ifdef __cplusplus
}
#endif
#endif
