/* Implements unigram.h. */
#include "text/unigram.h"

#include "base/utf8.h"

static const double UNKNOWN_PENALTY = 10;

static void reach(DsviUnigramNode *nodes, int32_t from, int32_t to, double score, int32_t id)
{
    double sum = nodes[from].score + score;
    if (nodes[to].from < 0 || sum > nodes[to].score) {
        nodes[to].score = sum;
        nodes[to].from = from;
        nodes[to].id = id;
    }
}

void dsvi_unigram_divide(const DsviVocabulary *vocabulary, const char *word, int32_t bytes,
                         DsviUnigramNode *nodes)
{
    double unknown_score = vocabulary->score_min - UNKNOWN_PENALTY;
    for (int32_t i = 0; i <= bytes; i++)
        nodes[i] = (DsviUnigramNode){.from = -1};
    for (int32_t at = 0, step; at < bytes; at += step) {
        uint32_t code;
        bool is_piece = false;
        DsviPieces pieces = dsvi_pieces_all(vocabulary);
        step = (int32_t)dsvi_utf8_decode(word + at, (size_t)(bytes - at), &code);
        for (int32_t end = at; end < bytes && pieces.from < pieces.to;) {
            dsvi_pieces_narrow(vocabulary, (unsigned char)word[end++], &pieces);
            const DsviPiece *piece = dsvi_pieces_whole(vocabulary, pieces);
            if (piece)
                reach(nodes, at, end, piece->score, piece->id);
            is_piece = is_piece || (piece && end == at + step);
        }
        if (!is_piece)
            reach(nodes, at, at + step, unknown_score, vocabulary->unknown);
    }
    for (int32_t end = bytes; end > 0; end = nodes[end].from)
        nodes[nodes[end].from].to = end;
}
