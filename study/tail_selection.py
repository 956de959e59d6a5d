#!/usr/bin/env python3
"""Which keys should lists name if a query tail stands in for the others? Needs torch and safetensors.

    study/tail_selection.py FILE [DENSITY]

FILE holds q, k and v (heads, tokens, head size) of a clip whose grid is a cube. Lists are for groups of 64
queries (cubes of 4 x 4 x 4 tokens); means of 16 queries score the keys, without projection. Prints for each
head and each score the relative error of attention's output with one tail query per group, and without a
tail. p: probability of a key; r: p minus its stand-in, the probability that the mean of 64 queries gives;
v - o: distance of the key's value from the query's output.
"""
import sys

import torch
from safetensors.torch import load_file

GROUP, PROXY = 64, 16


def means(x, count):
    return x.view(-1, count, x.shape[-1]).mean(1)


def lists(score, density, rule):
    count = int(density * score.shape[1])
    if rule == "topk":
        named = torch.zeros_like(score, dtype=torch.bool)
        return named.scatter_(1, score.topk(count, 1).indices, True)
    return score >= score.flatten().topk(count * score.shape[0]).values[-1]


def scores(q, k, v, scale):
    """Returns (groups, keys) scores by name."""
    of_group = lambda x: x.view(len(q) // GROUP, GROUP // PROXY, -1).sum(1)
    logits = means(q, PROXY) @ k.T * scale
    lse = logits.logsumexp(1, keepdim=True)
    p = (logits - lse).exp()
    stand_in = (means(q, GROUP) @ k.T * scale).repeat_interleave(GROUP // PROXY, 0)
    r = (p - (stand_in - lse).exp()).abs()
    distance = torch.cdist(p @ v, v)
    return {
        "sum of p": of_group(p),
        "sum of |r|": of_group(r),
        "sum of r^2": of_group(r**2),
        "sum of (p |v - o|)^2": of_group((p * distance) ** 2),
        "sum of (r |v - o|)^2": of_group((r * distance) ** 2),
    }


def study_head(head, q, k, v, density):
    scale = q.shape[1] ** -0.5
    logits = q @ k.T * scale
    exact = logits.softmax(1) @ v
    tail = (means(q, GROUP) @ k.T * scale).repeat_interleave(GROUP, 0)
    nothing = torch.full_like(tail, -1e9)
    for name, score in scores(q, k, v, scale).items():
        for rule in "threshold", "topk":
            named = lists(score, density, rule).repeat_interleave(GROUP, 0)
            errors = [((torch.where(named, logits, rest).softmax(1) @ v - exact).norm() / exact.norm()).item()
                      for rest in (tail, nothing)]
            print(f"head {head}  {name:22} {rule:9}  tail {errors[0]:.4f}  none {errors[1]:.4f}", flush=True)


def main():
    density = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05
    tensors = [load_file(sys.argv[1])[name].float() for name in ("q", "k", "v")]
    side = round(tensors[0].shape[1] ** (1 / 3))
    order = torch.arange(side**3).view(side // 4, 4, side // 4, 4, side // 4, 4)
    order = order.permute(0, 2, 4, 1, 3, 5).reshape(-1)
    for head in range(len(tensors[0])):
        study_head(head, *(x[head][order] for x in tensors), density)


if __name__ == "__main__":
    main()
