"""Packed forms of weights that stay as they are, for runs without gradients."""

import weakref

from .. import ops
from .._arrays import forget, storage_address, watched


class _Entry:
    """A tensor, as it was at a version, and the packed forms of that."""

    __slots__ = ("tensor", "version", "memory", "packed")

    def __init__(self, tensor):
        self.tensor = weakref.ref(tensor, lambda _, key=id(tensor): _drop(key))
        self.version = tensor._version
        self.memory = tensor.detach()  # while it is held, nothing else gets this address
        self.packed = ops.Packed(all_plans=False)


_entries = {}


def _drop(key):
    entry = _entries.pop(key, None)
    if entry is not None:
        watched.get(storage_address(entry.memory), {}).pop(key, None)


def packed_of(weight):
    """The `bsk.ops.Packed` of a weight in its present version, or None for tensors without one.

    torch counts the changes of a tensor by all its operations but those on ``weight.data``; the ops
    of this package forget what they write to, and a run with gradients forgets its weight.
    """
    if weight.is_inference() or weight.data_ptr() == 0:
        return None
    entry = _entries.get(id(weight))
    if (entry is None or entry.version != weight._version or entry.tensor() is not weight
            or entry.memory.data_ptr() != weight.data_ptr()):
        _drop(id(weight))
        entry = _entries[id(weight)] = _Entry(weight)
        watchers = watched.setdefault(storage_address(weight), {})
        watchers[id(weight)] = lambda key=id(weight): _drop(key)
    return entry.packed


def forget_packed(model=None):
    """Forgets the packed forms of weights: those of a model, or all.

    They are made when a layer runs a second time without gradients, and are made anew by themselves
    when torch's operations change the weights; writes through ``weight.data``, which torch does not
    count, are to be followed by this.

    Parameters
    ----------
    model : nn.Module, optional
    """
    if model is None:
        for key in list(_entries):
            _drop(key)
        return
    for parameter in model.parameters():
        _drop(id(parameter))
