#!/usr/bin/env python3
"""check_loras.py DSV: LoRAs of dsv in diffusers and back, for every kind of Wan model.

For each small folder of the golden files `DSV train` trains a LoRA of all linear layers of the blocks for a
few steps. diffusers loads lora.safetensors into its pipeline, and its transformer must give the outputs of
`DSV forward --lora`. The pipeline then saves the LoRA in its own form, which dsv must read with the same
outputs. All in F32. Needs the packages of requirements.txt, peft, and ffmpeg for a clip."""
import os

os.environ.update(HF_HUB_OFFLINE="1")

import argparse
import json
import logging
import pathlib
import subprocess
import tempfile
import warnings

import diffusers
import torch
from diffusers import WanImageToVideoPipeline, WanPipeline, WanTransformer3DModel
from safetensors.torch import load_file, save_file

GOLDEN = pathlib.Path(__file__).resolve().parent
BOUND = 1e-5  # relative L2, F32
LAYERS = ("attn1.to_q,attn1.to_k,attn1.to_v,attn1.to_out.0,attn2.to_q,attn2.to_k,attn2.to_v,attn2.to_out.0,"
          "ffn.net.0.proj,ffn.net.2")
OF_IMAGE = ",attn2.add_k_proj,attn2.add_v_proj"
OPTIONS = ["codec.name=wan", "num_frames=5", "height=32", "width=32", "fps=8", "mixed_precision=no",
           "threads=1", "data.path=clips", "lora_alpha=6", "lr=0.05", "warmup_steps=0", "max_train_steps=3",
           "checkpointing_steps=0", "validation_at_end=false", "sparse.enabled=false"]

# Golden folder; None: one transformer, otherwise the expert.
CASES = [("pipe_a", None), ("pipe_clip", None), ("pipe_flf", None), ("pipe_ti2v", None),
         ("pipe_experts", "high"), ("pipe_experts", "low"), ("pipe_i2v", "high"), ("pipe_i2v", "low")]


def run(place, *command):
    done = subprocess.run([str(word) for word in command], cwd=place, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def make_model(place, name):
    """The folder of a set; parts that it lacks are those of pipe_a."""
    folder = place / "model"
    folder.mkdir()
    for part in ("transformer", "transformer_2", "vae", "text_encoder", "tokenizer", "scheduler",
                 "image_encoder", "image_processor", "model_index.json"):
        for source in (name, "pipe_a"):
            if (GOLDEN / source / part).exists():
                (folder / part).symlink_to(GOLDEN / source / part)
                break
    return folder


def inputs_of(config):
    """Random inputs of one sample; diffusers takes the rows before the last 512 for those of a picture."""
    random = torch.Generator().manual_seed(7)
    tensors = {"hidden_states": torch.randn(1, config.in_channels, 2, 4, 4, generator=random),
               "timestep": torch.tensor([412.5]),
               "encoder_hidden_states": torch.randn(1, 512, config.text_dim, generator=random)}
    if config.image_dim:
        rows = config.pos_embed_seq_len or 9
        halves = 2 if config.pos_embed_seq_len else 1
        tensors["encoder_hidden_states_image"] = torch.randn(halves, rows // halves, config.image_dim,
                                                             generator=random)
    return tensors


def error(found, wanted):
    return ((found - wanted).norm() / wanted.norm()).item()


def check(dsv, place, name, expert):
    folder = make_model(place, name)
    part = "transformer_2" if expert == "low" else "transformer"
    model = WanTransformer3DModel.from_pretrained(folder / part, torch_dtype=torch.float32)
    layers = LAYERS + (OF_IMAGE if model.config.image_dim else "")
    run(place, "ffmpeg", "-v", "error", "-f", "lavfi", "-i", "testsrc2=size=48x32:rate=8:duration=2",
        "clip.mp4")
    (place / "clips").mkdir()
    (place / "clip.mp4").rename(place / "clips" / "a.mp4")
    (place / "run.yaml").write_text("lora_rank: 3\n")
    run(place, dsv, "train", "run.yaml", "model.path=model", "output_dir=run",
        f"lora_target_modules={layers}", *OPTIONS, *([f"model.expert={expert}"] if expert else []))
    lora = next(place.glob("run/checkpoint-3/lora*.safetensors"))
    inputs = inputs_of(model.config)
    save_file(inputs, place / "in.safetensors")

    def forward(path):
        run(place, dsv, "forward", folder / part, "in.safetensors", "out.safetensors", "--lora", path)
        return load_file(place / "out.safetensors")["output"]

    def compute():
        with torch.no_grad():
            return model(return_dict=False, **inputs)[0]

    plain = compute()
    kind = WanPipeline if model.config.in_channels == model.config.out_channels else WanImageToVideoPipeline
    parts = {"tokenizer": None, "text_encoder": None, "vae": None, "scheduler": None, "transformer": None,
             "transformer_2": None}
    if kind is WanImageToVideoPipeline:
        parts |= {"image_encoder": None, "image_processor": None}
    parts["transformer"] = model  # diffusers reads its configuration for a LoRA of transformer_2, too
    pipeline = kind(**parts | {part: model})
    words = {"load_into_transformer_2": True} if expert == "low" else {}
    pipeline.load_lora_weights(lora.parent, weight_name=lora.name, **words)
    found, wanted = compute(), forward(lora)
    changed, there = error(wanted, plain), error(found, wanted)
    kind.save_lora_weights(place / "saved", transformer_lora_layers=peft_state(model))
    back = error(forward(place / "saved" / "pytorch_lora_weights.safetensors"), wanted)
    good = changed > 1e-3 and there < BOUND and back < BOUND
    print(json.dumps({"set": name, "expert": expert, "tensors": len(load_file(lora)),
                      "changed": round(changed, 4), "in_diffusers": float(f"{there:.2g}"),
                      "back_in_dsv": float(f"{back:.2g}"), "good": good}), flush=True)
    return good


def peft_state(model):
    from peft import get_peft_model_state_dict
    return get_peft_model_state_dict(model, adapter_name=next(iter(model.peft_config)))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsv", type=pathlib.Path)
    dsv = parser.parse_args().dsv.resolve()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    diffusers.utils.logging.set_verbosity_error()
    good = []
    for name, expert in CASES:
        with tempfile.TemporaryDirectory(prefix="dsv-loras-") as place:
            good.append(check(dsv, pathlib.Path(place), name, expert))
    if not all(good):
        raise SystemExit("a LoRA does not give the same outputs in both programs")


main()
