"""Convolutions of openai/blocksparse on torch tensors: part of `bsk.compat`.

These are torch's, on the channels of each block: gradients come with them. The library's own are
`bsk.ops.conv` and its gradients.
"""

import itertools
import math

import torch
from torch.nn import functional as F

from .ops import ConvShape

__all__ = ["BlocksparseConv", "BlocksparseDeconv", "ConvEdgeBias", "conv_edge_bias_init",
           "deconv_edge_bias_init"]


def _three(sizes, fill=1):
    """Up to three spatial sizes as three."""
    sizes = [int(s) for s in sizes]
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{sizes} are spatial sizes; there must be 1 to 3")
    return [fill] * (3 - len(sizes)) + sizes


def _reach(taps, dilation):
    return (taps - 1) * dilation + 1


def _padding(padding, taps, dilates):
    if not isinstance(padding, str):
        return _three(padding, 0)
    if padding.upper() not in ("SAME", "VALID"):
        raise ValueError(f"padding is {padding!r}; must be numbers, 'SAME' or 'VALID'")
    same = padding.upper() == "SAME"
    return [_reach(t, d) // 2 if same else 0 for t, d in zip(taps, dilates)]


class BlocksparseConv:
    """A convolution in 1 to 3 dimensions, in which a block joins some inputs to some outputs.

    Parameters
    ----------
    BCK : list of (list of int, list of int)
        For each block its input channels and its output channels. Channels may be in several
        blocks; outputs of several blocks are added up.
    TRS, DHW, MPQ : tuple of 1 to 3 int
        Sizes of the filter, of the input and (optional) of the output.
    strides, dilates : tuple of int
    padding : tuple of int, 'SAME' or 'VALID'
        On each side; SAME is half of what the filter reaches.

    Examples
    --------
    >>> import torch
    >>> from bsk.compat import BlocksparseConv
    >>> conv = BlocksparseConv([([0, 1], [0, 1, 2]), ([2, 3], [3, 4, 5])], (3, 3), (8, 8))
    >>> conv(torch.zeros(conv.f_shape()), torch.zeros(conv.i_shape(2))).shape
    torch.Size([2, 6, 8, 8])
    """

    deconv = False

    def __init__(self, BCK, TRS, DHW, MPQ=None, strides=(1, 1, 1), dilates=(1, 1, 1),
                 padding="SAME", debug=False):
        if len(TRS) != len(DHW):
            raise ValueError(f"TRS has {len(TRS)} dimensions, DHW {len(DHW)}")
        self.dims = len(TRS)
        self.TRS, self.DHW = _three(TRS), _three(DHW)
        self.strides, self.dilates = _three(strides[-self.dims:]), _three(dilates[-self.dims:])
        self.padding = _padding(padding, self.TRS, self.dilates)
        self.MPQ = self._output() if MPQ is None else _three(MPQ)
        self.BCK = [([int(c) for c in inputs], [int(k) for k in outputs])
                    for inputs, outputs in BCK]
        sides = [list(itertools.chain(*(b[i] for b in self.BCK))) for i in (0, 1)]
        self.C, self.K = (max(side) + 1 for side in sides)
        self.overlapC, self.overlapK = (len(set(side)) < len(side) for side in sides)
        self.blocks = len(self.BCK)
        self.fixed_block_size = len({(len(c), len(k)) for c, k in self.BCK}) == 1
        self.sizeF = sum(math.prod(self.f_shape(b)) for b in range(self.blocks))

    def _output(self):
        return [(w - _reach(t, d) + 2 * p) // s + 1 for w, t, d, p, s in zip(
            self.DHW, self.TRS, self.dilates, self.padding, self.strides)]

    def i_shape(self, n):
        return [n, self.C, *self.DHW[-self.dims:]]

    def o_shape(self, n):
        return [n, self.K, *self.MPQ[-self.dims:]]

    def f_shape(self, block=None):
        """The shape of a block's filters, or of all: [blocks, ...], flat if blocks differ."""
        if block is None and not self.fixed_block_size:
            return [self.sizeF]
        inputs, outputs = (len(side) for side in self.BCK[block or 0])
        sides = [inputs, outputs] if self.deconv else [outputs, inputs]
        return [self.blocks] * (block is None) + sides + self.TRS[-self.dims:]

    def _filters(self, f):
        sizes = [math.prod(self.f_shape(b)) for b in range(self.blocks)]
        parts = f.reshape(-1).split(sizes)
        return [p.reshape(*self.f_shape(b)[:2], *self.TRS) for b, p in enumerate(parts)]

    def _ends(self, outer, inner):
        """What is to be added to `outer` on either side for `inner` places of the filter."""
        ends = [(p, (q - 1) * s + _reach(t, d) - p - w) for w, q, t, d, p, s in zip(
            outer, inner, self.TRS, self.dilates, self.padding, self.strides)]
        return list(itertools.chain(*reversed(ends)))

    def _block(self, f, x):
        x = F.pad(x, self._ends(self.DHW, self.MPQ))
        return F.conv3d(x, f, stride=self.strides, dilation=self.dilates)

    def __call__(self, f, x):
        """The outputs [N, K, ...] of inputs [N, C, ...]."""
        if x.shape[1] != self.C or list(x.shape[2:]) != self.DHW[5 - x.dim():]:
            raise ValueError(f"the input is {tuple(x.shape)}; must be {self.i_shape('N')}")
        whole = x.reshape(x.shape[0], self.C, *self.DHW)
        y = x.new_zeros(x.shape[0], self.K, *self.MPQ)
        for (inputs, outputs), part in zip(self.BCK, self._filters(f)):
            at = torch.tensor(outputs, device=x.device)
            y = y.index_add(1, at, self._block(part, whole[:, inputs]))
        return y.reshape(x.shape[0], self.K, *self.MPQ[5 - x.dim():])

    def l2_normalize(self, f, gain=None, epsilon=1e-12, dtype=None):
        """The filters of each output of a block at length 1, times gain [K], in the blocks' order
        of outputs."""
        if gain is not None and self.overlapK:
            raise ValueError("gain is not defined where outputs are in several blocks")
        axes = (0, 2, 3, 4) if self.deconv else (1, 2, 3, 4)
        parts, first = [], 0
        for (_, outputs), part in zip(self.BCK, self._filters(f)):
            unit = part * part.square().sum(axes, keepdim=True).clamp_min(epsilon).rsqrt()
            if gain is not None:
                own = gain[first:first + len(outputs)]
                unit = unit * own.reshape([1 if a in axes else -1 for a in range(5)])
            parts.append(unit.reshape(-1))
            first += len(outputs)
        return torch.cat(parts).reshape(f.shape).to(dtype or f.dtype)

    def collapse_filter(self, filters, dtype=None):
        """The filters of blocks, one after the other in a vector."""
        return torch.cat([torch.as_tensor(f, dtype=dtype).reshape(-1) for f in filters])


class BlocksparseDeconv(BlocksparseConv):
    """The transpose of `BlocksparseConv` with the sides exchanged: its gradient by the input."""

    deconv = True

    def _output(self):
        return [w * s + t - 2 * p - t % 2 for w, t, p, s in zip(
            self.DHW, self.TRS, self.padding, self.strides)]

    def _block(self, f, x):
        y = F.conv_transpose3d(x, f, stride=self.strides, dilation=self.dilates)
        return F.pad(y, [-n for n in self._ends(self.MPQ, self.DHW)])


class ConvEdgeBias:
    """Gain and bias for outputs near the edge of an image, y = x g + b: one of each for every set
    of filter taps that lies outside. Other outputs stay.

    Parameters
    ----------
    y_shape, x_shape, w_shape : list of int
        Of the convolution's output, input and filter [..., C, K] as TensorFlow has them.
    strides, dilations : list of int, optional
        One for each dimension of y.
    padding : {'SAME', 'VALID'}
    data_format : str
        'NHWC' or 'NCHW', or the like with one or three dimensions.

    Attributes
    ----------
    shape : (int, int)
        Of gain and bias.
    """

    def __init__(self, y_shape, x_shape, w_shape, strides=None, padding="SAME", data_format="NHWC",
                 dilations=None, deconv=False):
        self.last = data_format[-1] == "C"
        space = slice(1, -1) if self.last else slice(2, None)
        outputs, inputs, taps = (_three(s) for s in (y_shape[space], x_shape[space],
                                                     w_shape[:-2]))
        strides, dilates = (_three(s[space]) if s is not None else [1, 1, 1]
                            for s in (strides, dilations))
        if padding.upper() not in ("SAME", "VALID"):
            raise ValueError(f"padding is {padding!r}; must be 'SAME' or 'VALID'")
        same = padding.upper() == "SAME"
        pads = [max((q - 1) * s + t - w, 0) // 2 if same else 0
                for q, s, t, w in zip(outputs, strides, taps, inputs)]
        channels = (x_shape if deconv else y_shape)[-1 if self.last else 1]
        shape = ConvShape((), taps, strides, dilates, pads)
        self.which, self.count = shape.edges(inputs, outputs, deconv)
        self.which = torch.tensor(self.which, dtype=torch.int64)
        self.shape = (self.count, channels) if self.last else (channels, self.count)

    def __call__(self, x, g, b, inference=False):
        """y; with `inference` in place of x, without gradients."""
        if not self.count:
            return x
        which, at = self.which.to(x.device), -1 if self.last else 1
        edge = which >= 0
        flat = (x.reshape(x.shape[0], -1, x.shape[-1]) if self.last
                else x.reshape(*x.shape[:2], -1))
        gain, bias = (p[which.clamp_min(0)] if self.last else p[:, which.clamp_min(0)]
                      for p in (g, b))
        edge = edge[:, None] if at == -1 else edge
        y = torch.where(edge, (flat * gain + bias).to(x.dtype), flat).reshape(x.shape)
        if not inference:
            return y
        with torch.no_grad():
            return x.copy_(y)


def conv_edge_bias_init(y, x, w, strides=None, padding="SAME", data_format="NHWC",
                        dilations=None):
    """The `ConvEdgeBias` of a convolution y of x with the filter w."""
    return ConvEdgeBias(list(y.shape), list(x.shape), list(w.shape), strides, padding, data_format,
                        dilations)


def deconv_edge_bias_init(y, x, w, strides=None, padding="SAME", data_format="NHWC",
                          dilations=None):
    """The `ConvEdgeBias` of a transposed convolution y of x with the filter w."""
    return ConvEdgeBias(list(x.shape), list(y.shape), list(w.shape), strides, padding, data_format,
                        dilations, deconv=True)
