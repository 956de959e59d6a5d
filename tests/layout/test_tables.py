#!/usr/bin/env python3
"""test_tables.py MAKE_TABLES: the script writes tables from results, and refuses what it must refuse."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

MAKE_TABLES = pathlib.Path(sys.argv.pop(1)).absolute()
ROW = {"table": "speed", "command": "dsv bench", "commit": "a1", "machine": "one GPU", "date": "2026-01-02"}
COLUMNS = [["tokens", "{tokens:,}"], ["ms", "{least} to {most}", "{ms:.1f}"]]
PAGE = "# Page\n\n`<!-- table: x -->` begins one.\n\n<!-- table: speed -->\n<!-- end of table -->\n\nAfter.\n"


class Tables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("docs", "results"):
            (self.root / name).mkdir()
        self.page = self.root / "docs" / "page.md"
        self.page.write_text(PAGE)
        self.describe({"speed": {"columns": COLUMNS}})
        self.record(ROW | {"tokens": 4096, "ms": 1.25}, ROW | {"tokens": 1024, "ms": 0.5})

    def describe(self, tables):
        (self.root / "results" / "tables.json").write_text(json.dumps(tables))

    def record(self, *rows):
        (self.root / "results" / "speed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run_script(self, *flags):
        command = [sys.executable, MAKE_TABLES, *flags, self.root]
        result = subprocess.run(command, capture_output=True, text=True)
        self.assertNotIn("Traceback", result.stderr)
        return result.returncode, result.stderr

    def write(self):
        status, message = self.run_script()
        self.assertEqual(status, 0, message)
        return self.page.read_text()

    def assert_refused(self, words, *flags):
        before = self.page.read_text()
        status, message = self.run_script(*flags)
        self.assertEqual(status, 1, message)
        self.assertIn(words, message)
        self.assertEqual(self.page.read_text(), before)

    def test_a_table_is_written_and_passes_the_check(self):
        self.assert_refused("docs/page.md: table speed", "--check")
        text = self.write()
        self.assertIn("| tokens | ms |\n| --- | --- |\n| 4,096 | 1.2 |\n| 1,024 | 0.5 |\n", text)
        self.assertIn("Machine: one GPU. Commit: a1. Command: `dsv bench`. Recorded: 2026-01-02. "
                      "Data: [speed.jsonl](../results/speed.jsonl).", text)
        self.assertTrue(text.startswith(PAGE.partition("<!-- end")[0]))
        self.assertTrue(text.endswith("<!-- end of table -->\n\nAfter.\n"))
        self.assertEqual(self.run_script("--check")[0], 0)
        self.assertEqual(self.write(), text)

    def test_a_table_edited_by_hand_fails(self):
        self.page.write_text(self.write().replace("| 0.5 |", "| 0.4 |"))
        self.assert_refused("docs/page.md: table speed", "--check")

    def test_a_new_figure_fails_the_check(self):
        self.write()
        self.record(ROW | {"tokens": 4096, "ms": 1.25}, ROW | {"tokens": 1024, "ms": 0.7})
        self.assert_refused("docs/page.md: table speed", "--check")

    def test_mixed_commits_or_machines_need_a_column(self):
        for field, other in (("commit", "b2"), ("machine", "another GPU")):
            self.describe({"speed": {"columns": COLUMNS}})
            self.record(ROW | {"tokens": 4096, "ms": 1}, ROW | {"tokens": 1024, "ms": 2, field: other})
            self.assert_refused(f"table speed mixes rows of {field}")
            self.assert_refused(f"table speed mixes rows of {field}", "--check")
            self.describe({"speed": {"columns": [*COLUMNS, [field, f"{{{field}}}"]]}})
            self.assertIn(f"| 1,024 | 2.0 | {other} |", self.write())

    def test_origin_is_required(self):
        for field in ("command", "commit", "machine", "date"):
            self.record({key: value for key, value in ROW.items() if key != field} | {"tokens": 1, "ms": 1})
            self.assert_refused(f'results/speed.jsonl:1: no "{field}"')

    def test_unknown_tables_and_fields(self):
        self.record(ROW | {"tokens": 1, "ms": 1}, ROW | {"table": "sped", "tokens": 1, "ms": 1})
        self.assert_refused("results/speed.jsonl:2: results/tables.json describes no table sped")
        self.record(ROW | {"tokens": 1})
        self.assert_refused("table speed: no row has the figures of column ms")
        self.record(ROW | {"tokens": "many", "ms": 1, "least": 1, "most": 2})
        self.assert_refused("results/speed.jsonl:1: {tokens:,}: ")
        (self.root / "results" / "speed.jsonl").write_text("{\n")
        self.assert_refused("results/speed.jsonl:1: not JSON")

    def test_markers_come_in_pairs(self):
        for page, words in ((PAGE.replace("<!-- end of table -->\n", ""), "<!-- table: speed --> has no end"),
                            (PAGE + "<!-- end of table -->\n", "docs/page.md:9: <!-- end of table -->"),
                            (PAGE.replace("table: speed", "table: sped"), "describes no table sped")):
            self.page.write_text(page)
            self.assert_refused(words)

    def test_templates_fall_back_and_cells_stay_empty(self):
        self.record(ROW | {"tokens": 1, "ms": 2}, ROW | {"tokens": 2, "least": 3, "most": 4},
                    ROW | {"tokens": 3, "ms": None})
        self.assertIn("| 1 | 2.0 |\n| 2 | 3 to 4 |\n| 3 |  |\n", self.write())

    def test_the_newest_line_of_a_key_counts(self):
        self.record(ROW | {"tokens": 1, "ms": 1}, ROW | {"tokens": 2, "ms": 2}, ROW | {"tokens": 1, "ms": 3})
        self.describe({"speed": {"columns": COLUMNS, "key": ["tokens"]}})
        self.assertIn("| --- | --- |\n| 1 | 3.0 |\n| 2 | 2.0 |\n\n", self.write())

    def test_order_where_and_derived_figures(self):
        self.record(ROW | {"tokens": 4, "ms": 1, "dense": 9}, ROW | {"tokens": 2, "ms": 2, "dense": 3},
                    ROW | {"tokens": 1, "ms": 2, "dense": 3, "gpus": 2})
        self.describe({"speed": {"columns": COLUMNS}, "part": {
            "from": "speed", "where": {"dense": 3}, "order": ["tokens"],
            "derive": {"both": {"sum": ["ms", "dense"]}, "gain": {"ratio": ["dense", "ms"]}},
            "columns": [["tokens", "{tokens}"], ["both", "{both}"], ["gain", "{gain:.1f}"]]}})
        self.page.write_text(PAGE.replace("speed", "part"))
        self.assertIn("| --- | --- | --- |\n| 1 | 5 | 1.5 |\n| 2 | 5 | 1.5 |\n\n", self.write())

    def test_rows_of_other_tables(self):
        entry = {"from": "speed", "where": {"tokens": 1024}, "texts": {"what": "of {tokens:,} tokens"}}
        tables = {"speed": {"columns": COLUMNS},
                  "summary": {"rows": [entry], "columns": [["what", "{what}"], ["ms", "{ms}"]]}}
        self.describe(tables)
        self.page.write_text(PAGE.replace("speed", "summary"))
        self.assertIn("| of 1,024 tokens | 0.5 |\n", self.write())
        entry["where"] = {"tokens": 5}
        self.describe(tables)
        self.assert_refused("summary: 0 rows of speed have {'tokens': 5}, not one")


unittest.main()
