"""dsv.diffusers with a small random WanTransformer3DModel on the CPU."""

import logging
import math
import os
import sys
import tempfile
import unittest

try:
    import torch
    from diffusers import FluxTransformer2DModel, WanTransformer3DModel
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)

import dsv
import dsv.diffusers

logging.getLogger("torch").setLevel(logging.ERROR)
QUICK = {
    "measure_cost": False,
    "group": 16,
    "chunk": 16,
    "rank": 8,
    "min_keys": 0,
    "min_mass": 0.05,
    "min_head_mass": 0,
    "threads": 2,
}
LATENT = (3, 16, 24)  # frames, rows, columns: 3 x 8 x 12 tokens


def model_of(seed=0, **changes):
    torch.manual_seed(seed)
    sizes = dict(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=32,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=64,
        num_layers=2,
        rope_max_seq_len=64,
    )
    return WanTransformer3DModel(**(sizes | changes)).train()


def batch_of(seed=0, batch=2):
    g = torch.Generator().manual_seed(seed)
    return dict(
        hidden_states=torch.randn(batch, 4, *LATENT, generator=g),
        timestep=torch.tensor([100, 700])[:batch],
        encoder_hidden_states=torch.randn(batch, 5, 16, generator=g),
    )


def error(found, expected):
    difference = (
        found.detach().double() - expected.detach().double()
    ).norm() / expected.detach().double().norm()
    return difference.item() if torch.isfinite(difference) else math.inf


def run(model, seed=0):
    """Output and gradients by name of one pass."""
    model.zero_grad()
    inputs = batch_of(seed)
    inputs["hidden_states"].requires_grad_()
    out = model(**inputs, return_dict=False)[0]
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
    (out * dout).sum().backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    return {"output": out, "input": inputs["hidden_states"].grad} | found


class Wan(unittest.TestCase):
    def compare(self, found, wanted, bound):
        self.assertEqual(found.keys(), wanted.keys())
        largest = max(x.double().norm().item() for name, x in wanted.items() if name != "output")
        for name, x in wanted.items():
            # the softmax does not change with the bias of k, whose gradient is therefore rounding alone
            floor = 1e-7 * largest if name.endswith("to_k.bias") else 0
            off = (found[name].double() - x.double()).norm().item()
            self.assertLessEqual(off, bound * x.double().norm().item() + floor, name)

    def test_dense_equals_the_original(self):
        for changes in ({}, {"gradient_checkpointing": True}, {"fused": True}):
            model = model_of()
            wanted = run(model)
            sparse = dsv.diffusers.use_sparse_attention(model, enabled=False, threads=2)
            if changes.get("gradient_checkpointing"):
                model.enable_gradient_checkpointing()
            if changes.get("fused"):
                for block in model.blocks:
                    block.attn1.fuse_projections()
                found = run(model)
                for name in ("output", "input"):
                    self.assertLess(error(found[name], wanted[name]), 1e-6, name)
                continue
            self.compare(run(model), wanted, 1e-6)
            sparse.remove()
            model.disable_gradient_checkpointing()
            self.compare(run(model), wanted, 0)

    def test_remove_leaves_nothing(self):
        model = model_of()
        before = set(model.__dict__), [type(b.attn1.processor) for b in model.blocks], str(model)
        sparse = dsv.diffusers.use_sparse_attention(model, **QUICK)
        self.assertEqual(set(model.state_dict()), set(model_of().state_dict()))
        with self.assertRaisesRegex(ValueError, "already"):
            dsv.diffusers.use_sparse_attention(model)
        sparse.remove()
        sparse.remove()
        self.assertEqual(
            (set(model.__dict__), [type(b.attn1.processor) for b in model.blocks], str(model)), before
        )
        self.assertFalse(
            model._forward_pre_hooks
            or model.rope._forward_hooks
            or model.proj_out._forward_hooks
            or model.patch_embedding._forward_hooks
        )

    def test_compiled_blocks(self):
        model = model_of()
        sparse = dsv.diffusers.use_sparse_attention(model, **QUICK)
        run(model), run(model)
        wanted = run(model)
        self.assertEqual(sparse.statistics()["sparse_blocks"], 2)
        other = model_of()
        dsv.diffusers.use_sparse_attention(other, **QUICK)
        run(other), run(other)
        for block in other.blocks:
            block.compile(backend="aot_eager")
        self.compare(run(other), wanted, 1e-5)

    def test_blocks_share_compiled_code(self):
        model = model_of(num_layers=3)
        dsv.diffusers.use_sparse_attention(model, **QUICK)
        torch._dynamo.reset()
        model.compile_repeated_blocks(backend="aot_eager")
        with torch._dynamo.config.patch(error_on_recompile=True):
            run(model)

    def test_training_lowers_the_loss_over_lists(self):
        model = model_of()
        sparse = dsv.diffusers.use_sparse_attention(model, **QUICK, target_density=0.3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        inputs, losses = batch_of(), []
        target = torch.randn(inputs["hidden_states"].shape, generator=torch.Generator().manual_seed(3))
        for _ in range(20):
            optimizer.zero_grad()
            loss = (model(**inputs, return_dict=False)[0] - target).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertLess(losses[-1], 0.9 * losses[0])
        found = sparse.statistics()
        self.assertEqual((found["sparse_blocks"], found["steps"]), (2, 20))
        self.assertLess(found["density"], 0.4)
        self.assertTrue(0.05 < found["captured_mass"] < 1)

    def test_state_beside_the_weights(self):
        model = model_of()
        dsv.diffusers.use_sparse_attention(model, **QUICK)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            self.assertFalse(os.path.exists(os.path.join(folder, dsv.diffusers.STATE_FILE)))
            run(model), run(model)
            model.save_pretrained(folder)
            self.assertTrue(os.path.exists(os.path.join(folder, dsv.diffusers.STATE_FILE)))
            again = WanTransformer3DModel.from_pretrained(folder).train()
            loaded = dsv.diffusers.use_sparse_attention(again, state=folder, **QUICK)
            self.compare(run(again, 1), run(model, 1), 0)
            self.assertEqual(loaded.statistics()["sparse_blocks"], 2)
            with self.assertRaisesRegex(FileNotFoundError, "no such state"):
                dsv.diffusers.use_sparse_attention(model_of(), state="/nowhere")

    def test_trackers(self):
        model, seen = model_of(), []
        sparse = dsv.diffusers.use_sparse_attention(model, **QUICK)
        run(model), run(model)

        class Writer:
            def add_scalar(self, name, value, step):
                seen.append((name, step))

        class WandbRun:
            def log(self, scalars, step):
                seen.append((scalars["sparse/sparse_blocks"], step))

        sparse.log_to(Writer())
        self.assertIn(("sparse/captured_mass/block1", 1), seen)
        sparse.log_to(WandbRun(), step=7)
        self.assertEqual(seen[-1], (2, 7))
        sparse.log_to(lambda scalars, step: seen.append((scalars["sparse/density"], step)), step=8)
        self.assertLess(seen[-1][0], 1)
        with self.assertRaisesRegex(TypeError, "int has neither"):
            sparse.log_to(3)

    def test_others_are_refused_by_name(self):
        with self.assertRaisesRegex(TypeError, "the model is a FluxTransformer2DModel, expected a Wan"):
            dsv.diffusers.use_sparse_attention(
                FluxTransformer2DModel(
                    num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2
                )
            )
        model = model_of()
        dsv.diffusers.use_sparse_attention(model, **QUICK)
        inputs = batch_of() | {"timestep": torch.ones(2, 3 * 8 * 12)}
        with self.assertRaisesRegex(ValueError, "timestep has a value for each token"):
            model(**inputs)
        latents = batch_of()["hidden_states"][0]
        with self.assertRaisesRegex(ValueError, r"shape \(4, 3, 16, 24\), expected \(B, C, F, H, W\)"):
            model(**batch_of() | {"hidden_states": latents})


if __name__ == "__main__":
    unittest.main()
