/* heads_move copies the rows of some attention heads from one tensor to another, in chunks of up to 16
 * bytes. A thread copies CHUNKS chunks that are THREADS chunks apart; it loads all of them before it stores.
 * The chunks of a sample are numbered by token, then moved head, then position in the row, and neighbouring
 * threads have neighbouring chunks. */
#include "cuda/common/cuda.h"
#include "cuda/common/kernel.cuh"

namespace {

using namespace dsvi;

constexpr int THREADS = 256, CHUNKS = 4;
/* Largest number of heads that one launch copies. The numbers of the heads are passed to the kernel as
 * arguments. */
constexpr int64_t HEADS_MAX = 128;

struct HeadPair {
    int32_t from, to;
};

/* Arguments of move_heads_kernel. The strides of `from` and `to` are in chunks of up to 16 bytes. */
struct Move {
    DsviHeads from, to;
    int64_t batch, tokens;
    int heads, chunks; /* number of heads that this launch copies; number of chunks in a row of one head */
    HeadPair head[HEADS_MAX];
};

/* Copies rows of attention heads. Grid: x, blocks of THREADS * CHUNKS chunks (up to 16 bytes) of a sample; y,
 * samples of the batch. */

template <typename C> __global__ void __launch_bounds__(THREADS) move_heads_kernel(const Move move)
{
    unsigned chunks = (unsigned)move.chunks, of_token = (unsigned)move.heads * chunks;
    int64_t start = (int64_t)blockIdx.x * (THREADS * CHUNKS), first = start / of_token;
    unsigned offset = (unsigned)(start - first * of_token) + threadIdx.x;
    for (int64_t b = blockIdx.y; b < move.batch; b += gridDim.y) {
        const C *from = (const C *)move.from.data + b * move.from.batch_stride;
        C *to = (C *)move.to.data + b * move.to.batch_stride, chunk[CHUNKS];
        int64_t target[CHUNKS];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            unsigned at = offset + (unsigned)(i * THREADS), rest = at % of_token;
            int64_t s = first + at / of_token;
            HeadPair head = move.head[rest / chunks];
            target[i] = -1;
            if (s >= move.tokens)
                continue;
            target[i] = s * move.to.token_stride + head.to * move.to.head_stride + rest % chunks;
            chunk[i] = from[s * move.from.token_stride + head.from * move.from.head_stride + rest % chunks];
        }
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            if (target[i] >= 0)
                to[target[i]] = chunk[i];
    }
}

/* Returns whether all rows begin at multiples of `bytes` bytes; the strides of `rows` are in elements of
 * `size` bytes. */
bool heads_aligned(const DsviHeads *rows, size_t size, size_t bytes)
{
    return (uintptr_t)rows->data % bytes == 0 && (size_t)rows->batch_stride * size % bytes == 0 &&
           (size_t)rows->token_stride * size % bytes == 0 && (size_t)rows->head_stride * size % bytes == 0;
}

/* Returns the largest access, in bytes, that divides the length of a row and to which all rows are
 * aligned. */
size_t chunk_bytes(const DsviHeadsMoveArgs *args)
{
    size_t size = dsvi_dtype_size(args->dtype), bytes = 16;
    while (bytes > size &&
           ((size_t)args->head_dim * size % bytes != 0 || !heads_aligned(&args->from, size, bytes) ||
            !heads_aligned(&args->to, size, bytes)))
        bytes /= 2;
    return bytes;
}

/* Returns `rows` with its strides converted from elements to chunks of `elements` elements. */
DsviHeads in_chunks(const DsviHeads *rows, int64_t elements)
{
    DsviHeads chunks = *rows;
    chunks.batch_stride /= elements;
    chunks.token_stride /= elements;
    chunks.head_stride /= elements;
    return chunks;
}

template <typename C> DsvStatus launch_move_heads(DsviStream *stream, const Move *move)
{
    int64_t all = move->tokens * move->heads * move->chunks;
    dim3 grid((unsigned)ceil_div(all, THREADS * CHUNKS), blocks_in_turn(move->batch));
    DSVI_CUDA_LAUNCH(stream, "heads_move", move_heads_kernel<C>, grid, THREADS, 0, *move);
    return DSV_OK;
}

DsvStatus launch_by_chunk_size(DsviStream *stream, const Move *move, size_t bytes)
{
    switch (bytes) {
    case 16: return launch_move_heads<uint4>(stream, move);
    case 8: return launch_move_heads<uint2>(stream, move);
    case 4: return launch_move_heads<uint32_t>(stream, move);
    case 2: return launch_move_heads<uint16_t>(stream, move);
    default: return launch_move_heads<uint8_t>(stream, move);
    }
}

DsvStatus cuda_heads_move(DsviStream *stream, const DsviHeadsMoveArgs *args)
{
    size_t bytes = chunk_bytes(args);
    int64_t elements = (int64_t)(bytes / dsvi_dtype_size(args->dtype));
    Move move = {in_chunks(&args->from, elements),
                 in_chunks(&args->to, elements),
                 args->batch,
                 args->tokens,
                 0,
                 (int)(args->head_dim / elements),
                 {}};
    if (args->batch * args->tokens * args->head_dim == 0)
        return DSV_OK;
    for (int64_t first = 0; first < args->heads; first += HEADS_MAX) {
        int64_t heads = args->heads - first < HEADS_MAX ? args->heads - first : HEADS_MAX;
        move.heads = (int)heads;
        for (int64_t i = 0; i < heads; i++)
            move.head[i] = {(int32_t)dsvi_head_index(args->from_head, first + i),
                            (int32_t)dsvi_head_index(args->to_head, first + i)};
        DSVI_TRY(launch_by_chunk_size(stream, &move, bytes));
    }
    return DSV_OK;
}

} // namespace

void dsvi_cuda_fill_heads_move(DsviOps *ops)
{
    DSVI_OPS_SET(ops, heads_move, cuda_heads_move, "cuda");
}
