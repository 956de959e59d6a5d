/* Numbers and characters as text. */
#include <float.h>
#include <locale.h>

#include "base/number_text.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "test.h"

static void assert_reads_back(double value)
{
    char text[DSVI_NUMBER_BYTES];
    double back;
    dsvi_number_text(value, text);
    if (!dsvi_number_read(text, &back) || memcmp(&back, &value, sizeof value) != 0)
        fail_msg("%a became %s", value, text);
}

static void numbers_read_back_to_the_bit(void **state)
{
    static const double chosen[] = {0,       -0.0,      1,      0.1,    1e-4, 1.0 / 3,       5e-324,
                                    DBL_MAX, DBL_MIN,   -1e300, 1e22,   1e23, 0x1.fffffep-1, 123456789,
                                    0.3,     0.1 + 0.2, 0x1p53, 2.5e-8, 1e15};
    (void)state;
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++)
        assert_reads_back(chosen[i]);
    for (uint64_t i = 0; i < 20000; i++) { /* random bits */
        uint32_t words[4];
        double value;
        dsvi_rng_words((DsviRng){.purpose = DSVI_RNG_TEST}, i, words);
        memcpy(&value, words, sizeof value);
        if (isfinite(value))
            assert_reads_back(value);
    }
}

static void numbers_are_written_short(void **state)
{
    static const struct {
        double value;
        const char *text;
    } want[] = {{0.1, "0.1"},    {1e-4, "0.0001"}, {3, "3"},
                {1e-8, "1e-08"}, {NAN, "null"},    {-INFINITY, "null"}};
    char text[DSVI_NUMBER_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        dsvi_number_text(want[i].value, text);
        assert_string_equal(text, want[i].text);
    }
}

static void what_is_no_number(void **state)
{
    static const char *const text[] = {"",     " 1",  "1 ",  "+",    "-",    ".",   "e5",   "1e",  "1e+",
                                       "1..2", "--1", "0x1", "0x1p", "inf",  "nan", "NaN",  "1,5", "1e999",
                                       "1_0",  "1f",  "٣",   "-.",   "1e5.", "1-",  "1e--1"};
    double value;
    (void)state;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (dsvi_number_read(text[i], &value))
            fail_msg("'%s' was read as %g", text[i], value);
    assert_true(dsvi_number_read("+.5e1", &value) && value == 5);
    assert_true(dsvi_number_read("1e-999", &value) && value == 0);
}

static void whole_numbers(void **state)
{
    static const double refused[] = {-1, 0.5, 0x1p53, 9e33, INFINITY, -INFINITY, NAN};
    int64_t whole = 7;
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (dsvi_number_to_whole(refused[i], &whole) || whole != 0)
            fail_msg("%g was taken as %lld", refused[i], (long long)whole);
    assert_true(dsvi_number_to_whole(0, &whole) && whole == 0);
    assert_true(dsvi_number_to_whole(0x1p53 - 1, &whole) && whole == (INT64_C(1) << 53) - 1);
}

/* Options are written and read with a decimal point even if the locale uses a comma. */
static void numbers_do_not_mind_the_locale(void **state)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8"};
    char text[DSVI_NUMBER_BYTES];
    double value;
    (void)state;
    const char *chosen = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !chosen; i++)
        chosen = setlocale(LC_NUMERIC, names[i]);
    if (!chosen) /* none of these locales is installed */
        skip();
    dsvi_number_text(0.5, text);
    assert_string_equal(text, "0.5");
    assert_true(dsvi_number_read("0.5", &value) && value == 0.5);
    assert_false(dsvi_number_read("0,5", &value));
    setlocale(LC_NUMERIC, "C");
}

/* UTF-8 by the definition of RFC 3629, section 3. */
static size_t encode(uint32_t code, char text[4])
{
    if (code < 0x80) {
        text[0] = (char)code;
        return 1;
    }
    size_t bytes = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = bytes - 1; i > 0; i--, code >>= 6)
        text[i] = (char)(0x80 | (code & 0x3f));
    text[0] = (char)((0xf00 >> bytes) | code);
    return bytes;
}

static void every_character_is_decoded(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x120000; code++) {
        char text[4];
        uint32_t back = 0;
        bool character = code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
        size_t bytes = encode(code, text);
        size_t got = dsvi_utf8_decode(text, bytes, &back);
        if (got != (character ? bytes : 0) || (character && back != code))
            fail_msg("U+%04X", (unsigned)code);
        for (size_t cut = 0; cut < bytes; cut++)
            assert_int_equal(dsvi_utf8_decode(text, cut, &back), 0);
    }
}

static void what_is_no_utf8(void **state)
{
    static const char *const text[] = {"\x80",
                                       "\xbf",
                                       "\xc0\x80",
                                       "\xc1\xbf",
                                       "\xe0\x80\x80",
                                       "\xe0\x9f\xbf",
                                       "\xf0\x80\x80\x80",
                                       "\xf0\x8f\xbf\xbf",
                                       "\xf8\x88\x80\x80\x80",
                                       "\xfe",
                                       "\xff",
                                       "a\xc3",
                                       "\xc3(",
                                       "\xed\xa0\x80",
                                       "\xe2\x82",
                                       "ok \xf4\x90\x80\x80"};
    (void)state;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (dsvi_utf8_valid(text[i], strlen(text[i])))
            fail_msg("case %zu is valid", i);
    assert_true(dsvi_utf8_valid("", 0));
    assert_true(dsvi_utf8_valid("a\0é漢😀", sizeof "a\0é漢😀"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_read_back_to_the_bit),
        cmocka_unit_test(numbers_are_written_short),
        cmocka_unit_test(what_is_no_number),
        cmocka_unit_test(whole_numbers),
        cmocka_unit_test(numbers_do_not_mind_the_locale),
        cmocka_unit_test(every_character_is_decoded),
        cmocka_unit_test(what_is_no_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
