/* Reference implementation of the ops that divide key lists into near and far lists and move the rows of
 * marked spans. See list_exchange.h. */
#include "ops/list_exchange.h"

#include <string.h>

DsvStatus dsvi_spans_check(const DsviSpans *spans)
{
    if (spans->parts < 1 || spans->parts > DSVI_SPAN_PARTS_MAX)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "keys are divided over %lld ranks, expected 1 to %d",
                         (long long)spans->parts, DSVI_SPAN_PARTS_MAX);
    if (spans->grain < 1)
        return DSVI_FAIL(DSV_E_SHAPE, "spans have %lld keys, expected 1 or more", (long long)spans->grain);
    for (int64_t j = 0; j < spans->parts; j++)
        if (spans->bound[0] != 0 || spans->bound[j + 1] < spans->bound[j])
            return DSVI_FAIL(DSV_E_SHAPE, "the spans of part %lld begin at %lld and end at %lld",
                             (long long)j, (long long)spans->bound[j], (long long)spans->bound[j + 1]);
    return DSV_OK;
}

DsvStatus dsvi_list_divide_check(const DsviListDivideArgs *args)
{
    const DsviLists *whole = args->lists, *halves[2] = {args->near, args->far};
    const DsviSpans *spans = args->spans;
    DSVI_TRY(dsvi_spans_check(spans));
    if (whole->batch != spans->batch || whole->heads != spans->heads || whole->grain != spans->grain ||
        dsvi_lists_full(whole) != spans->bound[spans->parts] || args->self < 0 || args->self >= spans->parts)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "lists over %lld spans of %lld keys do not match parts of %lld spans of %lld keys, "
                         "part %lld of %lld",
                         (long long)dsvi_lists_full(whole), (long long)whole->grain,
                         (long long)spans->bound[spans->parts], (long long)spans->grain,
                         (long long)args->self, (long long)spans->parts);
    for (int i = 0; i < 2; i++)
        if (halves[i]->groups != whole->groups || halves[i]->batch != whole->batch ||
            halves[i]->heads != whole->heads || halves[i]->grain != whole->grain)
            return DSVI_FAIL(
                DSV_E_SHAPE,
                "near or far lists do not have the shape of the divided lists: %lld and %lld groups",
                (long long)whole->groups, (long long)halves[i]->groups);
    return DSV_OK;
}

DsvStatus dsvi_list_part_check(const DsviListPartArgs *args)
{
    const DsviLists *whole = args->lists, *part = args->part;
    if (args->first < 0 || args->first > args->end || args->end > dsvi_lists_full(whole))
        return DSVI_FAIL(DSV_E_SHAPE, "lists_part: spans %lld to %lld requested of lists over %lld spans",
                         (long long)args->first, (long long)args->end - 1, (long long)dsvi_lists_full(whole));
    if (part->groups != whole->groups || part->batch != whole->batch || part->heads != whole->heads ||
        part->grain != whole->grain || part->keys != dsvi_part_keys(whole, args->first, args->end))
        return DSVI_FAIL(DSV_E_SHAPE,
                         "lists_part: the result has %lld groups and %lld keys, expected %lld and %lld",
                         (long long)part->groups, (long long)part->keys, (long long)whole->groups,
                         (long long)dsvi_part_keys(whole, args->first, args->end));
    return DSV_OK;
}

DsvStatus dsvi_rows_check(const DsviRowsArgs *args, DsviRowsOp op)
{
    const DsviSpans *spans = args->spans;
    DSVI_TRY(dsvi_spans_check(spans));
    if (args->first_pair < 0 || args->first_pair > args->end_pair || args->end_pair > dsvi_spans_pairs(spans))
        return DSVI_FAIL(DSV_E_SHAPE, "rows of pairs %lld to %lld requested, but there are %lld pairs",
                         (long long)args->first_pair, (long long)args->end_pair - 1,
                         (long long)dsvi_spans_pairs(spans));
    if (op == DSVI_ROWS_PUT && args->width == 0)
        return DSVI_FAIL(DSV_E_SHAPE, "rows_put requires compact keys (width > 0)");
    if (op != DSVI_ROWS_ADD)
        return DSV_OK;
    if (args->dtype != DSVI_F32 && args->dtype != DSVI_BF16 && args->dtype != DSVI_F64)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "rows_add takes F32, BF16 and F64, not %s",
                         dsvi_dtype_name(args->dtype));
    for (int64_t j = 0; j < spans->parts; j++)
        if (args->width != 0 || spans->bound[j + 1] != (j + 1) * spans->bound[1])
            return DSVI_FAIL(DSV_E_SHAPE, "rows_add requires parts of equal length and no compact keys");
    return DSV_OK;
}

/* ---- lists ---- */

static int64_t list_exchange_part_of(const DsviSpans *spans, int64_t span)
{
    int64_t part = 0;
    while (span >= spans->bound[part + 1])
        part++;
    return part;
}

/* Sets the bit that requests span `span` (an index among the spans of all ranks) for a (batch, head) pair. */
static void list_exchange_mark(const DsviSpans *spans, int64_t pair, int64_t span)
{
    int64_t part = list_exchange_part_of(spans, span), i = span - spans->bound[part];
    spans->marks[dsvi_spans_word(spans, part, pair) + i / 32] |= (uint32_t)1 << i % 32;
}

static void mark_last(const DsviListDivideArgs *args)
{
    const DsviSpans *spans = args->spans;
    int64_t last = spans->bound[spans->parts] - 1;
    if (args->lists->keys % spans->grain == 0 || list_exchange_part_of(spans, last) == args->self)
        return;
    for (int64_t pair = 0; pair < dsvi_spans_pairs(spans); pair++)
        list_exchange_mark(spans, pair, last);
}

DsvStatus dsvi_lists_divide_ref(DsviStream *stream, const DsviListDivideArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_list_divide_check(args));
    const DsviSpans *spans = args->spans;
    memset(spans->marks, 0, (size_t)dsvi_spans_words(spans) * sizeof *spans->marks);
    mark_last(args);
    args->near->offsets[0] = args->far->offsets[0] = 0;
    for (int64_t n = 0; n < dsvi_lists_count(args->lists); n++) {
        DsviList list = dsvi_list_at(args->lists, n);
        int64_t near = 0;
        for (int64_t i = 0; i < list.count; i++) {
            if (list_exchange_part_of(spans, list.spans[i]) == args->self)
                near++;
            else
                list_exchange_mark(spans, n / args->lists->groups, list.spans[i]);
        }
        args->near->offsets[n + 1] = args->near->offsets[n] + near;
        args->far->offsets[n + 1] = args->far->offsets[n] + list.count - near;
    }
    return DSV_OK;
}

int64_t dsvi_spans_number(const DsviSpans *spans, int64_t part, int64_t pair, int64_t i)
{
    int64_t word = dsvi_spans_word(spans, part, pair) + i / 32;
    return spans->before[word] + __builtin_popcount(spans->marks[word] & (((uint32_t)1 << i % 32) - 1));
}

DsvStatus dsvi_spans_count_ref(DsviStream *stream, const DsviSpans *spans)
{
    (void)stream;
    DSVI_TRY(dsvi_spans_check(spans));
    int64_t pairs = dsvi_spans_pairs(spans);
    for (int64_t j = 0; j < spans->parts; j++) {
        int64_t *first = spans->first + j * (pairs + 1);
        first[0] = 0;
        for (int64_t pair = 0; pair < pairs; pair++) {
            int64_t begin = dsvi_spans_word(spans, j, pair), end = dsvi_spans_word(spans, j, pair + 1);
            int32_t count = 0;
            for (int64_t word = begin; word < end; word++) {
                spans->before[word] = count;
                count += __builtin_popcount(spans->marks[word]);
            }
            first[pair + 1] = first[pair] + count;
        }
    }
    return DSV_OK;
}

/* Number of spans of keys that rank `part` owns and that are marked (requested) for this (batch, head) pair.
 */
static int64_t marked_count(const DsviSpans *spans, int64_t part, int64_t pair)
{
    const int64_t *first = spans->first + part * (dsvi_spans_pairs(spans) + 1) + pair;
    return first[1] - first[0];
}

/* Index, among the compact keys' spans, of the first marked span of (part, pair). */
static int64_t compact_first(const DsviSpans *spans, int64_t width, int64_t part, int64_t pair)
{
    int64_t first = width;
    for (int64_t j = part; j < spans->parts; j++)
        first -= marked_count(spans, j, pair);
    return first;
}

DsvStatus dsvi_lists_emit_ref(DsviStream *stream, const DsviListDivideArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_list_divide_check(args));
    const DsviSpans *spans = args->spans;
    for (int64_t n = 0; n < dsvi_lists_count(args->lists); n++) {
        DsviList list = dsvi_list_at(args->lists, n);
        int32_t *near = args->near->spans + args->near->offsets[n];
        int32_t *far = args->far->spans + args->far->offsets[n];
        int64_t pair = n / args->lists->groups;
        for (int64_t i = 0; i < list.count; i++) {
            int64_t part = list_exchange_part_of(spans, list.spans[i]);
            if (part == args->self)
                *near++ = (int32_t)(list.spans[i] - spans->bound[part]);
            else
                *far++ = (int32_t)(compact_first(spans, args->width, part, pair) +
                                   dsvi_spans_number(spans, part, pair, list.spans[i] - spans->bound[part]));
        }
    }
    return DSV_OK;
}

DsvStatus dsvi_lists_part_ref(DsviStream *stream, const DsviListPartArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_list_part_check(args));
    int64_t count = 0;
    args->part->offsets[0] = 0;
    for (int64_t n = 0; n < dsvi_lists_count(args->lists); n++) {
        DsviList list = dsvi_list_at(args->lists, n);
        for (int64_t i = 0; i < list.count; i++)
            if (list.spans[i] >= args->first && list.spans[i] < args->end)
                args->part->spans[count++] = (int32_t)(list.spans[i] - args->first);
        args->part->offsets[n + 1] = count;
    }
    return DSV_OK;
}

/* ---- rows ---- */

/* Where the marked spans of (part, pair) begin: their first slot in the messages, and their first row among
 * the compact keys (the rows that other ranks sent; see list_exchange.h). */
typedef struct Range {
    int64_t slot;
    int64_t row; /* first row among the compact keys; used only if width > 0 */
} Range;

static Range range_of(const DsviRowsArgs *args, int64_t part, int64_t pair)
{
    const DsviSpans *spans = args->spans;
    int64_t pairs = dsvi_spans_pairs(spans);
    Range at = {spans->first[part * (pairs + 1) + pair],
                args->width > 0 ? spans->grain * compact_first(spans, args->width, part, pair) : 0};
    for (int64_t j = 0; j < part; j++)
        at.slot += spans->first[j * (pairs + 1) + pairs];
    return at;
}

/* Where the rows of one span of keys are: in the tensor k or v, and in a message. */
typedef struct SpanRows {
    const DsviHeads *x;
    int64_t pair, row;
    int64_t message; /* element of the message at which the span's rows begin */
} SpanRows;

static SpanRows span_rows(const DsviRowsArgs *args, bool values, int64_t pair, int64_t row, int64_t slot)
{
    return (SpanRows){values ? &args->v : &args->k, pair, row,
                      (2 * slot + values) * args->spans->grain * args->head_dim};
}

/* Returns the index, in the tensor k or v, of the first element of row `t` of the span of keys that `rows`
 * describes. */
static int64_t row_at(const DsviRowsArgs *args, const SpanRows *rows, int64_t t)
{
    return dsvi_heads_at(rows->x, rows->pair / args->spans->heads, rows->row + t,
                         rows->pair % args->spans->heads);
}

static void copy_span(const DsviRowsArgs *args, SpanRows rows, bool take)
{
    size_t size = dsvi_dtype_size(args->dtype), bytes = (size_t)args->head_dim * size;
    for (int64_t t = 0; t < args->spans->grain; t++) {
        unsigned char *there = (unsigned char *)args->message + (size_t)rows.message * size +
                               (size_t)t * bytes;
        if (rows.row + t >= args->rows) {
            if (take)
                memset(there, 0, bytes);
            continue;
        }
        unsigned char *here = (unsigned char *)rows.x->data + (size_t)row_at(args, &rows, t) * size;
        memcpy(take ? there : here, take ? here : there, bytes);
    }
}

static void copy_range(const DsviRowsArgs *args, int64_t part, int64_t pair, bool take)
{
    const DsviSpans *spans = args->spans;
    Range at = range_of(args, part, pair);
    for (int64_t i = 0, number = 0; i < spans->bound[part + 1] - spans->bound[part]; i++) {
        if (!dsvi_spans_marked(spans, part, pair, i))
            continue;
        int64_t row = args->width > 0 ? at.row + number * spans->grain : i * spans->grain;
        for (int values = 0; values < 2; values++)
            copy_span(args, span_rows(args, values, pair, row, at.slot + number), take);
        number++;
    }
}

static DsvStatus copy_all(const DsviRowsArgs *args, bool take)
{
    DSVI_TRY(dsvi_rows_check(args, take ? DSVI_ROWS_TAKE : DSVI_ROWS_PUT));
    for (int64_t part = 0; part < args->spans->parts; part++)
        for (int64_t pair = args->first_pair; pair < args->end_pair; pair++)
            copy_range(args, part, pair, take);
    return DSV_OK;
}

DsvStatus dsvi_rows_take_ref(DsviStream *stream, const DsviRowsArgs *args)
{
    (void)stream;
    return copy_all(args, true);
}

DsvStatus dsvi_rows_put_ref(DsviStream *stream, const DsviRowsArgs *args)
{
    (void)stream;
    return copy_all(args, false);
}

/* Adds the rows of several message slots to span i of a (batch, head) pair: slot[n], for n < slots, is the
 * index of a slot. `values` selects v instead of k. */
static void add_span(const DsviRowsArgs *args, bool values, int64_t pair, int64_t i, const int64_t *slot,
                     int slots)
{
    int64_t grain = args->spans->grain, dim = args->head_dim;
    SpanRows here = span_rows(args, values, pair, i * grain, 0);
    for (int64_t t = 0; t < grain && here.row + t < args->rows; t++) {
        int64_t row = row_at(args, &here, t);
        for (int64_t d = 0; d < dim; d++) {
            double sum = dsvi_load(args->dtype, here.x->data, row + d);
            for (int n = 0; n < slots; n++) {
                SpanRows there = span_rows(args, values, pair, 0, slot[n]);
                sum += dsvi_load(args->dtype, args->message, there.message + t * dim + d);
            }
            dsvi_store(args->dtype, here.x->data, row + d, sum);
        }
    }
}

static void add_pair(const DsviRowsArgs *args, int64_t pair)
{
    const DsviSpans *spans = args->spans;
    Range at[DSVI_SPAN_PARTS_MAX];
    int64_t slot[DSVI_SPAN_PARTS_MAX];
    for (int64_t j = 0; j < spans->parts; j++)
        at[j] = range_of(args, j, pair);
    for (int64_t i = 0; i < spans->bound[1]; i++) {
        int slots = 0;
        for (int64_t j = 0; j < spans->parts; j++)
            if (dsvi_spans_marked(spans, j, pair, i))
                slot[slots++] = at[j].slot++;
        for (int values = 0; values < (slots > 0 ? 2 : 0); values++)
            add_span(args, values, pair, i, slot, slots);
    }
}

DsvStatus dsvi_rows_add_ref(DsviStream *stream, const DsviRowsArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_rows_check(args, DSVI_ROWS_ADD));
    for (int64_t pair = args->first_pair; pair < args->end_pair; pair++)
        add_pair(args, pair);
    return DSV_OK;
}
