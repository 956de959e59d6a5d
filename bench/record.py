#!/usr/bin/env python3
"""Runs a `dsv bench` and appends its figures to a file of results, as one line.

    record.py --append FILE --table NAME [--set KEY=VALUE]... -- COMMAND...

COMMAND runs with `--json` added at its end, so `mpirun -n 2 dsv bench ...` works too. The line holds the
figures, the command, the commit of this checkout, the machine and the day (results/README.md explains it).
--set adds a field for a column that the figures do not fill; a VALUE that reads as a number is stored as one.
Needs only Python."""
import argparse
import datetime
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
UNKNOWN = "not recorded"


def output_of(*command):
    """The output of a program, or None if the program is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def commit():
    """The commit of this checkout; `-dirty` marks changes that are not committed."""
    return output_of("git", "describe", "--always", "--dirty") or UNKNOWN


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return UNKNOWN
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else UNKNOWN}, {len(os.sched_getaffinity(0))} cores"


def graphics():
    """Number and name of the GPUs, and their driver."""
    found = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    names = found.splitlines() if found else []
    if not names:
        return UNKNOWN
    name, _, driver = names[0].partition(", ")
    return f"{len(names)} x {name}, driver {driver}"


def machine(device):
    return graphics() if device == "cuda" else processor()


def append_line(path, table, command, device, figures):
    """Adds one line to a file of results. `figures` may not hold the fields that name their origin."""
    origin = {"table": table, "command": shlex.join(map(str, command)), "commit": commit(),
              "machine": machine(device), "date": datetime.date.today().isoformat()}
    clash = origin.keys() & figures.keys()
    if clash:
        raise SystemExit(f"{min(clash)} is a field of every line, and no figure")
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(origin | figures, ensure_ascii=False) + "\n")


def device_of(words):
    """The device of a `dsv bench`: `--device NAME`, `--device=NAME` or `device=NAME`, else the CPU."""
    device = "cpu"
    for i, word in enumerate(words):
        if word == "--device" and i + 1 < len(words):
            device = words[i + 1]
        elif word.startswith(("--device=", "device=")):
            device = word.partition("=")[2]
    return device


def value_of(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def figures_of(command):
    """Runs the command, whose output is shown, and returns its figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "figures.json")
        status = subprocess.run([*command, "--json", path]).returncode
        if status:
            raise SystemExit(f"record.py: {command[0]} ended with status {status}: nothing is recorded")
        if not path.exists():
            raise SystemExit(f"record.py: {command[0]} wrote no figures: nothing is recorded")
        return json.loads(path.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--append", metavar="FILE", type=pathlib.Path, required=True)
    parser.add_argument("--table", metavar="NAME", required=True,
                        help="table of the line, as in results/tables.json")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="a field to add")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    added = dict(word.partition("=")[::2] for word in args.set)
    figures = figures_of(args.command) | {key: value_of(text) for key, text in added.items()}
    # Drop the device that `dsv bench` reports; append_line() names the machine in more detail.
    figures.pop("device", None)
    append_line(args.append, args.table, args.command, device_of(args.command), figures)


if __name__ == "__main__":
    main()
