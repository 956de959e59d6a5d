#!/usr/bin/env python3
"""Time of attention against the error of its output, on heads of trained models: dsv's lists with a tail
beside FlexAttention over blocks of keys.

    attention_error.py block-0.safetensors block-6.safetensors --device cuda --dsv build/cuda/dsv
        [key=value]...

Each FILE holds q, k and v of one block of a model, as `dsv_heads` writes them (study/README.md). The output
error of a head is the length of the difference from exact attention's output, divided by the length of exact
attention's output. Errors are means over heads and files, times are sums over files.

dsv runs `dsv bench attention` with every group and grain of --lists at every density of --densities, and
with its default options or those given as key=value. Its time contains selection. FlexAttention, compiled
with a search for the best tiles, runs over blocks of every size of --blocks at every density of --shares,
with tokens in cubes. Its blocks have the highest scores of all heads of a file, and each row of blocks has
at least one. Scores are

    mass     the exact attention that a block holds: better than any rule that must not compute attention
    pooled   attention of the mean queries to the mean keys of blocks

The time of FlexAttention is given without and, for pooled scores, with the choice of blocks and the block
mask. The last table compares times at equal error: between two densities the logarithm of FlexAttention's
time is interpolated linearly in the error, and its fastest block size and scores count.

On the CPU FlexAttention is not compiled and has no backward pass: its errors hold, its times mean nothing.
Needs PyTorch, safetensors and dsv."""
import argparse
import itertools
import math
import statistics

import torch
from torch.nn.attention.flex_attention import flex_attention

from side_by_side import add_record_flags, clock, print_table, record_rows, run_dsv, use_threads, write_json
from torch_blocks import (block_mask, choose_by_share, cube_order, exact_attention, pooled_mass,
                          read_heads)

SETTLE_S = 0.06  # a GPU adapts its clock to the power of so many seconds: only then times count
SCORES = ("mass", "pooled")
FLEX_TIMES = ("fwd_ms", "bwd_ms", "mask_ms")
DSV_TIMES = ("select_ms", "sparse_fwd_ms", "sparse_bwd_ms", "dense_fwd_ms", "dense_bwd_ms")
DSV_MEANS = ("density", "captured_mass", "output_error", "list_error")


def settled_ms(device, call, repeats):
    """Median time of a call in ms, each after calls for SETTLE_S seconds. Calls follow each other without a
    pause, so that the time of starting kernels does not count."""
    times = []
    for _ in range(repeats):
        begin, count = clock(device), 0
        while count == 0 or clock(device) - begin < SETTLE_S:
            call()
            count += 1
        begin = clock(device)
        for _ in range(count):
            call()
        times.append(1e3 * (clock(device) - begin) / count)
    return statistics.median(times)


def output_error(out, exact):
    """Relative error of an output (N, S, D), mean over heads."""
    squares = (out.float() - exact).square().sum((1, 2)) / exact.square().sum((1, 2))
    return float(squares.sqrt().mean())


# ---- FlexAttention ----

class Flex:
    """FlexAttention over blocks of `block` tokens on the heads of one file."""

    def __init__(self, args, attend, path, block):
        self.device, self.repeats, self.forward_only = args.device, args.repeats, args.forward_only
        self.attend, self.block = attend, block
        heads, grid = read_heads(path, args.device)
        if args.heads:  # as dsv bench attention repeats them
            heads = [tensor[torch.arange(args.heads) % len(tensor)] for tensor in heads]
        order = cube_order(grid, block)
        if order is None:
            raise SystemExit(f"{path}: a grid of {'x'.join(map(str, grid))} tokens has no cubes of {block}")
        self.tensors = [tensor[:, order].contiguous() for tensor in heads]
        self.exact, mass = exact_attention(*self.tensors, block)
        self.scores = {"mass": mass, "pooled": self.pooled()}

    def pooled(self):
        return pooled_mass(*self.tensors[:2], self.block)

    def time(self, call):
        return settled_ms(self.device, call, self.repeats)

    def measure(self, name, share):
        chosen = choose_by_share(self.scores[name], share)
        mask = block_mask(chosen, self.block)
        inputs = [tensor[None].requires_grad_(not self.forward_only) for tensor in self.tensors]
        out = self.attend(*inputs, block_mask=mask)
        figures = {"density": float(chosen.float().mean()), "error": output_error(out[0], self.exact),
                   "fwd_ms": self.time(lambda: self.attend(*inputs, block_mask=mask)),
                   "bwd_ms": 0.0, "mask_ms": 0.0}
        if not self.forward_only:
            dout = torch.randn_like(out)
            figures["bwd_ms"] = self.time(lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True))
        if name == "pooled":
            figures["mask_ms"] = self.time(
                lambda: block_mask(choose_by_share(self.pooled(), share), self.block))
        return figures


def together(files, times):
    """Figures of one case from those of several files: sums of `times`, means of the others."""
    merge = {key: sum if key in times else statistics.mean for key in files[0]}
    return {key: merge[key](figures[key] for figures in files) for key in files[0]}


def measure_flex(args):
    """Figures of every block size, score and density."""
    attend = flex_attention
    if args.device == "cuda":
        torch._dynamo.config.fail_on_recompile_limit_hit = True  # otherwise it would run uncompiled
        # Blocks of 64 need this mode: none of the tiles that PyTorch 2.11 takes without a search fits them.
        attend = torch.compile(flex_attention, mode="max-autotune-no-cudagraphs", dynamic=False)
    cases = []
    for block in args.blocks:
        peers = [Flex(args, attend, path, block) for path in args.files]
        for name in args.scores:
            for share in args.shares:
                case = together([peer.measure(name, share) for peer in peers], FLEX_TIMES)
                case |= {"block": block, "scores": name, "ms": case["fwd_ms"] + case["bwd_ms"]}
                cases.append(case)
                print(f"FlexAttention, blocks of {block} by {name}, {100 * case['density']:.1f} %: "
                      f"error {case['error']:.3f}, {case['ms']:.2f} ms", flush=True)
    return cases


# ---- dsv ----

def measure_dsv(args, rest):
    """Figures of every group, grain and density."""
    times = [key for key in DSV_TIMES if not (args.forward_only and "bwd" in key)]
    cases = []
    for (group, grain), density in itertools.product(args.lists, args.densities):
        words = ["--device", args.device, "--repeats", args.repeats, "--group", group, "--grain", grain,
                 "--density", density, *rest, f"threads={args.threads}"]
        if args.heads:
            words += ["--heads", args.heads]
        runs = [run_dsv(args.dsv, "attention", ["--heads-from", path, *words]) for path in args.files]
        case = together([{key: run[key] for key in (*times, *DSV_MEANS)} for run in runs], times)
        case |= {"group": group, "grain": grain, "lists": f"groups of {group}, runs of {grain}"}
        case["ms"] = sum(case[key] for key in times if "dense" not in key)
        case["dense_ms"] = sum(case[key] for key in times if "dense" in key)
        cases.append(case)
        print(f"dsv, {case['lists']}, {100 * case['density']:.1f} %: error {case['output_error']:.3f}, "
              f"{case['ms']:.2f} ms", flush=True)
    return cases


# ---- comparison ----

def time_at(curve, error):
    """Time in ms at which a curve of points (error, ms) reaches `error`, or None if all its errors are
    larger. The time of the largest error stands for errors above."""
    curve = sorted(curve)
    if error < curve[0][0]:
        return None
    for (low, slow), (high, fast) in zip(curve, curve[1:]):
        if error < high:
            part = (error - low) / (high - low)
            return math.exp((1 - part) * math.log(slow) + part * math.log(fast))
    return curve[-1][1]


def best_at(cases, error, with_mask):
    """(ms, name) of the fastest FlexAttention at this error, (None, "none") if no case reaches it. With
    with_mask the choice of blocks counts, so that only pooled scores take part."""
    found = []
    for block, name in dict.fromkeys((case["block"], case["scores"]) for case in cases):
        curve = [(case["error"], case["ms"] + with_mask * case["mask_ms"]) for case in cases
                 if (case["block"], case["scores"]) == (block, name)]
        ms = time_at(curve, error)
        if ms is not None and not (with_mask and name == "mass"):
            found.append((ms, f"blocks of {block} by {name}"))
    return min(found, default=(None, "none"))


def compare(lists, cases):
    """Adds FlexAttention's times at equal error to the figures of the lists."""
    for one in lists:
        for key, with_mask in (("flex", False), ("flex_with_mask", True)):
            ms, name = best_at(cases, one["output_error"], with_mask)
            one |= {f"{key}_ms": ms, f"{key}_by": name, f"{key}_over_lists": ms and ms / one["ms"]}


def report(args, lists, cases):
    what = "forward" if args.forward_only else "forward and backward"
    print_table(f"FlexAttention, {what}", ["density", "error", "ms", "mask, ms"],
                [(f"blocks of {case['block']} by {case['scores']}", case["density"], case["error"],
                  case["ms"], case["mask_ms"] or None) for case in cases], digits=3)
    print_table(f"dsv, selection, {what}", ["density", "captured", "error", "no tail", "ms", "speedup"],
                [(one["lists"], one["density"], one["captured_mass"], one["output_error"], one["list_error"],
                  one["ms"], one["dense_ms"] / one["ms"]) for one in lists], digits=3)
    print_table("At equal error: ms of dsv, and of FlexAttention without and with the choice of blocks",
                ["error", "dsv", "flex", "flex/dsv", "with mask", "mask/dsv"],
                [(f"{one['lists']}; {one['flex_by']}", one["output_error"], one["ms"], one["flex_ms"],
                  one["flex_over_lists"], one["flex_with_mask_ms"], one["flex_with_mask_over_lists"])
                 for one in lists], digits=3)


def words_of(kind):
    """Reads a list like 1,2,3 whose parts are of this type."""
    return lambda text: [kind(word) for word in text.split(",")]


def group_and_grain(word):
    group, grain = word.split("x")
    return int(group), int(grain)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--dsv", metavar="PROGRAM", required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--densities", type=words_of(float), metavar="X,...", help="of dsv's lists",
                        default=[0.025, 0.05, 0.1, 0.2])
    parser.add_argument("--lists", type=words_of(group_and_grain), metavar="NxN,...",
                        default=[(64, 8), (64, 4), (128, 8)],
                        help="group x grain of dsv's lists, as in 64x8,128x1")
    parser.add_argument("--blocks", type=words_of(int), default=[64, 128], metavar="N,...",
                        help="64, 128 or both")
    parser.add_argument("--scores", type=words_of(str), default=SCORES, metavar="NAME,...",
                        help="mass, pooled or both")
    parser.add_argument("--shares", type=words_of(float), metavar="X,...", help="densities of FlexAttention",
                        default=[0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    parser.add_argument("--heads", type=int, help="repeat the heads of each file until there are so many")
    parser.add_argument("--forward-only", action="store_true", help="leave out the backward pass")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="of both programs; 0: one per core")
    parser.add_argument("--json", metavar="FILE")
    add_record_flags(parser)
    args, rest = parser.parse_known_intermixed_args()
    rest += [word for word in args.files if "=" in word]
    args.files = [word for word in args.files if "=" not in word]
    unknown = [word for word in rest if word.startswith("-") or "=" not in word]
    if unknown or not args.files:
        parser.error(f"{' '.join(unknown) or 'no FILE'}: expected files, flags and options key=value of dsv")
    if args.heads is not None and args.heads < 1:
        parser.error(f"--heads is {args.heads}, expected at least 1")
    if not set(args.blocks) <= {64, 128}:
        parser.error("--blocks must be 64, 128 or both")
    if not set(args.scores) <= set(SCORES):
        parser.error("--scores must be mass, pooled or both")
    if args.device == "cpu" and not args.forward_only:
        parser.error("FlexAttention has no backward pass on the CPU: add --forward-only")
    args.threads = use_threads(args.threads)
    return args, rest


def main():
    args, rest = parse()
    if args.device == "cpu":
        print("FlexAttention is not compiled on the CPU: its times mean nothing")
    lists, cases = measure_dsv(args, rest), measure_flex(args)
    compare(lists, cases)
    report(args, lists, cases)
    write_json(args.json, {"torch": torch.__version__, "lists": lists, "flex": cases})
    record_rows(args, args.device, lists)


if __name__ == "__main__":
    main()
