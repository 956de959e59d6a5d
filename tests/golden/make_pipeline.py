"""A whole small Wan folder, and what diffusers' WanPipeline samples with it from given noise."""
import json

import tokenizers
import torch
import transformers
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler, WanPipeline

import make_dit
import make_tokenizer
import make_umt5
import make_vae
from golden_io import Random, describe, save

SEED = 61
TEXT_WIDTH = 16
LIMIT = 512  # ids of a prompt
ROWS = 64  # of the text states that are stored: the rest is zero

ABOUT = (
    "F32 on a CPU. noise: the first latents. latents: after the last step, before they are decoded. video: "
    "(1, frames, 3, height, width) in 0 to 1. prompt_embeds and negative_embeds: the first 64 rows of the "
    "text states; without guidance negative_embeds are zero."
)

CASES = [
    {"case": "unipc", "scheduler": "that of the folder, flow_shift 3",
     "prompt": "A wooden boat runs slowly over “the old sea”", "negative_prompt": "海，走 light shot",
     "height": 32, "width": 32, "num_frames": 5, "num_inference_steps": 4, "guidance_scale": 5.0},
    {"case": "euler", "scheduler": "flow-match Euler, shift 5", "prompt": "rain &amp; morning light 🙂",
     "negative_prompt": "", "height": 16, "width": 16, "num_frames": 9, "num_inference_steps": 3,
     "guidance_scale": 3.0},
    {"case": "no_guidance", "scheduler": "that of the folder, flow_shift 3", "prompt": "the cat walks",
     "negative_prompt": None, "height": 32, "width": 16, "num_frames": 1, "num_inference_steps": 2,
     "guidance_scale": 1.0},
]


def write_json(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_tokenizer(folder):
    """spiece.model of the set `tokenizer`. Returns the tokenizer that diffusers gets, with the
    same pieces, and the number of its ids."""
    folder.mkdir(exist_ok=True)
    pieces = list(make_tokenizer.make_pieces())
    make_tokenizer.write_spiece(folder / "spiece.model", pieces)
    stored = make_tokenizer.make_tokenizer(pieces, False).to_str()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(stored), model_max_length=LIMIT, pad_token="<pad>",
        eos_token="</s>", unk_token="<unk>")
    return fast, fast.vocab_size


def write_transformer(folder, random):
    """Two blocks of one head, in two files with an index as large models are stored."""
    config = {"num_layers": 2, "num_attention_heads": 1, "attention_head_dim": 32, "ffn_dim": 40,
              "freq_dim": 32, "text_dim": TEXT_WIDTH}
    weights = make_dit.random_weights(random, config)
    weights["proj_out.weight"] *= 0.5  # so that guidance does not drive the latents far from 0
    stored = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    folder.mkdir(exist_ok=True)
    make_dit.write_config(folder, config)
    names, files = sorted(stored), {}
    for i in range(2):
        file = f"diffusion_pytorch_model-0000{i + 1}-of-00002.safetensors"
        save(folder / file, {name: stored[name] for name in names[i::2]})
        files.update(dict.fromkeys(names[i::2], file))
    total = sum(tensor.numel() * tensor.element_size() for tensor in stored.values())
    write_json(folder / "diffusion_pytorch_model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))})
    return make_dit.load_model(config, make_dit.to_f32(stored), torch.float32)


def write_parts(folder, random):
    tokenizer, ids = write_tokenizer(folder / "tokenizer")
    text_config = make_umt5.make_config(vocab_size=ids + 20, d_model=TEXT_WIDTH, d_kv=8, d_ff=24, num_heads=2,
                                        num_layers=2)
    vae_config = {"base_dim": 4, "z_dim": make_dit.CHANNELS, "dim_mult": [1, 1, 1, 2], "num_res_blocks": 1,
                  "temperal_downsample": [False, True, True]}
    (folder / "text_encoder").mkdir(exist_ok=True)
    (folder / "vae").mkdir(exist_ok=True)
    return {
        "tokenizer": tokenizer,
        "text_encoder": make_umt5.write_encoder(folder / "text_encoder", random, text_config, torch.bfloat16),
        "vae": make_vae.write_vae(folder / "vae", random, vae_config, torch.float16),
        "transformer": write_transformer(folder / "transformer", random).eval(),
        "scheduler": UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True,
                                             flow_shift=3.0),
    }


def write_index(folder, parts):
    parts["scheduler"].save_pretrained(folder / "scheduler")
    index = {"_class_name": "WanPipeline", "boundary_ratio": None, "expand_timesteps": False,
             "transformer_2": [None, None]}
    for name, part in parts.items():
        kind = "T5TokenizerFast" if name == "tokenizer" else type(part).__name__
        index[name] = [type(part).__module__.split(".")[0], kind]
    write_json(folder / "model_index.json", index)


def sample(pipeline, random, case):
    """What a test compares: noise, text states, latents, video."""
    words = {key: value for key, value in case.items() if key not in ("case", "scheduler")}
    noise = random.normal(1, make_dit.CHANNELS, 1 + (case["num_frames"] - 1) // 4, case["height"] // 8,
                          case["width"] // 8)
    latents = pipeline(**words, latents=noise.clone(), output_type="latent").frames
    mean, std = make_vae.statistics(pipeline.vae, torch.float32)
    with torch.no_grad():
        video = pipeline.video_processor.postprocess_video(
            pipeline.vae.decode(latents * std + mean, return_dict=False)[0], output_type="pt")
        states = pipeline.encode_prompt(case["prompt"], case["negative_prompt"], case["guidance_scale"] > 1,
                                        max_sequence_length=LIMIT)
    prompt, negative = (torch.zeros(1, ROWS, TEXT_WIDTH) if state is None else state[:, :ROWS]
                        for state in states)
    return {"noise": noise, "latents": latents, "video": video, "prompt_embeds": prompt,
            "negative_embeds": negative}


def write(folder):
    random = Random(SEED)
    parts = write_parts(folder, random)
    write_index(folder, parts)
    for case in CASES:
        euler = FlowMatchEulerDiscreteScheduler(shift=5.0)
        pipeline = WanPipeline(**parts | ({"scheduler": euler} if case["case"] == "euler" else {}))
        pipeline.set_progress_bar_config(disable=True)
        save(folder / "cases" / case["case"] / "expected.safetensors", sample(pipeline, random, case))
    describe(folder, SEED, ABOUT, cases=CASES)
