/* Which ranks are processes of this machine, and whether they still live: a rank that was killed is then
 * known at once, and not when a timeout runs out. Ranks on other machines are not seen. */
#ifndef DSVI_PEERS_H
#define DSVI_PEERS_H

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

/* How many ranks below this one are processes of the same machine: which of its GPUs is this rank's. */
DsvStatus dsvi_peers_before(DsvComm *comm, int64_t *before);

/* How many ranks are processes of this one's machine, itself included, and the sum of what each tells. */
DsvStatus dsvi_peers_here(DsvComm *comm, uint64_t own, int64_t *ranks, uint64_t *sum);

typedef struct DsvPeers DsvPeers;
/* Watches those of the `count` processes that this one can see, itself excepted. */
DsvStatus dsvi_peers_watch(const DsvPeerCard *card, int64_t count, int64_t own, DsvPeers **out);
/* One that has ended, or -1. */
int64_t dsvi_peers_ended(const DsvPeers *peers);
void dsvi_peers_close(DsvPeers **peers);

#ifdef __cplusplus
}
#endif
#endif
