"""dsv.torch on the CPU with 200 random shapes, strides and dtypes, with 200 random wrong calls, compiled by
inductor, and on two ranks."""

import math
import os
import random
import shutil
import sys
import tempfile
import unittest

try:
    import torch
except ImportError:
    print("SKIPPED: PyTorch is not installed")
    sys.exit(77)

import test_sparse_attention as cpu

import dsv
import dsv.torch

CASES = 200
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def strided(tensor, kind):
    """A tensor of equal values whose memory is arranged in another way."""
    if kind == "heads first":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "rows apart":
        return torch.nn.functional.pad(tensor, (0, 6))[..., : tensor.shape[3]]
    if kind == "rows not contiguous":
        return tensor.transpose(1, 3).contiguous().transpose(1, 3)
    if kind == "shared samples":
        return tensor[:1].expand(tensor.shape)
    return tensor


KINDS = ("contiguous", "heads first", "rows apart", "rows not contiguous", "shared samples")


class Case:
    """A random call: dense or over random lists, with the mask that stands for the lists."""

    def __init__(self, number):
        chance = random.Random(number)
        generator = torch.Generator().manual_seed(number)
        self.over_lists = number % 2 == 1
        self.dtype = DTYPES[number % 3]
        self.grid = [chance.randint(1, 5) for _ in range(3)]
        self.tokens = math.prod(self.grid)
        self.keys = chance.randint(1, 90) if self.over_lists else self.tokens
        self.batch, self.heads = chance.randint(1, 3), chance.randint(1, 4)
        self.dim = 2 * chance.randint(16, 40 if self.dtype == torch.float64 else 64)
        self.kinds = [chance.choice(KINDS) for _ in range(4)]
        self.tensors = []
        for kind, length in zip(self.kinds, (self.tokens, self.keys, self.keys)):
            values = torch.randn(self.batch, length, self.heads, self.dim, generator=generator)
            self.tensors.append(strided(values.to(self.dtype), kind).detach().requires_grad_())
        dout = torch.randn(self.batch, self.tokens, self.heads, self.dim, generator=generator)
        self.dout = strided(dout.to(self.dtype), self.kinds[3])
        self.lists = self.make_lists(chance) if self.over_lists else None

    def make_lists(self, chance):
        group, grain = chance.choice((16, 32, 64)), chance.choice((1, 8))
        count = self.batch * self.heads * -(-self.tokens // group)
        spans = -(-self.keys // grain)
        chosen = [sorted(chance.sample(range(spans), chance.randint(1, spans))) for _ in range(count)]
        ends = [0]
        for one in chosen:
            ends.append(ends[-1] + len(one))
        spans = torch.tensor(sum(chosen, []), dtype=torch.int32)
        return {"offsets": torch.tensor(ends), "spans": spans, "group": group, "grain": grain}

    def mask(self):
        if not self.over_lists:
            return None
        return cpu.mask_of(self.lists, self.batch, self.heads, self.tokens, self.keys)

    def run(self):
        if self.over_lists:
            return dsv.torch.list_attention(*self.tensors, **self.lists)[0]
        self.layer = dsv.torch.SparseAttention(1, enabled=False, threads=2)  # the backward pass needs it
        return self.layer(*self.tensors, block=0, grid=self.grid)

    def __str__(self):
        shape = (self.batch, self.tokens, self.keys, self.heads, self.dim)
        return f"{shape} {self.dtype} {self.kinds} {'lists' if self.over_lists else 'dense'}"


def distance(found, wanted, floor):
    """Relative L2 difference; the gradient of a softmax over one key is 0, hence the floor."""
    difference = (found.detach().double() - wanted.detach().double()).norm().item()
    return difference / max(wanted.detach().double().norm().item(), floor)


def with_gradients(attend, tensors, dout):
    """The output of attention and the gradients of its inputs."""
    out = attend(*tensors)
    return [out, *torch.autograd.grad(out, tensors, dout)]


def flash(q, k, v, mask):
    """PyTorch's attention with probabilities rounded to the dtype of v before the product with v, as in
    dsv. PyTorch itself takes another backend for some strides, which computes BF16 in F32."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return cpu.sdpa(*(x.contiguous() for x in (q, k, v)), mask)


class Shapes(unittest.TestCase):
    def test_random_calls_equal_sdpa(self):
        errors = []  # of BF16: dsv's and PyTorch's, each of out, dq, dk, dv
        for number in range(CASES):
            case = Case(number)
            mask = case.mask()
            exact = [x.detach().double().requires_grad_() for x in case.tensors]
            wanted = with_gradients(lambda *x: cpu.sdpa(*x, mask), exact, case.dout.double())
            found = with_gradients(lambda *_: case.run(), case.tensors, case.dout)
            largest = max(x.detach().norm().item() for x in wanted)
            off = [distance(mine, right, 0.05 * largest) for mine, right in zip(found, wanted)]
            if case.dtype == torch.bfloat16:
                theirs = with_gradients(lambda *x: flash(*x, mask), case.tensors, case.dout)
                other = [distance(x, right, 0.05 * largest) for x, right in zip(theirs, wanted)]
                errors.append((off, other))
                bounds = [1.25 * x for x in other]  # of one case; the bound of their mean is below
            elif case.dtype == torch.float32:
                bounds = (1e-6,) * 4
            else:
                bounds = (1e-12,) * 4
            for name, mine, error, bound in zip(("out", "dq", "dk", "dv"), found, off, bounds):
                self.assertLessEqual(error, bound, f"case {number}, {name}: {case}")
                self.assertEqual(mine.dtype, case.dtype)
        mine, theirs = torch.tensor(errors).mean(0)
        self.assertTrue((mine <= 1.02 * theirs).all(), f"mean errors of BF16: {mine}, PyTorch's {theirs}")


def wrong_lists(chance, q, k):
    """Arguments of list_attention with one mistake."""
    offsets, spans = torch.tensor([0, 2, 4, 6, 8]), torch.tensor([0, 3] * 4, dtype=torch.int32)
    good = {"q": q, "k": k, "v": k, "offsets": offsets, "spans": spans, "group": 16, "grain": 8}
    mistakes = [
        {"offsets": offsets.int()},
        {"offsets": offsets[: chance.randint(0, 4)]},
        {"offsets": torch.tensor([0, 4, 2, 6, 8])},
        {"offsets": offsets + 1},
        {"offsets": -offsets},
        {"offsets": offsets * chance.randint(2, 1 << 40)},
        {"offsets": offsets.to("meta")},
        {"spans": spans.long()},
        {"spans": spans - 1},
        {"spans": spans.flip(0)},
        {"spans": spans + chance.randint(1, 1 << 30)},
        {"spans": spans[: chance.randint(0, 7)]},
        {"spans": spans[None]},
        {"spans": torch.zeros_like(spans)},
        {"group": chance.choice((0, -1, 8, 1 << 40))},
        {"grain": chance.choice((0, -1, 1 << 40))},
        {"k": k[:, :-9], "v": k[:, :-9]},
        {"v": k[:, :-1]},
        {"k": k[..., :-2]},
        {"q": q[0]},
        {"q": q.half(), "k": k.half(), "v": k.half()},
    ]
    return good | chance.choice(mistakes)


def wrong_layer(chance, q, k):
    """Arguments of a layer with one mistake."""
    good = {"q": q, "k": k, "v": k, "block": 0, "grid": (1, 4, 8)}
    size = chance.choice((1, 3, 31))
    mistakes = [
        {"q": q[:, :-size]},
        {"k": k[:, :0], "v": k[:, :0]},
        {"v": k[:, :, :1]},
        {"q": q[..., :16], "k": k[..., :16], "v": k[..., :16]},
        {"q": q[..., :31], "k": k[..., :31], "v": k[..., :31]},
        {"q": q[:, :0], "k": k[:, :0], "v": k[:, :0], "grid": (0, 4, 8)},
        {"q": q[:0], "k": k[:0], "v": k[:0]},
        {"q": q[:, :, :0], "k": k[:, :, :0], "v": k[:, :, :0]},
        {"q": q.unsqueeze(0)},
        {"q": q.to(torch.complex64), "k": k.to(torch.complex64), "v": k.to(torch.complex64)},
        {"q": q.int(), "k": k.int(), "v": k.int()},
        {"k": k.double()},
        {"k": k.to("meta")},
        {"q": q.to("meta"), "k": k.to("meta"), "v": k.to("meta")},
        {"block": chance.choice((-1, 1, 1 << 40))},
        {"grid": chance.choice(((1, 32), (4, 8, -1), (1 << 31, 1 << 31, 1 << 31), (-1, -4, 8)))},
        {"hidden": q},
        {"hidden": q.flatten(2).bfloat16()},
    ]
    return good | chance.choice(mistakes)


class WrongCalls(unittest.TestCase):
    def test_each_is_an_exception_of_one_sentence(self):
        layer = dsv.torch.SparseAttention(1, **cpu.QUICK)
        for number in range(CASES):
            chance = random.Random(number)
            q, k = torch.randn(1, 32, 2, 32), torch.randn(1, 32, 2, 32)
            make = wrong_lists if number % 2 else wrong_layer
            arguments = make(chance, q, k)
            told = {n: getattr(x, "shape", x) for n, x in arguments.items()}
            with self.assertRaises((ValueError, dsv.Error), msg=f"{make.__name__} {told}") as caught:
                (dsv.torch.list_attention if number % 2 else layer)(**arguments)
            self.assertNotIn("\n", str(caught.exception))
        q, k, v = cpu.inputs()  # the layer still computes
        self.assertLess(cpu.error(layer(q, k, v, block=0, grid=cpu.GRID), cpu.sdpa(q, k, v)), 1e-5)


@unittest.skipUnless(shutil.which("g++"), "inductor needs g++")
class Inductor(unittest.TestCase):
    def gradients(self, compiled, checkpointing, autocast):
        model = cpu.Small(blocks=2, checkpointing=checkpointing)
        torch._dynamo.reset()
        run = torch.compile(model, fullgraph=True) if compiled else model
        for _ in range(2):
            x = torch.randn(2, cpu.TOKENS, 64, generator=torch.Generator().manual_seed(0))
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                run(x).float().square().mean().backward()
        self.assertEqual(model.sparse.statistics()["sparse_blocks"], 2)
        return [p.grad for p in model.parameters()]

    def test_changes_rounding_only(self):
        for checkpointing, autocast, bound in ((None, False, 1e-5), (False, True, 5e-2)):
            wanted = self.gradients(False, checkpointing, autocast)
            for found, expected in zip(self.gradients(True, checkpointing, autocast), wanted):
                self.assertLess(cpu.error(found, expected), bound, (checkpointing, autocast))


def wrapped(model, kind):
    """The model as training scripts wrap it for two ranks."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    if kind == "fsdp2":
        mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
        for linear in model.qkv:
            fully_shard(linear, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return DistributedDataParallel(
        torch.compile(model, backend="aot_eager", fullgraph=True) if kind == "everything" else model
    )


KINDS_OF_RANKS = ("ddp", "fsdp2", "everything")  # everything: DDP, compile, checkpointing, and autocast


def gradients_of(kind, seed, wrap=lambda model, kind: model):
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "everything"):
        model = wrap(cpu.Small(checkpointing=False if kind == "everything" else None), kind)
        return cpu.train_gradients(model, seed=seed)[1:]


def rank_gradients(rank, folder):
    """Process `rank` of two: gradients with the data of seed `rank`, written by rank 0."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
    for kind in KINDS_OF_RANKS:
        found = gradients_of(kind, rank, wrapped)
        found = [x.full_tensor() if hasattr(x, "full_tensor") else x for x in found]
        if rank == 0:
            torch.save(found, os.path.join(folder, f"{kind}.pt"))
    dist.destroy_process_group()


class TwoRanks(unittest.TestCase):
    def test_gradients_are_the_mean(self):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(rank_gradients, (folder,), nprocs=2)
            for kind in KINDS_OF_RANKS:
                ranks = [gradients_of(kind, seed) for seed in range(2)]
                self.assertGreater(cpu.error(ranks[0][0], ranks[1][0]), 0.1)
                found = torch.load(os.path.join(folder, f"{kind}.pt"))
                self.assertEqual(len(found), len(ranks[0]))
                bound = 5e-2 if kind == "everything" else 1e-6  # of BF16, as above
                for x, first, second in zip(found, *ranks):
                    self.assertLess(cpu.error(x, (first + second) / 2), bound, kind)


if __name__ == "__main__":
    unittest.main()
