/* Text states of captions, with a text encoder that writes the ids into its rows: each text once, the empty
 * prompt always, stopping, failures of encoder and disk. */
#include "encode/encode_texts.h"

#include "base/scratch.h"
#include "base/threads.h"

enum { DIM = 4, LIMIT = 16, ROWS = 40 };

/* The ids of a text are its characters and an end token; "!" cannot be converted. */
static DsvStatus count_characters(void *context, const char *text, int32_t *ids, int64_t *count, int64_t *cut)
{
    (void)context;
    int64_t length = (int64_t)strlen(text), kept = length < LIMIT ? length : LIMIT - 1;
    if (strchr(text, '!'))
        return DSVI_FAIL(DSV_E_FORMAT, "a text with !");
    for (int64_t i = 0; i < kept; i++)
        ids[i] = text[i];
    ids[kept] = 1;
    *count = kept + 1;
    *cut = length - kept;
    return DSV_OK;
}

static const DsviTextIds IDS = {.limit = LIMIT, .ids = count_characters};

typedef struct FakeEncoder {
    int calls;
    int64_t texts, rows_max;
    bool fails;
} FakeEncoder;

static DsvStatus repeat_ids(void *context, int64_t count, const int64_t *lengths, const int32_t *ids,
                            float *hidden)
{
    FakeEncoder *fake = context;
    int64_t rows = 0;
    for (int64_t i = 0; i < count; i++)
        rows += lengths[i];
    for (int64_t i = 0; i < rows * DIM; i++)
        hidden[i] = (float)ids[i / DIM] + (float)(i % DIM) / 8;
    fake->calls++;
    fake->texts += count;
    fake->rows_max = rows > fake->rows_max ? rows : fake->rows_max;
    return fake->fails ? DSVI_FAIL(DSV_E_INTERNAL, "broken encoder") : DSV_OK;
}

static DsviTextStore make_store(const char *name)
{
    DsviTextStore store = {.encoder = dsvi_hash_key_of("e", 1), .dtype = DSVI_F32, .dim = DIM};
    snprintf(store.folder, sizeof store.folder, "%s", scratch_path(name));
    assert_ok(dsvi_folder_make(store.folder));
    return store;
}

enum { CLIPS = 3 };
static DsviDatasetItem items[CLIPS];

/* Three clips with five captions, of which two are equal: four distinct texts and the empty prompt. */
static DsviDataset make_clips(void)
{
    static DsviCaption texts[5];
    static char *const WORDS[] = {"a dog", "a cat", "a dog", "abcdefghijklmnopqrstuvw", "rain"};
    for (int i = 0; i < 5; i++)
        texts[i] = (DsviCaption){.text = WORDS[i]};
    items[0].captions = (DsviCaptions){texts, 2};
    items[1].captions = (DsviCaptions){NULL, 0};
    items[2].captions = (DsviCaptions){texts + 2, 3};
    return (DsviDataset){.items = items, .count = CLIPS};
}

static void check_states(const DsviTextStore *store, const DsviHashKey *key, const char *text)
{
    float rows[LIMIT * DIM];
    int64_t count;
    assert_ok(dsvi_text_states_read(store, key, LIMIT, rows, &count));
    assert_int_equal(count, strlen(text) < LIMIT ? strlen(text) + 1 : LIMIT);
    for (int64_t i = 0; i < count * DIM; i++) {
        int id = i / DIM == count - 1 ? 1 : text[i / DIM];
        assert_true(rows[i] == (float)id + (float)(i % DIM) / 8);
    }
}

static void every_distinct_text_is_encoded_once(void **state)
{
    (void)state;
    DsviTextStore store = make_store("once");
    DsviDataset dataset = make_clips();
    FakeEncoder fake = {0};
    const DsviTextEncoder encoder = {.context = &fake, .rows = 24, .encode = repeat_ids};
    const DsvEvents none = {0};
    for (int times = 0; times < 2; times++) {
        DsviTexts texts;
        assert_ok(dsvi_texts_collect(&dataset, &IDS, &store, &texts));
        assert_int_equal(texts.count, 5);
        assert_int_equal(texts.cut, 1);
        assert_int_equal(texts.cut_item, 2);
        dsvi_texts_drop_stored(&texts, &store);
        assert_int_equal(texts.count, times == 0 ? 5 : 0);
        assert_ok(dsvi_texts_encode(&texts, &store, &encoder, &none));
        dsvi_texts_free(&texts);
    }
    assert_int_equal(fake.texts, 5);
    assert_true(fake.calls < 5 && fake.rows_max <= 24);
    check_states(&store, &store.empty, "");
    for (int i = 0; i < CLIPS; i++)
        for (int64_t k = 0; k < items[i].captions.count; k++)
            check_states(&store, &items[i].captions.at[k].states, items[i].captions.at[k].text);
    assert_string_equal(items[0].captions.at[0].states.hex, items[2].captions.at[0].states.hex);
}

static bool stop_at_once(void *context)
{
    ++*(int *)context;
    return true;
}

/* What was computed before a stop is stored, and only the rest is computed again. */
static void an_interrupted_call_goes_on(void **state)
{
    (void)state;
    DsviTextStore store = make_store("stopped");
    DsviDataset dataset = make_clips();
    FakeEncoder fake = {0};
    const DsviTextEncoder encoder = {.context = &fake, .rows = LIMIT, .encode = repeat_ids};
    int asked = 0;
    const DsvEvents stopping = {.context = &asked, .stop = stop_at_once}, none = {0};
    DsviTexts texts;
    assert_ok(dsvi_texts_collect(&dataset, &IDS, &store, &texts));
    assert_fails(DSV_E_INTERRUPTED, "of 5 captions", dsvi_texts_encode(&texts, &store, &encoder, &stopping));
    assert_int_equal(asked, 1);
    assert_int_equal(fake.calls, 1);
    int64_t first = fake.texts;
    dsvi_texts_drop_stored(&texts, &store);
    assert_int_equal(texts.count, 5 - first);
    assert_ok(dsvi_texts_encode(&texts, &store, &encoder, &none));
    assert_int_equal(fake.texts, 5);
    dsvi_texts_free(&texts);
}

static void failures_are_passed_on(void **state)
{
    (void)state;
    DsviTextStore store = make_store("failing");
    DsviDataset dataset = make_clips();
    FakeEncoder fake = {.fails = true};
    const DsviTextEncoder encoder = {.context = &fake, .rows = ROWS, .encode = repeat_ids};
    const DsvEvents none = {0};
    DsviTexts texts;
    assert_ok(dsvi_texts_collect(&dataset, &IDS, &store, &texts));
    assert_fails(DSV_E_INTERNAL, "broken encoder", dsvi_texts_encode(&texts, &store, &encoder, &none));
    fake.fails = false;
    assert_ok(dsvi_folder_remove(store.folder));
    assert_fails(DSV_E_NOT_FOUND, "failing/", dsvi_texts_encode(&texts, &store, &encoder, &none));
    dsvi_texts_free(&texts);
    items[2].captions.at[2].text = "no!";
    assert_fails(DSV_E_FORMAT, "a text with !", dsvi_texts_collect(&dataset, &IDS, &store, &texts));
    dsvi_texts_free(&texts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_distinct_text_is_encoded_once),
        cmocka_unit_test(an_interrupted_call_goes_on),
        cmocka_unit_test(failures_are_passed_on),
    };
    dsvi_threads_set(3);
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
