"""The shared library: where it is found, its structs and functions, and its errors."""

from __future__ import annotations

import ctypes
import enum
import operator
import os
import pathlib
import struct
import sys
import threading
import warnings
from typing import Any

from . import _abi

SCALARS = {
    "int": ctypes.c_int, "size_t": ctypes.c_size_t, "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64, "uint8_t": ctypes.c_uint8, "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float, "double": ctypes.c_double, "void": None, "function": ctypes.c_void_p,
    "bsk_log_fn": ctypes.c_void_p, "char *": ctypes.c_char_p,
}


class BskError(RuntimeError):
    """A call of the library failed. The message is the library's own; `status` its code."""

    status = 0


class InvalidError(BskError, ValueError):
    """An argument breaks the contract; the message names it, its value and the legal range."""


class UnsupportedError(BskError, NotImplementedError):
    """No entry of the device accepts the problem."""


class OutOfMemoryError(BskError, MemoryError):
    """Host memory or device memory."""


class DeviceError(BskError):
    """The device or its driver refused, failed or is gone."""


class PluginError(BskError, ImportError):
    """A backend module is missing, broken or of another version."""


class FormatError(BskError, ValueError):
    """Serialized bytes are newer than the library, or fail their checks."""


class EnvironmentVariableError(BskError, ValueError):
    """An environment variable has a value that is not legal."""


class StagedWarning(UserWarning):
    """An op has no entry on the device and runs on the CPU with copies."""


ERRORS = {
    "BSK_E_INVALID": InvalidError, "BSK_E_UNSUPPORTED": UnsupportedError,
    "BSK_E_NOMEM": OutOfMemoryError, "BSK_E_DEVICE_NOMEM": OutOfMemoryError,
    "BSK_E_DEVICE": DeviceError, "BSK_E_DEVICE_LOST": DeviceError,
    "BSK_E_PLUGIN": PluginError, "BSK_E_VERSION": FormatError, "BSK_E_CORRUPT": FormatError,
    "BSK_E_ENVIRONMENT": EnvironmentVariableError,
}


def check(status):
    """Raises the exception of a status unless it is 0."""
    if status:
        name = next((n for n, v in _abi.ENUMS["bsk_status"].items() if v == status), str(status))
        error = ERRORS.get(name, BskError)(lib.bsk_last_error().decode() or name)
        error.status = status
        raise error


# --- types ----------------------------------------------------------------------------------------

def make_type(name):
    """The ctypes type of a C type by its name."""
    if name in SCALARS:
        return SCALARS[name]
    if name in _abi.ENUMS:
        return ctypes.c_int
    if name in _abi.STRUCTS:
        if name not in structs:
            structs[name] = type(name, (ctypes.Structure,), {
                "_fields_": [(f, make_type(kind) * n if n > 1 else make_type(kind))
                             for f, kind, n in _abi.STRUCTS[name]]})
        return structs[name]
    return ctypes.c_void_p  # pointers, and handles among them


structs = {}
for _name in _abi.STRUCTS:
    make_type(_name)

INTEGERS = {ctypes.c_int32, ctypes.c_int64, ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64}
FLOATS = {ctypes.c_float, ctypes.c_double}
kinds = {made: dict(made._fields_) for made in structs.values()}
Tensor = structs["bsk_tensor"]
Mem = structs["bsk_mem"]


def fitting(kind, value, name):
    """A number as a C type has it: ctypes would cut those that do not fit."""
    if kind not in INTEGERS and kind not in FLOATS:
        return value
    try:
        number = operator.index(value) if kind in INTEGERS else kind(value).value
    except TypeError:
        what = "an integer" if kind in INTEGERS else "a number"
        raise InvalidError(f"{name} is {value!r}; must be {what}") from None
    if kind in FLOATS:
        return number
    bits = 8 * ctypes.sizeof(kind)
    low = -(1 << bits - 1) if kind(-1).value < 0 else 0
    if not 0 <= number - low < 1 << bits:
        raise InvalidError(f"{name} is {number}; must be in [{low}, {low + (1 << bits) - 1}]")
    return number


def put(made, name, value):
    """Sets a field of a struct."""
    setattr(made, name, fitting(kinds[type(made)][name], value, name))


def new(name, **fields):
    """A params or args struct with its size set."""
    made = structs[name]()
    for field, value in fields.items():
        put(made, field, value)
    made.struct_size = ctypes.sizeof(made)
    return made


CODES = {ctypes.c_size_t: "N", ctypes.c_int: "i", ctypes.c_int32: "i", ctypes.c_int64: "q",
         ctypes.c_uint64: "Q", ctypes.c_double: "d", ctypes.c_void_p: "P"}


SIZED = ("workspace", "packed")


def packer(cls, left_out=()):
    """A struct.Struct that makes the bytes of an args struct: numbers as they come, a bsk_mem from
    its kind and its address, those of SIZED also from their size. Other sizes of views are 0, which
    means unknown, and so are all of the fields that are left out."""
    text, position = "@", 0
    for name, kind in cls._fields_:
        if name in left_out:
            continue
        offset = getattr(cls, name).offset
        code = CODES[kind] if kind is not Mem else "QP8xQ" if name in SIZED else "QP"
        text += "x" * (offset - position) + code
        position = offset + struct.calcsize("@" + code)
    made = struct.Struct(text + "x" * (ctypes.sizeof(cls) - position))
    assert made.size == ctypes.sizeof(cls), cls
    return made


def _enum_name(name):
    return "".join(part.capitalize() for part in name.replace("bsk_", "", 1).split("_"))


def _make_enum(name, values):
    """An IntEnum whose members are the C names without what they share, in lower case."""
    prefix = os.path.commonprefix(list(values)) if len(values) > 1 else "BSK_"
    prefix = prefix[:prefix.rindex("_") + 1]
    members = {n[len(prefix):].lower(): v for n, v in values.items() if not n.endswith("_COUNT")}
    return enum.IntEnum(_enum_name(name), members, module="bsk")


enums = {name: _make_enum(name, values) for name, values in _abi.ENUMS.items()}


def choice(kind, value, name):
    """A choice as a number: a name, a member of the enumeration, or a number."""
    if kind in enums and isinstance(value, str):
        try:
            return int(enums[kind][value])
        except KeyError:
            legal = ", ".join(enums[kind].__members__)
            raise InvalidError(f"{name} is {value!r}; must be one of {legal}") from None
    return value


# --- the library ----------------------------------------------------------------------------------

def _candidates():
    if os.environ.get("BSK_LIBRARY"):
        return [os.environ["BSK_LIBRARY"]]
    inside = pathlib.Path(__file__).parent / "lib" / "libbsk.so.0"
    return ([str(inside)] if inside.exists() else []) + ["libbsk.so.0", "libbsk.so"]


def _load():
    failures = []
    for name in _candidates():
        try:
            found = ctypes.CDLL(name)
        except OSError as error:
            failures.append(str(error))
            continue
        for function, (result, parameters) in _abi.FUNCTIONS.items():
            try:
                pointer = getattr(found, function)
            except AttributeError:
                raise ImportError(f"{name} has no {function}: the package needs version "
                                  f"{_abi.VERSION} of the library") from None
            pointer.restype = make_type(result)
            pointer.argtypes = [make_type(p) for p in parameters]
        return found
    raise ImportError("libbsk is not found; BSK_LIBRARY can name it (" + "; ".join(failures) + ")")


lib = _load()


def call(function, *arguments):
    """Calls a function of the library that gives a status."""
    found = getattr(lib, function)
    check(found(*(fitting(kind, value, f"{function}: an argument")
                  for kind, value in zip(found.argtypes, arguments))))


def version() -> str:
    """The version of the library that is loaded."""
    return lib.bsk_version().decode()


# --- contexts, devices, queues --------------------------------------------------------------------

class Context:
    """The library's settings, backends and devices. There is one, made at the first use.

    Parameters
    ----------
    **settings
        Fields of ``bsk_context_params``: ``backends="cuda,cpu"``, ``num_threads=4``,
        ``fallback="forbid"``, ``kernels="+name,-glob"``, ``cache_dir="off"``, ... Each wins over
        its environment variable.
    """

    def __init__(self, **settings: Any) -> None:
        # Modules that came with the package are found beside it.
        inside = pathlib.Path(__file__).parent / "lib"
        if "plugin_path" not in settings and inside.exists():
            more = os.environ.get("BSK_PLUGIN_PATH", "")
            settings["plugin_path"] = str(inside) + (":" + more if more else "")
        params = new("bsk_context_params")
        for name, value in settings.items():
            kind = dict((f, k) for f, k, _ in _abi.STRUCTS["bsk_context_params"]).get(name)
            if kind is None or kind in ("bsk_allocator", "bsk_log_fn", "void *"):
                raise TypeError(f"{name} is no setting of a context")
            value = choice(kind, value, name)
            put(params, name, value.encode() if isinstance(value, str) else value)
        handle = ctypes.c_void_p()
        check(lib.bsk_context_create(ctypes.addressof(params), ctypes.addressof(handle)))
        self.handle = handle.value
        self.devices = {}
        for i in range(lib.bsk_context_device_count(self.handle)):
            device = Device(lib.bsk_context_device(self.handle, i))
            self.devices[device.id] = device


class _Queues(dict):
    """The queues of a thread, by native stream; they end with it."""

    def __del__(self):
        if not sys.is_finalizing():
            for queue in self.values():
                handle = ctypes.c_void_p(queue)
                lib.bsk_queue_destroy(ctypes.addressof(handle))


class Device:
    """A device of the context: ``id``, ``backend``, ``name``, ``arch``, ``driver``,
    ``memory_bytes``, ``compute_units``, ``host_memory``."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        info = new("bsk_device_info")
        check(lib.bsk_device_query(handle, ctypes.addressof(info)))
        for name, _ in info._fields_[1:]:
            value = getattr(info, name)
            setattr(self, name, value.decode() if isinstance(value, bytes) else value)
        self.local = threading.local()  # queues and workspaces, by thread

    def __repr__(self):
        return f"<bsk.Device {self.id}: {self.name}, {self.arch}>"

    def queue(self, stream: int | None = None) -> int:
        """The calling thread's queue on a native stream, or one of its own without."""
        local = self.local.__dict__
        queues = local.get("queues")
        if queues is None:
            queues = local["queues"] = _Queues()
        if stream in queues:
            return queues[stream]
        handle = ctypes.c_void_p()
        if stream is None:
            check(lib.bsk_queue_create(self.handle, ctypes.addressof(handle)))
        else:
            check(lib.bsk_queue_wrap(self.handle, stream, ctypes.addressof(handle)))
        queues[stream] = handle.value
        return handle.value

    def synchronize(self, stream: int | None = None) -> None:
        """Waits for the calling thread's queue on a native stream, or for its own without, and
        reports the first error of its work."""
        queue = self.local.__dict__.get("queues", {}).get(stream)
        if queue is not None:
            check(lib.bsk_queue_sync(queue))


_context = None
_context_lock = threading.Lock()


def context() -> Context:
    """The context, made now if it was not yet."""
    global _context
    with _context_lock:
        if _context is None:
            _context = Context()
    return _context


def init(**settings: Any) -> None:
    """Makes the context with settings of its own; before the first use of the library.

    Raises
    ------
    RuntimeError
        If the library is in use already.
    """
    global _context
    with _context_lock:
        if _context is not None:
            raise RuntimeError("bsk is in use already: call bsk.init before everything else")
        _context = Context(**settings)


def devices() -> list[Device]:
    """The devices, the default one first, as a list."""
    return list(context().devices.values())


def device(name: str | None = None) -> Device:
    """A device by its id, such as ``"cpu:0"``; without one the default device."""
    handle = ctypes.c_void_p()
    check(lib.bsk_context_find_device(context().handle, name.encode() if name else None,
                                      ctypes.addressof(handle)))
    return next(d for d in devices() if d.handle == handle.value)


def warn_staged(info):
    warnings.warn(f"{info.op.decode()} has no entry for these arguments on their device: it runs "
                  f"on the CPU with copies", StagedWarning, stacklevel=5)
