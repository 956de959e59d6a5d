/* Key lists when the keys are divided over ranks: which part of each list a rank serves from its own keys,
 * which spans of keys it must receive from other ranks, and how the rows of these spans are packed into
 * messages.
 *
 * Each rank that shares the tokens is a *part*. Part j owns the spans bound[j] <= r < bound[j + 1]; this rank
 * is part `self`. Every list is divided into a near list (spans of this rank) and a far list (spans of other
 * ranks). A far span that any group of a pair (batch, head) lists is *marked*. Its rows are fetched once for
 * all groups of the pair, into an array of *compact keys*. The far lists refer to spans of the compact keys.
 *
 *     lists_divide   sets the marks and computes the lengths of all near and far lists
 *     spans_count    computes the position of each marked span in the messages
 *     lists_emit     writes near lists as spans of this rank's keys, far lists as spans of compact keys
 *     lists_part     writes the spans of one part of the keys as lists over the keys of this part alone
 *     rows_take      copies the rows of marked spans into messages
 *     rows_put       copies rows from messages to compact keys
 *     rows_add       adds rows from the messages of several ranks to this rank's rows (gradients)
 *
 * A rank sends part j the marks of part j's spans. It receives from every rank the marks of the spans that it
 * owns itself; in a DsviSpans of the received marks, part j holds the spans that rank j requests from this
 * rank. Both sides then count the same marks, so that no positions need to be sent:
 *
 *     message to or from part j: its marked spans, ordered by pair, then ascending. Each occupies a *slot* of
 *                          `grain` rows of k followed by `grain` rows of v
 *     number of a span     how many marked spans of (part, pair) precede it: dsvi_spans_number
 *     first[j, pair]       number of slots of all earlier pairs in the message of part j; first[j, pairs] is
 *                          the total
 *
 * The compact keys of a pair have room for `width` spans. The pair's marked spans fill the END of this array
 * in ascending order; the spans before them are never listed. Span `number` of part j has index
 *
 *     width - (marked in all parts) + (marked in parts before j) + number.
 *
 * Only the last span of all keys can be short. If another part owns this span, it is marked for every pair,
 * and so ends the compact keys of every pair, as lists.h requires. */
#ifndef DSVI_LIST_EXCHANGE_H
#define DSVI_LIST_EXCHANGE_H

#include "ops/attention.h"
#include "ops/lists.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_SPAN_PARTS_MAX 64

/* The marked spans of all parts. All arrays except `bound` are device memory. Marks are bits of 32-bit words,
 * the lowest bit first. Each (part, pair) begins a new word; the bits after its last span are 0. */
typedef struct DsviSpans {
    int64_t batch, heads; /* B, N: pair = b * heads + h */
    int64_t parts;        /* number of ranks that divide the keys, at most DSVI_SPAN_PARTS_MAX */
    int64_t grain;
    const int64_t *bound; /* (parts + 1) host memory: part j owns the spans bound[j] to bound[j + 1] - 1;
                           * bound[0] is 0. Operations read the array before they return */
    uint32_t *marks; /* (dsvi_spans_words) one bit for each span, 1 if it is marked; dsvi_spans_word returns
                      * the first word of a (part, pair) */
    int32_t *before; /* (dsvi_spans_words) number of marked spans of the same (part, pair) in earlier
                      * words */
    int64_t *first; /* (parts, pairs + 1) number of slots of all earlier pairs in the message of a part; entry
                     * `pairs` is the total */
} DsviSpans;

static inline int64_t dsvi_spans_pairs(const DsviSpans *spans)
{
    return spans->batch * spans->heads;
}

/* Number of 32-bit words that hold the marks of `spans` spans of one pair. */
static inline int64_t dsvi_mark_words(int64_t spans)
{
    return (spans + 31) / 32;
}

/* Index, in the arrays `marks` and `before`, of the first word of (part, pair). The words of a part are
 * stored together, as (pairs, words of a pair). */
static inline int64_t dsvi_spans_word(const DsviSpans *spans, int64_t part, int64_t pair)
{
    int64_t before = 0;
    for (int64_t j = 0; j < part; j++)
        before += dsvi_mark_words(spans->bound[j + 1] - spans->bound[j]);
    return dsvi_spans_pairs(spans) * before +
           pair * (part < spans->parts ? dsvi_mark_words(spans->bound[part + 1] - spans->bound[part]) : 0);
}

/* Number of 32-bit words that hold the marks of all parts and pairs: the length of the arrays `marks` and
 * `before`. */
static inline int64_t dsvi_spans_words(const DsviSpans *spans)
{
    return dsvi_spans_word(spans, spans->parts, 0);
}

/* Returns whether span bound[part] + i of a pair is marked. The marks must be host memory. */
static inline bool dsvi_spans_marked(const DsviSpans *spans, int64_t part, int64_t pair, int64_t i)
{
    return spans->marks[dsvi_spans_word(spans, part, pair) + i / 32] >> i % 32 & 1;
}

/* Returns how many marked spans of (part, pair) precede the marked span bound[part] + i. This number is also
 * the position of the span's slot among the slots of (part, pair) in a message. The arrays `marks` and
 * `before` must be host memory. */
int64_t dsvi_spans_number(const DsviSpans *spans, int64_t part, int64_t pair, int64_t i);

/* The operation spans_count: computes the counts `before` and `first` of *spans from its bits `marks`. */
typedef DsvStatus dsvi_spans_count_fn(DsviStream *stream, const DsviSpans *spans);

typedef struct DsviListDivideArgs {
    const DsviLists *lists; /* lists over the keys of all parts */
    const DsviSpans *spans; /* batch, heads and grain as in `lists`; bound[parts] is the number of spans
                             * of all keys */
    int64_t self;           /* number of the part that this rank owns */
    /* The caller sets the shapes: queries and grain as in `lists`; the keys are this rank's keys for `near`
     * and the compact keys for `far` (lists_divide does not read them). lists_divide fills the offsets of
     * both and the marks of all parts. lists_emit reads these offsets, `before` and `first`, and fills the
     * span arrays, whose capacity must suffice. */
    DsviLists *near, *far;
    int64_t width; /* lists_emit only: number of spans of the compact keys (keys fetched from other ranks) */
} DsviListDivideArgs;
typedef DsvStatus dsvi_list_divide_fn(DsviStream *stream, const DsviListDivideArgs *args);

/* Copies the shape of the undivided lists `whole` to `half`, which will be the `near` or `far` of
 * lists_divide. The pointer half->offsets is kept. */
static inline void dsvi_lists_copy_shape(const DsviLists *whole, DsviLists *half)
{
    int64_t *offsets = half->offsets;
    *half = *whole;
    half->offsets = offsets;
}

/* lists_part: for each list of `lists`, the spans first <= span < end, as the list of the same group over the
 * keys of these spans: span `first` becomes span 0. The caller copies the shape of `lists` to `part`
 * (dsvi_lists_copy_shape), and sets part->keys to dsvi_part_keys and part->spans to a buffer of
 * part->capacity entries, as many as `lists` may have. lists_part fills the offsets and spans of `part`. */
typedef struct DsviListPartArgs {
    const DsviLists *lists;
    int64_t first, end; /* 0 <= first <= end <= dsvi_lists_full(lists) */
    DsviLists *part;
} DsviListPartArgs;
typedef DsvStatus dsvi_list_part_fn(DsviStream *stream, const DsviListPartArgs *args);

/* Number of keys in the spans first <= span < end of `lists`. Only the last span of all keys can be short. */
static inline int64_t dsvi_part_keys(const DsviLists *lists, int64_t first, int64_t end)
{
    int64_t last = end * lists->grain;
    return (last < lists->keys ? last : lists->keys) - first * lists->grain;
}

/* Arguments of rows_take, rows_put and rows_add, which move rows of marked spans between k, v and messages.
 * The messages of the parts are stored one after another, in ascending order of parts. */
typedef struct DsviRowsArgs {
    const DsviSpans *spans;
    int64_t first_pair, end_pair; /* only pairs first_pair <= pair < end_pair are processed */
    int64_t width; /* If > 0, k and v are compact keys (rows fetched from other ranks) with room for `width`
                    * spans. If 0, k and v are this rank's keys, and span bound[j] + i of every part j has
                    * their rows [i * grain, (i + 1) * grain). */
    int64_t rows;  /* S of k and of v. Rows of a slot beyond the last row are set to 0 by rows_take and
                    * ignored otherwise. */
    int64_t head_dim;
    DsviDtype dtype; /* any dtype for rows_take and rows_put; F32, BF16 or F64 for rows_add, which sums in F32
                      * or wider and rounds once */
    DsviHeads k, v;  /* (B, S, N, D) */
    void *message;   /* (slots of all parts, 2, grain, D) */
} DsviRowsArgs;
typedef DsvStatus dsvi_rows_fn(DsviStream *stream, const DsviRowsArgs *args);

/* rows_put requires width > 0: several ranks may have fetched the same span of this rank's keys, so that
 * copying their rows back would overwrite one copy with another. rows_add requires width == 0 and parts of
 * equal length. To each row of k and v, rows_add adds the rows in the messages of all parts that have marked
 * the row's span, in ascending order of parts. */

/* These checks fail if the arguments of an op violate the contract in this header. Every variant calls
 * them. */
typedef enum DsviRowsOp { DSVI_ROWS_TAKE, DSVI_ROWS_PUT, DSVI_ROWS_ADD } DsviRowsOp;
DsvStatus dsvi_spans_check(const DsviSpans *spans);
DsvStatus dsvi_list_divide_check(const DsviListDivideArgs *args);
DsvStatus dsvi_list_part_check(const DsviListPartArgs *args);
DsvStatus dsvi_rows_check(const DsviRowsArgs *args, DsviRowsOp op);

dsvi_spans_count_fn dsvi_spans_count_ref;
dsvi_list_divide_fn dsvi_lists_divide_ref, dsvi_lists_emit_ref;
dsvi_list_part_fn dsvi_lists_part_ref;
dsvi_rows_fn dsvi_rows_take_ref, dsvi_rows_put_ref, dsvi_rows_add_ref;

#ifdef __cplusplus
}
#endif
#endif
