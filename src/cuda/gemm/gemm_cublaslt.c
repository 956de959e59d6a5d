/* gemm: matrix products with cuBLASLt.
 *
 * cuBLASLt expects column-major matrices. Our row-major (M, N) matrix is its column-major (N, M), so C = A B
 * is computed as the product of B and A, in this order, without copying anything.
 *
 * The first product with new sizes, dtypes, pitches and alignments (Key) makes a configuration (Config): the
 * descriptors and the algorithm. For a large product the algorithms that cuBLASLt recommends are timed on the
 * operands of the call, and the fastest is kept. Only in this call, the op waits for the device. It also
 * allocates scratch memory, to which the timed products write if the caller's outputs are sums to which a
 * product is added. A deterministic stream always takes the first recommendation, because two runs may time
 * differently. An algorithm that runs again on the same operands gives the same bits.
 *
 * cuBLASLt requires a bias in the dtype of C at an aligned address; any other bias is first copied and
 * converted (dsvi_gemm_stage_bias). Rounding a bias to BF16 adds no more error than rounding the result.
 *
 * A GELU or a_sum of a product (its epilogue) is either composed, by the bare product and then ops of their
 * own, or fused, by an epilogue of cuBLASLt (whose GELU is the one with tanh), if fused was timed as faster.
 * A fused product can be slower than a composed one, because the fastest algorithm may not offer the
 * epilogue. A deterministic stream always composes. */
#include "cuda/gemm/gemm_cublaslt.h"

#include <cublasLt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/common/cuda.h"
#include "ops/gemm_epilogue.h"

enum {
    CAPACITY = 512, /* slots of the hash table: a power of two */
    /* stored configurations: if one more is needed, all are dropped; a training run uses a few dozen */
    CONFIGS_MAX = CAPACITY * 3 / 4,
    CANDIDATES = 8,      /* algorithms that are timed */
    WARM_UPS = 2,        /* calls before the timed ones */
    TIMED_CALLS = 3,     /* calls that are timed together */
    BASE_BYTES = 64,     /* largest alignment in bytes that a Key records: no algorithm needs more */
    EPILOGUE_BYTES = 16, /* alignment in bytes that the bias and the GELU input of an epilogue must have */
    EPILOGUE_PITCH = 8   /* the pitch of a GELU input must be a multiple of so many elements */
};
#define WORKSPACE_BYTES ((size_t)64 << 20)

/* Products of fewer FLOPs are not timed: they are so fast that the choice of the algorithm does not
 * matter. */
static const double FLOPS_TIMED_MIN = 1e8;

/* What the descriptors and the algorithm of a product (Config) depend on. All fields have the same width, so
 * there is no padding and keys can be compared as bytes. */
typedef struct Key {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    int64_t ab_dtype, c_dtype;
    int64_t trans_a, trans_b;
    int64_t epilogue; /* cublasLtEpilogue_t */
    int64_t accumulate;
    int64_t a_bytes, b_bytes, c_bytes; /* alignment of the addresses in bytes, at most BASE_BYTES */
} Key;

/* How all products with the same key are computed. The descriptors of cuBLASLt are stored in this struct and
 * need not be freed. */
typedef struct Config {
    bool used;        /* false: an empty slot */
    bool unavailable; /* cuBLASLt has no algorithm, or computing the epilogue with ops of their own was faster
                       * than the fused product */
    Key key;
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
} Config;

struct DsviGemmCublaslt {
    cublasLtHandle_t handle;
    void *workspace;              /* WORKSPACE_BYTES of device memory */
    cudaEvent_t begin, end;       /* for timing algorithms */
    DsviGemmEpilogueOps epilogue; /* the ops that compute GELU and a_sum after a bare product */
    dsvi_add_fn *add;
    int used;                /* number of used slots of `config` */
    Config config[CAPACITY]; /* a hash table with linear probing */
};

/* Converts a status of cuBLASLt to a DsvStatus; `what` says in the error message which call failed. */

static DsvStatus cublas_status(cublasStatus_t status, const char *what, const Key *key)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return DSV_OK;
    return DSVI_FAIL(status == CUBLAS_STATUS_ALLOC_FAILED ? DSV_E_NO_MEMORY : DSV_E_DEVICE,
                     "gemm: cuBLASLt: %s: %s (m %lld, n %lld, k %lld, %s to %s)", what,
                     cublasLtGetStatusString(status), (long long)key->m, (long long)key->n, (long long)key->k,
                     dsvi_dtype_name((DsviDtype)key->ab_dtype), dsvi_dtype_name((DsviDtype)key->c_dtype));
}

/* ---- the state of a stream ---- */

static DsvStatus gemm_cublaslt_create(DsviGemmCublaslt **out)
{
    DsviGemmCublaslt *gemm = calloc(1, sizeof *gemm);
    *out = gemm;
    if (!gemm)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes for matrix products", sizeof *gemm);
    cublasStatus_t status = cublasLtCreate(&gemm->handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return DSVI_FAIL(DSV_E_DEVICE, "cuBLASLt could not be initialised: %s",
                         cublasLtGetStatusString(status));
    DSVI_CUDA_TRY(cudaMalloc(&gemm->workspace, WORKSPACE_BYTES));
    DSVI_CUDA_TRY(cudaEventCreate(&gemm->begin));
    DSVI_CUDA_TRY(cudaEventCreate(&gemm->end));
    return DSV_OK;
}

void dsvi_gemm_cublaslt_free(DsviGemmCublaslt **out)
{
    DsviGemmCublaslt *gemm = *out;
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

/* ---- making a configuration ---- */

static cudaDataType_t cuda_type(int64_t dtype)
{
    return dtype == DSVI_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* Returns the pitch of a matrix to pass to cuBLASLt: the caller's, except that a single row gets its length,
 * because its pitch has no meaning and cuBLASLt might refuse it. */
static int64_t effective_pitch(int64_t rows, int64_t cols, int64_t pitch)
{
    return rows > 1 ? pitch : cols;
}

/* Returns the alignment of an address: the largest power of two, up to BASE_BYTES, that divides it. */
static int64_t alignment_of(const void *address)
{
    uintptr_t bits = (uintptr_t)address | BASE_BYTES;
    return (int64_t)(bits & -bits);
}

/* Returns the epilogue of cuBLASLt that computes what `args` asks besides the product: bias, GELU or a_sum.
 * The epilogue for a_sum, BGRADB, sums over cuBLASLt's B because that is our A. */
static cublasLtEpilogue_t epilogue_of(const DsviGemmArgs *args)
{
    if (args->a_sum)
        return CUBLASLT_EPILOGUE_BGRADB;
    if (args->gelu_backward)
        return CUBLASLT_EPILOGUE_DGELU;
    if (args->gelu_input)
        return args->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return args->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static Key key_of(const DsviGemmArgs *args)
{
    return (Key){
        .m = args->m,
        .n = args->n,
        .k = args->k,
        .lda = args->trans_a ? effective_pitch(args->k, args->m, args->lda)
                             : effective_pitch(args->m, args->k, args->lda),
        .ldb = args->trans_b ? effective_pitch(args->n, args->k, args->ldb)
                             : effective_pitch(args->k, args->n, args->ldb),
        .ldc = effective_pitch(args->m, args->n, args->ldc),
        .ab_dtype = args->ab_dtype,
        .c_dtype = args->c_dtype,
        .trans_a = args->trans_a,
        .trans_b = args->trans_b,
        .epilogue = epilogue_of(args),
        .accumulate = args->accumulate,
        .a_bytes = alignment_of(args->a),
        .b_bytes = alignment_of(args->b),
        .c_bytes = alignment_of(args->c),
    };
}

/* Describes to cuBLASLt a matrix that is (rows, cols) in the product; `transposed` means that memory holds
 * its transpose. */
static cublasStatus_t describe_matrix(cublasLtMatrixLayoutOpaque_t *layout, int64_t dtype, int64_t rows,
                                      int64_t cols, int64_t pitch, bool transposed)
{
    return cublasLtMatrixLayoutInit(layout, cuda_type(dtype), (uint64_t)(transposed ? rows : cols),
                                    (uint64_t)(transposed ? cols : rows), pitch);
}

static cublasStatus_t describe_matrices(Config *config)
{
    const Key *key = &config->key;
    cublasStatus_t status = describe_matrix(&config->a, key->ab_dtype, key->m, key->k, key->lda,
                                            key->trans_a);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_matrix(&config->b, key->ab_dtype, key->k, key->n, key->ldb, key->trans_b);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_matrix(&config->c, key->c_dtype, key->m, key->n, key->ldc, false);
    return status;
}

static cublasStatus_t set_attribute(Config *config, cublasLtMatmulDescAttributes_t attribute,
                                    const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(&config->product, attribute, value, bytes);
}

/* Sets the addresses that an epilogue reads or writes: `vector` is the bias or a_sum, `matrix` the input of
 * a GELU. NULL means that the epilogue has no such operand. */
static cublasStatus_t set_pointers(Config *config, const void *vector, const void *matrix)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (vector)
        status = set_attribute(config, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector);
    if (matrix && status == CUBLAS_STATUS_SUCCESS)
        status = set_attribute(config, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &matrix, sizeof matrix);
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

static cublasStatus_t describe_epilogue(Config *config)
{
    const Key *key = &config->key;
    uint32_t epilogue = (uint32_t)key->epilogue;
    int32_t vector_type = (int32_t)cuda_type(key->c_dtype);
    /* cuBLASLt's heuristic derives the alignment that it may rely on from these placeholder addresses */
    const void *vector = has_vector(key) ? (const void *)(uintptr_t)EPILOGUE_BYTES : NULL;
    const void *matrix = has_matrix(key) ? (const void *)(uintptr_t)EPILOGUE_BYTES : NULL;
    cublasStatus_t status = set_attribute(config, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (vector && status == CUBLAS_STATUS_SUCCESS)
        status = set_attribute(config, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &vector_type, sizeof vector_type);
    if (matrix && status == CUBLAS_STATUS_SUCCESS)
        status = set_attribute(config, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &key->ldc, sizeof key->ldc);
    return status == CUBLAS_STATUS_SUCCESS ? set_pointers(config, vector, matrix) : status;
}

/* Creates the description of a product for cuBLASLt: sums in F32 and, for F32 operands, products in F32
 * instead of TF32. */
static cublasStatus_t describe_product(Config *config)
{
    int32_t first = config->key.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t second = config->key.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t status = cublasLtMatmulDescInit(&config->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_attribute(config, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_attribute(config, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    return status == CUBLAS_STATUS_SUCCESS ? describe_epilogue(config) : status;
}

typedef struct Preference {
    cublasLtMatmulPreferenceAttributes_t attribute;
    uint32_t value;
} Preference;

/* Restricts the algorithms that cuBLASLt may recommend to WORKSPACE_BYTES of workspace and to the alignments
 * of the key. The reduction mask allows algorithms that split K only if they keep the partial sums in F32
 * instead of the dtype of C. */
static cublasStatus_t describe_preferences(const Key *key, cublasLtMatmulPreferenceOpaque_t *preference)
{
    size_t workspace_bytes = WORKSPACE_BYTES;
    const Preference alignments[] = {
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
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0] && status == CUBLAS_STATUS_SUCCESS; i++)
        status = cublasLtMatmulPreferenceSetAttribute(preference, alignments[i].attribute,
                                                      &alignments[i].value, sizeof alignments[i].value);
    return status;
}

/* Fills the descriptors of `config` and asks cuBLASLt for up to CANDIDATES algorithms, the expected fastest
 * first. *count is their number; 0 means that cuBLASLt has none. */
static DsvStatus query_algorithms(DsviGemmCublaslt *gemm, Config *config, cublasLtMatmulAlgo_t *algorithm,
                                  int *count)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    int answers = 0;
    cublasStatus_t status = describe_matrices(config);
    *count = 0;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_product(config);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_preferences(&config->key, &preference);
    DSVI_TRY(cublas_status(status, "no description", &config->key));
    status = cublasLtMatmulAlgoGetHeuristic(gemm->handle, &config->product, &config->b, &config->a,
                                            &config->c, &config->c, &preference, CANDIDATES, results,
                                            &answers);
    /* If an epilogue does not support these matrices, cuBLASLt may also return INVALID_VALUE. */
    if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
        (status == CUBLAS_STATUS_INVALID_VALUE && is_fused(&config->key)))
        return DSV_OK;
    DSVI_TRY(cublas_status(status, "no algorithm", &config->key));
    for (int i = 0; i < answers; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS)
            algorithm[(*count)++] = results[i].algo;
    return DSV_OK;
}

/* Returns whether cuBLASLt can read the bias where it is: the bias is F32, so C must be F32, and its address
 * must be aligned. */
static bool usable_bias(const DsviGemmArgs *args)
{
    return args->c_dtype == DSVI_F32 && (uintptr_t)args->bias % EPILOGUE_BYTES == 0;
}

/* Enqueues the product of `args`, with the epilogue of `config` and this algorithm; *status is the status of
 * cuBLASLt. */
static DsvStatus enqueue_cublaslt(DsviStream *stream, Config *config, const cublasLtMatmulAlgo_t *algorithm,
                                  const DsviGemmArgs *args, cublasStatus_t *status)
{
    DsviGemmCublaslt *gemm = stream->gemm;
    float alpha = 1, beta = args->accumulate ? 1 : 0;
    const void *vector = has_vector(&config->key) ? stream->partials : NULL;
    const void *matrix = args->gelu_input ? args->gelu_input : args->gelu_backward;
    if (args->bias && usable_bias(args))
        vector = args->bias;
    else if (args->bias)
        DSVI_TRY(dsvi_gemm_stage_bias(stream, args));
    *status = set_pointers(config, vector, matrix);
    if (*status == CUBLAS_STATUS_SUCCESS)
        *status = cublasLtMatmul(gemm->handle, &config->product, &alpha, args->b, &config->b, args->a,
                                 &config->a, &beta, args->c, &config->c, args->c, &config->c, algorithm,
                                 gemm->workspace, WORKSPACE_BYTES, stream->handle);
    if (*status != CUBLAS_STATUS_SUCCESS || !args->a_sum)
        return DSV_OK;
    DsviAddArgs add = {.n = args->m,
                       .a = 1,
                       .b = 1,
                       .x_dtype = DSVI_F32,
                       .y_dtype = DSVI_F32,
                       .x = stream->partials,
                       .y = args->a_sum};
    return gemm->add(stream, &add);
}

/* ---- choosing an algorithm ---- */

static DsvStatus compose_gemm(DsviStream *stream, const DsviGemmArgs *args);

static double flops_of(const DsviGemmArgs *args)
{
    return 2.0 * (double)args->m * (double)args->n * (double)args->k;
}

/* Measures how many milliseconds TIMED_CALLS calls of an algorithm take, and waits for them; INFINITY if the
 * algorithm fails. `algorithm` NULL measures the composed product (the bare product, then the ops of its
 * epilogue). */
static DsvStatus time_gemm(DsviStream *stream, Config *config, const cublasLtMatmulAlgo_t *algorithm,
                           const DsviGemmArgs *args, float *milliseconds)
{
    DsviGemmCublaslt *gemm = stream->gemm;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    *milliseconds = INFINITY;
    for (int run = 0; run < WARM_UPS + TIMED_CALLS && status == CUBLAS_STATUS_SUCCESS; run++) {
        if (run == WARM_UPS)
            DSVI_CUDA_TRY(cudaEventRecord(gemm->begin, stream->handle));
        DSVI_TRY(algorithm ? enqueue_cublaslt(stream, config, algorithm, args, &status)
                           : compose_gemm(stream, args));
    }
    DSVI_CUDA_TRY(cudaEventRecord(gemm->end, stream->handle));
    DSVI_CUDA_TRY(cudaEventSynchronize(gemm->end));
    if (status == CUBLAS_STATUS_SUCCESS)
        DSVI_CUDA_TRY(cudaEventElapsedTime(milliseconds, gemm->begin, gemm->end));
    return DSV_OK;
}

/* Makes *trial a copy of *args whose additions to C and a_sum go to scratch memory, *spare, instead of the
 * caller's C and a_sum. The caller frees *spare with cudaFree. Returns false if there is no memory for
 * *spare. */
static bool redirect_sums(const DsviGemmArgs *args, DsviGemmArgs *trial, void **spare)
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
        cudaGetLastError(); /* clears CUDA's error: the caller goes on without timing */
        return false;
    }
    if (args->accumulate)
        trial->c = *spare;
    if (args->a_sum)
        trial->a_sum = (char *)*spare + a_sum_at;
    return true;
}

/* Chooses the fastest of `count` algorithms by timing them on the operands of the call, or the first one if
 * timing is not worth it or not allowed. A fused product (with an epilogue of cuBLASLt) is also compared
 * with the composed one (bare product, then ops). Timing overwrites outputs that the call does not add to,
 * which the call then computes anyway. */
static DsvStatus choose_algorithm(DsviStream *stream, Config *config, const DsviGemmArgs *args,
                                  const cublasLtMatmulAlgo_t *algorithm, int count)
{
    bool fused = is_fused(&config->key);
    float fastest = INFINITY, milliseconds;
    DsviGemmArgs trial;
    void *spare;
    DsvStatus status = DSV_OK;
    config->algorithm = algorithm[0];
    config->unavailable = fused;
    if ((count == 1 && !fused) || stream->deterministic || flops_of(args) < FLOPS_TIMED_MIN ||
        !redirect_sums(args, &trial, &spare))
        return DSV_OK;
    for (int i = 0; i < count; i++) {
        DSVI_TRY_GOTO(status, time_gemm(stream, config, &algorithm[i], &trial, &milliseconds), done);
        if (milliseconds < fastest) {
            fastest = milliseconds;
            config->algorithm = algorithm[i];
        }
    }
    if (fused) {
        DSVI_TRY_GOTO(status, time_gemm(stream, config, NULL, &trial, &milliseconds), done);
        config->unavailable = fastest >= milliseconds;
    }
done:
    cudaFree(spare);
    return status;
}

static DsvStatus config_make(DsviStream *stream, const DsviGemmArgs *args, Config *config)
{
    cublasLtMatmulAlgo_t algorithm[CANDIDATES];
    int count;
    DSVI_TRY(query_algorithms(stream->gemm, config, algorithm, &count));
    config->unavailable = count == 0;
    return count > 0 ? choose_algorithm(stream, config, args, algorithm, count) : DSV_OK;
}

/* Returns the slot of the hash table where the search for a key begins: FNV-1a over the 64-bit words of the
 * key. */
static unsigned config_slot(const Key *key)
{
    uint64_t words[sizeof *key / sizeof(uint64_t)], hash = 0xcbf29ce484222325u;
    memcpy(words, key, sizeof *key);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        hash = (hash ^ words[i]) * 0x100000001b3u;
    return (unsigned)(hash ^ hash >> 32) % CAPACITY;
}

static void drop_configs(DsviGemmCublaslt *gemm)
{
    memset(gemm->config, 0, sizeof gemm->config);
    gemm->used = 0;
}

/* Returns the configuration of products with this key, or the empty slot for it. */
static Config *config_find(DsviGemmCublaslt *gemm, const Key *key)
{
    unsigned slot = config_slot(key);
    while (gemm->config[slot].used && memcmp(&gemm->config[slot].key, key, sizeof *key) != 0)
        slot = (slot + 1) % CAPACITY;
    return &gemm->config[slot];
}

/* Sets *out to the configuration for a product, which is made if there is none yet. *out is valid until the
 * next call of this function. One exception: while a fused product is compared with the composed one, a
 * nested call gets the configuration of the bare product. Therefore a fused product reserves two slots. */
static DsvStatus config_get(DsviStream *stream, const DsviGemmArgs *args, Config **out)
{
    DsviGemmCublaslt *gemm = stream->gemm;
    Key key = key_of(args);
    *out = config_find(gemm, &key);
    if ((*out)->used)
        return DSV_OK;
    if (gemm->used + (is_fused(&key) ? 2 : 1) > CONFIGS_MAX) {
        drop_configs(gemm);
        *out = config_find(gemm, &key);
    }
    (*out)->used = true;
    (*out)->key = key;
    gemm->used++;
    DsvStatus status = config_make(stream, args, *out);
    if (status != DSV_OK)
        drop_configs(gemm); /* no later call may find a half-made configuration */
    return status;
}

/* ---- the op ---- */

/* Enqueues the product with cuBLASLt. If cuBLASLt does not serve this product, or if the composed product
 * was timed as faster, nothing is enqueued and *done is false. */
static DsvStatus run_with_cublaslt(DsviStream *stream, const DsviGemmArgs *args, bool *done)
{
    Config *config;
    cublasStatus_t status;
    DSVI_TRY(config_get(stream, args, &config));
    *done = !config->unavailable;
    if (config->unavailable)
        return DSV_OK;
    DSVI_TRY(enqueue_cublaslt(stream, config, &config->algorithm, args, &status));
    return cublas_status(status, "the product failed", &config->key);
}

/* Returns whether stream->partials has room for n floats, which are a converted bias or sums of A. */
static bool fits_in_partials(int64_t n)
{
    return (size_t)n <= DSVI_CUDA_PARTIALS / sizeof(float);
}

/* Enqueues the product without GELU and a_sum, with cuBLASLt or, if it does not serve this product, with
 * dsvi_gemm_plain. */
static DsvStatus bare_product(DsviStream *stream, const DsviGemmArgs *args)
{
    bool done = false;
    if (args->m == 0 || args->n == 0)
        return DSV_OK;
    if (args->k > 0 && (!args->bias || usable_bias(args) || fits_in_partials(args->n)))
        DSVI_TRY(run_with_cublaslt(stream, args, &done));
    return done ? DSV_OK : dsvi_gemm_plain(stream, args);
}

/* Enqueues the bare product, then the ops that compute its epilogue (GELU, a_sum). */
static DsvStatus compose_gemm(DsviStream *stream, const DsviGemmArgs *args)
{
    DsviGemmArgs bare = dsvi_gemm_bare(args);
    DSVI_TRY(bare_product(stream, &bare));
    return dsvi_gemm_epilogue(&stream->gemm->epilogue, stream, args);
}

/* Returns whether one epilogue of cuBLASLt may compute everything that `args` asks besides the product. A
 * GELU is fused only into BF16 results, because cuBLASLt's GELU may not be exact enough for F32. */
static bool may_fuse(const DsviStream *stream, const DsviGemmArgs *args)
{
    const void *matrix = args->gelu_input ? args->gelu_input : args->gelu_backward;
    int64_t pitch = effective_pitch(args->m, args->n, args->ldc);
    if (stream->deterministic || flops_of(args) < FLOPS_TIMED_MIN || !fits_in_partials(args->m) ||
        !fits_in_partials(args->n))
        return false;
    if (args->a_sum)
        return !matrix && !args->bias && args->c_dtype == DSVI_F32;
    return matrix && args->c_dtype == DSVI_BF16 && pitch % EPILOGUE_PITCH == 0 &&
           (uintptr_t)matrix % EPILOGUE_BYTES == 0;
}

static DsvStatus check_dtypes(const DsviGemmArgs *args)
{
    bool ab = args->ab_dtype == DSVI_F32 || args->ab_dtype == DSVI_BF16;
    bool c = args->c_dtype == DSVI_F32 || args->c_dtype == args->ab_dtype;
    bool vector = args->bias || args->a_sum;
    if (ab && c && (!vector || args->bias_dtype == DSVI_F32))
        return DSV_OK;
    return DSVI_FAIL(
        DSV_E_UNSUPPORTED,
        "gemm: this variant computes F32 from F32, and BF16 or F32 from BF16, with an F32 bias; not "
        "%s from %s%s%s",
        dsvi_dtype_name(args->c_dtype), dsvi_dtype_name(args->ab_dtype), vector ? " with bias in " : "",
        vector ? dsvi_dtype_name(args->bias_dtype) : "");
}

static DsvStatus cuda_gemm(DsviStream *stream, const DsviGemmArgs *args)
{
    bool done = false;
    DSVI_TRY(check_dtypes(args));
    if (may_fuse(stream, args))
        DSVI_TRY(run_with_cublaslt(stream, args, &done));
    return done ? DSV_OK : compose_gemm(stream, args);
}

/* Puts gemm into the op table. Must be called when the other ops are already in the table, because gemm calls
 * some of them to compute epilogues (GELU, a_sum). */
DsvStatus dsvi_cuda_fill_gemm(DsviStream *stream, DsviOps *ops)
{
    DSVI_TRY(gemm_cublaslt_create(&stream->gemm));
    stream->gemm->epilogue = dsvi_gemm_epilogue_ops(ops);
    stream->gemm->add = ops->add.run;
    DSVI_OPS_SET(ops, gemm, cuda_gemm, "cublaslt");
    return DSV_OK;
}
