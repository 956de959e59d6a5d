/* Divides a word into pieces of a vocabulary so that the sum of their scores is highest (Viterbi). */
#ifndef DSVI_UNIGRAM_H
#define DSVI_UNIGRAM_H

#include "text/vocabulary.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The best division of the bytes before a position. */
typedef struct DsviUnigramNode {
    double score;
    int32_t from; /* position where the last piece begins; -1: not reached yet */
    int32_t to;   /* position where the next piece ends; set along the best division only */
    int32_t id;   /* of the last piece */
} DsviUnigramNode;

/* Computes the best division of `word`, UTF-8 of `bytes` >= 1 bytes, into nodes (bytes + 1): its pieces end
 * at nodes[0].to, nodes[nodes[0].to].to, ..., bytes, and nodes[end].id is the id of the piece that ends
 * there.
 *
 * A character that is no piece has the unknown id and the lowest score minus 10. Scores are added in double
 * from left to right, and of equal sums the one found first is kept, the piece that begins first: sums in
 * another order or precision give other ids for texts such as "!!!!!", whose divisions have nearly equal
 * sums. */
void dsvi_unigram_divide(const DsviVocabulary *vocabulary, const char *word, int32_t bytes,
                         DsviUnigramNode *nodes);

#ifdef __cplusplus
}
#endif
#endif
