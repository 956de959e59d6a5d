"""FlexAttention over blocks of keys, dsv's peer for block-sparse attention: which blocks, and their time.

The choice costs it nothing here, and is better than any selector could make it: on given heads the blocks are
those that hold most of the exact attention, by a threshold for each head, as many as it takes to hold a given
mass. Tokens are in cubes of the video, the order that suits blocks best. On random tensors the blocks are
random ones."""
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from side_by_side import clock

QUERIES_AT_ONCE = 512


def cube_order(grid, block):
    """Tokens of the grid (frames, rows, columns) in cubes of `block` of them; None where it has none."""
    sides = {64: (4, 4, 4), 128: (8, 4, 4)}.get(block)
    if not sides or any(cells % side for cells, side in zip(grid, sides)):
        return None
    numbers = torch.arange(grid[0] * grid[1] * grid[2]).reshape(
        grid[0] // sides[0], sides[0], grid[1] // sides[1], sides[1], grid[2] // sides[2], sides[2])
    return numbers.permute(0, 2, 4, 1, 3, 5).reshape(-1)


def exact_attention(q, k, v, block):
    """Of (N, S, D) tensors the exact output in F32, and (N, query blocks, key blocks): the share of the exact
    attention of a block's queries that a block of keys has."""
    heads, tokens, size = q.shape
    out = torch.empty(heads, tokens, size, device=q.device)
    mass = torch.empty(heads, tokens // block, tokens // block, device=q.device)
    for head in range(heads):
        keys, values = k[head].float().T, v[head].float()
        for first in range(0, tokens, QUERIES_AT_ONCE):
            rows = (q[head, first:first + QUERIES_AT_ONCE].float() @ keys * size ** -0.5).softmax(-1)
            out[head, first:first + len(rows)] = rows @ values
            rows = rows.reshape(-1, block, tokens // block, block).sum(-1).mean(1)
            mass[head, first // block:first // block + len(rows)] = rows
    return out, mass


def pooled_mass(q, k, block):
    """An estimate of the second result of exact_attention: attention of mean queries to mean keys of
    blocks."""
    heads, tokens, size = q.shape
    shape = heads, tokens // block, block, size
    q, k = (tensor.reshape(shape).mean(2, dtype=torch.float32) for tensor in (q, k))
    return (q @ k.transpose(1, 2) * size ** -0.5).softmax(-1)


def choose_by_mass(mass, wanted):
    """(N, query blocks, key blocks) bool: of each head the blocks above a threshold, which together hold at
    least `wanted` of its mass; the best block of each row always."""
    chosen = torch.zeros_like(mass, dtype=torch.bool)
    for head, shares in enumerate(mass):
        ordered, order = shares.flatten().sort(descending=True)
        count = int((ordered.cumsum(0) < wanted * ordered.sum()).sum()) + 1
        chosen[head].view(-1)[order[:count]] = True
    return chosen.scatter_(-1, mass.argmax(-1, keepdim=True), True)


def choose_by_share(mass, density):
    """(N, query blocks, key blocks) bool: the fraction `density` of all blocks, above one threshold for all
    heads, and the best block of each row."""
    count = max(1, round(density * mass.numel()))
    threshold = mass.flatten().kthvalue(mass.numel() - count + 1).values
    return (mass >= threshold).scatter_(-1, mass.argmax(-1, keepdim=True), True)


def choose_at_random(heads, blocks, density, device):
    return torch.rand(heads, blocks, blocks, device=device).argsort(-1) < max(1, round(density * blocks))


def block_mask(chosen, block):
    """What flex_attention takes. All chosen blocks are whole ones, to which it need not apply the mask."""
    count = chosen.sum(-1, dtype=torch.int32)[None]
    order = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)[None]
    return BlockMask.from_kv_blocks(torch.zeros_like(count), torch.zeros_like(order), count,
                                    order.contiguous(), BLOCK_SIZE=block,
                                    mask_mod=lambda b, h, i, j: chosen[h, i // block, j // block])


class Blocks:
    """flex_attention, compiled, on q, k, v (1, N, S, D) with these blocks."""

    def __init__(self, tensors, chosen, block):
        self.tensors, self.mask = tensors, block_mask(chosen, block)
        self.density = float(chosen.float().mean())
        self.attend = torch.compile(flex_attention)
        self.measure_once()

    def measure_once(self):
        q, k, v, dout = self.tensors
        start = clock("cuda")
        out = self.attend(q, k, v, block_mask=self.mask)
        middle = clock("cuda")
        torch.autograd.grad(out, (q, k, v), dout)
        end = clock("cuda")
        return {"flex_fwd_ms": 1e3 * (middle - start), "flex_bwd_ms": 1e3 * (end - middle)}


def read_heads(path, device):
    """q, k and v (N, S, D), bf16, of a file for --heads-from, and their grid (frames, rows, columns)."""
    from safetensors import safe_open
    with safe_open(path, "pt", device=device) as file:
        grid = [int(cells) for cells in (file.metadata() or {}).get("grid", "0x0x0").split("x")]
        return [file.get_tensor(name).to(torch.bfloat16) for name in "qkv"], grid


def heads_of_file(path, heads, tokens, block):
    """q, k, v (1, N, S, D) and the gradient, as `dsv bench attention --heads-from` makes them, in cubes."""
    stored, grid = read_heads(path, "cuda")
    copies = tokens // stored[0].shape[1]
    order = cube_order([grid[0] * copies, *grid[1:]], block)
    tensors = []
    for tensor in stored:
        tensor = tensor[torch.arange(heads) % len(tensor)].repeat(1, copies, 1)
        tensors.append((tensor if order is None else tensor[:, order])[None].contiguous())
    return [tensor.requires_grad_() for tensor in tensors] + [torch.randn_like(tensors[0])]
