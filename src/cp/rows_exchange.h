/* Exchange of the keys and values that a rank's lists name and another rank of its sequence group owns
 * (ops/list_exchange.h defines spans, marks and messages). A *row* is the D elements of one key or value.
 *
 *     marks     each rank sends to every other rank the marks of the spans that its lists name, and receives
 *               the marks of its own spans that other ranks' lists name
 *     fetch     each rank sends the marked rows of its k and v to the ranks that requested them. Two calls,
 *               so that the caller can enqueue attention over its own keys between them
 *     home      backward: gradients of fetched rows return to the owner, which adds them to its gradients
 * Rows are fetched in one exchange, concurrently with attention. Gradients return in up to 4 exchanges, each
 * for some pairs (sample, head): while one exchange is under way, the next is packed and the previous is
 * added.
 *
 * Bytes that a rank sends (B samples, N_own heads, elements of e bytes, spans of `grain` keys):
 *     marks     B N_own (spans of the other ranks' keys) / 8    one bit per span, padded to 32-bit words
 *     fetch     2 D e grain (number of its spans that others requested, once for each requesting rank)
 *     home      2 D e grain (number of others' spans that it requested)
 * A span that several groups of queries list is sent once. If the last span of all keys has fewer than
 * `grain` keys, this span is marked for every pair (sample, head), and `grain` rows are sent for it. */
#ifndef DSVI_ROWS_EXCHANGE_H
#define DSVI_ROWS_EXCHANGE_H

#include "cp/cp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The compact tensors of fetched rows have one of DSVI_ROWS_WIDTHS widths (in spans per pair), so that
 * workspaces can be planned for every possible width. Returns width i, 1 <= i <= DSVI_ROWS_WIDTHS (0 for i =
 * 0), if the other ranks own `far_spans` spans. */
enum { DSVI_ROWS_WIDTHS = 32 };
static inline int64_t dsvi_rows_width(int64_t far_spans, int64_t i)
{
    return (far_spans * i + DSVI_ROWS_WIDTHS - 1) / DSVI_ROWS_WIDTHS;
}

/* Returns the number of keys in `width` spans of `grain` keys. If `ends_far`, the last of these spans is the
 * last span of all `keys` keys, which can be shorter than `grain`. */
static inline int64_t dsvi_rows_keys(int64_t width, int64_t grain, int64_t keys, bool ends_far)
{
    return width * grain - (ends_far && width > 0 ? (grain - keys % grain) % grain : 0);
}

/* Memory of an exchange, provided by the caller. All is device memory except host_first. "needs": spans that
 * this rank requests; "wants": spans of this rank that other ranks request. */
typedef struct DsviRowsMemory {
    uint32_t *needs_marks, *served_marks;  /* dsvi_rows_needs_words, dsvi_rows_served_words */
    int32_t *needs_before, *served_before; /* same lengths as the marks */
    int64_t *needs_first, *served_first;   /* (sequence_ranks, B N_own + 1) */
    int64_t *host_first;                   /* host copy of needs_first, then served_first. The caller keeps
                                            * it as long as a later pass may fetch the same rows again */
    void *sent, *received;                 /* messages: 2 D grain elements for each span marked in wants
                                            * (sent) or in needs (received) */
} DsviRowsMemory;

/* Upper bounds of the number of 32-bit words that hold one mark bit per span, for `pairs` = B N_own pairs
 * (sample, head). dsvi_rows_needs_words: marks of requested spans, where all keys have `full_spans` spans.
 * dsvi_rows_served_words: marks of spans that others request, where this rank's keys have `own_spans` spans.
 */
static inline int64_t dsvi_rows_needs_words(int64_t pairs, int64_t ranks, int64_t full_spans)
{
    return pairs * (full_spans / 32 + ranks);
}

static inline int64_t dsvi_rows_served_words(int64_t pairs, int64_t ranks, int64_t own_spans)
{
    return pairs * ranks * dsvi_mark_words(own_spans);
}

/* The exchange of one block. Contains pointers into itself, so it must not be copied or moved. */
typedef struct DsviRowsExchange {
    const DsviBackend *backend;
    DsviCpPart part;
    int64_t keys, batch, grain, head_dim;
    DsviDtype dtype;
    DsviRowsMemory memory;
    /* needs: marks on the spans of all keys that this rank requests, by owner. wants: marks on this rank's
     * spans that other ranks request, once for each requesting rank */
    DsviSpans needs, wants;
    int64_t needs_bound[DSVI_SPAN_PARTS_MAX + 1], served_bound[DSVI_SPAN_PARTS_MAX + 1];
    int64_t width, far_keys; /* set by dsvi_rows_measure: spans and keys per pair of a compact tensor; 0:
                              * nothing is fetched */
} DsviRowsExchange;

/* Sizes of an exchange of keys and values. `keys`: S, the keys of all ranks; `dtype`: dtype of keys and
 * values. */
typedef struct DsviRowsShape {
    int64_t keys, batch, grain, head_dim;
    DsviDtype dtype;
} DsviRowsShape;

/* Prepares `exchange` for one block, without communication. Returns DSV_E_UNSUPPORTED with more than
 * DSVI_SPAN_PARTS_MAX sequence ranks. */
DsvStatus dsvi_rows_begin(const DsviBackend *backend, const DsviCpPart *part, const DsviRowsShape *shape,
                          const DsviRowsMemory *memory, DsviRowsExchange *exchange);

/* Called by all ranks of the sequence group, after the op lists_divide has filled needs.marks. Exchanges the
 * marks, counts them, and enqueues the copy of the counts to host_first. The caller then waits for the
 * device's stream and calls dsvi_rows_measure. */
DsvStatus dsvi_rows_marks(DsviRowsExchange *exchange);
/* Called before a later pass over the same lists: computes the counts of marked spans in device memory again
 * from the marks, which the caller has kept. DsviRowsMemory.host_first must still be valid. */
DsvStatus dsvi_rows_count(DsviRowsExchange *exchange);
/* Sets DsviRowsExchange.width and far_keys from the counts of marked spans in DsviRowsMemory.host_first. */
void dsvi_rows_measure(DsviRowsExchange *exchange);

/* dsvi_rows_needed returns the number of spans that this rank requests from other ranks, dsvi_rows_served
 * the number of spans that other ranks request from this rank; both summed over pairs (sample,
 * head) and ranks. */
int64_t dsvi_rows_needed(const DsviRowsExchange *exchange);
int64_t dsvi_rows_served(const DsviRowsExchange *exchange);

/* dsvi_rows_fetch_begin and dsvi_rows_fetch_end are called by all ranks of the sequence group, with no other
 * call on the group's communicator between them. dsvi_rows_fetch_begin packs and sends requested rows of k
 * and v (B, T, N_own, D), which hold this rank's keys and values. Work that the caller enqueues between the
 * two calls runs concurrently with the transfer, and must not access DsviRowsMemory.sent and received. */
DsvStatus dsvi_rows_fetch_begin(DsviRowsExchange *exchange, const void *k, const void *v);
/* Completes dsvi_rows_fetch_begin: writes the rows that this rank has requested to far_k and far_v, (B,
 * far_keys, N_own, D). */
DsvStatus dsvi_rows_fetch_end(DsviRowsExchange *exchange, void *far_k, void *far_v);

/* dsvi_rows_return_begin sends the gradients of fetched keys and values, far_dk and far_dv (shaped like
 * far_k), to the ranks that own these keys. It packs them into `packed`, as large as
 * DsviRowsMemory.received. dsvi_rows_return_begin and _end are called by all ranks of the sequence group,
 * with no other call on the group's communicator between them. Work that the caller enqueues between the two
 * runs concurrently, and must not access `packed` and DsviRowsMemory.sent. */
DsvStatus dsvi_rows_return_begin(DsviRowsExchange *exchange, const void *far_dk, const void *far_dv,
                                 void *packed);
/* Completes dsvi_rows_return_begin: adds the gradients received from other ranks to dk and dv (B, T, N_own,
 * D), the gradients of this rank's keys and values. */
DsvStatus dsvi_rows_return_end(DsviRowsExchange *exchange, void *dk, void *dv);

#ifdef __cplusplus
}
#endif
#endif
