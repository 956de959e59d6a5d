"""Small random image encoders (CLIP) of the package transformers, pictures, and their states."""
import torch
from transformers import CLIPImageProcessorPil, CLIPVisionConfig, CLIPVisionModel

from golden_io import Random, describe, save
from make_pipeline import write_json

ABOUT = (
    "rgb_N: picture N, (height, width, 3) bytes. pixel_values: what CLIPImageProcessor makes of the pictures "
    "with Pillow. hidden_states: hidden_states[-2] of CLIPVisionModel, F32, as the Wan pipelines take them."
)


def write_processor(path, edge, crop):
    """preprocessor_config.json, with the keys of the published one. Returns the processor."""
    values = {"crop_size": {"height": crop, "width": crop}, "do_center_crop": True, "do_convert_rgb": True,
              "do_normalize": True, "do_rescale": True, "do_resize": True,
              "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_processor_type": "CLIPImageProcessor",
              "image_std": [0.26862954, 0.26130258, 0.27577711], "resample": 3,
              "rescale_factor": 1 / 255, "size": {"shortest_edge": edge}}
    write_json(path, values)
    return CLIPImageProcessorPil(**{key: value for key, value in values.items()
                                    if key != "image_processor_type"})


def draw_weights(random, shapes):
    """By name, F32. Scores have about the variance 1, and the residual stream grows slowly."""
    weights = {}
    for name in sorted(shapes):
        shape = shapes[name]
        if "norm" in name and name.endswith("weight"):
            weights[name] = random.normal(*shape, scale=0.2, mean=1)
        elif name.endswith("bias"):
            weights[name] = random.normal(*shape, scale=0.1)
        elif "class_embedding" in name or "position_embedding" in name:
            weights[name] = random.normal(*shape)
        else:
            weights[name] = random.normal(*shape, scale=shape[1:].numel() ** -0.5)
    return weights


def write_encoder(folder, random, prefix, dtype, **sizes):
    """Writes config.json and model.safetensors with `prefix` before all names. Returns the encoder."""
    config = CLIPVisionConfig(architectures=["CLIPVisionModel"], **sizes)
    model = CLIPVisionModel(config).eval()
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    stored = {name: tensor.to(dtype) for name, tensor in draw_weights(random, shapes).items()}
    model.load_state_dict({name: tensor.float() for name, tensor in stored.items()})
    save(folder / "model.safetensors", {prefix + name: tensor for name, tensor in stored.items()})
    write_json(folder / "config.json", {"architectures": ["CLIPVisionModel"], **sizes, "layer_norm_eps": 1e-5,
                                        "model_type": "clip_vision_model", "num_channels": 3})
    return model


def write(folder):
    """gelu as published; quick_gelu with other sizes, and with names without their prefix. Pictures become
    smaller and larger, and both heights and widths are cropped."""
    seed = 81
    random = Random(seed)
    sizes = {"intermediate_size": 40, "num_hidden_layers": 3}
    encoders = {
        "gelu": write_encoder(folder / "gelu", random, "vision_model.", torch.float32, hidden_act="gelu",
                              hidden_size=24, num_attention_heads=2, image_size=20, patch_size=5, **sizes),
        "quick_gelu": write_encoder(folder / "quick_gelu", random, "", torch.float16, hidden_act="quick_gelu",
                                    hidden_size=16, num_attention_heads=4, image_size=20, patch_size=4,
                                    **sizes)}
    processor = write_processor(folder / "preprocessor_config.json", 23, 20)
    pictures = [random.normal(height, width, 3, scale=60, mean=128).clamp(0, 255).to(torch.uint8)
                for height, width in ((40, 61), (50, 23), (9, 14))]
    pixels = processor(images=[picture.numpy() for picture in pictures], return_tensors="pt").pixel_values
    expected = {f"rgb_{i}": picture for i, picture in enumerate(pictures)} | {"pixel_values": pixels}
    with torch.no_grad():
        for name, model in encoders.items():
            expected[f"hidden_states_{name}"] = model(pixels, output_hidden_states=True).hidden_states[-2]
    save(folder / "expected.safetensors", expected)
    describe(folder, seed, ABOUT)
