#!/usr/bin/env python3
"""Measures the options of sparse attention on models trained longer on GPUs, at several sizes and seeds.

    mature.py --build BUILD --clips DIR --out DIR [--gpus 0,1] [--time-limit S] [key=value]...

For each seed a model is trained with dense attention on clips of the first size of --sides, and then
continued from its weights at the next size. The predictor learns during training with every second seed, the
projection with the others. When a model is trained, dsv_study measures its checkpoints on held-out clips,
several processes at a time. At the end `dsv bench attention` times lists of every grain, alone on a GPU.
key=value goes to every training. With --time-limit, work that does not fit is cut short or skipped, and
reported. Results: OUT/results/*.csv, from which mature_report.py makes tables and plots. Needs only Python,
dsv and dsv_study."""
import argparse
import array
import concurrent.futures
import csv
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

from common import KEY, checkpoints, split_clips

HERE = pathlib.Path(__file__).resolve().parent
SELECTORS = ("projection", "predictor")
# (parts of dsv_study, number of clips) for a finished model; each entry is one process. FIRST_PARTS is for
# the first of --sides. LATER_PARTS, for the others, lacks order-mean, which would take a minute per clip
# there.
FIRST_PARTS = [("bound,selector,chunk,brief", 2), ("order", 2), ("grain", 2), ("rule", 2),
               ("order-mean", 2)]
LATER_PARTS = [("selector,chunk,brief", 2), ("order", 2), ("grain", 1), ("rule", 2), ("bound", 1)]
# (selector, group, grain) to time, the most informative first.
TIMED = [("projection", 128, 1), ("projection", 128, 16), ("pooled", 64, 64), ("projection", 64, 1),
         ("projection", 128, 64), ("projection", 128, 4), ("projection", 128, 2), ("projection", 128, 8)]
TIMED_DENSITIES = (0.05, 0.2, 0.5)
STOP_S = 20  # time for a training to write its checkpoint

says = threading.Lock()


def say(begun, *words):
    with says:
        print(f"{time.monotonic() - begun:6.1f} s:", *words, flush=True)


def environment(gpu):
    return {**os.environ, "CUDA_VISIBLE_DEVICES": gpu} if gpu else None


def last_line(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return lines[-1] if lines else "the log is empty"


# ---- one seed ----

class Lane(threading.Thread):
    """Trains the models of one seed on one GPU and measures them on the same GPU."""

    def __init__(self, args, seed, gpu):
        super().__init__()
        self.args, self.seed, self.gpu = args, seed, gpu
        self.pool = concurrent.futures.ThreadPoolExecutor(args.jobs)
        self.jobs = []

    def run(self):
        before = None
        for number in range(len(self.args.sides)):
            before = self.train(number, before)
            if before is None:
                break
            self.measure_all(number)
        concurrent.futures.wait(self.jobs)
        self.pool.shutdown()

    def folder(self, number):
        return self.args.out / f"side-{self.args.sides[number]}" / f"seed-{self.seed}"

    def train(self, number, before):
        """Trains at the size sides[number], from the checkpoint `before` if given. Returns the last
        checkpoint, or None."""
        args, folder, steps = self.args, self.folder(number), self.args.steps[number]
        selectors = SELECTORS[self.seed % 2:][:1] + SELECTORS[:1]  # the projection if the predictor fails
        for selector in dict.fromkeys(selectors):
            found = checkpoints(folder)
            if found and max(found) == steps:
                break
            words = [args.build / "dsv", "train", HERE / "mature.yaml", f"data.path={args.out / 'train.csv'}",
                     f"seed={self.seed}", f"output_dir={folder}", f"max_train_steps={steps}",
                     f"checkpointing_steps={max(1, steps // args.checkpoints[number])}",
                     f"sparse.selector={selector}", f"threads={args.threads}",
                     f"height={args.sides[number]}", f"width={args.sides[number]}",
                     f"train_batch_size={args.batches[number]}", f"lr={args.rates[number]}"]
            words += [f"model.path={before}"] if before else []
            self.run_training(words + args.settings, folder, args.shares[number])
            if checkpoints(folder):
                break
            say(args.begun, f"{folder}: {last_line(folder / 'log.txt')}")
        found = checkpoints(folder)
        if not found:
            return None
        say(args.begun, f"{folder.relative_to(args.out)} has {max(found)} of {steps} steps")
        return found[max(found)]

    def run_training(self, words, folder, share):
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "log.txt", "a") as log:
            process = subprocess.Popen([str(word) for word in words], env=environment(self.gpu), stdout=log,
                                       stderr=subprocess.STDOUT)
            try:
                process.wait(share * self.args.time_limit)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def measure_all(self, number):
        found = checkpoints(self.folder(number))
        last = max(found)
        steps = list(found)
        stored = [found[step] for step in dict.fromkeys((steps[0], steps[len(steps) // 2], *steps[-2:]))]
        for parts, clips in LATER_PARTS if number else FIRST_PARTS:
            self.jobs.append(self.pool.submit(self.measure, number, last, parts, clips,
                                              stored if "selector" in parts else []))
        for step in dict.fromkeys(steps[:-1][:2] + steps[:-1][3::4]):
            self.jobs.append(self.pool.submit(self.measure, number, step, "brief", 2, []))

    def measure(self, number, step, parts, clips, stored):
        args, model = self.args, self.folder(number)
        place = args.out / "measured" / model.parent.name / model.name / f"step-{step}"
        out = place / parts.replace(",", "+")
        left = args.measured_by - time.monotonic()
        if out.with_suffix(".done").exists():
            return
        if left < 3:
            say(args.begun, f"{out.relative_to(args.out)}: no time left")
            return
        out.parent.mkdir(parents=True, exist_ok=True)
        words = [args.build / "dsv_study", checkpoints(model)[step], args.out / "held-out.csv", out,
                 "--parts", parts, "--order", "tube", "--clips", clips,
                 "--samples", args.samples]
        for path in stored:
            words += ["--stored", path]
        begun = time.monotonic()
        with open(out.with_suffix(".log"), "w") as log:
            try:
                result = subprocess.run([str(word) for word in words] + [f"threads={args.threads}"],
                                        env=environment(self.gpu), stdout=log, stderr=subprocess.STDOUT,
                                        timeout=left)
            except subprocess.TimeoutExpired:
                say(args.begun, f"{out.relative_to(args.out)}: cut short after {left:.0f} s")
                return
        if result.returncode == 0:
            out.with_suffix(".done").touch()
        said = "" if result.returncode == 0 else f" failed: {last_line(out.with_suffix('.log'))}"
        say(args.begun, f"{out.relative_to(args.out)}{said} {time.monotonic() - begun:.1f} s")


# ---- times ----

def time_lists(args, gpu, cases, rows):
    for selector, group, grain, density in cases:
        left = args.deadline - time.monotonic()
        if left < 4:
            say(args.begun, f"not timed: {selector}, group {group}, grain {grain}, density {density}")
            continue
        out = args.out / f"time-{selector}-{group}-{grain}-{density}.json"
        words = [args.build / "dsv", "bench", "attention", "--tokens", args.time_tokens, "--heads",
                 args.time_heads, "--head-dim", 128, "--group", group, "--grain", grain, "--density", density,
                 "--selector", selector, "--json", out] + (["--device", "cuda"] if gpu else [])
        try:
            result = subprocess.run([str(word) for word in words], env=environment(gpu), timeout=left,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except subprocess.TimeoutExpired:
            say(args.begun, f"{out.name}: cut short after {left:.0f} s")
            continue
        if result.returncode != 0:
            say(args.begun, f"{out.name}: {result.stdout.strip().splitlines()[-1:]}")
            continue
        figures = json.loads(out.read_text())
        rows.append([selector, group, grain, density, args.time_tokens, f"{figures['density']:.4f}"] +
                    [f"{figures[key]:.4f}" for key in ("dense_fwd_ms", "dense_bwd_ms", "select_ms",
                                                       "sparse_fwd_ms", "sparse_bwd_ms")])


def time_all(args):
    rows = []
    cases = [(*case, density) for case in TIMED for density in TIMED_DENSITIES if args.time_tokens]
    gpus = args.gpus or [""]
    lanes = [threading.Thread(target=time_lists, args=(args, gpu, cases[i::len(gpus)], rows))
             for i, gpu in enumerate(gpus)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    write(args.out / "results" / "time.csv",
          ["selector", "group", "grain", "wanted", "tokens", "density", "dense_fwd_ms", "dense_bwd_ms",
           "select_ms", "sparse_fwd_ms", "sparse_bwd_ms"], sorted(rows))


# ---- results ----

def write(path, head, rows):
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)


def model_of(path):
    """Side, seed and step of a measured checkpoint, from the path of its results."""
    side, seed, step = (part.split("-")[1] for part in path.parts[-4:-1])
    return side, seed, step


def shape_of(path):
    """Numbers of blocks, heads and tokens, from the log of dsv_study."""
    text = path.with_suffix(".log").read_text()
    blocks, heads, *grid = map(int, re.search(r"(\d+) blocks x (\d+) heads, .*; (\d+) x (\d+) x (\d+) tokens",
                                              text).groups())
    return blocks, heads, math.prod(grid)


def load(path, samples):
    """(rows, captured masses and densities, queries per row, heads, tokens). Drops an incomplete last
    block."""
    blocks, heads, tokens = shape_of(path)
    count = heads * min(samples, tokens)
    with open(path.with_suffix(".csv"), newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["captured"]]
    values = array.array("f")
    values.frombytes(path.with_suffix(".f32").read_bytes()[:len(rows) * 8 * count])
    rows = rows[:len(values) // (2 * count)]
    if not path.with_suffix(".done").exists() and rows:
        last = [rows[-1][key] for key in ("clip", "sigma", "block")]
        while rows and [rows[-1][key] for key in ("clip", "sigma", "block")] == last:
            rows.pop()
    return rows, values, count, heads, tokens


def tenth(values):
    ordered = sorted(values)
    at = 0.1 * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def summary(rows, values, count, numbers):
    """Means over blocks, clips and noise levels; the tenth percentile over all queries."""
    captured, listed, blocks = array.array("f"), array.array("f"), {}
    for i in numbers:
        captured += values[2 * i * count:(2 * i + 1) * count]
        listed += values[(2 * i + 1) * count:(2 * i + 2) * count]
        blocks.setdefault(rows[i]["block"], []).append(float(rows[i]["captured"]))
    mean = sum(listed) / len(listed)
    spread = math.sqrt(max(0, sum(x * x for x in listed) / len(listed) - mean * mean))
    worst = min(sum(block) / len(block) for block in blocks.values())
    figures = [mean, sum(captured) / len(captured), tenth(captured), worst, spread]
    return [f"{figure:.4f}" for figure in figures] + [len(numbers)]


def short(source):
    """Shortens the path of a checkpoint to @STEP."""
    return "@" + source.rsplit("-", 1)[1] if "checkpoint-" in source else source


def reduce_file(path, samples):
    """Rows of choices.csv and of sparsity.csv from one result file."""
    rows, values, count, heads, tokens = load(path, samples)
    side, seed, step = model_of(path)
    groups, sparsity = {}, []
    for i, row in enumerate(rows):
        if row["part"] == "sparsity":
            for head in range(heads):
                begin = 2 * i * count + head * (count // heads)
                share = sum(values[begin:begin + count // heads]) / (count // heads)
                sparsity.append([tokens, seed, step, row["clip"], row["sigma"], row["block"], head,
                                 f"{share:.4f}"])
        else:
            groups.setdefault(tuple(row[key] for key in KEY), []).append(i)
    choices = [[tokens, seed, step, *(short(word) for word in key), *summary(rows, values, count, numbers)]
               for key, numbers in groups.items()]
    return choices, sparsity


def reduce_training(args):
    """Writes training.csv: share90, density and captured mass of each block during training."""
    rows = []
    for path in sorted(args.out.glob("side-*/seed-*/blocks.jsonl")):
        loss = {}
        for line in path.with_name("metrics.jsonl").read_text().splitlines():
            at = json.loads(line)
            loss[at["step"]] = at["loss"]
        for line in path.read_text().splitlines():
            at = json.loads(line)
            near = [loss[step] for step in range(at["step"] - 49, at["step"] + 1) if step in loss]
            rows.append([path.parent.parent.name.split("-")[1], path.parent.name.split("-")[1], at["step"],
                         at["block"], f"{sum(near) / max(1, len(near)):.5f}", f"{at['share90']:.4f}",
                         f"{at['density']:.4f}", f"{at['captured_mass']:.4f}"] +
                        [f"{share:.3f}" for share in at["head_share90"]])
    write(args.out / "results" / "training.csv",
          ["side", "seed", "step", "block", "loss", "share90", "density", "captured", "heads"], rows)


def reduce_all(args):
    paths = sorted(path.with_suffix("") for path in args.out.glob("measured/*/*/*/*.f32"))
    choices, sparsity = [], {}
    with concurrent.futures.ProcessPoolExecutor() as pool:
        reduced = [(path, pool.submit(reduce_file, path, args.samples)) for path in paths]
        for path, future in reduced:
            try:
                more_choices, more_sparsity = future.result()
            except (AttributeError, ValueError, ZeroDivisionError) as error:
                say(args.begun, f"{path.relative_to(args.out)}: {error!r}")
                continue
            choices += more_choices
            sparsity.update({tuple(row[:-1]): row for row in more_sparsity})
    results = args.out / "results"
    write(results / "choices.csv", ["tokens", "seed", "step", *KEY, "density", "captured", "p10",
                                    "worst_block", "spread", "passes"], choices)
    write(results / "sparsity.csv", ["tokens", "seed", "step", "clip", "sigma", "block", "head", "share90"],
          sorted(sparsity.values()))
    reduce_training(args)
    return choices


def tell(choices):
    """Prints a few figures that show whether all measurements are plausible."""
    wanted = {("order", "projection", "128"), ("brief", "pooled", "64"), ("bound", "mean", "1")}
    for row in sorted(choices, key=str):
        cell = dict(zip(["tokens", "seed", "step", *KEY], row))
        if (cell["part"], cell["selector"], cell["group"]) in wanted and cell["target"] == "0.1" and \
                (cell["part"] != "bound" or cell["rule"] == "topk"):
            print(*row[:8], "captured", row[-5], "p10", row[-4], "passes", row[-1])


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    path = pathlib.Path
    parser.add_argument("--build", type=path, required=True, help="folder with dsv and dsv_study")
    parser.add_argument("--clips", type=path, required=True, help="folder of clips")
    parser.add_argument("--out", type=path, required=True, help="folder for runs and results")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--gpus", type=lambda text: text.split(","), default=[], metavar="N,...",
                        help="GPUs, which take the seeds in turn; default: the CPU")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds")
    parser.add_argument("--sides", type=int, nargs="+", default=[64, 128],
                        help="heights and widths of the clips, in pixels")
    parser.add_argument("--batches", type=int, nargs="+", default=[2, 1],
                        help="clips per step, for each side")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 4e-4], help="learning rates")
    parser.add_argument("--steps", type=int, nargs="+", default=[4000, 950])
    parser.add_argument("--checkpoints", type=int, nargs="+", default=[8, 4],
                        help="number of checkpoints of each training")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.3, 0.35],
                        help="fraction of the time limit that each training may use")
    parser.add_argument("--samples", type=int, default=64, help="queries measured per head")
    parser.add_argument("--jobs", type=int, default=8, help="concurrent measurements per seed")
    parser.add_argument("--threads", type=int, default=2, help="threads of each process")
    parser.add_argument("--time-limit", type=float, default=1e6, metavar="S", help="in seconds")
    parser.add_argument("--timing", type=float, default=35, metavar="S",
                        help="part of the time limit kept for timing lists and writing results")
    parser.add_argument("--time-tokens", type=int, default=16384,
                        help="tokens of the timed attention; 0: no timing")
    parser.add_argument("--time-heads", type=int, default=8)
    return parser.parse_intermixed_args()


def main():
    args = parse()
    args.begun = time.monotonic()
    args.deadline = args.begun + args.time_limit
    args.measured_by = args.deadline - args.timing
    args.out, args.build = args.out.resolve(), args.build.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    split_clips(args.clips, args.out)
    lanes = [Lane(args, seed, args.gpus[seed % len(args.gpus)] if args.gpus else "")
             for seed in range(args.seeds)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    say(args.begun, "measured")
    (args.out / "results").mkdir(exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(1) as background:
        reduced = background.submit(reduce_all, args)
        time_all(args)
        choices = reduced.result()
    tell(choices)
    say(args.begun, f"{args.out / 'results'}")
    return 0 if choices else 1


if __name__ == "__main__":
    sys.exit(main())
