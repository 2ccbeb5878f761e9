"""What differs between versions of torch: custom ops, autocast; and layouts as arguments of ops."""

import inspect

import torch

from ..layout import Layout, by_token
from ._packed import unwatch

CUSTOM_OPS = hasattr(torch.library, "custom_op")

PLAIN = (torch.Tensor, torch.nn.Parameter)


# For functions whose results the compiler may take for constants.
constant_result = getattr(getattr(torch, "compiler", None), "assume_constant_result",
                          lambda function: function)


def token_of(layout):
    """The number that stands for a layout: custom ops take numbers."""
    if not isinstance(layout, Layout):
        raise TypeError(f"layout is a {type(layout).__name__}; must be a bsk.Layout")
    return layout.token


_traced = {}  # layouts that the compiler has seen: what it made may outlive their modules


def layout_of(token):
    try:
        return by_token[int(token)]  # the compiler may have made a symbol of it
    except KeyError:
        raise RuntimeError(f"there is no bsk.Layout with the number {int(token)}: a program that "
                           f"was exported or compiled elsewhere needs its layouts made first, as "
                           f"with bsk.Layout.from_bytes") from None


def differentiable(name, fake, backward, setup, plain=None):
    """Makes an op of a function on tensors.

    Parameters
    ----------
    name : str
        ``"bsk::..."``.
    fake : callable
        The same results without data, for the compiler.
    backward : callable
        ``backward(ctx, *gradients)``: one gradient for each argument.
    setup : callable
        ``setup(ctx, inputs, output)``: what backward needs.
    plain : callable, optional
        The same function for calls that nothing is recorded of.
    """
    def decorate(function):
        kind = _function(name, function, backward, setup)
        direct = plain or function

        if not CUSTOM_OPS:
            def call(*inputs):
                if _recorded(inputs):
                    return kind.apply(*inputs)
                return direct(*inputs)

            return call
        transformed = _transformable(name, function, backward, setup)
        op = torch.library.custom_op(name, mutates_args=())(function)
        op.register_fake(_pinned(function, fake))
        op.register_autograd(backward, setup_context=setup)

        # The custom op is for the compiler, which shows by the tensors alone while it traces a
        # backward pass; to call it costs several times as much.
        def call(*inputs):
            if torch.compiler.is_compiling():
                return op(*inputs)
            if type(inputs[0]) not in PLAIN or _modes() or inputs[0].is_meta:
                unwatch(inputs)
                return op(*inputs)
            if _functorch_is_active():
                return transformed.apply(*inputs)
            if _recorded(inputs):
                return kind.apply(*inputs)
            return direct(*inputs)

        call.op = op
        return call

    return decorate


def _pinned(function, fake):
    """A fake function after which the layout stays."""
    names = list(inspect.signature(function).parameters)
    if "layout" not in names:
        return fake
    place = names.index("layout")

    def pinned(*inputs):
        made = layout_of(inputs[place])
        _traced[made.token] = made
        return fake(*inputs)

    return pinned


# Modes that look at every op: tracers, fake tensors, counters, selective checkpoints.
_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_functorch_is_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


def _recorded(inputs):
    """Whether autograd records a call."""
    if torch.is_grad_enabled():
        for x in inputs:
            if isinstance(x, torch.Tensor) and x.requires_grad:
                return True
    return False


def _function(name, function, backward, setup):
    """The same as an autograd function; in the older form, which is the faster one to call."""
    def forward(ctx, *inputs):
        output = function(*inputs)
        setup(ctx, inputs, output)
        return output

    return type(name.partition("::")[2], (torch.autograd.Function,),
                {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def _transformable(name, function, backward, setup):
    """The same in the form that torch.func takes; members of a mapped dimension run in turn."""
    def vmap(info, in_dims, *inputs):
        members = [made.apply(*(x if d is None else x.select(d, i)
                                for x, d in zip(inputs, in_dims)))
                   for i in range(info.batch_size)]
        if not isinstance(members[0], tuple):
            return torch.stack(members), 0
        return (tuple(torch.stack(parts) for parts in zip(*members)),
                (0,) * len(members[0]))

    def unwrapped(ctx, *gradients):
        return backward(_Unwrapped(ctx), *gradients)

    made = type(name.partition("::")[2], (torch.autograd.Function,),
                {"forward": staticmethod(function), "setup_context": staticmethod(setup),
                 "backward": staticmethod(unwrapped), "vmap": staticmethod(vmap)})
    return made


class _Unwrapped:
    """A context whose tensors come without the wrappers of a transform that has ended: the function
    that torch.func.vjp returns runs after it."""

    def __init__(self, ctx):
        self._ctx = ctx

    def __getattr__(self, name):
        return getattr(self._ctx, name)

    @property
    def saved_tensors(self):
        return torch._functorch.utils.unwrap_dead_wrappers(self._ctx.saved_tensors)


class _Refused(torch.autograd.Function):
    """A gradient whose own derivative is an error and not a silent zero."""

    @staticmethod
    def forward(ctx, name, gradient, *anchors):
        ctx.name = name
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError(f"{ctx.name} is differentiable once only")


def once(name):
    """Decorates the backward of an autograd function that can be differentiated once."""
    def decorate(backward):
        def wrapped(ctx, *gradients):
            with torch.no_grad():
                results = backward(ctx, *gradients)
            if not torch.is_grad_enabled():
                return results
            anchors = [t for t in (*ctx.saved_tensors, *gradients)
                       if t is not None and t.requires_grad]
            if not anchors:
                return results
            return tuple(_Refused.apply(name, r, *anchors) if torch.is_tensor(r) else r
                         for r in results)

        return wrapped

    return decorate


def autocast_dtype(x):
    """The type that autocast asks for, or None."""
    device = x.device.type
    try:
        on = torch.is_autocast_enabled(device)
    except RuntimeError:  # a device without autocast: meta
        return None
    except TypeError:  # before torch 2.4
        on = torch.is_autocast_enabled() if device == "cuda" else torch.is_autocast_cpu_enabled()
        if on:
            return (torch.get_autocast_gpu_dtype() if device == "cuda"
                    else torch.get_autocast_cpu_dtype())
    return torch.get_autocast_dtype(device) if on else None
