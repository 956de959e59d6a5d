/* The memory of one encode or decode call: two passes (vae_pass.h), and the tensor at the resolution of the
 * latents that one pass leaves for the other. */
#ifndef DSVI_VAE_LAYOUT_H
#define DSVI_VAE_LAYOUT_H

#include "model/vae/vae_pass.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviVaeLayout {
    DsviBackend *backend;
    bool decode;
    int64_t frames, height, width; /* of the video */
    DsviVaePass strips, whole;
    void *between; /* (T', H', W', C) act */
    size_t between_bytes;
    size_t bytes; /* of device memory in all, without weights */
    void *memory;
} DsviVaeLayout;

/* Chooses the pieces so that the whole takes at most `limit` bytes of device memory (0: no limit), and no
 * more than helps. Allocates nothing. DSV_E_NO_MEMORY if it cannot; *least is then what suffices. The caller
 * frees *out, also after failure. */
DsvStatus dsvi_vae_layout_make(DsviBackend *backend, DsviDtype act, const DsviVaeConfig *config,
                               const DsviVaeHalf *half, bool decode, int64_t frames, int64_t height,
                               int64_t width, uint64_t limit, DsviVaeLayout *out, uint64_t *least);
/* Allocates the memory. */
DsvStatus dsvi_vae_layout_allocate(DsviVaeLayout *layout);
void dsvi_vae_layout_free(DsviVaeLayout *layout);

#ifdef __cplusplus
}
#endif
#endif
