/* The checker that every variant of every operation must pass, on any backend.
 *
 * A case names the buffers of an operation and how to call it. The checker fills the inputs in several ways
 * (CheckFill) and runs
 *     the reference  the scalar reference implementation on F64 tensors, with the already rounded inputs
 *     the plain one  the same source with float instead of double, on tensors of the tested dtypes (plain.c)
 *     the variant    with aligned and with odd addresses, with one thread and with three threads.
 * Each output element of the variant must satisfy
 *     |got - reference| <= 2 E + ulps u |reference| + least
 * where E is the largest error of the plain implementation in this tensor, u is the unit roundoff of the
 * tensor's dtype (2^-24, 2^-8), and least = 2^-120 allows for results that vector instructions flush to zero.
 * So a variant may have twice the error of straightforward code in the same precision, plus `ulps` roundings.
 * A sum of terms that cancel has errors in proportion to the terms, not to |reference|. With random fills E
 * is the largest of many such errors. With CHECK_EQUAL all elements of a tensor round alike, so E is one
 * sample and may be far below the error of other code with as many roundings. For a buffer with `terms_scale`
 * the allowed error with CHECK_EQUAL therefore has one more summand,
 *     ulps 2^-24 M,    M = terms_scale |element of the reference's buffer terms_of|
 * where M is the sum of the absolute values of the terms of this element, which are accumulated in F32. With
 * CHECK_LARGE a softmax is 1 for one key and 0 for all others, and its gradients cancel in code that sums in
 * one order only. There M is bounds_scale times the product of the largest absolute values of the inputs
 * `bounds`. NaN fails every comparison. The checker also requires:
 *     - the same bits with one and with three threads, if the device promises determinism;
 *     - unchanged bytes before and after each buffer (all 0xff, which reads as NaN);
 *     - unchanged inputs.
 * With test_small() the checker tries CHECK_NORMAL and one thread only. */
#ifndef DSVI_CHECK_H
#define DSVI_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#include "ops/ops.h"

enum { CHECK_BUFFERS_MAX = 16, CHECK_TEXT_BYTES = 512 };

typedef enum CheckKind {
    CHECK_ACT,    /* F32 or BF16; F64 for the reference */
    CHECK_ACC,    /* F32; F64 for the reference */
    CHECK_DOUBLE, /* F64 always */
    CHECK_FLOAT,  /* F32 always */
    CHECK_I32     /* filled from `indices` */
} CheckKind;

typedef enum CheckRole { CHECK_IN, CHECK_OUT, CHECK_IN_OUT } CheckRole;

#define CHECK_EQUAL_VALUE 0.7
#define CHECK_BOUNDS 3

typedef enum CheckFill {
    CHECK_NORMAL, /* standard normal */
    CHECK_LARGE,  /* normal times 1000 */
    CHECK_EQUAL,  /* all CHECK_EQUAL_VALUE */
    CHECK_TINY,   /* normal times 2^-130: denormal in F32 and BF16 */
    CHECK_SPARSE, /* normal, but two of three elements are zero */
    CHECK_FILLS
} CheckFill;

typedef struct CheckBuffer {
    const char *name;
    CheckKind kind;
    CheckRole role;
    int64_t n;                /* elements */
    bool steady;              /* always filled as CHECK_NORMAL, whatever the checker's fill */
    double scale, offset;     /* elements are offset + scale * fill */
    bool positive;            /* elements are offset + scale * |fill| */
    int64_t infinite;         /* elements 0, infinite, 2 infinite, ... are -inf; 0: none is */
    const int32_t *indices;   /* (n) values of a CHECK_I32 buffer; owned by the caller */
    double terms_scale;       /* 0: the terms of an element do not cancel. See the head of this file */
    int terms_of;             /* with terms_scale > 0: number of an output of as many elements */
    double bounds_scale;      /* 0: the terms of an element do not cancel with CHECK_LARGE */
    int bounds[CHECK_BOUNDS]; /* with bounds_scale > 0: numbers of inputs */
    int alias;                /* 1 + number of the earlier buffer whose memory this one uses; 0: its own */
    /* set by the checker for each run */
    DsviDtype dtype;
    void *data;
} CheckBuffer;

typedef struct CheckCase CheckCase;
/* Builds the operation's arguments from c->buffer[].data, c->act and c->acc, and calls the operation through
 * `ops`. Returns the operation's status. */
typedef DsvStatus check_run_fn(const CheckCase *c, const DsviOps *ops, DsviStream *stream);

struct CheckCase {
    const char *op;
    char shape[128];        /* description of the case, printed on failure */
    const void *parameters; /* passed through to `run`; owned by the test */
    check_run_fn *run;
    int buffers;
    CheckBuffer buffer[CHECK_BUFFERS_MAX];
    double ulps;   /* roundings by which a result may differ more than the plain implementation */
    bool f32_only; /* not tried with BF16 as act: no buffer is CHECK_ACT, or BF16 adds nothing */
    /* set by the checker for each run */
    DsviDtype act, acc;
};

/* Adds a buffer of `n` elements with scale 1 to the case, and returns it. */
CheckBuffer *check_buffer(CheckCase *c, const char *name, CheckKind kind, CheckRole role, int64_t n);

/* Checks the case with all fills, precisions, addresses and thread counts on `backend` (device NULL: in host
 * memory). Returns true if all results are right; else `why` describes the first failure. */
bool check_case(CheckCase *c, const DsviBackend *backend, char why[CHECK_TEXT_BYTES]);

/* Adds a buffer with some of the tokens 0 to `tokens` - 1, about two of three, to the case: the list of
 * tokens that a run processes. Its outputs must then be CHECK_IN_OUT, because it leaves other tokens alone.
 * check_tokens returns this list, or the list of all tokens if the case has none. */
void check_listed_tokens(CheckCase *c, int64_t tokens);
DsviTokenList check_tokens(const CheckCase *c);

/* Keeps the results of the reference and the plain implementation in a temporary file. To be called before
 * processes are forked that check the same cases in the same order, one process after another: the first
 * process computes the results, the others read them. A process that checks other cases computes its own. */
void check_keep_results(void);

/* Fails the running cmocka test with this description if check_case() returns false. */
void assert_case(CheckCase *c, const DsviBackend *backend);

/* check_plain_fill fills the table with plain single-precision implementations; operations without one get
 * the reference implementation. It calls check_plain_fill_sparse, which sets the entries of
 * plain_sparse.c. */
void check_plain_fill(DsviOps *ops);
void check_plain_fill_sparse(DsviOps *ops);

/* Returns the largest difference between `gradient` and the central differences of loss(context) with respect
 * to x[0..n), divided by the largest |gradient|. The elements of x are restored. */
typedef double check_loss_fn(void *context);
double check_gradient_error(check_loss_fn *loss, void *context, double *x, int64_t n, const double *gradient);

#endif
