"""Sparse self-attention for models in PyTorch.

    sparse = dsv.torch.SparseAttention(blocks=30)
    order, inverse = sparse.order((frames, rows, columns), device)     # once, at the model's entry
    out = sparse(q, k, v, block=i, grid=(frames, rows, columns))       # in block i; q, k, v (B, S, N, D)

Attention runs through three pairs of operators of torch.library (dsv::attention and dsv::list_attention with
their backward operators), so that autograd, torch.compile, activation checkpointing, autocast, DDP and FSDP2
work. Tensors are not copied unless their rows are not contiguous.
"""

import contextlib
import ctypes
import itertools
import logging
import math
import os
import tempfile
import weakref

import torch

from dsv import _library

logger = logging.getLogger("dsv")

_DTYPES = {torch.float32: _library.F32, torch.bfloat16: _library.BF16, torch.float64: _library.F64}
_layers = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def _dtype_of(tensor):
    if tensor.dtype not in _DTYPES:
        raise ValueError(f"sparse attention: the dtype is {tensor.dtype}, expected float32 or bfloat16")
    return _DTYPES[tensor.dtype]


def _check_tensors(**arguments):
    for name, value in arguments.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"sparse attention: {name} is of type {type(value).__name__}, expected a tensor")


def _check_whole(name, value):
    if not isinstance(value, int) and not hasattr(value, "__index__"):
        raise TypeError(f"sparse attention: {name} is {value!r}, expected a whole number")


def _sizes(grid):
    """The grid as a list of three int."""
    if not hasattr(grid, "__iter__") or isinstance(grid, str):
        raise TypeError(f"sparse attention: the grid is {grid!r}, expected (frames, rows, columns)")
    sizes = [int(size) for size in grid]
    if len(sizes) != 3 or min(sizes) < 1:
        raise ValueError(
            f"sparse attention: the grid is {sizes}, expected (frames, rows, columns), each from 1"
        )
    return sizes


def _check_like(name, tensor, shape, like):
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(
            f"sparse attention: {name} has the shape {tuple(tensor.shape)}, expected {tuple(shape)}"
        )
    if tensor.dtype != like.dtype or tensor.device != like.device:
        raise ValueError(
            f"sparse attention: {name} is {tensor.dtype} on {tensor.device}, q is {like.dtype} on "
            f"{like.device}"
        )


def _check_device(q):
    if q.device.type not in ("cpu", "cuda"):
        raise ValueError(f"sparse attention: the tensors are on {q.device}, expected cpu or cuda")
    if q.dim() != 4:
        raise ValueError(f"sparse attention: q has the shape {tuple(q.shape)}, expected (B, S, N, D)")


def _stream(device):
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


def _guard(device):
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _with_rows(tensor):
    """Returns the tensor, or a copy if its rows are not contiguous or, on a GPU, not 16-byte aligned."""
    strides = tensor.stride()
    fits = strides[3] == 1 and all(stride >= 0 for stride in strides)
    if fits and tensor.is_cuda:
        width = tensor.element_size()
        fits = tensor.data_ptr() % 16 == 0 and all(stride * width % 16 == 0 for stride in strides[:3])
    return tensor if fits else tensor.contiguous()


def _rows(tensor):
    batch, tokens, heads, _ = tensor.stride()
    return _library.Rows(tensor.data_ptr(), batch, tokens, heads)


def _memory(count, device):
    return torch.empty(max(count, 1) + 64, dtype=torch.uint8, device=device)


def _aligned(memory):
    return memory[-memory.data_ptr() % 64 :]


def _workspace(call, count, device):
    """Lends GPU memory of PyTorch's allocator to a call; on the CPU the library has its own."""
    if device.type != "cuda":
        return None
    memory = _aligned(_memory(count, device))
    call.workspace, call.workspace_bytes = memory.data_ptr(), memory.numel()
    return memory


def _recomputes():
    """Returns whether a backward pass is running: a forward pass then repeats one (checkpointing)."""
    return torch._C._current_graph_task_id() != -1


def _operator(name):
    """A decorator that makes a function an operator. CUDA graphs must not contain it: the host waits for the
    lengths of lists."""
    unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)
    tags = {} if unsafe is None else {"tags": (unsafe,)}
    return torch.library.custom_op(name, mutates_args=(), **tags)


# ---- the operators of a layer ----


def _layer(number):
    if number not in _layers:
        raise _library.Error(
            1,
            "sparse attention: the SparseAttention module of this pass has been deleted, expected it to "
            "exist until the backward pass has run",
        )
    return _layers[number]


def _lse_like(q, tokens):
    batch, _, heads, _ = q.shape
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((batch, heads, tokens), dtype=dtype)


@_operator("dsv::attention")
def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    hidden: torch.Tensor | None,
    block: torch.Tensor,
    layer: int,
    grid: list[int],
    scale: float,
    train: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _layer(layer)._forward(q, k, v, hidden, int(block), grid, scale, train)


@_attention.register_fake
def _(q, k, v, hidden, block, layer, grid, scale, train):
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return out, _lse_like(q, q.shape[1]), torch.empty((), dtype=torch.int64, device="cpu")


@_operator("dsv::attention_backward")
def _attention_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    number: torch.Tensor,
    block: torch.Tensor,
    layer: int,
    grid: list[int],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _layer(layer)._backward(dout, q, k, v, out, lse, number, int(block), grid, scale)


@_attention_backward.register_fake
def _(dout, q, k, v, out, lse, number, block, layer, grid, scale):
    return tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))


def _keep(ctx, inputs, output):
    q, k, v, _, block, ctx.layer, ctx.grid, ctx.scale, _ = inputs
    ctx.module = _layer(ctx.layer)  # the graph keeps it, if nothing else does
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.save_for_backward(q, k, v, *output, block)


def _differentiate(ctx, dout, _lse, _number):
    q, k, v, out, lse, number, block = ctx.saved_tensors
    gradients = _attention_backward(
        dout, q, k, v, out, lse, number, block, ctx.layer, ctx.grid, ctx.scale
    )
    return (*gradients, None, None, None, None, None, None)


_attention.register_autograd(_differentiate, setup_context=_keep)


# ---- the operators over lists of the caller ----


def _check_lists(q, k, v, offsets, spans, group, grain):
    _check_device(q)
    _dtype_of(q)
    batch, queries, heads, dim = q.shape
    _check_like("k", k, (batch, k.shape[1] if k.dim() == 4 else -1, heads, dim), q)
    _check_like("v", v, k.shape, q)
    if group < 1 or grain < 1:
        raise ValueError(
            f"attention over lists: group is {group} and grain {grain}, expected at least 1"
        )
    count = batch * heads * -(-queries // group)
    if (
        offsets.dtype != torch.int64
        or tuple(offsets.shape) != (count + 1,)
        or offsets.device != q.device
    ):
        raise ValueError(
            f"attention over lists: offsets is {offsets.dtype} {tuple(offsets.shape)} on "
            f"{offsets.device}, expected int64 ({count + 1},) on {q.device}"
        )
    if spans.dtype != torch.int32 or spans.dim() != 1 or spans.device != q.device:
        raise ValueError(
            f"attention over lists: spans is {spans.dtype} {tuple(spans.shape)} on {spans.device}, "
            f"expected int32 and one dimension on {q.device}"
        )


def _list_call(q, k, v, out, lse, scale, device):
    return _library.Call(
        scale=scale,
        q=_rows(q),
        k=_rows(k),
        v=_rows(v),
        out=_rows(out),
        lse=lse.data_ptr(),
        stream=_stream(device),
    )


def _run_lists(name, q, keys, offsets, spans, group, grain, call):
    batch, queries, heads, dim = q.shape
    lists = _library.Lists(
        batch, heads, queries, keys, group, grain, spans.numel(), offsets.data_ptr(), spans.data_ptr()
    )
    kind, number = q.device.type, q.device.index or 0
    options = {"isa": "ref"} if q.dtype == torch.float64 and kind == "cpu" else {}
    with _guard(q.device):
        device = _library.device(_library.Config(kind, options), kind, number)
        dtype, count = _dtype_of(q), ctypes.c_size_t()
        _library.call(
            "dsv_lists_workspace",
            device,
            dtype,
            dim,
            ctypes.byref(lists),
            name == "backward",
            ctypes.byref(count),
        )
        kept = _workspace(call, count.value, q.device)
        _library.call(f"dsv_lists_{name}", device, dtype, dim, ctypes.byref(lists), ctypes.byref(call))
        del kept


@_operator("dsv::list_attention")
def _list_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    spans: torch.Tensor,
    group: int,
    grain: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_lists(q, k, v, offsets, spans, group, grain)
    q, k, v = _with_rows(q), _with_rows(k), _with_rows(v)
    out, lse = torch.empty(q.shape, dtype=q.dtype, device=q.device), _lse_like(q, q.shape[1])
    call = _list_call(q, k, v, out, lse, scale, q.device)
    _run_lists("forward", q, k.shape[1], offsets.contiguous(), spans.contiguous(), group, grain, call)
    return out, lse


@_list_attention.register_fake
def _(q, k, v, offsets, spans, group, grain, scale):
    _check_lists(q, k, v, offsets, spans, group, grain)  # also chosen for a single tensor on meta
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), _lse_like(q, q.shape[1])


@_operator("dsv::list_attention_backward")
def _list_attention_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    offsets: torch.Tensor,
    spans: torch.Tensor,
    group: int,
    grain: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v, out, dout = map(_with_rows, (q, k, v, out, dout))
    gradients = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    call = _list_call(q, k, v, out, lse, scale, q.device)
    call.dout = _rows(dout)
    call.dq, call.dk, call.dv = map(_rows, gradients)
    _run_lists("backward", q, k.shape[1], offsets.contiguous(), spans.contiguous(), group, grain, call)
    return gradients


@_list_attention_backward.register_fake
def _(dout, q, k, v, out, lse, offsets, spans, group, grain, scale):
    return tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))


def _keep_lists(ctx, inputs, output):
    q, k, v, offsets, spans, ctx.group, ctx.grain, ctx.scale = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, *output, offsets, spans)


def _differentiate_lists(ctx, dout, _lse):
    q, k, v, out, lse, offsets, spans = ctx.saved_tensors
    gradients = _list_attention_backward(
        dout, q, k, v, out, lse, offsets, spans, ctx.group, ctx.grain, ctx.scale
    )
    return (*gradients, None, None, None, None, None)


_list_attention.register_autograd(_differentiate_lists, setup_context=_keep_lists)


def list_attention(q, k, v, offsets, spans, *, group, grain=1, scale=None):
    """Attention over key lists of the caller.

    `group` consecutive queries of a head share a list of spans, ascending and without repetition; span i
    is the `grain` keys from key i * grain on. The lists of all (batch, head, group) follow one another
    in `spans`. On the CPU lists are checked; on a GPU wrong lists read wrong memory.

    q (B, S_q, N, D), k and v (B, S_k, N, D): float32 or bfloat16 (on the CPU also float64, slowly).
    offsets (B * N * ceil(S_q / group) + 1) int64; spans int32. scale: None stands for 1 / sqrt(D).
    Returns out (B, S_q, N, D) and the log-sum-exp of each query (B, N, S_q), which is not differentiable.
    """
    _check_tensors(q=q, k=k, v=v, offsets=offsets, spans=spans)
    _check_device(q)
    _check_whole("group", group)
    _check_whole("grain", grain)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    q, k, v = _autocast(q, k, v)
    return torch.ops.dsv.list_attention(q, k, v, offsets, spans, group, grain, scale)


def _autocast(*tensors):
    """Returns the tensors in autocast's dtype, where autocast is on."""
    kind = tensors[0].device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(None if x is None or x.dtype == torch.float64 else x.to(dtype) for x in tensors)


# ---- the layer ----


class SparseAttention(torch.nn.Module):
    """Self-attention of all blocks of one model: the lists, what selects and measures them, and the
    decision for each block whether it attends over lists or densely.

    The first block of each forward pass in training mode begins a step: lists are measured every
    `profile_every` such passes. In evaluation mode decisions stay as they are. Each pass must run
    backward before the next one runs forward, unless it never runs backward. The module has no
    parameters; save_state() writes what it has learned.

    blocks: the number of blocks that have self-attention.
    options: options of dsv by name (target_density stands for sparse.target_density; seed, threads, isa and
        deterministic too), see `dsv help options`. enabled=False makes all blocks dense. With fewer than
        10,240 tokens lists may hold min_keys=512 keys even if target_density allows fewer.
    """

    def __init__(self, blocks, **options):
        super().__init__()
        _check_whole("blocks", blocks)
        if blocks < 1:
            raise ValueError(f"sparse attention: blocks is {blocks}, expected at least 1")
        if "device" in options:
            raise ValueError(
                "sparse attention: device is an option, expected none: the tensors' device computes"
            )
        self.blocks = int(blocks)
        self.options = options
        _library.Config("cpu", options)  # refuses wrong options here
        self._reset()

    def _reset(self):
        self._number = next(_numbers)
        self._objects = {}  # native objects by (device, dtype, batch, heads, head size, grid)
        self._active = None  # key of the object of the last pass
        self._orders = {}
        self._steps = 0
        self._in_step = False
        self._density = None  # prescribed
        self._everywhere = False
        self._pending = None  # path of a state file that the next native object reads
        self._lines = []
        _layers[self._number] = self

    def __deepcopy__(self, memo):
        copy = SparseAttention(self.blocks, **self.options)
        copy.training = self.training
        return copy

    def __reduce__(self):
        return _rebuild, (self.blocks, self.options)

    def extra_repr(self):
        return ", ".join([f"blocks={self.blocks}"] + [f"{k}={v}" for k, v in self.options.items()])

    def forward(self, q, k, v, *, block, grid, hidden=None, scale=None, ordered=True):
        """Attention of one block.

        q, k, v (B, S, N, D): float32 or bfloat16, S = frames * rows * columns of `grid`.
        ordered: False: the tokens are in raster order. They are then permuted here, which costs four copies.
        block: number of the block, from 0: an int, or an int64 tensor without dimensions on the CPU. A model
            compiles anew for each int, and once for all tensors.
        hidden (B, S, N * D): the input of the projections to q and k, for selector="predictor" only.
        Returns (B, S, N, D).
        """
        _check_tensors(q=q, k=k, v=v)
        _check_device(q)
        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
        q, k, v, hidden = _autocast(q, k, v, hidden)
        grid = _sizes(grid)
        self._check(q, k, v, hidden, grid, block)
        if not ordered:
            order, inverse = self.order(grid, q.device)
            q, k, v = (x.index_select(1, order) for x in (q, k, v))
            hidden = None if hidden is None else hidden.index_select(1, order)
        out, _, _ = torch.ops.dsv.attention(
            q,
            k,
            v,
            None if hidden is None else hidden.detach(),
            block if isinstance(block, torch.Tensor) else torch.tensor(block, device="cpu"),
            self._number,
            grid,
            scale,
            self.training,
        )
        return out if ordered else out.index_select(1, inverse)

    def order(self, grid, device="cpu"):
        """Returns the token order of a grid and its inverse, both (S) int64: x[:, order] are the tokens
        of x in token order, y[:, inverse] restores raster order."""
        key = (tuple(_sizes(grid)), str(device))
        if key not in self._orders:
            self._orders[key] = _make_order(self, key[0], device)
        return self._orders[key]

    # ---- called by the operators ----

    def _check(self, q, k, v, hidden, grid, block):
        _dtype_of(q)
        _check_like("k", k, q.shape, q)
        _check_like("v", v, q.shape, q)
        if math.prod(grid) != q.shape[1]:
            raise ValueError(
                f"sparse attention: q has {q.shape[1]} tokens, which do not make a grid of {list(grid)}"
            )
        if not isinstance(block, torch.Tensor):
            _check_whole("block", block)
            self._check_block(block)
        elif block.dim() or block.dtype != torch.int64 or block.device.type != "cpu":
            raise ValueError(
                f"sparse attention: block is {block.dtype} {tuple(block.shape)} on {block.device}, "
                "expected an int, or int64 () on the CPU"
            )
        if hidden is not None:
            _check_like("hidden", hidden, (q.shape[0], q.shape[1], q.shape[2] * q.shape[3]), q)

    def _check_block(self, block):
        if not 0 <= block < self.blocks:
            raise ValueError(f"sparse attention: the block is {block}, expected 0 to {self.blocks - 1}")

    def _key(self, q, grid):
        batch, _, heads, dim = q.shape
        return (q.device, q.dtype, batch, heads, dim, tuple(grid))

    def _options_for(self, q):
        if q.dtype == torch.float64 and q.device.type == "cpu":
            return {"isa": "ref"} | self.options
        return self.options

    def _create(self, q, grid):
        batch, _, heads, dim = q.shape
        kind, number = q.device.type, q.device.index or 0
        config = _library.Config(kind, self._options_for(q))
        shape = _library.Shape(
            self.blocks, batch, heads, dim, (ctypes.c_int64 * 3)(*grid), _dtype_of(q), True
        )
        made = _library.Attention(
            config,
            kind,
            number,
            shape,
            self._note,
            lambda count: _aligned(_memory(count, q.device)),
            _stream(q.device),
        )
        if self._everywhere:
            made.call("force", True)
        if self._density is not None:
            made.call("prescribe", self._density)
        return made

    def _note(self, line):
        self._lines.append(f"step {self._steps}: {line}")
        logger.info("step %d: %s", self._steps, line)

    def _switch(self, q, grid):
        """Makes the native object of q's shape the active one; what another shape has learned is copied."""
        key = self._key(q, grid)
        if key == self._active:
            return self._objects[key]
        made = self._objects.get(key) or self._create(q, grid)
        stream, before = _stream(q.device), self._objects.get(self._active)
        if self._pending is not None:
            made.call("load", os.fsencode(self._pending), stream)
            self._pending = None
        elif before is not None and before.device is made.device:
            made.call("copy", before.handle, stream)
        elif before is not None:
            with tempfile.TemporaryDirectory() as folder:
                self._save(before, self._active, os.path.join(folder, "state"))
                made.call("load", os.fsencode(os.path.join(folder, "state")), stream)
        self._objects[key] = made
        self._active = key
        return made

    def _end_step(self):
        if self._in_step:
            device = self._active[0]
            self._in_step = False
            with _guard(device):
                self._objects[self._active].call("step_end", _stream(device))

    def _begin_pass(self, q, grid, train):
        self._end_step()
        made = self._switch(q, grid)
        self._steps += train
        made.call("step_begin", max(self._steps, 1), train, _stream(q.device))
        self._in_step = True
        return made

    def _object(self, q, grid, block):
        made = self._objects.get(self._key(q, grid))
        if made is None:
            raise ValueError(
                f"sparse attention: block {block} has the shape {tuple(q.shape)}, another one than "
                f"block 0 of this pass"
            )
        return made

    def _call(self, q, k, v, out, lse, scale):
        return _library.Call(
            scale=scale,
            q=_rows(q),
            k=_rows(k),
            v=_rows(v),
            out=_rows(out),
            lse=lse.data_ptr(),
            stream=_stream(q.device),
        )

    def _forward(self, q, k, v, hidden, block, grid, scale, train):
        self._check_block(block)
        recompute = _recomputes()
        with _guard(q.device):
            made = (
                self._begin_pass(q, grid, train)
                if block == 0 and not recompute
                else self._object(q, grid, block)
            )
            q, k, v = _with_rows(q), _with_rows(k), _with_rows(v)
            out, lse = torch.empty(q.shape, dtype=q.dtype, device=q.device), _lse_like(q, q.shape[1])
            call = self._call(q, k, v, out, lse, scale)
            hidden = None if hidden is None else hidden.contiguous()
            call.hidden = None if hidden is None else hidden.data_ptr()
            call.recompute = recompute
            kept = _workspace(call, made.workspace_bytes, q.device)
            made.call("forward", block, ctypes.byref(call))
            del kept
        return out, lse, torch.tensor(call.pass_, dtype=torch.int64)

    def _backward(self, dout, q, k, v, out, lse, number, block, grid, scale):
        with _guard(q.device):
            made = self._object(q, grid, block)
            q, k, v, out, dout = map(_with_rows, (q, k, v, out, dout))
            gradients = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
            call = self._call(q, k, v, out, lse, scale)
            call.pass_ = int(number)
            call.dout = _rows(dout)
            call.dq, call.dk, call.dv = map(_rows, gradients)
            kept = _workspace(call, made.workspace_bytes, q.device)
            made.call("backward", block, ctypes.byref(call))
            del kept
        return gradients

    # ---- decisions, statistics, state ----

    def force(self, everywhere=True):
        """Makes all blocks attend over lists, whatever was measured; False restores the decisions."""
        self._everywhere = everywhere
        for made in self._objects.values():
            made.call("force", everywhere)

    def prescribe(self, density):
        """Sets the density of all lists from now on, for benchmarks at a known sparsity."""
        self._density = float(density)
        for made in self._objects.values():
            made.call("prescribe", self._density)

    def lists(self, block):
        """Returns the lists of the block's last forward pass as a dictionary of offsets (int64) and
        spans (int32) on the CPU, group and grain; None if the block attended densely."""
        if self._active is None:
            return None
        device, made = self._active[0], self._objects[self._active]
        found = made.lists(block)
        if found is None:
            return None
        count = found.batch * found.heads * -(-found.queries // found.group) + 1
        offsets = _copy_out(made, found.offsets, count, torch.int64, device)
        spans = _copy_out(made, found.spans, int(offsets[-1]), torch.int32, device)
        return {"offsets": offsets, "spans": spans, "group": found.group, "grain": found.grain}

    def statistics(self):
        """Returns a dictionary: steps, blocks, sparse_blocks, density (mean over blocks, dense blocks
        count as 1), captured_mass (fraction of exact attention that the lists of sparse blocks hold; NaN
        without any), output_error (relative error of attention's output over lists and tail, mean over
        sparse blocks; NaN without any), decisions (lines, oldest first), and per_block, a list of
        dictionaries. Before the first pass all blocks are dense."""
        result = {
            "steps": self._steps,
            "blocks": self.blocks,
            "sparse_blocks": 0,
            "density": 1.0,
            "captured_mass": math.nan,
            "output_error": math.nan,
            "decisions": list(self._lines),
            "per_block": [],
        }
        if self._active is None:
            return result
        made = self._objects[self._active]
        report = made.report()
        result.update(
            sparse_blocks=report.sparse_blocks,
            density=report.density,
            captured_mass=report.captured_mass,
            output_error=report.output_error,
        )
        for block in range(self.blocks):
            of_block, heads = made.block_report(block, self._active[3])
            result["per_block"].append(
                {name: getattr(of_block, name) for name, _ in of_block._fields_}
                | {"head_captured_mass": heads}
            )
        return result

    def save_state(self, path):
        """Writes what was learned and decided to a safetensors file. A step that is under way ends first."""
        if self._active is None and self._pending is None:
            raise _library.Error(1, "sparse attention has no state before its first forward pass")
        self._end_step()
        if self._active is None:
            with open(self._pending, "rb") as source, open(path, "wb") as target:
                target.write(source.read())
            return
        self._save(self._objects[self._active], self._active, path)

    def load_state(self, path):
        """Reads a file of save_state(). Before the first forward pass the file is read at that pass."""
        if not os.path.exists(path):
            raise FileNotFoundError(f"{path}: no such state of sparse attention")
        self._end_step()
        if self._active is None:
            self._pending = os.fspath(path)
            return
        with _guard(self._active[0]):
            self._objects[self._active].call("load", os.fsencode(path), _stream(self._active[0]))

    def _save(self, made, key, path):
        with _guard(key[0]):
            made.call("save", os.fsencode(path), _stream(key[0]))


def _rebuild(blocks, options):
    return SparseAttention(blocks, **options)


@torch.compiler.disable
def _make_order(layer, grid, device):
    order = torch.tensor(
        list(_library.Config("cpu", layer.options).token_order(grid)), dtype=torch.int64
    )
    return order.to(device), torch.argsort(order).to(device)


def _copy_out(made, address, count, dtype, device):
    """Copies an array of the library to the CPU."""
    out = torch.empty(count, dtype=dtype)
    if count == 0:
        return out
    if device.type == "cpu":
        ctypes.memmove(out.data_ptr(), address, out.numel() * out.element_size())
        return out
    begin = address - made.state.data_ptr()
    stored = made.state[begin : begin + out.numel() * out.element_size()]
    return stored.view(dtype).cpu()


def sparse_attention(q, k, v, layer, *, block, grid, hidden=None, scale=None, ordered=True):
    """The functional form of SparseAttention.forward(); `layer` is the SparseAttention of the model."""
    return layer(q, k, v, block=block, grid=grid, hidden=hidden, scale=scale, ordered=ordered)
