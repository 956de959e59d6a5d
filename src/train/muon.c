/* Implements muon.h: the Newton-Schulz iteration by matrix products of the backend. */
#include "train/muon.h"

#include <math.h>

#include "train/moments.h"

enum { STEPS = 5 };
static const double A = 3.4445, B = -4.7750, C = 2.0315;

DsviMuon dsvi_muon_make(const DsviParamTable *table, DsviDtype act)
{
    DsviMuon muon = {.act = act};
    for (int64_t i = 0; i < table->count; i++) {
        const DsviParam *param = &table->params[i];
        int64_t small = param->shape[0] < param->shape[1] ? param->shape[0] : param->shape[1];
        if (!param->in_compute_dtype ||
            !dsvi_moments_of_matrices(table, dsvi_param_bucket(table, param->offset)))
            continue;
        muon.elements = param->count > muon.elements ? param->count : muon.elements;
        muon.side = small * small > muon.side ? small * small : muon.side;
    }
    return muon;
}

void dsvi_muon_carve(DsviMuon *m, DsviArena *arena)
{
    size_t act = dsvi_dtype_size(m->act), side = (size_t)m->side;
    bool separate = m->act != DSVI_F32;
    m->x = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, (size_t)m->elements * act);
    m->gram = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, side * sizeof(float));
    m->polynomial = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, side * sizeof(float));
    m->gram_act = separate ? dsvi_arena_take(arena, DSVI_MEM_SCRATCH, side * act) : m->gram;
    m->polynomial_act = separate ? dsvi_arena_take(arena, DSVI_MEM_SCRATCH, side * act) : m->polynomial;
    m->square = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, sizeof *m->square);
}

void dsvi_muon_carve_host(DsviMuon *m, DsviArena *arena)
{
    m->host_square = dsvi_arena_take(arena, DSVI_MEM_DATA, sizeof *m->host_square);
}

/* y = a x + b y */
static DsvStatus muon_add(const DsviBackend *backend, int64_t n, double a, const void *x, double b,
                          DsviDtype y_dtype, void *y)
{
    DsviAddArgs args = {.n = n, .a = a, .b = b, .x_dtype = DSVI_F32, .y_dtype = y_dtype, .x = x, .y = y};
    return backend->ops.add.run(backend->device->stream, &args);
}

/* Converts F32 to act, unless both are the same array. */
static DsvStatus muon_cast(const DsviMuon *m, const DsviBackend *backend, int64_t n, const float *x, void *y)
{
    return (const void *)x == y ? DSV_OK : muon_add(backend, n, 1, x, 0, m->act, y);
}

static DsvStatus muon_product(const DsviMuon *m, const DsviBackend *backend, DsviGemmArgs args)
{
    args.ab_dtype = m->act;
    args.c_dtype = DSVI_F32;
    args.ldc = args.n;
    return backend->ops.gemm.run(backend->device->stream, &args);
}

/* One step of the iteration. */
static DsvStatus muon_iterate(const DsviMuon *m, const DsviBackend *backend, int64_t rows, int64_t cols,
                              float *x)
{
    bool tall = rows > cols;
    int64_t small = tall ? cols : rows, large = tall ? rows : cols, square = small * small;
    DSVI_TRY(muon_add(backend, rows * cols, 1, x, 0, m->act, m->x));
    DSVI_TRY(muon_product(m, backend,
                          (DsviGemmArgs){.m = small,
                                         .n = small,
                                         .k = large,
                                         .a = m->x,
                                         .lda = cols,
                                         .trans_a = tall,
                                         .b = m->x,
                                         .ldb = cols,
                                         .trans_b = !tall,
                                         .c = m->gram}));
    DSVI_TRY(muon_cast(m, backend, square, m->gram, m->gram_act));
    DSVI_TRY(muon_product(m, backend,
                          (DsviGemmArgs){.m = small,
                                         .n = small,
                                         .k = small,
                                         .a = m->gram_act,
                                         .lda = small,
                                         .b = m->gram_act,
                                         .ldb = small,
                                         .c = m->polynomial}));
    DSVI_TRY(muon_add(backend, square, B, m->gram, C, DSVI_F32, m->polynomial));
    DSVI_TRY(muon_cast(m, backend, square, m->polynomial, m->polynomial_act));
    DSVI_TRY(muon_add(backend, rows * cols, A, x, 0, DSVI_F32, x));
    return muon_product(m, backend,
                        (DsviGemmArgs){.m = rows,
                                       .n = cols,
                                       .k = small,
                                       .a = tall ? m->x : m->polynomial_act,
                                       .lda = small,
                                       .b = tall ? m->polynomial_act : m->x,
                                       .ldb = cols,
                                       .c = x,
                                       .accumulate = true});
}

DsvStatus dsvi_muon_orthogonalise(const DsviMuon *m, const DsviBackend *backend, int64_t rows, int64_t cols,
                                  float *x)
{
    DsviDevice *device = backend->device;
    DsviSumSquaresArgs norm = {.n = rows * cols, .acc = DSVI_F32, .x = x, .out = m->square};
    DSVI_TRY(backend->ops.sum_squares.run(device->stream, &norm));
    DSVI_TRY(device->download(device->stream, m->host_square, m->square, sizeof *m->square));
    DSVI_TRY(device->sync(device->stream));
    if (!(*m->host_square > 0))
        return DSV_OK;
    DSVI_TRY(muon_add(backend, rows * cols, 1 / sqrt(*m->host_square), x, 0, DSVI_F32, x));
    for (int step = 0; step < STEPS; step++)
        DSVI_TRY(muon_iterate(m, backend, rows, cols, x));
    return DSV_OK;
}

double dsvi_muon_factor(int64_t rows, int64_t cols)
{
    return 0.2 * sqrt((double)(rows > cols ? rows : cols));
}
