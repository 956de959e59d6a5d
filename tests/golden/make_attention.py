"""Attention with gradients, in double: dense, over lists of single keys, over maps of blocks.

Each query attends to the keys that its list names. Scores and softmax are PyTorch's; a list is applied by
taking its keys and values before the softmax, so that no mask is involved."""
import math

import torch

from golden_io import Random, describe, save

SEED = 11
GROUP = 8   # queries that share a list of single keys
BLOCK = 64  # queries and keys of a block

ABOUT = (
    "Layout (batch, heads, tokens, head_dim); scale 1/sqrt(head_dim); lse is the natural logarithm of the "
    "sum of exponentials of the scaled scores. q, k, v and do are F32, and the computation in double began "
    "from exactly those; out, lse, dq, dk and dv are F64. offsets has batch * heads * groups + 1 entries: "
    "list n = (b * heads + h) * groups + g is indices[offsets[n] .. offsets[n+1]), in any order, and "
    "belongs to the 8 queries from 8 g on. An empty list gives out 0, lse -inf and no gradient. "
    "block_map[b, h, i, j] is 1 where query block i attends to key block j, 64 tokens each."
)

# kind, batch, heads, queries, keys, head_dim, how far q and k spread (1: scores of variance 1)
CASES = [
    ("dense", 1, 2, 13, 21, 34, 1.0),  # a head_dim that fills no vector
    ("dense", 2, 2, 5, 9, 128, 1.0),
    ("dense", 1, 1, 67, 131, 32, 2.0),  # beyond 64 queries and 128 keys, with some sharp rows
    ("list8", 1, 1, 20, 41, 128, 1.0),
    ("list8_empty", 1, 2, 19, 27, 32, 1.0),
    ("block64", 1, 2, 66, 133, 16, 1.0),
]


def random_lists(random, lists, keys, some_empty):
    """Of lengths from 1 to all keys; every third list empty with `some_empty`."""
    return [[] if some_empty and n % 3 == 1 else random.choose(random.integers(1, keys), keys)
            for n in range(lists)]


def random_map(random, *shape):
    """Half of the blocks; each row has one at least."""
    chosen = torch.zeros(shape, dtype=torch.uint8)
    for row in chosen.view(-1, shape[-1]):
        for j in [random.integers(0, shape[-1] - 1), *range(shape[-1])]:
            row[j] |= 1 if row.sum() == 0 else random.coin(0.35)
    return chosen


def keys_of_blocks(row, keys):
    return [key for key in range(keys) if row[key // BLOCK]]


def attend(q, k, v, group, keys_of_group):
    """q, k, v: (tokens, head_dim) of one head; keys_of_group[g]: the keys of queries from g * group on."""
    out, lse = [], []
    for g, keys in enumerate(keys_of_group):
        rows = q[g * group:(g + 1) * group]
        if keys:
            scores = rows @ k[keys].T / math.sqrt(q.shape[1])
            out.append(torch.softmax(scores, dim=1) @ v[keys])
            lse.append(torch.logsumexp(scores, dim=1))
        else:
            out.append(torch.zeros_like(rows))
            lse.append(torch.full((len(rows),), -math.inf, dtype=rows.dtype))
    return torch.cat(out), torch.cat(lse)


def compute(tensors, group, keys_of_group):
    """out, lse and gradients in double. keys_of_group: (heads of the batch) x groups lists of keys."""
    q, k, v = (tensors[name].double().requires_grad_() for name in "qkv")
    heads = [attend(q[b, h], k[b, h], v[b, h], group, keys_of_group[b * q.shape[1] + h])
             for b in range(q.shape[0]) for h in range(q.shape[1])]
    out = torch.stack([head[0] for head in heads]).view(q.shape)
    lse = torch.stack([head[1] for head in heads]).view(q.shape[:3])
    out.backward(tensors["do"].double())
    return {"out": out, "lse": lse, "dq": q.grad, "dk": k.grad, "dv": v.grad}


def make_case(random, kind, batch, heads, queries, keys, head_dim, spread):
    tensors = {name: random.normal(batch, heads, tokens, head_dim, scale=scale)
               for name, tokens, scale in (("q", queries, spread), ("k", keys, spread), ("v", keys, 1),
                                           ("do", queries, 1))}
    n = batch * heads
    if kind == "dense":
        group, lists = queries, [[list(range(keys))]] * n
    elif kind == "block64":
        group = BLOCK
        chosen = random_map(random, batch, heads, -(-queries // BLOCK), -(-keys // BLOCK))
        lists = [[keys_of_blocks(row, keys) for row in head] for head in chosen.flatten(0, 1)]
        tensors["block_map"] = chosen
    else:
        group, groups = GROUP, -(-queries // GROUP)
        flat = random_lists(random, n * groups, keys, kind == "list8_empty")
        lists = [flat[i * groups:(i + 1) * groups] for i in range(n)]
        offsets = torch.tensor([0] + [len(keys) for keys in flat]).cumsum(0)
        tensors["offsets"] = offsets.to(torch.int32)
        tensors["indices"] = torch.tensor([key for keys in flat for key in keys], dtype=torch.int32)
    return {**tensors, **compute(tensors, group, lists)}


def write(folder):
    random, cases = Random(SEED), {}
    for kind, batch, heads, queries, keys, head_dim, spread in CASES:
        name = f"{kind}_b{batch}h{heads}_{queries}x{keys}_d{head_dim}"
        save(folder / f"{name}.safetensors",
             make_case(random, kind, batch, heads, queries, keys, head_dim, spread))
        cases[name] = {"kind": kind, "batch": batch, "heads": heads, "q": queries, "kv": keys,
                       "head_dim": head_dim}
    describe(folder, SEED, ABOUT, cases=cases)
