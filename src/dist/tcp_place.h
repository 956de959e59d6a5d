/* Addresses and ports at which ranks listen. */
#ifndef DSVI_TCP_PLACE_H
#define DSVI_TCP_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_PLACES_MAX = 4, DSVI_PLACE_TEXT = 80 };

/* Plain bytes: ranks send it to each other. All zero: none. */
typedef struct DsviTcpPlace {
    uint16_t family; /* AF_INET or AF_INET6 */
    uint16_t port;   /* host order */
    uint32_t scope;  /* the interface of a link-local address */
    unsigned char address[16];
} DsviTcpPlace;

/* What a name stands for, in the order in which the system prefers its addresses. */
typedef struct DsviTcpPlaces {
    DsviTcpPlace place[DSVI_PLACES_MAX];
    int count;
    /* A host name other than localhost resolves to a loopback address on this machine (Debian maps the
     * machine's own name to 127.0.1.1). Other machines resolve it to another address. */
    bool hides_address;
} DsviTcpPlaces;

/* Adds a place, unless `places` holds an equal one already or is full. */
void dsvi_places_add(DsviTcpPlaces *places, const DsviTcpPlace *place);

/* DSV_E_NOT_FOUND where no machine has that name. */
DsvStatus dsvi_places_find(const char *address, int port, DsviTcpPlaces *places);

/* Every address of the machine, at `port`. */
void dsvi_places_all(int port, DsviTcpPlaces *places);

bool dsvi_place_is_loopback(const DsviTcpPlace *place);

/* "127.0.0.1:29500", "[::1]:29500". */
const char *dsvi_place_text(const DsviTcpPlace *place, char text[DSVI_PLACE_TEXT]);

/* The two ends of a connection. */
DsviTcpPlace dsvi_place_own(int file);
DsviTcpPlace dsvi_place_peer(int file);

/* A listener at `place`, which becomes the place where it does listen (port 0: one that the system chooses).
 * -1: errno tells why not. */
int dsvi_place_listen(DsviTcpPlace *place);

/* Begins to connect to `place` without waiting. -1: errno tells why not. */
int dsvi_place_connect(const DsviTcpPlace *place);

/* What every connection between ranks is set to: it does not block, sends small frames at once, notices a
 * machine that is gone, and is closed by exec. */
void dsvi_place_set_up(int file);

#ifdef __cplusplus
}
#endif
#endif
