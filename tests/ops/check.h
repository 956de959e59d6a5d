/* The checker that every variant of every op has to pass, on any backend.
 *
 * A case names an op's buffers and how to call it. The checker fills the inputs in several ways, and runs
 *     the truth      the scalar reference on F64 tensors, from the same (already rounded) inputs
 *     a plain one    the same source with float for double, on tensors of the tested dtypes (plain.c)
 *     the variant    from aligned and from odd addresses, with one thread and with three
 * and wants of each output element of the variant
 *     |got - truth| <= 2 E + ulps u |truth| + least,   E = the plain one's largest error in that tensor,
 * u the unit roundoff of the tensor's dtype (2^-24, 2^-8): as good as straightforward code in the same
 * precision, but for `ulps` roundings more. `least` = 2^-120 is for what vector instructions may flush to
 * zero. Every comparison is such that NaN fails. Further: the same bits with one thread and with three, where
 * the device promises that; no byte round any buffer changed (all are 0xff: NaN to whoever reads there);
 * inputs untouched. With test_small only normal numbers and one thread. */
#ifndef DSVI_CHECK_H
#define DSVI_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#include "ops/ops.h"

enum { CHECK_BUFFERS_MOST = 16, CHECK_TEXT_BYTES = 512 };

typedef enum CheckKind {
    CHECK_ACT,    /* F32 or BF16; F64 for the truth */
    CHECK_ACC,    /* F32; F64 for the truth */
    CHECK_DOUBLE, /* F64 always */
    CHECK_FLOAT,  /* F32 always */
    CHECK_I32     /* filled from `indices` */
} CheckKind;

typedef enum CheckRole { CHECK_IN, CHECK_OUT, CHECK_IN_OUT } CheckRole;

typedef enum CheckFill {
    CHECK_NORMAL, /* standard normal */
    CHECK_LARGE,  /* normal times 1000 */
    CHECK_EQUAL,  /* all 0.7 */
    CHECK_TINY,   /* normal times 2^-130: denormal in F32 and BF16 */
    CHECK_SPARSE, /* two of three are zero */
    CHECK_FILLS
} CheckFill;

typedef struct CheckBuffer {
    const char *name;
    CheckKind kind;
    CheckRole role;
    int64_t n;              /* elements */
    bool steady;            /* filled as CHECK_NORMAL in every case */
    double scale, offset;   /* elements are offset + scale * fill; 0 and 0 mean scale 1 */
    bool positive;          /* |fill| instead */
    int64_t infinite;       /* every so many elements one is -inf; 0: none */
    const int32_t *indices; /* of CHECK_I32 */
    int alias;              /* 1 + the number of an earlier buffer: this one is it */
    /* set by the checker for each run */
    DsvDtype dtype;
    void *data;
} CheckBuffer;

typedef struct CheckCase CheckCase;
/* Builds the op's arguments from c->buffer[].data, c->act and c->acc, and calls it through `ops`. */
typedef DsvStatus check_run_fn(const CheckCase *c, const DsvOps *ops, DsvStream *stream);

struct CheckCase {
    const char *op;
    char shape[128];       /* in words, for the report */
    const void *parameters; /* the test's own, for `run` */
    check_run_fn *run;
    int buffers;
    CheckBuffer buffer[CHECK_BUFFERS_MOST];
    double ulps;
    bool f32_only;         /* there is no CHECK_ACT, or it need not be tried as BF16 */
    /* set by the checker for each run */
    DsvDtype act, acc;
};

/* Adds a buffer with scale 1 and returns it. */
CheckBuffer *check_buffer(CheckCase *c, const char *name, CheckKind kind, CheckRole role, int64_t n);

/* Tries the case in all ways on `backend` (its device may be NULL: host memory). True when all is well;
 * else `why` says what was wrong where. */
bool check_case(CheckCase *c, const DsvBackend *backend, char why[CHECK_TEXT_BYTES]);

/* The same as a cmocka assertion. */
void assert_case(CheckCase *c, const DsvBackend *backend);

/* The table of the plain implementations; ops without one keep the truth's. plain_sparse.c adds its own. */
void check_plain_fill(DsvOps *ops);
void check_plain_fill_sparse(DsvOps *ops);

/* The largest difference between `gradient` and the central differences of loss(context) by x[0..n), over
 * the largest |gradient|. */
typedef double check_loss_fn(void *context);
double check_gradient_error(check_loss_fn *loss, void *context, double *x, int64_t n, const double *gradient);

#endif
