/* Frames: the messages on a TCP connection between two ranks after the handshake (dist/tcp_hello.h). A frame
 * is a head and a payload. Sockets are in non-blocking mode. */
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
    DSVI_FRAME_FAILURE = 0x6661696c, /* payload: the message of a failure, which ends the job */
    DSVI_FRAME_TABLE = 0x7461626c,   /* from rank 0; payload: the addresses at which the ranks listen */
    DSVI_FRAME_READY = 0x72656164,   /* to rank 0: the sender is connected with every rank */
    DSVI_FRAME_GO = 0x676f676f,      /* from rank 0: all ranks are ready */
    DSVI_FRAME_GOODBYE = 0x62796521, /* rank 0's last frame: it has reported the failure to the user */
};

typedef struct DsviFrameHead {
    uint32_t kind;  /* DSVI_FRAME_... */
    uint32_t group; /* number of the group (DsviTransport.split) whose data the frame carries; else 0 */
    uint64_t bytes; /* length of the payload */
} DsviFrameHead;

/* What has arrived on a connection. */
typedef enum DsviFrameSeen {
    DSVI_SEEN_NOTHING, /* nothing, or a part of a head */
    DSVI_SEEN_HEAD,    /* a head */
    DSVI_SEEN_END,     /* the other side has closed the connection */
} DsviFrameSeen;
/* Looks at the next frame head without receiving it and without waiting. Sets *head for DSVI_SEEN_HEAD. */
DsviFrameSeen dsvi_frame_peek(int file, DsviFrameHead *head);

/* Receives the head that dsvi_frame_peek found. */
void dsvi_frame_receive_head(int file);

/* Sends a short frame with `bytes` bytes of payload, without waiting. Returns false if the connection has
 * ended or its buffer has no space for the whole frame. */
bool dsvi_frame_send(int file, uint32_t kind, const void *data, size_t bytes);

/* Receives the payload of a DSVI_FRAME_FAILURE whose head has been received. Returns what has arrived when no
 * byte has come for one second. */
void dsvi_frame_receive_message(int file, size_t bytes, char sentence[DSVI_MESSAGE_BYTES]);

/* Waits for DSVI_FRAME_GOODBYE for at most `seconds` seconds, and discards everything else. Returns false if
 * the other side closes the connection before it. The frame is recognised by the last bytes of the stream,
 * because the reader may have stopped in the middle of an earlier frame. */
bool dsvi_frame_await_goodbye(int file, double seconds);

#ifdef __cplusplus
}
#endif
#endif
