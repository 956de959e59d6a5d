/* Frames: what goes over a TCP connection between two ranks once both have proved themselves
 * (dist/tcp_hello.h). A frame is a head and its bytes. Sockets do not block. */
#ifndef DSVI_TCP_FRAME_H
#define DSVI_TCP_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DSVI_FRAME_DATA = 0x64617461,
    DSVI_FRAME_FAILURE = 0x6661696c,  /* a sentence: the sender's job has failed */
    DSVI_FRAME_TABLE = 0x7461626c,    /* from rank 0: where each rank listens */
    DSVI_FRAME_READY = 0x72656164,    /* to rank 0: connected with every rank */
    DSVI_FRAME_GO = 0x676f676f,       /* from rank 0: every rank is ready */
    DSVI_FRAME_FAREWELL = 0x62796521, /* from rank 0, its last: it has reported the failure to the user */
};

typedef struct DsviFrameHead {
    uint32_t kind;
    uint32_t group;
    uint64_t bytes;
} DsviFrameHead;

/* What a look at a connection finds, without waiting. */
typedef enum DsviFrameSeen {
    DSVI_SEEN_NOTHING, /* or less than a head */
    DSVI_SEEN_HEAD,    /* *head is set, and still to be received */
    DSVI_SEEN_END,     /* the other side has ended */
} DsviFrameSeen;
DsviFrameSeen dsvi_frame_peek(int file, DsviFrameHead *head);

/* Receives the head that was seen. */
void dsvi_frame_take_head(int file);

/* Sends a frame of a head and `bytes` bytes at once. False: the connection has ended, or has no room for a
 * frame that should be small. */
bool dsvi_frame_send(int file, uint32_t kind, const void *data, size_t bytes);

/* Receives the sentence that follows a head of DSVI_FRAME_FAILURE, which has been received. Waits for it one
 * second at most, and takes what has come then. */
void dsvi_frame_sentence(int file, size_t bytes, char sentence[DSVI_MESSAGE_BYTES]);

/* Reads and forgets what comes until the other side ends, for `seconds` at most. True: the last frame was
 * DSVI_FRAME_FAREWELL. It is recognised by the last bytes of the stream, so that the reader may have stopped
 * within a frame. */
bool dsvi_frame_await_farewell(int file, double seconds);

#ifdef __cplusplus
}
#endif
#endif
