"""Fine-tunes a Wan transformer of diffusers on clips, densely and with sparse attention; draws both curves.

    python diffusers_finetune.py CLIP... [--steps 40] [--density 0.05] [--out finetune]
    python diffusers_finetune.py CLIP... --model Wan-AI/Wan2.1-T2V-1.3B-Diffusers --device cuda

Without --model a small random transformer learns pixels, which takes minutes on a CPU. Needs dsv, torch,
diffusers, matplotlib and the program ffmpeg. Writes OUT/curves.png and OUT/transformer (weights and state of
the sparse run)."""

import argparse
import copy
import statistics
import subprocess
import time

import matplotlib
import torch
from diffusers import WanPipeline, WanTransformer3DModel

import dsv.diffusers

matplotlib.use("agg")
from matplotlib import pyplot

SMALL = dict(num_attention_heads=4, attention_head_dim=64, in_channels=48, out_channels=48, text_dim=64,
             ffn_dim=1024, num_layers=2, freq_dim=64)


def read_clip(path, frames, height, width):
    """The first frames of a clip, (3, F, H, W) from -1 to 1."""
    fit = f"scale={width}:{height}:force_original_aspect_ratio=increase,crop={width}:{height}"
    command = ["ffmpeg", "-v", "error", "-i", path, "-vf", fit, "-frames:v", str(frames), "-f", "rawvideo",
               "-pix_fmt", "rgb24", "-"]
    run = subprocess.run(command, stdout=subprocess.PIPE)
    if run.returncode:
        raise SystemExit(f"{path}: ffmpeg cannot read the clip, see above")
    pixels = run.stdout
    found = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(-1, height, width, 3)
    if len(found) < frames:
        raise SystemExit(f"{path}: {len(found)} frames, expected at least {frames}")
    return found.permute(3, 0, 1, 2) / 127.5 - 1


def load(args):
    """The transformer, the latents of the clips (1, C, F, H, W), and the states of an empty prompt."""
    clips = [read_clip(path, args.frames, args.height, args.width) for path in args.clips]
    if args.model is None:
        torch.manual_seed(0)
        unshuffle = torch.nn.functional.pixel_unshuffle  # 4 x 4 pixels make one latent position
        latents = [unshuffle(clip.transpose(0, 1), 4).transpose(0, 1)[None] for clip in clips]
        return WanTransformer3DModel(**SMALL).to(args.device), latents, torch.zeros(1, 16, 64)
    pipe = WanPipeline.from_pretrained(args.model).to(args.device)
    mean = torch.tensor(pipe.vae.config.latents_mean, device=args.device).view(1, -1, 1, 1, 1)
    std = torch.tensor(pipe.vae.config.latents_std, device=args.device).view(1, -1, 1, 1, 1)
    with torch.no_grad():
        text, _ = pipe.encode_prompt("", do_classifier_free_guidance=False)
        latents = [(pipe.vae.encode(clip[None].to(args.device)).latent_dist.mode() - mean) / std
                   for clip in clips]
    return pipe.transformer, latents, text


def train(args, transformer, latents, text):
    """Losses and seconds of each step of flow matching: the model predicts noise minus latents."""
    optimizer = torch.optim.AdamW(transformer.train().parameters(), lr=args.lr)
    chance, losses, seconds = torch.Generator().manual_seed(1), [], []
    text = text.to(args.device)
    for step in range(args.steps):
        begin = time.perf_counter()
        clean = latents[step % len(latents)].to(args.device)
        noise = torch.randn(clean.shape, generator=chance).to(args.device)
        sigma = torch.rand(1, generator=chance).to(args.device)
        with torch.autocast(args.device, torch.bfloat16):
            noisy = (1 - sigma) * clean + sigma * noise
            found = transformer(noisy, 1000 * sigma, text, return_dict=False)[0]
        loss = torch.nn.functional.mse_loss(found.float(), noise - clean)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
        print(f"step {step + 1}: loss {losses[-1]:.3f}, {seconds[-1]:.2f} s", flush=True)
    return losses, seconds


def draw(runs, path):
    _, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    for name, (losses, seconds) in runs.items():
        mean = [statistics.mean(losses[max(0, i - 9) : i + 1]) for i in range(len(losses))]
        axes[0].plot(mean, label=name)
        axes[1].plot([sum(seconds[: i + 1]) for i in range(len(seconds))], mean, label=name)
    axes[0].set(xlabel="step", ylabel="loss, mean of 10 steps")
    axes[1].set(xlabel="seconds")
    axes[0].legend()
    pyplot.savefig(path, dpi=120, bbox_inches="tight")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("clips", nargs="+")
    parser.add_argument("--model", help="folder or name of a Wan 2.1 model of diffusers")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="finetune")
    for name, value in (("steps", 40), ("frames", 9), ("height", 128), ("width", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--density", type=float, default=0.05, help="fraction of the keys in lists")
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()
    unit = 8 if args.model is None else 16  # pixels of a token
    if args.height % unit or args.width % unit:
        parser.error(f"clips of {args.height} x {args.width} pixels, expected multiples of {unit}")
    transformer, latents, text = load(args)
    runs, start = {}, copy.deepcopy(transformer.state_dict())
    runs["dense"] = train(args, transformer, latents, text)
    transformer.load_state_dict(start)
    sparse = dsv.diffusers.use_sparse_attention(transformer, target_density=args.density, min_keys=0)
    runs["sparse"] = train(args, transformer, latents, text)
    transformer.save_pretrained(f"{args.out}/transformer")
    draw(runs, f"{args.out}/curves.png")
    for name, (losses, seconds) in runs.items():
        print(f"{name}: loss {statistics.mean(losses[-10:]):.3f}, {statistics.median(seconds):.2f} s a step")
    print({key: sparse.statistics()[key] for key in ("sparse_blocks", "density", "output_error")})


if __name__ == "__main__":
    main()
