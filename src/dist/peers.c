/* See peers.h. A process is watched through a descriptor (pidfd_open) that becomes readable when the process
 * ends. A process number is valid only in one PID namespace of one running kernel; the card's `machine` names
 * both. */
#include "dist/peers.h"

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct DsviPeers {
    int64_t count;
    struct pollfd *watch; /* (count); fd -1: not watched */
};

/* Makes the system call directly: glibc has pidfd_open only since 2.36. */
static int open_process(int64_t process)
{
    return (int)syscall(SYS_pidfd_open, (pid_t)process, 0);
}

void dsvi_peer_card_fill(DsviPeerCard *card)
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

/* What each rank sends to the others to count the ranks of each machine. */
typedef struct PeerFacts {
    DsviPeerCard card;
    uint64_t value;
} PeerFacts;

DsvStatus dsvi_peers_on_machine(DsviComm *comm, uint64_t value, DsviPeersOnMachine *here)
{
    int64_t size = dsvi_comm_size(comm), rank = dsvi_comm_rank(comm);
    PeerFacts *facts = calloc((size_t)size, sizeof *facts);
    memset(here, 0, sizeof *here);
    if (!facts)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to meet %lld ranks", (long long)size);
    dsvi_peer_card_fill(&facts[rank].card);
    facts[rank].value = value;
    DsvStatus status = dsvi_comm_all_gather_one(comm, facts, sizeof *facts);
    for (int64_t r = 0; r < size && status == DSV_OK; r++) {
        if (strcmp(facts[r].card.machine, facts[rank].card.machine) != 0)
            continue;
        here->ranks++;
        here->before += r < rank;
        here->sum += facts[r].value;
    }
    free(facts);
    return status;
}

DsvStatus dsvi_peers_watch(const DsviPeerCard *card, int64_t count, int64_t rank, DsviPeers **out)
{
    DsviPeers *peers = calloc(1, sizeof *peers);
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
        bool here = r != rank && card[rank].machine[0] && strcmp(card[r].machine, card[rank].machine) == 0;
        /* On a kernel without pidfd_open the descriptor is -1 and the process is not watched. */
        peers->watch[r] = (struct pollfd){here ? open_process(card[r].process) : -1, POLLIN, 0};
    }
    return DSV_OK;
}

int64_t dsvi_peers_ended(const DsviPeers *peers)
{
    if (poll(peers->watch, (nfds_t)peers->count, 0) <= 0)
        return -1;
    for (int64_t r = 0; r < peers->count; r++)
        if (peers->watch[r].fd >= 0 && peers->watch[r].revents)
            return r;
    return -1;
}

bool dsvi_peers_has_ended(const DsviPeers *peers, int64_t rank)
{
    struct pollfd watch = peers->watch[rank];
    return watch.fd >= 0 && poll(&watch, 1, 0) > 0;
}

void dsvi_peers_close(DsviPeers **peers)
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
