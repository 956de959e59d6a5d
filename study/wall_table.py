#!/usr/bin/env python3
"""Makes tables from the archives of wall.sh.

    wall_table.py PART ARCHIVE.tar.gz ... [--results DIR]

Prints two tables and writes them to DIR/study_wall_PART.md, and the figures of each seed to
DIR/study_wall.csv (rows of other parts stay); DIR is `results` by default. Archives of one part hold
different seeds and may have different numbers of steps, as each call measures the times of steps. A run is
compared with the dense run of its seed, which takes the same time; the tables give mean and standard
deviation over seeds of these differences in per cent.

    ms            time of a step with a GPU alone, mean over the run
    own, dense    held-out loss at the end, with the attention of training and with dense attention
    training      training loss over the last tenth of the steps; the variants see different samples there

Needs numpy and matplotlib."""
import argparse
import pathlib

from common import mean_text, replace_rows, steps_of
from plotting import np
from tail_table import add_archive, level_table, over

FIGURES = {"own": "own attention, %", "dense": "dense attention, %", "training": "training, %"}
COLUMNS = ["part", "variant", "seed", "steps", "seconds", "own_loss", "dense_eval_loss", "train_loss",
           *(f"{what}_over_dense_percent" for what in FIGURES)]


def run_ms(variant, run, times):
    """Time of a run's step in ms, mean over its steps. `times`: {kind of step: ms}."""
    if variant == "dense":
        return times["dense"]
    steps = len(run.sparse)
    dense = np.where(np.arange(steps) < steps / 2, times["warmup"], times["end"])
    return np.where(run.sparse, times["lists"], dense).mean()


def seeds_table(runs, studies):
    """`studies`: {(variant, seed): study.json}."""
    seeds = list(runs["dense"])
    head = ["training", "steps", "ms", *(f"held-out loss, seed {seed}" for seed in seeds), *FIGURES.values()]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for variant, of_seed in runs.items():
        steps = sorted({len(run.loss) for run in of_seed.values()})
        ms = np.mean([run_ms(variant, run, studies[variant, seed]["plan"]["step_ms"])
                      for seed, run in of_seed.items()])
        cells = [f"`{variant}`", " to ".join(f"{number:,}" for number in (steps[0], steps[-1])[:len(steps)]),
                 f"{ms:.2f}", *(f"{of_seed[seed].own:.4f}" if seed in of_seed else "-" for seed in seeds),
                 *(mean_text(over(runs, variant, what)) for what in FIGURES)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def rows_of(part, runs, studies):
    rows = []
    for variant, seeds in runs.items():
        differences = [over(runs, variant, what) for what in FIGURES]
        for place, (seed, run) in enumerate(seeds.items()):
            study = studies[variant, seed]
            steps = steps_of(study, variant)
            seconds = steps * run_ms(variant, run, study["plan"]["step_ms"]) / 1000
            figures = [seconds, run.own, run.dense, run.training, *(values[place] for values in differences)]
            rows.append(dict(zip(COLUMNS, [part, variant, seed, steps,
                                           *(f"{value:.6g}" for value in figures)])))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", help="name of the part, as given to wall.sh")
    parser.add_argument("archives", type=pathlib.Path, nargs="+", metavar="ARCHIVE")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("results"))
    args = parser.parse_args()
    runs, studies = {}, {}
    for path in args.archives:
        found = {}
        study = add_archive(path, found)
        for variant, seeds in found.items():
            runs.setdefault(variant, {}).update(seeds)
            studies.update({(variant, seed): study for seed in seeds})
    if "dense" not in runs:
        raise SystemExit("wall_table.py: no archive has a run of the variant dense to compare with")
    order = [variant for variant in study["options"] if variant in runs]
    runs = {variant: {seed: run for seed, run in sorted(runs[variant].items()) if seed in runs["dense"]}
            for variant in order}
    runs = {variant: seeds for variant, seeds in runs.items() if seeds}
    lines = seeds_table(runs, studies) + ["", "Held-out loss over dense by noise level, %:", ""] + \
        level_table(runs)
    (args.results / f"study_wall_{args.part}.md").write_text("\n".join(lines) + "\n")
    replace_rows(args.results / "study_wall.csv", args.part, COLUMNS, rows_of(args.part, runs, studies))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
