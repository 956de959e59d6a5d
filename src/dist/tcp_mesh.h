/* Connections between processes that were told where rank 0 is to be found, and nothing else. */
#ifndef DSVI_TCP_MESH_H
#define DSVI_TCP_MESH_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Connects every rank with every other: rank 0 listens at address:port, the others call it, tell where they
 * listen themselves, and are told of each other. socket[r] (size) becomes the connection with rank r, which
 * does not block; -1 for the own one. Gives up after timeout_s seconds. */
DsvStatus dsvi_tcp_mesh(int64_t rank, int64_t size, const char *address, int port, double timeout_s,
                        int *socket);

#ifdef __cplusplus
}
#endif
#endif
