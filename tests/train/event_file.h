/* A reader of TensorBoard's event files, independent of the writer's code. */
#ifndef DSVI_TEST_EVENT_FILE_H
#define DSVI_TEST_EVENT_FILE_H

#include "base/fs.h"
#include "test.h"
#include "run/tensorboard.h"

/* CRC-32C by its definition, bit by bit. */
static inline uint32_t plain_crc(const unsigned char *data, size_t bytes)
{
    uint32_t crc = ~UINT32_C(0);
    for (size_t i = 0; i < bytes * 8; i++) {
        uint32_t bit = (crc ^ (uint32_t)(data[i / 8] >> (i % 8))) & 1;
        crc = (crc >> 1) ^ (bit ? UINT32_C(0x82f63b78) : 0);
    }
    return ~crc;
}

static inline uint64_t little_endian(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static inline void assert_masked(const unsigned char *data, size_t bytes, const unsigned char *stored)
{
    uint32_t unmasked = (uint32_t)little_endian(stored, 4) - 0xa282ead8u;
    assert_int_equal(plain_crc(data, bytes), (uint32_t)(unmasked << 15 | unmasked >> 17));
}

/* The content of one record. */
typedef struct Record {
    double wall_time;
    int64_t step;
    char version[32];
    int session_status, scalars;
    char tag[DSVI_TENSORBOARD_SCALARS_MAX][DSVI_TENSORBOARD_TAG_MAX + 1];
    float value[DSVI_TENSORBOARD_SCALARS_MAX];
    char image_tag[DSVI_TENSORBOARD_TAG_MAX + 1]; /* "" if the record has no image */
    int64_t image_height, image_width, image_colors;
    unsigned char image[1 << 16];
    size_t image_bytes;
} Record;

typedef struct Field {
    int number, wire;
    uint64_t value;            /* of a varint or fixed field */
    const unsigned char *data; /* of a bytes field, `value` bytes long */
} Field;

static inline uint64_t read_varint(const unsigned char **at, const unsigned char *end)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        assert_true(*at < end);
        unsigned char byte = *(*at)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return value;
    }
    fail_msg("a varint of more than ten bytes");
    return 0;
}

static inline Field read_field(const unsigned char **at, const unsigned char *end)
{
    Field field;
    memset(&field, 0, sizeof field);
    uint64_t key = read_varint(at, end);
    field.number = (int)(key >> 3);
    field.wire = (int)(key & 7);
    if (field.wire == 0) {
        field.value = read_varint(at, end);
        return field;
    }
    size_t bytes = field.wire == 1 ? 8 : field.wire == 5 ? 4 : 0;
    if (field.wire == 2) {
        field.value = bytes = (size_t)read_varint(at, end);
        field.data = *at;
    } else {
        assert_true(bytes > 0);
    }
    assert_true((size_t)(end - *at) >= bytes);
    if (field.wire != 2)
        field.value = little_endian(*at, (int)bytes);
    *at += bytes;
    return field;
}

static inline void read_image(Record *r, Field image)
{
    const unsigned char *at = image.data, *end = at + image.value;
    while (at < end) {
        Field field = read_field(&at, end);
        if (field.wire == 0 && field.number >= 1 && field.number <= 3) {
            int64_t *const number[] = {&r->image_height, &r->image_width, &r->image_colors};
            *number[field.number - 1] = (int64_t)field.value;
        } else if (field.number == 4 && field.wire == 2) {
            assert_true(field.value <= sizeof r->image);
            r->image_bytes = (size_t)field.value;
            memcpy(r->image, field.data, r->image_bytes);
        } else {
            fail_msg("a picture with field %d of wire type %d", field.number, field.wire);
        }
    }
}

static inline void read_value(Record *r, Field value)
{
    const unsigned char *at = value.data, *end = at + value.value;
    char tag[DSVI_TENSORBOARD_TAG_MAX + 1] = "";
    assert_true(r->scalars < DSVI_TENSORBOARD_SCALARS_MAX);
    while (at < end) {
        Field field = read_field(&at, end);
        uint32_t bits = (uint32_t)field.value;
        if (field.number == 1 && field.wire == 2) {
            assert_true(field.value < sizeof tag);
            memcpy(tag, field.data, (size_t)field.value);
        } else if (field.number == 2 && field.wire == 5) {
            memcpy(&r->value[r->scalars], &bits, 4);
            memcpy(r->tag[r->scalars++], tag, sizeof tag);
        } else if (field.number == 4 && field.wire == 2) {
            memcpy(r->image_tag, tag, sizeof tag);
            read_image(r, field);
        } else {
            fail_msg("a value with field %d of wire type %d", field.number, field.wire);
        }
    }
}

static inline void read_event(Record *r, const unsigned char *at, size_t bytes)
{
    const unsigned char *end = at + bytes;
    memset(r, 0, sizeof *r);
    while (at < end) {
        Field field = read_field(&at, end);
        const unsigned char *inner = field.data;
        if (field.number == 1 && field.wire == 1) {
            memcpy(&r->wall_time, &field.value, 8);
        } else if (field.number == 2 && field.wire == 0) {
            r->step = (int64_t)field.value;
        } else if (field.number == 3 && field.wire == 2) {
            assert_true(field.value < sizeof r->version);
            memcpy(r->version, field.data, (size_t)field.value);
        } else if (field.number == 7 && field.wire == 2) {
            r->session_status = (int)read_field(&inner, field.data + field.value).value;
        } else if (field.number == 5 && field.wire == 2) {
            while (inner < field.data + field.value) {
                Field value = read_field(&inner, field.data + field.value);
                assert_int_equal(value.number, 1);
                read_value(r, value);
            }
        } else {
            fail_msg("an event with field %d of wire type %d", field.number, field.wire);
        }
    }
}

/* Reads a whole file; both checksums of every record must hold. */
static inline int read_file(const char *path, Record *records, int most)
{
    char *text;
    size_t bytes, at = 0;
    int count = 0;
    assert_ok(dsvi_file_read(path, 1 << 20, &text, &bytes));
    const unsigned char *data = (const unsigned char *)text;
    while (at < bytes) {
        assert_true(bytes - at >= 16 && count < most);
        size_t length = (size_t)little_endian(data + at, 8);
        assert_masked(data + at, 8, data + at + 8);
        assert_true(bytes - at >= 16 + length);
        assert_masked(data + at + 12, length, data + at + 12 + length);
        read_event(&records[count++], data + at + 12, length);
        at += 16 + length;
    }
    free(text);
    return count;
}

#endif
