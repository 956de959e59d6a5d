#!/usr/bin/env python3
"""Times full fine-tuning steps under PyTorch's FSDP2 with weights and optimizer state in host memory, the
peer of `dsv bench step offload=states`.

    torch_fsdp2.py --config configs/wan1.3b.yaml --device cuda gradient_checkpointing=true [key=value]...
    torchrun --nproc-per-node 2 bench/torch_fsdp2.py --device cuda model.preset=wan14b [key=value]...

Settings are dsv's (docs/configuration.md), so both programs get the same words: model.preset and
model.num_layers for the model, num_frames, height and width for the tokens. Each rank trains on its own
train_batch_size clips. Every block, and what is around the blocks, is a unit of fully_shard: F32 weights on
the host (CPUOffloadPolicy), BF16 for the computation, F32 gradients. AdamW runs on the host, fused. Blocks
are recomputed in the backward pass unless gradient_checkpointing=false, and compiled with --mode compiled.
Prints one JSON object: medians over the measured steps, device and host memory at their peaks, in MiB."""
import argparse
import json
import os
import pathlib
import re
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.attention import sdpa_kernel
from torch.utils.checkpoint import checkpoint

import torch_wan
from side_by_side import add_record_flags, medians, record, use_threads, write_json
from torch_step_parts import (CUDA_ATTENTION, WARM_UP, draw_batch, latent_shape, make_optimizer, model_config,
                              peak_memory, read_settings, train_step)


# ---- the model in units of fully_shard ----

class Weights(torch.nn.Module):
    """Weights by their names in a diffusers folder. Names of a module's weights may not have their dots."""

    def __init__(self, shapes, device):
        super().__init__()
        self.attributes = {name: name.replace(".", "__") for name in shapes}
        for name, shape in shapes.items():
            weight = torch.nn.Parameter(torch_wan.first_value(name, shape, device))
            self.register_parameter(self.attributes[name], weight)

    def by_name(self):
        """Those of norms in F32: the computation in torch_wan.py is F32 there."""
        weights = {name: getattr(self, attribute) for name, attribute in self.attributes.items()}
        return {name: weight.float() if "norm" in name else weight for name, weight in weights.items()}


class Block(Weights):
    def __init__(self, shapes, device, run_block, recompute):
        super().__init__(shapes, device)
        self.run_block, self.recompute = run_block, recompute

    def run(self, *words):
        return self.run_block(self.by_name(), *words)

    def forward(self, *words):
        return checkpoint(self.run, *words, use_reentrant=False) if self.recompute else self.run(*words)


class Transformer(Weights):
    """The weights around the blocks, and the blocks, each sharded before the next one is made."""

    def __init__(self, config, device, run_block, recompute, shard):
        super().__init__(torch_wan.end_shapes(config), device)
        self.config, self.blocks = config, torch.nn.ModuleList()
        for _ in range(config["num_layers"]):
            block = Block(torch_wan.block_shapes(config), device, run_block, recompute)
            shard(block, torch.bfloat16)
            self.blocks.append(block)
        shard(self, None)

    def forward(self, x, timestep, text, rope):
        return torch_wan.velocity(self.by_name(), self.blocks, self.config, x, timestep, text, rope,
                                  lambda block, *words: block(*words))


# ---- ranks ----

def start_ranks(device):
    """The mesh of all ranks. Gloo reduces the norm of gradients that wait on the host."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return init_device_mesh(device, (dist.get_world_size(),))


def sharding(mesh, offload):
    """A function that shards a module, whose weights take part in computation in a given type."""
    pin = mesh.device_type == "cuda"
    where = CPUOffloadPolicy(pin_memory=pin) if offload else OffloadPolicy()

    def shard(module, dtype):
        types = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        fully_shard(module, mesh=mesh, mp_policy=types, offload_policy=where)
    return shard


def host_memory():
    """MiB of host memory that this process had in use at most, page-locked memory included."""
    status = pathlib.Path("/proc/self/status").read_text()
    return {"host_mib": int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) / 1024}


def of_all_ranks(figures):
    """Times and device memory of the rank that has the most; host memory of all ranks together."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, figures)
    return {key: (sum if key == "host_mib" else max)(rank[key] for rank in gathered) for key in figures}


# ---- the measurement ----

def measure(args, settings):
    mesh, config = start_ranks(args.device), model_config(settings)
    torch.manual_seed(settings["seed"])
    run_block = torch_wan.block_forward if args.mode == "eager" else torch.compile(torch_wan.block_forward)
    model = Transformer(config, args.device, run_block, settings["gradient_checkpointing"] != "false",
                        sharding(mesh, args.offload))
    weights = dict(model.named_parameters())
    parts = {"weights": weights, "device": args.device}
    grid = [size // patch for size, patch in zip(latent_shape(settings)[1:], config["patch_size"])]
    rope = torch_wan.rope_tables(config, grid, args.device)
    optimizer = make_optimizer(parts, settings)
    torch.manual_seed(settings["seed"] + dist.get_rank())
    batches = [draw_batch(settings, config, args.device)
               for _ in range(settings["gradient_accumulation_steps"])]

    def step():
        return train_step(parts, settings, lambda x, timestep, text: model(x, timestep, text, rope), True,
                          optimizer, None, batches)
    for _ in range(WARM_UP):
        step()
    figures = medians([step() for _ in range(args.steps)])
    clips = settings["train_batch_size"] * settings["gradient_accumulation_steps"]
    return {"case": f"PyTorch FSDP2, {args.mode}, offload {'on' if args.offload else 'off'}",
            "torch": torch.__version__, "ranks": dist.get_world_size(), "blocks": config["num_layers"],
            "parameters": sum(weight.numel() for weight in weights.values()),
            "tokens": dist.get_world_size() * clips * grid[0] * grid[1] * grid[2], "threads": args.threads
            } | of_all_ranks(figures | peak_memory(args.device) | host_memory())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--config", metavar="FILE", help="configuration to start from, as for dsv bench step")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--mode", choices=("eager", "compiled"), default="compiled", help="of the blocks")
    parser.add_argument("--no-offload", dest="offload", action="store_false",
                        help="weights and optimizer state stay on the device")
    parser.add_argument("--steps", type=int, default=5, help=f"measured, after {WARM_UP} for warm-up")
    parser.add_argument("--json", metavar="FILE")
    add_record_flags(parser)
    args = parser.parse_intermixed_args()
    settings = read_settings(args.config, args.settings)
    if settings["ema_decay"] > 0:
        parser.error("ema_decay must be 0: no moving average is timed here")
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    args.threads = use_threads(settings["threads"] or max(1, cores))
    torch.set_float32_matmul_precision("high")
    with sdpa_kernel(CUDA_ATTENTION, set_priority=True) if args.device == "cuda" else nullcontext():
        figures = measure(args, settings)
    if dist.get_rank() == 0:
        print(json.dumps(figures), flush=True)
        write_json(args.json, figures)
        record(args, args.device, figures)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
