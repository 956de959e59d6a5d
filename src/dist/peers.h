/* Which ranks are processes of this machine, and whether they still live: a rank that was killed is then
 * known at once, and not when a timeout runs out. Ranks on other machines are not seen. */
#ifndef DSVI_PEERS_H
#define DSVI_PEERS_H

#include <stdbool.h>
#include <stdint.h>

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a process tells the others of itself. */
typedef struct DsvPeerCard {
    char machine[96]; /* the same for processes that can see each other */
    int64_t process;
} DsvPeerCard;
void dsvi_peer_card(DsvPeerCard *card);

/* A rank among the processes of its machine. */
typedef struct DsvPeersHere {
    int64_t ranks;  /* that are, itself included */
    int64_t before; /* of them with lower numbers: which of the machine's GPUs is this rank's */
    uint64_t sum;   /* of what each of them tells */
} DsvPeersHere;
/* Called by all ranks. */
DsvStatus dsvi_peers_here(DsvComm *comm, uint64_t tells, DsvPeersHere *here);

typedef struct DsvPeers DsvPeers;
/* Watches those of the `count` processes that this one can see, itself excepted. */
DsvStatus dsvi_peers_watch(const DsvPeerCard *card, int64_t count, int64_t own, DsvPeers **out);
/* One that has ended, or -1. */
int64_t dsvi_peers_ended(const DsvPeers *peers);
/* Whether rank `rank` is seen to have ended. */
bool dsvi_peers_is_gone(const DsvPeers *peers, int64_t rank);
void dsvi_peers_close(DsvPeers **peers);

#ifdef __cplusplus
}
#endif
#endif
