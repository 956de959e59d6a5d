#!/usr/bin/env python3
"""Times the training step of `dsv bench step` in PyTorch: same options, model, batch and optimizer.

    torch_step.py --config configs/demo.yaml [--dsv PROGRAM] [--json FILE] [key=value]...
    torch_step.py --check FOLDER        compares model and optimizer with golden tensors

A step: noise is mixed in, forward pass, mean squared error of the velocity, backward pass, clipping by the
global norm, fused AdamW, moving average where set. Every mode is timed, F32 and bf16 autocast, each as it
is, with compiled blocks, and compiled as a whole; the fastest then runs in turns with `dsv bench step`,
which is told sparse.enabled=false unless a key=value says otherwise. Settings are dsv's
(docs/configuration.md)."""
import argparse
import json
import pathlib

import torch
from torch.nn.attention import sdpa_kernel

import torch_wan
from side_by_side import add_record_flags, medians, print_table, record, run_dsv, use_threads, write_json
from torch_step_parts import (CUDA_ATTENTION, PHASES, WARM_UP, draw_batch, forward_loss, latent_shape,
                              make_optimizer, model_config, peak_memory, read_settings, train_step, update)

MODES = ("f32", "f32 compiled blocks", "f32 compiled", "bf16", "bf16 compiled blocks", "bf16 compiled")
MEMORY = {"tensors_mib": "tensors", "held_mib": "held for them", "memory_mib": "in use"}


# ---- the step ----

def make_model(weights, config, device):
    ends, blocks = torch_wan.split_weights(weights, config)
    return {"config": config, "weights": weights, "ends": ends, "blocks": blocks, "device": device}


def make_forward(model, settings, mode):
    """A function of noisy latents, times and text, for one of MODES."""
    run_block, velocity = torch_wan.block_forward, torch_wan.velocity
    if mode.endswith("compiled blocks"):
        run_block = torch.compile(run_block)
    elif mode.endswith("compiled"):
        velocity = torch.compile(velocity)
    config = model["config"]
    grid = [size // patch for size, patch in zip(latent_shape(settings)[1:], config["patch_size"])]
    rope = torch_wan.rope_tables(config, grid, model["device"])

    def forward(x, timestep, text):
        return velocity(model["ends"], model["blocks"], config, x, timestep, text, rope, run_block,
                        settings["gradient_checkpointing"] != "false")
    return forward


def free_cached(device):
    if device == "cuda":
        torch.cuda.empty_cache()


def make_runner(settings, device, mode):
    """A function that times some steps in one mode and gives medians over them."""
    torch.manual_seed(settings["seed"])
    torch.compiler.reset()
    config = model_config(settings)
    model = make_model(torch_wan.new_weights(config, device), config, device)
    optimizer = make_optimizer(model, settings)
    ema = [w.detach().clone() for w in model["weights"].values()] if settings["ema_decay"] > 0 else None
    batches = [draw_batch(settings, config, device) for _ in range(settings["gradient_accumulation_steps"])]
    forward = make_forward(model, settings, mode)

    def run(steps):
        return medians([train_step(model, settings, forward, mode.startswith("bf16"), optimizer, ema, batches)
                        for _ in range(steps)])
    run(WARM_UP)
    return run


# ---- the comparison ----

def try_modes(settings, device, modes, steps):
    figures = {}
    for mode in modes:
        figures[mode] = make_runner(settings, device, mode)(steps)
        memory = peak_memory(device)
        words = (f"{MEMORY[key]} {value:.0f} MiB" for key, value in memory.items())
        print(f"{mode:<24}{figures[mode]['step_ms']:>10.1f} ms", *words, flush=True)
        figures[mode] |= memory
        free_cached(device)
    return figures


def check_same_work(settings, dsv):
    """Both must have timed the same model on as many tokens."""
    config, shape = model_config(settings), latent_shape(settings)
    weights = torch_wan.new_weights(config, "meta")
    here = {
        "parameters": sum(weight.numel() for weight in weights.values()),
        "tokens": settings["train_batch_size"] * settings["gradient_accumulation_steps"] *
                  shape[1] * shape[2] * shape[3] // 4,
    }
    for key, value in here.items():
        if dsv[key] != value:
            raise SystemExit(f"{key}: {value} in PyTorch, {dsv[key]} in dsv: not the same work")


def compare(args, settings):
    threads = use_threads(settings["threads"])
    tried = try_modes(settings, args.device, args.modes, args.steps)
    fastest = min(tried, key=lambda mode: tried[mode]["step_ms"])
    runner = make_runner(settings, args.device, fastest)
    words = (["--config", args.config] if args.config else []) + ["--device", args.device]
    words += ["sparse.enabled=false", *args.settings, f"threads={threads}"]
    turns = {"torch": [], "dsv": []}
    for _ in range(args.turns):
        runner(1)
        turns["torch"].append(runner(args.steps))
        if args.dsv:
            free_cached(args.device)  # dsv plans its own memory beside PyTorch's weights
            turns["dsv"].append(run_dsv(args.dsv, "step", words))
            check_same_work(settings, turns["dsv"][-1])
    figures = {"torch_version": torch.__version__, "mode": fastest, "threads": threads, "modes": tried,
               "turns": turns} | {side: medians(runs) for side, runs in turns.items() if runs}
    report(args, settings, figures)
    return figures


def report(args, settings, figures):
    columns, rows = ("step_ms", *PHASES), []
    for side, label in (("torch", f"PyTorch {torch.__version__}, {figures['mode']}"), ("dsv", "dsv")):
        if side in figures:
            rows.append((label, *(figures[side][key] for key in columns),
                         min(run["step_ms"] for run in figures["turns"][side])))
    if "dsv" in figures:
        rows.append(("PyTorch / dsv", *(a / b for a, b in zip(rows[0][1:], rows[1][1:]))))
        figures["speedup"] = figures["torch"]["step_ms"] / figures["dsv"]["step_ms"]
    print_table(f"a step of {settings['train_batch_size']} clips, {args.device}, "
                f"{figures['threads']} threads; medians of {args.turns} turns of {args.steps} steps, ms",
                ["step", "forward", "backward", "optimizer", "at least"], rows)


def line_of(figures):
    """For a line of results: dsv's figures under their names, PyTorch's under torch_..."""
    torch_figures = {f"torch_{key}": value for key, value in figures["torch"].items()}
    named = {"torch": f"{figures['torch_version']}, {figures['mode']}"}
    return figures.get("dsv", {}) | torch_figures | named | {"threads": figures["threads"]}


# ---- check that both models are the same ----

def relative_l2(found, wanted):
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


def expect(what, error, most):
    print(f"{what:<50}{error:>10.1e}")
    if not error <= most:
        raise SystemExit(f"{what}: relative error {error:.1e}, at most {most:.0e}")


def load_model(folder):
    from safetensors.torch import load_file
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "diffusion_pytorch_model.safetensors")
    return make_model({name: weight.requires_grad_() for name, weight in weights.items()}, config, "cpu")


def check_forward(model, inputs):
    config = model["config"]
    grid = [size // patch for size, patch in zip(inputs["x0"].shape[2:], config["patch_size"])]
    rope = torch_wan.rope_tables(config, grid, "cpu")
    return lambda x, timestep, text: torch_wan.velocity(model["ends"], model["blocks"], config, x, timestep,
                                                        text, rope)


def check_inputs(stored):
    return {"x0": stored["latents_clean"], "noise": stored["noise"], "sigma": stored["sigma"],
            "text": stored["encoder_hidden_states"]}


def check_case(folder):
    """Output, loss and every gradient."""
    from safetensors.torch import load_file
    model, inputs = load_model(folder.parent), check_inputs(load_file(folder / "inputs.safetensors"))
    expected, grads = load_file(folder / "expected.safetensors"), load_file(folder / "grads.safetensors")
    forward, outputs = check_forward(model, inputs), []

    def keep(*words):
        outputs.append(forward(*words))
        return outputs[-1]
    loss = forward_loss(keep, inputs, False)
    loss.backward()
    expect(f"{folder.name}: output", relative_l2(outputs[0], expected["output"]), 1e-4)
    expect(f"{folder.name}: loss", relative_l2(loss.reshape(1), expected["loss"]), 1e-5)
    worst = max(relative_l2(weight.grad, grads[name]) for name, weight in model["weights"].items())
    expect(f"{folder.name}: worst gradient of {len(grads)}", worst, 1e-4)


def check_training(folder, facts):
    """Losses of the stored AdamW steps."""
    from safetensors.torch import load_file
    model, inputs = load_model(folder.parent), check_inputs(load_file(folder / "inputs.safetensors"))
    settings = {
        "lr": facts["lr"], "adam_beta1": facts["betas"][0], "adam_beta2": facts["betas"][1],
        "adam_epsilon": facts["eps"], "weight_decay": facts["weight_decay"],
        "max_grad_norm": facts["clip_grad_norm"],
    }
    optimizer, losses = make_optimizer(model, settings), []
    for step in range(facts["steps"]):
        batch = {name: tensor[step] for name, tensor in inputs.items()}
        loss = forward_loss(check_forward(model, batch), batch, False)
        loss.backward()
        losses.append(loss.item())
        update(model, settings, optimizer, None)
    expect(f"{folder.name}: losses of {facts['steps']} steps",
           relative_l2(torch.tensor(losses), torch.tensor(facts["losses"])), 1e-5)


def check(folder):
    facts = json.loads((folder / "fixture.json").read_text())
    for case in facts["cases"]:
        check_case(folder / case)
    if "train" in facts:
        check_training(folder / "train", facts["train"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--config", metavar="FILE", help="configuration to start from, as for dsv bench step")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--modes", type=lambda text: text.split(","), default=MODES,
                        help=f"those to time, out of {','.join(MODES)}")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=7, help="measured in each turn, after one to warm up")
    parser.add_argument("--json", metavar="FILE")
    add_record_flags(parser)
    parser.add_argument("--dsv", metavar="PROGRAM", help="run `PROGRAM bench step` in turns with PyTorch")
    parser.add_argument("--check", metavar="FOLDER", type=pathlib.Path)
    args = parser.parse_intermixed_args()
    if args.check:
        check(args.check)
        return
    settings = read_settings(args.config, args.settings)
    if args.device == "cpu":
        figures = compare(args, settings)
    else:
        torch.set_float32_matmul_precision("high")
        with sdpa_kernel(CUDA_ATTENTION, set_priority=True):
            figures = compare(args, settings)
    write_json(args.json, figures)
    record(args, args.device, line_of(figures))


main()
