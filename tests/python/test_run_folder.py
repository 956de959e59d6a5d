"""python -m dsv trains, and dsv.Run reads what the run wrote."""

import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy
except ImportError:
    print("SKIPPED: NumPy is not installed")
    sys.exit(77)
if not shutil.which("ffmpeg"):
    print("SKIPPED: ffmpeg, which makes the clip, is not installed")
    sys.exit(77)

import dsv

TRAIN = [
    "train",
    "data.path=clip.mp4",
    "output_dir=run",
    "max_train_steps=3",
    "model.num_layers=1",
    "threads=1",
    "num_frames=5",
    "height=32",
    "width=32",
    "num_inference_steps=2",
    "sparse.profile_every=1",
]


def program(*words, **more):
    return subprocess.run([sys.executable, "-m", "dsv", *words], capture_output=True, text=True, **more)


class OfARun(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        clip = [
            "ffmpeg",
            "-v",
            "error",
            "-f",
            "lavfi",
            "-i",
            "testsrc=size=64x64:rate=16:duration=1",
            "clip.mp4",
        ]
        subprocess.run(clip, cwd=cls.folder.name, check=True)
        config = pathlib.Path(__file__).parents[2] / "configs" / "demo.yaml"
        cls.done = program(*TRAIN[:1], str(config), *TRAIN[1:], cwd=cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        self.path = os.path.join(self.folder.name, "run")
        self.run_of = dsv.Run(self.path)

    def test_records(self):
        run = self.run_of
        self.assertEqual([line["step"] for line in run.metrics], [1, 2, 3])
        self.assertTrue(all(math.isfinite(line["loss"]) for line in run.metrics))
        self.assertGreater(len(run.blocks), 0)
        self.assertEqual(run.validation, [])
        self.assertIn("device", str(run.facts))
        self.assertEqual(list(run.checkpoints), [3])
        self.assertEqual(
            [(step, path.name) for step, path in run.samples.items()], [(3, "step-000003.mp4")]
        )

    def test_arrays(self):
        loss = self.run_of.arrays()["loss"]
        self.assertEqual(loss.dtype, numpy.float64)
        self.assertEqual(loss.tolist(), [line["loss"] for line in self.run_of.metrics])
        with self.assertRaisesRegex(ValueError, "expected one of metrics, blocks"):
            self.run_of.arrays("losses")

    def test_frame(self):
        try:
            import pandas
        except ImportError:
            with self.assertRaisesRegex(ImportError, "needs pandas"):
                self.run_of.frame()
            return
        self.assertIsInstance(self.run_of.frame(), pandas.DataFrame)
        self.assertEqual(self.run_of.frame()["step"].tolist(), [1, 2, 3])

    def test_torn_and_wrong_lines(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "metrics.jsonl")
            pathlib.Path(path).write_text('{"step": 1, "loss": 2}\n{"step": 2, "lo')
            self.assertEqual(dsv.Run(folder).metrics, [{"step": 1, "loss": 2}])
            pathlib.Path(path).write_text('{"step": 1}\n{"step" 2}\n{"step": 3}\n')
            with self.assertRaisesRegex(ValueError, "metrics.jsonl: line 2 is not JSON"):
                dsv.Run(folder).metrics

    def test_no_run(self):
        with self.assertRaisesRegex(FileNotFoundError, "no such run folder"):
            dsv.Run("/nowhere")
        with (
            tempfile.TemporaryDirectory() as folder,
            self.assertRaisesRegex(ValueError, "not a run folder"),
        ):
            dsv.Run(folder)


class Program(unittest.TestCase):
    def test_version_and_failure(self):
        self.assertIn(dsv.__version__, program("version").stdout)
        self.assertNotEqual(program("trian").returncode, 0)
        self.assertIn("train", program("trian").stderr)
        missing = program("version", env=os.environ | {"DSV_PROGRAM": "/nowhere/dsv"})
        self.assertEqual(missing.returncode, 1)
        self.assertIn("/nowhere/dsv cannot be started", missing.stderr)


if __name__ == "__main__":
    unittest.main()
