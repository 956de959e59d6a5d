/* See tcp_hello.h. */
#include "dist/tcp_hello.h"

#include <assert.h>
#include <string.h>

#include <sodium.h>

/* The last character is the version of the handshake. */
static const char MAGIC[DSVI_MAGIC_BYTES + 1] = "dsv-job2";

static_assert(crypto_auth_BYTES == DSVI_SEAL_BYTES, "a seal");
static_assert(crypto_auth_KEYBYTES == sizeof(DsviJobKey), "a key");
/* The structs must have no padding, because they are sealed and sent as bytes. */
static_assert(sizeof(DsviChallenge) == 40 && sizeof(DsviHello) == 104 && sizeof(DsviAnswer) == 56, "layout");

DsvStatus dsvi_job_key_derive(const char *text, DsviJobKey *key)
{
    if (sodium_init() < 0)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "libsodium does not start: no source of random numbers here");
    crypto_generichash(key->bytes, sizeof key->bytes, (const unsigned char *)text, strlen(text), NULL, 0);
    return DSV_OK;
}

bool dsvi_message_begins(const void *data, size_t bytes)
{
    return memcmp(data, MAGIC, bytes < DSVI_MAGIC_BYTES ? bytes : DSVI_MAGIC_BYTES) == 0;
}

void dsvi_challenge_make(DsviChallenge *challenge)
{
    memcpy(challenge->magic, MAGIC, DSVI_MAGIC_BYTES);
    randombytes_buf(challenge->nonce, sizeof challenge->nonce);
}

/* Computes the seal of a hello, or of an answer if `answer` is not NULL. The two cannot be confused, because
 * the sealed bytes differ in length. */
static void seal(const DsviJobKey *key, const DsviChallenge *challenge, const DsviHello *hello,
                 const DsviAnswer *answer, unsigned char out[DSVI_SEAL_BYTES])
{
    crypto_auth_hmacsha512256_state state;
    crypto_auth_hmacsha512256_init(&state, key->bytes, sizeof key->bytes);
    crypto_auth_hmacsha512256_update(&state, (const unsigned char *)challenge, sizeof *challenge);
    crypto_auth_hmacsha512256_update(&state, (const unsigned char *)hello, offsetof(DsviHello, seal));
    if (answer)
        crypto_auth_hmacsha512256_update(&state, (const unsigned char *)answer, offsetof(DsviAnswer, seal));
    crypto_auth_hmacsha512256_final(&state, out);
}

void dsvi_hello_make(const DsviJobKey *key, const DsviChallenge *challenge, DsviHello *hello)
{
    memcpy(hello->magic, MAGIC, DSVI_MAGIC_BYTES);
    randombytes_buf(hello->nonce, sizeof hello->nonce);
    seal(key, challenge, hello, NULL, hello->seal);
}

void dsvi_answer_make(const DsviJobKey *key, const DsviChallenge *challenge, const DsviHello *hello,
                      DsviVerdict verdict, int64_t size, DsviAnswer *answer)
{
    memset(answer, 0, sizeof *answer);
    memcpy(answer->magic, MAGIC, DSVI_MAGIC_BYTES);
    answer->verdict = verdict;
    if (verdict == DSVI_CALL_OTHER_JOB)
        return;
    answer->size = size;
    seal(key, challenge, hello, answer, answer->seal);
}

static DsviMessageKind kind_of(const char magic[DSVI_MAGIC_BYTES], const unsigned char found[DSVI_SEAL_BYTES],
                               const unsigned char expected[DSVI_SEAL_BYTES])
{
    if (!dsvi_message_begins(magic, DSVI_MAGIC_BYTES))
        return DSVI_MESSAGE_STRANGE;
    return sodium_memcmp(found, expected, DSVI_SEAL_BYTES) == 0 ? DSVI_MESSAGE_GOOD : DSVI_MESSAGE_OTHER_JOB;
}

DsviMessageKind dsvi_hello_read(const DsviJobKey *key, const DsviChallenge *challenge, const void *bytes,
                                DsviHello *out)
{
    unsigned char expected[DSVI_SEAL_BYTES];
    memcpy(out, bytes, sizeof *out);
    seal(key, challenge, out, NULL, expected);
    return kind_of(out->magic, out->seal, expected);
}

DsviMessageKind dsvi_answer_read(const DsviJobKey *key, const DsviChallenge *challenge,
                                 const DsviHello *hello, const void *bytes, DsviAnswer *out)
{
    unsigned char expected[DSVI_SEAL_BYTES];
    memcpy(out, bytes, sizeof *out);
    seal(key, challenge, hello, out, expected);
    return kind_of(out->magic, out->seal, expected);
}
