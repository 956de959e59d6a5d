#!/usr/bin/env python3
"""Writes the plan of experts.sh for learn.py: one model against two experts of the same size.

    experts_plan.py STEPS TRUNK PLAN.json

The high expert trains on noise levels above a boundary, the low expert below it. `single` is one model that
trains STEPS steps on all levels. The experts of a pair train as many steps together:

    high500-half, low500-half     half of the steps each, boundary 0.5; high875-half: boundary 0.875
    high500-share, low500-share   as many as the share of the single model's samples on its side

The pairs continue the first TRUNK steps of `single`, which count once, and those in -scratch begin at step 0.
The learning rate of each expert falls to 0 over its own steps, those of the trunk included. single-high500
and others measure the single model at the noise levels of an expert. Needs only Python."""
import json
import math
import pathlib
import statistics
import sys

BOUNDARIES = (0.5, 0.875)  # 0.875 is that of Wan 2.2 T2V-A14B
SHIFT = 3
OPTIONS = ["sparse.enabled=false", f"flow_shift={SHIFT}", "weighting_scheme=logit_normal", "logit_mean=0",
           "logit_std=1"]


def share_below(sigma):
    """The share of training's samples whose noise level is below sigma."""
    if sigma <= 0 or sigma >= 1:
        return min(max(sigma, 0), 1)
    drawn = sigma / (SHIFT - (SHIFT - 1) * sigma)  # the level before the shift
    return statistics.NormalDist().cdf(math.log(drawn / (1 - drawn)))


def sides(boundary):
    """{expert: options of its range of noise levels}"""
    return {f"high{1000 * boundary:.0f}": [f"sigma_min={boundary}"],
            f"low{1000 * boundary:.0f}": [f"sigma_max={boundary}"]}


def plan_of(steps, trunk):
    variants, measures, pairs = {"single": OPTIONS}, {}, []
    for boundary in BOUNDARIES:
        ranges = sides(boundary)
        for division, share in (("half", 0.5), ("share", 1 - share_below(boundary))):
            for ending, begin in (("", trunk), ("-scratch", 0)):
                high = round(share * (steps - begin))
                names = []
                for (expert, levels), own in zip(ranges.items(), (high, steps - begin - high)):
                    names.append(f"{expert}-{division}{ending}")
                    variants[names[-1]] = OPTIONS + levels + [f"max_train_steps={begin + own}"]
                pairs.append({"boundary": boundary, "steps": division, "trunk": begin, "experts": names,
                              "single": [f"single-{expert}" for expert in ranges]})
        for expert, levels in ranges.items():
            variants[f"single-{expert}"] = OPTIONS + levels
            measures[f"single-{expert}"] = "single"
    return {"variants": variants, "measures": measures, "pairs": pairs}


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    plan = plan_of(int(sys.argv[1]), int(sys.argv[2]))
    pathlib.Path(sys.argv[3]).write_text(json.dumps(plan, indent=1) + "\n")


if __name__ == "__main__":
    main()
