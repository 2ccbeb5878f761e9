"""Collectives of openai/blocksparse by torch.distributed: part of `bsk.compat`.

Between `torch.distributed.init_process_group` and its end these are calls of that; without it they
raise NotImplementedError. What the original had to choose how NCCL is driven (``num_comms``,
``sync_size``, ``prereduce``, ``logfile``) changes no result and is taken without effect.
"""

import inspect

import torch
import torch.distributed as dist

from ._arrays import changed
from .torch._register import once

__all__ = ["all_gather", "allreduce", "group_allreduce", "identity_sync", "reduce_scatter",
           "serialize_allreduce_ops", "sync_globals_zero_init_op", "sync_variables_op"]


_groups = {}  # by the world and the ranks
# Whether those take part in making a group that are in it, and no others: from torch 2.1 on.
_LOCAL = {"use_local_synchronization": True}
_has_local = _LOCAL.keys() <= inspect.signature(dist.new_group).parameters.keys()


def _group(name, world, ranks):
    """The group of some ranks, made when they first ask for it."""
    if set(ranks) == set(range(dist.get_world_size())):
        return world
    if dist.get_rank() not in ranks:
        raise ValueError(f"{name}: mpi_ranks is {list(ranks)}; must have this process, "
                         f"{dist.get_rank()}")
    if not _has_local:
        raise NotImplementedError(f"{name} with mpi_ranks of some processes needs torch 2.1")
    if (world, ranks) not in _groups:
        for ended in [key for key in _groups if key[0] is not world]:
            del _groups[ended]
        _groups[world, ranks] = dist.new_group(list(ranks), **_LOCAL)
    return _groups[world, ranks]


def _world(name, ranks=None):
    """The group of a call."""
    if not dist.is_available() or not dist.is_initialized():
        raise NotImplementedError(f"{name} needs torch.distributed: call "
                                  f"torch.distributed.init_process_group first")
    return dist.group.WORLD if ranks is None else _group(name, dist.group.WORLD, tuple(ranks))


def summed(x, group):
    y = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y, group=group)
    return y


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return summed(x, group)

    @staticmethod
    @once("allreduce")
    def backward(ctx, dy):
        return summed(dy, ctx.group), None


def allreduce(x, sync_size=0, num_comms=2, logfile="", rank=0, prereduce=0, mpi_ranks=None,
              comm_id=0, name=None):
    """The sum of x over all processes, or those of `mpi_ranks`; so is its gradient."""
    return _AllReduce.apply(x, _world("allreduce", mpi_ranks))


def group_allreduce(grads, params, search_strings=None, cast_map=None, cast_all=None, num_comms=2,
                    prereduce=0):
    """Sums gradients over all processes, in place of the list, some at a time.

    Parameters
    ----------
    grads : list of Tensor
    params : list of (str, Parameter), as ``model.named_parameters()`` gives them
        Without search_strings also a list of parameters.
    search_strings : list of str, optional
        A group for each: parameters with that in their names, the last one for all others.
    cast_map : dict, optional
        The type of a group's gradients, by its search string.
    cast_all : torch.dtype, optional
        That of all.
    """
    group = _world("group_allreduce")
    names = [p[0] if isinstance(p, tuple) else "" for p in params]
    if search_strings and not all(names):
        raise ValueError("search_strings need the names of parameters: model.named_parameters()")
    wanted = list(search_strings or [""])
    buckets = {}
    for i, (grad, name) in enumerate(zip(grads, names)):
        place = next((s for s in wanted[:-1] if s in name), wanted[-1])
        grad = grad.to(cast_all or (cast_map or {}).get(place) or grad.dtype)
        buckets.setdefault((place, grad.dtype), []).append((i, grad))
    for members in buckets.values():
        flat = torch.cat([g.detach().reshape(-1) for _, g in members])
        dist.all_reduce(flat, group=group)
        for (i, g), part in zip(members, flat.split([g.numel() for _, g in members])):
            grads[i] = part.reshape(g.shape)


def identity_sync(*tensors, sync=False, sync_bwd=True):
    """The tensors; streams of torch are in order without it."""
    return tensors if len(tensors) > 1 else tensors[0]


@torch.no_grad()
def sync_variables_op(mpi_rank, num_comms=2, prereduce=0, *, variables):
    """Gives parameters the values that they have in process 0; `mpi_rank` is this one."""
    group = _world("sync_variables_op")
    if mpi_rank != dist.get_rank():
        raise ValueError(f"mpi_rank is {mpi_rank}; this process has {dist.get_rank()}")
    for variable in variables:
        dist.broadcast(variable, 0, group=group)
        changed(variable)


@torch.no_grad()
def sync_globals_zero_init_op(num_comms=2, prereduce=0, *, variables):
    """Gives tensors the sum over all processes: the values of the one in which they are not 0."""
    group = _world("sync_globals_zero_init_op")
    for variable in variables:
        dist.all_reduce(variable, group=group)
        changed(variable)


def serialize_allreduce_ops(*tensors):
    """Nothing: torch starts collectives in the order of the calls."""


def _turned(x, transpose):
    if transpose and x.dim() != 2:
        raise ValueError(f"x has {x.dim()} dimensions; must have 2 to be transposed")
    return x.t() if transpose else x


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    @once("all_gather")
    def backward(ctx, dy):
        return _scattered(dy, ctx.group), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _scattered(x, group)

    @staticmethod
    @once("reduce_scatter")
    def backward(ctx, dy):
        return gathered(dy, ctx.group), None


def gathered(x, group):
    x = x.detach().contiguous()
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x, group=group)
    return torch.cat(parts)


def _scattered(x, group):
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if x.shape[0] % size:
        raise ValueError(f"the first dimension is {x.shape[0]}; must be a multiple of {size}")
    return summed(x, group).chunk(size)[rank].clone()


def all_gather(x, transpose=False, mpi_ranks=None):
    """The x of all processes one after the other; its gradient is `reduce_scatter`."""
    return _turned(_Gather.apply(_turned(x, transpose), _world("all_gather", mpi_ranks)), transpose)


def reduce_scatter(x, transpose=False, mpi_ranks=None):
    """This process's part of the sum of x over all processes, cut along the first dimension."""
    return _turned(_Scatter.apply(_turned(x, transpose), _world("reduce_scatter", mpi_ranks)),
                   transpose)
