"""Block-sparse attention."""

from typing import Optional, Tuple

import torch
from torch import Tensor, nn

from .. import ops
from ..layout import Layout
from ._register import autocast_dtype, differentiable, layout_of, token_of


def _last(x):
    return x if x.stride(-1) == 1 else x.contiguous()


def _fake(q, k, v, layout, interleave, causal, window, scale):
    side = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((*q.shape[:3], v.shape[3])), q.new_empty(q.shape[:3], dtype=side)


def _setup(ctx, inputs, output):
    q, k, v, layout, interleave, causal, window, scale = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.rest = layout, interleave, causal, window, scale
    ctx.held = layout_of(layout)
    ctx.set_materialize_grads(False)


def _backward(ctx, dout, dlse):
    q, k, v, o, lse = ctx.saved_tensors
    if dout is None:
        return (None,) * 8
    return (*_attention_grad(q, k, v, o, dout, lse, *ctx.rest), *(None,) * 5)


def _options(interleave, causal, window, scale):
    return {"interleave": interleave, "causal": int(causal), "window": window, "scale": scale}


@differentiable("bsk::attention", _fake, _backward, _setup)
def _attention(q: Tensor, k: Tensor, v: Tensor, layout: int, interleave: int, causal: bool,
               window: int, scale: float) -> Tuple[Tensor, Tensor]:
    q, k, v = (_last(t.detach()) for t in (q, k, v))
    got = ops.attention(layout_of(layout), q, k, v, lse=True,
                        **_options(interleave, causal, window, scale))
    return got.o, got.lse


def _grad_fake(q, k, v, o, dout, lse, layout, interleave, causal, window, scale):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _grad_setup(ctx, inputs, output):
    pass


def _grad_backward(ctx, *gradients):
    raise NotImplementedError("attention is differentiable once only")


@differentiable("bsk::attention_grad", _grad_fake, _grad_backward, _grad_setup)
def _attention_grad(q: Tensor, k: Tensor, v: Tensor, o: Tensor, dout: Tensor, lse: Tensor,
                    layout: int, interleave: int, causal: bool, window: int,
                    scale: float) -> Tuple[Tensor, Tensor, Tensor]:
    q, k, v, o, dout = (_last(t.detach()) for t in (q, k, v, o, dout))
    made = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v)]
    ops.attention_grad(layout_of(layout), q, k, v, o, dout.to(q.dtype), lse.detach(), dq=made[0],
                       dk=made[1], dv=made[2], **_options(interleave, causal, window, scale))
    return tuple(made)


def attention(q, k, v, layout, causal=False, window=0, scale=None, interleave=1):
    """softmax(scale q k^T) v over the elements of the kept blocks that are visible.

    Parameters
    ----------
    q : Tensor [batch, heads, time, d]
    k, v : Tensor [batch, kv_heads, k_time, d]
        kv_heads divides heads.
    layout : bsk.Layout
        Rows are queries, columns keys; one head, or a number that divides the heads.
    causal : bool
        Keys after the query are not visible.
    window : int
        If > 0, keys at that distance and beyond are not visible.
    scale : float, optional
        By default 1 / sqrt(d).
    interleave : int
        For ``Layout.strided``: its stride.

    Returns
    -------
    Tensor [batch, heads, time, d of v]
        Zeros for queries that see nothing.
    """
    wanted = autocast_dtype(q)
    if wanted is not None and q.dtype != torch.float64:
        q, k, v = q.to(wanted), k.to(wanted), v.to(wanted)
    return _attention(q, k, v, token_of(layout), interleave, causal, window,
                      0.0 if scale is None else float(scale))[0]


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False,
                                 scale=None, *, layout):
    """torch's function of that name over a pattern, without masks of elements and dropout."""
    if attn_mask is not None or dropout_p:
        raise NotImplementedError("attn_mask and dropout_p: the pattern is the mask")
    return attention(query, key, value, layout, is_causal, scale=scale)


class BlockSparseAttention(nn.Module):
    """Self-attention with several heads over a pattern.

    Parameters
    ----------
    embed_dim, num_heads : int
    pattern : callable or bsk.Layout
        The layout of a sequence's length: ``pattern(time)``, by default ``Layout.causal``.
    block : int
        Of the default pattern.
    causal : bool
    kv_heads : int, optional
        Fewer heads of keys and values.
    linear : callable
        Makes the projections: nn.Linear, or e.g. functools.partial(BlockSparseLinear, density=.25).
    """

    def __init__(self, embed_dim, num_heads, pattern=None, block=32, causal=True, kv_heads=None,
                 bias=True, linear=nn.Linear):
        super().__init__()
        if embed_dim % num_heads or num_heads % (kv_heads or num_heads):
            raise ValueError(f"{embed_dim} features, {num_heads} heads and {kv_heads} key/value "
                             f"heads do not divide each other")
        self.heads, self.kv_heads = num_heads, kv_heads or num_heads
        self.causal = causal
        self.pattern = pattern or (lambda time: Layout.causal(time, block))
        self.layouts = {}
        side = embed_dim // num_heads * self.kv_heads
        self.q = linear(embed_dim, embed_dim, bias=bias)
        self.k = linear(embed_dim, side, bias=bias)
        self.v = linear(embed_dim, side, bias=bias)
        self.out = linear(embed_dim, embed_dim, bias=bias)

    def layout(self, time):
        """The layout for a length, kept for later calls."""
        if isinstance(self.pattern, Layout):
            return self.pattern
        if time not in self.layouts:
            self.layouts[time] = self.pattern(time)
        return self.layouts[time]

    def forward(self, x):
        batch, time, _ = x.shape
        q, k, v = (f(x).reshape(batch, time, h, -1).transpose(1, 2)
                   for f, h in ((self.q, self.heads), (self.k, self.kv_heads),
                                (self.v, self.kv_heads)))
        o = attention(q, k, v, self.layout(time), self.causal)
        return self.out(o.transpose(1, 2).reshape(batch, time, -1))
