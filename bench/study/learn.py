#!/usr/bin/env python3
"""Does sparse attention learn as well? One model under many rules of sparsity: same seed, data and steps.

    learn.py --dsv build/cpu/dsv --clips DIR --out runs/learn [--steps N] [--jobs J --threads T] [--gpus 0,1]
    learn.py --list

Every run is a folder OUT/VARIANT/seed-K with its own log.txt; learn_table.py makes a table and curves of all.
A third of the clips is held out: their loss is what counts. The same command goes on where it was stopped:
finished runs are left alone, others resume from their newest checkpoint. --time-limit stops it in good order,
and then no run is begun that could not be finished. Small models leave a GPU idle between their kernels:
several jobs a GPU share it well. key=value arguments go to every run. Needs nothing but Python and dsv.
--trunk STEP trains up to there only once a seed, with dense attention. All variants go on from its weights,
moments and samples: what they differ in is then done to a model whose attention has had time to narrow. Only
variants that end in -scratch take all of their steps themselves."""
import argparse
import csv
import fnmatch
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

from common import clips_of

HERE = pathlib.Path(__file__).resolve().parent
GRACE_S = 120  # to finish a step, or a batch of the held-out loss, and write a checkpoint

# The guard's way: lists that hold a share of the mass; a block runs sparse while they hold nearly that.
# Single heads have no bound.
# Groups lie inside a frame unless a variant says otherwise.
FRAME, TUBE = ["sparse.order=hilbert"], ["sparse.order=tube"]
MASS = {mass: FRAME + [f"sparse.target_mass={mass / 100}", "sparse.target_density=0",
                       f"sparse.min_mass={mass / 100 - 0.05:.2f}", "sparse.min_head_mass=0"]
        for mass in (50, 60, 70, 80, 90, 95)}
# Whatever lists hold: ten per cent of the keys, from a step on.
TENTH = FRAME + ["sparse.target_mass=0", "sparse.target_density=0.1", "sparse.min_mass=0",
                 "sparse.max_density=1"]
BLOCKS = ["sparse.selector=pooled", "sparse.order=cube", "sparse.group=64", "sparse.grain=64"]


def variants(steps):
    """{name: settings}, in the order in which they are run."""
    early, late, end = (f"sparse.warmup_steps={int(steps * part)}" for part in (0.1, 0.5, 0.8))
    table = {"dense": [f"sparse.warmup_steps={steps + 1}"]}  # measured like the others, but never sparse
    table["dense-again"] = table["dense"]  # on a GPU sums run in any order: what two equal runs differ by
    for mass, settings in MASS.items():
        table[f"mass{mass}"] = settings
    table["tenth-early"] = TENTH + [early]
    table["tenth-late"] = TENTH + [late]
    table["twentieth-early"] = TENTH + ["sparse.target_density=0.05", early]
    for name, density in (("tenth", 0.1), ("fifth", 0.2)):  # of the keys, where they hold most of the mass
        table[f"{name}-guarded80"] = FRAME + ["sparse.target_mass=0", f"sparse.target_density={density}",
                                      "sparse.min_mass=0.8"]
    table["blocks-early"] = TENTH + BLOCKS + [early]
    table["blocks-late"] = TENTH + BLOCKS + [late]
    for mass, settings in MASS.items():
        table[f"mass{mass}-tube"] = settings + TUBE
    # 0.9 of the mass within 20 % of the keys, where that holds 0.3 of the mass, and 0.1 of every head's.
    for group in (64, 128):
        table[f"default-group{group}"] = [f"sparse.group={group}"]
        for percent in (15, 25, 30):  # of the keys at most, in place of 20
            table[f"default-group{group}-density{percent}"] = [f"sparse.group={group}",
                                                               f"sparse.target_density={percent / 100}"]
    table["default-group128-unguarded"] = ["sparse.group=128", "sparse.min_mass=0"]
    tenth_tube = TENTH + TUBE + [early]
    table["tenth-early-tube"] = tenth_tube
    table["tenth-late-tube"] = TENTH + TUBE + [late]
    table["fifth-early-tube"] = tenth_tube + ["sparse.target_density=0.2"]
    table["twentieth-early-tube"] = tenth_tube + ["sparse.target_density=0.05"]
    # Is it the frame, or that the queries of a group do not agree on their keys?
    table["tenth-early-group16"] = TENTH + ["sparse.group=16", early]
    for order in ("cube", "hilbert3d"):
        table[f"tenth-early-{order}"] = TENTH + [f"sparse.order={order}", early]
    for group in (128, 32):
        table[f"tenth-early-tube-group{group}"] = tenth_tube + [f"sparse.group={group}"]
    table["mass80-tube-group128"] = table["mass80-tube"] + ["sparse.group=128"]
    table["tenth-early-tube-topk"] = tenth_tube + ["sparse.rule=topk"]
    table["window-early-tube"] = tenth_tube + ["sparse.selector=window", "sparse.rule=topk"]
    for chunk in (4, 8):
        table[f"tenth-early-tube-chunk{chunk}"] = tenth_tube + [f"sparse.chunk={chunk}"]
    table["mass80-tube-scratch"] = table["mass80-tube"]
    table["tenth-early-tube-scratch"] = tenth_tube
    table["window-early"] = TENTH + ["sparse.selector=window", "sparse.rule=topk", early]
    table["random-early"] = TENTH + ["sparse.selector=window", "sparse.explore_kind=random",
                                     "sparse.explore=1", early]
    for kind in ("random", "neighbours", "blocks"):
        for percent in (1, 2, 5):
            table[f"mass90-{kind}{percent}"] = MASS[90] + [f"sparse.explore_kind={kind}",
                                                           f"sparse.explore={percent / 100}"]
    for kind in ("random", "blocks"):
        table[f"tenth-early-{kind}20"] = TENTH + [f"sparse.explore_kind={kind}", "sparse.explore=0.2", early]
    # The paper's two stages: the predictor learns beside dense attention, then chooses.
    table["predictor-mass90"] = MASS[90] + ["sparse.selector=predictor"]
    table["predictor-tenth-late"] = TENTH + ["sparse.selector=predictor", "sparse.rule=topk", late]
    table["tenth-end-tube"] = TENTH + TUBE + [end]
    table["predictor-tenth-end-tube"] = TENTH + TUBE + ["sparse.selector=predictor", "sparse.rule=topk", end]
    for kind, percent in (("random", 5), ("blocks", 20), ("neighbours", 5)):
        table[f"tenth-early-tube-{kind}{percent}"] = tenth_tube + [f"sparse.explore_kind={kind}",
                                                                   f"sparse.explore={percent / 100}"]
    return table


# ---- clips ----

def split_clips(clips, held_out):
    """(to train on, held out), as absolute paths by name."""
    paths = clips_of(clips)
    if held_out:
        unknown = set(held_out) - {path.name for path in paths}
        if unknown:
            sys.exit(f"learn.py: {clips} holds no {', '.join(sorted(unknown))}")
        held = [path for path in paths if path.name in held_out]
    else:
        held = paths[1::3]
    rest = [path for path in paths if path not in held]
    if not held or not rest:
        sys.exit(f"learn.py: {clips} holds {len(paths)} clips, too few to hold some of them out")
    return rest, held


def write_list(path, clips):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["path"])
        writer.writerows([clip] for clip in clips)


def prepare(args):
    """The lists of clips, unless OUT holds them; OUT must be of the same study."""
    train, held = split_clips(args.clips, args.held_out)
    study = {"steps": args.steps, "trunk": args.trunk, "settings": args.settings,
             "config": args.config.read_text(),
             "train": [clip.name for clip in train], "held_out": [clip.name for clip in held]}
    path = args.out / "study.json"
    if path.exists():
        old = json.loads(path.read_text())
        differs = [key for key, value in study.items() if old.get(key, 0) != value]
        if differs:
            sys.exit(f"learn.py: {args.out} is a study of other {', '.join(differs)}: name another --out")
    args.out.mkdir(parents=True, exist_ok=True)
    # On a GPU with several jobs at a time the times of a run tell nothing.
    times = not args.gpus or args.jobs <= len(args.gpus)
    path.write_text(json.dumps({**study, "times": times}, indent=1) + "\n")
    write_list(args.out / "train.csv", train)
    write_list(args.out / "held-out.csv", held)


# ---- runs ----

class Run:
    def __init__(self, args, name, seed):
        self.folder = args.out / name / f"seed-{seed}"
        self.title = f"{name} seed {seed}"
        self.trunk = Trunk(args, seed) if args.trunk and not name.endswith("-scratch") else None
        self.steps = args.steps - (args.trunk if self.trunk else 0)
        self.process = self.gpu = None
        self.command = command_of(args, seed, self.folder) + variants(args.steps)[name] + args.settings

    def ready(self):
        return not self.trunk or self.trunk.checkpoint.exists()

    def finished(self, steps):
        """The held-out loss after the last step is the last thing written."""
        path = self.folder / "validation.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return bool(lines) and json.loads(lines[-1])["step"] == steps

    def result(self):
        last = json.loads((self.folder / "validation.jsonl").read_text().splitlines()[-1])
        return f"held-out loss {last['loss']:.5f} after {last['step']} steps"

    def start(self, gpu):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.started, self.stopped, self.gpu = time.monotonic(), False, gpu
        settings = ["device=cuda"] if gpu else []
        if self.trunk and not (self.folder / "latest").exists():
            self.trunk.grow(self.folder)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu} if gpu else None
        with open(self.folder / "log.txt", "a") as log:
            self.process = subprocess.Popen(self.command + settings, env=environment, stdout=log,
                                            stderr=subprocess.STDOUT)

    def enough(self):
        """Whether it may be stopped before its end."""
        return False

    def stop(self):
        """Once: a second signal would end it at once."""
        if not self.stopped:
            self.process.send_signal(signal.SIGTERM)
        self.stopped = True

    def last_words(self):
        lines = (self.folder / "log.txt").read_text().splitlines()
        return lines[-1] if lines else "nothing was said"


class Trunk(Run):
    """The first steps of all runs of a seed. Without a selector, so that any can take over."""

    def __init__(self, args, seed):
        self.folder = args.out / "trunk" / f"seed-{seed}"
        self.title = f"trunk seed {seed}"
        self.checkpoint = self.folder / f"checkpoint-{args.trunk}"
        self.trunk = self.process = self.gpu = None
        self.steps = args.trunk
        self.command = command_of(args, seed, self.folder) + args.settings + [
            "sparse.enabled=false", f"checkpointing_steps={args.trunk}", "checkpoints_total_limit=0"]

    def finished(self, _steps):
        return self.checkpoint.exists()

    def result(self):
        return f"{self.checkpoint.name} is there"

    def enough(self):
        return self.checkpoint.exists()

    def grow(self, folder):
        """Makes the folder what it would be had its run taken the trunk's steps. dsv cuts off lines of later
        steps. `latest` comes last: without it the folder is made anew."""
        for path in self.folder.glob("*.jsonl"):
            shutil.copy(path, folder)
        shutil.copytree(self.checkpoint, folder / self.checkpoint.name, dirs_exist_ok=True)
        (folder / "latest").write_text(self.checkpoint.name + "\n")


def command_of(args, seed, folder):
    return [args.dsv, "train", args.config, f"data.path={args.out / 'train.csv'}", f"seed={seed}",
            f"validation.data={args.out / 'held-out.csv'}", f"output_dir={folder}",
            f"max_train_steps={args.steps}", f"threads={args.threads}", "resume_from_checkpoint=latest"]


def announce(run, steps, left):
    """What became of a run whose process has ended; whether it failed."""
    seconds = time.monotonic() - run.started
    where = f" on GPU {run.gpu}" if run.gpu else ""
    if run.finished(steps):
        print(f"{run.title}: {run.result()}, {seconds:.0f} s{where}; {left} runs left", flush=True)
        return False
    if run.process.returncode in (130, 143):
        print(f"{run.title}: stopped, goes on next time", flush=True)
        return False
    print(f"{run.title}: failed with {run.process.returncode}: {run.last_words()}", flush=True)
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
    """The first that can begin now and, at the pace of those before it, would end in time; the last ones have
    more room. None where there is none."""
    left = args.deadline - time.monotonic()
    seconds_a_step = 0.8 * statistics.median(pace) if pace else 0
    return next((run for run in waiting if run.ready() and seconds_a_step * run.steps < left), None)


def train(args, runs):
    """args.jobs at a time until all are done or time is up. Returns how many failed."""
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
                if run.enough():
                    run.stop()
            for run in [run for run in running if run.process.poll() is not None]:
                running.remove(run)
                failed += announce(run, args.steps, len(waiting) + len(running))
                pace += [(time.monotonic() - run.started) / run.steps] if run.finished(args.steps) else []
    finally:
        stop_all(running)
    for run in running:
        failed += announce(run, args.steps, len(waiting))
    if waiting or running:
        print(f"{len(waiting) + len(running)} runs are unfinished; the same command goes on")
    return failed


def choose(args):
    """Runs in order: trunks, what needs none, one seed of the rest before the next, then those of --once."""
    table = variants(args.steps)
    patterns = (args.variants or []) + args.once
    unknown = [pattern for pattern in patterns if not fnmatch.filter(table, pattern)]
    if unknown:
        sys.exit(f"learn.py: no variant is called {', '.join(unknown)}; --list tells which there are")

    def named(patterns):
        return [name for name in table if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]

    once = named(args.once)
    often = [name for name in named(args.variants or ["*"]) if name not in once]
    runs = [Run(args, name, seed) for seed in args.seeds for name in often] + \
           [Run(args, name, args.seeds[0]) for name in once]
    trunks = [Trunk(args, seed) for seed in args.seeds] if args.trunk else []
    return trunks + sorted(runs, key=lambda run: run.trunk is not None)


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    path = pathlib.Path

    def words(text):
        return text.split(",")

    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of every run")
    parser.add_argument("--dsv", type=path, help="the program")
    parser.add_argument("--clips", type=path, help="folder of clips")
    parser.add_argument("--out", type=path, help="where runs go")
    parser.add_argument("--config", type=path, default=HERE / "learn.yaml", help="model and data")
    parser.add_argument("--held-out", type=words, metavar="NAME,...", help="files; else every third clip")
    parser.add_argument("--variants", type=words, metavar="NAME,...", help="may hold * and ?; else all")
    parser.add_argument("--once", type=words, default=[], metavar="NAME,...",
                        help="variants of which the first seed will do; they come last")
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in words(text)], default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=2000, help="of every run")
    parser.add_argument("--trunk", type=int, default=0, metavar="STEP", help="which all runs of a seed share")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=0, help="of each run; 0: one a core")
    parser.add_argument("--gpus", type=words, default=[], metavar="N,...", help="to spread the jobs over")
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="S", help="in seconds")
    parser.add_argument("--list", action="store_true", help="tell the variants and their settings")
    args = parser.parse_intermixed_args()
    if not args.list and not (args.dsv and args.clips and args.out):
        parser.error("wanted --dsv, --clips and --out")
    return args


def main():
    args = parse()
    if args.list:
        for name, settings in variants(args.steps).items():
            print(f"{name:22} {' '.join(settings)}")
        return 0
    args.deadline = time.monotonic() + args.time_limit
    args.out = args.out.resolve()
    # SIGTERM ends it like Ctrl-C: runs write their checkpoints.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    prepare(args)
    runs = choose(args)
    left = [run for run in runs if not run.finished(args.steps)]
    print(f"{len(runs)} runs, {len(runs) - len(left)} of them finished", flush=True)
    return 1 if train(args, left) else 0


sys.exit(main())
