/* TensorBoard's event files: the checksum's known values, an event byte by byte, and whole files read back
 * by a reader that shares no code with the writer. */
#include "test.h"

#include "base/fs.h"
#include "train/tensorboard.h"

static char folder[] = "/tmp/dsv-tensorboard-XXXXXX";

static int make_folder(void **unused)
{
    (void)unused;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **unused)
{
    (void)unused;
    return dsvi_folder_remove(folder) == DSV_OK ? 0 : -1;
}

/* The definition, bit by bit. */
static uint32_t plain_crc(const unsigned char *data, size_t bytes)
{
    uint32_t crc = ~UINT32_C(0);
    for (size_t i = 0; i < bytes * 8; i++) {
        uint32_t bit = (crc ^ (uint32_t)(data[i / 8] >> (i % 8))) & 1;
        crc = (crc >> 1) ^ (bit ? UINT32_C(0x82f63b78) : 0);
    }
    return ~crc;
}

static void test_crc(void **unused)
{
    (void)unused;
    unsigned char data[300] = {0};
    assert_int_equal(dsvi_crc32c("123456789", 9), 0xe3069283); /* the check value of CRC catalogues */
    assert_int_equal(dsvi_crc32c("", 0), 0);
    assert_int_equal(dsvi_crc32c(data, 32), 0x8a9136aa);       /* RFC 3720, appendix B.4 */
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (unsigned char)(i * 37 + 11);
        assert_int_equal(dsvi_crc32c(data, i), plain_crc(data, i));
    }
}

static uint64_t little_endian(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static void assert_masked(const unsigned char *data, size_t bytes, const unsigned char *stored)
{
    uint32_t unmasked = (uint32_t)little_endian(stored, 4) - 0xa282ead8u;
    assert_int_equal(plain_crc(data, bytes), (uint32_t)(unmasked << 15 | unmasked >> 17));
}

/* What one record says; of its scalars, the first few. */
typedef struct Record {
    double wall_time;
    int64_t step;
    char version[32];
    int session_status, scalars;
    char tag[4][64];
    float value[4];
} Record;

typedef struct Field {
    int number, wire;
    uint64_t value;            /* of a varint or fixed field */
    const unsigned char *data; /* of a bytes field, `value` bytes long */
} Field;

static uint64_t read_varint(const unsigned char **at, const unsigned char *end)
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

static Field read_field(const unsigned char **at, const unsigned char *end)
{
    Field field = {0};
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

static void read_value(Record *r, Field value)
{
    const unsigned char *at = value.data, *end = at + value.value;
    assert_true(r->scalars < 4);
    while (at < end) {
        Field field = read_field(&at, end);
        uint32_t bits = (uint32_t)field.value;
        if (field.number == 1 && field.wire == 2)
            memcpy(r->tag[r->scalars], field.data, (size_t)field.value);
        else if (field.number == 2 && field.wire == 5)
            memcpy(&r->value[r->scalars], &bits, 4);
        else
            fail_msg("a value with field %d of wire type %d", field.number, field.wire);
    }
    r->scalars++;
}

static void read_event(Record *r, const unsigned char *at, size_t bytes)
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
static int read_file(const char *path, Record *records, int most)
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

static void test_file(void **unused)
{
    (void)unused;
    DsvTensorboard *tensorboard;
    char path[DSVI_PATH_MAX];
    Record records[5];
    const DsvScalar first[] = {{"train/loss", 0.75}, {"train/lr", 1e-4}};
    const DsvScalar second[] = {{"train/loss", -2}, {"sparse/captured_mass", NAN}};
    assert_ok(dsvi_tensorboard_open(folder, 0, &tensorboard));
    snprintf(path, sizeof path, "%s", dsvi_tensorboard_path(tensorboard));
    assert_ok(dsvi_tensorboard_step(tensorboard, 1, first, 2));
    assert_ok(dsvi_tensorboard_step(tensorboard, INT64_C(5000000000), second, 2));
    assert_int_equal(read_file(path, records, 5), 4); /* flushed while still open */
    dsvi_tensorboard_close(&tensorboard);
    assert_null(tensorboard);
    assert_string_equal(records[0].version, "brain.Event:2");
    assert_int_equal(records[1].session_status, 1);
    assert_int_equal(records[1].step, 1);
    assert_int_equal(records[2].step, 1);
    assert_int_equal(records[2].scalars, 2);
    assert_string_equal(records[2].tag[0], "train/loss");
    assert_true(records[2].value[0] == 0.75f);
    assert_string_equal(records[2].tag[1], "train/lr");
    assert_true(records[2].value[1] == 1e-4f);
    assert_int_equal(records[3].step, 5000000000);
    assert_int_equal(records[3].scalars, 1); /* what is not finite is left out */
    assert_true(records[3].value[0] == -2);
    for (int i = 0; i < 4; i++)
        assert_true(records[i].wall_time > 1.6e9 && records[i].wall_time < 1e11);
}

/* A resumed run writes a file of its own that sorts behind the first and takes its later steps back. */
static void test_resume(void **unused)
{
    (void)unused;
    DsvTensorboard *first, *second;
    Record records[2];
    assert_ok(dsvi_tensorboard_open(folder, 0, &first));
    assert_ok(dsvi_tensorboard_open(folder, 40, &second));
    assert_true(strcmp(dsvi_tensorboard_path(first), dsvi_tensorboard_path(second)) < 0);
    assert_int_equal(read_file(dsvi_tensorboard_path(second), records, 2), 2);
    assert_int_equal(records[1].session_status, 1);
    assert_int_equal(records[1].step, 41);
    dsvi_tensorboard_close(&first);
    dsvi_tensorboard_close(&second);
}

/* As many and as long as the header promises. */
static void test_most(void **unused)
{
    (void)unused;
    DsvTensorboard *tensorboard;
    DsvScalar scalars[DSV_TENSORBOARD_SCALARS_MOST];
    char tag[DSV_TENSORBOARD_TAG_MOST + 1];
    memset(tag, 'x', sizeof tag - 1);
    tag[sizeof tag - 1] = 0;
    for (int i = 0; i < DSV_TENSORBOARD_SCALARS_MOST; i++)
        scalars[i] = (DsvScalar){tag, i};
    assert_ok(dsvi_tensorboard_open(folder, 0, &tensorboard));
    assert_ok(dsvi_tensorboard_step(tensorboard, INT64_MAX, scalars, DSV_TENSORBOARD_SCALARS_MOST));
    dsvi_tensorboard_close(&tensorboard);
}

static void test_refusal(void **unused)
{
    (void)unused;
    DsvTensorboard *tensorboard;
    char nowhere[DSVI_PATH_MAX];
    assert_ok(dsvi_path_join(nowhere, folder, "nowhere"));
    assert_fails(DSV_E_IO, "nowhere", dsvi_tensorboard_open(nowhere, 0, &tensorboard));
    assert_null(tensorboard);
    dsvi_tensorboard_close(&tensorboard);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_most),
        cmocka_unit_test(test_refusal),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
