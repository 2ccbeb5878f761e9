"""Arrays of libraries that may be there: JAX and CuPy, on the CPU and on a GPU."""

import os

import pytest
from conftest import dense_of

import bsk
from bsk import Layout, ops

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
