"""Code shared by the study's programs: clips, checkpoints, and the columns that identify a measured case."""
import csv
import json
import math
import statistics
import tarfile

VIDEO = {".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v", ".mpg", ".mpeg"}
KEY = ["part", "selector", "order", "group", "chunk", "grain", "rank", "source", "format", "rule", "target"]


def clips_of(folder):
    """Absolute paths of a folder's clips, sorted by name."""
    return sorted(path.resolve() for path in folder.iterdir() if path.suffix.lower() in VIDEO)


def split_clips(clips, out):
    """Writes train.csv and held-out.csv into `out`: every third clip, by name, is held out."""
    paths = clips_of(clips)
    for name, held_out in (("train", False), ("held-out", True)):
        rows = [path for i, path in enumerate(paths) if (i % 3 == 1) == held_out]
        (out / f"{name}.csv").write_text("path\n" + "".join(f"{path}\n" for path in rows))


def checkpoints(folder):
    """{step: folder} in ascending order of steps."""
    found = {int(path.name.split("-")[1]): path for path in folder.glob("checkpoint-*")}
    return dict(sorted(found.items()))


def steps_of(study, variant):
    """The last step of a variant. `study` has "steps" of all variants, and "options", {variant: [key=value,
    ...]}, in which max_train_steps is the variant's own."""
    own = [option.split("=")[1] for option in study["options"].get(variant, [])
           if option.startswith("max_train_steps=")]
    return int(own[-1]) if own else study["steps"]


def read_archive(path, file="validation"):
    """(study.json, {(variant, seed): lines of FILE.jsonl}) of an archive of learn_pack.py."""
    with tarfile.open(path) as archive:
        study, runs = json.load(archive.extractfile("study.json")), {}
        for name in archive.getnames():
            if name.endswith(f"/{file}.jsonl"):
                variant, seed, _ = name.split("/")
                lines = archive.extractfile(name).read().splitlines()
                runs[variant, int(seed.removeprefix("seed-"))] = [json.loads(line) for line in lines]
    return study, runs


def mean_text(values):
    """Mean and standard deviation of differences in per cent; - if there are none, or one is not a number."""
    if not len(values) or any(math.isnan(value) for value in values):
        return "-"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):+.2f}{spread}"


def replace_rows(path, part, columns, rows):
    """Writes a CSV whose first column is `part`. Rows of other parts stay."""
    if path.exists():
        with open(path, newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["part"] != part] + rows
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
