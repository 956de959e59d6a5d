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
 * One that is rounded to BF16 for it is off by no more than the result's own rounding may be.
 *
 * What a product has besides, a GELU or a_sum, is composed: the bare product, then an op of its own. Or it is
 * fused, an epilogue of cuBLASLt (whose GELU is the one with tanh), where that was measured to be faster; it
 * need not be, as the best algorithm may have no such epilogue. A deterministic stream always composes. */
#include "cuda/gemm_cublaslt.h"

#include <cublasLt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda.h"
#include "ops/gemm_epilogue.h"

enum {
    CAPACITY = 512,          /* slots: a power of two */
    MOST = CAPACITY * 3 / 4, /* plans kept; one more, and all are dropped: a run uses a few dozen */
    CANDIDATES = 8,          /* algorithms measured */
    WARM_UPS = 2,
    RUNS = 3,                /* measured together, after the warm-ups */
    BASE_BYTES = 64,         /* of alignment: no algorithm asks for more */
    EPILOGUE_BYTES = 16,     /* of alignment that a bias, and what an epilogue has besides C, must have */
    EPILOGUE_PITCH = 8       /* elements, of which the pitch of a GELU's input must be a multiple */
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
    int64_t epilogue; /* cublasLtEpilogue_t */
    int64_t accumulate;
    int64_t a_bytes, b_bytes, c_bytes; /* alignment */
} Key;

/* cuBLASLt's descriptors live here: none of them has to be freed. */
typedef struct Plan {
    bool used;
    bool missing; /* cuBLASLt has no algorithm for it, or for a fused product none that is worth it */
    Key key;
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

struct DsvGemmCublaslt {
    cublasLtHandle_t handle;
    void *workspace; /* WORKSPACE_BYTES of device memory */
    cudaEvent_t begin, end;
    DsvGemmEpilogueOps epilogue;
    dsvi_add_fn *add;
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

/* Our A is cuBLASLt's B. */
static cublasLtEpilogue_t epilogue_of(const DsvGemmArgs *args)
{
    if (args->a_sum)
        return CUBLASLT_EPILOGUE_BGRADB;
    if (args->gelu_backward)
        return CUBLASLT_EPILOGUE_DGELU;
    if (args->gelu_input)
        return args->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return args->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
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
        .epilogue = epilogue_of(args), .accumulate = args->accumulate,
        .a_bytes = alignment_of(args->a), .b_bytes = alignment_of(args->b), .c_bytes = alignment_of(args->c),
    };
}

/* Of `rows` by `cols` as we see it; transposed: stored as its transpose. */
static cublasStatus_t describe_matrix(cublasLtMatrixLayoutOpaque_t *layout, int64_t dtype, int64_t rows,
                                      int64_t cols, int64_t pitch, bool transposed)
{
    return cublasLtMatrixLayoutInit(layout, cuda_type(dtype), (uint64_t)(transposed ? rows : cols),
                                    (uint64_t)(transposed ? cols : rows), pitch);
}

static cublasStatus_t describe_matrices(Plan *plan)
{
    const Key *key = &plan->key;
    cublasStatus_t status = describe_matrix(&plan->a, key->ab_dtype, key->m, key->k, key->lda, key->trans_a);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_matrix(&plan->b, key->ab_dtype, key->k, key->n, key->ldb, key->trans_b);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_matrix(&plan->c, key->c_dtype, key->m, key->n, key->ldc, false);
    return status;
}

static cublasStatus_t set(Plan *plan, cublasLtMatmulDescAttributes_t attribute, const void *value,
                          size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(&plan->product, attribute, value, bytes);
}

/* The vector of an epilogue: bias or sums of A. Its matrix: the input of a GELU. NULL: it has none. */
static cublasStatus_t set_pointers(Plan *plan, const void *vector, const void *matrix)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (vector)
        status = set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector);
    if (matrix && status == CUBLAS_STATUS_SUCCESS)
        status = set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &matrix, sizeof matrix);
    return status;
}

static bool has_vector(const Key *key)
{
    return key->epilogue == CUBLASLT_EPILOGUE_BIAS || key->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           key->epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static bool has_matrix(const Key *key)
{
    return key->epilogue == CUBLASLT_EPILOGUE_GELU_AUX || key->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           key->epilogue == CUBLASLT_EPILOGUE_DGELU;
}

static bool is_fused(const Key *key)
{
    return has_matrix(key) || key->epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static cublasStatus_t describe_epilogue(Plan *plan)
{
    const Key *key = &plan->key;
    uint32_t epilogue = (uint32_t)key->epilogue;
    int32_t vector_type = (int32_t)cuda_type(key->c_dtype);
    /* From these addresses the heuristic learns the alignment that it may rely on. */
    const void *vector = has_vector(key) ? (const void *)(uintptr_t)EPILOGUE_BYTES : NULL;
    const void *matrix = has_matrix(key) ? (const void *)(uintptr_t)EPILOGUE_BYTES : NULL;
    cublasStatus_t status = set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (vector && status == CUBLAS_STATUS_SUCCESS)
        status = set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &vector_type, sizeof vector_type);
    if (matrix && status == CUBLAS_STATUS_SUCCESS)
        status = set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &key->ldc, sizeof key->ldc);
    return status == CUBLAS_STATUS_SUCCESS ? set_pointers(plan, vector, matrix) : status;
}

/* Sums in F32; F32 operands are multiplied as such, not rounded to TF32. */
static cublasStatus_t describe_product(Plan *plan)
{
    int32_t first = plan->key.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t second = plan->key.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t status = cublasLtMatmulDescInit(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set(plan, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set(plan, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    return status == CUBLAS_STATUS_SUCCESS ? describe_epilogue(plan) : status;
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
    /* Of an epilogue that does not go with these matrices it may also say that the value is invalid. */
    if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
        (status == CUBLAS_STATUS_INVALID_VALUE && is_fused(&plan->key)))
        return DSV_OK;
    DSVI_TRY(status_of(status, "no algorithm", &plan->key));
    for (int i = 0; i < answers; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS)
            algorithm[(*count)++] = results[i].algo;
    return DSV_OK;
}

static bool takes_bias(const DsvGemmArgs *args)
{
    return args->c_dtype == DSV_F32 && (uintptr_t)args->bias % EPILOGUE_BYTES == 0;
}

/* Enqueues all that the plan is for; *status is cuBLASLt's answer. */
static DsvStatus enqueue(DsvStream *stream, Plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                         const DsvGemmArgs *args, cublasStatus_t *status)
{
    DsvGemmCublaslt *gemm = stream->gemm;
    float alpha = 1, beta = args->accumulate ? 1 : 0;
    const void *vector = has_vector(&plan->key) ? stream->partials : NULL;
    const void *matrix = args->gelu_input ? args->gelu_input : args->gelu_backward;
    if (args->bias && takes_bias(args))
        vector = args->bias;
    else if (args->bias)
        DSVI_TRY(dsvi_gemm_stage_bias(stream, args));
    *status = set_pointers(plan, vector, matrix);
    if (*status == CUBLAS_STATUS_SUCCESS)
        *status = cublasLtMatmul(gemm->handle, &plan->product, &alpha, args->b, &plan->b, args->a, &plan->a,
                                 &beta, args->c, &plan->c, args->c, &plan->c, algorithm, gemm->workspace,
                                 WORKSPACE_BYTES, stream->handle);
    if (*status != CUBLAS_STATUS_SUCCESS || !args->a_sum)
        return DSV_OK;
    DsvAddArgs add = {.n = args->m, .a = 1, .b = 1, .x_dtype = DSV_F32, .y_dtype = DSV_F32,
                      .x = stream->partials, .y = args->a_sum};
    return gemm->add(stream, &add);
}

/* ---- choosing ---- */

static DsvStatus compose(DsvStream *stream, const DsvGemmArgs *args);

static double flops_of(const DsvGemmArgs *args)
{
    return 2.0 * (double)args->m * (double)args->n * (double)args->k;
}

/* Milliseconds of RUNS calls; infinite where the algorithm fails. Algorithm NULL: composed. Waits. */
static DsvStatus measure(DsvStream *stream, Plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                         const DsvGemmArgs *args, float *milliseconds)
{
    DsvGemmCublaslt *gemm = stream->gemm;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    *milliseconds = INFINITY;
    for (int run = 0; run < WARM_UPS + RUNS && status == CUBLAS_STATUS_SUCCESS; run++) {
        if (run == WARM_UPS)
            DSVI_CUDA_TRY(cudaEventRecord(gemm->begin, stream->handle));
        DSVI_TRY(algorithm ? enqueue(stream, plan, algorithm, args, &status) : compose(stream, args));
    }
    DSVI_CUDA_TRY(cudaEventRecord(gemm->end, stream->handle));
    DSVI_CUDA_TRY(cudaEventSynchronize(gemm->end));
    if (status == CUBLAS_STATUS_SUCCESS)
        DSVI_CUDA_TRY(cudaEventElapsedTime(milliseconds, gemm->begin, gemm->end));
    return DSV_OK;
}

/* `trial` adds to memory of its own, *spare, not to what `args` adds to. False where there is none left. */
static bool spare_sums(const DsvGemmArgs *args, DsvGemmArgs *trial, void **spare)
{
    size_t elements = (size_t)((args->m - 1) * args->ldc + args->n);
    size_t c_bytes = args->accumulate ? elements * dsvi_dtype_size(args->c_dtype) : 0;
    size_t a_sum_at = (c_bytes + BASE_BYTES - 1) / BASE_BYTES * BASE_BYTES;
    size_t bytes = a_sum_at + (args->a_sum ? (size_t)args->m * sizeof(float) : 0);
    *trial = *args;
    *spare = NULL;
    if (bytes == 0)
        return true;
    if (cudaMalloc(spare, bytes) != cudaSuccess) {
        cudaGetLastError(); /* nobody need hear of it */
        return false;
    }
    if (args->accumulate)
        trial->c = *spare;
    if (args->a_sum)
        trial->a_sum = (char *)*spare + a_sum_at;
    return true;
}

/* What is only written may hold anything until the op is done. */
static DsvStatus choose(DsvStream *stream, Plan *plan, const DsvGemmArgs *args,
                        const cublasLtMatmulAlgo_t *algorithm, int count)
{
    bool fused = is_fused(&plan->key);
    float fastest = INFINITY, milliseconds;
    DsvGemmArgs trial;
    void *spare;
    DsvStatus status = DSV_OK;
    plan->algorithm = algorithm[0];
    plan->missing = fused;
    if ((count == 1 && !fused) || stream->deterministic || flops_of(args) < WORTH_MEASURING ||
        !spare_sums(args, &trial, &spare))
        return DSV_OK;
    for (int i = 0; i < count; i++) {
        DSVI_TRY_GOTO(status, measure(stream, plan, &algorithm[i], &trial, &milliseconds), done);
        if (milliseconds < fastest) {
            fastest = milliseconds;
            plan->algorithm = algorithm[i];
        }
    }
    if (fused) {
        DSVI_TRY_GOTO(status, measure(stream, plan, NULL, &trial, &milliseconds), done);
        plan->missing = fastest >= milliseconds;
    }
done:
    cudaFree(spare);
    return status;
}

static DsvStatus plan_make(DsvStream *stream, const DsvGemmArgs *args, Plan *plan)
{
    cublasLtMatmulAlgo_t algorithm[CANDIDATES];
    int count;
    DSVI_TRY(ask(stream->gemm, plan, algorithm, &count));
    plan->missing = count == 0;
    return count > 0 ? choose(stream, plan, args, algorithm, count) : DSV_OK;
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

static void drop_plans(DsvGemmCublaslt *gemm)
{
    memset(gemm->plan, 0, sizeof gemm->plan);
    gemm->used = 0;
}

/* The plan with this key, or the slot for it. */
static Plan *plan_find(DsvGemmCublaslt *gemm, const Key *key)
{
    unsigned slot = slot_of(key);
    while (gemm->plan[slot].used && memcmp(&gemm->plan[slot].key, key, sizeof *key) != 0)
        slot = (slot + 1) % CAPACITY;
    return &gemm->plan[slot];
}

/* The plan for a product, made if there is none yet. Valid until the next call, but for that which is nested:
 * a fused product is compared with a bare one, so that its making may take a second slot. */
static DsvStatus plan_get(DsvStream *stream, const DsvGemmArgs *args, Plan **out)
{
    DsvGemmCublaslt *gemm = stream->gemm;
    Key key = key_of(args);
    *out = plan_find(gemm, &key);
    if ((*out)->used)
        return DSV_OK;
    if (gemm->used + (is_fused(&key) ? 2 : 1) > MOST) {
        drop_plans(gemm);
        *out = plan_find(gemm, &key);
    }
    (*out)->used = true;
    (*out)->key = key;
    gemm->used++;
    DsvStatus status = plan_make(stream, args, *out);
    if (status != DSV_OK)
        drop_plans(gemm); /* none that is half made may be found */
    return status;
}

/* ---- the op ---- */

/* By cuBLASLt, unless the plan says otherwise: not *done then. */
static DsvStatus run_plan(DsvStream *stream, const DsvGemmArgs *args, bool *done)
{
    Plan *plan;
    cublasStatus_t status;
    DSVI_TRY(plan_get(stream, args, &plan));
    *done = !plan->missing;
    if (plan->missing)
        return DSV_OK;
    DSVI_TRY(enqueue(stream, plan, &plan->algorithm, args, &status));
    return status_of(status, "the product failed", &plan->key);
}

/* Whether so many elements, staged for cuBLASLt or summed by it, have room in partials. */
static bool have_room(int64_t n)
{
    return (size_t)n <= DSVI_CUDA_PARTIALS / sizeof(float);
}

static DsvStatus bare_product(DsvStream *stream, const DsvGemmArgs *args)
{
    bool done = false;
    if (args->m == 0 || args->n == 0)
        return DSV_OK;
    if (args->k > 0 && (!args->bias || takes_bias(args) || have_room(args->n)))
        DSVI_TRY(run_plan(stream, args, &done));
    return done ? DSV_OK : dsvi_gemm_plain(stream, args);
}

static DsvStatus compose(DsvStream *stream, const DsvGemmArgs *args)
{
    DsvGemmArgs bare = dsvi_gemm_bare(args);
    DSVI_TRY(bare_product(stream, &bare));
    return dsvi_gemm_epilogue(&stream->gemm->epilogue, stream, args);
}

/* Whether one epilogue of cuBLASLt does it all, and it is worth asking. Into F32 its GELU may not be exact
 * enough. */
static bool may_fuse(const DsvStream *stream, const DsvGemmArgs *args)
{
    const void *matrix = args->gelu_input ? args->gelu_input : args->gelu_backward;
    int64_t pitch = pitch_of(args->m, args->n, args->ldc);
    if (stream->deterministic || flops_of(args) < WORTH_MEASURING || !have_room(args->m) ||
        !have_room(args->n))
        return false;
    if (args->a_sum)
        return !matrix && !args->bias && args->c_dtype == DSV_F32;
    return matrix && args->c_dtype == DSV_BF16 && pitch % EPILOGUE_PITCH == 0 &&
           (uintptr_t)matrix % EPILOGUE_BYTES == 0;
}

static DsvStatus check_dtypes(const DsvGemmArgs *args)
{
    bool ab = args->ab_dtype == DSV_F32 || args->ab_dtype == DSV_BF16;
    bool c = args->c_dtype == DSV_F32 || args->c_dtype == args->ab_dtype;
    bool vector = args->bias || args->a_sum;
    if (ab && c && (!vector || args->bias_dtype == DSV_F32))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED,
                     "gemm: this variant makes F32 of F32, BF16 or F32 of BF16, with an F32 bias; not %s of "
                     "%s%s%s",
                     dsvi_dtype_name(args->c_dtype), dsvi_dtype_name(args->ab_dtype),
                     vector ? " with bias in " : "", vector ? dsvi_dtype_name(args->bias_dtype) : "");
}

static DsvStatus gemm(DsvStream *stream, const DsvGemmArgs *args)
{
    bool done = false;
    DSVI_TRY(check_dtypes(args));
    if (may_fuse(stream, args))
        DSVI_TRY(run_plan(stream, args, &done));
    return done ? DSV_OK : compose(stream, args);
}

/* After all others: what a product has besides is done by ops of the table. */
DsvStatus dsvi_cuda_fill_gemm(DsvStream *stream, DsvOps *ops)
{
    DSVI_TRY(create(&stream->gemm));
    stream->gemm->epilogue = dsvi_gemm_epilogue_ops(ops);
    stream->gemm->add = ops->add.run;
    DSVI_OPS_SET(ops, gemm, gemm, "cublaslt");
    return DSV_OK;
}
