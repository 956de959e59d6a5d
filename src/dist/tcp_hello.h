/* The first messages on a TCP connection between two ranks. Each side proves that it knows the job's word,
 * and the word itself is never sent.
 *
 *     listener                                    caller
 *     DsviChallenge: a nonce           ------->
 *                                      <-------   DsviHello: who calls whom, a nonce, a seal
 *     DsviAnswer: a verdict, a seal    ------->
 *
 * A seal is an HMAC-SHA-512/256, under a key derived from the word, over the message and the messages before
 * it. Both nonces are new for each connection, so that a recorded message proves nothing later. The
 * listener seals nothing for a caller that has not proved itself: a stranger gets nothing to guess the word
 * from. The frames that follow (dist/tcp_frame.h) are neither sealed nor encrypted.
 *
 * libsodium computes the seals: it depends on the C library alone, has kept its interface for ten years, and
 * has no options to choose wrongly. XXH3, which dsv uses for checksums, can be forged by design. */
#ifndef DSVI_TCP_HELLO_H
#define DSVI_TCP_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_NONCE_BYTES = 32, DSVI_SEAL_BYTES = 32, DSVI_MAGIC_BYTES = 8 };

typedef struct DsviJobKey {
    unsigned char bytes[32];
} DsviJobKey;

/* Messages are sent as they are stored: all ranks run one binary, and so share one byte order. */
typedef struct DsviChallenge {
    char magic[DSVI_MAGIC_BYTES];
    unsigned char nonce[DSVI_NONCE_BYTES];
} DsviChallenge;

typedef struct DsviHello {
    char magic[DSVI_MAGIC_BYTES];
    int64_t rank, size; /* of the caller, and how many ranks it was told of */
    int64_t to;         /* the rank that it calls */
    int64_t port;       /* where it listens */
    unsigned char nonce[DSVI_NONCE_BYTES];
    unsigned char seal[DSVI_SEAL_BYTES];
} DsviHello;

typedef enum DsviVerdict {
    DSVI_CALL_TAKEN,
    DSVI_CALL_OTHER_JOB,  /* sent without a seal */
    DSVI_CALL_OTHER_SIZE, /* the two were told of different numbers of ranks */
    DSVI_CALL_TWICE,      /* another process has called as this rank */
} DsviVerdict;

typedef struct DsviAnswer {
    char magic[DSVI_MAGIC_BYTES];
    int64_t verdict; /* a DsviVerdict */
    int64_t size;    /* ranks that the listener was told of */
    unsigned char seal[DSVI_SEAL_BYTES];
} DsviAnswer;

/* What some bytes turned out to be. */
typedef enum DsviMessageKind {
    DSVI_MESSAGE_GOOD,
    DSVI_MESSAGE_OTHER_JOB, /* well formed, but the seal is not this job's */
    DSVI_MESSAGE_STRANGE,   /* not a message of dsv */
} DsviMessageKind;

/* `word` may be any string, also an empty one. */
DsvStatus dsvi_job_key(const char *word, DsviJobKey *key);

/* Whether `bytes` bytes at `data` may be the beginning of a message of dsv: its magic, as far as they go. */
bool dsvi_message_begins(const void *data, size_t bytes);

void dsvi_challenge_make(DsviChallenge *challenge);
/* Completes a hello of which the caller has set rank, size, to and port. */
void dsvi_hello_make(const DsviJobKey *key, const DsviChallenge *challenge, DsviHello *hello);
void dsvi_answer_make(const DsviJobKey *key, const DsviChallenge *challenge, const DsviHello *hello,
                      DsviVerdict verdict, int64_t size, DsviAnswer *answer);

/* Reads sizeof(DsviHello) or sizeof(DsviAnswer) bytes that anybody may have sent. `out` is set in any case;
 * only after DSVI_MESSAGE_GOOD did a rank of this job write it, for this connection. Numbers in it are not
 * checked. */
DsviMessageKind dsvi_hello_read(const DsviJobKey *key, const DsviChallenge *challenge, const void *bytes,
                                DsviHello *out);
DsviMessageKind dsvi_answer_read(const DsviJobKey *key, const DsviChallenge *challenge,
                                 const DsviHello *hello, const void *bytes, DsviAnswer *out);

#ifdef __cplusplus
}
#endif
#endif
