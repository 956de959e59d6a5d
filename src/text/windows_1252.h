/* Bytes 0x80 to 0x9f of windows-1252, which text often has as control characters of these numbers. */
#ifndef DSVI_WINDOWS_1252_H
#define DSVI_WINDOWS_1252_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the character of byte `code`, 0x80 <= code <= 0x9f; `code` itself for the five unused bytes. */
static inline uint32_t dsvi_windows_1252(uint32_t code)
{
    static const uint16_t table[32] = {0x20ac, 0x81,   0x201a, 0x192,  0x201e, 0x2026, 0x2020, 0x2021,
                                       0x2c6,  0x2030, 0x160,  0x2039, 0x152,  0x8d,   0x17d,  0x8f,
                                       0x90,   0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014,
                                       0x2dc,  0x2122, 0x161,  0x203a, 0x153,  0x9d,   0x17e,  0x178};
    return table[code - 0x80];
}

#ifdef __cplusplus
}
#endif
#endif
