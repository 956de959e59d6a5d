/* Dense attention over the tokens of several ranks against that of one: forward and backward, and as many
 * bytes sent as context.h says.
 *
 * Where a case wants the same bits, they are those of one rank if there is one sequence rank. Else results of
 * stretches are rounded to act each, and then summed: next to what one rank may be wrong, an element may be
 * wrong by a rounding of each of its parts and of their sum, and by those in acc of as many terms as there
 * are tokens, in another order. */
#ifndef DSVI_TEST_ATTEND_CASES_H
#define DSVI_TEST_ATTEND_CASES_H

#include "context/context_rig.h"

/* A cmocka assertion; c->backend is that of the one rank. */
void check_attend_case(const ContextCase *c);

#endif
