/* Definition of the public type DsvRanks (dsv/ranks.h). */
#ifndef DSVI_RANKS_H
#define DSVI_RANKS_H

#include "dist/comm.h"
#include "dsv/ranks.h"

struct DsvRanks {
    DsviComm *comm;
};

#endif
