#!/usr/bin/env python3
"""test_plans.py: names of variants, the parts of study/tail.sh, the plans of study/wall.sh and
study/experts.sh, how learn.py runs a plan and continues runs, and the table of experts, with a program in
place of dsv that writes the files of a run at once."""
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import types

STUDY = pathlib.Path(__file__).resolve().parents[2] / "study"
sys.path.insert(0, str(STUDY))
import experts_plan  # noqa: E402
import experts_table  # noqa: E402
import learn  # noqa: E402
import variants  # noqa: E402

# A run's held-out loss tells its last step and range of noise levels: 1 for the single model (which measures
# itself in both ranges after its last step), 0.9 for experts of high noise, and 1.2 for those of low noise.
DSV = """#!/usr/bin/env python3
import json, pathlib, sys
options = dict(word.split("=", 1) for word in sys.argv[3:])
run, last = pathlib.Path(options["output_dir"]), int(options["max_train_steps"])
if run.parent.name.startswith("trunk"):
    last = int(options["checkpointing_steps"])  # learn.py stops it there
low, high = (float(options.get(key, end)) for key, end in (("sigma_min", 0), ("sigma_max", 1)))
single = run.parent.name.startswith("single")
assert not run.parent.name.startswith("single-") or (run / "latest").read_text() == f"checkpoint-{last}\\n"
loss = 1 if single else 0.9 if low > 0 else 1.2
record = run / "validation.jsonl"
if not record.exists() or f'"step": {last},' not in record.read_text():
    levels = [{"sigma": low + (high - low) * (k + 0.5) / 10, "loss": loss} for k in range(10)]
    with open(record, "a") as file:
        file.write(json.dumps({"step": last, "loss": loss, "bins": levels}) + "\\n")
(run / "metrics.jsonl").write_text(json.dumps({"step": last}) + "\\n")
(run / "blocks.jsonl").touch()
every = int(options.get("checkpointing_steps", last))
for step in {last, *range(every, last + 1, every)}:
    (run / f"checkpoint-{step}").mkdir(exist_ok=True)
"""


def run(program, *words):
    return subprocess.run([sys.executable, STUDY / program, *map(str, words)], capture_output=True, text=True)


def call(program, *words):
    done = run(program, *words)
    assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"
    return done.stdout


def option(options, key):
    return next(word.split("=")[1] for word in options if word.startswith(f"{key}="))


def test_wall_plan(work):
    """All runs of a plan take the same time."""
    times = {"dense": 20, "warmup": 24, "lists": 8, "end": 22}
    for name, ms in times.items():
        (work / "times" / name / "seed-0").mkdir(parents=True)
        lines = [json.dumps({"step_ms": 500 if step < 20 else ms}) for step in range(60)]
        (work / "times" / name / "seed-0" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    call("wall_plan.py", "train", work / "times", work / "wall.json", "--seconds", 300, "--runs", 9)
    variants = json.loads((work / "wall.json").read_text())["variants"]
    steps = {name: int(option(options, "max_train_steps")) for name, options in variants.items()}
    dense = steps["dense"] * times["dense"]
    assert 0.7 * 300e3 < 9 * dense < 300e3, steps
    for name, finish in (("lists", 0), ("lists-dense-end", 0.15)):
        first = int(option(variants[name], "sparse.warmup_steps"))
        assert abs(first - steps[name] / 10) <= 1, (name, first)
        last = finish * steps[name]
        took = first * 24 + last * 22 + (steps[name] - first - last) * 8
        assert abs(took - dense) < 24, (name, took, dense)


def test_share():
    """share_below is the distribution that docs/configuration.md describes (flow_shift, logit_normal)."""
    draw = random.Random(1)
    levels = [1 / (1 + math.exp(-draw.gauss(0, 1))) for _ in range(20000)]
    shifted = [experts_plan.SHIFT * u / (1 + (experts_plan.SHIFT - 1) * u) for u in levels]
    for boundary in experts_plan.BOUNDARIES:
        counted = sum(sigma < boundary for sigma in shifted) / len(shifted)
        assert abs(counted - experts_plan.share_below(boundary)) < 0.015, (boundary, counted)


def test_experts(work):
    """Experts train as many steps as one model, and the table compares them at their own noise levels."""
    (work / "clips").mkdir()
    for k in range(3):
        (work / "clips" / f"{k}.avi").touch()
    (work / "dsv").write_text(DSV)
    (work / "dsv").chmod(0o755)
    call("experts_plan.py", 60, 20, work / "plan.json")
    plan = json.loads((work / "plan.json").read_text())
    for pair in plan["pairs"]:
        steps = [int(option(plan["variants"][name], "max_train_steps")) for name in pair["experts"]]
        assert sum(steps) - pair["trunk"] == 60, pair
    call("learn.py", "--dsv", work / "dsv", "--clips", work / "clips", "--out", work / "runs", "--plan",
         work / "plan.json", "--steps", 60, "--trunk", 20, "--jobs", 8, "--seeds", "0")
    call("learn_pack.py", work / "runs", work / "runs.tar.gz")
    study, runs = experts_table.read_archive(work / "runs.tar.gz")
    assert set(name for name, _ in runs) == set(plan["variants"]), sorted(runs)
    for pair in plan["pairs"]:
        figures = experts_table.figures_of(experts_table.sides_of(pair, runs, 0))
        share = experts_plan.share_below(pair["boundary"])
        expected = {"high": -10, "low": 20, "drawn": 30 * share - 10, "alike": 30 * pair["boundary"] - 10}
        assert all(abs(figures[what] - value) < 1e-6 for what, value in expected.items()), (pair, figures)
    lines, rows = experts_table.tables("7m", study, runs)
    assert len(rows) == len(plan["pairs"]) and any("+20.00" in line for line in lines), lines


def test_finishes(work):
    """Dense finishes of three lengths continue the same run, whose other checkpoints are deleted."""
    names = ["dense", "lists5-query64", "lists5-query64-from10"]
    names += [name + ending for name in names[1:] for ending in variants.FINISHES]
    call("learn.py", "--dsv", work / "dsv", "--clips", work / "clips", "--out", work / "finishes",
         "--steps", 60, "--trunk", 30, "--jobs", 4, "--seeds", "0", "--variants", ",".join(names))
    kept = {name: sorted(learn.checkpoints(work / "finishes" / name / "seed-0"))
            for name in ["trunk-6", "trunk-30", *names]}
    assert kept.pop("trunk-6") == [6] and kept.pop("trunk-30") == [30], kept
    for name, steps in kept.items():
        assert steps == ([51, 54, 57] if name in names[1:3] else []), (name, steps)
    # A later call with a finish finds that the checkpoint is gone.
    words = ["--dsv", work / "dsv", "--clips", work / "clips", "--out", work / "later", "--steps", 60,
             "--seeds", "0"]
    call("learn.py", *words, "--variants", "lists5-query64")
    failed = run("learn.py", *words, "--variants", "lists5-query64-finish")
    assert failed.returncode == 1 and "step 51 was deleted" in failed.stderr, failed.stderr
    # A variant with a dense finish continues another variant, so learn.py trains both. study.json keeps the
    # options of variants from earlier calls.
    call("learn.py", *words, "--variants", "lists10-finish")
    options = json.loads((work / "later" / "study.json").read_text())["options"]
    for name in ("lists5-query64", "lists10", "lists10-finish"):
        assert options[name] == variants.options_of(name), name
    made = sorted(path.name for path in (work / "later").iterdir() if path.is_dir())
    assert made == ["lists10", "lists10-finish", "lists5-query64"], made


def test_parts_of_tail(work):
    """learn.py can read every variant that a part of tail.sh names; `echo` in place of Python prints them."""
    script = STUDY / "tail.sh"
    cases = re.findall(r"^([a-z0-9-]+(?: \| [a-z0-9-]+)*)\)", script.read_text(), re.M)
    parts = [part for case in cases for part in case.split(" | ")]
    assert {"7m", "100m-16k-rules", "cpu"} <= set(parts), parts
    table = variants.table_of(1000)
    for part in parts:
        done = subprocess.run(["sh", script, work, "10", "0", part], capture_output=True, text=True,
                              env={**os.environ, "PYTHON": "echo"})
        assert done.returncode == 0, (part, done.stderr)
        named = re.search(r"--variants (\S+)", done.stdout)[1].split(",")
        for name in named:
            assert name in table or variants.options_of(name), (part, name)  # options_of raises ValueError


def test_names_outside_of_the_table():
    """A name is read from left to right; each part changes the options of lists in tubes, and no others."""
    lists = dict(word.split("=") for word in variants.LISTS)
    cases = {
        "lists5": {"target_density": "0.05"},
        "lists6.25-key64-zcube-grain8-chunk4-keychunk2-from10-finish": {
            "target_density": "0.0625", "tail": "key", "tail_run": "64", "order": "zcube", "grain": "8",
            "chunk": "4", "key_chunk": "2", "dense_finish": "0.15"},
        "lists18.75-group128-query32-hilbert3d-rank64-finish10": {
            "target_density": "0.1875", "group": "128", "tail": "query", "tail_chunk": "32",
            "order": "hilbert3d", "rank": "64", "dense_finish": "0.1"},
        "lists10-pooled-topk-near-from10": {
            "target_density": "0.1", "selector": "pooled", "grain": "1", "rule": "topk",
            "explore_kind": "neighbours", "explore": "0.2"},
        "blocks10-coarse-finish5": {
            "target_density": "0.1", "selector": "pooled", "order": "cube", "group": "64", "grain": "64",
            "tail": "both", "tail_chunk": "64", "tail_run": "64", "dense_finish": "0.05"},
    }
    for name, changes in cases.items():
        expected = lists | {f"sparse.{key}": value for key, value in changes.items()}
        assert dict(word.split("=") for word in variants.options_of(name)) == expected, name


def test_refused_names(work):
    """The refusal names the variant as it was given, and the part without a meaning."""
    words = ["--list", "--variants"]
    for name, part in (("lists5-query64-qube-finish", "'qube'"), ("lists5-group", "'group'"),
                       ("lists5-query0", "'query0'"), ("lists5--cube", "''"), ("lists0-cube", "'lists0'"),
                       ("lists100.5", "'lists100.5'"), ("mass80-finish", "'mass80'"), ("lists", "'lists'"),
                       ("lists5-cube-zcube", "'zcube'"), ("lists5-cube-cube", "'cube'"),
                       ("lists5-finish-from10", "'finish' must stand at the end,"),
                       ("lists5-from10-cube", "'from10' must stand at the end,")):
        done = run("learn.py", *words, f"dense,{name}")
        assert done.returncode == 1 and done.stderr.count("\n") == 1, (name, done.stderr)
        assert f"is called {name}: its part {part} " in done.stderr, (name, done.stderr)
    # Patterns are for the table only, also when another variant was named.
    done = run("learn.py", *words, "lists5-cube,lists*")
    assert done.returncode == 1 and "lists* matches no variant of --list" in done.stderr, done.stderr
    # A plan replaces the table; names outside of it are not read.
    (work / "names.json").write_text(json.dumps({"variants": {"dense": []}}))
    done = run("learn.py", "--plan", work / "names.json", *words, "lists5")
    assert done.returncode == 1 and "lists5 matches no variant of the plan" in done.stderr, done.stderr


def test_stopped_runs_resume():
    """dsv ends with status 0 if SIGTERM stops it while it measures the held-out loss of the last step."""
    for status, fails in ((0, False), (130, False), (143, False), (1, True), (-9, True)):
        run = types.SimpleNamespace(title="a run", gpu=None, started=0, finished=lambda: False,
                                    last_words=lambda: "", process=types.SimpleNamespace(returncode=status))
        assert learn.announce(run, 0) == fails, status


with tempfile.TemporaryDirectory(prefix="dsv-test-") as folder:
    test_wall_plan(pathlib.Path(folder))
    test_share()
    test_experts(pathlib.Path(folder))
    test_finishes(pathlib.Path(folder))
    test_parts_of_tail(pathlib.Path(folder))
    test_refused_names(pathlib.Path(folder))
test_names_outside_of_the_table()
test_stopped_runs_resume()
