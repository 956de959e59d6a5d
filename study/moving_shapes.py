#!/usr/bin/env python3
"""Writes clips of textured shapes that move, turn and hide each other before a camera that pans.

    moving_shapes.py OUT [--clips N] [--first K] [--frames F] [--width W] [--height H] [--jobs J]

Clip number k depends only on k, so any number of different clips can be made: enough that a model of
study/learn.py meets every window of every clip about once, and its training and held-out loss agree. The
clips are uncompressed AVI files (I420, 12 frames per second), shape-K.avi, which cost almost nothing to
decode. Files that exist are kept. Needs numpy.

A clip has a background and --shapes ellipses and polygons. Each has a texture of its own: three colours mixed
by noise of several octaves. Shapes turn, swing and move at constant speed, and come back at the other edge
when they have left the picture. The camera's speed changes smoothly, and the light slowly changes. What
a shape hid shows again later as it was: to know it, a model must look at other frames."""
import argparse
import multiprocessing
import os
import pathlib
import struct

import numpy as np

FPS = 12
OCTAVES = 4


def noise(rng, height, width):
    """A smooth periodic field in [0, 1] with details of several sizes."""
    field = np.zeros((height, width), np.float32)
    for octave in range(OCTAVES):
        cells = 2 ** (octave + 2)
        lattice = rng.standard_normal((cells, cells)).astype(np.float32)
        field += sample(lattice, np.arange(height)[:, None] * cells / height,
                        np.arange(width)[None, :] * cells / width) * 0.7 ** octave
    return 1 / (1 + np.exp(-2 * field / field.std()))


def sample(image, y, x):
    """The values of a periodic image at real positions, interpolated linearly."""
    height, width = image.shape[:2]
    y, x = np.broadcast_arrays(y, x)
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    down, right = (y - top).astype(np.float32), (x - left).astype(np.float32)
    if image.ndim == 3:
        down, right = down[..., None], right[..., None]
    rows, columns = (top % height, (top + 1) % height), (left % width, (left + 1) % width)
    return ((image[rows[0], columns[0]] * (1 - right) + image[rows[0], columns[1]] * right) * (1 - down) +
            (image[rows[1], columns[0]] * (1 - right) + image[rows[1], columns[1]] * right) * down)


def texture(rng, side):
    """A periodic picture (side, side, 3) in [0, 255]."""
    colours = rng.uniform(0, 255, (3, 3)).astype(np.float32)
    first, second = noise(rng, side, side)[..., None], noise(rng, side, side)[..., None]
    return (colours[0] * (1 - first) + colours[1] * first) * (1 - second) + colours[2] * second


class Shape:
    def __init__(self, rng, height, width):
        self.radius = rng.uniform(0.1, 0.3) * height
        self.place = rng.uniform(0, 1, 2) * (height, width)
        self.speed = rng.normal(0, 0.02, 2) * height
        self.swing, self.period = rng.uniform(0, 0.15, 2) * height, rng.uniform(20, 60)
        self.angle, self.turn = rng.uniform(0, 2 * np.pi), rng.normal(0, 0.06)
        self.flat = rng.uniform(0.5, 1)  # ratio of the axes of an ellipse
        self.corners = rng.integers(2, 7)  # 2: an ellipse
        self.texture = texture(rng, 48)

    def draw(self, picture, frame, camera):
        height, width = picture.shape[:2]
        reach = 1.5 * self.radius
        centre = self.place + frame * self.speed - camera + \
            self.swing * np.sin(2 * np.pi * (frame + self.angle) / self.period)
        centre = (centre + reach) % ((height + 2 * reach), (width + 2 * reach)) - reach
        top, left = np.maximum(np.floor(centre - reach), 0).astype(int)
        bottom, right = np.minimum(np.ceil(centre + reach), (height, width)).astype(int)
        if top >= bottom or left >= right:
            return
        y = np.arange(top, bottom)[:, None] - centre[0]
        x = np.arange(left, right)[None, :] - centre[1]
        angle = self.angle + frame * self.turn
        u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
        inside = np.clip(self.radius - self.distance(u, v) + 0.5, 0, 1)[..., None]
        part = picture[top:bottom, left:right]
        part += inside * (sample(self.texture, v + 24, u + 24) - part)

    def distance(self, u, v):
        """How far a point is from the centre, in a measure that is `radius` on the edge."""
        if self.corners == 2:
            return np.hypot(u, v / self.flat)
        sector = 2 * np.pi / self.corners
        around = np.arctan2(v, u) % sector - sector / 2
        return np.hypot(u, v) * np.cos(around) / np.cos(sector / 2)


def frames_of(number, options):
    """Yields the pictures (height, width, 3) of a clip."""
    rng = np.random.default_rng(number)
    height, width = options.height, options.width
    background = texture(rng, 160)
    shapes = [Shape(rng, height, width) for _ in range(options.shapes)]
    camera, speed = np.zeros(2), rng.normal(0, 0.015, 2) * height
    light = rng.uniform(0.7, 1), rng.uniform(0, 0.15), rng.uniform(40, 120)
    y, x = np.arange(height)[:, None], np.arange(width)[None, :]
    for frame in range(options.frames):
        picture = sample(background, y + camera[0], x + camera[1])
        for shape in shapes:
            shape.draw(picture, frame, camera)
        yield picture * (light[0] + light[1] * np.sin(2 * np.pi * frame / light[2]))
        speed = 0.97 * speed + rng.normal(0, 0.004, 2) * height
        camera = camera + speed


def planes(picture):
    """The bytes of a picture as I420: Y at full, U and V at half size, BT.601, limited range."""
    red, green, blue = np.moveaxis(np.clip(picture, 0, 255), -1, 0) / 255
    luma = 0.299 * red + 0.587 * green + 0.114 * blue

    def half(plane):
        return (plane[::2, ::2] + plane[1::2, ::2] + plane[::2, 1::2] + plane[1::2, 1::2]) / 4

    pair = half((blue - luma) / 1.772), half((red - luma) / 1.402)
    parts = [16 + 219 * luma] + [128 + 224 * plane for plane in pair]
    return b"".join(np.rint(part).astype(np.uint8).tobytes() for part in parts)


def chunk(name, data):
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def write_avi(path, frames, height, width):
    """Writes I420 pictures as an AVI file with one video stream and an index."""
    size, count = len(frames[0]), len(frames)
    main = struct.pack("<14I", 1000000 // FPS, size * FPS, 0, 0x10, count, 0, 1, size, width, height,
                       0, 0, 0, 0)
    stream = b"vidsI420" + struct.pack("<IHHIIIIIIII4H", 0, 0, 0, 0, 1, FPS, 0, count, size, 0xffffffff, 0,
                                       0, 0, width, height)
    form = struct.pack("<IiiHH4sIiiII", 40, width, height, 1, 12, b"I420", size, 0, 0, 0, 0)
    header = chunk(b"LIST", b"hdrl" + chunk(b"avih", main) +
                   chunk(b"LIST", b"strl" + chunk(b"strh", stream) + chunk(b"strf", form)))
    movie = chunk(b"LIST", b"movi" + b"".join(chunk(b"00db", frame) for frame in frames))
    index = b"".join(struct.pack("<4sIII", b"00db", 0x10, 4 + i * (size + 8 + size % 2), size)
                     for i in range(count))
    with open(path, "wb") as file:
        file.write(chunk(b"RIFF", b"AVI " + header + movie + chunk(b"idx1", index)))


def write_clip(work):
    number, options = work
    path = options.out / f"shape-{number:06d}.avi"
    if path.exists():
        return
    part = path.with_suffix(".part")
    write_avi(part, [planes(picture) for picture in frames_of(number, options)], options.height,
              options.width)
    part.rename(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="folder for the clips")
    parser.add_argument("--clips", type=int, default=256)
    parser.add_argument("--first", type=int, default=0, help="number of the first clip")
    parser.add_argument("--frames", type=int, default=93)
    parser.add_argument("--height", type=int, default=64, help="even")
    parser.add_argument("--width", type=int, default=256, help="even")
    parser.add_argument("--shapes", type=int, default=10, help="shapes of a clip")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="clips made at a time")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    work = [(number, options) for number in range(options.first, options.first + options.clips)]
    with multiprocessing.Pool(options.jobs) as pool:
        for _ in pool.imap_unordered(write_clip, work):
            pass


if __name__ == "__main__":
    main()
