"""bsk for PyTorch: differentiable ops, and modules with block-sparse weights.

Ops work on tensors of the CPU and of GPUs, on the current stream, under autocast and, from torch
2.4 on, inside ``torch.compile`` without graph breaks and with the transforms of ``torch.func``.
``bsk.torch.parallel``, which is imported by itself, has layers and attention of several processes.
"""

from ._packed import forget_packed
from .attention import (BlockSparseAttention, alibi_slopes, attention, mask_bits,
                        scaled_dot_product_attention)
from .functional import blocks_from_dense, blocks_to_dense, matmul, matmul_sampled
from .modules import (BlockSparseLinear, PseudoBlockSparseLinear, dense_twin, sparsify_like)
from .moe import MixtureOfExperts, Route, balance_loss, grouped_matmul, route
from .patch import BlockSparseModelPatcher
from .pattern import PatternOptimizer

__all__ = ["BlockSparseAttention", "BlockSparseLinear", "BlockSparseModelPatcher",
           "MixtureOfExperts", "PatternOptimizer", "PseudoBlockSparseLinear", "Route",
           "alibi_slopes", "attention", "balance_loss", "blocks_from_dense", "blocks_to_dense",
           "dense_twin", "forget_packed", "grouped_matmul", "mask_bits", "matmul", "matmul_sampled",
           "route", "scaled_dot_product_attention", "sparsify_like"]
