"""The Wan 2.1 text-to-video transformer in plain PyTorch, as dsv computes it: functions of its weights.

Weights have the names and shapes of a diffusers folder. The residual stream, norms, modulation and the time
embedding stay in F32; under autocast linear layers and attention run in bf16."""
import math

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

# Fields that describe the model's shape, as in src/model/dit/dit_config.c.
FIELDS = ("num_layers", "num_attention_heads", "attention_head_dim", "ffn_dim", "freq_dim", "text_dim",
          "text_len")
PRESETS = {
    "demo": (4, 6, 64, 1536, 64, 32, 4),
    "wan1.3b": (30, 12, 128, 8960, 256, 4096, 512),
    "wan14b": (40, 40, 128, 13824, 256, 4096, 512),
    "dsv0.8b": (28, 12, 96, 4608, 256, 4096, 512),
    "dsv2.7b": (32, 16, 128, 8192, 256, 4096, 512),
    "dsv30b": (42, 24, 256, 24576, 256, 4096, 512),
}


def width_of(config):
    return config["num_attention_heads"] * config["attention_head_dim"]


# ---- weights ----

def linear_shapes(name, out, size):
    return {f"{name}.weight": (out, size), f"{name}.bias": (out,)}


def block_shapes(config):
    width, ffn = width_of(config), config["ffn_dim"]
    shapes = {"scale_shift_table": (1, 6, width), "norm2.weight": (width,), "norm2.bias": (width,)}
    for attention in ("attn1", "attn2"):
        for part in ("to_q", "to_k", "to_v", "to_out.0"):
            shapes |= linear_shapes(f"{attention}.{part}", width, width)
        shapes |= {f"{attention}.norm_q.weight": (width,), f"{attention}.norm_k.weight": (width,)}
    return shapes | linear_shapes("ffn.net.0.proj", ffn, width) | linear_shapes("ffn.net.2", width, ffn)


def end_shapes(config):
    width, patch = width_of(config), config["patch_size"]
    embedder = "condition_embedder"
    return {
        "patch_embedding.weight": (width, config["in_channels"], *patch), "patch_embedding.bias": (width,),
        "scale_shift_table": (1, 2, width),
    } | linear_shapes(f"{embedder}.text_embedder.linear_1", width, config["text_dim"]) \
      | linear_shapes(f"{embedder}.text_embedder.linear_2", width, width) \
      | linear_shapes(f"{embedder}.time_embedder.linear_1", width, config["freq_dim"]) \
      | linear_shapes(f"{embedder}.time_embedder.linear_2", width, width) \
      | linear_shapes(f"{embedder}.time_proj", 6 * width, width) \
      | linear_shapes("proj_out", math.prod(patch) * config["out_channels"], width)


def first_value(name, shape, device):
    """Random initial weights of the usual size. dsv's differ, but times do not depend on them."""
    if "norm" in name and name.endswith("weight"):
        return torch.ones(shape, device=device)
    if name.endswith("bias"):
        return torch.zeros(shape, device=device)
    return torch.randn(shape, device=device) * 0.02


def new_weights(config, device):
    shapes = end_shapes(config)
    for i in range(config["num_layers"]):
        shapes |= {f"blocks.{i}.{name}": shape for name, shape in block_shapes(config).items()}
    return {name: first_value(name, shape, device).requires_grad_() for name, shape in shapes.items()}


def part_of(weights, prefix):
    return {name[len(prefix):]: weight for name, weight in weights.items() if name.startswith(prefix)}


def split_weights(weights, config):
    """(those of both ends, a dictionary for each block)"""
    ends = {name: weight for name, weight in weights.items() if not name.startswith("blocks.")}
    return ends, [part_of(weights, f"blocks.{i}.") for i in range(config["num_layers"])]


# ---- tables ----

def rope_tables(config, grid, device):
    """cos and sin (tokens, head size / 2): pairs of a head dealt out to frame, row and column."""
    half = config["attention_head_dim"] // 2
    rows = columns = half // 3
    axes = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in grid), indexing="ij")
    angles = [axis.reshape(-1, 1) * 10000 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
              for axis, pairs in zip(axes, (half - rows - columns, rows, columns))]
    angle = torch.cat(angles, 1)
    return angle.cos().float().to(device), angle.sin().float().to(device)


# ---- the forward pass ----

def linear(weights, name, x):
    return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def modulated(x, scale, shift):
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


def normed_heads(weights, name, x, heads):
    """RMSNorm over all heads, then (B, heads, rows, head size)."""
    x = F.rms_norm(x.float(), x.shape[-1:], weights[f"{name}.weight"], 1e-6)
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def turned(x, rope):
    cos, sin = rope
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def attention(weights, name, x, context, heads, rope):
    q = normed_heads(weights, f"{name}.norm_q", linear(weights, f"{name}.to_q", x), heads)
    k = normed_heads(weights, f"{name}.norm_k", linear(weights, f"{name}.to_k", context), heads)
    v = linear(weights, f"{name}.to_v", context).unflatten(-1, (heads, -1)).transpose(1, 2)
    if rope:
        q, k = turned(q, rope), turned(k, rope)
    y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v)
    return linear(weights, f"{name}.to_out.0", y.transpose(1, 2).flatten(2))


def block_forward(weights, x, context, modulation, rope, heads):
    m = (weights["scale_shift_table"] + modulation).unsqueeze(2).unbind(1)
    h = modulated(x, m[1], m[0])
    x = x + m[2] * attention(weights, "attn1", h, h, heads, rope)
    h = F.layer_norm(x, x.shape[-1:], weights["norm2.weight"], weights["norm2.bias"], 1e-6)
    x = x + attention(weights, "attn2", h, context, heads, None)
    h = linear(weights, "ffn.net.0.proj", modulated(x, m[4], m[3]))
    return x + m[5] * linear(weights, "ffn.net.2", F.gelu(h, approximate="tanh"))


def patch_rows(config, x):
    (pt, ph, pw), (batch, channels, frames, height, width) = config["patch_size"], x.shape
    x = x.reshape(batch, channels, frames // pt, pt, height // ph, ph, width // pw, pw)
    return x.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)


def unpatched(config, rows, grid):
    """The inverse of patching, for rows whose innermost dimension is the channel."""
    pt, ph, pw = config["patch_size"]
    x = rows.reshape(rows.shape[0], *grid, pt, ph, pw, config["out_channels"])
    return x.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6).flatten(4, 5).flatten(2, 3)


def time_embedding(ends, config, timestep):
    """e and its six rows for the blocks, in F32 whatever autocast says."""
    half, name = config["freq_dim"] // 2, "condition_embedder.time_embedder.linear"
    with torch.autocast(timestep.device.type, enabled=False):
        place = torch.arange(half, dtype=torch.float32, device=timestep.device)
        angle = timestep[:, None] * torch.exp(place * (-math.log(10000) / half))
        row = torch.cat((angle.cos(), angle.sin()), 1)
        e = linear(ends, f"{name}_2", F.silu(linear(ends, f"{name}_1", row)))
        return e, linear(ends, "condition_embedder.time_proj", F.silu(e)).unflatten(1, (6, -1))


def velocity(ends, blocks, config, x, timestep, text, rope, run_block=block_forward, recompute=False):
    """The transformer's output for noisy latents x (B, C, F, H, W)."""
    grid = [size // patch for size, patch in zip(x.shape[2:], config["patch_size"])]
    hidden = F.linear(patch_rows(config, x), ends["patch_embedding.weight"].flatten(1),
                      ends["patch_embedding.bias"]).float()
    e, modulation = time_embedding(ends, config, timestep)
    name = "condition_embedder.text_embedder.linear"
    context = linear(ends, f"{name}_2", F.gelu(linear(ends, f"{name}_1", text), approximate="tanh"))
    for weights in blocks:
        words = (weights, hidden, context, modulation, rope, config["num_attention_heads"])
        hidden = checkpoint(run_block, *words, use_reentrant=False) if recompute else run_block(*words)
    m = (ends["scale_shift_table"] + e[:, None]).unsqueeze(2).unbind(1)
    rows = linear(ends, "proj_out", modulated(hidden, m[1], m[0]))
    return unpatched(config, rows.float(), grid)
