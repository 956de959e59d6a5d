/* A CPU device whose copies on one stream run as late as the order of the streams allows: when another stream
 * follows it, or when the host waits for it. Work that does not wait for such a copy reads what was there
 * before, and a test that compares results fails. One device at a time. */
#ifndef DSVI_TEST_LATE_DEVICE_H
#define DSVI_TEST_LATE_DEVICE_H

#include <string.h>

#include "device/device.h"
#include "test.h"

enum { LATE_COPIES_MAX = 64 };

static struct {
    DsviStream *stream; /* only an address */
    struct {
        void *to;
        const void *from;
        size_t bytes;
    } copy[LATE_COPIES_MAX];
    int waiting, flagged; /* copies; of these, how many come before the stream's flag */
    int64_t count;        /* copies so far */
} late;

static inline DsvStatus late_copy(DsviStream *stream, void *to, const void *from, size_t bytes)
{
    if (stream != late.stream) {
        if (bytes > 0)
            memmove(to, from, bytes);
        return DSV_OK;
    }
    assert_true(late.waiting < LATE_COPIES_MAX);
    late.copy[late.waiting].to = to;
    late.copy[late.waiting].from = from;
    late.copy[late.waiting++].bytes = bytes;
    late.count++;
    return DSV_OK;
}

/* Does the first `count` copies that wait. */
static inline void late_do(int count)
{
    for (int i = 0; i < count; i++)
        if (late.copy[i].bytes > 0)
            memmove(late.copy[i].to, late.copy[i].from, late.copy[i].bytes);
    late.waiting -= count;
    late.flagged = late.flagged > count ? late.flagged - count : 0;
    memmove(late.copy, late.copy + count, (size_t)late.waiting * sizeof *late.copy);
}

static inline DsvStatus late_sync(DsviStream *stream)
{
    if (stream == late.stream)
        late_do(late.waiting);
    return DSV_OK;
}

static inline DsvStatus late_flag(DsviStream *stream)
{
    if (stream == late.stream)
        late.flagged = late.waiting;
    return DSV_OK;
}

static inline DsvStatus late_await(DsviStream *stream)
{
    if (stream == late.stream)
        late_do(late.flagged);
    return DSV_OK;
}

static inline DsvStatus late_follow(DsviStream *stream, DsviStream *leader)
{
    (void)stream;
    return late_sync(leader);
}

/* Makes copies on *stream late, which is one of the device's streams for copies. */
static inline void late_device(DsviDevice *device, DsviStream **stream)
{
    static int64_t other;
    late.stream = *stream = (DsviStream *)&other;
    late.waiting = late.flagged = 0;
    late.count = 0;
    device->upload = late_copy;
    device->download = late_copy;
    device->sync = late_sync;
    device->flag = late_flag;
    device->await = late_await;
    device->follow = late_follow;
}

#endif
