/* A malformed safetensors file of any kind fails with its message and does nothing else. */
#include "base/rng.h"
#include "safetensors_case.h"

static const struct Hostile {
    const char *label, *header;
    size_t data_bytes;
    const char *words;
} hostile[] = {
    {"empty header", "", 0, "does not begin with {"},
    {"an array", "[]", 0, "does not begin with {"},
    {"a blank first", " {}", 0, "does not begin with {"},
    {"words", "hello", 0, "does not begin with {"},
    {"unfinished", "{", 0, "is not JSON"},
    {"unfinished string", "{\"a", 0, "is not JSON"},
    {"unfinished escape", "{\"a\\", 0, "is not JSON"},
    {"unfinished unicode", "{\"\\u12", 0, "is not JSON"},
    {"half a surrogate", "{\"\\ud800\":1}", 0, "is not JSON"},
    {"no value", "{\"a\":}", 0, "is not JSON"},
    {"comma at the end", "{" ENTRY("a", "F32", "1", 0, 4) ",}", 4, "is not JSON"},
    {"comment", "{/**/}", 0, "is not JSON"},
    {"garbage behind", "{} x", 0, "has text after its JSON, from byte 3"},
    {"two objects", "{}{}", 0, "has text after its JSON, from byte 2"},
    {"not UTF-8", "{\"\xff\":1}", 0, "is not UTF-8"},
    {"escaped zero", "{\"a\\u0000b\":1}", 0, "zero byte"},
    {"control character in a name", "{" ENTRY("a\\u001b[2J", "F32", "1", 0, 4) "}", 4,
     "control character 27"},

    {"metadata a list", "{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
    {"metadata null", "{\"__metadata__\":null}", 0, "__metadata__ is not an object"},
    {"metadata of numbers", "{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ entry a is not text"},
    {"metadata twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ is twice"},

    {"a tensor that is a number", "{\"a\":1}", 0, "tensor a: its entry is not an object"},
    {"a tensor that is a list", "{\"a\":[]}", 0, "tensor a: its entry is not an object"},
    {"a tensor that is null", "{\"a\":null}", 0, "tensor a: its entry is not an object"},
    {"nothing known", "{\"a\":{}}", 0, "tensor a has no dtype"},
    {"no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor a has no dtype"},
    {"no shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor a has no shape"},
    {"no offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor a has no data_offsets"},
    {"two dtypes", "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "tensor a has two of dtype"},
    {"two shapes", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
     "tensor a has two of shape"},
    {"letters of another case", "{\"a\":{\"DType\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "tensor a has no dtype"},

    {"dtype a number", "{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "its dtype is not text"},
    {"unknown dtype", ONE("F33", "1", 0, 4), 4, "tensor a has dtype F33, expected F32, BF16"},
    {"empty dtype", ONE("", "1", 0, 4), 4, "tensor a has dtype , expected"},
    {"small dtype", ONE("f32", "1", 0, 4), 4, "tensor a has dtype f32, expected"},
    {"dtype of the format that has no use here", ONE("BOOL", "1", 0, 1), 1,
     "tensor a has dtype BOOL, expected"},

    {"shape a number", "{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4,
     "its shape is not a list"},
    {"shape an object", "{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,4]}}", 4,
     "its shape is not a list"},
    {"shape of text", ONE("F32", "\"1\"", 0, 4), 4, "length 1 of its shape is not a whole number"},
    {"shape of lists", ONE("F32", "[1]", 0, 4), 4, "length 1 of its shape is not a whole number"},
    {"shape of null", ONE("F32", "1,null", 0, 4), 4, "length 2 of its shape is not a whole number"},
    {"shape of true", ONE("F32", "true", 0, 4), 4, "length 1 of its shape is not a whole number"},
    {"negative length", ONE("F32", "-1", 0, 4), 4, "length 1 of its shape is not a whole number"},
    {"two negative lengths", ONE("F32", "-1,-1", 0, 4), 4, "length 1 of its shape is not a whole number"},
    {"half a length", ONE("F32", "1.5", 0, 4), 4, "length 1 of its shape is not a whole number"},
    {"length 2^53", ONE("F32", "9007199254740992", 0, 4), 4, "length 1 of its shape is not a whole number"},
    {"length 2^53 + 1", ONE("F32", "9007199254740993", 0, 4), 4,
     "length 1 of its shape is not a whole number"},
    {"length 2^64 + 1", ONE("F32", "18446744073709551617", 0, 4), 4, "length 1 of its shape is not a whole"},
    {"length 1e400", ONE("F32", "1e400", 0, 4), 4, "length 1 of its shape is not a whole number"},
    {"nine dimensions", ONE("F32", "1,1,1,1,1,1,1,1,1", 0, 4), 4, "tensor a has more than 8 dimensions"},
    {"product 2^64", ONE("F32", "4294967296,4294967296", 0, 0), 0, "its shape has more than 2^53 elements"},
    {"product 2^64 + 1 elements' bytes", ONE("F32", "4611686018427387904,4", 0, 4), 4,
     "is not a whole number"},
    {"bytes 2^64", ONE("F64", "2147483648,4194304,256", 0, 0), 0, "its shape has more than 2^53 elements"},
    {"product 2^53 of bytes that wrap", ONE("F64", "4503599627370496,2", 0, 0), 0, "tensor a has 0 bytes"},
    {"huge but for a zero", ONE("F32", "9007199254740991,9007199254740991,0", 0, 0), 0,
     "more than 2^53 elements"},
    {"a zero but for huge", ONE("F32", "0,9007199254740991,9007199254740991", 0, 0), 0,
     "more than 2^53 elements"},

    {"offsets a number", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":4}}", 4,
     "are not two whole numbers"},
    {"offsets an object", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":{\"x\":0,\"y\":4}}}", 4,
     "are not two whole numbers"},
    {"no offset", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[]}}", 4,
     "are not two whole numbers"},
    {"one offset", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
     "are not two whole numbers"},
    {"three offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4,
     "are not two whole numbers"},
    {"offsets of text", ONE("F32", "1", "0", "4"), 4, "are not two whole numbers"},
    {"negative offset", ONE("F32", "1", -4, 0), 4, "are not two whole numbers"},
    {"half an offset", ONE("F32", "1", 0, 4.5), 4, "are not two whole numbers"},
    {"offset beyond 2^64", ONE("F32", "1", 18446744073709551616, 18446744073709551620), 4,
     "are not two whole numbers"},
    {"backwards", ONE("F32", "1", 4, 0), 4, "tensor a has bytes 4 to 0"},
    {"beyond the file", ONE("F32", "1", 4, 8), 4, "tensor a has bytes 4 to 8, the file has 4"},
    {"far beyond the file", ONE("F32", "1", 9007199254740987, 9007199254740991), 4, "the file has 4"},
    {"into the header", ONE("U8", "60", 0, 60), 4, "tensor a has bytes 0 to 60, the file has 4"},
    {"cut short", ONE("F32", "4", 0, 16), 15, "tensor a has bytes 0 to 16, the file has 15"},
    {"too few bytes for the shape", ONE("F32", "2", 0, 4), 4,
     "tensor a has 4 bytes, its shape and dtype need 8"},
    {"too many bytes for the shape", ONE("F32", "1", 0, 8), 8,
     "tensor a has 8 bytes, its shape and dtype need 4"},
    {"bytes of another dtype", ONE("BF16", "2", 0, 8), 8, "tensor a has 8 bytes, its shape and dtype need 4"},
    {"bytes for an empty shape", ONE("F32", "0", 0, 4), 4,
     "tensor a has 4 bytes, its shape and dtype need 0"},

    {"data of nobody", "{}", 1, "1 bytes at its end belong to no tensor"},
    {"data behind", ONE("F32", "1", 0, 4), 5, "1 bytes at its end belong to no tensor"},
    {"data before", ONE("F32", "1", 4, 8), 8, "tensor a follows after a gap of 4 bytes, expected none"},
    {"a gap", "{" ENTRY("a", "U8", "2", 0, 2) "," ENTRY("b", "U8", "2", 3, 5) "}", 5,
     "tensor b follows after a gap of 1 bytes"},
    {"an overlap", "{" ENTRY("a", "U8", "3", 0, 3) "," ENTRY("b", "U8", "2", 2, 4) "}", 4,
     "tensor b overlaps a by 1 bytes"},
    {"the same bytes", "{" ENTRY("a", "U8", "3", 0, 3) "," ENTRY("b", "U8", "3", 0, 3) "}", 3,
     "tensor b overlaps a by 3 bytes"},
    {"inside another", "{" ENTRY("a", "U8", "4", 0, 4) "," ENTRY("b", "U8", "1", 1, 2) "}", 4,
     "tensor b overlaps a by 3 bytes"},
    {"an empty one inside another", "{" ENTRY("a", "U8", "4", 0, 4) "," ENTRY("b", "U8", "0", 1, 1) "}", 4,
     "tensor b overlaps a by 3 bytes"},
    {"a name twice", "{" ENTRY("a", "U8", "1", 0, 1) "," ENTRY("a", "U8", "1", 1, 2) "}", 2,
     "tensor a is twice"},
    {"a name twice, escaped", "{" ENTRY("a", "U8", "1", 0, 1) "," ENTRY("\\u0061", "U8", "1", 1, 2) "}", 2,
     "tensor a is twice"},
};

static void hostile_headers_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
        assert_refused(hostile[i].label, file_with(hostile[i].header, hostile[i].data_bytes),
                       hostile[i].words);
}

static void hostile_sizes_are_refused(void **state)
{
    static const char ok[] = ONE("F32", "1", 0, 4);
    const char *path = scratch_path("short.safetensors");
    char words[64];
    (void)state;
    for (size_t bytes = 0; bytes < 8; bytes++) {
        assert_ok(dsvi_file_write(path, "\0\0\0\0\0\0\0", bytes));
        snprintf(words, sizeof words, "%zu bytes, a safetensors file has at least 8", bytes);
        assert_refused("shorter than its size", path, words);
    }
    assert_refused("no header", file_of(0, "", 0, 0), "does not begin with {");
    assert_refused("2^64 - 1", file_of(UINT64_MAX, ok, strlen(ok), 4),
                   "header of 18446744073709551615 bytes, expected at most");
    assert_refused("2^63", file_of(UINT64_C(1) << 63, ok, strlen(ok), 4),
                   "header of 9223372036854775808 bytes");
    assert_refused("so that 8 more wrap", file_of(UINT64_MAX - 7, ok, strlen(ok), 4),
                   "header of 1844674407370955160");
    assert_refused("one beyond the file", file_of(strlen(ok) + 5, ok, strlen(ok), 4), "expected at most");
    assert_refused("into the data", file_of(strlen(ok) + 4, ok, strlen(ok), 4), "has text after its JSON");
    assert_refused("a zero behind", file_of(sizeof ok, ok, sizeof ok, 4), "zero byte");
    assert_refused("less than it is", file_of(strlen(ok) - 1, ok, strlen(ok), 4), "is not JSON");
}

/* Headers of more than 100 MB are refused with this number in the message; the file is sparse. */
static void a_header_of_more_than_100_mb(void **state)
{
    const char *path = file_of(100000001, "{", 1, 0);
    (void)state;
    assert_int_equal(truncate(path, 200000000), 0);
    assert_refused("beyond the cap", path, "header of 100000001 bytes, expected at most 100000000");
}

/* Writes a header: `before`, `count` times `piece`, `after`. */
static const char *file_repeating(const char *before, const char *piece, size_t count, const char *after)
{
    size_t length = strlen(piece), bytes = strlen(before) + count * length + strlen(after);
    char *header = malloc(bytes + 1), *end = header;
    assert_non_null(header);
    end += sprintf(end, "%s", before);
    for (size_t i = 0; i < count; i++, end += length)
        memcpy(end, piece, length);
    sprintf(end, "%s", after);
    const char *path = file_of(bytes, header, bytes, 0);
    free(header);
    return path;
}

static void hostile_repetition_is_refused(void **state)
{
    static const char empty[] = "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    DsviSafetensors *file;
    (void)state;
    assert_refused("deep lists", file_repeating("{\"a\":", "[", 1000000, ""), "is not JSON");
    assert_refused("deep objects", file_repeating("", "{\"a\":", 300000, "1"), "is not JSON");
    assert_refused("a long number", file_repeating("{\"a\":", "1", 100000, "}"),
                   "its entry is not an object");
    assert_refused("a long shape",
                   file_repeating("{\"a\":{\"dtype\":\"U8\",\"shape\":[1", ",1", 100000,
                                  "],\"data_offsets\":[0,1]}}"),
                   "more than 8 dimensions");
    assert_refused("more values than memory", file_repeating("{\"a\":[1", ",1", 4000000, "]}"),
                   "its header has 4000001 values, expected at most 4000000");
    assert_refused("a long name", file_repeating("{\"", "n", 1025, empty),
                   "nnn... is longer than 1024 bytes");
    assert_ok(dsvi_safetensors_open(file_repeating("{\"", "n", 1024, empty), &file));
    dsvi_safetensors_close(&file);
}

/* JSON that ends where the file and its last page end: no byte after the end may be read. */
static void headers_that_end_with_the_page(void **state)
{
    static const char *const tail[] = {"\"",   "\\",   "\\u",    "\\u00",  "\\ud834\\", "\":",
                                       "\":-", "\":1", "\":1e",  "\":tru", "\":nul",    "\":\"",
                                       "\":[", "\":{", "\":[1,", "\":{\"", "\":{}"};
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = page - 8;
    char *header = malloc(page);
    assert_non_null(header);
    for (size_t i = 0; i < sizeof tail / sizeof *tail; i++) {
        memset(header, 'n', bytes);
        memcpy(header, "{\"", 2);
        memcpy(header + bytes - strlen(tail[i]), tail[i], strlen(tail[i]));
        assert_refused(tail[i], file_of(bytes, header, bytes, 0), "is not JSON");
    }
    free(header);
}

static void what_is_no_file(void **state)
{
    DsviSafetensors *file;
    (void)state;
    assert_fails(DSV_E_NOT_FOUND, "nowhere: cannot open it: No such file",
                 dsvi_safetensors_open(scratch_path("nowhere"), &file));
    assert_fails(DSV_E_IO, "not a regular file", dsvi_safetensors_open(scratch_folder, &file));
    assert_fails(DSV_E_IO, "not a regular file", dsvi_safetensors_open("/dev/zero", &file));
    file = NULL;
    dsvi_safetensors_close(&file);
}

/* A file with a few bytes changed, added, removed or doubled either opens and fulfils all checks, or fails.
 */
static void mutations_open_or_fail(void **state)
{
    static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"}," ENTRY(
        "one", "F32", "2,3", 0, 24) "," ENTRY("two.weight", "BF16", "4", 24,
                                              32) "," ENTRY("e", "I64", "0,7", 32,
                                                            32) "," ENTRY("three", "U8", "8", 32, 40) "}";
    static const char *const token[] = {"{",    "}",    "[",    "]",    ",",
                                        ":",    "\"",   "0",    "-1",   "9007199254740991",
                                        "1e9",  "1.5",  "null", "true", "\\u0000",
                                        "\\",   "\x80", "F64",  "I32",  "one",
                                        "shape"};
    enum { ROUNDS = 6000, DATA = 40, ROOM = 2 * sizeof good };
    DsviRng rng = {.seed = 11, .purpose = DSVI_RNG_TEST};
    uint64_t draw = 0;
    int opened = 0;
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        char header[ROOM];
        size_t bytes = strlen(good), data_bytes = DATA;
        memcpy(header, good, bytes);
        uint64_t edits = 1 + dsvi_rng_below(rng, draw++, 3);
        for (uint64_t e = 0; e < edits; e++) {
            size_t at = dsvi_rng_below(rng, draw++, bytes), word = dsvi_rng_below(rng, draw++, 21);
            size_t length = strlen(token[word]), cut = dsvi_rng_below(rng, draw++, 4);
            switch (dsvi_rng_below(rng, draw++, 4)) {
            case 0: /* one byte is another */ header[at] = (char)dsvi_rng_below(rng, draw++, 256); break;
            case 1: /* a digit is another */
                at += strcspn(header + at, "0123456789") < bytes - at ? strcspn(header + at, "0123456789")
                                                                      : 0;
                header[at] = (char)('0' + dsvi_rng_below(rng, draw++, 10));
                break;
            case 2: /* some bytes are a token */
                cut = cut < bytes - at ? cut : bytes - at;
                memmove(header + at + length, header + at + cut, bytes - at - cut);
                memcpy(header + at, token[word], length);
                bytes += length - cut;
                break;
            case 3: /* cut off, or data added */
                if (cut == 0)
                    bytes = at + 1;
                else
                    data_bytes = dsvi_rng_below(rng, draw++, 2 * DATA);
                break;
            }
            header[bytes] = 0;
        }
        uint64_t said = bytes;
        if (dsvi_rng_below(rng, draw++, 20) == 0)
            said ^= UINT64_C(1) << dsvi_rng_below(rng, draw++, 64);
        const char *path = file_of(said, header, bytes, data_bytes);
        DsviSafetensors *file = NULL;
        DsvStatus status = dsvi_safetensors_open(path, &file);
        assert_true(status == DSV_OK || (status == DSV_E_FORMAT && !file));
        if (status == DSV_OK) {
            check_promises(file, 8 + bytes + data_bytes);
            opened++;
        } else {
            assert_non_null(strstr(dsv_error_message(), path));
        }
        dsvi_safetensors_close(&file);
    }
    /* Some changes are harmless (a letter of a name, an equal digit), but not most. */
    assert_in_range(opened, ROUNDS / 100, ROUNDS / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_headers_are_refused),    cmocka_unit_test(hostile_sizes_are_refused),
        cmocka_unit_test(a_header_of_more_than_100_mb),   cmocka_unit_test(hostile_repetition_is_refused),
        cmocka_unit_test(headers_that_end_with_the_page), cmocka_unit_test(what_is_no_file),
        cmocka_unit_test(mutations_open_or_fail),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
