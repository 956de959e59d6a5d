#!/usr/bin/env python3
"""bit_flips.py DSV [--checkpoint N] [--cache N] [--seed N]: flips one bit of a checkpoint, or of a latent
cache, and continues with it.

A training resumed after a flip in its newest checkpoint must end with the same bits as one without a flip
(from an earlier checkpoint, or because nothing reads the changed bit), or report the damage. `dsv inspect`
must find each flip in the latents of a cache, and a training that reads the file must name it. No flip may
crash anything."""
import argparse
import collections
import random
import shutil
import subprocess
import sys

from training import Training

STEPS, CUT = 12, 9


class Campaign:
    def __init__(self, args):
        self.args = args
        self.choice = random.Random(args.seed)
        self.training = Training(args.dsv)
        self.faults = 0
        for name, steps in (("whole", STEPS), ("cut", CUT)):
            self.training.clear(name)
            result = self.training.resume(name, steps)
            if result[0] != 0:
                sys.exit(f"a training without failures: {result}")

    def fault(self, *told):
        self.faults += 1
        print("FAULT", *told)

    def flip(self, path):
        data = bytearray(path.read_bytes())
        bit = self.choice.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        return f"{path.name}, bit {bit}"

    def flip_of_checkpoint(self):
        """One in the newest of two checkpoints; its small files are as likely as its large ones."""
        self.training.clear("flipped")
        shutil.copytree(self.training.folder("cut"), self.training.folder("flipped"))
        files = [path for path in sorted((self.training.folder("flipped") / f"checkpoint-{CUT}").rglob("*"))
                 if path.is_file()]
        place = self.flip(self.choice.choice(files))
        status, said = self.training.resume("flipped", STEPS)
        last = self.training.last_line(said)
        if status is None or status < 0 or (status > 0 and not last.startswith("dsv:")):
            self.fault(place, status, last)
        if status != 0:
            return "ended with a sentence"
        differs = self.training.difference("whole", "flipped", STEPS)
        if differs:
            self.fault(place, differs, "differs")
        return "equal bits"

    def flip_of_cache(self):
        cache = self.training.place / "cache"
        path = self.choice.choice(sorted(cache.glob("*.safetensors")))
        before = path.read_bytes()
        place = self.flip(path)
        inspected = subprocess.run([self.args.dsv, "inspect", str(cache)], capture_output=True, text=True)
        self.training.clear("flipped")
        status, said = self.training.resume("flipped", STEPS)
        path.write_bytes(before)
        if inspected.returncode <= 0 or path.name not in inspected.stderr:
            self.fault(place, "dsv inspect:", inspected.returncode, inspected.stderr.strip())
        if status is None or status < 0:
            self.fault(place, "dsv train:", status, said)
        if path.name in said:
            return "named"
        if self.training.difference("whole", "flipped", STEPS):
            self.fault(place, "was trained on")
        return "not read"

    def repeat(self, count, what, one):
        found = collections.Counter(one() for _ in range(count))
        print(f"{count} flips in {what}: " + ", ".join(f"{n} {text}" for text, n in sorted(found.items())),
              flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsv")
    parser.add_argument("--checkpoint", type=int, default=100)
    parser.add_argument("--cache", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    campaign = Campaign(args)
    campaign.repeat(args.checkpoint, "a checkpoint", campaign.flip_of_checkpoint)
    campaign.repeat(args.cache, "the latents of a cache", campaign.flip_of_cache)
    print(f"{args.checkpoint + args.cache} flips, {campaign.faults} faults")
    campaign.training.close()
    sys.exit(campaign.faults > 0)


main()
