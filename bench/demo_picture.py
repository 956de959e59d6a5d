#!/usr/bin/env python3
"""demo_picture.py RUN OUT.png: the curves of a demo run, the clips it sampled while it learned, and the
nearest training clip.

Needs matplotlib, with the Pillow that comes with it, and the program ffmpeg."""
import io
import json
import os
import subprocess
import sys

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

COLUMNS = 9


def frames(path, side, rate=None):
    """The frames of a clip, (n, side, side, 3), at `rate` frames per second, or at the clip's rate."""
    filters = ([f"fps={rate}"] if rate else []) + [f"scale={side}:{side}:flags=area"]
    raw = subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-i", path, "-vf", ",".join(filters),
                          "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], check=True, capture_output=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, side, side, 3)


def settings(run):
    """Values of config.yaml, by key; sections are flattened with a dot."""
    values, section = {}, ""
    for line in open(os.path.join(run, "config.yaml")):
        key, colon, value = line.split("#")[0].rstrip().partition(":")
        if not colon:
            continue
        section = section if key.startswith(" ") else ""
        if not value.strip():
            section = key.strip() + "."
        values[section + key.strip()] = value.strip().strip("\"'")
    return values


def nearest(sample, folder, rate):
    """The window of a training clip with the least squared error to the sample."""
    best = None
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".mp4"):
            continue
        clip = frames(os.path.join(folder, name), sample.shape[1], rate)
        for first in range(len(clip) - len(sample) + 1):
            window = clip[first:first + len(sample)]
            error = np.mean((window.astype(float) - sample) ** 2)
            if best is None or error < best[0]:
                best = error, window
    return best[1]


def main(run, out):
    config = settings(run)
    side, rate = int(config["width"]), float(config["fps"])
    steps = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"))]
    blocks = [json.loads(line) for line in open(os.path.join(run, "blocks.jsonl"))]
    samples = sorted(name for name in os.listdir(os.path.join(run, "samples")) if name.endswith(".mp4"))
    rows = [(f"step {int(name[5:-4])}", frames(os.path.join(run, "samples", name), side)) for name in samples]
    rows.append(("nearest training clip", nearest(rows[-1][1], config["data.path"], rate)))

    figure = plt.figure(figsize=(8.8, 2.2 + 0.85 * len(rows)), dpi=100)
    curves, strips = figure.add_gridspec(2, 1, height_ratios=[2.2, len(rows)], hspace=0.3)
    grid = curves.subgridspec(1, 3, wspace=0.25)
    strips = strips.subgridspec(len(rows), 1, hspace=0.05)
    x = [step["step"] for step in steps]
    loss = np.array([step["loss"] for step in steps])
    width = 25
    axes = figure.add_subplot(grid[0, 0], title="loss")
    axes.plot(x, loss, color="0.75", linewidth=0.5)
    axes.plot(x[width - 1:], np.convolve(loss, np.ones(width) / width, "valid"), color="tab:blue")
    axes.set_ylim(0)
    axes = figure.add_subplot(grid[0, 1], title="keys attended / all keys", ylim=(0, 1.05))
    axes.plot(x, [step["density"] for step in steps], color="tab:blue")
    axes = figure.add_subplot(grid[0, 2], title="output error", ylim=(0, 1.05))
    for block in sorted({b["block"] for b in blocks}):
        own = [b for b in blocks if b["block"] == block and b["output_error"] is not None]
        axes.plot([b["step"] for b in own], [b["output_error"] for b in own], label=f"block {block}")
    axes.axhline(float(config["sparse.max_error"]), color="0.4", linestyle=":", linewidth=1)
    axes.legend(fontsize=7, loc="upper right")
    for row, (title, clip) in enumerate(rows):
        axes = figure.add_subplot(strips[row])
        axes.imshow(np.concatenate(list(clip[:COLUMNS]), axis=1), interpolation="nearest", aspect="equal")
        axes.set_ylabel(title, rotation=0, ha="right", va="center", fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
    drawn = io.BytesIO()
    figure.savefig(drawn, bbox_inches="tight")
    Image.open(drawn).convert("RGB").quantize(256).save(out, optimize=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
