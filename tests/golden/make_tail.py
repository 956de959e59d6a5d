"""Attention over lists with a tail, with gradients, in double: dense rows of weights, PyTorch's gradients.

The weights of a query are exp(score) at the listed keys and, at each run of keys, the number of keys that the
list leaves out times exp(score of the mean query of the chunk with the mean key of the run)."""
import math

import torch

from golden_io import Random, describe, save

SEED = 21
BATCH, TOKENS, HEADS, HEAD_DIM, GROUP = 2, 27, 2, 6, 8
TAILS = [(4, 1), (8, 1), (1, 1), (1, 5), (4, 3), (8, 64)]  # (chunk, run)

ABOUT = (
    f"q, k, v and dout (B, S, N, D) F64; scale 1/sqrt(D); listed (B, N, groups, S) U8 is 1 where the "
    f"group of {GROUP} queries lists the key, one list is empty and one is full. out.X (B, S, N, D), lse.X "
    f"(B, N, S), dq.X, dk.X and dv.X F64 are for chunks of X = c queries, or for chunks of c queries and "
    f"runs of r keys, X = cxr. lse is the natural logarithm of the whole normaliser."
)


def means(rows, size):
    """(S, D) to (members, D): means of `size` consecutive rows, fewer at the end."""
    return torch.stack([part.mean(0) for part in rows.split(size)])


def attend(q, k, v, listed, chunk, run):
    """One head: q, k, v (S, D), listed (S, S) of 0 and 1. Returns out and lse."""
    scale = 1 / math.sqrt(q.shape[1])
    runs = torch.arange(len(k)) // run
    left_out = torch.zeros(len(q), int(runs[-1]) + 1, dtype=q.dtype).index_add(1, runs, 1 - listed)
    proxies = means(q, chunk)[torch.arange(len(q)) // chunk]
    weights = torch.cat([listed * torch.exp(scale * q @ k.T),
                         left_out * torch.exp(scale * proxies @ means(k, run).T)], dim=1)
    total = weights.sum(1)
    return weights @ torch.cat([v, means(v, run)]) / total[:, None], total.log()


def compute(tensors, listed, chunk, run):
    q, k, v = (tensors[name].clone().requires_grad_() for name in "qkv")
    heads = [[attend(q[b, :, h], k[b, :, h], v[b, :, h], listed[b, h], chunk, run) for h in range(HEADS)]
             for b in range(BATCH)]
    out = torch.stack([torch.stack([head[0] for head in row], dim=1) for row in heads])
    lse = torch.stack([torch.stack([head[1] for head in row]) for row in heads])
    out.backward(tensors["dout"])
    return {"out": out, "lse": lse, "dq": q.grad, "dk": k.grad, "dv": v.grad}


def write(folder):
    random = Random(SEED)
    tensors = {name: random.normal(BATCH, TOKENS, HEADS, HEAD_DIM).double()
               for name in ("q", "k", "v", "dout")}
    listed = torch.zeros(BATCH, HEADS, -(-TOKENS // GROUP), TOKENS, dtype=torch.uint8)
    for row in listed.view(-1, TOKENS):
        row[random.choose(random.integers(1, TOKENS - 1), TOKENS)] = 1
    listed[0, 0, 1] = 0
    listed[1, 1, 0] = 1
    of_query = listed.repeat_interleave(GROUP, dim=2)[:, :, :TOKENS].double()
    results = {}
    for chunk, run in TAILS:
        name = f"{chunk}" if run == 1 else f"{chunk}x{run}"
        for tensor, values in compute(tensors, of_query, chunk, run).items():
            results[f"{tensor}.{name}"] = values
    save(folder / "tail.safetensors", {**tensors, "listed": listed, **results})
    describe(folder, SEED, ABOUT)
