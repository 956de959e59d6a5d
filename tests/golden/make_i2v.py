"""Small folders of image-to-video models: transformers and, for Wan 2.1, an image encoder; two pictures, and
what diffusers' WanImageToVideoPipeline samples with them. All other parts are those of pipe_a."""
import struct
import zlib

import torch
from PIL import Image
from diffusers import AutoencoderKLWan, WanImageToVideoPipeline

import make_dit
import make_vit
from golden_io import Random, describe, save
from make_experts import BOUNDARY, CONFIG, ROWS, TEXT_WIDTH, scheduler_of, write_expert
from make_pipeline import write_json

TEMPORAL, SPATIAL = 4, 8  # factors of the VAE of pipe_a

ABOUT = (
    "F32 on a CPU. first.png, last.png: pictures of the clip's size. noise: the first latents. latents: "
    "after the last step. encoder_hidden_states and negative_encoder_hidden_states: text states, followed "
    "by zeros up to 512 rows. The folder has no other parts than transformers, a scheduler and, if "
    "the model attends states of pictures, an image encoder."
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
CASES_CLIP = [
    {"case": "guided", "sampler": "unipc", "last_image": False, "num_inference_steps": 4,
     "guidance_scale": 5.0, "guidance_scale_2": None} | SIZE,
    {"case": "no_guidance", "sampler": "euler", "last_image": False, "num_inference_steps": 3,
     "guidance_scale": 1.0, "guidance_scale_2": None} | SIZE,
]
CASES_FLF = [
    {"case": "guided", "sampler": "unipc", "last_image": True, "num_inference_steps": 4,
     "guidance_scale": 5.0, "guidance_scale_2": None} | SIZE,
]


def write_png(path, random, height=SIZE["height"], width=SIZE["width"]):
    """Writes a picture, without compression so that its bytes depend on no version of zlib. Returns the
    picture as diffusers takes it, (1, 3, height, width) in 0 to 1."""
    pixels = (random.normal(height, width, 3, scale=50, mean=128)).clamp(0, 255).to(torch.uint8)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 0)) +
                     chunk(b"IEND", b""))
    return Image.fromarray(pixels.numpy())


def sample(parts, pictures, random, case):
    words = {key: case[key] for key in [*SIZE, "num_inference_steps", "guidance_scale", "guidance_scale_2"]}
    pipeline = WanImageToVideoPipeline(tokenizer=None, text_encoder=None,
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


def write_image_encoder(folder, random, **sizes):
    """Named and stored as the published one. Returns the parts of the pipeline."""
    edge = sizes["image_size"]
    encoder = make_vit.write_encoder(folder / "image_encoder", random, "vision_model.", torch.float16,
                                     hidden_act="gelu", intermediate_size=24, **sizes)
    processor = make_vit.write_processor(folder / "image_processor" / "preprocessor_config.json", edge, edge)
    return {"image_encoder": encoder, "image_processor": processor}


def write_folder(folder, random, cases, index, parts):
    """Adds all that is the same for each kind of model."""
    parts["vae"] = AutoencoderKLWan.from_pretrained(folder.parent / "pipe_a" / "vae",
                                                    torch_dtype=torch.float32)
    scheduler_of("unipc").save_pretrained(folder / "scheduler")
    write_json(folder / "model_index.json", {"_class_name": "WanImageToVideoPipeline", **index})
    pictures = [write_png(folder / f"{name}.png", random) for name in ("first", "last")]
    for case in cases:
        save(folder / "cases" / f"{case['case']}.safetensors", sample(parts, pictures, random, case))


KIND = ["diffusers", "WanTransformer3DModel"]


def write(folder):
    """Two experts without an image encoder, as Wan2.2-I2V-A14B."""
    seed = 71
    random = Random(seed)
    config = CONFIG | {"in_channels": 2 * make_dit.CHANNELS + TEMPORAL}
    parts = {"boundary_ratio": BOUNDARY}
    for name in ("transformer", "transformer_2"):
        parts[name] = write_expert(folder / name, random, config)
    write_folder(folder, random, CASES, {"boundary_ratio": BOUNDARY, "image_encoder": [None, None],
                                         "transformer": KIND, "transformer_2": KIND}, parts)
    describe(folder, seed, ABOUT, cases=CASES)


def write_of_states(folder, seed, cases, config, **sizes):
    """One transformer that attends states of an image encoder, as those of Wan 2.1."""
    random = Random(seed)
    config = CONFIG | {"in_channels": 2 * make_dit.CHANNELS + TEMPORAL, "image_dim": sizes["hidden_size"],
                       "added_kv_proj_dim": 32} | config
    parts = write_image_encoder(folder, random, **sizes)
    parts["transformer"] = write_expert(folder / "transformer", random, config)
    index = {"boundary_ratio": None, "image_encoder": ["transformers", "CLIPVisionModel"],
             "image_processor": ["transformers", "CLIPImageProcessor"], "transformer": KIND,
             "transformer_2": [None, None]}
    write_folder(folder, random, cases, index, parts)
    describe(folder, seed, ABOUT, cases=cases)


def write_clip(folder):
    """I2V: states of one picture."""
    write_of_states(folder, 72, CASES_CLIP, {"num_layers": 2}, hidden_size=24, num_attention_heads=2,
                    num_hidden_layers=3, image_size=20, patch_size=5)


def write_flf(folder):
    """FLF2V: states of two pictures, to which a table of positions is added."""
    write_of_states(folder, 73, CASES_FLF, {"pos_embed_seq_len": 10}, hidden_size=16, num_attention_heads=2,
                    num_hidden_layers=2, image_size=10, patch_size=5)
