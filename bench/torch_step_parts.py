"""The parts of a training step that the comparisons with PyTorch share: dsv's settings, the model's shape, a
batch and its loss, the optimizer, one timed step, the memory in use."""
import pathlib
import re

import torch
import torch.nn.functional as F
import yaml
from torch.nn.attention import SDPBackend

import torch_wan
from side_by_side import clock

OPTIONS = pathlib.Path(__file__).resolve().parents[1] / "include" / "dsv" / "options.def"
CASTS = {"INT": int, "FLOAT": float, "BOOL": lambda value: str(value).lower() in ("1", "true"), "TEXT": str,
         "CHOICE": str}
PHASES = ("forward_ms", "backward_ms", "optimizer_ms")
WARM_UP = 2  # as dsv bench step
CUDA_ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


# ---- options ----

def default_settings():
    """key: (kind, value) of every row of dsv's option table."""
    rows = re.findall(r'^DSV_(\w+)\("([\w.]+)", \w+, ("[^"]*"|[^,]+),', OPTIONS.read_text(), re.MULTILINE)
    return {key: (kind, CASTS[kind](value.strip('"'))) for kind, key, value in rows}


def flat(tree, prefix=""):
    for key, value in (tree or {}).items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def read_settings(config, words):
    settings = default_settings()
    given = list(flat(yaml.safe_load(pathlib.Path(config).read_text()))) if config else []
    for key, value in given + [word.split("=", 1) for word in words]:
        if key not in settings:
            raise SystemExit(f"{key}: dsv has no such setting")
        kind = settings[key][0]
        settings[key] = (kind, CASTS[kind](value))
    return {key: value for key, (_, value) in settings.items()}


def latent_shape(settings):
    """(channels, frames, height, width) of the haar codec's latents."""
    space, time = 2 ** settings["codec.spatial_levels"], 2 ** settings["codec.temporal_levels"]
    return (3 * space * space * time, 1 + (settings["num_frames"] - 1) // time, settings["height"] // space,
            settings["width"] // space)


def model_config(settings):
    config = dict(zip(torch_wan.FIELDS, torch_wan.PRESETS[settings["model.preset"]]))
    for key in torch_wan.FIELDS:
        config[key] = settings.get(f"model.{key}") or config[key]
    channels = latent_shape(settings)[0]
    return config | {"in_channels": channels, "out_channels": channels, "patch_size": (1, 2, 2)}


# ---- the step ----

def make_optimizer(model, settings):
    return torch.optim.AdamW(
        model["weights"].values(), lr=settings["lr"], betas=(settings["adam_beta1"], settings["adam_beta2"]),
        eps=settings["adam_epsilon"], weight_decay=settings["weight_decay"], fused=True)


def draw_batch(settings, config, device):
    """Random latents, noise and times, and the text rows of clips without a caption."""
    batch, shape = settings["train_batch_size"], latent_shape(settings)
    return {
        "x0": torch.randn(batch, *shape, device=device), "noise": torch.randn(batch, *shape, device=device),
        "sigma": torch.rand(batch, device=device),
        "text": torch.zeros(batch, config["text_len"], config["text_dim"], device=device),
    }


def forward_loss(forward, batch, autocast):
    sigma = batch["sigma"].reshape(-1, 1, 1, 1, 1)
    x_t = (1 - sigma) * batch["x0"] + sigma * batch["noise"]
    with torch.autocast(x_t.device.type, torch.bfloat16, enabled=autocast):
        output = forward(x_t, 1000 * batch["sigma"], batch["text"])
    return F.mse_loss(output, batch["noise"] - batch["x0"])


def update(model, settings, optimizer, ema):
    weights = list(model["weights"].values())
    if settings["max_grad_norm"] > 0:
        torch.nn.utils.clip_grad_norm_(weights, settings["max_grad_norm"])
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if ema:
        with torch.no_grad():
            torch._foreach_lerp_(ema, weights, 1 - settings["ema_decay"])


def train_step(model, settings, forward, autocast, optimizer, ema, batches):
    """Milliseconds of each phase; the loss is read, as dsv reads it."""
    device, spent = model["device"], dict.fromkeys(PHASES, 0.0)
    for batch in batches:
        start = clock(device)
        loss = forward_loss(forward, batch, autocast) / len(batches)
        loss.item()
        middle = clock(device)
        loss.backward()
        end = clock(device)
        spent["forward_ms"] += 1e3 * (middle - start)
        spent["backward_ms"] += 1e3 * (end - middle)
    start = clock(device)
    update(model, settings, optimizer, ema)
    spent["optimizer_ms"] = 1e3 * (clock(device) - start)
    return spent | {"step_ms": sum(spent.values())}


def peak_memory(device):
    """MiB that PyTorch's tensors took at most since the last call, that it held for them, and that are in use
    of the device: to be compared with what dsv plans, and with what is in use while dsv alone is there."""
    if device != "cuda":
        return {}
    peak = {"tensors_mib": torch.cuda.max_memory_allocated(), "held_mib": torch.cuda.max_memory_reserved()}
    free, whole = torch.cuda.mem_get_info()
    torch.cuda.reset_peak_memory_stats()
    return {key: value / 2 ** 20 for key, value in (peak | {"memory_mib": whole - free}).items()}
