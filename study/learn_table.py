#!/usr/bin/env python3
"""Makes a table and curves from the runs of learn.py.

    learn_table.py OUT [--results DIR] [--name NAME] [--only NAME,...] [--last N]

Writes OUT/learn.md, and study_learn.csv and images/study_learn.png in DIR, or in OUT. The CSV keeps the rows
of other studies; learn_plots.py draws all of them. Losses are means of the last held-out measurements (three
by default). Differences to dense compare runs of one seed, with the same clips, windows and noise, so they
vary much less than the losses. Two more differences vary still less. One leaves out the lowest noise level,
which training hardly ever draws. The other compares the training loss over the last tenth of the steps, where
both runs see the same samples and noise in each step. Needs matplotlib."""
import argparse
import csv
import fnmatch
import json
import pathlib

from plotting import np, plt

END = 0.1       # figures "at the end" are means over this last fraction of the steps
OVER = {"over_dense_percent": "loss", "upper_over_dense_percent": "upper_loss",
        "train_over_dense_percent": "train_loss"}  # column of a difference: figure it compares
COLUMNS = ["study", "variant", "seeds", "loss", "loss_sd",
           *(key + end for key in OVER for end in ("", "_sd")), "dense_loss",
           "density_end", "density_run", "captured_end", "step_ms", "step_ms_end"]


def read_lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def numbers(lines, key):
    return np.array([np.nan if line[key] is None else line[key] for line in lines], dtype=float)


def mean(values):
    """Mean of the finite values; NaN if there is none."""
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
        self.train = numbers(steps, "loss")
        self.train_over_dense = np.full(len(self.train), np.nan)
        self.density = numbers(steps, "density")
        self.captured = numbers(steps, "captured_mass")
        self.step_ms = numbers(steps, "step_ms")
        self.seconds = np.cumsum(self.step_ms)[self.step.astype(int) - 1] / 1e3
        end = slice(-max(1, int(END * len(steps))), None)
        self.figures = {
            "loss": self.loss[-last:].mean(), "dense_loss": mean(numbers(held_out[-last:], "dense_loss")),
            "upper_loss": self.bins[1:].mean(), "train_loss": self.train[end].mean(),
            "density_end": self.density[end].mean(), "density_run": self.density.mean(),
            "captured_end": mean(numbers(steps[end], "captured_mass")),
            "step_ms": np.median(self.step_ms), "step_ms_end": np.median(self.step_ms[end])}


def read_runs(out, steps, only, last):
    """{variant: {seed: Run}}, finished runs only: dense first, the others by name."""
    found = {}
    for path in sorted(out.glob("*/seed-*/validation.jsonl")):
        name, seed = path.parent.parent.name, int(path.parent.name.split("-")[1])
        if name != "dense" and only and not any(fnmatch.fnmatch(name, pattern) for pattern in only):
            continue
        lines = read_lines(path)
        if lines and lines[-1]["step"] == steps:
            found.setdefault(name, {})[seed] = Run(path.parent, last)
    if "dense" not in found:
        raise SystemExit(f"learn_table.py: {out} has no finished run of the variant dense to compare with")
    for seeds in found.values():
        for seed, run in seeds.items():
            if seed in found["dense"]:
                dense = found["dense"][seed]
                run.over_dense = 100 * (run.loss / dense.loss - 1)
                run.train_over_dense = 100 * (run.train - dense.train) / dense.train.mean()
    return {"dense": found.pop("dense"), **found}


def summarise(runs):
    rows = []
    for name, seeds in runs.items():
        figures = {key: np.array([run.figures[key] for run in seeds.values()])
                   for key in next(iter(seeds.values())).figures}
        row = {key: mean(values) for key, values in figures.items()}
        row.update(variant=name, seeds=len(seeds), loss_sd=deviation(figures["loss"]))
        for key, what in OVER.items():
            over = np.array([100 * (run.figures[what] / runs["dense"][seed].figures[what] - 1)
                             for seed, run in seeds.items() if seed in runs["dense"]])
            row.update({key: mean(over), f"{key}_sd": deviation(over)})
        rows.append(row)
    return rows


def text_of(value, form):
    return "-" if not np.isfinite(value) else format(value, form)


def spread_of(row, key, form):
    value, spread = row[key], row[f"{key}_sd"]
    return text_of(value, form) + (f" ± {spread:{form.lstrip('+')}}" if np.isfinite(spread) else "")


def write_markdown(path, rows):
    head = ["variant", "seeds", "held-out loss", "over dense, %", "from the second noise level on, %",
            "training loss over dense, %", "evaluated dense", "density at the end",
            "of the run", "captured", "step, ms", "at the end"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [row["variant"], str(row["seeds"]), spread_of(row, "loss", ".5f"),
                 spread_of(row, "over_dense_percent", "+.2f"),
                 spread_of(row, "upper_over_dense_percent", "+.2f"),
                 spread_of(row, "train_over_dense_percent", "+.3f"), text_of(row["dense_loss"], ".5f"),
                 text_of(row["density_end"], ".3f"), text_of(row["density_run"], ".3f"),
                 text_of(row["captured_end"], ".3f"), text_of(row["step_ms"], ".0f"),
                 text_of(row["step_ms_end"], ".0f")]
        lines.append("| " + " | ".join(cells) + " |")
    path.write_text("\n".join(lines) + "\n")


def write_csv(path, study, rows):
    """Replaces the rows of this study; keeps the rows of other studies."""
    others = []
    if path.exists():
        with open(path, newline="") as file:
            others = [row for row in csv.DictReader(file) if row["study"] != study]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(others)
        for row in rows:
            writer.writerow({"study": study, **{key: f"{row[key]:.6g}" if isinstance(row[key], float)
                                                else row[key] for key in COLUMNS[1:]}})


def curve(seeds, name):
    """Mean over the seeds that have a finite value, at each point."""
    values = np.array([getattr(run, name) for run in seeds.values()])
    there = np.isfinite(values)
    sums, counts = np.where(there, values, 0).sum(axis=0), there.sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def smooth(values):
    """(steps, running means over a fiftieth of the run); NaN where the range contains a NaN."""
    window = max(1, len(values) // 50)
    return np.arange(window, len(values) + 1), np.convolve(values, np.ones(window) / window, "valid")


def style_of(place, count):
    """Colour and dashes of a curve. Curves of similar colour have different dashes."""
    return {"color": plt.colormaps["turbo"](0.05 + 0.9 * place / max(count - 1, 1)),
            "linestyle": ("-", "--", ":")[place % 3]}


def draw(axes, runs):
    """Draws one curve per variant in each panel of `axes`."""
    for i, (name, seeds) in enumerate(runs.items()):
        style = {"color": "black", "linewidth": 2.2} if name == "dense" else style_of(i - 1, len(runs) - 1)
        step, loss = curve(seeds, "step"), curve(seeds, "loss")
        label = f"{name}, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
        for key in ("train_over_dense", "density", "captured"):
            axes[key].plot(*smooth(curve(seeds, key)), label=label, **style)
        for key, x, y in (("loss", step, loss), ("over", step, curve(seeds, "over_dense")),
                          ("time", curve(seeds, "seconds"), loss)):
            if key in axes:
                axes[key].plot(x, y, **style)
        sigma = next(iter(seeds.values())).sigma
        over_bins = [100 * (run.bins / runs["dense"][seed].bins - 1)
                     for seed, run in seeds.items() if seed in runs["dense"]]
        if over_bins:
            axes["bins"].plot(sigma[1:], np.mean(over_bins, axis=0)[1:], marker="o", markersize=3, **style)


def panels(runs, times):
    """Names of the panels. Held-out losses measured only once make no curve."""
    often = len(next(iter(runs["dense"].values())).step) > 1
    return (["loss", "over"] if often else []) + ["bins", "train_over_dense", "density", "captured"] + \
           (["time"] if times and often else [])


def limits(runs, begin):
    """Axis limits for differences to dense, from the second half of the steps after step `begin`."""
    differences = [curve(seeds, "train_over_dense") for seeds in runs.values()]
    last = [np.nanmean(values[(begin + len(values)) // 2:]) for values in differences
            if np.isfinite(values).any()]
    margin = max(max(last) - min(last), 0.01)
    return min(last) - margin / 4, max(last) + margin


def plot(path, runs, times, trunk):
    """`trunk`: steps that all runs share; curves begin shortly before the last of these steps."""
    names, steps = panels(runs, times), len(next(iter(runs["dense"].values())).train)
    figure, grid = plt.subplots(2, (len(names) + 1) // 2, figsize=(16 if len(names) < 5 else 20, 11))
    axes = dict(zip(names, grid.flat))
    for unused in grid.flat[len(names):]:
        unused.set_visible(False)
    draw(axes, runs)
    held_out, against = "held-out loss", "% over dense"
    words = {
        "loss": {"yscale": "log", "xlabel": "step", "ylabel": held_out, "title": "Held-out loss"},
        "over": {"xlabel": "step", "ylabel": against, "title": "The same, against dense of the same seed"},
        "bins": {"xlabel": "sigma", "ylabel": against,
                 "title": "Held-out loss at the end, by noise level, the lowest left out"},
        "time": {"yscale": "log", "xlabel": "seconds of training", "ylabel": held_out, "title": "Over time"},
        "train_over_dense": {"xlabel": "step", "ylabel": against, "ylim": limits(runs, trunk),
                             "title": "Training loss, against dense of the same seed and samples"},
        "density": {"xlabel": "step", "ylim": (0, 1.05), "title": "Density, mean over the blocks"},
        "captured": {"xlabel": "step", "ylim": (0, 1.05), "title": "Captured mass, mean over sparse blocks"},
    }
    for name in names:
        axes[name].set(**words[name])
        if trunk and words[name]["xlabel"] == "step":
            axes[name].set_xlim(0.97 * trunk, steps)
    figure.legend(*axes["density"].get_legend_handles_labels(), loc="center right", fontsize=8)
    figure.tight_layout(rect=(0, 0, 0.86, 1))
    figure.savefig(path, dpi=75)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="the folder given to learn.py as --out")
    parser.add_argument("--results", type=pathlib.Path, help="folder for the CSV and the plot (default OUT)")
    parser.add_argument("--name", help="name of the study in the CSV (default: name of the folder OUT)")
    parser.add_argument("--last", type=int, default=3, metavar="N",
                        help="a final loss is the mean of this many measurements (default 3)")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="NAME,...",
                        help="variants in addition to dense; may contain * and ?")
    args = parser.parse_args()
    results = args.results or args.out
    study = json.loads((args.out / "study.json").read_text())
    times = study.get("times", True)
    runs = read_runs(args.out, study["steps"], args.only, args.last)
    rows = summarise(runs)
    if not times:
        for row in rows:
            row.update(step_ms=np.nan, step_ms_end=np.nan)
    (results / "images").mkdir(parents=True, exist_ok=True)
    write_markdown(args.out / "learn.md", rows)
    write_csv(results / "study_learn.csv", args.name or args.out.resolve().name, rows)
    plot(results / "images" / "study_learn.png", runs, times, study.get("trunk", 0))
    print((args.out / "learn.md").read_text())


main()
