/* The handshake: the first messages on a TCP connection between two ranks. Each side proves that it knows the
 * job key, without sending the key.
 *
 *     listener (accepts)                          caller (connects)
 *     DsviChallenge: a nonce           ------->
 *                                      <-------   DsviHello: who calls whom, a nonce, a seal
 *     DsviAnswer: a verdict, a seal    ------->
 *
 * A seal is an HMAC-SHA-512/256 of the message and all messages before it, with a hash of the job key as HMAC
 * key. Both nonces are new for each connection, so that recorded messages cannot be replayed. The listener
 * computes no seal for a caller that has not proved itself, so that a stranger gets no data for guessing the
 * job key. The frames after the handshake (dist/tcp_frame.h) are neither authenticated nor encrypted.
 *
 * libsodium computes the seals: it depends only on the C library, its interface has been stable for ten
 * years, and it has no options to choose wrongly. XXH3, which dsv uses for checksums, is not secure against
 * forgery. */
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

/* HMAC key that is derived from a job key. */
typedef struct DsviJobKey {
    unsigned char bytes[32];
} DsviJobKey;

/* Messages are sent as they are in memory: all ranks run the same binary and have the same byte order. */
typedef struct DsviChallenge {
    char magic[DSVI_MAGIC_BYTES];
    unsigned char nonce[DSVI_NONCE_BYTES];
} DsviChallenge;

typedef struct DsviHello {
    char magic[DSVI_MAGIC_BYTES];
    int64_t rank, size; /* the caller's rank, and the number of ranks that it was started with */
    int64_t to;         /* the rank that it calls */
    int64_t port;       /* the port at which the caller listens */
    unsigned char nonce[DSVI_NONCE_BYTES];
    unsigned char seal[DSVI_SEAL_BYTES];
} DsviHello;

typedef enum DsviVerdict {
    DSVI_CALL_TAKEN,      /* accepted: the connection is kept */
    DSVI_CALL_OTHER_JOB,  /* the caller's seal is wrong; this verdict is sent without a seal */
    DSVI_CALL_OTHER_SIZE, /* the two were started with different numbers of ranks */
    DSVI_CALL_TWICE,      /* another process has called with the same rank */
} DsviVerdict;

typedef struct DsviAnswer {
    char magic[DSVI_MAGIC_BYTES];
    int64_t verdict; /* a DsviVerdict */
    int64_t size;    /* number of ranks that the listener was started with */
    unsigned char seal[DSVI_SEAL_BYTES];
} DsviAnswer;

/* Result of reading a message. */
typedef enum DsviMessageKind {
    DSVI_MESSAGE_GOOD,
    DSVI_MESSAGE_OTHER_JOB, /* a message of dsv, but with a wrong seal */
    DSVI_MESSAGE_STRANGE,   /* not a message of dsv */
} DsviMessageKind;

/* Derives the HMAC key from the job key `text`, which may be empty. */
DsvStatus dsvi_job_key_derive(const char *text, DsviJobKey *key);

/* Returns whether the `bytes` bytes at `data` can be the beginning of a message: compares them with the
 * magic. */
bool dsvi_message_begins(const void *data, size_t bytes);

void dsvi_challenge_make(DsviChallenge *challenge);
/* Fills magic, nonce and seal of a hello. The caller has set rank, size, to and port. */
void dsvi_hello_make(const DsviJobKey *key, const DsviChallenge *challenge, DsviHello *hello);
void dsvi_answer_make(const DsviJobKey *key, const DsviChallenge *challenge, const DsviHello *hello,
                      DsviVerdict verdict, int64_t size, DsviAnswer *answer);

/* Read a received message: sizeof(DsviHello) or sizeof(DsviAnswer) bytes from an untrusted sender. *out is
 * always set. DSVI_MESSAGE_GOOD proves that a rank of this job wrote the message for this connection; the
 * numbers in the message are not checked. */
DsviMessageKind dsvi_hello_read(const DsviJobKey *key, const DsviChallenge *challenge, const void *bytes,
                                DsviHello *out);
DsviMessageKind dsvi_answer_read(const DsviJobKey *key, const DsviChallenge *challenge,
                                 const DsviHello *hello, const void *bytes, DsviAnswer *out);

#ifdef __cplusplus
}
#endif
#endif
