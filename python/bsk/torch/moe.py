"""Products of groups of rows, and layers of experts made of them."""

import math
from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import ops
from .._c import InvalidError
from ._register import autocast_dtype, differentiable
from .functional import _rows, _side, _side_type


# --- bsk::grouped_matmul: the rows of each group times its own matrix, (+ bias) -------------------

def _matmul_fake(x, w, offsets, bias):
    return x.new_empty((x.shape[0], w.shape[2]))


def _matmul_setup(ctx, inputs, output):
    x, w, offsets, bias = inputs
    need = ctx.needs_input_grad
    ctx.save_for_backward(x if need[1] or need[3] else None, w if need[0] else None, offsets)
    ctx.bias_type = None if bias is None else bias.dtype


def _matmul_backward(ctx, dy):
    x, w, offsets = ctx.saved_tensors
    need = ctx.needs_input_grad
    dx = dw = dbias = None
    if need[0]:
        dx = _grouped_matmul(dy, w.transpose(1, 2), offsets, None)
    if need[1] or need[3]:
        dw, dbias = _grouped_wgrad(x, dy, offsets, need[3])
        dbias = dbias.to(ctx.bias_type) if need[3] else None
    return dx, dw if need[1] else None, None, dbias


@differentiable("bsk::grouped_matmul", _matmul_fake, _matmul_backward, _matmul_setup)
def _grouped_matmul(x: Tensor, w: Tensor, offsets: Tensor, bias: Optional[Tensor]) -> Tensor:
    return ops.grouped_matmul(_rows(x), offsets, _rows(w), bias=_side(bias, x))


# --- bsk::grouped_wgrad: x^T dy of each group, and the sums of dy ---------------------------------

def _wgrad_fake(x, dy, offsets, bias):
    groups, cols = offsets.shape[0] - 1, dy.shape[1]
    return (x.new_empty((groups, x.shape[1], cols)),
            x.new_empty((groups if bias else 0, cols), dtype=_side_type(x)))


def _wgrad_setup(ctx, inputs, output):
    x, dy, offsets, bias = inputs
    need = ctx.needs_input_grad
    ctx.save_for_backward(x if need[1] else None, dy if need[0] else None, offsets)
    ctx.bias, ctx.type = bias, dy.dtype


def _wgrad_backward(ctx, ddw, ddbias):
    x, dy, offsets = ctx.saved_tensors
    dx = ddy = None
    ddw = ddw.to(ctx.type)
    if ctx.needs_input_grad[0]:
        dx = _grouped_matmul(dy, ddw.transpose(1, 2), offsets, None)
    if ctx.needs_input_grad[1]:
        ddy = _grouped_matmul(x, ddw, offsets, ddbias if ctx.bias else None)
    return dx, ddy, None, None


@differentiable("bsk::grouped_wgrad", _wgrad_fake, _wgrad_backward, _wgrad_setup)
def _grouped_wgrad(x: Tensor, dy: Tensor, offsets: Tensor, bias: bool) -> Tuple[Tensor, Tensor]:
    got = ops.grouped_wgrad(_rows(x), offsets, _rows(dy), dbias=True if bias else None)
    if bias:
        return got.dw, got.dbias
    return got, x.new_empty((0, dy.shape[1]), dtype=_side_type(x))


# --- bsk::take_rows and bsk::add_rows: rows by index, and the gradient of that --------------------

def _take_fake(x, index):
    return x.new_empty((index.shape[0], x.shape[1]))


def _take_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])
    ctx.count = inputs[0].shape[0]


def _take_backward(ctx, dy):
    return _add_rows(dy, ctx.saved_tensors[0], ctx.count), None


@differentiable("bsk::take_rows", _take_fake, _take_backward, _take_setup)
def _take_rows(x: Tensor, index: Tensor) -> Tensor:
    return ops.embedding(x.contiguous(), index)


def _add_fake(x, index, count):
    return x.new_empty((count, x.shape[1]))


def _add_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])


def _add_backward(ctx, dy):
    return _take_rows(dy, ctx.saved_tensors[0]), None, None


@differentiable("bsk::add_rows", _add_fake, _add_backward, _add_setup)
def _add_rows(x: Tensor, index: Tensor, count: int) -> Tensor:
    return ops.embedding_grad(x.contiguous(), index, dtable=x.new_empty((count, x.shape[1])))


# --- bsk::moe_route -------------------------------------------------------------------------------

def _route_fake(chosen, experts):
    slots = chosen.new_empty((chosen.numel(),), dtype=torch.int32)
    return (chosen.new_empty((experts + 1,), dtype=torch.int32), slots, torch.empty_like(slots))


def _route_setup(ctx, inputs, output):
    ctx.mark_non_differentiable(*output)


def _route_backward(ctx, *gradients):
    return None, None


@differentiable("bsk::moe_route", _route_fake, _route_backward, _route_setup)
def _route(chosen: Tensor, experts: int) -> Tuple[Tensor, Tensor, Tensor]:
    made = dict(dtype=torch.int32, device=chosen.device)
    offsets = torch.empty(experts + 1, **made)
    got = ops.moe_route(chosen.to(torch.int32).contiguous(), offsets=offsets, token=True)
    return offsets, got.order, got.token


# --- what users call ------------------------------------------------------------------------------

class Route(NamedTuple):
    """Slots, choice j of token t being number t * choices + j, sorted by their expert.

    offsets : Tensor [experts + 1], int32
        Expert g has the rows offsets[g] to offsets[g + 1] - 1.
    order : Tensor [slots], int32
        The slot of each row, or -1 behind those of the last expert.
    token : Tensor [slots], int32
        Its token, or -1.
    """

    offsets: Tensor
    order: Tensor
    token: Tensor


def route(chosen: Tensor, experts: int) -> Route:
    """Sorts the choices of tokens by expert, on their device.

    Parameters
    ----------
    chosen : Tensor [tokens, choices] of integers
        Choices below 0 or from `experts` on are dropped.
    experts : int
    """
    if chosen.dim() != 2:
        raise InvalidError(f"route: chosen is {list(chosen.shape)}; must be [tokens, choices]")
    return Route(*_route(chosen, experts))


def grouped_matmul(x: Tensor, weight: Tensor, offsets: Tensor,
                   bias: Optional[Tensor] = None) -> Tensor:
    """The rows of each group times its own matrix: y[t] = x[t] weight[g] + bias[g].

    Parameters
    ----------
    x : Tensor [rows, K]
        The rows of a group lie next to each other.
    weight : Tensor [groups, K, M], of x's type
    offsets : Tensor [groups + 1], int32, of x's device
        Group g has the rows offsets[g] to offsets[g + 1] - 1; those of none become 0.
    bias : Tensor [groups, M], optional

    Returns
    -------
    Tensor [rows, M]
        Differentiable twice by x, weight and bias.
    """
    wanted = autocast_dtype(x)
    if wanted is not None and x.dtype != torch.float64:
        x, weight = x.to(wanted), weight.to(wanted)
    return _grouped_matmul(x, weight, offsets, bias)


ACTIVATIONS = {"relu": F.relu, "gelu": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu}


class MixtureOfExperts(nn.Module):
    """Tokens through a few of many small networks, y = sum over choices of share * expert(x).

    No token is dropped for want of room, and none is padded.

    Parameters
    ----------
    width : int
        Features of a token.
    hidden : int
        Features between an expert's two products.
    experts : int
    choices : int
        Experts of a token: those whose probability is highest, weighted by it.
    act : "relu", "gelu" or "silu"
    gated : bool
        An expert's first product makes two parts: act(first) * second (SwiGLU with silu).
    bias : bool
        Of the experts' products.
    normalized : bool
        The weights of a token's choices add up to 1.
    dtype, device
        Of the parameters.

    Attributes
    ----------
    router : nn.Linear
    up : Parameter [experts, width, hidden, or 2 * hidden if gated]
    down : Parameter [experts, hidden, width]
    up_bias, down_bias : Parameter [experts, ...] or None
    """

    def __init__(self, width: int, hidden: int, experts: int, choices: int = 2, act: str = "silu",
                 *, gated: bool = False, bias: bool = False, normalized: bool = True,
                 dtype: Optional[torch.dtype] = None, device: Any = None) -> None:
        super().__init__()
        if act not in ACTIVATIONS:
            raise ValueError(f"act is {act!r}; must be one of {', '.join(ACTIVATIONS)}")
        if not 1 <= choices <= experts:
            raise ValueError(f"choices is {choices}; must be in [1, {experts}]")
        made = dict(dtype=dtype, device=device)
        self.width, self.hidden, self.experts, self.choices = width, hidden, experts, choices
        self.act, self.gated, self.normalized = act, gated, normalized
        parts = 2 * hidden if gated else hidden
        self.router = nn.Linear(width, experts, bias=False, **made)
        self.up = nn.Parameter(torch.empty((experts, width, parts), **made))
        self.down = nn.Parameter(torch.empty((experts, hidden, width), **made))
        self.up_bias = nn.Parameter(torch.empty((experts, parts), **made)) if bias else None
        self.down_bias = nn.Parameter(torch.empty((experts, width), **made)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Each expert as nn.Linear does it."""
        self.router.reset_parameters()
        for weight, bias in ((self.up, self.up_bias), (self.down, self.down_bias)):
            bound = 1 / math.sqrt(max(weight.shape[1], 1))
            nn.init.uniform_(weight, -bound, bound)
            if bias is not None:
                nn.init.uniform_(bias, -bound, bound)

    def choose(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """The router's probabilities [tokens, experts] in f32 (f64), and of each token's choices
        the experts and the weights [tokens, choices]."""
        logits = self.router(x)
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        probabilities = F.softmax(logits, -1, dtype=wide)
        share, chosen = probabilities.topk(self.choices, dim=-1)
        if self.normalized:
            share = share / share.sum(-1, keepdim=True)
        return probabilities, chosen, share

    def apply_experts(self, x: Tensor, chosen: Tensor, share: Tensor) -> Tensor:
        """The weighted sums of what the chosen experts make of tokens.

        Parameters
        ----------
        x : Tensor [tokens, width]
        chosen : Tensor [tokens, choices] of integers
            A choice that is no expert, such as -1, adds nothing.
        share : Tensor [tokens, choices]
        """
        way = route(chosen, self.experts)
        rows = _take_rows(x, way.token)
        h = grouped_matmul(rows, self.up, way.offsets, self.up_bias)
        if self.gated:
            first, second = h.chunk(2, -1)
            h = ACTIVATIONS[self.act](first) * second
        else:
            h = ACTIVATIONS[self.act](h)
        z = grouped_matmul(h, self.down, way.offsets, self.down_bias)
        weights = _take_rows(share.reshape(-1, 1), way.order)
        return _add_rows(z * weights.to(z.dtype), way.token, x.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, self.width)
        _, chosen, share = self.choose(flat)
        return self.apply_experts(flat, chosen, share).reshape(x.shape[:-1] + (self.width,))

    def extra_repr(self) -> str:
        return (f"width={self.width}, hidden={self.hidden}, experts={self.experts}, "
                f"choices={self.choices}, act={self.act}, gated={self.gated}, "
                f"bias={self.up_bias is not None}")


def balance_loss(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """How unevenly tokens use the experts: experts * sum of (share of the choices that fell on each) *
    (mean probability of each), 1 where all are alike. Every choice is an expert. Differentiable by the
    probabilities (Fedus, Zoph, Shazeer: Switch Transformers, 2021)."""
    experts = probabilities.shape[-1]
    use = F.one_hot(chosen.reshape(-1).long(), experts).to(probabilities.dtype).mean(0)
    return experts * (use * probabilities.reshape(-1, experts).mean(0)).sum()
