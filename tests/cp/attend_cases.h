/* Compares dense attention over the tokens of several ranks with attention on one rank, forward and backward,
 * and the bytes sent with the formulas of cp.h.
 *
 * With one sequence rank and CpCase.same_bits the results must have the same bits as on one rank. Otherwise
 * the result over each shard of keys is rounded to act before the results are summed. In addition to the
 * error on one rank, the bound then allows one rounding of every part and of the sum, and the rounding of a
 * sum in acc with as many terms as there are tokens, in another order. */
#ifndef DSVI_TEST_ATTEND_CASES_H
#define DSVI_TEST_ATTEND_CASES_H

#include "cp/cp_rig.h"

/* Fails by a cmocka assertion, so it must run on the main thread. c->backend computes the result on one
 * rank. */
void check_attend_case(const CpCase *c);

#endif
