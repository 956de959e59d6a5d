"""Training and sampling of video diffusion transformers with dynamic sparse attention.

dsv.torch      sparse self-attention for models in PyTorch
dsv.diffusers  the same for the Wan transformer of diffusers
dsv.Run        the records of a run folder
python -m dsv  the program dsv
"""

from dsv._library import Error, version
from dsv.run import Run

__all__ = ["Error", "Run", "version"]
__version__ = version()
