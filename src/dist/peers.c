/* See peers.h. A process is held by a descriptor (pidfd_open), which becomes readable when it ends. Process
 * numbers mean something only inside one namespace of one running kernel: the card names both. */
#include "dist/peers.h"

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct DsvPeers {
    int64_t count;
    struct pollfd *watch; /* (count); fd -1: not seen */
};

/* By its number: glibc has had a function for it only since 2.36. */
static int open_process(int64_t process)
{
    return (int)syscall(SYS_pidfd_open, (pid_t)process, 0);
}

void dsvi_peer_card(DsvPeerCard *card)
{
    char boot[48] = "", space[40] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    memset(card, 0, sizeof *card);
    card->process = getpid();
    if (file) {
        if (!fgets(boot, sizeof boot, file))
            boot[0] = 0;
        fclose(file);
    }
    boot[strcspn(boot, "\n")] = 0;
    ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    if (boot[0] && length > 0)
        snprintf(card->machine, sizeof card->machine, "%s %s", boot, space);
}

/* What a rank tells the others. */
typedef struct Told {
    DsvPeerCard card;
    uint64_t number;
} Told;

DsvStatus dsvi_peers_here(DsvComm *comm, uint64_t tells, DsvPeersHere *here)
{
    int64_t size = dsvi_comm_size(comm), rank = dsvi_comm_rank(comm);
    Told *told = calloc((size_t)size, sizeof *told);
    memset(here, 0, sizeof *here);
    if (!told)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to meet %lld ranks", (long long)size);
    dsvi_peer_card(&told[rank].card);
    told[rank].number = tells;
    DsvStatus status = dsvi_comm_share(comm, told, sizeof *told);
    for (int64_t r = 0; r < size && status == DSV_OK; r++) {
        if (strcmp(told[r].card.machine, told[rank].card.machine) != 0)
            continue;
        here->ranks++;
        here->before += r < rank;
        here->sum += told[r].number;
    }
    free(told);
    return status;
}

DsvStatus dsvi_peers_watch(const DsvPeerCard *card, int64_t count, int64_t own, DsvPeers **out)
{
    DsvPeers *peers = calloc(1, sizeof *peers);
    *out = peers;
    if (peers)
        peers->watch = calloc((size_t)count, sizeof *peers->watch);
    if (!peers || !peers->watch) {
        free(peers);
        *out = NULL;
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to watch %lld ranks", (long long)count);
    }
    peers->count = count;
    for (int64_t r = 0; r < count; r++) {
        bool here = r != own && card[own].machine[0] && strcmp(card[r].machine, card[own].machine) == 0;
        /* A kernel that knows no such descriptors leaves it at -1. */
        peers->watch[r] = (struct pollfd){here ? open_process(card[r].process) : -1, POLLIN, 0};
    }
    return DSV_OK;
}

int64_t dsvi_peers_ended(const DsvPeers *peers)
{
    if (poll(peers->watch, (nfds_t)peers->count, 0) <= 0)
        return -1;
    for (int64_t r = 0; r < peers->count; r++)
        if (peers->watch[r].fd >= 0 && peers->watch[r].revents)
            return r;
    return -1;
}

bool dsvi_peers_is_gone(const DsvPeers *peers, int64_t rank)
{
    struct pollfd watch = peers->watch[rank];
    return watch.fd >= 0 && poll(&watch, 1, 0) > 0;
}

void dsvi_peers_close(DsvPeers **peers)
{
    if (!*peers)
        return;
    for (int64_t r = 0; r < (*peers)->count; r++)
        if ((*peers)->watch[r].fd >= 0)
            close((*peers)->watch[r].fd);
    free((*peers)->watch);
    free(*peers);
    *peers = NULL;
}
