"""The records of a run folder (docs/run_folder.md) as plain Python, NumPy or pandas."""

import json
import pathlib


class Run:
    """A run folder, also of a run that is active: every access reads the files again.

    run = dsv.Run("runs/mine")
    run.metrics[-1]["loss"]            # a dictionary for each step
    run.arrays()["loss"]               # NumPy
    run.frame("blocks")                # pandas
    """

    RECORDS = ("metrics", "blocks", "decisions", "validation")

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        if not self.folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such run folder")
        if not any((self.folder / name).exists() for name in ("run.json", "metrics.jsonl", "latest")):
            raise ValueError(
                f"{folder}: not a run folder, it has none of run.json, metrics.jsonl and latest"
            )

    def __repr__(self):
        return f"Run({str(self.folder)!r})"

    def records(self, name):
        """Returns the lines of NAME.jsonl as dictionaries; [] if the run wrote none. A last line that is
        being written is left out."""
        if name not in self.RECORDS:
            raise ValueError(f"the record is {name!r}, expected one of {', '.join(self.RECORDS)}")
        path, found = self.folder / f"{name}.jsonl", []
        if not path.exists():
            return found
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is not complete
            try:
                found.append(json.loads(line))
            except ValueError:
                raise ValueError(f"{path}: line {number} is not JSON") from None
        return found

    @property
    def metrics(self):
        """A dictionary for each step."""
        return self.records("metrics")

    @property
    def blocks(self):
        """A dictionary for each block and step that measured attention."""
        return self.records("blocks")

    @property
    def decisions(self):
        """A dictionary for each decision about attention."""
        return self.records("decisions")

    @property
    def validation(self):
        """A dictionary for each measurement of the held-out loss."""
        return self.records("validation")

    @property
    def facts(self):
        """run.json: what is known before the first step; {} if it is missing."""
        path = self.folder / "run.json"
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def samples(self):
        """The paths of the sampled clips, by step."""
        found = (self.folder / "samples").glob("step-*.mp4")
        return {
            int(path.stem.removeprefix("step-")): path
            for path in sorted(found, key=lambda path: int(path.stem.removeprefix("step-")))
        }

    @property
    def checkpoints(self):
        """The paths of complete checkpoints, by step."""
        found = {
            int(path.name.removeprefix("checkpoint-")): path
            for path in self.folder.glob("checkpoint-*")
            if path.name.removeprefix("checkpoint-").isdigit() and (path / "manifest.json").exists()
        }
        return dict(sorted(found.items()))

    def arrays(self, name="metrics"):
        """Returns the numbers of a record as NumPy arrays by name. A number that a line lacks is NaN."""
        import numpy

        lines = self.records(name)
        names = {
            key: None for line in lines for key, value in line.items() if isinstance(value, (int, float))
        }
        return {key: numpy.array([_number(line.get(key)) for line in lines]) for key in names}

    def frame(self, name="metrics"):
        """Returns a record as a pandas.DataFrame."""
        try:
            import pandas
        except ImportError:
            raise ImportError(
                "Run.frame needs pandas, which is not installed; Run.arrays needs NumPy only"
            ) from None
        return pandas.DataFrame(self.records(name))


def _number(value):
    return float(value) if isinstance(value, (int, float)) else float("nan")
