/* That cuDNN answers for dense attention of the sizes that matter, and that its answer there is that of the
 * portable kernels, which the checker knows: it has no truth for so many tokens. */
#include "base/rng.h"
#include "cuda/attention_cudnn.h"
#include "cuda/cuda.h"
#include "cuda/gpu.h"
#include "test.h"

enum { TENSORS = 8 };

typedef struct Problem {
    DsvAttentionArgs args;
    void *memory[TENSORS + 2]; /* q k v dout out dq dk dv, lse, workspace */
    size_t bytes[TENSORS + 2];
} Problem;

static const struct {
    int64_t heads, queries, keys, dim;
} SIZES[] = {
    {2, 32760, 32760, 128}, {2, 32760, 512, 128}, {3, 4096, 4096, 64}, {2, 1000, 777, 128}, {1, 720, 256, 64},
    /* backward in two calls, 3,712 keys of 4,000 for all queries at once */
    {9, 4096, 4000, 64},
};

/* Normal numbers, behind them the same in BF16. */
static float *draw(uint32_t stream, int64_t n)
{
    DsvRng rng = {3, DSV_RNG_TEST, stream};
    float *numbers = malloc((size_t)n * (sizeof(float) + 2));
    assert_non_null(numbers);
    dsvi_rng_fill_normal(rng, 0, numbers, n);
    dsvi_convert(DSV_BF16, numbers + n, DSV_F32, numbers, n);
    return numbers;
}

static void create(Problem *p, int size)
{
    DsvDevice *device = gpu_backend.device;
    int64_t heads = SIZES[size].heads, dim = SIZES[size].dim;
    int64_t tokens[TENSORS] = {SIZES[size].queries, SIZES[size].keys, SIZES[size].keys, SIZES[size].queries,
                               SIZES[size].queries, SIZES[size].queries, SIZES[size].keys, SIZES[size].keys};
    DsvHeads *rows[TENSORS] = {&p->args.q, &p->args.k, &p->args.v, &p->args.dout,
                               &p->args.out, &p->args.dq, &p->args.dk, &p->args.dv};
    memset(p, 0, sizeof *p);
    p->args.batch = 1;
    p->args.heads = heads;
    p->args.queries = SIZES[size].queries;
    p->args.keys = SIZES[size].keys;
    p->args.head_dim = dim;
    p->args.scale = 1 / sqrt((double)dim);
    p->args.act = DSV_BF16;
    p->args.acc = DSV_F32;
    for (uint32_t i = 0; i < TENSORS; i++) {
        int64_t n = tokens[i] * heads * dim;
        float *host = draw(i, n);
        p->bytes[i] = (size_t)n * 2;
        assert_ok(device->mem_alloc(device, p->bytes[i], &p->memory[i]));
        assert_ok(device->upload(device->stream, p->memory[i], host + n, p->bytes[i]));
        assert_ok(device->sync(device->stream));
        *rows[i] = dsvi_heads(p->memory[i], tokens[i], heads, dim);
        free(host);
    }
    p->bytes[TENSORS] = (size_t)(heads * SIZES[size].queries) * sizeof(float);
    assert_ok(device->mem_alloc(device, p->bytes[TENSORS], &p->memory[TENSORS]));
    p->args.lse = p->memory[TENSORS];
    size_t forward = gpu_backend.ops.attention_fwd.workspace(device->stream, &p->args);
    size_t backward = gpu_backend.ops.attention_bwd.workspace(device->stream, &p->args);
    p->args.workspace_bytes = forward > backward ? forward : backward;
    assert_ok(device->mem_alloc(device, p->args.workspace_bytes, &p->args.workspace));
    p->memory[TENSORS + 1] = p->args.workspace;
}

static void release(Problem *p)
{
    for (int i = 0; i < TENSORS + 2; i++)
        gpu_backend.device->mem_free(gpu_backend.device, p->memory[i]);
}

/* out, dq, dk and dv as they lie on the device, one behind the other. */
static void *results(const Problem *p)
{
    DsvDevice *device = gpu_backend.device;
    unsigned char *host = malloc(p->bytes[4] + p->bytes[5] + p->bytes[6] + p->bytes[7]), *at = host;
    assert_non_null(host);
    for (int i = 4; i < TENSORS; i++) {
        assert_ok(device->download(device->stream, at, p->memory[i], p->bytes[i]));
        at += p->bytes[i];
    }
    assert_ok(device->sync(device->stream));
    return host;
}

static void cudnn_serves(void **state)
{
    (void)state;
    for (int size = 0; size < (int)(sizeof SIZES / sizeof *SIZES); size++) {
        Problem p;
        DsvStream *stream = gpu_backend.device->stream;
        static const char *const NAMES[] = {"out", "dq", "dk", "dv"};
        create(&p, size);
        assert_ok(dsvi_attention_cudnn_serves(stream, &p.args, false));
        DsvStatus backward = dsvi_attention_cudnn_serves(stream, &p.args, true);
        if (!gpu_backend.device->deterministic) /* cuDNN's fixed order takes too much memory for long ones */
            assert_ok(backward);
        assert_ok(gpu_backend.ops.attention_fwd.run(stream, &p.args));
        assert_ok(gpu_backend.ops.attention_bwd.run(stream, &p.args));
        unsigned char *found = results(&p), *a = found;
        assert_ok(dsvi_cuda_attention_list_fwd(stream, &p.args));
        assert_ok(dsvi_cuda_attention_list_bwd(stream, &p.args));
        unsigned char *wanted = results(&p), *b = wanted;
        for (int i = 4; i < TENSORS; i++) {
            /* either rounds p, ds and its result to BF16, by up to 2^-9 each, in an order of its own */
            double error = relative_l2(DSV_BF16, a, DSV_BF16, b, (int64_t)p.bytes[i] / 2);
            assert_error_below(error, 1e-2, "%s of %lld x %lld", NAMES[i - 4], (long long)SIZES[size].queries,
                               (long long)SIZES[size].keys);
            a += p.bytes[i];
            b += p.bytes[i];
        }
        free(found);
        free(wanted);
        release(&p);
    }
}

static int run(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cudnn_serves)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    return run_on_gpu(run, argc, argv);
}
