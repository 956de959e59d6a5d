#!/usr/bin/env python3
"""Trains one model under many rules of sparsity, with the same seed, data and steps, to compare losses.

    learn.py --dsv build/cpu/dsv --clips DIR --out runs/learn [--steps N] [--jobs J --threads T] [--gpus 0,1]
    learn.py --dsv build/cpu/dsv --clips DIR --out runs/learn --plan FILE.json
    learn.py --list

Every run is a folder OUT/VARIANT/seed-K with its own log.txt; learn_table.py makes a table and curves of all
runs. A third of the clips is held out; the loss on these clips is compared. The same command continues a
stopped study: finished runs are skipped, others resume from their newest checkpoint. With --time-limit the
program stops by itself; runs write a checkpoint, and no run starts that could not finish in time.
Checkpoints from which no run of the call continues are deleted, also those of finished runs. Small
models leave a GPU idle between kernels, so several jobs can share a GPU. key=value arguments go to every run.
Needs only Python and dsv.

With --trunk STEP the first STEP steps are trained once per seed, with dense attention. All variants continue
from its weights, optimizer moments and samples, so that they start when attention is already concentrated on
few keys. Variants whose names end in -from10 continue from a tenth of the steps, and those in -scratch train
all steps themselves. The variants VARIANT-finish, VARIANT-finish10 and VARIANT-finish5 continue VARIANT with
dense attention for the last 15, 10 and 5 % of the steps.

--variants and --once take names, and patterns for the names in the table of variants. A name outside of the
table is read from left to right: lists5-query64-cube-finish has lists of 5 % of the keys, one tail query for
64 queries, groups that are cubes, and a dense finish. --list prints the table and all parts of such names.

A plan is a JSON file {"variants": {NAME: [option, ...]}, "measures": {NAME: VARIANT}} with variants in
place of those of --list. max_train_steps among a variant's options is its own number of steps. A NAME of
`measures`, which is also in `variants`, trains nothing: it measures the held-out loss of the finished run
VARIANT with its own options, for example at other noise levels. Other keys of the plan are for the programs
that make tables; study.json holds the plan. The endings -finish, -finish10, -finish5, -from10 and -scratch
mean the same in a plan."""
import argparse
import csv
import fnmatch
import json
import math
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

from common import checkpoints, clips_of, steps_of
from variants import BARE, FINISHES, finish_of, grammar, options_of, table_of

HERE = pathlib.Path(__file__).resolve().parent
GRACE_S = 120  # time to finish a step, or a batch of the held-out loss, and to write a checkpoint

# ---- clips ----

def split_clips(clips, held_out):
    """(clips to train on, held-out clips), as absolute paths sorted by name."""
    paths = clips_of(clips)
    if held_out:
        unknown = set(held_out) - {path.name for path in paths}
        if unknown:
            sys.exit(f"learn.py: {clips} has no {', '.join(sorted(unknown))}")
        held = [path for path in paths if path.name in held_out]
    else:
        held = paths[1::3]
    rest = [path for path in paths if path not in held]
    if not held or not rest:
        sys.exit(f"learn.py: {clips} has {len(paths)} clips, too few to hold out every third")
    return rest, held


def write_list(path, clips):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["path"])
        writer.writerows([clip] for clip in clips)


def prepare(args):
    """Writes study.json and the lists of clips to OUT. Exits if OUT belongs to a study with other options."""
    train, held = split_clips(args.clips, args.held_out)
    study = {"steps": args.steps, "trunk": args.trunk, "settings": args.settings,
             "config": args.config.read_text(), "plan": args.plan,
             "train": [clip.name for clip in train], "held_out": [clip.name for clip in held]}
    path, old = args.out / "study.json", {}
    if path.exists():
        old = json.loads(path.read_text())
        differs = [key for key, value in study.items() if (old.get(key) or None) != (value or None)]
        if differs:
            sys.exit(f"learn.py: {args.out} is a study of other {', '.join(differs)}: name another --out")
    args.out.mkdir(parents=True, exist_ok=True)
    # Jobs that share a GPU slow each other down, so their times are not used.
    times = not args.gpus or args.jobs <= len(args.gpus)
    # Earlier calls may have named other variants outside of the table.
    about = {"times": times, "options": {**old.get("options", {}), **args.table}}
    path.write_text(json.dumps({**study, **about}, indent=1) + "\n")
    write_list(args.out / "train.csv", train)
    write_list(args.out / "held-out.csv", held)


# ---- runs ----

def early_step(args):
    """The step from which variants in -from10 continue."""
    return args.steps // 10


def finish_step(steps, ending):
    """The last step before the dense finish, as dsv rounds it."""
    return steps - int(FINISHES[ending] * steps + 0.5)


class Run:
    """One variant with one seed. It continues the run `origin` (None: it starts at step 0) from the
    checkpoint that `origin` writes at step `first`."""

    def __init__(self, args, name, seed, origin=None, first=0):
        self.folder = args.out / name / f"seed-{seed}"
        self.title = f"{name} seed {seed}"
        self.last = steps_of({"steps": args.steps, "options": args.table}, name)
        self.command = command_of(args, seed, self.folder) + args.table[name] + args.settings
        self.follow(origin, first)

    def follow(self, origin, first):
        self.origin, self.first, self.steps = origin, first, self.last - first
        self.kept, self.process, self.gpu = set(), None, None
        if origin:
            origin.kept.add(first)

    def checkpoint(self, step):
        return self.folder / f"checkpoint-{step}"

    def prune(self):
        """Deletes checkpoints from which no run continues. An unfinished run continues from the one that
        `latest` names, or will name soon: the newest."""
        found, latest = checkpoints(self.folder), self.folder / "latest"
        needed = set(self.kept)
        if not self.finished() and found:
            needed |= {max(found), int(latest.read_text().split("-")[1]) if latest.exists() else 0}
        for step in found.keys() - needed:
            shutil.rmtree(found[step])

    def ready(self):
        return not self.origin or self.origin.checkpoint(self.first).exists()

    def orphaned(self):
        """True if the run cannot start, because the run before it has finished without the checkpoint."""
        return not (self.ready() or (self.folder / "latest").exists()) and self.origin.finished()

    def finished(self):
        """True if the run wrote the held-out loss of its last step, which is its last output."""
        path = self.folder / "validation.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return bool(lines) and json.loads(lines[-1])["step"] == self.last

    def result(self):
        last = json.loads((self.folder / "validation.jsonl").read_text().splitlines()[-1])
        return f"held-out loss {last['loss']:.5f} after {last['step']} steps"

    def start(self, gpu):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.started, self.stopped, self.gpu = time.monotonic(), False, gpu
        settings = ["device=cuda"] if gpu else []
        if self.kept:
            settings += [f"checkpointing_steps={math.gcd(*self.kept)}", "checkpoints_total_limit=0"]
        if self.origin and not (self.folder / "latest").exists():
            self.origin.grow(self.folder, self.first)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu} if gpu else None
        with open(self.folder / "log.txt", "a") as log:
            self.process = subprocess.Popen(self.command + settings, env=environment, stdout=log,
                                            stderr=subprocess.STDOUT)

    def enough(self):
        """True if the run can be stopped before its last step."""
        return False

    def stop(self):
        """Sends SIGTERM once, which makes dsv write a checkpoint. A second signal would end dsv at once."""
        if not self.stopped:
            self.process.send_signal(signal.SIGTERM)
        self.stopped = True

    def grow(self, folder, step):
        """Fills the folder of a run as if the run had trained this run's steps up to `step` itself. A
        held-out loss of this step is left out, because the other run may measure it otherwise. `latest` is
        written last; without it the next call fills the folder again."""
        for path in self.folder.glob("*.jsonl"):
            last = step - (path.name == "validation.jsonl")
            with open(folder / path.name, "w") as copy:
                for line in path.read_text().splitlines(keepends=True):
                    # the last line may be incomplete, because this run may be writing it
                    if line.endswith("\n") and json.loads(line)["step"] <= last:
                        copy.write(line)
        checkpoint = self.checkpoint(step)
        shutil.copytree(checkpoint, folder / checkpoint.name, dirs_exist_ok=True)
        (folder / "latest").write_text(checkpoint.name + "\n")

    def last_words(self):
        lines = (self.folder / "log.txt").read_text().splitlines()
        return lines[-1] if lines else "the log is empty"


class Trunk(Run):
    """The steps that all runs of a seed share, up to step `last`. They run without a selector, so that any
    variant can continue."""

    def __init__(self, args, seed, last, origin=None, first=0):
        self.folder = args.out / f"trunk-{last}" / f"seed-{seed}"
        self.title = f"trunk seed {seed} to step {last}"
        self.last = last
        self.command = command_of(args, seed, self.folder) + args.settings + ["sparse.enabled=false"]
        self.follow(origin, first)

    def finished(self):
        return self.checkpoint(self.last).exists()

    def result(self):
        return f"{self.checkpoint(self.last).name} is written"

    def enough(self):
        return self.finished()


def command_of(args, seed, folder):
    return [args.dsv, "train", args.config, f"data.path={args.out / 'train.csv'}", f"seed={seed}",
            f"validation.data={args.out / 'held-out.csv'}", f"output_dir={folder}",
            f"max_train_steps={args.steps}", f"threads={args.threads}", "resume_from_checkpoint=latest",
            *BARE]


def announce(run, left):
    """Prints the result of a run whose process has ended. Returns True if the run failed."""
    seconds = time.monotonic() - run.started
    where = f" on GPU {run.gpu}" if run.gpu else ""
    if run.finished():
        print(f"{run.title}: {run.result()}, {seconds:.0f} s{where}; {left} runs left", flush=True)
        return False
    # 0: stopped while dsv measured the held-out loss of the last step; a resumed run measures this loss again
    if run.process.returncode in (0, 130, 143):
        print(f"{run.title}: stopped, will resume next time", flush=True)
        return False
    print(f"{run.title}: failed with exit status {run.process.returncode}: {run.last_words()}", flush=True)
    return True


def stop_all(running):
    for run in running:
        run.stop()
    deadline = time.monotonic() + GRACE_S
    for run in running:
        try:
            run.process.wait(max(deadline - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            run.process.kill()
            run.process.wait()


def least_used(gpus, running):
    """The GPU for one more run, or None without GPUs."""
    return min(gpus, key=lambda gpu: sum(run.gpu == gpu for run in running), default=None)


def next_run(args, waiting, pace):
    """The first run that can start now and would finish before the deadline, or None. The estimate is 0.8
    times the median pace of finished runs."""
    left = args.deadline - time.monotonic()
    seconds_a_step = 0.8 * statistics.median(pace) if pace else 0
    return next((run for run in waiting if run.ready() and seconds_a_step * run.steps < left), None)


def train(args, runs):
    """Keeps args.jobs runs going until all have finished or time is up. Returns how many failed."""
    waiting, running, pace, failed = list(runs), [], [], 0
    try:
        while time.monotonic() < args.deadline:
            while len(running) < args.jobs and (run := next_run(args, waiting, pace)):
                waiting.remove(run)
                run.start(least_used(args.gpus, running))
                running.append(run)
            if not running:
                break
            time.sleep(0.2)
            for run in running:
                if run.kept:
                    run.prune()
                if run.enough():
                    run.stop()
            for run in [run for run in running if run.process.poll() is not None]:
                running.remove(run)
                failed += announce(run, len(waiting) + len(running))
                run.prune()
                if run.finished() and run.steps > 0:
                    pace.append((time.monotonic() - run.started) / run.steps)
    finally:
        stop_all(running)
    for run in running:
        failed += announce(run, len(waiting))
    if waiting or running:
        print(f"{len(waiting) + len(running)} runs are unfinished; the same command continues them")
    return failed


def named_outside(args):
    """{name: options} of the variants outside of args.listed that --variants and --once name, and of those
    that they continue."""
    found = {}
    for name in (args.variants or []) + args.once:
        if fnmatch.filter(args.listed, name):
            continue
        if args.plan or set("*?[").intersection(name):
            sys.exit(f"learn.py: {name} matches no variant of {'the plan' if args.plan else '--list'}")
        try:
            found[name] = options_of(name)
        except ValueError as error:
            sys.exit(f"learn.py: {error}; see --list")
        if ending := finish_of(name):
            continued = name.removesuffix(ending)
            found[continued] = options_of(continued)
    return found


def choose(args):
    """Runs in order: trunks, runs without a trunk, other runs seed by seed, then the runs of --once."""
    def named(patterns):
        listed = {name for pattern in patterns for name in fnmatch.filter(args.listed, pattern)}
        return [name for name in args.table if name in listed or name in patterns]

    once = named(args.once)
    often = [name for name in named(args.variants or ["*"]) if name not in once]
    plan = [(name, seed) for seed in args.seeds for name in often] + [(name, args.seeds[0]) for name in once]
    return with_origins(args, plan)


def with_origins(args, plan):
    """The runs of `plan`, [(variant, seed)], and those that they continue: trunks first, then runs that only
    measure, which wait for others, then the longest."""
    made, measures = {}, args.plan.get("measures", {})

    def trunk(seed, step):
        if (seed, step) not in made:
            early = early_step(args)
            follows = step > early and any("-from10" in name for name, _ in plan)
            made[seed, step] = Trunk(args, seed, step, *((trunk(seed, early), early) if follows else ()))
        return made[seed, step]

    def origin_of(name, seed):
        """The run that variant `name` continues, and the step; () if it starts at step 0."""
        if name in measures:
            origin = run(measures[name], seed)
            return origin, origin.last
        if ending := finish_of(name):
            return run(name.removesuffix(ending), seed), finish_step(args.steps, ending)
        if args.trunk and not name.endswith("-scratch"):
            first = early_step(args) if name.endswith("-from10") else args.trunk
            return trunk(seed, first), first
        return ()

    def run(name, seed):
        if (name, seed) not in made:
            made[name, seed] = Run(args, name, seed, *origin_of(name, seed))
        return made[name, seed]

    for name, seed in plan:
        run(name, seed)
    return sorted(made.values(), key=lambda run: (not isinstance(run, Trunk), run.steps > 0, -run.steps))


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    path = pathlib.Path

    def words(text):
        return text.split(",")

    parser.add_argument("settings", nargs="*", metavar="key=value", help="options of every run")
    parser.add_argument("--dsv", type=path, help="path of the program dsv")
    parser.add_argument("--clips", type=path, help="folder of clips")
    parser.add_argument("--out", type=path, help="folder for the runs")
    parser.add_argument("--config", type=path, default=HERE / "learn.yaml",
                        help="configuration of model and data")
    parser.add_argument("--plan", type=lambda name: json.loads(path(name).read_text()), default={},
                        metavar="FILE", help="variants of this file in place of those of --list")
    parser.add_argument("--held-out", type=words, metavar="NAME,...",
                        help="names of held-out clips; default: every third clip")
    parser.add_argument("--variants", type=words, metavar="NAME,...",
                        help="names, or patterns of names in --list; default: all of --list")
    parser.add_argument("--once", type=words, default=[], metavar="NAME,...",
                        help="variants to run with the first seed only; they come last")
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in words(text)], default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=2000, help="steps of every run")
    parser.add_argument("--trunk", type=int, default=0, metavar="STEP",
                        help="number of steps that all runs of a seed share")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=0, help="threads of each run; 0: one per core")
    parser.add_argument("--gpus", type=words, default=[], metavar="N,...", help="GPUs to use")
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="S", help="in seconds")
    parser.add_argument("--list", action="store_true",
                        help="print the variants, their options, and the parts of other names")
    args = parser.parse_intermixed_args()
    args.listed = args.plan["variants"] if args.plan else table_of(args.steps)
    args.table = {**args.listed, **named_outside(args)}
    if not args.list and not (args.dsv and args.clips and args.out):
        parser.error("--dsv, --clips and --out are required")
    return args


def main():
    args = parse()
    if args.list:
        for name, settings in args.table.items():
            print(f"{name:22} {' '.join(settings)}")
        if not args.plan:
            print(f"\n{grammar()}")
        return 0
    args.deadline = time.monotonic() + args.time_limit
    args.out = args.out.resolve()
    # SIGTERM ends the program like Ctrl-C: runs write their checkpoints.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    prepare(args)
    runs = choose(args)
    left = [run for run in runs if not run.finished()]
    for run in left:
        if run.orphaned():
            sys.exit(f"learn.py: {run.title} continues {run.origin.title}, whose checkpoint of step "
                     f"{run.first} was deleted: delete {run.origin.folder} to train these steps again")
    print(f"{len(runs)} runs, {len(runs) - len(left)} of them finished", flush=True)
    return 1 if train(args, left) else 0


if __name__ == "__main__":
    sys.exit(main())
