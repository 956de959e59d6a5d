/* Characters that wrongly decoded text consists of, and the encodings with which text is wrongly decoded. */
#ifndef DSVI_MOJIBAKE_TABLE_H
#define DSVI_MOJIBAKE_TABLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Classes of ftfy's module badness, and of its expressions for UTF-8 that was decoded with a single-byte
 * encoding. A character may be in several. */
enum {
    DSVI_MOJIBAKE_COMMON = 1 << 0,
    DSVI_MOJIBAKE_C1 = 1 << 1,
    DSVI_MOJIBAKE_BAD = 1 << 2,
    DSVI_MOJIBAKE_LAW = 1 << 3,
    DSVI_MOJIBAKE_CURRENCY = 1 << 4,
    DSVI_MOJIBAKE_START = 1 << 5, /* punctuation that opens */
    DSVI_MOJIBAKE_END = 1 << 6,   /* punctuation that closes */
    DSVI_MOJIBAKE_NUMERIC = 1 << 7,
    DSVI_MOJIBAKE_KAOMOJI = 1 << 8,
    DSVI_MOJIBAKE_UPPER = 1 << 9,  /* accented capital letters */
    DSVI_MOJIBAKE_LOWER = 1 << 10, /* accented small letters */
    DSVI_MOJIBAKE_UPPER_COMMON = 1 << 11,
    DSVI_MOJIBAKE_LOWER_COMMON = 1 << 12,
    DSVI_MOJIBAKE_BOX = 1 << 13,
    DSVI_MOJIBAKE_FIRST_OF_2 = 1 << 14, /* what the first byte of two in UTF-8 becomes */
    DSVI_MOJIBAKE_FIRST_OF_3 = 1 << 15,
    DSVI_MOJIBAKE_FIRST_OF_4 = 1 << 16,
    DSVI_MOJIBAKE_FOLLOWING = 1 << 17, /* what a later byte becomes, or a space */
    DSVI_MOJIBAKE_FOLLOWING_STRICT = 1 << 18,
};

/* The characters from `first` to `last` have the classes `classes`. */
typedef struct DsviMojibakeRun {
    uint16_t first, last;
    uint32_t classes;
} DsviMojibakeRun;

extern const DsviMojibakeRun dsvi_mojibake_runs[]; /* ascending */
extern const size_t dsvi_mojibake_run_count;

/* Characters of the bytes 0x80 to 0xff; an unused byte stands for the character of its number. Latin-1, which
 * precedes these encodings, needs no table. The order is that in which ftfy tries them. */
enum {
    DSVI_CHARMAP_SLOPPY = 6, /* the first six are encodings of Windows, in which byte 0x1a is U+FFFD */
    DSVI_CHARMAP_MACROMAN = 7,
    DSVI_CHARMAP_COUNT = 9
};
extern const uint16_t dsvi_charmaps[DSVI_CHARMAP_COUNT][128];

#ifdef __cplusplus
}
#endif
#endif
