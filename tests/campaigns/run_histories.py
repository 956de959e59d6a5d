#!/usr/bin/env python3
"""run_histories.py DSV DIE_AT_CALL [--histories N] [--seed S] [--first N]: random histories of run folders.

A history is a row of starts of `dsv train` in two folders: fresh ones, resumed ones (from the newest
checkpoint, an earlier one, one of the other folder), starts that must be refused, starts that die at some
call that changes files; and changes to the folders in between, as by people and power failures. After each
start the folder must obey these rules:

- nothing is lost: every checkpoint, recorded line and config.yaml, in the folder or in
  superseded/. Only checkpoints beyond checkpoints_total_limit may be removed;
- the records of a folder lead, without a gap or a step twice, to the checkpoint that `latest` names, by the
  same starts that led to the checkpoint: each start has a different learning rate, which every line shows;
- the same steps give the same losses and weights, however often a run was stopped on the way;
- a start that is refused changes nothing, and leaves no folder where there was none.

DIE_AT_CALL is the library made from die_at_call.c. All choices follow from the seed; the first history that
breaks a rule is printed with its number and its starts."""
import argparse
import collections
import fcntl
import hashlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

SETTINGS = """
checkpointing_steps: 2
validation_at_end: false
validation.every: 3
validation.clips: 1
num_frames: 1
height: 16
width: 16
fps: 8
codec: {spatial_levels: 1, temporal_levels: 0}
model: {preset: demo, num_layers: 1, num_attention_heads: 1, attention_head_dim: 32, ffn_dim: 32,
        text_dim: 32, text_len: 1}
train_batch_size: 1
ema_decay: 0.9
warmup_steps: 0
threads: 1
data.workers: 1
sparse: {group: 16, chunk: 4, profile_every: 2, measure_cost: false, target_mass: 0, target_density: 0.25,
         min_keys: 0, list_memory: 1, min_mass: 0.1, max_density: 0.9}
"""
RECORDS = ["metrics.jsonl", "blocks.jsonl", "decisions.jsonl", "validation.jsonl"]
STEPS_MOST = 14
DIED = -9


class Broken(Exception):
    """A rule of the model."""


def want(holds, rule):
    if not holds:
        raise Broken(rule)


def identity(checkpoint):
    """Of all files of a checkpoint."""
    digest = hashlib.sha256()
    for path in sorted(p for p in checkpoint.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(checkpoint)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def weights(checkpoint):
    path = checkpoint / "transformer/diffusion_pytorch_model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def step_of(checkpoint):
    return int(checkpoint.name.split("-")[1])


def whole_lines(path):
    """The lines of a file that end and can be read."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [line for line in lines if line.startswith(b'{"step"') and line.endswith(b"}")]


class Picture:
    """What there is of a run folder at one moment."""

    def __init__(self, root):
        self.exists = root.exists()
        self.own = {step_of(c): c for c in root.glob("checkpoint-*")}
        kept = root.glob("superseded/*/checkpoint-*")
        self.identity = {c: identity(c) for c in [*self.own.values(), *kept]}
        self.kept = {self.identity[c] for c in self.identity if c.parent != root}
        self.lines = {name: whole_lines(root / name) for name in RECORDS}
        self.all_lines = {
            name: collections.Counter(self.lines[name] + [
                line for path in root.glob(f"superseded/*/{name}") for line in whole_lines(path)])
            for name in RECORDS}
        config = root / "config.yaml"
        self.config = config.read_text() if config.exists() else None
        self.kept_configs = {path.read_text() for path in root.glob("superseded/*/config.yaml")}
        # A save that was killed leaves a folder .checkpoint-<step>.tmp, which any start may remove.
        self.tree = {name: path.read_bytes() if path.is_file() else None
                     for path in root.rglob("*") for name in [str(path.relative_to(root))]
                     if not name.startswith(".checkpoint-")}

    def holds_run(self):
        """Not by what a start leaves that was killed before it had taken the folder over."""
        return any(name not in ("lock", "config.yaml", "samples", "superseded") and
                   not name.startswith(".") and not name.endswith(".tmp") for name in self.tree)

    def latest(self):
        text = self.tree.get("latest")
        return int(text.split(b"-")[1]) if text else None


class Folder:
    """A run folder and what the model knows of it. A lineage is the learning rate of every step so far."""

    def __init__(self, root):
        self.root = root
        self.gap = 0       # records of steps up to here may have been taken away
        self.base = 0      # the step after which the folder's records begin
        self.picture = Picture(root)

    def look(self):
        self.picture = Picture(self.root)
        return self.picture


class History:
    def __init__(self, args, place, seed, facts):
        self.args, self.place, self.facts = args, place, facts
        self.random = random.Random(seed)
        self.work = place / "history"
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        self.folders = [Folder(self.work / name) for name in "AB"]
        self.lineage = {}  # of each checkpoint's identity
        self.damaged = set()
        self.told = []
        self.starts = self.deaths = self.refusals = 0

    # -- starts

    def command(self, folder, settings, config=None):
        given = {"data.path": self.place / "cache", "validation.data": self.place / "cache",
                 "output_dir": folder.root, **settings}
        config = config or self.place / "run.yaml"
        return [self.args.dsv, "train", config, *(f"{key}={value}" for key, value in given.items())]

    def run(self, folder, settings, die_at=0, config=None):
        environment = dict(os.environ)
        if die_at:
            environment |= {"LD_PRELOAD": str(self.args.die_at_call), "DSV_DIE_AT": str(die_at)}
        self.told.append(f"{folder.root.name} {config or ''} {settings} die_at={die_at}")
        self.starts += 1
        done = subprocess.run([str(word) for word in self.command(folder, settings, config)], timeout=120,
                              env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        self.told.append(f"  -> {done.returncode}: {done.stdout[-600:]}")
        self.deaths += done.returncode == DIED
        return done

    def accepted(self, folder, settings, start, lineage, config=None):
        """A start that goes on after step `start`, reached by `lineage`; it may die."""
        rate = self.random.randint(1, 10**6) / 1e8
        die_at = self.random.choice([0, 0, self.random.randint(1, 60), self.random.randint(1, 500)])
        limit = self.random.choice([0, 0, 0, 1, 2, 3])
        most = min(STEPS_MOST, start + self.random.randint(0, 5))
        before = folder.look()
        done = self.run(folder, {"lr": repr(rate), "max_train_steps": most, "checkpoints_total_limit": limit,
                                 **settings}, die_at, config)
        after = folder.look()
        want(done.returncode in ([0, DIED] if die_at else [0]), "an acceptable start is not refused")
        if f"resuming after step {start} " not in done.stdout:
            want(done.returncode == DIED or start == 0, f"the run goes on after step {start}")
        self.nothing_lost(before, after, limit)
        self.note_checkpoints(after, start, lineage, rate, limit)
        self.consistent(folder)
        if done.returncode == 0:
            self.finished(after, max(most, start), rate)

    def note_checkpoints(self, picture, start, lineage, rate, limit):
        """Checkpoints that are there for the first time."""
        for path, found in picture.identity.items():
            if found in self.lineage or found in self.damaged:
                continue
            step = step_of(path)
            if limit and step < start:
                continue  # the start died while it removed this one, which is beyond the limit
            want(step >= start, "a new checkpoint is of a step that the start came to")
            self.lineage[found] = lineage + (rate,) * (step - start)
            same = self.facts.setdefault(("weights", self.lineage[found]), weights(path))
            want(same == weights(path), "the same steps give the same weights")

    def finished(self, picture, last, rate):
        """What a start that came to its end, step `last`, leaves."""
        want(picture.latest() == last, "latest names the last step")
        lines = picture.lines["metrics.jsonl"]
        want(not lines or json.loads(lines[-1])["step"] == last, "records end with the last step")
        config = dict(line.split(": ", 1) for line in picture.config.splitlines() if ": " in line)
        want(float(config["lr"]) == rate, "config.yaml holds the settings of the start")
        want(config["resume_from_checkpoint"] == '""', "config.yaml does not say where to resume")

    def refused(self, folder, settings, sentence, config=None):
        before = folder.look()
        done = self.run(folder, settings, config=config)
        after = folder.look()
        self.refusals += 1
        want(done.returncode in (1, 2), "the start is refused")
        want(sentence in done.stdout, f"the refusal says: {sentence}")
        want(after.exists == before.exists, "a refused start makes no folder")
        want(after.tree == before.tree, "a refused start changes nothing: " +
             str([p for p in {*before.tree, *after.tree} if before.tree.get(p, 0) != after.tree.get(p, 0)]))

    # -- rules

    def nothing_lost(self, before, after, limit):
        there = set(after.identity.values())
        for path, found in before.identity.items():
            if found in there:
                continue
            newer = [step for step in after.own if step > step_of(path)]
            want(limit and found not in before.kept and len(newer) >= limit, f"{path} is not lost")
        for name in RECORDS:
            lost = before.all_lines[name] - after.all_lines[name]
            want(not lost, f"lines of {name} are not lost: {list(lost)[:3]}")
        if before.config is not None:
            want(before.config in {after.config} | after.kept_configs, "config.yaml is not lost")
        want(before.kept_configs <= after.kept_configs, "superseded/ is not changed")

    def consistent(self, folder):
        """The records lead to the checkpoint that latest names."""
        picture = folder.picture
        latest = picture.latest()
        if latest is None or latest not in picture.own:
            want(latest is None, "latest names a checkpoint that is there")
            return
        newest = picture.identity[picture.own[latest]]
        if newest in self.damaged:
            return
        lineage = self.lineage[newest]
        want(len(lineage) == latest, "the model knows how the newest checkpoint came to be")
        rows = [json.loads(line) for line in picture.lines["metrics.jsonl"]]
        rows = [row for row in rows if row["step"] <= latest]
        steps = [row["step"] for row in rows]
        want(steps == sorted(set(steps)), f"no step is recorded twice: {steps}")
        expected = set(range(max(folder.gap, folder.base) + 1, latest + 1))
        want(expected <= set(steps), f"no step is missing: {steps}")
        for row in rows:
            step = row["step"]
            want(row["lr"] == lineage[step - 1], f"the line of step {step} is of the run's own past")
            same = self.facts.setdefault(("loss", lineage[:step]), row["loss"])
            want(same == row["loss"], f"the same steps give the same loss at step {step}")
        for name in RECORDS[1:]:
            kept = [json.loads(line)["step"] for line in picture.lines[name]]
            want(kept == sorted(kept), f"{name} is in order: {kept}")

    # -- what happens

    def newest_whole(self, folder):
        """(step, lineage) that resume_from_checkpoint=latest must find."""
        picture = folder.look()
        latest = picture.latest()
        steps = [s for s in picture.own if latest is None or s <= latest]
        for step in sorted(steps, reverse=True):
            found = self.lineage.get(picture.identity[picture.own[step]])
            if found is not None:
                return step, found
        return (-1, None) if picture.own else (0, ())  # all are damaged, or there is none

    def start_fresh(self, folder):
        if folder.look().holds_run():
            self.refused(folder, {"lr": 0.5}, "already holds a run")
            return
        folder.base = folder.gap = 0
        self.accepted(folder, {}, 0, ())

    def resume_latest(self, folder):
        step, lineage = self.newest_whole(folder)
        if folder.picture.own and step not in folder.picture.own:
            self.refused(folder, {"resume_from_checkpoint": "latest"}, "checkpoints is whole")
            return
        if step == 0:
            folder.base = 0
            folder.gap = 0
        config = folder.root / "config.yaml"
        self.accepted(folder, {"resume_from_checkpoint": "latest"}, step, lineage,
                      config if config.exists() and self.random.random() < 0.5 else None)

    def go_back(self, folder):
        picture = folder.look()
        whole = [s for s, c in picture.own.items() if picture.identity[c] in self.lineage]
        if not whole:
            return
        step = self.random.choice(whole)
        self.accepted(folder, {"resume_from_checkpoint": picture.own[step]}, step,
                      self.lineage[picture.identity[picture.own[step]]])

    def take_anothers(self, folder):
        """A checkpoint of the other folder, or one that was set aside."""
        other = self.folders[folder is self.folders[0]]
        picture = other.look()
        mine = folder.look()
        choices = [c for c in picture.identity if picture.identity[c] in self.lineage]
        choices += [c for c in mine.identity if c.parent != folder.root]
        if not choices:
            return
        path = self.random.choice(sorted(choices))
        if mine.holds_run():
            self.refused(folder, {"resume_from_checkpoint": path}, "is not a checkpoint of the run")
            return
        folder.base = folder.gap = step_of(path)
        lineage = self.lineage[picture.identity[path]]
        self.accepted(folder, {"resume_from_checkpoint": path}, step_of(path), lineage)

    def ask_wrongly(self, folder):
        step, _ = self.newest_whole(folder)
        if folder.picture.own and step not in folder.picture.own:
            self.refused(folder, {"resume_from_checkpoint": "latest"}, "checkpoints is whole")
            return
        wrong = [({"data.path": self.work / "nowhere"}, "nowhere"), ({"height": 17}, "17"),
                 ({"resume_from_checkpoint": self.work / "nowhere"}, "no such folder"),
                 ({"validation.data": self.work / "nowhere"}, "nowhere")]
        if folder.picture.own:
            wrong += [({"seed": 9}, "was trained with seed=0"), ({"model.ffn_dim": 64}, "ffn_dim")]
        settings, sentence = self.random.choice(wrong)
        self.refused(folder, {"resume_from_checkpoint": "latest", "lr": 0.5, **settings}, sentence)

    def start_by_old_config(self, folder):
        """As versions stored it: the checkpoint of the last resume in config.yaml."""
        picture = folder.look()
        config = folder.root / "config.yaml"
        if not picture.own or picture.config is None:
            return
        path = self.random.choice(sorted(picture.own.values()))
        config.write_text(picture.config.replace('from_checkpoint: ""', f"from_checkpoint: {path}"))
        self.refused(folder, {}, "is ignored", config)
        self.refused(folder, {}, "already holds a run", config)

    def while_another_works(self, folder):
        if not folder.look().exists or "lock" not in folder.picture.tree:
            return
        with open(folder.root / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.refused(folder, {"resume_from_checkpoint": "latest"}, "another process trains there")

    def lose_config(self, folder):
        (folder.root / "config.yaml").unlink(missing_ok=True)

    def lose_a_record(self, folder):
        (folder.root / self.random.choice(RECORDS)).unlink(missing_ok=True)
        folder.gap = STEPS_MOST

    def lose_the_end_of_records(self, folder):
        """As a power failure: what came after the newest checkpoint is cut, torn or zeros."""
        picture = folder.look()
        latest = picture.latest() or max(picture.own, default=0)
        for name in RECORDS:
            path = folder.root / name
            if not path.exists():
                continue
            kept, rest = b"", b""
            for line in path.read_bytes().splitlines(keepends=True):
                readable = line.endswith(b"}\n")
                if readable and json.loads(line)["step"] <= latest:
                    kept += line
                else:
                    rest += line
            cut = self.random.randint(0, len(rest))
            path.write_bytes(kept + self.random.choice([rest[:cut], rest[:cut] + b"\0" * (len(rest) - cut)]))

    def damage_newest(self, folder):
        step, _ = self.newest_whole(folder)
        if step not in folder.picture.own:
            return
        name = self.random.choice(["state.json", "sparse.safetensors", "config.yaml"])
        path = folder.picture.own[step] / name
        content = bytearray(path.read_bytes())
        content[self.random.randrange(len(content))] ^= 1
        path.write_bytes(content)
        self.damaged.add(identity(folder.picture.own[step]))

    def lose_latest(self, folder):
        """Which then is the newest there is."""
        picture = folder.look()
        if picture.own and max(picture.own) == picture.latest():
            (folder.root / "latest").unlink()

    def remove_folder(self, folder):
        shutil.rmtree(folder.root, ignore_errors=True)

    def happen(self):
        actions = [(self.start_fresh, 5), (self.resume_latest, 12), (self.go_back, 8),
                   (self.take_anothers, 5), (self.ask_wrongly, 3), (self.start_by_old_config, 1),
                   (self.while_another_works, 1), (self.lose_config, 1), (self.lose_a_record, 1),
                   (self.lose_the_end_of_records, 2), (self.damage_newest, 1), (self.lose_latest, 1),
                   (self.remove_folder, 1)]
        names, shares = zip(*actions)
        folder = self.folders[self.random.random() < 0.25]
        action = self.random.choices(names, shares)[0]
        self.told.append(f"# {action.__name__} in {folder.root.name}")
        action(folder)

    def tell(self):
        self.start_fresh(self.folders[0])
        for _ in range(self.random.randint(2, 7)):
            self.happen()
        self.resume_latest(self.folders[0])


def prepare(args, place):
    """A cached data set, made once."""
    (place / "run.yaml").write_text(SETTINGS)
    clip = place / "clip.mp4"
    source = "testsrc=size=32x32:rate=8:duration=2"
    subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", source, clip], check=True)
    subprocess.run([args.dsv, "encode", clip, place / "cache", "--config", place / "run.yaml"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dsv", type=pathlib.Path)
    parser.add_argument("die_at_call", type=pathlib.Path)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="begin with the history of this number")
    args = parser.parse_args()
    args.dsv, args.die_at_call = args.dsv.resolve(), args.die_at_call.resolve()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    count = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="dsv-test-", dir=memory) as place:
        place = pathlib.Path(place)
        prepare(args, place)
        facts = {}
        for number in range(args.first, args.first + args.histories):
            history = History(args, place, f"{args.seed}/{number}", facts)
            try:
                history.tell()
            except Exception as problem:
                print("\n".join(history.told))
                sys.exit(f"seed {args.seed}, history {number}: broken rule: {problem!r}")
            count.update(starts=history.starts, deaths=history.deaths, refusals=history.refusals)
    print(f"seed {args.seed}: {args.histories} histories, {count['starts']} starts, "
          f"{count['deaths']} of them killed, {count['refusals']} refused; no rule was broken")


if __name__ == "__main__":
    main()
