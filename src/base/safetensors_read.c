/* Reading safetensors files that may be damaged or hostile. See safetensors.h.
 *
 * Nothing is believed before it was checked: sizes against the file, shapes against byte ranges, ranges
 * against each other. After a successful open every tensor's data lies inside the mapped file. */
#include "base/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

/* The reference implementation's limit on the header, and ours on names. */
enum { HEADER_BYTES_MOST = 100000000, NAME_BYTES_MOST = 1024 };

struct DsvSafetensors {
    char *path;
    unsigned char *map;
    size_t map_bytes;
    cJSON *header;               /* owns the names and the metadata */
    const cJSON *metadata;
    DsvStoredTensor *tensors;    /* in the order of their bytes */
    const DsvStoredTensor **by_name;
    void **aligned;              /* copies of tensors the file holds unaligned, NULL for the others */
    size_t count;
};

static DsvStatus map_file(DsvSafetensors *f)
{
    struct stat found;
    int file = open(f->path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return DSVI_FAIL(errno == ENOENT ? DSV_E_NOT_FOUND : DSV_E_IO, "%s: cannot open it: %s", f->path,
                         strerror(errno));
    DsvStatus status = DSV_OK;
    if (fstat(file, &found) != 0)
        status = DSVI_FAIL(DSV_E_IO, "%s: cannot look at it: %s", f->path, strerror(errno));
    else if (!S_ISREG(found.st_mode))
        status = DSVI_FAIL(DSV_E_IO, "%s: not a regular file", f->path);
    else if (found.st_size < 8)
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: %lld bytes, a safetensors file has at least 8", f->path,
                           (long long)found.st_size);
    if (status == DSV_OK) {
        f->map_bytes = (size_t)found.st_size;
        void *map = mmap(NULL, f->map_bytes, PROT_READ, MAP_PRIVATE, file, 0);
        if (map == MAP_FAILED)
            status = DSVI_FAIL(DSV_E_IO, "%s: cannot map it: %s", f->path, strerror(errno));
        else
            f->map = map;
    }
    close(file);
    return status;
}

static DsvStatus parse_header(DsvSafetensors *f, size_t *data_start)
{
    uint64_t bytes = 0;
    for (int i = 7; i >= 0; i--)
        bytes = bytes << 8 | f->map[i];
    if (bytes > HEADER_BYTES_MOST || bytes > f->map_bytes - 8)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: header of %" PRIu64 " bytes, wanted at most %zu", f->path, bytes,
                         f->map_bytes - 8 < HEADER_BYTES_MOST ? f->map_bytes - 8 : HEADER_BYTES_MOST);
    f->header = cJSON_ParseWithLength((const char *)f->map + 8, (size_t)bytes);
    if (!cJSON_IsObject(f->header))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: its header is not a JSON object", f->path);
    *data_start = 8 + (size_t)bytes;
    return DSV_OK;
}

static DsvStatus read_metadata(DsvSafetensors *f, const cJSON *item)
{
    const cJSON *entry;
    if (f->metadata)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: __metadata__ stands twice in its header", f->path);
    if (!cJSON_IsObject(item))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: __metadata__ is not an object", f->path);
    cJSON_ArrayForEach(entry, item)
        if (!cJSON_IsString(entry))
            return DSVI_FAIL(DSV_E_FORMAT, "%s: __metadata__ entry %.64s is not text", f->path, entry->string);
    f->metadata = item;
    return DSV_OK;
}

/* A whole number from 0 to 2^53: what a double holds exactly. */
static bool whole_number(const cJSON *item, int64_t *value)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 0x1p53) ||
        item->valuedouble != floor(item->valuedouble))
        return false;
    *value = (int64_t)item->valuedouble;
    return true;
}

static bool dtype_named(const char *name, DsvDtype *dtype)
{
    for (int d = 0; d < DSV_DTYPE_COUNT; d++)
        if (strcmp(name, dsvi_dtype_name((DsvDtype)d)) == 0) {
            *dtype = (DsvDtype)d;
            return true;
        }
    return false;
}

static DsvStatus read_shape(const DsvSafetensors *f, const cJSON *shape, size_t data_bytes, DsvStoredTensor *t)
{
    const cJSON *length;
    if (!cJSON_IsArray(shape))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s has no shape", f->path, t->name);
    t->count = 1;
    cJSON_ArrayForEach(length, shape) {
        if (t->ndim == DSV_TENSOR_MAX_DIMS)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s has more than %d dimensions", f->path, t->name,
                             DSV_TENSOR_MAX_DIMS);
        int64_t *n = &t->shape[t->ndim++];
        if (!whole_number(length, n))
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s: length %d of its shape is not a whole number",
                             f->path, t->name, t->ndim);
        /* No tensor has more elements than the file has bytes; this also keeps the product from wrapping. */
        if (*n > 0 && t->count > (int64_t)data_bytes / *n)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s is larger than the file", f->path, t->name);
        t->count *= *n;
    }
    return DSV_OK;
}

static DsvStatus read_tensor(const DsvSafetensors *f, const cJSON *item, size_t data_start, DsvStoredTensor *t)
{
    size_t data_bytes = f->map_bytes - data_start;
    t->name = item->string;
    if (strlen(t->name) > NAME_BYTES_MOST)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor name %.64s... is longer than %d bytes", f->path, t->name,
                         NAME_BYTES_MOST);
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    if (!cJSON_IsString(dtype))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s has no dtype", f->path, t->name);
    if (!dtype_named(dtype->valuestring, &t->dtype))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s has dtype %.32s, wanted F32, BF16, F16, F64, I32, I64 or U8",
                         f->path, t->name, dtype->valuestring);
    DSVI_TRY(read_shape(f, cJSON_GetObjectItemCaseSensitive(item, "shape"), data_bytes, t));

    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    int64_t begin, end;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !whole_number(cJSON_GetArrayItem(offsets, 0), &begin) ||
        !whole_number(cJSON_GetArrayItem(offsets, 1), &end))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s: data_offsets are not two whole numbers", f->path, t->name);
    if (begin > end || (uint64_t)end > data_bytes)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s lies at bytes %" PRId64 " to %" PRId64 " of %zu", f->path,
                         t->name, begin, end, data_bytes);
    t->bytes = (size_t)t->count * dsvi_dtype_size(t->dtype);
    if (t->bytes != (size_t)(end - begin))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s takes %" PRId64 " bytes, its shape and dtype %zu", f->path,
                         t->name, end - begin, t->bytes);
    t->data = f->map + data_start + begin;
    return DSV_OK;
}

static int by_place(const void *a, const void *b)
{
    const DsvStoredTensor *x = a, *y = b;
    const char *p = x->data, *q = y->data;
    if (p != q)
        return p < q ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors before what starts there */
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const DsvStoredTensor *const *)a)->name, (*(const DsvStoredTensor *const *)b)->name);
}

/* The tensors cover the data once, without gap or overlap. */
static DsvStatus check_places(const DsvSafetensors *f, size_t data_start)
{
    const unsigned char *next = f->map + data_start, *end = f->map + f->map_bytes;
    for (size_t i = 0; i < f->count; i++) {
        const DsvStoredTensor *t = &f->tensors[i];
        if ((const unsigned char *)t->data != next)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s %s", f->path, t->name,
                             (const unsigned char *)t->data < next ? "overlaps the one before it"
                                                                   : "follows after a gap");
        next += t->bytes;
    }
    if (next != end)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: %zu bytes at its end belong to no tensor", f->path,
                         (size_t)(end - next));
    return DSV_OK;
}

static DsvStatus index_names(DsvSafetensors *f)
{
    for (size_t i = 0; i < f->count; i++)
        f->by_name[i] = &f->tensors[i];
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
        DsvStoredTensor *t = &f->tensors[i];
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
    const cJSON *item;
    size_t room = (size_t)cJSON_GetArraySize(f->header) + 1;
    f->tensors = calloc(room, sizeof *f->tensors);
    f->by_name = calloc(room, sizeof *f->by_name);
    f->aligned = calloc(room, sizeof *f->aligned);
    if (!f->tensors || !f->by_name || !f->aligned)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of %zu tensors", f->path, room);
    cJSON_ArrayForEach(item, f->header) {
        if (strcmp(item->string, "__metadata__") == 0)
            DSVI_TRY(read_metadata(f, item));
        else
            DSVI_TRY(read_tensor(f, item, data_start, &f->tensors[f->count++]));
    }
    if (f->count > 0)
        qsort(f->tensors, f->count, sizeof *f->tensors, by_place);
    DSVI_TRY(check_places(f, data_start));
    DSVI_TRY(index_names(f));
    return align(f);
}

DsvStatus dsvi_safetensors_open(const char *path, DsvSafetensors **out)
{
    DsvStatus status;
    size_t data_start = 0;
    DsvSafetensors *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f || !(f->path = strdup(path))) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to open it", path);
        goto fail;
    }
    DSVI_TRY_GOTO(status, map_file(f), fail);
    DSVI_TRY_GOTO(status, parse_header(f, &data_start), fail);
    DSVI_TRY_GOTO(status, read_tensors(f, data_start), fail);
    *out = f;
    return DSV_OK;
fail:
    dsvi_safetensors_close(&f);
    return status;
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
    free(f->tensors);
    cJSON_Delete(f->header);
    if (f->map)
        munmap(f->map, f->map_bytes);
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
    return &file->tensors[index];
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

const char *dsvi_safetensors_metadata(const DsvSafetensors *file, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(file->metadata, key));
}
