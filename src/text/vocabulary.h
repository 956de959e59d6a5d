/* The pieces of a unigram tokenizer: found by their text, each with a score. */
#ifndef DSVI_VOCABULARY_H
#define DSVI_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviPiece {
    const char *text; /* in the vocabulary's memory; no terminating zero */
    uint64_t prefix;  /* its first eight bytes as a number, the first byte highest; zeros after its end */
    uint32_t bytes;
    int32_t id;
    double score; /* logarithm of the piece's probability */
} DsviPiece;

/* A text that always becomes one id, such as </s>: it is cut out before the rest is tokenized. */
typedef struct DsviAddedToken {
    char *text; /* owned */
    size_t bytes;
    int32_t id;
    bool left, right; /* whether it takes the white space before and after it */
} DsviAddedToken;

/* When a mark of white space is put before a text between added tokens. */
typedef enum DsviPrefix { DSVI_PREFIX_ALWAYS, DSVI_PREFIX_FIRST, DSVI_PREFIX_NEVER } DsviPrefix;

typedef struct DsviVocabulary {
    char *memory;      /* texts of pieces, owned */
    DsviPiece *pieces; /* after dsvi_vocabulary_finish: in the order of their bytes */
    int64_t count, room;
    int64_t ids;        /* pieces that were added, also those that match nothing */
    int64_t first[257]; /* pieces [first[b], first[b + 1]) begin with byte b */
    double score_min;   /* the lowest score */
    int32_t unknown, end;
    DsviAddedToken *added;
    int64_t added_count;
    bool added_begin[256]; /* whether an added token begins with this byte */
    DsviPrefix prefix;
    bool split_words; /* white space is removed and each word tokenized alone, instead of becoming marks */
} DsviVocabulary;

void dsvi_vocabulary_free(DsviVocabulary *vocabulary);

/* Adds the next piece, whose id is the number of pieces before it. A piece that is empty or contains a zero
 * byte takes an id and matches nothing. DSV_E_FORMAT if the text is not UTF-8 or the score not finite. */
DsvStatus dsvi_vocabulary_add_piece(DsviVocabulary *vocabulary, const char *text, size_t bytes, double score);
/* Adds an added token; copies the text. */
DsvStatus dsvi_vocabulary_add_token(DsviVocabulary *vocabulary, const DsviAddedToken *token);
/* Sorts the pieces. DSV_E_FORMAT if two are equal, if `unknown` is not the id of a piece, if an added token
 * has another id than the piece of its text, or if there is no end token </s>. Call after all additions. */
DsvStatus dsvi_vocabulary_finish(DsviVocabulary *vocabulary);

/* The pieces that begin with the bytes that were passed to dsvi_pieces_narrow so far. */
typedef struct DsviPieces {
    int64_t from, to;
    uint32_t depth; /* number of these bytes */
} DsviPieces;

static inline DsviPieces dsvi_pieces_all(const DsviVocabulary *vocabulary)
{
    return (DsviPieces){0, vocabulary->count, 0};
}
/* Keeps the pieces that have `byte` as next byte. */
void dsvi_pieces_narrow(const DsviVocabulary *vocabulary, unsigned char byte, DsviPieces *pieces);
/* Returns the piece that consists of these bytes only, or NULL. */
static inline const DsviPiece *dsvi_pieces_whole(const DsviVocabulary *vocabulary, DsviPieces pieces)
{
    const DsviPiece *first = vocabulary->pieces + pieces.from;
    return pieces.from < pieces.to && first->bytes == pieces.depth ? first : NULL;
}
/* Returns the piece of this text, or NULL. */
const DsviPiece *dsvi_vocabulary_find(const DsviVocabulary *vocabulary, const char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
