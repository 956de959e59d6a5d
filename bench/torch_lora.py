#!/usr/bin/env python3
"""Times LoRA training steps of a published Wan folder: PyTorch with diffusers and peft beside `dsv train`.

    torch_lora.py FOLDER --clips FOLDER --dsv PROGRAM [--device cuda] [--case NAME:key=value,...]...
                  [key=value]...

PyTorch's step: diffusers' transformer in BF16 with frozen weights, adapters of peft in F32 on q, k, v, o of
both attentions and on both feed-forward layers, noise mixed in, mean squared error of the velocity, backward
pass with every block recomputed, clipping by the global norm, fused AdamW. --modes names the variants that
are timed, without and with compiled blocks. dsv's step: configs/wan_lora.yaml, with the options of each
--case and all key=value. dsv encodes the clips first; only steps whose samples are cached count, so the
first --passed-over steps are left out. Sizes are those of configs/wan_lora.yaml unless key=value says
otherwise."""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from side_by_side import (add_record_flags, clock, medians, print_table, record, setting, use_threads,
                          write_json)

CONFIG = pathlib.Path(__file__).resolve().parents[1] / "configs" / "wan_lora.yaml"
SIZE = {"num_frames": 81, "height": 480, "width": 832, "lora_rank": 32}  # of configs/wan_lora.yaml
TARGETS = ["to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"]
MODES = ("eager", "compiled")
ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
             SDPBackend.MATH]


# ---- PyTorch ----

class TorchRun:
    """A LoRA of a frozen transformer, and one batch of random latents and text states."""

    def __init__(self, args, mode):
        from diffusers import WanTransformer3DModel
        from peft import LoraConfig
        frames, height, width, rank = (int(setting(args.settings, key, size)) for key, size in SIZE.items())
        self.device = args.device
        self.model = WanTransformer3DModel.from_pretrained(args.folder / "transformer",
                                                           torch_dtype=torch.bfloat16).to(args.device)
        self.model.requires_grad_(False)
        self.model.add_adapter(LoraConfig(r=rank, lora_alpha=rank, target_modules=TARGETS))
        self.weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        for weight in self.weights:
            weight.data = weight.data.float()
        self.model.enable_gradient_checkpointing()
        self.model.train()
        if mode == "compiled":
            self.model.compile_repeated_blocks()
        self.optimizer = torch.optim.AdamW(self.weights, lr=1e-4, weight_decay=1e-4,
                                           fused=args.device == "cuda")
        config = self.model.config
        shape = (1, config.in_channels, (frames - 1) // 4 + 1, height // 8, width // 8)
        self.latents = torch.randn(shape, device=args.device)
        self.text = torch.randn(1, args.rows, config.text_dim, device=args.device, dtype=torch.bfloat16)

    def step(self):
        noise, level = torch.randn_like(self.latents), torch.rand(1, device=self.device)
        noisy = ((1 - level) * self.latents + level * noise).to(torch.bfloat16)
        with torch.autocast(self.device, torch.bfloat16):
            velocity = self.model(noisy, 1000 * level, self.text, return_dict=False)[0]
        loss = torch.nn.functional.mse_loss(velocity.float(), noise - self.latents)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def timed_step(self):
        start = clock(self.device)
        self.step()
        return {"step_ms": 1e3 * (clock(self.device) - start)}


def run_torch(args, mode):
    """Median time of a step, and the peak of the memory in use."""
    if args.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    run = TorchRun(args, mode)
    for _ in range(args.warm_up):
        run.step()
    figures = medians([run.timed_step() for _ in range(args.steps)])
    if args.device == "cuda":
        figures["peak_mib"] = torch.cuda.max_memory_allocated() / 2 ** 20
    return figures


# ---- dsv ----

def run_dsv(args, options):
    """Median time of a step, and the most memory in use, from the records of the run."""
    with tempfile.TemporaryDirectory() as place:
        run = pathlib.Path(place, "run")
        words = [f"model.path={args.folder}", f"data.path={args.clips}", f"data.cache={args.cache or place}",
                 f"output_dir={run}", f"device={args.device}", f"threads={args.threads}",
                 f"max_train_steps={args.passed_over + args.steps}", "checkpointing_steps=0", *args.settings,
                 *options]
        subprocess.run([args.dsv, "train", str(CONFIG), *words], check=True, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        steps = [line for line in records if "step_ms" in line][args.passed_over:]
        planned = json.loads((run / "run.json").read_text())
        return {"step_ms": statistics.median(line["step_ms"] for line in steps),
                "data_wait_ms": statistics.median(line["data_wait_ms"] for line in steps),
                "peak_mib": max(line["memory_bytes"] for line in steps) / 2 ** 20,
                "planned_mib": planned["memory_planned_bytes"] / 2 ** 20}


# ---- the comparison ----

def compare(args):
    """dsv comes first: the memory in use that it reports is the GPU's, PyTorch's with it."""
    figures = {}
    for case in args.case or ["defaults:"]:
        name, _, options = case.partition(":")
        figures[f"dsv, {name}"] = run_dsv(args, [word for word in options.split(",") if word])
        print(name, figures[f"dsv, {name}"], flush=True)
    for mode in args.modes:
        figures[f"PyTorch, {mode}"] = run_torch(args, mode)
        print(mode, figures[f"PyTorch, {mode}"], flush=True)
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--clips", metavar="FOLDER", type=pathlib.Path, required=True)
    parser.add_argument("--cache", metavar="FOLDER", type=pathlib.Path, help="kept cache of latents and text")
    parser.add_argument("--dsv", metavar="PROGRAM", required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--modes", default=MODES,
                        type=lambda text: [mode for mode in text.split(",") if mode])
    parser.add_argument("--case", action="append", metavar="NAME:key=value,...", help="one run of dsv train")
    parser.add_argument("--rows", type=int, default=512, help="rows of text states in PyTorch")
    parser.add_argument("--warm-up", type=int, default=2, help="steps of PyTorch before those that count")
    parser.add_argument("--passed-over", type=int, default=3, help="steps of dsv before those that count")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    add_record_flags(parser)
    args = parser.parse_intermixed_args()
    args.threads = use_threads(setting(args.settings, "threads", "0"))
    with sdpa_kernel(ATTENTION, set_priority=True):
        figures = compare(args)
    rows = [(name, run["step_ms"], run.get("peak_mib")) for name, run in figures.items()]
    print_table(f"LoRA step, {args.device}; medians of {args.steps} steps", ["ms", "peak MiB"], rows)
    write_json(args.json, figures)
    for name, run in figures.items():
        record(args, args.device, {"case": name, "torch": torch.__version__} | run)


main()
