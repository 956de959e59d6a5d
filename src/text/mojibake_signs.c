/* The signs of wrongly decoded text (mojibake.h): sequences of classes of characters, and sequences that look
 * like UTF-8. */
#include <uchar.h>

#include <utf8proc.h>

#include "text/mojibake.h"
#include "text/mojibake_table.h"

/* Further classes. */
enum {
    SMALL_ASCII = 1 << 20,
    LETTER_ASCII = 1 << 21,
    NO_LETTER_ASCII = 1 << 22,
    SPACE = 1 << 23,
    WORD = 1 << 24, /* letters, numbers and the underscore */
    NO_LINE_END = 1 << 25,
    FIRST_A = 1 << 26, /* A with a tilde or circumflex that begins the text */
};

/* Short names for the table below. */
enum {
    COMMON = DSVI_MOJIBAKE_COMMON,
    C1 = DSVI_MOJIBAKE_C1,
    BAD = DSVI_MOJIBAKE_BAD,
    LAW = DSVI_MOJIBAKE_LAW,
    CURRENCY = DSVI_MOJIBAKE_CURRENCY,
    START = DSVI_MOJIBAKE_START,
    END = DSVI_MOJIBAKE_END,
    NUMERIC = DSVI_MOJIBAKE_NUMERIC,
    KAOMOJI = DSVI_MOJIBAKE_KAOMOJI,
    UPPER = DSVI_MOJIBAKE_UPPER,
    LOWER = DSVI_MOJIBAKE_LOWER,
    UPPER_COMMON = DSVI_MOJIBAKE_UPPER_COMMON,
    LOWER_COMMON = DSVI_MOJIBAKE_LOWER_COMMON,
    BOX = DSVI_MOJIBAKE_BOX,
    ACCENTED = LOWER | UPPER,
    PUNCTUATION = START | END,
    SIGNS = BOX | PUNCTUATION | CURRENCY | NUMERIC | LAW,
};

/* One character of a sequence: it has one of the classes or is one of the listed characters. */
typedef struct Place {
    uint32_t classes;
    const char32_t *listed;
} Place;

enum { PLACES_MAX = 7, SEQUENCE_COUNT = 38 };

/* clang-format off */
#define OF(classes) {classes, NULL}
#define IN(listed) {0, listed}
#define EITHER(classes, listed) {classes, listed}
/* clang-format on */

/* The sequences of ftfy's badness. A place without classes and list ends a shorter sequence. */
static const Place SEQUENCES[SEQUENCE_COUNT][PLACES_MAX] = {
    {OF(C1)},
    {OF(BAD | ACCENTED | SIGNS), OF(BAD)},
    {OF(LETTER_ASCII), OF(LOWER_COMMON | UPPER_COMMON), OF(BAD)},
    {OF(BAD), OF(ACCENTED | SIGNS)},
    {OF(LOWER | LOWER_COMMON | BOX | END | CURRENCY | NUMERIC), OF(UPPER)},
    {OF(BOX | END | CURRENCY | NUMERIC), OF(LOWER)},
    {OF(LOWER | BOX | END), OF(CURRENCY)},
    {OF(SPACE), OF(UPPER), OF(CURRENCY)},
    {OF(UPPER | BOX), OF(NUMERIC | LAW)},
    {OF(ACCENTED | BOX | CURRENCY | END), OF(START), OF(NUMERIC)},
    {OF(ACCENTED | CURRENCY | NUMERIC | BOX | LAW), OF(END), OF(START)},
    {OF(CURRENCY | NUMERIC | BOX), OF(START)},
    {OF(SMALL_ASCII), OF(UPPER), OF(START | CURRENCY)},
    {OF(BOX), OF(KAOMOJI)},
    {OF(ACCENTED | CURRENCY | NUMERIC | PUNCTUATION | LAW), OF(BOX)},
    {OF(BOX), OF(END)},
    {OF(ACCENTED), OF(PUNCTUATION), OF(WORD)},
    {IN(U"\u0152\u0153"), OF(NO_LETTER_ASCII)},
    {OF(UPPER), IN(U"\u00b0")},
    {IN(U"\u00c2\u00c3\u00ce\u00d0"),
     EITHER(PUNCTUATION,
            U"\u20ac\u0153\u0160\u0161\u00a2\u00a3\u0178\u017e\u00a0\u00ad\u00ae\u00a9\u00b0\u00b7\u00bb"
            U"\u2013\u2014\u00b4")},
    {IN(U"\u00d7"), IN(U"\u00b2\u00b3")},
    {IN(U"\u00d8\u00d9"),
     EITHER(COMMON | CURRENCY | BAD | NUMERIC | START, U"\u0178\u0160\u00ae\u00b0\u00b5\u00bb"),
     IN(U"\u00d8\u00d9"),
     EITHER(COMMON | CURRENCY | BAD | NUMERIC | START, U"\u0178\u0160\u00ae\u00b0\u00b5\u00bb")},
    {IN(U"\u00e0"), IN(U"\u00b2\u00b5\u00b9\u00bc\u00bd\u00be")},
    {IN(U"\u221a"), IN(U"\u00b1\u2202\u2020\u2260\u00ae\u2122\u00b4\u2264\u2265\u00a5\u00b5\u00f8")},
    {IN(U"\u2248"), IN(U"\u00b0\u00a2")},
    {IN(U"\u201a"), IN(U"\u00c4"),
     IN(U"\u00ec\u00ee\u00ef\u00f2\u00f4\u00fa\u00f9\u00fb\u2020\u00b0\u00a2\u03c0")},
    {IN(U"\u201a"), IN(U"\u00e2\u00f3"), IN(U"\u00e0\u00e4\u00b0\u00ea")},
    {IN(U"\u0432"), IN(U"\u0402")},
    {IN(U"\u0412\u0413\u0420\u0421"), EITHER(C1 | BAD | PUNCTUATION | CURRENCY, U"\u00b0\u00b5"),
     IN(U"\u0412\u0413\u0420\u0421")},
    {IN(U"\u0413"), IN(U"\u045e"), IN(U"\u0412"), IN(U"\u0402"), IN(U"\u0412"), OF(NO_LINE_END),
     EITHER(LETTER_ASCII, U" ")},
    {IN(U"\u00c3"), IN(U"\u00a0\u00a1")},
    {OF(SMALL_ASCII), IN(U"\u00c2\u00c3"), IN(U" ")},
    {OF(SMALL_ASCII), OF(SPACE), IN(U"\u00c2\u00c3"), IN(U" ")},
    {OF(FIRST_A), IN(U" ")},
    {EITHER(SMALL_ASCII | END, U".,?!"), IN(U"\u00c2"), EITHER(PUNCTUATION, U" ")},
    {IN(U"\u03b2"), IN(U"\u20ac"), IN(U"\u2122\u00a0\u0386\u00ad\u00ae\u00b0")},
    {IN(U"\u0392\u0393\u039e\u039f"), EITHER(C1 | BAD | PUNCTUATION | CURRENCY, U"\u00b0"),
     IN(U"\u0392\u0393\u039e\u039f")},
    {IN(U"\u0101"), IN(U"\u20ac")},
};

static uint32_t stored_classes(uint32_t code)
{
    size_t from = 0, to = dsvi_mojibake_run_count;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        const DsviMojibakeRun *run = &dsvi_mojibake_runs[middle];
        if (code >= run->first && code <= run->last)
            return run->classes;
        if (code < run->first)
            to = middle;
        else
            from = middle + 1;
    }
    return 0;
}

static bool is_word(uint32_t code)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return code == '_' || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
           (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

static uint32_t classes_of(const uint32_t *text, size_t at)
{
    uint32_t code = text[at];
    bool small = code >= 'a' && code <= 'z', letter = small || (code >= 'A' && code <= 'Z');
    uint32_t classes = stored_classes(code) | (letter ? LETTER_ASCII : NO_LETTER_ASCII);
    classes |= small ? SMALL_ASCII : 0;
    classes |= dsvi_is_space(code) ? SPACE : 0;
    classes |= code != '\n' ? NO_LINE_END : 0;
    classes |= is_word(code) ? WORD : 0;
    classes |= at == 0 && (code == 0xc2 || code == 0xc3) ? FIRST_A : 0;
    return classes;
}

static bool is_listed(const char32_t *list, uint32_t code)
{
    for (; list && *list; list++)
        if (*list == code)
            return true;
    return false;
}

bool dsvi_mojibake_is_bad(const uint32_t *text, size_t count)
{
    uint32_t classes[PLACES_MAX] = {0};
    for (size_t i = 0; i < PLACES_MAX && i < count; i++)
        classes[i] = classes_of(text, i);
    for (size_t at = 0; at < count; at++) {
        for (int i = 0; i < SEQUENCE_COUNT; i++) {
            size_t length = 0;
            for (const Place *place = SEQUENCES[i];
                 length < PLACES_MAX && at + length < count && (place->classes || place->listed) &&
                 (classes[length] & place->classes || is_listed(place->listed, text[at + length]));
                 place++)
                length++;
            if (length == PLACES_MAX || (!SEQUENCES[i][length].classes && !SEQUENCES[i][length].listed))
                return true;
        }
        for (int i = 1; i < PLACES_MAX; i++)
            classes[i - 1] = classes[i];
        classes[PLACES_MAX - 1] = at + PLACES_MAX < count ? classes_of(text, at + PLACES_MAX) : 0;
    }
    return false;
}

/* Returns the length of one character's UTF-8 from text[at] on; 0 if none begins there. */
static size_t utf8_length(const uint32_t *text, size_t count, size_t at)
{
    for (size_t length = 2; length <= 4; length++) {
        uint32_t first = (uint32_t)DSVI_MOJIBAKE_FIRST_OF_2 << (length - 2);
        bool is_utf8 = at + length <= count && stored_classes(text[at]) & first;
        for (size_t i = 1; is_utf8 && i < length; i++)
            is_utf8 = stored_classes(text[at + i]) & DSVI_MOJIBAKE_FOLLOWING;
        if (is_utf8)
            return length;
    }
    return 0;
}

size_t dsvi_mojibake_span(const uint32_t *text, size_t count, size_t at)
{
    size_t end = at, length;
    if (at > 0 && stored_classes(text[at - 1]) & DSVI_MOJIBAKE_FOLLOWING_STRICT)
        return 0;
    while ((length = utf8_length(text, count, end)) > 0)
        end += length;
    return end - at;
}
