#!/usr/bin/env python3
"""Packs the losses of the finished runs of learn.py, without checkpoints, for tables made elsewhere.

    learn_pack.py OUT ARCHIVE.tar.gz

The archive holds study.json and for each run VARIANT/seed-K/validation.jsonl, and metrics.jsonl and
blocks.jsonl with the figures that programs make tables of. Unpack the archives of several calls into one
folder. A run counts as finished if validation.jsonl has the last step. Exits with status 1 if no run has
finished. Needs only Python."""
import io
import json
import pathlib
import sys
import tarfile

from common import steps_of

KEYS = {"metrics": ["step", "loss", "density", "captured_mass", "output_error", "step_ms", "loss_bins"],
        "blocks": ["step", "block", "sparse", "density", "captured_mass", "share90"]}


def rounded(value):
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def short(line, keys):
    """The figures of a line that the tables are made of, with six digits."""
    values = json.loads(line)
    return json.dumps({key: rounded(values.get(key)) for key in keys}, separators=(",", ":"))


def add(archive, name, text):
    data = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    out, packed = pathlib.Path(sys.argv[1]), 0
    study = (out / "study.json").read_text()
    with tarfile.open(sys.argv[2], "w:gz") as archive:
        add(archive, "study.json", study)
        for path in sorted(out.glob("*/seed-*/validation.jsonl")):
            lines, name = path.read_text().splitlines(), path.parent.relative_to(out)
            if not lines or json.loads(lines[-1])["step"] != steps_of(json.loads(study), name.parts[0]):
                continue
            add(archive, f"{name}/validation.jsonl", "\n".join(lines) + "\n")
            for file, keys in KEYS.items():
                kept = (path.parent / f"{file}.jsonl").read_text().splitlines()
                add(archive, f"{name}/{file}.jsonl", "".join(f"{short(line, keys)}\n" for line in kept))
            packed += 1
    size = pathlib.Path(sys.argv[2]).stat().st_size
    print(f"{sys.argv[2]}: {packed} finished runs, {size / 2**20:.1f} MiB")
    return 0 if packed else 1


sys.exit(main())
