"""What differs between versions of torch: custom ops, autocast; and layouts as arguments of ops."""

import itertools
import weakref

import torch

CUSTOM_OPS = hasattr(torch.library, "custom_op")

PLAIN = (torch.Tensor, torch.nn.Parameter)

# Custom ops take numbers: a layout is passed by a number that no other one gets.
_layouts = weakref.WeakValueDictionary()
_next = itertools.count(1)


def token_of(layout):
    """The number that stands for a layout."""
    if layout.token is None:
        layout.token = next(_next)
        _layouts[layout.token] = layout
    return layout.token


def layout_of(token):
    return _layouts[token]


def differentiable(name, fake, backward, setup):
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
    """
    def decorate(function):
        kind = _function(name, function, backward, setup)
        if not CUSTOM_OPS:
            return kind.apply
        op = torch.library.custom_op(name, mutates_args=())(function)
        op.register_fake(fake)
        op.register_autograd(backward, setup_context=setup)

        # The custom op is for the compiler, which shows by the tensors alone while it traces a
        # backward pass; to call it costs several times as much.
        def call(*inputs):
            if torch.compiler.is_compiling() or type(inputs[0]) not in PLAIN:
                return op(*inputs)
            return kind.apply(*inputs)

        call.op = op
        return call

    return decorate


def _function(name, function, backward, setup):
    """The same as an autograd function; in the older form, which is the faster one to call."""
    def forward(ctx, *inputs):
        output = function(*inputs)
        setup(ctx, inputs, output)
        return output

    return type(name.partition("::")[2], (torch.autograd.Function,),
                {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def autocast_dtype(x):
    """The type that autocast asks for, or None."""
    device = x.device.type
    try:
        on = torch.is_autocast_enabled(device)
    except TypeError:  # before torch 2.4
        on = torch.is_autocast_enabled() if device == "cuda" else torch.is_autocast_cpu_enabled()
        if on:
            return (torch.get_autocast_gpu_dtype() if device == "cuda"
                    else torch.get_autocast_cpu_dtype())
    return torch.get_autocast_dtype(device) if on else None
