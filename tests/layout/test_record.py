#!/usr/bin/env python3
"""test_record.py RECORD: bench/record.py appends what a benchmark wrote, and nothing after a failure."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

RECORD = pathlib.Path(sys.argv.pop(1)).absolute()
# Stands for `dsv bench`: takes flags, and writes figures where the last one says.
BENCH = """import json, sys
assert sys.argv[-2] == "--json"
json.dump({"device": "chip", "tokens": 64, "select_ms": 0.5, "gflops": None}, open(sys.argv[-1], "w"))
"""


class Record(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "speed.jsonl"

    def record(self, program, *flags):
        command = [sys.executable, RECORD, "--append", self.file, "--table", "speed", *flags, "--",
                   sys.executable, "-c", program, "--tokens", "64", "threads=1"]
        return subprocess.run(command, capture_output=True, text=True)

    def test_lines_are_appended(self):
        for _ in range(2):
            result = self.record(BENCH, "--set", "case=10 %", "--set", "group=128")
            self.assertEqual(result.returncode, 0, result.stderr)
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        self.assertEqual(len(lines), 2)
        line = lines[0]
        self.assertEqual(line["table"], "speed")
        self.assertTrue(line["command"].endswith("--tokens 64 threads=1"), line["command"])
        self.assertRegex(line["commit"], "^([0-9a-f]{7,}|v?[0-9].*|not recorded)")
        self.assertRegex(line["date"], r"^\d{4}-\d\d-\d\d$")
        self.assertTrue(line["machine"])
        self.assertEqual([line[key] for key in ("tokens", "select_ms", "gflops", "case", "group")],
                         [64, 0.5, None, "10 %", 128])
        self.assertNotIn("device", line)

    def test_nothing_is_recorded_of_a_failure(self):
        for program, words in (("raise SystemExit(3)", "ended with status 3"), ("pass", "wrote no figures")):
            result = self.record(program)
            self.assertEqual(result.returncode, 1)
            self.assertIn(words, result.stderr)
            self.assertFalse(self.file.exists())

    def test_figures_cannot_replace_the_origin(self):
        result = self.record(BENCH, "--set", "commit=another")
        self.assertEqual(result.returncode, 1)
        self.assertIn("commit is a field of every line", result.stderr)
        self.assertFalse(self.file.exists())


unittest.main()
