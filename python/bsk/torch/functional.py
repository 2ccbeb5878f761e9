"""Differentiable products with block-sparse matrices."""

import operator
from typing import Optional, Tuple

import torch
from torch import Tensor

from .. import ops
from .._c import InvalidError
from ..layout import Layout
from ._packed import packed_of, trained
from ._register import autocast_dtype, constant_result, differentiable, layout_of, token_of


def _rows(x):
    """A matrix that the products take: one of its axes without gaps."""
    return x if x.stride(-1) == 1 or x.stride(-2) == 1 and x.stride(-1) != 0 else x.contiguous()


def _side_type(x):
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _side(x, like):
    """A vector in the type of side operands: f32, or f64 beside f64."""
    return None if x is None else x.to(_side_type(like)).contiguous()


def _sizes(layout, transpose):
    rows, cols = layout.shape
    return (cols, rows) if transpose else (rows, cols)


# --- bsk::matmul: y = x W, or x W^T, (+ bias) -----------------------------------------------------

def _matmul_fake(x, w, bias, gate, layout, transpose):
    return x.new_empty((x.shape[0], _sizes(layout_of(layout), transpose)[1]))


def _if(needed, x):
    return x if needed else None


def _matmul_setup(ctx, inputs, output):
    x, w, bias, gate, layout, transpose = inputs
    need = ctx.needs_input_grad
    ctx.save_for_backward(_if(need[1] or need[3], x), _if(need[0] or need[3], w),
                          _if(need[0] or need[1] or need[3], gate))
    ctx.layout, ctx.transpose = layout, transpose
    ctx.held = layout_of(layout)
    ctx.bias_type = None if bias is None else bias.dtype


def _matmul_backward(ctx, dy):
    x, w, gate = ctx.saved_tensors
    need = ctx.needs_input_grad
    dx = dw = dbias = dgate = None
    dy = _rows(dy)
    if need[0]:
        # Of a weight that is trained no packed form would be of use again.
        kept = w if torch.is_grad_enabled() or not need[1] else w.detach()
        dx = _matmul(dy, kept, None, gate, ctx.layout, not ctx.transpose)
    # The fastest products of GPUs have no sums beside them.
    fused = need[2] and not ctx.transpose and (need[1] or need[3]) and dy.device.type == "cpu"
    if need[1] or need[3]:
        dw, dgate, dbias = _wgrad(x, dy, w if need[3] else None, gate, ctx.layout, ctx.transpose,
                                  fused)
        dgate = dgate.to(gate.dtype) if need[3] else None
    if need[2]:
        dbias = (dbias if fused else _dbias(dy)).to(ctx.bias_type)
    return dx, dw if need[1] else None, dbias if need[2] else None, dgate, None, None


def _matmul_plain(x, w, bias, gate, layout, transpose):
    """With a packed form of the weight, which stays from call to call."""
    w = w if w.is_contiguous() else w.contiguous()
    return ops.matmul(layout_of(layout), _rows(x), w, bias=_side(bias, x), gate=_side(gate, x),
                      transpose_w=int(transpose), packed=packed_of(w))


@differentiable("bsk::matmul", _matmul_fake, _matmul_backward, _matmul_setup, _matmul_plain)
def _matmul(x: Tensor, w: Tensor, bias: Optional[Tensor], gate: Optional[Tensor], layout: int,
            transpose: bool) -> Tensor:
    trained(w)
    return ops.matmul(layout_of(layout), _rows(x), w.contiguous(), bias=_side(bias, x),
                      gate=_side(gate, x), transpose_w=int(transpose))


# --- bsk::dbias: the sums of the rows of dy -------------------------------------------------------

def _dbias_fake(dy):
    return dy.new_empty((dy.shape[1],), dtype=_side_type(dy))


def _dbias_setup(ctx, inputs, output):
    ctx.type, ctx.rows = inputs[0].dtype, inputs[0].shape[0]


def _dbias_backward(ctx, ddbias):
    return ddbias.to(ctx.type).expand(ctx.rows, -1)


@differentiable("bsk::dbias", _dbias_fake, _dbias_backward, _dbias_setup)
def _dbias(dy: Tensor) -> Tensor:
    return ops.bias_act_grad(_rows(dy), dbias=True)


# --- bsk::wgrad: the kept blocks of x^T dy --------------------------------------------------------

def _wgrad_fake(x, dy, w, gate, layout, transpose, bias):
    side = _side_type(x)
    made = layout_of(layout)
    return (x.new_empty((made.nnz, *made.block)),
            x.new_empty((made.nnz if w is not None else 0,), dtype=side),
            x.new_empty((dy.shape[1] if bias else 0,), dtype=side))


def _wgrad_setup(ctx, inputs, output):
    x, dy, w, gate, layout, transpose, bias = inputs
    need = ctx.needs_input_grad
    ctx.save_for_backward(_if(need[1] or need[2] or need[3], x),
                          _if(need[0] or need[2] or need[3], dy),
                          _if(need[0] or need[1], w), _if(need[0] or need[1], gate))
    ctx.layout, ctx.transpose, ctx.bias = layout, transpose, bias
    ctx.type, ctx.rows = dy.dtype, dy.shape[0]
    ctx.gate_type = None if gate is None else gate.dtype
    ctx.held = layout_of(layout)


def _wgrad_backward(ctx, ddw, ddgate, ddbias):
    """Of dw = gate * (x^T dy), dgate = the sums of (x^T dy) o w, dbias = the sum of dy."""
    x, dy, w, gate = ctx.saved_tensors
    dx = ddy = dweight = dgate = None
    terms = [(ddw, gate)] if ddw is not None else []
    if w is not None and ddgate is not None:
        terms.append((w, ddgate))
    for blocks, gates in terms:
        blocks = blocks.to(ctx.type)
        if ctx.needs_input_grad[0]:
            part = _matmul(dy, blocks, None, gates, ctx.layout, not ctx.transpose)
            dx = part if dx is None else dx + part
        if ctx.needs_input_grad[1]:
            part = _matmul(x, blocks, None, gates, ctx.layout, ctx.transpose)
            ddy = part if ddy is None else ddy + part
    if ctx.bias and ddbias is not None and ctx.needs_input_grad[1]:
        part = ddbias.to(ctx.type).expand(ctx.rows, -1)
        ddy = part if ddy is None else ddy + part
    if ctx.needs_input_grad[2] and ddgate is not None:
        plain = _wgrad(x, dy, None, None, ctx.layout, ctx.transpose, False)[0]
        dweight = plain * ddgate.to(plain.dtype)[:, None, None]
    if ctx.needs_input_grad[3] and ddw is not None:
        dgate = _wgrad(x, dy, ddw.to(x.dtype), None, ctx.layout, ctx.transpose, False)[1]
        dgate = dgate.to(ctx.gate_type)
    return dx, ddy, dweight, dgate, None, None, None


@differentiable("bsk::wgrad", _wgrad_fake, _wgrad_backward, _wgrad_setup)
def _wgrad(x: Tensor, dy: Tensor, w: Optional[Tensor], gate: Optional[Tensor], layout: int,
           transpose: bool, bias: bool) -> Tuple[Tensor, Tensor, Tensor]:
    side = _side_type(x)
    a, b = (dy, x) if transpose else (x, dy)
    got = ops.matmul_wgrad(
        layout_of(layout), _rows(a), _rows(b), gate=_side(gate, x),
        w=None if w is None else w.contiguous(), dgate=None if w is None else True,
        dbias=True if bias else None, gate_mode="scale" if gate is not None else "ignore")
    dw = got if isinstance(got, Tensor) else got.dw
    return (dw, x.new_empty(0, dtype=side) if w is None else got.dgate,
            got.dbias if bias else x.new_empty(0, dtype=side))


# --- what users call ------------------------------------------------------------------------------

def matmul(x: Tensor, weight: Tensor, layout: Layout, bias: Optional[Tensor] = None,
           gate: Optional[Tensor] = None, transpose: bool = False) -> Tensor:
    """y = x W + bias, or x W^T + bias, with W block-sparse.

    Parameters
    ----------
    x : Tensor [..., rows of the layout], with `transpose` [..., cols]
    weight : Tensor [nnz, *layout.block], of x's type
    layout : bsk.Layout
    bias : Tensor [cols, with `transpose` rows], optional
    gate : Tensor [nnz], optional
        A factor for each block; blocks with gate 0 are skipped.
    transpose : bool
        Multiply by W^T.

    Returns
    -------
    Tensor [..., cols, with `transpose` rows]
        Differentiable twice by x, weight, bias and gate.
    """
    return matmul_by_token(x, weight, token_of(layout), bias, gate, transpose)


def _autocast(a, b):
    wanted = autocast_dtype(a)
    return (a, b) if wanted is None or a.dtype == torch.float64 else (a.to(wanted), b.to(wanted))


def matmul_by_token(x: Tensor, weight: Tensor, token: int, bias: Optional[Tensor] = None,
                    gate: Optional[Tensor] = None, transpose: bool = False) -> Tensor:
    """`matmul` with the number of a layout, which compiled code can hold."""
    if not x.dim():
        raise InvalidError("matmul: x has no dimensions; must be [..., features]")
    x, weight = _autocast(x, weight)
    if x.dim() == 2:
        return _matmul(x, weight, bias, gate, token, transpose)
    y = _matmul(x.reshape(-1, x.shape[-1]), weight, bias, gate, token, transpose)
    return y.reshape(x.shape[:-1] + y.shape[-1:])


def matmul_sampled(x: Tensor, dy: Tensor, layout: Layout) -> Tensor:
    """The kept blocks of x^T dy: Tensor [nnz, *layout.block], for x [..., rows], dy [..., cols]."""
    for name, t in (("x", x), ("dy", dy)):
        if not t.dim():
            raise InvalidError(f"matmul_sampled: {name} has no dimensions; must be [..., features]")
    x, dy = _autocast(x, dy)
    return _wgrad(x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1]), None, None,
                  token_of(layout), False, False)[0]


def _padded_grid(layout):
    return layout.grid[0] * layout.block[0], layout.grid[1] * layout.block[1]


@constant_result
def _places(token):
    """(head, row, col) of the blocks, as lists."""
    return tuple(c.tolist() for c in layout_of(token).to_coo())


def _coordinates(layout, device):
    places = _places(operator.index(token_of(layout)))  # a constant for the compiler
    head, row, col = [torch.tensor(c, device=device, dtype=torch.long) for c in places]
    return head, row, col


def _of_shape(function, name, x, *shapes):
    """Refuses a tensor that has none of the shapes."""
    if tuple(x.shape) not in shapes:
        legal = " or ".join(str(list(s)) for s in shapes)
        raise InvalidError(f"{function}: {name} is {list(x.shape)}; must be {legal}")


def kept_blocks(function, name, dense, layout):
    """`blocks_from_dense` for a function and its argument of a name."""
    head, row, col = _coordinates(layout, dense.device)
    (rows, cols), (r, c), (height, width) = layout.shape, layout.block, _padded_grid(layout)
    _of_shape(function, name, dense, (rows, cols), (layout.heads, rows, cols))
    grid = torch.nn.functional.pad(dense, (0, width - cols, 0, height - rows))
    grid = grid.expand(layout.heads, height, width).reshape(-1, height // r, r, width // c, c)
    return grid.permute(0, 1, 3, 2, 4)[head, row, col].contiguous()


def blocks_from_dense(dense: Tensor, layout: Layout) -> Tensor:
    """The kept blocks of a matrix [rows, cols] of all heads, or of one for each [heads, rows, cols]:
    Tensor [nnz, *layout.block]. Differentiable."""
    return kept_blocks("blocks_from_dense", "dense", dense, layout)


def blocks_to_dense(blocks: Tensor, layout: Layout) -> Tensor:
    """The matrix whose kept blocks are given, zeros elsewhere: Tensor [rows, cols], for a layout of
    several heads [heads, rows, cols]. Differentiable."""
    places = _coordinates(layout, blocks.device)
    (rows, cols), (r, c), (height, width) = layout.shape, layout.block, _padded_grid(layout)
    _of_shape("blocks_to_dense", "blocks", blocks, (layout.nnz, r, c))
    grid = blocks.new_zeros((layout.heads, height // r, width // c, r, c)).index_put(places, blocks)
    dense = grid.permute(0, 1, 3, 2, 4).reshape(-1, height, width)[:, :rows, :cols]
    return dense if layout.heads > 1 else dense[0]
