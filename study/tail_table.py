#!/usr/bin/env python3
"""Makes tables and a plot from the archives of tail.sh.

    tail_table.py PART ARCHIVE.tar.gz ... [--results DIR]

Prints two tables, and writes them to DIR/study_tail_PART.md, their figures of each seed to
DIR/study_tail.csv (rows of other parts stay), and DIR/images/study_tail_PART.png; DIR is `results` by
default. Archives of one part hold different seeds. Every run is compared with the dense run of its seed,
which saw the same samples and noise; the table gives mean and standard deviation over seeds of these
differences in per cent.

    work         FLOPs of attention over those of dense attention while blocks are sparse: density, and the
                 pairs of the tail's means
    of the run   the same over all steps that the run does not share with others
    own, dense   held-out loss at the end with the attention of training, and with dense attention
    training     training loss over the last tenth of the steps; before: over the tenth before the finish
    slope        by how much the training loss itself falls over the last tenth, from a line through the last
                 fifth

The last line says how far held-out loss of dense runs is above their training loss, both as means over noise
levels. Needs numpy and matplotlib."""
import argparse
import pathlib

from common import mean_text, read_archive, replace_rows
from plotting import np, plt

END = 0.1  # figures "at the end" of training are means over this fraction of the steps
FIGURES = {"own": "held out, own attention, %", "dense": "held out, dense attention, %",
           "training": "training, end, %", "before": "training, before, %"}


class Run:
    """The figures of one run. `settings`: {option: value} of its variant."""

    def __init__(self, metrics, validation, settings):
        steps = len(metrics)
        tenth = max(1, int(END * steps))
        self.loss = np.array([line["loss"] for line in metrics])
        density = np.array([line["density"] for line in metrics])
        self.sparse = density < 1
        stands_in = tail_share(settings)
        work = np.where(self.sparse, density + stands_in, 1)
        self.work = work[self.sparse].mean() if self.sparse.any() else 1.0
        self.work_of_run = work
        self.own = validation[-1]["loss"]
        dense = validation[-1]["dense_loss"]
        self.dense = self.own if dense is None else dense  # None: no block is sparse at the end
        self.levels = np.array([level["loss"] for level in validation[-1]["bins"]])
        self.sigma = [level["sigma"] for level in validation[-1]["bins"]]
        self.training = self.loss[-tenth:].mean()
        self.finish = int(float(settings.get("sparse.dense_finish", 0)) * steps + 0.5)
        fifth = self.loss[-2 * tenth:]
        self.slope = 100 * np.polyfit(np.arange(len(fifth)), fifth, 1)[0] * tenth / fifth.mean() \
            if len(fifth) > 1 else np.nan
        self.gap = gap(metrics[-3 * tenth:], self.levels)


def tail_share(settings):
    """Pairs of mean queries and mean keys over pairs of queries and keys."""
    kind = settings.get("sparse.tail", "none")
    chunk = int(settings["sparse.tail_chunk"]) if kind in ("query", "both") else 1
    run = int(settings["sparse.tail_run"]) if kind in ("key", "both") else 1
    return 0 if kind == "none" else 1 / (chunk * run)


def gap(metrics, held_out):
    """Held-out loss over training loss in per cent. Both are means over the noise levels that training has
    drawn in these steps at least ten times, weighted equally, because training draws middle levels more
    often."""
    sums, counts = np.zeros(len(held_out)), np.zeros(len(held_out))
    for line in metrics:
        for level, loss in enumerate(line["loss_bins"]):
            if loss is not None:
                sums[level] += loss
                counts[level] += 1
    often = counts >= 10
    if not often.any():
        return np.nan
    return 100 * (held_out[often].mean() / (sums[often] / counts[often]).mean() - 1)


def add_archive(path, runs):
    """Adds the runs of an archive to {variant: {seed: Run}}. Returns its study.json, with the options of the
    variants that have runs."""
    study, validation = read_archive(path)
    metrics = read_archive(path, "metrics")[1]
    for (variant, seed), lines in validation.items():
        settings = dict(option.split("=", 1) for option in study["options"][variant])
        runs.setdefault(variant, {})[seed] = Run(metrics[variant, seed], lines, settings)
    trained = {variant for variant, _ in validation}
    return study | {"options": {name: of for name, of in study["options"].items() if name in trained}}


def first_own_step(variant, study):
    if "-from10" in variant:
        return study["steps"] // 10
    return study["trunk"]


def over(runs, variant, what):
    """Differences to dense of the same seed in per cent, in the order of runs[variant]."""
    return np.array([100 * (figure(run, run, what) / figure(runs["dense"][seed], run, what) - 1)
                     for seed, run in runs[variant].items()])


def figure(of, run, what):
    """A figure of the run `of`; "before": over the steps before the finish of `run`."""
    if what != "before":
        return getattr(of, what)
    end = len(run.loss) - run.finish
    return of.loss[end - max(1, int(END * len(run.loss))):end].mean()


def main_table(runs, study):
    head = ["variant", "seeds", "work", "of the run", *FIGURES.values(), "slope, %"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for variant, seeds in runs.items():
        work = np.mean([run.work for run in seeds.values()])
        own = np.mean([run.work_of_run[first_own_step(variant, study):].mean() for run in seeds.values()])
        slope = np.mean([run.slope for run in seeds.values()])
        cells = [f"`{variant}`", str(len(seeds)), f"{work:.3f}", f"{own:.2f}",
                 *(mean_text(over(runs, variant, what)) for what in FIGURES), f"{slope:+.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    gaps = np.array([run.gap for run in runs["dense"].values()])
    losses = ", ".join(f"{run.own:.4f}" for run in runs["dense"].values())
    lines += ["", f"Dense: held-out loss {losses}; {mean_text(gaps)} % over training loss."]
    return lines


def level_table(runs):
    """Held-out loss over dense by noise level, with the attention of training."""
    sigma = next(iter(runs["dense"].values())).sigma
    lines = ["| variant | " + " | ".join(f"σ {value:g}" for value in sigma) + " |",
             "|" + " --- |" * (1 + len(sigma))]
    for variant in runs:
        mean = over(runs, variant, "levels").mean(axis=0)
        lines.append(f"| `{variant}` | " + " | ".join(f"{value:+.2f}" for value in mean) + " |")
    return lines


def write_csv(path, part, runs, study):
    columns = ["part", "variant", "seed", "steps", "work", "own_loss", "dense_eval_loss", "train_loss",
               *(f"{what}_over_dense_percent" for what in FIGURES), "slope_percent", "gap_percent"]
    rows = []
    for variant, seeds in runs.items():
        differences = {what: over(runs, variant, what) for what in FIGURES}
        for place, (seed, run) in enumerate(seeds.items()):
            figures = [run.work, run.own, run.dense, run.training,
                       *(differences[what][place] for what in FIGURES), run.slope, run.gap]
            rows.append(dict(zip(columns, [part, variant, seed, study["steps"],
                                           *(f"{value:.6g}" for value in figures)])))
    replace_rows(path, part, columns, rows)


def plot(path, runs, study):
    """Held-out loss over dense against work, and training loss over dense along the steps."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(16, 7))
    colours = plt.colormaps["turbo"](np.linspace(0.05, 0.95, len(runs)))
    window = max(1, study["steps"] // 25)
    for colour, (variant, seeds) in zip(colours, runs.items()):
        if variant == "dense":
            continue
        finish = "-finish" in variant
        work = np.mean([run.work for run in seeds.values()])
        own = over(runs, variant, "own")
        left.errorbar(work, own.mean(), own.std(ddof=1) if len(own) > 1 else None, color=colour,
                      label=variant, marker="s" if finish else "o", capsize=3)
        curves = [np.convolve(100 * (run.loss - runs["dense"][seed].loss) / runs["dense"][seed].loss.mean(),
                              np.ones(window) / window, "valid") for seed, run in seeds.items()]
        right.plot(np.arange(window, study["steps"] + 1), np.mean(curves, axis=0), color=colour,
                   linestyle="--" if finish else "-")
    for axes in (left, right):
        axes.axhline(0, color="black", linewidth=0.8)
    left.set(xscale="log", xlim=(0.02, 1), xlabel="attention FLOPs over dense, while sparse",
             ylabel="% over dense", title="Held-out loss at the end (squares: after a dense finish)")
    right.set(xlabel="step", ylabel="over dense, % of dense's mean loss",
              title="Training loss, same samples and noise")
    figure.legend(*left.get_legend_handles_labels(), loc="center right", fontsize=8)
    figure.tight_layout(rect=(0, 0, 0.8, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=75)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", help="name of the part, as given to tail.sh")
    parser.add_argument("archives", type=pathlib.Path, nargs="+", metavar="ARCHIVE")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("results"))
    args = parser.parse_args()
    runs, studies, options = {}, [], {}
    for path in args.archives:
        studies.append(add_archive(path, runs))
        same = all(studies[0][key] == studies[-1][key] for key in ("steps", "trunk", "config", "settings"))
        if not same or any(options.setdefault(variant, settings) != settings
                           for variant, settings in studies[-1]["options"].items()):
            raise SystemExit(f"tail_table.py: {path} has other steps or options than {args.archives[0]}")
    if "dense" not in runs:
        raise SystemExit("tail_table.py: no archive has a run of the variant dense to compare with")
    # Runs of a seed whose dense run is missing have nothing to be compared with.
    runs = {variant: {seed: run for seed, run in sorted(seeds.items()) if seed in runs["dense"]}
            for variant, seeds in runs.items()}
    runs = {variant: runs[variant] for variant in options if runs.get(variant)}
    lines = main_table(runs, studies[0]) + ["", "Held-out loss over dense by noise level, %:", ""] + \
        level_table(runs)
    (args.results / f"study_tail_{args.part}.md").write_text("\n".join(lines) + "\n")
    write_csv(args.results / "study_tail.csv", args.part, runs, studies[0])
    plot(args.results / "images" / f"study_tail_{args.part}.png", runs, studies[0])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
