#!/usr/bin/env python3
"""The runs of learn.py as a table and curves.

    learn_table.py OUT [--docs DIR] [--only NAME,...] [--last N]

Writes OUT/learn.md, and study_learn.csv and images/study_learn.png in DIR, or in OUT. Losses are the held-out
ones, means over the last measurements (three unless said); differences to dense are paired by seed, the same
clips, windows and noise, so that they are known much better than the losses themselves. Needs matplotlib."""
import argparse
import csv
import fnmatch
import json
import pathlib

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

END = 0.1       # share of the steps that figures "at the end" are means of
COLUMNS = ["variant", "seeds", "loss", "loss_sd", "over_dense_percent", "over_dense_percent_sd", "dense_loss",
           "density_end", "density_run", "captured_end", "step_ms", "step_ms_end"]


def read_lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def numbers(lines, key):
    return np.array([np.nan if line[key] is None else line[key] for line in lines], dtype=float)


def mean(values):
    """Of those that are there; NaN where none is."""
    values = values[np.isfinite(values)]
    return values.mean() if len(values) else np.nan


def deviation(values):
    return np.std(values, ddof=1) if len(values) > 1 else np.nan


class Run:
    """One run: curves over its measurements and its steps, and the figures at its end."""

    def __init__(self, folder, last):
        steps, held_out = read_lines(folder / "metrics.jsonl"), read_lines(folder / "validation.jsonl")
        self.step = numbers(held_out, "step")
        self.loss = numbers(held_out, "loss")
        self.bins = np.mean([[bin["loss"] for bin in line["bins"]] for line in held_out[-last:]], axis=0)
        self.sigma = [bin["sigma"] for bin in held_out[0]["bins"]]
        self.over_dense = np.full(len(self.loss), np.nan)
        self.density = numbers(steps, "density")
        self.captured = numbers(steps, "captured_mass")
        self.step_ms = numbers(steps, "step_ms")
        self.seconds = np.cumsum(self.step_ms)[self.step.astype(int) - 1] / 1e3
        end = slice(-max(1, int(END * len(steps))), None)
        self.figures = {
            "loss": self.loss[-last:].mean(), "dense_loss": mean(numbers(held_out[-last:], "dense_loss")),
            "density_end": self.density[end].mean(), "density_run": self.density.mean(),
            "captured_end": mean(numbers(steps[end], "captured_mass")),
            "step_ms": np.median(self.step_ms), "step_ms_end": np.median(self.step_ms[end])}


def read_runs(out, steps, only, last):
    """{variant: {seed: Run}}, finished runs alone, dense first and then by name."""
    found = {}
    for path in sorted(out.glob("*/seed-*/validation.jsonl")):
        name, seed = path.parent.parent.name, int(path.parent.name.split("-")[1])
        if name != "dense" and only and not any(fnmatch.fnmatch(name, pattern) for pattern in only):
            continue
        lines = read_lines(path)
        if lines and lines[-1]["step"] == steps:
            found.setdefault(name, {})[seed] = Run(path.parent, last)
    if "dense" not in found:
        raise SystemExit(f"learn_table.py: {out} holds no finished run of the variant dense to compare with")
    for seeds in found.values():
        for seed, run in seeds.items():
            if seed in found["dense"]:
                run.over_dense = 100 * (run.loss / found["dense"][seed].loss - 1)
    return {"dense": found.pop("dense"), **found}


def summarise(runs):
    rows = []
    for name, seeds in runs.items():
        figures = {key: np.array([run.figures[key] for run in seeds.values()])
                   for key in next(iter(seeds.values())).figures}
        over = np.array([100 * (run.figures["loss"] / runs["dense"][seed].figures["loss"] - 1)
                         for seed, run in seeds.items() if seed in runs["dense"]])
        row = {key: mean(values) for key, values in figures.items()}
        row.update(variant=name, seeds=len(seeds), loss_sd=deviation(figures["loss"]),
                   over_dense_percent=mean(over), over_dense_percent_sd=deviation(over))
        rows.append(row)
    return rows


def text_of(value, form):
    return "-" if not np.isfinite(value) else format(value, form)


def spread_of(row, key, form):
    value, spread = row[key], row[f"{key}_sd"]
    return text_of(value, form) + (f" ± {spread:{form.lstrip('+')}}" if np.isfinite(spread) else "")


def write_markdown(path, rows):
    head = ["variant", "seeds", "held-out loss", "over dense, %", "evaluated dense", "density at the end",
            "of the run", "captured", "step, ms", "at the end"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [row["variant"], str(row["seeds"]), spread_of(row, "loss", ".5f"),
                 spread_of(row, "over_dense_percent", "+.2f"), text_of(row["dense_loss"], ".5f"),
                 text_of(row["density_end"], ".3f"), text_of(row["density_run"], ".3f"),
                 text_of(row["captured_end"], ".3f"), text_of(row["step_ms"], ".0f"),
                 text_of(row["step_ms_end"], ".0f")]
        lines.append("| " + " | ".join(cells) + " |")
    path.write_text("\n".join(lines) + "\n")


def write_csv(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([f"{row[key]:.6g}" if isinstance(row[key], float) else row[key]
                             for key in COLUMNS])


def curve(seeds, name):
    """Mean over the seeds, of those that have a value there."""
    values = np.array([getattr(run, name) for run in seeds.values()])
    there = np.isfinite(values)
    sums, counts = np.where(there, values, 0).sum(axis=0), there.sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def smooth(values):
    """(steps, running means over a hundredth of the run); NaN where one value of it is."""
    window = max(1, len(values) // 100)
    return np.arange(window, len(values) + 1), np.convolve(values, np.ones(window) / window, "valid")


def plot(path, runs, times):
    figure, ((by_step, over, by_time), (density, captured, bins)) = plt.subplots(2, 3, figsize=(20, 11))
    colours = plt.colormaps["turbo"](np.linspace(0.05, 0.95, max(len(runs) - 1, 1)))
    for i, (name, seeds) in enumerate(runs.items()):
        style = {"color": "black", "linewidth": 2.2} if name == "dense" else {"color": colours[i - 1]}
        step, loss = curve(seeds, "step"), curve(seeds, "loss")
        by_step.plot(step, loss, label=f"{name}, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}", **style)
        over.plot(step, curve(seeds, "over_dense"), **style)
        by_time.plot(curve(seeds, "seconds"), loss, **style)
        density.plot(*smooth(curve(seeds, "density")), **style)
        captured.plot(*smooth(curve(seeds, "captured")), **style)
        sigma = next(iter(seeds.values())).sigma
        both = [seed for seed in seeds if seed in runs["dense"]]
        over_bins = [100 * (seeds[seed].bins / runs["dense"][seed].bins - 1) for seed in both]
        if over_bins:
            bins.plot(sigma, np.mean(over_bins, axis=0), "o-", markersize=3, **style)
    for axes in (by_step, by_time):
        axes.set_yscale("log")
        axes.set_ylabel("held-out loss")
    by_step.set(xlabel="step", title="Held-out loss over steps")
    over.set(xlabel="step", ylabel="% over dense", title="The same, against dense of the same seed")
    by_time.set(xlabel="seconds of training", title="Held-out loss over time")
    by_time.set_visible(times)
    density.set(xlabel="step", ylabel="density", ylim=(0, 1.05), title="Density, mean over the blocks")
    captured.set(xlabel="step", ylabel="share of the mass", ylim=(0, 1.05),
                 title="Captured mass, mean over sparse blocks")
    bins.set(xlabel="sigma", ylabel="% over dense", title="Held-out loss at the end, by noise level")
    figure.legend(*by_step.get_legend_handles_labels(), loc="center right", fontsize=8)
    figure.tight_layout(rect=(0, 0, 0.9, 1))
    figure.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="what learn.py was told as --out")
    parser.add_argument("--docs", type=pathlib.Path, help="where table and plot go; OUT unless said")
    parser.add_argument("--last", type=int, default=3, metavar="N",
                        help="measurements that a final loss is the mean of (default 3)")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="NAME,...",
                        help="variants beside dense; may hold * and ?")
    args = parser.parse_args()
    docs = args.docs or args.out
    study = json.loads((args.out / "study.json").read_text())
    times = study.get("times", True)
    runs = read_runs(args.out, study["steps"], args.only, args.last)
    rows = summarise(runs)
    if not times:
        for row in rows:
            row.update(step_ms=np.nan, step_ms_end=np.nan)
    (docs / "images").mkdir(parents=True, exist_ok=True)
    write_markdown(args.out / "learn.md", rows)
    write_csv(docs / "study_learn.csv", rows)
    plot(docs / "images" / "study_learn.png", runs, times)
    print((args.out / "learn.md").read_text())


main()
