"""Small random VAEs in the forms of Wan 2.1 and 2.2, by diffusers: weights, configuration, latents,
videos."""
import json

import torch
from diffusers import AutoencoderKLWan

from golden_io import Random, describe, relative_l2, save

ABOUT = (
    "moments = quant_conv(encoder(video)); mode = its first z_dim channels; latents_normalized = (mode - "
    "latents_mean) / latents_std; decoded = decode(mode), limited to [-1, 1]; decoded_random = "
    "decode(latents_random). Computed in double, stored as F32. f32_against_f64 are relative L2 errors of "
    "diffusers itself on a CPU."
)


def random_statistics(random, channels):
    """latents_mean and latents_std: other numbers than the published ones, which are diffusers' defaults."""
    return {"latents_mean": [round(random.normal(1).item(), 4) for _ in range(channels)],
            "latents_std": [round(1 + abs(random.normal(1).item()), 4) for _ in range(channels)]}


def draw_weights(random, shapes):
    weights = {}
    for name in sorted(shapes):
        shape = shapes[name]
        if name.endswith("gamma"):
            weights[name] = random.normal(*shape, scale=0.2, mean=1)
        elif name.endswith("bias"):
            weights[name] = random.normal(*shape, scale=0.1)
        else:
            # Few values of the decoded video shall reach -1 or 1, where they would be cut.
            gain = 0.3 if name.startswith("decoder.conv_out") else 1
            weights[name] = random.normal(*shape, scale=gain * shape[1:].numel() ** -0.5)
    return weights


def write_vae(folder, random, config, dtype):
    """Writes config.json and the weights, and returns the VAE."""
    factors = {"scale_factor_spatial": config.get("patch_size", 1) * 2 ** (len(config["dim_mult"]) - 1),
               "scale_factor_temporal": 2 ** sum(config["temperal_downsample"])}
    model = AutoencoderKLWan(attn_scales=[], **config, **factors).eval()
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    stored = {name: tensor.to(dtype) for name, tensor in draw_weights(random, shapes).items()}
    model.load_state_dict({name: tensor.float() for name, tensor in stored.items()})
    save(folder / "diffusion_pytorch_model.safetensors", stored)
    described = {"_class_name": "AutoencoderKLWan", **{name: model.config[name] for name in
                 sorted(model.config) if not name.startswith("_")}}
    (folder / "config.json").write_text(json.dumps(described, indent=1) + "\n")
    return model


def statistics(model, dtype):
    return (torch.tensor(values, dtype=dtype).view(1, -1, 1, 1, 1)
            for values in (model.config.latents_mean, model.config.latents_std))


def run(model, inputs, dtype):
    model = model.to(dtype)
    mean, std = statistics(model, dtype)
    with torch.no_grad():
        posterior = model.encode(inputs["video"].to(dtype)).latent_dist
        mode = posterior.mode()
        return {"moments": posterior.parameters, "mode": mode, "latents_normalized": (mode - mean) / std,
                "decoded": model.decode(mode).sample,
                "decoded_random": model.decode(inputs["latents_random"].to(dtype)).sample}


def write_case(folder, random, model, frames, height, width):
    name = f"b1_{frames}x{height}x{width}"
    space, time = model.config.scale_factor_spatial, model.config.scale_factor_temporal
    latents = (1 + (frames - 1) // time, height // space, width // space)
    inputs = {"video": random.normal(1, 3, frames, height, width, scale=0.5).clamp(-1, 1),
              "latents_random": random.normal(1, model.config.z_dim, *latents)}
    single, exact = run(model, inputs, torch.float32), run(model, inputs, torch.float64)
    save(folder / name / "inputs.safetensors", inputs)
    save(folder / name / "expected.safetensors", {name: tensor.float() for name, tensor in exact.items()})
    errors = {name: float(f"{relative_l2(single[name], exact[name]):.3g}") for name in exact}
    return name, {"batch": 1, "video_thw": [frames, height, width],
                  "latent_shape": list(exact["mode"].shape), "f32_against_f64": errors}


def write_a(folder):
    """Three levels, of which the first halves the frames: other numbers than those of the published VAE."""
    seed = 51
    random = Random(seed)
    config = {"base_dim": 4, "z_dim": 4, "dim_mult": [1, 3, 2], "num_res_blocks": 2,
              "temperal_downsample": [True, False], **random_statistics(random, 4)}
    model = write_vae(folder, random, config, torch.bfloat16)
    cases = [write_case(folder, random, model, *size) for size in ((9, 12, 20), (1, 20, 8))]
    describe(folder, seed, ABOUT, cases=dict(cases))


def write_b(folder):
    """The structure of Wan 2.2: patches of pixels and shortcuts around levels, of which all kinds occur."""
    seed = 52
    random = Random(seed)
    config = {"base_dim": 4, "decoder_base_dim": 6, "z_dim": 6, "dim_mult": [1, 1, 2, 2],
              "num_res_blocks": 1, "temperal_downsample": [False, True, True], "is_residual": True,
              "patch_size": 2, "in_channels": 12, "out_channels": 12, **random_statistics(random, 6)}
    model = write_vae(folder, random, config, torch.bfloat16)
    cases = [write_case(folder, random, model, *size) for size in ((9, 32, 16), (1, 16, 48))]
    describe(folder, seed, ABOUT, cases=dict(cases))
