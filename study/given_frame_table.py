#!/usr/bin/env python3
"""Makes tables from archives of given_frame.sh: held-out loss of runs over lists against dense runs of the
same seed, with a given first latent frame and with noise in all frames; and what lists hold in dense runs.

    given_frame_table.py ARCHIVE.tar.gz ... [--out FILE.md]

Archives hold different seeds. Figures are mean and standard deviation over seeds of the difference of
held-out loss in per cent. Lists need no key of the given frame beyond those that they choose if both columns
are alike; the difference of two equal dense runs tells what alike means. What lists of 10 % of the keys hold
of exact attention, in per cent, is the mean over blocks at the last measurement. Needs only Python."""
import argparse
import pathlib
import statistics

from common import mean_text, read_archive

DENSE = {"given-dense": "first frame given", "noise-dense": "noise in all frames",
         "high-dense": "the same, noise levels from 0.875 on",
         "low-dense": "the same, noise levels up to 0.875"}
ROWS = {"keys": "single keys in tubes", "spans": "runs of 8 keys in cubes", "dense-again": "dense, again"}


def last_loss(lines):
    """The last held-out loss over all noise levels."""
    return lines[-1]["loss"]


def last_mass(lines):
    """What lists hold of exact attention, in per cent: the mean over blocks at the last measurement."""
    return 100 * statistics.mean(line["captured_mass"] for line in lines if line["step"] == lines[-1]["step"])


def masses(archives):
    """{variant: [captured mass of the seed in per cent, ...]} of dense runs."""
    found = {}
    for path in archives:
        _, blocks = read_archive(path, "blocks")
        for (variant, _), lines in blocks.items():
            if variant in DENSE:
                found.setdefault(variant, []).append(last_mass(lines))
    return found


def differences(archives):
    """{variant: [difference to the dense run of the seed in per cent, ...]}"""
    found = {}
    for path in archives:
        _, runs = read_archive(path)
        for (variant, seed), lines in runs.items():
            kind = variant.split("-")[0]
            dense = last_loss(runs[f"{kind}-dense", seed])
            found.setdefault(variant, []).append(100 * (last_loss(lines) / dense - 1))
    return found


def table_of(found):
    lines = ["| lists of 10 % | first frame given | noise in all frames | seeds |", "|---|---|---|---|"]
    for row, text in ROWS.items():
        cells = [mean_text(found[f"{kind}-{row}"]) if f"{kind}-{row}" in found else ""
                 for kind in ("given", "noise")]
        lines.append(f"| {text} | {cells[0]} | {cells[1]} | {len(found[f'given-{row}'])} |")
    return "\n".join(lines) + "\n"


def mass_table_of(found):
    lines = ["| dense run | attention that lists of 10 % hold, % | seeds |", "|---|---|---|"]
    lines += [f"| {text} | {mean_text(found[variant]).removeprefix('+')} | {len(found[variant])} |"
              for variant, text in DENSE.items() if variant in found]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", nargs="+", type=pathlib.Path, metavar="ARCHIVE")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    table = table_of(differences(args.archives)) + "\n" + mass_table_of(masses(args.archives))
    print(table, end="")
    if args.out:
        args.out.write_text(table)


main()
