"""Arrays of other libraries as the C interface sees them: type, shape, strides, address, place.

``describe[type(x)](x)`` gives ``(signature, address)``. A signature is hashable, and holds all that
a plan depends on: ``(element type, shape, strides, place)``. The element type and the strides are
as the array's own library states them; ``whole`` and ``tensor`` translate them once, when a plan
is made.
"""

import ctypes
import functools
import sys
import threading

from . import _c

DTYPES = {name: int(code) for name, code in _c.enums["bsk_dtype"].__members__.items()}
NAMES = {code: name for name, code in DTYPES.items()}
SIZES = {code: int(_c.lib.bsk_dtype_size(code)) for code in NAMES}
# How others call the same types.
ALIASES = {"float64": "f64", "double": "f64", "float32": "f32", "float": "f32", "float16": "f16",
           "half": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3",
           "float8_e5m2": "f8e5m2", "int64": "i64", "int32": "i32", "uint16": "u16",
           "uint8": "u8", "int8": "i8", "bool": "u8"}
LONG = {}
for _long, _short in ALIASES.items():
    LONG.setdefault(_short, _long)
BUFFER_FORMATS = {"d": "f64", "f": "f32", "e": "f16", "q": "i64", "l": "i64", "i": "i32",
                  "H": "u16", "B": "u8", "b": "i8", "?": "u8", "c": "u8"}
TYPESTRS = {"f8": "f64", "f4": "f32", "f2": "f16", "i8": "i64", "i4": "i32", "u2": "u16",
            "u1": "u8", "i1": "i8", "b1": "u8"}
BUFFER_CODES = {"f64": "d", "f32": "f", "f16": "e", "i64": "q", "i32": "i", "u16": "H", "u8": "B",
                "i8": "b"}
HOST = "host"

# What an array without elements points to.
_nowhere = ctypes.create_string_buffer(128)
NOWHERE = (ctypes.addressof(_nowhere) + 63) & ~63


class Held(int):
    """An address with the owner of what is there, which lives as long: until its run has ended."""

    def __new__(cls, address, owner):
        made = super().__new__(cls, address)
        made.owner = owner
        return made


def dtype_code(name):
    """The number of an element type: a name, "f32" or "float32", or another library's object."""
    text = name if isinstance(name, str) else (getattr(name, "__name__", None) or str(name))
    text = text.rsplit(".", 1)[-1]
    text = ALIASES.get(text, text)
    if text not in DTYPES or text == "none":
        raise TypeError(f"{name} is no element type of bsk: {', '.join(list(DTYPES)[1:])}")
    return DTYPES[text]


def dtype_name(name):
    """The name by which this package knows an element type."""
    return NAMES[dtype_code(name)]


class Place:
    """Where memory lies: a device of bsk, the kind of memory, and whose stream counts."""

    mem_kind = 1
    kind = "numpy"

    def __init__(self, name):
        self.device = _c.device(name)
        self.local = self.device.local

    def enter(self, plan):
        """The queue and the workspace's address for a run on this thread."""
        local = self.local
        try:
            queue = local.queue
        except AttributeError:
            queue = local.queue = self.device.queue()
        return queue, (self.workspace(local, plan) if plan.workspace_bytes else 0)

    @staticmethod
    def workspace(local, plan):
        size, address, _ = getattr(local, "workspace", (0, 0, None))
        if size < plan.workspace_bytes or address % plan.workspace_alignment:
            size = plan.workspace_bytes
            local.workspace = size, *_host_memory(size, plan.workspace_alignment)
            address = local.workspace[1]
        return address

    def order(self, queue):
        """Runs of one order see what was written before them; all do where a run has ended when it
        returns."""
        return None

    def runner(self, run, makes):
        """What to call for a run: the library's function, and what is to be done after it.

        Parameters
        ----------
        run : callable
            ``run(plan, queue, args)`` gives a status.
        makes : bool
            Whether results are made by this package.
        """
        return run

    def memory(self, size, alignment):
        """(address, owner) of memory that lives as long as its owner."""
        return _host_memory(size, alignment)

    def destroy(self, plan):
        """Called for a plan that nobody uses any more."""
        return True


def _host_memory(size, alignment):
    memory = ctypes.create_string_buffer(size + alignment)
    address = ctypes.addressof(memory)
    return address + -address % alignment, memory


class _DeviceMemory:
    """Memory of a device by the library."""

    def __init__(self, place, size):
        self.place, self.mem = place, _c.Mem()
        _c.check(_c.lib.bsk_mem_alloc(place.device.handle, size, ctypes.addressof(self.mem)))

    def __del__(self):
        if not sys.is_finalizing() and self.mem.handle:
            self.place.wait()
            _c.lib.bsk_mem_free(self.place.device.handle, ctypes.addressof(self.mem))


class DevicePlace(Place):
    """Memory of a GPU; runs go to the stream that ``stream()`` gives."""

    mem_kind = 2

    def __init__(self, name, stream, synchronize, kind):
        super().__init__(name)
        self.stream = stream
        self.wait = synchronize
        self.kind = kind
        self.streams = {}  # by queue; threads have queues of their own on one stream

    def enter(self, plan):
        stream = self.stream()
        queue = self.device.queue(stream)
        self.streams[queue] = stream
        return queue, (self.device_workspace(stream, plan) if plan.workspace_bytes else 0)

    def order(self, queue):
        return self.streams[queue]

    def device_workspace(self, stream, plan):
        """One for each thread and stream, which grows; what it replaces is freed when idle."""
        held = self.local.__dict__.setdefault("workspaces", {})
        size, address, _ = held.get(stream, (0, 0, None))
        if size < plan.workspace_bytes:
            size = plan.workspace_bytes
            held[stream] = size, *self.memory(size, plan.workspace_alignment)
            address = held[stream][1]
        return address

    def memory(self, size, alignment):
        made = _DeviceMemory(self, size)
        return made.mem.handle + made.mem.offset, made

    def destroy(self, plan):
        self.wait()
        return True


class ForeignPlace(DevicePlace):
    """Memory of a GPU of which a library says no more than its protocol; results are torch's.

    Parameters
    ----------
    backend : str
    index : int
    native : int, optional
        The stream in whose order the memory is ready; without one it is in any order.
    waits : bool
        Whether a call returns after its run, since the library may use the memory at once.
    """

    def __init__(self, backend, index, native, waits):
        # A stream may be gone by the time its plans are, and then nothing can wait for it; but to
        # free a plan's memory waits for the whole device.
        super().__init__(f"{backend}:{index}", lambda: native or 0,
                         lambda: self.device.synchronize(0), None)
        self.index, self.native, self.waits = index, native, waits

    def runner(self, run, makes):
        if self.waits:
            return lambda plan, queue, args: (run(plan, queue, args)
                                              or _c.lib.bsk_queue_sync(queue))
        if not makes:
            return run

        def run_and_follow(plan, queue, args):
            """Results are torch's, whose current stream goes on after the run."""
            status = run(plan, queue, args)
            if not status:
                cuda = sys.modules["torch"].cuda
                cuda.current_stream(self.index).wait_stream(torch_stream(cuda, self.index,
                                                                         self.native))
            return status

        return run_and_follow


def torch_stream(cuda, index, native):
    """torch's object for a native stream; 0 and 1 name the default stream."""
    if native in (None, 0, 1):
        return cuda.default_stream(index)
    return cuda.ExternalStream(native, device=index)


def torch_maker(torch, make, shape, dtype, index, native):
    """A function that makes a tensor for a run on a native stream: memory that torch's allocator
    may have got back on another stream could still be in use there."""
    def made():
        stream, now = torch_stream(torch.cuda, index, native), torch.cuda.current_stream(index)
        with torch.cuda.stream(stream):
            result = make(shape, dtype=dtype, device=torch.device("cuda", index))
        if stream != now:
            result.record_stream(now)
        return result

    return made


def common(ats, names, op):
    """Where a run goes whose arrays lie at `ats`: one device, and one stream at most."""
    kinds = list(dict.fromkeys(ats))
    if len(kinds) == 1:
        return kinds[0]
    if all(at == HOST or getattr(at, "type", None) == "cpu" for at in kinds):
        return kinds[0]
    if all(isinstance(at, tuple) and len(at) == 4 and at[:2] == kinds[0][:2] for at in kinds):
        streams = {at[2] for at in kinds} - {None}
        if len(streams) < 2:
            return (*kinds[0][:2], *(streams or {None}), any(at[3] for at in kinds))
    other = next(i for i, at in enumerate(ats) if at != ats[0])
    raise _c.InvalidError(f"{op}: {names[other]} lies on {_told(ats[other])}, {names[0]} on "
                          f"{_told(ats[0])}")


def _told(at):
    if not isinstance(at, tuple):
        return f"the {at}" if at == HOST else str(at)
    stream = f", stream {at[2]}" if len(at) == 4 and at[2] is not None else ""
    return f"{'cuda' if at[0] == 'cupy' else at[0]}:{at[1]}{stream}"


_places = {}


def place(at):
    """The Place of a signature's last member: HOST, a torch.device, ("cupy", index), or the
    arguments of a ForeignPlace."""
    found = _places.get(at)
    if found is None:
        found = _places[at] = make_place(at)
    return found


def make_place(at):
    if at == HOST:
        return Place("cpu:0")
    if isinstance(at, tuple):
        if at[0] == "cupy":
            import cupy
            return DevicePlace(f"cuda:{at[1]}", lambda: cupy.cuda.get_current_stream().ptr,
                               cupy.cuda.runtime.deviceSynchronize, "cupy")
        return ForeignPlace(*at)
    if at.type == "cpu":
        host = Place("cpu:0")
        host.kind = "torch"
        return host
    return _torch_place(at)


# --- NumPy, as soon as someone has imported it ----------------------------------------------------

def _numpy_address(np):
    """A function for the address of an array's data. The C interface of NumPy has it as the first
    field behind the object's head; where that is not so, the slower official way is taken."""
    head = object.__basicsize__
    sample = np.zeros(3)
    pointer = ctypes.c_void_p.from_address
    if pointer(id(sample) + head).value == sample.ctypes.data:
        return lambda x: pointer(id(x) + head).value
    return lambda x: x.ctypes.data


def _register_numpy(np):
    address = _numpy_address(np)

    def numpy_array(x):
        if not x.size:
            return (x.dtype, x.shape, x.strides, HOST), NOWHERE
        return (x.dtype, x.shape, x.strides, HOST), address(x)

    def numpy_out(x):
        if not x.flags.writeable:
            raise _c.InvalidError("an output is an array that is read-only")
        return numpy_array(x)

    describe[np.ndarray] = numpy_array
    describe_out[np.ndarray] = numpy_out


# --- torch ----------------------------------------------------------------------------------------

# By the address of a storage: what is to be called before an op writes to it, for those who keep
# copies of what is there.
watched = {}
watched_lock = threading.RLock()


def storage_address(x):
    storage = x.untyped_storage() if hasattr(x, "untyped_storage") else x.storage()
    return storage.data_ptr()


def forget(x):
    """Calls those who keep copies of what the storage of a tensor has."""
    if watched:
        with watched_lock:
            for drop in list(watched.pop(storage_address(x), {}).values()):
                drop()


@functools.cache
def counter(torch):
    """A function that counts a change of a tensor as torch's own operations do."""
    count = getattr(torch.autograd.graph, "increment_version", None)
    if not count:  # before torch 2.1 by an operation on a second name of the same memory
        return lambda x: x.is_inference() or x.detach().squeeze_()
    # What that calls takes several tensors, in older versions one; tensors without a version are
    # left alone, or an error.
    direct = getattr(torch._C, "_increment_version", None)
    try:
        with torch.inference_mode():
            direct((torch.empty(1),))
        with torch.inference_mode(False):
            sample = torch.empty(1)
            before = sample._version
            direct((sample,))
            if sample._version == before + 1:
                return lambda x: direct((x,))
    except (TypeError, RuntimeError):
        pass
    return lambda x: x.is_inference() or count(x)


def changed(x):
    """To be called where a tensor of torch is written to past torch's operations."""
    forget(x)
    counter(sys.modules["torch"])(x)


def without_memory(x):
    """The address of a tensor of torch that has none."""
    if x.numel():
        raise _c.InvalidError(f"a tensor of shape {tuple(x.shape)} has no memory: its storage was "
                              f"freed")
    return NOWHERE


def refuse_tracing(torch):
    """What a trace of torch.jit saw of a run would be constants."""
    if torch._C._get_tracing_state() is not None:
        raise NotImplementedError("torch.jit.trace does not see the ops of bsk: use torch.compile "
                                  "or torch.export")


# What a signature says of the place of torch's tensors in host memory; of GPUs it has the number.
# Numbers are compared in less time than a torch.device.
CPU = -1


def torch_signature(n):
    """The text of an expression for the signature of torch's tensor of a name."""
    return (f"{n}.dtype, {n}.shape, {n}.stride(), "
            f"{n}.get_device() if {n}.is_cuda else {CPU} if {n}.is_cpu else {n}.device")


def whole(signature):
    """A signature whose place is complete."""
    *first, at = signature
    if type(at) is int:
        device = sys.modules["torch"].device
        at = device("cpu") if at == CPU else device("cuda", at)
    return *first, at


def torch_types():
    """(torch.Tensor, a function to be called before one is written to) for code that is made with
    `torch_signature`; (None, None) while nobody has imported torch."""
    torch = sys.modules.get("torch")
    if not hasattr(torch, "Tensor"):
        return None, None
    count = counter(torch)

    def written(x):
        refuse_tracing(torch)
        if watched:
            forget(x)
        count(x)

    return torch.Tensor, written


def _register_torch(torch):
    written = torch_types()[1]
    space = {}
    exec(f"def signature(x): return {torch_signature('x')}", space)
    signature = space["signature"]

    def torch_tensor(x):
        if x.is_neg():
            x = x.resolve_neg()
            return signature(x), Held(x.data_ptr(), x)
        return signature(x), x.data_ptr() or without_memory(x)

    def torch_out(x):
        if x.is_neg():
            raise _c.InvalidError("an output has the negative bit: its numbers are not in memory")
        written(x)
        return signature(x), x.data_ptr() or without_memory(x)

    for kind in (torch.Tensor, torch.nn.Parameter):
        describe[kind], describe_out[kind] = torch_tensor, torch_out


@functools.cache
def _torch_streams(torch, index):
    """(a function for torch's current stream of a device, whether that is being captured)."""
    current = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    stream = (functools.partial(current, index) if current
              else (lambda: torch.cuda.current_stream(index).cuda_stream))
    return stream, getattr(torch._C, "_cuda_isCurrentStreamCapturing",
                           torch.cuda.is_current_stream_capturing)


def is_capturing(device):
    """Whether torch's current stream of a GPU is being captured."""
    stream, capturing = _torch_streams(sys.modules["torch"], device.index or 0)
    return _is_captured(stream(), capturing)


def _is_captured(stream, capturing):
    """The default stream cannot be captured, and to ask the driver takes its time."""
    return bool(stream) and capturing()


def _torch_place(device):
    import torch

    if device.type != "cuda":
        raise TypeError(f"tensors on {device} are not served")
    index = device.index or 0
    return _torch_device_place(torch, device, index, *_torch_streams(torch, index))


def _torch_device_place(torch, device, index, stream, capturing):
    class TorchPlace(DevicePlace):
        def enter(self, plan):
            now = stream()
            held = self.local.__dict__
            try:
                queue = held[now]
            except KeyError:
                queue = held[now] = self.device.queue(now)
                self.streams[queue] = now
            if _is_captured(now, capturing):
                plan.captured = True  # the graph refers to its tables from now on
                return queue, self.new_workspace(plan)
            return queue, (self.torch_workspace(held, now, plan) if plan.workspace_bytes else 0)

        def capturing(self):
            return _is_captured(stream(), capturing)

        def new_workspace(self, plan):
            """Of a capture's own memory, which other ops of the graph may have before and after."""
            address, self.local.captured = self.memory(plan.workspace_bytes,
                                                       plan.workspace_alignment)
            return address

        def torch_workspace(self, held, now, plan):
            """One for each thread and stream, which grows."""
            size, address, _ = held.get((now,), (0, 0, None))
            if size < plan.workspace_bytes or address % plan.workspace_alignment:
                size = plan.workspace_bytes
                held[(now,)] = size, *self.memory(size, plan.workspace_alignment)
                address = held[(now,)][1]
            return address

        def memory(self, size, alignment):
            """Of torch's caching allocator."""
            made = torch.empty(size + alignment, dtype=torch.uint8, device=device)
            address = made.data_ptr()
            return address + -address % alignment, made

        def destroy(self, plan):
            if plan.captured or capturing():
                return False
            torch.cuda.synchronize(index)
            return True

    backend = "hip" if getattr(torch.version, "hip", None) else "cuda"
    return TorchPlace(f"{backend}:{index}", stream, lambda: torch.cuda.synchronize(index), "torch")


# --- everything else ------------------------------------------------------------------------------

class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


_DL_TYPES = {(2, 64): "f64", (2, 32): "f32", (2, 16): "f16", (4, 16): "bf16", (10, 8): "f8e4m3",
             (12, 8): "f8e5m2", (0, 64): "i64", (0, 32): "i32", (0, 8): "i8", (1, 16): "u16",
             (1, 8): "u8",
             (6, 8): "u8"}
_DL_HOSTS = (1, 3, 11)  # the host's own memory, and what CUDA and ROCm pinned
# By device type: the backend, and its default stream as DLPack counts.
_DL_DEVICES = {2: ("cuda", 1), 10: ("hip", 0)}
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _bytes_of(strides, size):
    return None if strides is None else tuple(s * size for s in strides)


def _from_dlpack(x):
    kind, index = x.__dlpack_device__()
    kind = int(kind)
    if kind in _DL_HOSTS:
        capsule, at = x.__dlpack__(), HOST
    elif kind in _DL_DEVICES:
        # The memory is made ready for the default stream, on which the run then goes.
        backend, stream = _DL_DEVICES[kind]
        capsule, at = x.__dlpack__(stream=stream), (backend, index, stream, True)
    else:
        raise TypeError(f"memory of DLPack's device type {kind} is not served")
    t = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    name = _DL_TYPES.get((t.code, t.bits))
    if name is None or t.lanes != 1:
        raise TypeError(f"elements of {type(x).__name__} are of no type of bsk")
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] for i in range(t.ndim)) if t.strides else None
    return ((name, shape, _bytes_of(strides, SIZES[DTYPES[name]]), at),
            Held((t.data or 0) + t.byte_offset or NOWHERE, capsule))


def _from_cuda_interface(x, writable=False):
    interface = x.__cuda_array_interface__
    order, name = interface["typestr"][0], TYPESTRS.get(interface["typestr"][1:])
    if name is None or order == ">":
        raise TypeError(f"{interface['typestr']} is no element type of bsk")
    if interface.get("mask") is not None:
        raise TypeError(f"a {type(x).__name__} with a mask is not served")
    address, fixed = interface["data"]
    if writable and fixed:
        raise _c.InvalidError(f"an output is a {type(x).__name__}, which is read-only")
    index = getattr(getattr(x, "device", None), "id", 0)
    if type(x).__module__.split(".")[0] == "cupy":
        at = ("cupy", index)
    else:
        # None: there is nothing to wait for. 1, 2: the default streams, whose handles these are.
        stream = interface.get("stream")
        if stream == 0:
            raise _c.InvalidError(f"the stream of a {type(x).__name__} is 0; must be None, 1, 2 or "
                                  f"a handle")
        at = ("cuda", index, stream, stream is None)
    return (name, tuple(interface["shape"]), interface.get("strides"), at), address or NOWHERE


def _from_buffer(x, writable=False):
    try:
        view = memoryview(x)
    except TypeError:
        raise TypeError(f"a {type(x).__name__} is no array: it has neither DLPack nor the buffer "
                        f"protocol") from None
    if writable and view.readonly:
        raise _c.InvalidError(f"an output is a {type(x).__name__}, which is read-only")
    name = BUFFER_FORMATS.get(view.format.lstrip("@=<"))
    if name is None or (name == "i64" and view.itemsize != 8):
        raise TypeError(f"elements of format {view.format} are of no type of bsk")
    return (name, view.shape, view.strides, HOST), (_buffer_address(view) or NOWHERE)


class _PyBuffer(ctypes.Structure):
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
                ("rest", ctypes.c_void_p * 10)]


def _buffer_address(view):
    buffer = _PyBuffer()
    if ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0x18):
        raise TypeError("the buffer has no strides")
    address = buffer.buf
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address


_IMMUTABLE = {"jax": "JAX", "jaxlib": "JAX", "tensorflow": "TensorFlow"}


def _written(function):
    return functools.partial(function, writable=True)


class _Describe(dict):
    """Functions by type, found when a type is first seen."""

    def __init__(self, output):
        super().__init__()
        self.output = output

    def __missing__(self, kind):
        for module, register in (("numpy", _register_numpy), ("torch", _register_torch)):
            loaded = sys.modules.get(module)
            base = getattr(loaded, "ndarray" if module == "numpy" else "Tensor", None)
            if base and issubclass(kind, base):
                if base not in describe:
                    register(loaded)
                if kind not in self:
                    self[kind] = self[base]
                return self[kind]
        library = kind.__module__.split(".")[0]
        if self.output and library in _IMMUTABLE:
            raise TypeError(f"arrays of {_IMMUTABLE[library]} cannot be written to: leave the "
                            f"output out")
        if hasattr(kind, "__dlpack__") and library != "cupy":
            function = _from_dlpack
        elif hasattr(kind, "__cuda_array_interface__"):
            function = _written(_from_cuda_interface) if self.output else _from_cuda_interface
        elif issubclass(kind, (int, float, complex, str, list, tuple, dict)) or kind is type(None):
            raise TypeError(f"a {kind.__name__} is no array")
        else:
            function = _written(_from_buffer) if self.output else _from_buffer
        self[kind] = function
        return function


describe = _Describe(False)
describe_out = _Describe(True)


def code_of(signature):
    return dtype_code(signature[0])


def tensor(signature, what="the tensor"):
    """The bsk_tensor of a signature."""
    kind, shape, strides, at = signature
    code = dtype_code(kind)
    if len(shape) > 5:
        raise _c.InvalidError(f"{what} has {len(shape)} dimensions; up to 5 are legal")
    made = _c.Tensor()
    made.dtype = code
    made.rank = len(shape)
    for i, size in enumerate(shape):
        made.dims[i] = size
    if strides is None:
        return made
    if not hasattr(at, "type"):  # all but torch count bytes
        if any(s % SIZES[code] for s in strides):
            raise _c.InvalidError(f"{what} has strides that are no multiples of its elements")
        strides = [s // SIZES[code] for s in strides]
    if not any(strides) and all(shape) and any(size > 1 for size in shape):
        raise _c.InvalidError(f"{what} repeats one element in all dimensions: copy it first")
    for i, stride in enumerate(strides):
        made.strides[i] = stride
    return made


def allocator(like, at, shape, code, zeros):
    """A function that makes an array of the kind of `like` where that lies."""
    made = "zeros" if zeros else "empty"
    where = place(at)
    name = NAMES[code]
    if where.kind == "torch":
        import torch
        dtype = getattr(torch, LONG[name])
        make = getattr(torch, made)

        def make_untraced():
            refuse_tracing(torch)
            return make(shape, dtype=dtype, device=at)

        return make_untraced
    if where.kind == "cupy":
        import cupy
        make = getattr(cupy, made)
        return lambda: make(shape, dtype=BUFFER_CODES[name])
    if where.kind is None:
        torch = sys.modules.get("torch")
        if torch is None:
            raise TypeError(f"results cannot be made for {type(like).__name__}: give the output or "
                            "import torch")
        return torch_maker(torch, getattr(torch, made), shape, getattr(torch, LONG[name]), *at[1:3])
    if "numpy" in sys.modules:
        np = sys.modules["numpy"]
        if name not in BUFFER_CODES:
            try:
                import ml_dtypes
            except ModuleNotFoundError:
                raise ModuleNotFoundError(f"NumPy has no type {LONG[name]} without the package "
                                          f"ml_dtypes: install it") from None
            dtype = np.dtype(getattr(ml_dtypes, LONG[name]))
        else:
            dtype = np.dtype(BUFFER_CODES[name])
        make = getattr(np, made)
        return lambda: make(shape, dtype)
    size = SIZES[code]
    for s in shape:
        size *= s
    return lambda: memoryview(bytearray(size)).cast(BUFFER_CODES[name], shape)


class _Converters(dict):
    """Functions ``(result, like)`` by the type of an input, for those whose library makes its own
    arrays from others; None for the rest."""

    def __missing__(self, kind):
        library = kind.__module__.split(".")[0]
        if library == "tensorflow":
            self[kind] = _to_tensorflow
        elif library in ("numpy", "torch", "cupy") or not hasattr(kind, "__array_namespace__"):
            self[kind] = None
        else:
            self[kind] = _converted
        return self[kind]


def _converted(result, like):
    namespace = like.__array_namespace__()
    try:
        return namespace.from_dlpack(result)
    except BufferError:  # NumPy's arrays of the types that it lacks itself
        return namespace.asarray(result)


def _to_tensorflow(result, like):
    import tensorflow
    if type(result).__module__.split(".")[0] == "torch":  # on a GPU
        return tensorflow.experimental.dlpack.from_dlpack(result.__dlpack__())
    return tensorflow.convert_to_tensor(result)


converters = _Converters()
