#!/usr/bin/env python3
"""Compares the training losses of two runs with the difference that a second seed makes.

    compare_curves.py RUN REFERENCE OTHER_SEED [OTHER_SEED...]

RUN and REFERENCE are run folders of the same seed, on two devices or in two precisions; the others are of
other seeds. For every pair it prints the relative difference of the losses, step by step and as running means
over 20 steps. A second seed sees other samples and noise, so that its steps differ by much more than rounding
can do; the running means are the fairer bound. Fails unless RUN is nearer to REFERENCE than every other seed
in each of the figures. Needs only Python."""
import json
import pathlib
import sys

WINDOW = 20


def losses(folder):
    with open(pathlib.Path(folder) / "metrics.jsonl") as file:
        return [json.loads(line)["loss"] for line in file]


def running_means(values):
    return [sum(values[i:i + WINDOW]) / WINDOW for i in range(len(values) - WINDOW + 1)]


def differences(a, b):
    """(mean, greatest) relative difference."""
    each = [abs(x - y) / y for x, y in zip(a, b)]
    return sum(each) / len(each), max(each)


def compare(run, reference):
    """Prints the four figures of a pair of runs."""
    a, b = losses(run), losses(reference)
    if len(a) != len(b) or len(a) < WINDOW:
        sys.exit(f"compare_curves.py: {run} has {len(a)} steps, {reference} {len(b)}; wanted as many, "
                 f"at least {WINDOW}")
    figures = differences(a, b) + differences(running_means(a), running_means(b))
    print(f"{run} against {reference}, {len(a)} steps:\n"
          f"  step by step       mean {100 * figures[0]:8.4f} %   greatest {100 * figures[1]:8.4f} %\n"
          f"  running means      mean {100 * figures[2]:8.4f} %   greatest {100 * figures[3]:8.4f} %\n"
          f"  last {WINDOW} steps      {sum(a[-WINDOW:]) / WINDOW:.5f} and {sum(b[-WINDOW:]) / WINDOW:.5f}")
    return figures


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    run, reference, *others = sys.argv[1:]
    found = compare(run, reference)
    # Written so that a NaN fails.
    alike = all(mine < theirs for other in others for mine, theirs in zip(found, compare(other, reference)))
    print("alike: nearer than any other seed" if alike else "NOT alike: no nearer than another seed")
    return 0 if alike else 1


sys.exit(main())
