"""Searching for better patterns while training."""

from __future__ import annotations

from typing import Sequence

import torch
from torch import nn

from .. import ops
from .modules import LayoutModule

# What optimizers keep beside a parameter, in its shape.
STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")


class PatternOptimizer:
    """Moves the blocks of smallest norm to random empty positions.

    Call `step` now and then between steps of the optimizers of the weights. Blocks that moved get
    new random values, and zeros in the states of all optimizers that were attached.

    Parameters
    ----------
    model : nn.Module or list of modules with a layout
        Whose layers take part.
    lr : float
        Share of each layer's blocks that move in a step, in [0, 1]; 0 skips.
    new_coefficients_scale : float
        Of the new values, in terms of those that are kept.
    new_coefficients_distribution : {'uniform', 'gaussian'}
    seed : int
    """

    def __init__(self, model: nn.Module | Sequence[LayoutModule], lr: float = 0.1,
                 method: str = "magnitude", new_coefficients_scale: float = 0.1,
                 new_coefficients_distribution: str = "uniform", seed: int = 0) -> None:
        if method != "magnitude":
            raise ValueError(f"method is {method!r}; must be 'magnitude'")
        if not 0 <= lr <= 1:
            raise ValueError(f"lr is {lr}; must be in [0, 1]")
        kinds = {"uniform": "uniform", "gaussian": "normal", "normal": "normal"}
        if new_coefficients_distribution not in kinds:
            raise ValueError(f"new_coefficients_distribution is {new_coefficients_distribution!r}; "
                             f"must be 'uniform' or 'gaussian'")
        self.layers = self.sparse_objects(model) if hasattr(model, "modules") else list(model)
        self.lr = lr
        self.scale = new_coefficients_scale
        self.renew = kinds[new_coefficients_distribution]
        self.seed = seed
        self.optimizers = []

    @staticmethod
    def sparse_objects(model: nn.Module) -> list[LayoutModule]:
        """The layers of a model that have a pattern."""
        return [m for m in model.modules() if isinstance(m, LayoutModule)]

    def attach_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer of the weights (Adam, AdamW, SGD), whose states must follow the blocks."""
        self._check(optimizer)
        self.optimizers.append(optimizer)

    @staticmethod
    def _check(optimizer):
        for param, state in optimizer.state.items():
            unknown = [k for k, v in state.items()
                       if torch.is_tensor(v) and v.shape == param.shape and v.dim()
                       and k not in STATES]
            if unknown:
                raise ValueError(f"{type(optimizer).__name__} keeps {', '.join(unknown)}; must be "
                                 f"of {', '.join(STATES)}")

    @torch.no_grad()
    def step(self) -> int:
        """One step for every layer; returns how many blocks moved."""
        moved = 0
        if not self.lr:
            return moved
        for optimizer in self.optimizers:
            self._check(optimizer)  # states are made in an optimizer's first step
        for layer in self.layers:
            self.seed += 1
            moved += self._step(layer, self.seed)
        return moved

    def _step(self, layer, seed):
        values = getattr(layer, layer.VALUES)
        weight = values.detach()
        norm = ops.block_norm(layer.layout, weight, type="l2")
        layout, kept = layer.layout.evolve(norm, self.lr, seed)
        keep = torch.tensor(kept.tolist(), dtype=torch.uint8, device=weight.device)
        count = layout.nnz - sum(kept)
        if not count:
            return 0
        ops.block_renew(layout, weight, keep, renew=self.renew, alpha=self.scale, seed=seed)
        for optimizer in self.optimizers:
            state = optimizer.state.get(values, {})
            for name in STATES:
                if torch.is_tensor(state.get(name)) and state[name].shape == weight.shape:
                    ops.block_renew(layout, state[name], keep, renew="zero")
        if values.grad is not None:
            ops.block_renew(layout, values.grad, keep, renew="zero")
        layer._set_layout(layout)
        return count
