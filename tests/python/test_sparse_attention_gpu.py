"""dsv.torch on a GPU: equality with PyTorch's attention, dense and over lists, streams, strides, and compiled
models with checkpointing."""

import math
import sys
import unittest

try:
    import torch
except ImportError:
    print("SKIPPED: PyTorch is not installed")
    sys.exit(77)
if not torch.cuda.is_available():
    print("SKIPPED: PyTorch finds no GPU")
    sys.exit(77)

import test_sparse_attention as cpu

import dsv.torch

OPTIONS = cpu.QUICK | {"group": 64, "rank": 16}
GRID = (4, 16, 24)
TOKENS = math.prod(GRID)


def inputs(seed=0, dim=128):
    found = cpu.inputs(tokens=TOKENS, heads=3, dim=dim, dtype=torch.bfloat16, seed=seed)
    return [x.detach().cuda().requires_grad_() for x in found]


def compare(case, out, tensors, expected_out, exact, bound):
    case.assertLess(cpu.error(out, expected_out), bound)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).cuda()
    found = torch.autograd.grad(out, tensors, dout.to(out.dtype))
    wanted = torch.autograd.grad(expected_out, exact, dout.to(out.dtype).to(expected_out.dtype))
    for x, y in zip(found, wanted):
        case.assertLess(cpu.error(x, y), bound)


class Gpu(unittest.TestCase):
    def test_dense_equals_sdpa(self):
        for dim in (64, 128):
            layer = dsv.torch.SparseAttention(1, enabled=False)
            tensors = inputs(dim=dim)
            exact = [x.detach().double().requires_grad_() for x in tensors]
            compare(self, layer(*tensors, block=0, grid=GRID), tensors, cpu.sdpa(*exact), exact, 8e-3)

    def test_lists_equal_sdpa_over_the_mask(self):
        layer = dsv.torch.SparseAttention(2, **OPTIONS)
        layer.force()
        for block in range(2):
            tensors = inputs(seed=block)
            out = layer(*tensors, block=block, grid=GRID)
            lists = layer.lists(block)
            mask = cpu.mask_of(lists, 2, 3, TOKENS, TOKENS).cuda()
            exact = [x.detach().double().requires_grad_() for x in tensors]
            compare(self, out, tensors, cpu.sdpa(*exact, mask), exact, 1.2e-2)
            where, which = lists["offsets"].cuda(), lists["spans"].cuda()
            alone, _ = dsv.torch.list_attention(*tensors, where, which, group=64, grain=lists["grain"])
            self.assertLess(cpu.error(alone, out), 4e-3)

    def test_another_stream(self):
        layer = dsv.torch.SparseAttention(1, **OPTIONS)
        layer.force()
        tensors = [x.detach() for x in inputs()]
        wanted = layer(*tensors, block=0, grid=GRID)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            later = [x * 1 for x in tensors]  # work of this stream that attention must wait for
            found = layer(*later, block=0, grid=GRID)
        torch.cuda.current_stream().wait_stream(stream)
        self.assertLess(cpu.error(found, wanted), 1e-2)

    def test_parts_of_a_fused_projection(self):
        layer = dsv.torch.SparseAttention(1, **OPTIONS)
        layer.force()
        fused = torch.randn(2, TOKENS, 3, 3, 128, device="cuda", dtype=torch.bfloat16)
        strided = layer(*fused.unbind(2), block=0, grid=GRID)
        again = dsv.torch.SparseAttention(1, **OPTIONS)
        again.force()
        whole = again(*(x.contiguous() for x in fused.unbind(2)), block=0, grid=GRID)
        self.assertLess(cpu.error(strided, whole), 1e-2)

    def test_compiled_model_with_checkpointing(self):
        def gradients(compiled, checkpointing):
            model = cpu.Small(width=128, checkpointing=checkpointing).cuda()
            run = torch.compile(model) if compiled else model
            for _ in range(2):
                generator = torch.Generator().manual_seed(0)
                x = torch.randn(2, cpu.TOKENS, 128, generator=generator).cuda()
                model.zero_grad()
                with torch.autocast("cuda", torch.bfloat16):
                    run(x).square().mean().backward()
            self.assertEqual(model.sparse.statistics()["sparse_blocks"], 3)
            return [p.grad for p in model.parameters()]

        wanted = gradients(False, None)
        for compiled, checkpointing in ((False, False), (True, None), (True, False)):
            for found, expected in zip(gradients(compiled, checkpointing), wanted):
                self.assertLess(cpu.error(found, expected), 3e-2, (compiled, checkpointing))


if __name__ == "__main__":
    unittest.main()
