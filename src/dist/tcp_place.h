/* Places: socket addresses (IP address and port) at which ranks listen. */
#ifndef DSVI_TCP_PLACE_H
#define DSVI_TCP_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_PLACES_MAX = 4, DSVI_PLACE_TEXT = 80 };

/* A socket address in a form that ranks send to each other. All zero: no address. */
typedef struct DsviTcpPlace {
    uint16_t family; /* AF_INET or AF_INET6 */
    uint16_t port;   /* host order */
    uint32_t scope;  /* the interface of a link-local address */
    unsigned char address[16];
} DsviTcpPlace;

/* The addresses of a host name, in the order in which the system prefers them. */
typedef struct DsviTcpPlaces {
    DsviTcpPlace place[DSVI_PLACES_MAX];
    int count;
    /* A host name other than localhost resolves to a loopback address on this machine (Debian maps the
     * machine's own name to 127.0.1.1). Other machines resolve it to another address. */
    bool hides_address;
} DsviTcpPlaces;

/* Adds a place, unless `places` has an equal one or is full. */
void dsvi_places_add(DsviTcpPlaces *places, const DsviTcpPlace *place);

/* Resolves a host name or IP address. DSV_E_NOT_FOUND if it has no IP address. */
DsvStatus dsvi_places_resolve(const char *address, int port, DsviTcpPlaces *places);

/* Sets the places that stand for all addresses of this machine, IPv4 and IPv6, at `port`. */
void dsvi_places_all(int port, DsviTcpPlaces *places);

bool dsvi_place_is_loopback(const DsviTcpPlace *place);

/* Writes "127.0.0.1:29500" or "[::1]:29500"; returns `text`. */
const char *dsvi_place_text(const DsviTcpPlace *place, char text[DSVI_PLACE_TEXT]);

/* Return the local and the remote address of a connection. */
DsviTcpPlace dsvi_place_local(int file);
DsviTcpPlace dsvi_place_peer(int file);

/* Opens a listening socket at `place` and returns its descriptor. With port 0 the system chooses a port,
 * which is written to *place. Returns -1 with errno after a failure. */
int dsvi_place_listen(DsviTcpPlace *place);

/* Starts to connect to `place` without waiting and returns the descriptor; -1 with errno after a failure. */
int dsvi_place_connect(const DsviTcpPlace *place);

/* Sets the options of a connection between ranks: non-blocking, TCP_NODELAY, keep-alive (detects machines
 * that are down) and close-on-exec. */
void dsvi_place_set_options(int file);

#ifdef __cplusplus
}
#endif
#endif
