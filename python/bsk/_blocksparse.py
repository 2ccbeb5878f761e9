"""The functions of openai/blocksparse on torch tensors, under their names: part of `bsk.compat`.

All are differentiable where they were there, once; what their C ops do with NaN, ties and empty
rows is what the headers say. Tensors have any rank where the names of dimensions do not say more.
Of the arguments that chose how a kernel ran, ``atomics`` and ``sort_grad`` are taken without effect
(sums have one order here), ``bench`` and ``use_tf`` must be off; ``name`` is for the reader.
"""

import math

import torch

from . import _abi, ops
from ._arrays import dtype_name
from .layout import Layout
from .torch._register import once

__all__ = [
    "add", "add_n", "add_n8", "assign_add", "batch_norm", "batch_norm_inference", "bias_relu",
    "bst_conv_layout", "bst_deconv_layout", "ceil_div", "concat4", "concrete_gate",
    "concrete_gate_infer", "cwise_linear", "divide", "dropout", "dw_matmul_large_n", "elu",
    "embedding_lookup", "exp", "fancy_gather", "fast_gelu", "filter_tensor", "float_cast",
    "fused_lstm_gates", "gelu", "largest_block", "layer_norm", "log", "masked_softmax",
    "masked_top_k_softmax", "maximum", "minimum", "multiply", "negative", "reciprocal",
    "rectified_top_k", "reduce_max", "reduce_mul", "relu", "scale_tensor", "sigmoid", "softmax",
    "softmax_cross_entropy", "sparse_relu", "split4", "sqrt", "square", "subtract", "swish", "tanh",
    "top_k", "transpose_0213", "transpose_2d", "z_order_2d", "z_order_3d"]


def _made(forward, backward):
    """A differentiable function(options, *tensors).

    Parameters
    ----------
    forward : callable
        ``forward(options, *tensors)`` gives (outputs, what is kept for the gradient).
    backward : callable
        ``backward(options, kept, *gradients)`` gives a tuple: one gradient for each tensor.
    """
    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, options, *tensors):
            outputs, kept = forward(options, *(None if t is None else t.detach() for t in tensors))
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            # What is kept has no history; an output without elements ties the gradients to it.
            tie = outputs[0].new_empty(0)
            ctx.options = options
            ctx.save_for_backward(tie, *kept)
            return (*outputs, tie)

        @staticmethod
        @once("a function of bsk.compat")
        def backward(ctx, *gradients):
            gradients = (None if g is None else g.contiguous() for g in gradients[:-1])
            return None, *backward(ctx.options, ctx.saved_tensors[1:], *gradients)

    def function(tensors, **options):
        outputs = Made.apply(options, *tensors)[:-1]
        return outputs if len(outputs) > 1 else outputs[0]

    return function


RANK = _abi.CONSTANTS["BSK_MAX_RANK"]


def _low(x):
    """A tensor with as many dimensions as the library takes: the first ones joined."""
    return x if x.dim() <= RANK else x.flatten(0, -RANK)


def _each(made):
    """A differentiable function of any rank from one by elements or rows, with results like x."""
    return lambda x, **options: made((_low(x),), **options).reshape(x.shape)


def nonzero(x):
    """A coefficient for the library, for which 0 stands for a default: what is next to 0 is as
    good."""
    return x or ops.TINY


def _side(like):
    return torch.float64 if like.dtype == torch.float64 else torch.float32


def _vector(x, like):
    return None if x is None else x.reshape(-1).to(_side(like))


def _flat(x):
    return x.reshape(-1, x.shape[-1]).contiguous()


def _off(function, bench=0, use_tf=False):
    """Refuses what would run something else than the function."""
    if bench:
        raise NotImplementedError(f"{function} with bench={bench}: `bsk bench` measures kernels")
    if use_tf:
        raise NotImplementedError(f"{function} with use_tf: there is no TensorFlow here")


def _rows(x, function, axis):
    """(a matrix with the features of x along an axis, the name of its order): the first axis or
    the last one."""
    if not -x.dim() <= axis < x.dim() or axis % x.dim() not in (0, x.dim() - 1):
        raise ValueError(f"{function}: axis is {axis}; must be 0 or the last of {x.dim()}")
    if axis % x.dim() == x.dim() - 1:
        return _flat(x), "nc"
    return x.reshape(x.shape[0], -1).contiguous(), "cn"


def _seed():
    return int(torch.randint(2**62, (1,)))


# --- element by element ---------------------------------------------------------------------------

_unary = _each(_made(lambda o, x: (ops.unary(x, **o), (x,)),
                     lambda o, kept, dy: (ops.unary_grad(dy, x=kept[0], **o),)))


def _unary_function(name, kind, coefficient=None):
    if coefficient is None:
        def function(x, name=None):
            return _unary(x, kind=kind)
    else:
        def function(x, alpha=coefficient, name=None):
            return _unary(x, kind=kind, coefficient=nonzero(alpha))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{kind} of each element."
    return function


negative, reciprocal = _unary_function("negative", "neg"), _unary_function("reciprocal", "rcp")
square, sqrt = _unary_function("square", "sqr"), _unary_function("sqrt", "sqrt")
exp, log = _unary_function("exp", "exp"), _unary_function("log", "log")
sigmoid, tanh = _unary_function("sigmoid", "sigmoid"), _unary_function("tanh", "tanh")
relu, elu = _unary_function("relu", "relu"), _unary_function("elu", "elu", 1.0)
swish = _unary_function("swish", "swish", 1.0)


def gelu(x, alpha=0.044715, name=None):
    """gelu of each element."""
    if alpha != 0.044715:
        raise NotImplementedError(f"gelu: alpha is {alpha}; must be 0.044715")
    return _unary(x, kind="gelu")


def fast_gelu(x, name=None):
    """x sigmoid(1.702 x)."""
    return swish(x, alpha=1.702)


_binary = _made(
    lambda o, x, y: (ops.binary(x, y, **o), (x, y)),
    lambda o, kept, dz: tuple(ops.binary_grad(dz, dx=True, dy=True, x=kept[0], y=kept[1], **o)))


def _binary_function(name, kind):
    def function(x, y, name=None):
        rank = max(x.dim(), y.dim())
        if rank > RANK:
            x, y = torch.broadcast_tensors(x, y)
            return _binary((_low(x), _low(y)), kind=kind).reshape(x.shape)
        x, y = (t.reshape((1,) * (rank - t.dim()) + tuple(t.shape)) for t in (x, y))
        return _binary((x, y), kind=kind)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{kind}(x, y) of each element; dimensions of size 1 are repeated."
    return function


add, subtract = _binary_function("add", "add"), _binary_function("subtract", "sub")
multiply, divide = _binary_function("multiply", "mul"), _binary_function("divide", "div")
maximum, minimum = _binary_function("maximum", "max"), _binary_function("minimum", "min")

_add_n = _made(lambda o, *xs: (ops.add_n([_low(x.contiguous()) for x in xs]).reshape(xs[0].shape),
                               ()),
               lambda o, kept, dy: (dy,) * o["count"])


def add_n(xs, name=None):
    """The sum of tensors of one shape."""
    return _add_n(tuple(xs), count=len(xs))


add_n8 = add_n


def assign_add(y, x, use_tf=False, name=None):
    """y += x in place."""
    _off("assign_add", use_tf=use_tf)
    with torch.no_grad():
        if y.dim() > RANK and not y.is_contiguous():
            return y.add_(x)
        ops.assign_add(_low(x), _low(y))
        return y


_cast = _each(_made(lambda o, x: (ops.cast(x, y=o["dtype"]), ()),
                    lambda o, kept, dy: (dy if dy.dtype == o["back"] else dy.to(o["back"]),)))


def float_cast(x, dtype, dx_dtype=None, name=None):
    """x in another type; its gradient arrives in dx_dtype's precision."""
    if x.dtype == dtype:
        return x
    return _cast(x, dtype=dtype_name(dtype), back=dx_dtype or x.dtype)


def _filter_options(o):
    return {n: int(v) if isinstance(v, bool) else v for n, v in o.items()}


_filter = _each(_made(lambda o, x: (ops.filter(x, **_filter_options(o)), ()),
                      lambda o, kept, dy: (ops.filter(dy, **_filter_options(o)),)))


def filter_tensor(x, scale=1.0, saturate=0.0, zero_infs=False, zero_nans=False):
    """x without infinities or NaN, times scale, within +-saturate; so is its gradient."""
    if not scale:
        return 0 * filter_tensor(x, 1.0, saturate, zero_infs, zero_nans)
    return _filter(x, scale=scale, saturate=saturate, zero_infs=zero_infs, zero_nans=zero_nans)


def scale_tensor(x, scale=1.0):
    """x times scale."""
    return filter_tensor(x, scale)


_dropout = _made(lambda o, x: (ops.dropout(x, **o), ()),
                 lambda o, kept, dy: (ops.dropout(dy, **o),))


def dropout(x, keep_prob=0.8, mask=None, mask_shape=None, name=None):
    """(y, mask): elements are kept with probability keep_prob, and divided by it.

    The mask is the pair of numbers that it follows from; given again it drops the same elements.
    Dimensions in which mask_shape is 1 share their decision.
    """
    if mask_shape and (len(mask_shape) != x.dim() or any(
            n not in (1, size) for n, size in zip(mask_shape, x.shape))):
        raise ValueError(f"mask_shape is {tuple(mask_shape)}; must be {tuple(x.shape)} with some "
                         f"sizes 1")
    if mask is None:
        shared = sum(1 << d for d, n in enumerate(mask_shape or ()) if n == 1 != x.shape[d])
        mask = _seed(), shared
    options = {"keep": float(keep_prob), "seed": mask[0]}
    if x.dim() <= RANK:
        return _dropout((x.contiguous(),), shared=mask[1], **options), mask
    # The decisions, which are made for fewer dimensions, as factors.
    shape = [1 if mask[1] >> d & 1 else n for d, n in enumerate(x.shape)]
    factor = ops.dropout(x.new_ones(math.prod(shape)), **options).reshape(shape)
    return (x * factor).masked_fill(factor == 0, 0), mask


_bias = _made(
    lambda o, x, b: (ops.bias_act(x, bias=b, **o), (x, b)),
    lambda o, kept, dy: tuple(ops.bias_act_grad(dy, dx=True, dbias=True, x=kept[0], bias=kept[1],
                                                **o)))


def bias_relu(x, b, axis=-1, relu=False, fast_gelu=False, atomics=True, bench=0, use_tf=False,
              name=None):
    """act(x + b), b a vector along the first (axis 0) or the last dimension."""
    _off("bias_relu", bench, use_tf)
    if relu and fast_gelu:
        raise ValueError("bias_relu: relu and fast_gelu exclude each other")
    act = "relu" if relu else "quick_gelu" if fast_gelu else "none"
    flat, order = _rows(x, "bias_relu", axis)
    return _bias((flat, _vector(b, x)), act=act, axis=order).reshape(x.shape)


_cwise = _made(
    lambda o, x, g, b: (ops.cwise_linear(x, gain=g, bias=b, **o), (x, g, b)),
    lambda o, kept, dy: _cwise_grad(o, *kept, dy))


def _cwise_grad(o, x, g, b, dy):
    got = ops.cwise_linear_grad(dy, dx=True, x=x, gain=g, bias=b, dgain=True if g is not None
                                else None, dbias=True if b is not None else None, **o)
    if g is None and b is None:
        return got, None, None
    return got.dx, getattr(got, "dgain", None), getattr(got, "dbias", None)


def cwise_linear(x, gain=None, bias=None, relu=False, bias_first=False, use_tf=False, name=None):
    """gain x + bias (or gain (x + bias)) with one of each for a channel; x [N, channels, ...]."""
    _off("cwise_linear", use_tf=use_tf)
    if x.dim() < 2:
        raise ValueError(f"cwise_linear: x has {x.dim()} dimensions; must have 2 at least")
    flat = x.reshape(x.shape[0], x.shape[1], -1).contiguous()
    return _cwise((flat, _vector(gain, x), _vector(bias, x)), relu=int(relu),
                  bias_first=int(bias_first)).reshape(x.shape)


_sparse_relu = _made(
    lambda o, x: (ops.sparse_relu(x, **o), (x,)),
    lambda o, kept, dy: (ops.sparse_relu_grad(dy, kept[0], constant_cut=1, **o),))


def sparse_relu(x, alpha=1.0):
    """max(x - cut, 0) with cut = mean + alpha std of the row, which gets no gradient."""
    return _sparse_relu((_flat(x),), sigmas=alpha).reshape(x.shape)


_gate = _made(lambda o, loga: _gate_forward(o, loga),
              lambda o, kept, dgate, dconcrete: (ops.concrete_gate_grad(
                  dgate, kept[0], limit_a=o["limit_a"], limit_b=o["limit_b"],
                  temperature=o["temperature"]),))


def _gate_forward(o, loga):
    got = ops.concrete_gate(loga, gate=True, concrete=True, **o)
    return (got.gate, got.concrete), (got.concrete,)


def concrete_gate(loga, tempurature=2.0 / 3.0, limit_a=-0.1, limit_b=1.1, epsilon=1e-6):
    """A random gate in [0, 1] of the hard-concrete distribution."""
    return _gate((loga,), temperature=nonzero(tempurature), limit_a=limit_a or -ops.TINY,
                 limit_b=limit_b, eps=nonzero(epsilon), seed=_seed())[0]


def concrete_gate_infer(loga, limit_a=-0.1, limit_b=1.1):
    """The gate without chance; no gradient."""
    return ops.concrete_gate_infer(loga.detach(), limit_a=limit_a or -ops.TINY, limit_b=limit_b)


# --- along rows -----------------------------------------------------------------------------------

_softmax = _made(
    lambda o, x, mask: _softmax_forward(o, x, mask),
    lambda o, kept, dy: (ops.masked_softmax_grad(dy, kept[0], mask=kept[1], scale=o["scale"]),
                         None))


def _softmax_forward(o, x, mask):
    y = ops.masked_softmax(x, mask=mask, **o)
    return y, (y, mask)


def masked_softmax(x, mask=None, scale=1.0):
    """softmax of scale mask x along the last dimension; elements of mask 0 take no part."""
    return masked_top_k_softmax(x, 0, mask, scale)


def softmax(x, scale=1.0):
    """softmax of scale x along the last dimension."""
    return masked_softmax(x, scale=scale)


def masked_top_k_softmax(x, k, mask=None, scale=1.0):
    """`masked_softmax` of the k largest of each row, zeros elsewhere; with k = 0 of all."""
    if mask is not None:
        mask = mask.reshape((1,) * (x.dim() - mask.dim()) + tuple(mask.shape))
        if x.dim() > RANK:
            mask = _low(mask.expand(x.shape[:1 - RANK] + mask.shape[1 - RANK:]))
    y = _softmax((_low(x.contiguous()), mask), k=k, scale=nonzero(scale))
    return y.reshape(x.shape)


_topk = _made(lambda o, x: _topk_forward(o, x),
              lambda o, kept, dy, dindex: (ops.topk_grad(
                  dy, kept[0], dx=dy.new_empty(dy.shape[0], o["width"])),))


def _topk_forward(o, x):
    index = torch.empty(x.shape[0], o["k"], dtype=torch.int32, device=x.device)
    values = ops.topk(x, values=x.new_empty(index.shape), index=index).values
    return (values, index), (index,)


def top_k(x, k):
    """(values, indices) of the k largest along the last dimension, in falling order."""
    values, index = _topk((_flat(x),), k=k, width=x.shape[-1])
    return tuple(t.reshape(x.shape[:-1] + (k,)) for t in (values, index))


_rectified = _made(
    lambda o, x: (ops.rectified_topk(x, **o), (x,)),
    lambda o, kept, dy: (ops.rectified_topk_grad(dy, kept[0], constant_cut=1, **o),))


def rectified_top_k(x, k, rebase=True):
    """max(x, cut) - cut for the k largest of each row, 0 for the others."""
    return _rectified((_flat(x),), k=k, rebase=int(rebase)).reshape(x.shape)


_entropy = _made(
    lambda o, logits, labels: _entropy_forward(logits, labels),
    lambda o, kept, dloss: ((kept[0] * dloss[:, None].to(kept[0].dtype)), None))


def _entropy_forward(logits, labels):
    got = ops.cross_entropy(logits, labels, loss=True, dlogits=True)
    return got.loss, (got.dlogits,)


def softmax_cross_entropy(logits, labels):
    """The loss of each row of logits [..., V] at labels [...]."""
    return _entropy((_flat(logits), labels.reshape(-1))).reshape(labels.shape)


_max = _made(lambda o, x: _max_forward(x),
             lambda o, kept, dy, dindex: (ops.reduce_max_grad(
                 dy, kept[0], dx=dy.new_empty(dy.shape[0], o["size"], dy.shape[1])),))


def _max_forward(x):
    got = ops.reduce_max(x, argmax=True)
    return (got.y, got.argmax), (got.argmax,)


def reduce_max(x, axis, keepdims=False, use_tf=False, name=None):
    """The largest along an axis; of equal ones the first gets the gradient."""
    _off("reduce_max", use_tf=use_tf)
    if not -x.dim() <= axis < x.dim():
        raise ValueError(f"reduce_max: axis is {axis}; must be in [{-x.dim()}, {x.dim()})")
    axis %= x.dim()
    lead, tail = x.shape[:axis], x.shape[axis + 1:]
    flat = x.reshape(math.prod(lead), x.shape[axis], math.prod(tail)).contiguous()
    y = _max((flat,), size=x.shape[axis])[0]
    return y.reshape(lead + (1,) * keepdims + tail)


_gather = _made(lambda o, x, index: (ops.fancy_gather(x, index), (index,)),
                lambda o, kept, dy: (ops.fancy_gather_grad(
                    dy, kept[0], dx=dy.new_empty(dy.shape[0], o["size"], dy.shape[1])), None))


def fancy_gather(x, index, use_tf=False, name=None):
    """y[i] = x[i, index[i]] for x [*shape of index, size, ...]."""
    _off("fancy_gather", use_tf=use_tf)
    if x.dim() <= index.dim() or x.shape[:index.dim()] != index.shape:
        raise ValueError(f"fancy_gather: x is {tuple(x.shape)}, index {tuple(index.shape)}; x must "
                         f"begin with the shape of index and have one dimension more at least")
    lead, size, tail = index.shape, x.shape[index.dim()], x.shape[index.dim() + 1:]
    flat = x.reshape(index.numel(), size, math.prod(tail)).contiguous()
    return _gather((flat, index.reshape(-1)), size=size).reshape(lead + tail)


_embedding = _made(
    lambda o, table, index: (ops.embedding(table, index), (index,)),
    lambda o, kept, dy: (ops.embedding_grad(
        dy, kept[0], dtable=dy.new_empty(o["rows"], dy.shape[-1])), None))


def embedding_lookup(emb, idx, sort_grad=True, bench=0, use_tf=False, name=None):
    """Rows of emb [rows, width]: [*shape of idx, width]."""
    _off("embedding_lookup", bench, use_tf)
    y = _embedding((emb, idx.reshape(-1).contiguous()), rows=emb.shape[0])
    return y.reshape(tuple(idx.shape) + (emb.shape[1],))


_transpose_2d = _made(lambda o, x: (ops.transpose_2d(x), ()),
                      lambda o, kept, dy: (ops.transpose_2d(dy),))
_transpose_0213 = _made(lambda o, x: (ops.transpose_0213(x), ()),
                        lambda o, kept, dy: (ops.transpose_0213(dy),))


def transpose_2d(x):
    """The transpose of a matrix, in memory."""
    return _transpose_2d((x,))


def transpose_0213(x):
    """The two dimensions in the middle of four exchanged, in memory."""
    return _transpose_0213((x,))


_split4 = _made(lambda o, x: (tuple(ops.split4(x)), ()),
                lambda o, kept, *dys: (ops.concat4(*dys),))
_concat4 = _made(lambda o, *xs: (ops.concat4(*xs), ()), lambda o, kept, dy: tuple(ops.split4(dy)))


def split4(x):
    """x [N, 4 K] as four tensors [N, K]."""
    return _split4((x,))


def concat4(x0, x1, x2, x3):
    """The inverse of split4."""
    return _concat4((x0, x1, x2, x3))


# --- norms and cells ------------------------------------------------------------------------------

_layer_norm = _made(lambda o, x, g, b: _layer_norm_forward(o, x, g, b),
                    lambda o, kept, dy: _layer_norm_grad(o, *kept, dy))


def _layer_norm_forward(o, x, g, b):
    got = ops.layer_norm(x, gain=g, bias=b, mean=True, rstd=True, **o)
    return got.y, (x, g, b, got.mean, got.rstd)


def _layer_norm_grad(o, x, g, b, mean, rstd, dy):
    o = {n: v for n, v in o.items() if n != "eps"}
    return tuple(ops.layer_norm_grad(dy, x, rstd, mean=mean, gain=g, bias=b, dx=True, dgain=True,
                                     dbias=True, **o))


def layer_norm(x, g, b, axis=1, segments=1, epsilon=1e-6, relu=False, atomics=True, bench=0,
               use_tf=False, name=None):
    """Features at mean 0 and variance 1, times g plus b; axis 0 or the last."""
    _off("layer_norm", bench, use_tf)
    flat, order = _rows(x, "layer_norm", axis)
    y = _layer_norm((flat, _vector(g, x), _vector(b, x)), axis=order, segments=segments,
                    eps=nonzero(epsilon), relu=int(relu))
    return y.reshape(x.shape)


_batch_norm = _made(lambda o, x, g, b: _batch_norm_forward(o, x, g, b),
                    lambda o, kept, dy, dmean, dvar: _batch_norm_grad(o, *kept, dy))
_batch_norm_infer = _made(
    lambda o, x, g, b, m, v: (ops.batch_norm_infer(x, m, v, gain=g, bias=b, **o), (x, m, v, g)),
    lambda o, kept, dy: (*_batch_norm_grad(o, *kept, dy, infer=1), None, None))


def _batch_norm_forward(o, x, g, b):
    got = ops.batch_norm(x, gain=g, bias=b, mean=True, var=True, **o)
    return (got.y, got.mean, got.var), (x, got.mean, got.var, g)


def _batch_norm_grad(o, x, mean, var, g, dy, infer=0):
    return tuple(ops.batch_norm_grad(dy, x, mean, var, gain=g, dx=True, dgain=True, dbias=True,
                                     infer=infer, **o))


def batch_norm(x, g, b, epsilon=1e-6):
    """(y, mean, var) of the channels of x [N, channels, ...]; no gradient by mean and var."""
    flat = x.reshape(x.shape[0], x.shape[1], -1).contiguous()
    y, mean, var = _batch_norm((flat, _vector(g, x), _vector(b, x)), eps=nonzero(epsilon))
    return y.reshape(x.shape), mean.detach(), var.detach()


def batch_norm_inference(x, g, b, m, v, epsilon=1e-6):
    """The same with given means and variances, which are constants."""
    flat = x.reshape(x.shape[0], x.shape[1], -1).contiguous()
    vectors = (_vector(t, x) for t in (g, b, m.detach(), v.detach()))
    return _batch_norm_infer((flat, *vectors), eps=nonzero(epsilon)).reshape(x.shape)


_lstm = _made(lambda o, c, bias, *gates: _lstm_forward(o, c, bias, gates),
              lambda o, kept, dc_next, dh: _lstm_grad(o, kept, dc_next, dh))


def _lstm_gates(gates):
    return {"gates": gates[0]} if len(gates) == 1 else dict(zip("iufo", gates))


def _lstm_forward(o, c, bias, gates):
    got = ops.lstm_gates(c, bias=bias, **_lstm_gates(gates), **o)
    return (got.c_next, got.h_next), (c, bias, *gates)


def _lstm_grad(o, kept, dc_next, dh):
    c, bias, *gates = kept
    names = ("dgates",) if len(gates) == 1 else ("di", "du", "df", "do_")
    got = ops.lstm_gates_grad(dh, c, dc=True, dc_next=dc_next, bias=bias, **_lstm_gates(gates),
                              **{n: True for n in names}, **o)
    parts = list(got)[-len(names):]
    dbias = None if bias is None else torch.cat([p.sum(0) for p in parts]).to(bias.dtype)
    return (got.dc, dbias, *parts)


def fused_lstm_gates(c, *gates, bias=None, forget_bias=1.0, name=None):
    """(c, h) of the next step, from gates before activation: one tensor [N, 4 K], or i, u, f, o."""
    if len(gates) not in (1, 4):
        raise ValueError(f"fused_lstm_gates: {len(gates)} gates; must be one tensor or four")
    return _lstm((c, _vector(bias, c), *gates), forget_bias=forget_bias)


# --- helpers --------------------------------------------------------------------------------------

def ceil_div(x, y):
    """x / y rounded up."""
    return -(-x // y)


def dw_matmul_large_n(x, e):
    """x^T e over all leading dimensions, in f32: Tensor [C, K]; no gradient."""
    return ops.dense_wgrad(_flat(x.detach()), _flat(e.detach()), dw="f32")


def reduce_mul(values, initial=1):
    """The product of numbers."""
    return math.prod(values, start=initial)


def largest_block(dim):
    """The largest of 32, 16 and 8 that divides a size, and how many there are; (0, 0) if none."""
    return next(((b, dim // b) for b in (32, 16, 8) if dim % b == 0), (0, 0))


def z_order_2d(x, y):
    """The Morton number: bits of x at even places, those of y at odd ones."""
    return sum((x >> i & 1) << 2 * i | (y >> i & 1) << 2 * i + 1
               for i in range(max(x, y).bit_length()))


def z_order_3d(z, y, x):
    """The same in three dimensions: bits of x first, then those of y and z."""
    return sum((v >> i & 1) << 3 * i + at for at, v in enumerate((x, y, z))
               for i in range(v.bit_length()))


def _conv_layout(height, width, filter_h, filter_w, stride, blk_size, causal, transposed):
    options = {"stride": stride, "causal": causal, "transposed": transposed}
    layout = Layout.conv(height, width, (filter_h, filter_w), blk_size, **options)
    elements = Layout.conv(height, width, (filter_h, filter_w), 1, **options)
    seen = torch.tensor(elements.to_mask(), dtype=torch.bool)

    def callback(shape, head, i, j, block):
        return seen[i * shape[0]:(i + 1) * shape[0], j * shape[1]:(j + 1) * shape[1]]

    return torch.tensor(layout.to_mask(), dtype=torch.bool), callback


def bst_conv_layout(input_h=1, input_w=1, filter_h=1, filter_w=1, stride=1, blk_size=32,
                    autoregressive=True):
    """(layout, mask callback) of attention to the pixels under a filter: `Layout.conv`."""
    return _conv_layout(input_h, input_w, filter_h, filter_w, stride, blk_size, autoregressive,
                        False)


def bst_deconv_layout(output_h=1, output_w=1, filter_h=1, filter_w=1, stride=1, blk_size=32,
                      autoregressive=True):
    """The same with the queries at the high resolution."""
    return _conv_layout(output_h, output_w, filter_h, filter_w, stride, blk_size, autoregressive,
                        True)
