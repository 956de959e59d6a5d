/* See tcp_mesh.h.
 *
 *     rank r > 0                      rank 0
 *     listens at any port
 *     calls rank 0, Hello  -------->  waits until all have called
 *                          <--------  where each rank listens
 *     calls ranks 1 .. r - 1 with a Hello, is called by ranks r + 1 ...
 */
#include "dist/tcp_mesh.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/host.h"

static const uint32_t MAGIC = 0x31767364; /* "dsv1" */
#define HELLO_S 5.0 /* a caller that says nothing for so long is none of ours */

/* All ranks are of one byte order: they share one binary. */
typedef struct Hello {
    uint32_t magic;
    uint16_t port; /* where the caller listens, network order */
    uint16_t pad;
    int64_t rank, size;
} Hello;

typedef struct Place {
    struct sockaddr_storage where;
    int64_t length;
} Place;

typedef struct Mesh {
    int64_t rank, size;
    double until;    /* clock */
    int *socket;     /* (size) */
    int listener;
    uint16_t port;   /* of the listener, network order */
    Place *place;    /* (size) where each rank listens */
} Mesh;

static double left(const Mesh *m)
{
    double seconds = m->until - dsvi_clock_seconds();
    return seconds > 0 ? seconds : 0;
}

static DsvStatus late(const Mesh *m, const char *what)
{
    for (int64_t r = 0; r < m->size; r++)
        if (r != m->rank && m->socket[r] < 0)
            return DSVI_FAIL(DSV_E_RANK, "rank %lld waited in vain for rank %lld to %s", (long long)m->rank,
                             (long long)r, what);
    return DSVI_FAIL(DSV_E_RANK, "rank %lld waited in vain for others to %s", (long long)m->rank, what);
}

/* Until the socket has something to read, or may be written to. */
static bool await(const Mesh *m, int file, short events)
{
    struct pollfd poller = {file, events, 0};
    int found;
    do
        found = poll(&poller, 1, (int)(1e3 * left(m)) + 1);
    while (found < 0 && errno == EINTR);
    return found > 0;
}

static DsvStatus transfer(const Mesh *m, int file, void *data, size_t bytes, bool sends)
{
    char *at = data;
    while (bytes > 0) {
        if (!await(m, file, sends ? POLLOUT : POLLIN))
            return late(m, "answer");
        ssize_t done = sends ? send(file, at, bytes, MSG_NOSIGNAL) : recv(file, at, bytes, 0);
        if (done == 0 || (done < 0 && errno != EINTR && errno != EAGAIN))
            return DSVI_FAIL(DSV_E_RANK, "rank %lld lost a connection while ranks were meeting: %s",
                             (long long)m->rank, done == 0 ? "it was closed" : strerror(errno));
        at += done > 0 ? done : 0;
        bytes -= done > 0 ? (size_t)done : 0;
    }
    return DSV_OK;
}

static void set_up(int file)
{
    int yes = 1;
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK);
    fcntl(file, F_SETFD, FD_CLOEXEC);
}

/* Listens at `port` (0: any) on all addresses of the machine. */
static DsvStatus listen_at(Mesh *m, int port)
{
    struct sockaddr_in6 own = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    socklen_t length = sizeof own;
    int yes = 1, no = 0;
    m->listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool six = m->listener >= 0;
    if (!six) { /* a kernel without the newer protocol */
        struct sockaddr_in *four = (struct sockaddr_in *)&own;
        memset(&own, 0, sizeof own);
        *four = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        length = sizeof *four;
        m->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
    setsockopt(m->listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (six)
        setsockopt(m->listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    if (bind(m->listener, (struct sockaddr *)&own, length) != 0 || listen(m->listener, (int)m->size) != 0 ||
        getsockname(m->listener, (struct sockaddr *)&own, &length) != 0)
        return DSVI_FAIL(DSV_E_IO, "rank %lld cannot listen at port %d: %s", (long long)m->rank, port,
                         strerror(errno));
    m->port = six ? own.sin6_port : ((struct sockaddr_in *)&own)->sin_port;
    return DSV_OK;
}

static DsvStatus check_hello(const Mesh *m, const Hello *hello)
{
    if (hello->size != m->size)
        return DSVI_FAIL(DSV_E_USAGE, "rank %lld was told of %lld ranks, rank %lld of %lld",
                         (long long)hello->rank, (long long)hello->size, (long long)m->rank,
                         (long long)m->size);
    if (hello->rank <= m->rank || hello->rank >= m->size || m->socket[hello->rank] >= 0)
        return DSVI_FAIL(DSV_E_USAGE, "two processes say that they are rank %lld", (long long)hello->rank);
    return DSV_OK;
}

static bool is_loopback(const Place *place)
{
    if (place->where.ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)&place->where;
        return ntohl(four->sin_addr.s_addr) >> 24 == 127;
    }
    const struct in6_addr *six = &((const struct sockaddr_in6 *)&place->where)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

static uint16_t port_of(const Place *place)
{
    return place->where.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)&place->where)->sin6_port
                                              : ((const struct sockaddr_in *)&place->where)->sin_port;
}

/* The port of `place` becomes that where the rank listens. */
static void set_port(Place *place, uint16_t port)
{
    if (place->where.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&place->where)->sin6_port = port;
    else
        ((struct sockaddr_in *)&place->where)->sin_port = port;
}

/* Whether the caller is a rank of dsv: anything may call a port. */
static bool says_hello(const Mesh *m, int file, Hello *hello)
{
    Mesh briefly = *m;
    briefly.until = dsvi_clock_seconds() + (left(m) < HELLO_S ? left(m) : HELLO_S);
    return transfer(&briefly, file, hello, sizeof *hello, false) == DSV_OK && hello->magic == MAGIC;
}

/* The next call of a higher rank. */
static DsvStatus take_call(Mesh *m)
{
    Hello hello = {0};
    Place from = {.length = 0};
    socklen_t length = sizeof from.where;
    int file = -1;
    do {
        if (file >= 0)
            close(file);
        if (!await(m, m->listener, POLLIN))
            return late(m, "call");
        file = accept(m->listener, (struct sockaddr *)&from.where, &length);
        if (file < 0)
            return DSVI_FAIL(DSV_E_IO, "rank %lld cannot take a call: %s", (long long)m->rank,
                             strerror(errno));
        set_up(file);
    } while (!says_hello(m, file, &hello));
    DsvStatus status = check_hello(m, &hello);
    if (status != DSV_OK) {
        close(file);
        return status;
    }
    from.length = length;
    set_port(&from, hello.port);
    m->socket[hello.rank] = file;
    m->place[hello.rank] = from;
    return DSV_OK;
}

/* Calls rank `to`, which may not listen yet. */
static DsvStatus call(Mesh *m, int64_t to, const Place *place)
{
    Hello hello = {.magic = MAGIC, .port = m->port, .rank = m->rank, .size = m->size};
    int error = 0;
    do {
        int file = socket(place->where.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const struct sockaddr *where = (const struct sockaddr *)&place->where;
        if (file >= 0 && connect(file, where, (socklen_t)place->length) == 0) {
            set_up(file);
            m->socket[to] = file;
            return transfer(m, file, &hello, sizeof hello, true);
        }
        error = errno;
        if (file >= 0)
            close(file);
        usleep(50000);
    } while (left(m) > 0);
    return DSVI_FAIL(DSV_E_RANK, "rank %lld cannot reach rank %lld: %s", (long long)m->rank, (long long)to,
                     strerror(error));
}

static DsvStatus find_first(const Mesh *m, const char *address, int port, Place *place)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int error = getaddrinfo(address, service, &hints, &found);
    if (error)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "rank %lld knows no machine %s: %s", (long long)m->rank, address,
                         gai_strerror(error));
    memcpy(&place->where, found->ai_addr, found->ai_addrlen);
    place->length = found->ai_addrlen;
    freeaddrinfo(found);
    return DSV_OK;
}

static DsvStatus meet_as_first(Mesh *m, int port)
{
    DSVI_TRY(listen_at(m, port));
    for (int64_t calls = 1; calls < m->size; calls++)
        DSVI_TRY(take_call(m));
    for (int64_t r = 1; r < m->size; r++)
        DSVI_TRY(transfer(m, m->socket[r], m->place, (size_t)m->size * sizeof *m->place, true));
    return DSV_OK;
}

static DsvStatus meet_as_other(Mesh *m, const char *address, int port)
{
    Place first = {.length = 0};
    DSVI_TRY(listen_at(m, 0));
    DSVI_TRY(find_first(m, address, port, &first));
    DSVI_TRY(call(m, 0, &first));
    DSVI_TRY(transfer(m, m->socket[0], m->place, (size_t)m->size * sizeof *m->place, false));
    for (int64_t r = 1; r < m->rank; r++) {
        Place place = m->place[r];
        if (is_loopback(&place)) { /* it shares rank 0's machine, and is found where that was */
            place = first;
            set_port(&place, port_of(&m->place[r]));
        }
        DSVI_TRY(call(m, r, &place));
    }
    for (int64_t calls = m->rank + 1; calls < m->size; calls++)
        DSVI_TRY(take_call(m));
    return DSV_OK;
}

DsvStatus dsvi_tcp_mesh(int64_t rank, int64_t size, const char *address, int port, double timeout_s,
                        int *socket)
{
    Mesh m = {.rank = rank, .size = size, .until = dsvi_clock_seconds() + timeout_s, .socket = socket,
              .listener = -1, .place = calloc((size_t)size, sizeof(Place))};
    for (int64_t r = 0; r < size; r++)
        socket[r] = -1;
    if (!m.place)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to meet %lld ranks", (long long)size);
    DsvStatus status = rank == 0 ? meet_as_first(&m, port) : meet_as_other(&m, address, port);
    if (m.listener >= 0)
        close(m.listener);
    free(m.place);
    for (int64_t r = 0; r < size && status != DSV_OK; r++)
        if (socket[r] >= 0) {
            close(socket[r]);
            socket[r] = -1;
        }
    return status;
}
