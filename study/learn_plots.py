#!/usr/bin/env python3
"""Plots over all studies of learn.py, from the tables in DIR.

    learn_plots.py [--results DIR] [--time RUN...]

images/study_density.png: held-out loss over dense against density, with one marker per token order, for the
rows of study_learn.csv whose runs continued a dense trunk (learn_table.py --name trunk-...).
images/study_time.png: loss over seconds and over steps, from study_time.csv. --time first writes this file
from folders of runs (OUT/VARIANT/seed-K) that each had a GPU alone. Needs matplotlib."""
import argparse
import csv
import json
import pathlib

from plotting import np, plt

HERE = pathlib.Path(__file__).resolve().parent
TICKS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1)  # of the density axis
NEAR = 4.2    # percent over dense, upper limit of the second panel
POINTS = 160  # points of a curve over time, each a mean over equally many steps
ORDERS = {"tube": ("o", "tab:blue"), "hilbert": ("s", "tab:red"), "cube": ("D", "tab:orange"),
          "zcube": ("d", "tab:olive"), "hilbert3d": ("^", "tab:green"),
          "blocks of cubes": ("*", "tab:purple"),
          "window": ("X", "tab:brown"), "random": ("P", "tab:gray")}  # kind of lists: marker, colour


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


# ---- loss against density ----

def kind_of(variant):
    """Key of ORDERS for a variant. Names without an order mean hilbert; default means zcube, and
    default-*, the default of earlier versions, tube."""
    words = variant.split("-")
    named = {"default": "tube" if len(words) > 1 else "zcube", "window": "window", "random": "random",
             "blocks": "blocks of cubes"}
    return named.get(words[0]) or next((order for order in ORDERS if order in words), "hilbert")


def draw_density(axis, rows, least, most):
    """Draws all points, and names those between `least` and `most` percent unless names would overlap."""
    named, span = [], min(most, max(float(row["over_dense_percent"]) for row in rows))
    for kind, (marker, colour) in ORDERS.items():
        of = [row for row in rows if kind_of(row["variant"]) == kind]
        x = [float(row["density_end"]) for row in of]
        y = [float(row["over_dense_percent"]) for row in of]
        spread = [float(row["over_dense_percent_sd"]) for row in of]
        axis.errorbar(x, y, np.nan_to_num(spread), linestyle="none", marker=marker, color=colour,
                      markersize=10 if marker == "*" else 6, capsize=2, label=kind)
        for row, at_x, at_y in zip(of, x, y):
            covers = any(abs(at_y - y_) < 0.012 * span and abs(np.log(at_x / x_)) < 0.6 for x_, y_ in named)
            if least <= at_y < most and not covers:
                named.append((at_x, at_y))
                axis.annotate(row["variant"], (at_x, at_y), xytext=(6, 2), textcoords="offset points",
                              fontsize=7, color=colour)
    axis.set(xscale="log", xlim=(0.045, 1.1), xlabel="density at the end",
             ylabel="held-out loss over dense, %")
    axis.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axis.minorticks_off()


def plot_density(results):
    rows = [row for row in read_csv(results / "study_learn.csv")
            if row["study"].startswith("trunk") and not row["variant"].startswith("dense")
            and not row["variant"].endswith("-scratch")]
    figure, axes = plt.subplots(1, 2, figsize=(17, 8))
    for axis, bounds in zip(axes, ((NEAR, np.inf), (0, NEAR))):
        draw_density(axis, rows, *bounds)
        axis.axhline(0, color="black", linewidth=0.8)
    axes[0].set_title("All rules, continued from the same dense trunk; bars: standard deviation over seeds")
    axes[1].set(ylim=(-0.2, NEAR), title=f"The same below {NEAR:g} %")
    axes[1].axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes[0].legend(loc="upper right")
    figure.tight_layout()
    figure.savefig(results / "images" / "study_density.png", dpi=90)


# ---- loss against time ----

def read_lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def time_rows(folder):
    """The curve of the one run in `folder`; its last point has the held-out loss."""
    (path,) = folder.glob("*/seed-*/metrics.jsonl")
    steps, held_out = read_lines(path), read_lines(path.parent / "validation.jsonl")[-1]
    ms = np.array([step["step_ms"] for step in steps])
    seconds, loss = np.cumsum(ms) / 1e3, np.array([step["loss"] for step in steps])
    ends = np.linspace(0, len(steps), POINTS + 1).astype(int)
    rows = [{"variant": path.parent.parent.name, "step": steps[end - 1]["step"],
             "seconds": f"{seconds[end - 1]:.3f}", "train_loss": f"{loss[begin:end].mean():.6g}",
             "held_out_loss": ""} for begin, end in zip(ends, ends[1:])]
    rows[-1]["held_out_loss"] = f"{held_out['loss']:.6g}"
    return rows


def write_times(path, folders):
    rows = [row for folder in folders for row in time_rows(folder)]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def smooth(values):
    window = np.ones(7) / 7
    return np.convolve(values, window, "valid")


def plot_times(results):
    rows = read_csv(results / "study_time.csv")
    figure, axes = plt.subplots(1, 2, figsize=(15, 6.5), sharey=True)
    for variant in dict.fromkeys(row["variant"] for row in rows):
        of = [row for row in rows if row["variant"] == variant]
        loss = smooth([float(row["train_loss"]) for row in of])
        for axis, key in zip(axes, ("seconds", "step")):
            x = [float(row[key]) for row in of]
            line, = axis.plot(x[6:], loss, label=f"{variant}, training loss")
            axis.plot(x[-1], float(of[-1]["held_out_loss"]), marker="*", markersize=15, linestyle="none",
                      color=line.get_color(), label=f"{variant}, held-out loss at the end")
    axes[0].set(yscale="log", xlabel="seconds of steps", ylabel="loss", title="Over time")
    axes[1].set(xlabel="step", title="Over steps; each run's learning rate falls to 0 at its own end")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(results / "images" / "study_time.png", dpi=75)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, default=HERE.parent / "results")
    parser.add_argument("--time", type=pathlib.Path, nargs="+", default=[], metavar="RUN",
                        help="folders given to learn.py as --out, with one run in each")
    args = parser.parse_args()
    if args.time:
        write_times(args.results / "study_time.csv", args.time)
    plot_density(args.results)
    plot_times(args.results)


main()
