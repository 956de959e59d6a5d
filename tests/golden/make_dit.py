"""Small random Wan transformers of diffusers: outputs, gradients, tensors inside, and AdamW steps.

References are computed in double. diffusers' code asks for F32 in places (x.float()); while a reference is
computed, float() means double(). What then still is F32 are the frequencies of the time embedding."""
import contextlib
import json

import torch
from diffusers import WanTransformer3DModel

from golden_io import Random, describe, relative_l2, save

CHANNELS = 16
COMMON = {"patch_size": (1, 2, 2), "in_channels": CHANNELS, "out_channels": CHANNELS, "cross_attn_norm": True,
          "qk_norm": "rms_norm_across_heads", "eps": 1e-6, "rope_max_seq_len": 64}

ABOUT = (
    "loss = mean of (output - target)^2; timestep = 1000 sigma, no integer. expected_f64 holds results in "
    "double; grads has a gradient for each weight by the same name, computed in double and stored as F32, as "
    "are the intermediates. f32_against_f64 and bf16_autocast_against_f32 are relative L2 errors of PyTorch "
    "itself on a CPU."
)
TRAIN_ABOUT = (
    "Begins from the weights of this folder. Inputs are stacked over steps; hidden_states = (1 - sigma) "
    "latents_clean + sigma noise and target = noise - latents_clean. grad_norms are those before clipping. "
    "Computed in double; weights and moments after the last step are stored as F32."
)


@contextlib.contextmanager
def float_means_double():
    original = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.Tensor.float = original


def random_weights(random, config):
    """By name, F32: matrices that keep the variance, norms about 1, and no bias or modulation of zero."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in make_model(config).state_dict().items()}
    weights = {}
    for name in sorted(shapes):
        shape = shapes[name]
        if "norm" in name and name.endswith("weight"):
            weights[name] = random.normal(*shape, scale=0.2, mean=1)
        elif len(shape) == 1:
            weights[name] = random.normal(*shape, scale=0.1)
        elif "scale_shift_table" in name:
            weights[name] = random.normal(*shape, scale=0.3)
        else:
            weights[name] = random.normal(*shape, scale=shape[1:].numel() ** -0.5)
    return weights


def make_model(config):
    return WanTransformer3DModel(**(COMMON | config))


def load_model(config, weights, dtype):
    model = make_model(config).to(dtype)
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in weights.items()})
    return model


def random_image(random, batch, config):
    """States of a picture for each sample, or of two, which diffusers joins; None for other models."""
    rows = config.get("pos_embed_seq_len") or config.get("image_dim", 0) and 9
    halves = 2 if "pos_embed_seq_len" in config else 1
    return random.normal(halves * batch, rows // halves, config["image_dim"]) if rows else None


def random_inputs(random, batch, thw, text_len, text_dim):
    """What a training step begins from."""
    shape = (batch, CHANNELS, *thw)
    sigma = torch.sigmoid(random.normal(batch))
    return {"latents_clean": random.normal(*shape), "noise": random.normal(*shape), "sigma": sigma,
            "timestep": 1000 * sigma, "encoder_hidden_states": random.normal(batch, text_len, text_dim)}


def mix(inputs):
    """The model's input and the velocity that it is to predict."""
    sigma = inputs["sigma"].view(-1, 1, 1, 1, 1)
    return ((1 - sigma) * inputs["latents_clean"] + sigma * inputs["noise"],
            inputs["noise"] - inputs["latents_clean"])


INSIDE = {
    "condition_embedder.timesteps_proj": "timesteps_proj",
    "condition_embedder.time_embedder": "temb",
    "condition_embedder.time_proj": "timestep_proj",
    "condition_embedder.text_embedder": "text_embedding",
    "proj_out": "proj_out",
}


def watch(model, found):
    """Has the outputs of the modules that a test looks at put into `found`."""
    for name, module in model.named_modules():
        parts = name.split(".")
        if parts[0] == "blocks" and (len(parts) == 2 or parts[2:] in (["attn1"], ["ffn"])):
            key = name
        elif name in INSIDE:
            key = INSIDE[name]
        else:
            continue
        module.register_forward_hook(lambda module, inputs, output, key=key: found.update({key: output}))


def times_of_tokens(times, thw):
    """What diffusers takes for two times per sample, the first for the tokens of the first latent frame."""
    in_frame = thw[1] // 2 * (thw[2] // 2)
    return torch.cat([times[:, :1].expand(-1, in_frame), times[:, 1:].expand(-1, (thw[0] - 1) * in_frame)], 1)


WITH_GRADIENT = ("hidden_states", "encoder_hidden_states", "encoder_hidden_states_image")


def run(config, weights, inputs, dtype, autocast=False):
    """Results, gradients of the weights, and tensors inside the model."""
    inside = {}
    with float_means_double() if dtype == torch.float64 else contextlib.nullcontext():
        model = load_model(config, weights, dtype)
        watch(model, inside)
        given = {name: inputs[name].to(dtype, copy=True).requires_grad_() for name in WITH_GRADIENT
                 if name in inputs}
        timestep = inputs["timestep"].to(dtype)
        given_first = timestep.ndim == 2
        if given_first:
            timestep = times_of_tokens(timestep, inputs["hidden_states"].shape[2:])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            output = model(timestep=timestep, return_dict=False, **given)[0]
        errors = (output.to(dtype) - inputs["target"].to(dtype)) ** 2
        loss = errors[:, :, 1:].mean() if given_first else errors.mean()
        loss.backward()
    results = {"output": output, "loss": loss.view(1),
               **{f"grad_{name}": tensor.grad for name, tensor in given.items()}}
    return results, {name: parameter.grad for name, parameter in model.named_parameters()}, inside


def errors_between(found, wanted):
    """Relative errors of (results, gradients): of the worst parameter, what no bound may be below."""
    of_params = {name: relative_l2(found[1][name], wanted[1][name]) for name in wanted[1]}
    worst = max(of_params, key=of_params.get)
    errors = {"output_rel_l2": relative_l2(found[0]["output"], wanted[0]["output"]),
              "loss_rel": relative_l2(found[0]["loss"], wanted[0]["loss"]),
              "grad_hidden_states_rel_l2": relative_l2(found[0]["grad_hidden_states"],
                                                       wanted[0]["grad_hidden_states"]),
              "worst_param_grad_rel_l2": of_params[worst]}
    return {**{name: float(f"{error:.3g}") for name, error in errors.items()}, "worst_param": worst}


def to_f32(tensors):
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}


def write_case(folder, random, config, weights, batch, thw, text_len, given_first=False):
    """One forward and backward pass. `given_first`: the first latent frame has a time of its own and no loss.
    Returns the folder's name and its description."""
    name = f"b{batch}_{'x'.join(map(str, thw))}"
    drawn = random_inputs(random, batch, thw, text_len, config["text_dim"])
    latents, target = mix(drawn)
    beside = config.get("in_channels", CHANNELS) - CHANNELS  # of a picture, after those of the latent
    if beside:
        latents = torch.cat([latents, random.normal(batch, beside, *thw)], dim=1)
    inputs = {"hidden_states": latents, "target": target, "timestep": drawn["timestep"],
              "encoder_hidden_states": drawn["encoder_hidden_states"]}
    if given_first:
        inputs["timestep"] = torch.stack([torch.tensor([0, 37.5])[:batch], drawn["timestep"]], dim=1)
    image, image_len = random_image(random, batch, config), 0
    if image is not None:
        image_len = image.shape[0] * image.shape[1] // batch
        inputs["encoder_hidden_states_image"] = image
    exact = run(config, weights, inputs, torch.float64)
    single = run(config, weights, inputs, torch.float32)
    rounded = run(config, weights, inputs, torch.float32, autocast=True)
    save(folder / name / "inputs.safetensors", inputs)
    save(folder / name / "expected_f64.safetensors", exact[0])
    save(folder / name / "grads.safetensors", to_f32(exact[1]))
    if config["num_layers"] == 2 and not image_len and not given_first:
        save(folder / name / "intermediates.safetensors", to_f32(exact[2]))
    lengths = {"text_len": text_len, **({"image_len": image_len} if image_len else {}),
               **({"given_first": True} if given_first else {})}
    return name, {"batch": batch, "latent_thw": list(thw), **lengths,
                  "f32_against_f64": errors_between(single, exact),
                  "bf16_autocast_against_f32": errors_between(rounded, single)}


TRAIN = {"steps": 2, "batch": 2, "latent_thw": [3, 4, 6], "text_len": 7, "optimizer": "AdamW (torch)",
         "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "clip_grad_norm": 1.0,
         "decay": "every parameter"}


def train_step(model, optimizer, inputs):
    """Loss, and norm of the gradients before clipping. With two timesteps per sample the first latent frame
    has no noise and no loss. Channels of latents_clean after the latent's stay as they are."""
    inputs = {name: tensor.double() for name, tensor in inputs.items()}
    beside = inputs["latents_clean"][:, CHANNELS:]
    inputs["latents_clean"] = inputs["latents_clean"][:, :CHANNELS]
    latents, target = mix(inputs)
    timestep, learned = inputs["timestep"], slice(None)
    if timestep.ndim == 2:
        timestep, learned = times_of_tokens(timestep, latents.shape[2:]), slice(1, None)
        latents[:, :, 0] = inputs["latents_clean"][:, :, 0]
    output = model(torch.cat([latents, beside], dim=1), timestep, inputs["encoder_hidden_states"],
                   inputs.get("encoder_hidden_states_image"), return_dict=False)[0]
    loss = ((output - target)[:, :, learned] ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), TRAIN["clip_grad_norm"])
    optimizer.step()
    return loss.item(), norm.item()


def write_training(folder, random, config, weights, given_first=False, keep_state=True,
                   text_len=TRAIN["text_len"]):
    """Training steps. `given_first`: the first latent frame is given. `keep_state`: write the final state."""
    steps = [random_inputs(random, TRAIN["batch"], TRAIN["latent_thw"], text_len, config["text_dim"])
             for _ in range(TRAIN["steps"])]
    for inputs in steps:
        latents, times = inputs["latents_clean"], inputs["timestep"]
        if given_first:
            inputs["timestep"] = torch.stack([torch.zeros_like(times), times], dim=1)
        beside = config.get("in_channels", CHANNELS) - CHANNELS
        if beside:
            condition = random.normal(len(latents), beside, *latents.shape[2:])
            inputs["latents_clean"] = torch.cat([latents, condition], dim=1)
        image = random_image(random, len(latents), config)
        if image is not None:
            inputs["encoder_hidden_states_image"] = image
    with float_means_double():
        model = load_model(config, weights, torch.float64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=TRAIN["lr"], betas=TRAIN["betas"],
                                      eps=TRAIN["eps"], weight_decay=TRAIN["weight_decay"])
        results = [train_step(model, optimizer, inputs) for inputs in steps]
    moments = {f"{kind}.{name}": optimizer.state[parameter][kind]
               for name, parameter in model.named_parameters() for kind in ("exp_avg", "exp_avg_sq")}
    save(folder / "inputs.safetensors", {name: torch.stack([inputs[name] for inputs in steps])
                                         for name in steps[0]})
    save(folder / "expected.safetensors",
         {"losses": torch.tensor([loss for loss, _ in results], dtype=torch.float64),
          "grad_norms": torch.tensor([norm for _, norm in results], dtype=torch.float64)})
    if keep_state:
        save(folder / "weights_after.safetensors", to_f32(model.state_dict()))
        save(folder / "adam_after.safetensors", to_f32(moments))
    return {**TRAIN, "text_len": text_len, "about": TRAIN_ABOUT}


def write_config(folder, config):
    with torch.device("meta"):
        model = make_model(config)
    stored = {"_class_name": "WanTransformer3DModel", **{name: model.config[name] for name in
              sorted(model.config) if not name.startswith("_")}}
    (folder / "config.json").write_text(json.dumps(stored, indent=1) + "\n")


def write_a(folder):
    """Two blocks of one head; weights in F32."""
    seed = 21
    config = {"num_layers": 2, "num_attention_heads": 1, "attention_head_dim": 32, "ffn_dim": 40,
              "freq_dim": 32, "text_dim": 48}
    random = Random(seed)
    weights = random_weights(random, config)
    write_config(folder, config)
    save(folder / "diffusion_pytorch_model.safetensors", weights)
    cases = [write_case(folder, random, config, weights, *shape)
             for shape in ((1, (3, 6, 10), 7), (2, (2, 4, 6), 5))]
    train = write_training(folder / "train", random, config, weights)
    describe(folder, seed, ABOUT, cases=dict(cases), train=train)


def write_c(folder):
    """One block of two heads; weights in BF16, as the published ones are often stored."""
    seed = 22
    config = {"num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 32, "ffn_dim": 48,
              "freq_dim": 32, "text_dim": 24}
    random = Random(seed)
    stored = {name: tensor.to(torch.bfloat16) for name, tensor in random_weights(random, config).items()}
    write_config(folder, config)
    save(folder / "diffusion_pytorch_model.safetensors", stored)
    weights = {name: tensor.float() for name, tensor in stored.items()}
    cases = [write_case(folder, random, config, weights, 1, (2, 6, 10), 11)]
    describe(folder, seed, ABOUT, cases=dict(cases))


def write_i2v(folder):
    """One block of one head. Beside the latent it takes 20 channels of a picture, as Wan2.2-I2V-A14B."""
    seed = 23
    config = {"num_layers": 1, "num_attention_heads": 1, "attention_head_dim": 32, "ffn_dim": 40,
              "freq_dim": 32, "text_dim": 24, "in_channels": CHANNELS + 20}
    random = Random(seed)
    weights = random_weights(random, config)
    write_config(folder, config)
    save(folder / "diffusion_pytorch_model.safetensors", weights)
    cases = [write_case(folder, random, config, weights, 2, (2, 4, 6), 5)]
    train = write_training(folder / "train", random, config, weights, keep_state=False)
    describe(folder, seed, ABOUT, cases=dict(cases), train=train)


def write_ti2v(folder):
    """Two blocks of one head; the first latent frame is given, as for Wan2.2-TI2V-5B from a picture."""
    seed = 26
    config = {"num_layers": 2, "num_attention_heads": 1, "attention_head_dim": 32, "ffn_dim": 24,
              "freq_dim": 16, "text_dim": 8}
    random = Random(seed)
    weights = random_weights(random, config)
    write_config(folder, config)
    save(folder / "diffusion_pytorch_model.safetensors", weights)
    cases = [write_case(folder, random, config, weights, 2, (3, 4, 6), 5, given_first=True)]
    train = write_training(folder / "train", random, config, weights, given_first=True, keep_state=False)
    describe(folder, seed, ABOUT, cases=dict(cases), train=train)


def write_of_image(folder, seed, config):
    """A transformer that takes states of a picture besides the text, as those of Wan 2.1 I2V and FLF2V.
    diffusers takes all rows before the last 512 for those of the picture, so the text has 512."""
    config = {"num_attention_heads": 1, "attention_head_dim": 32, "ffn_dim": 40, "freq_dim": 32,
              "text_dim": 8, "in_channels": CHANNELS + 20, "image_dim": 20, "added_kv_proj_dim": 32, **config}
    random = Random(seed)
    weights = random_weights(random, config)
    write_config(folder, config)
    save(folder / "diffusion_pytorch_model.safetensors", weights)
    cases = [write_case(folder, random, config, weights, 2, (2, 4, 6), 512)]
    train = write_training(folder / "train", random, config, weights, keep_state=False, text_len=512)
    describe(folder, seed, ABOUT, cases=dict(cases), train=train)


def write_clip(folder):
    """Two blocks."""
    write_of_image(folder, 24, {"num_layers": 2})


def write_flf(folder):
    """One block, and a table of the positions of two pictures."""
    write_of_image(folder, 25, {"num_layers": 1, "pos_embed_seq_len": 6})
