/* Cases of weights in 8 bits: f8_decode of every variant against the reference implementation. */
#include "ops/cases.h"
#include "ops/sparse_cases.h"
#include "test.h"

enum { CODES_MAX = 4000 };

/* The product of two F32 numbers may be rounded to F32 before it is rounded to BF16, hence one place. */
static void check_decode(const DsviBackend *backend, int64_t n, DsviDtype dtype)
{
    static uint8_t code[CODES_MAX + 1], out[4 * CODES_MAX + 4];
    static float scale[CODES_MAX / DSVI_F8_BLOCK + 1], wanted[CODES_MAX + 1];
    DsviStream *stream = backend->device ? backend->device->stream : NULL;
    const double unit = dtype == DSVI_BF16 ? 0x1p-7 : 0x1p-23;
    for (int64_t i = 0; i < n; i++)
        code[i] = (uint8_t)(37 * i % 254 % 127 + (i % 3 == 0 ? 128 : 0)); /* no NaN */
    for (int64_t i = 0; i * DSVI_F8_BLOCK < n; i++)
        scale[i] = 0.01f * (float)(i + 1);
    memset(out, 0xff, sizeof out);
    DsviF8DecodeArgs args = {.n = n, .code = code, .scale = scale, .out_dtype = DSVI_F32, .out = wanted};
    assert_ok(dsvi_f8_decode_ref(NULL, &args));
    args.code = check_upload(backend, stream, code, sizeof code);
    args.scale = check_upload(backend, stream, scale, sizeof scale);
    args.out = check_upload(backend, stream, out, sizeof out);
    args.out_dtype = dtype;
    assert_ok(backend->ops.f8_decode.run(stream, &args));
    check_release(backend, stream, args.code);
    check_release(backend, stream, args.scale);
    check_download(backend, stream, out, args.out, sizeof out);
    for (int64_t i = 0; i < n; i++) {
        double got = dsvi_load(dtype, out, i);
        assert_true(fabs(got - wanted[i]) <= unit * fabs((double)wanted[i]));
    }
    for (size_t at = (size_t)n * dsvi_dtype_size(dtype); at < sizeof out; at++)
        assert_int_equal(out[at], 0xff);
}

void check_quant_cases(const DsviBackend *backend)
{
    static const int64_t lengths[] = {0, 1, 127, 128, 129, 3001, CODES_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        check_decode(backend, lengths[i], DSVI_F32);
        check_decode(backend, lengths[i], DSVI_BF16);
    }
}
