/* What the public DsvRanks is. */
#ifndef DSVI_RANKS_H
#define DSVI_RANKS_H

#include "dist/comm.h"
#include "dsv/ranks.h"

struct DsvRanks {
    DsvComm *comm;
};

#endif
