/* Implements tokenizer.h: finds the file, and divides a cleaned text into added tokens, words and pieces. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/safetensors.h"
#include "text/text_clean.h"
#include "text/tokenizer_files.h"
#include "text/unigram.h"

static const char MARK[] = "\xe2\x96\x81"; /* U+2581, which stands for white space in pieces */
enum { MARK_BYTES = 3 };

struct DsviTokenizer {
    DsviVocabulary vocabulary;
};

typedef DsvStatus ReadFile(const char *path, char *data, size_t bytes, DsviVocabulary *vocabulary);

static DsvStatus read_whole(const char *path, ReadFile *read, DsviVocabulary *vocabulary)
{
    char *data;
    size_t bytes;
    DSVI_TRY(dsvi_file_read(path, DSVI_TOKENIZER_BYTES_MAX, &data, &bytes));
    return read(path, data, bytes, vocabulary);
}

static DsvStatus copy_tensor(const char *path, const DsviStoredTensor *tensor, char **data)
{
    if (!tensor)
        return DSVI_FAIL(DSV_E_NOT_FOUND,
                         "%s: the file has no tokenizer, expected the bytes of spiece.model in a tensor "
                         "spiece_model",
                         path);
    if (tensor->dtype != DSVI_U8 || tensor->bytes > DSVI_TOKENIZER_BYTES_MAX)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "%s: tensor spiece_model has %zu bytes of %s, expected at most %d of U8", path,
                         tensor->bytes, dsvi_dtype_name(tensor->dtype), DSVI_TOKENIZER_BYTES_MAX);
    *data = malloc(tensor->bytes + 1);
    if (!*data)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for %zu bytes of spiece_model", path, tensor->bytes);
    if (tensor->bytes)
        memcpy(*data, tensor->data, tensor->bytes);
    (*data)[tensor->bytes] = 0;
    return DSV_OK;
}

static DsvStatus read_tensor(const char *path, DsviVocabulary *vocabulary)
{
    DsviSafetensors *file;
    char *data = NULL;
    DSVI_TRY(dsvi_safetensors_open(path, &file));
    const DsviStoredTensor *tensor = dsvi_safetensors_find(file, "spiece_model");
    DsvStatus status = copy_tensor(path, tensor, &data);
    size_t bytes = status == DSV_OK ? tensor->bytes : 0;
    dsvi_safetensors_close(&file);
    DSVI_TRY(status);
    return dsvi_tokenizer_spiece(path, data, bytes, vocabulary);
}

static bool path_ends(const char *path, const char *ending)
{
    size_t length = strlen(path), part = strlen(ending);
    return length >= part && strcmp(path + length - part, ending) == 0;
}

/* Finds the tokenizer's file in a folder. Hugging Face's library prefers tokenizer.json too. */
static DsvStatus find_file(const char *folder, char file[DSVI_PATH_MAX])
{
    static const char *const names[] = {"tokenizer.json", "spiece.model"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        DSVI_TRY(dsvi_path_join(file, folder, names[i]));
        if (dsvi_path_exists(file))
            return DSV_OK;
    }
    return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no tokenizer, expected tokenizer.json or spiece.model", folder);
}

static DsvStatus read_vocabulary(const char *path, DsviVocabulary *vocabulary)
{
    char found[DSVI_PATH_MAX];
    const char *file = path;
    if (dsvi_path_is_folder(path)) {
        DSVI_TRY(find_file(path, found));
        file = found;
    }
    if (path_ends(file, ".safetensors"))
        return read_tensor(file, vocabulary);
    return read_whole(file, path_ends(file, ".json") ? dsvi_tokenizer_json : dsvi_tokenizer_spiece,
                      vocabulary);
}

DsvStatus dsvi_tokenizer_open(const char *path, DsviTokenizer **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a tokenizer", path);
    DsvStatus status = read_vocabulary(path, &(*out)->vocabulary);
    if (status != DSV_OK)
        dsvi_tokenizer_close(out);
    return status;
}

void dsvi_tokenizer_close(DsviTokenizer **tokenizer)
{
    if (*tokenizer)
        dsvi_vocabulary_free(&(*tokenizer)->vocabulary);
    free(*tokenizer);
    *tokenizer = NULL;
}

/* One call of dsvi_tokenizer_encode. */
typedef struct Encoding {
    const DsviVocabulary *vocabulary;
    char *marked;           /* a text with marks instead of white space */
    DsviUnigramNode *nodes; /* for a word of this text */
    int32_t *ids;
    int64_t room, found; /* found: ids of the text, of which the first `room` are in `ids` */
} Encoding;

static void add_id(Encoding *encoding, int32_t id)
{
    if (encoding->found < encoding->room)
        encoding->ids[encoding->found] = id;
    encoding->found++;
}

/* Adds the ids of a word. A run of unknown characters is one id. */
static void encode_word(Encoding *encoding, const char *word, int32_t bytes)
{
    int32_t unknown = encoding->vocabulary->unknown;
    bool after_unknown = false;
    dsvi_unigram_divide(encoding->vocabulary, word, bytes, encoding->nodes);
    for (int32_t at = encoding->nodes[0].to;; at = encoding->nodes[at].to) {
        int32_t id = encoding->nodes[at].id;
        if (id != unknown || !after_unknown)
            add_id(encoding, id);
        after_unknown = id == unknown;
        if (at == bytes)
            break;
    }
}

/* Adds the ids of a text without added tokens: replaces spaces by marks, puts a mark before the text unless
 * it has one, and encodes each mark with the characters after it as a word. */
static void encode_marked(Encoding *encoding, const char *text, size_t bytes, bool prefixed)
{
    char *marked = encoding->marked;
    size_t length = 0, word = 0;
    bool begins_marked = text[0] == ' ' || (bytes >= MARK_BYTES && memcmp(text, MARK, MARK_BYTES) == 0);
    if (prefixed && !begins_marked) {
        memcpy(marked, MARK, MARK_BYTES);
        length = MARK_BYTES;
    }
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == ' ') {
            memcpy(marked + length, MARK, MARK_BYTES);
            length += MARK_BYTES;
        } else {
            marked[length++] = text[i];
        }
    }
    for (size_t i = 1; i <= length; i++)
        if (i == length || (length - i >= MARK_BYTES && memcmp(marked + i, MARK, MARK_BYTES) == 0)) {
            encode_word(encoding, marked + word, (int32_t)(i - word));
            word = i;
        }
}

/* Adds the ids of a text between added tokens; `first` if it begins the whole text. */
static void encode_part(Encoding *encoding, const char *text, size_t bytes, bool first)
{
    DsviPrefix prefix = encoding->vocabulary->prefix;
    if (!encoding->vocabulary->split_words) {
        if (bytes)
            encode_marked(encoding, text, bytes,
                          prefix == DSVI_PREFIX_ALWAYS || (prefix == DSVI_PREFIX_FIRST && first));
        return;
    }
    for (size_t i = 0, end; i < bytes; i = end + 1) {
        for (end = i; end < bytes && text[end] != ' '; end++)
            continue;
        if (end > i)
            encode_marked(encoding, text + i, end - i,
                          prefix == DSVI_PREFIX_ALWAYS || (prefix == DSVI_PREFIX_FIRST && first && i == 0));
    }
}

/* Returns the longest added token that begins the text, or NULL. */
static const DsviAddedToken *find_added(const DsviVocabulary *vocabulary, const char *text, size_t bytes)
{
    const DsviAddedToken *best = NULL;
    if (!vocabulary->added_begin[(unsigned char)text[0]])
        return NULL;
    for (int64_t i = 0; i < vocabulary->added_count; i++) {
        const DsviAddedToken *token = &vocabulary->added[i];
        if (token->bytes <= bytes && (!best || token->bytes > best->bytes) &&
            memcmp(token->text, text, token->bytes) == 0)
            best = token;
    }
    return best;
}

static void encode_clean(Encoding *encoding, const char *text, size_t bytes)
{
    size_t from = 0;
    for (size_t i = 0; i < bytes;) {
        const DsviAddedToken *token = find_added(encoding->vocabulary, text + i, bytes - i);
        if (!token) {
            i++;
            continue;
        }
        size_t until = i;
        while (token->left && until > from && text[until - 1] == ' ')
            until--;
        encode_part(encoding, text + from, until - from, from == 0);
        add_id(encoding, token->id);
        i += token->bytes;
        while (token->right && i < bytes && text[i] == ' ')
            i++;
        from = i;
    }
    encode_part(encoding, text + from, bytes - from, from == 0);
}

DsvStatus dsvi_tokenizer_encode(const DsviTokenizer *tokenizer, const char *text, int64_t limit, int32_t *ids,
                                int64_t *count, int64_t *cut)
{
    char *clean;
    DsvStatus status = DSV_OK;
    DSVI_ASSERT(limit >= 1);
    DSVI_TRY(dsvi_text_clean(text, &clean));
    size_t bytes = strlen(clean), room = MARK_BYTES * (bytes + 1);
    char *marked = malloc(room);
    DsviUnigramNode *nodes = malloc((room + 1) * sizeof *nodes);
    if (marked && nodes) {
        Encoding encoding = {&tokenizer->vocabulary, marked, nodes, ids, limit - 1, 0};
        encode_clean(&encoding, clean, bytes);
        *cut = encoding.found > encoding.room ? encoding.found - encoding.room : 0;
        *count = encoding.found - *cut + 1;
        ids[*count - 1] = tokenizer->vocabulary.end;
    } else {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to tokenize a text of %zu bytes", bytes);
    }
    free(marked);
    free(nodes);
    free(clean);
    return status;
}
