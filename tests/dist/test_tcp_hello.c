/* The messages with which ranks prove that they belong to one job (dist/tcp_hello.h): a message that was
 * changed, replayed, or made with another job key is rejected. */
#include "test.h"

#include "dist/tcp_hello.h"

static DsviJobKey key_of(const char *word)
{
    DsviJobKey key;
    assert_ok(dsvi_job_key_derive(word, &key));
    return key;
}

static DsviHello hello_for(const DsviJobKey *key, const DsviChallenge *challenge)
{
    DsviHello hello = {.rank = 1, .size = 3, .to = 0, .port = 4321};
    dsvi_hello_make(key, challenge, &hello);
    return hello;
}

static void job_words_make_keys(void **state)
{
    DsviJobKey a = key_of("one"), b = key_of("one"), c = key_of("other"), none = key_of("");
    (void)state;
    assert_memory_equal(&a, &b, sizeof a);
    assert_memory_not_equal(&a, &c, sizeof a);
    assert_memory_not_equal(&a, &none, sizeof a);
}

static void hello_is_read_back(void **state)
{
    DsviJobKey key = key_of("one");
    DsviChallenge challenge;
    DsviHello read;
    (void)state;
    dsvi_challenge_make(&challenge);
    DsviHello hello = hello_for(&key, &challenge);
    assert_int_equal(dsvi_hello_read(&key, &challenge, &hello, &read), DSVI_MESSAGE_GOOD);
    assert_memory_equal(&hello, &read, sizeof hello);
}

static void every_changed_byte_is_noticed(void **state)
{
    DsviJobKey key = key_of("one");
    DsviChallenge challenge;
    DsviHello read;
    DsviAnswer answer, answer_read;
    (void)state;
    dsvi_challenge_make(&challenge);
    DsviHello hello = hello_for(&key, &challenge);
    dsvi_answer_make(&key, &challenge, &hello, DSVI_CALL_TAKEN, 3, &answer);
    assert_int_equal(dsvi_answer_read(&key, &challenge, &hello, &answer, &answer_read), DSVI_MESSAGE_GOOD);
    for (size_t i = 0; i < sizeof hello; i++) {
        DsviHello changed = hello;
        ((unsigned char *)&changed)[i] ^= 4;
        assert_int_not_equal(dsvi_hello_read(&key, &challenge, &changed, &read), DSVI_MESSAGE_GOOD);
    }
    for (size_t i = 0; i < sizeof answer; i++) {
        DsviAnswer changed = answer;
        ((unsigned char *)&changed)[i] ^= 4;
        assert_int_not_equal(dsvi_answer_read(&key, &challenge, &hello, &changed, &answer_read),
                             DSVI_MESSAGE_GOOD);
    }
}

static void replayed_messages_are_not_taken(void **state)
{
    DsviJobKey key = key_of("one");
    DsviChallenge first, second;
    DsviHello read;
    DsviAnswer answer, answer_read;
    (void)state;
    dsvi_challenge_make(&first);
    dsvi_challenge_make(&second);
    DsviHello hello = hello_for(&key, &first), again = hello_for(&key, &first);
    assert_int_equal(dsvi_hello_read(&key, &second, &hello, &read), DSVI_MESSAGE_OTHER_JOB);
    /* An answer to another hello of the same caller is rejected. */
    dsvi_answer_make(&key, &first, &hello, DSVI_CALL_TAKEN, 3, &answer);
    assert_int_equal(dsvi_answer_read(&key, &first, &again, &answer, &answer_read), DSVI_MESSAGE_OTHER_JOB);
}

static void another_job_word_is_another_job(void **state)
{
    DsviJobKey key = key_of("one"), other = key_of("other");
    DsviChallenge challenge;
    DsviHello read;
    DsviAnswer answer, answer_read;
    unsigned char zeros[DSVI_SEAL_BYTES] = {0};
    (void)state;
    dsvi_challenge_make(&challenge);
    DsviHello hello = hello_for(&other, &challenge);
    assert_int_equal(dsvi_hello_read(&key, &challenge, &hello, &read), DSVI_MESSAGE_OTHER_JOB);
    /* The refusal contains nothing that depends on the key. */
    dsvi_answer_make(&key, &challenge, &hello, DSVI_CALL_OTHER_JOB, 3, &answer);
    assert_memory_equal(answer.seal, zeros, sizeof zeros);
    assert_int_equal(answer.size, 0);
    assert_int_equal(dsvi_answer_read(&other, &challenge, &hello, &answer, &answer_read),
                     DSVI_MESSAGE_OTHER_JOB);
}

static void other_bytes_are_no_message(void **state)
{
    DsviJobKey key = key_of("one");
    DsviChallenge challenge;
    DsviHello read;
    char text[sizeof(DsviHello)] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    (void)state;
    dsvi_challenge_make(&challenge);
    assert_int_equal(dsvi_hello_read(&key, &challenge, text, &read), DSVI_MESSAGE_STRANGE);
    assert_false(dsvi_message_begins("GET", 3));
    assert_true(dsvi_message_begins(&challenge, 0));
    assert_true(dsvi_message_begins(&challenge, 3));
    assert_true(dsvi_message_begins(&challenge, sizeof challenge));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_words_make_keys),
        cmocka_unit_test(hello_is_read_back),
        cmocka_unit_test(every_changed_byte_is_noticed),
        cmocka_unit_test(replayed_messages_are_not_taken),
        cmocka_unit_test(another_job_word_is_another_job),
        cmocka_unit_test(other_bytes_are_no_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
