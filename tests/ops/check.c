/* Implements the checker of check.h: fills buffers, runs reference, plain implementation and variant, and
 * compares. */
#include "ops/check.h"

#include <unistd.h>

#include "base/rng.h"
#include "base/threads.h"
#include "test.h"

enum { GUARD = 256 };
static const unsigned char GUARD_BYTE = 0xff;
static const double LEAST = 0x1p-120;
static const char *const FILL_NAME[CHECK_FILLS] = {"normal", "large", "equal", "tiny", "sparse"};

/* Host copies of all buffers of one run, with the guard bytes around them. */
typedef struct Image {
    unsigned char *before[CHECK_BUFFERS_MAX], *after[CHECK_BUFFERS_MAX];
    size_t bytes[CHECK_BUFFERS_MAX]; /* including guards; 0 for an alias */
    size_t start[CHECK_BUFFERS_MAX]; /* offset of element 0 in bytes */
} Image;

typedef struct Precision {
    DsviDtype act, acc;
} Precision;

CheckBuffer *check_buffer(CheckCase *c, const char *name, CheckKind kind, CheckRole role, int64_t n)
{
    assert_true(c->buffers < CHECK_BUFFERS_MAX);
    CheckBuffer *buffer = &c->buffer[c->buffers++];
    *buffer = (CheckBuffer){.name = name, .kind = kind, .role = role, .n = n, .scale = 1};
    return buffer;
}

void check_listed_tokens(CheckCase *c, int64_t tokens)
{
    enum { TOKENS_MAX = 128 };
    static int32_t listed[TOKENS_MAX];
    int64_t count = 0;
    assert_true(tokens <= TOKENS_MAX);
    for (int64_t token = 0; token < tokens; token++)
        if (token % 3 != 1)
            listed[count++] = (int32_t)token;
    check_buffer(c, "tokens", CHECK_I32, CHECK_IN, count)->indices = listed;
}

DsviTokenList check_tokens(const CheckCase *c)
{
    const CheckBuffer *last = &c->buffer[c->buffers - 1];
    return last->kind == CHECK_I32 ? (DsviTokenList){last->data, last->n} : (DsviTokenList){0};
}

static DsviDtype dtype_of(const CheckBuffer *buffer, Precision precision)
{
    switch (buffer->kind) {
    case CHECK_ACT: return precision.act;
    case CHECK_ACC: return precision.acc;
    case CHECK_DOUBLE: return DSVI_F64;
    case CHECK_FLOAT: return DSVI_F32;
    case CHECK_I32: break;
    }
    return DSVI_I32;
}

static double fill_value(CheckFill fill, DsviRng rng, uint64_t i)
{
    double normal = dsvi_rng_normal(rng, i);
    switch (fill) {
    case CHECK_LARGE: return 1000 * normal;
    case CHECK_EQUAL: return CHECK_EQUAL_VALUE;
    case CHECK_TINY: return 0x1p-130 * normal;
    case CHECK_SPARSE: return i % 3 == 0 ? normal : 0;
    default: return normal;
    }
}

/* Returns the inputs rounded to the tested precision, as doubles. All runs use these values. */
static double *make_values(const CheckBuffer *buffer, int number, CheckFill fill, Precision precision)
{
    DsviRng rng = {7, DSVI_RNG_TEST, (uint32_t)number};
    DsviDtype dtype = dtype_of(buffer, precision);
    double *values = calloc((size_t)buffer->n + 1, sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < buffer->n && dtype != DSVI_I32; i++) {
        unsigned char stored[8];
        double value = fill_value(buffer->steady ? CHECK_NORMAL : fill, rng, (uint64_t)i);
        value = buffer->offset + buffer->scale * (buffer->positive ? fabs(value) : value);
        if (buffer->infinite > 0 && i % buffer->infinite == 0)
            value = -INFINITY;
        dsvi_store(dtype, stored, 0, value);
        values[i] = dsvi_load(dtype, stored, 0);
    }
    return values;
}

static void image_free(Image *image)
{
    for (int i = 0; i < CHECK_BUFFERS_MAX; i++) {
        free(image->before[i]);
        free(image->after[i]);
    }
    memset(image, 0, sizeof *image);
}

static void image_make(Image *image, const CheckCase *c, double *const *values, Precision precision,
                       size_t skew)
{
    memset(image, 0, sizeof *image);
    for (int i = 0; i < c->buffers; i++) {
        const CheckBuffer *buffer = &c->buffer[i];
        DsviDtype dtype = dtype_of(buffer, precision);
        size_t size = dsvi_dtype_size(dtype);
        if (buffer->alias)
            continue;
        image->start[i] = GUARD + skew * size;
        image->bytes[i] = image->start[i] + (size_t)buffer->n * size + GUARD;
        image->before[i] = malloc(image->bytes[i]);
        image->after[i] = malloc(image->bytes[i]);
        assert_true(image->before[i] && image->after[i]);
        memset(image->before[i], GUARD_BYTE, image->bytes[i]);
        void *first = image->before[i] + image->start[i];
        if (buffer->kind == CHECK_I32)
            memcpy(first, buffer->indices, (size_t)buffer->n * size);
        else if (buffer->role != CHECK_OUT)
            dsvi_convert(dtype, first, DSVI_F64, values[i], buffer->n);
    }
}

/* Runs the case with the table `ops`. Buffers are in device memory, or in image->after if device is NULL. */
static DsvStatus execute(CheckCase *c, const DsviOps *ops, DsviDevice *device, Precision precision,
                         Image *image)
{
    DsviStream *stream = device ? device->stream : NULL;
    void *memory[CHECK_BUFFERS_MAX] = {NULL};
    DsvStatus status = DSV_OK;
    c->act = precision.act;
    c->acc = precision.acc;
    for (int i = 0; i < c->buffers; i++) {
        CheckBuffer *buffer = &c->buffer[i];
        buffer->dtype = dtype_of(buffer, precision);
        if (buffer->alias) {
            buffer->data = c->buffer[buffer->alias - 1].data;
            continue;
        }
        memcpy(image->after[i], image->before[i], image->bytes[i]);
        memory[i] = image->after[i];
        if (device) {
            DSVI_TRY_GOTO(status, device->mem_alloc(device, image->bytes[i], &memory[i]), done);
            DSVI_TRY_GOTO(status, device->upload(stream, memory[i], image->before[i], image->bytes[i]), done);
        }
        buffer->data = (unsigned char *)memory[i] + image->start[i];
    }
    DSVI_TRY_GOTO(status, c->run(c, ops, stream), done);
    for (int i = 0; i < c->buffers && device; i++)
        if (memory[i])
            DSVI_TRY_GOTO(status, device->download(stream, image->after[i], memory[i], image->bytes[i]),
                          done);
    if (device)
        DSVI_TRY_GOTO(status, device->sync(stream), done);
done:
    for (int i = 0; i < c->buffers && device; i++)
        device->mem_free(device, memory[i]);
    return status;
}

/* Returns whether the operation may write to the buffer, through its own entry or through an alias of it. */
static bool is_written(const CheckCase *c, int number)
{
    bool written = c->buffer[number].role != CHECK_IN;
    for (int i = 0; i < c->buffers; i++)
        written |= c->buffer[i].alias == number + 1 && c->buffer[i].role != CHECK_IN;
    return written;
}

/* Returns the first byte in [begin, end) that the run changed, or `end`. */
static size_t first_changed(const Image *image, int buffer, size_t begin, size_t end)
{
    const unsigned char *before = image->before[buffer], *after = image->after[buffer];
    if (end > begin && memcmp(before + begin, after + begin, end - begin) != 0)
        for (; before[begin] == after[begin];)
            begin++;
    else
        begin = end;
    return begin;
}

static bool surroundings_intact(const CheckCase *c, const Image *image, char *why, size_t why_bytes)
{
    for (int i = 0; i < c->buffers; i++) {
        const CheckBuffer *buffer = &c->buffer[i];
        size_t first = image->start[i], bytes = image->bytes[i];
        size_t last = first + (size_t)buffer->n * dsvi_dtype_size(buffer->dtype);
        if (bytes == 0) /* an alias */
            continue;
        size_t at = first_changed(image, i, 0, first);
        if (at == first && !is_written(c, i))
            at = first_changed(image, i, first, last);
        else if (at == first)
            at = last;
        if (at == last)
            at = first_changed(image, i, last, bytes);
        if (at == bytes)
            continue;
        snprintf(why, why_bytes, "%s: %s byte %lld of %lld was written", buffer->name,
                 at >= first && at < last ? "input" : "foreign", (long long)at - (long long)first,
                 (long long)(last - first));
        return false;
    }
    return true;
}

static double unit_roundoff(DsviDtype dtype)
{
    return dtype == DSVI_BF16 ? 0x1p-8 : dtype == DSVI_F32 ? 0x1p-24 : 0x1p-53;
}

static const void *element_zero(const CheckCase *c, const Image *image, int number)
{
    int real = c->buffer[number].alias ? c->buffer[number].alias - 1 : number;
    return image->after[real] + image->start[real];
}

typedef struct Yardstick {
    Image reference, plain;
    Precision precision; /* of the plain implementation and of the variant */
    CheckFill fill;
    double *const *values;
} Yardstick;

static double largest_value(const CheckCase *c, const Yardstick *yardstick, int b)
{
    double largest = 0;
    for (int64_t i = 0; i < c->buffer[b].n; i++)
        largest = fmax(largest, fabs(yardstick->values[b][i]));
    return largest;
}

/* Returns M of each element of buffer b with large values (check.h), and 0 with others. */
static double large_terms(const CheckCase *c, const Yardstick *yardstick, int b)
{
    const CheckBuffer *buffer = &c->buffer[b];
    double product = yardstick->fill == CHECK_LARGE ? buffer->bounds_scale : 0;
    for (int k = 0; k < CHECK_BOUNDS && product > 0; k++)
        product *= largest_value(c, yardstick, buffer->bounds[k]);
    return product;
}

/* Returns M of element i of buffer b with equal values (check.h), and 0 with others. */
static double equal_terms(const CheckCase *c, const Yardstick *yardstick, int b, int64_t i)
{
    const CheckBuffer *buffer = &c->buffer[b];
    Precision exact = {DSVI_F64, DSVI_F64};
    if (yardstick->fill != CHECK_EQUAL || buffer->terms_scale <= 0)
        return 0;
    DsviDtype dtype = dtype_of(&c->buffer[buffer->terms_of], exact);
    return buffer->terms_scale *
           fabs(dsvi_load(dtype, element_zero(c, &yardstick->reference, buffer->terms_of), i));
}

static bool outputs_agree(const CheckCase *c, const Yardstick *yardstick, const Image *variant, char *why,
                          size_t why_bytes)
{
    Precision exact = {DSVI_F64, DSVI_F64}, tested = yardstick->precision;
    const Image *reference = &yardstick->reference, *plain = &yardstick->plain;
    for (int b = 0; b < c->buffers; b++) {
        const CheckBuffer *buffer = &c->buffer[b];
        DsviDtype exact_dtype = dtype_of(buffer, exact), dtype = dtype_of(buffer, tested);
        double plain_error = 0;
        if (buffer->role == CHECK_IN || buffer->kind == CHECK_I32)
            continue;
        for (int64_t i = 0; i < buffer->n; i++) {
            double expected = dsvi_load(exact_dtype, element_zero(c, reference, b), i);
            double error = fabs(dsvi_load(dtype, element_zero(c, plain, b), i) - expected);
            plain_error = error > plain_error ? error : plain_error;
        }
        double large = large_terms(c, yardstick, b);
        for (int64_t i = 0; i < buffer->n; i++) {
            double expected = dsvi_load(exact_dtype, element_zero(c, reference, b), i);
            double got = dsvi_load(dtype, element_zero(c, variant, b), i);
            double allowed = 2 * plain_error + c->ulps * unit_roundoff(dtype) * fabs(expected) +
                             c->ulps * unit_roundoff(DSVI_F32) * (large + equal_terms(c, yardstick, b, i)) +
                             LEAST;
            if (got == expected || fabs(got - expected) <= allowed) /* == because both may be infinite */
                continue;
            snprintf(why, why_bytes,
                     "%s[%lld] is %.9g, expected %.9g, allowed error %.3g, error of the plain one %.3g",
                     buffer->name, (long long)i, got, expected, allowed, plain_error);
            return false;
        }
    }
    return true;
}

static bool run_variant(CheckCase *c, const DsviBackend *backend, const Yardstick *yardstick, int threads,
                        Image *image, char *why, size_t why_bytes)
{
    dsvi_threads_set(threads);
    if (execute(c, &backend->ops, backend->device, yardstick->precision, image) != DSV_OK) {
        snprintf(why, why_bytes, "%s", dsv_error_message());
        return false;
    }
    return surroundings_intact(c, image, why, why_bytes) &&
           outputs_agree(c, yardstick, image, why, why_bytes);
}

/* Runs and checks the variant with one thread and with three threads. Element 0 of each buffer is `skew`
 * elements after an aligned address. */
static bool check_skew(CheckCase *c, const DsviBackend *backend, const Yardstick *yardstick, size_t skew,
                       char *why, size_t why_bytes)
{
    Image one, three;
    image_make(&one, c, yardstick->values, yardstick->precision, skew);
    image_make(&three, c, yardstick->values, yardstick->precision, skew);
    bool good = run_variant(c, backend, yardstick, 1, &one, why, why_bytes) &&
                (test_small() || run_variant(c, backend, yardstick, 3, &three, why, why_bytes));
    bool same_bits = !test_small() && (!backend->device || backend->device->deterministic);
    for (int i = 0; i < c->buffers && good && same_bits; i++) {
        good = !one.bytes[i] || memcmp(one.after[i], three.after[i], one.bytes[i]) == 0;
        if (!good)
            snprintf(why, why_bytes, "%s differs between 1 and 3 threads", c->buffer[i].name);
    }
    image_free(&one);
    image_free(&three);
    return good;
}

/* ---- results of the reference and the plain implementation, for later processes ---- */

static int kept_file = -1; /* -1: nothing is kept */
static off_t kept_at;      /* this process's place in the file */

/* Comes before the results of a case in the file. */
typedef struct KeptCase {
    char op[64], shape[128];
    int fill, act;
    size_t bytes; /* of all results */
} KeptCase;

void check_keep_results(void)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    kept_file = fileno(file);
}

/* Reads (or writes, if `write` is true) `bytes` bytes at the process's offset in the file, and adds them to
 * the offset. Returns false at the end of the file. */
static bool kept_move(bool write, void *memory, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        char *at = (char *)memory + done;
        ssize_t n = write ? pwrite(kept_file, at, bytes - done, kept_at)
                          : pread(kept_file, at, bytes - done, kept_at);
        assert_true(n >= 0);
        if (n == 0)
            return false;
        done += (size_t)n;
        kept_at += n;
    }
    return true;
}

/* Reads or writes the outputs of both implementations. */
static void kept_move_results(bool write, const CheckCase *c, const Yardstick *yardstick)
{
    const Image *const images[] = {&yardstick->reference, &yardstick->plain};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < c->buffers; i++)
            if (is_written(c, i))
                assert_true(kept_move(write, images[k]->after[i], images[k]->bytes[i]));
}

static KeptCase kept_case(const CheckCase *c, const Yardstick *yardstick)
{
    KeptCase kept;
    memset(&kept, 0, sizeof kept);
    snprintf(kept.op, sizeof kept.op, "%s", c->op);
    snprintf(kept.shape, sizeof kept.shape, "%s", c->shape);
    kept.fill = (int)yardstick->fill;
    kept.act = (int)yardstick->precision.act;
    for (int i = 0; i < c->buffers; i++)
        kept.bytes += yardstick->reference.bytes[i] + yardstick->plain.bytes[i];
    return kept;
}

/* Writes the results of both implementations to yardstick->reference and yardstick->plain, whose memory
 * exists. If the next results of the file belong to this case, they are read; otherwise they are computed,
 * and kept if the file ends here. */
static void find_results(CheckCase *c, Yardstick *yardstick)
{
    Precision exact = {DSVI_F64, DSVI_F64};
    DsviOps ref_ops, plain_ops;
    KeptCase wanted = kept_case(c, yardstick), found;
    off_t begin = kept_at;
    bool end = kept_file < 0 || !kept_move(false, &found, sizeof found);
    if (!end && memcmp(&found, &wanted, sizeof found) == 0) {
        kept_move_results(false, c, yardstick);
        return;
    }
    kept_at = begin;
    dsvi_ops_fill_ref(&ref_ops);
    check_plain_fill(&plain_ops);
    assert_ok(execute(c, &ref_ops, NULL, exact, &yardstick->reference));
    assert_ok(execute(c, &plain_ops, NULL, yardstick->precision, &yardstick->plain));
    if (kept_file >= 0 && end) {
        kept_move(true, &wanted, sizeof wanted);
        kept_move_results(true, c, yardstick);
    }
}

static bool check_fill(CheckCase *c, const DsviBackend *backend, CheckFill fill, Precision precision,
                       char *why, size_t why_bytes)
{
    Precision exact = {DSVI_F64, DSVI_F64};
    double *values[CHECK_BUFFERS_MAX] = {NULL};
    Yardstick yardstick = {.precision = precision, .fill = fill, .values = values};
    for (int i = 0; i < c->buffers; i++)
        values[i] = make_values(&c->buffer[i], i, fill, precision);
    image_make(&yardstick.reference, c, values, exact, 0);
    image_make(&yardstick.plain, c, values, precision, 0);
    find_results(c, &yardstick);
    bool good = check_skew(c, backend, &yardstick, 0, why, why_bytes) &&
                check_skew(c, backend, &yardstick, 1, why, why_bytes);
    image_free(&yardstick.reference);
    image_free(&yardstick.plain);
    for (int i = 0; i < c->buffers; i++)
        free(values[i]);
    return good;
}

bool check_case(CheckCase *c, const DsviBackend *backend, char why[CHECK_TEXT_BYTES])
{
    int fills = test_small() ? CHECK_NORMAL + 1 : TEST_SANITIZED ? CHECK_LARGE + 1 : CHECK_FILLS;
    for (int fill = 0; fill < fills; fill++) {
        for (int narrow = 0; narrow < (c->f32_only ? 1 : 2); narrow++) {
            char detail[CHECK_TEXT_BYTES / 2] = "";
            Precision precision = {narrow ? DSVI_BF16 : DSVI_F32, DSVI_F32};
            if (check_fill(c, backend, (CheckFill)fill, precision, detail, sizeof detail))
                continue;
            snprintf(why, CHECK_TEXT_BYTES, "%s (%s), %s, fill %s, on %s: %s", c->op, c->shape,
                     dsvi_dtype_name(precision.act), FILL_NAME[fill],
                     backend->device ? backend->device->name : "host", detail);
            return false;
        }
    }
    return true;
}

void assert_case(CheckCase *c, const DsviBackend *backend)
{
    char why[CHECK_TEXT_BYTES];
    if (!check_case(c, backend, why))
        fail_msg("%s", why);
}

double check_gradient_error(check_loss_fn *loss, void *context, double *x, int64_t n, const double *gradient)
{
    double largest = 0, error = 0;
    for (int64_t i = 0; i < n; i++) {
        double centre = x[i], step = 1e-5 * (1 + fabs(centre));
        x[i] = centre + step;
        double above = loss(context);
        x[i] = centre - step;
        double below = loss(context);
        x[i] = centre;
        double difference = fabs((above - below) / (2 * step) - gradient[i]);
        if (!(difference <= error)) /* written so that NaN becomes the error */
            error = difference;
        largest = fabs(gradient[i]) > largest ? fabs(gradient[i]) : largest;
    }
    return largest > 0 ? error / largest : error;
}
