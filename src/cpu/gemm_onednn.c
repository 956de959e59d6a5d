/* Matrix products by oneDNN, one thread per tile of rows.
 *
 *            slab of K
 *          +----------+            +-------------+
 *          |          |  K ...     |             |  slab of B: packed once,
 *          |          |            |   n         |  read by all workers
 *          +----------+            +-------------+
 *     tile |          |  x                  =  tile of C: one worker
 *          +----------+
 *
 * oneDNN left to itself splits a product over its threads, along K too, and then the bits of the result
 * depend on their number. Here the pieces depend on the shape alone, and inside a piece oneDNN has one
 * thread. Packing B first makes that as quick as oneDNN's own way of sharing the work.
 *
 * oneDNN's fast kernels want dense A and C. What is not dense, and a last tile that is not full, goes through
 * the worker's scratch memory. So does an A that lies transposed, as for the gradient of a weight: a tile
 * needs a few columns of each of its rows. There K is cut into slabs whose piece of A stays in the cache
 * while C, in F32, collects the sums.
 *
 * A CPU for which oneDNN has no BF16 products gets them widened to F32, tile by tile.
 *
 * No memory is taken after the first product of a shape but what oneDNN itself takes for a call. */
#include "cpu/gemm_onednn.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "cpu/gemm_plan.h"
#include "ops/gemm_epilogue.h"

enum {
    TILES = 8,               /* wanted at least, where they do not get too small */
    TILE_LEAST = 32,         /* rows */
    TILE_LEAST_TRANS_A = 64, /* two cache lines of each row of a transposed BF16 A */
    TILE_MOST = 128,
    SLAB_TRANS_A = 512,
    ALIGNMENT = 64
};

typedef struct Buffer {
    unsigned char *data;
    size_t bytes;
} Buffer;

struct DsvGemmOnednn {
    DsvGemmPlans *plans;
    int workers;
    Buffer shared;      /* B widened, B packed */
    Buffer own;         /* per worker: tile of A, tile of C, oneDNN's scratchpad */
    DsvGemmEpilogueOps epilogue;
};

/* One slab of a product, as its workers see it. */
typedef struct Slab {
    DsvGemmOnednn *gemm;
    const DsvGemmArgs *args;
    DsvGemmPlan *plan;
    int64_t begin, k;              /* of K */
    int64_t tile;                  /* rows of a full tile */
    size_t a_bytes, c_bytes, stride; /* of a worker's scratch memory */
    atomic_int failure;            /* dnnl_status_t of a worker that failed */
} Slab;

/* ---- set-up ---- */

DsvStatus dsvi_gemm_onednn_create(DsvIsa isa, DsvGemmOnednn **out)
{
    static const int limit[] = {
        [DSV_ISA_REF] = dnnl_cpu_isa_sse41,
        [DSV_ISA_BASE] = dnnl_cpu_isa_sse41,
        [DSV_ISA_AVX2] = dnnl_cpu_isa_avx2,
        [DSV_ISA_AVX512] = dnnl_cpu_isa_avx512_core_vnni,
        [DSV_ISA_AVX512_BF16] = dnnl_cpu_isa_avx512_core_bf16,
        [DSV_ISA_AMX] = dnnl_cpu_isa_all,
    };
    DsvStatus status;
    *out = NULL;
    DsvGemmOnednn *gemm = calloc(1, sizeof *gemm);
    if (!gemm)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes for matrix products", sizeof *gemm);
    gemm->workers = dsvi_threads_count();
    if (isa < dsvi_isa_best())
        dsvi_gemm_plans_limit(limit[isa]);
    DSVI_TRY_GOTO(status, dsvi_gemm_plans_create(gemm->workers, &gemm->plans), fail);
    *out = gemm;
    return DSV_OK;
fail:
    dsvi_gemm_onednn_free(&gemm);
    return status;
}

void dsvi_gemm_onednn_free(DsvGemmOnednn **gemm)
{
    if (!*gemm)
        return;
    dsvi_gemm_plans_free(&(*gemm)->plans);
    free((*gemm)->shared.data);
    free((*gemm)->own.data);
    free(*gemm);
    *gemm = NULL;
}

/* More threads than there were at first: plans hold memory objects for each. */
static DsvStatus follow_threads(DsvGemmOnednn *gemm)
{
    int workers = dsvi_threads_count();
    if (gemm->plans && workers <= gemm->workers)
        return DSV_OK;
    dsvi_gemm_plans_free(&gemm->plans);
    DSVI_TRY(dsvi_gemm_plans_create(workers, &gemm->plans));
    gemm->workers = workers;
    return DSV_OK;
}

static size_t padded(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* What was in it is lost when it grows. Zeros: rows beyond a tile that is not full are multiplied, though
 * their products go nowhere. */
static DsvStatus buffer_grow(Buffer *buffer, size_t bytes)
{
    if (bytes <= buffer->bytes)
        return DSV_OK;
    free(buffer->data);
    buffer->bytes = 0;
    buffer->data = aligned_alloc(ALIGNMENT, padded(bytes));
    if (!buffer->data)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes of scratch memory for matrix products", bytes);
    memset(buffer->data, 0, padded(bytes));
    buffer->bytes = padded(bytes);
    return DSV_OK;
}

/* ---- moving matrices ---- */

static const void *element(DsvDtype dtype, const void *array, int64_t i)
{
    return (const unsigned char *)array + i * (int64_t)dsvi_dtype_size(dtype);
}

/* Copies or converts between F32 and BF16. */
static void copy_rows(DsvDtype to_dtype, void *to, int64_t to_pitch, DsvDtype from_dtype, const void *from,
                      int64_t from_pitch, int64_t rows, int64_t cols)
{
    for (int64_t row = 0; row < rows; row++) {
        void *dst = (void *)element(to_dtype, to, row * to_pitch);
        const void *src = element(from_dtype, from, row * from_pitch);
        if (to_dtype == from_dtype) {
            memcpy(dst, src, (size_t)cols * dsvi_dtype_size(to_dtype));
        } else if (to_dtype == DSV_F32) {
            for (int64_t col = 0; col < cols; col++)
                ((float *)dst)[col] = dsvi_bf16_to_f32(((const uint16_t *)src)[col]);
        } else {
            for (int64_t col = 0; col < cols; col++)
                ((uint16_t *)dst)[col] = dsvi_f32_to_bf16(((const float *)src)[col]);
        }
    }
}

typedef struct Widening {
    const DsvGemmArgs *args;
    const void *from;
    float *to;
    int64_t cols; /* of the stored rows */
} Widening;

static void widen_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const Widening *w = context;
    (void)worker;
    copy_rows(DSV_F32, w->to + begin * w->cols, w->cols, w->args->ab_dtype,
              element(w->args->ab_dtype, w->from, begin * w->args->ldb), w->args->ldb, end - begin, w->cols);
}

/* ---- one slab ---- */

/* How the tile of A from row `first` on is given to oneDNN: as it lies, or copied into `scratch`. */
static const void *tile_of_a(const Slab *slab, int64_t first, int64_t rows, void *scratch)
{
    const DsvGemmArgs *args = slab->args;
    DsvDtype dtype = (DsvDtype)slab->plan->key.ab_dtype;
    const void *at = element(args->ab_dtype, args->a, args->trans_a ? slab->begin * args->lda + first
                                                                    : first * args->lda + slab->begin);
    if (args->trans_a) {
        if (slab->tile == args->lda && dtype == args->ab_dtype)
            return at;
        copy_rows(dtype, scratch, slab->tile, args->ab_dtype, at, args->lda, slab->k, rows);
        return scratch;
    }
    if (slab->k == args->lda && dtype == args->ab_dtype && rows == slab->tile)
        return at;
    copy_rows(dtype, scratch, slab->k, args->ab_dtype, at, args->lda, rows, slab->k);
    return scratch;
}

static void run_tiles(void *context, int64_t begin, int64_t end, int worker)
{
    Slab *slab = context;
    const DsvGemmArgs *args = slab->args;
    const DsvGemmKey *key = &slab->plan->key;
    unsigned char *scratch = slab->gemm->own.data + (size_t)worker * slab->stride;
    void *c_scratch = scratch + slab->a_bytes, *scratchpad = scratch + slab->a_bytes + slab->c_bytes;
    DsvDtype dtype = (DsvDtype)key->c_dtype;
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i * slab->tile;
        int64_t rows = args->m - first < slab->tile ? args->m - first : slab->tile;
        const void *a = tile_of_a(slab, first, rows, scratch);
        void *c = (void *)element(args->c_dtype, args->c, first * args->ldc);
        bool dense = rows == slab->tile && args->ldc == args->n && dtype == args->c_dtype;
        if (!dense && key->accumulate)
            copy_rows(dtype, c_scratch, args->n, args->c_dtype, c, args->ldc, rows, args->n);
        dnnl_status_t status = dsvi_gemm_plan_run(slab->gemm->plans, slab->plan, worker, a,
                                                  dense ? c : c_scratch, scratchpad);
        if (status != dnnl_success)
            atomic_store(&slab->failure, (int)status);
        if (!dense)
            copy_rows(args->c_dtype, c, args->ldc, dtype, c_scratch, args->n, rows, args->n);
    }
}

/* K from slab->begin, slab->k of it. */
static DsvStatus run_slab(Slab *slab, bool widen)
{
    const DsvGemmArgs *args = slab->args;
    DsvGemmOnednn *gemm = slab->gemm;
    int64_t b_rows = args->trans_b ? args->n : slab->k, b_cols = args->trans_b ? slab->k : args->n;
    DsvGemmKey key = {
        .m = slab->tile, .n = args->n, .k = slab->k, .ldb = widen ? b_cols : args->ldb,
        .ab_dtype = widen ? DSV_F32 : args->ab_dtype, .c_dtype = widen ? DSV_F32 : args->c_dtype,
        .trans_a = args->trans_a, .trans_b = args->trans_b, .bias = args->bias && slab->begin == 0,
        .accumulate = args->accumulate || slab->begin > 0,
    };
    /* A slab for a transposed A is short: oneDNN's packing inside each tile costs less than ours, as long
     * as B is dense. */
    key.packed = slab->tile < args->m && (!args->trans_a || key.ldb != b_cols);
    DSVI_TRY(dsvi_gemm_plans_get(gemm->plans, &key, &slab->plan));
    size_t wide_bytes = widen ? padded((size_t)(b_rows * b_cols) * sizeof(float)) : 0;
    slab->a_bytes = padded((size_t)(key.m * key.k) * dsvi_dtype_size((DsvDtype)key.ab_dtype));
    slab->c_bytes = padded((size_t)(key.m * key.n) * dsvi_dtype_size((DsvDtype)key.c_dtype));
    slab->stride = slab->a_bytes + slab->c_bytes + padded(slab->plan->scratchpad_bytes);
    DSVI_TRY(buffer_grow(&gemm->shared, wide_bytes + slab->plan->packed_bytes));
    DSVI_TRY(buffer_grow(&gemm->own, slab->stride * (size_t)gemm->workers));

    const void *b = element(args->ab_dtype, args->b, args->trans_b ? slab->begin : slab->begin * args->ldb);
    if (widen) {
        Widening widening = {args, b, (float *)gemm->shared.data, b_cols};
        dsvi_parallel_for(b_rows, 16, widen_rows, &widening);
        b = gemm->shared.data;
    }
    DSVI_TRY(dsvi_gemm_plan_set_b(gemm->plans, slab->plan, b, args->bias, gemm->shared.data + wide_bytes));
    dsvi_parallel_for((args->m + slab->tile - 1) / slab->tile, 1, run_tiles, slab);
    return dsvi_gemm_plan_status((dnnl_status_t)atomic_load(&slab->failure), "product failed", &key);
}

/* ---- the op ---- */

/* Rows of a tile: enough tiles to share out, none too small, and all about equal. */
static int64_t tile_rows(int64_t m, bool trans_a)
{
    int64_t least = trans_a ? TILE_LEAST_TRANS_A : TILE_LEAST, rows = (m + TILES - 1) / TILES;
    rows = rows < least ? least : rows > TILE_MOST ? TILE_MOST : rows;
    if (m <= rows)
        return m;
    int64_t tiles = (m + rows - 1) / rows;
    return ((m + tiles - 1) / tiles + 7) / 8 * 8;
}

static DsvStatus check(const DsvGemmArgs *args)
{
    bool ab = args->ab_dtype == DSV_F32 || args->ab_dtype == DSV_BF16;
    bool c = args->c_dtype == DSV_F32 || args->c_dtype == args->ab_dtype;
    if (!ab || !c || ((args->bias || args->a_sum) && args->bias_dtype != DSV_F32))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "gemm: onednn has no product of %s into %s with bias %s",
                         dsvi_dtype_name(args->ab_dtype), dsvi_dtype_name(args->c_dtype),
                         args->bias ? dsvi_dtype_name(args->bias_dtype) : "none");
    return DSV_OK;
}

/* K is 0: bias or zeros. */
static void fill_without_products(const DsvGemmArgs *args)
{
    for (int64_t row = 0; row < args->m && !args->accumulate; row++) {
        void *c = (void *)element(args->c_dtype, args->c, row * args->ldc);
        if (args->bias)
            copy_rows(args->c_dtype, c, args->n, DSV_F32, args->bias, args->n, 1, args->n);
        else
            memset(c, 0, (size_t)args->n * dsvi_dtype_size(args->c_dtype));
    }
}

static DsvStatus product(DsvGemmOnednn *gemm, const DsvGemmArgs *args)
{
    if (args->m == 0 || args->n == 0)
        return DSV_OK;
    if (args->k == 0) {
        fill_without_products(args);
        return DSV_OK;
    }
    DSVI_TRY(follow_threads(gemm));
    bool widen = args->ab_dtype == DSV_BF16 && !dsvi_gemm_plans_have_bf16(gemm->plans);
    int64_t slab_k = args->trans_a && args->c_dtype == DSV_F32 ? SLAB_TRANS_A : args->k;
    for (int64_t begin = 0; begin < args->k; begin += slab_k) {
        Slab slab = {.gemm = gemm, .args = args, .begin = begin, .tile = tile_rows(args->m, args->trans_a)};
        slab.k = args->k - begin < slab_k ? args->k - begin : slab_k;
        DSVI_TRY(run_slab(&slab, widen));
    }
    return DSV_OK;
}

static DsvStatus gemm_onednn(DsvStream *stream, const DsvGemmArgs *args)
{
    DsvGemmArgs bare = dsvi_gemm_bare(args);
    DSVI_TRY(check(args));
    DSVI_TRY(product(stream->gemm, &bare));
    return dsvi_gemm_epilogue(&stream->gemm->epilogue, stream, args);
}

void dsvi_gemm_onednn_fill(DsvGemmOnednn *gemm, DsvOps *ops)
{
    gemm->epilogue = dsvi_gemm_epilogue_ops(ops);
    DSVI_OPS_SET(ops, gemm, gemm_onednn, "onednn");
}
