/* Reads tokenizer.json: the pieces by a scan of their text, the few other values with cJSON. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "text/json_scan.h"
#include "text/tokenizer_files.h"

/* Parses a member of an object. NULL in *value if there is no such member. */
static DsvStatus parse_member(const char *path, const DsviJsonMember *member, cJSON **value)
{
    *value = NULL;
    if (!member->begin)
        return DSV_OK;
    *value = cJSON_ParseWithLength(member->begin, (size_t)(member->end - member->begin));
    return *value ? DSV_OK : DSVI_FAIL(DSV_E_FORMAT, "%s: %s is no JSON", path, member->name);
}

static const char *type_of(const cJSON *object)
{
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "type"));
    return type ? type : "";
}

/* Accepts normalisers that leave a cleaned text as it is, which has no two spaces in succession. */
static DsvStatus check_normalizer(const char *path, const cJSON *object)
{
    const cJSON *part;
    const char *type = type_of(object);
    if (!object || cJSON_IsNull(object))
        return DSV_OK;
    if (strcmp(type, "Sequence") == 0) {
        cJSON_ArrayForEach(part, cJSON_GetObjectItemCaseSensitive(object, "normalizers"))
            DSVI_TRY(check_normalizer(path, part));
        return DSV_OK;
    }
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(object, "pattern");
    const char *regex = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(pattern, "Regex"));
    if (strcmp(type, "Replace") == 0 && regex && strcmp(regex, " {2,}") == 0)
        return DSV_OK;
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(object, "precompiled_charsmap");
    const char *bytes = cJSON_GetStringValue(map);
    if (strcmp(type, "Precompiled") == 0 && (!map || cJSON_IsNull(map) || (bytes && !bytes[0])))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED,
                     "%s: normalizer '%s' changes text, expected none, since the tokenizer of UMT5 has none",
                     path, type);
}

static DsvStatus read_prefix(const char *path, const cJSON *object, DsviVocabulary *vocabulary)
{
    static const char *const schemes[] = {"always", "first", "never"};
    const char *mark = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "replacement"));
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "prepend_scheme");
    const char *scheme = cJSON_GetStringValue(item);
    if (!mark || strcmp(mark, "\xe2\x96\x81") != 0 ||
        cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(object, "split")))
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s: pre_tokenizer Metaspace has another replacement than U+2581, or split is false",
                         path);
    if (!item) {
        bool never = cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(object, "add_prefix_space"));
        scheme = never ? "never" : "always";
    }
    for (int i = 0; scheme && i < 3; i++)
        if (strcmp(scheme, schemes[i]) == 0) {
            vocabulary->prefix = (DsviPrefix)i;
            return DSV_OK;
        }
    return DSVI_FAIL(DSV_E_FORMAT,
                     "%s: pre_tokenizer.prepend_scheme is '%s', expected always, first or never", path,
                     scheme ? scheme : "no string");
}

/* Accepts Metaspace, alone or after WhitespaceSplit. */
static DsvStatus read_pre_tokenizer(const char *path, const cJSON *object, DsviVocabulary *vocabulary)
{
    const cJSON *metaspace = object;
    if (strcmp(type_of(object), "Sequence") == 0) {
        const cJSON *parts = cJSON_GetObjectItemCaseSensitive(object, "pretokenizers");
        int count = cJSON_GetArraySize(parts);
        vocabulary->split_words = count == 2 && strcmp(type_of(parts->child), "WhitespaceSplit") == 0;
        metaspace = vocabulary->split_words || count == 1 ? cJSON_GetArrayItem(parts, count - 1) : NULL;
    }
    if (strcmp(type_of(metaspace), "Metaspace") != 0)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s: pre_tokenizer is '%s', expected Metaspace, alone or after WhitespaceSplit",
                         path, type_of(object));
    return read_prefix(path, metaspace, vocabulary);
}

/* Reads a number that must be an id: whole and at least 0. */
static DsvStatus read_id(const char *path, const char *name, const cJSON *number, int32_t *id)
{
    double value = cJSON_IsNumber(number) ? number->valuedouble : -1;
    if (!(value >= 0 && value < INT32_MAX && value == floor(value)))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: %s is no id, expected a whole number", path, name);
    *id = (int32_t)value;
    return DSV_OK;
}

static DsvStatus read_added_tokens(const char *path, const cJSON *array, DsviVocabulary *vocabulary)
{
    const cJSON *object;
    int number = 0;
    char name[64];
    if (array && !cJSON_IsArray(array))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: added_tokens is no array", path);
    cJSON_ArrayForEach(object, array) {
        DsviAddedToken token = {.text = cJSON_GetStringValue(
                                    cJSON_GetObjectItemCaseSensitive(object, "content")),
                                .left = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, "lstrip")),
                                .right = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, "rstrip"))};
        snprintf(name, sizeof name, "added_tokens[%d].id", number);
        if (!token.text || !token.text[0])
            return DSVI_FAIL(DSV_E_FORMAT, "%s: added_tokens[%d].content is no text", path, number);
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, "single_word")))
            return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: added_tokens[%d].single_word is true, expected false",
                             path, number);
        DSVI_TRY(read_id(path, name, cJSON_GetObjectItemCaseSensitive(object, "id"), &token.id));
        token.bytes = strlen(token.text);
        DSVI_TRY(dsvi_vocabulary_add_token(vocabulary, &token));
        number++;
    }
    return DSV_OK;
}

/* Reads the array of [text, score]. */
static DsvStatus read_pieces(DsviJsonScan *scan, DsviVocabulary *vocabulary)
{
    char *text;
    size_t bytes;
    double score;
    DSVI_TRY(dsvi_json_expect(scan, '['));
    if (dsvi_json_accept(scan, ']'))
        return DSV_OK;
    do {
        DSVI_TRY(dsvi_json_expect(scan, '['));
        DSVI_TRY(dsvi_json_string(scan, &text, &bytes));
        DSVI_TRY(dsvi_json_expect(scan, ','));
        DSVI_TRY(dsvi_json_number(scan, &score));
        DSVI_TRY(dsvi_json_expect(scan, ']'));
        DsvStatus status = dsvi_vocabulary_add_piece(vocabulary, text, bytes, score);
        if (status != DSV_OK)
            return dsvi_fail_prefix(status, "%s: model.vocab", scan->path);
    } while (dsvi_json_accept(scan, ','));
    return dsvi_json_expect(scan, ']');
}

static DsvStatus read_model(const char *path, const DsviJsonMember *model, DsviVocabulary *vocabulary)
{
    enum { TYPE, UNK_ID, BYTE_FALLBACK, VOCAB, COUNT };
    DsviJsonMember members[COUNT] = {
        {.name = "type"}, {.name = "unk_id"}, {.name = "byte_fallback"}, {.name = "vocab"}};
    DsviJsonScan scan = {path, model->begin, model->begin, model->end};
    DsvStatus status = DSV_OK;
    cJSON *type = NULL, *unknown = NULL, *fallback = NULL;
    DSVI_TRY(dsvi_json_members(&scan, members, COUNT));
    DSVI_TRY_GOTO(status, parse_member(path, &members[TYPE], &type), done);
    DSVI_TRY_GOTO(status, parse_member(path, &members[UNK_ID], &unknown), done);
    DSVI_TRY_GOTO(status, parse_member(path, &members[BYTE_FALLBACK], &fallback), done);
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "Unigram") != 0)
        status = DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: model.type is '%s', expected Unigram", path,
                           cJSON_IsString(type) ? type->valuestring : "no string");
    else if (cJSON_IsTrue(fallback))
        status = DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: model.byte_fallback is true, expected false", path);
    else if (!members[VOCAB].begin)
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: model.vocab is missing", path);
    if (status != DSV_OK)
        goto done;
    DSVI_TRY_GOTO(status, read_id(path, "model.unk_id", unknown, &vocabulary->unknown), done);
    scan.at = members[VOCAB].begin;
    DSVI_TRY_GOTO(status, read_pieces(&scan, vocabulary), done);
done:
    cJSON_Delete(type);
    cJSON_Delete(unknown);
    cJSON_Delete(fallback);
    return status;
}

static DsvStatus read_rest(const char *path, const DsviJsonMember *added, const DsviJsonMember *normalizer,
                           const DsviJsonMember *pre_tokenizer, DsviVocabulary *vocabulary)
{
    DsvStatus status = DSV_OK;
    cJSON *tokens = NULL, *normal = NULL, *split = NULL;
    DSVI_TRY_GOTO(status, parse_member(path, added, &tokens), done);
    DSVI_TRY_GOTO(status, parse_member(path, normalizer, &normal), done);
    DSVI_TRY_GOTO(status, parse_member(path, pre_tokenizer, &split), done);
    DSVI_TRY_GOTO(status, read_added_tokens(path, tokens, vocabulary), done);
    DSVI_TRY_GOTO(status, check_normalizer(path, normal), done);
    DSVI_TRY_GOTO(status, read_pre_tokenizer(path, split, vocabulary), done);
done:
    cJSON_Delete(tokens);
    cJSON_Delete(normal);
    cJSON_Delete(split);
    return status;
}

DsvStatus dsvi_tokenizer_json(const char *path, char *data, size_t bytes, DsviVocabulary *vocabulary)
{
    enum { ADDED, NORMALIZER, PRE_TOKENIZER, MODEL, COUNT };
    DsviJsonMember members[COUNT] = {
        {.name = "added_tokens"}, {.name = "normalizer"}, {.name = "pre_tokenizer"}, {.name = "model"}};
    DsviJsonScan scan = {path, data, data, data + bytes};
    vocabulary->memory = data;
    DSVI_TRY(dsvi_json_members(&scan, members, COUNT));
    if (!members[MODEL].begin)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: model is missing, expected the tokenizer.json of UMT5", path);
    DSVI_TRY(read_rest(path, &members[ADDED], &members[NORMALIZER], &members[PRE_TOKENIZER], vocabulary));
    DSVI_TRY(read_model(path, &members[MODEL], vocabulary));
    DsvStatus status = dsvi_vocabulary_finish(vocabulary);
    return status == DSV_OK ? DSV_OK : dsvi_fail_prefix(status, "%s", path);
}
