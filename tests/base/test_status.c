/* The message and the trail of a failure. */
#include "base/status.h"

#include <pthread.h>

#include "test.h"

static int lines_of_trail(void)
{
    int lines = dsv_error_trail()[0] != 0;
    for (const char *c = dsv_error_trail(); *c; c++)
        lines += *c == '\n';
    return lines;
}

static DsvStatus fails(int number)
{
    return DSVI_FAIL(DSV_E_SHAPE, "shape %d", number);
}

static DsvStatus forwards(int number)
{
    DSVI_TRY(fails(number));
    return DSV_OK;
}

static DsvStatus forwards_by_goto(int number)
{
    DsvStatus status;
    DSVI_TRY_GOTO(status, forwards(number), done);
    status = DSV_E_INTERNAL;
done:
    return dsvi_fail_prefix(status, "file %s", "x");
}

static void a_failure_leaves_a_sentence_and_a_trail(void **state)
{
    (void)state;
    assert_int_equal(forwards_by_goto(3), DSV_E_SHAPE);
    assert_string_equal(dsv_error_message(), "file x: shape 3");
    assert_int_equal(lines_of_trail(), 3);
    assert_int_equal(forwards(4), DSV_E_SHAPE); /* starts a new trail */
    assert_string_equal(dsv_error_message(), "shape 4");
    assert_int_equal(lines_of_trail(), 2);
    assert_non_null(strstr(dsv_error_trail(), "test_status.c:"));
}

static void a_sentence_may_quote_the_one_before(void **state)
{
    (void)state;
    fails(5);
    DSVI_FAIL(DSV_E_IO, "after (%s)", dsv_error_message());
    assert_string_equal(dsv_error_message(), "after (shape 5)");
    dsvi_fail_prefix(DSV_E_IO, "[%s]", dsv_error_message());
    assert_string_equal(dsv_error_message(), "[after (shape 5)]: after (shape 5)");
}

static void long_sentences_and_trails_are_cut(void **state)
{
    static char words[5000];
    (void)state;
    memset(words, 'w', sizeof words - 1);
    DSVI_FAIL(DSV_E_IO, "%s", words);
    assert_in_range(strlen(dsv_error_message()), 1000, sizeof words - 2);
    for (int i = 0; i < 10000; i++)
        dsvi_trail_add("some/file.c", i);
    assert_in_range(strlen(dsv_error_trail()), 500, 5000);
    fails(1);
    for (int i = 0; i < 100; i++)
        dsvi_fail_prefix(DSV_E_IO, "%.100s", words);
    assert_in_range(strlen(dsv_error_message()), 1000, 5000);
}

static void *fail_elsewhere(void *context)
{
    char *copy = context;
    assert_string_equal(dsv_error_message(), "");
    fails(7);
    snprintf(copy, 64, "%s", dsv_error_message());
    return NULL;
}

static void threads_have_their_own(void **state)
{
    pthread_t thread;
    char copy[64] = "";
    (void)state;
    fails(6);
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, copy), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(dsv_error_message(), "shape 6");
    assert_int_equal(dsvi_fail_adopt(DSV_E_SHAPE, copy), DSV_E_SHAPE);
    assert_string_equal(dsv_error_message(), "shape 7");
    dsvi_fail_adopt(DSV_E_SHAPE, dsv_error_message());
    assert_string_equal(dsv_error_message(), "shape 7");
}

static void every_status_has_a_text(void **state)
{
    (void)state;
    for (int i = DSV_OK; i <= DSV_E_INTERNAL; i++)
        assert_string_not_equal(dsv_status_text((DsvStatus)i), "unknown status");
    assert_string_equal(dsv_status_text((DsvStatus)99), "unknown status");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_leaves_a_sentence_and_a_trail),
        cmocka_unit_test(a_sentence_may_quote_the_one_before),
        cmocka_unit_test(long_sentences_and_trails_are_cut),
        cmocka_unit_test(threads_have_their_own),
        cmocka_unit_test(every_status_has_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
