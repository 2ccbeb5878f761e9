"""Arrays of libraries that may be there: JAX, TensorFlow and CuPy, on the CPU and on a GPU; and of
none, which have the protocols only."""

import ctypes
import os
import types
import weakref

import pytest
from conftest import dense_of

import bsk
from bsk import Layout, _arrays, ops

LAYOUT = Layout.random((60, 92), (16, 8), 0.4, seed=3)


def operands(np):
    draw = np.random.default_rng(0)
    x = draw.standard_normal((7, 60)).astype(np.float32)
    w = draw.standard_normal((LAYOUT.nnz, 16, 8)).astype(np.float32)
    return x, w, x @ dense_of(np, LAYOUT, w)


def gpu():
    return any(d.backend == "cuda" for d in bsk.devices())


def jax_devices():
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave memory for the others
    try:
        import jax
    except ImportError:
        return ["none"]
    found = ["cpu"]
    try:
        found += ["cuda"] if gpu() and jax.devices("cuda") else []
    except RuntimeError:
        pass
    return found


@pytest.mark.parametrize("device", jax_devices())
def test_jax(np, device):
    jax = pytest.importorskip("jax")
    if device != "cpu":
        pytest.importorskip("torch")  # makes the results
    x, w, expected = operands(np)
    with jax.default_device(jax.devices(device)[0]):
        a, b = jax.numpy.asarray(x), jax.numpy.asarray(w)
        for _ in range(3):
            y = ops.matmul(LAYOUT, a + 0, b + 0)
            assert type(y) is type(a) and y.devices() == a.devices()
            np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-4, atol=1e-4)
        got = ops.layer_norm(a, mean=True, rstd=True)
        assert type(got.mean) is type(a) and got.mean.devices() == a.devices()
        np.testing.assert_allclose(np.asarray(got.mean)[0], x.mean(1), atol=1e-5)
        half = ops.matmul(LAYOUT, a.astype("bfloat16"), b.astype("bfloat16"))
        assert half.dtype == jax.numpy.bfloat16 and type(half) is type(a)
        np.testing.assert_allclose(np.asarray(half, np.float32), expected, rtol=5e-2, atol=0.2)
        with pytest.raises(TypeError, match="cannot be written"):
            ops.matmul(LAYOUT, a, b, y=y)


def test_tensorflow(np):
    tf = pytest.importorskip("tensorflow")
    x, w, expected = operands(np)
    a, b = tf.constant(x), tf.constant(w)
    for _ in range(3):
        y = ops.matmul(LAYOUT, a + 0, b + 0)
        assert isinstance(y, tf.Tensor) and y.dtype == tf.float32
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-4)
    half = ops.matmul(LAYOUT, tf.cast(a, tf.bfloat16), tf.cast(b, tf.bfloat16))
    assert isinstance(half, tf.Tensor) and half.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(half, tf.float32).numpy(), expected, rtol=5e-2, atol=0.2)
    with pytest.raises(TypeError, match="cannot be written"):
        ops.matmul(LAYOUT, a, b, y=y)
    with pytest.raises(TypeError, match="is no array"):
        ops.matmul(LAYOUT, tf.Variable(x), b)


def test_cupy(np):
    cupy = pytest.importorskip("cupy")
    if not gpu():
        pytest.skip("no GPU")
    x, w, expected = operands(np)
    with cupy.cuda.Stream(non_blocking=True):
        a, b = cupy.asarray(x), cupy.asarray(w)
        for _ in range(3):
            y = ops.matmul(LAYOUT, a + 0, b + 0)
            assert type(y) is cupy.ndarray
            np.testing.assert_allclose(cupy.asnumpy(y), expected, rtol=1e-4, atol=1e-4)
        out = cupy.zeros((7, 100), cupy.float32)
        ops.matmul(LAYOUT, a, b, y=out[:, :92])
        np.testing.assert_allclose(cupy.asnumpy(out[:, :92]), expected, rtol=1e-4, atol=1e-4)
        assert not out[:, 92:].any()
        half = ops.matmul(LAYOUT, a.astype(cupy.float16), b.astype(cupy.float16))
        np.testing.assert_allclose(cupy.asnumpy(half), expected, rtol=2e-2, atol=0.05)


class OnlyDLPack:
    """An array of an unknown library."""

    def __init__(self, inner):
        self.inner = inner

    def __dlpack__(self, **more):
        return self.inner.__dlpack__(**more)

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()


def test_dlpack_on_a_gpu(np):
    torch = pytest.importorskip("torch")
    if not gpu() or not torch.cuda.is_available():
        pytest.skip("no GPU")
    x, w, expected = operands(np)
    a, b = torch.from_numpy(x).cuda(), torch.from_numpy(w).cuda()
    y = torch.empty(7, 92, device="cuda")
    ops.matmul(LAYOUT, OnlyDLPack(a), OnlyDLPack(b), y=OnlyDLPack(y))
    np.testing.assert_allclose(y.cpu().numpy(), expected, rtol=1e-4, atol=1e-4)
    y = ops.matmul(LAYOUT, OnlyDLPack(a), OnlyDLPack(b))
    assert type(y) is torch.Tensor
    np.testing.assert_allclose(y.cpu().numpy(), expected, rtol=1e-4, atol=1e-4)


# --- protocols alone ------------------------------------------------------------------------------

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Exporter:
    """Memory with DLPack's protocol, written from its definition."""

    def __init__(self, address, code, bits, shape, strides=None, offset=0, device=(1, 0)):
        self.device, self.streams = device, []
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = strides and (ctypes.c_int64 * len(strides))(*strides)
        self.tensor = _arrays._DLTensor(
            data=address, device_type=device[0], device_id=device[1], ndim=len(shape), code=code,
            bits=bits, lanes=1, shape=self.shape, strides=self.strides, byte_offset=offset)

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return _new_capsule(ctypes.addressof(self.tensor), b"dltensor", None)

    def __dlpack_device__(self):
        return self.device


def seen(x):
    return _arrays.describe[type(x)](x)


def test_dlpack_by_its_definition(np):
    x, w, expected = operands(np)
    wide = np.zeros((7, 64), np.float32)
    wide[:, 2:62] = x
    y = ops.matmul(LAYOUT, Exporter(wide.ctypes.data, 2, 32, (7, 60), (64, 1), offset=8),
                   Exporter(w.ctypes.data, 2, 32, w.shape, device=(3, 0)))
    assert type(y) is np.ndarray
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    for code, bits, name in ((2, 64, "f64"), (2, 16, "f16"), (4, 16, "bf16"), (10, 8, "f8e4m3"),
                             (12, 8, "f8e5m2"), (0, 32, "i32"), (0, 8, "i8"), (1, 8, "u8"),
                             (6, 8, "u8")):
        assert seen(Exporter(w.ctypes.data, code, bits, (3,)))[0][0] == name
    for bad in (Exporter(w.ctypes.data, 5, 64, (3,)), Exporter(64, 2, 32, (3,), device=(4, 0))):
        with pytest.raises(TypeError):
            seen(bad)


def test_dlpack_of_a_gpu_is_asked_for_the_default_stream():
    for kind, backend, stream in ((2, "cuda", 1), (10, "hip", 0)):
        x = Exporter(4096, 2, 32, (3, 5), device=(kind, 1))
        assert seen(x) == (("f32", (3, 5), None, (backend, 1, stream, True)), 4096)
        assert x.streams == [stream]


class Interface:
    """Memory of a GPU with CUDA's protocol."""

    def __init__(self, fixed=False, **more):
        self.interface = {"typestr": "<f4", "shape": (3, 5), "version": 3, "data": (4096, fixed),
                          **more}

    @property
    def __cuda_array_interface__(self):
        return self.interface


def test_cuda_array_interface():
    for stream, waits in ((None, True), (1, False), (2, False), (140737, False)):
        signature, address = seen(Interface(stream=stream, strides=(40, 4)))
        assert signature == ("f32", (3, 5), (40, 4), ("cuda", 0, stream, waits))
        assert address == 4096
    assert seen(Interface())[0][3] == ("cuda", 0, None, True)  # before version 3
    with pytest.raises(bsk.InvalidError, match="stream of a Interface is 0"):
        seen(Interface(stream=0))
    for bad in (Interface(mask=Interface()), Interface(typestr=">f4"), Interface(typestr="<c8")):
        with pytest.raises(TypeError):
            seen(bad)
    with pytest.raises(bsk.InvalidError, match="read-only"):
        _arrays.describe_out[Interface](Interface(fixed=True))
    assert _arrays.describe_out[Interface](Interface())[1] == 4096


def test_where_a_run_goes():
    free, bound, other = (("cuda", 0, stream, stream is None) for stream in (None, 5, 7))
    names = "xw"
    assert _arrays.common([bound, bound], names, "op") == bound
    assert _arrays.common([free, free], names, "op") == free
    # Memory that is free may be used as soon as the call returns.
    assert _arrays.common([free, bound], names, "op") == ("cuda", 0, 5, True)
    for ats, message in (([bound, other], "op: w lies on cuda:0, stream 7, x on cuda:0, stream 5"),
                         ([free, ("cuda", 1, None, True)], "w lies on cuda:1, x on cuda:0"),
                         ([_arrays.HOST, free], "w lies on cuda:0, x on the host")):
        with pytest.raises(bsk.InvalidError, match=message):
            _arrays.common(ats, names, "op")


def test_host_arrays_of_two_libraries(np):
    torch = pytest.importorskip("torch")
    x, w, expected = operands(np)
    for y, kind in ((ops.matmul(LAYOUT, x, torch.from_numpy(w)), np.ndarray),
                    (ops.matmul(LAYOUT, torch.from_numpy(x), w), torch.Tensor)):
        assert type(y) is kind
        np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-4, atol=1e-4)


class FakeCuda:
    """torch.cuda as far as results on a native stream need it; tells what was done in which
    order."""

    def __init__(self, current):
        self.log, self.now = [], self.made(current)

    def made(self, name):
        return types.SimpleNamespace(
            name=name, wait_stream=lambda other: self.log.append(f"{name} waits for {other.name}"))

    def default_stream(self, index):
        return self.now if self.now.name == "default" else self.made("default")

    def ExternalStream(self, native, device):
        return self.made(f"external {native}")

    def current_stream(self, index):
        return self.now

    def stream(self, stream):
        log = self.log

        class Within:
            def __enter__(self):
                log.append(f"on {stream.name}")

            def __exit__(self, *_):
                log.append("back")

        return Within()

    def empty(self, shape, dtype, device):
        self.log.append("empty")
        return types.SimpleNamespace(
            record_stream=lambda stream: self.log.append(f"used on {stream.name}"))


@pytest.mark.parametrize("native,waits,current,made,after", [
    (None, True, "default", ["on default", "empty", "back"], ["sync"]),
    (None, True, "mine", ["on default", "empty", "back", "used on mine"], ["sync"]),
    (1, False, "mine", ["on default", "empty", "back", "used on mine"], ["mine waits for default"]),
    (2, False, "default", ["on external 2", "empty", "back", "used on default"],
     ["default waits for external 2"]),
    (77, False, "mine", ["on external 77", "empty", "back", "used on mine"],
     ["mine waits for external 77"]),
])
def test_results_are_made_on_the_stream_of_the_run(monkeypatch, native, waits, current, made,
                                                   after):
    cuda, wrapped = FakeCuda(current), []
    fake = types.SimpleNamespace(cuda=cuda, device=lambda *a: a)
    device = types.SimpleNamespace(local=types.SimpleNamespace(), synchronize=None,
                                   queue=lambda stream: wrapped.append(stream) or "queue")
    monkeypatch.setattr(_arrays._c, "device", lambda name: device)
    monkeypatch.setattr(_arrays._c, "lib", types.SimpleNamespace(
        bsk_queue_sync=lambda queue: cuda.log.append("sync")))
    monkeypatch.setitem(_arrays.sys.modules, "torch", fake)
    where = _arrays.ForeignPlace("cuda", 0, native, waits)
    queue, _ = where.enter(types.SimpleNamespace(workspace_bytes=0))
    assert wrapped == [native or 0] and queue == "queue"
    _arrays.torch_maker(fake, cuda.empty, (3,), "f32", 0, native)()
    assert cuda.log == made
    cuda.log.clear()
    assert not where.runner(lambda *a: cuda.log.append("run"), True)("plan", queue, "args")
    assert cuda.log == ["run"] + after
    if not waits:  # results that are given are their owner's affair
        cuda.log.clear()
        where.runner(lambda *a: cuda.log.append("run"), False)("plan", queue, "args")
        assert cuda.log == ["run"]


def test_dlpack_capsule_lives_as_long_as_the_address(np):
    class Fresh:
        """Each capsule is of memory of its own."""

        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **options):
            made = np.ones(4, np.float32)
            self.made = weakref.ref(made)
            return made.__dlpack__()

    x = Fresh()
    _, address = _arrays.describe[Fresh](x)
    assert x.made() is not None
    del address
    assert x.made() is None
