"""Packed forms of weights that stay as they are, for runs without gradients."""

import sys
import weakref
from typing import Optional

from torch.nn import Module, Parameter

from .. import ops
from .._arrays import forget, is_capturing, storage_address, watched, watched_lock

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

    def detach(self):
        if sys._getframe(1).f_code is not Parameter.__new__.__code__:
            return super().detach()
        self._unpack()  # Parameter(parameter) wants to get back the type that it gave
        made = self.detach()
        made.__class__ = Parameter
        return made

    def __deepcopy__(self, memo):
        self._unpack()
        return self.__deepcopy__(memo)

    def _unpack(self):
        self.__class__ = Parameter
        _drop(id(self))


class _Entry:
    """A parameter, as it was at a version, and the packed forms of that."""

    __slots__ = ("tensor", "version", "memory", "address", "storage", "packed")

    def __init__(self, tensor):
        self.tensor = weakref.ref(tensor, lambda _, key=id(tensor): _drop(key))
        self.version = tensor._version
        self.memory = tensor.detach()  # while it is held, nothing else gets this address
        self.address = tensor.data_ptr()
        self.storage = storage_address(tensor)
        self.packed = ops.Packed(all_plans=False)


_entries = {}
_replayed = {}  # parameters that captured graphs train, each time they are replayed


def _drop(key):
    with watched_lock:
        entry = _entries.pop(key, None)
        if entry is None:
            return
        watchers = watched.get(entry.storage, {})
        watchers.pop(key, None)
        if not watchers:
            watched.pop(entry.storage, None)
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


def trained(weight):
    """To be called where gradients of a weight are recorded: it will change."""
    forget(weight)
    if weight.is_cuda and type(weight) in (Parameter, _Watched) and is_capturing(weight.device):
        _replayed[id(weight)] = weakref.ref(weight, lambda _, k=id(weight): _replayed.pop(k, None))


def packed_of(weight):
    """The `bsk.ops.Packed` of a parameter in its present version, or None for other tensors.

    torch counts the changes of a tensor by its operations, and the ops of this package do so too;
    what is not counted, fused optimizers and ``parameter.data``, forgets what may be written to,
    and so does a run with gradients. There are none of what others write to: memory that processes
    share, and weights that captured graphs train; and none for runs that are captured, each replay
    of which reads the weights as they are then.
    """
    if weight.is_cuda and is_capturing(weight.device):
        return None
    entry = _entries.get(id(weight))
    if (entry is not None and entry.tensor() is weight and entry.version == weight._version
            and entry.address == weight.data_ptr()):
        return entry.packed
    if type(weight) not in (Parameter, _Watched):
        return None
    if (weight.is_inference() or weight.data_ptr() == 0 or id(weight) in _replayed
            or weight.device.type == "cpu" and weight.is_shared()):
        _drop(id(weight))
        return None
    with watched_lock:
        _drop(id(weight))
        entry = _entries[id(weight)] = _Entry(weight)
        watchers = watched.setdefault(storage_address(weight), {})
        watchers[id(weight)] = lambda key=id(weight): _drop(key)
        weight.__class__ = _Watched
    return entry.packed


def unwatch(inputs):
    """For modes of torch, which refuse types that they do not know."""
    for x in inputs:
        if type(x) is _Watched:
            x._unpack()


def forget_packed(model: Optional[Module] = None) -> None:
    """Forgets the packed forms of weights: those of a model, or all.

    They are made when a layer runs a second time without gradients, and made anew by themselves
    when the weights change: by torch's operations and optimizers, by the ops of this package, or
    by ``weight.data``. Writes that none of them sees, through NumPy, DLPack, collectives of
    torch.distributed or a ``weight.data`` of long ago, are to be followed by this.

    Parameters
    ----------
    model : nn.Module, optional
    """
    keys = list(_entries) if model is None else [id(p) for p in model.parameters()]
    for key in keys:
        _drop(key)
