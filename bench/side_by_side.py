"""Code shared by the comparisons with PyTorch: clocks, running dsv in turns with PyTorch, medians, tables."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch

from record import append_line


def setting(words, key, default):
    """Value of an option: the last key=value counts, as in dsv."""
    found = [word.partition("=")[2] for word in words if word.partition("=")[0] == key]
    return found[-1] if found else default


def use_threads(wanted):
    """Sets PyTorch's threads as dsv does: 0 is one per core. Returns the number, to pass to dsv."""
    threads = int(wanted) or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    return threads


def clock(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def run_dsv(program, verb, words):
    """The figures of one `dsv bench`."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "figures.json")
        command = [program, "bench", verb, *map(str, words), "--json", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())


def medians(runs):
    """Median of each figure over several runs; values that are not numbers come from the first run."""
    def median(key):
        values = [run[key] for run in runs]
        return statistics.median(values) if isinstance(values[0], (int, float)) else values[0]
    return {key: median(key) for key in runs[0]}


def print_table(title, columns, rows, digits=1):
    """Prints rows (name, *numbers) with so many decimal digits; None is an empty cell."""
    print(f"\n{title}")
    widest = max(len(row[0]) for row in rows)
    print(" " * widest + "".join(f"{column:>11}" for column in columns))
    for name, *numbers in rows:
        cells = ("" if number is None else f"{number:.{digits}f}" for number in numbers)
        print(f"{name:<{widest}}" + "".join(f"{cell:>11}" for cell in cells))


def write_json(path, figures):
    if path:
        pathlib.Path(path).write_text(json.dumps(figures, indent=1) + "\n")


def add_record_flags(parser):
    parser.add_argument("--append", metavar="FILE", type=pathlib.Path,
                        help="add the figures to this file of results/, as one line")
    parser.add_argument("--table", metavar="NAME", help="table of the line, as in results/tables.json")


def record_rows(args, device, rows):
    """Appends one line for each of the rows (dicts of figures) if --append is given. Figures that are dicts
    or lists, those of single turns, are left out."""
    if not args.append:
        return
    if not args.table:
        raise SystemExit("--append needs --table NAME")
    for figures in rows:
        flat = {key: value for key, value in figures.items() if not isinstance(value, (dict, list))}
        append_line(args.append, args.table, ["python3", *sys.argv], device, flat)


def record(args, device, figures):
    record_rows(args, device, [figures])
