#!/usr/bin/env python3
"""make.py [--check] [FOLDER]: computes the golden files with PyTorch and diffusers on a CPU.

Without --check: writes the files of every set into FOLDER, by default the folder of this script. Running it
again on the same machine writes the same bytes.
With --check: computes everything anew, compares it with the files in FOLDER, and fails if a file is missing,
left over, or differs by more than rounding. README.md says what each set holds."""
import os

# These settings must precede the import of PyTorch. One thread, and kernels that do not depend on the
# instruction sets of the machine: most machines then compute the same bits.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", MKL_CBWR="COMPATIBLE",
                  ATEN_CPU_CAPABILITY="default", HF_HUB_OFFLINE="1")

import argparse
import importlib.metadata
import pathlib
import sys
import tempfile
import warnings

sys.dont_write_bytecode = True
warnings.filterwarnings("ignore")  # PyTorch's, about a missing GPU and about slow paths

import diffusers
import torch

import make_attention
import make_conv
import make_dit
import make_experts
import make_i2v
import make_names
import make_pipeline
import make_samplers
import make_tail
import make_ti2v
import make_tokenizer
import make_umt5
import make_vae
import make_vit
from golden_io import compare_folders

SETS = [
    ("attention", make_attention.write),
    ("conv", make_conv.write),
    ("dit_a", make_dit.write_a),
    ("dit_c", make_dit.write_c),
    ("dit_clip", make_dit.write_clip),
    ("dit_flf", make_dit.write_flf),
    ("dit_i2v", make_dit.write_i2v),
    ("dit_ti2v", make_dit.write_ti2v),
    ("pipe_a", make_pipeline.write),
    ("pipe_clip", make_i2v.write_clip),
    ("pipe_experts", make_experts.write),
    ("pipe_flf", make_i2v.write_flf),
    ("pipe_i2v", make_i2v.write),
    ("pipe_ti2v", make_ti2v.write),
    ("published", make_names.write),
    ("schedulers", make_samplers.write),
    ("tail_a", make_tail.write),
    ("tokenizer", make_tokenizer.write),
    ("umt5", make_umt5.write),
    ("vae_a", make_vae.write_a),
    ("vae_b", make_vae.write_b),
    ("vit", make_vit.write),
]


def check_versions(requirements):
    """Other versions may compute something else: diffusers 0.36 spaces the sigmas of UniPC differently."""
    for line in requirements.read_text().split():
        package, wanted = line.split("==")
        found = importlib.metadata.version(package).split("+")[0]
        if found != wanted:
            sys.exit(f"{package} {found} is installed, {requirements} asks for {wanted}")


def write_all(folder):
    for name, write in SETS:
        (folder / name).mkdir(parents=True, exist_ok=True)
        write(folder / name)


def check_all(folder):
    with tempfile.TemporaryDirectory(prefix="dsv-golden-") as fresh:
        write_all(pathlib.Path(fresh))
        return all([compare_folders(pathlib.Path(fresh) / name, folder / name) for name, _ in SETS])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    arguments = parser.parse_args()
    check_versions(pathlib.Path(__file__).with_name("requirements.txt"))
    diffusers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if not arguments.check:
        write_all(arguments.folder)
    elif not check_all(arguments.folder):
        sys.exit("the golden files are not what this script computes")


main()
