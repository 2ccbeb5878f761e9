"""Functional ops on NumPy arrays and on what else holds memory."""

import array
import itertools
import sys
import threading

import pytest
from conftest import dense_of

import bsk
from bsk import Layout, _abi, _c, ops


@pytest.fixture
def data(np):
    layout = Layout.random((60, 92), (16, 8), 0.4, seed=3)
    draw = np.random.default_rng(0)
    x = draw.standard_normal((7, 60)).astype(np.float32)
    w = draw.standard_normal((layout.nnz, 16, 8)).astype(np.float32)
    return layout, x, w, dense_of(np, layout, w)


def test_matmul(np, data):
    layout, x, w, dense = data
    y = ops.matmul(layout, x, w)
    assert type(y) is np.ndarray and y.dtype == np.float32
    np.testing.assert_allclose(y, x @ dense, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ops.matmul(layout, y, w, transpose_w=1), y @ dense.T, rtol=1e-5,
                               atol=1e-4)
    bias = np.arange(92, dtype=np.float32)
    np.testing.assert_allclose(ops.matmul(layout, x, w, bias=bias, act="relu", alpha=2.0),
                               np.maximum(2 * x @ dense + bias, 0), rtol=1e-5, atol=1e-4)


def test_loss_scale_without_a_gradient(np):
    """A norm of 0 skips the step; the scale sinks only where the norm is not told."""
    none = ops.global_norm([np.zeros(4, np.float32)], norm=True, norm_scale=True)
    assert none.norm[0] == 0 and none.norm_scale[0] == 0
    scale, good = np.array([64.0], np.float32), np.array([3], np.int32)
    ops.loss_scale(scale, none.norm_scale, good, norm=none.norm)
    assert scale[0] == 64 and good[0] == 3
    ops.loss_scale(scale, none.norm_scale, good)
    assert scale[0] == 32 and good[0] == 0


def test_beta_of_some_outputs(np):
    """Outputs that beta has no part in need not be given with it; others do."""
    g = np.array([3.0, 4.0], np.float32)
    total = np.array([144.0], np.float32)
    result = ops.global_norm([g], sum=total, beta=1.0, norm=True)
    assert total[0] == 169 and result.norm[0] == 13
    with pytest.raises(bsk.InvalidError, match="sum is read where beta is not 0"):
        ops.global_norm([g], beta=1.0, norm=True)
    dy = np.ones((5, 3), np.float32)
    dbias = np.ones(3, np.float32)
    result = ops.bias_act_grad(dy, dx=True, dbias=dbias, beta=1.0)
    assert (dbias == 6).all() and (result.dx == dy).all()
    with pytest.raises(bsk.InvalidError, match="dbias is read where beta is not 0"):
        ops.bias_act_grad(dy, dx=True, dbias=True, beta=1.0)
    dx = ops.bias_act_grad(dy, dx=dy.copy(), dx_blend=1, dx_alpha=0.5, dx_beta=2.0)[0]
    assert (np.asarray(dx) == 2.5 * dy).all()
    with pytest.raises(bsk.InvalidError, match="dx is read where dx_beta is not 0"):
        ops.bias_act_grad(dy, dx=True, dx_blend=1, dx_beta=1.0)


def test_axis_and_strides(np, data):
    layout, x, w, dense = data
    y = ops.matmul(layout, np.ascontiguousarray(x.T), w, axis="cn")
    np.testing.assert_allclose(y, (x @ dense).T, rtol=1e-5, atol=1e-5)
    wide = np.zeros((7, 99), np.float32)
    wide[:, 3:63] = x
    out = np.full((7, 100), 5, np.float32)
    assert ops.matmul(layout, wide[:, 3:63], w, y=out[:, :92]).base is out
    np.testing.assert_allclose(out[:, :92], x @ dense, rtol=1e-5, atol=1e-5)
    assert (out[:, 92:] == 5).all()


def test_accumulate(np, data):
    layout, x, w, dense = data
    y = np.ones((7, 92), np.float32)
    ops.matmul(layout, x, w, y=y, beta=3.0)
    np.testing.assert_allclose(y, x @ dense + 3, rtol=1e-5, atol=1e-5)
    with pytest.raises(bsk.InvalidError, match="beta"):
        ops.matmul(layout, x, w, beta=1.0)


def test_gradients(np, data):
    layout, x, w, dense = data
    dy = np.random.default_rng(1).standard_normal((7, 92)).astype(np.float32)
    np.testing.assert_allclose(ops.matmul_dgrad(layout, dy, w), dy @ dense.T, rtol=1e-5, atol=1e-4)
    mask = dense_of(np, layout, np.ones_like(w))
    got = ops.matmul_wgrad(layout, x, dy, dbias=True)
    assert type(got).__name__ == "matmul_wgrad" and got._fields == ("dw", "dbias")
    np.testing.assert_allclose(dense_of(np, layout, got.dw), x.T @ dy * mask, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(got.dbias, dy.sum(0), rtol=1e-5, atol=1e-5)
    twice = ops.matmul_wgrad(layout, [x, x], [dy, 2 * dy])
    np.testing.assert_allclose(twice, 3 * got.dw, rtol=1e-4, atol=1e-4)
    with pytest.raises(bsk.InvalidError, match="different numbers"):
        ops.matmul_wgrad(layout, [x, x], [dy])


def test_types(np, data):
    layout, x, w, dense = data
    half = ops.matmul(layout, x.astype(np.float16), w.astype(np.float16))
    assert half.dtype == np.float16
    single = ops.matmul(layout, x.astype(np.float16), w.astype(np.float16), y="f32")
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, x @ dense, rtol=2e-2, atol=2e-2)
    double = ops.matmul(layout, x.astype(np.float64), w.astype(np.float64))
    np.testing.assert_allclose(double, x.astype(np.float64) @ dense, rtol=1e-12, atol=1e-12)
    with pytest.raises(TypeError, match="complex64"):
        ops.matmul(layout, x.astype(np.complex64), w)


def test_bad_arguments(np, data):
    layout, x, w, _ = data
    with pytest.raises(bsk.InvalidError, match="x.dims"):
        ops.matmul(layout, x[:, :9], w)
    with pytest.raises(bsk.InvalidError, match="one of none, relu"):
        ops.matmul(layout, x, w, act="tan")
    with pytest.raises(TypeError, match="no array"):
        ops.matmul(layout, 3.0, w)
    with pytest.raises(TypeError):
        ops.matmul(layout, x, w, unheard_of=1)
    fixed = np.zeros((7, 92), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(bsk.InvalidError, match="read-only"):
        ops.matmul(layout, x, w, y=fixed)
    with pytest.raises(bsk.InvalidError, match="repeats"):
        ops.matmul(layout, np.broadcast_to(np.float32(1), (7, 60)), w)
    with pytest.raises(bsk.InvalidError, match="must be given"):
        ops.proj_scatter(np.zeros((2, 3), np.float32), np.arange(3, dtype=np.int32))


def test_empty_and_unaligned(np, data):
    layout, x, w, dense = data
    assert ops.matmul(layout, x[:0], w).shape == (0, 92)
    none = Layout.random((60, 92), 8, 0.0)
    assert not ops.matmul(none, x, np.empty((0, 8, 8), np.float32)).any()
    memory = bytearray(4 + x.nbytes)
    odd = np.frombuffer(memory, np.float32, offset=4)[:x.size].reshape(x.shape)
    odd[:] = x
    np.testing.assert_allclose(ops.matmul(layout, odd, w), x @ dense, rtol=1e-5, atol=1e-5)


def test_other_ops(np):
    x = np.random.default_rng(2).standard_normal((5, 24)).astype(np.float32)
    np.testing.assert_allclose(ops.unary(x, kind="tanh"), np.tanh(x), rtol=1e-5)
    np.testing.assert_allclose(ops.binary(x, x[:1], kind="mul"), x * x[:1], rtol=1e-6)
    np.testing.assert_allclose(ops.transpose_2d(x), x.T)
    y = ops.masked_softmax(x, scale=2.0)
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-5)
    got = ops.topk(x, values=np.empty((5, 3), np.float32), index=np.empty((5, 3), np.int64))
    np.testing.assert_array_equal(got.values, -np.sort(-x)[:, :3])
    got = ops.layer_norm(x, mean=True, rstd=True)
    np.testing.assert_allclose(got.mean[0], x.mean(1), atol=1e-6)
    np.testing.assert_allclose(got.y.std(1), 1, rtol=1e-3)
    got = ops.cross_entropy(x, np.arange(5), loss=True, dlogits=True, alpha=1.0)
    shifted = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(got.loss, -np.log(shifted[range(5), range(5)]), rtol=1e-5)
    sums = ops.global_norm([x, x], norm=True)
    np.testing.assert_allclose(sums.norm, np.sqrt(2 * (x * x).sum()), rtol=1e-5)
    assert ops.embedding(x, np.array([4, 0, 9], np.int32)).shape == (3, 24)
    gates = [np.zeros((5, 8), np.float32) for _ in range(4)]
    c = np.ones((5, 8), np.float32)
    got = ops.lstm_gates(c, **dict(zip("iufo", gates)))
    np.testing.assert_allclose(got.c_next, 0.5 * c)


def test_update_in_place(np):
    p, g = np.ones(8, np.float32), np.full(8, 0.5, np.float32)
    m, v = np.zeros(8, np.float32), np.zeros(8, np.float32)
    got = ops.adam(p, g, m, v, lr=0.1)
    assert got._fields == ("param", "m", "v") and got.param is p and got.m is m and got.v is v
    assert ops.adam(p.copy(), g, m.copy(), v.copy(), copy="f16").dtype == np.float16
    np.testing.assert_allclose(p, 0.9, rtol=1e-4)
    assert m.any() and v.any()
    many = [[np.full(8, float(i), np.float32) for i in range(3)] for _ in range(4)]
    for moment in many[2:]:
        for array in moment:
            array[:] = 0
    ops.adam_n(*many, lr=0.1)
    np.testing.assert_allclose([a[0] for a in many[0]], [0, 0.9, 1.9], rtol=1e-4)
    counted, plain = ([np.ones(8, np.float32), g, np.full(8, 0.5, np.float32)] for _ in range(2))
    ops.adafactor(*counted, lr=0.1, steps=np.array([4], np.int64))
    ops.adafactor(*plain, lr=0.1, step=5)
    for x, y in zip(counted, plain):
        np.testing.assert_allclose(x, y, rtol=1e-6)


def test_blocks_of_other_types_move(np):
    layout = Layout.full((4, 8), 2)  # 8 blocks
    keep, index = np.array([1, 0] * 4, np.uint8), np.array([2, -1, 7], np.int32)
    for kind in (np.uint16, np.int8):
        x = np.arange(1, 33).astype(kind).reshape(8, 2, 2)
        np.testing.assert_array_equal(ops.block_gather(x, index), [x[2], 0 * x[0], x[7]])
    codes = np.full((8, 2, 2), 0x8123, np.uint16)
    with pytest.raises(bsk.InvalidError, match="w of u16 needs 0"):
        ops.block_renew(layout, codes, keep, renew="normal")
    ops.block_renew(layout, codes, keep, renew="zero")
    assert not codes[1::2].any() and (codes[::2] == 0x8123).all()


def test_buffers_need_no_numpy():
    """array.array in, memoryview or its like out."""
    layout = Layout.full((4, 4), 2)
    x = memoryview(bytearray(array.array("f", range(8)).tobytes())).cast("B").cast("f", (2, 4))
    w = memoryview(bytearray(array.array("f", [1, 0, 0, 1] * 4).tobytes())).cast("f", (4, 2, 2))
    y = ops.matmul(layout, x, w)
    assert memoryview(y).tolist() == [[2, 4, 2, 4], [10, 12, 10, 12]]
    out = array.array("f", bytes(12))
    ops.unary(array.array("f", [1, 4, 9]), y=out, kind="sqrt")
    assert list(out) == [1, 2, 3]
    with pytest.raises(bsk.InvalidError, match="read-only"):
        ops.unary(array.array("f", [1, 4, 9]), y=bytes(12), kind="sqrt")


class Foreign:
    """An array of an unknown library, with DLPack alone."""

    def __init__(self, inner):
        self.inner = inner

    def __dlpack__(self, **more):
        return self.inner.__dlpack__(**more)

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()


def test_dlpack(np, data):
    layout, x, w, dense = data
    y = np.empty((7, 92), np.float32)
    ops.matmul(layout, Foreign(x), Foreign(w), y=Foreign(y))
    np.testing.assert_allclose(y, x @ dense, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ops.matmul(layout, Foreign(x), w), x @ dense, rtol=1e-5, atol=1e-5)


def test_plans_are_kept(np, data):
    layout, x, w, _ = data
    ops.clear_plans()
    first = ops.matmul(layout, x, w)
    for _ in range(5):
        ops.matmul(layout, x + 1, w)
    assert len(ops.plans()) == 1 and ops.plans()[0][0] == "matmul"
    np.testing.assert_array_equal(ops.matmul(layout, x, w), first)
    old, ops.MAX_PLANS = ops.MAX_PLANS, 8
    try:
        for n in range(1, 30):
            ops.unary(np.zeros(n, np.float32), kind="exp")
        assert len(ops.plans()) <= 8
        np.testing.assert_array_equal(ops.matmul(layout, x, w), first)
    finally:
        ops.MAX_PLANS = old


def test_threads(np, data):
    layout, x, w, dense = data
    expected, wrong = ops.matmul(layout, x, w), []

    def work():
        for _ in range(50):
            if not np.array_equal(ops.matmul(layout, x, w), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_packed(np, data):
    """The same bits with the packed form of the weights, for every op that takes one."""
    layout, x, w, dense = data
    dy = np.random.default_rng(1).standard_normal((7, 92)).astype(np.float32)
    for call in (lambda **more: ops.matmul(layout, x, w, **more),
                 lambda **more: ops.matmul(layout, dy, w, transpose_w=1, **more),
                 lambda **more: ops.matmul_dgrad(layout, dy, w, **more),
                 lambda **more: ops.dsd(layout, w, dy.T.copy(), **more),
                 lambda **more: ops.dds(layout, x, w, **more)):
        packed, expected = ops.Packed(), call()
        for _ in range(3):
            np.testing.assert_array_equal(call(packed=packed), expected)
        made = len(packed)
        packed.clear()
        assert not len(packed) and made <= 1
    packed = ops.Packed()
    for n in range(1, 20):
        for _ in range(2):
            ops.matmul(layout, x[:1].repeat(n, 0), w, packed=packed)
    assert len(packed) <= ops.Packed.MAX_IMAGES


def test_entries_for_packed_weights_go_with_an_image(np, monkeypatch):
    """Where only plans that pack in each run have images, others are those of weights as they are."""
    layout = Layout.random((512, 256), (8, 8), 0.5, seed=3)
    x, w = np.ones((64, 512), np.float32), np.ones((layout.nnz, 8, 8), np.float32)
    made, create = [], ops._create

    def record(op, where, params, alignment, packed):
        made.append(bool(packed))
        return create(op, where, params, alignment, packed)

    monkeypatch.setattr(ops, "_create", record)
    for packs, all_plans, expected in ((False, False, [True, False]), (True, False, [True]),
                                       (False, True, [True])):
        monkeypatch.setattr(ops, "_packs", lambda info: packs)
        ops.clear_plans()
        packed = ops.Packed(all_plans=all_plans)
        for _ in range(3):
            ops.matmul(layout, x, w, packed=packed)
        assert made == expected
        plan, = ops._plans.values()
        assert len(packed) == (plan.packed_bytes > 0 and (packs or all_plans))
        made.clear()
    ops.clear_plans()


def test_zero_that_stands_for_a_default_is_refused(np):
    x = np.ones((2, 4), np.float32)
    for op, options in ((ops.filter, {"scale": 0.0}), (ops.masked_softmax, {"scale": 0.0}),
                        (ops.unary, {"kind": "elu", "coefficient": 0.0}),
                        (ops.layer_norm, {"eps": 0.0})):
        with pytest.raises(bsk.InvalidError, match="is 0, which stands for the default 1"):
            op(x, **options)
    state = [np.zeros(4, np.float32) for _ in range(4)]
    with pytest.raises(bsk.InvalidError, match="beta1 is 0, which stands for the default 0.9"):
        ops.adam(*state, beta1=0.0)
    assert "beta1 : float, default 0.9" in ops.adam.__doc__
    for kind in (np.float32, np.float64):
        p, g, m, v = (np.full(4, x, kind) for x in (1, 0.5, 3, 0))
        ops.adam(p, g, m, v, lr=0.1, beta1=1e-300, beta2=1e-300)  # as 0 would
        assert (m == g).all() and (v == g * g).all()
        np.testing.assert_allclose(p, 0.9, rtol=1e-6)
    np.testing.assert_array_equal(ops.filter(x, scale=None), x)


def test_choice_that_does_not_fit_is_refused(np):
    x = np.ones((2, 4), np.float32)
    with pytest.raises(bsk.InvalidError, match="relu is 4294967296; must be in"):
        ops.layer_norm(x, relu=2**32)


def test_layer_of_experts(np):
    """docs/moe.md, forward and backward, beside one token after another."""
    draw = np.random.default_rng(3)
    tokens, choices, experts, width, hidden = 11, 2, 4, 6, 5
    x, dy = draw.standard_normal((2, tokens, width))
    w1 = draw.standard_normal((experts, width, hidden))
    w2 = draw.standard_normal((experts, hidden, width))
    b1, b2 = draw.standard_normal((experts, hidden)), draw.standard_normal((experts, width))
    chosen = draw.integers(-1, experts, (tokens, choices)).astype(np.int32)
    share = draw.random((tokens, choices))

    offsets = np.empty(experts + 1, np.int32)
    _, order, token, place = ops.moe_route(chosen, offsets=offsets, token=True, place=True)
    rows = ops.embedding(x, token)
    h = ops.grouped_matmul(rows, offsets, w1, bias=b1)
    a = ops.bias_act(h, act="silu")
    z = ops.grouped_matmul(a, offsets, w2, bias=b2)
    p = ops.embedding(share.reshape(-1, 1), order)
    y = ops.embedding_grad(ops.binary(z, p, kind="mul"), token, dtable=np.empty_like(x))

    ds = ops.embedding(dy, token)
    dz, dp = ops.binary_grad(ds, x=z, y=p, kind="mul", dx=True, dy=True)
    dw2, db2 = ops.grouped_wgrad(a, offsets, dz, dbias=True)
    da = ops.grouped_matmul(dz, offsets, w2.transpose(0, 2, 1))
    dh = ops.bias_act_grad(da, x=h, act="silu", dx=da)
    dw1, db1 = ops.grouped_wgrad(rows, offsets, dh, dbias=True)
    drows = ops.grouped_matmul(dh, offsets, w1.transpose(0, 2, 1))
    dx = ops.embedding_grad(drows, token, dtable=np.empty_like(x))
    dshare = ops.embedding_grad(dp, order, dtable=np.empty((tokens * choices, 1)))

    want = {n: np.zeros_like(v) for n, v in dict(y=y, dx=dx, dw1=w1, dw2=w2, db1=b1, db2=b2,
                                                 dshare=share).items()}
    for t, j in np.ndindex(tokens, choices):
        g = chosen[t, j]
        if g < 0:
            assert place[t, j] == -1
            continue
        assert order[place[t, j]] == t * choices + j and offsets[g] <= place[t, j] < offsets[g + 1]
        pre = x[t] @ w1[g] + b1[g]
        gate = 1 / (1 + np.exp(-pre))
        out = pre * gate @ w2[g] + b2[g]
        want["y"][t] += share[t, j] * out
        want["dshare"][t, j] = dy[t] @ out
        dout = share[t, j] * dy[t]
        dpre = w2[g] @ dout * gate * (1 + pre * (1 - gate))
        want["dx"][t] += w1[g] @ dpre
        want["dw1"][g] += np.outer(x[t], dpre)
        want["dw2"][g] += np.outer(pre * gate, dout)
        want["db1"][g] += dpre
        want["db2"][g] += dout
    got = dict(y=y, dx=dx, dw1=dw1, dw2=dw2, db1=db1, db2=db2, dshare=dshare)
    for name, value in want.items():
        np.testing.assert_allclose(got[name].reshape(value.shape), value, rtol=1e-11, atol=1e-11)
    with pytest.raises(bsk.InvalidError, match="moe_route: offsets must be given"):
        ops.moe_route(chosen)


def test_convolution(np):
    """Forward, both gradients and NHWC beside loops."""
    draw = np.random.default_rng(4)
    blocks = [([0, 2], [1]), ([1, 2, 0], [1, 3])]
    shape = ops.ConvShape(blocks, filter=(2, 3), stride=(2, 1), dilation=(1, 2), pad=(1, 2))
    x = draw.standard_normal((2, 3, 5, 6))
    w = draw.standard_normal(shape.filters)
    y = ops.conv(x, w, shape=shape)
    dy = draw.standard_normal(y.shape)
    dx = ops.conv_dgrad(dy, w, shape=shape, dx=np.empty_like(x))
    dw = ops.conv_wgrad(x, dy, shape=shape)
    last = np.empty((*y.shape[:1], *y.shape[2:], y.shape[1]))
    ops.conv(np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2), w, shape=shape,
             y=last.transpose(0, 3, 1, 2))

    want = [np.zeros_like(a) for a in (y, dx, dw)]
    at = 0
    for ins, outs in blocks:
        for k, c, t, u in itertools.product(outs, ins, range(2), range(3)):
            for q, r in np.ndindex(y.shape[2:]):
                i, j = 2 * q + t - 1, r + 2 * u - 2
                if 0 <= i < 5 and 0 <= j < 6:
                    want[0][:, k, q, r] += x[:, c, i, j] * w[at]
                    want[1][:, c, i, j] += dy[:, k, q, r] * w[at]
                    want[2][at] += x[:, c, i, j] @ dy[:, k, q, r]
            at += 1
    for got, value in zip((y, dx, dw, last.transpose(0, 3, 1, 2)), (*want, want[0])):
        np.testing.assert_allclose(got, value, rtol=1e-11, atol=1e-11)
    with pytest.raises(bsk.InvalidError, match=r"shape.blocks\[2\] is 3; legal are 0 to 2"):
        ops.conv(x, np.ones(1), shape=ops.ConvShape([([3], [0])], (1, 1)))
    with pytest.raises(bsk.InvalidError, match="shape is a NoneType; must be a bsk.ops.ConvShape"):
        ops.conv(x, w)
    with pytest.raises(bsk.InvalidError, match="pad has 1 dimensions; filter has 2"):
        ops.ConvShape(blocks, (1, 1), pad=(1,))


@pytest.mark.parametrize("op", sorted(_abi.OPS))
def test_inputs_come_in_the_order_of_the_struct(op):
    fields = [f for f, _, _ in _abi.STRUCTS[_abi.OPS[op]["params"]]]
    inputs = ops.Description(op).inputs
    assert inputs == sorted(inputs, key=fields.index)


def test_dsd_and_its_packed_form(np, data):
    layout, _, w, dense = data
    b = np.random.default_rng(1).standard_normal((92, 5)).astype(np.float32)
    packed = ops.Packed()
    for _ in range(3):
        np.testing.assert_allclose(ops.dsd(layout, w, b, packed=packed), dense @ b, rtol=1e-5,
                                   atol=1e-4)


@pytest.mark.parametrize("op", sorted(_abi.OPS))
def test_arrays_of_wrong_rank(np, op):
    """Whatever the ranks are: a result, or an error of this package with the op's name."""
    described, function = ops.Description(op), getattr(ops, op)
    layout = [Layout.full((4, 4), 2)] if described.layout else []
    wanted = {n: True for n in described.outputs if n not in described.required + described.lists}
    for rank in range(6):
        given = [np.ones((2,) * rank, np.float32) for _ in described.inputs]
        for options in ({}, wanted):
            try:
                function(*layout, *given, **options)
            except bsk.BskError as error:
                assert str(error).startswith((op, *described.outputs))


def test_shapes_that_do_not_follow(np):
    layout, x = Layout.full((4, 4), 2), np.ones((2, 4), np.float32)
    for call, message in (
            (lambda: ops.matmul(layout, x[0, 0], x),
             r"matmul: the shape of y does not follow from those of x \[\], w \[2, 4\]"),
            (lambda: ops.attention(layout, x, x, x), r"attention: .* q \[2, 4\]"),
            (lambda: ops.reduced_wgrad(x, x), "reduced_wgrad: block_rows is 0; must be at least 1"),
            (lambda: ops.weight_identity(layout), "weight_identity: w must be given")):
        with pytest.raises(bsk.InvalidError, match=message):
            call()


def test_products_of_8_bits_are_f32(np):
    layout = Layout.full((32, 48), 16)
    w = np.full((layout.nnz, 16, 16), 2, np.int8)
    x, y = np.ones((8, 32), np.int8), np.ones((8, 48), np.int8)
    got = ops.matmul(layout, x, w)
    assert got.dtype == np.float32 and (got == 64).all()
    for made, value in ((ops.matmul_dgrad(layout, y, w), 96), (ops.matmul_wgrad(layout, x, y), 8),
                        (ops.dsd(layout, w, y.T.copy()), 96), (ops.dds(layout, x, w), 64),
                        (ops.sdd(layout, x.T.copy(), y), 8)):
        assert made.dtype == np.float32 and (made == value).all()


def test_arguments_of_other_types_are_named(np, data):
    layout, x, w, _ = data
    for call, message in (
            (lambda: ops.dropout(x, keep=0.5, seed=-1), "dropout: seed is -1; must be in"),
            (lambda: ops.dropout(x, keep=0.5, seed=2**64), "dropout: seed is 184467"),
            (lambda: ops.dropout(x, keep=0.5, seed=0.5), "dropout: seed is 0.5; must be an int"),
            (lambda: ops.matmul(layout, x, w, alpha="2"), "alpha is '2'; must be a number"),
            (lambda: ops.matmul(layout, x, w, alpha=None, gate=w[:, 0, 0].copy()), "alpha is None"),
            (lambda: ops.layer_norm(x, segments=0.5), "segments is 0.5; must be an integer"),
            (lambda: ops.quantize(x, ebits="4"), "ebits is '4'; must be an integer"),
            (lambda: _c.Context(fallback="never"), "fallback is 'never'; must be one of default, allow")):
        with pytest.raises(bsk.InvalidError, match=message):
            call()
    for wrong in (None, [[1, 0]]):
        with pytest.raises(TypeError, match="matmul: layout is a .*; must be a bsk.Layout"):
            ops.matmul(wrong, x, w)


def test_zero_has_a_neighbour(np):
    x = np.array([[1, -2, 3, 4]], np.float32)
    with pytest.raises(bsk.InvalidError, match=f"cannot be given: {ops.TINY} can"):
        ops.masked_softmax(x, scale=0.0)
    np.testing.assert_allclose(ops.masked_softmax(x, scale=ops.TINY), 0.25, rtol=1e-6)
    with pytest.raises(bsk.InvalidError, match="segments is 0, .* cannot be given$"):
        ops.layer_norm(x, segments=0)


def test_type_that_numpy_lacks(np, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ModuleNotFoundError, match="no type bfloat16 without the package ml_dtypes"):
        ops.unary(np.ones(77, np.float32), y="bf16", kind="exp")


def test_queues_end_with_their_threads(np, monkeypatch):
    ended, destroy = [], _c.lib.bsk_queue_destroy
    monkeypatch.setattr(_c.lib, "bsk_queue_destroy", lambda handle: (ended.append(handle),
                                                                     destroy(handle)))
    x = np.ones(4, np.float32)
    for _ in range(3):
        thread = threading.Thread(target=lambda: ops.unary(x, kind="exp"))
        thread.start()
        thread.join()
    assert len(ended) == 3
