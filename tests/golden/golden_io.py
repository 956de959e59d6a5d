"""Random numbers for the golden files, and how files are written and compared."""
import json

import diffusers
import numpy as np
import safetensors
import safetensors.torch
import torch

ROUNDING = 1e-5  # relative L2 by which a tensor may differ on another machine


class Random:
    """Normal numbers of a seed. NumPy's generator: the same numbers whatever the version of PyTorch."""

    def __init__(self, seed):
        self.generator = np.random.Generator(np.random.PCG64(seed))

    def normal(self, *shape, scale=1.0, mean=0.0):
        values = mean + scale * self.generator.standard_normal(shape)
        return torch.from_numpy(values.astype(np.float32))

    def integers(self, least, most):
        return int(self.generator.integers(least, most + 1))

    def choose(self, count, below):
        """`count` different integers from 0 to below - 1, in any order."""
        return [int(i) for i in self.generator.permutation(below)[:count]]

    def coin(self, probability):
        return bool(self.generator.random() < probability)


def save(path, tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def describe(folder, seed, about, **more):
    """fixture.json: what made the folder, and what the tests must know of its cases."""
    made = {
        "made_by": "tests/golden/make.py",
        "versions": {
            "diffusers": diffusers.__version__,
            "numpy": np.__version__,
            "safetensors": safetensors.__version__,
            "torch": torch.__version__.split("+")[0],
        },
        "seed": seed,
        "about": about,
    }
    (folder / "fixture.json").write_text(json.dumps({**made, **more}, indent=1) + "\n")


def relative_l2(found, wanted):
    """|found - wanted| / |wanted|; equal infinities differ by nothing, and NaN gives NaN."""
    found, wanted = found.double(), wanted.double()
    difference = torch.where(found == wanted, 0, found - wanted).norm().item()
    norm = torch.where(torch.isinf(wanted), 0, wanted).norm().item()
    return difference / norm if norm > 0 else difference


def largest_difference(found, wanted):
    """The largest relative L2 among the tensors of two files; infinite if their tensors do not correspond."""
    if found.keys() != wanted.keys():
        return float("inf")
    errors = [0.0]
    for name, tensor in found.items():
        if tensor.dtype != wanted[name].dtype or tensor.shape != wanted[name].shape:
            return float("inf")
        errors.append(relative_l2(tensor, wanted[name]))
    return max(errors, key=lambda error: float("inf") if error != error else error)


def description_of(path):
    """A fixture.json or config.json without the errors of PyTorch in it, which depend on the machine."""
    found = json.loads(path.read_text())
    for case in found.get("cases", {}).values():
        for errors in ("f32_against_f64", "bf16_autocast_against_f32"):
            case.pop(errors, None)
    return found


def compare_files(fresh, stored):
    """None if the files are equal, else a sentence and whether the difference is rounding alone."""
    if fresh.read_bytes() == stored.read_bytes():
        return None
    if fresh.suffix == ".json":
        same = description_of(fresh) == description_of(stored)
        return ("differs in PyTorch's errors alone" if same else "differs"), same
    if fresh.suffix != ".safetensors":
        return "differs", False
    error = largest_difference(safetensors.torch.load_file(fresh), safetensors.torch.load_file(stored))
    return f"differs by {error:.1e} relative L2", error <= ROUNDING


def compare_folders(fresh, stored):
    """Prints how the files of two folders differ. Returns whether rounding explains all of it."""
    names = {folder: {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
             for folder in (fresh, stored)}
    fine = True
    for name in sorted(names[fresh] ^ names[stored]):
        print(f"{stored.name}/{name}: " + ("missing" if name in names[fresh] else "no set has this file"))
        fine = False
    equal = 0
    for name in sorted(names[fresh] & names[stored]):
        difference = compare_files(fresh / name, stored / name)
        if difference:
            print(f"{stored.name}/{name}: {difference[0]}")
            fine = fine and difference[1]
        equal += difference is None
    print(f"{stored.name}: {equal} files are equal to the bit")
    return fine
