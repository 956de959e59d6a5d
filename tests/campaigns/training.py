"""What campaigns share: a small training that takes a few seconds, made in a scratch folder, and the
comparison of two of its runs bit for bit."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SETTINGS = """
checkpointing_steps: 3
checkpoints_total_limit: 2
validation_steps: 0
validation_at_end: false
num_frames: 5
height: 32
width: 32
fps: 12
codec.spatial_levels: 1
model: {preset: demo, num_layers: 2, num_attention_heads: 2, attention_head_dim: 32, ffn_dim: 64,
        text_dim: 32, text_len: 4}
train_batch_size: 1
lr: 1.0e-3
ema_decay: 0.99
threads: 1
data.workers: 1
sparse: {group: 16, chunk: 4, target_mass: 0, target_density: 0.25, min_keys: 0, list_memory: 0.3,
         min_mass: 0.3, profile_every: 5, measure_cost: false}
"""
# Of a step's line: all but times and memory.
COMPARED = ["step", "loss", "grad_norm", "lr", "loss_bins", "density", "sparse_blocks", "captured_mass"]


class Training:
    """A scratch folder with settings and a latent cache. Each run is a folder `run` in a separate folder, so
    that the files of two equal runs name the same paths."""

    def __init__(self, dsv):
        self.dsv = str(pathlib.Path(dsv).resolve())
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="dsv-campaign-"))
        clip = self.place / "clip.mp4"
        subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "testsrc=size=64x64:rate=12:duration=2",
                        str(clip)], check=True)
        (self.place / "settings.yaml").write_text(SETTINGS)
        self.check([self.dsv, "encode", str(clip), str(self.place / "cache"), "--config",
                    str(self.place / "settings.yaml")])

    def close(self):
        shutil.rmtree(self.place)

    @staticmethod
    def check(command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stderr}")

    def folder(self, name):
        return self.place / name / "run"

    def clear(self, name):
        shutil.rmtree(self.place / name, ignore_errors=True)
        (self.place / name).mkdir()

    def start(self, name, steps, *settings, **environment):
        """Starts a training whose output and errors can be read from the process it returns."""
        command = [self.dsv, "train", "../settings.yaml", "data.path=../cache", "output_dir=run",
                   f"max_train_steps={steps}", *settings]
        return subprocess.Popen(command, cwd=self.place / name, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True, env=os.environ | environment)

    def run(self, name, steps, *settings, **environment):
        """Returns the exit status, minus the signal if one ended it, and all that it said."""
        process = self.start(name, steps, *settings, **environment)
        try:
            errors = process.communicate(timeout=300)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return None, "no end in 300 s"
        return process.returncode, errors.strip()

    @staticmethod
    def last_line(said):
        return (said.splitlines() or [""])[-1]

    def resume(self, name, steps):
        return self.run(name, steps, "resume_from_checkpoint=latest")

    def lines(self, name):
        text = (self.folder(name) / "metrics.jsonl").read_text()
        return [[json.loads(line)[key] for key in COMPARED] for line in text.splitlines()]

    def difference(self, one, two, steps):
        """What differs between two runs of so many steps; "" where nothing does. Their settings may, by the
        word of how they were resumed."""
        if self.lines(one) != self.lines(two):
            return "metrics.jsonl"
        a, b = self.folder(one), self.folder(two)
        names = ["blocks.jsonl", "decisions.jsonl", "latest"]
        names += [str(path.relative_to(a)) for path in sorted((a / f"checkpoint-{steps}").rglob("*"))
                  if path.is_file() and path.name not in ("config.yaml", "manifest.json")]
        for name in names:
            if not (b / name).exists() or (a / name).read_bytes() != (b / name).read_bytes():
                return name
        left = [path.name for path in b.iterdir() if path.suffix in (".tmp", ".old")]
        return f"left: {left}" if left else ""
