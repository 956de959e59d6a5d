/* TensorBoard's event files: known values of the checksum, and whole files read back by an independent
 * reader. */
#include "test.h"

#include "base/fs.h"
#include "event_file.h"

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

static void test_crc(void **unused)
{
    (void)unused;
    unsigned char data[300] = {0};
    assert_int_equal(dsvi_crc32c("123456789", 9), 0xe3069283); /* the check value of CRC catalogues */
    assert_int_equal(dsvi_crc32c("", 0), 0);
    assert_int_equal(dsvi_crc32c(data, 32), 0x8a9136aa); /* RFC 3720, appendix B.4 */
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (unsigned char)(i * 37 + 11);
        assert_int_equal(dsvi_crc32c(data, i), plain_crc(data, i));
    }
}

static void test_file(void **unused)
{
    (void)unused;
    DsviTensorboard *tensorboard;
    char path[DSVI_PATH_MAX];
    static Record records[5];
    const DsviScalar first[] = {{"train/loss", 0.75}, {"train/lr", 1e-4}};
    const DsviScalar second[] = {{"train/loss", -2}, {"sparse/captured_mass", NAN}};
    assert_ok(dsvi_tensorboard_open(folder, 0, &tensorboard));
    snprintf(path, sizeof path, "%s", dsvi_tensorboard_path(tensorboard));
    assert_ok(dsvi_tensorboard_step(tensorboard, 1, first, 2));
    assert_ok(dsvi_tensorboard_step(tensorboard, INT64_C(5000000000), second, 2));
    assert_int_equal(read_file(path, records, 5), 4); /* readable while the writer is open */
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
    assert_int_equal(records[3].scalars, 1); /* non-finite values are left out */
    assert_true(records[3].value[0] == -2);
    for (int i = 0; i < 4; i++)
        assert_true(records[i].wall_time > 1.6e9 && records[i].wall_time < 1e11);
}

/* A resumed run writes a new file that sorts after the first and marks later steps of the first as purged. */
static void test_resume(void **unused)
{
    (void)unused;
    DsviTensorboard *first, *second;
    static Record records[2];
    assert_ok(dsvi_tensorboard_open(folder, 0, &first));
    assert_ok(dsvi_tensorboard_open(folder, 40, &second));
    assert_true(strcmp(dsvi_tensorboard_path(first), dsvi_tensorboard_path(second)) < 0);
    assert_int_equal(read_file(dsvi_tensorboard_path(second), records, 2), 2);
    assert_int_equal(records[1].session_status, 1);
    assert_int_equal(records[1].step, 41);
    dsvi_tensorboard_close(&first);
    dsvi_tensorboard_close(&second);
}

/* An image of any bytes is read back unchanged, and the checksums of its record are right. */
static void test_image(void **unused)
{
    (void)unused;
    DsviTensorboard *tensorboard;
    static unsigned char png[20000];
    static Record records[4];
    for (size_t i = 0; i < sizeof png; i++)
        png[i] = (unsigned char)(i * i >> 3);
    const DsviImage image = {
        .tag = "samples/clip",
        .png = png,
        .bytes = sizeof png,
        .height = 48,
        .width = 300,
    };
    const DsviScalar scalar = {"train/loss", 0.5};
    assert_ok(dsvi_tensorboard_open(folder, 0, &tensorboard));
    assert_ok(dsvi_tensorboard_image(tensorboard, 250, &image));
    assert_ok(dsvi_tensorboard_step(tensorboard, 251, &scalar, 1));
    assert_int_equal(read_file(dsvi_tensorboard_path(tensorboard), records, 4), 4);
    dsvi_tensorboard_close(&tensorboard);
    assert_int_equal(records[2].step, 250);
    assert_int_equal(records[2].scalars, 0);
    assert_string_equal(records[2].image_tag, "samples/clip");
    assert_true(records[2].image_height == 48 && records[2].image_width == 300);
    assert_true(records[2].image_colors == 3);
    assert_int_equal(records[2].image_bytes, sizeof png);
    assert_memory_equal(records[2].image, png, sizeof png);
    assert_int_equal(records[3].scalars, 1);
}

/* As many scalars and as long tags as the header allows. */
static void test_max(void **unused)
{
    (void)unused;
    DsviTensorboard *tensorboard;
    DsviScalar scalars[DSVI_TENSORBOARD_SCALARS_MAX];
    char tag[DSVI_TENSORBOARD_TAG_MAX + 1];
    memset(tag, 'x', sizeof tag - 1);
    tag[sizeof tag - 1] = 0;
    for (int i = 0; i < DSVI_TENSORBOARD_SCALARS_MAX; i++)
        scalars[i] = (DsviScalar){tag, i};
    assert_ok(dsvi_tensorboard_open(folder, 0, &tensorboard));
    assert_ok(dsvi_tensorboard_step(tensorboard, INT64_MAX, scalars, DSVI_TENSORBOARD_SCALARS_MAX));
    dsvi_tensorboard_close(&tensorboard);
}

static void test_refusal(void **unused)
{
    (void)unused;
    DsviTensorboard *tensorboard;
    char nowhere[DSVI_PATH_MAX];
    assert_ok(dsvi_path_join(nowhere, folder, "nowhere"));
    assert_fails(DSV_E_IO, "nowhere", dsvi_tensorboard_open(nowhere, 0, &tensorboard));
    assert_null(tensorboard);
    dsvi_tensorboard_close(&tensorboard);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc),   cmocka_unit_test(test_file), cmocka_unit_test(test_resume),
        cmocka_unit_test(test_image), cmocka_unit_test(test_max),  cmocka_unit_test(test_refusal),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
