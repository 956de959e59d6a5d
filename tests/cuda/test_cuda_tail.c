/* Attention with a tail on a GPU, forward and backward after attention over lists: small problems against the
 * reference implementation, with the kernels of this GPU and with the portable ones; problems for which the
 * reference is too slow, with the Hopper kernels against the portable ones. */
#include "base/rng.h"
#include "cuda/common/cuda.h"
#include "cuda/device_cuda.h"
#include "cuda/gpu.h"
#include "ops/random_lists.h"
#include "ops/sparse_cases.h"
#include "test.h"

enum { INPUTS = 4, ROWS = 8, TENSORS = 10 }; /* q k v dout; out dq dk dv; lse, tail_lse */
enum { Q, K, V, DOUT, OUT, DQ, DK };
enum { SPARE = 8 }; /* unused elements after each tensor of rows, into which a layout may move the rows */

static const char *const NAMES[TENSORS] = {"q", "k", "v", "dout", "out", "dq", "dk", "dv", "lse", "tail lse"};

typedef struct Shape {
    int64_t batch, heads, queries, keys, dim, group, grain, chunk, run;
    double density; /* as in random_lists.h */
} Shape;

/* Groups and chunks that do and do not fill tiles, short last ones, spans of keys, runs, heads that need
 * several columns of boxes, or are no whole chunks of 16 bytes. */
static const Shape SMALL[] = {
    {1, 2, 256, 256, 128, 64, 1, 64, 1, 0.1},   {1, 2, 256, 256, 128, 64, 1, 16, 1, 0.1},
    {2, 3, 333, 411, 64, 32, 1, 32, 1, 0.05},   {1, 2, 200, 300, 128, 64, 1, 32, 1, -0.3},
    {1, 2, 200, 300, 128, 64, 1, 1, 1, 0.2},    {1, 2, 200, 300, 64, 64, 1, 1, 16, 0.2},
    {1, 2, 257, 300, 128, 64, 1, 64, 16, 0.1},  {2, 1, 150, 200, 96, 48, 3, 24, 1, 0.2},
    {2, 1, 150, 201, 128, 96, 16, 16, 5, -0.2}, {1, 1, 130, 190, 72, 1000, 1, 500, 1, 0.1},
    {1, 2, 96, 130, 192, 32, 1, 16, 1, 0.1},    {1, 2, 96, 130, 256, 32, 1, 32, 4, 0.1},
    {1, 1, 70, 90, 30, 16, 1, 8, 1, 0.1},       {1, 2, 192, 256, 128, 64, 1, 64, 1, 0},
    {1, 2, 192, 256, 128, 64, 1, 64, 1, 1},     {1, 1, 3, 2, 64, 1, 1, 1, 1, 0},
    {1, 2, 640, 300, 128, 640, 128, 5, 1, 0.4}, {3, 5, 40, 1000, 64, 8, 1, 4, 1, 0.02},
    {1, 2, 200, 300, 128, 64, 1, 1, 64, 0.2},   {2, 3, 333, 411, 64, 64, 8, 1, 16, 0.05},
    {1, 2, 96, 130, 96, 96, 1, 1, 7, 0.1},      {1, 1, 150, 520, 72, 1000, 1, 1, 255, 0.1},
    {1, 2, 192, 256, 128, 64, 1, 1, 64, 0},     {1, 2, 192, 256, 128, 64, 1, 1, 64, 1},
    {2, 2, 257, 520, 128, 128, 8, 1, 64, -0.3}, {1, 2, 150, 200, 96, 48, 3, 1, 16, 0.2},
    {1, 1, 150, 900, 64, 64, 1, 1, 300, 0.1},
};

/* Problems for the Hopper kernels: several tiles of proxies, several parts of the keys, more blocks of keys
 * than multiprocessors; key tails with several blocks of mean keys and several parts of the tiles. */
static const Shape LARGE[] = {
    {1, 4, 16384, 16384, 128, 64, 1, 64, 1, 0.05}, {1, 2, 8192, 8192, 64, 64, 1, 16, 1, 0.05},
    {2, 3, 5000, 7777, 128, 64, 1, 64, 1, -0.1},   {1, 24, 2048, 2048, 128, 128, 1, 32, 1, 0.1},
    {2, 2, 3000, 2777, 96, 100, 3, 20, 1, 0.1},    {1, 2, 40000, 1500, 72, 128, 64, 128, 1, 0.2},
    {1, 2, 2100, 5100, 128, 192, 128, 192, 1, 0},  {1, 1, 1000, 3000, 64, 64, 1, 1, 1, 0.3},
    {1, 4, 16384, 16384, 128, 64, 8, 1, 64, 0.05}, {2, 3, 5000, 7777, 128, 64, 1, 1, 64, -0.1},
    {1, 2, 8192, 8192, 64, 128, 8, 1, 16, 0.05},   {1, 2, 2100, 5100, 96, 192, 16, 1, 255, 0.1},
    {1, 1, 40000, 1500, 72, 64, 64, 1, 32, 0.2},
};

#define FIXED_ORDER "sums in a fixed order"
#define LARGE_HEADS "head size above 128"
#define LONG_RUNS "runs of more than 255 keys"
#define PARTIAL_TILES "groups are not whole tiles of 64 queries"
#define UNALIGNED "rows are not whole chunks of 16 bytes"
#define NO_TMA "TMA does not support these strides or addresses"

/* Reasons why the Hopper kernels decline the passes of a tail; NULL: they serve. */
typedef struct Why {
    const char *forward, *backward;
} Why;

/* Key tails just inside and just outside what the Hopper kernels serve, or just before and after a change of
 * their schedule. `why`: why these kernels decline both passes; NULL: they serve both. */
static const struct {
    Shape shape;
    const char *why;
} LIMITS[] = {
    {{1, 1, 64, 520, 64, 64, 1, 1, 255, 0}, NULL},
    {{1, 1, 64, 520, 64, 64, 1, 1, 256, 0}, LONG_RUNS},
    {{1, 2, 64, 130, 128, 64, 1, 1, 16, 0.1}, NULL},
    {{1, 2, 64, 130, 136, 64, 1, 1, 16, 0.1}, LARGE_HEADS},
    {{1, 2, 64, 130, 72, 64, 1, 1, 16, 0.1}, NULL},
    {{1, 2, 64, 130, 68, 64, 1, 1, 16, 0.1}, UNALIGNED},
    {{1, 2, 200, 130, 64, 128, 1, 1, 16, 0.1}, NULL},
    {{1, 2, 200, 130, 64, 96, 1, 1, 16, 0.1}, PARTIAL_TILES},
    {{1, 2, 96, 130, 64, 96, 1, 1, 16, 0.1}, NULL}, /* one group need not be whole tiles */
    {{1, 2, 64, 256, 64, 64, 1, 1, 2, 0.1}, NULL},  /* one block of 128 runs */
    {{1, 2, 64, 257, 64, 64, 1, 1, 2, 0.1}, NULL},  /* two blocks */
    {{1, 2, 65, 257, 128, 64, 1, 1, 2, 0.1}, NULL}, /* two tiles of queries, in two slices */
    {{1, 2, 64, 5, 64, 64, 1, 1, 16, 0.2}, NULL},   /* fewer keys than a run has */
};

/* How one tensor of a key tail differs from a compact one that begins at a multiple of 16 bytes. */
typedef struct Layout {
    int tensor;
    int64_t shift; /* the rows begin this number of elements later, at most SPARE */
    bool shared;   /* all clips of the batch have the rows of the first */
    Why why;
} Layout;

/* TMA reads the means of k and v, which are always compact, and in the backward pass q, out and dout. The
 * forward pass needs q and out at multiples of 16 bytes, the backward pass also dout and dq. */
static const Layout LAYOUTS[] = {
    {Q, 0, true, {NULL, NO_TMA}},
    {DOUT, 0, true, {NULL, NO_TMA}},
    {K, 0, true, {NULL, NULL}},
    {Q, 1, false, {UNALIGNED, UNALIGNED}},
    {DOUT, 1, false, {NULL, UNALIGNED}},
    {V, 1, false, {NULL, NULL}},
    {OUT, 1, false, {UNALIGNED, UNALIGNED}},
    {DQ, 1, false, {NULL, UNALIGNED}},
    {DK, 1, false, {NULL, NULL}},
};

/* Key tails with scores near 2 `size` and near -2 `size` (enlarge_scores). exp(score - lse) is infinite for
 * mean keys whose count is 0: with scores near -600 for the zeros after the last mean key, whose score is 0;
 * with full lists and scores near 28,000 for all mean keys, because their scores are higher than those of
 * their keys. */
static const struct {
    Shape shape;
    double size;
} LARGE_SCORES[] = {
    {{1, 2, 130, 300, 128, 64, 1, 1, 16, 0.2}, 300},
    {{2, 2, 257, 520, 72, 128, 8, 1, 64, -0.3}, 300},
    {{1, 2, 130, 300, 64, 64, 1, 1, 16, 1}, 14000},
};

/* Memory of a problem, on the host for the reference or on the GPU. */
typedef struct Problem {
    DsviAttentionTailArgs args;
    DsviLists lists;
    void *memory[TENSORS], *workspace;
    size_t bytes[TENSORS], workspace_bytes;
} Problem;

/* Host copies of the tensors, and lists in host memory. */
typedef struct Host {
    Shape shape;
    DsviDtype act;
    const Layout *layout; /* NULL: all tensors are compact */
    DsviLists lists;
    void *memory[TENSORS];
    size_t bytes[TENSORS];
} Host;

static int64_t tokens_of(const Shape *shape, int tensor)
{
    bool keys = tensor == 1 || tensor == 2 || tensor == 6 || tensor == 7;
    return keys ? shape->keys : shape->queries;
}

static void create_host(Host *host, const Shape *shape, DsviDtype act)
{
    *host = (Host){.shape = *shape, .act = act};
    for (int i = 0; i < TENSORS; i++) {
        int64_t rows = shape->batch * shape->heads;
        int64_t n = i < ROWS    ? rows * tokens_of(shape, i) * shape->dim + SPARE
                    : i == ROWS ? rows * shape->queries
                                : rows * dsvi_tail_chunks(shape->queries, shape->chunk);
        host->bytes[i] = (size_t)n * (i < ROWS ? dsvi_dtype_size(act) : sizeof(float));
        host->memory[i] = malloc(host->bytes[i] + 1);
        assert_non_null(host->memory[i]);
        memset(host->memory[i], 0xff, host->bytes[i]);
        if (i >= INPUTS)
            continue;
        DsviRng rng = {7, DSVI_RNG_TEST, (uint32_t)i};
        float *numbers = malloc((size_t)n * sizeof *numbers + 1);
        assert_non_null(numbers);
        dsvi_rng_fill_normal(rng, 0, numbers, n);
        dsvi_convert(act, host->memory[i], DSVI_F32, numbers, n);
        free(numbers);
    }
    host->lists = (DsviLists){.batch = shape->batch,
                              .heads = shape->heads,
                              .queries = shape->queries,
                              .keys = shape->keys,
                              .group = shape->group,
                              .grain = shape->grain};
    random_lists_create(&host->lists, shape->density, 5);
}

static void free_host(Host *host)
{
    for (int i = 0; i < TENSORS; i++)
        free(host->memory[i]);
    random_lists_free(&host->lists);
}

/* Fills the arguments of the ops for the problem's memory. */
static void set_args(Problem *p, const Host *host)
{
    const Shape *s = &host->shape;
    DsviAttentionArgs *a = &p->args.attention;
    DsviHeads *rows[ROWS] = {&a->q, &a->k, &a->v, &a->dout, &a->out, &a->dq, &a->dk, &a->dv};
    *a = (DsviAttentionArgs){.batch = s->batch,
                             .heads = s->heads,
                             .queries = s->queries,
                             .keys = s->keys,
                             .head_dim = s->dim,
                             .scale = 1 / sqrt((double)s->dim),
                             .act = host->act,
                             .acc = DSVI_F32,
                             .lists = &p->lists};
    for (int i = 0; i < ROWS; i++)
        *rows[i] = dsvi_heads(p->memory[i], tokens_of(s, i), s->heads, s->dim);
    if (host->layout) {
        DsviHeads *other = rows[host->layout->tensor];
        other->data = (char *)other->data + (size_t)host->layout->shift * dsvi_dtype_size(host->act);
        if (host->layout->shared)
            other->batch_stride = 0;
    }
    a->lse = p->memory[ROWS];
    p->args.chunk = s->chunk;
    p->args.run = s->run;
    p->args.tail_lse = p->memory[ROWS + 1];
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void create(Problem *p, const Host *host)
{
    DsviDevice *device = gpu_backend.device;
    DsviStream *stream = device->stream;
    const DsviOps *ops = &gpu_backend.ops;
    memset(p, 0, sizeof *p);
    p->lists = host->lists;
    int64_t count = dsvi_lists_count(&host->lists);
    p->lists.offsets = check_upload(&gpu_backend, stream, host->lists.offsets,
                                    (size_t)(count + 1) * sizeof(int64_t));
    p->lists.spans = check_upload(&gpu_backend, stream, host->lists.spans,
                                  (size_t)(host->lists.capacity + 1) * sizeof(int32_t));
    for (int i = 0; i < TENSORS; i++) {
        p->bytes[i] = host->bytes[i];
        p->memory[i] = check_upload(&gpu_backend, stream, host->memory[i], host->bytes[i]);
    }
    set_args(p, host);
    p->workspace_bytes = larger(ops->attention_list_bwd.workspace(stream, &p->args.attention),
                                larger(ops->attention_tail_fwd.workspace(stream, &p->args),
                                       ops->attention_tail_bwd.workspace(stream, &p->args)));
    p->workspace = check_workspace(&gpu_backend, stream, p->workspace_bytes);
    p->args.attention.workspace = p->workspace;
    p->args.attention.workspace_bytes = p->workspace_bytes;
}

static void destroy(Problem *p)
{
    DsviStream *stream = gpu_backend.device->stream;
    for (int i = 0; i < TENSORS; i++)
        check_release(&gpu_backend, stream, p->memory[i]);
    check_release(&gpu_backend, stream, p->lists.offsets);
    check_release(&gpu_backend, stream, p->lists.spans);
    check_workspace_release(&gpu_backend, stream, p->workspace, p->workspace_bytes);
}

/* Runs forward and backward on the GPU, into memory filled with NaN, and returns host copies of the results,
 * one after the other; the caller frees them. */
static unsigned char *attend(Problem *p)
{
    DsviDevice *device = gpu_backend.device;
    DsviStream *stream = device->stream;
    const DsviOps *ops = &gpu_backend.ops;
    size_t bytes = 0;
    for (int i = INPUTS; i < TENSORS; i++) {
        bytes += p->bytes[i];
        assert_int_equal(cudaMemsetAsync(p->memory[i], 0xff, p->bytes[i], stream->handle), cudaSuccess);
    }
    assert_ok(ops->attention_list_fwd.run(stream, &p->args.attention));
    assert_ok(ops->attention_tail_fwd.run(stream, &p->args));
    assert_ok(ops->attention_list_bwd.run(stream, &p->args.attention));
    assert_ok(ops->attention_tail_bwd.run(stream, &p->args));
    unsigned char *host = malloc(bytes + 1), *at = host;
    assert_non_null(host);
    for (int i = INPUTS; i < TENSORS; i++) {
        assert_ok(device->download(stream, at, p->memory[i], p->bytes[i]));
        at += p->bytes[i];
    }
    assert_ok(device->sync(stream));
    return host;
}

/* Runs the reference on the host, in the memory of `host`. */
static void attend_on_host(Host *host)
{
    Problem p = {.lists = host->lists};
    memcpy(p.memory, host->memory, sizeof p.memory);
    set_args(&p, host);
    assert_ok(dsvi_attention_fwd_ref(NULL, &p.args.attention));
    assert_ok(dsvi_attention_tail_fwd_ref(NULL, &p.args));
    assert_ok(dsvi_attention_bwd_ref(NULL, &p.args.attention));
    assert_ok(dsvi_attention_tail_bwd_ref(NULL, &p.args));
}

/* Fails the test unless each result is near the expected one. BF16 operands and results are rounded by up to
 * 2^-9, several times, and in another order. */
static void compare(const Host *host, const unsigned char *found, void *const *expected, const char *what)
{
    const Shape *shape = &host->shape;
    const Layout *layout = host->layout;
    for (int i = INPUTS; i < TENSORS; i++) {
        DsviDtype dtype = i < ROWS ? host->act : DSVI_F32;
        size_t size = dsvi_dtype_size(dtype), first = 0;
        int64_t n = (int64_t)(host->bytes[i] / size) - (i < ROWS ? SPARE : 0);
        if (layout && layout->tensor == i)
            first = (size_t)layout->shift * size;
        double error = relative_l2(dtype, found + first, dtype, (char *)expected[i] + first, n);
        double bound = host->act == DSVI_F32 ? 1e-5 : i < ROWS ? 1e-2 : 1e-3;
        assert_error_below(error, bound,
                           "%s, %s: %s of %lld x %lld, head size %lld, group %lld, chunk %lld, run %lld, "
                           "layout changed for %s",
                           what, dsvi_dtype_name(host->act), NAMES[i], (long long)shape->queries,
                           (long long)shape->keys, (long long)shape->dim, (long long)shape->group,
                           (long long)shape->chunk, (long long)shape->run,
                           layout ? NAMES[layout->tensor] : "no tensor");
        found += host->bytes[i];
    }
}

/* Makes the backend use the portable kernels; returns the real compute capability. */
static int make_portable(void)
{
    int capability = gpu_backend.device->stream->capability;
    gpu_backend.device->stream->capability = DSVI_CUDA_MIN_CAPABILITY;
    return capability;
}

/* Fails the test unless the kernels that served an op's last call are those for Hopper, or, with a reason
 * `why` to decline the call, the portable ones. */
static void assert_served(const char *variant, const char *why)
{
    char expected[DSVI_CUDA_VARIANT_BYTES];
    snprintf(expected, sizeof expected, "cuda, %s%s", why ? "portable: " : "sm_90a", why ? why : "");
    assert_string_equal(variant, expected);
}

/* Fails the test if this is a Hopper GPU and its kernels declined the last calls for other reasons. In
 * deterministic mode they decline every backward pass. */
static void assert_tail_served(const Why *why)
{
    const DsviStream *stream = gpu_backend.device->stream;
    const DsviOps *ops = &gpu_backend.ops;
    if (stream->capability != 90)
        return;
    assert_served(ops->attention_tail_fwd.variant, why->forward);
    if (stream->deterministic)
        assert_non_null(strstr(ops->attention_tail_bwd.variant, "cuda, portable: "));
    else
        assert_served(ops->attention_tail_bwd.variant, why->backward);
}

/* Compares the kernels that this GPU uses, and the portable ones, with the reference. `why` NULL: any kernels
 * may serve. Frees `host`. */
static void compare_with_reference(Host *host, const Why *why)
{
    Problem p;
    create(&p, host);
    attend_on_host(host);
    unsigned char *found = attend(&p);
    compare(host, found, host->memory, "default");
    if (why)
        assert_tail_served(why);
    int capability = make_portable();
    unsigned char *portable = attend(&p);
    gpu_backend.device->stream->capability = capability;
    compare(host, portable, host->memory, "portable");
    free(found);
    free(portable);
    destroy(&p);
    free_host(host);
}

/* Compares the small problems with a mean key for several keys, or those with a mean query only. */
static void agree_with_reference(bool mean_keys)
{
    for (size_t i = 0; i < sizeof SMALL / sizeof *SMALL; i++)
        for (int bf16 = 0; bf16 < 2 && (SMALL[i].run > 1) == mean_keys; bf16++) {
            Host host;
            create_host(&host, &SMALL[i], bf16 ? DSVI_BF16 : DSVI_F32);
            compare_with_reference(&host, NULL);
        }
}

static void query_tails_agree_with_reference(void **state)
{
    (void)state;
    agree_with_reference(false);
}

static void key_tails_agree_with_reference(void **state)
{
    (void)state;
    agree_with_reference(true);
}

static void hopper_serves_key_tails_up_to_its_limits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof LIMITS / sizeof *LIMITS; i++) {
        Host host;
        create_host(&host, &LIMITS[i].shape, DSVI_BF16);
        compare_with_reference(&host, &(Why){LIMITS[i].why, LIMITS[i].why});
    }
}

static void key_tails_take_any_layout(void **state)
{
    static const Shape shape = {2, 2, 130, 200, 128, 64, 1, 1, 16, 0.2};
    (void)state;
    for (size_t i = 0; i < sizeof LAYOUTS / sizeof *LAYOUTS; i++) {
        Host host;
        create_host(&host, &shape, DSVI_BF16);
        host.layout = &LAYOUTS[i];
        compare_with_reference(&host, &LAYOUTS[i].why);
    }
}

/* Makes the scores of even queries near 2 size, and those of odd queries near -2 size, with the last two
 * elements of q and k. In k these are 1 + 2^-7 and 1 + 2^-6, or the reverse, in turn. The mean over an even
 * number of keys is halfway between, which BF16 rounds to 1 + 2^-6. So the score of a mean key is 2^-7 size
 * further from 0 than those of its keys. */
static void enlarge_scores(Host *host, double size)
{
    const Shape *shape = &host->shape;
    int64_t rows = shape->batch * shape->heads, last = shape->dim - 2;
    double element = size * sqrt((double)shape->dim);
    for (int64_t n = 0; n < rows * shape->queries; n++)
        for (int64_t i = 0; i < 2; i++)
            dsvi_store(host->act, host->memory[Q], n * shape->dim + last + i,
                       n / shape->heads % 2 ? -element : element);
    for (int64_t n = 0; n < rows * shape->keys; n++)
        for (int64_t i = 0; i < 2; i++)
            dsvi_store(host->act, host->memory[K], n * shape->dim + last + i,
                       n / shape->heads % 2 == i ? 1 + 0x1p-7 : 1 + 0x1p-6);
}

static void large_scores_stay_finite(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof LARGE_SCORES / sizeof *LARGE_SCORES; i++) {
        Host host;
        create_host(&host, &LARGE_SCORES[i].shape, DSVI_BF16);
        enlarge_scores(&host, LARGE_SCORES[i].size);
        compare_with_reference(&host, &(Why){NULL, NULL});
    }
}

/* With test_small() a problem has few heads and tokens, and the kernels are chosen as for a GPU with so few
 * multiprocessors that each has several tiles. */
enum { FEW_MULTIPROCESSORS = 4 };

static Shape size_of(const Shape *large)
{
    Shape shape = *large;
    if (!test_small())
        return shape;
    shape.heads = shape.heads < 2 ? shape.heads : 2;
    shape.queries = shape.queries < 700 ? shape.queries : shape.queries % 64 + 640;
    shape.keys = shape.keys < 700 ? shape.keys : shape.keys % 128 + 640;
    return shape;
}

static void hopper_serves_tails(void **state)
{
    (void)state;
    DsviStream *stream = gpu_backend.device->stream;
    if (stream->capability != 90)
        skip();
    for (size_t i = 0; i < sizeof LARGE / sizeof *LARGE; i++) {
        Host host;
        Problem p;
        int multiprocessors = stream->multiprocessors;
        stream->multiprocessors = test_small() ? FEW_MULTIPROCESSORS : multiprocessors;
        Shape shape = size_of(&LARGE[i]);
        create_host(&host, &shape, DSVI_BF16);
        create(&p, &host);
        unsigned char *found = attend(&p), *at;
        assert_served(gpu_backend.ops.attention_tail_fwd.variant, NULL);
        assert_served(gpu_backend.ops.attention_tail_bwd.variant, stream->deterministic ? FIXED_ORDER : NULL);
        int capability = make_portable();
        at = attend(&p);
        stream->capability = capability;
        void *expected[TENSORS] = {NULL};
        size_t begin = 0;
        for (int n = INPUTS; n < TENSORS; n++) {
            expected[n] = at + begin;
            begin += host.bytes[n];
        }
        compare(&host, found, expected, "Hopper");
        stream->multiprocessors = multiprocessors;
        free(found);
        free(at);
        destroy(&p);
        free_host(&host);
    }
}

/* In deterministic mode results do not depend on the order in which thread blocks run. In default mode they
 * may: thread blocks add to dq in any order. */
static void the_same_bits_again(void **state)
{
    static const int numbers[] = {1, 2, 3, 9, 10}; /* indices of LARGE: three query tails, two key tails */
    (void)state;
    if (!gpu_backend.device->deterministic)
        skip();
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        Host host;
        Problem p;
        size_t bytes = 0;
        Shape shape = size_of(&LARGE[numbers[i]]);
        create_host(&host, &shape, DSVI_BF16);
        create(&p, &host);
        for (int n = INPUTS; n < TENSORS; n++)
            bytes += host.bytes[n];
        unsigned char *first = attend(&p);
        for (int run = 1; run < (test_small() ? 2 : 5); run++) {
            unsigned char *again = attend(&p);
            assert_memory_equal(first, again, bytes);
            free(again);
        }
        free(first);
        destroy(&p);
        free_host(&host);
    }
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(query_tails_agree_with_reference),
        cmocka_unit_test(key_tails_agree_with_reference),
        cmocka_unit_test(hopper_serves_key_tails_up_to_its_limits),
        cmocka_unit_test(key_tails_take_any_layout),
        cmocka_unit_test(large_scores_stay_finite),
        cmocka_unit_test(hopper_serves_tails),
        cmocka_unit_test(the_same_bits_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    return run_on_gpu(run, argc, argv);
}
