"""Block-sparse attention."""

import itertools
import math
import operator
import weakref
from typing import Any, Callable, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from .. import ops
from .._c import InvalidError
from ..layout import Layout
from ._register import autocast_dtype, constant_result, differentiable, layout_of, token_of
from .functional import kept_blocks

# The optional tensors of the op, in the order of its arguments.
MASKS = ("bias", "slopes", "q_len", "k_len", "prefix", "q_segment", "k_segment", "bits",
         "bits_index")
COUNT = 21  # arguments of the op


def _last(x):
    return x if x.stride(-1) == 1 else x.contiguous()


def _options(seed, masks, interleave, causal, window, scale, softcap, end, keep):
    given = {n: m for n, m in zip(MASKS, masks) if m is not None}
    if seed is not None:
        given.update(dropout=1, keep=keep, seed=int(seed))
    return {"interleave": interleave, "causal": int(causal), "window": window, "scale": scale,
            "softcap": softcap, "align": "end" if end else "start", **given}


def _fake(q, k, v, seed, *rest):
    side = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((*q.shape[:3], v.shape[3])), q.new_empty(q.shape[:3], dtype=side)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:13], *output)
    ctx.rest = inputs[13:]
    ctx.held = layout_of(inputs[13])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx, dout, dlse):
    *inputs, o, lse = ctx.saved_tensors
    if dout is None:
        return (None,) * COUNT
    grads = _attention_grad(*inputs[:3], o, dout, lse, *inputs[3:], *ctx.rest)
    return (*grads, *(None,) * (COUNT - 3))


@differentiable("bsk::attention", _fake, _backward, _setup)
def _attention(q: Tensor, k: Tensor, v: Tensor, seed: Optional[Tensor], bias: Optional[Tensor],
               slopes: Optional[Tensor], q_len: Optional[Tensor], k_len: Optional[Tensor],
               prefix: Optional[Tensor], q_segment: Optional[Tensor], k_segment: Optional[Tensor],
               bits: Optional[Tensor], bits_index: Optional[Tensor], layout: int, interleave: int,
               causal: bool, window: int, scale: Optional[float], softcap: float, end: bool,
               keep: float) -> Tuple[Tensor, Tensor]:
    masks = (bias, slopes, q_len, k_len, prefix, q_segment, k_segment, bits, bits_index)
    got = ops.attention(layout_of(layout), _last(q), _last(k), _last(v), lse=True,
                        **_options(seed, masks, interleave, causal, window, scale, softcap, end,
                                   keep))
    return got.o, got.lse


def _grad_fake(q, k, v, *rest):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _grad_setup(ctx, inputs, output):
    pass


def _grad_backward(ctx, *gradients):
    raise NotImplementedError("attention is differentiable once only")


@differentiable("bsk::attention_grad", _grad_fake, _grad_backward, _grad_setup)
def _attention_grad(q: Tensor, k: Tensor, v: Tensor, o: Tensor, dout: Tensor, lse: Tensor,
                    seed: Optional[Tensor], bias: Optional[Tensor], slopes: Optional[Tensor],
                    q_len: Optional[Tensor], k_len: Optional[Tensor], prefix: Optional[Tensor],
                    q_segment: Optional[Tensor], k_segment: Optional[Tensor],
                    bits: Optional[Tensor], bits_index: Optional[Tensor], layout: int,
                    interleave: int, causal: bool, window: int, scale: Optional[float],
                    softcap: float, end: bool, keep: float) -> Tuple[Tensor, Tensor, Tensor]:
    masks = (bias, slopes, q_len, k_len, prefix, q_segment, k_segment, bits, bits_index)
    made = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v)]
    ops.attention_grad(layout_of(layout), _last(q), _last(k), _last(v), _last(o),
                       _last(dout.to(q.dtype)), lse, dq=made[0], dk=made[1], dv=made[2],
                       **_options(seed, masks, interleave, causal, window, scale, softcap, end,
                                  keep))
    return tuple(made)


INT32 = torch.iinfo(torch.int32)


def _checked(x, name):
    if x.is_floating_point() or x.is_complex():
        raise TypeError(f"{name} is of {x.dtype}; must be of integers")
    return x


def _ints(x, name):
    """Lengths, or indices: what does not fit is out of range for the op as well."""
    if x is None:
        return None
    return _checked(x, name).long().clamp(INT32.min, INT32.max).to(torch.int32).contiguous()


def _numbered(segments):
    """The same segments with numbers of 32 bits, by their order; -1 for negative ones. It takes
    no look at the numbers, for which a GPU would be waited for."""
    flat = torch.cat([x.reshape(-1).long() for x in segments])
    values, places = flat.sort()
    ranks = torch.zeros_like(flat)
    ranks[1:] = (values[1:] != values[:-1]).cumsum(0)
    numbers = torch.empty_like(flat).scatter(0, places, ranks).masked_fill(flat < 0, -1)
    parts = numbers.to(torch.int32).split([x.numel() for x in segments])
    return [part.reshape(x.shape) for part, x in zip(parts, segments)]


def _segments(documents):
    """(q_segment, k_segment) of documents."""
    both = documents if isinstance(documents, (tuple, list)) else (documents,)
    there = [_checked(x, "documents") for x in both if x is not None]
    if any(x.dtype == torch.int64 for x in there):
        there = _numbered(there)
    numbers = iter(x.to(torch.int32).reshape(-1, x.shape[-1]).contiguous() for x in there)
    both = [None if x is None else next(numbers) for x in both]
    return both[0], both[-1]


def _documents(documents, key_padding_mask):
    """(q_segment, k_segment): documents, with a negative number for keys that are padding."""
    q_segment, k_segment = _segments(documents)
    if key_padding_mask is not None:
        if key_padding_mask.dtype != torch.bool:
            raise TypeError(f"key_padding_mask is of {key_padding_mask.dtype}; must be torch.bool")
        padding = key_padding_mask.to(torch.int32)
        k_segment = -padding if k_segment is None else torch.where(key_padding_mask, -1, k_segment)
    return q_segment, k_segment


def mask_bits(mask: Tensor, layout: Layout) -> Tensor:
    """A mask of elements as `bsk.ops.attention` takes it: Tensor [nnz, r, ceil(c / 8)] of bytes.

    Parameters
    ----------
    mask : Tensor [rows, cols] or [heads of the layout, rows, cols] of bool
        True where a query sees a key.
    layout : bsk.Layout
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"mask_bits: mask is of {mask.dtype}; must be torch.bool")
    blocks = kept_blocks("mask_bits", "mask", mask, layout).to(torch.uint8)
    blocks = nn.functional.pad(blocks, (0, -layout.block[1] % 8))
    powers = torch.tensor([1 << i for i in range(8)], dtype=torch.uint8, device=mask.device)
    return (blocks.reshape(*blocks.shape[:2], -1, 8) * powers).sum(3, dtype=torch.uint8)


def alibi_slopes(heads: int, device: Any = None) -> Tensor:
    """The slopes of ALiBi for a number of heads: Tensor [heads].

    A geometric sequence from 2^(-8 / n) for n heads if that is a power of two; otherwise that of
    the next smaller power, and every other one of the next larger power.
    """
    def of(n):
        return [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]

    power = 1 << int(math.log2(heads))
    slopes = of(power) + of(2 * power)[::2][:heads - power]
    return torch.tensor(slopes, dtype=torch.float32, device=device)


def attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout, causal: bool = False,
              window: int = 0, scale: Optional[float] = None, interleave: int = 1, *,
              dropout: float = 0.0, seed: Optional[int] = None, softcap: float = 0.0,
              bias: Optional[Tensor] = None, slopes: Optional[Tensor] = None,
              key_padding_mask: Optional[Tensor] = None,
              documents: Union[Tensor, Tuple[Tensor, Tensor], None] = None,
              q_len: Optional[Tensor] = None, k_len: Optional[Tensor] = None,
              prefix: Optional[Tensor] = None, bits: Optional[Tensor] = None,
              bits_index: Optional[Tensor] = None, align: str = "start") -> Tensor:
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
        By default 1 / sqrt(d). 0 is refused: a tiny number does the same.
    interleave : int
        For ``Layout.strided``: its stride.
    dropout : float
        Probability at which an element of the softmax is dropped.
    seed : int, optional
        Of the dropout; by default drawn from torch's generator of the CPU.
    softcap : float
        If > 0, scores become softcap * tanh(score / softcap).
    bias : Tensor [batch or 1, heads or 1, time or 1, k_time or 1], optional
        Added to the scores; -infinity hides a key. It gets no gradient.
    slopes : Tensor [heads], optional
        Of ALiBi, see `alibi_slopes`: -slope * distance is added to the scores. No gradient.
    key_padding_mask : Tensor [batch or 1, k_time] of bool, optional
        True for keys that no query sees.
    documents : Tensor [batch or 1, time] of integers, optional
        Queries see keys of their own document only. A pair (of queries, of keys) if they differ.
        Numbers of 64 bits are replaced by their ranks first, which takes a sort.
    q_len, k_len, prefix : Tensor [batch] of integers, optional
        Lengths, and how many of the first keys are visible to all queries in spite of causal.
    bits, bits_index : Tensor, optional
        Masks of the elements of blocks, see `mask_bits`.
    align : {'start', 'end'}
        Whether the first query stands at the first key, or the last one at the last.

    Returns
    -------
    Tensor [batch, heads, time, d of v]
        Zeros for queries that see nothing. Differentiable once by q, k and v.
    """
    return _attention_by_token(
        q, k, v, token_of(layout), causal, window, scale, interleave, dropout, seed, softcap, bias,
        slopes, key_padding_mask, documents, q_len, k_len, prefix, bits, bits_index, align)


def _attention_by_token(q, k, v, token, causal=False, window=0, scale=None, interleave=1,
                        dropout=0.0, seed=None, softcap=0.0, bias=None, slopes=None,
                        key_padding_mask=None, documents=None, q_len=None, k_len=None, prefix=None,
                        bits=None, bits_index=None, align="start"):
    """`attention` with the number of a layout, which compiled code can hold."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise InvalidError(f"attention: {name} is {list(x.shape)}; must be [batch, heads, time, "
                               f"d]")
    wanted = autocast_dtype(q)
    if wanted is not None and q.dtype != torch.float64:
        q, k, v = q.to(wanted), k.to(wanted), v.to(wanted)
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout is {dropout}; must be in [0, 1]")
    if align not in ("start", "end"):
        raise ValueError(f"align is {align!r}; must be 'start' or 'end'")
    for name, x in (("bias", bias), ("slopes", slopes)):
        if x is not None and x.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError(f"attention: {name} gets no gradient: detach it")
    if dropout:
        # On the CPU, where the op reads it without waiting for a GPU.
        seed = (torch.randint(2**62, (1,), device="cpu") if seed is None
                else torch.tensor([seed], device="cpu"))
    else:
        seed = None
    if slopes is not None:
        slopes = slopes.to(torch.float64 if q.dtype == torch.float64 else torch.float32)
    if bias is not None:
        bias = bias.reshape((1,) * (4 - bias.dim()) + tuple(bias.shape))
    q_segment, k_segment = _documents(documents, key_padding_mask)
    return _attention(q, k, v, seed, bias, slopes, _ints(q_len, "q_len"),
                      _ints(k_len, "k_len"), _ints(prefix, "prefix"), q_segment, k_segment, bits,
                      _ints(bits_index, "bits_index"), token, interleave, bool(causal), window,
                      None if scale is None else float(scale), float(softcap), align == "end",
                      1.0 - dropout)[0]


def _mask_arguments(mask, layout, interleave):
    """A mask of torch's form, of up to four dimensions, as arguments of `attention`."""
    if mask.dtype != torch.bool:
        return {"bias": mask}
    mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
    batch, heads, q_time, k_time = mask.shape
    if heads == q_time == 1 and k_time == layout.shape[1]:
        return {"key_padding_mask": ~mask[:, 0, 0]}
    if batch == heads == 1 and (q_time, k_time) == layout.shape and interleave == 1:
        return {"bits": mask_bits(mask[0, 0], layout)}
    return {"bias": torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -math.inf)}


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor,
                                 attn_mask: Optional[Tensor] = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: Optional[float] = None,
                                 enable_gqa: bool = False, *, layout: Layout, window: int = 0,
                                 interleave: int = 1) -> Tensor:
    """torch's function of that name over a pattern.

    Parameters
    ----------
    query : Tensor [..., heads, time, d]
    key, value : Tensor [..., kv_heads, k_time, d]
        Fewer heads than the query's are served with and without `enable_gqa`.
    attn_mask : Tensor that can be broadcast to [..., heads, time, k_time], optional
        Of bool: True where a query sees a key. Of numbers: added to the scores, no gradient.
    dropout_p : float
    is_causal : bool
    scale : float, optional
    layout : bsk.Layout
        The blocks of scores that there are.
    window, interleave : int
        As `attention` has them.

    Returns
    -------
    Tensor [..., heads, time, d of v]
        Zeros, and not NaN, for queries that see nothing.
    """
    if query.dim() < 4:  # without heads: of [batch, time, d] each member is one
        return scaled_dot_product_attention(
            *(x.unsqueeze(-3) for x in (query, key, value)),
            attn_mask if attn_mask is None or attn_mask.dim() < 3 else attn_mask.unsqueeze(-3),
            dropout_p, is_causal, scale, layout=layout, window=window,
            interleave=interleave).squeeze(-3)
    lead = query.shape[:-3]
    if attn_mask is not None and attn_mask.dim() > 3 and len(lead) > 1:
        attn_mask = attn_mask.expand(lead + attn_mask.shape[-3:]).flatten(0, -4)
    masks = {} if attn_mask is None else _mask_arguments(attn_mask, layout, interleave)
    flat = (x.reshape((-1,) + tuple(x.shape[-3:])) for x in (query, key, value))
    o = attention(*flat, layout, is_causal, window, scale, interleave, dropout=dropout_p, **masks)
    return o.reshape(lead + o.shape[1:])


# Attention modules by number, which compiled code can hold.
_modules = weakref.WeakValueDictionary()
_next = itertools.count(1)


@constant_result
def _token_for(number, q_time, k_time):
    """The number of the layout of a module for these lengths."""
    return token_of(_modules[number].layout(q_time, k_time))


def _slopes_again(module, _):
    """A buffer of a module made on the device "meta" has nothing in it, and is in no state dict."""
    if module.slopes is not None:
        module.slopes = alibi_slopes(module.heads, next(module.parameters()).device)


class _Layouts(dict):
    """Layouts by lengths. torch.export, which puts dicts back to what they were, leaves it alone."""


class BlockSparseAttention(nn.Module):
    """Attention with several heads over a pattern.

    Parameters
    ----------
    embed_dim, num_heads : int
    pattern : callable or bsk.Layout
        The layout for a length: ``pattern(time)``, by default ``Layout.causal``, or ``Layout.full``
        without `causal`. For a context of another length ``pattern((time, context's time))``.
    block : int
        Of the default pattern.
    causal : bool
    kv_heads : int, optional
        Fewer heads of keys and values.
    linear : callable
        Makes the projections: nn.Linear, or e.g. functools.partial(BlockSparseLinear, density=.25).
    dropout : float
        Of the softmax, while training.
    window, interleave : int
    softcap : float
        As `attention` has them.
    alibi : bool
        Scores fall with the distance, by `alibi_slopes`.
    """

    def __init__(self, embed_dim: int, num_heads: int,
                 pattern: Union[Layout, Callable[[Any], Layout], None] = None, block: int = 32,
                 causal: bool = True, kv_heads: Optional[int] = None, bias: bool = True,
                 linear: Callable[..., nn.Module] = nn.Linear, *, dropout: float = 0.0,
                 window: int = 0, interleave: int = 1, softcap: float = 0.0,
                 alibi: bool = False) -> None:
        super().__init__()
        if embed_dim % num_heads or num_heads % (kv_heads or num_heads):
            raise ValueError(f"{embed_dim} features, {num_heads} heads and {kv_heads} key/value "
                             f"heads do not divide each other")
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout is {dropout}; must be in [0, 1]")
        self.heads, self.kv_heads = num_heads, kv_heads or num_heads
        self.causal, self.dropout, self.softcap = causal, dropout, softcap
        self.window, self.interleave = window, interleave
        self.pattern, self.block = pattern, block
        self.layouts = _Layouts()
        side = embed_dim // num_heads * self.kv_heads
        self.q = linear(embed_dim, embed_dim, bias=bias)
        self.k = linear(embed_dim, side, bias=bias)
        self.v = linear(embed_dim, side, bias=bias)
        self.out = linear(embed_dim, embed_dim, bias=bias)
        self.register_buffer("slopes", alibi_slopes(num_heads) if alibi else None,
                             persistent=False)
        self.register_load_state_dict_post_hook(_slopes_again)
        self._enter()

    def _enter(self):
        self._number = next(_next)
        _modules[self._number] = self

    def __setstate__(self, state):
        super().__setstate__(state)
        self._enter()

    def layout(self, time: int, k_time: Optional[int] = None) -> Layout:
        """The layout for a length of queries and one of keys, kept for later calls."""
        if isinstance(self.pattern, Layout):
            return self.pattern
        key = time, time if k_time is None else k_time
        if key not in self.layouts:
            size = time if key[0] == key[1] else key
            if self.pattern is not None:
                self.layouts[key] = self.pattern(size)
            elif self.causal:
                self.layouts[key] = Layout.causal(size, self.block)
            else:
                self.layouts[key] = Layout.full(key, self.block)
        return self.layouts[key]

    def forward(self, x: Tensor, context: Optional[Tensor] = None, *,
                key_padding_mask: Optional[Tensor] = None,
                documents: Union[Tensor, Tuple[Tensor, Tensor], None] = None,
                attn_bias: Optional[Tensor] = None) -> Tensor:
        """
        Parameters
        ----------
        x : Tensor [batch, time, embed_dim]
        context : Tensor [batch, context's time, embed_dim], optional
            What keys and values are made of, by default x.
        key_padding_mask, documents
            As `attention` has them.
        attn_bias : Tensor, optional
            Its `bias`.

        Returns
        -------
        Tensor [batch, time, embed_dim]
        """
        batch, time, _ = x.shape
        context = x if context is None else context
        k_time = context.shape[1]
        q, k, v = (f(y).reshape(batch, t, h, -1).transpose(1, 2)
                   for f, y, t, h in ((self.q, x, time, self.heads),
                                      (self.k, context, k_time, self.kv_heads),
                                      (self.v, context, k_time, self.kv_heads)))
        # index makes the compiler take lengths for constants, as layouts have lengths of their own.
        token = _token_for(self._number, operator.index(time), operator.index(k_time))
        o = _attention_by_token(
            q, k, v, token, self.causal, self.window, interleave=self.interleave,
            dropout=self.dropout if self.training else 0.0, softcap=self.softcap,
            bias=attn_bias, slopes=self.slopes, key_padding_mask=key_padding_mask,
            documents=documents)
        return self.out(o.transpose(1, 2).reshape(batch, time, -1))
