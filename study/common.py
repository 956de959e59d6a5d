"""Code shared by the study's programs: clips, checkpoints, and the columns that identify a measured case."""
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
