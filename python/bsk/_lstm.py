"""LSTM layers of openai/blocksparse on torch tensors: part of `bsk.compat`."""

import torch
from torch import nn

from ._blocksparse import float_cast, fused_lstm_gates, layer_norm

__all__ = ["FusedBasicLSTMCell", "group_lstm_grads", "grouped_lstm"]


class FusedBasicLSTMCell(nn.Module):
    """A step of an LSTM: ``cell(x, (c, h))`` gives (h, (c, h)).

    Parameters
    ----------
    input_size, num_units : int
    forget_bias : float
        Added to the forget gate before its sigmoid.
    state_is_tuple : bool
        Otherwise a state is one tensor, c and h side by side.
    """

    def __init__(self, input_size, num_units, forget_bias=1.0, state_is_tuple=True, *, dtype=None,
                 device=None):
        super().__init__()
        self.forget_bias, self.state_is_tuple = forget_bias, state_is_tuple
        self.kernel = nn.Parameter(torch.empty(input_size + num_units, 4 * num_units, dtype=dtype,
                                               device=device))
        self.bias = nn.Parameter(torch.zeros(4 * num_units, dtype=dtype, device=device))
        nn.init.xavier_uniform_(self.kernel)

    def forward(self, x, state):
        c, h = state if self.state_is_tuple else state.chunk(2, 1)
        c, h = fused_lstm_gates(c, torch.cat((x, h), 1) @ self.kernel, bias=self.bias,
                                forget_bias=self.forget_bias)
        return h, (c, h) if self.state_is_tuple else torch.cat((c, h), 1)


def _variable(variables, name, like, shape, fill=None):
    if name not in variables:
        made = torch.empty(shape, device=like.device)
        variables[name] = nn.Parameter(nn.init.xavier_uniform_(made) if fill is None
                                       else made.fill_(fill))
    if tuple(variables[name].shape) != shape:
        raise ValueError(f"{name} is {tuple(variables[name].shape)}; must be {shape}")
    return variables[name]


def grouped_lstm(inputs, width, timesteps, initial_state, scope="grouped_lstm", reuse=None,
                 lstm_id=0, layernorm=True, *, variables):
    """An LSTM over time, with the four gates normalised if asked: (outputs, [c, h]).

    The inputs' part of all steps is one product, and so is that part of the weight's gradient.

    Parameters
    ----------
    inputs : Tensor [batch, timesteps, features]
    width : int
    initial_state : (c, h), Tensors [batch, width]
    reuse : bool, optional
        True: the parameters must be there already.
    lstm_id : int
        Named things in the original's graph.
    variables : nn.ParameterDict
        Has the parameters ``<scope>_kernel``, ``_bias`` and ``_gain``, or gets them.

    Returns
    -------
    Tensor [batch, timesteps, width] and the last [c, h]
    """
    if inputs.dim() != 3 or inputs.shape[1] != timesteps:
        raise ValueError(f"inputs are {tuple(inputs.shape)}; must be [batch, {timesteps}, "
                         f"features]")
    if reuse and f"{scope}_kernel" not in variables:
        raise ValueError(f"variables have no {scope}_kernel to be used again")
    features = inputs.shape[2]
    kernel = _variable(variables, f"{scope}_kernel", inputs, (features + width, 4 * width))
    bias = _variable(variables, f"{scope}_bias", inputs, (4 * width,), 0.0)
    gain = (_variable(variables, f"{scope}_gain", inputs, (4 * width,), 1.0) if layernorm
            else None)
    if kernel.dtype != inputs.dtype:
        kernel = float_cast(kernel, inputs.dtype, dx_dtype=inputs.dtype)
    outer, inner = kernel[:features], kernel[features:]
    given = inputs @ outer
    c, h = initial_state
    outputs = []
    for t in range(timesteps):
        gates = given[:, t] + h @ inner
        if layernorm:
            gates = layer_norm(gates, gain, bias, axis=1, segments=4)
            c, h = fused_lstm_gates(c, gates)
        else:
            c, h = fused_lstm_gates(c, gates, bias=bias)
        outputs.append(h)
    return torch.stack(outputs, 1), [c, h]


def group_lstm_grads(grads, params, scope="grouped_lstm", group_size=None):
    """Leaves the gradients as they are: torch has summed them over time already, and has no graph
    in which products could be joined afterwards."""
