/* Writes safetensors files from a given header and data, and checks what every file that opens must fulfil.
 */
#ifndef DSVI_TEST_SAFETENSORS_CASE_H
#define DSVI_TEST_SAFETENSORS_CASE_H

#include "base/safetensors.h"
#include "scratch.h"

/* Writes a file with this header, a header length field of `said` bytes, and `data_bytes` bytes of data: 1,
 * 2, 3, ... Not synced, as thousands of such files are written. */
static inline const char *file_of(uint64_t said, const char *header, size_t header_bytes, size_t data_bytes)
{
    const char *path = scratch_path("case.safetensors");
    unlink(path); /* removed first: some file systems sync a file that is overwritten */
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

static inline const char *file_with(const char *header, size_t data_bytes)
{
    return file_of(strlen(header), header, strlen(header), data_bytes);
}

/* Checks what must hold for an open file: tensors are found by name, bytes match shapes and fill the file,
 * and every byte can be read. */
static inline void check_promises(const DsviSafetensors *file, uint64_t file_bytes)
{
    const volatile unsigned char *byte;
    unsigned sum = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < dsvi_safetensors_count(file); i++) {
        const DsviStoredTensor *t = dsvi_safetensors_at(file, i);
        int64_t count = 1;
        assert_true(t->ndim >= 0 && t->ndim <= DSVI_TENSOR_MAX_DIMS);
        for (int d = 0; d < t->ndim; d++) {
            assert_true(t->shape[d] >= 0);
            count *= t->shape[d];
        }
        assert_true(t->count == count);
        assert_true(t->bytes == (size_t)count * dsvi_dtype_size(t->dtype));
        assert_true((uintptr_t)t->data % dsvi_dtype_size(t->dtype) == 0);
        assert_ptr_equal(dsvi_safetensors_find(file, t->name), t);
        byte = (const volatile unsigned char *)t->data;
        for (size_t b = 0; b < t->bytes; b++)
            sum += byte[b];
        bytes += t->bytes;
    }
    assert_true(bytes <= file_bytes - 8 && sum <= 255 * bytes);
}

static inline void assert_refused(const char *label, const char *path, const char *words)
{
    DsviSafetensors *file = (DsviSafetensors *)path; /* anything but NULL */
    DsvStatus status = dsvi_safetensors_open(path, &file);
    if (status != DSV_E_FORMAT || !strstr(dsv_error_message(), words))
        fail_msg("%s: expected '%s', got %s: %s", label, words, dsv_status_text(status), dsv_error_message());
    assert_non_null(strstr(dsv_error_message(), path));
    assert_null(file);
}

#define ENTRY(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," #end "]}"
#define ONE(dtype, shape, begin, end) "{" ENTRY("a", dtype, shape, begin, end) "}"

#endif
