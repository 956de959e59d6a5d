/* That the fastest kernels answer for the sizes that matter, and that their answer there is that of others
 * which the checker knows: it has no truth for so many tokens. For dense attention that is cuDNN, for lists
 * on a Hopper GPU kernels of our own. The checker meets the portable ones here; in test_cuda_sparse it meets
 * what the GPU gets by default. */
#include "base/rng.h"
#include "cuda/attention_cudnn.h"
#include "cuda/cuda.h"
#include "cuda/device_cuda.h"
#include "cuda/gpu.h"
#include "ops/sparse_cases.h"
#include "test.h"

enum { OUTPUTS = 4, TENSORS = 8 }; /* number of the first output, number of all */

typedef struct Size {
    int64_t batch, heads, queries, keys, dim;
} Size;

typedef struct Problem {
    DsvAttentionArgs args;
    double logit; /* the size of scores, or thereabouts */
    DsvLists lists;
    void *memory[TENSORS + 2]; /* q k v dout out dq dk dv, lse, workspace */
    size_t bytes[TENSORS + 2];
} Problem;

static const Size SIZES[] = {
    {1, 2, 32760, 32760, 128}, {1, 2, 32760, 512, 128}, {1, 3, 4096, 4096, 64}, {1, 2, 1000, 777, 128},
    {1, 1, 720, 256, 64},
    /* in two calls each: forward 3,712 queries of 4,096, then the others, over the keys in parts; backward
     * 3,712 keys of 4,000 */
    {1, 9, 4096, 4000, 64},
    /* forward 5,632 queries and the others */
    {2, 3, 6000, 6144, 128},
    /* forward in three: 11,264 queries, the others, and all of them over the last 120 keys */
    {1, 3, 11640, 32760, 128},
    /* forward over the keys in parts alone */
    {1, 1, 1000, 9000, 128},
};

/* With test_small these instead, on a GPU that counts as one of two multiprocessors: whole, in all the pieces
 * that there are forward, in two calls backward. */
enum { SMALL_MULTIPROCESSORS = 2 };
static const Size SMALL_SIZES[] = {{1, 1, 720, 256, 64}, {1, 1, 1800, 2568, 128}, {1, 1, 2048, 520, 64}};

/* How long the lists are, in runs. */
typedef enum Lengths {
    EVEN,   /* `density` of all, in each */
    MIXED,  /* none, few round the sizes of tiles, all, in turns */
    SKEWED, /* between none and `density` of all, the same in a head */
    SINK,   /* `density` of all, the first among them; in every fifth nothing, in every seventh all */
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
    {{1100, 1, 20, 80, 64}, 20, 1, MIXED, 0, 1}, /* more than are put in order */
    {{1, 2, 20000, 1500, 64}, 64, 1, MIXED, 0, 1},     /* more than two waves of tiles */
    {{1, 2, 20000, 1500, 64}, 64, 1, EVEN, 0.0007, 1}, /* a key each, here and there */
    {{1, 2, 2048, 2048, 128}, 128, 1, EVEN, 0.5, 1e4},
    {{1, 2, 2048, 2048, 64}, 64, 1, EVEN, 0.5, 1e4},
    {{1, 1, 130, 1000003, 64}, 128, 1, EVEN, 0.5, 1},
    {{1, 1, 20, 1000003, 64}, 32, 16, EVEN, 1, 1},
    /* by blocks of keys, of which there are enough for all multiprocessors */
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
    {{1, 5, 3000, 5000, 128}, 64, 64, SINK, 0.2, 1}, /* blocks too small */
    {{1, 1, 12288 * 64, 17000, 72}, 64, 128, EVEN, 0.01, 1}, /* as many groups as there is room for */
    {{1, 1, 12288 * 64 + 1, 17000, 72}, 64, 128, EVEN, 0.01, 1},
};

/* Runs that are whole blocks of keys, of which the backward pass for Hopper can go from one to the next. */
static bool lists_blocks(int number, const Size *size)
{
    int64_t grain = LISTS[number].grain < size->keys ? LISTS[number].grain : size->keys;
    return grain % 128 == 0 || grain == size->keys;
}

/* What answers for the backward pass on Hopper, in default mode. */
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

/* With test_small lists have some groups, blocks of keys and heads only, and the GPU counts as one of so few
 * multiprocessors that each has several tiles, or, where the backward pass is to go by blocks, that these are
 * enough for all. */
enum { SMALL_BLOCKS = 8, FEW_MULTIPROCESSORS = 4 };

static Size size_of(int number)
{
    Size size = LISTS[number].size;
    int64_t group = LISTS[number].group, block = size.keys % 128 == 0 ? 640 : 777;
    if (!test_small() || size.batch > 1000) /* which is there for that number */
        return size;
    size.batch = least(size.batch, 2);
    size.heads = least(size.heads, size.keys > 200 ? 5 : SMALL_BLOCKS);
    size.queries = least(size.queries, (group > 128 ? 2 * group : 256) + 33);
    size.keys = least(size.keys, block);
    return size;
}

/* From now on the GPU counts as one of so many multiprocessors; gives how many it has. */
static int make_multiprocessors(int count)
{
    int multiprocessors = gpu_backend.device->stream->multiprocessors;
    gpu_backend.device->stream->multiprocessors = count;
    return multiprocessors;
}

/* Normal numbers times `scale`, behind them the same in BF16. */
static float *draw(uint32_t stream, int64_t n, double scale)
{
    DsvRng rng = {3, DSV_RNG_TEST, stream};
    float *numbers = malloc((size_t)n * (sizeof(float) + 2));
    assert_non_null(numbers);
    dsvi_rng_fill_normal(rng, 0, numbers, n);
    for (int64_t i = 0; i < n && scale != 1; i++)
        numbers[i] *= (float)scale;
    dsvi_convert(DSV_BF16, numbers + n, DSV_F32, numbers, n);
    return numbers;
}

static void *upload(const void *host, size_t bytes)
{
    return check_upload(&gpu_backend, gpu_backend.device->stream, host, bytes);
}

/* (B, N, S, D) rather than (B, S, N, D). */
static DsvHeads heads_first(const void *data, int64_t tokens, int64_t heads, int64_t dim)
{
    DsvHeads rows = dsvi_heads(data, tokens, heads, dim);
    rows.token_stride = dim;
    rows.head_stride = tokens * dim;
    return rows;
}

static void create_tensors(Problem *p, const Size *size, double logit, bool first)
{
    DsvDevice *device = gpu_backend.device;
    int64_t heads = size->heads, dim = size->dim, rows = size->batch * heads * size->queries;
    int64_t tokens[TENSORS] = {size->queries, size->keys, size->keys, size->queries,
                               size->queries, size->queries, size->keys, size->keys};
    DsvHeads *tensors[TENSORS] = {&p->args.q, &p->args.k, &p->args.v, &p->args.dout,
                                  &p->args.out, &p->args.dq, &p->args.dk, &p->args.dv};
    memset(p, 0, sizeof *p);
    p->logit = logit;
    p->args = (DsvAttentionArgs){.batch = size->batch, .heads = heads, .queries = size->queries,
                                 .keys = size->keys, .head_dim = dim, .scale = 1 / sqrt((double)dim),
                                 .act = DSV_BF16, .acc = DSV_F32};
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
    DsvDevice *device = gpu_backend.device;
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

/* Workspace and outputs are written, for tools that do not see what cuDNN writes. */
static void create(Problem *p, const Size *size)
{
    DsvStream *stream = gpu_backend.device->stream;
    create_tensors(p, size, 1, false);
    size_t forward = gpu_backend.ops.attention_fwd.workspace(stream, &p->args);
    size_t backward = gpu_backend.ops.attention_bwd.workspace(stream, &p->args);
    create_workspace(p, forward > backward ? forward : backward);
    fill_with_nan(p, OUTPUTS, TENSORS + 1);
}

static int64_t runs_in(int number, int64_t list, int64_t groups, int64_t full)
{
    static const int64_t mixed[] = {0, 1, 63, 64, 65, -1, 127, 128, 129, 0, 0, 191, 192, 385, 2};
    int64_t heads = size_of(number).heads, wanted = (int64_t)(LISTS[number].density * (double)full);
    if (LISTS[number].lengths == MIXED)
        wanted = mixed[(size_t)list % (sizeof mixed / sizeof *mixed)];
    if (LISTS[number].lengths == SKEWED)
        wanted = wanted * (list / groups % heads * 7 % heads) / heads;
    if (LISTS[number].lengths == SINK)
        wanted = list % 5 == 0 ? 0 : list % 7 == 0 ? full : wanted;
    return wanted < 0 || wanted > full ? full : wanted;
}

/* Run i of n is somewhere in part i of n of all: ascending, and none twice. */
static void create_lists(Problem *p, int number)
{
    Size size = size_of(number);
    DsvRng rng = {3, DSV_RNG_TEST, 100};
    DsvLists *lists = &p->lists;
    *lists = (DsvLists){.batch = size.batch, .heads = size.heads, .queries = size.queries,
                        .keys = size.keys, .group = LISTS[number].group, .grain = LISTS[number].grain};
    lists->groups = (size.queries + lists->group - 1) / lists->group;
    int64_t count = dsvi_lists_count(lists), full = dsvi_lists_full(lists), total = 0;
    int64_t *offsets = calloc((size_t)count + 1, sizeof *offsets);
    assert_non_null(offsets);
    for (int64_t n = 0; n < count; n++)
        offsets[n + 1] = offsets[n] + runs_in(number, n, lists->groups, full);
    lists->capacity = offsets[count];
    int32_t *runs = malloc((size_t)(lists->capacity + 1) * sizeof *runs);
    assert_non_null(runs);
    for (int64_t n = 0; n < count; n++) {
        int64_t in = offsets[n + 1] - offsets[n];
        for (int64_t i = 0; i < in; i++, total++) {
            int64_t begin = i * full / in, end = (i + 1) * full / in;
            double place = dsvi_rng_uniform(rng, (uint64_t)total) * (double)(end - begin);
            if (i == 0 && LISTS[number].lengths == SINK)
                place = 0;
            runs[total] = (int32_t)(begin + (int64_t)place);
        }
    }
    lists->offsets = upload(offsets, (size_t)(count + 1) * sizeof *offsets);
    lists->runs = upload(runs, (size_t)(lists->capacity + 1) * sizeof *runs);
    assert_ok(gpu_backend.device->sync(gpu_backend.device->stream));
    free(offsets);
    free(runs);
    p->args.lists = lists;
}

static void release(Problem *p)
{
    for (int i = 0; i < TENSORS + 2; i++)
        gpu_backend.device->mem_free(gpu_backend.device, p->memory[i]);
    gpu_backend.device->mem_free(gpu_backend.device, p->lists.offsets);
    gpu_backend.device->mem_free(gpu_backend.device, p->lists.runs);
}

/* out, dq, dk, dv and lse as they lie on the device, one behind the other. */
static void *results(const Problem *p)
{
    DsvDevice *device = gpu_backend.device;
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

/* Both are results of the same problem. Either rounds p, ds and its result to BF16, by up to 2^-9 each, in an
 * order of its own. Of scores in thousands few keys have a weight that is neither 0 nor 1, and only they have
 * a part in dq and dk: by an exponential of the difference of two scores, which are rounded. */
static void compare(const Problem *p, const unsigned char *found, const unsigned char *wanted)
{
    static const char *const names[] = {"out", "dq", "dk", "dv", "lse"};
    const DsvAttentionArgs *args = &p->args;
    for (int i = OUTPUTS; i <= TENSORS; i++) {
        DsvDtype dtype = i < TENSORS ? DSV_BF16 : DSV_F32;
        int64_t n = (int64_t)(p->bytes[i] / dsvi_dtype_size(dtype));
        double error = relative_l2(dtype, found, dtype, wanted, n), bound = i < TENSORS ? 1e-2 : 1e-6;
        if (p->logit > 1000 && (i == OUTPUTS + 1 || i == OUTPUTS + 2))
            bound = 0.1;
        assert_error_below(error, bound, "%s of %lld x %lld, head size %lld, group %lld",
                           names[i - OUTPUTS], (long long)args->queries, (long long)args->keys,
                           (long long)args->head_dim, (long long)(args->lists ? args->lists->group : 0));
        found += p->bytes[i];
        wanted += p->bytes[i];
    }
}

static void cudnn_serves(void **state)
{
    const Size *sizes = test_small() ? SMALL_SIZES : SIZES;
    size_t count = test_small() ? sizeof SMALL_SIZES / sizeof *sizes : sizeof SIZES / sizeof *sizes;
    DsvStream *stream = gpu_backend.device->stream;
    int tried = test_small() ? SMALL_MULTIPROCESSORS : stream->multiprocessors;
    int multiprocessors = make_multiprocessors(tried);
    (void)state;
    for (size_t i = 0; i < count; i++) {
        Problem p;
        create(&p, &sizes[i]);
        assert_ok(dsvi_attention_cudnn_serves(stream, &p.args, false));
        DsvStatus backward = dsvi_attention_cudnn_serves(stream, &p.args, true);
        if (!gpu_backend.device->deterministic) /* cuDNN's fixed order takes too much memory for long ones */
            assert_ok(backward);
        assert_ok(gpu_backend.ops.attention_fwd.run(stream, &p.args));
        assert_ok(gpu_backend.ops.attention_bwd.run(stream, &p.args));
        assert_string_equal(gpu_backend.ops.attention_fwd.variant, "cudnn");
        if (backward == DSV_OK)
            assert_string_equal(gpu_backend.ops.attention_bwd.variant, "cudnn");
        unsigned char *found = results(&p);
        assert_ok(dsvi_cuda_attention_list_fwd(stream, &p.args));
        assert_ok(dsvi_cuda_attention_list_bwd(stream, &p.args));
        unsigned char *wanted = results(&p);
        compare(&p, found, wanted);
        free(found);
        free(wanted);
        release(&p);
    }
    make_multiprocessors(multiprocessors);
}

/* What cuDNN is not asked for names what answers, and leaves the names of attention over lists alone. */
static void dense_names_itself(void **state)
{
    static const Size few = {1, 1, 100, 40, 64};
    const char *lists[] = {gpu_backend.ops.attention_list_fwd.variant,
                           gpu_backend.ops.attention_list_bwd.variant};
    char before[2][DSVI_CUDA_VARIANT_BYTES];
    DsvStream *stream = gpu_backend.device->stream;
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

/* From now on the GPU counts as the oldest that is served; gives what it is. */
static int make_portable(void)
{
    int capability = gpu_backend.device->stream->capability;
    gpu_backend.device->stream->capability = DSVI_CUDA_OLDEST;
    return capability;
}

static void *attend_lists(const Problem *p)
{
    DsvStream *stream = gpu_backend.device->stream;
    fill_with_nan(p, OUTPUTS, TENSORS + !test_small()); /* small, for tools that see who reads it unwritten */
    assert_ok(gpu_backend.ops.attention_list_fwd.run(stream, &p->args));
    assert_ok(gpu_backend.ops.attention_list_bwd.run(stream, &p->args));
    return results(p);
}

/* Blocks that would be too few with all of them must be too few here. */
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
    DsvStream *stream = gpu_backend.device->stream;
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
            assert_memory_equal(found, again, p.bytes[OUTPUTS]); /* out waits for no other block's sums */
            compare(&p, again, found);
        }
        int capability = make_portable();
        unsigned char *wanted = attend_lists(&p);
        stream->capability = capability;
        make_multiprocessors(multiprocessors);
        compare(&p, found, wanted);
        free(found);
        free(again);
        free(wanted);
        release(&p);
    }
}

/* In deterministic mode nothing depends on which block of threads comes first. */
static void the_same_bits_fifty_times(void **state)
{
    static const int numbers[] = {0, 4, 9, 19}; /* of LISTS: even, mixed, of blocks, skewed */
    DsvStream *stream = gpu_backend.device->stream;
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
        cmocka_unit_test(cudnn_serves),
        cmocka_unit_test(dense_names_itself),
        cmocka_unit_test(hopper_serves_lists),
        cmocka_unit_test(the_same_bits_fifty_times),
        cmocka_unit_test(portable_dense),
        cmocka_unit_test(portable_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    return run_on_gpu(run, argc, argv);
}
