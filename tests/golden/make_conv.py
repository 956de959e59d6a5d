"""Convolutions of a video, in double, by PyTorch.

The arrays have the layout of dsv: channels last. PyTorch convolves with explicit zeros around the video."""
import torch

from golden_io import Random, describe, save

SEED = 23

ABOUT = (
    "x (T, H, W, I), weight (O, kernel[0], kernel[1], kernel[2], I), bias (O), y (T', H', W', O). steps "
    "holds the strides of frames, rows and columns, then the zeros before the first frame, row and column. "
    "x, weight and bias are F32, and the computation in double began from exactly those; y is F64."
)

# name, sizes of x, channels, kernel, stride, zeros before and after the frames, rows and columns
CASES = [
    ("causal", (3, 4, 5), (3, 5), (3, 3, 3), (1, 1, 1), ((2, 0), (1, 1), (1, 1))),
    ("halve_rows_and_columns", (2, 6, 8), (4, 3), (1, 3, 3), (1, 2, 2), ((0, 0), (0, 1), (0, 1))),
    ("halve_frames", (5, 2, 3), (4, 4), (3, 1, 1), (2, 1, 1), ((0, 0), (0, 0), (0, 0))),
]


def make_case(random, size, channels, kernel, stride, zeros):
    x = random.normal(*size, channels[0])
    weight = random.normal(channels[1], *kernel, channels[0])
    bias = random.normal(channels[1])
    (before_t, after_t), (before_h, after_h), (before_w, after_w) = zeros
    padded = torch.nn.functional.pad(x.double().permute(3, 0, 1, 2),
                                     (before_w, after_w, before_h, after_h, before_t, after_t))
    y = torch.nn.functional.conv3d(padded[None], weight.double().permute(0, 4, 1, 2, 3), bias.double(),
                                   stride)
    steps = torch.tensor([*stride, before_t, before_h, before_w], dtype=torch.int32)
    return {"x": x, "weight": weight, "bias": bias, "y": y[0].permute(1, 2, 3, 0), "steps": steps}


def write(folder):
    random = Random(SEED)
    for name, *case in CASES:
        save(folder / f"{name}.safetensors", make_case(random, *case))
    describe(folder, SEED, ABOUT, cases={name: {} for name, *_ in CASES})
