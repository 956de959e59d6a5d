/* Matrix products by cuBLASLt.
 *
 * cuBLASLt thinks in columns: our row-major (M, N) is its column-major (N, M), so that C = A B is there the
 * product of B and A, in this order, and nothing need be moved.
 *
 * A product is planned on its first use. If it is large, the algorithms that cuBLASLt expects to be the best
 * are then run on the call's own operands, and the fastest is kept: this once the op waits for the device,
 * and takes memory for a C to which is added in vain. A deterministic stream always takes the first, as two
 * runs need not find the same one fastest. Any one algorithm gives the same bits again.
 *
 * For cuBLASLt a bias must have the dtype of C and an even address: where it has not, a copy serves that has.
 * One that is rounded to BF16 for it is off by no more than the result's own rounding may be. */
#include "cuda/gemm_cublaslt.h"

#include <cublasLt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda.h"

enum {
    CAPACITY = 512,          /* slots: a power of two */
    MOST = CAPACITY * 3 / 4, /* plans kept; one more, and all are dropped: a run uses a few dozen */
    CANDIDATES = 8,          /* algorithms measured */
    WARM_UPS = 2,
    RUNS = 3,                /* measured together, after the warm-ups */
    BASE_BYTES = 64,         /* of alignment: no algorithm asks for more */
    BIAS_BYTES = 16          /* of alignment that a bias must have for cuBLASLt */
};
#define WORKSPACE_BYTES ((size_t)64 << 20)

/* Fewer FLOPs than this are done before the choice matters. */
static const double WORTH_MEASURING = 1e8;

/* All of one width, so that keys are compared as bytes. */
typedef struct Key {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    int64_t ab_dtype, c_dtype;
    int64_t trans_a, trans_b;
    int64_t bias, accumulate;
    int64_t a_bytes, b_bytes, c_bytes; /* alignment */
} Key;

/* cuBLASLt's descriptors live here: none of them has to be freed. */
typedef struct Plan {
    bool used;
    bool missing; /* cuBLASLt has no algorithm for it */
    Key key;
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

struct DsvGemmCublaslt {
    cublasLtHandle_t handle;
    void *workspace; /* WORKSPACE_BYTES of device memory */
    cudaEvent_t begin, end;
    int used;
    Plan plan[CAPACITY]; /* a hash table with linear probing */
};

static DsvStatus status_of(cublasStatus_t status, const char *what, const Key *key)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return DSV_OK;
    return DSVI_FAIL(status == CUBLAS_STATUS_ALLOC_FAILED ? DSV_E_NO_MEMORY : DSV_E_DEVICE,
                     "gemm: cuBLASLt: %s: %s (m %lld, n %lld, k %lld, %s to %s)", what,
                     cublasLtGetStatusString(status), (long long)key->m, (long long)key->n, (long long)key->k,
                     dsvi_dtype_name((DsvDtype)key->ab_dtype), dsvi_dtype_name((DsvDtype)key->c_dtype));
}

/* ---- what is kept ---- */

static DsvStatus create(DsvGemmCublaslt **out)
{
    DsvGemmCublaslt *gemm = calloc(1, sizeof *gemm);
    *out = gemm;
    if (!gemm)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes for matrix products", sizeof *gemm);
    cublasStatus_t status = cublasLtCreate(&gemm->handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return DSVI_FAIL(DSV_E_DEVICE, "cuBLASLt does not start: %s", cublasLtGetStatusString(status));
    DSVI_CUDA_TRY(cudaMalloc(&gemm->workspace, WORKSPACE_BYTES));
    DSVI_CUDA_TRY(cudaEventCreate(&gemm->begin));
    DSVI_CUDA_TRY(cudaEventCreate(&gemm->end));
    return DSV_OK;
}

void dsvi_gemm_cublaslt_free(DsvGemmCublaslt **out)
{
    DsvGemmCublaslt *gemm = *out;
    if (!gemm)
        return;
    if (gemm->end)
        cudaEventDestroy(gemm->end);
    if (gemm->begin)
        cudaEventDestroy(gemm->begin);
    cudaFree(gemm->workspace);
    if (gemm->handle)
        cublasLtDestroy(gemm->handle);
    free(gemm);
    *out = NULL;
}

/* ---- making a plan ---- */

static cudaDataType_t cuda_type(int64_t dtype)
{
    return dtype == DSV_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* The pitch of a single row means nothing, and need not be one that cuBLASLt accepts. */
static int64_t pitch_of(int64_t rows, int64_t cols, int64_t pitch)
{
    return rows > 1 ? pitch : cols;
}

/* The largest power of two, up to BASE_BYTES, of which the address is a multiple. */
static int64_t alignment_of(const void *address)
{
    uintptr_t bits = (uintptr_t)address | BASE_BYTES;
    return (int64_t)(bits & -bits);
}

static Key key_of(const DsvGemmArgs *args)
{
    return (Key){
        .m = args->m, .n = args->n, .k = args->k,
        .lda = args->trans_a ? pitch_of(args->k, args->m, args->lda) : pitch_of(args->m, args->k, args->lda),
        .ldb = args->trans_b ? pitch_of(args->n, args->k, args->ldb) : pitch_of(args->k, args->n, args->ldb),
        .ldc = pitch_of(args->m, args->n, args->ldc),
        .ab_dtype = args->ab_dtype, .c_dtype = args->c_dtype,
        .trans_a = args->trans_a, .trans_b = args->trans_b,
        .bias = args->bias != NULL, .accumulate = args->accumulate,
        .a_bytes = alignment_of(args->a), .b_bytes = alignment_of(args->b), .c_bytes = alignment_of(args->c),
    };
}

/* Of `rows` by `cols` as we see it; transposed: stored as its transpose. */
static cublasStatus_t matrix(cublasLtMatrixLayoutOpaque_t *layout, int64_t dtype, int64_t rows, int64_t cols,
                             int64_t pitch, bool transposed)
{
    return cublasLtMatrixLayoutInit(layout, cuda_type(dtype), (uint64_t)(transposed ? rows : cols),
                                    (uint64_t)(transposed ? cols : rows), pitch);
}

static cublasStatus_t describe_matrices(Plan *plan)
{
    const Key *key = &plan->key;
    cublasStatus_t status = matrix(&plan->a, key->ab_dtype, key->m, key->k, key->lda, key->trans_a);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = matrix(&plan->b, key->ab_dtype, key->k, key->n, key->ldb, key->trans_b);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = matrix(&plan->c, key->c_dtype, key->m, key->n, key->ldc, false);
    return status;
}

static cublasStatus_t set(Plan *plan, cublasLtMatmulDescAttributes_t attribute, const void *value,
                          size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(&plan->product, attribute, value, bytes);
}

static cublasStatus_t set_bias(Plan *plan, const void *bias)
{
    return set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

/* Sums in F32; F32 operands are multiplied as such, not rounded to TF32. */
static cublasStatus_t describe_product(Plan *plan)
{
    int32_t first = plan->key.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t second = plan->key.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t bias_type = (int32_t)cuda_type(plan->key.c_dtype);
    uint32_t epilogue = plan->key.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cublasStatus_t status = cublasLtMatmulDescInit(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set(plan, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set(plan, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (status != CUBLAS_STATUS_SUCCESS || !plan->key.bias)
        return status;
    status = set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type);
    /* From this address the heuristic learns the alignment that it may rely on. */
    return status == CUBLAS_STATUS_SUCCESS ? set_bias(plan, (const void *)(uintptr_t)BIAS_BYTES) : status;
}

typedef struct Preference {
    cublasLtMatmulPreferenceAttributes_t attribute;
    uint32_t value;
} Preference;

/* Where K is split, the parts may be kept in F32 only, not in the dtype of C. */
static cublasStatus_t describe_preferences(const Key *key, cublasLtMatmulPreferenceOpaque_t *preference)
{
    size_t workspace_bytes = WORKSPACE_BYTES;
    const Preference wanted[] = {
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->b_bytes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->a_bytes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->c_bytes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->c_bytes},
    };
    cublasStatus_t status = cublasLtMatmulPreferenceInit(preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &workspace_bytes, sizeof workspace_bytes);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && status == CUBLAS_STATUS_SUCCESS; i++)
        status = cublasLtMatmulPreferenceSetAttribute(preference, wanted[i].attribute, &wanted[i].value,
                                                      sizeof wanted[i].value);
    return status;
}

/* The algorithms that cuBLASLt offers, the likely best first; count 0: none. */
static DsvStatus ask(DsvGemmCublaslt *gemm, Plan *plan, cublasLtMatmulAlgo_t *algorithm, int *count)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    int answers = 0;
    cublasStatus_t status = describe_matrices(plan);
    *count = 0;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_product(plan);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_preferences(&plan->key, &preference);
    DSVI_TRY(status_of(status, "no description", &plan->key));
    status = cublasLtMatmulAlgoGetHeuristic(gemm->handle, &plan->product, &plan->b, &plan->a, &plan->c,
                                            &plan->c, &preference, CANDIDATES, results, &answers);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED)
        return DSV_OK;
    DSVI_TRY(status_of(status, "no algorithm", &plan->key));
    for (int i = 0; i < answers; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS)
            algorithm[(*count)++] = results[i].algo;
    return DSV_OK;
}

static cublasStatus_t enqueue(DsvStream *stream, Plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                              const DsvGemmArgs *args, void *c)
{
    DsvGemmCublaslt *gemm = stream->gemm;
    float alpha = 1, beta = args->accumulate ? 1 : 0;
    cublasStatus_t status = args->bias ? set_bias(plan, args->bias) : CUBLAS_STATUS_SUCCESS;
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    return cublasLtMatmul(gemm->handle, &plan->product, &alpha, args->b, &plan->b, args->a, &plan->a, &beta,
                          c, &plan->c, c, &plan->c, algorithm, gemm->workspace, WORKSPACE_BYTES,
                          stream->handle);
}

/* Milliseconds of RUNS products into c; infinite where the algorithm fails. Waits. */
static DsvStatus measure(DsvStream *stream, Plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                         const DsvGemmArgs *args, void *c, float *milliseconds)
{
    DsvGemmCublaslt *gemm = stream->gemm;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    *milliseconds = INFINITY;
    for (int run = 0; run < WARM_UPS + RUNS && status == CUBLAS_STATUS_SUCCESS; run++) {
        if (run == WARM_UPS)
            DSVI_CUDA_TRY(cudaEventRecord(gemm->begin, stream->handle));
        status = enqueue(stream, plan, algorithm, args, c);
    }
    DSVI_CUDA_TRY(cudaEventRecord(gemm->end, stream->handle));
    DSVI_CUDA_TRY(cudaEventSynchronize(gemm->end));
    if (status == CUBLAS_STATUS_SUCCESS)
        DSVI_CUDA_TRY(cudaEventElapsedTime(milliseconds, gemm->begin, gemm->end));
    return DSV_OK;
}

/* Memory of C's size, or NULL where there is none left. */
static void *spare_c(const DsvGemmArgs *args)
{
    int64_t elements = (args->m - 1) * args->ldc + args->n;
    void *spare = NULL;
    if (cudaMalloc(&spare, (size_t)elements * dsvi_dtype_size(args->c_dtype)) == cudaSuccess)
        return spare;
    cudaGetLastError(); /* nobody need hear of it */
    return NULL;
}

/* What adds to C must not be run on it more than once; otherwise C may hold anything until the op is done. */
static DsvStatus choose(DsvStream *stream, Plan *plan, const DsvGemmArgs *args,
                        const cublasLtMatmulAlgo_t *algorithm, int count)
{
    double flops = 2.0 * (double)args->m * (double)args->n * (double)args->k;
    float fastest = INFINITY, milliseconds;
    DsvStatus status = DSV_OK;
    plan->algorithm = algorithm[0];
    if (count == 1 || stream->deterministic || flops < WORTH_MEASURING)
        return DSV_OK;
    void *spare = args->accumulate ? spare_c(args) : NULL, *c = args->accumulate ? spare : args->c;
    if (!c)
        return DSV_OK;
    for (int i = 0; i < count; i++) {
        DSVI_TRY_GOTO(status, measure(stream, plan, &algorithm[i], args, c, &milliseconds), done);
        if (milliseconds < fastest) {
            fastest = milliseconds;
            plan->algorithm = algorithm[i];
        }
    }
done:
    cudaFree(spare);
    return status;
}

static DsvStatus plan_make(DsvStream *stream, const DsvGemmArgs *args, const Key *key, Plan *plan)
{
    cublasLtMatmulAlgo_t algorithm[CANDIDATES];
    int count;
    plan->key = *key;
    DSVI_TRY(ask(stream->gemm, plan, algorithm, &count));
    plan->missing = count == 0;
    if (count > 0)
        DSVI_TRY(choose(stream, plan, args, algorithm, count));
    plan->used = true;
    stream->gemm->used++;
    return DSV_OK;
}

/* FNV-1a over the words of the key, folded. */
static unsigned slot_of(const Key *key)
{
    uint64_t words[sizeof *key / sizeof(uint64_t)], hash = 0xcbf29ce484222325u;
    memcpy(words, key, sizeof *key);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        hash = (hash ^ words[i]) * 0x100000001b3u;
    return (unsigned)(hash ^ hash >> 32) % CAPACITY;
}

/* The plan for a product, made if there is none yet. Valid until the next call. */
static DsvStatus plan_get(DsvStream *stream, const DsvGemmArgs *args, Plan **out)
{
    DsvGemmCublaslt *gemm = stream->gemm;
    Key key = key_of(args);
    unsigned slot = slot_of(&key);
    for (; gemm->plan[slot].used; slot = (slot + 1) % CAPACITY) {
        *out = &gemm->plan[slot];
        if (memcmp(&(*out)->key, &key, sizeof key) == 0)
            return DSV_OK;
    }
    if (gemm->used == MOST) {
        memset(gemm->plan, 0, sizeof gemm->plan);
        gemm->used = 0;
        slot = slot_of(&key);
    }
    *out = &gemm->plan[slot];
    return plan_make(stream, args, &key, *out);
}

/* ---- the op ---- */

/* `args`, of which `taken` is the same with its bias as cuBLASLt takes it. */
static DsvStatus product(DsvStream *stream, const DsvGemmArgs *args, const DsvGemmArgs *taken)
{
    Plan *plan;
    DSVI_TRY(plan_get(stream, taken, &plan));
    if (plan->missing)
        return dsvi_gemm_plain(stream, args);
    return status_of(enqueue(stream, plan, &plan->algorithm, taken, taken->c), "the product failed",
                     &plan->key);
}

static DsvStatus product_with_bias(DsvStream *stream, const DsvGemmArgs *args)
{
    DsvGemmArgs taken = *args;
    if (args->c_dtype == DSV_F32 && (uintptr_t)args->bias % BIAS_BYTES == 0)
        return product(stream, args, args);
    if ((size_t)args->n > DSVI_CUDA_PARTIALS / sizeof(float))
        return dsvi_gemm_plain(stream, args);
    DSVI_TRY(dsvi_gemm_stage_bias(stream, args));
    taken.bias = stream->partials;
    return product(stream, args, &taken);
}

static DsvStatus check_dtypes(const DsvGemmArgs *args)
{
    bool ab = args->ab_dtype == DSV_F32 || args->ab_dtype == DSV_BF16;
    bool c = args->c_dtype == DSV_F32 || args->c_dtype == args->ab_dtype;
    if (ab && c && (!args->bias || args->bias_dtype == DSV_F32))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED,
                     "gemm: this variant makes F32 of F32, BF16 or F32 of BF16, with an F32 bias; not %s of "
                     "%s%s%s",
                     dsvi_dtype_name(args->c_dtype), dsvi_dtype_name(args->ab_dtype),
                     args->bias ? " with bias in " : "", args->bias ? dsvi_dtype_name(args->bias_dtype) : "");
}

static DsvStatus gemm(DsvStream *stream, const DsvGemmArgs *args)
{
    DSVI_TRY(check_dtypes(args));
    if (args->m == 0 || args->n == 0)
        return DSV_OK;
    if (args->k == 0)
        return dsvi_gemm_plain(stream, args);
    return args->bias ? product_with_bias(stream, args) : product(stream, args, args);
}

DsvStatus dsvi_cuda_fill_gemm(DsvStream *stream, DsvOps *ops)
{
    DSVI_TRY(create(&stream->gemm));
    DSVI_OPS_SET(ops, gemm, gemm, "cublaslt");
    return DSV_OK;
}
