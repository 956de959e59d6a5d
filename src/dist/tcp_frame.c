/* See tcp_frame.h. */
#include "dist/tcp_frame.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/host.h"

DsviFrameSeen dsvi_frame_peek(int file, DsviFrameHead *head)
{
    ssize_t got = recv(file, head, sizeof *head, MSG_PEEK | MSG_DONTWAIT);
    if (got == (ssize_t)sizeof *head)
        return DSVI_SEEN_HEAD;
    bool ended = got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    return ended ? DSVI_SEEN_END : DSVI_SEEN_NOTHING;
}

void dsvi_frame_receive_head(int file)
{
    DsviFrameHead head;
    (void)!recv(file, &head, sizeof head, MSG_DONTWAIT);
}

bool dsvi_frame_send(int file, uint32_t kind, const void *data, size_t bytes)
{
    DsviFrameHead head = {kind, 0, bytes};
    struct iovec part[2] = {{&head, sizeof head}, {(void *)data, bytes}};
    struct msghdr message = {.msg_iov = part, .msg_iovlen = 2};
    return sendmsg(file, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)(sizeof head + bytes);
}

void dsvi_frame_receive_message(int file, size_t bytes, char sentence[DSVI_MESSAGE_BYTES])
{
    struct pollfd poller = {file, POLLIN, 0};
    size_t got = 0, room = DSVI_MESSAGE_BYTES - 1;
    while (got < bytes && got < room && poll(&poller, 1, 1000) > 0) {
        size_t limit = bytes < room ? bytes : room;
        ssize_t more = recv(file, sentence + got, limit - got, 0);
        if (more <= 0)
            break;
        got += (size_t)more;
    }
    sentence[got] = 0;
}

bool dsvi_frame_await_goodbye(int file, double seconds)
{
    char data[65536 + sizeof(DsviFrameHead)];
    DsviFrameHead last;
    size_t kept = 0; /* data[0] to data[kept - 1] are the last bytes of the stream so far, at most as many as
                        a frame head has */
    double until = dsvi_clock_seconds() + seconds, left;
    while ((left = until - dsvi_clock_seconds()) > 0) {
        struct pollfd poller = {file, POLLIN, 0};
        if (poll(&poller, 1, (int)(1e3 * left) + 1) <= 0)
            continue;
        ssize_t got = recv(file, data + kept, sizeof data - kept, MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK))
            continue;
        if (got <= 0)
            break;
        size_t there = kept + (size_t)got;
        kept = there < sizeof last ? there : sizeof last;
        memmove(data, data + there - kept, kept);
        if (kept < sizeof last)
            continue;
        memcpy(&last, data, sizeof last);
        if (last.kind == DSVI_FRAME_GOODBYE && last.group == 0 && last.bytes == 0)
            return true;
    }
    return false;
}
