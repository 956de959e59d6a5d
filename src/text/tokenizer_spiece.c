/* Reads spiece.model: a protobuf message, that is, fields of a number, a kind and a value. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number_text.h"
#include "text/json_scan.h"
#include "text/tokenizer_files.h"

static const char EXTRA[] = "<extra_id_";

/* What is left of a message. */
typedef struct Message {
    const char *at, *end;
} Message;

enum { KIND_NUMBER = 0, KIND_8_BYTES = 1, KIND_BYTES = 2, KIND_4_BYTES = 5 };

typedef struct Field {
    uint32_t number, kind;
    uint64_t value; /* of KIND_NUMBER */
    Message bytes;  /* of the other kinds */
} Field;

/* Types of a piece. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3 };

enum { MODEL_UNIGRAM = 1, EXTRA_IDS = 300 };

static bool take_number(Message *message, uint64_t *number)
{
    *number = 0;
    for (int shift = 0; shift < 70 && message->at < message->end; shift += 7) {
        uint64_t byte = (unsigned char)*message->at++;
        if (shift < 64)
            *number |= (byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* Takes the next field. Returns false if the message ends within it. */
static bool take_field(Message *message, Field *field)
{
    uint64_t tag, bytes = 0;
    if (!take_number(message, &tag))
        return false;
    *field = (Field){.number = (uint32_t)(tag >> 3), .kind = tag & 7};
    if (field->kind == KIND_NUMBER)
        return take_number(message, &field->value);
    if (field->kind == KIND_BYTES && !take_number(message, &bytes))
        return false;
    if (field->kind == KIND_4_BYTES || field->kind == KIND_8_BYTES)
        bytes = field->kind == KIND_4_BYTES ? 4 : 8;
    else if (field->kind != KIND_BYTES)
        return false;
    if (bytes > (uint64_t)(message->end - message->at))
        return false;
    field->bytes = (Message){message->at, message->at + bytes};
    message->at += bytes;
    return true;
}

static DsvStatus broken_message(const char *path, const char *name)
{
    return DSVI_FAIL(DSV_E_FORMAT, "%s: %s is cut off or no protobuf, expected a model of sentencepiece",
                     path, name);
}

/* Converts a score as Hugging Face's tokenizer.json has it after it was written and read: the shortest
 * decimal text of the float as a double, parsed as serde_json does. */
static DsvStatus convert_score(const char *path, float score, double *converted)
{
    char text[DSVI_NUMBER_BYTES];
    *converted = score;
    if (!isfinite(score))
        return DSV_OK; /* dsvi_vocabulary_add_piece fails */
    dsvi_number_text(score, text);
    DsviJsonScan scan = {path, text, text, text + strlen(text)};
    return dsvi_json_number(&scan, converted);
}

static DsvStatus read_piece(const char *path, Message message, DsviVocabulary *vocabulary)
{
    Field field;
    Message text = {"", ""};
    float score = 0;
    uint64_t type = TYPE_NORMAL;
    double converted;
    while (message.at < message.end) {
        if (!take_field(&message, &field))
            return broken_message(path, "a piece");
        if (field.number == 1 && field.kind == KIND_BYTES)
            text = field.bytes;
        else if (field.number == 2 && field.kind == KIND_4_BYTES)
            memcpy(&score, field.bytes.at, sizeof score);
        else if (field.number == 3 && field.kind == KIND_NUMBER)
            type = field.value;
        else if (field.number <= 3)
            return broken_message(path, "a piece");
    }
    size_t bytes = (size_t)(text.end - text.at);
    bool extra = bytes > strlen(EXTRA) && memcmp(text.at, EXTRA, strlen(EXTRA)) == 0;
    if (bytes && (type == TYPE_CONTROL || type == TYPE_UNKNOWN || extra)) {
        DsviAddedToken token = {.text = (char *)text.at, .bytes = bytes, .id = (int32_t)vocabulary->ids};
        DSVI_TRY(dsvi_vocabulary_add_token(vocabulary, &token));
    }
    DSVI_TRY(convert_score(path, score, &converted));
    DsvStatus status = dsvi_vocabulary_add_piece(vocabulary, text.at, bytes, converted);
    return status == DSV_OK ? DSV_OK : dsvi_fail_prefix(status, "%s", path);
}

static DsvStatus read_trainer(const char *path, Message message, DsviVocabulary *vocabulary)
{
    Field field;
    while (message.at < message.end) {
        if (!take_field(&message, &field))
            return broken_message(path, "trainer_spec");
        if ((field.number == 3 || field.number == 40) && field.kind != KIND_NUMBER)
            return broken_message(path, "trainer_spec");
        if (field.number == 3 && field.value != MODEL_UNIGRAM)
            return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: trainer_spec.model_type is %llu, expected %d, unigram",
                             path, (unsigned long long)field.value, MODEL_UNIGRAM);
        if (field.number == 40)
            vocabulary->unknown = field.value > INT32_MAX ? -1 : (int32_t)field.value;
    }
    return DSV_OK;
}

static DsvStatus read_normalizer(const char *path, Message message)
{
    Field field;
    while (message.at < message.end) {
        if (!take_field(&message, &field))
            return broken_message(path, "normalizer_spec");
        if (field.number == 2 && field.bytes.at < field.bytes.end)
            return DSVI_FAIL(
                DSV_E_UNSUPPORTED,
                "%s: normalizer_spec.precompiled_charsmap changes text, expected none, since the "
                "tokenizer of UMT5 has none",
                path);
    }
    return DSV_OK;
}

/* Adds <extra_id_299> to <extra_id_0>, which the training of T5 uses, unless the file has such pieces. */
static DsvStatus add_extra_ids(DsviVocabulary *vocabulary)
{
    char text[32];
    for (int64_t i = 0; i < vocabulary->added_count; i++)
        if (strncmp(vocabulary->added[i].text, EXTRA, strlen(EXTRA)) == 0)
            return DSV_OK;
    int32_t id = (int32_t)vocabulary->ids; /* a file of at most DSVI_TOKENIZER_BYTES_MAX has fewer pieces */
    for (int i = EXTRA_IDS - 1; i >= 0; i--, id++) {
        snprintf(text, sizeof text, "%s%d>", EXTRA, i);
        DsviAddedToken token = {.text = text, .bytes = strlen(text), .id = id};
        DSVI_TRY(dsvi_vocabulary_add_token(vocabulary, &token));
    }
    return DSV_OK;
}

DsvStatus dsvi_tokenizer_spiece(const char *path, char *data, size_t bytes, DsviVocabulary *vocabulary)
{
    Message message = {data, data + bytes};
    Field field;
    bool whole[4] = {false}; /* by number of the field: which parts the file has */
    vocabulary->memory = data;
    while (message.at < message.end) {
        if (!take_field(&message, &field))
            return broken_message(path, "the file");
        bool part = field.kind == KIND_BYTES;
        if (field.number >= 1 && field.number <= 3 && !part)
            return broken_message(path, "the file");
        if (field.number == 1)
            DSVI_TRY(read_piece(path, field.bytes, vocabulary));
        else if (field.number == 2)
            DSVI_TRY(read_trainer(path, field.bytes, vocabulary));
        else if (field.number == 3)
            DSVI_TRY(read_normalizer(path, field.bytes));
        if (field.number <= 3)
            whole[field.number] = true;
    }
    if (!whole[1] || !whole[2] || !whole[3]) /* what is left of a file that was cut can be a protobuf */
        return broken_message(path, "the file");
    DSVI_TRY(add_extra_ids(vocabulary));
    DsvStatus status = dsvi_vocabulary_finish(vocabulary);
    return status == DSV_OK ? DSV_OK : dsvi_fail_prefix(status, "%s", path);
}
