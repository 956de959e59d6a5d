#!/usr/bin/env python3
"""Measures the captured mass of key lists for many options: trains, measures, writes tables and plots.

    choices.py --build BUILD --clips DIR --run DIR [--results DIR] [--train key=value]...
        [--length k=v,k=v]...

A third of the clips is held out. One model is trained once with each selector, unless RUN has the models
already. The weights are the same to the bit with each selector, since all attention stays dense.
BUILD/dsv_study then measures the checkpoints on the held-out clips. Results: RUN/tables.md,
RESULTS/study_choices.csv and RESULTS/images/study_*.png. Needs matplotlib."""
import argparse
import csv
import json
import pathlib
import subprocess

from common import KEY, checkpoints, split_clips
from plotting import np, plt

HERE = pathlib.Path(__file__).resolve().parent
SELECTORS = {
    "projection": ["sparse.selector=projection"],
    "predictor": ["sparse.selector=predictor"],
    "predictor-uncentred": ["sparse.selector=predictor", "sparse.predictor_centred=false"],
}
ORDERS = ("hilbert", "raster", "hilbert3d", "tube", "cube")
SIGMAS = (0.1, 0.5, 0.9)
NUMBERS = {"group", "chunk", "grain", "rank", "target", "sigma", "block", "density", "captured"}


# ---- training and measurement ----

def command(*words):
    words = [str(word) for word in words]
    print("$", " ".join(words), flush=True)
    subprocess.run(words, check=True)


def train(args):
    for name in args.selectors:
        folder = args.run / name
        resume = ["resume_from_checkpoint=latest"] if (folder / "latest").exists() else []
        command(args.build / "dsv", "train", HERE / "choices.yaml", f"data.path={args.run / 'train.csv'}",
                f"output_dir={folder}", *SELECTORS[name], *resume, *args.train)


def study(args, model, out, parts=None, stored=(), settings=()):
    """Runs dsv_study unless its results exist already."""
    if out.with_suffix(".csv").exists() and not args.again:
        return
    unfinished = out.with_name("unfinished")
    words = [args.build / "dsv_study", model, args.run / "held-out.csv", unfinished, "--samples",
             args.samples]
    words += ["--clips", args.most_clips] if args.most_clips else []
    words += ["--parts", parts] if parts else []
    for path in stored:
        words += ["--stored", path]
    command(*words, *settings)
    for suffix in (".f32", ".csv"):
        unfinished.with_suffix(suffix).rename(out.with_suffix(suffix))


def measure(args):
    steps = {name: checkpoints(args.run / name) for name in args.selectors}
    common = [step for step in steps["projection"] if all(step in found for found in steps.values())]
    last = max(common)
    early = [step for step in common if step in (last // 4, last // 2, last)]
    study(args, steps["projection"][last], args.run / "choices",
          stored=[steps["projection"][step] for step in early] +
                 [steps[name][last] for name in args.selectors[1:]])
    for step in common:
        study(args, steps["projection"][step], args.run / f"step-{step}", parts="selector",
              stored=[steps[name][step] for name in args.selectors[1:2]])
    for i, length in enumerate(args.length):
        study(args, steps["projection"][last], args.run / f"length-{i}", parts="bound,selector",
              settings=length.split(","))


def time_attention(args, grain, density, name):
    """Time of selection, forward and backward pass over random lists of this density and grain, divided by
    the time of dense attention in the same process. The ratio varies less than the time when a machine's
    speed varies."""
    out = args.run / f"time-{name}.json"
    selector, group = ("pooled", 64) if name.startswith("pooled") else ("projection", 128)
    if args.again or not out.exists():
        command(args.build / "dsv", "bench", "attention", "--tokens", args.time_tokens, "--heads", 4,
                "--head-dim", 64, "--group", group, "--grain", grain, "--density", f"{density:.4f}",
                "--selector", selector, "--json", out)
    figures = json.loads(out.read_text())
    spent = sum(figures[key] for key in ("select_ms", "sparse_fwd_ms", "sparse_bwd_ms"))
    return spent / (figures["dense_fwd_ms"] + figures["dense_bwd_ms"])


# ---- measurements ----

class Results:
    """The rows of one dsv_study run, each with the captured mass and density of every query."""

    def __init__(self, path):
        with open(path.with_suffix(".csv"), newline="") as file:
            self.rows = [{k: float(v) if k in NUMBERS else v for k, v in row.items()}
                         for row in csv.DictReader(file)]
        values = np.fromfile(path.with_suffix(".f32"), dtype=np.float32)
        self.values = values.reshape(len(self.rows), 2, -1)

    def where(self, **wanted):
        return [i for i, row in enumerate(self.rows) if all(row[k] == v for k, v in wanted.items())]

    def summary(self, indices):
        """Means over blocks, clips and noise levels; the tenth percentile over all queries."""
        captured, listed = self.values[indices, 0], self.values[indices, 1]
        blocks = {}
        for i in indices:
            blocks.setdefault(self.rows[i]["block"], []).append(self.rows[i]["captured"])
        return {"density": float(listed.mean()), "captured": float(captured.mean()),
                "p10": float(np.percentile(captured, 10)),
                "worst_block": min(float(np.mean(b)) for b in blocks.values()),
                "spread": float(listed.std())}

    def choices(self):
        """{key: summary} for every combination of options and target."""
        groups = {}
        for i, row in enumerate(self.rows):
            groups.setdefault(tuple(row[k] for k in KEY), []).append(i)
        return {key: self.summary(indices) for key, indices in groups.items()}


def pick(choices, **wanted):
    """{target: summary} of the choices with these values of KEY columns."""
    found = {}
    for key, summary in choices.items():
        row = dict(zip(KEY, key))
        if all(row[k] == v for k, v in wanted.items()):
            found[row["target"]] = summary
    return dict(sorted(found.items()))


def density_for(curve, mass):
    """Density at which a curve of summaries reaches a captured mass; None if it never does."""
    points = sorted((s["captured"], s["density"]) for s in curve.values())
    if not points or points[-1][0] < mass:
        return None
    return float(np.interp(mass, [p[0] for p in points], [p[1] for p in points]))


# ---- tables ----

def cells(summaries):
    at = {target: s for target, s in summaries.items()}
    row = [f"{at[t]['captured']:.3f}" if t in at else "-" for t in (0.05, 0.1, 0.2)]
    return row + ([f"{at[0.1]['p10']:.3f}", f"{at[0.1]['worst_block']:.3f}"] if 0.1 in at else ["-", "-"])


def table(title, head, rows):
    lines = [f"**{title}**", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n\n"


CAPTURED = ["5 %", "10 %", "20 %", "p10", "worst block"]
DEFAULT = {"order": "hilbert", "group": 128, "chunk": 16, "grain": 1, "rank": 16, "source": "own",
           "format": "f32", "rule": "threshold"}


def order_table(choices):
    rows = []
    for order in ORDERS:
        for group in (32, 64, 128, 256):
            mean = pick(choices, part="order-mean", selector="mean", order=order, group=group, rule="topk")
            ours = pick(choices, part="order", selector="projection", order=order, group=group)
            rows.append([order, group] + cells(mean)[:3] + cells(ours))
    return table("Order and group: captured by top-k of the exact group mean, then by the default's lists",
                 ["order", "group", "mean 5 %", "mean 10 %", "mean 20 %"] + CAPTURED, rows)


def short(source):
    """Shortens run/checkpoint-800 to run@800."""
    return "@".join(pathlib.Path(source).parts[-2:]).replace("@checkpoint-", "@")


def selector_table(choices):
    rows = []
    for key in sorted(choices, key=lambda k: (k[1], k[2], k[3], k[4], k[6], k[7], k[8], k[9])):
        row = dict(zip(KEY, key))
        if row["part"] in ("bound", "selector", "chunk") and row["target"] == 0.1:
            same = pick(choices, **{k: row[k] for k in KEY if k != "target"})
            sizes = [int(row[k]) for k in ("group", "chunk", "grain", "rank")]
            rows.append([row["selector"], row["order"], *sizes, short(row["source"]), row["format"],
                         row["rule"]] + cells(same))
    head = ["selector", "order", "group", "chunk", "grain", "rank", "state of", "in", "rule"]
    return table("Selectors", head + CAPTURED, rows)


def rule_table(choices):
    rows = []
    for rule in ("threshold", "head-threshold", "topk", "head-topk"):
        found = pick(choices, part="rule", rule=rule)
        spread = f"{found[0.1]['spread']:.3f}"
        rows.append([rule] + cells(found) + [spread])
    text = table("Rules at equal density (projection), and the spread of a query's density at 10 %",
                 ["rule"] + CAPTURED + ["spread"], rows)
    curve, rows = pick(choices, part="rule", rule="threshold"), []
    for target, found in pick(choices, part="rule", rule="mass").items():
        equal = density_for(curve, found["captured"])
        row = [f"{found[name]:.3f}" for name in ("density", "captured", "p10", "spread")]
        rows.append([f"{target:g}", *row, f"{equal:.3f}" if equal else "-"])
    return text + table("A target mass (common threshold) against a target density",
                        ["target mass", "density", "captured", "p10", "spread of density",
                         "density a target density needs for the same"], rows)


def grain_curves(choices):
    curves = {}
    for order in ("hilbert", "tube"):
        for grain in (1, 2, 4, 8, 16, 32, 64):
            curves[f"{order}, spans of {grain}"] = (grain, pick(choices, part="grain", selector="projection",
                                                                order=order, grain=grain))
    curves["pooled 64 x 64"] = (64, pick(choices, part="grain", selector="pooled", rule="threshold"))
    return curves


def grain_table(args, choices):
    """(table, {mass: {name: time as a fraction of dense attention's, at this captured mass}})."""
    rows, times = [], {}
    for name, (grain, curve) in grain_curves(choices).items():
        row = [name] + cells(curve)[:3]
        for mass in args.masses:
            density = density_for(curve, mass)
            row.append(f"{density:.3f}" if density else "-")
            if density and args.time_tokens:
                label = f"{name.replace(' ', '')}-{mass:g}"
                spent = times.setdefault(mass, {})[name] = time_attention(args, grain, density, label)
                row.append(f"{spent:.2f}")
            else:
                row.append("-")
        rows.append(row)
    head = ["lists"] + CAPTURED[:3]
    for mass in args.masses:
        head += [f"density for {mass:g}", "time"]
    return table("Grain: captured; density and time (dense attention: 1) at equal captured mass", head,
                 rows), times


def sparsity_table(args, over_training):
    rows = []
    for step, results in over_training.items():
        row = [step]
        for sigma in SIGMAS:
            row.append(f"{results.summary(results.where(part='sparsity', sigma=sigma))['captured']:.3f}")
        for selector, more in (("mean", {}), ("projection", DEFAULT), ("predictor", {"group": 128})):
            found = results.where(part="selector", selector=selector, target=0.1, rule="threshold",
                                  **{k: v for k, v in more.items() if k != "rule"})
            row.append(f"{results.summary(found)['captured']:.3f}" if found else "-")
        rows.append(row)
    text = table("Fraction of keys for 90 % of a query's mass over training; captured by lists of 10 %",
                 ["step", "level 0.1", "0.5", "0.9", "exact mean", "projection", "predictor"], rows)
    rows = []
    for i, length in enumerate(args.length):
        results = Results(args.run / f"length-{i}")
        found = results.summary(results.where(part="selector", selector="projection", target=0.1, **DEFAULT))
        rows.append([length, f"{results.summary(results.where(part='sparsity'))['captured']:.3f}",
                     f"{found['captured']:.3f}"])
    head = ["options", "fraction for 90 %", "projection at 10 %"]
    return text + (table("Length", head, rows) if rows else "")


# ---- plots ----

def plot_choices(choices, path):
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.2), width_ratios=[1, 1.15])
    for order in ORDERS:
        found = [pick(choices, part="order", selector="projection", order=order, group=g)[0.1]
                 for g in (32, 64, 128, 256)]
        line, = left.plot(range(4), [f["captured"] for f in found], "o-", label=order)
        left.plot(range(4), [f["p10"] for f in found], "o:", color=line.get_color(), alpha=0.5)
    left.set_xticks(range(4), [32, 64, 128, 256])
    left.set(xlabel="queries in a group", ylabel="captured mass at 10 % density",
             title="Order and group (dotted: tenth percentile)")
    left.legend()
    bars = [("one list per query", pick(choices, part="bound", selector="mean", rule="topk")),
            ("each query's nearest keys", pick(choices, part="bound", selector="nearest")),
            ("exact group mean", pick(choices, part="selector", selector="mean", rule="threshold"))]

    def bar(name, selector="projection", **differs):
        bars.append((name, pick(choices, part="selector", selector=selector, **{**DEFAULT, **differs})))

    for rank in (64, 32, 16, 8, 4):
        bar(f"projection, r = {rank}", rank=rank)
    for form in ("bf16", "fp8"):
        bar(f"projection, {form}", format=form)
    bar("projection of another clip and level", source="first")
    sources = {key[KEY.index("source")] for key in choices} - {"own", "first"}
    for source in sorted(sources, key=lambda s: (len(s), s)):
        learnt = "predictor" in short(source)
        bar(short(source).replace("@", ", of step "), "predictor" if learnt else "projection",
            source=source)
    bars.append(("pooled 64 x 64, cubes", pick(choices, part="selector", selector="pooled", order="cube",
                                               rule="threshold")))
    bars = [(name, found[0.1]) for name, found in bars if 0.1 in found][::-1]
    right.barh([name for name, _ in bars], [found["captured"] for _, found in bars], color="#4c72b0")
    right.plot([found["p10"] for _, found in bars], range(len(bars)), "k|", label="tenth percentile")
    right.set(xlabel="captured mass at 10 % density", title="Selectors, groups of 128")
    right.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def plot_grain(choices, times, path):
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6))
    for name, (grain, curve) in grain_curves(choices).items():
        if grain in (1, 4, 16, 64):
            left.plot([s["density"] for s in curve.values()], [s["captured"] for s in curve.values()],
                      ":" if "pooled" in name else "-" if "tube" in name else "--", label=name)
    left.set(xscale="log", xlabel="density", ylabel="captured mass", title="Captured by lists")
    left.legend(fontsize=8)
    for mass, by_name in times.items():
        right.plot(list(by_name), list(by_name.values()), "o-", label=f"captured {mass:g}")
    right.axhline(1, color="gray", linestyle=":", label="dense")
    right.tick_params(axis="x", rotation=90)
    right.set(ylabel="selection + forward + backward, dense is 1", title="Time at equal captured mass",
              ylim=(0, None))
    if times:
        right.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def plot_sparsity(over_training, path):
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6))
    for sigma in SIGMAS:
        left.plot(list(over_training), [r.summary(r.where(part="sparsity", sigma=sigma))["captured"]
                                        for r in over_training.values()], "o-", label=f"noise level {sigma}")
    left.set(xlabel="training step", ylabel="fraction of keys", ylim=(0, None),
             title="Keys that hold 90 % of a query's attention")
    left.legend()
    results = list(over_training.values())[-1]
    heads = int(results.heads)
    blocks = sorted({results.rows[i]["block"] for i in results.where(part="sparsity")})
    shares = [[results.values[results.where(part="sparsity", block=b), 0].reshape(-1, heads, results.samples)
               [:, h].mean() for h in range(heads)] for b in blocks]
    image = right.imshow(shares, aspect="auto", cmap="viridis_r")
    for b, row in enumerate(shares):
        for h, share in enumerate(row):
            right.text(h, b, f"{share:.2f}", ha="center", va="center", color="w", fontsize=8)
    right.set(xlabel="head", ylabel="block", title="The same, by block and head, at the end",
              xticks=range(heads), yticks=range(len(blocks)))
    figure.colorbar(image)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


# ---- report ----

def report(args):
    choices = Results(args.run / "choices").choices()
    heads = json.loads((next(iter(checkpoints(args.run / "projection").values())) / "transformer" /
                        "config.json").read_text())["num_attention_heads"]
    over_training = {}
    for path in sorted(args.run.glob("step-*.csv"), key=lambda p: int(p.stem.split("-")[1])):
        results = over_training[int(path.stem.split("-")[1])] = Results(path)
        results.heads = heads
        results.samples = results.values.shape[2] // heads
    grain, times = grain_table(args, choices)
    text = order_table(choices) + selector_table(choices) + rule_table(choices) + grain
    (args.run / "tables.md").write_text(text + sparsity_table(args, over_training))
    images = args.results / "images"
    images.mkdir(parents=True, exist_ok=True)
    with open(args.results / "study_choices.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(KEY + ["density", "captured", "p10", "worst_block", "spread"])
        for key, summary in sorted(choices.items()):
            row = [short(v) if k == "source" else f"{v:g}" if k in NUMBERS else v for k, v in zip(KEY, key)]
            writer.writerow(row + [f"{value:.3f}" for value in summary.values()])
    plot_choices(choices, images / "study_choices.png")
    plot_grain(choices, times, images / "study_grain.png")
    plot_sparsity(over_training, images / "study_sparsity.png")
    print(f"{args.run / 'tables.md'}, {args.results / 'study_choices.csv'}, {images}/study_*.png")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    path = pathlib.Path
    parser.add_argument("--build", type=path, required=True, help="build folder with dsv and dsv_study")
    parser.add_argument("--clips", type=path, required=True, help="folder of clips")
    parser.add_argument("--run", type=path, required=True, help="where runs and results go")
    parser.add_argument("--results", type=path, help="folder for the CSV and the plots (default RUN)")
    parser.add_argument("--train", action="append", default=[], metavar="key=value",
                        help="option of the training runs")
    parser.add_argument("--length", action="append", default=[], metavar="key=value,...",
                        help="options of another clip length to measure")
    parser.add_argument("--selectors", nargs="+", default=list(SELECTORS), help="projection, then others")
    parser.add_argument("--samples", type=int, default=128, help="queries measured per head")
    parser.add_argument("--most-clips", type=int, help="measure no more held-out clips than this")
    parser.add_argument("--masses", type=float, nargs="+", default=[0.8, 0.9],
                        help="captured masses at which times are compared")
    parser.add_argument("--time-tokens", type=int, default=8192,
                        help="tokens of the timed attention; 0: no timing")
    parser.add_argument("--again", action="store_true", help="repeat measurements that RUN already has")
    args = parser.parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    args.results = args.results or args.run
    split_clips(args.clips, args.run)
    train(args)
    measure(args)
    report(args)


main()
