/* libdsv: trains and samples video diffusion transformers with dynamic sparse attention.
 *
 * A tour: fill a DsvConfig (config.h), then call a verb: dsv_train (or, as one of
 * many processes, dsv_train_ranks: ranks.h), dsv_sample, dsv_encode, dsv_forward,
 * dsv_inspect, dsv_report, dsv_plan, dsv_bench_*. Each returns a DsvStatus (status.h) and talks back
 * through DsvEvents (events.h). The library never prints, exits or reads the environment. The program `dsv`
 * is nothing but these calls. */
#ifndef DSV_DSV_H
#define DSV_DSV_H

#include "dsv/bench.h"
#include "dsv/config.h"
#include "dsv/encode.h"
#include "dsv/events.h"
#include "dsv/forward.h"
#include "dsv/inspect.h"
#include "dsv/plan.h"
#include "dsv/ranks.h"
#include "dsv/report.h"
#include "dsv/sample.h"
#include "dsv/status.h"
#include "dsv/train.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0" */
const char *dsv_version(void);

#ifdef __cplusplus
}
#endif
#endif
