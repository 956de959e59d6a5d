/* Implements code_points.h: arrays of code points from and to UTF-8. */
#include "text/code_points.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/utf8.h"

void dsvi_code_points_free(DsviCodePoints *text)
{
    free(text->at);
    *text = (DsviCodePoints){0};
}

bool dsvi_is_space(uint32_t code)
{
    return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
           code == 0x202f || code == 0x205f || code == 0x3000;
}

DsvStatus dsvi_code_points_reserve(DsviCodePoints *text, size_t more)
{
    size_t room = text->count + more;
    if (text->at && room <= text->room)
        return DSV_OK;
    room += room / 2 + 16;
    uint32_t *at = realloc(text->at, room * sizeof *at);
    if (!at)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu characters of a text", room);
    text->at = at;
    text->room = room;
    return DSV_OK;
}

DsvStatus dsvi_code_points_append(DsviCodePoints *text, const uint32_t *codes, size_t count)
{
    DSVI_TRY(dsvi_code_points_reserve(text, count));
    if (count)
        memcpy(text->at + text->count, codes, count * sizeof *codes);
    text->count += count;
    return DSV_OK;
}

DsvStatus dsvi_code_points_read(const char *utf8, size_t bytes, DsviCodePoints *text)
{
    uint32_t code = 0;
    DSVI_TRY(dsvi_code_points_reserve(text, bytes));
    for (size_t done = 0, step; done < bytes; done += step) {
        step = dsvi_utf8_decode(utf8 + done, bytes - done, &code);
        if (step == 0)
            return DSVI_FAIL(DSV_E_FORMAT, "the text is not UTF-8 at byte %zu (0x%02x), expected UTF-8", done,
                             (unsigned char)utf8[done]);
        dsvi_code_points_push(text, code);
    }
    return DSV_OK;
}

DsvStatus dsvi_code_points_write(const DsviCodePoints *text, char **utf8)
{
    size_t done = 0;
    *utf8 = malloc(4 * text->count + 1);
    if (!*utf8)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a text of %zu characters", text->count);
    for (size_t i = 0; i < text->count; i++)
        done += (size_t)utf8proc_encode_char((utf8proc_int32_t)text->at[i], (utf8proc_uint8_t *)*utf8 + done);
    (*utf8)[done] = 0;
    return DSV_OK;
}
