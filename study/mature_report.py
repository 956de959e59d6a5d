#!/usr/bin/env python3
"""Makes tables and plots from the measurements of mature.py.

    mature_report.py MEASURED [--results DIR]

MEASURED is mature.py's OUT/results. Prints the tables, and writes study_mature.csv (means and
ranges over seeds) and images/study_mature*.png in DIR. Needs matplotlib."""
import argparse
import csv
import pathlib

from common import KEY
from plotting import np, plt

HERE = pathlib.Path(__file__).resolve().parent
FIGURES = ["density", "captured", "p10", "worst_block", "spread"]
ORDERS = ("tube", "hilbert", "raster", "hilbert3d", "cube")
GROUPS, GRAINS, LEVELS = (32, 64, 128, 256), (1, 2, 4, 8, 16, 64), ("0.1", "0.5", "0.9")
DENSITIES = ("0.05", "0.1", "0.2")
DEFAULT = {"order": "tube", "group": "128", "chunk": "16", "grain": "1", "rank": "16", "source": "own",
           "format": "f32", "rule": "threshold"}


def read(path):
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class Choices:
    """Figures of every combination of options, with one row per seed."""

    def __init__(self, rows):
        self.sizes = sorted({row["tokens"] for row in rows}, key=int)
        self.steps, self.found = {}, {}
        for row in rows:
            place = (row["tokens"], row["seed"])
            self.steps.setdefault(place, set()).add(int(row["step"]))
        for row in rows:
            key = (row["tokens"], row["seed"], int(row["step"]), *(row[name] for name in KEY))
            self.found[key] = {name: float(row[name]) for name in FIGURES}

    def last(self):
        """{(tokens, choice): list of figures, one per seed} of the last checkpoints."""
        out = {}
        for (tokens, seed, step, *key), figures in self.found.items():
            if step == max(self.steps[tokens, seed]):
                out.setdefault((tokens, tuple(key)), []).append(figures)
        return out


class Finished:
    """Means over seeds, of the last checkpoints."""

    def __init__(self, choices):
        self.all = choices.last()

    def get(self, tokens, figure="captured", **wanted):
        """Mean over seeds and over choices with these values of KEY columns; NaN if there are none."""
        values = [seed[figure] for (size, key), seeds in self.all.items() if size == tokens
                  and all(dict(zip(KEY, key))[name] == value for name, value in wanted.items())
                  for seed in seeds]
        return np.mean(values) if values else np.nan

    def curve(self, tokens, **wanted):
        """(density, captured) over the targets, ascending."""
        points = {}
        for (size, key), seeds in self.all.items():
            row = dict(zip(KEY, key))
            if size == tokens and all(row[name] == value for name, value in wanted.items()):
                points[float(row["target"])] = [np.mean([seed[name] for seed in seeds])
                                                for name in ("density", "captured")]
        return np.array([points[target] for target in sorted(points)]).reshape(-1, 2).T


def density_for(curve, mass):
    density, captured = curve
    if not len(captured) or captured.max() < mass or captured.min() > mass:
        return np.nan
    order = np.argsort(captured)
    return float(np.interp(mass, captured[order], density[order]))


def cell(value, form=".3f"):
    return "-" if not np.isfinite(value) else format(value, form)


def table(title, head, rows):
    print(f"**{title}**\n\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print()


# ---- tables ----

def tell_orders(of, sizes):
    for tokens in sizes:
        rows = []
        for order in ORDERS:
            for group in GROUPS:
                wanted = {**DEFAULT, "part": "order", "order": order, "group": str(group),
                          "selector": "projection"}
                row = [" ".join((cell(of.get(tokens, target=t, **wanted)),
                                 f"({cell(of.get(tokens, 'p10', target=t, **wanted))})")) for t in DENSITIES]
                mean = [cell(of.get(tokens, part="order-mean", order=order, group=str(group), target=t,
                                    rule="threshold")) for t in DENSITIES]
                worst = of.get(tokens, "worst_block", target="0.1", **wanted)
                rows.append([order, group, *row, *mean, cell(worst)])
        table(f"{tokens} tokens: order and group, captured (tenth percentile) by the projection; exact mean",
              ["order", "group", *(f"{t}" for t in DENSITIES), *(f"mean {t}" for t in DENSITIES),
               "worst block at 0.1"], rows)


def selectors(of, tokens):
    """(name, values of KEY columns) of each row of the table of selectors, in order."""
    sources = {which: sorted({dict(zip(KEY, key))["source"] for size, key in of.all if size == tokens
                              and key[KEY.index("selector")] == which} - {"own", "first"},
                             key=lambda name: int(name[1:])) for which in ("projection", "predictor")}
    base = {**DEFAULT, "selector": "projection"}
    found = [("one list per query, by count", {"part": "bound", "selector": "mean", "rule": "topk"}),
             ("nearest in space and time", {"part": "bound", "selector": "nearest"}),
             ("nearest in the picture", {"part": "bound", "selector": "column"}),
             ("exact group mean", {"part": "selector", "selector": "mean", "rule": "threshold"})]
    found += [(f"projection, r = {rank}", {**base, "part": "selector", "rank": str(rank)})
              for rank in (64, 32, 16, 8, 4)]
    found += [(f"one proxy for {chunk} queries", {**base, "part": "chunk", "chunk": str(chunk)})
              for chunk in (4, 8, 16, 32, 64, 128)]
    found += [(f"features in {form}", {**base, "part": "selector", "format": form})
              for form in ("bf16", "fp8")]
    found += [("projection of another clip or level", {**base, "part": "selector", "source": "first"})]
    found += [(f"{which} of step {source[1:]}", {**DEFAULT, "part": "selector", "selector": which,
                                                 "source": source})
              for which in ("projection", "predictor") for source in sources[which]]
    found += [("pooled 64 x 64, cubes", {"part": "selector", "selector": "pooled", "order": "cube",
                                         "rule": "threshold"})]
    return found


def tell_selectors(of, sizes):
    names = [name for name, _ in selectors(of, sizes[0])]
    names += [name for tokens in sizes[1:] for name, _ in selectors(of, tokens) if name not in names]
    rows = []
    for name in names:
        row = [name]
        for tokens in sizes:
            wanted = dict(selectors(of, tokens)).get(name)
            row += [cell(of.get(tokens, target=t, **wanted)) if wanted else "-" for t in DENSITIES]
            row += [cell(of.get(tokens, "p10", target="0.1", **wanted)) if wanted else "-"]
        rows.append(row)
    table("Selectors, groups of 128 in tubes: captured at 5, 10, 20 % of the keys, tenth percentile at 10 %",
          ["selector", *(f"{tokens}: {what}" for tokens in sizes for what in (*DENSITIES, "p10"))], rows)


def tell_rules(of, sizes):
    rows = []
    for rule in ("threshold", "head-threshold", "topk", "head-topk"):
        row = [rule]
        for tokens in sizes:
            row += [cell(of.get(tokens, part="rule", rule=rule, target=t)) for t in DENSITIES]
            row += [cell(of.get(tokens, "p10", part="rule", rule=rule, target="0.1"))]
        rows.append(row)
    table("Rules at equal density: captured, tenth percentile at 10 %",
          ["rule", *(f"{tokens}: {what}" for tokens in sizes for what in (*DENSITIES, "p10"))], rows)
    rows = []
    for mass in ("0.6", "0.7", "0.8", "0.9", "0.95"):
        row = [mass]
        for tokens in sizes:
            wanted = {"part": "rule", "rule": "mass", "target": mass}
            captured = of.get(tokens, **wanted)
            equal = density_for(of.curve(tokens, part="rule", rule="threshold"), captured)
            row += [cell(of.get(tokens, "density", **wanted)), cell(captured), cell(equal)]
        rows.append(row)
    table("A target mass: density, captured, and the density that a target density needs for the same",
          ["mass", *(f"{tokens}: {what}" for tokens in sizes
                     for what in ("density", "captured", "equal"))], rows)


def grains(of, tokens):
    """{name: ((selector, group, grain), curve of density and captured mass)}"""
    out = {}
    for order in ("tube", "hilbert"):
        for grain in GRAINS:
            name = f"{order}, single keys" if grain == 1 else f"{order}, spans of {grain}"
            out[name] = (("projection", "128", str(grain)),
                         of.curve(tokens, part="grain", selector="projection", order=order, grain=str(grain)))
    out["pooled 64 x 64, cubes"] = (("pooled", "64", "64"),
                                    of.curve(tokens, part="grain", selector="pooled", rule="threshold"))
    return out


class Times:
    """Time of selection, forward and backward over random lists, as a fraction of dense attention."""

    def __init__(self, rows):
        self.points = {}
        dense = [float(row["dense_fwd_ms"]) + float(row["dense_bwd_ms"]) for row in rows]
        for row in rows:
            spent = sum(float(row[key]) for key in ("select_ms", "sparse_fwd_ms", "sparse_bwd_ms"))
            self.points.setdefault((row["selector"], row["group"], row["grain"]), []).append(
                (float(row["density"]), spent / np.median(dense)))
        self.tokens = rows[0]["tokens"] if rows else "no"

    def at(self, what, density):
        """Time at a density: linear between measured densities, extrapolated from the nearest two outside."""
        points = sorted(self.points.get(what, []))
        if not np.isfinite(density) or len(points) < 2:
            return np.nan
        x, y = np.array(points).T
        i = int(np.clip(np.searchsorted(x, density), 1, len(x) - 1))
        return float(y[i - 1] + (y[i] - y[i - 1]) * (density - x[i - 1]) / (x[i] - x[i - 1]))


def tell_grains(of, sizes, times):
    rows = []
    for name in grains(of, sizes[0]):
        row = [name]
        for tokens in sizes:
            what, curve = grains(of, tokens)[name]
            tenth = float(np.interp(0.1, *curve)) if len(curve[0]) else np.nan
            row.append(cell(tenth))
            for mass in (0.6, 0.8, 0.9):
                density = density_for(curve, mass)
                row.append(f"{cell(density)}; {cell(times.at(what, density), '.2f')}")
        rows.append(row)
    table(f"Grain: captured at 10 %; density for a mass; time ({times.tokens} tokens, D = 128; dense is 1)",
          ["lists", *(f"{tokens}: {what}" for tokens in sizes for what in ("10 %", "0.6", "0.8", "0.9"))],
          rows)


def tell_sparsity(choices, sparsity):
    rows = []
    for tokens in choices.sizes:
        for step in sorted({int(row["step"]) for row in sparsity if row["tokens"] == tokens}):
            of = [row for row in sparsity if row["tokens"] == tokens and int(row["step"]) == step]
            row = [tokens, step]
            for level in LEVELS:
                shares = [float(r["share90"]) for r in of if r["sigma"] == level]
                row.append(cell(np.mean(shares or [np.nan])))
            heads = {}
            for r in of:
                heads.setdefault((r["seed"], r["block"], r["head"]), []).append(float(r["share90"]))
            means = sorted(np.mean(values) for values in heads.values())
            row += [cell(np.mean(means)), f"{cell(means[0])} to {cell(means[-1])}"]
            for order, selector in (("tube", "mean"), ("tube", "projection"), ("hilbert", "projection"),
                                    ("cube", "pooled")):
                found = [figures["captured"] for key, figures in choices.found.items()
                         if key[0] == tokens and key[2] == step and key[3:6] == ("brief", selector, order)
                         and key[-1] == "0.1"]
                row.append(cell(np.mean(found or [np.nan])))
            rows.append(row)
    table("Keys for 90 % of a query's mass over training, by noise level, all, by head; captured at 10 %",
          ["tokens", "step", *LEVELS, "all", "heads", "exact mean, tube", "projection, tube",
           "projection, hilbert", "pooled, cubes"], rows)


# ---- plots ----

def plot_orders(of, sizes, path):
    figure, axes = plt.subplots(len(sizes), 2, figsize=(14, 5.2 * len(sizes)), squeeze=False,
                                width_ratios=[1, 1.1])
    for (left, right), tokens in zip(axes, sizes):
        for order in ORDERS:
            wanted = {**DEFAULT, "part": "order", "order": order, "selector": "projection", "target": "0.1"}
            captured, low = ([of.get(tokens, figure_, **{**wanted, "group": str(group)}) for group in GROUPS]
                             for figure_ in ("captured", "p10"))
            line, = left.plot(range(len(GROUPS)), captured, "o-", label=order)
            left.plot(range(len(GROUPS)), low, "o:", color=line.get_color(), alpha=0.5)
        left.set_xticks(range(len(GROUPS)), GROUPS)
        left.set(xlabel="queries in a group", ylabel="captured mass at 10 % of the keys",
                 title=f"{tokens} tokens: order and group (dotted: tenth percentile)")
        left.legend()
        bars = [(name, of.get(tokens, target="0.1", **wanted), of.get(tokens, "p10", target="0.1", **wanted))
                for name, wanted in selectors(of, tokens)]
        bars = [bar for bar in bars if np.isfinite(bar[1])][::-1]
        right.barh([bar[0] for bar in bars], [bar[1] for bar in bars], color="#4c72b0")
        right.plot([bar[2] for bar in bars], range(len(bars)), "k|", label="tenth percentile")
        right.set(xlabel="captured mass at 10 % of the keys",
                  title=f"{tokens} tokens: selectors, groups of 128 in tubes")
        right.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=75)
    plt.close(figure)


def plot_grains(of, sizes, times, path):
    figure, axes = plt.subplots(len(sizes), 2, figsize=(14, 5 * len(sizes)), squeeze=False)
    for (left, right), tokens in zip(axes, sizes):
        for i, (name, (what, curve)) in enumerate(grains(of, tokens).items()):
            if not len(curve[0]) or (name.startswith("hilbert") and what[2] not in ("1", "64")):
                continue
            dash = ":" if name.startswith("pooled") else "--" if name.startswith("hilbert") else "-"
            line, = left.plot(*curve, dash, label=name)
            spent = [times.at(what, density) for density in curve[0]]
            right.plot(spent, curve[1], dash, color=line.get_color())
        left.set(xscale="log", xlabel="density", ylabel="captured mass",
                 title=f"{tokens} tokens: captured by lists")
        left.legend(fontsize=8)
        right.axvline(1, color="gray", linestyle=":")
        right.set(xlabel="selection + forward + backward, dense is 1", ylabel="captured mass", xlim=(0, 1.5),
                  title=f"The same over time ({times.tokens} tokens, D = 128, one H200)")
    figure.tight_layout()
    figure.savefig(path, dpi=75)
    plt.close(figure)


def plot_sparsity(training, sparsity, sizes, path):
    models = sorted({(row["tokens"], row["seed"]) for row in sparsity}, key=lambda m: (int(m[0]), m[1]))
    figure, axes = plt.subplots(1, 1 + len(models), figsize=(6 + 3.4 * len(models), 4.6), squeeze=False)
    left = axes[0][0]
    sides = sorted({row["side"] for row in training}, key=int)
    names = dict(zip(sides, sizes)) if len(sizes) == len(sides) else {side: f"side {side}," for side in sides}
    for side, dash in zip(sides, ("-", "--", ":")):
        for seed in sorted({row["seed"] for row in training}):
            points = {}
            for row in training:
                if row["side"] == side and row["seed"] == seed:
                    points.setdefault(int(row["step"]), []).append(float(row["share90"]))
            steps = sorted(points)
            left.plot(steps, [np.mean(points[step]) for step in steps], dash,
                      label=f"{names[side]} tokens, seed {seed}")
    left.set(xlabel="training step", ylabel="fraction of the keys", ylim=(0, None),
             title="Keys that hold 90 % of a query's mass, in training")
    left.legend()
    for axis, (tokens, seed) in zip(axes[0][1:], models):
        of = [row for row in sparsity if (row["tokens"], row["seed"]) == (tokens, seed)]
        last = max(int(row["step"]) for row in of)
        heads = {}
        for row in of:
            if int(row["step"]) == last:
                heads.setdefault((int(row["block"]), int(row["head"])), []).append(float(row["share90"]))
        blocks, count = (1 + max(key[i] for key in heads) for i in (0, 1))
        shares = np.array([[np.mean(heads[block, head]) for head in range(count)] for block in range(blocks)])
        axis.imshow(shares, aspect="auto", cmap="viridis_r", vmin=0, vmax=0.6)
        for block in range(blocks):
            for head in range(count):
                axis.text(head, block, f"{shares[block, head]:.2f}", ha="center", va="center", color="w",
                          fontsize=8)
        axis.set(xlabel="head", ylabel="block", title=f"{tokens} tokens, seed {seed}, step {last}",
                 xticks=range(count), yticks=range(blocks))
    figure.tight_layout()
    figure.savefig(path, dpi=75)
    plt.close(figure)


def write_csv(of, path):
    """Writes the means over seeds from which the tables are made."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["tokens", *KEY, "seeds", *FIGURES, "captured_apart"])
        for (tokens, key), seeds in sorted(of.all.items(), key=str):
            captured = [seed["captured"] for seed in seeds]
            writer.writerow([tokens, *key, len(seeds)] +
                            [f"{np.mean([seed[name] for seed in seeds]):.3f}" for name in FIGURES] +
                            [f"{max(captured) - min(captured):.3f}"])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=pathlib.Path, help="mature.py's OUT/results")
    parser.add_argument("--results", type=pathlib.Path, default=HERE.parent / "results")
    args = parser.parse_args()
    choices = Choices(read(args.measured / "choices.csv"))
    of, times = Finished(choices), Times(read(args.measured / "time.csv"))
    sparsity, training = read(args.measured / "sparsity.csv"), read(args.measured / "training.csv")
    tell_orders(of, choices.sizes)
    tell_selectors(of, choices.sizes)
    tell_rules(of, choices.sizes)
    tell_grains(of, choices.sizes, times)
    tell_sparsity(choices, sparsity)
    images = args.results / "images"
    images.mkdir(parents=True, exist_ok=True)
    write_csv(of, args.results / "study_mature.csv")
    plot_orders(of, choices.sizes, images / "study_mature.png")
    plot_grains(of, choices.sizes, times, images / "study_mature_grain.png")
    plot_sparsity(training, sparsity, choices.sizes, images / "study_mature_sparsity.png")


if __name__ == "__main__":
    main()
