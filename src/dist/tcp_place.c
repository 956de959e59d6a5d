/* See tcp_place.h. */
#include "dist/tcp_place.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static DsviTcpPlace from_system(const struct sockaddr_storage *where)
{
    DsviTcpPlace place = {.family = where->ss_family};
    if (where->ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)where;
        place.port = ntohs(six->sin6_port);
        place.scope = six->sin6_scope_id;
        memcpy(place.address, &six->sin6_addr, 16);
    } else {
        const struct sockaddr_in *four = (const struct sockaddr_in *)where;
        place.port = ntohs(four->sin_port);
        memcpy(place.address, &four->sin_addr, 4);
    }
    return place;
}

static socklen_t to_system(const DsviTcpPlace *place, struct sockaddr_storage *where)
{
    memset(where, 0, sizeof *where);
    if (place->family == AF_INET6) {
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)where;
        six->sin6_family = AF_INET6;
        six->sin6_port = htons(place->port);
        six->sin6_scope_id = place->scope;
        memcpy(&six->sin6_addr, place->address, 16);
        return sizeof *six;
    }
    struct sockaddr_in *four = (struct sockaddr_in *)where;
    four->sin_family = AF_INET;
    four->sin_port = htons(place->port);
    memcpy(&four->sin_addr, place->address, 4);
    return sizeof *four;
}

bool dsvi_place_is_loopback(const DsviTcpPlace *place)
{
    if (place->family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)(const void *)place->address);
    return place->address[0] == 127;
}

void dsvi_places_add(DsviTcpPlaces *places, const DsviTcpPlace *place)
{
    for (int i = 0; i < places->count; i++)
        if (memcmp(&places->place[i], place, sizeof *place) == 0)
            return;
    if (places->count < DSVI_PLACES_MAX)
        places->place[places->count++] = *place;
}

DsvStatus dsvi_places_resolve(const char *address, int port, DsviTcpPlaces *places)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    unsigned char literal[16];
    memset(places, 0, sizeof *places);
    int error = getaddrinfo(address, NULL, &hints, &found);
    if (error)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "cannot resolve host name %s: %s", address, gai_strerror(error));
    for (const struct addrinfo *at = found; at; at = at->ai_next) {
        struct sockaddr_storage where = {0};
        if (at->ai_family != AF_INET && at->ai_family != AF_INET6)
            continue;
        memcpy(&where, at->ai_addr, at->ai_addrlen);
        DsviTcpPlace place = from_system(&where);
        place.port = (uint16_t)port;
        dsvi_places_add(places, &place); /* getaddrinfo may return an address twice */
    }
    freeaddrinfo(found);
    if (places->count == 0)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s has neither an IPv4 nor an IPv6 address", address);
    bool names_loopback = strcmp(address, "localhost") == 0 || inet_pton(AF_INET, address, literal) == 1 ||
                          inet_pton(AF_INET6, address, literal) == 1;
    places->hides_address = !names_loopback && dsvi_place_is_loopback(&places->place[0]);
    return DSV_OK;
}

void dsvi_places_all(int port, DsviTcpPlaces *places)
{
    *places = (DsviTcpPlaces){.count = 2};
    places->place[0] = (DsviTcpPlace){.family = AF_INET, .port = (uint16_t)port};
    places->place[1] = (DsviTcpPlace){.family = AF_INET6, .port = (uint16_t)port};
}

const char *dsvi_place_text(const DsviTcpPlace *place, char text[DSVI_PLACE_TEXT])
{
    char address[INET6_ADDRSTRLEN] = "?";
    inet_ntop(place->family, place->address, address, sizeof address);
    snprintf(text, DSVI_PLACE_TEXT, place->family == AF_INET6 ? "[%s]:%d" : "%s:%d", address, place->port);
    return text;
}

DsviTcpPlace dsvi_place_local(int file)
{
    struct sockaddr_storage where = {0};
    socklen_t length = sizeof where;
    getsockname(file, (struct sockaddr *)&where, &length);
    return from_system(&where);
}

DsviTcpPlace dsvi_place_peer(int file)
{
    struct sockaddr_storage where = {0};
    socklen_t length = sizeof where;
    getpeername(file, (struct sockaddr *)&where, &length);
    return from_system(&where);
}

/* Closes a socket after a failed call and keeps errno. Returns -1. */
static int close_failed_socket(int file)
{
    int error = errno;
    close(file);
    errno = error;
    return -1;
}

int dsvi_place_listen(DsviTcpPlace *place)
{
    struct sockaddr_storage where;
    socklen_t length = to_system(place, &where);
    int yes = 1, file = socket(place->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file < 0)
        return -1;
    setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (place->family == AF_INET6) /* accept IPv6 only, because IPv4 has a separate listener */
        setsockopt(file, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
    if (bind(file, (struct sockaddr *)&where, length) != 0 || listen(file, SOMAXCONN) != 0)
        return close_failed_socket(file);
    *place = dsvi_place_local(file);
    return file;
}

int dsvi_place_connect(const DsviTcpPlace *place)
{
    struct sockaddr_storage where;
    socklen_t length = to_system(place, &where);
    int file = socket(place->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file >= 0 && connect(file, (struct sockaddr *)&where, length) != 0 && errno != EINPROGRESS)
        return close_failed_socket(file);
    return file;
}

void dsvi_place_set_options(int file)
{
    int yes = 1;
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK);
    fcntl(file, F_SETFD, FD_CLOEXEC);
}
