#!/usr/bin/env python3
"""Samples one clip in dsv, densely and over lists, and in diffusers, one after another on one machine.

    torch_sample.py FOLDER --dsv PROGRAM [--device cuda] [--runs dsv,sparse,eager,compiled] [key=value]...

Prints one JSON line for each run as soon as the run has ended: seconds of a step (with guidance: two
passes), of decoding, of both for all steps, of the whole run, and the peak of memory in MiB. `dsv` tells its
own times; its whole run holds loading, too. diffusers walks --torch-steps steps only, after two steps that
are not timed; its total for all steps is extrapolated, and `extrapolated_from` says from how many. Loading
and compiling are not part of its total. `speedup` compares seconds of all steps and decoding with the first
run.

FOLDER may come from wan_folder.py. With random weights attention is nearly uniform, so that no list of few
keys holds much of it: the bounds of the guard are then set to 0 for the run `sparse` (--bounds keeps them).
key=value are options of dsv, for both of its runs. --image is the first frame, for models of image to
video. Of two experts diffusers keeps both on the device, and all its steps that are timed run the first."""
import argparse
import json
import pathlib
import re
import subprocess
import tempfile
import time

import torch
from PIL import Image
from torch.nn.attention import sdpa_kernel

from side_by_side import add_record_flags, clock, record, setting, use_threads
from torch_pipeline import (CUDA_ATTENTION, NEGATIVE, PROMPT, Watch, compiled, load_pipeline, quiet, release,
                            size_of)

# The options that docs/wan.md names for speed.
SPARSE = ("sparse.enabled=true sparse.group=128 sparse.target_density=0.1 sparse.warmup_steps=4 "
          "sparse.profile_every=4")
NO_BOUNDS = ("sparse.target_mass=0 sparse.min_mass=0 sparse.min_head_mass=0 sparse.max_error=100 "
             "sparse.max_head_error=100")
TIMES = re.compile(r"([0-9.]+) s for the texts, ([0-9.]+) s to load the transformer, ([0-9.]+) s for [0-9]+ "
                   r"steps \(([0-9.]+) ms each\), ([0-9.]+) s to decode, ([0-9.]+) s to write")
BLOCKS = re.compile(r"([0-9]+) of [0-9]+ blocks were sparse, mean density of all blocks and steps "
                    r"([0-9.]+)")
UNTIMED = 2  # steps of diffusers


def run_dsv(args, sparse):
    """Figures of one `dsv sample`. Its messages are on stderr."""
    frames, height, width = size_of(args)
    words = [f"num_frames={frames}", f"height={height}", f"width={width}", f"device={args.device}",
             f"threads={args.threads}", f"num_inference_steps={args.steps}", "guidance_scale=5"]
    if args.image:
        words += ["--image", str(args.image)]
    if sparse:
        words += args.sparse.split() + ([] if args.bounds else NO_BOUNDS.split())
    with tempfile.TemporaryDirectory() as place, Watch(args.device) as watch:
        begin = time.perf_counter()
        ended = subprocess.run([args.dsv, "sample", str(args.folder), str(pathlib.Path(place, "video.mp4")),
                                "--prompt", PROMPT, "--negative-prompt", NEGATIVE, *words, *args.settings],
                               capture_output=True, text=True)
        seconds = time.perf_counter() - begin
    said = ended.stdout + ended.stderr
    if ended.returncode:
        raise RuntimeError(said.splitlines()[-1] if said else f"dsv ended with status {ended.returncode}")
    texts, loading, steps, step_ms, decoding, writing = map(float, TIMES.search(said).groups())
    figures = {"step_s": step_ms / 1e3, "decode_s": decoding, "steps_and_decode_s": steps + decoding,
               "texts_s": texts, "load_s": loading, "write_s": writing, "run_s": seconds} | watch.memory()
    blocks = BLOCKS.search(said)
    if sparse:
        figures |= {"options": args.sparse, "sparse_blocks": int(blocks[1]) if blocks else 0,
                    "mean_density": float(blocks[2]) if blocks else 1.0}
    return figures


def experts_of(pipeline):
    both = (pipeline.transformer, getattr(pipeline, "transformer_2", None))
    return [transformer for transformer in both if transformer is not None]


def run_diffusers(args, mode):
    """Figures of the pipeline that model_index.json names. A step lasts from the end of the one before;
    decoding follows the last."""
    release(args.device)
    begin = clock(args.device)
    pipeline, (frames, height, width) = load_pipeline(args), size_of(args)
    if mode == "compiled":
        for transformer in experts_of(pipeline):
            transformer.compile_repeated_blocks(mode=args.compile)
        pipeline.vae.decoder = compiled(args, pipeline.vae.decoder)
    loaded = clock(args.device)
    given = {"image": Image.open(args.image).convert("RGB")} if args.image else {}
    ends = []

    def step_ended(_pipeline, _step, _timestep, tensors):
        ends.append(clock(args.device))
        return tensors

    def sample(steps):
        ends.clear()
        with torch.no_grad():
            pipeline(prompt=PROMPT, negative_prompt=NEGATIVE, height=height, width=width, num_frames=frames,
                     num_inference_steps=steps, guidance_scale=5.0, output_type="pt", **given,
                     callback_on_step_end=step_ended)
        return clock(args.device) - ends[-1]
    if mode == "compiled":
        sample(UNTIMED)  # compiles the decoder, too
    warm = clock(args.device)
    decode_s = sample(UNTIMED + args.torch_steps)
    step_s = (ends[-1] - ends[UNTIMED - 1]) / args.torch_steps
    figures = {"step_s": step_s, "decode_s": decode_s, "steps_and_decode_s": args.steps * step_s + decode_s,
               "extrapolated_from": args.torch_steps, "load_s": loaded - begin, "warm_up_s": warm - loaded,
               "torch": torch.__version__}
    if args.device == "cuda":
        figures["peak_mib"] = torch.cuda.max_memory_allocated() / 2 ** 20
    return figures


RUNS = {"dsv": lambda args: run_dsv(args, False), "sparse": lambda args: run_dsv(args, True),
        "eager": lambda args: run_diffusers(args, "eager"),
        "compiled": lambda args: run_diffusers(args, "compiled")}


def compare(args):
    first = None
    for name in args.runs:
        try:
            figures = RUNS[name](args)
        except RuntimeError as error:  # out of memory, too
            print(json.dumps({"run": name, "error": str(error).splitlines()[0]}), flush=True)
            continue
        first = first or figures
        figures["speedup"] = first["steps_and_decode_s"] / figures["steps_and_decode_s"]
        line = {"run": name, "steps": args.steps} | {
            key: round(value, 4) if isinstance(value, float) else value for key, value in figures.items()}
        print(json.dumps(line), flush=True)
        record(args, args.device, line)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--dsv", metavar="PROGRAM", required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=lambda text: text.split(","), default=list(RUNS),
                        help=f"what to run, of {','.join(RUNS)}, in this order")
    parser.add_argument("--image", type=pathlib.Path, help="PNG or JPEG file with the first frame")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--torch-steps", type=int, default=5, help="steps of diffusers that are timed")
    parser.add_argument("--sparse", default=SPARSE, help="options of the run `sparse`, divided by blanks")
    parser.add_argument("--bounds", action="store_true",
                        help="keep the bounds of the guard: for real weights")
    parser.add_argument("--compile", metavar="MODE", default="default", help="mode of torch.compile")
    add_record_flags(parser)
    args = parser.parse_intermixed_args()
    unknown = [name for name in args.runs if name not in RUNS]
    if unknown:
        raise SystemExit(f"--runs names {unknown[0]}, expected some of {','.join(RUNS)}")
    args.threads = use_threads(setting(args.settings, "threads", "0"))
    quiet()
    torch.backends.cudnn.benchmark = True
    if args.device == "cuda":
        with sdpa_kernel(CUDA_ATTENTION, set_priority=True):
            compare(args)
    else:
        compare(args)


if __name__ == "__main__":
    main()
