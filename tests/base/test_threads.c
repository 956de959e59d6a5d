/* The thread pool: every item is processed once, pieces have fixed borders, and results do not depend on the
 * number of threads. */
#include "base/thread_start.h"
#include "base/threads.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "base/rng.h"
#include "test.h"

enum { ITEMS_MAX = 1000 };

typedef struct Visits {
    int count[ITEMS_MAX];
    int64_t begin[ITEMS_MAX], end[ITEMS_MAX]; /* borders of the piece with the item */
    int workers[64];
} Visits;

static void visit(void *context, int64_t begin, int64_t end, int worker)
{
    Visits *v = context;
    assert_true(begin < end && worker >= 0 && worker < dsvi_threads_count());
    for (int64_t i = begin; i < end; i++) {
        v->count[i]++; /* if two workers had the same item, the count or the sanitizer would show it */
        v->begin[i] = begin;
        v->end[i] = end;
    }
}

static void every_item_once_in_fixed_pieces(void **state)
{
    static Visits v;
    static const int64_t sizes[] = {0, 1, 2, 7, 64, 999, ITEMS_MAX}, grains[] = {1, 3, 64, 5000, INT64_MAX};
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        dsvi_threads_set(threads);
        assert_int_equal(dsvi_threads_count(), threads);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
                int64_t n = sizes[s], grain = grains[g];
                memset(&v, 0, sizeof v);
                dsvi_parallel_for(n, grain, visit, &v);
                for (int64_t i = 0; i < n; i++) {
                    int64_t begin = i / grain * grain, end = n - begin < grain ? n : begin + grain;
                    assert_int_equal(v.count[i], 1);
                    assert_int_equal(v.begin[i], begin);
                    assert_int_equal(v.end[i], end);
                }
                for (int64_t i = n; i < ITEMS_MAX; i++)
                    assert_int_equal(v.count[i], 0);
            }
    }
}

static void nothing_to_do_calls_nothing(void **state)
{
    static Visits v;
    (void)state;
    memset(&v, 0, sizeof v);
    dsvi_parallel_for(-5, 1, visit, &v);
    dsvi_parallel_for(0, 0, visit, &v);
    assert_int_equal(v.count[0], 0);
    dsvi_parallel_for(4, -1, visit, &v); /* a grain below 1 is 1 */
    assert_int_equal(v.end[2] - v.begin[2], 1);
}

typedef struct Sums {
    float value[ITEMS_MAX];
    float partial[ITEMS_MAX];
    int64_t grain;
} Sums;

static void add_piece(void *context, int64_t begin, int64_t end, int worker)
{
    Sums *s = context;
    float sum = 0;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        sum += s->value[i];
        if (i % 16 == 0)
            sched_yield(); /* makes workers run in other orders */
    }
    s->partial[begin / s->grain] = sum;
}

/* The sums are of numbers for which the order of addition changes the result. */
static void sums_have_the_same_bits_on_any_number_of_threads(void **state)
{
    static Sums s = {.grain = 17};
    float first = 0;
    (void)state;
    dsvi_rng_fill_normal((DsviRng){.seed = 5, .purpose = DSVI_RNG_TEST}, 0, s.value, ITEMS_MAX);
    for (int threads = 1; threads <= 6; threads++)
        for (int again = 0; again < 20; again++) {
            float sum = 0;
            dsvi_threads_set(threads);
            memset(s.partial, 0, sizeof s.partial);
            dsvi_parallel_for(ITEMS_MAX, s.grain, add_piece, &s);
            for (int64_t i = 0; i < ITEMS_MAX / s.grain + 1; i++)
                sum += s.partial[i];
            if (threads == 1 && again == 0)
                first = sum;
            assert_memory_equal(&sum, &first, sizeof sum);
        }
}

static void look_around(void *context, int64_t begin, int64_t end, int worker)
{
    int *alone = context;
    int inside = 0;
    (void)end;
    (void)worker;
#pragma omp parallel reduction(+ : inside)
    inside++;
    alone[begin] = inside;
}

/* A library that uses OpenMP gets one thread when it is called from a piece, and as many as before outside.
 */
static void a_worker_is_alone(void **state)
{
    (void)state;
    int outside = omp_get_max_threads();
    for (int threads = 1; threads <= 3; threads += 2)
        for (int pieces = 1; pieces <= 4; pieces += 3) {
            int alone[4] = {0};
            dsvi_threads_set(threads);
            dsvi_parallel_for(pieces, 1, look_around, alone);
            for (int i = 0; i < pieces; i++)
                assert_int_equal(alone[i], 1);
            assert_int_equal(omp_get_max_threads(), outside);
        }
}

enum { OUTER = 6, INNER = 50 };

static void add_one(void *context, int64_t begin, int64_t end, int worker)
{
    int *count = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        count[i]++;
}

static void loop_inside(void *context, int64_t begin, int64_t end, int worker)
{
    int(*count)[INNER] = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        dsvi_parallel_for(INNER, 3, add_one, count[i]);
}

static void loops_nest(void **state)
{
    int count[OUTER][INNER] = {{0}};
    (void)state;
    dsvi_threads_set(3);
    dsvi_parallel_for(OUTER, 1, loop_inside, count);
    for (int i = 0; i < OUTER * INNER; i++)
        assert_int_equal(count[i / INNER][i % INNER], 1);
}

static void *many_loops(void *context)
{
    int *count = context;
    for (int again = 0; again < 200; again++) {
        dsvi_parallel_for(INNER, 3, add_one, count);
        if (again % 50 == 0)
            usleep(2000); /* the workers go to sleep and are woken */
    }
    return NULL;
}

static void threads_share_the_pool(void **state)
{
    enum { CALLERS = 3 };
    pthread_t thread[CALLERS];
    int count[CALLERS][INNER] = {{0}};
    (void)state;
    dsvi_threads_set(2);
    for (int i = 0; i < CALLERS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, many_loops, count[i]), 0);
    for (int i = 0; i < CALLERS; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < CALLERS * INNER; i++)
        assert_int_equal(count[i / INNER][i % INNER], 200);
}

/* More stack than a thread has with `ulimit -s 64`. */
static void use_stack(void *context, int64_t begin, int64_t end, int worker)
{
    volatile char room[1 << 20];
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        for (size_t byte = 0; byte < sizeof room; byte += 512)
            room[byte] = (char)i;
        ((char *)context)[i] = room[512];
    }
    usleep(1000);
}

static void *use_stack_alone(void *context)
{
    use_stack(context, 0, 1, 0);
    return NULL;
}

static void threads_have_a_stack_of_their_own(void **state)
{
    char used[64];
    pthread_attr_t attributes, before;
    pthread_t thread;
    (void)state;
    assert_int_equal(pthread_getattr_default_np(&before), 0);
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, 64 << 10), 0);
    assert_int_equal(pthread_setattr_default_np(&attributes), 0);
    dsvi_threads_set(3);
    dsvi_parallel_for(64, 1, use_stack, used);
    assert_int_equal(used[63], 63);
    assert_int_equal(dsvi_thread_start(&thread, use_stack_alone, used), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(pthread_setattr_default_np(&before), 0);
    pthread_attr_destroy(&attributes);
    pthread_attr_destroy(&before);
}

static void zero_means_every_core(void **state)
{
    (void)state;
    dsvi_threads_set(0);
    assert_int_equal(dsvi_threads_count(), omp_get_num_procs());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_once_in_fixed_pieces),
        cmocka_unit_test(nothing_to_do_calls_nothing),
        cmocka_unit_test(sums_have_the_same_bits_on_any_number_of_threads),
        cmocka_unit_test(a_worker_is_alone),
        cmocka_unit_test(loops_nest),
        cmocka_unit_test(threads_share_the_pool),
        cmocka_unit_test(threads_have_a_stack_of_their_own),
        cmocka_unit_test(zero_means_every_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
