"""Imports numpy and pyplot for programs that draw; exits with installation advice if they are missing."""
try:
    import matplotlib
    import numpy as np
except ImportError as error:
    raise SystemExit(f"{error.name} is not installed, but this program needs it for plots: "
                     "pip install -r bench/requirements.txt, or apt-get install python3-matplotlib") from None
matplotlib.use("Agg")
import matplotlib.pyplot as plt

__all__ = ["np", "plt"]
