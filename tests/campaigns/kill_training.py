#!/usr/bin/env python3
"""kill_training.py DSV [--kills N] [--steps N] [--seed N]: kills a training with SIGKILL at random moments,
resumes it each time, and compares the result bit for bit with a run that was never killed: losses,
measurements, decisions, weights, their moving average, moments, sparse state. The training writes a
checkpoint every third step, so that many kills happen while one is written. The state of the killed training
waits in host memory, alone or with weights and gradients (offload=states or weights), so that kills also
happen while it travels; that of the other one stays on the device."""
import argparse
import collections
import random
import subprocess
import sys

from training import Training


def size_of(path):
    return path.stat().st_size if path.exists() else 0


def wait_for_kill(process, metrics, choice):
    """Waits for a moment between the start and some steps later. Whether the training ended before."""
    if choice.random() < 0.2:
        return ended_within(process, choice.uniform(0, 0.5))
    steps, size = choice.randint(1, 16), size_of(metrics)
    while steps > 0:
        if ended_within(process, 0.001):
            return True
        before, size = size, size_of(metrics)
        steps -= size > before
    return ended_within(process, choice.uniform(0, 0.03))


def ended_within(process, seconds):
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsv")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    choice = random.Random(args.seed)
    training = Training(args.dsv)
    training.clear("whole")
    training.clear("killed")
    whole = training.start("whole", args.steps)
    said = whole.communicate()[1]
    if whole.returncode != 0:
        sys.exit(f"the run to compare with: {said}")

    kills, found = 0, collections.Counter()
    while True:
        settings = [f"offload={choice.choice(['states', 'weights'])}"]
        if training.folder("killed").exists():
            settings.append("resume_from_checkpoint=latest")
        process = training.start("killed", args.steps, *settings)
        metrics = training.folder("killed") / "metrics.jsonl"
        if kills < args.kills and not wait_for_kill(process, metrics, choice):
            process.kill()
            process.communicate()
            kills += 1
            names = [path.name for path in training.folder("killed").glob("*")]
            found["a half-written checkpoint"] += any(name.startswith(".checkpoint-") for name in names)
            found["no checkpoint"] += not any(name.startswith("checkpoint-") for name in names)
            continue
        errors = process.communicate()[1]
        if process.returncode != 0:
            sys.exit(f"start after kill {kills}: status {process.returncode}: {errors.strip()[-400:]}")
        break
    differs = training.difference("whole", "killed", args.steps)
    told = "".join(f", {count} left {what}" for what, count in found.items())
    print(f"{kills} kills in {args.steps} steps{told}: {differs + ' differs' if differs else 'equal bits'}")
    training.close()
    sys.exit(bool(differs))


main()
