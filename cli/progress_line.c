/* See progress_line.h. Uses neither clock nor terminal, so that tests can check the text. */
#include "progress_line.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PIECES_MAX = 12, PIECE_BYTES = 64, GAP = 2 };

typedef struct Piece {
    char text[PIECE_BYTES];
    int weight; /* how important the piece is: the least important are left out first; 0: already left out */
} Piece;

typedef struct Pieces {
    Piece piece[PIECES_MAX];
    int count;
} Pieces;

__attribute__((format(printf, 3, 4))) static void add_line_piece(Pieces *pieces, int weight,
                                                                 const char *format, ...)
{
    Piece *piece = &pieces->piece[pieces->count++];
    va_list list;
    va_start(list, format);
    vsnprintf(piece->text, sizeof piece->text, format, list);
    va_end(list);
    piece->weight = weight;
}

void cli_duration(double seconds, char text[CLI_DURATION_BYTES])
{
    int64_t s = seconds > 0 && seconds < 1e12 ? (int64_t)(seconds + 0.5) : 0;
    int64_t minutes = s / 60, hours = minutes / 60, days = hours / 24;
    if (days >= 2)
        snprintf(text, CLI_DURATION_BYTES, "%" PRId64 "d %02" PRId64 "h", days, hours % 24);
    else if (hours > 0)
        snprintf(text, CLI_DURATION_BYTES, "%" PRId64 ":%02" PRId64 ":%02" PRId64, hours, minutes % 60,
                 s % 60);
    else
        snprintf(text, CLI_DURATION_BYTES, "%" PRId64 ":%02" PRId64, minutes, s % 60);
}

static void add_loss(Pieces *pieces, double loss)
{
    bool plain = fabs(loss) < 1000 && (fabs(loss) >= 0.001 || loss == 0);
    add_line_piece(pieces, 90, plain ? "loss %.4f" : "loss %.2e", loss);
}

static void add_step_time(Pieces *pieces, double ms)
{
    if (ms < 99.95)
        add_line_piece(pieces, 60, "%4.1f ms", ms);
    else if (ms < 9999.5)
        add_line_piece(pieces, 60, "%4.0f ms", ms);
    else
        add_line_piece(pieces, 60, "%5.1f s", 1e-3 * ms);
}

static void add_rate(Pieces *pieces, double tokens_per_s)
{
    if (tokens_per_s < 9999.5)
        add_line_piece(pieces, 40, "%5.0f tok/s", tokens_per_s);
    else if (tokens_per_s < 999950)
        add_line_piece(pieces, 40, "%.1fk tok/s", 1e-3 * tokens_per_s);
    else
        add_line_piece(pieces, 40, "%.2fM tok/s", 1e-6 * tokens_per_s);
}

static void add_sparsity(Pieces *pieces, const DsvProgress *p)
{
    if (p->dense_finish) {
        add_line_piece(pieces, 70, "dense finish");
        return;
    }
    add_line_piece(pieces, 70, "sparse %" PRId64 "/%" PRId64, p->sparse_blocks, p->blocks);
    add_line_piece(pieces, 50, "density %.2f", p->density);
    if (p->output_error > 0) /* with a tail captured mass says little */
        add_line_piece(pieces, 65, "error %.2f", p->output_error);
    else if (isnan(p->output_error))
        add_line_piece(pieces, 65, "error   --");
    else if (isnan(p->captured_mass))
        add_line_piece(pieces, 65, "mass   --");
    else
        add_line_piece(pieces, 65, "mass %.2f", p->captured_mass);
}

static void add_memory(Pieces *pieces, uint64_t bytes)
{
    const double mib = 1048576.0;
    double size = (double)bytes / mib;
    if (size < 9999.5)
        add_line_piece(pieces, 30, "%4.0f MiB", size);
    else
        add_line_piece(pieces, 30, "%.1f GiB", size / 1024);
}

/* Collects the pieces of text of the progress line in the order in which they are shown. */
static void collect_pieces(const DsvProgress *p, Pieces *pieces)
{
    char total[24], left[CLI_DURATION_BYTES];
    int digits = snprintf(total, sizeof total, "%" PRId64, p->total);
    add_line_piece(pieces, 100, "%s %*" PRId64 "/%s", p->unit, digits, p->done, total);
    bool trains = p->tokens_per_s > 0 || p->loss != 0; /* encoding has a step time alone */
    if (p->step_ms > 0 && trains) {
        add_loss(pieces, p->loss);
        add_step_time(pieces, p->step_ms);
        add_rate(pieces, p->tokens_per_s);
    } else if (p->step_ms > 0) {
        add_step_time(pieces, p->step_ms);
    }
    if (p->peak_share > 0)
        add_line_piece(pieces, 20, "%2.0f%% of peak", 100 * p->peak_share);
    if (p->blocks > 0)
        add_sparsity(pieces, p);
    if (p->memory_bytes > 0)
        add_memory(pieces, p->memory_bytes);
    if (p->done < p->total && p->seconds_left >= 0) {
        cli_duration(p->seconds_left, left);
        add_line_piece(pieces, 80, "%s left", left);
    }
}

static size_t line_columns(const Pieces *pieces)
{
    size_t sum = 0;
    for (int i = 0; i < pieces->count; i++)
        if (pieces->piece[i].weight > 0)
            sum += strlen(pieces->piece[i].text) + GAP;
    return sum > 0 ? sum - GAP : 0;
}

static void drop_lightest(Pieces *pieces)
{
    Piece *lightest = NULL;
    for (int i = 0; i < pieces->count; i++) {
        Piece *piece = &pieces->piece[i];
        if (piece->weight > 0 && (!lightest || piece->weight < lightest->weight))
            lightest = piece;
    }
    lightest->weight = 0;
}

void cli_progress_line(const DsvProgress *progress, size_t width, char line[CLI_LINE_BYTES])
{
    Pieces pieces = {.count = 0};
    size_t used = 0, limit = width < CLI_LINE_BYTES ? width : CLI_LINE_BYTES - 1;
    collect_pieces(progress, &pieces);
    while (line_columns(&pieces) > limit)
        drop_lightest(&pieces);
    line[0] = 0;
    for (int i = 0; i < pieces.count; i++)
        if (pieces.piece[i].weight > 0)
            used += (size_t)snprintf(line + used, CLI_LINE_BYTES - used, "%*s%s", used ? GAP : 0, "",
                                     pieces.piece[i].text);
}
