"""Layers and attention that several processes compute together, over `torch.distributed`.

The processes of a group call the same functions with the same layouts, in the same order. Each has
a range of a layout's block rows or columns, cut by `Layout.split` so that the fullest has as few
kept blocks as possible; ranges differ in width. A group of None is that of all processes.
"""

import functools
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from .._c import InvalidError
from .._collectives import gathered, summed
from ..layout import Layout
from ._register import autocast_dtype, once
from .attention import attention
from .functional import matmul_by_token
from .modules import BlockSparseLinear, LayoutModule, train_alike


def _elements(layout, first, axis):
    """A cut in elements, of one in blocks."""
    return [min(line * layout.block[axis], layout.shape[axis]) for line in first]


# --- layers ---------------------------------------------------------------------------------------
# Each of these functions is the gradient of the one beside it, so that both are differentiable as
# often as one likes.

class _Copy(torch.autograd.Function):
    """What all processes have, for each to do its part with."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return _Sum.apply(dy, ctx.group), None


class _Sum(torch.autograd.Function):
    """The sum of what each process has."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return summed(x, group)

    @staticmethod
    def backward(ctx, dy):
        return _Copy.apply(dy, ctx.group), None


class _Own(torch.autograd.Function):
    """This process's features of what all have."""

    @staticmethod
    def forward(ctx, x, widths, group):
        ctx.widths, ctx.group = widths, group
        return x.split(widths, -1)[dist.get_rank(group)].clone()

    @staticmethod
    def backward(ctx, dy):
        return _All.apply(dy, ctx.widths, ctx.group), None, None


class _All(torch.autograd.Function):
    """The features of all processes side by side; they travel as bytes, padded to the widest."""

    @staticmethod
    def forward(ctx, x, widths, group):
        ctx.widths, ctx.group = widths, group
        if x.numel() == 0:  # of which gloo makes an error
            return x.new_empty(*x.shape[:-1], sum(widths))
        padded = F.pad(x, (0, max(widths) - x.shape[-1])).contiguous().view(torch.uint8)
        parts = gathered(padded, group).view(x.dtype).chunk(len(widths))
        return torch.cat([part[..., :width] for part, width in zip(parts, widths)], -1)

    @staticmethod
    def backward(ctx, dy):
        return _Own.apply(dy, ctx.widths, ctx.group), None, None


class _ParallelLinear(LayoutModule):
    """A process's part of a BlockSparseLinear, whose matrix is cut along AXIS."""

    AXIS: int

    def __init__(self, linear: BlockSparseLinear, group: Any = None,
                 cut: Optional[Sequence[int]] = None) -> None:
        super().__init__()
        whole, axis, parts = linear.layout, self.AXIS, dist.get_world_size(group)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.group = group
        if cut is None:
            first = whole.split(parts, axis)
        else:
            first = [-(-end // whole.block[axis]) for end in cut]
            if (_elements(whole, first, axis) != list(cut) or len(first) != parts + 1
                    or first[0] != 0 or first[-1] != whole.grid[axis]
                    or any(end <= start for start, end in zip(first, first[1:]))):
                raise ValueError(f"the cut is {list(cut)}; must be {parts + 1} ends of blocks, "
                                 f"from 0 to {whole.shape[axis]}")
        self.cut = _elements(whole, first, axis)
        self.widths = [end - start for start, end in zip(self.cut, self.cut[1:])]
        self.rank = dist.get_rank(group)
        window = [0, whole.grid[0], 0, whole.grid[1]]
        window[2 * axis:2 * axis + 2] = first[self.rank], first[self.rank + 1] - first[self.rank]
        layout, slots = whole.crop(*window)
        self._set_layout(layout)
        self.weight = nn.Parameter(linear.weight.detach()[slots.tolist()])
        self.bias = None if linear.bias is None else nn.Parameter(self._own_bias(linear.bias))
        train_alike(self, linear)

    def extra_repr(self) -> str:
        r, c = self.layout.block
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}, block_shape=({c}, {r}), rank={self.rank}, "
                f"cut={self.cut}")


class ColumnParallelLinear(_ParallelLinear):
    """A BlockSparseLinear of which each process computes a range of the outputs.

    Parameters
    ----------
    linear : BlockSparseLinear
        The whole layer, the same in all processes; this one's part of it is copied.
    group : ProcessGroup, optional
    cut : list of int, optional
        Where the outputs are cut, ends of blocks from 0 to the last; by default as
        `Layout.split` has it.
    gather_output : bool
        Return all outputs, and not only those of this process.

    Attributes
    ----------
    weight : Parameter [nnz of the part, block inputs, block outputs]
    bias : Parameter [outputs of the part]
    layout : bsk.Layout
        Of the part.
    cut : list of int
        The part of rank r is from cut[r] to cut[r + 1].
    """

    AXIS = 1

    def __init__(self, linear: BlockSparseLinear, group: Any = None,
                 cut: Optional[Sequence[int]] = None, gather_output: bool = True) -> None:
        super().__init__(linear, group, cut)
        self.gather_output = gather_output

    def _own_bias(self, bias):
        return bias.detach().split(self.widths)[self.rank].clone()

    def forward(self, x: Tensor) -> Tensor:
        x = _Copy.apply(x, self.group)
        y = matmul_by_token(x, self.weight, self._token, self.bias)
        return _All.apply(y, self.widths, self.group) if self.gather_output else y


class RowParallelLinear(_ParallelLinear):
    """A BlockSparseLinear of which each process takes a range of the inputs; results are added.

    Parameters
    ----------
    linear : BlockSparseLinear
        The whole layer, the same in all processes; this one's part of it is copied.
    group : ProcessGroup, optional
    cut : list of int, optional
        Where the inputs are cut; to follow a ColumnParallelLinear that does not gather its outputs:
        the cut of that.
    input_is_parallel : bool
        The input has the features of this process only.

    Attributes
    ----------
    weight : Parameter [nnz of the part, block inputs, block outputs]
    bias : Parameter [outputs]
        In all processes the same, and so is its gradient; added once.
    layout, cut
        As `ColumnParallelLinear` has them.
    """

    AXIS = 0

    def __init__(self, linear: BlockSparseLinear, group: Any = None,
                 cut: Optional[Sequence[int]] = None, input_is_parallel: bool = False) -> None:
        super().__init__(linear, group, cut)
        self.input_is_parallel = input_is_parallel

    def _own_bias(self, bias):
        return bias.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        if not self.input_is_parallel:
            x = _Own.apply(x, self.widths, self.group)
        y = _Sum.apply(matmul_by_token(x, self.weight, self._token), self.group)
        return y if self.bias is None else y + self.bias.to(y.dtype)


# --- attention ------------------------------------------------------------------------------------

def _visible(layout, causal, window):
    """The layout without blocks that causal or window hide."""
    _, row, col = (torch.tensor(c.tolist(), dtype=torch.long) for c in layout.to_coo())
    (rows, cols), (r, c) = layout.shape, layout.block
    ahead = col * c - ((row + 1) * r).clamp(max=rows) + 1  # of the last query is the first key
    behind = row * r - ((col + 1) * c).clamp(max=cols) + 1  # the first query is the last key
    seen = ahead <= (0 if causal else window - 1)
    if window > 0:
        seen &= behind < window
    return layout.compact(seen)[0]


class SequenceSplit:
    """Which queries and keys of attention each of several processes has, and which keys it needs.

    Parameters
    ----------
    layout : bsk.Layout
        Rows are queries, columns keys.
    parts : int
        Processes.
    causal, window
        As `bsk.torch.attention` has them. Blocks that they hide are left out.

    Attributes
    ----------
    layout : bsk.Layout
        What is left of it.
    queries, keys : list of int
        Process r has queries from queries[r] to queries[r + 1], and so for keys. Queries are cut by
        kept blocks, keys where queries are, or by kept blocks if their numbers differ.
    """

    def __init__(self, layout: Layout, parts: int, causal: bool = False, window: int = 0) -> None:
        rows, cols = layout.shape
        self.placed = causal or window > 0  # whether it matters where queries stand among the keys
        if self.placed and rows != cols:
            raise InvalidError(f"the layout is {rows} x {cols}; must be square for causal and "
                               f"window")
        self.layout = _visible(layout, causal, window) if self.placed else layout
        self.rows = self.layout.split(parts)
        self.queries = _elements(layout, self.rows, 0)
        self.keys = (self.queries if rows == cols
                     else _elements(layout, self.layout.split(parts, axis=1), 1))
        self.reach = [torch.tensor(self.layout.reach(start, end - start).tolist()).bool()
                      for start, end in zip(self.rows, self.rows[1:])]

    def needed(self, rank: int, owner: int, heads: int, kv_heads: int) -> Tensor:
        """Which keys of one process another one's queries need: bool [kv_heads, keys of owner]."""
        if heads % self.layout.heads or heads % kv_heads:
            raise InvalidError(f"{heads} heads, {kv_heads} key/value heads and a layout of "
                               f"{self.layout.heads} do not divide each other")
        by_head = self.reach[rank].repeat_interleave(heads // self.layout.heads, 0)
        by_head = by_head.reshape(kv_heads, heads // kv_heads, -1).any(1)
        return by_head[:, torch.arange(*self.keys[owner:owner + 2]) // self.layout.block[1]]

    def received(self, rank: int, heads: Optional[int] = None,
                 kv_heads: Optional[int] = None) -> List[int]:
        """How many keys, and as many values, a process is sent by each other one, of all key/value
        heads together: for each batch member so many rows of k and of v. By default there are as
        many heads as the layout has."""
        heads = heads or self.layout.heads
        return [int(owner != rank and self.needed(rank, owner, heads, kv_heads or heads).sum())
                for owner in range(len(self.rows) - 1)]


@functools.lru_cache(maxsize=64)
def sequence_split(layout: Layout, parts: int, causal: bool = False,
                   window: int = 0) -> SequenceSplit:
    """The `SequenceSplit` of these arguments, kept for later calls."""
    return SequenceSplit(layout, parts, causal, window)


class _Moves(NamedTuple):
    """What a process sends and what it gets, as rows of [kv_heads * time] of keys."""

    layout: Layout  # of its queries, and of the keys from the first to the last that it needs
    send: Tuple[Tensor, ...]  # for each process: rows of the own keys
    receive: Tensor  # rows of the keys that it computes with, of all processes in turn
    counts: List[int]  # of these, by process


@functools.lru_cache(maxsize=64)
def _moves(split, rank, heads, kv_heads, device):
    layout, parts = split.layout, range(len(split.rows) - 1)
    row, (start, end) = split.rows[rank], split.queries[rank:rank + 2]
    needed = split.reach[rank].any(0).nonzero().flatten().tolist()
    # Without any there is one that is not read.
    col = needed[0] if needed else min(start // layout.block[1], layout.grid[1] - 1)
    cols = needed[-1] + 1 - col if needed else 1
    first = col * layout.block[1]
    last = min((col + cols) * layout.block[1], layout.shape[1])
    crop = layout.crop(row, split.rows[rank + 1] - row, col, cols)[0]
    if split.placed:  # queries and keys have to end together
        end = last = max(end, last)
    head, row, col = crop.to_coo()
    layout = Layout.from_coo(row, col, (end - start, last - first), layout.block, head,
                             layout.heads, order="given")

    def rows_of(mask):
        return mask.flatten().nonzero().flatten().to(device)

    receive = []
    for owner in parts:
        h, key = split.needed(rank, owner, heads, kv_heads).nonzero().unbind(1)
        receive.append(h * (last - first) + split.keys[owner] + key - first)
    return _Moves(layout, tuple(rows_of(split.needed(r, rank, heads, kv_heads)) for r in parts),
                  torch.cat(receive).to(device), [len(rows) for rows in receive])


def _exchanged(x, counts, sent, group):
    """The rows that the others have for this process, for those of x: both in turn by process. As
    bytes, since not every backend moves every type."""
    x = x.contiguous().view(torch.uint8)
    y = x.new_empty((sum(counts), *x.shape[1:]))
    dist.all_to_all_single(y, x, counts, sent, group=group)
    return y


class _Exchange(torch.autograd.Function):
    """Keys and values that a process computes with, of those that each process has. Both move in
    rows [batch, features] of one tensor."""

    @staticmethod
    def forward(ctx, k, v, moves, group):
        ctx.moves, ctx.group, ctx.shapes = moves, group, (k.shape, v.shape)
        sent = [len(rows) for rows in moves.send]
        own = torch.cat((k, v), 3).flatten(1, 2).transpose(0, 1)
        got = _exchanged(own[torch.cat(moves.send)], moves.counts, sent, group).view(k.dtype)
        heads, time = k.shape[1], moves.layout.shape[1]
        kept = own.new_zeros((heads * time, *own.shape[1:]))  # what is hidden has to be finite
        kept[moves.receive] = got
        kept = kept.unflatten(0, (heads, time)).permute(2, 0, 1, 3)
        return kept.split((k.shape[3], v.shape[3]), 3)

    @staticmethod
    @once("sequence_parallel_attention")
    def backward(ctx, dk, dv):
        moves, (k_shape, v_shape) = ctx.moves, ctx.shapes
        sent = [len(rows) for rows in moves.send]
        kept = torch.cat((dk, dv), 3).flatten(1, 2).transpose(0, 1)
        got = _exchanged(kept[moves.receive], sent, moves.counts, ctx.group).view(dk.dtype)
        total = torch.zeros((k_shape[1] * k_shape[2], *kept.shape[1:]), device=dk.device,
                            dtype=torch.promote_types(dk.dtype, torch.float32))
        for rows, part in zip(moves.send, got.split(sent)):  # in the order of ranks, always
            total[rows] += part
        total = total.to(dk.dtype).unflatten(0, k_shape[1:3]).permute(2, 0, 1, 3)
        return (*total.split((k_shape[3], v_shape[3]), 3), None, None)


def sequence_parallel_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout,
                                causal: bool = False, window: int = 0,
                                scale: Optional[float] = None, *, softcap: float = 0.0,
                                group: Any = None) -> Tensor:
    """`bsk.torch.attention` of which each process has some queries, keys and values.

    Keys and values that a process's queries need, and no others, are sent to it for each key/value
    head; their gradients are sent back, and added in the order of ranks.

    Parameters
    ----------
    q : Tensor [batch, heads, time of this process, d]
    k, v : Tensor [batch, kv_heads, k_time of this process, d]
        The ranges that `sequence_split` gives for these arguments.
    layout : bsk.Layout
        Of all queries and keys.
    causal, window, scale, softcap
        As `bsk.torch.attention` has them; positions are those in the whole sequence.
    group : ProcessGroup, optional

    Returns
    -------
    Tensor [batch, heads, time of this process, d of v]
    """
    rank = dist.get_rank(group)
    split = sequence_split(layout, dist.get_world_size(group), causal, window)
    for name, x, cut in (("q", q, split.queries), ("k", k, split.keys), ("v", v, split.keys)):
        time = cut[rank + 1] - cut[rank]
        if x.dim() != 4 or x.shape[2] != time:
            raise InvalidError(f"sequence_parallel_attention: {name} is {list(x.shape)}; must be "
                               f"[batch, heads, {time}, d] in rank {rank}")
    if k.dtype != v.dtype or q.shape[0] != k.shape[0] or k.shape[:2] != v.shape[:2]:
        raise InvalidError(f"sequence_parallel_attention: q, k and v are {list(q.shape)}, "
                           f"{k.dtype} {list(k.shape)} and {v.dtype} {list(v.shape)}; must have one "
                           f"batch, k and v one dtype and one number of heads")
    wanted = autocast_dtype(q)
    if wanted is not None and q.dtype != torch.float64:
        k, v = k.to(wanted), v.to(wanted)  # before they move
    moves = _moves(split, rank, q.shape[1], k.shape[1], k.device)
    k, v = _Exchange.apply(k, v, moves, group)
    time = q.shape[2]
    if moves.layout.shape[0] > time:
        q = F.pad(q, (0, 0, 0, moves.layout.shape[0] - time))
    o = attention(q, k, v, moves.layout, causal, window, scale, softcap=softcap, align="end")
    return o[:, :, :time]
