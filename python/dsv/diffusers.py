"""Sparse self-attention for the Wan transformer of diffusers.

sparse = dsv.diffusers.use_sparse_attention(transformer)
...                                   # train or sample as before
sparse.statistics()                   # what was measured and decided
sparse.remove()                       # the transformer is as it was
"""

import os

import torch

from dsv.torch import SparseAttention

STATE_FILE = "dsv_sparse_attention.safetensors"
_MODEL = "WanTransformer3DModel"


def use_sparse_attention(transformer, *, state=None, **options):
    """Makes the self-attention of a WanTransformer3DModel sparse (Wan 2.1, and models of its class).

    transformer: changed in place until remove() of the result is called. Weights and their names stay.
    state: None, or a file or folder from which the state of an earlier training is read (save_state(), or
        transformer.save_pretrained(), which writes the state into the folder of the weights).
    options: as SparseAttention; enabled=False keeps all blocks dense.
    Returns a WanSparseAttention.
    """
    name = type(transformer).__name__
    if not any(base.__name__ == _MODEL for base in type(transformer).__mro__):
        hint = ", here its transformer" if hasattr(transformer, "transformer") else ""
        raise TypeError(f"sparse attention: the model is a {name}, expected a {_MODEL}{hint}")
    if getattr(transformer, "_dsv_sparse_attention", None) is not None:
        raise ValueError(
            "sparse attention: the transformer uses sparse attention already; call remove() first"
        )
    return WanSparseAttention(transformer, state, options)


class WanSparseAttention:
    """The sparse self-attention of one transformer. Made by use_sparse_attention()."""

    def __init__(self, transformer, state, options):
        self.transformer = transformer
        self.attention = SparseAttention(len(transformer.blocks), **options)
        if state is not None:
            self.load_state(state)
        self._grid = None
        self._step = 0
        self._before = [block.attn1.processor for block in transformer.blocks]
        for number, block in enumerate(transformer.blocks):
            block.attn1.set_processor(_Processor(self, number))
        self._hooks = [
            transformer.register_forward_pre_hook(self._enter, with_kwargs=True),
            transformer.rope.register_forward_hook(self._order_rope),
            transformer.patch_embedding.register_forward_hook(self._order_tokens),
            transformer.proj_out.register_forward_hook(self._restore_tokens),
        ]
        self._save_pretrained = transformer.__dict__.get("save_pretrained")
        self._save_before = transformer.save_pretrained
        transformer.save_pretrained = self._save
        transformer._dsv_sparse_attention = self

    def remove(self):
        """Restores the transformer: its attention processors, its order of tokens, and save_pretrained()."""
        if getattr(self.transformer, "_dsv_sparse_attention", None) is not self:
            return
        for hook in self._hooks:
            hook.remove()
        for block, processor in zip(self.transformer.blocks, self._before):
            block.attn1.set_processor(processor)
        del self.transformer.save_pretrained
        if self._save_pretrained is not None:
            self.transformer.save_pretrained = self._save_pretrained
        del self.transformer._dsv_sparse_attention

    # ---- hooks: tokens are in token order between patch_embedding and proj_out, RoPE with them ----

    def _enter(self, _module, arguments, keywords):
        latents = keywords["hidden_states"] if "hidden_states" in keywords else arguments[0]
        timestep = keywords["timestep"] if "timestep" in keywords else arguments[1]
        if latents.dim() != 5:
            raise ValueError(
                f"sparse attention: hidden_states has the shape {tuple(latents.shape)}, expected "
                "(B, C, F, H, W)"
            )
        if timestep.dim() > 1:
            raise ValueError(
                "sparse attention: timestep has a value for each token (Wan 2.2 TI2V), expected one "
                "for each sample"
            )
        self._grid = tuple(
            size // patch for size, patch in zip(latents.shape[2:], self.transformer.config.patch_size)
        )
        self.attention.train(self.transformer.training)

    def _order_rope(self, _module, _arguments, output):
        order, _ = self.attention.order(self._grid, output[0].device)
        return tuple(table.index_select(1, order) for table in output)

    def _order_tokens(self, _module, _arguments, output):
        order, _ = self.attention.order(self._grid, output.device)
        return output.flatten(2).index_select(2, order).view(output.shape)

    def _restore_tokens(self, _module, _arguments, output):
        _, inverse = self.attention.order(self._grid, output.device)
        return output.index_select(1, inverse)

    # ---- state and statistics ----

    def _save(self, save_directory, *arguments, **keywords):
        result = self._save_before(save_directory, *arguments, **keywords)
        if keywords.get("is_main_process", True) and self.attention.statistics()["steps"] > 0:
            self.save_state(save_directory)
        return result

    def save_state(self, path):
        """Writes the state to a file, or to a file in a folder that exists."""
        self.attention.save_state(os.path.join(path, STATE_FILE) if os.path.isdir(path) else path)

    def load_state(self, path):
        """Reads what save_state() wrote."""
        self.attention.load_state(os.path.join(path, STATE_FILE) if os.path.isdir(path) else path)

    def statistics(self):
        """SparseAttention.statistics()."""
        return self.attention.statistics()

    def scalars(self):
        """Returns the statistics that a chart shows, by name: of all blocks, and captured mass, output error
        and density of each block."""
        found = self.statistics()
        result = {
            f"sparse/{name}": found[name]
            for name in ("sparse_blocks", "density", "captured_mass", "output_error")
        }
        for number, block in enumerate(found["per_block"]):
            result[f"sparse/captured_mass/block{number}"] = block["captured_mass"]
            result[f"sparse/output_error/block{number}"] = block["output_error"]
            result[f"sparse/density/block{number}"] = block["density"] if block["over_lists"] else 1.0
        return {name: value for name, value in result.items() if value == value}

    def log_to(self, tracker, step=None):
        """Sends scalars() to a SummaryWriter of TensorBoard, to a run of Weights & Biases, to an
        Accelerator, or to any function of (scalars, step). step: None counts the calls."""
        self._step = self._step + 1 if step is None else step
        scalars = self.scalars()
        if hasattr(tracker, "add_scalar"):
            for name, value in scalars.items():
                tracker.add_scalar(name, value, self._step)
        elif hasattr(tracker, "log"):
            tracker.log(scalars, step=self._step)
        elif callable(tracker):
            tracker(scalars, self._step)
        else:
            raise TypeError(
                f"sparse attention: {type(tracker).__name__} has neither add_scalar nor log and cannot "
                "be called"
            )


class _Processor:
    """The attention processor of one block's self-attention."""

    _attention_backend = None
    _parallel_config = None

    def __init__(self, owner, block):
        # a tensor, so that torch.compile compiles one block and not each: it gives up after eight
        self.owner, self.block = owner, torch.tensor(block, device="cpu")

    def __call__(
        self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None
    ):
        if encoder_hidden_states is not None or attention_mask is not None:
            raise ValueError("sparse attention: self-attention of Wan has neither text nor a mask")
        if attn.fused_projections:
            query, key, value = attn.to_qkv(hidden_states).chunk(3, dim=-1)
        else:
            query, key, value = (
                attn.to_q(hidden_states),
                attn.to_k(hidden_states),
                attn.to_v(hidden_states),
            )
        query, key = attn.norm_q(query), attn.norm_k(key)
        query, key, value = (x.unflatten(2, (attn.heads, -1)) for x in (query, key, value))
        if rotary_emb is not None:
            query, key = _rotate(query, *rotary_emb), _rotate(key, *rotary_emb)
        query, key = query.to(value.dtype), key.to(value.dtype)
        # only the predictor reads the input, and the library refuses its absence
        predicts = self.owner.attention.options.get("selector") == "predictor"
        out = self.owner.attention(
            query,
            key,
            value,
            block=self.block,
            grid=self.owner._grid,
            hidden=hidden_states.to(value.dtype) if predicts else None,
        )
        out = out.flatten(2).to(hidden_states.dtype)
        return attn.to_out[1](attn.to_out[0](out))


def _rotate(x, cos, sin):
    """Rotates pairs of neighbouring elements; cos and sin (1, S, 1, D) hold each angle twice."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[..., 0::2], sin[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)
