"""Transformer and VAE of a small Wan2.2-TI2V-5B folder, a picture, and what diffusers samples with them: its
WanImageToVideoPipeline and its WanPipeline. All other parts are those of pipe_a."""
import torch
from diffusers import WanImageToVideoPipeline, WanPipeline

import make_vae
from golden_io import Random, describe, save
from make_experts import CONFIG, ROWS, TEXT_WIDTH, scheduler_of, write_expert
from make_i2v import write_png
from make_pipeline import write_json

SEED = 73
CHANNELS, TEMPORAL, SPATIAL = 48, 4, 16  # of the VAE

ABOUT = (
    "F32 on a CPU. first.png: a picture of the clip's size. noise: the first latents. latents: after the "
    "last step. encoder_hidden_states and negative_encoder_hidden_states: text states, followed by zeros up "
    "to 512 rows. The folder has no other parts than transformer, VAE and scheduler. A case without "
    "last_image is sampled from text alone."
)

SIZE = {"height": 64, "width": 32, "num_frames": 9}
CASES = [
    {"case": "picture", "sampler": "unipc", "last_image": False, "num_inference_steps": 5,
     "guidance_scale": 4.0} | SIZE,
    {"case": "no_guidance", "sampler": "euler", "last_image": False, "num_inference_steps": 3,
     "guidance_scale": 1.0} | SIZE,
    {"case": "text", "sampler": "unipc", "num_inference_steps": 3, "guidance_scale": 3.0} | SIZE,
]


def sample(parts, picture, random, case):
    words = {key: case[key] for key in [*SIZE, "num_inference_steps", "guidance_scale"]}
    kind = WanPipeline
    if "last_image" in case:
        kind, words["image"] = WanImageToVideoPipeline, picture
    pipeline = kind(tokenizer=None, text_encoder=None, expand_timesteps=True,
                    scheduler=scheduler_of(case["sampler"]), **parts)
    pipeline.set_progress_bar_config(disable=True)
    noise = random.normal(1, CHANNELS, 1 + (SIZE["num_frames"] - 1) // TEMPORAL, SIZE["height"] // SPATIAL,
                          SIZE["width"] // SPATIAL)
    states = [random.normal(1, ROWS, TEXT_WIDTH) for _ in range(2)]
    whole = [torch.nn.functional.pad(rows, (0, 0, 0, 512 - ROWS)) for rows in states]
    latents = pipeline(prompt_embeds=whole[0], negative_prompt_embeds=whole[1], latents=noise.clone(),
                       output_type="latent", **words).frames
    return {"noise": noise, "latents": latents, "encoder_hidden_states": states[0],
            "negative_encoder_hidden_states": states[1]}


def write(folder):
    random = Random(SEED)
    config = CONFIG | {"in_channels": CHANNELS, "out_channels": CHANNELS}
    vae = {"base_dim": 4, "decoder_base_dim": 4, "z_dim": CHANNELS, "dim_mult": [1, 1, 1, 1],
           "num_res_blocks": 1, "temperal_downsample": [False, True, True], "is_residual": True,
           "patch_size": 2, "in_channels": 12, "out_channels": 12,
           **make_vae.random_statistics(random, CHANNELS)}
    for name in ("transformer", "vae", "scheduler"):
        (folder / name).mkdir(exist_ok=True)
    parts = {"transformer": write_expert(folder / "transformer", random, config),
             "vae": make_vae.write_vae(folder / "vae", random, vae, torch.bfloat16)}
    scheduler_of("unipc").save_pretrained(folder / "scheduler")
    write_json(folder / "model_index.json",
               {"_class_name": "WanPipeline", "boundary_ratio": None, "expand_timesteps": True,
                "transformer": ["diffusers", "WanTransformer3DModel"], "transformer_2": [None, None]})
    picture = write_png(folder / "first.png", random, SIZE["height"], SIZE["width"])
    for case in CASES:
        save(folder / "cases" / f"{case['case']}.safetensors", sample(parts, picture, random, case))
    describe(folder, SEED, ABOUT, cases=CASES)
