/* See text.h. */
#include "text.h"

#include <stdbool.h>
#include <string.h>

/* Returns the length of the UTF-8 character at `at` if it can be printed unchanged; 0 for control characters
 * and bytes that are not UTF-8. Overlong forms are not detected, because no terminal acts on them. */
static size_t printable_bytes(const unsigned char *at)
{
    if (at[0] < 0x80)
        return at[0] >= ' ' && at[0] != 0x7f;
    size_t length = at[0] >= 0xf8 ? 0 : at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : at[0] >= 0xc2 ? 2 : 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    bool second_control_set = at[0] == 0xc2 && length == 2 && at[1] < 0xa0; /* U+0080 to U+009F */
    return second_control_set ? 0 : length;
}

/* Writes the first `bytes` bytes of the text to `to`, unless `to` is NULL. Returns their columns. */
static size_t put_bytes(FILE *to, const char *text, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
    size_t columns = 0;
    while (at < end) {
        size_t length = printable_bytes(at);
        if (to && length > 0)
            fwrite(at, 1, length, to);
        else if (to)
            fprintf(to, "\\x%02x", *at);
        columns += length > 0 ? 1 : 4;
        at += length > 0 ? length : 1;
    }
    return columns;
}

void cli_put_text(FILE *to, const char *text)
{
    put_bytes(to, text, strlen(text));
}

/* Returns the bytes of as many words of `text` as fit into `room` columns, at least of one word. */
static size_t line_bytes(const char *text, size_t room)
{
    size_t taken = 0, end = 0;
    do {
        end += strspn(text + end, " ");
        end += strcspn(text + end, " ");
        if (taken > 0 && put_bytes(NULL, text, end) > room)
            break;
        taken = end;
    } while (text[end]);
    return taken;
}

void cli_put_wrapped(FILE *to, const char *text, size_t column, size_t indent, size_t width)
{
    for (;;) {
        size_t bytes = line_bytes(text, width > column ? width - column : 0);
        put_bytes(to, text, bytes);
        text += bytes;
        if (!text[strspn(text, " ")])
            return;
        text += strspn(text, " ");
        fprintf(to, "\n%*s", (int)indent, "");
        column = indent;
    }
}
