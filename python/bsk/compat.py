"""The names of older libraries, as thin aliases on torch tensors.

- openai/blocksparse: `BlocksparseMatMul`, `BlocksparseTransformer`, `BlocksparseConv`,
  `SparseProj`, its functions (`layer_norm`, `softmax_cross_entropy`, ...), LSTM layers, `quantize`
  and `log_stats`, its optimizers, `Ema`, the pruning of blocks, and its collectives on
  torch.distributed
- openai/sparse_attention: `blocksparse_attention_impl`, `attention_impl`, `get_attn_mask`,
  `get_callback`, `get_blocksparse_obj`, `split_heads`, `merge_heads`, `split_states`,
  `merge_states`, `strided_transpose`, `shape_list`, `recomputable`
- huggingface/pytorch_block_sparse: `BlockSparseLinear`, `BlockSparseModelPatcher`,
  `PseudoBlockSparseLinear`, `SparseOptimizer`, `BlockSparseMatrix`, `BlockSparseMatrixEmulator`
"""

import functools
import math
import re

import torch
from torch.utils.checkpoint import checkpoint

from . import _blocksparse, _collectives, _conv, _lstm, _quantize, _training, ops
from ._arrays import dtype_name
from ._blocksparse import *  # noqa: F403
from ._blocksparse import _off, nonzero
from ._collectives import *  # noqa: F403
from ._conv import *  # noqa: F403
from ._lstm import *  # noqa: F403
from ._quantize import *  # noqa: F403
from ._training import *  # noqa: F403
from .layout import Layout, pair
from .torch import (BlockSparseLinear, PatternOptimizer, PseudoBlockSparseLinear, attention,
                    blocks_from_dense, blocks_to_dense, matmul, matmul_sampled, patch)
from .torch._register import once
from .torch.modules import LayoutModule

SparseOptimizer = PatternOptimizer

__all__ = [*_blocksparse.__all__, *_collectives.__all__, *_conv.__all__, *_lstm.__all__,
           *_quantize.__all__, *_training.__all__, "BlocksparseMatMul", "BlocksparseTransformer",
           "SparseProj", "attention_impl", "blocksparse_attention_impl", "get_attn_mask",
           "get_blocksparse_obj", "get_callback", "merge_heads", "merge_states", "recomputable",
           "shape_list", "split_heads", "split_states", "strided_transpose", "BlockSparseLinear",
           "BlockSparseMatrix", "BlockSparseMatrixEmulator", "BlockSparseModelPatcher",
           "PseudoBlockSparseLinear", "SparseOptimizer"]


# --- openai/blocksparse ---------------------------------------------------------------------------

class _L2Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layout, w, gain, eps, dtype):
        got = ops.l2_normalize(layout, w.detach(), y=dtype, saved=True, gain=gain, eps=eps)
        ctx.layout, ctx.eps = layout, eps
        ctx.save_for_backward(w, gain, got.saved)
        return got.y

    @staticmethod
    @once("a product of bsk.compat")
    def backward(ctx, dy):
        w, gain, saved = ctx.saved_tensors
        got = ops.l2_normalize_grad(ctx.layout, dy.contiguous(), w, saved, gain=gain, eps=ctx.eps,
                                    dw=torch.empty_like(w), dgain=None if gain is None else True)
        dw, dgain = (got, None) if gain is None else (got.dw, got.dgain)
        return None, dw, dgain, None, None


class _GatedMatMul(torch.autograd.Function):
    """x W with gates that get no gradient, and that the gradient of W does not know, or only for
    blocks whose gate is 0."""

    @staticmethod
    def forward(ctx, layout, x, w, gate, skip):
        ctx.layout, ctx.skip = layout, skip
        ctx.save_for_backward(x, w, gate)
        return ops.matmul(layout, x.detach(), w.detach(), gate=gate)

    @staticmethod
    @once("a gated product of bsk.compat")
    def backward(ctx, dy):
        x, w, gate = (t.detach() for t in ctx.saved_tensors)
        dy = dy.contiguous()
        dx = ops.matmul(ctx.layout, dy, w, gate=gate, transpose_w=1)
        dw = (ops.matmul_wgrad(ctx.layout, x, dy, gate=gate, gate_mode="skip") if ctx.skip
              else ops.matmul_wgrad(ctx.layout, x, dy))
        return None, dx, dw, None, None


class BlocksparseMatMul:
    """Products with a block-sparse matrix whose values the caller keeps.

    Parameters
    ----------
    layout : array [C blocks, K blocks] of 0 and 1
    block_size : int
    feature_axis : {0, 1}, optional
        1: activations [N, features]; 0: [features, N]. Without it activations are taken for what
        fits them: for 1 where that is the only way, as in the example of the original's README.
    z_order : bool
        Number the blocks in Morton order, else by rows.

    Examples
    --------
    >>> import torch
    >>> from bsk.compat import BlocksparseMatMul
    >>> bsmm = BlocksparseMatMul([[1, 0], [1, 1]], block_size=32, feature_axis=1)
    >>> w = torch.ones(bsmm.w_shape)
    >>> bsmm(torch.ones(bsmm.i_shape(4)), w).shape
    torch.Size([4, 64])
    """

    def __init__(self, layout, block_size=32, feature_axis=None, z_order=True, name=None):
        if feature_axis not in (None, 0, 1):
            raise ValueError(f"feature_axis is {feature_axis}; must be 0 or 1")
        order = "morton" if z_order else "row"
        self.layout = Layout.from_mask(layout, block_size, order=order)
        self.feature_axis, self.bsize, self.name = feature_axis, block_size, name
        self.axis = feature_axis or 0
        self.C, self.K = self.layout.shape
        self.blocks = self.layout.nnz
        self.w_shape = (self.blocks, block_size, block_size)
        self.g_shape = (self.blocks,)
        self.sparsity = round(self.layout.density, 3)
        self.flops = self.blocks * block_size * block_size * 2
        _, *self._coordinates = self.layout.to_coo()

    def _axis_of(self, x, features):
        """The axis of the features of x, which are so many."""
        if self.feature_axis is None and len(x.shape) == 2:
            return int(x.shape[0] != features == x.shape[1])
        return self.axis

    def i_shape(self, n):
        return (n, self.C) if self.axis else (self.C, n)

    def o_shape(self, n):
        return (n, self.K) if self.axis else (self.K, n)

    def block_coord(self, block):
        """(input block, output block) of a block by its number."""
        return tuple(c[block] for c in self._coordinates)

    def __call__(self, x, w, gate=None, gate_grad=False, dw_gated=False, name=None, bench=0):
        """y = x W, with W's blocks multiplied by their gates.

        Parameters
        ----------
        x : Tensor [N, C], for feature axis 0 [C, ...]
        w : Tensor of `w_shape`
        gate : Tensor [blocks], optional
        gate_grad : bool
            The gate gets a gradient, and that of w is multiplied by it. Otherwise the gate is a
            constant and the gradient of w that of a product without gates.
        dw_gated : bool
            Without `gate_grad`: blocks of w whose gate is 0 get the gradient 0.
        """
        _off("BlocksparseMatMul", bench)
        axis = self._axis_of(x, self.C)
        if x.shape[-1 if axis else 0] != self.C or axis and x.dim() != 2:
            raise ValueError(f"x is {tuple(x.shape)}; must be {self.i_shape('N')}")
        flat = x if axis else x.reshape(x.shape[0], -1).t()
        if gate is None or gate_grad:
            y = matmul(flat, w, self.layout, gate=gate)
        else:
            side = torch.float64 if x.dtype == torch.float64 else torch.float32
            y = _GatedMatMul.apply(self.layout, flat, w, gate.detach().to(side), bool(dw_gated))
        return y if axis else y.t().reshape(self.K, *x.shape[1:])

    matmul = __call__

    def _made(self, op, dtype, device, **options):
        w = torch.empty(self.w_shape, dtype=dtype, device=device)
        return op(self.layout, w=w, **options)

    def identity_init(self, scale=1.0, dtype=torch.float32, device="cpu", gpu=None):
        """An initial weight: identities, tiled where the matrix is not square. `gpu` is `device`
        in the words of the original's README."""
        device = device if gpu is None else "cuda" if gpu else "cpu"
        return self._made(ops.weight_identity, dtype, device, alpha=scale)

    def ortho_init(self, dtype=torch.float32, device="cpu", seed=0):
        """An initial weight: orthonormal columns."""
        return self._made(ops.weight_orthogonal, dtype, device, seed=seed)

    def checker_init(self, device="cpu"):
        """A gate like a chessboard."""
        return ops.weight_checker(self.layout, w=torch.empty(self.g_shape, device=device))

    def l2_normalize(self, w, gain=None, epsilon=1e-12, dtype=None):
        """Columns of the matrix at length 1 (times gain)."""
        return _L2Normalize.apply(self.layout, w, gain, nonzero(epsilon),
                                  None if dtype is None else dtype_name(dtype))

    def _dense(self, w, gate=None):
        w = torch.as_tensor(w)
        return blocks_to_dense(w if gate is None else w * torch.as_tensor(gate)[:, None, None],
                               self.layout)

    def fprop_test(self, x, w, gate=None):
        """The product by dense torch, to compare with; arrays or tensors."""
        x, dense = torch.as_tensor(x), self._dense(w, gate)
        return x @ dense if self._axis_of(x, self.C) else dense.t() @ x

    def bprop_test(self, e, w, gate=None):
        """The gradient of x by dense torch."""
        e, dense = torch.as_tensor(e), self._dense(w, gate)
        return e @ dense.t() if self._axis_of(e, self.K) else dense @ e

    def updat_test(self, x, e, gate=None, dw_gated=False):
        """The gradient of the weight by dense torch; dw_gated: 0 for blocks of gate 0."""
        x, e = torch.as_tensor(x), torch.as_tensor(e)
        dw = blocks_from_dense(x.t() @ e if self._axis_of(x, self.C) else x @ e.t(), self.layout)
        return dw * (torch.as_tensor(gate) != 0)[:, None, None] if dw_gated else dw

    def l2_normalize_test(self, w, gain=None, epsilon=1e-12):
        """`l2_normalize` by dense torch."""
        dense = self._dense(w)
        dense = dense / dense.square().sum(0).clamp_min(epsilon).sqrt()
        dense = dense if gain is None else dense * torch.as_tensor(gain)
        return blocks_from_dense(dense, self.layout)

    def prune(self, param, gate):
        """Drops the blocks of gate 0: (new object, its weight, its gate)."""
        layout, slots = self.layout.compact(gate)
        made = object.__new__(BlocksparseMatMul)
        made.__init__(layout.to_mask(), self.bsize, self.feature_axis, name=self.name)
        where = [layout.find(*made.block_coord(i)) for i in range(made.blocks)]
        kept = torch.tensor(slots.tolist(), device=param.device)[where]
        return made, param[kept], torch.ones(made.blocks, device=param.device)


class SparseProj:
    """Moves single features: rows of a large side to rows of a small one.

    Parameters
    ----------
    nhidden : int
        The large side.
    nproj, proj_stride, gather_lut
        Which rows: that many at random, every so many-th, or a list.
    """

    def __init__(self, nhidden, nproj=None, proj_stride=None, block_size=32, gather_lut=None,
                 seed=0):
        if gather_lut is None and nproj is not None:
            draw = torch.Generator().manual_seed(seed)
            gather_lut = torch.randperm(nhidden, generator=draw)[:nproj].sort().values
        elif gather_lut is None:
            count = nhidden // proj_stride // block_size * block_size
            gather_lut = torch.arange(0, nhidden, proj_stride)[:count]
        self.nhidden = nhidden
        self.gather_lut = torch.as_tensor(gather_lut)
        self.nproj = len(self.gather_lut)

    def gather(self, x):
        """y[j] = x[gather_lut[j]]."""
        return x[self.gather_lut.to(x.device)]

    def scatter(self, x):
        """The inverse, zeros elsewhere."""
        return x.new_zeros((self.nhidden, *x.shape[1:])).index_copy(
            0, self.gather_lut.to(x.device), x)

    def scatter_add(self, x, y):
        """x + scatter(y)."""
        return x.index_add(0, self.gather_lut.to(x.device), y)

    def scatter_mul(self, x, y):
        """x, multiplied by y where y's rows belong."""
        at = self.gather_lut.to(x.device)
        return x.index_copy(0, at, x[at] * y)


class _Scores(torch.autograd.Function):
    """Q K^T on the kept blocks; tensors [batch, heads, time, d]."""

    @staticmethod
    def forward(ctx, layout, q, k):
        ctx.layout, ctx.shapes = layout, (q.shape, k.shape)
        _, for_q, for_k = ctx.needs_input_grad
        ctx.save_for_backward(q if for_k else None, k if for_q else None)
        return ops.attn_scores(layout, q.detach(), k.detach())

    @staticmethod
    @once("a product of bsk.compat")
    def backward(ctx, ds):
        q, k = ctx.saved_tensors
        ds, (q_shape, k_shape) = ds.contiguous(), ctx.shapes
        dq = dk = None
        if k is not None:
            dq = ops.attn_apply(ctx.layout, ds, k, y=k.new_empty(q_shape))
        if q is not None:
            dk = ops.attn_apply_t(ctx.layout, ds, q, y=q.new_empty(k_shape))
        return None, dq, dk


class _Apply(torch.autograd.Function):
    """S V; transposed: S^T V."""

    @staticmethod
    def forward(ctx, layout, s, v, transposed):
        ctx.layout, ctx.transposed = layout, transposed
        ctx.s_like, ctx.v_shape = (s.shape, s.dtype), v.shape
        for_s, for_v = ctx.needs_input_grad[1:3]
        ctx.save_for_backward(s if for_v else None, v if for_s else None)
        op = ops.attn_apply_t if transposed else ops.attn_apply
        time = layout.shape[1 if transposed else 0]
        y = v.new_empty((*v.shape[:2], time, v.shape[3]))
        return op(layout, s.detach().contiguous(), v.detach(), y=y)

    @staticmethod
    @once("a product of bsk.compat")
    def backward(ctx, dy):
        s, v = ctx.saved_tensors
        dy, ds, dv = dy.contiguous(), None, None
        if s is not None:
            op = ops.attn_apply if ctx.transposed else ops.attn_apply_t
            dv = op(ctx.layout, s.contiguous(), dy, y=dy.new_empty(ctx.v_shape))
        if v is not None:
            a, b = (v, dy) if ctx.transposed else (dy, v)
            shape, kind = ctx.s_like
            ds = ops.attn_scores(ctx.layout, a, b, s=v.new_empty(shape, dtype=kind))
        return None, ds, dv, None


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layout, x, scale, bits, index, dtype):
        y = torch.empty_like(x, dtype=dtype)
        ops.block_softmax(layout, x.detach(), y=y, scale=scale, bits=bits, bits_index=index)
        ctx.layout, ctx.scale = layout, scale
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once("a product of bsk.compat")
    def backward(ctx, dy):
        y, = ctx.saved_tensors
        dx = ops.block_softmax_grad(ctx.layout, dy.to(y.dtype).contiguous(), y, scale=ctx.scale)
        return None, dx, None, None, None, None


class BlocksparseTransformer:
    """Attention from its parts: scores, softmax and their product with values.

    q, k and v are [batch, time, heads * d], scores [batch, heads, blocks, block, block].

    Parameters
    ----------
    layout : array [query blocks, key blocks], or [heads, query blocks, key blocks]
    block_size : int
    heads : int, optional
        Needed where the layout has none; each of the layout serves as many.
    mask_callback : callable, optional
        ``callback(block shape, head, query block, key block, block)`` gives an array of bool.
    """

    def __init__(self, layout, block_size=64, heads=None, mask_callback=None, name=None):
        self.layout = Layout.from_mask(layout, block_size)
        self.heads = heads or self.layout.heads
        if self.heads % self.layout.heads:
            raise ValueError(f"heads is {heads}; must be a multiple of {self.layout.heads}")
        counts = {sum(map(sum, h)) for h in self._masks()}
        if len(counts) > 1:
            raise ValueError("the heads keep different numbers of blocks")
        self.blk_size, self.blocks = block_size, counts.pop()
        self.bits = None
        if mask_callback is not None:
            self.bits = self._pack(mask_callback)

    def _masks(self):
        mask = self.layout.to_mask()
        return mask if self.layout.heads > 1 else [mask]

    def _pack(self, callback):
        side, rows, seen = self.blk_size, [], {}
        for h, i, j in zip(*self.layout.to_coo()):
            number = seen[h] = seen.get(h, -1) + 1
            mask = torch.as_tensor(callback((side, side), h, i, j, number)).bool()
            padded = torch.zeros((side, -(-side // 8), 8), dtype=torch.uint8)
            padded.view(side, -1)[:, :side] = mask.to(torch.uint8)
            rows.append((padded << torch.arange(8, dtype=torch.uint8)).sum(2).to(torch.uint8))
        return torch.stack(rows)

    def _split(self, x):
        return split_heads(x, self.heads)

    # The library has the blocks of all heads of a layout in one dimension.

    def _apart(self, s):
        heads = self.layout.heads
        s = s.reshape(s.shape[0], -1, heads, self.blocks, *s.shape[3:]).transpose(1, 2)
        return s.reshape(s.shape[0], self.heads, *s.shape[3:])

    def _joined(self, s):
        heads = self.layout.heads
        s = s.reshape(s.shape[0], heads, -1, *s.shape[2:]).transpose(1, 2)
        return s.reshape(*s.shape[:2], heads * self.blocks, *s.shape[4:])

    def _apply(self, w, v, transposed):
        return merge_heads(_Apply.apply(self.layout, self._joined(w), self._split(v), transposed))

    def query_key_op(self, q, k, bench=0):
        _off("query_key_op", bench)
        return self._apart(_Scores.apply(self.layout, self._split(q), self._split(k)))

    nt_op = query_key_op

    def weight_value_op(self, w, v, bench=0):
        _off("weight_value_op", bench)
        return self._apply(w, v, False)

    nn_op = weight_value_op

    def tn_op(self, w, x, bench=0):
        _off("tn_op", bench)
        return self._apply(w, x, True)

    def softmax(self, x, scale=1.0, dtype=None):
        return self._softmax(x, scale, None, dtype)

    def masked_softmax(self, x, scale=1.0, autoregress_at_key=None, dtype=None):
        bits = self.bits
        if autoregress_at_key is not None:
            bits = self._autoregressive(autoregress_at_key)
        if bits is not None:
            bits = bits.to(x.device)
        return self._softmax(x, scale, bits, dtype)

    def _softmax(self, x, scale, bits, dtype):
        return self._apart(_Softmax.apply(self.layout, self._joined(x), nonzero(scale), bits, None,
                                          dtype or x.dtype))

    def _autoregressive(self, key):
        """The mask, in which keys from `key` on are visible to later queries only."""
        side = self.blk_size
        _, i, j = (torch.tensor(c.tolist()) for c in self.layout.to_coo())
        row = (i * side)[:, None, None] + torch.arange(side)[None, :, None]
        col = (j * side)[:, None, None] + torch.arange(side)[None, None, :]
        seen = ((col < key) | (col <= row)).to(torch.uint8)
        seen = torch.nn.functional.pad(seen, (0, -side % 8)).view(len(i), side, -1, 8)
        bits = (seen << torch.arange(8, dtype=torch.uint8)).sum(3).to(torch.uint8)
        return bits if self.bits is None else bits & self.bits


    # The same by dense torch, to compare with.

    def _places(self):
        """Indices (head, query block, key block) of the scores' blocks in a grid of blocks."""
        times = self.heads // self.layout.heads
        i, j = (torch.tensor(c.tolist()).reshape(self.layout.heads, -1).repeat_interleave(times, 0)
                for c in self.layout.to_coo()[1:])
        return torch.arange(self.heads)[:, None], i, j

    def _dense(self, blocks, fill=0.0):
        """Scores as matrices [batch, heads, queries, keys]."""
        made = blocks.new_full((blocks.shape[0], self.heads, *self.layout.grid,
                                *self.layout.block), fill)
        head, i, j = self._places()
        made[:, head, i, j] = blocks
        return made.transpose(3, 4).reshape(*made.shape[:2], *self.layout.shape)

    def _kept(self, dense):
        """The blocks of matrices."""
        (rows, cols), side = self.layout.grid, self.blk_size
        head, i, j = self._places()
        return dense.reshape(*dense.shape[:2], rows, side, cols, side).transpose(3, 4)[
            :, head, i, j]

    def nt_test(self, q, k):
        """`query_key_op` by dense torch; arrays or tensors, as for all of these."""
        q, k = (self._split(torch.as_tensor(x)) for x in (q, k))
        return self._kept(q @ k.transpose(-1, -2))

    def nn_test(self, w, v):
        """`weight_value_op` by dense torch."""
        return merge_heads(self._dense(torch.as_tensor(w)) @ self._split(torch.as_tensor(v)))

    def tn_test(self, w, x):
        """`tn_op` by dense torch."""
        dense = self._dense(torch.as_tensor(w)).transpose(-1, -2)
        return merge_heads(dense @ self._split(torch.as_tensor(x)))

    def masked_softmax_test(self, x, scale=1.0, autoregress_at_key=None):
        """`masked_softmax` by dense torch."""
        x, bits, side = torch.as_tensor(x) * scale, self.bits, self.blk_size
        if autoregress_at_key is not None:
            bits = self._autoregressive(autoregress_at_key)
        if bits is not None:
            seen = (bits[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1
            seen = seen.flatten(2)[:, :, :side].bool().reshape(self.layout.heads, -1, side, side)
            seen = seen.repeat_interleave(self.heads // self.layout.heads, 0)
            x = x.masked_fill(~seen, -math.inf)
        # Rows that see nothing are 0.
        return self._kept(torch.softmax(self._dense(x, -math.inf), -1).nan_to_num(0.0))

    def masked_softmax_grad_test(self, dy, y, scale=1.0):
        """Its gradient by dense torch."""
        dy, y = (self._dense(torch.as_tensor(x)) for x in (dy, y))
        return self._kept((dy - (dy * y).sum(-1, keepdim=True)) * y * scale)


# --- openai/sparse_attention ----------------------------------------------------------------------

def split_states(x, n):
    """[batch, time, m] to [batch, time, n, m / n]."""
    return x.reshape(*x.shape[:-1], n, x.shape[-1] // n)


def merge_states(x):
    """The inverse of split_states."""
    return x.reshape(*x.shape[:-2], -1)


def split_heads(x, n):
    """[batch, time, m] to [batch, n, time, m / n]."""
    return split_states(x, n).transpose(1, 2)


def merge_heads(x):
    """The inverse of split_heads."""
    return merge_states(x.transpose(1, 2))


def get_attn_mask(n, attn_mode, local_attn_ctx=None):
    """[1, 1, n, n] of 0 and 1: what a query sees in modes 'all', 'local' and 'strided'."""
    i, j = torch.arange(n)[:, None], torch.arange(n)[None]
    if attn_mode == "all":
        seen = j <= i
    elif attn_mode == "local":
        seen = (j <= i) & (i - j < local_attn_ctx)
    elif attn_mode == "strided":
        seen = (j <= i) & ((i - j) % local_attn_ctx == 0)
    else:
        raise ValueError(f"attn_mode is {attn_mode!r}; must be 'all', 'local' or 'strided'")
    return seen.float()[None, None]


def strided_transpose(x, n_ctx, local_attn_ctx, blocksize):
    """Time in the order in which strided attention is chunks on the diagonal."""
    batch, _, width = x.shape
    turned = x.reshape(batch, n_ctx // local_attn_ctx, local_attn_ctx, width).transpose(1, 2)
    return turned.reshape(batch, n_ctx, width)


def shape_list(x):
    """The shape as a list."""
    return list(x.shape)


def recomputable(*names):
    """A decorator: with recompute=True a call keeps its inputs only, and runs again for gradients.

    The function has tensors as positional arguments; it may be named, as in the original.
    """
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*tensors, recompute=False, **options):
            if not recompute or not torch.is_grad_enabled():
                return function(*tensors, **options)
            return checkpoint(functools.partial(function, **options), *tensors,
                              use_reentrant=False)

        return wrapper

    return decorate(names[0]) if names and callable(names[0]) else decorate


def get_callback(attn_mode, local_attn_ctx=None):
    """The mask callback of a mode for `BlocksparseTransformer`: what a block's elements see."""
    def callback(shape, head, i, j, block):
        row = torch.arange(shape[0])[:, None] + i * shape[0]
        col = torch.arange(shape[1])[None] + j * shape[1]
        seen = col <= row
        return seen & (row - col < local_attn_ctx) if attn_mode == "local" else seen

    if attn_mode not in ("all", "local", "strided", "fixed"):
        raise ValueError(f"attn_mode is {attn_mode!r}; must be 'all', 'local', 'strided' or "
                         f"'fixed'")
    return callback


def _pattern(time, heads, attn_mode, local_attn_ctx, blocksize, num_verts, vertsize):
    if attn_mode == "all":
        return Layout.causal(time, blocksize)
    if attn_mode == "local":
        return Layout.local(time, blocksize, local_attn_ctx)
    if attn_mode == "strided":
        return Layout.strided(time, blocksize, local_attn_ctx)
    if attn_mode == "fixed":
        if local_attn_ctx % blocksize:
            raise ValueError(f"local_attn_ctx is {local_attn_ctx}; must be a multiple of the "
                             f"blocks' {blocksize}")
        groups = num_verts or 1
        return Layout.fixed(time, blocksize, local_attn_ctx // blocksize, vertsize or 1, groups,
                            heads if groups > 1 else 1)
    raise ValueError(f"attn_mode is {attn_mode!r}; must be 'all', 'local', 'strided' or 'fixed'")


def get_blocksparse_obj(n_ctx, n_heads, attn_mode, blocksize=32, local_attn_ctx=None,
                        num_verts=None, vertsize=None):
    """A `BlocksparseTransformer` of a mode; that of 'strided' takes time as `strided_transpose`
    gives it."""
    layout = _pattern(n_ctx, n_heads, attn_mode, local_attn_ctx, blocksize, num_verts, vertsize)
    return BlocksparseTransformer(layout.to_mask(), blocksize, n_heads,
                                  get_callback(attn_mode, local_attn_ctx))


@recomputable
def _dense_attention(q, k, v, heads, attn_mode, local_attn_ctx):
    q, k, v = (split_heads(x, heads) for x in (q, k, v))
    mask = get_attn_mask(q.shape[2], attn_mode, local_attn_ctx).to(q.device).bool()
    s = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    p = torch.softmax(s.masked_fill(~mask, float("-inf")), -1).to(q.dtype)
    return merge_heads(p @ v)


def attention_impl(q, k, v, heads, attn_mode, local_attn_ctx=None, recompute=True):
    """Dense attention [batch, time, state] with a mask, as a reference; with `recompute` it keeps
    its inputs only, and runs again for gradients."""
    return _dense_attention(q, k, v, heads=heads, attn_mode=attn_mode,
                            local_attn_ctx=local_attn_ctx, recompute=recompute)


def blocksparse_attention_impl(q, k, v, heads, attn_mode, local_attn_ctx=None, blocksize=32,
                               num_verts=None, vertsize=None, recompute=True):
    """Block-sparse causal attention on [batch, time, state]; nothing of the scores' size is stored,
    so that `recompute` has nothing to save.

    Parameters
    ----------
    attn_mode : {'all', 'local', 'strided', 'fixed'}
    local_attn_ctx : int
        The window, the stride, or the stripe of 'fixed'.
    num_verts, vertsize : int
        Of 'fixed': groups of verticals, and block columns of a group.
    """
    layout = _pattern(q.shape[1], heads, attn_mode, local_attn_ctx, blocksize, num_verts, vertsize)
    window = local_attn_ctx if attn_mode == "local" else 0
    interleave = local_attn_ctx if attn_mode == "strided" else 1
    q, k, v = (split_heads(x, heads) for x in (q, k, v))
    return merge_heads(attention(q, k, v, layout, True, window, interleave=interleave))


# --- huggingface/pytorch_block_sparse -------------------------------------------------------------

class BlockSparseModelPatcher(patch.BlockSparseModelPatcher):
    """`bsk.torch.BlockSparseModelPatcher`, but that a rule matches from the start of a name: it need
    not be for the whole."""

    _matches = staticmethod(re.Pattern.match)


class BlockSparseMatrix(LayoutModule):
    """A block-sparse matrix [R, C] that owns its values.

    Made by ``zeros``, ``ones``, ``randn``, ``from_dense``. `data` is [nnz, block rows, block cols].
    """

    VALUES = "data"

    def __init__(self, layout, data):
        super().__init__()
        self._set_layout(layout)
        self.data = torch.nn.Parameter(data)

    @property
    def shape(self):
        return self.layout.shape

    @property
    def block_shape(self):
        return self.layout.block

    @classmethod
    def zeros(cls, shape, n_blocks=None, blocks=None, block_shape=(32, 32), device="cpu",
              dtype=torch.float32, seed=0):
        """`blocks` are coordinates, or `n_blocks` random ones are drawn; else all blocks."""
        if n_blocks is not None and blocks is not None:
            raise ValueError("n_blocks and blocks exclude each other")
        grid = [-(-n // b) for n, b in zip(shape, pair(block_shape, "block_shape"))]
        if blocks is not None:
            layout = Layout.from_coo([b[0] for b in blocks], [b[1] for b in blocks], shape,
                                     block_shape)
        else:
            share = 1.0 if n_blocks is None else n_blocks / (grid[0] * grid[1])
            layout = Layout.random(shape, block_shape, share, seed)
        return cls(layout, torch.zeros((layout.nnz, *layout.block), device=device, dtype=dtype))

    @classmethod
    def ones(cls, shape, n_blocks=None, blocks=None, positive=False, **more):
        made = cls.zeros(shape, n_blocks, blocks, **more)
        made.data.data.fill_(1)
        return made

    @classmethod
    def randn(cls, shape, n_blocks=None, blocks=None, positive=False, **more):
        made = cls.zeros(shape, n_blocks, blocks, **more)
        made.data.data.normal_()
        if positive:
            made.data.data.abs_()
        return made

    @classmethod
    def from_dense(cls, dense, block_shape=(32, 32), block_count=None, blocks=None):
        """The listed blocks, or the `block_count` largest, or all."""
        if blocks is not None:
            layout = Layout.from_coo([b[0] for b in blocks], [b[1] for b in blocks],
                                     tuple(dense.shape), block_shape)
        elif block_count is not None:
            layout = Layout.from_dense(dense.detach().float().cpu().contiguous(), block_shape,
                                       keep=block_count)
        else:
            layout = Layout.full(tuple(dense.shape), block_shape)
        return cls(layout, blocks_from_dense(dense.detach(), layout))

    def to_dense(self, data_replace=None):
        return blocks_to_dense(self.data if data_replace is None else data_replace, self.layout)

    def build_coo_block_index(self):
        """[2, nnz]: the coordinates of the blocks."""
        return torch.tensor([c.tolist() for c in self.layout.to_coo()[1:]])

    def block_mask_build(self, positions=None):
        """[grid rows, grid cols] of bool: the positions (row, column), or the kept blocks."""
        mask = torch.zeros(self.layout.grid, dtype=torch.bool)
        rows, cols = (zip(*positions) if positions is not None
                      else self.build_coo_block_index().tolist())
        mask[list(rows), list(cols)] = True
        return mask

    def rebuild(self, block_mask, block_ptr=None):
        """Another pattern of as many blocks; block_ptr names the slot of each, row by row."""
        mask = torch.as_tensor(block_mask)
        if int(mask.sum()) != self.layout.nnz:
            raise ValueError(f"block_mask has {int(mask.sum())} blocks; must have "
                             f"{self.layout.nnz}")
        row, col = mask.cpu().nonzero().t().tolist()
        if block_ptr is not None:
            order = torch.as_tensor(block_ptr).cpu().argsort().tolist()
            if sorted(torch.as_tensor(block_ptr).tolist()) != list(range(len(row))):
                raise ValueError(f"block_ptr must have each of 0 to {len(row) - 1} once")
            row, col = [row[i] for i in order], [col[i] for i in order]
        self._set_layout(Layout.from_coo(row, col, self.layout.shape, self.layout.block,
                                         order="given"))

    def multiply_(self, factor):
        """Scales the values in place, without gradient."""
        with torch.no_grad():
            self.data.mul_(factor)
        return self

    def to_sparse(self, data_replace=None):
        """A torch.sparse_coo tensor [grid rows, grid cols, block rows, block cols]."""
        data = self.data if data_replace is None else data_replace
        return torch.sparse_coo_tensor(self.build_coo_block_index().to(data.device), data,
                                       (*self.layout.grid, *self.layout.block))

    def _inside(self):
        """The values with zeros where blocks reach beyond the edges of the matrix."""
        return blocks_from_dense(self.to_dense().detach(), self.layout)

    def check_with_dense(self, dense):
        """Raises ValueError where a kept block differs from the matrix."""
        if not torch.allclose(self._inside(), blocks_from_dense(dense, self.layout), atol=1e-5):
            raise ValueError("the blocks differ from those of the matrix")

    def block_norm(self, p=2):
        return self._inside().flatten(1).norm(p, 1)

    def block_replace(self, moves):
        """Rows (row, column, slot): each block of these slots gets a new position."""
        rows = torch.as_tensor(moves).tolist()
        self._set_layout(self.layout.move_blocks([r[2] for r in rows], [r[0] for r in rows],
                                                 [r[1] for r in rows]))

    def reverse_matmul(self, x, transpose=True):
        """x W^T, or with transpose=False x W."""
        return matmul(x, self.data, self.layout, transpose=transpose)

    def matmul_with_output_sparse_support(self, a, b, overwrite_data=False):
        """The kept blocks of a^T b; with overwrite_data they become the values as well."""
        made = matmul_sampled(a, b, self.layout)
        if overwrite_data:
            with torch.no_grad():
                self.data.copy_(made)
        return made


class BlockSparseMatrixEmulator(BlockSparseMatrix):
    """The same by dense torch, for finding faults: a matrix with zeros where no blocks are."""

    def reverse_matmul(self, x, transpose=True):
        dense = self.to_dense()
        return x @ (dense.t() if transpose else dense)

    def matmul_with_output_sparse_support(self, a, b, overwrite_data=False):
        made = blocks_from_dense(a.flatten(0, -2).t() @ b.flatten(0, -2), self.layout)
        if overwrite_data:
            with torch.no_grad():
                self.data.copy_(made)
        return made
