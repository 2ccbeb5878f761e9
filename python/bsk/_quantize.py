"""Number formats and statistics of openai/blocksparse on torch tensors: part of `bsk.compat`."""

import time

import torch

from . import ops
from .torch._register import once

__all__ = ["QuantizeSpec", "log_stats", "quantize"]

STATS = ("mean", "stdv", "max", "sat_pct", "ftz_pct")  # what ops.tensor_stats gives, in its order
_fields = ("ebits", "fbits", "emax", "stoch", "denorm", "freq", "mode", "bias_pad", "stdv_mul",
           "logfile")
_started = {}  # log files of this process, with their headers written


class _Range:
    """The exponent of a tensor's largest number, and when it is to be measured again."""

    def __init__(self, emax):
        self.emax, self.exponent = emax, None
        self.calls, self.interval, self.uses = 0, 1, 0

    def due(self, frequency):
        """At each call first, then twice as seldom after every four times."""
        self.calls += 1
        if not frequency or self.calls < self.interval:
            return False
        self.calls, self.uses = 0, self.uses + 1
        if self.uses == 4:
            self.interval, self.uses = min(2 * self.interval, frequency), 0
        return True


class QuantizeSpec:
    """A number format, and where its range comes from.

    Parameters
    ----------
    ebits, fbits : int
        Bits of the exponent and of the fraction.
    emax : int, optional
        Exponent of the largest number, until statistics say otherwise; 2^(ebits - 1) - 1.
    stochastic : {0, 1, 2}
        0: round to nearest, else by chance; 1 and 2 differ in the original only.
    denorm : bool
        Whether there are numbers below the smallest normal one.
    frequency : int
        Statistics are taken at least every so many calls; 0: never.
    mode : {0, 1}
        The range is that of the maximum (0), or of mean + stdv_mul * standard deviation (1).
    bias_pad : int
        Added to the exponent that was measured.
    logfile : str
        A file for the statistics, a line each time.
    copy : QuantizeSpec, optional
        All of these from another one; its logfile only if it has one.

    Attributes
    ----------
    ranges : dict
        The ranges of tensors, by the names that `quantize` was called with.
    """

    def __init__(self, ebits=4, fbits=3, emax=None, stochastic=0, denorm=True, frequency=1024,
                 mode=0, bias_pad=2, stdv_mul=4.0, logfile="", copy=None):
        if stochastic not in (0, 1, 2) or mode not in (0, 1):
            raise ValueError(f"stochastic is {stochastic}, must be 0, 1 or 2; mode is {mode}, must "
                             f"be 0 or 1")
        emax = (1 << (ebits - 1)) - 1 if emax is None else emax
        values = (ebits, fbits, emax, stochastic, denorm, frequency, mode, bias_pad, stdv_mul,
                  logfile)
        for name, value in zip(_fields, values):
            setattr(self, name, value if copy is None else getattr(copy, name))
        self.logfile = self.logfile or logfile
        self.ranges = {}


def _log(path, name, stats, **more):
    """A line of a table of statistics; this waits for the device."""
    numbers = dict(zip(STATS, stats.tolist()))
    for share in ("sat_pct", "ftz_pct"):
        numbers[share] *= 100
    row = {**more, **numbers, "name": name}
    with open(path, "a" if path in _started else "w") as file:
        if path not in _started:
            _started[path] = True
            print(*row, sep="\t", file=file)
        print(*(f"{v:.6g}" if isinstance(v, float) else v for v in row.values()), sep="\t",
              file=file)


def rounded(x, spec, name):
    """A new tensor of the format of `spec`, whose range is known by a name, or for this call."""
    known = spec.ranges.setdefault(name, _Range(spec.emax)) if name else _Range(spec.emax)
    x = x.contiguous()
    if known.due(spec.freq):
        # Below half of the smallest number all becomes 0.
        low = max(known.emax - (1 << spec.ebits) + 2, -126) - (spec.fbits if spec.denorm else 0)
        got = ops.tensor_stats(x, exponent=True, bias_pad=spec.bias_pad,
                               spread=spec.stdv_mul if spec.mode else 0.0,
                               saturate=2.0 ** known.emax * (2 - 2.0 ** -spec.fbits),
                               tiny=2.0 ** (low - 1))
        known.exponent = got.exponent
        if spec.logfile:
            known.emax = int(got.exponent)
            _log(spec.logfile, name or "quantize", got.stats, exp_max=known.emax)
    return ops.quantize(x, exponent=known.exponent, ebits=spec.ebits, fbits=spec.fbits,
                        stochastic=int(bool(spec.stoch)), flush=int(not spec.denorm),
                        emax=known.emax,
                        seed=int(torch.randint(2**62, (1,))) if spec.stoch else 0)


class _Quantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, spec, b_spec, name):
        ctx.spec, ctx.name = b_spec, name
        return rounded(x.detach(), spec, name)

    @staticmethod
    @once("quantize")
    def backward(ctx, dy):
        name = ctx.name and ctx.name + "/grad"
        return rounded(dy.detach(), ctx.spec, name), None, None, None


def quantize(x, qspec, b_qspec=None, name=None):
    """x rounded to a number format; its gradient is rounded to that of b_qspec, or to qspec's.

    Parameters
    ----------
    x : Tensor
    qspec, b_qspec : QuantizeSpec
    name : str, optional
        Of the tensor: its range is that of earlier calls with this name and spec. Without a name
        each call measures its own tensor, but for a frequency of 0.
    """
    return _Quantize.apply(x, qspec, b_qspec or qspec, name)


class _LogStats(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, log, b_log):
        ctx.log = b_log
        log(x.detach())
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        ctx.log(dy)
        return dy, None, None


def log_stats(x, step, sat_val=65504.0, ftz_val=2.0**-24, freq=512, bfreq=512, logfile="",
              name=None):
    """x itself; statistics of it and of its gradient are added to a file.

    Parameters
    ----------
    x : Tensor
    step : int
        Logged at steps 1, 2, 4, ... below freq and at its multiples; the gradient by bfreq.
    sat_val, ftz_val : float
        Elements from this magnitude on, and non-zero ones below this, are counted.
    freq, bfreq : int
        Powers of two; 0: never.
    logfile : str
        ``%(timestamp)s`` in it stands for the time of the first call.
    name : str, optional
        In the last column.
    """
    for f in (freq, bfreq):
        if f & (f - 1):
            raise ValueError(f"freq is {freq}, bfreq {bfreq}; must be powers of two, or 0")
    if not logfile:
        raise ValueError("logfile must be given")
    step, label = int(step), name or "log_stats"
    path = logfile % {"timestamp": _timestamp()}

    def log(every, label):
        def write(x):
            if every and step > 0 and (step % every == 0 or step < every and not step & step - 1):
                stats = ops.tensor_stats(x.contiguous(), saturate=sat_val, tiny=ftz_val)
                _log(path, label, stats, step=step)
        return write

    return _LogStats.apply(x, log(freq, label), log(bfreq, label + "/grad"))


def _timestamp():
    return _started.setdefault("", time.strftime("%Y_%m_%d_%H_%M_%S"))
