/* Safetensors: what is written is read, and no file, however hostile, does more than fail with its sentence.
 */
#include "base/safetensors.h"

#include "base/rng.h"
#include "scratch.h"

/* A file of this header, said to have `said` bytes, and `data_bytes` bytes of data: 1, 2, 3, ... Not synced,
 * as thousands of them are made. */
static const char *file_of(uint64_t said, const char *header, size_t header_bytes, size_t data_bytes)
{
    const char *path = scratch_path("case.safetensors");
    unlink(path); /* file systems hasten to store what overwrites a file */
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        fputc((int)(said >> 8 * i & 0xff), file);
    fwrite(header, 1, header_bytes, file);
    for (size_t i = 0; i < data_bytes; i++)
        fputc((int)(i + 1) & 0xff, file);
    assert_int_equal(fclose(file), 0);
    return path;
}

static const char *file_with(const char *header, size_t data_bytes)
{
    return file_of(strlen(header), header, strlen(header), data_bytes);
}

/* All that an open file promises: tensors found by name, bytes that fit shapes and fill the file, and every
 * byte there to be read. */
static void check_promises(const DsvSafetensors *file, uint64_t file_bytes)
{
    const volatile unsigned char *byte;
    unsigned sum = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < dsvi_safetensors_count(file); i++) {
        const DsvStoredTensor *t = dsvi_safetensors_at(file, i);
        int64_t count = 1;
        assert_true(t->ndim >= 0 && t->ndim <= DSV_TENSOR_MAX_DIMS);
        for (int d = 0; d < t->ndim; d++) {
            assert_true(t->shape[d] >= 0);
            count *= t->shape[d];
        }
        assert_true(t->count == count);
        assert_true(t->bytes == (size_t)count * dsvi_dtype_size(t->dtype));
        assert_true((uintptr_t)t->data % dsvi_dtype_size(t->dtype) == 0);
        assert_ptr_equal(dsvi_safetensors_find(file, t->name), t);
        byte = t->data;
        for (size_t b = 0; b < t->bytes; b++)
            sum += byte[b];
        bytes += t->bytes;
    }
    assert_true(bytes <= file_bytes - 8 && sum <= 255 * bytes);
}

static void assert_refused(const char *label, const char *path, const char *words)
{
    DsvSafetensors *file = (DsvSafetensors *)path; /* anything but NULL */
    DsvStatus status = dsvi_safetensors_open(path, &file);
    if (status != DSV_E_FORMAT || !strstr(dsv_error_message(), words))
        fail_msg("%s: wanted '%s', got %s: %s", label, words, dsv_status_text(status), dsv_error_message());
    assert_non_null(strstr(dsv_error_message(), path));
    assert_null(file);
}

#define ENTRY(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," #end "]}"
#define ONE(dtype, shape, begin, end) "{" ENTRY("a", dtype, shape, begin, end) "}"

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
    {"garbage behind", "{} x", 0, "goes on behind its JSON, from byte 3"},
    {"two objects", "{}{}", 0, "goes on behind its JSON, from byte 2"},
    {"not UTF-8", "{\"\xff\":1}", 0, "is not UTF-8"},
    {"escaped zero", "{\"a\\u0000b\":1}", 0, "zero byte"},
    {"control character in a name", "{" ENTRY("a\\u001b[2J", "F32", "1", 0, 4) "}", 4,
     "control character 27"},

    {"metadata a list", "{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
    {"metadata null", "{\"__metadata__\":null}", 0, "__metadata__ is not an object"},
    {"metadata of numbers", "{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ entry a is not text"},
    {"metadata twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ stands twice"},

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
    {"unknown dtype", ONE("F33", "1", 0, 4), 4, "tensor a has dtype F33, wanted F32, BF16"},
    {"empty dtype", ONE("", "1", 0, 4), 4, "tensor a has dtype , wanted"},
    {"small dtype", ONE("f32", "1", 0, 4), 4, "tensor a has dtype f32, wanted"},
    {"dtype of the format that has no use here", ONE("BOOL", "1", 0, 1), 1,
     "tensor a has dtype BOOL, wanted"},

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
    {"backwards", ONE("F32", "1", 4, 0), 4, "tensor a lies at bytes 4 to 0"},
    {"beyond the file", ONE("F32", "1", 4, 8), 4, "tensor a lies at bytes 4 to 8, the file has 4"},
    {"far beyond the file", ONE("F32", "1", 9007199254740987, 9007199254740991), 4, "the file has 4"},
    {"into the header", ONE("U8", "60", 0, 60), 4, "tensor a lies at bytes 0 to 60, the file has 4"},
    {"cut short", ONE("F32", "4", 0, 16), 15, "tensor a lies at bytes 0 to 16, the file has 15"},
    {"too few bytes for the shape", ONE("F32", "2", 0, 4), 4,
     "tensor a has 4 bytes, its shape and dtype want 8"},
    {"too many bytes for the shape", ONE("F32", "1", 0, 8), 8,
     "tensor a has 8 bytes, its shape and dtype want 4"},
    {"bytes of another dtype", ONE("BF16", "2", 0, 8), 8, "tensor a has 8 bytes, its shape and dtype want 4"},
    {"bytes for an empty shape", ONE("F32", "0", 0, 4), 4,
     "tensor a has 4 bytes, its shape and dtype want 0"},

    {"data of nobody", "{}", 1, "1 bytes at its end belong to no tensor"},
    {"data behind", ONE("F32", "1", 0, 4), 5, "1 bytes at its end belong to no tensor"},
    {"data before", ONE("F32", "1", 4, 8), 8, "tensor a follows after a gap of 4 bytes, wanted none"},
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
     "tensor a stands twice"},
    {"a name twice, escaped", "{" ENTRY("a", "U8", "1", 0, 1) "," ENTRY("\\u0061", "U8", "1", 1, 2) "}", 2,
     "tensor a stands twice"},
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
                   "header of 18446744073709551615 bytes, wanted at most");
    assert_refused("2^63", file_of(UINT64_C(1) << 63, ok, strlen(ok), 4),
                   "header of 9223372036854775808 bytes");
    assert_refused("so that 8 more wrap", file_of(UINT64_MAX - 7, ok, strlen(ok), 4),
                   "header of 1844674407370955160");
    assert_refused("one beyond the file", file_of(strlen(ok) + 5, ok, strlen(ok), 4), "wanted at most");
    assert_refused("into the data", file_of(strlen(ok) + 4, ok, strlen(ok), 4), "goes on behind its JSON");
    assert_refused("a zero behind", file_of(sizeof ok, ok, sizeof ok, 4), "zero byte");
    assert_refused("less than it is", file_of(strlen(ok) - 1, ok, strlen(ok), 4), "is not JSON");
}

/* 100 MB are the most: a sparse file of more is refused by that figure. */
static void a_header_of_more_than_100_mb(void **state)
{
    const char *path = file_of(100000001, "{", 1, 0);
    (void)state;
    assert_int_equal(truncate(path, 200000000), 0);
    assert_refused("beyond the cap", path, "header of 100000001 bytes, wanted at most 100000000");
}

/* A header is made of pieces: before, `count` times `piece`, after. */
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
    DsvSafetensors *file;
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
                   "its header has 4000001 values, wanted at most 4000000");
    assert_refused("a long name", file_repeating("{\"", "n", 1025, empty),
                   "nnn... is longer than 1024 bytes");
    assert_ok(dsvi_safetensors_open(file_repeating("{\"", "n", 1024, empty), &file));
    dsvi_safetensors_close(&file);
}

/* JSON that breaks off where the file, and its last page, ends: nothing behind may be read. */
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
    DsvSafetensors *file;
    (void)state;
    assert_fails(DSV_E_NOT_FOUND, "nowhere: cannot open it: No such file",
                 dsvi_safetensors_open(scratch_path("nowhere"), &file));
    assert_fails(DSV_E_IO, "not a regular file", dsvi_safetensors_open(scratch_folder, &file));
    assert_fails(DSV_E_IO, "not a regular file", dsvi_safetensors_open("/dev/zero", &file));
    file = NULL;
    dsvi_safetensors_close(&file);
}

/* Legal, though some writers never make it. */
static void unusual_files_are_read(void **state)
{
    DsvSafetensors *file;
    const DsvStoredTensor *t;
    (void)state;
    assert_ok(dsvi_safetensors_open(file_with("{}", 0), &file));
    assert_int_equal(dsvi_safetensors_count(file), 0);
    assert_null(dsvi_safetensors_find(file, "a"));
    assert_null(dsvi_safetensors_metadata(file, "format"));
    dsvi_safetensors_close(&file);
    assert_null(file);

    assert_ok(dsvi_safetensors_open(file_with("{\"__metadata__\":{}}", 0), &file));
    assert_null(dsvi_safetensors_metadata(file, "format"));
    dsvi_safetensors_close(&file);

    /* Blanks everywhere, the entry's parts in another order and with one more, names of any letters. */
    assert_ok(dsvi_safetensors_open(
        file_with(
            "{ \"\\u00e9 \\\"\" : {\n \"shape\" : [ 2 , 1e0 ] , \"note\" : [{}] ,\t\"data_offsets\" : [0, 8],"
            " \"dtype\" : \"F32\" } }   ",
            8),
        &file));
    t = dsvi_safetensors_find(file, "é \"");
    assert_non_null(t);
    assert_true(t->ndim == 2 && t->shape[0] == 2 && t->shape[1] == 1 && t->count == 2);
    check_promises(file, 1000);
    dsvi_safetensors_close(&file);

    /* Empty tensors before, between and behind others, scalars, eight dimensions; headers not in file order.
     */
    assert_ok(dsvi_safetensors_open(file_with("{" ENTRY("z", "U8", "", 3, 4) "," ENTRY(
                                                  "e3", "I64", "9,0", 4,
                                                  4) "," ENTRY("y", "U8", "3,1,1,1,1,1,1,1", 0,
                                                               3) "," ENTRY("e1", "F32", "0", 0,
                                                                            0) "," ENTRY("e2", "U8",
                                                                                         "0,9007199254740991",
                                                                                         3, 3) "}",
                                              4),
                                    &file));
    static const char *const order[] = {"e1", "y", "e2", "z", "e3"};
    for (size_t i = 0; i < 5; i++)
        assert_string_equal(dsvi_safetensors_at(file, i)->name, order[i]);
    t = dsvi_safetensors_find(file, "z");
    assert_true(t->ndim == 0 && t->count == 1 && *(const unsigned char *)t->data == 4);
    check_promises(file, 1000);
    dsvi_safetensors_close(&file);
}

/* Numbers that begin where their kind cannot be read are handed out where it can. */
static void unaligned_tensors_are_aligned(void **state)
{
    DsvSafetensors *file;
    char header[512];
    (void)state;
    for (int blanks = 0; blanks < 8; blanks++) { /* the data begin at any byte */
        snprintf(header, sizeof header,
                 "{" ENTRY("a", "U8", "1", 0, 1) "," ENTRY("b", "F64", "2", 1,
                                                           17) "," ENTRY("c", "BF16", "1", 17,
                                                                         19) "," ENTRY("d", "I32", "1", 19,
                                                                                       23) "}%*s",
                 blanks, "");
        assert_ok(dsvi_safetensors_open(file_with(header, 23), &file));
        check_promises(file, 1000);
        for (size_t i = 0, next = 1; i < 4; i++) {
            const DsvStoredTensor *t = dsvi_safetensors_at(file, i);
            for (size_t b = 0; b < t->bytes; b++)
                assert_int_equal(((const unsigned char *)t->data)[b], next++);
        }
        dsvi_safetensors_close(&file);
    }
}

/* A file that a few bytes changed, added, cut out or doubled either opens and keeps its promises, or fails.
 */
static void mutations_open_or_fail(void **state)
{
    static const char good[] =
        "{\"__metadata__\":{\"format\":\"pt\"}," ENTRY("one", "F32", "2,3", 0,
                                                       24) "," ENTRY("two.weight", "BF16", "4", 24,
                                                                     32) "," ENTRY("e", "I64", "0,7", 32,
                                                                                   32) "," ENTRY("three",
                                                                                                 "U8", "8",
                                                                                                 32, 40) "}";
    static const char *const token[] = {"{",    "}",    "[",    "]",    ",",
                                        ":",    "\"",   "0",    "-1",   "9007199254740991",
                                        "1e9",  "1.5",  "null", "true", "\\u0000",
                                        "\\",   "\x80", "F64",  "I32",  "one",
                                        "shape"};
    enum { ROUNDS = 6000, DATA = 40, ROOM = 2 * sizeof good };
    DsvRng rng = {.seed = 11, .purpose = DSV_RNG_TEST};
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
        DsvSafetensors *file = NULL;
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
    /* Harmless changes (a letter of a name, an equal digit) are some, but not most. */
    assert_in_range(opened, ROUNDS / 100, ROUNDS / 2);
}

static void what_is_written_is_read(void **state)
{
    static const float f32[6] = {0, -1, 2.5f, 3, 4, 5e-30f};
    static const uint16_t bf16[2] = {0x3f80, 0xc000};
    static const int64_t i64[1] = {INT64_MIN};
    static const uint8_t u8[3] = {7, 8, 9};
    static const DsvStoredTensor tensors[] = {
        {"a.b\n\"é", DSV_F32, 2, {2, 3}, 6, 24, f32}, {"none", DSV_F16, 3, {4, 0, 2}, 0, 0, NULL},
        {"scalar", DSV_I64, 0, {0}, 1, 8, i64},       {"bf", DSV_BF16, 1, {2}, 2, 4, bf16},
        {"bytes", DSV_U8, 2, {1, 3}, 3, 3, u8},
    };
    static const char *const metadata[][2] = {{"grid", "3,4,5"}, {"quote", "\"\\\n"}, {"empty", ""}};
    const char *path = scratch_path("written.safetensors");
    DsvSafetensors *file;
    uint64_t size;
    (void)state;
    /* A line break in a name can be written but would not be read. */
    assert_ok(dsvi_safetensors_write(path, tensors, 5, metadata, 3));
    assert_refused("control character", path, "control character 10");

    assert_ok(dsvi_safetensors_write(path, tensors + 1, 4, metadata, 3));
    assert_ok(dsvi_safetensors_open(path, &file));
    assert_ok(dsvi_file_size(path, &size));
    assert_string_equal(dsvi_safetensors_path(file), path);
    assert_int_equal(dsvi_safetensors_count(file), 4);
    check_promises(file, size);
    for (size_t i = 0; i < 4; i++) {
        const DsvStoredTensor *got = dsvi_safetensors_at(file, i), *want = &tensors[1 + i];
        assert_string_equal(got->name, want->name);
        assert_true(got->dtype == want->dtype && got->ndim == want->ndim && got->count == want->count);
        assert_memory_equal(got->shape, want->shape, sizeof got->shape);
        assert_int_equal(got->bytes, want->bytes);
        if (want->bytes > 0)
            assert_memory_equal(got->data, want->data, want->bytes);
    }
    assert_string_equal(dsvi_safetensors_metadata(file, "format"), "pt");
    assert_string_equal(dsvi_safetensors_metadata(file, "grid"), "3,4,5");
    assert_string_equal(dsvi_safetensors_metadata(file, "quote"), "\"\\\n");
    assert_string_equal(dsvi_safetensors_metadata(file, "empty"), "");
    assert_null(dsvi_safetensors_metadata(file, "Grid"));
    dsvi_safetensors_close(&file);

    assert_ok(dsvi_safetensors_write(path, NULL, 0, NULL, 0));
    assert_ok(dsvi_safetensors_open(path, &file));
    assert_int_equal(dsvi_safetensors_count(file), 0);
    dsvi_safetensors_close(&file);
}

/* By the letter of the format, so that another's reader reads it: size, header padded to 8 bytes, data. */
static void the_written_bytes(void **state)
{
    static const float one = 1;
    static const DsvStoredTensor tensor = {"w", DSV_F32, 1, {1}, 1, 4, &one};
    static const char *const metadata[][2] = {{"k", "v"}};
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\",\"k\":\"v\"},"
                                 "\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    const char *path = scratch_path("bytes.safetensors");
    char *text;
    size_t bytes, padded = (strlen(header) + 7) / 8 * 8;
    (void)state;
    assert_ok(dsvi_safetensors_write(path, &tensor, 1, metadata, 1));
    assert_ok(dsvi_file_read(path, 4096, &text, &bytes));
    assert_int_equal(bytes, 8 + padded + 4);
    assert_int_equal((unsigned char)text[0], padded);
    for (int i = 1; i < 8; i++)
        assert_int_equal(text[i], 0);
    assert_memory_equal(text + 8, header, strlen(header));
    for (size_t i = 8 + strlen(header); i < 8 + padded; i++)
        assert_int_equal(text[i], ' ');
    assert_memory_equal(text + 8 + padded, "\0\0\x80\x3f", 4);
    free(text);
}

static void failed_writes_say_why(void **state)
{
    static const float one = 1;
    static const DsvStoredTensor tensor = {"w", DSV_F32, 1, {1}, 1, 4, &one};
    (void)state;
    assert_fails(DSV_E_IO, "/dev/full: cannot write",
                 dsvi_safetensors_write("/dev/full", &tensor, 1, NULL, 0));
    assert_fails(DSV_E_IO, "No space left on device",
                 dsvi_safetensors_write("/dev/full", &tensor, 1, NULL, 0));
    assert_fails(DSV_E_NOT_FOUND, "nowhere/x: cannot write it: No such file",
                 dsvi_safetensors_write(scratch_path("nowhere/x"), &tensor, 1, NULL, 0));
}

static void wanted_tensors(void **state)
{
    static const int64_t right[] = {2, 3}, any[] = {-1, 3}, wrong[] = {2, 4}, longer[] = {2, 3, 1};
    DsvSafetensors *file;
    const DsvStoredTensor *t;
    (void)state;
    assert_ok(dsvi_safetensors_open(file_with(ONE("U8", "2,3", 0, 6), 6), &file));
    assert_ok(dsvi_safetensors_want(file, "a", 2, right, &t));
    assert_string_equal(t->name, "a");
    assert_ok(dsvi_safetensors_want(file, "a", 2, any, &t));
    assert_ok(dsvi_safetensors_want(file, "a", -1, NULL, &t));
    assert_fails(DSV_E_NOT_FOUND, "case.safetensors: no tensor b in it",
                 dsvi_safetensors_want(file, "b", -1, NULL, &t));
    assert_null(t);
    assert_fails(DSV_E_SHAPE, "tensor a is (2, 3), wanted (2, 4)",
                 dsvi_safetensors_want(file, "a", 2, wrong, &t));
    assert_fails(DSV_E_SHAPE, "tensor a is (2, 3), wanted (2, 3, 1)",
                 dsvi_safetensors_want(file, "a", 3, longer, &t));
    assert_fails(DSV_E_SHAPE, "tensor a is (2, 3), wanted (any)",
                 dsvi_safetensors_want(file, "a", 1, any, &t));
    assert_fails(DSV_E_SHAPE, "tensor a is (2, 3), wanted ()", dsvi_safetensors_want(file, "a", 0, NULL, &t));
    dsvi_safetensors_close(&file);
}

static void thousands_of_tensors(void **state)
{
    enum { COUNT = 5000 };
    static DsvStoredTensor tensors[COUNT];
    static char names[COUNT][32];
    static int32_t values[COUNT];
    const char *path = scratch_path("many.safetensors");
    DsvSafetensors *file;
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "blocks.%d.weight", i * 7919 % COUNT);
        values[i] = i;
        tensors[i] = (DsvStoredTensor){names[i], DSV_I32, 1, {1}, 1, 4, &values[i]};
    }
    assert_ok(dsvi_safetensors_write(path, tensors, COUNT, NULL, 0));
    assert_ok(dsvi_safetensors_open(path, &file));
    assert_int_equal(dsvi_safetensors_count(file), COUNT);
    for (int i = 0; i < COUNT; i++) {
        const DsvStoredTensor *t = dsvi_safetensors_find(file, names[i]);
        assert_non_null(t);
        assert_int_equal(*(const int32_t *)t->data, i);
        assert_ptr_equal(t, dsvi_safetensors_at(file, (size_t)i));
    }
    assert_null(dsvi_safetensors_find(file, "blocks.5000.weight"));
    assert_null(dsvi_safetensors_find(file, ""));
    dsvi_safetensors_close(&file);
}

/* Files that Hugging Face's own library wrote. */
static void golden_files_are_read(void **state)
{
    static const char *const golden[] = {"fixtures/dit_a/diffusion_pytorch_model.safetensors",
                                         "fixtures/attention/list8_b1h2_64x128_d128.safetensors",
                                         "fixtures/heads/heads.safetensors"};
    (void)state;
    if (!dsvi_path_exists(shared_path(golden[0]))) {
        print_message("SKIPPED: golden files are not there: %s\n", shared_path(golden[0]));
        skip();
    }
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        DsvSafetensors *file;
        uint64_t size;
        assert_ok(dsvi_safetensors_open(shared_path(golden[i]), &file));
        assert_ok(dsvi_file_size(shared_path(golden[i]), &size));
        assert_true(dsvi_safetensors_count(file) > 0);
        check_promises(file, size);
        dsvi_safetensors_close(&file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_headers_are_refused),
        cmocka_unit_test(hostile_sizes_are_refused),
        cmocka_unit_test(a_header_of_more_than_100_mb),
        cmocka_unit_test(hostile_repetition_is_refused),
        cmocka_unit_test(headers_that_end_with_the_page),
        cmocka_unit_test(what_is_no_file),
        cmocka_unit_test(unusual_files_are_read),
        cmocka_unit_test(unaligned_tensors_are_aligned),
        cmocka_unit_test(mutations_open_or_fail),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(the_written_bytes),
        cmocka_unit_test(failed_writes_say_why),
        cmocka_unit_test(wanted_tensors),
        cmocka_unit_test(thousands_of_tensors),
        cmocka_unit_test(golden_files_are_read),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
