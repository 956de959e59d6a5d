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
 * oneDNN's own parallelisation divides a product over its threads, also along K, and then the result depends
 * on the number of threads. Here the tiles depend only on the shape, and oneDNN computes each tile on one
 * thread. B is packed first, which makes this as fast as oneDNN's own parallelisation.
 *
 * oneDNN's fast kernels require dense A and C. An A or C that is not dense, and a last tile that is not full,
 * are copied through the worker's scratch memory. A transposed A (as in the gradient of a weight) is copied
 * too, because a tile needs only a few columns of each stored row. With a transposed A, K is divided into
 * slabs whose piece of A stays in the cache, and C in F32 accumulates their products.
 *
 * If oneDNN has no BF16 products for this CPU, BF16 operands are converted to F32: A tile by tile, B by
 * slabs.
 *
 * After the first product of a shape, only oneDNN itself allocates memory in a call. */
#include "cpu/gemm_onednn.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "cpu/gemm_primitive.h"
#include "ops/gemm_epilogue.h"

enum {
    TILES = 8,             /* minimum number of tiles, unless tiles would become too small */
    TILE_MIN = 32,         /* minimum rows of a tile */
    TILE_MIN_TRANS_A = 64, /* minimum rows of a tile of a transposed A: two cache lines of BF16 */
    TILE_MAX = 128,
    SLAB_TRANS_A = 512,
    ALIGNMENT = 64
};

typedef struct Buffer {
    unsigned char *data;
    size_t bytes;
} Buffer;

struct DsviGemmOnednn {
    DsviGemmPrimitives *primitives;
    int workers;
    Buffer shared;     /* used by all workers; two parts, one after the other: B converted to F32, and the
                        * packed form of B */
    Buffer per_worker; /* for each worker, one after the other: copy of a tile of A, tile of C, oneDNN's
                        * scratchpad */
    DsviGemmEpilogueOps epilogue;
};

/* One slab of a product (a range of its sum dimension K), on which all workers compute together. */
typedef struct Slab {
    DsviGemmOnednn *gemm;
    const DsviGemmArgs *args;
    DsviGemmPrimitive *primitive;
    int64_t begin, k;                /* the slab is K in [begin, begin + k) */
    int64_t tile;                    /* rows of a full tile */
    size_t a_bytes, c_bytes, stride; /* bytes of the tile of A, of the tile of C, and of all scratch memory
                                      * of one worker */
    atomic_int failure;              /* dnnl_status_t of some worker that failed, else 0 */
} Slab;

/* ---- set-up ---- */

DsvStatus dsvi_gemm_onednn_create(DsviGemmOnednn **out)
{
    DsvStatus status;
    *out = NULL;
    DsviGemmOnednn *gemm = calloc(1, sizeof *gemm);
    if (!gemm)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes for matrix products", sizeof *gemm);
    gemm->workers = dsvi_threads_count();
    DSVI_TRY_GOTO(status, dsvi_gemm_primitives_create(gemm->workers, &gemm->primitives), fail);
    *out = gemm;
    return DSV_OK;
fail:
    dsvi_gemm_onednn_free(&gemm);
    return status;
}

void dsvi_gemm_onednn_free(DsviGemmOnednn **gemm)
{
    if (!*gemm)
        return;
    dsvi_gemm_primitives_free(&(*gemm)->primitives);
    free((*gemm)->shared.data);
    free((*gemm)->per_worker.data);
    free(*gemm);
    *gemm = NULL;
}

/* Recreates the primitives if the number of threads grew, because primitives hold memory objects for each
 * worker. */
static DsvStatus gemm_resize_workers(DsviGemmOnednn *gemm)
{
    int workers = dsvi_threads_count();
    if (gemm->primitives && workers <= gemm->workers)
        return DSV_OK;
    dsvi_gemm_primitives_free(&gemm->primitives);
    DSVI_TRY(dsvi_gemm_primitives_create(workers, &gemm->primitives));
    gemm->workers = workers;
    return DSV_OK;
}

static size_t align_bytes(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Grows a buffer to at least `bytes` bytes; its contents are lost. New memory is cleared: oneDNN also
 * multiplies the unused rows of a tile that is not full, although their results are discarded. */
static DsvStatus buffer_grow(Buffer *buffer, size_t bytes)
{
    if (bytes <= buffer->bytes)
        return DSV_OK;
    free(buffer->data);
    buffer->bytes = 0;
    buffer->data = aligned_alloc(ALIGNMENT, align_bytes(bytes));
    if (!buffer->data)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes of scratch memory for matrix products", bytes);
    memset(buffer->data, 0, align_bytes(bytes));
    buffer->bytes = align_bytes(bytes);
    return DSV_OK;
}

/* ---- copying matrices ---- */

static const void *gemm_onednn_element(DsviDtype dtype, const void *array, int64_t i)
{
    return (const unsigned char *)array + i * (int64_t)dsvi_dtype_size(dtype);
}

/* Rows of a matrix in memory. */
typedef struct Matrix {
    DsviDtype dtype;
    const void *data;
    int64_t pitch; /* elements from one row to the next */
} Matrix;

/* Copies `rows` rows of `cols` elements, and converts between F32 and BF16 if the dtypes differ. */
static void gemm_onednn_copy_rows(Matrix to, Matrix from, int64_t rows, int64_t cols)
{
    for (int64_t row = 0; row < rows; row++) {
        void *dst = (void *)gemm_onednn_element(to.dtype, to.data, row * to.pitch);
        const void *src = gemm_onednn_element(from.dtype, from.data, row * from.pitch);
        if (to.dtype == from.dtype) {
            memcpy(dst, src, (size_t)cols * dsvi_dtype_size(to.dtype));
        } else if (to.dtype == DSVI_F32) {
            for (int64_t col = 0; col < cols; col++)
                ((float *)dst)[col] = dsvi_bf16_to_f32(((const uint16_t *)src)[col]);
        } else {
            for (int64_t col = 0; col < cols; col++)
                ((uint16_t *)dst)[col] = dsvi_f32_to_bf16(((const float *)src)[col]);
        }
    }
}

typedef struct Widening {
    const DsviGemmArgs *args;
    const void *from;
    float *to;
    int64_t cols; /* elements of a stored row */
} Widening;

static void gemm_widen_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const Widening *w = context;
    (void)worker;
    DsviDtype dtype = w->args->ab_dtype;
    int64_t ldb = w->args->ldb;
    Matrix from = {dtype, gemm_onednn_element(dtype, w->from, begin * ldb), ldb};
    gemm_onednn_copy_rows((Matrix){DSVI_F32, w->to + begin * w->cols, w->cols}, from, end - begin, w->cols);
}

/* ---- one slab ---- */

/* Returns the tile of A that starts at row `first`, in the layout that the primitive expects: in place if
 * possible, else copied into `scratch`. */
static const void *tile_of_a(const Slab *slab, int64_t first, int64_t rows, void *scratch)
{
    const DsviGemmArgs *args = slab->args;
    DsviDtype dtype = (DsviDtype)slab->primitive->key.ab_dtype;
    const void *at = gemm_onednn_element(args->ab_dtype, args->a,
                                         args->trans_a ? slab->begin * args->lda + first
                                                       : first * args->lda + slab->begin);
    Matrix from = {args->ab_dtype, at, args->lda};
    if (args->trans_a) {
        if (slab->tile == args->lda && dtype == args->ab_dtype)
            return at;
        gemm_onednn_copy_rows((Matrix){dtype, scratch, slab->tile}, from, slab->k, rows);
        return scratch;
    }
    if (slab->k == args->lda && dtype == args->ab_dtype && rows == slab->tile)
        return at;
    gemm_onednn_copy_rows((Matrix){dtype, scratch, slab->k}, from, rows, slab->k);
    return scratch;
}

static void gemm_run_tiles(void *context, int64_t begin, int64_t end, int worker)
{
    Slab *slab = context;
    const DsviGemmArgs *args = slab->args;
    const DsviGemmKey *key = &slab->primitive->key;
    unsigned char *scratch = slab->gemm->per_worker.data + (size_t)worker * slab->stride;
    void *c_scratch = scratch + slab->a_bytes, *scratchpad = scratch + slab->a_bytes + slab->c_bytes;
    DsviDtype dtype = (DsviDtype)key->c_dtype;
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i * slab->tile;
        int64_t rows = args->m - first < slab->tile ? args->m - first : slab->tile;
        const void *a = tile_of_a(slab, first, rows, scratch);
        void *c = (void *)gemm_onednn_element(args->c_dtype, args->c, first * args->ldc);
        Matrix in_c = {args->c_dtype, c, args->ldc}, in_scratch = {dtype, c_scratch, args->n};
        bool dense = rows == slab->tile && args->ldc == args->n && dtype == args->c_dtype;
        if (!dense && key->accumulate)
            gemm_onednn_copy_rows(in_scratch, in_c, rows, args->n);
        dnnl_status_t status = dsvi_gemm_primitive_run(slab->gemm->primitives, slab->primitive, worker, a,
                                                       dense ? c : c_scratch, scratchpad);
        if (status != dnnl_success)
            atomic_store(&slab->failure, (int)status);
        if (!dense)
            gemm_onednn_copy_rows(in_c, in_scratch, rows, args->n);
    }
}

/* Computes the products of one slab, K in [slab->begin, slab->begin + slab->k). */
static DsvStatus gemm_run_slab(Slab *slab, bool widen)
{
    const DsviGemmArgs *args = slab->args;
    DsviGemmOnednn *gemm = slab->gemm;
    int64_t b_rows = args->trans_b ? args->n : slab->k, b_cols = args->trans_b ? slab->k : args->n;
    DsviGemmKey key = {
        .m = slab->tile,
        .n = args->n,
        .k = slab->k,
        .ldb = widen ? b_cols : args->ldb,
        .ab_dtype = widen ? DSVI_F32 : args->ab_dtype,
        .c_dtype = widen ? DSVI_F32 : args->c_dtype,
        .trans_a = args->trans_a,
        .trans_b = args->trans_b,
        .bias = args->bias && slab->begin == 0,
        .accumulate = args->accumulate || slab->begin > 0,
    };
    /* With a transposed A the slab is short. As long as B is dense, oneDNN's own packing of B inside each
     * tile then costs less than packing B once for all tiles. */
    key.packed = slab->tile < args->m && (!args->trans_a || key.ldb != b_cols);
    DSVI_TRY(dsvi_gemm_primitives_get(gemm->primitives, &key, &slab->primitive));
    size_t wide_bytes = widen ? align_bytes((size_t)(b_rows * b_cols) * sizeof(float)) : 0;
    slab->a_bytes = align_bytes((size_t)(key.m * key.k) * dsvi_dtype_size((DsviDtype)key.ab_dtype));
    slab->c_bytes = align_bytes((size_t)(key.m * key.n) * dsvi_dtype_size((DsviDtype)key.c_dtype));
    slab->stride = slab->a_bytes + slab->c_bytes + align_bytes(slab->primitive->scratchpad_bytes);
    DSVI_TRY(buffer_grow(&gemm->shared, wide_bytes + slab->primitive->packed_bytes));
    DSVI_TRY(buffer_grow(&gemm->per_worker, slab->stride * (size_t)gemm->workers));

    const void *b = gemm_onednn_element(args->ab_dtype, args->b,
                                        args->trans_b ? slab->begin : slab->begin * args->ldb);
    if (widen) {
        Widening widening = {args, b, (float *)gemm->shared.data, b_cols};
        dsvi_parallel_for(b_rows, 16, gemm_widen_rows, &widening);
        b = gemm->shared.data;
    }
    DSVI_TRY(dsvi_gemm_primitive_set_b(gemm->primitives, slab->primitive, b, args->bias,
                                       gemm->shared.data + wide_bytes));
    dsvi_parallel_for((args->m + slab->tile - 1) / slab->tile, 1, gemm_run_tiles, slab);
    return dsvi_gemm_primitive_status((dnnl_status_t)atomic_load(&slab->failure), "product failed", &key);
}

/* ---- the gemm op ---- */

/* Returns the number of rows of a tile: enough tiles for all workers, none too small, all of about the same
 * size. */
static int64_t tile_rows(int64_t m, bool trans_a)
{
    int64_t min_rows = trans_a ? TILE_MIN_TRANS_A : TILE_MIN, rows = (m + TILES - 1) / TILES;
    rows = rows < min_rows ? min_rows : rows > TILE_MAX ? TILE_MAX : rows;
    if (m <= rows)
        return m;
    int64_t tiles = (m + rows - 1) / rows;
    return ((m + tiles - 1) / tiles + 7) / 8 * 8;
}

static DsvStatus gemm_onednn_check(const DsviGemmArgs *args)
{
    bool ab = args->ab_dtype == DSVI_F32 || args->ab_dtype == DSVI_BF16;
    bool c = args->c_dtype == DSVI_F32 || args->c_dtype == args->ab_dtype;
    if (!ab || !c || ((args->bias || args->a_sum) && args->bias_dtype != DSVI_F32))
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "gemm: variant onednn does not support a product of %s into %s with bias %s",
                         dsvi_dtype_name(args->ab_dtype), dsvi_dtype_name(args->c_dtype),
                         args->bias ? dsvi_dtype_name(args->bias_dtype) : "none");
    return DSV_OK;
}

/* Computes a product with K == 0: sets C to the bias or to 0, unless C is accumulated. */
static void fill_without_products(const DsviGemmArgs *args)
{
    for (int64_t row = 0; row < args->m && !args->accumulate; row++) {
        void *c = (void *)gemm_onednn_element(args->c_dtype, args->c, row * args->ldc);
        if (args->bias)
            gemm_onednn_copy_rows((Matrix){args->c_dtype, c, args->n},
                                  (Matrix){DSVI_F32, args->bias, args->n}, 1, args->n);
        else
            memset(c, 0, (size_t)args->n * dsvi_dtype_size(args->c_dtype));
    }
}

static DsvStatus gemm_onednn_product(DsviGemmOnednn *gemm, const DsviGemmArgs *args)
{
    if (args->m == 0 || args->n == 0)
        return DSV_OK;
    if (args->k == 0) {
        fill_without_products(args);
        return DSV_OK;
    }
    DSVI_TRY(gemm_resize_workers(gemm));
    bool widen = args->ab_dtype == DSVI_BF16 && !dsvi_gemm_primitives_have_bf16(gemm->primitives);
    int64_t slab_k = args->trans_a && args->c_dtype == DSVI_F32 ? SLAB_TRANS_A : args->k;
    for (int64_t begin = 0; begin < args->k; begin += slab_k) {
        Slab slab = {.gemm = gemm, .args = args, .begin = begin, .tile = tile_rows(args->m, args->trans_a)};
        slab.k = args->k - begin < slab_k ? args->k - begin : slab_k;
        DSVI_TRY(gemm_run_slab(&slab, widen));
    }
    return DSV_OK;
}

static DsvStatus gemm_onednn(DsviStream *stream, const DsviGemmArgs *args)
{
    DsviGemmArgs bare = dsvi_gemm_bare(args);
    DSVI_TRY(gemm_onednn_check(args));
    DSVI_TRY(gemm_onednn_product(stream->gemm, &bare));
    return dsvi_gemm_epilogue(&stream->gemm->epilogue, stream, args);
}

void dsvi_gemm_onednn_fill(DsviGemmOnednn *gemm, DsviOps *ops)
{
    gemm->epilogue = dsvi_gemm_epilogue_ops(ops);
    DSVI_OPS_SET(ops, gemm, gemm_onednn, "onednn");
}
