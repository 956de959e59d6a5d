#!/usr/bin/env python3
"""Writes a Wan folder with random weights in BF16 and the sizes of a published model.

    wan_folder.py FOLDER [--size 1.3b|14b|i2v-a14b|ti2v-5b|tiny] [--parts transformer,vae,...]
        [--tokenizer FOLDER]

Weights are one block of random numbers, repeated and scaled: the same bytes each time, written as fast as
the disk takes them. Outputs of layers have a variance of about 1. transformer_2 of a model of two experts is
a link to transformer, so that both fit on a small disk; programs load the same bytes twice. Without
--tokenizer the folder has the small tokenizer of tests/golden, whose ids are below the size of the
vocabulary."""
import argparse
import json
import pathlib
import shutil
import struct

import torch

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "tests" / "golden"
TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "model_max_length": 512,
             "pad_token": "<pad>", "unk_token": "<unk>"}
BLOCK = 1 << 24  # random numbers, repeated
SEED = 20

MEAN = [-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517, -0.3632,
        -0.1922, -0.9497, 0.2503, -0.2921]
STD = [2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579, 1.6382,
       1.1253, 2.8251, 1.9160]
TRANSFORMER = {"patch_size": (1, 2, 2), "in_channels": 16, "out_channels": 16, "cross_attn_norm": True,
               "qk_norm": "rms_norm_across_heads", "eps": 1e-6}
VAE = {"z_dim": 16, "temperal_downsample": [False, True, True], "attn_scales": [], "latents_mean": MEAN,
       "latents_std": STD}
XXL = {"vocab_size": 256384, "d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64}
PUBLISHED_VAE = {"base_dim": 96, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2}
VAE_22 = PUBLISHED_VAE | {"base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "is_residual": True,
                          "in_channels": 12, "out_channels": 12, "patch_size": 2, "scale_factor_spatial": 16,
                          "scale_factor_temporal": 4, "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48}
BLOCKS_14B = {"num_attention_heads": 40, "attention_head_dim": 128, "num_layers": 40, "ffn_dim": 13824}
SIZES = {
    "1.3b": {
        "transformer": {"num_attention_heads": 12, "attention_head_dim": 128, "num_layers": 30,
                        "ffn_dim": 8960},
        "text_encoder": XXL, "vae": PUBLISHED_VAE},
    "14b": {
        "transformer": BLOCKS_14B, "text_encoder": XXL, "vae": PUBLISHED_VAE},
    "i2v-a14b": {
        "transformer": BLOCKS_14B | {"in_channels": 36}, "text_encoder": XXL, "vae": PUBLISHED_VAE},
    "ti2v-5b": {
        "transformer": {"num_attention_heads": 24, "attention_head_dim": 128, "num_layers": 30,
                        "ffn_dim": 14336, "in_channels": 48, "out_channels": 48},
        "text_encoder": XXL, "vae": VAE_22},
    "tiny": {
        "transformer": {"num_attention_heads": 2, "attention_head_dim": 32, "num_layers": 2, "ffn_dim": 96,
                        "freq_dim": 32, "text_dim": 64},
        "text_encoder": {"vocab_size": 600, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2,
                         "num_heads": 4},
        "vae": {"base_dim": 8, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1}},
}


# What model_index.json says of a size besides its parts.
EXPERTS = {"_class_name": "WanImageToVideoPipeline", "boundary_ratio": 0.9,
           "transformer_2": ["diffusers", "WanTransformer3DModel"]}
INDEX = {"i2v-a14b": EXPERTS, "ti2v-5b": {"expand_timesteps": True}}


# ---- models without memory: they tell the names and shapes ----

def transformer_of(sizes):
    from diffusers import WanTransformer3DModel
    model = WanTransformer3DModel(**TRANSFORMER | sizes)
    return model, described(model), "diffusion_pytorch_model"


def vae_of(sizes):
    from diffusers import AutoencoderKLWan
    model = AutoencoderKLWan(**VAE | sizes)
    return model, described(model), "diffusion_pytorch_model"


def text_encoder_of(sizes):
    from transformers import UMT5Config, UMT5EncoderModel
    config = UMT5Config(**sizes, feed_forward_proj="gated-gelu", use_cache=False, is_encoder_decoder=False,
                        tie_word_embeddings=True, architectures=["UMT5EncoderModel"], dtype="bfloat16")
    return UMT5EncoderModel(config), config.to_dict(), "model"


def described(model):
    config = {name: value for name, value in model.config.items() if not name.startswith("_")}
    return {"_class_name": type(model).__name__} | config


MODELS = {"transformer": transformer_of, "vae": vae_of, "text_encoder": text_encoder_of}


# ---- weights ----

def moments_of(name, shape):
    """Mean and scale of a tensor's random numbers."""
    if name.endswith("gamma") or ("norm" in name and name.endswith("weight")):
        return 1, 0.1
    if len(shape) == 1 or "scale_shift_table" in name or "relative_attention_bias" in name:
        return 0, 0.1
    if name == "shared.weight":
        return 0, 1
    return 0, shape[1:].numel() ** -0.5


class Blocks:
    """The block of random numbers for each mean and scale, in BF16."""

    def __init__(self):
        self.normal = torch.randn(BLOCK, generator=torch.Generator().manual_seed(SEED))
        self.made = {}

    def of(self, mean, scale):
        if (mean, scale) not in self.made:
            values = (mean + scale * self.normal).to(torch.bfloat16)
            self.made[mean, scale] = memoryview(values.view(torch.int16).numpy()).cast("B")
        return self.made[mean, scale]


def write_weights(path, shapes, blocks):
    """A safetensors file: the length of the header, the header, then the tensors one after another."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * shape.numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            block, left = blocks.of(*moments_of(name, shape)), 2 * shape.numel()
            while left > 0:
                left -= file.write(block[:min(left, len(block))])
    return end


def write_part(folder, part, sizes, blocks):
    with torch.device("meta"):
        model, config, stem = MODELS[part](sizes)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    shapes.pop("encoder.embed_tokens.weight", None)  # the same as shared.weight
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    size = write_weights(folder / f"{stem}.safetensors", shapes, blocks)
    print(f"{folder}: {len(shapes)} tensors, {size / 1e9:.2f} GB", flush=True)


def write_rest(folder, tokenizer, index_of_size):
    from diffusers import UniPCMultistepScheduler
    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True,
                                        flow_shift=3.0)
    scheduler.save_pretrained(folder / "scheduler")
    (folder / "tokenizer").mkdir(exist_ok=True)
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(TOKENIZER, indent=1) + "\n")
    for name in ("spiece.model", "tokenizer.json"):
        if (tokenizer / name).exists():
            shutil.copyfile(tokenizer / name, folder / "tokenizer" / name)
    index = json.loads((GOLDEN / "pipe_a" / "model_index.json").read_text())
    index["tokenizer"][1] = TOKENIZER["tokenizer_class"]
    index |= index_of_size
    if "transformer_2" in index_of_size and not (folder / "transformer_2").exists():
        (folder / "transformer_2").symlink_to("transformer")
    (folder / "model_index.json").write_text(json.dumps(index, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--size", choices=SIZES, default="1.3b")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(MODELS),
                        help=f"weights to write, of {','.join(MODELS)}")
    parser.add_argument("--tokenizer", type=pathlib.Path, default=GOLDEN / "tokenizer",
                        help="folder with spiece.model and tokenizer.json")
    args = parser.parse_args()
    blocks = Blocks()
    for part in args.parts:
        write_part(args.folder / part, part, SIZES[args.size][part], blocks)
    write_rest(args.folder, args.tokenizer, INDEX.get(args.size, {}))


if __name__ == "__main__":
    main()
