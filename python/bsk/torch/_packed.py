"""Packed forms of weights that stay as they are, for runs without gradients."""

import weakref

from torch.nn import Parameter

from .. import ops
from .._arrays import storage_address, watched, watched_lock

try:
    from torch.optim.optimizer import register_optimizer_step_post_hook as after_steps
except ImportError:  # before torch 2.0
    after_steps = None


class _Watched(Parameter):
    """What the class of a parameter is while a packed form of it is kept: torch counts the changes
    of a tensor by its operations, but not those through ``parameter.data``, so who asks for that
    gets it without a packed form left behind."""

    @property
    def data(self):
        self._unpack()
        return self.data

    @data.setter
    def data(self, value):
        self._unpack()
        self.data = value

    def __deepcopy__(self, memo):
        self._unpack()
        return self.__deepcopy__(memo)

    def _unpack(self):
        self.__class__ = Parameter
        _drop(id(self))


class _Entry:
    """A parameter, as it was at a version, and the packed forms of that."""

    __slots__ = ("tensor", "version", "memory", "packed")

    def __init__(self, tensor):
        self.tensor = weakref.ref(tensor, lambda _, key=id(tensor): _drop(key))
        self.version = tensor._version
        self.memory = tensor.detach()  # while it is held, nothing else gets this address
        self.packed = ops.Packed(all_plans=False)


_entries = {}


def _drop(key):
    with watched_lock:
        entry = _entries.pop(key, None)
        if entry is None:
            return
        watchers = watched.get(storage_address(entry.memory), {})
        watchers.pop(key, None)
        if not watchers:
            watched.pop(storage_address(entry.memory), None)
        tensor = entry.tensor()
        if type(tensor) is _Watched:
            tensor.__class__ = Parameter


def _after_step(optimizer, *_):
    """Those of torch's optimizers that are fused change parameters without counting it."""
    if _entries:
        for group in optimizer.param_groups:
            for p in group["params"]:
                _drop(id(p))


if after_steps:
    after_steps(_after_step)


def packed_of(weight):
    """The `bsk.ops.Packed` of a parameter in its present version, or None for other tensors.

    torch counts the changes of a tensor by its operations; what it does not count, optimizers,
    ``parameter.data`` and the ops of this package, forgets what may be written to, and so does a
    run with gradients.
    """
    entry = _entries.get(id(weight))
    if (entry is not None and entry.tensor() is weight and entry.version == weight._version
            and entry.memory.data_ptr() == weight.data_ptr()):
        return entry.packed
    if (type(weight) not in (Parameter, _Watched) or weight.is_inference()
            or weight.data_ptr() == 0):
        return None
    with watched_lock:
        _drop(id(weight))
        entry = _entries[id(weight)] = _Entry(weight)
        watchers = watched.setdefault(storage_address(weight), {})
        watchers[id(weight)] = lambda key=id(weight): _drop(key)
        weight.__class__ = _Watched
    return entry.packed


def forget_packed(model=None):
    """Forgets the packed forms of weights: those of a model, or all.

    They are made when a layer runs a second time without gradients, and made anew by themselves
    when the weights change: by torch's operations and optimizers, by the ops of this package, or
    by ``weight.data``. Writes that none of them sees, through NumPy, DLPack or a ``weight.data``
    of long ago, are to be followed by this.

    Parameters
    ----------
    model : nn.Module, optional
    """
    keys = list(_entries) if model is None else [id(p) for p in model.parameters()]
    for key in keys:
        _drop(key)
