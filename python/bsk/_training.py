"""Gradients, optimizers and the pruning of blocks of openai/blocksparse: part of `bsk.compat`."""

import functools

import torch

from . import ops
from ._blocksparse import nonzero
from ._quantize import rounded
from .layout import Layout

__all__ = ["AdafactorOptimizer", "AdamOptimizer", "ClipGlobalNorm", "Ema", "block_reduced_full_dw",
           "blocksparse_adam_op", "blocksparse_l2_decay", "blocksparse_norm", "blocksparse_prune",
           "clip_by_global_norm", "get_bsmm_dx_ops", "get_entropy", "global_norm", "gradients",
           "group_dg_grads", "group_param_grads", "replace_add_n", "reset_scalar_constants",
           "restore_add_n", "scalar_constant", "set_entropy"]


# --- gradients ------------------------------------------------------------------------------------

def _list(x):
    return list(x) if isinstance(x, (list, tuple)) else [x]


def gradients(ys, xs, grad_ys=None, stop_grads=None, group_aggregations=8,
              custom_matmul_grad=True):
    """The gradients of the sums of ys by xs, as a list; None where there is none.

    torch adds up contributions as they come: the last two arguments change nothing. What
    `stop_grads` did is ``detach``.
    """
    if stop_grads:
        raise NotImplementedError("gradients: stop_grads: call detach on these tensors instead")
    if not 1 <= group_aggregations <= 8:
        raise ValueError(f"group_aggregations is {group_aggregations}; must be in [1, 8]")
    ys = _list(ys)
    grad_ys = [None] * len(ys) if grad_ys is None else _list(grad_ys)
    grad_ys = [torch.ones_like(y) if g is None else g for y, g in zip(ys, grad_ys)]
    return list(torch.autograd.grad(ys, _list(xs), grad_ys, allow_unused=True))


def group_param_grads(param_grad, group_size=8, cast32=True):
    """The gradient as it is: torch has no graph in which its products could be joined afterwards.
    `bsk.ops.matmul_wgrad` takes lists of x and dy."""
    return param_grad


def group_dg_grads(bsmm_dg_op, bsmm_dw_op, dw_op, group_size=8):
    """There are no ops of a graph here: gradients of gates are complete as they come."""
    raise NotImplementedError("group_dg_grads: torch has no graph whose ops could be joined; the "
                              "gradient of the gate is complete")


def block_reduced_full_dw(param_grad, scale=1.0, norm="max", group_size=8):
    """Needs the activations, which torch does not keep with a gradient."""
    raise NotImplementedError("block_reduced_full_dw: call bsk.ops.reduced_wgrad([x, ...], "
                              "[dy, ...], block_rows=b, block_cols=b, norm=...)")


def get_bsmm_dx_ops(param_grad):
    """There are no ops of a graph here."""
    raise NotImplementedError("get_bsmm_dx_ops: torch has no graph of ops; Tensor.register_hook "
                              "sees gradients as they are made")


def replace_add_n():
    """Nothing: torch adds up gradients itself."""


def restore_add_n():
    """Nothing, as `replace_add_n`."""


def set_entropy(init=None):
    """Nothing: the seeds of random ops come from torch's generator (``torch.manual_seed``)."""
    if init is not None:
        raise ValueError("set_entropy: there is no state of random numbers to be set: call "
                         "torch.manual_seed")


def get_entropy():
    """None: random ops keep no state."""


def scalar_constant(value, dtype=None, name=None):
    """The number itself, of which nothing needs to be kept."""
    return value


def reset_scalar_constants():
    """Nothing: no constants are kept."""


# --- optimizers -----------------------------------------------------------------------------------

def _whole(x):
    """A tensor as the ops take it, with a dimension at least and without gaps: itself, or a copy."""
    x = x.detach().contiguous()
    return x if x.dim() else x.reshape(1)


def _put_back(*pairs):
    """Copies (tensor, what `_whole` made of it) back, where that is a copy."""
    for x, made in pairs:
        if made.data_ptr() != x.data_ptr():
            x.copy_(made.reshape(x.shape))


def _filtered(grad, saturate, zero_infs, zero_nans):
    grad = _whole(grad)
    if not (saturate or zero_infs or zero_nans):
        return grad
    return ops.filter(grad, scale=1.0, saturate=saturate, zero_infs=int(zero_infs),
                      zero_nans=int(zero_nans))


def clip_by_global_norm(grads, clip_norm=1.0, grad_scale=1.0, saturate=0.0, zero_infs=False,
                        zero_nans=False):
    """(norm, factor) as Tensors [1]; the factor is for the optimizers' norm_scale."""
    grads = [_filtered(g, saturate, zero_infs, zero_nans) for g in grads]
    if not grads:
        raise ValueError("there are no gradients")
    if not clip_norm > 0:
        raise ValueError(f"clip_norm is {clip_norm}; must be above 0")
    if any(g.dtype == torch.float64 for g in grads):  # and so is the sum
        grads = [g.double() for g in grads]
    groups = {}
    for g in grads:
        groups.setdefault((g.dtype, g.shape), []).append(g)
    total, like = None, grads[0]
    side = torch.float64 if like.dtype == torch.float64 else torch.float32
    norm, factor = (torch.empty(1, dtype=t, device=like.device) for t in (side, torch.float32))
    for members in groups.values():
        # Sums go on from group to group; the last ones are those of all.
        total = ops.global_norm(members, sum=total, beta=0.0 if total is None else 1.0, norm=norm,
                                norm_scale=factor, clip=clip_norm, grad_scale=grad_scale).sum
    return norm, factor


ClipGlobalNorm = clip_by_global_norm


def global_norm(grads, grad_scale=1.0, saturate=0.0, zero_infs=False, zero_nans=False):
    """The 2-norm of all gradients together: Tensor [1]."""
    return clip_by_global_norm(grads, 9e9, grad_scale, saturate, zero_infs, zero_nans)[0]


class _Optimizer(torch.optim.Optimizer):
    """Loops over parameters; `_update` does one. ``state[p]["step"]`` is the number of steps made,
    a Tensor [1] beside the parameter: the host need not know which were skipped."""

    def __init__(self, params, options, norm_scale, saturate, zero_infs, zero_nans):
        super().__init__(params, options)
        self.norm_scale = norm_scale
        self.filters = saturate, zero_infs, zero_nans

    @torch.no_grad()
    def step(self, closure=None, norm_scale=None):
        """One step; norm_scale is that of `clip_by_global_norm`."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        norm_scale = self.norm_scale if norm_scale is None else norm_scale
        made = 1 if norm_scale is None else (norm_scale.isfinite() & (norm_scale != 0)).reshape(1)
        for number, group in enumerate(self.param_groups):
            for at, p in enumerate(group["params"]):
                if p.grad is not None:
                    self._update(p, _filtered(p.grad, *self.filters), group, norm_scale,
                                 f"{number}_{at}")
                    state = self.state[p]
                    state["step"] = state["step"] + made  # not in place: copies may share it
        return loss

    def _steps(self, p):
        """The number of steps made, which may have been loaded as a number or on another device."""
        state = self.state[p]
        state["step"] = torch.as_tensor(state["step"]).to(p.device, torch.int64).reshape(1)
        return state["step"]


class AdamOptimizer(_Optimizer):
    """Adam by `bsk.ops.adam`.

    Parameters
    ----------
    saturate, zero_infs, zero_nans
        As `filter_tensor` has them, for gradients.
    gated : bool
        Blocks stay whose gate is 0, in the attribute ``gate`` of a parameter. ``gate`` in a
        parameter group does the same without this.
    param_qspec, mean_qspec, var_qspec : QuantizeSpec, optional
        Formats of parameters and moments, to which they are rounded after each step.
    fp16 : bool
        Moments in 16 bits, for parameters of 8192 elements and more; needs torch.uint16.
    """

    def __init__(self, params, learning_rate=3e-4, beta1=0.9, beta2=0.999, epsilon=1e-8,
                 clip_sigmas=0.0, norm_scale=None, grad_scale=1.0, saturate=0.0, zero_infs=False,
                 zero_nans=False, gated=False, param_qspec=None, mean_qspec=None, var_qspec=None,
                 fp16=False, name="Adam"):
        if fp16 and not hasattr(torch, "uint16"):
            raise NotImplementedError("AdamOptimizer: fp16 needs torch.uint16, torch 2.3")
        if fp16 and (mean_qspec or var_qspec):
            raise ValueError("AdamOptimizer: fp16 excludes mean_qspec and var_qspec: each is a "
                             "format of moments")
        super().__init__(params, {"lr": learning_rate, "beta1": beta1, "beta2": beta2,
                                  "eps": epsilon, "clip_sigma": clip_sigmas,
                                  "grad_scale": grad_scale, "gate": None, "lazy": False},
                         norm_scale, saturate, zero_infs, zero_nans)
        self.gated, self.fp16 = gated, fp16
        self.specs = {"param": param_qspec, "mean": mean_qspec, "var": var_qspec}

    def load_state_dict(self, state_dict):
        """As torch has it, but for moments in 16 bits: torch makes the parameters' type of all."""
        kept = {i: {n: x.clone() for n, x in s.items()
                    if isinstance(x, torch.Tensor) and x.dtype == getattr(torch, "uint16", None)}
                for i, s in state_dict["state"].items()}
        super().load_state_dict(state_dict)
        numbers = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(numbers, params):
            for n, x in kept.get(i, {}).items():
                self.state[p][n] = x.to(p.device)

    def _update(self, p, grad, group, norm_scale, name):
        options = {n: group[n] for n in ("lr", "clip_sigma", "grad_scale", "gate")}
        options.update((n, nonzero(group[n])) for n in ("beta1", "beta2", "eps"))
        if self.gated and options["gate"] is None:
            options["gate"] = getattr(p, "gate", None)
        state = self.state[p]
        if not state:
            kind = torch.uint16 if self.fp16 and p.numel() >= 8192 else p.dtype
            state.update(step=0, **{n: torch.zeros(p.shape, dtype=kind, device=p.device)
                                    for n in ("exp_avg", "exp_avg_sq")})
        m, v = state["exp_avg"], state["exp_avg_sq"]
        whole = [_whole(x) for x in (p, m, v)]
        ops.adam(whole[0], grad, *whole[1:], norm_scale=norm_scale, steps=self._steps(p),
                 step=1, lazy=int(group["lazy"]), **options)
        for (what, spec), x in zip(self.specs.items(), whole):
            if spec is not None:
                x.copy_(rounded(x, spec, f"{what}_{name}"))
        _put_back(*zip((p, m, v), whole))


class AdafactorOptimizer(_Optimizer):
    """Adafactor by `bsk.ops.adafactor`, for vectors and matrices."""

    def __init__(self, params, learning_rate=5e-4, beta2=0.999, epsilon=1e-30, clip_thresh=1.0,
                 norm_scale=None, grad_scale=1.0, saturate=0.0, zero_infs=False, zero_nans=False,
                 name="Adafactor"):
        super().__init__(params, {"lr": learning_rate, "beta2": beta2, "eps": epsilon,
                                  "clip": clip_thresh, "grad_scale": grad_scale},
                         norm_scale, saturate, zero_infs, zero_nans)

    def _update(self, p, grad, group, norm_scale, name):
        options = {n: group[n] for n in ("lr", "clip", "grad_scale")}
        options.update((n, nonzero(group[n])) for n in ("beta2", "eps"))
        state = self.state[p]
        if not state:
            if p.dim() not in (1, 2):
                raise ValueError(f"a parameter has {p.dim()} dimensions; must have 1 or 2")
            state.update(step=0, col=p.new_zeros(p.shape[-1]))
            if p.dim() == 2:
                state["row"] = p.new_zeros(p.shape[0])
        whole = _whole(p)
        ops.adafactor(whole, grad, state["col"], row=state.get("row"), norm_scale=norm_scale,
                      steps=self._steps(p), step=1, **options)
        _put_back((p, whole))


@torch.no_grad()
def blocksparse_adam_op(param, mean, var, grad, grad_scale, lr_old, lr_new, lr_select=(),
                        norm_scale=(), decay_mean=0.9, decay_var=0.999, epsilon=1e-8, saturate=0.0,
                        zero_infs=False, zero_nans=False):
    """A step of Adam in place, with the rate lr_new for the blocks that lr_select, a list of up to
    one Tensor [blocks], has not 0 for, and lr_old for the others; the rates have the correction of
    the moments' bias in them."""
    grad = _filtered(grad, saturate, zero_infs, zero_nans)
    options = {"beta1": nonzero(decay_mean), "beta2": nonzero(decay_var), "eps": nonzero(epsilon),
               "grad_scale": grad_scale,
               "norm_scale": norm_scale[0] if len(norm_scale) else None,
               "step": 1 << 40}  # at which there is no bias left to correct
    if not len(lr_select):
        ops.adam(param, grad, mean, var, lr=lr_old, **options)
    else:
        chosen = (lr_select[0] != 0).float()
        for rate, gate in ((lr_new, chosen), (lr_old, 1 - chosen)):
            ops.adam(param, grad, mean, var, lr=rate, gate=gate, **options)
    return param, mean, var


class Ema:
    """Moving averages of parameters.

    Parameters
    ----------
    decay : float
    gated : bool
        Blocks stay whose gate is 0, in the attribute ``gate`` of a parameter.
    fp16 : bool
        Averages in half precision.
    """

    def __init__(self, decay=0.999, gated=False, fp16=False, name="Ema"):
        self.decay, self.gated, self.fp16 = decay, gated, fp16
        self.averages = {}

    @torch.no_grad()
    def apply(self, params, qspec=None):
        """Takes the parameters into their averages, which begin as copies; with `qspec` they are
        rounded to a format."""
        for number, p in enumerate(params):
            if p not in self.averages:
                kind = torch.float16 if self.fp16 else p.dtype
                self.averages[p] = p.detach().clone(
                    memory_format=torch.contiguous_format).to(kind)
                continue
            average = self.averages[p]
            gate = getattr(p, "gate", None) if self.gated else None
            whole = _whole(average)
            ops.ema(whole, _whole(p), gate=gate, decay=self.decay)
            if qspec is not None:
                whole.copy_(rounded(whole, qspec, f"ema_{number}"))
            _put_back((average, whole))

    def average(self, param):
        """The average of a parameter, or None."""
        return self.averages.get(param)


# --- pruning --------------------------------------------------------------------------------------

@functools.lru_cache(maxsize=64)
def _column(count, *block):
    return Layout.full((count * block[0], block[1]), block)


def _blocks(param):
    """A layout of as many blocks as the parameter [blocks, b, b] has: their places do not count."""
    if param.dim() != 3:
        raise ValueError(f"the parameter is {tuple(param.shape)}; must be [blocks, rows, columns]")
    return _column(*param.shape)


@torch.no_grad()
def blocksparse_l2_decay(param, gate=None, rate=0.05, epsilon=1e-12):
    """Shortens each block of param [blocks, b, b] by at most rate, in place."""
    return ops.block_l2_decay(_blocks(param), param, gate=gate, rate=rate, eps=nonzero(epsilon))


@torch.no_grad()
def blocksparse_norm(param, norm="max"):
    """The norm of each block, "max" or "l2": Tensor [blocks]."""
    return ops.block_norm(_blocks(param), param, type=norm)


@torch.no_grad()
def blocksparse_prune(param, gate, step=0, sparsity=None, threshold=None, norm="max", frequency=1):
    """Sets gates, in place: 0 for the share `sparsity` of blocks of smallest norm, or for blocks
    whose norm is below `threshold`. Only every `frequency`-th step does something."""
    if (sparsity is None) == (threshold is None):
        raise ValueError("one of sparsity and threshold must be given")
    if not frequency or step % frequency or (sparsity is not None and sparsity < 0):
        return gate
    norms = blocksparse_norm(param, norm)
    if sparsity is not None:
        return ops.prune_sparsity(norms, gate=gate, value=sparsity)
    return ops.prune_threshold(norms, gate=gate, value=threshold)
