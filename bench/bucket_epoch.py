#!/usr/bin/env python3
"""Times training on clips of several sizes: each size beside a run of that size alone, and an epoch whose
batches are dealt to two ranks by cost beside one whose batches are dealt in order.

    bucket_epoch.py --dsv PROGRAM [--device cuda] [--append FILE --table NAME] [key=value]...

The clips are random pictures, one for each of --sizes (frames x height x width), which the codec haar halves
in height and width only, to 12 channels: 21x120x208 has as many tokens as 81 frames of 480 x 832 in a Wan
model. `dsv encode` stores the latents; the column `repeats` of the list makes an epoch of them. The model has
random weights and by default the shape of the published 1.3B model, which key=value (options of `dsv train`)
change. A LoRA of rank 32 is trained, with dense attention and selective recomputation.

Four kinds of runs: all sizes on one rank, a batch each step; each size alone; a model of one block, which
tells the size of each batch, because the order of samples depends on the seed alone; and two ranks with
data.balance=false and true. The predicted gain is that of the best deal of each step's batches in FLOPs.
Needs only Python, and for two ranks on GPUs libnccl.so.2."""
import argparse
import csv
import itertools
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile

from record import append_line

MODEL = ["model.preset=wan1.3b", "sparse.enabled=false"]
LORA = ["lora_rank=32", "gradient_checkpointing=selective"]
SIZES = "1x120x208,5x120x208,9x120x208,13x208x120,21x120x208"
RANKS = 2
CONFIG = """codec.name: haar
codec.spatial_levels: 1
codec.temporal_levels: 0
fps: 16
train_batch_size: 1
checkpointing_steps: 0
validation_steps: 0
validation_at_end: false
"""


# ---- Clips ----

def chunk(name, data):
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def write_clip(path, frames, height, width):
    """An AVI file of frames without compression. Rows of 24-bit pixels are padded to multiples of 4 bytes."""
    row = (3 * width + 3) // 4 * 4
    picture = row * height
    head = struct.pack("<14I", 62500, 0, 0, 16, frames, 0, 1, picture, width, height, 0, 0, 0, 0)
    stream = (b"vidsDIB " + struct.pack("<IHHI", 0, 0, 0, 0)
              + struct.pack("<7I", 1, 16, 0, frames, picture, 0, 0) + struct.pack("<4H", 0, 0, width, height))
    pixels = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, picture, 0, 0, 0, 0)
    streams = chunk(b"LIST", b"strl" + chunk(b"strh", stream) + chunk(b"strf", pixels))
    movie = b"".join(chunk(b"00db", random.randbytes(picture)) for _ in range(frames))
    body = chunk(b"LIST", b"hdrl" + chunk(b"avih", head) + streams) + chunk(b"LIST", b"movi" + movie)
    path.write_bytes(chunk(b"RIFF", b"AVI " + body))


def run(words, log, **options):
    """Starts a program whose messages go to the file `log`."""
    return subprocess.Popen([str(word) for word in words], stdout=open(log, "w"), stderr=subprocess.STDOUT,
                            **options)


def finish(started, log):
    """Waits for programs; if one fails, shows the last messages of the first."""
    if any([process.wait() for process in started]):
        raise SystemExit("".join(log.read_text().splitlines(True)[-20:]) + f"failed: {started[0].args}")


def make_cache(args, folder, repeats):
    """A latent cache with one window of each size, which an epoch uses `repeats` times."""
    folder.mkdir()
    with open(folder / "list.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "repeats"])
        for number, size in enumerate(args.sizes):
            write_clip(folder / f"clip-{number}.avi", *size)
            rows.writerow([f"clip-{number}.avi", repeats])
    words = [args.dsv, "encode", folder / "list.csv", folder / "cache", "--config", args.config,
             *data_options(args.sizes), "device=cpu"]
    finish([run(words, folder / "log")], folder / "log")
    return folder / "cache"


# ---- Runs ----

def name_of(size):
    return "x".join(map(str, size))


def data_options(sizes):
    frames, height, width = sizes[-1]
    return [f"num_frames={frames}", f"height={height}", f"width={width}",
            "data.buckets=" + ",".join(map(name_of, sizes))]


def train(args, cache, sizes, steps, options, ranks=1, folder=None):
    """Runs `dsv train`, in a folder that is kept if it is given, and returns the lines of its metrics."""
    with tempfile.TemporaryDirectory() as other:
        folder = folder or pathlib.Path(other, "run")
        words = [args.dsv, "train", args.config, *data_options(sizes), f"data.path={cache}",
                 f"output_dir={folder}", f"device={args.device}", f"max_train_steps={steps}", *options]
        started = []
        for rank in range(ranks):
            place = {} if ranks == 1 else {"RANK": str(rank), "WORLD_SIZE": str(ranks),
                                           "MASTER_ADDR": "localhost", "MASTER_PORT": str(args.port)}
            started.append(run(words, pathlib.Path(other, f"log-{rank}"), env=os.environ | place))
        finish(started, pathlib.Path(other, "log-0"))
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "step_ms" in line]


def tokens_of(size):
    """Tokens of a batch of one clip: the model joins 2 x 2 elements of a latent, whose sides are halved."""
    return size[0] * (size[1] // 4) * (size[2] // 4)


def size_of(args, line):
    """The size of the one batch of a step, known by its number of tokens."""
    tokens = round(line["tokens_per_s"] * line["step_ms"] / 1000)
    return next(i for i, size in enumerate(args.sizes) if tokens_of(size) == tokens)


# ---- Figures ----

def time_sizes(args, cache, lora):
    """Medians of the step of each size, in milliseconds: among all sizes in an epoch, and alone."""
    mixed = [[] for _ in args.sizes]
    for line in train(args, cache, args.sizes, (args.steps + 1) * len(args.sizes), lora):
        mixed[size_of(args, line)].append(line["step_ms"])
    alone = [[line["step_ms"] for line in train(args, cache, [size], args.steps + 1, lora)]
             for size in args.sizes]
    return [{"size": name_of(size), "tokens": tokens_of(size), "mixed_ms": statistics.median(among[1:]),
             "alone_ms": statistics.median(by_itself[1:])}
            for size, among, by_itself in zip(args.sizes, mixed, alone)]


def number(args, key, default):
    """The value of an option of the model: the last key=value counts."""
    found = [word.partition("=")[2] for word in args.settings if word.partition("=")[0] == key]
    return int(found[-1]) if found else default


def flops(args, size, text=512):
    """FLOPs of the forward pass of a block, by default one of the 1.3B model."""
    width = number(args, "model.num_attention_heads", 12) * number(args, "model.attention_head_dim", 128)
    hidden, tokens = number(args, "model.ffn_dim", 8960), tokens_of(size)
    linear = 2 * width * (tokens * (6 * width + 2 * hidden) + text * 2 * width)
    return linear + 4 * width * tokens * (tokens + text)


def slowest(costs, by_cost):
    """The load of the slowest of two ranks that share a step's batches."""
    total = sum(costs)
    if not by_cost:
        return max(sum(costs[0::2]), sum(costs[1::2]))
    return min(max(sum(part), total - sum(part)) for part in itertools.combinations(costs, len(costs) // 2))


def predicted_gain(args, order, costs):
    """How many times longer the steps that count take if dealt in order, by the costs of the sizes."""
    batches = RANKS * args.accumulation
    steps = [[costs[size] for size in order[at:at + batches]]
             for at in range(args.warm_up * batches, len(order), batches)]
    return sum(slowest(step, False) for step in steps) / sum(slowest(step, True) for step in steps)


def time_epochs(args, cache, lora, sizes):
    """How many times longer steps of two ranks take if dealt in order, predicted and measured."""
    small = ["model.num_layers=1", "model.num_attention_heads=1", "model.attention_head_dim=64",
             "model.ffn_dim=64", "sparse.enabled=false"]
    steps = args.warm_up + args.steps
    order = [size_of(args, line)
             for line in train(args, cache, args.sizes, steps * RANKS * args.accumulation, small)]
    took = {}
    for balance in ("true", "false"):
        options = [*lora, f"gradient_accumulation_steps={args.accumulation}", f"data.balance={balance}"]
        lines = train(args, cache, args.sizes, steps, options, RANKS)
        took[balance] = sum(line["step_ms"] for line in lines[args.warm_up:])
    return {"in_order_ms": took["false"] / args.steps, "by_cost_ms": took["true"] / args.steps,
            "gain": took["false"] / took["true"],
            "predicted_gain": predicted_gain(args, order, [flops(args, size) for size in args.sizes]),
            "gain_by_times": predicted_gain(args, order, [size["mixed_ms"] for size in sizes])}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--lora", metavar="key=value", action="append", default=[],
                        help="an option of the runs that train the LoRA")
    parser.add_argument("--dsv", metavar="PROGRAM", required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sizes", default=SIZES, help="frames x height x width of clips")
    parser.add_argument("--repeats", type=int, default=20,
                        help="batches of each size in an epoch of two ranks")
    parser.add_argument("--steps", type=int, default=6, help="steps of each kind that count")
    parser.add_argument("--warm-up", type=int, default=2, help="steps of two ranks before those that count")
    parser.add_argument("--accumulation", type=int, default=8)
    parser.add_argument("--port", type=int, default=29517, help="where the two ranks meet")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--append", metavar="FILE", type=pathlib.Path, help="file of results/")
    parser.add_argument("--table", metavar="NAME", default="buckets")
    args = parser.parse_intermixed_args()
    args.sizes = [tuple(map(int, size.split("x"))) for size in args.sizes.split(",")]
    if len({tokens_of(size) for size in args.sizes}) < len(args.sizes):
        parser.error("--sizes has two sizes of equally many tokens, expected different numbers")
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        args.config = folder / "config.yaml"
        args.config.write_text(CONFIG)
        few = make_cache(args, folder / "few", args.steps + 1)
        many = make_cache(args, folder / "many", args.repeats)
        # one step of all weights at the smallest size writes a model with random weights
        train(args, few, args.sizes[:1], 1, [*MODEL, "optimizer=adamw_8bit", *args.settings],
              folder=folder / "model")
        lora = [f"model.path={folder / 'model'}", *LORA, *args.lora]
        sizes = time_sizes(args, few, lora)
        for size in sizes:
            size["ratio"] = size["mixed_ms"] / size["alone_ms"]
            print(f"{size['size']}: {size['tokens']} tokens, {size['mixed_ms']:.1f} ms among all sizes, "
                  f"{size['alone_ms']:.1f} ms alone, {size['ratio']:.3f} times", flush=True)
        epoch = time_epochs(args, many, lora, sizes)
    print(f"two ranks: {epoch['in_order_ms']:.1f} ms in order, {epoch['by_cost_ms']:.1f} ms by cost: "
          f"{epoch['gain']:.3f} times; predicted from FLOPs {epoch['predicted_gain']:.3f}, from the times "
          f"above {epoch['gain_by_times']:.3f}")
    if args.json:
        args.json.write_text(json.dumps({"sizes": sizes, "epoch": epoch}, indent=1) + "\n")
    if args.append:
        command = ["python3", *sys.argv]
        for size in sizes:
            append_line(args.append, args.table + "_sizes", command, args.device, size)
        append_line(args.append, args.table + "_epoch", command, args.device, epoch)


if __name__ == "__main__":
    main()
