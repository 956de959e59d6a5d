/* Reads safetensors files that may be damaged or hostile. See safetensors.h.
 *
 * Every value is checked before it is used: sizes against the file, shapes against byte ranges, ranges
 * against each other. After a successful open the bytes of every tensor are inside the file as it was at that
 * time. */
#include "base/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "base/number_text.h"
#include "base/utf8.h"

/* HEADER_BYTES_MAX is the limit of the format's reference implementation. VALUES_MAX limits memory: cJSON
 * takes some 80 bytes for a value, and a header of a hundred megabytes could hold fifty million values. */
enum { HEAD_BYTES = 8, HEADER_BYTES_MAX = 100000000, NAME_BYTES_MAX = 1024, VALUES_MAX = 4000000 };

/* A tensor and the byte of the file at which its data begin. */
typedef struct Placed {
    DsviStoredTensor tensor;
    size_t offset;
} Placed;

struct DsviSafetensors {
    char *path;
    int file; /* descriptor; -1: closed, because the file is mapped */
    size_t file_bytes;
    unsigned char *map; /* NULL: not mapped */
    cJSON *header;      /* owns the names and the metadata */
    const cJSON *metadata;
    Placed *placed;                   /* (count) in the order of their bytes */
    const DsviStoredTensor **by_name; /* (count) in the order of their names */
    void **aligned; /* (count) copies of tensors that are not aligned in the file; NULL for the others */
    size_t count;
};

static DsvStatus open_regular_file(DsviSafetensors *f)
{
    struct stat found;
    f->file = open(f->path, O_RDONLY | O_CLOEXEC);
    if (f->file < 0)
        return DSVI_FAIL(errno == ENOENT ? DSV_E_NOT_FOUND : DSV_E_IO, "%s: cannot open it: %s", f->path,
                         strerror(errno));
    if (fstat(f->file, &found) != 0)
        return DSVI_FAIL(DSV_E_IO, "%s: cannot read its attributes: %s", f->path, strerror(errno));
    if (!S_ISREG(found.st_mode))
        return DSVI_FAIL(DSV_E_IO, "%s: not a regular file", f->path);
    if (found.st_size < HEAD_BYTES)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: %lld bytes, a safetensors file has at least 8", f->path,
                         (long long)found.st_size);
    f->file_bytes = (size_t)found.st_size;
    return DSV_OK;
}

static DsvStatus map_file(DsviSafetensors *f)
{
    void *map = mmap(NULL, f->file_bytes, PROT_READ, MAP_PRIVATE, f->file, 0);
    if (map == MAP_FAILED)
        return DSVI_FAIL(DSV_E_IO, "%s: cannot map it: %s", f->path, strerror(errno));
    f->map = map;
    close(f->file);
    f->file = -1;
    return DSV_OK;
}

static DsvStatus read_bytes(const DsviSafetensors *f, size_t from, void *out, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(f->file, (char *)out + done, bytes - done, (off_t)(from + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return DSVI_FAIL(DSV_E_IO, "%s: cannot read it: %s", f->path, strerror(errno));
        if (got == 0)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: ends at byte %zu, had %zu bytes when it was opened", f->path,
                             from + done, f->file_bytes);
        done += (size_t)got;
    }
    return DSV_OK;
}

/* Refuses what cJSON would accept or truncate: text that is not UTF-8, zero bytes, too many values. */
static DsvStatus check_text(const DsviSafetensors *f, const char *text, size_t bytes)
{
    static const char escaped_zero[] = "\\u0000";
    size_t values = 1;
    if (bytes == 0 || text[0] != '{')
        return DSVI_FAIL(DSV_E_FORMAT, "%s: its header does not begin with {", f->path);
    if (!dsvi_utf8_valid(text, bytes))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: its header is not UTF-8", f->path);
    if (memchr(text, 0, bytes) || memmem(text, bytes, escaped_zero, strlen(escaped_zero)))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: its header has a zero byte in it", f->path);
    for (size_t i = 0; i < bytes; i++)
        values += text[i] == ',';
    if (values > VALUES_MAX)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: its header has %zu values, expected at most %d", f->path, values,
                         VALUES_MAX);
    return DSV_OK;
}

/* Reads the length of the header from the first 8 bytes of the file. */
static DsvStatus read_length(const DsviSafetensors *f, size_t *length)
{
    size_t room = f->file_bytes - HEAD_BYTES, limit = room < HEADER_BYTES_MAX ? room : HEADER_BYTES_MAX;
    unsigned char head[HEAD_BYTES];
    uint64_t stored = 0;
    DSVI_TRY(read_bytes(f, 0, head, HEAD_BYTES));
    for (int i = HEAD_BYTES - 1; i >= 0; i--)
        stored = stored << 8 | head[i];
    if (stored > limit)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: header of %" PRIu64 " bytes, expected at most %zu", f->path,
                         stored, limit);
    *length = (size_t)stored;
    return DSV_OK;
}

static DsvStatus parse_header(DsviSafetensors *f, const char *text, size_t bytes)
{
    const char *end = NULL;
    DSVI_TRY(check_text(f, text, bytes));
    f->header = cJSON_ParseWithLengthOpts(text, bytes, &end, false);
    if (!f->header)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: its header is not JSON, from byte %td on", f->path,
                         end ? end - text : 0);
    while (end < text + bytes && *end == ' ')
        end++;
    if (end != text + bytes)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: its header has text after its JSON, from byte %td on", f->path,
                         end - text);
    return DSV_OK;
}

static DsvStatus read_header(DsviSafetensors *f, size_t *data_start)
{
    size_t bytes = 0;
    DSVI_TRY(read_length(f, &bytes));
    char *text = malloc(bytes ? bytes : 1);
    if (!text)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a header of %zu bytes", f->path, bytes);
    DsvStatus status = read_bytes(f, HEAD_BYTES, text, bytes);
    if (status == DSV_OK)
        status = parse_header(f, text, bytes);
    free(text);
    *data_start = HEAD_BYTES + bytes;
    return status;
}

static DsvStatus parse_metadata(DsviSafetensors *f, const cJSON *item)
{
    if (f->metadata)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: __metadata__ is twice in its header", f->path);
    if (!cJSON_IsObject(item))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: __metadata__ is not an object", f->path);
    for (const cJSON *entry = item->child; entry; entry = entry->next)
        if (!cJSON_IsString(entry))
            return DSVI_FAIL(DSV_E_FORMAT, "%s: __metadata__ entry %.64s is not text", f->path,
                             entry->string);
    f->metadata = item;
    return DSV_OK;
}

static bool whole_number(const cJSON *item, int64_t *value)
{
    return cJSON_IsNumber(item) && dsvi_number_to_whole(item->valuedouble, value);
}

static DsvStatus parse_dtype(const DsviSafetensors *f, const cJSON *dtype, DsviStoredTensor *t)
{
    if (!cJSON_IsString(dtype))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s: its dtype is not text", f->path, t->name);
    for (int d = 0; d < DSVI_DTYPE_COUNT; d++)
        if (strcmp(dtype->valuestring, dsvi_dtype_name((DsviDtype)d)) == 0) {
            t->dtype = (DsviDtype)d;
            return DSV_OK;
        }
    return DSVI_FAIL(DSV_E_FORMAT,
                     "%s: tensor %s has dtype %.32s, expected F32, BF16, F16, F64, F8_E4M3, I32, I64 or U8",
                     f->path, t->name, dtype->valuestring);
}

static DsvStatus parse_shape(const DsviSafetensors *f, const cJSON *shape, DsviStoredTensor *t)
{
    /* No file has as many elements as `limit`; below it neither the product of the lengths nor the product in
       bytes overflows. */
    const int64_t limit = INT64_C(1) << 53;
    int64_t product = 1; /* product of the lengths above 0, so that the check does not depend on where a
                            length of 0 stands */
    if (!cJSON_IsArray(shape))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s: its shape is not a list", f->path, t->name);
    t->count = 1;
    for (const cJSON *length = shape->child; length; length = length->next) {
        if (t->ndim == DSVI_TENSOR_MAX_DIMS)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s has more than %d dimensions", f->path, t->name,
                             DSVI_TENSOR_MAX_DIMS);
        int64_t *n = &t->shape[t->ndim++];
        if (!whole_number(length, n))
            return DSVI_FAIL(DSV_E_FORMAT,
                             "%s: tensor %s: length %d of its shape is not a whole number below 2^53",
                             f->path, t->name, t->ndim);
        if (*n > 0 && product > limit / *n)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s: its shape has more than 2^53 elements", f->path,
                             t->name);
        product *= *n > 0 ? *n : 1;
        t->count *= *n;
    }
    return DSV_OK;
}

/* Reads which bytes of the file belong to the tensor, whose dtype and shape are set. */
static DsvStatus parse_offsets(const DsviSafetensors *f, const cJSON *offsets, size_t data_start,
                               Placed *placed)
{
    DsviStoredTensor *t = &placed->tensor;
    const size_t data_bytes = f->file_bytes - data_start;
    const cJSON *first = cJSON_IsArray(offsets) ? offsets->child : NULL;
    const cJSON *second = first ? first->next : NULL;
    int64_t begin, end;
    if (!second || second->next || !whole_number(first, &begin) || !whole_number(second, &end))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s: its data_offsets are not two whole numbers below 2^53",
                         f->path, t->name);
    if (begin > end || (uint64_t)end > data_bytes)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s has bytes %" PRId64 " to %" PRId64 ", the file has %zu",
                         f->path, t->name, begin, end, data_bytes);
    t->bytes = (size_t)t->count * dsvi_dtype_size(t->dtype);
    if (t->bytes != (size_t)(end - begin))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s has %" PRId64 " bytes, its shape and dtype need %zu",
                         f->path, t->name, end - begin, t->bytes);
    placed->offset = data_start + (size_t)begin;
    t->data = f->map ? f->map + placed->offset : NULL;
    return DSV_OK;
}

static DsvStatus check_tensor_name(const DsviSafetensors *f, const char *name)
{
    if (strlen(name) > NAME_BYTES_MAX)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor name %.64s... is longer than %d bytes", f->path, name,
                         NAME_BYTES_MAX);
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) /* a control character, which would garble a terminal */
            return DSVI_FAIL(DSV_E_FORMAT, "%s: the name of a tensor contains the control character %d",
                             f->path, *c);
    return DSV_OK;
}

static DsvStatus parse_tensor(const DsviSafetensors *f, const cJSON *item, size_t data_start, Placed *placed)
{
    DsviStoredTensor *t = &placed->tensor;
    static const char *const word[] = {"dtype", "shape", "data_offsets"};
    const cJSON *part[3] = {NULL};
    t->name = item->string;
    DSVI_TRY(check_tensor_name(f, t->name));
    if (!cJSON_IsObject(item))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s: its entry is not an object", f->path, t->name);
    for (const cJSON *member = item->child; member; member = member->next)
        for (int i = 0; i < 3; i++) {
            if (strcmp(member->string, word[i]) != 0)
                continue;
            if (part[i])
                return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s has two of %s", f->path, t->name, word[i]);
            part[i] = member;
        }
    for (int i = 0; i < 3; i++)
        if (!part[i])
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s has no %s", f->path, t->name, word[i]);
    DSVI_TRY(parse_dtype(f, part[0], t));
    DSVI_TRY(parse_shape(f, part[1], t));
    return parse_offsets(f, part[2], data_start, placed);
}

static int by_offset(const void *a, const void *b)
{
    const Placed *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->tensor.bytes != y->tensor.bytes)
        return x->tensor.bytes < y->tensor.bytes ? -1 : 1; /* an empty tensor before a tensor with bytes */
    return strcmp(x->tensor.name, y->tensor.name);
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp((*(const DsviStoredTensor *const *)a)->name, (*(const DsviStoredTensor *const *)b)->name);
}

/* Fails unless every byte of the data belongs to exactly one tensor. */
static DsvStatus check_coverage(const DsviSafetensors *f, size_t data_start)
{
    size_t next = data_start;
    for (size_t i = 0; i < f->count; i++) {
        const DsviStoredTensor *t = &f->placed[i].tensor;
        ptrdiff_t gap = (ptrdiff_t)f->placed[i].offset - (ptrdiff_t)next;
        if (gap > 0)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s follows after a gap of %td bytes, expected none",
                             f->path, t->name, gap);
        if (gap < 0)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s overlaps %s by %td bytes", f->path, t->name,
                             f->placed[i - 1].tensor.name, -gap);
        next += t->bytes;
    }
    if (next != f->file_bytes)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: %zu bytes at its end belong to no tensor", f->path,
                         f->file_bytes - next);
    return DSV_OK;
}

static DsvStatus index_names(DsviSafetensors *f)
{
    for (size_t i = 0; i < f->count; i++)
        f->by_name[i] = &f->placed[i].tensor;
    if (f->count > 0)
        qsort(f->by_name, f->count, sizeof *f->by_name, by_tensor_name);
    for (size_t i = 1; i < f->count; i++)
        if (strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) == 0)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s is twice in its header", f->path,
                             f->by_name[i]->name);
    return DSV_OK;
}

/* The format lets a tensor begin at any byte. A tensor that is not aligned for its dtype is copied. */
static DsvStatus align_tensors(DsviSafetensors *f)
{
    for (size_t i = 0; i < f->count; i++) {
        DsviStoredTensor *t = &f->placed[i].tensor;
        if ((uintptr_t)t->data % dsvi_dtype_size(t->dtype) == 0)
            continue;
        f->aligned[i] = malloc(t->bytes ? t->bytes : 1);
        if (!f->aligned[i])
            return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for tensor %s", f->path, t->name);
        memcpy(f->aligned[i], t->data, t->bytes);
        t->data = f->aligned[i];
    }
    return DSV_OK;
}

static DsvStatus parse_tensors(DsviSafetensors *f, size_t data_start)
{
    size_t room = (size_t)cJSON_GetArraySize(f->header) + 1;
    f->placed = calloc(room, sizeof *f->placed);
    f->by_name = calloc(room, sizeof *f->by_name);
    f->aligned = calloc(room, sizeof *f->aligned);
    if (!f->placed || !f->by_name || !f->aligned)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of %zu tensors", f->path, room);
    for (const cJSON *item = f->header->child; item; item = item->next) {
        if (strcmp(item->string, "__metadata__") == 0)
            DSVI_TRY(parse_metadata(f, item));
        else
            DSVI_TRY(parse_tensor(f, item, data_start, &f->placed[f->count++]));
    }
    if (f->count > 0)
        qsort(f->placed, f->count, sizeof *f->placed, by_offset);
    DSVI_TRY(check_coverage(f, data_start));
    DSVI_TRY(index_names(f));
    return f->map ? align_tensors(f) : DSV_OK;
}

static DsvStatus open_safetensors(const char *path, bool mapped, DsviSafetensors **out)
{
    DsvStatus status;
    size_t data_start = 0;
    DsviSafetensors *f = calloc(1, sizeof *f);
    *out = NULL;
    if (f)
        f->file = -1;
    if (!f || !(f->path = strdup(path))) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to open it", path);
        goto fail;
    }
    DSVI_TRY_GOTO(status, open_regular_file(f), fail);
    DSVI_TRY_GOTO(status, read_header(f, &data_start), fail);
    if (mapped)
        DSVI_TRY_GOTO(status, map_file(f), fail);
    DSVI_TRY_GOTO(status, parse_tensors(f, data_start), fail);
    *out = f;
    return DSV_OK;
fail:
    dsvi_safetensors_close(&f);
    return status;
}

DsvStatus dsvi_safetensors_open(const char *path, DsviSafetensors **out)
{
    return open_safetensors(path, true, out);
}

DsvStatus dsvi_safetensors_open_unmapped(const char *path, DsviSafetensors **out)
{
    return open_safetensors(path, false, out);
}

DsvStatus dsvi_safetensors_read(const DsviSafetensors *f, const DsviStoredTensor *t, size_t from, void *out,
                                size_t bytes)
{
    DSVI_ASSERT(f->file >= 0 && from <= t->bytes && bytes <= t->bytes - from);
    /* Tensors of an open file are members (`tensor`, the first one) of a Placed. */
    return read_bytes(f, ((const Placed *)t)->offset + from, out, bytes);
}

void dsvi_safetensors_close(DsviSafetensors **file)
{
    DsviSafetensors *f = *file;
    if (!f)
        return;
    for (size_t i = 0; f->aligned && i < f->count; i++)
        free(f->aligned[i]);
    free(f->aligned);
    free(f->by_name);
    free(f->placed);
    cJSON_Delete(f->header);
    if (f->map)
        munmap(f->map, f->file_bytes);
    if (f->file >= 0)
        close(f->file);
    free(f->path);
    free(f);
    *file = NULL;
}

const char *dsvi_safetensors_path(const DsviSafetensors *file)
{
    return file->path;
}

size_t dsvi_safetensors_count(const DsviSafetensors *file)
{
    return file->count;
}

const DsviStoredTensor *dsvi_safetensors_at(const DsviSafetensors *file, size_t index)
{
    return &file->placed[index].tensor;
}

const DsviStoredTensor *dsvi_safetensors_find(const DsviSafetensors *file, const char *name)
{
    DsviStoredTensor named = {.name = name};
    const DsviStoredTensor *key = &named;
    if (file->count == 0)
        return NULL;
    const DsviStoredTensor *const *found = bsearch(&key, file->by_name, file->count, sizeof key,
                                                   by_tensor_name);
    return found ? *found : NULL;
}

/* Writes a required shape as text, such as "(2, any, 64)". */
static void stored_shape_text(int ndim, const int64_t *shape, char *text, size_t room)
{
    size_t used = (size_t)snprintf(text, room, "(");
    for (int i = 0; i < ndim && used < room; i++) {
        const char *comma = i ? ", " : "";
        used += (size_t)(shape[i] < 0 ? snprintf(text + used, room - used, "%sany", comma)
                                      : snprintf(text + used, room - used, "%s%" PRId64, comma, shape[i]));
    }
    if (used < room)
        snprintf(text + used, room - used, ")");
}

DsvStatus dsvi_safetensors_require(const DsviSafetensors *file, const char *name, int ndim,
                                   const int64_t *shape, const DsviStoredTensor **out)
{
    char found[160], required[160];
    const DsviStoredTensor *t = dsvi_safetensors_find(file, name);
    *out = NULL;
    if (!t)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no tensor %s in it", file->path, name);
    bool fits = ndim < 0 || t->ndim == ndim;
    for (int i = 0; fits && i < ndim; i++)
        fits = shape[i] < 0 || t->shape[i] == shape[i];
    if (!fits) {
        stored_shape_text(t->ndim, t->shape, found, sizeof found);
        stored_shape_text(ndim, shape, required, sizeof required);
        return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s is %s, expected %s", file->path, name, found, required);
    }
    *out = t;
    return DSV_OK;
}

DsvStatus dsvi_safetensors_require_floating(const DsviSafetensors *file, const char *name, int ndim,
                                            const int64_t *shape, const DsviStoredTensor **out)
{
    DSVI_TRY(dsvi_safetensors_require(file, name, ndim, shape, out));
    DsviDtype dtype = (*out)->dtype;
    if (dsvi_dtype_is_floating(dtype))
        return DSV_OK;
    *out = NULL;
    return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s is %s, expected a floating dtype", file->path, name,
                     dsvi_dtype_name(dtype));
}

const char *dsvi_safetensors_metadata(const DsviSafetensors *file, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(file->metadata, key));
}
