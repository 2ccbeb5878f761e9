"""Making the linear layers of an existing model block-sparse."""

from __future__ import annotations

import re
import warnings
from typing import Any

from torch import nn

from .modules import BlockSparseLinear, PseudoBlockSparseLinear, linears, replace

OPTIONS = {"density", "block_shape", "pseudo_linear", "pattern", "seed"}


class BlockSparseModelPatcher:
    """Replaces nn.Linear modules whose names match rules; not those inside of
    nn.MultiheadAttention, which reads their weights without calling them.

    Examples
    --------
    >>> import torch, bsk.torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 32))
    >>> patcher = bsk.torch.BlockSparseModelPatcher()
    >>> patcher.add_pattern(r"0", {"density": 0.5, "block_shape": (16, 16)})
    >>> patcher.patch_model(model)
    1
    >>> model[0].density
    0.5
    """

    # How a rule matches a name.
    _matches = staticmethod(re.Pattern.fullmatch)

    def __init__(self, verbose: bool = False) -> None:
        self.rules = []
        self.verbose = verbose

    def add_pattern(self, pattern: str, patch_info: dict[str, Any]) -> None:
        """A rule: a regular expression for the whole name of a module, and how to replace it.

        Parameters
        ----------
        pattern : str
        patch_info : dict
            ``density``, ``block_shape``, ``pattern``, ``seed`` as BlockSparseLinear has them;
            ``pseudo_linear=True`` for its dense double.
        """
        unknown = set(patch_info) - OPTIONS
        if unknown:
            raise ValueError(f"patch_info has {', '.join(sorted(unknown))}; must be of "
                             f"{', '.join(sorted(OPTIONS))}")
        self.rules.append((re.compile(pattern), dict(patch_info)))

    def get_patchable_layers(self, model: nn.Module) -> list[tuple[str, nn.Linear]]:
        """(regular expression that matches this name only, module) for each nn.Linear."""
        first = {}
        for name, module in linears(model):
            first.setdefault(module, name)
        return [(re.escape(name), module) for module, name in first.items()]

    def pattern_match(self, name: str) -> dict[str, Any] | None:
        """The patch_info of the first rule that matches, or None."""
        return next((info for rule, info in self.rules if self._matches(rule, name)), None)

    def new_child_module(self, name: str, module: nn.Linear,
                         patch_info: dict[str, Any]) -> nn.Module:
        """What takes the place of a module."""
        options = {k: v for k, v in patch_info.items() if k != "pseudo_linear"}
        made = BlockSparseLinear(0, 0, torch_nn_linear=module, verbose=self.verbose, **options)
        return PseudoBlockSparseLinear(made) if patch_info.get("pseudo_linear") else made

    def _matched(self, model):
        """(name, patch_info) by module, for those of which a rule matches a name."""
        matched = {}
        for name, module in linears(model):
            info = self.pattern_match(name)
            if info is not None:
                matched.setdefault(module, (name, info))
        return matched

    def patch_model(self, model: nn.Module) -> int:
        """Replaces what the rules match; returns how many modules that are. One that the model has
        in several places is replaced in all, where a rule matches one of its names."""
        made = {module: self.new_child_module(name, module, info)
                for module, (name, info) in self._matched(model).items()}
        replace(model, made)
        if not made:
            warnings.warn("no nn.Linear of the model matches a rule", stacklevel=2)
        return len(made)

    def patch_to_share(self, model: nn.Module, share: float) -> float:
        """Like `patch_model`, with the one density of all matching layers at which the model has
        that share of its parameters left.

        Returns
        -------
        float
            The density.
        """
        total = sum(p.numel() for p in model.parameters())
        matched = self._matched(model)
        inside = sum(m.weight.numel() for m in matched)
        density = 1 - (1 - share) * total / max(inside, 1)
        if not 0 <= density <= 1:
            raise ValueError(f"share is {share}; the layers that match hold {inside} of {total} "
                             f"parameters: must be in [{1 - inside / total:.3g}, 1]")
        for _, info in matched.values():
            info["density"] = density
        self.patch_model(model)
        return density
