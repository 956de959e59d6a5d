#!/usr/bin/env python3
"""failing_calls.py DSV FAILING_CALL [--each N] [--only CALL]: in each of many trainings one call that changes
files fails. The training must go on rightly, or end with a sentence and status; resumed, it must then end
with the bits of a training in which nothing failed, and leave no temporary file.

FAILING_CALL is the library made from failing_call.c. Of each kind of failure up to N calls are tried, evenly
over the run. Where a call takes something away, the training goes on from an earlier checkpoint, so that what
came after it is replaced."""
import argparse
import collections
import pathlib
import sys

from training import Training

STEPS, BACK = 12, 6
PLAN = [("write", "ENOSPC"), ("write", "EIO"), ("write", "SHORT"), ("write", "EINTR"), ("fsync", "EIO"),
        ("fsync", "ENOSPC"), ("fflush", "ENOSPC"), ("open", "EMFILE"), ("open", "ENOSPC"), ("open", "EACCES"),
        ("fopen", "EMFILE"), ("mkdir", "ENOSPC"), ("rename", "EIO"), ("rename", "ENOSPC"), ("unlink", "EIO"),
        ("rmdir", "EIO"), ("ftruncate", "EIO"), ("renameat2", "EIO"), ("renameat2", "ENOSYS")]


class Campaign:
    def __init__(self, args):
        self.args = args
        self.training = Training(args.dsv)
        self.library = str(pathlib.Path(args.failing_call).resolve())
        self.faults = 0
        for name in ("whole", "back"):
            self.training.clear(name)
        self.must(self.training.run("whole", STEPS))

    @staticmethod
    def must(result):
        if result[0] != 0:
            sys.exit(f"a training without failures: {result}")

    def go(self, call, error, number):
        """A training with a failing call; returns its result and how many such calls it made."""
        count = self.training.place / "count"
        count.unlink(missing_ok=True)
        self.training.clear("failed")
        settings = []
        if call in ("renameat2", "unlink", "rmdir"):
            self.must(self.training.run("failed", STEPS, "checkpoints_total_limit=0"))
            settings = [f"resume_from_checkpoint=run/checkpoint-{BACK}"]
        result = self.training.run("failed", STEPS, *settings, LD_PRELOAD=self.library, DSV_FAIL_CALL=call,
                                   DSV_FAIL_WITH=error, DSV_FAIL_AT=str(number), DSV_FAIL_COUNT=str(count))
        return result, int(count.read_text()) if count.exists() else 0

    def fault(self, *told):
        self.faults += 1
        print("FAULT", *told)

    def try_one(self, call, error, number):
        (status, said), _ = self.go(call, error, number)
        said = self.training.last_line(said)
        if status is None or status < 0:
            self.fault(call, error, number, f"status {status}: {said}")
            return "crashed"
        if status > 0 and not said.startswith("dsv:"):
            self.fault(call, error, number, f"no sentence: {said}")
        again = self.training.resume("failed", STEPS)
        if again[0] != 0:
            self.fault(call, error, number, f"first {said}, then resuming {again}")
            return "not resumed"
        differs = self.training.difference("whole", "failed", STEPS)
        if differs:
            self.fault(call, error, number, f"{differs} differs; first {said}")
        return "ended with a sentence" if status else "went on"

    def kind(self, call, error):
        (status, said), total = self.go(call, error, 0)
        self.must((status, self.training.last_line(said)))
        each = min(self.args.each, total)
        numbers = sorted({1 + i * (total - 1) // max(each - 1, 1) for i in range(each)})
        found = collections.Counter(self.try_one(call, error, number) for number in numbers)
        told = ", ".join(f"{count} {what}" for what, count in sorted(found.items()))
        print(f"{call} {error}: {total} calls, {len(numbers)} tried: {told}", flush=True)
        return len(numbers)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsv")
    parser.add_argument("failing_call")
    parser.add_argument("--each", type=int, default=12)
    parser.add_argument("--only", help="a call, such as fsync")
    args = parser.parse_args()
    campaign = Campaign(args)
    tried = sum(campaign.kind(call, error) for call, error in PLAN if args.only in (None, call))
    print(f"{tried} failing calls, {campaign.faults} faults")
    campaign.training.close()
    sys.exit(campaign.faults > 0 or tried == 0)


main()
