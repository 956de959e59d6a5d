"""The two transformers of a small Wan2.2-I2V-A14B folder, two pictures, and what diffusers'
WanImageToVideoPipeline samples with them. All other parts are those of pipe_a."""
import struct
import zlib

import torch
from diffusers import AutoencoderKLWan, WanImageToVideoPipeline

import make_dit
from golden_io import Random, describe, save
from make_experts import BOUNDARY, CONFIG, ROWS, TEXT_WIDTH, scheduler_of, write_expert
from make_pipeline import write_json

SEED = 71
TEMPORAL, SPATIAL = 4, 8  # factors of the VAE of pipe_a

ABOUT = (
    "F32 on a CPU. first.png, last.png: pictures of the clip's size. noise: the first latents. latents: "
    "after the last step. encoder_hidden_states and negative_encoder_hidden_states: text states, followed "
    "by zeros up to 512 rows. The folder has no other parts than two transformers and a scheduler."
)

SIZE = {"height": 32, "width": 16, "num_frames": 9}
CASES = [
    {"case": "first", "sampler": "unipc", "last_image": False, "num_inference_steps": 5,
     "guidance_scale": 3.5, "guidance_scale_2": 2.5} | SIZE,
    {"case": "first_and_last", "sampler": "euler", "last_image": True, "num_inference_steps": 4,
     "guidance_scale": 3.0, "guidance_scale_2": None} | SIZE,
    {"case": "no_guidance", "sampler": "unipc", "last_image": False, "num_inference_steps": 3,
     "guidance_scale": 1.0, "guidance_scale_2": None} | SIZE,
]


def write_png(path, random):
    """Writes a picture, without compression so that its bytes depend on no version of zlib. Returns the
    picture as diffusers takes it, (1, 3, height, width) in 0 to 1."""
    height, width = SIZE["height"], SIZE["width"]
    pixels = (random.normal(height, width, 3, scale=50, mean=128)).clamp(0, 255).to(torch.uint8)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 0)) +
                     chunk(b"IEND", b""))
    return pixels.permute(2, 0, 1)[None].float() / 255


def sample(parts, pictures, random, case):
    words = {key: case[key] for key in [*SIZE, "num_inference_steps", "guidance_scale", "guidance_scale_2"]}
    pipeline = WanImageToVideoPipeline(tokenizer=None, text_encoder=None, boundary_ratio=BOUNDARY,
                                       scheduler=scheduler_of(case["sampler"]), **parts)
    pipeline.set_progress_bar_config(disable=True)
    noise = random.normal(1, make_dit.CHANNELS, 1 + (SIZE["num_frames"] - 1) // TEMPORAL,
                          SIZE["height"] // SPATIAL, SIZE["width"] // SPATIAL)
    states = [random.normal(1, ROWS, TEXT_WIDTH) for _ in range(2)]
    whole = [torch.nn.functional.pad(rows, (0, 0, 0, 512 - ROWS)) for rows in states]
    latents = pipeline(image=pictures[0], last_image=pictures[1] if case["last_image"] else None,
                       prompt_embeds=whole[0], negative_prompt_embeds=whole[1], latents=noise.clone(),
                       output_type="latent", **words).frames
    return {"noise": noise, "latents": latents, "encoder_hidden_states": states[0],
            "negative_encoder_hidden_states": states[1]}


def write(folder):
    random = Random(SEED)
    config = CONFIG | {"in_channels": 2 * make_dit.CHANNELS + TEMPORAL}
    for name in ("transformer", "transformer_2", "scheduler"):
        (folder / name).mkdir(exist_ok=True)
    parts = {name: write_expert(folder / name, random, config) for name in ("transformer", "transformer_2")}
    parts["vae"] = AutoencoderKLWan.from_pretrained(folder.parent / "pipe_a" / "vae",
                                                    torch_dtype=torch.float32)
    scheduler_of("unipc").save_pretrained(folder / "scheduler")
    kind = ["diffusers", "WanTransformer3DModel"]
    write_json(folder / "model_index.json",
               {"_class_name": "WanImageToVideoPipeline", "boundary_ratio": BOUNDARY,
                "image_encoder": [None, None], "transformer": kind, "transformer_2": kind})
    pictures = [write_png(folder / f"{name}.png", random) for name in ("first", "last")]
    for case in CASES:
        save(folder / "cases" / f"{case['case']}.safetensors", sample(parts, pictures, random, case))
    describe(folder, SEED, ABOUT, cases=CASES)
