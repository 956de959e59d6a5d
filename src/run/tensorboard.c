/* Implements tensorboard.h: writes event files. Field numbers are those of
 * tensorflow/core/util/event.proto and summary.proto. */
#include "run/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fs.h"

/* Wire types of protocol buffers: how the value of a field is encoded. */
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

/* Fields of Event, SessionLog, Summary, Summary.Value and Summary.Image, and one of Image's colour spaces. */
enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY = 5,
    EVENT_SESSION_LOG = 7,
    SESSION_STATUS = 1,
    SESSION_START = 1,
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_SIMPLE = 2,
    VALUE_IMAGE = 4,
    IMAGE_HEIGHT = 1,
    IMAGE_WIDTH = 2,
    IMAGE_COLORSPACE = 3,
    IMAGE_ENCODED = 4,
    RGB = 3
};

/* Upper bounds in bytes of encoded messages. VALUE_BYTES: a scalar, that is a tag with key and length and
 * a float with its key. SCALAR_BYTES: this scalar as a field of a Summary, with key and length. */
enum { VALUE_BYTES = DSVI_TENSORBOARD_TAG_MAX + 2 + 5, SCALAR_BYTES = VALUE_BYTES + 2 };
enum { SUMMARY_BYTES = DSVI_TENSORBOARD_SCALARS_MAX * SCALAR_BYTES, EVENT_BYTES = SUMMARY_BYTES + 64 };

struct DsviTensorboard {
    char path[DSVI_PATH_MAX];
    FILE *file;
};

/* An encoded message under construction. */
typedef struct Message {
    unsigned char bytes[EVENT_BYTES];
    size_t used;
} Message;

/* CRC-32C, four bits at a time. table[n] is the result of four steps of the bitwise algorithm on n, with the
 * bit-reversed polynomial 0x82f63b78. */
static uint32_t continue_crc(uint32_t crc, const void *data, size_t bytes)
{
    static const uint32_t table[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
        0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        crc = (crc >> 4) ^ table[crc & 15];
        crc = (crc >> 4) ^ table[crc & 15];
    }
    return crc;
}

uint32_t dsvi_crc32c(const void *data, size_t bytes)
{
    return ~continue_crc(0xffffffffu, data, bytes);
}

/* Masks a CRC as the record format of event files requires. (Without masks, a CRC of data that itself
 * contains CRCs would be weak.) */
static uint32_t masked(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* Appends the lowest `count` bytes of `value`, little-endian. */
static void put_fixed(Message *m, uint64_t value, int count)
{
    DSVI_ASSERT(m->used + (size_t)count <= sizeof m->bytes);
    for (int i = 0; i < count; i++)
        m->bytes[m->used++] = (unsigned char)(value >> (8 * i));
}

/* Appends a varint: seven bits per byte, lowest first; the top bit is set if more bytes follow. */
static void put_varint(Message *m, uint64_t value)
{
    for (; value >= 128; value >>= 7)
        put_fixed(m, (value & 127) | 128, 1);
    put_fixed(m, value, 1);
}

static void tensorboard_put_key(Message *m, int field, int wire)
{
    put_varint(m, (uint64_t)(field << 3 | wire));
}

/* Appends a field of bytes + later bytes, but only its first `bytes` bytes, from `data`. The remaining
 * `later` bytes are written after the message by write_event. */
static void put_bytes_before(Message *m, int field, const void *data, size_t bytes, size_t later)
{
    tensorboard_put_key(m, field, BYTES);
    put_varint(m, bytes + later);
    DSVI_ASSERT(m->used + bytes <= sizeof m->bytes);
    if (bytes > 0)
        memcpy(m->bytes + m->used, data, bytes);
    m->used += bytes;
}

static void tensorboard_put_bytes(Message *m, int field, const void *data, size_t bytes)
{
    put_bytes_before(m, field, data, bytes, 0);
}

static void tensorboard_put_number(Message *m, int field, int64_t value)
{
    tensorboard_put_key(m, field, VARINT);
    put_varint(m, (uint64_t)value);
}

static void put_double(Message *m, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    tensorboard_put_key(m, field, FIXED64);
    put_fixed(m, bits, 8);
}

static void put_float(Message *m, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    tensorboard_put_key(m, field, FIXED32);
    put_fixed(m, bits, 4);
}

static void begin_event(Message *m, int64_t step)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    m->used = 0;
    put_double(m, EVENT_WALL_TIME, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    tensorboard_put_number(m, EVENT_STEP, step);
}

/* Writes one record: the event followed by `more_bytes` bytes at `more`, which are the end of the event. A
 * picture is passed in this way because it is too large for a Message. */
static DsvStatus write_event(DsviTensorboard *t, const Message *event, const void *more, size_t more_bytes)
{
    Message head = {.used = 0}, tail = {.used = 0};
    uint32_t crc = continue_crc(0xffffffffu, event->bytes, event->used);
    put_fixed(&head, event->used + more_bytes, 8);
    put_fixed(&head, masked(dsvi_crc32c(head.bytes, 8)), 4);
    put_fixed(&tail, masked(~continue_crc(crc, more, more_bytes)), 4);
    fwrite(head.bytes, 1, head.used, t->file);
    fwrite(event->bytes, 1, event->used, t->file);
    fwrite(more, 1, more_bytes, t->file);
    fwrite(tail.bytes, 1, tail.used, t->file);
    if (fflush(t->file) != 0 || ferror(t->file))
        return DSVI_FAIL(DSV_E_IO, "%s: cannot be written: %s", t->path, strerror(errno));
    return DSV_OK;
}

/* Creates a file with an unused name. Names contain the time, because TensorBoard reads the files of a folder
 * in the order of their names. */
static DsvStatus tensorboard_open_file(DsviTensorboard *t, const char *folder)
{
    char name[64];
    for (int attempt = 0;; attempt++) {
        snprintf(name, sizeof name, "events.out.tfevents.%010lld.%03d", (long long)time(NULL), attempt);
        DSVI_TRY(dsvi_path_join(t->path, folder, name));
        int descriptor = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0) {
            t->file = fdopen(descriptor, "wb");
            if (t->file)
                return DSV_OK;
            close(descriptor);
        }
        if (errno != EEXIST)
            return DSVI_FAIL(DSV_E_IO, "%s: cannot be written: %s", t->path, strerror(errno));
    }
}

static DsvStatus write_start(DsviTensorboard *t, int64_t resume_step)
{
    static const char version[] = "brain.Event:2";
    Message event, session = {.used = 0};
    begin_event(&event, 0);
    tensorboard_put_bytes(&event, EVENT_FILE_VERSION, version, sizeof version - 1);
    DSVI_TRY(write_event(t, &event, "", 0));
    tensorboard_put_number(&session, SESSION_STATUS, SESSION_START);
    begin_event(&event, resume_step + 1);
    tensorboard_put_bytes(&event, EVENT_SESSION_LOG, session.bytes, session.used);
    return write_event(t, &event, "", 0);
}

DsvStatus dsvi_tensorboard_open(const char *folder, int64_t resume_step, DsviTensorboard **out)
{
    DsvStatus status;
    DsviTensorboard *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for TensorBoard's events", folder);
    DSVI_TRY_GOTO(status, tensorboard_open_file(t, folder), fail);
    DSVI_TRY_GOTO(status, write_start(t, resume_step), fail);
    *out = t;
    return DSV_OK;
fail:
    dsvi_tensorboard_close(&t);
    return status;
}

void dsvi_tensorboard_close(DsviTensorboard **tensorboard)
{
    DsviTensorboard *t = *tensorboard;
    if (!t)
        return;
    if (t->file)
        fclose(t->file); /* every record was flushed when it was written */
    free(t);
    *tensorboard = NULL;
}

const char *dsvi_tensorboard_path(const DsviTensorboard *t)
{
    return t->path;
}

DsvStatus dsvi_tensorboard_step(DsviTensorboard *t, int64_t step, const DsviScalar *scalars, size_t count)
{
    Message event, summary = {.used = 0}, value;
    DSVI_ASSERT(count <= DSVI_TENSORBOARD_SCALARS_MAX);
    for (size_t i = 0; i < count; i++) {
        size_t tag_bytes = strlen(scalars[i].tag);
        DSVI_ASSERT(tag_bytes <= DSVI_TENSORBOARD_TAG_MAX);
        if (!isfinite(scalars[i].value))
            continue;
        value.used = 0;
        tensorboard_put_bytes(&value, VALUE_TAG, scalars[i].tag, tag_bytes);
        put_float(&value, VALUE_SIMPLE, (float)scalars[i].value);
        tensorboard_put_bytes(&summary, SUMMARY_VALUE, value.bytes, value.used);
    }
    begin_event(&event, step);
    tensorboard_put_bytes(&event, EVENT_SUMMARY, summary.bytes, summary.used);
    return write_event(t, &event, "", 0);
}

DsvStatus dsvi_tensorboard_image(DsviTensorboard *t, int64_t step, const DsviImage *i)
{
    Message event, summary = {.used = 0}, value = {.used = 0}, image = {.used = 0};
    DSVI_ASSERT(strlen(i->tag) <= DSVI_TENSORBOARD_TAG_MAX);
    tensorboard_put_number(&image, IMAGE_HEIGHT, i->height);
    tensorboard_put_number(&image, IMAGE_WIDTH, i->width);
    tensorboard_put_number(&image, IMAGE_COLORSPACE, RGB);
    put_bytes_before(&image, IMAGE_ENCODED, NULL, 0, i->bytes);
    tensorboard_put_bytes(&value, VALUE_TAG, i->tag, strlen(i->tag));
    put_bytes_before(&value, VALUE_IMAGE, image.bytes, image.used, i->bytes);
    put_bytes_before(&summary, SUMMARY_VALUE, value.bytes, value.used, i->bytes);
    begin_event(&event, step);
    put_bytes_before(&event, EVENT_SUMMARY, summary.bytes, summary.used, i->bytes);
    return write_event(t, &event, i->png, i->bytes);
}
