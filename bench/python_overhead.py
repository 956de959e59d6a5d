#!/usr/bin/env python3
"""Times dsv.torch: attention against PyTorch and `dsv bench attention`, and a step of a Wan model.

    python_overhead.py attention [--tokens 8192 --heads 4 --head-dim 64] --dsv PROGRAM
    python_overhead.py attention --device cuda --tokens 32760 --heads 12 --head-dim 128 --dsv PROGRAM
    python_overhead.py step --device cuda    compiled blocks of diffusers' Wan 2.1 1.3B, dense and over lists
    python_overhead.py step --tiny           the same on the CPU with a small random model

attention: q, k and v (1, S, N, D) in BF16. The sides run in turns: PyTorch's scaled_dot_product_attention in
its fastest backend and layout (torch_attention.py), dsv.torch dense and over lists of --density, and, with
--dsv, the same two by `dsv bench attention` without Python. Times of dsv.torch include the selection of keys
and the whole call from Python; host and device are synchronised before and after forward plus backward.
step: forward, backward and fused AdamW with F32 weights and BF16 autocast, in turns: diffusers' own attention
and dsv.diffusers. Steps that measure lists or renew projections (every 20 and 50 steps) are not among those
that are timed. One JSON line with all figures is printed at the end, or is added to --append FILE.
Needs the package: PYTHONPATH=python DSV_LIBRARY=build/cuda/libdsv.so, or the wheel."""
import argparse
import json
import statistics
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_attention
from side_by_side import add_record_flags, clock, print_table, record, run_dsv, use_threads

SETTLE_S = 0.06  # a GPU adapts its clock to the last hundredths of a second, as in dsv bench attention
RARE = 1000000
CUDA_ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
WAN = {"num_attention_heads": 12, "attention_head_dim": 128, "ffn_dim": 8960, "num_layers": 30,
       "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads"}
TINY = {"num_attention_heads": 2, "attention_head_dim": 32, "ffn_dim": 64, "num_layers": 2, "text_dim": 16,
        "freq_dim": 32}


def sparse_options(args):
    """Options of lists of single keys, without a tail, that hold a fixed fraction of every block's keys."""
    return {"group": args.group, "order": "tube", "grain": 1, "chunk": 16, "tail": "none",
            "target_mass": 0, "target_density": args.density, "min_keys": 0, "max_density": 1.0,
            "measure_cost": False, "list_memory": args.list_memory, "profile_every": RARE,
            "refresh_every": RARE}


# ---- attention ----

def make_layer(args, options):
    import dsv.torch
    layer = dsv.torch.SparseAttention(1, threads=args.threads, **options)
    if options.get("enabled", True):
        layer.force()
        layer.prescribe(args.density)
    return layer


def make_sides(args):
    """A function for each side: one forward and one backward pass, and whether it uses dsv.torch."""
    fastest, _ = torch_attention.find_fastest(args)
    heads_first = torch_attention.make_tensors(args, fastest[1])
    q, k, v, dout = (x.detach().transpose(1, 2).contiguous() for x in heads_first)
    for tensor in (q, k, v):
        tensor.requires_grad_()

    def through(layer):
        def run():
            out = layer(q, k, v, block=0, grid=(1, 1, args.tokens))
            torch.autograd.grad(out, (q, k, v), dout)
        return run

    def torch_run():
        torch_attention.measure_once(args, fastest[0], heads_first)
    return f"{fastest[0]}, {fastest[1]}", {
        "torch": torch_run,
        "python_dense": through(make_layer(args, {"enabled": False})),
        "python_lists": through(make_layer(args, sparse_options(args))),
    }


def time_side(args, run):
    """Milliseconds of forward plus backward: the last of the repetitions that fill SETTLE_S, at least two."""
    begin, last, count = time.perf_counter(), 0.0, 0
    while count < 2 or time.perf_counter() - begin < SETTLE_S:
        start = clock(args.device)
        run()
        last = clock(args.device) - start
        count += 1
    return 1e3 * last


def dsv_sides(args):
    options = sparse_options(args)
    words = ["--device", args.device, "--tokens", args.tokens, "--heads", args.heads, "--head-dim",
             args.head_dim, "--dtype", args.dtype, "--density", args.density, "--group", args.group,
             "--grain", options["grain"], "--repeats", 3, f"threads={args.threads}",
             *(f"sparse.{key}={options[key]}" for key in ("order", "chunk", "tail"))]
    found = run_dsv(args.dsv, "attention", words)
    return {"dsv_dense": found["dense_fwd_ms"] + found["dense_bwd_ms"],
            "dsv_lists": found["select_ms"] + found["sparse_fwd_ms"] + found["sparse_bwd_ms"]}


def run_attention(args):
    backend, sides = make_sides(args)
    for run in sides.values():
        run()
    turns = []
    for _ in range(args.repeats):
        turns.append({name: time_side(args, run) for name, run in sides.items()})
        if args.dsv:
            turns[-1] |= dsv_sides(args)
    figures = {f"{name}_ms": statistics.median(turn[name] for turn in turns) for name in turns[0]}
    figures |= {f"{name}_least_ms": min(turn[name] for turn in turns) for name in turns[0]}
    figures["torch_over_python_lists"] = figures["torch_ms"] / figures["python_lists_ms"]
    for kind in ("dense", "lists") if args.dsv else ():
        figures[f"overhead_{kind}"] = figures[f"python_{kind}_ms"] / figures[f"dsv_{kind}_ms"] - 1
    print_table(f"{args.tokens} tokens, {args.heads} heads of {args.head_dim}, {args.dtype}, {args.device}, "
                f"lists of {100 * args.density:g} %; medians of {args.repeats} turns, forward + backward, ms",
                ["median", "least", "speedup"],
                [(name, figures[f"{name}_ms"], figures[f"{name}_least_ms"],
                  figures["torch_ms"] / figures[f"{name}_ms"]) for name in turns[0]])
    return figures | {"torch_backend": backend}


# ---- a training step of a Wan model ----

def make_step(args, sparse):
    """A model with compiled blocks and a function that runs one training step."""
    import diffusers

    import dsv.diffusers
    torch.manual_seed(0)
    torch.compiler.reset()
    with torch.device(args.device):
        model = diffusers.WanTransformer3DModel(**(TINY if args.tiny else WAN)).train()
    if sparse:
        attention = dsv.diffusers.use_sparse_attention(model, threads=args.threads, **sparse_options(args))
        attention.attention.force()
        attention.attention.prescribe(args.density)
    if args.checkpointing:
        model.enable_gradient_checkpointing()
    for block in model.blocks:
        block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    frames, height, width = (3, 16, 24) if args.tiny else args.latent
    latents = torch.randn(1, 16, frames, height, width, device=args.device)
    text = torch.randn(1, 512, model.config.text_dim, device=args.device)
    target, timestep = torch.randn_like(latents), torch.tensor([500], device=args.device)

    def step():
        with torch.autocast(args.device, torch.bfloat16):
            out = model(latents, timestep, text, return_dict=False)[0]
        loss = torch.nn.functional.mse_loss(out.float(), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()
    return model, step


def time_steps(args, sparse):
    """Milliseconds of each step after three for warm-up, and the peak memory in GiB."""
    model, step = make_step(args, sparse)
    spent = []
    for number in range(3 + args.steps):
        start = clock(args.device)
        step()
        spent.append(1e3 * (clock(args.device) - start))
    memory = 0.0
    if args.device == "cuda":
        memory = torch.cuda.max_memory_allocated() / 2 ** 30
        torch.cuda.reset_peak_memory_stats()
    del model, step
    return spent[3:], memory


def run_step(args):
    frames, rows, columns = (3, 16, 24) if args.tiny else args.latent
    figures, turns = {"tokens": frames * rows * columns // 4}, {}
    for _ in range(args.turns):
        for name, sparse in (("dense", False), ("lists", True)):
            spent, memory = time_steps(args, sparse)
            if args.device == "cuda":
                torch.cuda.empty_cache()
            turns.setdefault(name, []).extend(spent)
            figures[f"{name}_gib"] = round(memory, 2)
            print(f"{name}: {statistics.median(spent):.1f} ms, {memory:.1f} GiB", flush=True)
    for name, spent in turns.items():
        figures |= {f"{name}_step_ms": statistics.median(spent), f"{name}_least_ms": min(spent)}
    figures["gain_ms"] = figures["dense_step_ms"] - figures["lists_step_ms"]
    figures["speedup"] = figures["dense_step_ms"] / figures["lists_step_ms"]
    return figures


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("attention", "step"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f32"))
    parser.add_argument("--density", type=float, default=0.1, help="fraction of the keys in lists")
    parser.add_argument("--group", type=int, default=128, help="queries that share a list")
    parser.add_argument("--list-memory", type=float, default=0.13, metavar="X",
                        help="option sparse.list_memory, at least the density")
    parser.add_argument("--repeats", type=int, default=5, help="turns of `attention`")
    parser.add_argument("--dsv", metavar="PROGRAM", help="also run `PROGRAM bench attention`")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="a small model and few tokens")
    parser.add_argument("--latent", type=int, nargs=3, default=(21, 60, 104), metavar="N",
                        help="frames, rows and columns of the latents; 21 60 104 are 32,760 tokens")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing of all blocks")
    parser.add_argument("--steps", type=int, default=5, help="steps that are timed in each turn")
    parser.add_argument("--turns", type=int, default=2, help="turns of `step`")
    add_record_flags(parser)
    args = parser.parse_args()
    args.threads = use_threads(args.threads)
    return args


def main():
    args = parse()
    torch.set_float32_matmul_precision("high")
    run = run_attention if args.what == "attention" else run_step
    if args.device == "cuda" and args.what == "step":
        with sdpa_kernel(CUDA_ATTENTION, set_priority=True):
            figures = run(args)
    else:
        figures = run(args)
    origin = {key: getattr(args, key) for key in ("density", "group", "threads", "checkpointing")}
    if args.what == "attention":
        origin |= {key: getattr(args, key) for key in ("tokens", "heads", "head_dim", "dtype")}
    figures = {"what": args.what, "torch": torch.__version__, **origin, **figures}
    print(json.dumps(figures))
    record(args, args.device, figures)


if __name__ == "__main__":
    main()
