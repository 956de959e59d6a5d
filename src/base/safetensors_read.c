/* Reading safetensors files that may be damaged or hostile. See safetensors.h.
 *
 * Nothing is believed before it was checked: sizes against the file, shapes against byte ranges, ranges
 * against each other. After a successful open every tensor's bytes are inside the file as it was then. */
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

/* The reference implementation's limit on the header, and ours on names and on JSON values: those take some
 * 80 bytes each when parsed, and a header of a hundred megabytes could hold fifty million. */
enum { HEAD_BYTES = 8, HEADER_BYTES_MOST = 100000000, NAME_BYTES_MOST = 1024, VALUES_MOST = 4000000 };

/* A tensor and where it begins in the file. */
typedef struct Placed {
    DsvStoredTensor tensor;
    size_t offset;
} Placed;

struct DsvSafetensors {
    char *path;
    int file; /* -1: not open */
    size_t file_bytes;
    unsigned char *map; /* NULL: not mapped */
    cJSON *header;      /* owns the names and the metadata */
    const cJSON *metadata;
    Placed *placed; /* (count) in the order of their bytes */
    const DsvStoredTensor **by_name;
    void **aligned; /* copies of tensors the file holds unaligned, NULL for the others */
    size_t count;
};

static DsvStatus open_file(DsvSafetensors *f)
{
    struct stat found;
    f->file = open(f->path, O_RDONLY | O_CLOEXEC);
    if (f->file < 0)
        return DSVI_FAIL(errno == ENOENT ? DSV_E_NOT_FOUND : DSV_E_IO, "%s: cannot open it: %s", f->path,
                         strerror(errno));
    if (fstat(f->file, &found) != 0)
        return DSVI_FAIL(DSV_E_IO, "%s: cannot look at it: %s", f->path, strerror(errno));
    if (!S_ISREG(found.st_mode))
        return DSVI_FAIL(DSV_E_IO, "%s: not a regular file", f->path);
    if (found.st_size < HEAD_BYTES)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: %lld bytes, a safetensors file has at least 8", f->path,
                         (long long)found.st_size);
    f->file_bytes = (size_t)found.st_size;
    return DSV_OK;
}

static DsvStatus map_file(DsvSafetensors *f)
{
    void *map = mmap(NULL, f->file_bytes, PROT_READ, MAP_PRIVATE, f->file, 0);
    if (map == MAP_FAILED)
        return DSVI_FAIL(DSV_E_IO, "%s: cannot map it: %s", f->path, strerror(errno));
    f->map = map;
    close(f->file);
    f->file = -1;
    return DSV_OK;
}

static DsvStatus read_bytes(const DsvSafetensors *f, size_t from, void *out, size_t bytes)
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

/* What cJSON lets pass, or cuts short, and a header has no use for. */
static DsvStatus check_text(const DsvSafetensors *f, const char *text, size_t bytes)
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
    if (values > VALUES_MOST)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: its header has %zu values, wanted at most %d", f->path, values,
                         VALUES_MOST);
    return DSV_OK;
}

/* The length of the header, which the file begins with. */
static DsvStatus read_length(const DsvSafetensors *f, size_t *length)
{
    size_t room = f->file_bytes - HEAD_BYTES, most = room < HEADER_BYTES_MOST ? room : HEADER_BYTES_MOST;
    unsigned char head[HEAD_BYTES];
    uint64_t said = 0;
    DSVI_TRY(read_bytes(f, 0, head, HEAD_BYTES));
    for (int i = HEAD_BYTES - 1; i >= 0; i--)
        said = said << 8 | head[i];
    if (said > most)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: header of %" PRIu64 " bytes, wanted at most %zu", f->path, said,
                         most);
    *length = (size_t)said;
    return DSV_OK;
}

static DsvStatus parse_header(DsvSafetensors *f, const char *text, size_t bytes)
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
        return DSVI_FAIL(DSV_E_FORMAT, "%s: its header goes on behind its JSON, from byte %td on", f->path,
                         end - text);
    return DSV_OK;
}

static DsvStatus read_header(DsvSafetensors *f, size_t *data_start)
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

static DsvStatus read_metadata(DsvSafetensors *f, const cJSON *item)
{
    if (f->metadata)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: __metadata__ stands twice in its header", f->path);
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
    return cJSON_IsNumber(item) && dsvi_number_whole(item->valuedouble, value);
}

static DsvStatus read_dtype(const DsvSafetensors *f, const cJSON *dtype, DsvStoredTensor *t)
{
    if (!cJSON_IsString(dtype))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s: its dtype is not text", f->path, t->name);
    for (int d = 0; d < DSV_DTYPE_COUNT; d++)
        if (strcmp(dtype->valuestring, dsvi_dtype_name((DsvDtype)d)) == 0) {
            t->dtype = (DsvDtype)d;
            return DSV_OK;
        }
    return DSVI_FAIL(DSV_E_FORMAT,
                     "%s: tensor %s has dtype %.32s, wanted F32, BF16, F16, F64, I32, I64 or U8", f->path,
                     t->name, dtype->valuestring);
}

static DsvStatus read_shape(const DsvSafetensors *f, const cJSON *shape, DsvStoredTensor *t)
{
    /* More elements than any file can hold; also keeps the product, and its bytes, from wrapping. */
    const int64_t too_many = INT64_C(1) << 53;
    int64_t product = 1; /* of the lengths that are not zero, so that their order does not matter */
    if (!cJSON_IsArray(shape))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s: its shape is not a list", f->path, t->name);
    t->count = 1;
    for (const cJSON *length = shape->child; length; length = length->next) {
        if (t->ndim == DSV_TENSOR_MAX_DIMS)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s has more than %d dimensions", f->path, t->name,
                             DSV_TENSOR_MAX_DIMS);
        int64_t *n = &t->shape[t->ndim++];
        if (!whole_number(length, n))
            return DSVI_FAIL(DSV_E_FORMAT,
                             "%s: tensor %s: length %d of its shape is not a whole number below 2^53",
                             f->path, t->name, t->ndim);
        if (*n > 0 && product > too_many / *n)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s: its shape has more than 2^53 elements", f->path,
                             t->name);
        product *= *n > 0 ? *n : 1;
        t->count *= *n;
    }
    return DSV_OK;
}

/* Where the tensor's bytes are; its dtype and shape are known. */
static DsvStatus read_offsets(const DsvSafetensors *f, const cJSON *offsets, size_t data_start,
                              Placed *placed)
{
    DsvStoredTensor *t = &placed->tensor;
    const size_t data_bytes = f->file_bytes - data_start;
    const cJSON *first = cJSON_IsArray(offsets) ? offsets->child : NULL;
    const cJSON *second = first ? first->next : NULL;
    int64_t begin, end;
    if (!second || second->next || !whole_number(first, &begin) || !whole_number(second, &end))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s: its data_offsets are not two whole numbers below 2^53",
                         f->path, t->name);
    if (begin > end || (uint64_t)end > data_bytes)
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s: tensor %s lies at bytes %" PRId64 " to %" PRId64 ", the file has %zu", f->path,
                         t->name, begin, end, data_bytes);
    t->bytes = (size_t)t->count * dsvi_dtype_size(t->dtype);
    if (t->bytes != (size_t)(end - begin))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s has %" PRId64 " bytes, its shape and dtype want %zu",
                         f->path, t->name, end - begin, t->bytes);
    placed->offset = data_start + (size_t)begin;
    t->data = f->map ? f->map + placed->offset : NULL;
    return DSV_OK;
}

static DsvStatus check_name(const DsvSafetensors *f, const char *name)
{
    if (strlen(name) > NAME_BYTES_MOST)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor name %.64s... is longer than %d bytes", f->path, name,
                         NAME_BYTES_MOST);
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) /* it would garble whatever shows it */
            return DSVI_FAIL(DSV_E_FORMAT, "%s: a tensor's name has the control character %d in it", f->path,
                             *c);
    return DSV_OK;
}

static DsvStatus read_tensor(const DsvSafetensors *f, const cJSON *item, size_t data_start, Placed *placed)
{
    DsvStoredTensor *t = &placed->tensor;
    static const char *const word[] = {"dtype", "shape", "data_offsets"};
    const cJSON *part[3] = {NULL};
    t->name = item->string;
    DSVI_TRY(check_name(f, t->name));
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
    DSVI_TRY(read_dtype(f, part[0], t));
    DSVI_TRY(read_shape(f, part[1], t));
    return read_offsets(f, part[2], data_start, placed);
}

static int by_place(const void *a, const void *b)
{
    const Placed *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->tensor.bytes != y->tensor.bytes)
        return x->tensor.bytes < y->tensor.bytes ? -1 : 1; /* empty tensors before what starts there */
    return strcmp(x->tensor.name, y->tensor.name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const DsvStoredTensor *const *)a)->name, (*(const DsvStoredTensor *const *)b)->name);
}

/* The tensors cover the data once, without gap or overlap. */
static DsvStatus check_places(const DsvSafetensors *f, size_t data_start)
{
    size_t next = data_start;
    for (size_t i = 0; i < f->count; i++) {
        const DsvStoredTensor *t = &f->placed[i].tensor;
        ptrdiff_t gap = (ptrdiff_t)f->placed[i].offset - (ptrdiff_t)next;
        if (gap > 0)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s follows after a gap of %td bytes, wanted none",
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

static DsvStatus index_names(DsvSafetensors *f)
{
    for (size_t i = 0; i < f->count; i++)
        f->by_name[i] = &f->placed[i].tensor;
    if (f->count > 0)
        qsort(f->by_name, f->count, sizeof *f->by_name, by_name);
    for (size_t i = 1; i < f->count; i++)
        if (strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) == 0)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s stands twice in its header", f->path,
                             f->by_name[i]->name);
    return DSV_OK;
}

/* The format lets a tensor begin at any byte; those that begin where their numbers cannot are copied. */
static DsvStatus align(DsvSafetensors *f)
{
    for (size_t i = 0; i < f->count; i++) {
        DsvStoredTensor *t = &f->placed[i].tensor;
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

static DsvStatus read_tensors(DsvSafetensors *f, size_t data_start)
{
    size_t room = (size_t)cJSON_GetArraySize(f->header) + 1;
    f->placed = calloc(room, sizeof *f->placed);
    f->by_name = calloc(room, sizeof *f->by_name);
    f->aligned = calloc(room, sizeof *f->aligned);
    if (!f->placed || !f->by_name || !f->aligned)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of %zu tensors", f->path, room);
    for (const cJSON *item = f->header->child; item; item = item->next) {
        if (strcmp(item->string, "__metadata__") == 0)
            DSVI_TRY(read_metadata(f, item));
        else
            DSVI_TRY(read_tensor(f, item, data_start, &f->placed[f->count++]));
    }
    if (f->count > 0)
        qsort(f->placed, f->count, sizeof *f->placed, by_place);
    DSVI_TRY(check_places(f, data_start));
    DSVI_TRY(index_names(f));
    return f->map ? align(f) : DSV_OK;
}

static DsvStatus open_path(const char *path, bool mapped, DsvSafetensors **out)
{
    DsvStatus status;
    size_t data_start = 0;
    DsvSafetensors *f = calloc(1, sizeof *f);
    *out = NULL;
    if (f)
        f->file = -1;
    if (!f || !(f->path = strdup(path))) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to open it", path);
        goto fail;
    }
    DSVI_TRY_GOTO(status, open_file(f), fail);
    DSVI_TRY_GOTO(status, read_header(f, &data_start), fail);
    if (mapped)
        DSVI_TRY_GOTO(status, map_file(f), fail);
    DSVI_TRY_GOTO(status, read_tensors(f, data_start), fail);
    *out = f;
    return DSV_OK;
fail:
    dsvi_safetensors_close(&f);
    return status;
}

DsvStatus dsvi_safetensors_open(const char *path, DsvSafetensors **out)
{
    return open_path(path, true, out);
}

DsvStatus dsvi_safetensors_open_unmapped(const char *path, DsvSafetensors **out)
{
    return open_path(path, false, out);
}

DsvStatus dsvi_safetensors_read(const DsvSafetensors *f, const DsvStoredTensor *t, size_t from, void *out,
                                size_t bytes)
{
    DSVI_ASSERT(f->file >= 0 && from <= t->bytes && bytes <= t->bytes - from);
    return read_bytes(f, ((const Placed *)t)->offset + from, out, bytes); /* its first member */
}

void dsvi_safetensors_close(DsvSafetensors **file)
{
    DsvSafetensors *f = *file;
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

const char *dsvi_safetensors_path(const DsvSafetensors *file)
{
    return file->path;
}

size_t dsvi_safetensors_count(const DsvSafetensors *file)
{
    return file->count;
}

const DsvStoredTensor *dsvi_safetensors_at(const DsvSafetensors *file, size_t index)
{
    return &file->placed[index].tensor;
}

const DsvStoredTensor *dsvi_safetensors_find(const DsvSafetensors *file, const char *name)
{
    DsvStoredTensor wanted = {.name = name};
    const DsvStoredTensor *key = &wanted;
    if (file->count == 0)
        return NULL;
    const DsvStoredTensor *const *found = bsearch(&key, file->by_name, file->count, sizeof key, by_name);
    return found ? *found : NULL;
}

/* "(2, any, 64)" */
static void shape_text(int ndim, const int64_t *shape, char *text, size_t room)
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

DsvStatus dsvi_safetensors_want(const DsvSafetensors *file, const char *name, int ndim, const int64_t *shape,
                                const DsvStoredTensor **out)
{
    char found_text[160], wanted_text[160];
    const DsvStoredTensor *t = dsvi_safetensors_find(file, name);
    *out = NULL;
    if (!t)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no tensor %s in it", file->path, name);
    bool fits = ndim < 0 || t->ndim == ndim;
    for (int i = 0; fits && i < ndim; i++)
        fits = shape[i] < 0 || t->shape[i] == shape[i];
    if (!fits) {
        shape_text(t->ndim, t->shape, found_text, sizeof found_text);
        shape_text(ndim, shape, wanted_text, sizeof wanted_text);
        return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s is %s, wanted %s", file->path, name, found_text,
                         wanted_text);
    }
    *out = t;
    return DSV_OK;
}

DsvStatus dsvi_safetensors_want_floating(const DsvSafetensors *file, const char *name, int ndim,
                                         const int64_t *shape, const DsvStoredTensor **out)
{
    DSVI_TRY(dsvi_safetensors_want(file, name, ndim, shape, out));
    DsvDtype dtype = (*out)->dtype;
    if (dsvi_dtype_is_floating(dtype))
        return DSV_OK;
    *out = NULL;
    return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s is %s, wanted a floating dtype", file->path, name,
                     dsvi_dtype_name(dtype));
}

const char *dsvi_safetensors_metadata(const DsvSafetensors *file, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(file->metadata, key));
}
