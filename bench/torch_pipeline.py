#!/usr/bin/env python3
"""Runs the parts of a Wan folder, and the whole of it, in diffusers and in dsv, in turns on one machine.

    torch_pipeline.py WORK FOLDER [--dsv PROGRAM] [--device cuda] [--append FILE --table NAME] [key=value]...

WORK is one of
    vae-encode, vae-decode   a video of height x width x num_frames (480 x 832 x 81)
    text                     prompts of --rows rows, --batch at a time
    sample                   a video from a prompt: --steps steps with guidance, decoded
    encode                   the clips and captions of --clips by `dsv encode`, with the use of the GPU

diffusers runs in BF16, eager and compiled, and its fastest mode is what dsv is held against. key=value are
options of dsv. FOLDER may come from wan_folder.py. Loading counts in no figure but load_s and the seconds of
`dsv sample`, which loads one part after another."""
import argparse
import gc
import json
import pathlib
import statistics
import subprocess
import tempfile
import threading
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from side_by_side import (add_record_flags, clock, medians, print_table, record, setting, use_threads,
                          write_json)

# MATH serves the text encoder, whose bias no other backend accepts.
CUDA_ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
                  SDPBackend.MATH]
PROMPT = "A small boat drifts over the quiet lake while the sun sets behind the hills. "
NEGATIVE = "blurred, static, overexposed, subtitles"
MODES = ("eager", "compiled", "channels-last", "compiled channels-last")  # channels-last: of the VAE alone
COMPILED_FORMS = 64
POLL_S = 0.1  # between two readings of the use of the GPU


def quiet():
    import diffusers
    import transformers
    diffusers.utils.logging.set_verbosity_error()
    transformers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()


def size_of(args):
    return tuple(int(setting(args.settings, key, default))
                 for key, default in (("num_frames", 81), ("height", 480), ("width", 832)))


# ---- diffusers ----

def load_vae(args):
    from diffusers import AutoencoderKLWan
    vae = AutoencoderKLWan.from_pretrained(args.folder / "vae", torch_dtype=torch.bfloat16)
    return vae.to(args.device).eval()


def load_text_encoder(args):
    from transformers import UMT5EncoderModel
    encoder = UMT5EncoderModel.from_pretrained(args.folder / "text_encoder", dtype=torch.bfloat16)
    return encoder.to(args.device)


def load_pipeline(args):
    from diffusers import DiffusionPipeline
    pipeline = DiffusionPipeline.from_pretrained(args.folder, torch_dtype=torch.bfloat16).to(args.device)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def put_channels_last(vae):
    formats = {torch.nn.Conv2d: torch.channels_last, torch.nn.Conv3d: torch.channels_last_3d}
    for module in vae.modules():
        for kind, memory_format in formats.items():
            if isinstance(module, kind):
                module.to(memory_format=memory_format)


def compiled(args, module):
    """The module, compiled. The VAE calls its layers in many forms (first and later chunks, with and
    without kept frames), for each of which PyTorch compiles again: its default limit of 8 would leave the
    rest eager."""
    torch._dynamo.config.recompile_limit = COMPILED_FORMS
    torch._dynamo.config.accumulated_recompile_limit = 8 * COMPILED_FORMS
    return torch.compile(module, mode=args.compile)


def make_vae_run(args, mode):
    """A function that encodes or decodes a random video."""
    vae, (frames, height, width) = load_vae(args), size_of(args)
    space, time_factor = vae.config.scale_factor_spatial, vae.config.scale_factor_temporal
    shape = (1, 3, frames, height, width) if args.work == "vae-encode" else (
        1, vae.config.z_dim, 1 + (frames - 1) // time_factor, height // space, width // space)
    values = torch.rand(shape, device=args.device, dtype=torch.bfloat16) * 2 - 1
    if "channels-last" in mode:
        put_channels_last(vae)
        values = values.contiguous(memory_format=torch.channels_last_3d)
    if "compiled" in mode:
        vae.encoder, vae.decoder = compiled(args, vae.encoder), compiled(args, vae.decoder)
    if args.work == "vae-encode":
        return lambda: vae.encode(values).latent_dist.mode()
    return lambda: vae.decode(values).sample


def make_text_run(args, mode):
    encoder = load_text_encoder(args)
    ids = torch.randint(2, encoder.config.vocab_size, (args.batch, args.rows), device=args.device)
    mask = torch.ones_like(ids)
    if "compiled" in mode:
        encoder = compiled(args, encoder)
    return lambda: encoder(input_ids=ids, attention_mask=mask).last_hidden_state


def make_sample_run(args, mode):
    pipeline, (frames, height, width) = load_pipeline(args), size_of(args)
    if "channels-last" in mode:
        put_channels_last(pipeline.vae)
    if "compiled" in mode:
        pipeline.transformer.compile_repeated_blocks()
        pipeline.vae.decoder = compiled(args, pipeline.vae.decoder)
    return lambda: pipeline(prompt=PROMPT, negative_prompt=NEGATIVE, height=height, width=width,
                            num_frames=frames, num_inference_steps=args.steps, guidance_scale=5.0,
                            output_type="pt").frames


MAKERS = {"vae-encode": make_vae_run, "vae-decode": make_vae_run, "text": make_text_run,
          "sample": make_sample_run}


def release(device):
    """Gives the memory that PyTorch holds without need back, and begins to count its peak anew."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def make_runner(args, mode):
    """A function that times one run; load_s and, on a GPU, the peak of memory are part of its figures."""
    release(args.device)
    held = torch.cuda.memory_allocated() if args.device == "cuda" else 0  # by the fastest mode so far
    start = clock(args.device)
    run = MAKERS[args.work](args, mode)
    load_s = clock(args.device) - start

    def timed():
        begin = clock(args.device)
        with torch.no_grad():
            run()
        figures = {"seconds": clock(args.device) - begin, "load_s": load_s}
        if args.device == "cuda":
            figures |= {"peak_mib": (torch.cuda.max_memory_allocated() - held) / 2 ** 20,
                        "held_mib": (torch.cuda.max_memory_reserved() - held) / 2 ** 20}
        return figures
    for _ in range(args.warm_up):
        timed()
    return timed


# ---- the GPU, from outside ----

class Watch:
    """Reads the use and the memory of the GPU while a command runs. Without a GPU it reads nothing."""

    def __init__(self, device):
        self.busy, self.used, self.ended = [], [], threading.Event()
        self.thread = threading.Thread(target=self.read) if device == "cuda" else None

    def read_once(self):
        command = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
        busy, used = said.split(",")
        self.busy.append(float(busy))
        self.used.append(float(used))

    def read(self):
        while not self.ended.wait(POLL_S):
            self.read_once()

    def __enter__(self):
        if self.thread:
            self.read_once()  # what was used before
            self.thread.start()
        return self

    def __exit__(self, *error):
        self.ended.set()
        if self.thread:
            self.thread.join()

    def memory(self):
        return {"peak_mib": max(self.used) - self.used[0]} if self.used else {}


def watched(args, command):
    """Seconds of a command, and what was read of the GPU meanwhile."""
    with Watch(args.device) as watch:
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
    return seconds, watch


# ---- dsv ----

def dsv_command(args, place):
    """The command of dsv. `dsv bench part` writes figures.json into the scratch folder `place`."""
    frames, height, width = size_of(args)
    words = [f"num_frames={frames}", f"height={height}", f"width={width}", f"device={args.device}",
             f"threads={args.threads}", *args.settings]
    if args.work == "sample":
        return ["sample", args.folder, place / "video.mp4", "--prompt", PROMPT, "--negative-prompt", NEGATIVE,
                f"num_inference_steps={args.steps}", "guidance_scale=5", *words]
    part = ["text_encoder", "--rows", args.rows, "--prompts", args.batch] if args.work == "text" else ["vae"]
    return ["bench", "part", args.folder / part[0], *part[1:], "--json", place / "figures.json", *words]


DSV_FIGURES = {"vae-encode": "encode", "vae-decode": "decode", "text": "text"}


def run_dsv(args):
    """Seconds and peak memory. `sample` is timed from outside: its seconds hold the loading, too, and its
    peak is what nvidia-smi sees."""
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        command = [args.dsv, *map(str, dsv_command(args, place))]
        if args.work == "sample":
            seconds, watch = watched(args, command)
            return {"seconds": seconds} | watch.memory()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        figures = json.loads((place / "figures.json").read_text())
        name = DSV_FIGURES[args.work]
        return {"seconds": figures[f"{name}_ms"] / 1e3, "peak_mib": figures[f"{name}_mib"]}


# ---- the comparison ----

def fastest_of_modes(args):
    """Figures of each mode, the fastest mode and its runner. A mode that does not work is reported and passed
    over."""
    tried, fastest, kept = {}, None, None
    for mode in args.modes:
        if "channels-last" in mode and args.work == "text":
            continue
        try:
            runner = make_runner(args, mode)
            tried[mode] = runner()
        except RuntimeError as error:  # out of memory, too
            print(f"diffusers, {mode}: {str(error).splitlines()[0]}", flush=True)
            continue
        print(f"diffusers, {mode}: " + ", ".join(f"{key} {value:.3f}" for key, value in tried[mode].items()),
              flush=True)
        if fastest is None or tried[mode]["seconds"] < tried[fastest]["seconds"]:
            fastest, kept = mode, runner
        del runner
    if not tried:
        raise SystemExit("no mode of diffusers works here")
    return tried, fastest, kept


def compare(args):
    tried, fastest, runner = fastest_of_modes(args)
    turns = {"torch": [], "dsv": []}
    for _ in range(args.turns):
        turns["torch"].append(runner())
        release(args.device)  # what PyTorch does not use
        if args.dsv:
            turns["dsv"].append(run_dsv(args))
    figures = {"torch_version": torch.__version__, "mode": fastest, "threads": args.threads, "modes": tried,
               "turns": turns} | {side: medians(runs) for side, runs in turns.items() if runs}
    peaks = {key: value for key, value in tried[fastest].items() if key.endswith("_mib")}  # of its first run
    figures["torch"] |= peaks
    return figures


def report(args, figures):
    rows = [(f"diffusers, {figures['mode']}", 1e3 * figures["torch"]["seconds"],
             figures["torch"].get("peak_mib"))]
    if "dsv" in figures:
        rows.append(("dsv", 1e3 * figures["dsv"]["seconds"], figures["dsv"].get("peak_mib")))
        figures["speedup"] = rows[0][1] / rows[1][1]
        rows.append(("diffusers / dsv", figures["speedup"], None))
    print_table(f"{args.work}, {args.device}; medians of {args.turns} turns", ["ms", "peak MiB"], rows)


def line_of(figures):
    """For a line of results: dsv's figures under their names, those of diffusers under torch_..."""
    torch_figures = {f"torch_{key}": value for key, value in figures["torch"].items()}
    named = {"torch": f"{figures['torch_version']}, {figures['mode']}", "threads": figures["threads"]}
    return figures.get("dsv", {}) | torch_figures | named | (
        {"speedup": figures["speedup"]} if "speedup" in figures else {})


# ---- a set of clips ----

def encode_set(args):
    """Seconds of a first run, and of a second one that has nothing to do."""
    if not args.clips or not args.dsv:
        raise SystemExit("encode needs --clips and --dsv")
    figures = {"clips": sum(path.suffix == ".mp4" for path in args.clips.iterdir())}
    with tempfile.TemporaryDirectory() as place:
        command = [args.dsv, "encode", str(args.clips), str(pathlib.Path(place, "cache")), "--model",
                   str(args.folder), f"device={args.device}", f"threads={args.threads}", *args.settings]
        figures["seconds"], watch = watched(args, command)
        if watch.busy:
            figures["gpu_busy_percent"] = statistics.mean(watch.busy)
        figures["restart_s"], _ = watched(args, command)
    print_table(f"{figures['clips']} clips, {args.device}", list(figures), [("dsv", *figures.values())])
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=[*MAKERS, "encode"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dsv", metavar="PROGRAM", help="run dsv in turns with diffusers")
    parser.add_argument("--modes", type=lambda text: text.split(","), default=MODES,
                        help=f"modes of diffusers to time, of {','.join(MODES)}")
    parser.add_argument("--compile", metavar="MODE", default="default",
                        help="of the compiled modes: default, reduce-overhead or max-autotune-no-cudagraphs")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=1, help="runs before the one that is timed")
    parser.add_argument("--rows", type=int, default=512, help="text: ids of a prompt")
    parser.add_argument("--batch", type=int, default=8, help="text: prompts at a time")
    parser.add_argument("--steps", type=int, default=50, help="sample: steps")
    parser.add_argument("--clips", metavar="FOLDER", type=pathlib.Path, help="encode: clips with captions")
    parser.add_argument("--json", metavar="FILE")
    add_record_flags(parser)
    args = parser.parse_intermixed_args()
    args.threads = use_threads(setting(args.settings, "threads", "0"))
    if args.work == "encode":
        figures = encode_set(args)
        write_json(args.json, figures)
        record(args, args.device, figures)
        return
    quiet()
    torch.backends.cudnn.benchmark = True
    if args.device == "cuda":
        with sdpa_kernel(CUDA_ATTENTION, set_priority=True):
            figures = compare(args)
    else:
        figures = compare(args)
    report(args, figures)
    write_json(args.json, figures)
    record(args, args.device, line_of(figures))


if __name__ == "__main__":
    main()
