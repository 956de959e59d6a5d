/* See utf8.h. */
#include "base/utf8.h"

size_t dsvi_utf8_decode(const char *text, size_t room, uint32_t *code)
{
    /* smallest[n] is the smallest code whose UTF-8 form has n bytes. */
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *byte = (const unsigned char *)text;
    if (room == 0)
        return 0;
    if (byte[0] < 0x80) {
        *code = byte[0];
        return 1;
    }
    size_t bytes = byte[0] >= 0xf0 ? 4 : byte[0] >= 0xe0 ? 3 : 2;
    if (byte[0] < 0xc0 || byte[0] > 0xf7 || bytes > room)
        return 0;
    uint32_t sum = byte[0] & (0xffu >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) {
        if ((byte[i] & 0xc0) != 0x80)
            return 0;
        sum = sum << 6 | (byte[i] & 0x3fu);
    }
    if (sum < smallest[bytes] || sum > 0x10ffff || (sum >= 0xd800 && sum < 0xe000))
        return 0;
    *code = sum;
    return bytes;
}

bool dsvi_utf8_valid(const char *text, size_t bytes)
{
    uint32_t code;
    for (size_t done = 0, step; done < bytes; done += step) {
        step = dsvi_utf8_decode(text + done, bytes - done, &code);
        if (step == 0)
            return false;
    }
    return true;
}
