/* Escaping of text and formatting of numbers for the page. */
#include "test.h"

#include "report/report_text.h"

#define assert_put(wanted, call)                     \
    do {                                             \
        char *put = NULL;                            \
        size_t put_bytes;                            \
        FILE *to = open_memstream(&put, &put_bytes); \
        assert_non_null(to);                         \
        call;                                        \
        assert_int_equal(fclose(to), 0);             \
        assert_string_equal(put, wanted);            \
        free(put);                                   \
    } while (0)

static void test_text(void **unused)
{
    (void)unused;
    assert_put("a &lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;", dsvi_put_text(to, "a <b> & \"c\" 'd'"));
    assert_put("\xc3\xa9\xe2\x82\xac", dsvi_put_text(to, "\xc3\xa9\xe2\x82\xac"));
    /* truncated character, overlong '<', one control character of each range */
    assert_put("\xef\xbf\xbd.", dsvi_put_text(to, "\xc3."));
    assert_put("\xef\xbf\xbd\xef\xbf\xbd", dsvi_put_text(to, "\xc0\xbc"));
    assert_put("\xef\xbf\xbd\xef\xbf\xbd", dsvi_put_text(to, "\x1b\xc2\x85"));
    assert_put("\xef\xbf\xbd", dsvi_put_text(to, "\x7f"));
    assert_put("", dsvi_put_text(to, ""));
}

static void test_numbers(void **unused)
{
    (void)unused;
    assert_put("1.50", dsvi_put_fixed(to, 1.5, 2));
    assert_put("0", dsvi_put_fixed(to, -0.0, 0));
    assert_put("-", dsvi_put_fixed(to, NAN, 2));
    assert_put("0.02130", dsvi_put_short(to, 0.0213, 4));
    assert_put("1.43", dsvi_put_short(to, 1.43, 3));
    assert_put("218", dsvi_put_short(to, 218.4, 3));
    assert_put("0.000100", dsvi_put_short(to, 1e-4, 3));
    assert_put("9.99e-5", dsvi_put_short(to, 9.99e-5, 3));
    assert_put("1.0e300", dsvi_put_short(to, 1e300, 2));
    assert_put("-", dsvi_put_short(to, INFINITY, 2));
    assert_put("0.0001", dsvi_put_round(to, 1e-4, 3));
    assert_put("0.55", dsvi_put_round(to, 0.55, 3));
    assert_put("44.7", dsvi_put_round(to, 44.7034, 3));
    assert_put("1", dsvi_put_round(to, 1, 3));
    assert_put("0", dsvi_put_round(to, 0, 3));
    assert_put("-", dsvi_put_round(to, NAN, 3));
    assert_put("1", dsvi_put_count(to, 1));
    assert_put("123", dsvi_put_count(to, 123));
    assert_put("1,234", dsvi_put_count(to, 1234));
    assert_put("12,345,678", dsvi_put_count(to, 12345678));
    assert_put("-1,234", dsvi_put_count(to, -1234));
    assert_put("-123", dsvi_put_count(to, -123));
    assert_put("-", dsvi_put_count(to, NAN));
    assert_put("4.8 million", dsvi_put_large(to, 4821344));
    assert_put("999", dsvi_put_large(to, 999));
    assert_put("1.2 k", dsvi_put_large(to, 1234));
    assert_put("320 MiB", dsvi_put_bytes(to, 320 * 1048576.0));
    assert_put("117 GiB", dsvi_put_bytes(to, 120000 * 1048576.0));
    assert_put("47 s", dsvi_put_duration(to, 47.2));
    assert_put("12 min", dsvi_put_duration(to, 12 * 60 + 59));
    assert_put("3 h 20 min", dsvi_put_duration(to, 12000));
    assert_put("0.250 ms", dsvi_put_ms(to, 0.25));
    assert_put("12.0 s", dsvi_put_ms(to, 12000));
    assert_put("-", dsvi_put_bytes(to, NAN));
    assert_put("-", dsvi_put_ms(to, NAN));
}

static void test_base64(void **unused)
{
    (void)unused;
    /* RFC 4648, section 10 */
    static const char *const pair[][2] = {
        {"", ""},
        {"f", "Zg=="},
        {"fo", "Zm8="},
        {"foo", "Zm9v"},
        {"foob", "Zm9vYg=="},
        {"fooba", "Zm9vYmE="},
        {"foobar", "Zm9vYmFy"},
    };
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++)
        assert_put(pair[i][1], dsvi_put_base64(to, pair[i][0], strlen(pair[i][0])));
    assert_put("//79", dsvi_put_base64(to, "\xff\xfe\xfd", 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_base64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
