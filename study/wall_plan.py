#!/usr/bin/env python3
"""Writes the plans of wall.sh for learn.py.

    wall_plan.py times STEPS PLAN.json [--density D]
    wall_plan.py train TIMES PLAN.json --seconds S --runs N [--variants NAME,...] [--most STEPS] [--density D]

`times` plans runs that each have the GPU alone, to measure a step. `train` reads their folder TIMES and plans
the runs whose losses are compared. All take the same time with a GPU alone:

    dense            steps of dense attention only
    lists            dense attention for a tenth of the steps, then lists of the fraction D of the keys with
                     key tails
    lists-dense-end  the same with dense attention in the last 15 % of the steps
    lists-at-once    lists from the first step on
    lists-at-once-dense-end  the same with dense attention in the last 5 % of the steps

Every run begins at step 0, and its learning rate falls to 0 over its own steps. The dense run gets as many
steps, at most --most, as let N runs finish one after another in about S seconds on one GPU.
Needs only Python."""
import argparse
import json
import pathlib
import statistics

RULE = ["sparse.order=zcube", "sparse.grain=8", "sparse.group=64", "sparse.chunk=4", "sparse.tail=key",
        "sparse.tail_run=128", "sparse.target_mass=0", "sparse.min_mass=0", "sparse.min_head_mass=0",
        "sparse.max_density=1", "sparse.max_error=100", "sparse.max_head_error=100"]
DENSE = ["sparse.enabled=false"]
WARMUP, FINISH, SHORT_FINISH = 0.1, 0.15, 0.05  # fractions of dense steps at the beginning, and at the end
USED = 0.8  # fraction of S that is planned; the rest is for starts of programs and held-out losses
WINDOW = 20  # sparse.profile_every: so many steps contain one measurement of captured mass


def rule_of(density):
    """Options of lists that hold the fraction `density` of the keys."""
    return RULE + [f"sparse.target_density={density}"]


def time_variants(steps, rule):
    """`warmup` and `end` are steps of sparse runs with dense attention, at their beginning and end."""
    return {"dense": DENSE, "warmup": rule + [f"sparse.warmup_steps={steps + 1}"], "lists": rule,
            "end": rule + ["sparse.dense_finish=1"]}


def step_ms(folder):
    """Median over seeds and windows of WINDOW steps of the mean time of a step, without the first window."""
    means = []
    for path in sorted(folder.glob("seed-*/metrics.jsonl")):
        times = [json.loads(line)["step_ms"] for line in path.read_text().splitlines()]
        means += [statistics.mean(times[at:at + WINDOW])
                  for at in range(WINDOW, len(times) - WINDOW + 1, WINDOW)]
    if not means:
        raise SystemExit(f"wall_plan.py: {folder} has no run of at least {2 * WINDOW} steps")
    return statistics.median(means)


def train_plan(args):
    rule = rule_of(args.density)
    times = {name: step_ms(args.times / name) for name in time_variants(0, rule)}
    steps = min(args.most, int(USED * args.seconds * 1000 / (args.runs * times["dense"])))
    if steps < 1:
        raise SystemExit(f"wall_plan.py: {args.seconds:.0f} s are too short for a step of each run")

    def lists(warmup, finish):
        """A run over lists that takes as long as the dense run, if its attention is dense in the fractions
        `warmup` and `finish` of its steps, at its beginning and end."""
        mean = warmup * times["warmup"] + finish * times["end"] + (1 - warmup - finish) * times["lists"]
        number = round(steps * times["dense"] / mean)
        return rule + [f"max_train_steps={number}", f"sparse.warmup_steps={round(warmup * number)}",
                       f"sparse.dense_finish={finish}"]

    variants = {"dense": DENSE + [f"max_train_steps={steps}"], "lists": lists(WARMUP, 0),
                "lists-dense-end": lists(WARMUP, FINISH), "lists-at-once": lists(0, 0),
                "lists-at-once-dense-end": lists(0, SHORT_FINISH)}
    unknown = [name for name in args.variants if name not in variants]
    if unknown:
        raise SystemExit(f"wall_plan.py: {unknown[0]} is no variant; these are: {', '.join(variants)}")
    return {"variants": {name: variants[name] for name in args.variants}, "step_ms": times}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    path, verbs = pathlib.Path, parser.add_subparsers(required=True, dest="verb")
    times = verbs.add_parser("times")
    times.add_argument("steps", type=int)
    train = verbs.add_parser("train")
    train.add_argument("times", type=path)
    for verb in (times, train):
        verb.add_argument("plan", type=path)
        verb.add_argument("--density", type=float, default=0.05)
    train.add_argument("--seconds", type=float, required=True)
    train.add_argument("--runs", type=int, required=True)
    train.add_argument("--variants", type=lambda text: text.split(","),
                       default=["dense", "lists", "lists-dense-end"])
    train.add_argument("--most", type=int, default=100000)
    args = parser.parse_args()
    plan = train_plan(args) if args.verb == "train" else {
        "variants": time_variants(args.steps, rule_of(args.density))}
    args.plan.write_text(json.dumps(plan, indent=1) + "\n")
    if args.verb == "train":
        print("ms a step:", ", ".join(f"{name} {ms:.2f}" for name, ms in plan["step_ms"].items()))


if __name__ == "__main__":
    main()
