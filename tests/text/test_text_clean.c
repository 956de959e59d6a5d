/* Cleaning of prompts: each rule alone, and texts that must be refused. tests/text/test_tokenizer.c compares
 * many texts with ftfy. */
#include "text/text_clean.h"
#include "test.h"

static void assert_clean(const char *text, const char *expected)
{
    char *clean;
    assert_ok(dsvi_text_clean(text, &clean));
    if (strcmp(clean, expected) != 0)
        fail_msg("'%s' became '%s', expected '%s'", text, clean, expected);
    free(clean);
}

static void test_space(void **state)
{
    (void)state;
    assert_clean("", "");
    assert_clean(" \t\n\v\f\r\xc2\xa0\xe3\x80\x80", "");
    assert_clean("  two   words\nand\r\nmore\xe2\x80\x83", "two words and more");
    assert_clean("a\xe2\x80\x8b b", "a\xe2\x80\x8b b"); /* U+200B is no white space */
}

static void test_characters(void **state)
{
    (void)state;
    assert_clean("\xef\xbc\xa1\xef\xbc\x81\xef\xbf\xa3", "A! \xcc\x84");
    assert_clean("\xe2\x80\x9cit\xe2\x80\x99s\xe2\x80\x9d", "\"it's\"");
    assert_clean("\xef\xac\x81ne \xc5\x89", "fine 'n");
    assert_clean("\xc2\x85\xc2\x80", "\xe2\x80\xa6\xe2\x82\xac"); /* C1 controls of windows-1252 */
    assert_clean("a\x01\x7f\xef\xbb\xbf"
                 "b\xe2\x81\xaf",
                 "ab");
    assert_clean("\x1b[1;31mred\x1b[0m \x1b[ x", "red [ x");
}

static void test_composition(void **state)
{
    (void)state;
    assert_clean("cafe\xcc\x81", "caf\xc3\xa9");
    assert_clean("\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"); /* Hangul */
    assert_clean("a\xcc\x81\xcc\xa3", "\xe1\xba\xa1\xcc\x81");            /* marks are sorted */
    assert_clean("\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc");             /* a form that NFC never makes */
    assert_clean("\xe2\x84\xab", "\xc3\x85");                             /* the Angstrom sign is a letter */
}

static void test_entities(void **state)
{
    (void)state;
    assert_clean("&lt;b&gt; &amp;amp;amp; x", "<b> & x");
    assert_clean("&EACUTE;&SZLIG;&FFILIG;", "\xc3\x89SSFFI");
    assert_clean("&notit; &ampx &nosuch; &;", "\xc2\xacit; &x &nosuch; &;");
    assert_clean("&#65;&#x42;&#67 &#0;&#128;&#1;&#xd800;&#1114112;&#99999999999;",
                 "ABC \xef\xbf\xbd\xe2\x82\xac\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    assert_clean("&CounterClockwiseContourIntegral; &nvlt;", "\xe2\x88\xb3 <\xe2\x83\x92");
}

/* ftfy replaces entities until none is left, but not after a '<'; html.unescape then goes two levels deep. */
static void test_markup_keeps_entities(void **state)
{
    (void)state;
    assert_clean("&amp;amp;amp;amp;", "&");
    assert_clean("< &amp;amp;amp;amp;", "< &amp;amp;");
    assert_clean("&EACUTE; <", "&EACUTE; <");
    assert_clean("<\n&amp;amp;amp;", "< &amp;");
    assert_clean("&amp;amp;amp;\n<", "& <");
    assert_clean("&amp;amp;amp;\xe2\x80\xa8<", "& <"); /* two lines only after the line end was replaced */
}

/* Text that was decoded with the wrong encoding: once, twice, in a part of a text, with lost bytes. */
static void test_mojibake(void **state)
{
    (void)state;
    assert_clean("caf\xc3\x83\xc2\xa9", "caf\xc3\xa9");
    assert_clean("caf\xc3\x83\xc6\x92\xc3\x82\xc2\xa9", "caf\xc3\xa9");
    assert_clean("\xc3\xa2\xe2\x82\xac\xc5\x93x\xc3\xa2\xe2\x82\xac\xc2\x9d", "\"x\"");
    assert_clean("\xe5\xb1\xb1 \xc3\x87\xc2\xa6", "\xe5\xb1\xb1 \xc7\xa6");
    assert_clean("voil\xc3\x83 le travail", "voil\xc3\xa0 le travail"); /* a space for U+00A0 */
    assert_clean("\xc3\xa2\xe2\x82\xac\xef\xbf\xbd", "\xef\xbf\xbd");
    assert_clean("\xc3\xad\xc2\xa0\xc2\xbd\xc3\xad\xc2\xb8\xc2\x80 x", "\xf0\x9f\x98\x80 x"); /* surrogates */
    assert_clean("\xd0\x90\xd0\xbd\xd0\xbd\xd0\xb0 na\xc3\xafve \xe2\x82\xac", /* nothing to repair */
                 "\xd0\x90\xd0\xbd\xd0\xbd\xd0\xb0 na\xc3\xafve \xe2\x82\xac");
}

static void test_refused_texts(void **state)
{
    char *clean = NULL, *text = malloc(DSVI_TEXT_BYTES_MAX + 2);
    (void)state;
    assert_fails(DSV_E_FORMAT, "not UTF-8 at byte 2 (0xff)", dsvi_text_clean("ab\xff", &clean));
    assert_fails(DSV_E_FORMAT, "not UTF-8 at byte 0", dsvi_text_clean("\xed\xa0\x80", &clean));
    assert_null(clean);
    memset(text, 'a', DSVI_TEXT_BYTES_MAX + 1);
    text[DSVI_TEXT_BYTES_MAX + 1] = 0;
    assert_fails(DSV_E_FORMAT, "1000000 bytes, expected at most 999999", dsvi_text_clean(text, &clean));
    text[DSVI_TEXT_BYTES_MAX] = 0;
    assert_ok(dsvi_text_clean(text, &clean));
    assert_int_equal(strlen(clean), DSVI_TEXT_BYTES_MAX);
    free(clean);
    text[0] = '&';
    for (size_t i = 1; i + 4 < DSVI_TEXT_BYTES_MAX; i += 4)
        memcpy(text + i, "amp;", 4);
    assert_fails(DSV_E_FORMAT, "nested", dsvi_text_clean(text, &clean));
    free(text);
}

/* Long runs of combining marks and of lines take time in proportion to their length: this test would take
 * minutes if they took the square. */
static void test_long_texts(void **state)
{
    char *clean, *text = malloc(DSVI_TEXT_BYTES_MAX + 1);
    size_t bytes = DSVI_TEXT_BYTES_MAX / 4 * 4;
    (void)state;
    for (size_t i = 0; i < bytes; i += 4)
        memcpy(text + i, "\xcc\x81\xcc\xa3", 4);
    text[bytes] = 0;
    assert_ok(dsvi_text_clean(text, &clean));
    assert_int_equal(strlen(clean), bytes);
    assert_memory_equal(clean + bytes / 2 - 2, "\xcc\xa3\xcc\x81", 4);
    free(clean);
    memset(text, '\n', bytes);
    assert_ok(dsvi_text_clean(text, &clean));
    assert_int_equal(strlen(clean), 0);
    free(clean);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_space),
        cmocka_unit_test(test_characters),
        cmocka_unit_test(test_composition),
        cmocka_unit_test(test_entities),
        cmocka_unit_test(test_markup_keeps_entities),
        cmocka_unit_test(test_mojibake),
        cmocka_unit_test(test_refused_texts),
        cmocka_unit_test(test_long_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
