"""Small random UMT5 text encoders of the package transformers: weights, configuration, hidden states."""
import json

import numpy as np
import torch
from transformers import UMT5Config, UMT5EncoderModel

from golden_io import Random, describe, save

ABOUT = (
    "last_hidden_state of UMT5EncoderModel, after the last norm, in F32. Rows whose mask is 0 are stored, "
    "too, but only rows whose mask is 1 matter."
)


def make_config(**sizes):
    return UMT5Config(dropout_rate=0.0, feed_forward_proj="gated-gelu", layer_norm_epsilon=1e-6,
                      use_cache=False, is_encoder_decoder=False, tie_word_embeddings=True,
                      architectures=["UMT5EncoderModel"], **sizes)


def draw_weights(random, config, shapes):
    """By name, F32. Scores have about the variance 1: the attention neither ignores nor copies rows."""
    weights = {}
    for name in sorted(shapes):
        shape = shapes[name]
        if "layer_norm" in name:
            weights[name] = random.normal(*shape, scale=0.2, mean=1)
        elif "relative_attention_bias" in name or name == "shared.weight":
            weights[name] = random.normal(*shape)
        else:
            scale = shape[1] ** -0.5 * (config.d_kv ** -0.5 if ".q." in name else 1)
            weights[name] = random.normal(*shape, scale=scale)
    return weights


def write_encoder(folder, random, config, dtype):
    """Writes config.json and model.safetensors, and returns the encoder. The file has the embedding once."""
    model = UMT5EncoderModel(config).eval()
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    shapes.pop("encoder.embed_tokens.weight")
    stored = {name: tensor.to(dtype) for name, tensor in draw_weights(random, config, shapes).items()}
    weights = {name: tensor.float() for name, tensor in stored.items()}
    model.load_state_dict(weights | {"encoder.embed_tokens.weight": weights["shared.weight"]})
    save(folder / "model.safetensors", stored)
    (folder / "config.json").write_text(json.dumps(config.to_dict(), indent=1, sort_keys=True) + "\n")
    return model


def write_case(folder, random, model, lengths, width):
    """Random ids; each row ends with the end token 1 and is filled up with 0. Returns the folder's name and
    its description."""
    name = f"b{len(lengths)}_{width}"
    ids = torch.zeros(len(lengths), width, dtype=torch.int32)
    for row, length in zip(ids, lengths):
        drawn = random.generator.integers(2, model.config.vocab_size, length).astype(np.int32)
        row[:length] = torch.from_numpy(drawn)
        row[length - 1] = 1
    mask = (torch.arange(width)[None] < torch.tensor(lengths)[:, None]).int()
    with torch.no_grad():
        hidden = model(input_ids=ids.long(), attention_mask=mask.long()).last_hidden_state
    save(folder / name / "inputs.safetensors", {"input_ids": ids, "attention_mask": mask})
    save(folder / name / "expected.safetensors", {"last_hidden_state": hidden})
    return name, {"lengths": lengths, "width": width}


def write(folder):
    """All sizes differ from each other and from the published ones; one case is longer than max_distance."""
    seed = 41
    random = Random(seed)
    config = make_config(vocab_size=150, d_model=24, d_kv=16, d_ff=40, num_heads=3, num_layers=2,
                         relative_attention_num_buckets=16, relative_attention_max_distance=40)
    model = write_encoder(folder, random, config, torch.float32)
    cases = [write_case(folder, random, model, lengths, width)
             for lengths, width in (([20, 7, 1], 20), ([130], 130))]
    describe(folder, seed, ABOUT, cases=dict(cases))
