"""bsk: block-sparse deep-learning kernels.

`bsk.Layout` says which blocks of a matrix are kept, `bsk.ops` has every op of the library as a
function on arrays (NumPy, torch, CuPy, whatever has DLPack or the buffer protocol), `bsk.torch`
differentiable ops and modules, `bsk.compat` the names of older libraries.

>>> import bsk
>>> layout = bsk.Layout.random((64, 96), 32, 0.5, seed=1)
>>> layout
<bsk.Layout 64 x 96 in blocks of 32 x 32: 3 blocks, density 0.5>
"""

import importlib

from . import _c, ops
from ._c import (BskError, Context, Device, DeviceError, EnvironmentVariableError, FormatError,
                 InvalidError, OutOfMemoryError, PluginError, StagedWarning, UnsupportedError,
                 context, device, devices, init, version)
from .layout import ConvVisible, Layout

__version__ = version()
for _member in _c.enums.values():
    if _member.__name__ != "Status":
        globals()[_member.__name__] = _member
del _member

__all__ = ["BskError", "Context", "ConvVisible", "Device", "DeviceError",
           "EnvironmentVariableError", "FormatError", "InvalidError", "Layout", "OutOfMemoryError",
           "PluginError", "StagedWarning", "UnsupportedError", "context", "device", "devices",
           "init", "ops", "version"]


def __getattr__(name):
    # These need torch, and are imported when they are first used.
    if name in ("torch", "compat"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module bsk has no attribute {name}")
