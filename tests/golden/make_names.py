"""Names and shapes of the parameters of the published Wan 2.1 text-to-video models.

Names in the order and spelling of the original code are written out below. diffusers maps each of them to its
own name, and the shapes come from diffusers' model, built without memory. A parameter that one side lacks
ends the script."""
import torch
from diffusers import WanTransformer3DModel
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers

from golden_io import describe

MODELS = {
    "wan21_t2v_1.3b": {"num_layers": 30, "num_attention_heads": 12, "ffn_dim": 8960},
    "wan21_t2v_14b": {"num_layers": 40, "num_attention_heads": 40, "ffn_dim": 13824},
}

ABOUT = (
    "One line a parameter, in the order of the original code: its original name, diffusers' name, its shape "
    "and its number of elements."
)


def linear(*names):
    return [f"{name}.{kind}" for name in names for kind in ("weight", "bias")]


def attention(name):
    return [*linear(*(f"{name}.{part}" for part in "qkvo")), f"{name}.norm_q.weight", f"{name}.norm_k.weight"]


def original_names(layers):
    names = linear("patch_embedding", "text_embedding.0", "text_embedding.2", "time_embedding.0",
                   "time_embedding.2", "time_projection.1")
    for i in range(layers):
        block = f"blocks.{i}."
        names.append(block + "modulation")
        names += attention(block + "self_attn") + attention(block + "cross_attn")
        names += linear(block + "norm3", block + "ffn.0", block + "ffn.2")
    return names + ["head.modulation"] + linear("head.head")


def list_model(config):
    with torch.device("meta"):
        model = WanTransformer3DModel(attention_head_dim=128, text_dim=4096, freq_dim=256, **config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    originals = {name: name for name in original_names(config["num_layers"])}
    by_name = convert_wan_transformer_to_diffusers(originals)
    if by_name.keys() != shapes.keys():
        raise SystemExit(f"names differ: {sorted(by_name.keys() ^ shapes.keys())}")
    yield "original_name diffusers_name shape elements"
    for name, original in by_name.items():
        yield f"{original} {name} {'x'.join(map(str, shapes[name]))} {torch.Size(shapes[name]).numel()}"


def write(folder):
    for name, config in MODELS.items():
        (folder / f"{name}.txt").write_text("\n".join(list_model(config)) + "\n")
    describe(folder, None, ABOUT)
