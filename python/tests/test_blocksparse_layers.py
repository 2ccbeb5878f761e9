"""What else of openai/blocksparse `bsk.compat` has: formats, LSTM, convolutions, collectives."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import bsk.compat as bs  # noqa: E402
from test_blocksparse import equal, rand  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

# --- arguments ------------------------------------------------------------------------------------


def test_what_is_not_known_is_refused():
    x, b, idx = rand(4, 6, 8), rand(8), torch.zeros(3, dtype=torch.long)
    calls = [(lambda **more: bs.bias_relu(x, b, **more), 1), (lambda **more: bs.relu(x, **more), 0),
             (lambda **more: bs.layer_norm(x, b, b, axis=-1, **more), 1),
             (lambda **more: bs.embedding_lookup(x[0], idx, **more), 1),
             (lambda **more: bs.add(x, x, **more), 0),
             (lambda **more: bs.AdamOptimizer([x], **more), 0)]
    for call, measured in calls:
        with pytest.raises(TypeError, match="unheard_of"):
            call(unheard_of=1)
        call(name="a")
        if measured:
            with pytest.raises(NotImplementedError, match="bench"):
                call(bench=5)
            with pytest.raises(NotImplementedError, match="use_tf"):
                call(use_tf=True)
    for axis in (1, 3, -4):
        with pytest.raises(ValueError, match="axis"):
            bs.bias_relu(x, b, axis)
        with pytest.raises(ValueError, match="axis"):
            bs.layer_norm(x, b, b, axis=axis)
    with pytest.raises(ValueError, match="axis"):
        bs.reduce_max(x, 3)
    with pytest.raises(ValueError, match="exclude"):
        bs.bias_relu(x, b, relu=True, fast_gelu=True)
    with pytest.raises(ValueError, match="mask_shape"):
        bs.dropout(x, 0.5, mask_shape=(4, 2, 8))
    bsmm = bs.BlocksparseMatMul([[1, 0], [1, 1]], 8, 1)
    with pytest.raises(ValueError, match="must be"):
        bsmm(rand(3, 17), rand(*bsmm.w_shape))
    with pytest.raises(NotImplementedError, match="bench"):
        bsmm(rand(3, 16), rand(*bsmm.w_shape), bench=1)


def test_last_axis_by_any_name():
    x, b = rand(4, 6, 8), rand(8)
    equal(bs.bias_relu(x, b, axis=2), x + b, x, b)
    equal(bs.layer_norm(x, b, b, axis=2), F.layer_norm(x, (8,), b, b, 1e-6), x, b)


def kept(function):
    """Elements that autograd keeps of a call."""
    total = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: total.append(t.numel()) or t,
                                                  lambda t: t):
        function()
    return sum(total)


def test_only_what_gradients_need_is_kept():
    x, table = rand(10, 20), rand(30, 20)
    idx = torch.arange(5)
    for function, count in ((lambda: bs.add_n([x, x]), 0), (lambda: bs.transpose_2d(x), 0),
                            (lambda: bs.float_cast(x, torch.float32), 0),
                            (lambda: bs.dropout(x, 0.5), 0), (lambda: bs.softmax(x), 200),
                            (lambda: bs.square(x), 200), (lambda: bs.scale_tensor(x, 2.0), 0),
                            (lambda: bs.embedding_lookup(table, idx), 5)):
        assert kept(function) == count


def test_second_derivatives_are_refused():
    x = rand(3, 4)
    for function in (bs.square, bs.softmax, bs.transpose_2d, lambda x: bs.float_cast(
            x, torch.float32).double()):
        first, = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        with pytest.raises(NotImplementedError, match="once"):
            torch.autograd.grad(first.sum(), x)


# --- products with gates --------------------------------------------------------------------------

@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_of_gated_products(axis):
    """dW without the gate, only for gates other than 0, and times the gate."""
    bsmm = bs.BlocksparseMatMul([[1, 0, 1], [1, 1, 0]], 8, axis)
    x, w = rand(*bsmm.i_shape(5)), rand(*bsmm.w_shape)
    gate = torch.tensor([0.5, 0.0, 2.0, 1.0], dtype=torch.float64, requires_grad=True)
    draw = torch.randn(bsmm.o_shape(5), dtype=torch.float64)
    plain = bsmm.updat_test(x.detach(), draw)
    for options, factor in (({}, torch.ones(4)), ({"dw_gated": True}, gate.detach() != 0),
                            ({"gate_grad": True}, gate.detach())):
        y = bsmm(x, w, gate=gate, **options)
        assert torch.allclose(y, bsmm.fprop_test(x, w, gate))
        grads = torch.autograd.grad((y * draw).sum(), (x, w, gate), allow_unused=True)
        assert torch.allclose(grads[0], bsmm.bprop_test(draw, w, gate))
        assert torch.allclose(grads[1], plain * factor[:, None, None])
        if "gate_grad" in options:
            assert torch.allclose(grads[2], (plain * w).sum((1, 2)))
        else:
            assert grads[2] is None


# --- formats --------------------------------------------------------------------------------------

def test_quantize():
    x = torch.randn(50, 40, requires_grad=True)
    spec = bs.QuantizeSpec(ebits=5, fbits=10, emax=15, frequency=0)
    coarse = bs.QuantizeSpec(ebits=5, fbits=2, emax=15, frequency=0)
    y = bs.quantize(x, spec, coarse)
    assert torch.equal(y, x.half().float())
    draw = torch.randn_like(y)
    dx, = torch.autograd.grad(y, x, draw)
    assert float((dx / draw - 1).abs().max()) <= 2**-3 and len(dx.unique()) < 150
    up = bs.quantize(torch.full((4000,), 1.125), bs.QuantizeSpec(5, 2, 15, stochastic=1,
                                                                 frequency=0))
    assert up.unique().tolist() == [1.0, 1.25] and abs(float(up.mean()) - 1.125) < 0.01
    assert bs.quantize(torch.tensor([3e-5]), bs.QuantizeSpec(4, 3, denorm=False,
                                                             frequency=0)).item() == 0


def test_quantize_measures_the_range(tmp_path):
    spec = bs.QuantizeSpec(4, 3, frequency=8, logfile=str(tmp_path / "log"))
    x = torch.tensor([0.5, -3.0, 1.0])
    assert torch.equal(bs.quantize(x, spec, name="a"), x)
    assert spec.ranges["a"].emax == 3  # 3.0 has 1, plus bias_pad
    bs.quantize(1024 * x, spec, name="b")
    assert spec.ranges["b"].emax == 13 and spec.ranges["a"].emax == 3
    for _ in range(11):
        bs.quantize(x, spec, name="a")
    # At calls 1 to 4, then at every other one until 12.
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0].split("\t")[0] == "exp_max" and len(lines) == 1 + 8 + 1
    for size in (1, 1024, 1):  # without a name nothing is shared
        assert torch.equal(bs.quantize(size * x, spec), size * x)
    assert set(spec.ranges) == {"a", "b"}
    again = bs.QuantizeSpec(copy=spec)
    assert (again.ebits, again.freq, again.logfile) == (4, 8, spec.logfile) and not again.ranges


def test_log_stats(tmp_path):
    path = tmp_path / "stats"
    for step in range(1, 17):
        x = torch.full((10,), 2.0, requires_grad=True)
        y = bs.log_stats(x, step, freq=8, bfreq=0, logfile=str(path), name="x")
        assert torch.equal(y, x)
        y.sum().backward()
        assert torch.equal(x.grad, torch.ones(10))
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    assert rows[0] == ["step", "mean", "stdv", "max", "sat_pct", "ftz_pct", "name"]
    assert [r[0] for r in rows[1:]] == ["1", "2", "4", "8", "16"] and rows[1][1] == "2"
    with pytest.raises(ValueError, match="powers of two"):
        bs.log_stats(x, 1, freq=3, logfile=str(path))


# --- LSTM -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("layernorm", [True, False])
def test_grouped_lstm(layernorm):
    torch.manual_seed(1)
    inputs, c, h = rand(3, 5, 7), rand(3, 8), rand(3, 8, seed=1)
    variables = nn.ParameterDict()
    bs.grouped_lstm(inputs.float(), 8, 5, (c.float(), h.float()), layernorm=layernorm,
                    variables=variables)
    assert len(variables) == 2 + layernorm
    variables.double()
    got, (got_c, got_h) = bs.grouped_lstm(inputs, 8, 5, (c, h), reuse=True, layernorm=layernorm,
                                          variables=variables)
    kernel, bias = variables["grouped_lstm_kernel"], variables["grouped_lstm_bias"]
    outputs, now = [], (c, h)
    for t in range(5):
        gates = torch.cat((inputs[:, t], now[1]), 1) @ kernel
        if layernorm:
            gates = F.layer_norm(gates.reshape(3, 4, 8), (8,), eps=1e-6).reshape(3, 32)
            gates = gates * variables["grouped_lstm_gain"]
        i, u, f, o = (gates + bias).chunk(4, 1)
        c_next = torch.sigmoid(f + 1) * now[0] + torch.sigmoid(i) * torch.tanh(u)
        now = c_next, torch.sigmoid(o) * torch.tanh(c_next)
        outputs.append(now[1])
    equal((got, got_c, got_h), (torch.stack(outputs, 1), *now), inputs, c, h,
          *variables.values())
    with pytest.raises(ValueError, match="other_kernel"):
        bs.grouped_lstm(inputs, 8, 5, (c, h), "other", reuse=True, variables=variables)


def test_lstm_cell():
    cell = bs.FusedBasicLSTMCell(6, 8)
    x, c, h = torch.randn(3, 6), torch.randn(3, 8), torch.randn(3, 8)
    out, (c_next, h_next) = cell(x, (c, h))
    assert out is h_next and out.shape == (3, 8)
    cell.state_is_tuple = False
    again, state = cell(x, torch.cat((c, h), 1))
    assert torch.equal(again, out) and torch.equal(state, torch.cat((c_next, h_next), 1))


# --- convolutions ---------------------------------------------------------------------------------

DIAGONAL = [([0, 1, 2], [0, 1]), ([3, 4, 5], [2, 3])]
OVERLAPPING = [([0, 1, 2], [0, 1, 2]), ([2, 3], [2, 3]), ([4, 5], [0, 3])]


def dense_filter(conv, f):
    """The filter [K, C, ...] of a whole convolution."""
    whole = torch.zeros(conv.K, conv.C, *conv.TRS, dtype=f.dtype)
    for (inputs, outputs), part in zip(conv.BCK, conv._filters(f)):
        for a, k in enumerate(outputs):
            for b, c in enumerate(inputs):
                whole = whole.index_put((torch.tensor(k), torch.tensor(c)),
                                        part[b, a] if conv.deconv else part[a, b], accumulate=True)
    return whole


@pytest.mark.parametrize("blocks", [DIAGONAL, OVERLAPPING])
@pytest.mark.parametrize("options", [
    {"TRS": (3,), "DHW": (9,)}, {"TRS": (5,), "DHW": (12,), "strides": (2,), "dilates": (2,)},
    {"TRS": (3, 3), "DHW": (6, 8), "padding": "VALID"}, {"TRS": (2, 3, 3), "DHW": (4, 5, 6)},
    {"TRS": (3, 1), "DHW": (6, 6), "strides": (2, 1), "padding": (1, 0)}])
def test_conv(blocks, options):
    conv = bs.BlocksparseConv(blocks, **options)
    f, x = rand(*conv.f_shape()), rand(*conv.i_shape(2))
    expected = F.conv3d(x.reshape(2, conv.C, *conv.DHW), dense_filter(conv, f),
                        stride=conv.strides, padding=conv.padding, dilation=conv.dilates)
    equal(conv(f, x), expected.reshape(conv.o_shape(2)), f, x)
    unit = conv.l2_normalize(f)
    for block, part in enumerate(conv._filters(unit)):
        length = part.flatten(1).norm(dim=1)
        assert torch.allclose(length, torch.ones_like(length)), block


@pytest.mark.parametrize("options", [
    {"TRS": (3, 3), "DHW": (5, 6)}, {"TRS": (3,), "DHW": (6,), "strides": (2,), "MPQ": (12,)},
    {"TRS": (4,), "DHW": (6,), "strides": (2,), "padding": (1,)}])
def test_deconv(options):
    """The gradient of the convolution that goes the other way."""
    deconv = bs.BlocksparseDeconv(DIAGONAL, **options)
    f, x = rand(*deconv.f_shape()), rand(*deconv.i_shape(2))
    y = deconv(f, x)
    assert list(y.shape) == deconv.o_shape(2)
    more = {n: v for n, v in options.items() if n not in ("MPQ", "DHW")}
    conv = bs.BlocksparseConv([(k, c) for c, k in DIAGONAL], DHW=deconv.MPQ[-deconv.dims:],
                              MPQ=deconv.DHW[-deconv.dims:], **more)
    z = rand(*conv.i_shape(2))
    expected, = torch.autograd.grad(conv(f, z), z, x, create_graph=True)
    equal(y, expected, f, x)
    gain = rand(deconv.K)
    unit = deconv._filters(deconv.l2_normalize(f, gain))
    lengths = torch.cat([p.transpose(0, 1).flatten(1).norm(dim=1) for p in unit])
    assert torch.allclose(lengths, gain)


@pytest.mark.parametrize("last", [True, False])
def test_edge_bias(last):
    """3 x 3 with padding 1: four corners and four sides are classes of their own."""
    shape = (2, 5, 6, 4) if last else (2, 4, 5, 6)
    bias = bs.ConvEdgeBias(shape, shape, (3, 3, 4, 4), data_format="NHWC" if last else "NCHW")
    assert bias.shape == ((8, 4) if last else (4, 8))
    x, g, b = rand(*shape), rand(*bias.shape), rand(*bias.shape, seed=1)
    y = bias(x, g, b)
    inner = (slice(None), slice(1, -1), slice(1, -1)) if last else (..., slice(1, -1), slice(1, -1))
    assert torch.equal(y[inner], x[inner])
    corner = (slice(None), -1, -1) if last else (..., -1, -1)
    at = bias.which.reshape(5, 6)[-1, -1]
    own = (g[at], b[at]) if last else (g[:, at], b[:, at])
    assert torch.allclose(y[corner], x[corner] * own[0] + own[1])
    dg, = torch.autograd.grad(y.sum(), g)
    edge = bias.which >= 0
    flat = x.reshape(2, 30, 4) if last else x.reshape(2, 4, 30).transpose(1, 2)
    assert torch.allclose(dg.sum(), flat[:, edge].sum())
    z = x.detach().clone()
    assert bias(z, g, b, inference=True) is z and torch.equal(z, y)
    none = bs.conv_edge_bias_init(x, x, torch.zeros(1, 1, 4, 4))
    assert none.shape[0] == 0 and none(x, None, None) is x


# --- training -------------------------------------------------------------------------------------

def test_gradients():
    x, y = rand(3), rand(3, seed=1)
    got = bs.gradients([x * y, x.square()], [x, y, rand(2)])
    assert torch.allclose(got[0], y + 2 * x) and torch.allclose(got[1], x) and got[2] is None
    with pytest.raises(NotImplementedError, match="detach"):
        bs.gradients(x, x, stop_grads=[y])
    for name in ("block_reduced_full_dw", "get_bsmm_dx_ops"):
        with pytest.raises(NotImplementedError, match=name):
            getattr(bs, name)(x)


def test_global_norm_of_many_shapes():
    grads = [torch.randn(5), torch.randn(3, 4), torch.randn(5), torch.randn(7).half()]
    expected = torch.cat([g.float().reshape(-1) for g in grads]).norm()
    assert torch.allclose(bs.global_norm(grads), expected)
    norm, scale = bs.clip_by_global_norm(grads, clip_norm=0.5)
    assert torch.allclose(norm, expected) and torch.allclose(scale, 0.5 / expected)
    grads.append(torch.tensor([float("inf"), 1.0]))
    assert bs.clip_by_global_norm(grads)[1].item() == 0
    assert torch.isfinite(bs.global_norm(grads, zero_infs=True))


def test_adam_options():
    def trained(steps=3, **options):
        torch.manual_seed(2)
        p = nn.Parameter(torch.randn(4, 64, 64))
        p.gate = torch.tensor([1.0, 0.0, 1.0, 1.0])
        optimizer = bs.AdamOptimizer([p], learning_rate=0.1, **options)
        start = p.detach().clone()
        for step in range(steps):
            p.grad = torch.sin(p.detach() + step)
            p.grad[0, 0, 0] = float("nan")
            optimizer.step()
        return start, p.detach(), optimizer.state[p]

    start, p, _ = trained()
    assert torch.isnan(p[0, 0, 0]) and torch.isfinite(p[1:]).all()
    start, clean, _ = trained(zero_nans=True)
    assert torch.isfinite(clean).all() and torch.equal(clean[1:], p[1:])
    start, gated, _ = trained(zero_nans=True, gated=True)
    assert torch.equal(gated[1], start[1]) and torch.equal(gated[2:], clean[2:])
    spec = bs.QuantizeSpec(5, 2, 15, frequency=0)
    _, coarse, _ = trained(zero_nans=True, param_qspec=spec)
    assert len(coarse.unique()) < 300
    if hasattr(torch, "uint16"):
        _, small, state = trained(zero_nans=True, fp16=True)
        assert state["exp_avg"].dtype == torch.uint16
        assert torch.allclose(small, clean, atol=1e-2)
    else:
        with pytest.raises(NotImplementedError, match="uint16"):
            trained(fp16=True)


@pytest.mark.skipif(not hasattr(torch, "uint16"), reason="torch before 2.3")
def test_moments_in_16_bits_are_saved():
    def step(optimizer, p, value):
        p.grad = torch.full_like(p, value)
        optimizer.step()
        return p.detach().clone()

    p = nn.Parameter(torch.randn(2, 64, 64))
    first = bs.AdamOptimizer([p], learning_rate=0.1, fp16=True)
    step(first, p, 0.5)
    q = nn.Parameter(p.detach().clone())
    second = bs.AdamOptimizer([q], learning_rate=0.1, fp16=True)
    second.load_state_dict(first.state_dict())
    assert second.state[q]["exp_avg"].dtype == torch.uint16
    assert torch.equal(step(first, p, -0.25), step(second, q, -0.25))


def test_block_adam_has_two_rates():
    param, grad = torch.zeros(3, 8, 8), torch.ones(3, 8, 8)
    mean, var = torch.zeros_like(param), torch.zeros_like(param)
    bs.blocksparse_adam_op(param, mean, var, grad, 1.0, 0.1, 0.5, [torch.tensor([0.0, 1.0, 0.0])])
    ratio = 0.1 / 0.001**0.5  # of the first moments, without correction of their bias
    assert torch.allclose(param[:, 0, 0], -ratio * torch.tensor([0.1, 0.5, 0.1]), rtol=1e-4)


def test_ema_options():
    p = torch.ones(2, 8, 8)
    p.gate = torch.tensor([0.0, 1.0])
    ema = bs.Ema(0.5, gated=True, fp16=True)
    ema.apply([p])
    p.fill_(2)
    ema.apply([p])
    assert ema.average(p)[:, 0, 0].tolist() == [1.0, 1.5]
    assert ema.average(p).dtype == torch.float16 and ema.average(torch.ones(1)) is None


def test_helpers():
    assert bs.reduce_mul((2, 3, 4)) == 24 and bs.z_order_3d(1, 0, 1) == 0b101
    assert bs.z_order_3d(2, 0, 1) == 0b100001
    x, e = torch.randn(100, 3), torch.randn(100, 5)
    assert torch.allclose(bs.dw_matmul_large_n(x, e), x.t() @ e, atol=1e-4)
    assert bs.set_entropy() is None and bs.scalar_constant(2.5) == 2.5


# --- collectives ----------------------------------------------------------------------------------

def test_collectives_need_a_group():
    for name in ("allreduce", "reduce_scatter", "all_gather"):
        with pytest.raises(NotImplementedError, match="torch.distributed"):
            getattr(bs, name)(torch.zeros(2))


WORKER = """
import os, pathlib, sys, time, torch, torch.distributed as dist, bsk.compat as bs
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
x = torch.full((2, 3), 1.0 + rank, requires_grad=True)
y = bs.allreduce(x, num_comms=1)
(y * (1 + rank)).sum().backward()
assert y.tolist() == [[3.0] * 3] * 2 and x.grad.tolist() == [[3.0] * 3] * 2, (y, x.grad)
grads = [torch.full((2,), 1.0), torch.full((3,), 2.0), torch.full((1,), 4.0)]
names = [("a.w", None), ("b.w", None), ("a.b", None)]
bs.group_allreduce(grads, names, ["a", "rest"], cast_map={"a": torch.float64})
assert [g.tolist() for g in grads] == [[2, 2], [4, 4, 4], [8]]
assert grads[0].dtype == torch.float64 and grads[1].dtype == torch.float32
w = torch.full((2,), float(rank + 5))
bs.sync_variables_op(rank, variables=[w])
assert w.tolist() == [5, 5]
z = torch.arange(4.0).reshape(4, 1).requires_grad_()
part = bs.reduce_scatter(z)
assert part.reshape(-1).tolist() == [[0, 2], [4, 6]][rank]
whole = bs.all_gather(part)
assert whole.reshape(-1).tolist() == [0, 2, 4, 6]
whole.sum().backward()
assert z.grad.reshape(-1).tolist() == [2] * 4, z.grad
assert bs.all_gather(torch.ones(2, 1), transpose=True).shape == (2, 2)
before = w._version
bs.sync_globals_zero_init_op(variables=[w])
assert w.tolist() == [10, 10] and w._version > before
assert bs.allreduce(w, mpi_ranks=[0, 1]).tolist() == [20, 20]
try:  # the other process makes no such call
    if rank == 0:
        for _ in range(2):
            assert bs.allreduce(w, mpi_ranks=[0]).tolist() == [10, 10]
        bs.allreduce(w, mpi_ranks=[1])
except NotImplementedError:
    assert torch.__version__ < "2.1"
except ValueError as error:
    assert "must have this process, 0" in str(error)
# Who leaves first takes the connections with him.
done = [pathlib.Path(f"{sys.argv[2]}.{r}") for r in range(2)]
done[rank].touch()
while not done[1 - rank].exists():
    time.sleep(0.01)
os._exit(0)  # threads of torch's process group may abort while an interpreter ends
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without its distributed")
def test_collectives(tmp_path):
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(rank), str(tmp_path / "store")],
                                stderr=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        for worker in workers:
            _, errors = worker.communicate(timeout=120)
            assert worker.returncode == 0, errors
    finally:
        for worker in workers:
            worker.kill()
