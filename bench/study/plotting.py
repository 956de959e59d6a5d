"""numpy and pyplot for the programs that draw; without them one sentence that says how to get them."""
try:
    import matplotlib
    import numpy as np
except ImportError as error:
    raise SystemExit(f"{error.name} is not installed, and this program draws with it: "
                     "pip install -r bench/requirements.txt, or apt-get install python3-matplotlib") from None
matplotlib.use("Agg")
import matplotlib.pyplot as plt

__all__ = ["np", "plt"]
