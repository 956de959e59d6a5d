/* Detects ranks that are processes of the same machine, and whether they still run. The end of such a rank is
 * noticed at once instead of after a timeout. Ranks on other machines are not detected. */
#ifndef DSVI_PEERS_H
#define DSVI_PEERS_H

#include <stdbool.h>
#include <stdint.h>

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Identifies a process to the other ranks. */
typedef struct DsviPeerCard {
    char machine[96]; /* equal for processes that can see each other's process numbers; "": unknown */
    int64_t process;  /* process number */
} DsviPeerCard;
/* Fills the card of this process. */
void dsvi_peer_card_fill(DsviPeerCard *card);

/* The ranks that run on this rank's machine. */
typedef struct DsviPeersOnMachine {
    int64_t ranks;  /* how many, this rank included */
    int64_t before; /* how many have lower ranks; used as the index of this rank's GPU */
    uint64_t sum;   /* sum of their `value` */
} DsviPeersOnMachine;
/* Counts the ranks of this machine and sums their `value`. Called by all ranks of the group. */
DsvStatus dsvi_peers_on_machine(DsviComm *comm, uint64_t value, DsviPeersOnMachine *here);

typedef struct DsviPeers DsviPeers;
/* Begins to watch the processes of card (count) that run on this machine, except card[rank], which is this
 * process. */
DsvStatus dsvi_peers_watch(const DsviPeerCard *card, int64_t count, int64_t rank, DsviPeers **out);
/* Returns the index of a watched process that has ended, or -1. */
int64_t dsvi_peers_ended(const DsviPeers *peers);
/* Returns whether process `rank` is watched and has ended. */
bool dsvi_peers_has_ended(const DsviPeers *peers, int64_t rank);
void dsvi_peers_close(DsviPeers **peers);

#ifdef __cplusplus
}
#endif
#endif
