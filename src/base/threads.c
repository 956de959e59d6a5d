/* The compute pool on OpenMP. */
#include "base/threads.h"

#include <omp.h>

static int wanted; /* 0: what OpenMP finds */

void dsvi_threads_set(int count)
{
    wanted = count > 0 ? count : omp_get_num_procs();
    omp_set_num_threads(wanted);
}

int dsvi_threads_count(void)
{
    return wanted ? wanted : omp_get_max_threads();
}

void dsvi_parallel_for(int64_t n, int64_t grain, dsvi_range_fn *fn, void *context)
{
    if (n <= 0)
        return;
    if (grain < 1)
        grain = 1;
    int64_t pieces = n / grain + (n % grain != 0);
    if (pieces == 1 || dsvi_threads_count() == 1) {
        /* The same pieces in order: results must not depend on how they are shared out. Nor may they on
         * what a library called from fn makes of idle threads. */
        int outside = omp_get_max_threads();
        omp_set_num_threads(1);
        for (int64_t piece = 0; piece < pieces; piece++)
            fn(context, piece * grain, piece + 1 < pieces ? (piece + 1) * grain : n, 0);
        omp_set_num_threads(outside);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(dsvi_threads_count())
    for (int64_t piece = 0; piece < pieces; piece++)
        fn(context, piece * grain, piece + 1 < pieces ? (piece + 1) * grain : n, omp_get_thread_num());
}
