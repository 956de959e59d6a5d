/* Implements vocabulary.h: a sorted array, in which the pieces that begin with the same bytes are adjacent.
 */
#include "text/vocabulary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

static const char END_TOKEN[] = "</s>";

void dsvi_vocabulary_free(DsviVocabulary *vocabulary)
{
    for (int64_t i = 0; i < vocabulary->added_count; i++)
        free(vocabulary->added[i].text);
    free(vocabulary->added);
    free(vocabulary->pieces);
    free(vocabulary->memory);
    *vocabulary = (DsviVocabulary){0};
}

static uint64_t prefix_of(const char *text, size_t bytes)
{
    uint64_t prefix = 0;
    for (size_t i = 0; i < sizeof prefix; i++)
        prefix = prefix << 8 | (i < bytes ? (unsigned char)text[i] : 0);
    return prefix;
}

DsvStatus dsvi_vocabulary_add_piece(DsviVocabulary *vocabulary, const char *text, size_t bytes, double score)
{
    int64_t id = vocabulary->ids;
    if (!isfinite(score))
        return DSVI_FAIL(DSV_E_FORMAT, "piece %lld has a score that is not finite", (long long)id);
    if (!dsvi_utf8_valid(text, bytes))
        return DSVI_FAIL(DSV_E_FORMAT, "the text of piece %lld is not UTF-8", (long long)id);
    if (id == INT32_MAX || bytes > INT32_MAX)
        return DSVI_FAIL(DSV_E_FORMAT, "piece %lld is too long, or has too high a number", (long long)id);
    if (vocabulary->count == vocabulary->room) {
        int64_t room = vocabulary->room ? 2 * vocabulary->room : 1024;
        DsviPiece *pieces = realloc(vocabulary->pieces, (size_t)room * sizeof *pieces);
        if (!pieces)
            return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld pieces", (long long)room);
        vocabulary->pieces = pieces;
        vocabulary->room = room;
    }
    if (id == 0 || score < vocabulary->score_min)
        vocabulary->score_min = score;
    vocabulary->ids++;
    if (bytes && !memchr(text, 0, bytes))
        vocabulary->pieces[vocabulary->count++] = (DsviPiece){.text = text,
                                                              .prefix = prefix_of(text, bytes),
                                                              .bytes = (uint32_t)bytes,
                                                              .id = (int32_t)id,
                                                              .score = score};
    return DSV_OK;
}

DsvStatus dsvi_vocabulary_add_token(DsviVocabulary *vocabulary, const DsviAddedToken *token)
{
    size_t count = (size_t)vocabulary->added_count;
    if (token->bytes == 0)
        return DSVI_FAIL(DSV_E_FORMAT, "an added token is empty");
    DsviAddedToken *added = realloc(vocabulary->added, (count + 1) * sizeof *added);
    if (!added)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu added tokens", count + 1);
    vocabulary->added = added;
    added[count] = *token;
    added[count].text = malloc(token->bytes + 1);
    if (!added[count].text)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for an added token of %zu bytes", token->bytes);
    memcpy(added[count].text, token->text, token->bytes);
    added[count].text[token->bytes] = 0;
    vocabulary->added_begin[(unsigned char)token->text[0]] = true;
    vocabulary->added_count++;
    return DSV_OK;
}

/* Orders by bytes; a piece precedes longer ones that it begins. Prefixes decide nearly always, without a read
 * of the texts; pieces have no zero bytes, so a shorter piece has a lower prefix. */
static int compare_pieces(const void *a, const void *b)
{
    const DsviPiece *x = a, *y = b;
    if (x->prefix != y->prefix)
        return x->prefix < y->prefix ? -1 : 1;
    int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Fails if an added token is not whole characters, after which the rest of a text would begin inside one, or
 * has another id than the piece of the same text. */
static DsvStatus check_added(const DsviVocabulary *vocabulary)
{
    for (int64_t i = 0; i < vocabulary->added_count; i++) {
        const DsviAddedToken *token = &vocabulary->added[i];
        const DsviPiece *piece = dsvi_vocabulary_find(vocabulary, token->text, token->bytes);
        if (!dsvi_utf8_valid(token->text, token->bytes))
            return DSVI_FAIL(DSV_E_FORMAT, "the text of added token %d is not valid UTF-8", token->id);
        if (piece && piece->id != token->id)
            return DSVI_FAIL(DSV_E_FORMAT, "added token %s has id %d, expected %d, the id of its piece",
                             token->text, token->id, piece->id);
    }
    return DSV_OK;
}

static DsvStatus check_different(const DsviVocabulary *vocabulary)
{
    for (int64_t i = 1; i < vocabulary->count; i++) {
        const DsviPiece *a = &vocabulary->pieces[i - 1], *b = &vocabulary->pieces[i];
        if (compare_pieces(a, b) == 0)
            return DSVI_FAIL(DSV_E_FORMAT, "pieces %d and %d are both '%.*s', expected different texts",
                             a->id < b->id ? a->id : b->id, a->id < b->id ? b->id : a->id,
                             a->bytes < 64 ? (int)a->bytes : 64, a->text);
    }
    return DSV_OK;
}

static DsvStatus find_end_token(DsviVocabulary *vocabulary)
{
    const DsviPiece *piece = dsvi_vocabulary_find(vocabulary, END_TOKEN, strlen(END_TOKEN));
    if (!piece)
        return DSVI_FAIL(DSV_E_FORMAT, "no piece is the end token, expected %s", END_TOKEN);
    vocabulary->end = piece->id;
    return DSV_OK;
}

DsvStatus dsvi_vocabulary_finish(DsviVocabulary *vocabulary)
{
    if (vocabulary->unknown < 0 || vocabulary->unknown >= vocabulary->ids)
        return DSVI_FAIL(DSV_E_FORMAT, "the unknown piece has id %d, expected one below %lld, the pieces",
                         vocabulary->unknown, (long long)vocabulary->ids);
    if (vocabulary->count)
        qsort(vocabulary->pieces, (size_t)vocabulary->count, sizeof *vocabulary->pieces, compare_pieces);
    memset(vocabulary->first, 0, sizeof vocabulary->first);
    for (int64_t i = 0; i < vocabulary->count; i++)
        vocabulary->first[(unsigned char)vocabulary->pieces[i].text[0] + 1]++;
    for (int byte = 0; byte < 256; byte++)
        vocabulary->first[byte + 1] += vocabulary->first[byte];
    DSVI_TRY(check_different(vocabulary));
    DSVI_TRY(check_added(vocabulary));
    return find_end_token(vocabulary);
}

/* Returns the first piece of the range whose byte at `depth` is `byte` or higher; the end of a piece counts
 * as lower than any byte. */
static int64_t lower_bound(const DsviVocabulary *vocabulary, DsviPieces range, int byte)
{
    while (range.from < range.to) {
        int64_t middle = range.from + (range.to - range.from) / 2;
        const DsviPiece *piece = &vocabulary->pieces[middle];
        int found = range.depth < piece->bytes ? (unsigned char)piece->text[range.depth] : -1;
        if (found < byte)
            range.from = middle + 1;
        else
            range.to = middle;
    }
    return range.from;
}

void dsvi_pieces_narrow(const DsviVocabulary *vocabulary, unsigned char byte, DsviPieces *pieces)
{
    if (pieces->depth == 0) {
        *pieces = (DsviPieces){vocabulary->first[byte], vocabulary->first[byte + 1], 1};
        return;
    }
    pieces->from = lower_bound(vocabulary, *pieces, byte);
    pieces->to = lower_bound(vocabulary, *pieces, byte + 1);
    pieces->depth++;
}

const DsviPiece *dsvi_vocabulary_find(const DsviVocabulary *vocabulary, const char *text, size_t bytes)
{
    DsviPieces pieces = dsvi_pieces_all(vocabulary);
    for (size_t i = 0; i < bytes && pieces.from < pieces.to; i++)
        dsvi_pieces_narrow(vocabulary, (unsigned char)text[i], &pieces);
    return dsvi_pieces_whole(vocabulary, pieces);
}
