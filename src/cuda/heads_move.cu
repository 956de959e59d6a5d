/* Rows of some heads from one tensor to another, in chunks of up to 16 bytes: a thread takes CHUNKS of them,
 * a block apart, loads them all and then stores. A sample's chunks are counted through its tokens, the heads
 * that move, and a row; neighbouring threads have neighbouring chunks. blockIdx.y: the sample. */
#include "cuda/cuda.h"
#include "cuda/kernel.cuh"

namespace {

using namespace dsvi;

constexpr int THREADS = 256, CHUNKS = 4;
constexpr int64_t HEADS_MOST = 128; /* of a launch: their numbers are arguments of the kernel */

struct HeadPair {
    int32_t from, to;
};

/* Strides in chunks. */
struct Move {
    DsvHeads from, to;
    int64_t batch, tokens;
    int heads, chunks; /* chunks: of a row */
    HeadPair head[HEADS_MOST];
};

template <typename C> __global__ void __launch_bounds__(THREADS) move_heads(const Move move)
{
    unsigned chunks = (unsigned)move.chunks, of_token = (unsigned)move.heads * chunks;
    int64_t start = (int64_t)blockIdx.x * (THREADS * CHUNKS), first = start / of_token;
    unsigned behind = (unsigned)(start - first * of_token) + threadIdx.x;
    for (int64_t b = blockIdx.y; b < move.batch; b += gridDim.y) {
        const C *from = (const C *)move.from.data + b * move.from.batch_stride;
        C *to = (C *)move.to.data + b * move.to.batch_stride, chunk[CHUNKS];
        int64_t target[CHUNKS];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            unsigned at = behind + (unsigned)(i * THREADS), rest = at % of_token;
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

/* Whether rows begin at multiples of `bytes`; strides are in elements of `size` bytes. */
bool begins_at(const DsvHeads *rows, size_t size, size_t bytes)
{
    return (uintptr_t)rows->data % bytes == 0 && (size_t)rows->batch_stride * size % bytes == 0 &&
           (size_t)rows->token_stride * size % bytes == 0 && (size_t)rows->head_stride * size % bytes == 0;
}

/* The largest that rows are made of. */
size_t chunk_bytes(const DsvHeadsMoveArgs *args)
{
    size_t size = dsvi_dtype_size(args->dtype), bytes = 16;
    while (bytes > size && ((size_t)args->head_dim * size % bytes != 0 ||
                            !begins_at(&args->from, size, bytes) || !begins_at(&args->to, size, bytes)))
        bytes /= 2;
    return bytes;
}

DsvHeads in_chunks(const DsvHeads *rows, int64_t elements)
{
    DsvHeads chunks = *rows;
    chunks.batch_stride /= elements;
    chunks.token_stride /= elements;
    chunks.head_stride /= elements;
    return chunks;
}

template <typename C> DsvStatus launch(DsvStream *stream, const Move *move)
{
    int64_t all = move->tokens * move->heads * move->chunks;
    dim3 grid((unsigned)ceil_div(all, THREADS * CHUNKS), blocks_in_turn(move->batch));
    move_heads<C><<<grid, THREADS, 0, stream->handle>>>(*move);
    DSVI_CUDA_LAUNCHED("heads_move");
    return DSV_OK;
}

DsvStatus launch_chunks(DsvStream *stream, const Move *move, size_t bytes)
{
    switch (bytes) {
    case 16: return launch<uint4>(stream, move);
    case 8: return launch<uint2>(stream, move);
    case 4: return launch<uint32_t>(stream, move);
    case 2: return launch<uint16_t>(stream, move);
    default: return launch<uint8_t>(stream, move);
    }
}

DsvStatus heads_move(DsvStream *stream, const DsvHeadsMoveArgs *args)
{
    size_t bytes = chunk_bytes(args);
    int64_t elements = (int64_t)(bytes / dsvi_dtype_size(args->dtype));
    Move move = {in_chunks(&args->from, elements), in_chunks(&args->to, elements), args->batch, args->tokens,
                 0, (int)(args->head_dim / elements), {}};
    if (args->batch * args->tokens * args->head_dim == 0)
        return DSV_OK;
    for (int64_t first = 0; first < args->heads; first += HEADS_MOST) {
        int64_t heads = args->heads - first < HEADS_MOST ? args->heads - first : HEADS_MOST;
        move.heads = (int)heads;
        for (int64_t i = 0; i < heads; i++)
            move.head[i] = {(int32_t)dsvi_head_of(args->from_head, first + i),
                            (int32_t)dsvi_head_of(args->to_head, first + i)};
        DSVI_TRY(launch_chunks(stream, &move, bytes));
    }
    return DSV_OK;
}

} // namespace

void dsvi_cuda_fill_heads_move(DsvOps *ops)
{
    DSVI_OPS_SET(ops, heads_move, heads_move, "cuda");
}
