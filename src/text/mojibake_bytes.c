/* Implements mojibake_bytes.h: the byte expressions of ftfy's module chardata. */
#include "text/mojibake_bytes.h"

#include <stdbool.h>
#include <string.h>

enum { LOST = 0x1a };

static bool follows(unsigned char byte)
{
    return byte >= 0x80 && byte <= 0xbf;
}

/* Bytes that may stand next to a space for 0xa0 in a sequence of three. */
static bool follows_in_3(unsigned char byte)
{
    return follows(byte) && byte != 0x85 && byte != 0xa0;
}

/* Returns the length of a sequence of UTF-8 in which one byte 0xa0 has become a space; 0 if none begins. */
static size_t altered_length(const unsigned char *at, size_t room)
{
    if (room >= 2 && at[0] && strchr("\xc2\xc3\xc5\xce\xd0\xd9", at[0]) && at[1] == ' ')
        return 2;
    if (room >= 3 && at[0] >= 0xe0 && at[0] <= 0xe3 &&
        ((at[0] >= 0xe2 && at[1] == ' ' && follows_in_3(at[2])) || (follows_in_3(at[1]) && at[2] == ' ')))
        return 3;
    if (room < 4 || at[0] != 0xf0)
        return 0;
    int spaces = 0, rest = 0;
    for (int i = 1; i < 4; i++) {
        spaces += at[i] == ' ';
        rest += follows(at[i]);
    }
    return spaces == 1 && rest == 2 ? 4 : 0;
}

/* Returns whether the bytes are an A with a tilde and a space that stand for the word "a" with a grave
 * accent, and not for the beginning of one of four Portuguese words. */
static bool is_a_grave(const unsigned char *at, size_t room)
{
    static const char *const words[] = {" ", "quele", "quela", "quilo", "s "};
    if (room < 2 || at[0] != 0xc3 || at[1] != ' ')
        return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i]);
        if (room - 2 >= length && memcmp(at + 2, words[i], length) == 0)
            return false;
    }
    return true;
}

/* Moves the bytes to the end of their memory, so that a longer text can be written to its beginning. Returns
 * where they are. */
static const unsigned char *move_to_end(unsigned char *bytes, size_t count, size_t room)
{
    memmove(bytes + room - count, bytes, count);
    return bytes + room - count;
}

size_t dsvi_bytes_restore_a0(unsigned char *bytes, size_t count)
{
    bool altered = false;
    size_t done = 0;
    for (size_t i = 0; i < count && !altered; i++)
        altered = altered_length(bytes + i, count - i) > 0;
    if (!altered)
        return count;
    const unsigned char *from = move_to_end(bytes, count, 2 * count);
    for (size_t i = 0; i < count; i++) {
        bytes[done++] = from[i];
        if (is_a_grave(from + i, count - i))
            bytes[done++] = 0xa0;
    }
    for (size_t i = 0, length; i < done; i += length ? length : 1) {
        length = altered_length(bytes + i, done - i);
        for (size_t j = i; j < i + length; j++)
            if (bytes[j] == ' ')
                bytes[j] = 0xa0;
    }
    return done;
}

/* Returns the length of a sequence of UTF-8 with lost bytes; 0 if none begins. */
static size_t lossy_length(const unsigned char *at, size_t room)
{
    unsigned char first = at[0];
    size_t length = first >= 0xe0 && first <= 0xef ? 3 : first >= 0xf0 && first <= 0xf4 ? 4 : 0;
    int lost = 0, marks = 0;
    if (first == LOST)
        return 1;
    if (room >= 2 && first >= 0xc2 && first <= 0xdf && (at[1] == LOST || (first <= 0xc3 && at[1] == '?')))
        return 2;
    if (room >= 6 && first == 0xed && at[1] >= 0xa0 && at[1] <= 0xaf && at[3] == 0xed && at[4] >= 0xb0 &&
        at[4] <= 0xbf) {
        bool lost_2 = at[2] == LOST || at[2] == '?', lost_5 = at[5] == LOST || at[5] == '?';
        if ((lost_2 || lost_5) && (lost_2 || follows(at[2])) && (lost_5 || follows(at[5])))
            return 6;
    }
    if (length == 0 || room < length)
        return 0;
    for (size_t i = 1; i < length; i++) {
        lost += at[i] == LOST || at[i] == '?';
        marks += at[i] == '?';
        if (at[i] != LOST && at[i] != '?' && !follows(at[i]))
            return 0;
    }
    return lost > 0 && marks <= 1 ? length : 0;
}

size_t dsvi_bytes_replace_lossy(unsigned char *bytes, size_t count)
{
    size_t done = 0;
    const unsigned char *from = move_to_end(bytes, count, 3 * count);
    for (size_t i = 0, length; i < count; i += length ? length : 1) {
        length = lossy_length(from + i, count - i);
        if (length) {
            memcpy(bytes + done, "\xef\xbf\xbd", 3);
            done += 3;
        } else {
            bytes[done++] = from[i];
        }
    }
    return done;
}

size_t dsvi_bytes_variant(const unsigned char *bytes, size_t room, uint32_t *code)
{
    if (room >= 2 && bytes[0] == 0xc0 && bytes[1] == 0x80) {
        *code = 0;
        return 2;
    }
    if (room < 6 || bytes[0] != 0xed || (bytes[1] & 0xf0) != 0xa0 || !follows(bytes[2]) || bytes[3] != 0xed ||
        (bytes[4] & 0xf0) != 0xb0 || !follows(bytes[5]))
        return 0;
    *code = 0x10000 + ((bytes[1] & 0xfu) << 16 | (bytes[2] & 0x3fu) << 10 | (bytes[4] & 0xfu) << 6 |
                       (bytes[5] & 0x3fu));
    return 6;
}
