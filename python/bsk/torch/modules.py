"""Modules with block-sparse weights, and their dense doubles for finding faults."""

from __future__ import annotations

import math
import warnings
from typing import Any, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..layout import Layout, Pair, pair
from ._packed import forget_packed
from .functional import blocks_from_dense, blocks_to_dense, matmul_by_token
from ._register import token_of

LAYOUT = "layout"  # the key in state dicts


class LayoutModule(nn.Module):
    """A module with the values of a block-sparse matrix, whose state dict carries the layout.

    A state loads into a module with another layout of the same matrix. Subclasses have the
    parameter that `VALUES` names, and call `_set_layout`.
    """

    VALUES = "weight"

    def _set_layout(self, layout):
        self.layout = layout
        self._token = token_of(layout)

    def _apply(self, *arguments, **options):
        forget_packed(self)  # torch.utils.swap_tensors takes none that has weak references
        return super()._apply(*arguments, **options)

    # The number of a layout is found anew.
    def __getstate__(self):
        state = self.__dict__.copy()
        del state["_token"]
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self._token = token_of(self.layout)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + LAYOUT] = torch.frombuffer(bytearray(self.layout.to_bytes()),
                                                        dtype=torch.uint8)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys,
                              unexpected_keys, error_msgs):
        forget_packed(self)
        data = state_dict.get(prefix + LAYOUT)
        if data is None:
            if strict:
                missing_keys.append(prefix + LAYOUT)
        else:
            layout = Layout.from_bytes(bytes(data.cpu().tolist()))
            if layout.shape != self.layout.shape:
                error_msgs.append(f"{prefix}{LAYOUT} is {layout}; must be {self.layout.shape[0]} x "
                                  f"{self.layout.shape[1]}")
                return
            if layout != self.layout and prefix + self.VALUES not in state_dict:
                error_msgs.append(f"{prefix}{LAYOUT} differs, and there is no "
                                  f"{prefix}{self.VALUES} for it")
                return
            if layout != self.layout:
                self._set_layout(layout)
                values = getattr(self, self.VALUES)
                values.data = values.data.new_empty((layout.nnz, *layout.block))
                values.grad = None
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys,
                                      unexpected_keys, error_msgs)
        if prefix + LAYOUT in unexpected_keys:
            unexpected_keys.remove(prefix + LAYOUT)


def train_alike(made, source):
    """Parameters of a layer get gradients where those of another one do."""
    made.weight.requires_grad_(source.weight.requires_grad)
    if source.bias is not None:
        made.bias.requires_grad_(source.bias.requires_grad)


def _parent(model, name):
    return model.get_submodule(name.rpartition(".")[0])


def linears(model):
    """(name, module) for each place of an nn.Linear; one that is shared has several. Left out are
    those of nn.MultiheadAttention, which reads their weights and does not call them."""
    return [(name, module) for name, module in model.named_modules(remove_duplicate=False)
            if isinstance(module, nn.Linear)
            and not isinstance(_parent(model, name), nn.MultiheadAttention)]


def replace(model, made):
    """Puts new modules, by those they are for, wherever the model has these."""
    if model in made:
        raise ValueError("the model is itself a layer to be replaced: put it into a module")
    for name, module in linears(model):
        if module in made:
            parent = _parent(model, name)
            setattr(parent, name.rpartition(".")[2], made[module])
            if isinstance(parent, nn.TransformerEncoderLayer):
                # Its fast path, for inference, reads dense weights past their modules.
                parent.activation_relu_or_gelu = 0
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder) and any(
                getattr(layer, "activation_relu_or_gelu", 1) == 0 for layer in encoder.layers):
            encoder.enable_nested_tensor = encoder.use_nested_tensor = False  # for that path alone


class BlockSparseLinear(LayoutModule):
    """y = x W + b with W [in_features, out_features] block-sparse.

    Parameters
    ----------
    in_features, out_features : int
        Any sizes; the last block of a dimension may be cut short.
    bias : bool
    density : float
        Share of the blocks that are kept.
    torch_nn_linear : nn.Linear, optional
        A layer to be made sparse: its sizes, its bias and its largest blocks are taken.
    verbose : bool
        Print what was made.
    block_shape : int or (int, int)
        Of a block of the weight in torch's orientation: (outputs, inputs).
    pattern : bsk.Layout, optional
        Of the matrix [in_features, out_features]; instead of density and block_shape.
    seed : int
        Of the random pattern.
    dtype, device
        Of the parameters.

    Attributes
    ----------
    weight : Parameter [nnz, block inputs, block outputs]
    layout : bsk.Layout
        In the state dict beside the weight, so that a state loads into a layer with another one.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, density: float = 0.5,
                 torch_nn_linear: nn.Linear | None = None, verbose: bool = False,
                 block_shape: Pair = (32, 32), *, pattern: Layout | None = None,
                 seed: int | None = None, dtype: torch.dtype | None = None,
                 device: Any = None) -> None:
        super().__init__()
        if torch_nn_linear is not None:
            in_features, out_features = torch_nn_linear.in_features, torch_nn_linear.out_features
            bias = torch_nn_linear.bias is not None
            dtype = dtype or torch_nn_linear.weight.dtype
            device = device or torch_nn_linear.weight.device
        if not 0 <= density <= 1:
            raise ValueError(f"density is {density}; must be in [0, 1]")
        self.in_features, self.out_features = in_features, out_features
        size, block = (in_features, out_features), pair(block_shape, "block_shape")[::-1]
        if pattern is not None:
            if pattern.shape != size or pattern.heads != 1:
                raise ValueError(f"the pattern is {pattern}; must be {size} with one head")
            layout = pattern
        elif torch_nn_linear is not None:
            dense = torch_nn_linear.weight.detach().to("cpu", torch.float32).t().contiguous()
            layout = Layout.from_dense(dense, block, keep=float(density))
        else:
            if seed is None:
                seed = int(torch.randint(2**62, (1,), device="cpu"))
            layout = Layout.random(size, block, density, seed)
        self._set_layout(layout)
        self.weight = nn.Parameter(torch.empty((layout.nnz, *layout.block), dtype=dtype,
                                               device=device))
        self.bias = (nn.Parameter(torch.empty(out_features, dtype=dtype, device=device))
                     if bias else None)
        if torch_nn_linear is None:
            self.reset_parameters()
        else:
            with torch.no_grad():
                self.weight.copy_(blocks_from_dense(torch_nn_linear.weight.t(), layout))
                if bias:
                    self.bias.copy_(torch_nn_linear.bias)
            train_alike(self, torch_nn_linear)
        if verbose:
            print(self)

    def reset_parameters(self) -> None:
        """As nn.Linear does it, with the inputs that an output has on average."""
        bound = 1 / math.sqrt(max(self.in_features * self.layout.density, 1))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return matmul_by_token(x, self.weight, self._token, self.bias)

    def to_dense(self) -> Tensor:
        """The weight as nn.Linear has it: Tensor [out_features, in_features]."""
        return blocks_to_dense(self.weight, self.layout).t()

    @property
    def density(self) -> float:
        return self.layout.density

    def extra_repr(self) -> str:
        r, c = self.layout.block
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}, block_shape=({c}, {r}), "
                f"density={self.layout.density:.3g}")


class PseudoBlockSparseLinear(nn.Module):
    """The dense double of a BlockSparseLinear: a dense weight times a fixed mask.

    For finding faults: a dense layer, then this one, then the sparse one. It computes the same as
    the sparse layer and needs nothing of the library while it runs.
    """

    def __init__(self, block_sparse_linear: BlockSparseLinear) -> None:
        super().__init__()
        source = block_sparse_linear
        self.in_features, self.out_features = source.in_features, source.out_features
        self.weight = nn.Parameter(source.to_dense().detach().clone())
        self.register_buffer("mask", blocks_to_dense(torch.ones_like(source.weight),
                                                     source.layout).t().contiguous())
        self.bias = None if source.bias is None else nn.Parameter(source.bias.detach().clone())
        train_alike(self, source)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)

    @property
    def density(self) -> float:
        return float(self.mask.float().mean())

    def extra_repr(self) -> str:
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}, density={self.density:.3g}")


def dense_twin(layer: BlockSparseLinear) -> nn.Linear:
    """An nn.Linear with the weights of a BlockSparseLinear, zeros where it has none."""
    made = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None,
                     device=layer.weight.device, dtype=layer.weight.dtype)
    with torch.no_grad():
        made.weight.copy_(layer.to_dense())
        if layer.bias is not None:
            made.bias.copy_(layer.bias)
    return made


def sparsify_like(model: nn.Module, state_dict: Mapping[str, Any]) -> list[str]:
    """Replaces the nn.Linear modules of a fresh model that are sparse in a state dict, which can
    then be loaded.

    Returns
    -------
    list of str
        The names of the modules that were replaced.
    """
    replaced, found = [], {}
    for name, module in linears(model):
        data = state_dict.get(f"{name}.{LAYOUT}" if name else LAYOUT)
        if data is None:
            continue
        replaced.append(name)
        if module in found:
            continue
        layout = Layout.from_bytes(bytes(data.cpu().tolist()))
        made = BlockSparseLinear(module.in_features, module.out_features, module.bias is not None,
                                 pattern=layout, dtype=module.weight.dtype,
                                 device=module.weight.device)
        train_alike(made, module)
        found[module] = made
    replace(model, found)
    if not replaced:
        warnings.warn("no layer of the model is sparse in the state dict", stacklevel=2)
    return replaced
