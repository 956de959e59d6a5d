#!/usr/bin/env python3
"""damaged_models.py DSV [--each N] [--seed N]: damages the parts of a published model, and runs dsv on them.

Each time one file of a small Wan folder is cut, emptied, lost or exchanged for another part's, has bytes,
numbers or shapes of tensors changed, or words and texts of the command are wrong. Each command must then end
with one sentence of dsv that is not its help, and a status above 0. Only where a change may go unnoticed (the
value of a weight, an unused number) may a command succeed. No command may crash, hang or leave a file."""
import argparse
import collections
import json
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "golden" / "pipe_a"
SIZE = ["height=16", "width=16", "num_frames=5", "num_inference_steps=1", "threads=1"]
TIME_LIMIT_S = 120
SENTENCE_MAX = 1000
WRONG_NUMBERS = [0, -1, 1, 3, 7, 2 ** 31, 2 ** 53, 1e30, 1.5, None, True, "8", [], [1, 2], {}]
DTYPES = {"F32": 4, "F16": 2, "BF16": 2}


# ---- tensors of a safetensors file ----

def read_tensors(path):
    """The header without metadata, and the bytes after it."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return header, data[8 + length:]


def write_tensors(path, header, body):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def squeezed(shape):
    """Without dimensions of length 1, which dsv does not compare in all parts: files differ in them."""
    return [length for length in shape if length != 1]


# ---- kinds of damage: each changes one file, and tells whether a command that reads it must fail ----

def cut(choice, path):
    data = path.read_bytes()
    path.write_bytes(data[:choice.randrange(len(data))])
    return path.suffix != ".json"  # a JSON file without its last newline is whole


def empty(choice, path):
    path.write_bytes(b"")
    return True


def lose(choice, path):
    path.unlink()
    return True


def change_bytes(choice, path):
    data = bytearray(path.read_bytes())
    for _ in range(choice.randint(1, 8)):
        data[choice.randrange(min(len(data), choice.choice([16, 400, len(data)])))] = choice.randrange(256)
    path.write_bytes(data)
    return False


def exchange(choice, path):
    """Puts a file of another part in its place, of the same kind if there is one."""
    others = [other for other in sorted(FOLDER.glob("*/*"))
              if other.is_file() and other.parent.name != path.parent.name]
    alike = [other for other in others if other.suffix == path.suffix]
    shutil.copyfile(choice.choice(alike or others), path)
    return True


def change_number(choice, path):
    """Another value for one key of a configuration. A key that dsv does not read may have any."""
    values = json.loads(path.read_text())
    values[choice.choice(sorted(values))] = choice.choice(WRONG_NUMBERS)
    path.write_text(json.dumps(values))
    return False


def change_shape(choice, path):
    """Another shape of one tensor: with as many elements as before, or with one length changed."""
    header, body = read_tensors(path)
    shapes = [name for name in sorted(header) if len(header[name]["shape"]) > 1]
    shape = header[choice.choice(shapes)]["shape"]
    before = squeezed(shape)
    change = choice.choice(["reverse", "flat", "more", "larger"])
    if change == "reverse":
        shape.reverse()
    elif change == "flat":
        shape[:] = [math.prod(shape)]
    elif change == "more":
        shape.append(1)
    else:
        shape[choice.randrange(len(shape))] += choice.choice([1, -1, 2 ** 40])
    write_tensors(path, header, body)
    return squeezed(shape) != before


def change_tensor(choice, path):
    """One tensor is lost, has another name or dtype, or two have their names exchanged."""
    header, body = read_tensors(path)
    names = sorted(header)
    name, other = choice.sample(names, 2)
    change = choice.choice(["lose", "rename", "dtype", "exchange"])
    exchanged_alike = False
    if change == "lose":
        del header[name]
    elif change == "rename":
        header[name + ".more"] = header.pop(name)
    elif change == "dtype":
        header[name]["dtype"] = choice.choice(["I64", "BOOL", "F8_E5M2", "U8", "?"])
    else:
        header[name], header[other] = header[other], header[name]
        exchanged_alike = squeezed(header[name]["shape"]) == squeezed(header[other]["shape"])
    write_tensors(path, header, body)
    return not exchanged_alike


FOR_ANY = [cut, empty, lose, change_bytes, exchange]
FOR_SUFFIX = {".safetensors": [change_shape, change_shape, change_tensor, change_tensor],
              ".json": [change_number, change_number, change_number]}

# Files that tell nothing that the other files do not tell; dsv may do without them.
OPTIONAL = {"model_index.json", "tokenizer_config.json", "fixture.json"}


# ---- commands ----

def words_of(work, place):
    """The command of each kind of work on the damaged folder."""
    model, cases, out = place / "model", FOLDER / "cases", place / "out.safetensors"
    return {
        "sample": ["sample", model, place / "out.mp4", "--prompt", "a cat", *SIZE],
        "text": ["text", model, place / "prompts.txt", out, "threads=1"],
        "decode": ["decode", model, cases / "unipc" / "expected.safetensors", out, "threads=1"],
        "vae": ["forward", model / "vae", place / "video.safetensors", out, "threads=1"],
        "inspect": ["inspect", model],
    }[work]


READS = {
    "sample": {"transformer", "vae", "text_encoder", "tokenizer", "scheduler"},
    "text": {"text_encoder", "tokenizer"}, "decode": {"vae"}, "vae": {"vae"},
    "inspect": {"transformer", "vae", "text_encoder"},
}


class Campaign:
    def __init__(self, args):
        self.dsv = str(pathlib.Path(args.dsv).resolve())
        self.choice = random.Random(args.seed)
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="dsv-campaign-"))
        self.faults, self.found = 0, collections.Counter()
        (self.place / "prompts.txt").write_text("a cat\n\nthe old sea\n")
        video = {"dtype": "F32", "shape": [1, 3, 1, 16, 16], "data_offsets": [0, 4 * 3 * 16 * 16]}
        write_tensors(self.place / "video.safetensors", {"video": video}, bytes(4 * 3 * 16 * 16))

    def renew(self):
        shutil.rmtree(self.place / "model", ignore_errors=True)
        shutil.copytree(FOLDER, self.place / "model", ignore=shutil.ignore_patterns("cases", "fixture.json"))

    def run(self, words):
        """Exit status, minus the signal if one ended it and None for none, and what was said as an error."""
        try:
            done = subprocess.run([self.dsv, *map(str, words)], capture_output=True, timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            return None, f"no end in {TIME_LIMIT_S} s"
        return done.returncode, done.stderr.decode("utf-8", "replace").strip()

    def fault(self, *told):
        self.faults += 1
        print("FAULT", *told, flush=True)

    def judge(self, about, words, may_succeed):
        """Runs a command and counts its end."""
        status, said = self.run(words)
        sentences = [line for line in said.splitlines() if line.startswith("dsv:")]
        left = [path.name for path in self.place.glob("out*")]
        if status is None or status < 0 or "Sanitizer" in said or "runtime error" in said:
            self.fault(about, "crashed:", status, said[-600:])
        elif status == 0 and not may_succeed:
            self.fault(about, "went unnoticed:", said[-300:])
        elif status != 0 and (len(sentences) != 1 or not said.splitlines()[-1].startswith("dsv:")):
            self.fault(about, f"{len(sentences)} sentences:", said[-600:])
        elif status != 0 and len(sentences[0].encode()) > SENTENCE_MAX:
            self.fault(about, "a sentence of", len(sentences[0]), "letters:", sentences[0][:300])
        elif status != 0 and left:
            self.fault(about, "left", left)
        for path in self.place.glob("out*"):
            path.unlink()
        self.found["went on" if status == 0 else "ended with a sentence"] += 1

    def check_whole(self):
        """Each command works on the folder as it is: otherwise every failure would look right."""
        self.renew()
        for work in READS:
            status, said = self.run(words_of(work, self.place))
            if status != 0:
                sys.exit(f"{work} of a sound folder: {status} {said}")
            for path in self.place.glob("out*"):
                path.unlink()

    def damage(self):
        """One damage, seen by one command that reads the damaged part."""
        self.renew()
        files = [path for path in sorted((self.place / "model").rglob("*")) if path.is_file()]
        path = self.choice.choice(files)
        kind = self.choice.choice(FOR_ANY + FOR_SUFFIX.get(path.suffix, []))
        must_fail = kind(self.choice, path) and path.name not in OPTIONAL
        part = path.parent.name
        work = self.choice.choice([work for work, parts in READS.items() if part in parts] or list(READS))
        must_fail = must_fail and part in READS[work] and not work == "inspect"
        about = f"{kind.__name__} of {part}/{path.name}, {work}:"
        self.judge(about, words_of(work, self.place), not must_fail)

    def wrong_words(self):
        """Texts and sizes that no model takes; each must be refused."""
        self.renew()
        sample = words_of("sample", self.place)
        latin, long_line, out = (self.place / name for name in ("latin.txt", "long.txt", "out.safetensors"))
        latin.write_bytes(b"a caf\xe9\n")
        long_line.write_text("rain " * 200000 + "\n")
        wrong = [[*sample, word] for word in ("height=20", "width=17", "num_frames=6", "height=8")]
        wrong.append(["sample", *sample[1:3], "--prompts", latin, *SIZE])
        wrong.append(["text", sample[1], latin, out])
        wrong.append(["sample", *sample[1:3], "--prompt", os.fsdecode(b"a caf\xe9"), *SIZE])
        wrong.append([*sample, "--noise", FOLDER / "cases" / "euler" / "expected.safetensors"])
        for words in wrong:
            self.judge(" ".join(map(repr, words[3:])), words, False)
        self.judge("a prompt of a million letters:", ["text", sample[1], long_line, out], True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsv")
    parser.add_argument("--each", type=int, default=2000, help="damages")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    campaign = Campaign(args)
    campaign.check_whole()
    campaign.wrong_words()
    for _ in range(args.each):
        campaign.damage()
    print(f"{sum(campaign.found.values())} commands: " +
          ", ".join(f"{count} {text}" for text, count in sorted(campaign.found.items())))
    shutil.rmtree(campaign.place)
    print(f"{args.each} damages, {campaign.faults} faults")
    sys.exit(campaign.faults > 0)


main()
