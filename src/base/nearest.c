/* See nearest.h, and dsv_nearest in dsv/config.h. */
#include "base/nearest.h"

#include <stdint.h>
#include <string.h>

#include "dsv/config.h"

enum { COMPARED_MAX = 64 };

static size_t smaller_distance(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Computes Levenshtein's table of edit distances by dynamic programming, where a swap of two neighbouring
   letters counts as one edit. Only the last three rows of the table are needed. */
size_t dsvi_edit_distance(const char *a, const char *b)
{
    size_t row[3][COMPARED_MAX + 1];
    size_t width = strnlen(b, COMPARED_MAX), height = strnlen(a, COMPARED_MAX);
    for (size_t j = 0; j <= width; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= height; i++) {
        size_t *now = row[i % 3], *above = row[(i + 2) % 3], *two_above = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= width; j++) {
            now[j] = above[j - 1] + (a[i - 1] != b[j - 1]);
            now[j] = smaller_distance(now[j], smaller_distance(above[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = smaller_distance(now[j], two_above[j - 2] + 1);
        }
    }
    return row[height % 3][width];
}

bool dsvi_is_typo(size_t distance, const char *word)
{
    return distance <= (strlen(word) + 1) / 3;
}

const char *dsv_nearest(const char *word, const char *(*name_at)(const void *context, size_t index),
                        const void *context)
{
    const char *name, *nearest = NULL;
    size_t smallest = SIZE_MAX;
    for (size_t i = 0; (name = name_at(context, i)); i++) {
        size_t distance = dsvi_edit_distance(word, name);
        if (distance < smallest && dsvi_is_typo(distance, word)) {
            smallest = distance;
            nearest = name;
        }
    }
    return nearest;
}
