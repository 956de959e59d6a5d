/* Hash keys: of bytes, of whole files, of samples of large files. */
#include "base/hash_key.h"

#include "base/scratch.h"

static void a_file_has_the_key_of_its_bytes(void **state)
{
    (void)state;
    enum { BYTES = (3 << 20) + 17 }; /* more than three blocks */
    unsigned char *data = malloc(BYTES);
    DsviHashKey key, of_bytes;
    assert_non_null(data);
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)(i * 7 + i / 251);
    assert_ok(dsvi_file_write(scratch_path("a"), data, BYTES));
    assert_ok(dsvi_file_hash_key(scratch_path("a"), &key));
    of_bytes = dsvi_hash_key_of(data, BYTES);
    assert_string_equal(key.hex, of_bytes.hex);
    assert_true(dsvi_hash_key_same(&key, &of_bytes));
    data[BYTES - 1] ^= 1;
    assert_ok(dsvi_file_write(scratch_path("a"), data, BYTES));
    assert_ok(dsvi_file_hash_key(scratch_path("a"), &key));
    assert_false(dsvi_hash_key_same(&key, &of_bytes));
    /* XXH3-128 of no bytes, from the specification of xxHash */
    assert_ok(dsvi_file_write(scratch_path("empty"), "", 0));
    assert_ok(dsvi_file_hash_key(scratch_path("empty"), &key));
    assert_string_equal(key.hex, "99aa06d3014798d86001c324468d497f");
    assert_fails(DSV_E_NOT_FOUND, "none", dsvi_file_hash_key(scratch_path("none"), &key));
    assert_string_equal(key.hex, "");
    free(data);
}

/* A file of 40 MiB: a change at either end and of its size changes the key. */
static void samples_tell_large_files_apart(void **state)
{
    (void)state;
    const size_t bytes = (size_t)40 << 20;
    DsviHashKey key[4];
    char *data = calloc(bytes + 1, 1);
    assert_non_null(data);
    for (int i = 0; i < 4; i++) {
        data[0] = i == 1;
        data[bytes - 1] = i == 2;
        assert_ok(dsvi_file_write(scratch_path("large"), data, bytes + (i == 3)));
        assert_ok(dsvi_file_sample_key(scratch_path("large"), &key[i]));
        for (int j = 0; j < i; j++)
            assert_false(dsvi_hash_key_same(&key[i], &key[j]));
    }
    free(data);
}

static void only_whole_keys_are_read(void **state)
{
    (void)state;
    DsviHashKey key, none = {""};
    assert_true(dsvi_hash_key_read("0123456789abcdef0123456789abcdef", &key));
    assert_string_equal(key.hex, "0123456789abcdef0123456789abcdef");
    static const char *const BAD[] = {NULL, "", "0123456789abcdef", "0123456789abcdef0123456789abcdeF",
                                      "0123456789abcdef0123456789abcdef0"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        assert_false(dsvi_hash_key_read(BAD[i], &key));
        assert_string_equal(key.hex, "");
    }
    assert_false(dsvi_hash_key_same(&none, &none));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_has_the_key_of_its_bytes),
        cmocka_unit_test(samples_tell_large_files_apart),
        cmocka_unit_test(only_whole_keys_are_read),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
