"""dsv.torch on the CPU: equality with PyTorch's attention, gradients, torch.compile, activation
checkpointing, autocast, DDP, FSDP2, state files, and calls that must be refused."""

import copy
import gc
import logging
import math
import os
import sys
import tempfile
import unittest

try:
    import torch
except ImportError:
    print("SKIPPED: PyTorch is not installed")
    sys.exit(77)

import dsv
import dsv.torch
from torch.utils.checkpoint import checkpoint

logging.getLogger("torch").setLevel(logging.ERROR)
QUICK = {
    "measure_cost": False,
    "group": 16,
    "chunk": 16,
    "rank": 8,
    "order": "tube",
    "grain": 1,
    "tail": "none",
    "target_mass": 0.9,
    "target_density": 0.2,
    "min_keys": 0,
    "min_mass": 0.05,
    "min_head_mass": 0,
    "threads": 2,
}
GRID = (3, 6, 8)
TOKENS = math.prod(GRID)


def error(found, expected):
    """Relative L2 difference; infinite for NaN."""
    found, expected = found.detach().double(), expected.detach().double()
    difference = (found - expected).norm() / expected.norm()
    return difference.item() if torch.isfinite(difference) else math.inf


def sdpa(q, k, v, mask=None):
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*heads_first, attn_mask=mask).transpose(1, 2)


def inputs(batch=2, tokens=TOKENS, heads=2, dim=32, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (2 * torch.randn(batch, tokens, heads, dim, generator=generator)).to(dtype).requires_grad_()
        for _ in range(3)
    ]


def gradients(out, tensors, seed=1):
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out.dtype)
    return torch.autograd.grad(out, tensors, dout)


def mask_of(lists, batch, heads, queries, keys):
    """(B, N, S, S) bool: true where a query's list names the key."""
    mask = torch.zeros(batch * heads, queries, keys, dtype=torch.bool)
    groups = -(-queries // lists["group"])
    for n in range(batch * heads * groups):
        head, first = n // groups, n % groups * lists["group"]
        for span in lists["spans"][lists["offsets"][n] : lists["offsets"][n + 1]].tolist():
            begin = span * lists["grain"]
            mask[head, first : first + lists["group"], begin : begin + lists["grain"]] = True
    return mask.view(batch, heads, queries, keys)


class Small(torch.nn.Module):
    """Blocks of self-attention with projections, optionally with checkpointing."""

    def __init__(self, blocks=3, width=64, heads=2, checkpointing=None, **options):
        super().__init__()
        torch.manual_seed(3)
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(width, 3 * width) for _ in range(blocks))
        self.sparse = dsv.torch.SparseAttention(blocks, **QUICK, **options)
        self.heads, self.checkpointing = heads, checkpointing

    def block(self, x, i):
        q, k, v = self.qkv[i](x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        return x + self.sparse(q, k, v, block=i, grid=GRID).flatten(2)

    def forward(self, x):
        for i in range(len(self.qkv)):
            if self.checkpointing is None:
                x = self.block(x, i)
            else:
                x = checkpoint(self.block, x, i, use_reentrant=self.checkpointing)
        return x


def train_gradients(model, seed=0):
    """Gradients of two passes, the second of which attends over lists."""
    for step in range(2):
        x = torch.randn(2, TOKENS, 64, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        model.zero_grad()
        model(x).square().mean().backward()
    return [x.grad] + [p.grad for p in model.parameters()]


class Dense(unittest.TestCase):
    def test_equals_sdpa(self):
        layer = dsv.torch.SparseAttention(1, enabled=False, threads=2)
        for dtype in (torch.float32, torch.bfloat16):
            q, k, v = inputs(dtype=dtype)
            exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
            outs = layer(q, k, v, block=0, grid=GRID), sdpa(q, k, v), sdpa(*exact)
            found, theirs, wanted = ([x, *gradients(x, y)] for x, y in zip(outs, 2 * [(q, k, v)] + [exact]))
            for mine, other, right in zip(found, theirs, wanted):
                bound = 1e-6 if dtype == torch.float32 else 1.02 * error(other, right)
                self.assertLessEqual(error(mine, right), bound)

    def test_gradcheck(self):
        layer = dsv.torch.SparseAttention(1, enabled=False, threads=2)
        q, k, v = inputs(batch=1, tokens=6, heads=1, dtype=torch.float64)
        self.assertTrue(
            torch.autograd.gradcheck(
                lambda q, k, v: layer(q, k, v, block=0, grid=(1, 2, 3)), (q, k, v), atol=1e-6
            )
        )

    def test_unordered_tokens(self):
        layer = dsv.torch.SparseAttention(1, enabled=False, threads=2)
        q, k, v = inputs()
        order, inverse = layer.order(GRID)
        self.assertTrue(torch.equal(order[inverse], torch.arange(TOKENS)))
        self.assertFalse(torch.equal(order, torch.arange(TOKENS)))
        self.assertLess(error(layer(q, k, v, block=0, grid=GRID, ordered=False), sdpa(q, k, v)), 1e-6)

    def test_autocast(self):
        layer = dsv.torch.SparseAttention(1, enabled=False, threads=2)
        q, k, v = inputs()
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(q, k, v, block=0, grid=GRID)
        self.assertEqual(out.dtype, torch.bfloat16)
        self.assertLess(error(out, sdpa(q, k, v)), 1e-2)
        self.assertEqual(gradients(out, (q, k, v))[0].dtype, torch.float32)


class Anew:
    """Stands for a layer of which each pass is the first. opcheck compares two calls with equal arguments,
    and a layer numbers its passes, so that an operator of one layer never returns equal tensors twice."""

    def _forward(self, *arguments):
        self.layer = dsv.torch.SparseAttention(1, **QUICK)
        self.layer.force()
        return self.layer._forward(*arguments)

    def _backward(self, *arguments):
        return self.layer._backward(*arguments)


class Lists(unittest.TestCase):
    def test_equals_sdpa_over_the_mask(self):
        layer = dsv.torch.SparseAttention(2, **QUICK)
        layer.force()
        for block in range(2):
            q, k, v = inputs(seed=block)
            out = layer(q, k, v, block=block, grid=GRID)
            lists = layer.lists(block)
            self.assertLess(len(lists["spans"]), 0.5 * 2 * 2 * (TOKENS / 16) * TOKENS)
            mask = mask_of(lists, 2, 2, TOKENS, TOKENS)
            exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
            expected = sdpa(*exact, mask)
            self.assertLess(error(out, expected), 1e-6)
            for found, wanted in zip(gradients(out, (q, k, v)), gradients(expected, exact)):
                self.assertLess(error(found, wanted), 1e-6)
            alone, lse = dsv.torch.list_attention(q, k, v, **lists)
            self.assertTrue(torch.equal(alone, out))
            scores = (exact[0].transpose(1, 2) @ exact[1].permute(0, 2, 3, 1)) / math.sqrt(32)
            self.assertLess(error(lse, scores.masked_fill(~mask, -math.inf).logsumexp(-1)), 1e-6)

    def test_a_tail_of_every_key_is_dense_attention(self):
        """The default tail, a key tail, stands in for the keys outside the lists. With a run of one key it is
        exact, whatever the lists hold."""
        layer = dsv.torch.SparseAttention(1, threads=2, measure_cost=False, min_keys=0, tail_run=1)
        layer.force()
        q, k, v = inputs()
        out = layer(q, k, v, block=0, grid=GRID)
        self.assertLess(len(layer.lists(0)["spans"]), 0.5 * 2 * 2 * (TOKENS / 64) * (TOKENS / 8))
        exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
        expected = sdpa(*exact)
        self.assertLess(error(out, expected), 1e-6)
        for found, wanted in zip(gradients(out, (q, k, v)), gradients(expected, exact)):
            self.assertLess(error(found, wanted), 1e-6)

    def test_the_output_error_is_told(self):
        layer = dsv.torch.SparseAttention(1, **QUICK | {"tail": "query", "max_error": 100})
        for step in range(2):
            q, k, v = inputs(seed=step)
            gradients(layer(q, k, v, block=0, grid=GRID), (q, k, v))
        found = layer.statistics()
        self.assertEqual(found["sparse_blocks"], 1, found["decisions"])
        self.assertGreater(found["output_error"], 0)
        self.assertAlmostEqual(found["per_block"][0]["output_error"], found["output_error"])

    def test_gradcheck_over_given_lists(self):
        q, k, v = inputs(batch=1, tokens=20, heads=1, dtype=torch.float64)
        offsets = torch.tensor([0, 3, 5])
        spans = torch.tensor([0, 2, 3, 1, 4], dtype=torch.int32)
        attend = lambda q, k, v: dsv.torch.list_attention(q, k, v, offsets, spans, group=16, grain=4)[0]
        self.assertTrue(torch.autograd.gradcheck(attend, (q, k, v), atol=1e-6, fast_mode=True))

    def test_opcheck(self):
        q, k, v = inputs(batch=1, tokens=32)
        offsets = torch.tensor([0, 2, 4, 6, 8])
        spans = torch.tensor([0, 3] * 4, dtype=torch.int32)
        torch.library.opcheck(
            torch.ops.dsv.list_attention.default, (q, k, v, offsets, spans, 16, 8, 0.2)
        )
        block = torch.tensor(0)
        dense = dsv.torch.SparseAttention(1, enabled=False, threads=2)
        torch.library.opcheck(
            torch.ops.dsv.attention.default, (q, k, v, None, block, dense._number, [1, 4, 8], 0.2, True)
        )
        anew = Anew()
        dsv.torch._layers[-1] = anew
        torch.library.opcheck(
            torch.ops.dsv.attention.default, (q, k, v, None, block, -1, [1, 4, 8], 0.2, True)
        )
        self.assertIsNotNone(anew.layer.lists(0))

    def test_all_selectors_train(self):
        for selector in ("projection", "predictor", "pooled", "window"):
            layer = dsv.torch.SparseAttention(1, **QUICK, selector=selector)
            for step in range(3):
                q, k, v = inputs(seed=step)
                hidden = torch.randn(2, TOKENS, 64)
                out = layer(q, k, v, block=0, grid=GRID, hidden=hidden)
                gradients(out, (q, k, v))
            self.assertIsNotNone(layer.lists(0), selector)

    def test_replaced_lists_are_refused(self):
        layer = dsv.torch.SparseAttention(1, **QUICK)
        first, second = inputs(seed=0), inputs(seed=1)
        out = layer(*first, block=0, grid=GRID)
        layer(*second, block=0, grid=GRID)
        with self.assertRaisesRegex(dsv.Error, "forward pass 2 replaced its key lists"):
            out.sum().backward()


    def test_the_module_may_go_before_the_backward_pass(self):
        layer = dsv.torch.SparseAttention(1, **QUICK)
        layer.force()
        tensors, number = inputs(), layer._number
        wanted = gradients(layer(*tensors, block=0, grid=GRID), tensors)
        out = layer(*tensors, block=0, grid=GRID)
        del layer
        gc.collect()
        self.assertTrue(all(map(torch.equal, gradients(out, tensors), wanted)))
        del out
        gc.collect()
        with self.assertRaisesRegex(dsv.Error, "module of this pass has been deleted"):
            torch.ops.dsv.attention(*tensors, None, torch.tensor(0), number, GRID, 0.2, True)


class Models(unittest.TestCase):
    def test_checkpointing_changes_nothing(self):
        wanted = train_gradients(Small())
        for reentrant in (False, True):
            model = Small(checkpointing=reentrant)
            for found, expected in zip(train_gradients(model), wanted):
                self.assertTrue(torch.equal(found, expected))
            self.assertEqual(model.sparse.statistics()["steps"], 2)
            self.assertEqual(model.sparse.statistics()["sparse_blocks"], 3)

    def test_block_numbers_ignore_the_default_device(self):
        layer = dsv.torch.SparseAttention(1, enabled=False, threads=2)
        q, k, v = inputs()
        wanted = layer(q, k, v, block=0, grid=GRID)
        with torch.device("meta"):
            found = layer(q, k, v, block=0, grid=GRID)
        self.assertTrue(torch.equal(found, wanted))

    def test_compile_changes_rounding_only(self):
        wanted = train_gradients(Small())
        for reentrant in (None, False):
            model = Small(checkpointing=reentrant)
            torch._dynamo.reset()
            compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
            for found, expected in zip(train_gradients(compiled), wanted):
                self.assertLess(error(found, expected), 1e-5)
            self.assertEqual(model.sparse.statistics()["sparse_blocks"], 3)

    def test_data_parallel_wrappers(self):
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel

        wanted = train_gradients(Small())
        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=0, world_size=1)
            try:
                found = train_gradients(DistributedDataParallel(Small()))
                self.assertTrue(all(map(torch.equal, found, wanted)))
                model = Small()
                mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
                for linear in model.qkv:
                    fully_shard(linear, mesh=mesh)
                fully_shard(model, mesh=mesh)
                for part, whole in zip(train_gradients(model), wanted):
                    part = part.full_tensor() if hasattr(part, "full_tensor") else part
                    self.assertLess(error(part, whole), 1e-6)
            finally:
                dist.destroy_process_group()

    def test_state_is_saved_and_follows_the_shape(self):
        model = Small()
        train_gradients(model)
        before = model.sparse.statistics()
        self.assertEqual(before["sparse_blocks"], 3)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state.safetensors")
            model.sparse.save_state(path)
            other = Small()
            other.sparse.load_state(path)
            x = torch.randn(2, TOKENS, 64, generator=torch.Generator().manual_seed(9))
            model.eval(), other.eval()
            self.assertTrue(torch.equal(other(x), model(x)))
            self.assertEqual(other.sparse.statistics()["sparse_blocks"], 3)
        model(x[:1])  # another batch: decisions are those of the larger one
        self.assertEqual(model.sparse.statistics()["sparse_blocks"], 3)
        self.assertTrue(any("sparse" in line for line in before["decisions"]), before["decisions"])
        self.assertEqual(len(before["per_block"]), 3)

    def test_copies_are_separate(self):
        model = Small()
        train_gradients(model)
        twin = copy.deepcopy(model)
        self.assertEqual(twin.sparse.statistics()["sparse_blocks"], 0)
        self.assertEqual(model.sparse.statistics()["sparse_blocks"], 3)
        train_gradients(twin)
        self.assertEqual(twin.sparse.statistics()["sparse_blocks"], 3)


class Options(unittest.TestCase):
    def test_names_are_those_of_sparse_attention(self):
        layer = dsv.torch.SparseAttention(1, **QUICK, warmup_steps=2, profile_every=1)
        for step in range(4):
            q, k, v = (x.detach() for x in inputs(seed=step))
            layer(q, k, v, block=0, grid=GRID)
            self.assertEqual(layer.lists(0) is None, step < 2, f"step {step + 1}")


    def test_a_dense_finish_needs_the_number_of_steps(self):
        with self.assertRaisesRegex(ValueError, "max_train_steps"):
            dsv.torch.SparseAttention(1, dense_finish=0.5)
        with self.assertRaisesRegex(ValueError, "max_train_steps"):
            dsv.torch.SparseAttention(1, dense_finish=0.5, max_train_steps=0)
        layer = dsv.torch.SparseAttention(1, **QUICK, dense_finish=0.5, max_train_steps=4)
        for step in range(4):
            q, k, v = inputs(seed=step)
            gradients(layer(q, k, v, block=0, grid=GRID), (q, k, v))
            self.assertEqual(layer.lists(0) is None, step != 1, f"step {step + 1}")


class Refused(unittest.TestCase):
    def refuse(self, kind, words, **changes):
        q, k, v = (x.detach() for x in inputs())
        arguments = {"q": q, "k": k, "v": v, "block": 0, "grid": GRID} | changes
        layer = dsv.torch.SparseAttention(1, **QUICK)
        tensors = [arguments.pop(name) for name in "qkv"]
        with self.assertRaisesRegex(kind, words):
            layer(*tensors, **arguments)

    def test_wrong_calls(self):
        q = inputs()[0].detach()
        self.refuse(ValueError, "144 tokens, which do not make a grid of", grid=(3, 6, 7))
        self.refuse(ValueError, "k has the shape", k=q[:, :-1])
        self.refuse(ValueError, "v is torch.bfloat16", v=q.bfloat16())
        self.refuse(ValueError, "the dtype is torch.float16", q=q.half(), k=q.half(), v=q.half())
        self.refuse(ValueError, "the block is 1, expected 0 to 0", block=1)
        self.refuse(ValueError, r"expected \(B, S, N, D\)", q=q[0])
        self.refuse(ValueError, "hidden has the shape", hidden=q)
        self.refuse(ValueError, "are on meta", q=q.to("meta"), k=q.to("meta"), v=q.to("meta"))
        self.refuse(TypeError, "k is of type list, expected a tensor", k=[1])
        self.refuse(ValueError, r"the grid is \[18, 8\], expected \(frames, rows, columns\)", grid=(18, 8))
        self.refuse(TypeError, r"the grid is 144, expected \(frames", grid=144)
        self.refuse(TypeError, "block is 0.5, expected a whole number", block=0.5)
        self.refuse(dsv.Error, "head size is 16", q=q[..., :16], k=q[..., :16], v=q[..., :16])
        with self.assertRaisesRegex(dsv.Error, "target_density"):
            dsv.torch.SparseAttention(1, target_densty=0.1)
        with self.assertRaisesRegex(ValueError, "blocks is 0, expected at least 1"):
            dsv.torch.SparseAttention(0)
        with self.assertRaisesRegex(ValueError, "the tensors' device computes"):
            dsv.torch.SparseAttention(1, device="cuda")
        with self.assertRaisesRegex(dsv.Error, "sparse.group"):
            dsv.torch.SparseAttention(1, group=7)
        dsv.torch.SparseAttention(1, **QUICK)(q, q, q, block=0, grid=GRID)
        with self.assertRaisesRegex(dsv.Error, "threads is 3, but this process computes with 2 threads"):
            dsv.torch.SparseAttention(1, **(QUICK | {"threads": 3}))(q, q, q, block=0, grid=GRID)
        with self.assertRaisesRegex(FileNotFoundError, "no such state"):
            dsv.torch.SparseAttention(1).load_state("/nowhere/state")
        with self.assertRaisesRegex(dsv.Error, "before its first forward pass"):
            dsv.torch.SparseAttention(1).save_state("state")

    def test_wrong_lists(self):
        q, k, v = (x.detach() for x in inputs(batch=1, tokens=32))
        offsets, spans = torch.tensor([0, 2, 4, 6, 8]), torch.tensor([0, 3] * 4, dtype=torch.int32)
        wrong = [
            (ValueError, "offsets is torch.int32", offsets.int(), spans),
            (ValueError, r"expected int64 \(5,\)", offsets[:-1], spans),
            (ValueError, "spans is torch.int64", offsets, spans.long()),
            (
                dsv.Error,
                "list 1: span 3 after span 0, expected ascending numbers below 2",
                offsets[[0, 0, 1, 2, 3]],
                spans,
            ),
            (dsv.Error, "list 3: offsets 6 and 9", torch.tensor([0, 2, 4, 6, 9]), spans),
        ]
        for kind, words, where, which in wrong:
            grain = 16 if "below 2" in words else 8
            with self.assertRaisesRegex(kind, words):
                dsv.torch.list_attention(q, k, v, where, which, group=16, grain=grain)
        with self.assertRaisesRegex(TypeError, "offsets is of type list, expected a tensor"):
            dsv.torch.list_attention(q, k, v, [0, 2, 4, 6, 8], spans, group=16, grain=8)
        with self.assertRaisesRegex(TypeError, "group is 16.5, expected a whole number"):
            dsv.torch.list_attention(q, k, v, offsets, spans, group=16.5, grain=8)
        with self.assertRaisesRegex(ValueError, "the dtype is torch.float16"):
            dsv.torch.list_attention(q.half(), k.half(), v.half(), offsets, spans, group=16, grain=8)

    def test_forked_process(self):
        layer = dsv.torch.SparseAttention(1, **QUICK)
        q, k, v = (x.detach() for x in inputs())
        layer(q, k, v, block=0, grid=GRID)
        child = os.fork()
        if child == 0:
            try:
                layer(q, k, v, block=0, grid=GRID)
            except dsv.Error as failure:
                os._exit(0 if "spawn" in str(failure) else 1)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


if __name__ == "__main__":
    unittest.main()
