"""What the comparisons with PyTorch share: clocks, dsv run in turns with it, medians and tables."""
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch


def setting(words, key, default):
    """The last key=value of dsv's settings wins, as it does in dsv."""
    found = [word.partition("=")[2] for word in words if word.partition("=")[0] == key]
    return found[-1] if found else default


def use_threads(wanted):
    """As dsv: 0 is one thread a core. Returns the number, to be told to dsv."""
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
    """Of each figure over several runs; what is no number is taken from the first."""
    def median(key):
        values = [run[key] for run in runs]
        return statistics.median(values) if isinstance(values[0], (int, float)) else values[0]
    return {key: median(key) for key in runs[0]}


def print_table(title, columns, rows):
    """rows: (name, *numbers); None leaves a gap."""
    print(f"\n{title}")
    widest = max(len(row[0]) for row in rows)
    print(" " * widest + "".join(f"{column:>11}" for column in columns))
    for name, *numbers in rows:
        cells = ("" if number is None else f"{number:.1f}" for number in numbers)
        print(f"{name:<{widest}}" + "".join(f"{cell:>11}" for cell in cells))


def write_json(path, figures):
    if path:
        pathlib.Path(path).write_text(json.dumps(figures, indent=1) + "\n")
