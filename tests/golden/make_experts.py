"""The two transformers of a small Wan 2.2 A14B folder, and what diffusers' WanPipeline samples with them.
All other parts are those of pipe_a."""
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler, WanPipeline

import make_dit
from golden_io import Random, describe, save
from make_pipeline import TEXT_WIDTH, write_json

SEED = 67
ROWS = 6
BOUNDARY = 0.875
SHIFT = 3.0
CONFIG = {"num_layers": 1, "num_attention_heads": 1, "attention_head_dim": 32, "ffn_dim": 24, "freq_dim": 16,
          "text_dim": TEXT_WIDTH}

ABOUT = (
    "F32 on a CPU. noise: the first latents. latents: after the last step. encoder_hidden_states and "
    "negative_encoder_hidden_states: text states, followed by zeros up to 512 rows. The folder has no other "
    "parts than two transformers and a scheduler."
)

SIZE = {"height": 32, "width": 16, "num_frames": 5}
CASES = [
    {"case": "unipc", "sampler": "unipc", "boundary_ratio": BOUNDARY, "num_inference_steps": 6,
     "guidance_scale": 4.0, "guidance_scale_2": 3.0} | SIZE,
    {"case": "one_scale", "sampler": "unipc", "boundary_ratio": 0.5, "num_inference_steps": 5,
     "guidance_scale": 3.5, "guidance_scale_2": None} | SIZE,
    {"case": "euler", "sampler": "euler", "boundary_ratio": BOUNDARY, "num_inference_steps": 4,
     "guidance_scale": 2.0, "guidance_scale_2": 1.0} | SIZE,
    {"case": "no_guidance", "sampler": "unipc", "boundary_ratio": BOUNDARY, "num_inference_steps": 3,
     "guidance_scale": 1.0, "guidance_scale_2": 3.0} | SIZE,
]


def write_expert(folder, random, config):
    folder.mkdir(exist_ok=True)
    weights = make_dit.random_weights(random, config)
    weights["proj_out.weight"] *= 0.5
    stored = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    make_dit.write_config(folder, config)
    save(folder / "diffusion_pytorch_model.safetensors", stored)
    return make_dit.load_model(config, make_dit.to_f32(stored), torch.float32).eval()


def scheduler_of(sampler):
    if sampler == "euler":
        return FlowMatchEulerDiscreteScheduler(shift=SHIFT)
    return UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=SHIFT)


def sample(experts, random, case):
    words = {key: case[key] for key in [*SIZE, "num_inference_steps", "guidance_scale", "guidance_scale_2"]}
    pipeline = WanPipeline(tokenizer=None, text_encoder=None, vae=None,
                           scheduler=scheduler_of(case["sampler"]), transformer=experts[0],
                           transformer_2=experts[1], boundary_ratio=case["boundary_ratio"])
    pipeline.vae_scale_factor_temporal, pipeline.vae_scale_factor_spatial = 4, 8
    pipeline.set_progress_bar_config(disable=True)
    noise = random.normal(1, make_dit.CHANNELS, 2, SIZE["height"] // 8, SIZE["width"] // 8)
    states = [random.normal(1, ROWS, TEXT_WIDTH) for _ in range(2)]
    whole = [torch.nn.functional.pad(rows, (0, 0, 0, 512 - ROWS)) for rows in states]
    latents = pipeline(prompt_embeds=whole[0], negative_prompt_embeds=whole[1], latents=noise.clone(),
                       output_type="latent", **words).frames
    return {"noise": noise, "latents": latents, "encoder_hidden_states": states[0],
            "negative_encoder_hidden_states": states[1]}


def write(folder):
    random = Random(SEED)
    experts = [write_expert(folder / name, random, CONFIG) for name in ("transformer", "transformer_2")]
    scheduler_of("unipc").save_pretrained(folder / "scheduler")
    part = ["diffusers", "WanTransformer3DModel"]
    write_json(folder / "model_index.json", {"_class_name": "WanPipeline", "boundary_ratio": BOUNDARY,
                                             "transformer": part, "transformer_2": part})
    for case in CASES:
        save(folder / "cases" / f"{case['case']}.safetensors", sample(experts, random, case))
    describe(folder, SEED, ABOUT, cases=CASES)
