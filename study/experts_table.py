#!/usr/bin/env python3
"""Makes tables from the archives of experts.sh.

    experts_table.py PART ARCHIVE.tar.gz ... [--results DIR]

Prints tables and writes them to DIR/study_experts_PART.md, and the figures of each seed to
DIR/study_experts.csv (rows of other parts stay); DIR is `results` by default. Archives of one part hold
different seeds. A pair of experts is compared with the single model of its seed on the same clips, noise and
noise levels, ten on each side of the boundary; each expert answers on its own side. The tables give mean and
standard deviation over seeds of the differences of held-out loss in per cent.

    as drawn      all levels, weighted by how often training draws them
    alike         all levels, weighted alike
    high, low     the levels of one side, weighted as drawn

Needs only Python."""
import argparse
import pathlib

from common import mean_text, read_archive, replace_rows, steps_of
from experts_plan import share_below

FIGURES = {"drawn": "as drawn, %", "alike": "alike, %", "high": "high, %", "low": "low, %"}
COLUMNS = ["part", "boundary", "division", "trunk", "steps_high", "steps_low", "seed", "single_loss",
           "pair_loss", *(f"{what}_over_single_percent" for what in FIGURES)]


class Side:
    """Losses of the runs of one side of the boundary at its noise levels. `low`, `high`: its range."""

    def __init__(self, low, high, single, expert):
        self.sigma = [level["sigma"] for level in single]
        if self.sigma != [level["sigma"] for level in expert]:
            raise SystemExit(f"experts_table.py: two runs from {low} to {high} have other noise levels")
        self.single, self.expert = ([level["loss"] for level in levels] for levels in (single, expert))
        edges = [low + (high - low) * k / len(single) for k in range(len(single) + 1)]
        self.drawn = [share_below(right) - share_below(left) for left, right in zip(edges, edges[1:])]
        self.alike = [(high - low) / len(single)] * len(single)


def weighted(sides, model, weights):
    """The sum over all levels of weight times loss."""
    return sum(weight * loss for side in sides
               for weight, loss in zip(getattr(side, weights), getattr(side, model)))


def over(sides, weights="drawn"):
    return 100 * (weighted(sides, "expert", weights) / weighted(sides, "single", weights) - 1)


def figures_of(sides):
    """{figure: experts over the single model in per cent}. `sides`: the high one, the low one."""
    return {"drawn": over(sides), "alike": over(sides, "alike"),
            "high": over(sides[:1]), "low": over(sides[1:])}


def sides_of(pair, runs, seed):
    """The two sides of a pair with one seed, or None if a run is missing."""
    if any((name, seed) not in runs for name in pair["single"] + pair["experts"]):
        return None
    ranges = (pair["boundary"], 1), (0, pair["boundary"])
    return [Side(low, high, runs[single, seed][-1]["bins"], runs[expert, seed][-1]["bins"])
            for (low, high), single, expert in zip(ranges, pair["single"], pair["experts"])]


def level_table(pairs):
    """Experts over the single model by noise level, for pairs of one boundary: [(name, {seed: sides})]."""
    sigma = [level for side in reversed(next(iter(pairs[0][1].values()))) for level in side.sigma]
    lines = ["| experts | " + " | ".join(f"σ {value:.3f}" for value in sigma) + " |",
             "|" + " --- |" * (1 + len(sigma))]
    for name, seeds in pairs:
        levels = [[100 * (expert / single - 1) for side in reversed(sides)
                   for expert, single in zip(side.expert, side.single)] for sides in seeds.values()]
        cells = [f"{sum(values) / len(values):+.2f}" for values in zip(*levels)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def tables(part, study, runs):
    """(lines of the tables, rows of the CSV)"""
    head = ["boundary", "steps of the pair", "shared steps", "steps of high", "of low", "samples of high",
            "seeds", *FIGURES.values()]
    lines, rows, by_boundary = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)], [], {}
    for pair in study["plan"]["pairs"]:
        found = {seed: sides_of(pair, runs, seed) for seed in sorted({seed for _, seed in runs})}
        seeds = {seed: sides for seed, sides in found.items() if sides}
        if not seeds:
            continue
        boundary, trunk = pair["boundary"], pair["trunk"]
        steps = [steps_of(study, name) - trunk for name in pair["experts"]]
        figures = {seed: figures_of(sides) for seed, sides in seeds.items()}
        cells = [f"{boundary:g}", pair["steps"], f"{trunk:,}", *(f"{number:,}" for number in steps),
                 f"{1 - share_below(boundary):.2f}", str(len(seeds)),
                 *(mean_text([of_seed[what] for of_seed in figures.values()]) for what in FIGURES)]
        lines.append("| " + " | ".join(cells) + " |")
        name = f"{pair['steps']}, {trunk:,} shared steps"
        by_boundary.setdefault(boundary, []).append((name, seeds))
        for seed, sides in seeds.items():
            losses = [weighted(sides, model, "drawn") for model in ("single", "expert")]
            rows.append(dict(zip(COLUMNS, [part, boundary, pair["steps"], trunk, *steps, seed, *(
                f"{value:.6g}" for value in [*losses, *figures[seed].values()])])))
    for boundary, pairs in by_boundary.items():
        lines += ["", f"Held-out loss over the single model by noise level, boundary {boundary:g}, %:", "",
                  *level_table(pairs)]
    return lines, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", help="name of the part, as given to experts.sh")
    parser.add_argument("archives", type=pathlib.Path, nargs="+", metavar="ARCHIVE")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("results"))
    args = parser.parse_args()
    studies, runs = [], {}
    for path in args.archives:
        study, found = read_archive(path)
        studies.append(study)
        runs.update(found)
        if any(study[key] != studies[0][key] for key in ("steps", "trunk", "config", "settings", "plan")):
            raise SystemExit(f"experts_table.py: {path} has other steps or options than {args.archives[0]}")
    lines, rows = tables(args.part, studies[0], runs)
    if not rows:
        raise SystemExit("experts_table.py: no archive has a pair of experts and the single model of a seed")
    losses = [f"{runs[key][-1]['loss']:.4f}" for key in sorted(runs) if key[0] == "single"]
    lines += ["", f"Single model: held-out loss {', '.join(losses)} after {studies[0]['steps']:,} steps, "
              "mean over ten levels from 0 to 1."]
    (args.results / f"study_experts_{args.part}.md").write_text("\n".join(lines) + "\n")
    replace_rows(args.results / "study_experts.csv", args.part, COLUMNS, rows)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
