"""Attention and its gradients over sequences so long that each worker of a GPU has many tiles."""

import pytest

torch = pytest.importorskip("torch")

import bsk  # noqa: E402
from bsk import Layout  # noqa: E402

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and any(d.backend in ("cuda", "hip") for d in bsk.devices())),
    reason="no GPU")

TIME, WINDOW = 8192, 512
# Rounding errors are a few units of the type; one wrong step of a row is 0.1 and more.
LIMIT = {torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.fixture(autouse=True)
def exact_products():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def pattern(kind, block):
    """A layout, the options of attention, and what is visible."""
    row = torch.arange(TIME, device="cuda")[:, None]
    column = row.T
    if kind == "full":
        return Layout.full((TIME, TIME), block), {}, row.new_ones((), dtype=torch.bool)
    if kind == "causal":
        return Layout.causal(TIME, block), {"causal": 1}, row >= column
    if kind == "local":
        return (Layout.local(TIME, block, WINDOW), {"causal": 1, "window": WINDOW},
                (row >= column) & (row - column < WINDOW))
    blocks = torch.rand(TIME // block, TIME // block, generator=torch.Generator().manual_seed(3))
    blocks = (blocks < 0.1) | torch.eye(TIME // block, dtype=torch.bool)
    seen = blocks.cuda().repeat_interleave(block, 0).repeat_interleave(block, 1)
    return Layout.from_mask(blocks.numpy(), block), {}, seen


def shares(seen, scale, q, k):
    return torch.softmax((q @ k.T * scale).masked_fill_(~seen, float("-inf")), -1)


def errors(seen, scale, q, k, v, dout, made):
    """Of each of o, dq, dk and dv of one head the largest error of a row. Its measure is what the
    row's terms would sum up to if their signs were random, and the row itself: the first rows of a
    causal mask are tiny differences of large terms. Kernels round shares and slopes to the type, and
    those below its normal numbers with an error of the smallest of these."""
    tiny = torch.finfo(q.dtype).tiny
    q, k, v, dout = (x.float() for x in (q, k, v, dout))
    p = shares(seen, scale, q, k)
    o = p @ v
    delta = (dout * o).sum(-1, keepdim=True)
    dp = dout @ v.T
    ds = p * (dp - delta)
    size = p * (dp.abs() + (dout * o).abs().sum(-1, keepdim=True)) * scale
    square, size = (x.clamp_min(tiny).masked_fill_(~seen, 0).square_() for x in (p, size))
    wanted = (o, ds @ k * scale, ds.T @ q * scale, p.T @ dout)
    sizes = (square @ v.square(), size @ k.square(), size.T @ q.square(),
             square.T @ dout.square())
    return [((g.float() - w).norm(dim=-1) / (w.norm(dim=-1) + s.sum(-1).sqrt())).max().item()
            for g, w, s in zip(made, wanted, sizes)]


@pytest.mark.parametrize("width, block, kind, dtype", [
    (64, 32, "local", torch.float16),
    (64, 32, "random", torch.bfloat16),
    (64, 64, "random", torch.bfloat16),
    (64, 128, "full", torch.bfloat16),
    (64, 128, "causal", torch.float16),
    (96, 64, "local", torch.bfloat16),
    (96, 32, "random", torch.float16),
    (128, 32, "local", torch.bfloat16),
    (128, 32, "random", torch.float16),
    (128, 64, "local", torch.float16),
    (128, 64, "random", torch.bfloat16),
    (128, 128, "causal", torch.bfloat16),
    (128, 128, "random", torch.float16),
    (128, 16, "random", torch.bfloat16),
    (128, 16, "local", torch.float16),
    (128, 8, "random", torch.float16),
    (128, 8, "local", torch.bfloat16),
    (64, 16, "random", torch.float16),
    (64, 16, "local", torch.bfloat16),
    (64, 8, "random", torch.bfloat16),
    (64, 8, "local", torch.float16),
    (256, 128, "causal", torch.bfloat16),
    (256, 64, "random", torch.float16),
    (256, 32, "local", torch.bfloat16),
    (256, 16, "random", torch.float16),
    (256, 8, "local", torch.bfloat16),
    (192, 128, "random", torch.float16),
    (192, 64, "local", torch.bfloat16),
    (160, 32, "random", torch.float16),
])
def test_gradients_equal_dense(width, block, kind, dtype):
    layout, options, seen = pattern(kind, block)
    torch.manual_seed(1)
    q, k, v, dout = (torch.randn(2, 4, TIME, width, device="cuda", dtype=dtype) for _ in range(4))
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")
    scale = width**-0.5
    bsk.ops.attention(layout, q, k, v, o=o, lse=lse, scale=scale, **options)
    runs = []
    for _ in range(3):
        dq, dk, dv = (torch.full_like(q, float("nan")) for _ in range(3))
        bsk.ops.attention_grad(layout, q, k, v, o, dout, lse, dq=dq, dk=dk, dv=dv, scale=scale,
                               **options)
        runs.append((dq, dk, dv))
    for again in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(runs[0], again))
    for at in ((0, 0), (0, 3), (1, 1), (1, 2)):
        made = [x[at] for x in (o, *runs[0])]
        assert max(errors(seen, scale, q[at], k[at], v[at], dout[at], made)) < LIMIT[dtype]


@pytest.mark.parametrize("width, block, kind, dtype", [
    (256, 128, "causal", torch.bfloat16),
    (256, 128, "random", torch.float16),
    (256, 64, "local", torch.bfloat16),
    (256, 64, "random", torch.float16),
    (256, 32, "random", torch.bfloat16),
    (192, 128, "causal", torch.float16),
    (192, 64, "local", torch.bfloat16),
    (192, 64, "random", torch.float16),
    (128, 16, "local", torch.bfloat16),
    (128, 8, "random", torch.float16),
    (64, 16, "random", torch.float16),
    (64, 8, "local", torch.bfloat16),
])
def test_results_equal_dense(width, block, kind, dtype):
    layout, options, seen = pattern(kind, block)
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 4, TIME, width, device="cuda", dtype=dtype) for _ in range(3))
    scale = width**-0.5
    runs = []
    for _ in range(3):
        o = torch.full_like(q, float("nan"))
        lse = torch.full(q.shape[:3], float("nan"), device="cuda")
        bsk.ops.attention(layout, q, k, v, o=o, lse=lse, scale=scale, **options)
        runs.append((o, lse))
    for again in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(runs[0], again))
    for at in ((0, 0), (0, 3), (1, 1), (1, 2)):
        x, y, z = (t[at].float() for t in (q, k, v))
        p = shares(seen, scale, x, y)
        wanted, size = p @ z, (p.square() @ z.square()).sum(-1).sqrt()
        error = (o[at].float() - wanted).norm(dim=-1) / (wanted.norm(dim=-1) + size)
        assert error.max().item() < LIMIT[dtype]
        sums = torch.logsumexp((x @ y.T * scale).masked_fill_(~seen, float("-inf")), -1)
        assert (lse[at] - sums).abs().max().item() < 1e-4
