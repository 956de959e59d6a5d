#!/usr/bin/env python3
"""Times PyTorch's scaled_dot_product_attention, forward and backward, and dsv's attention.

    torch_attention.py --tokens 8192 --heads 4 --head-dim 64 --dtype bf16 [--dsv PROGRAM] [threads=2]
    torch_attention.py --device cuda --tokens 32768 --heads 16 --head-dim 128 --flex 128 --dsv PROGRAM

Flags are those of `dsv bench attention`; --density, --grain and the like, and key=value settings, go to
dsv alone (threads=N to both). PyTorch is given its fastest backend and memory layout, found before
measuring: heads outermost, (B, N, S, D), or tokens outermost, (B, S, N, D), as a transformer's projections
leave them and as dsv takes them. --flex N adds FlexAttention over blocks of N x N (torch_blocks.py), at the
density of dsv's lists, or with --heads-from at the mass that they hold. All are measured in turns, so that a
machine that slows down slows all, each time once after once to warm up. Numbers are medians over the turns;
on a busy machine the least of the turns says more."""
import argparse
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from side_by_side import (add_record_flags, clock, medians, print_table, record, run_dsv, setting,
                          use_threads, write_json)

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
BACKENDS = {
    "cpu": {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH},
    "cuda": {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
             "efficient": SDPBackend.EFFICIENT_ATTENTION},
}
LAYOUTS = ("BNSD", "BSND")
MATH_SCORES = 2 << 30  # bytes of one score matrix above which the math backend is not worth trying


def make_tensors(args, layout):
    """q, k, v and the gradient of the output, as (B, N, S, D) views."""
    sizes = (1, args.heads, args.tokens, args.head_dim)
    if layout == "BSND":
        sizes = (1, args.tokens, args.heads, args.head_dim)
    tensors = [torch.randn(sizes, device=args.device).to(DTYPES[args.dtype]) for _ in range(4)]
    if layout == "BSND":
        tensors = [tensor.transpose(1, 2) for tensor in tensors]
    for tensor in tensors[:3]:
        tensor.requires_grad_()
    return tensors


def measure_once(args, backend, tensors):
    q, k, v, dout = tensors
    with sdpa_kernel(BACKENDS[args.device][backend]):
        start = clock(args.device)
        out = F.scaled_dot_product_attention(q, k, v)
        middle = clock(args.device)
        torch.autograd.grad(out, (q, k, v), dout)
        end = clock(args.device)
    return {"torch_fwd_ms": 1e3 * (middle - start), "torch_bwd_ms": 1e3 * (end - middle)}


def measure(args, backend, tensors):
    measure_once(args, backend, tensors)
    return measure_once(args, backend, tensors)


def choices(args):
    for backend in BACKENDS[args.device]:
        if backend != "math":
            yield from ((backend, layout) for layout in LAYOUTS)
        elif 4 * args.heads * args.tokens ** 2 <= MATH_SCORES:
            yield backend, LAYOUTS[0]


def find_fastest(args):
    """Measures every choice once. Returns the fastest and all figures."""
    figures = {}
    for backend, layout in choices(args):
        try:
            figures[backend, layout] = measure(args, backend, make_tensors(args, layout))
        except RuntimeError as error:  # a backend that refuses the dtype or shape
            print(f"{backend} {layout}: {str(error).splitlines()[0]}")
    return min(figures, key=lambda choice: sum(figures[choice].values())), figures


def make_blocks(args, figures):
    """Measures FlexAttention at the density or mass that dsv has just measured."""
    from torch_blocks import Blocks, choose_at_random, choose_by_mass, exact_attention, heads_of_file
    if args.heads_from:
        tensors = heads_of_file(args.heads_from, args.heads, args.tokens, args.flex)
        with torch.no_grad():
            mass = exact_attention(*(tensor[0] for tensor in tensors[:3]), args.flex)[1]
        chosen = choose_by_mass(mass, figures["captured_mass"])
    else:
        tensors = make_tensors(args, "BNSD")
        chosen = choose_at_random(args.heads, args.tokens // args.flex, figures["density"], args.device)
    return Blocks(tensors, chosen, args.flex)


def dsv_words(args, rest):
    words = ["--device", args.device, "--tokens", args.tokens, "--heads", args.heads, "--head-dim",
             args.head_dim, "--dtype", args.dtype, "--repeats", 1]
    return [*words, *rest, f"threads={args.threads}"]


def take_shape_of(args, path):
    from safetensors import safe_open
    with safe_open(path, "pt") as file:
        heads, tokens, args.head_dim = file.get_slice("q").get_shape()
    args.heads, args.tokens = args.heads or heads, args.tokens or tokens


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=BACKENDS, default="cpu")
    parser.add_argument("--tokens", type=int, help="default: 8192, or as in FILE")
    parser.add_argument("--heads", type=int, help="default: 4, or as in FILE")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--repeats", type=int, default=5, help="number of turns, whose median is used")
    parser.add_argument("--heads-from", metavar="FILE", help="read the shape, and q, k, v for dsv, from FILE")
    parser.add_argument("--flex", type=int, metavar="N", help="FlexAttention over blocks of N x N too (CUDA)")
    parser.add_argument("--json", metavar="FILE")
    add_record_flags(parser)
    parser.add_argument("--dsv", metavar="PROGRAM", help="run `PROGRAM bench attention` in turns")
    args, rest = parser.parse_known_args()
    if rest and not args.dsv and any(not word.startswith("threads=") for word in rest):
        parser.error(f"only dsv knows what to do with {' '.join(rest)}: say --dsv PROGRAM")
    if args.heads_from:
        take_shape_of(args, args.heads_from)
        rest += ["--heads-from", args.heads_from]
    args.heads, args.tokens = args.heads or 4, args.tokens or 8192
    if args.flex and (args.device != "cuda" or not args.dsv):
        parser.error("--flex wants --device cuda, and --dsv PROGRAM, whose lists it is held against")
    args.threads = use_threads(setting(rest, "threads", 0))
    return args, rest


# The figures of a run that make a row of the table: selection, forward, backward.
PARTS = {
    "torch": (None, "torch_fwd_ms", "torch_bwd_ms"),
    "dense": (None, "dense_fwd_ms", "dense_bwd_ms"),
    "sparse": ("select_ms", "sparse_fwd_ms", "sparse_bwd_ms"),
    "flex": (None, "flex_fwd_ms", "flex_bwd_ms"),
}


def together(run, side):
    return sum(run[part] for part in PARTS[side] if part)


def report(args, name, turns):
    """Prints one row for PyTorch and two for dsv; returns the content of the JSON file."""
    figures = medians(turns)
    names = {"torch": name}
    if args.dsv:
        names["dense"] = f"dsv dense, {figures['dense_variant']}"
        names["sparse"] = f"dsv at {100 * figures['density']:.1f} % of the keys"
    if args.flex:
        names["flex"] = f"FlexAttention at {100 * figures['flex_density']:.1f} %, blocks of {args.flex}"
    rows = []
    for side, label in names.items():
        figures[f"{side}_ms"] = statistics.median(together(turn, side) for turn in turns)
        figures[f"{side}_least_ms"] = min(together(turn, side) for turn in turns)
        figures[f"torch_over_{side}"] = figures["torch_ms"] / figures[f"{side}_ms"]
        rows.append((label, *(figures[part] if part else None for part in PARTS[side]),
                     figures[f"{side}_ms"], figures[f"{side}_least_ms"], figures[f"torch_over_{side}"]))
    print_table(f"{args.tokens} tokens, {args.heads} heads of {args.head_dim}, {args.dtype}, {args.device}, "
                f"{args.threads} threads; medians of {args.repeats} turns, ms",
                ["select", "forward", "backward", "together", "at least", "speedup"], rows)
    return figures


def main():
    args, rest = parse()
    fastest, tried = find_fastest(args)
    tensors = make_tensors(args, fastest[1])
    turns, blocks = [], None
    for _ in range(args.repeats):
        turns.append(measure(args, fastest[0], tensors))
        if args.dsv:
            turns[-1] |= run_dsv(args.dsv, "attention", dsv_words(args, rest))
        if args.flex:
            blocks = blocks or make_blocks(args, turns[0])
            turns[-1] |= blocks.measure_once() | {"flex_density": blocks.density}
    figures = report(args, f"PyTorch {torch.__version__}, {fastest[0]}, {fastest[1]}", turns)
    figures |= {"torch": torch.__version__, "torch_backend": fastest[0], "torch_layout": fastest[1],
                "threads": args.threads, "turns": turns,
                "torch_tried": {" ".join(choice): times for choice, times in tried.items()}}
    write_json(args.json, figures)
    record(args, args.device, figures)


if __name__ == "__main__":
    main()
