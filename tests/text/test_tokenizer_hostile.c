/* Malformed tokenizer.json and spiece.model: one sentence that names the file and the key. */
#include "base/scratch.h"
#include "text/tokenizer.h"

#define ADDED "\"added_tokens\":[{\"id\":1,\"content\":\"</s>\"}]"
#define SPLIT "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\"}"
#define PIECES "[\"<unk>\",0],[\"</s>\",0],[\"\xe2\x96\x81\",-2.5],[\"\\u0061\\n\\ud83d\\ude00\",-3e-1]"
#define WITH_MODEL(model) "{" ADDED "," SPLIT ",\"model\":" model "}"
#define WITH_VOCAB(vocab) \
    WITH_MODEL("{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":false,\"vocab\":" vocab "}")
#define WITH_ADDED(added) "{\"added_tokens\":" added "," SPLIT ",\"model\":" MODEL "}"
#define WITH_SPLIT(split) "{" ADDED ",\"pre_tokenizer\":" split ",\"model\":" MODEL "}"
#define WITH_NORMALIZER(normalizer) "{" ADDED "," SPLIT ",\"normalizer\":" normalizer ",\"model\":" MODEL "}"
#define MODEL "{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[" PIECES "]}"

static const char GOOD[] = "{" ADDED "," SPLIT ",\"model\":" MODEL "}";

static DsvStatus open_bytes(const char *name, const void *data, size_t bytes)
{
    DsviTokenizer *tokenizer;
    assert_ok(dsvi_file_write(scratch_path(name), data, bytes));
    DsvStatus status = dsvi_tokenizer_open(scratch_path(name), &tokenizer);
    if (status == DSV_OK)
        dsvi_tokenizer_close(&tokenizer);
    else
        assert_non_null(strstr(dsv_error_message(), name));
    assert_null(tokenizer);
    return status;
}

static DsvStatus open_json(const char *text)
{
    return open_bytes("tokenizer.json", text, strlen(text));
}

static void test_json(void **state)
{
    static const struct {
        const char *text, *words;
        DsvStatus status;
    } cases[] = {
        {"", "byte 0", DSV_E_FORMAT},
        {"[]", "expected '{'", DSV_E_FORMAT},
        {"{}", "model is missing", DSV_E_FORMAT},
        {"{\"model\":{},\"model\":{}}", "model exists twice", DSV_E_FORMAT},
        {WITH_MODEL("3"), "expected '{'", DSV_E_FORMAT},
        {WITH_MODEL("{\"vocab\":[]}"), "model.type", DSV_E_UNSUPPORTED},
        {WITH_MODEL("{\"type\":\"BPE\",\"vocab\":{}}"), "BPE", DSV_E_UNSUPPORTED},
        {WITH_MODEL("{\"type\":\"Unigram\",\"unk_id\":0}"), "model.vocab is missing", DSV_E_FORMAT},
        {WITH_MODEL("{\"type\":\"Unigram\",\"vocab\":[" PIECES "]}"), "model.unk_id", DSV_E_FORMAT},
        {WITH_MODEL("{\"type\":\"Unigram\",\"unk_id\":9,\"vocab\":[" PIECES "]}"), "id 9", DSV_E_FORMAT},
        {WITH_MODEL("{\"type\":\"Unigram\",\"unk_id\":0.5,\"vocab\":[]}"), "model.unk_id", DSV_E_FORMAT},
        {WITH_MODEL("{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":true,\"vocab\":[]}"),
         "byte_fallback", DSV_E_UNSUPPORTED},
        {WITH_VOCAB("[]"), "unknown piece", DSV_E_FORMAT},
        {WITH_VOCAB("{\"a\":1}"), "expected '['", DSV_E_FORMAT},
        {WITH_VOCAB("[[\"a\"]]"), "expected ','", DSV_E_FORMAT},
        {WITH_VOCAB("[[\"a\",null]]"), "expected a digit", DSV_E_FORMAT},
        {WITH_VOCAB("[[\"a\",\"b\"]]"), "expected a digit", DSV_E_FORMAT},
        {WITH_VOCAB("[[1,2]]"), "expected '\"'", DSV_E_FORMAT},
        {WITH_VOCAB("[[\"a\",1,2]]"), "expected ']'", DSV_E_FORMAT},
        {WITH_VOCAB("[[\"a\",1e400]]"), "1e308", DSV_E_FORMAT},
        {WITH_VOCAB("[[\"a\",01]]"), "leading 0", DSV_E_FORMAT},
        {WITH_VOCAB("[[\"\\x\",1]]"), "escape", DSV_E_FORMAT},
        {WITH_VOCAB("[[\"\\ud800\",1]]"), "surrogates", DSV_E_FORMAT},
        {WITH_VOCAB("[[\"\xff\",1]]"), "piece 0 is not UTF-8", DSV_E_FORMAT},
        {WITH_VOCAB("[" PIECES ",[\"</s>\",0]]"), "pieces 1 and 4 are both '</s>'", DSV_E_FORMAT},
        {WITH_VOCAB("[[\"<unk>\",0],[\"a\",0]]"), "expected </s>", DSV_E_FORMAT},
        {WITH_ADDED("{}"), "added_tokens is no array", DSV_E_FORMAT},
        {WITH_ADDED("[3]"), "added_tokens[0].content", DSV_E_FORMAT},
        {WITH_ADDED("[{\"content\":\"x\"}]"), "added_tokens[0].id", DSV_E_FORMAT},
        {WITH_ADDED("[{\"content\":\"x\",\"id\":-1}]"), "added_tokens[0].id", DSV_E_FORMAT},
        {WITH_ADDED("[{\"content\":\"a\xe2\",\"id\":1}]"), "added token 1 is not valid UTF-8", DSV_E_FORMAT},
        {WITH_ADDED("[{\"content\":\"x\",\"id\":7,\"single_word\":true}]"), "single_word", DSV_E_UNSUPPORTED},
        {WITH_ADDED("[{\"content\":\"</s>\",\"id\":7}]"), "</s> has id 7, expected 1", DSV_E_FORMAT},
        {WITH_SPLIT("null"), "pre_tokenizer", DSV_E_UNSUPPORTED},
        {WITH_SPLIT("{\"type\":\"Sequence\",\"pretokenizers\":[]}"), "pre_tokenizer", DSV_E_UNSUPPORTED},
        {WITH_SPLIT("{\"type\":\"Metaspace\",\"replacement\":\"_\"}"), "U+2581", DSV_E_UNSUPPORTED},
        {WITH_SPLIT("{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":2}"),
         "prepend_scheme", DSV_E_FORMAT},
        {WITH_NORMALIZER("{\"type\":\"NFKC\"}"), "'NFKC' changes text", DSV_E_UNSUPPORTED},
        {WITH_NORMALIZER("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AA==\"}"), "changes text",
         DSV_E_UNSUPPORTED},
        {WITH_NORMALIZER("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}"), "'Lowercase'",
         DSV_E_UNSUPPORTED},
    };
    char deep[256] = "{\"x\":";
    (void)state;
    assert_ok(open_json(GOOD));
    assert_ok(open_json(WITH_NORMALIZER("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}")));
    assert_ok(open_json(WITH_NORMALIZER("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"}}")));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(cases[i].status, cases[i].words, open_json(cases[i].text));
    memset(deep + strlen(deep), '[', 200);
    assert_fails(DSV_E_FORMAT, "nested", open_json(deep));
}

/* The file cut off after every byte. */
static void test_json_cut_off(void **state)
{
    (void)state;
    for (size_t bytes = 0; bytes + 1 < sizeof GOOD; bytes++)
        assert_fails(DSV_E_FORMAT, "tokenizer.json", open_bytes("tokenizer.json", GOOD, bytes));
}

#define PIECE_UNKNOWN "\x0a\x09\x0a\x05<unk>\x18\x02"
#define PIECE_END "\x0a\x08\x0a\x04</s>\x18\x03"
#define PIECE_A        \
    "\x0a\x08\x0a\x01" \
    "a\x15\x00\x00\x80\xbf"
#define SPECS "\x12\x00\x1a\x00" /* of trainer and normalizer */
#define SPIECE PIECE_UNKNOWN PIECE_END PIECE_A SPECS

#define OPEN_SPIECE(text) open_bytes("spiece.model", text, sizeof text - 1)

static void test_spiece(void **state)
{
    (void)state;
    assert_ok(OPEN_SPIECE(SPIECE));
    assert_ok(OPEN_SPIECE(SPIECE "\x12\x07\x18\x01\xca\x02\x00\x28\x03")); /* a field that is skipped */
    assert_fails(DSV_E_FORMAT, "the file is cut off", OPEN_SPIECE(SPECS));
    assert_fails(DSV_E_FORMAT, "expected </s>", OPEN_SPIECE(PIECE_UNKNOWN PIECE_A SPECS));
    assert_fails(DSV_E_FORMAT, "pieces 2 and 3 are both 'a'", OPEN_SPIECE(SPIECE PIECE_A));
    assert_fails(DSV_E_FORMAT, "the file is cut off", OPEN_SPIECE(SPIECE "\x0a\x08\x0a"));
    assert_fails(DSV_E_FORMAT, "a piece is cut off", OPEN_SPIECE(SPIECE "\x0a\x02\x0a\x01"));
    assert_fails(DSV_E_FORMAT, "a piece is cut off", OPEN_SPIECE(SPIECE "\x0a\x02\x10\x01"));
    assert_fails(DSV_E_FORMAT, "no protobuf", OPEN_SPIECE(SPIECE "\x08\x01"));
    assert_fails(DSV_E_FORMAT, "no protobuf", OPEN_SPIECE(SPIECE "\x0b\x01"));
    assert_fails(DSV_E_FORMAT, "no protobuf", OPEN_SPIECE("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"));
    assert_fails(DSV_E_FORMAT, "not UTF-8", OPEN_SPIECE(SPIECE "\x0a\x03\x0a\x01\xff"));
    assert_fails(DSV_E_FORMAT, "not finite", OPEN_SPIECE(SPIECE "\x0a\x05\x15\x00\x00\x80\x7f"));
    assert_fails(DSV_E_FORMAT, "unknown piece", OPEN_SPIECE(SPIECE "\x12\x04\xc0\x02\xff\x01"));
    assert_fails(DSV_E_UNSUPPORTED, "model_type is 2", OPEN_SPIECE(SPIECE "\x12\x02\x18\x02"));
    assert_fails(DSV_E_UNSUPPORTED, "precompiled_charsmap", OPEN_SPIECE(SPIECE "\x1a\x03\x12\x01z"));
}

/* The file cut off after every byte, between its fields, too. */
static void test_spiece_cut_off(void **state)
{
    (void)state;
    for (size_t bytes = 0; bytes + 1 < sizeof SPIECE; bytes++)
        assert_fails(DSV_E_FORMAT, "spiece.model", open_bytes("spiece.model", SPIECE, bytes));
}

/* Every byte of a small file replaced by others: an error or a tokenizer, never a crash. */
static void test_spiece_changed_bytes(void **state)
{
    static const unsigned char values[] = {0, 1, 0x7f, 0x80, 0xff};
    char data[sizeof SPIECE];
    (void)state;
    for (size_t i = 0; i < sizeof SPIECE - 1; i++)
        for (size_t j = 0; j < sizeof values; j++) {
            memcpy(data, SPIECE, sizeof SPIECE);
            data[i] = (char)values[j];
            (void)open_bytes("spiece.model", data, sizeof SPIECE - 1);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_cut_off),
        cmocka_unit_test(test_spiece),
        cmocka_unit_test(test_spiece_cut_off),
        cmocka_unit_test(test_spiece_changed_bytes),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
