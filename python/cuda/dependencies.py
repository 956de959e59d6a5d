"""The dependencies of the wheel `dsv-cuda`, for scikit-build-core: the package `dsv` of the same version, and
NVIDIA's libraries for the CUDA version of the compiler that makes the wheel."""

import pathlib
import re
import shutil
import subprocess

# The lowest versions that dsv needs (docs/gpu.md). NCCL serves runs on several GPUs.
LIBRARIES = {
    12: ["nvidia-cublas-cu12>=12.8", "nvidia-cudnn-cu12>=9.10.2", "nvidia-nccl-cu12>=2.7"],
    13: ["nvidia-cublas>=13", "nvidia-cudnn-cu13>=9.10.2", "nvidia-nccl-cu13>=2.7"],
}


def cuda_version():
    """The major version of CUDA that nvcc belongs to."""
    compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"release (\d+)\.", said)[1])


def dynamic_metadata(field, settings=None):
    """What scikit-build-core asks for: the value of `field` of the project's metadata."""
    if field != "dependencies" or settings:
        raise ValueError(f"expected dependencies without settings, got {field} {settings}")
    build = pathlib.Path(__file__).resolve().parents[2] / "CMakeLists.txt"
    version = re.search(r"project\(dsv VERSION ([0-9.]+)", build.read_text())[1]
    cuda = cuda_version()
    if cuda not in LIBRARIES:
        raise ValueError(f"CUDA {cuda} has no list of NVIDIA's packages here, expected 12 or 13")
    return [f"dsv=={version}", *LIBRARIES[cuda]]


def get_requires_for_dynamic_metadata(_settings):
    """No package is needed to compute the metadata."""
    return []
