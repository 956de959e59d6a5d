/* Attention at sizes for which the reference implementation is too slow. The tests check that the fastest
 * kernels run there (cuDNN for dense attention, the sm_90a kernels for lists on a Hopper GPU), and that their
 * results agree with those of the portable kernels. The portable kernels are compared with the reference at
 * small sizes here; the default kernels in test_cuda_sparse.c. */
#include "base/rng.h"
#include "cuda/attention/attention_cudnn.h"
#include "cuda/common/cuda.h"
#include "cuda/device_cuda.h"
#include "cuda/gpu.h"
#include "ops/sparse_cases.h"
#include "test.h"

enum { OUTPUTS = 4, TENSORS = 8 }; /* index of the first output, number of all tensors */

typedef struct Size {
    int64_t batch, heads, queries, keys, dim;
} Size;

typedef struct Problem {
    DsviAttentionArgs args;
    double logit; /* approximate size of the scores */
    DsviLists lists;
    void *memory[TENSORS + 2]; /* q k v dout out dq dk dv, lse, workspace */
    size_t bytes[TENSORS + 2];
} Problem;

static const Size SIZES[] = {
    {1, 2, 32760, 32760, 128},
    {1, 2, 32760, 512, 128},
    {1, 3, 4096, 4096, 64},
    {1, 2, 1000, 777, 128},
    {1, 1, 720, 256, 64},
    /* two cuDNN calls each: forward with 3,712 of 4,096 queries, then the others with the keys in parts;
     * backward with 3,712 of 4,000 keys, then the others */
    {1, 9, 4096, 4000, 64},
    /* forward in two calls: 5,632 queries, then the others */
    {2, 3, 6000, 6144, 128},
    /* forward in three calls: 11,264 queries, then the others, then all queries over the last 120 keys */
    {1, 3, 11640, 32760, 128},
    /* forward only with the keys in parts */
    {1, 1, 1000, 9000, 128},
};

/* Used instead with test_small(), when the kernels are chosen as for a GPU with two multiprocessors. The
 * sizes give one call, all kinds of forward calls, and two backward calls. */
enum { SMALL_MULTIPROCESSORS = 2 };
static const Size SMALL_SIZES[] = {{1, 1, 720, 256, 64}, {1, 1, 1800, 2568, 128}, {1, 1, 2048, 520, 64}};

/* How many spans the lists have. */
typedef enum Lengths {
    EVEN,   /* all lists: the fraction `density` of all spans */
    MIXED,  /* in turn: none, numbers near the sizes of tiles, all */
    SKEWED, /* between none and the fraction `density`, equal for all lists of a head */
    SINK,   /* the fraction `density`, including span 0; every fifth list empty, every seventh full */
} Lengths;

static const struct {
    Size size;
    int64_t group, grain;
    Lengths lengths;
    double density, logit; /* of Problem */
} LISTS[] = {
    {{1, 2, 4096, 4096, 128}, 128, 1, EVEN, 0.1, 1},
    {{1, 2, 4096, 4096, 128}, 64, 1, EVEN, 0.1, 1},
    {{1, 2, 4096, 4096, 64}, 128, 1, EVEN, 0.1, 1},
    {{1, 2, 4096, 4096, 64}, 64, 1, EVEN, 0.1, 1},
    {{2, 2, 3000, 2777, 128}, 100, 3, MIXED, 0, 1},
    {{2, 2, 3000, 2777, 64}, 32, 1, MIXED, 0, 3},
    {{1, 3, 3000, 2777, 96}, 128, 1, MIXED, 0, 3},
    {{1, 2, 2000, 5000, 128}, 256, 16, MIXED, 0, 1},
    {{1, 2, 2000, 5000, 64}, 192, 2, MIXED, 0, 1},
    {{1, 2, 2100, 5100, 128}, 128, 64, EVEN, 0.3, 1},
    {{1, 2, 2100, 5100, 128}, 64, 128, EVEN, 0.3, 1},
    {{1, 2, 2100, 5100, 64}, 128, 128, MIXED, 0, 1},
    {{2, 3, 1500, 1777, 96}, 64, 64, MIXED, 0, 1},
    {{2, 2, 1500, 1777, 72}, 160, 192, EVEN, 0.5, 1},
    {{2, 3, 1900, 2500, 128}, 128, 1, MIXED, 0, 1},
    {{2, 2, 1900, 2500, 128}, 32, 3, MIXED, 0, 1},
    {{1, 2, 1900, 2500, 128}, 64, 16, MIXED, 0, 1},
    {{1, 2, 1900, 2500, 64}, 256, 1, MIXED, 0, 1},
    {{1, 2, 40, 3000, 128}, 1, 1, MIXED, 0, 1},
    {{1, 24, 2048, 2048, 128}, 128, 1, SKEWED, 0.5, 1},
    {{1, 24, 2048, 2048, 64}, 64, 1, SKEWED, 0.5, 1},
    {{1100, 1, 20, 80, 64}, 20, 1, MIXED, 0, 1},       /* more lists than the kernels sort */
    {{1, 2, 20000, 1500, 64}, 64, 1, MIXED, 0, 1},     /* more than two waves of tiles */
    {{1, 2, 20000, 1500, 64}, 64, 1, EVEN, 0.0007, 1}, /* one key per list */
    {{1, 2, 2048, 2048, 128}, 128, 1, EVEN, 0.5, 1e4},
    {{1, 2, 2048, 2048, 64}, 64, 1, EVEN, 0.5, 1e4},
    {{1, 1, 130, 1000003, 64}, 128, 1, EVEN, 0.5, 1},
    {{1, 1, 20, 1000003, 64}, 32, 16, EVEN, 1, 1},
    /* backward by blocks of keys, at least one block for each multiprocessor */
    {{1, 4, 4096, 8192, 128}, 128, 128, EVEN, 0.1, 1},
    {{1, 4, 4096, 8192, 128}, 64, 128, EVEN, 0.1, 1},
    {{2, 3, 4000, 5000, 128}, 128, 128, MIXED, 0, 1},
    {{2, 3, 4000, 5000, 96}, 192, 128, SINK, 0.2, 1},
    {{2, 3, 4033, 5057, 72}, 128, 256, SINK, 0.2, 3},
    {{3, 5, 1290, 2048, 128}, 64, 384, SKEWED, 0.7, 1},
    {{1, 24, 2048, 2048, 128}, 256, 128, SKEWED, 0.5, 1},
    {{1, 160, 200, 100, 128}, 64, 128, MIXED, 0, 1},
    {{1, 80, 200, 129, 128}, 256, 128, EVEN, 1, 1},
    {{1, 9, 2048, 2048, 128}, 128, 128, EVEN, 0.5, 1e4},
    {{1, 2, 6400, 65536, 128}, 128, 128, EVEN, 1, 1},
    {{1, 5, 3000, 5000, 128}, 64, 64, SINK, 0.2, 1},         /* spans smaller than a block of keys */
    {{1, 1, 12288 * 64, 17000, 72}, 64, 128, EVEN, 0.01, 1}, /* the largest supported number of groups */
    {{1, 1, 12288 * 64 + 1, 17000, 72}, 64, 128, EVEN, 0.01, 1},
};

/* Returns whether spans are whole blocks of keys, so that the Hopper backward pass can iterate over blocks of
 * keys. */
static bool lists_blocks(int number, const Size *size)
{
    int64_t grain = LISTS[number].grain < size->keys ? LISTS[number].grain : size->keys;
    return grain % 128 == 0 || grain == size->keys;
}

/* Returns the name of the variant that must run the backward pass on Hopper in default mode. */
static const char *backward_of(int number, const Size *size)
{
    int64_t group = LISTS[number].group, groups = (size->queries + group - 1) / group;
    if (!lists_blocks(number, size))
        return "cuda, sm_90a";
    if (size->dim <= 64)
        return "cuda, sm_90a, not by blocks of keys: head size not from 65 to 128";
    if (group % 64 != 0 && group < size->queries)
        return "cuda, sm_90a, not by blocks of keys: groups are not whole tiles of 64 queries";
    if (groups > 12288)
        return "cuda, sm_90a, not by blocks of keys: more than 12288 groups";
    if (size->batch * size->heads * ((size->keys + 127) / 128) < gpu_backend.device->stream->multiprocessors)
        return "cuda, sm_90a, not by blocks of keys: fewer blocks than multiprocessors";
    return "cuda, sm_90a, by blocks of keys";
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* With test_small() there are only a few groups, blocks of keys and heads. The kernels are then chosen as for
 * a GPU with so few multiprocessors that each has several tiles, or at least one block of keys if the
 * backward pass iterates over blocks. */
enum { SMALL_BLOCKS = 8, FEW_MULTIPROCESSORS = 4 };

static Size size_of(int number)
{
    Size size = LISTS[number].size;
    int64_t group = LISTS[number].group, block = size.keys % 128 == 0 ? 640 : 777;
    if (!test_small() || size.batch > 1000) /* a batch above 1000 is the purpose of its case */
        return size;
    size.batch = least(size.batch, 2);
    size.heads = least(size.heads, size.keys > 200 ? 5 : SMALL_BLOCKS);
    size.queries = least(size.queries, (group > 128 ? 2 * group : 256) + 33);
    size.keys = least(size.keys, block);
    return size;
}

/* Makes the backend choose kernels as for a GPU with `count` multiprocessors; returns the previous number. */
static int make_multiprocessors(int count)
{
    int multiprocessors = gpu_backend.device->stream->multiprocessors;
    gpu_backend.device->stream->multiprocessors = count;
    return multiprocessors;
}

/* Returns n normal numbers times `scale` in F32, followed by the same numbers in BF16. The caller frees
 * them. */
static float *draw(uint32_t stream, int64_t n, double scale)
{
    DsviRng rng = {3, DSVI_RNG_TEST, stream};
    float *numbers = malloc((size_t)n * (sizeof(float) + 2));
    assert_non_null(numbers);
    dsvi_rng_fill_normal(rng, 0, numbers, n);
    for (int64_t i = 0; i < n && scale != 1; i++)
        numbers[i] *= (float)scale;
    dsvi_convert(DSVI_BF16, numbers + n, DSVI_F32, numbers, n);
    return numbers;
}

static void *upload(const void *host, size_t bytes)
{
    return check_upload(&gpu_backend, gpu_backend.device->stream, host, bytes);
}

/* Returns the strides of a tensor (B, N, S, D); dsvi_heads() gives those of (B, S, N, D). */
static DsviHeads heads_first(const void *data, int64_t tokens, int64_t heads, int64_t dim)
{
    DsviHeads rows = dsvi_heads(data, tokens, heads, dim);
    rows.token_stride = dim;
    rows.head_stride = tokens * dim;
    return rows;
}

static void create_tensors(Problem *p, const Size *size, double logit, bool first)
{
    DsviDevice *device = gpu_backend.device;
    int64_t heads = size->heads, dim = size->dim, rows = size->batch * heads * size->queries;
    int64_t tokens[TENSORS] = {size->queries, size->keys,    size->keys, size->queries,
                               size->queries, size->queries, size->keys, size->keys};
    DsviHeads *tensors[TENSORS] = {&p->args.q,   &p->args.k,  &p->args.v,  &p->args.dout,
                                   &p->args.out, &p->args.dq, &p->args.dk, &p->args.dv};
    memset(p, 0, sizeof *p);
    p->logit = logit;
    p->args = (DsviAttentionArgs){.batch = size->batch,
                                  .heads = heads,
                                  .queries = size->queries,
                                  .keys = size->keys,
                                  .head_dim = dim,
                                  .scale = 1 / sqrt((double)dim),
                                  .act = DSVI_BF16,
                                  .acc = DSVI_F32};
    for (uint32_t i = 0; i < TENSORS; i++) {
        int64_t n = size->batch * tokens[i] * heads * dim;
        p->bytes[i] = (size_t)n * 2;
        assert_ok(device->mem_alloc(device, p->bytes[i], &p->memory[i]));
        *tensors[i] = (first ? heads_first : dsvi_heads)(p->memory[i], tokens[i], heads, dim);
        if (i >= OUTPUTS)
            continue;
        float *host = draw(i, n, i == 0 ? logit : 1);
        assert_ok(device->upload(device->stream, p->memory[i], host + n, p->bytes[i]));
        assert_ok(device->sync(device->stream));
        free(host);
    }
    p->bytes[TENSORS] = (size_t)rows * sizeof(float);
    assert_ok(device->mem_alloc(device, p->bytes[TENSORS], &p->memory[TENSORS]));
    p->args.lse = p->memory[TENSORS];
}

static void create_workspace(Problem *p, size_t bytes)
{
    DsviDevice *device = gpu_backend.device;
    p->args.workspace_bytes = bytes;
    p->bytes[TENSORS + 1] = bytes;
    assert_ok(device->mem_alloc(device, bytes, &p->args.workspace));
    p->memory[TENSORS + 1] = p->args.workspace;
}

static void fill_with_nan(const Problem *p, int first, int last)
{
    for (int i = first; i <= last; i++)
        assert_int_equal(cudaMemsetAsync(p->memory[i], 0xff, p->bytes[i], gpu_backend.device->stream->handle),
                         cudaSuccess);
}

/* Workspace and outputs are filled with NaN, also because tools such as initcheck do not see what cuDNN
 * writes. */
static void create(Problem *p, const Size *size)
{
    DsviStream *stream = gpu_backend.device->stream;
    create_tensors(p, size, 1, false);
    size_t forward = gpu_backend.ops.attention_fwd.workspace(stream, &p->args);
    size_t backward = gpu_backend.ops.attention_bwd.workspace(stream, &p->args);
    create_workspace(p, forward > backward ? forward : backward);
    fill_with_nan(p, OUTPUTS, TENSORS + 1);
}

static int64_t spans_in(int number, int64_t list, int64_t groups, int64_t full)
{
    static const int64_t mixed[] = {0, 1, 63, 64, 65, -1, 127, 128, 129, 0, 0, 191, 192, 385, 2};
    int64_t heads = size_of(number).heads, expected = (int64_t)(LISTS[number].density * (double)full);
    if (LISTS[number].lengths == MIXED)
        expected = mixed[(size_t)list % (sizeof mixed / sizeof *mixed)];
    if (LISTS[number].lengths == SKEWED)
        expected = expected * (list / groups % heads * 7 % heads) / heads;
    if (LISTS[number].lengths == SINK)
        expected = list % 5 == 0 ? 0 : list % 7 == 0 ? full : expected;
    return expected < 0 || expected > full ? full : expected;
}

/* Span i of a list with n spans is a random span from part i of n equal parts of all spans, so that spans are
 * ascending and different. */
static void create_lists(Problem *p, int number)
{
    Size size = size_of(number);
    DsviRng rng = {3, DSVI_RNG_TEST, 100};
    DsviLists *lists = &p->lists;
    *lists = (DsviLists){.batch = size.batch,
                         .heads = size.heads,
                         .queries = size.queries,
                         .keys = size.keys,
                         .group = LISTS[number].group,
                         .grain = LISTS[number].grain};
    lists->groups = (size.queries + lists->group - 1) / lists->group;
    int64_t count = dsvi_lists_count(lists), full = dsvi_lists_full(lists), total = 0;
    int64_t *offsets = calloc((size_t)count + 1, sizeof *offsets);
    assert_non_null(offsets);
    for (int64_t n = 0; n < count; n++)
        offsets[n + 1] = offsets[n] + spans_in(number, n, lists->groups, full);
    lists->capacity = offsets[count];
    int32_t *spans = malloc((size_t)(lists->capacity + 1) * sizeof *spans);
    assert_non_null(spans);
    for (int64_t n = 0; n < count; n++) {
        int64_t in = offsets[n + 1] - offsets[n];
        for (int64_t i = 0; i < in; i++, total++) {
            int64_t begin = i * full / in, end = (i + 1) * full / in;
            double place = dsvi_rng_uniform(rng, (uint64_t)total) * (double)(end - begin);
            if (i == 0 && LISTS[number].lengths == SINK)
                place = 0;
            spans[total] = (int32_t)(begin + (int64_t)place);
        }
    }
    lists->offsets = upload(offsets, (size_t)(count + 1) * sizeof *offsets);
    lists->spans = upload(spans, (size_t)(lists->capacity + 1) * sizeof *spans);
    assert_ok(gpu_backend.device->sync(gpu_backend.device->stream));
    free(offsets);
    free(spans);
    p->args.lists = lists;
}

static void release(Problem *p)
{
    for (int i = 0; i < TENSORS + 2; i++)
        gpu_backend.device->mem_free(gpu_backend.device, p->memory[i]);
    gpu_backend.device->mem_free(gpu_backend.device, p->lists.offsets);
    gpu_backend.device->mem_free(gpu_backend.device, p->lists.spans);
}

/* Returns host copies of out, dq, dk, dv and lse, one after the other; the caller frees them. */
static void *results(const Problem *p)
{
    DsviDevice *device = gpu_backend.device;
    size_t bytes = 0;
    for (int i = OUTPUTS; i <= TENSORS; i++)
        bytes += p->bytes[i];
    unsigned char *host = malloc(bytes), *at = host;
    assert_non_null(host);
    for (int i = OUTPUTS; i <= TENSORS; i++) {
        assert_ok(device->download(device->stream, at, p->memory[i], p->bytes[i]));
        at += p->bytes[i];
    }
    assert_ok(device->sync(device->stream));
    return host;
}

/* Compares two results of the same problem. Both kernels round p, ds and the result to BF16, each by up to
 * 2^-9, in different orders. With scores in the thousands, few keys have a weight other than 0 and 1. Only
 * these keys contribute to dq and dk, through an exponential of the difference of two rounded scores, so that
 * the bound for dq and dk is larger. */
static void compare(const Problem *p, const unsigned char *found, const unsigned char *expected)
{
    static const char *const names[] = {"out", "dq", "dk", "dv", "lse"};
    const DsviAttentionArgs *args = &p->args;
    for (int i = OUTPUTS; i <= TENSORS; i++) {
        DsviDtype dtype = i < TENSORS ? DSVI_BF16 : DSVI_F32;
        int64_t n = (int64_t)(p->bytes[i] / dsvi_dtype_size(dtype));
        double error = relative_l2(dtype, found, dtype, expected, n), bound = i < TENSORS ? 1e-2 : 1e-6;
        if (p->logit > 1000 && (i == OUTPUTS + 1 || i == OUTPUTS + 2))
            bound = 0.1;
        assert_error_below(error, bound, "%s of %lld x %lld, head size %lld, group %lld", names[i - OUTPUTS],
                           (long long)args->queries, (long long)args->keys, (long long)args->head_dim,
                           (long long)(args->lists ? args->lists->group : 0));
        found += p->bytes[i];
        expected += p->bytes[i];
    }
}

static void cudnn_serves(void **state)
{
    const Size *sizes = test_small() ? SMALL_SIZES : SIZES;
    size_t count = test_small() ? sizeof SMALL_SIZES / sizeof *sizes : sizeof SIZES / sizeof *sizes;
    DsviStream *stream = gpu_backend.device->stream;
    int tried = test_small() ? SMALL_MULTIPROCESSORS : stream->multiprocessors;
    int multiprocessors = make_multiprocessors(tried);
    (void)state;
    for (size_t i = 0; i < count; i++) {
        Problem p;
        create(&p, &sizes[i]);
        assert_ok(dsvi_attention_cudnn_serves(stream, &p.args, false));
        DsvStatus backward = dsvi_attention_cudnn_serves(stream, &p.args, true);
        if (!gpu_backend.device->deterministic) /* cuDNN's deterministic mode needs too much memory */
            assert_ok(backward);
        assert_ok(gpu_backend.ops.attention_fwd.run(stream, &p.args));
        assert_ok(gpu_backend.ops.attention_bwd.run(stream, &p.args));
        assert_string_equal(gpu_backend.ops.attention_fwd.variant, "cudnn");
        if (backward == DSV_OK)
            assert_string_equal(gpu_backend.ops.attention_bwd.variant, "cudnn");
        unsigned char *found = results(&p);
        assert_ok(dsvi_cuda_attention_list_fwd(stream, &p.args));
        assert_ok(dsvi_cuda_attention_list_bwd(stream, &p.args));
        unsigned char *expected = results(&p);
        compare(&p, found, expected);
        free(found);
        free(expected);
        release(&p);
    }
    make_multiprocessors(multiprocessors);
}

/* Dense attention that cuDNN does not run reports the name of the kernel that runs instead, and does not
 * change the reported names of attention over lists. */
static void dense_variant_is_reported(void **state)
{
    static const Size few = {1, 1, 100, 40, 64};
    const char *lists[] = {gpu_backend.ops.attention_list_fwd.variant,
                           gpu_backend.ops.attention_list_bwd.variant};
    char before[2][DSVI_CUDA_VARIANT_BYTES];
    DsviStream *stream = gpu_backend.device->stream;
    Problem p;
    (void)state;
    for (int i = 0; i < 2; i++)
        snprintf(before[i], sizeof before[i], "%s", lists[i]);
    create(&p, &few);
    assert_ok(gpu_backend.ops.attention_fwd.run(stream, &p.args));
    assert_ok(gpu_backend.ops.attention_bwd.run(stream, &p.args));
    assert_non_null(strstr(gpu_backend.ops.attention_fwd.variant, "cuda, "));
    assert_non_null(strstr(gpu_backend.ops.attention_bwd.variant, "cuda, "));
    for (int i = 0; i < 2; i++)
        assert_string_equal(lists[i], before[i]);
    assert_ok(gpu_backend.device->sync(gpu_backend.device->stream));
    release(&p);
}

/* Makes the backend use the portable kernels, as on the oldest supported GPU; returns the real compute
 * capability. */
static int make_portable(void)
{
    int capability = gpu_backend.device->stream->capability;
    gpu_backend.device->stream->capability = DSVI_CUDA_MIN_CAPABILITY;
    return capability;
}

static void *attend_lists(const Problem *p)
{
    DsviStream *stream = gpu_backend.device->stream;
    /* With test_small() the workspace stays uninitialised, so that initcheck can find reads of it. */
    fill_with_nan(p, OUTPUTS, TENSORS + !test_small());
    assert_ok(gpu_backend.ops.attention_list_fwd.run(stream, &p->args));
    assert_ok(gpu_backend.ops.attention_list_bwd.run(stream, &p->args));
    return results(p);
}

/* Returns the number of multiprocessors for which kernels are chosen. With test_small() it is so small that
 * the backward pass iterates over blocks of keys in the same cases as at full size. */
static int multiprocessors_for(int number)
{
    int all = gpu_backend.device->stream->multiprocessors;
    if (!test_small())
        return all;
    if (strstr(backward_of(number, &LISTS[number].size), "sm_90a, by blocks"))
        return SMALL_BLOCKS;
    return LISTS[number].grain % 128 == 0 ? all : FEW_MULTIPROCESSORS;
}

static void hopper_serves_lists(void **state)
{
    (void)state;
    DsviStream *stream = gpu_backend.device->stream;
    if (stream->capability != 90)
        skip();
    for (int number = 0; number < (int)(sizeof LISTS / sizeof *LISTS); number++) {
        Problem p;
        Size size = size_of(number);
        int multiprocessors = make_multiprocessors(multiprocessors_for(number));
        create_tensors(&p, &size, LISTS[number].logit, number % 2);
        create_lists(&p, number);
        create_workspace(&p, gpu_backend.ops.attention_list_bwd.workspace(stream, &p.args));
        unsigned char *found = attend_lists(&p), *again = test_small() ? NULL : attend_lists(&p);
        const char *backward = stream->deterministic ? "cuda, portable: sums in a fixed order"
                                                     : backward_of(number, &size);
        assert_string_equal(gpu_backend.ops.attention_list_fwd.variant, "cuda, sm_90a");
        assert_string_equal(gpu_backend.ops.attention_list_bwd.variant, backward);
        if (again) {
            assert_memory_equal(found, again, p.bytes[OUTPUTS]); /* out: no sums over thread blocks */
            compare(&p, again, found);
        }
        int capability = make_portable();
        unsigned char *expected = attend_lists(&p);
        stream->capability = capability;
        make_multiprocessors(multiprocessors);
        compare(&p, found, expected);
        free(found);
        free(again);
        free(expected);
        release(&p);
    }
}

/* In deterministic mode results do not depend on the order in which thread blocks run. */
static void the_same_bits_fifty_times(void **state)
{
    static const int numbers[] = {0, 4, 9, 19}; /* indices of LISTS: even, mixed, spans of 64 keys, skewed */
    DsviStream *stream = gpu_backend.device->stream;
    (void)state;
    if (!gpu_backend.device->deterministic)
        skip();
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        Problem p;
        size_t bytes = 0;
        Size size = size_of(numbers[i]);
        create_tensors(&p, &size, LISTS[numbers[i]].logit, false);
        create_lists(&p, numbers[i]);
        create_workspace(&p, gpu_backend.ops.attention_list_bwd.workspace(stream, &p.args));
        for (int n = OUTPUTS; n <= TENSORS; n++)
            bytes += p.bytes[n];
        unsigned char *first = attend_lists(&p);
        for (int run = 1; run < (test_small() ? 2 : 50); run++) {
            unsigned char *again = attend_lists(&p);
            assert_memory_equal(first, again, bytes);
            free(again);
        }
        free(first);
        release(&p);
    }
}

static void check_portable(bool over_lists)
{
    int capability = make_portable();
    check_attention_cases(&gpu_backend, over_lists);
    gpu_backend.device->stream->capability = capability;
}

static void portable_dense(void **state)
{
    (void)state;
    check_portable(false);
}

static void portable_lists(void **state)
{
    (void)state;
    check_portable(true);
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cudnn_serves),        cmocka_unit_test(dense_variant_is_reported),
        cmocka_unit_test(hopper_serves_lists), cmocka_unit_test(the_same_bits_fifty_times),
        cmocka_unit_test(portable_dense),      cmocka_unit_test(portable_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    return run_on_gpu(run, argc, argv);
}
