/* A pass of consecutive stages over a video, in pieces: strips of rows (outer loop, top to bottom) times
 * chunks of frames (inner loop, first to last).
 *
 * A boundary lies before the first stage, between two stages, and after the last. At every boundary each
 * strip brings new rows [lo, hi) of every frame, the same for all chunks. A convolution with three rows
 * cannot compute the row next to the border of the strip, so that stages lag behind by a row and catch up at
 * the bottom. The encoder's strips have equal heights at its input, and the decoder's at its output: so the
 * layers with the largest rows, which take the most memory, have the fewest additional rows.
 *
 *     block at a boundary          cached rows of the strip above (2 at most)
 *     (frames, rows, W, C) act     new rows [lo, hi)
 *
 * An edge holds what a convolution still needs of its input when a piece is done: the last two rows of every
 * frame, for the next strip, and the last two frames with their cached rows, for the next chunk. */
#ifndef DSVI_VAE_PASS_H
#define DSVI_VAE_PASS_H

#include "base/arena.h"
#include "model/vae/vae_parts.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_VAE_ROWS_KEPT = 2, DSVI_VAE_FRAMES_KEPT = 2 };

/* Where the data of a pass come from or go to. */
typedef struct DsviVaeEnd {
    float *host;  /* (C, T, H, W) F32, or NULL. With patches of p x p pixels (C / p^2, T, p H, p W): channel
                   * c p^2 + j p + i of the boundary is colour c of a patch's row i and column j */
    void *tensor; /* (T, H, W, C) act, device; if host is NULL */
    double limit; /* limits the values to [-limit, limit]; 0: no limit */
} DsviVaeEnd;

/* Sizes at a boundary. */
typedef struct DsviVaeBound {
    int64_t channels, height, width;
    int64_t factor; /* frames for each latent frame after the first */
} DsviVaeBound;

/* A part of an array (frames, rows, width, channels). `data` points to frame 0 of row `lo`; frames and rows
 * before may exist. */
typedef struct DsviVaeBlock {
    void *data;         /* NULL while planning */
    int64_t frame, row; /* strides in elements */
    int64_t frames, lo, hi, width, channels;
} DsviVaeBlock;

typedef struct DsviVaeEdge {
    void *rows;     /* (frames of the video, 2, W, C) act; NULL with one strip */
    void *frames;   /* (keep, rows of a piece, W, C) act; NULL with one chunk */
    int64_t height; /* rows of a piece, cached rows included */
    int64_t keep;   /* frames that the next chunk needs */
    int64_t held;   /* frames that are in `frames` */
} DsviVaeEdge;

/* The input of a level that a stage DSVI_VAE_SAVE keeps. */
typedef struct DsviVaeSaved {
    int64_t keep; /* most rows of strips above that the shortcut still reads */
    void *piece;  /* (frames of a chunk, keep + rows of a strip, W, C) act */
    void *rows;   /* (frames of the video, keep, W, C) act; NULL if keep is 0 */
} DsviVaeSaved;

/* What a stage keeps between pieces, and what it uses during one. */
typedef struct DsviVaeStep {
    int64_t mid_lo, mid_hi;       /* rows between the two convolutions of a residual block */
    int64_t mid_rows;             /* most of them in any strip */
    DsviVaeEdge input, middle[2]; /* of the stage's input; of what conv[0] and conv[1] read after the norm */
    DsviVaeSaved saved;
    void *scratch[3];
} DsviVaeStep;

/* Latent frames [from, to), and where their frames lie at a boundary. */
typedef struct DsviVaeChunk {
    int64_t from, to;
} DsviVaeChunk;

typedef struct DsviVaePass {
    DsviBackend *backend;
    DsviDtype act;
    const DsviVaeStage *stages; /* (count) */
    int64_t count;
    bool from_output;        /* strips have equal heights at the output, not at the input */
    bool from_host, to_host; /* source and target are host memory */
    int64_t patch;           /* pixels of host memory per row and column of a boundary; 1: no patches */
    int64_t latent_frames;   /* of the video */
    int64_t strip_rows;      /* rows of a strip at the end where strips are equal */
    int64_t chunk_frames;    /* latent frames of a chunk */
    double products;         /* multiplications that convolutions need, for one latent frame of all strips */
    double tile_products; /* multiplications that their kernels do for it, because they compute whole tiles */
    DsviVaeEnd source, target;

    DsviVaeBound *bounds;               /* (count + 1) */
    DsviVaeStep *steps;                 /* (count) */
    DsviVaeBlock *blocks;               /* (count + 1) of the current strip; `frames` of the current chunk */
    int64_t *most_rows;                 /* (count + 1) in any strip */
    int64_t *slack_rows, *slack_frames; /* (count + 1) before the new rows and frames of a block */
    void *buffers[2];
    size_t buffer_bytes[2];
    void *staging;       /* F32, device */
    float *host_staging; /* pinned; allocated by dsvi_vae_pass_open */
    size_t staging_bytes;
    void *workspace;
    size_t workspace_bytes;
    bool measuring; /* conv calls raise workspace_bytes, and nothing is computed */
    int64_t piece;  /* number of the piece that runs */
    double worked; /* seconds that the device took for the pieces of the last run, the time between two pieces
                    * and downloads left out */
} DsviVaePass;

/* Prepares a pass of `count` stages whose input has the sizes `input`: of the decoder or the encoder, the
 * pass over whole frames or the one in strips. The pieces are not yet chosen. The caller frees *out, also
 * after failure. */
DsvStatus dsvi_vae_pass_make(DsviBackend *backend, DsviDtype act, const DsviVaeStage *stages, int64_t count,
                             DsviVaeBound input, int64_t latent_frames, bool decode, bool whole,
                             DsviVaePass *out);
void dsvi_vae_pass_free(DsviVaePass *pass);
/* Chooses the pieces; 1 <= strip_rows <= rows at the end where strips are equal, 1 <= chunk_frames <=
 * latent_frames. The workspace of convolutions becomes 0. */
void dsvi_vae_pass_divide(DsviVaePass *pass, int64_t strip_rows, int64_t chunk_frames);
/* Returns the share of the products of convolutions that kernels compute in vain because the rows of a strip
 * do not fill their tiles, relative to all products that count. Kernels for Hopper have tiles of 16 rows. */
double dsvi_vae_tile_waste(const DsviVaePass *pass);
/* Takes the pass's device memory from an arena. */
void dsvi_vae_pass_carve(DsviVaePass *pass, DsviArena *arena);
/* Computes the workspace that the convolutions of all pieces need; dsvi_vae_pass_carve takes it then. */
DsvStatus dsvi_vae_pass_measure(DsviVaePass *pass);
/* Runs all pieces. Returns when `target` is complete. */
DsvStatus dsvi_vae_pass_run(DsviVaePass *pass, DsviVaeEnd source, DsviVaeEnd target);

/* The rest is for vae_pass.c, vae_stage.c and vae_shortcut.c. */

/* Rows of output that the first `in` rows of input suffice for, and rows of input that the first `out` rows
 * of output need. *mid: the same between the convolutions of a residual block. */
int64_t dsvi_vae_rows_out(const DsviVaeStage *stage, const DsviVaeBound bounds[2], int64_t in, int64_t *mid);
int64_t dsvi_vae_rows_in(const DsviVaeStage *stage, const DsviVaeBound bounds[2], int64_t out, int64_t *mid);
/* Returns whether the stage's output replaces its input in memory. */
bool dsvi_vae_in_place(const DsviVaeStage *stage);
int64_t dsvi_vae_strips(const DsviVaePass *pass);
int64_t dsvi_vae_chunks(const DsviVaePass *pass);
/* Frames of latent frames [0, latent) at boundary b. */
int64_t dsvi_vae_frames_before(const DsviVaePass *pass, int64_t b, int64_t latent);
/* Most frames at boundary b in any chunk. */
int64_t dsvi_vae_most_frames(const DsviVaePass *pass, int64_t b);

/* Adds the products of stage i in the current strip to `products` and `tile_products`. */
void dsvi_vae_stage_count_products(DsviVaePass *pass, int64_t i);
/* Takes edges and scratch memory of a stage from an arena: what lives between pieces, and what does not. */
void dsvi_vae_stage_carve_edges(DsviVaePass *pass, int64_t i, DsviArena *arena);
void dsvi_vae_stage_carve_scratch(DsviVaePass *pass, int64_t i, DsviArena *arena);
/* Computes boundary i + 1 from boundary i for one piece. */
DsvStatus dsvi_vae_stage_run(DsviVaePass *pass, int64_t i, DsviVaeChunk chunk);
/* Attention over the whole frames of a block, in place. `scratch`: as dsvi_vae_attention_carve took it. */
void dsvi_vae_attention_carve(const DsviVaePass *pass, int64_t i, DsviArena *arena);
DsvStatus dsvi_vae_attention_run(DsviVaePass *pass, int64_t i);
/* Sets saved.keep of all stages to what the current strip needs, if this is more. */
void dsvi_vae_shortcuts_raise(DsviVaePass *pass);
void dsvi_vae_saved_carve(DsviVaePass *pass, int64_t i, DsviArena *arena);
/* Keeps the input of stage i, a DSVI_VAE_SAVE. `first`: number of the block's first frame. */
DsvStatus dsvi_vae_save(DsviVaePass *pass, int64_t i, int64_t first);
/* Adds the mean of the saved input: stage i, a DSVI_VAE_MEAN. */
DsvStatus dsvi_vae_add_mean(DsviVaePass *pass, int64_t i);
/* Writes the repeated elements of the saved input to the output of stage i, an enlarging DSVI_VAE_CONV. */
DsvStatus dsvi_vae_repeat_saved(DsviVaePass *pass, int64_t i, DsviVaeChunk chunk);
/* Copies the frames and rows of x to y, enlarged `upscale` times. */
DsvStatus dsvi_vae_move(DsviVaePass *pass, const DsviVaeBlock *x, int64_t upscale, const DsviVaeBlock *y);
/* y = conv(x) (+ y if `add`) for rows [y->lo, y->hi). x has `above` rows before row lo and `before` frames
 * before frame 0. */
DsvStatus dsvi_vae_conv(DsviVaePass *pass, const DsviVaeConv *conv, const DsviVaeBlock *x, int64_t above,
                        int64_t before, const DsviVaeBlock *y, bool add);
/* y = norm of x, with SiLU on request, for the rows and frames of x; y has the place of row x->lo at data. */
DsvStatus dsvi_vae_norm(DsviVaePass *pass, const void *gamma, bool silu, const DsviVaeBlock *x,
                        const DsviVaeBlock *y);
/* The block of the same memory that begins `frames` frames and `rows` rows later and ends at the same
 * frame and row. */
DsviVaeBlock dsvi_vae_block_from(const DsviVaePass *pass, const DsviVaeBlock *block, int64_t frames,
                                 int64_t rows);

#ifdef __cplusplus
}
#endif
#endif
