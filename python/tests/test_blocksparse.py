"""The functions of openai/blocksparse in `bsk.compat` against dense torch, with gradients."""

import pytest

torch = pytest.importorskip("torch")

import bsk.compat as bs  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def rand(*shape, seed=0, low=0.1, high=1.0):
    torch.manual_seed(seed + sum(shape))
    return (low + (high - low) * torch.rand(shape, dtype=torch.float64)).requires_grad_()


def equal(got, expected, *inputs, tol=1e-5):
    """Results, and the gradients by the inputs."""
    got, expected = ([y] if torch.is_tensor(y) else list(y) for y in (got, expected))
    for a, b in zip(got, expected):
        assert a.shape == b.shape and torch.allclose(a, b.to(a.dtype), atol=tol, rtol=tol)
    draws = [torch.randn_like(b) for b in expected]
    a, b = (torch.autograd.grad(sum((y * d).sum() for y, d in zip(ys, draws)), inputs,
                                retain_graph=True)
            for ys in (got, expected))
    for x, y in zip(a, b):
        assert x.shape == y.shape and torch.allclose(x, y.to(x.dtype), atol=tol, rtol=tol)


UNARY = {"negative": torch.neg, "reciprocal": torch.reciprocal, "square": torch.square,
         "sqrt": torch.sqrt, "exp": torch.exp, "log": torch.log, "sigmoid": torch.sigmoid,
         "tanh": torch.tanh, "relu": torch.relu, "elu": F.elu, "swish": F.silu,
         "fast_gelu": lambda x: x * torch.sigmoid(1.702 * x)}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    x = rand(8, 24)
    equal(getattr(bs, name)(x), UNARY[name](x), x)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "minimum"])
def test_binary(name):
    function = getattr(torch, "sub" if name == "subtract" else name)
    x, y, vector = rand(8, 24), rand(8, 24, seed=1), rand(24)
    equal(getattr(bs, name)(x, y), function(x, y), x, y)
    equal(getattr(bs, name)(x, vector), function(x, vector), x, vector)


def test_sums_and_casts():
    xs = [rand(5, 7, seed=i) for i in range(11)]
    equal(bs.add_n(xs), sum(xs), *xs)
    y = torch.ones(5, 7, dtype=torch.float64)
    bs.assign_add(y, xs[0])
    assert torch.allclose(y, 1 + xs[0])
    half = bs.float_cast(xs[0], torch.float16)
    assert half.dtype == torch.float16
    half.float().sum().backward()
    assert xs[0].grad.dtype == torch.float64 and float(xs[0].grad.min()) == 1
    bad = torch.tensor([1.0, float("inf"), float("nan"), -9.0])
    assert bs.filter_tensor(bad, 2.0, 5.0, True, True).tolist() == [2, 0, 0, -5]
    equal(bs.scale_tensor(xs[1], 3.0), 3 * xs[1], xs[1])


def test_dropout():
    x = rand(64, 64)
    y, mask = bs.dropout(x, 0.75)
    again, _ = bs.dropout(x, 0.75, mask=mask)
    kept = y != 0
    assert torch.equal(y, again) and abs(float(kept.double().mean()) - 0.75) < 0.05
    equal(y, x * kept / 0.75, x)
    rows = bs.dropout(x, 0.5, mask_shape=(64, 1))[0] != 0
    assert torch.equal(rows.all(1), rows.any(1))


@pytest.mark.parametrize("axis", [0, -1])
def test_bias_relu(axis):
    x, b = rand(16, 32, low=-1.0), rand(16 if axis == 0 else 32, low=-1.0)
    whole = x + (b[:, None] if axis == 0 else b)
    equal(bs.bias_relu(x, b, axis), whole, x, b)
    equal(bs.bias_relu(x, b, axis, relu=True), torch.relu(whole), x, b)
    equal(bs.bias_relu(x, b, axis, fast_gelu=True), whole * torch.sigmoid(1.702 * whole), x, b)


def test_cwise_linear():
    x, g, b = rand(4, 6, 5, 3, low=-1.0), rand(6), rand(6, seed=1)
    gain, bias = g[:, None, None], b[:, None, None]
    equal(bs.cwise_linear(x, g, b), x * gain + bias, x, g, b)
    equal(bs.cwise_linear(x, g, b, relu=True), torch.relu(x * gain + bias), x, g, b)
    equal(bs.cwise_linear(x, g, b, bias_first=True), (x + bias) * gain, x, g, b)
    equal(bs.cwise_linear(x, gain=g), x * gain, x, g)
    equal(bs.cwise_linear(x, bias=b), x + bias, x, b)


def test_gates():
    loga = rand(200, low=-2.0, high=2.0)
    torch.manual_seed(1)
    gate = bs.concrete_gate(loga)
    assert float(gate.min()) >= 0 and float(gate.max()) <= 1
    gate.sum().backward()
    inside = (gate > 0) & (gate < 1)
    assert torch.equal(loga.grad != 0, inside)
    expected = (torch.sigmoid(loga) * 1.2 - 0.1).clamp(0, 1)
    assert torch.allclose(bs.concrete_gate_infer(loga), expected.to(gate.dtype), atol=1e-5)


def test_softmax():
    x, mask = rand(2, 3, 8, 8), torch.ones(8, 8, dtype=torch.float64).tril()
    equal(bs.softmax(x, scale=2.0), torch.softmax(2 * x, -1), x)
    expected = torch.softmax((2 * x).masked_fill(mask == 0, float("-inf")), -1)
    equal(bs.masked_softmax(x, mask, 2.0), expected, x)
    largest = x >= x.topk(3, -1).values[..., -1:]
    expected = torch.softmax((2 * x).masked_fill(~largest, float("-inf")), -1)
    equal(bs.masked_top_k_softmax(x, 3, scale=2.0), expected, x)


def test_top_k():
    x = rand(4, 5, 16, low=-1.0)
    got, expected = bs.top_k(x, 3), x.topk(3, -1)
    assert torch.equal(got[1].long(), expected.indices)
    equal(got[0], expected.values, x)
    values = x.topk(6, -1).values
    cut = values[..., -1:].clamp_min(0).detach()
    y = torch.where(x >= values[..., -1:], torch.relu(x - cut), 0 * x)
    equal(bs.rectified_top_k(x, 6), y, x)
    cut = (x.mean(-1, keepdim=True) + 0.5 * x.std(-1, unbiased=False, keepdim=True)).detach()
    equal(bs.sparse_relu(x, 0.5), (x - cut).clamp_min(0), x)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64, torch.uint8])
def test_cross_entropy(kind):
    logits, labels = rand(3, 4, 10, low=-2.0), torch.randint(10, (3, 4))
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    equal(bs.softmax_cross_entropy(logits, labels.to(kind)), expected.reshape(3, 4), logits)


def test_selection_and_transposes():
    x = rand(4, 6, 5, 3)
    for axis in (0, 1, -1):
        equal(bs.reduce_max(x, axis), x.max(axis).values, x)
        assert bs.reduce_max(x, axis, True).shape == x.max(axis, keepdim=True).values.shape
    index = torch.randint(5, (4, 6))
    expected = x.gather(2, index[..., None, None].expand(4, 6, 1, 3))[:, :, 0]
    equal(bs.fancy_gather(x, index), expected, x)
    table, index = rand(9, 4), torch.randint(9, (2, 7))
    equal(bs.embedding_lookup(table, index), table[index], table)
    equal(bs.transpose_0213(x), x.transpose(1, 2), x)
    equal(bs.transpose_2d(table), table.t(), table)
    wide = rand(5, 12)
    equal(bs.split4(wide), wide.chunk(4, 1), wide)
    parts = [rand(5, 3, seed=i) for i in range(4)]
    equal(bs.concat4(*parts), torch.cat(parts, 1), *parts)


def test_layer_norm():
    x, g, b = rand(6, 32), rand(32), rand(32, seed=1)
    expected = F.layer_norm(x, (32,), g, b, 1e-6)
    equal(bs.layer_norm(x, g, b), expected, x, g, b)
    equal(bs.layer_norm(x, g, b, relu=True), torch.relu(expected), x, g, b)
    equal(bs.layer_norm(x.t(), g, b, axis=0), expected.t(), x, g, b)
    parts = [F.layer_norm(p, (8,), eps=1e-6) for p in x.chunk(4, 1)]
    equal(bs.layer_norm(x, g, b, segments=4), torch.cat(parts, 1) * g + b, x, g, b)


def test_batch_norm():
    x, g, b = rand(6, 4, 5, 2), rand(4), rand(4, seed=1)
    y, mean, var = bs.batch_norm(x, g, b)
    equal(y, F.batch_norm(x, None, None, g, b, True, eps=1e-6), x, g, b)
    assert torch.allclose(mean, x.mean((0, 2, 3)).to(mean.dtype))
    assert torch.allclose(bs.batch_norm_inference(x, g, b, mean, var), y, atol=1e-5)
    mean, var = rand(4, seed=2).detach(), rand(4, seed=3).detach()
    equal(bs.batch_norm_inference(x, g, b, mean, var),
          F.batch_norm(x, mean, var, g, b, eps=1e-6), x, g, b)


@pytest.mark.parametrize("merged", [True, False])
def test_lstm_gates(merged):
    c, gates, bias = rand(5, 8, low=-1.0), rand(5, 32, low=-1.0), rand(32)
    i, u, f, o = (gates + bias if merged else gates).chunk(4, 1)
    c_next = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(u)
    expected = c_next, torch.sigmoid(o) * torch.tanh(c_next)
    if merged:
        equal(bs.fused_lstm_gates(c, gates, bias=bias), expected, c, gates, bias)
    else:
        parts = (p.contiguous() for p in (i, u, f, o))
        equal(bs.fused_lstm_gates(c, *parts), expected, c, gates)


def test_second_derivative_is_refused():
    x = rand(4)
    first, = torch.autograd.grad(bs.exp(x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="once only"):
        first.sum().backward()
    bst = bs.BlocksparseTransformer([[1]], 8, 1)
    q, k = rand(1, 8, 8), rand(1, 8, 8, seed=1)
    first, = torch.autograd.grad(bst.query_key_op(q, k).square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="once only"):
        (first.square().sum() + q.sum()).backward()


def test_optimizers():
    torch.manual_seed(0)
    start, target = torch.randn(12, 8), torch.randn(12, 8)
    ours, theirs = (start.clone().requires_grad_() for _ in range(2))
    mine = bs.AdamOptimizer([ours], learning_rate=0.01, epsilon=1e-8)
    other = torch.optim.Adam([theirs], lr=0.01)
    for _ in range(5):
        for p, optimizer in ((ours, mine), (theirs, other)):
            optimizer.zero_grad()
            (p - target).square().sum().backward()
            optimizer.step()
    assert torch.allclose(ours, theirs, atol=1e-4)
    for shape in ((12, 8), (8,)):
        p = torch.randn(shape).requires_grad_()
        optimizer, losses = bs.AdafactorOptimizer([p], learning_rate=0.1), []
        for _ in range(60):
            optimizer.zero_grad()
            loss = (p - 1).square().sum()
            loss.backward()
            losses.append(float(loss.detach()))
            optimizer.step()
        assert losses[-1] < 0.1 * losses[0]
    norm, factor = bs.clip_by_global_norm([ours.grad, theirs.grad], clip_norm=0.5)
    expected = torch.sqrt(ours.grad.square().sum() + theirs.grad.square().sum())
    assert torch.allclose(norm, expected) and torch.allclose(factor, 0.5 / expected)
    assert torch.allclose(bs.global_norm([ours.grad, theirs.grad]), expected)
    before = ours.detach().clone()
    mine.step(norm_scale=torch.zeros(1))  # skipped
    assert torch.equal(before, ours)
    assert int(mine.state[ours]["step"]) == 5
    ema = bs.Ema(0.9)
    ema.apply([ours])
    with torch.no_grad():
        ours.add_(1)
    ema.apply([ours])
    assert torch.allclose(ema.average(ours), before + 0.1, atol=1e-6)


@pytest.mark.parametrize("kind", [bs.AdamOptimizer, bs.AdafactorOptimizer])
def test_skipped_steps_are_not_counted(kind):
    """The same as without them, also where the number of steps was loaded."""
    torch.manual_seed(0)
    start, grads = torch.randn(12, 8), torch.randn(4, 12, 8)

    def trained(scales):
        p = start.clone().requires_grad_()
        optimizer = kind([p], learning_rate=0.1)
        for scale, grad in scales:
            p.grad = grads[grad]
            optimizer.step(norm_scale=None if scale is None else torch.tensor([scale]))
            again = kind([p], learning_rate=0.1)
            again.load_state_dict(optimizer.state_dict())
            again.state[p]["step"] = int(again.state[p]["step"])
            optimizer = again
        return p.detach(), optimizer.state[p]["step"]

    plain, steps = trained([(None, 0), (0.5, 1), (None, 2)])
    skipping, skipped = trained([(0.0, 3), (None, 0), (float("nan"), 3), (0.5, 1),
                                 (float("inf"), 3), (None, 2)])
    assert torch.equal(plain, skipping) and steps == skipped == 3


def test_blocks():
    torch.manual_seed(0)
    w = torch.randn(10, 8, 8)
    norms = bs.blocksparse_norm(w, "l2")
    assert torch.allclose(norms, w.flatten(1).norm(dim=1))
    assert torch.allclose(bs.blocksparse_norm(w), w.abs().flatten(1).max(1).values)
    gate = torch.ones(10)
    bs.blocksparse_prune(w, gate, step=3, sparsity=0.3, frequency=2)
    assert gate.all()
    bs.blocksparse_prune(w, gate, sparsity=0.3, norm="l2")
    assert gate.argsort()[:3].sort().values.equal(norms.argsort()[:3].sort().values)
    assert int(gate.sum()) == 7
    bs.blocksparse_prune(w, gate, threshold=float(norms.median()), norm="l2")
    assert torch.equal(gate != 0, norms >= norms.median())
    shorter = w.clone()
    bs.blocksparse_l2_decay(shorter, rate=0.5)
    factor = 1 - torch.clamp(0.5 / norms, max=1.0)
    assert torch.allclose(shorter, w * factor[:, None, None], atol=1e-5)
    with pytest.raises(ValueError, match="one of sparsity"):
        bs.blocksparse_prune(w, gate)


def test_helpers():
    assert bs.largest_block(96) == (32, 3) and bs.largest_block(24) == (8, 3)
    assert bs.ceil_div(7, 2) == 4 and bs.z_order_2d(3, 1) == 7
    assert sorted((x, y) for x in range(4) for y in range(4)) == sorted(
        sorted(((x, y) for x in range(4) for y in range(4)), key=lambda p: bs.z_order_2d(*p)))


@pytest.mark.parametrize("make", [bs.bst_conv_layout, bs.bst_deconv_layout])
def test_conv_layouts(make):
    """A block is kept where one of its elements is seen; attention sees no more than these."""
    layout, callback = make(8, 8, 3, 3, blk_size=16)
    seen = torch.cat([torch.cat([callback((16, 16), 0, i, j, 0) for j in range(4)], 1)
                      for i in range(4)])
    blocks = seen.reshape(4, 16, 4, 16).any(3).any(1)
    assert torch.equal(blocks, layout) and seen.diagonal().all() and not seen.triu(1).any()
    bst = bs.BlocksparseTransformer(layout.int(), 16, 2, callback)
    q, k, v = (rand(1, 64, 16, seed=i) for i in range(3))
    got = bst.weight_value_op(bst.masked_softmax(bst.query_key_op(q, k), 8 ** -0.5), v)
    q_, k_, v_ = (bs.split_heads(x, 2) for x in (q, k, v))
    s = (q_ @ k_.transpose(-1, -2) * 8 ** -0.5).masked_fill(~seen, float("-inf"))
    equal(got, bs.merge_heads(torch.softmax(s, -1) @ v_), q, k, v)


def test_ranks_beyond_those_of_the_library():
    x, y, low = rand(2, 1, 3, 2, 2, 4, low=-1.0), rand(2, 1, 1, 2, 1, 4, seed=1), rand(2, 4)
    equal(bs.relu(x), torch.relu(x), x)
    equal(bs.swish(x, 2.0), x * torch.sigmoid(2 * x), x)
    equal(bs.add(x, y), x + y, x, y)
    equal(bs.multiply(low, x), low * x, low, x)
    equal(bs.add_n([x, x]), 2 * x, x)
    equal(bs.filter_tensor(x, 2.0), 2 * x, x)
    assert torch.equal(bs.float_cast(x, torch.float32), x.float())
    for total in (torch.zeros_like(x), torch.zeros(4, 2, 2, 3, 1, 2).double().permute(5, 4, 3, 2, 1, 0)):
        bs.assign_add(total, x.detach())
        assert torch.equal(total, x)
    mask = (rand(3, 1, 2, 4, seed=2) > 0.3).double()
    mask[..., 0] = 1
    equal(bs.softmax(x), torch.softmax(x, -1), x)
    equal(bs.masked_softmax(x, mask),
          torch.softmax(x.masked_fill(mask == 0, float("-inf")), -1), x)
    for shape in (None, (2, 1, 1, 2, 1, 4)):
        y, mask = bs.dropout(x, 0.5, mask_shape=shape)
        kept = (y != 0).double()
        equal(y, 2 * x * kept, x)
        assert 0 < kept.mean() < 1 and torch.equal(bs.dropout(x, 0.5, mask=mask)[0], y)
        assert shape is None or torch.equal(kept, kept[:, :, :1, :, :1].expand_as(kept))


def test_zero_is_no_default():
    x, g, b = rand(3, 4, low=-1.0), rand(4), rand(4, seed=1)
    equal(bs.filter_tensor(x, 0.0, saturate=0.5), 0 * x, x)
    equal(bs.softmax(x, 0.0), torch.softmax(0 * x, -1), x)
    mask = torch.tensor([1.0, 0, 1, 1]).double()
    equal(bs.masked_softmax(x, mask, 0.0), (0 * x + 1) * mask / 3, x)
    equal(bs.swish(x, alpha=0.0), x / 2, x)
    equal(bs.elu(x, alpha=0.0), torch.relu(x), x)
    equal(bs.layer_norm(x, g, b, epsilon=0.0), F.layer_norm(x, (4,), g, b, 0.0), x, g, b)
    equal(bs.batch_norm(x, g, b, epsilon=0.0)[0], (x - x.mean(0)) / x.std(0, unbiased=False) * g + b,
          x, g, b)
    loga = rand(50, low=-2.0, high=2.0)
    gate = bs.concrete_gate(loga, limit_a=0.0, epsilon=0.0)
    assert 0 < float(gate.min()) < 0.1 and torch.autograd.grad(gate.sum(), loga)[0].min() >= 0
    assert torch.allclose(bs.concrete_gate_infer(loga, limit_a=0.0),
                          (1.1 * torch.sigmoid(loga)).clamp_max(1), atol=1e-6)
    bst = bs.BlocksparseTransformer([[1, 1]], 8, 1)
    scores = rand(1, 1, 2, 8, 8)
    assert torch.allclose(bst.masked_softmax(scores, 0.0), torch.full_like(scores, 1 / 16))
    p, q = (torch.ones(4, requires_grad=True) for _ in range(2))
    ours = bs.AdamOptimizer([p], 0.1, beta1=0.0, beta2=0.0, epsilon=0.0)
    theirs = torch.optim.Adam([q], 0.1, betas=(0.0, 0.0), eps=0.0)
    for _ in range(3):
        for t, optimizer in ((p, ours), (q, theirs)):
            t.grad = torch.tensor([1.0, -2.0, 3.0, 4.0])
            optimizer.step()
    assert torch.allclose(p, q)


def shapes_of_parameters():
    yield torch.tensor(2.0)
    yield torch.arange(12.0).reshape(3, 4).t()
    yield torch.arange(24.0).reshape(4, 6)[:, ::2]


@pytest.mark.parametrize("start", shapes_of_parameters(), ids=lambda t: f"{tuple(t.stride())}")
def test_parameters_of_any_strides(start):
    ours, theirs = (start.clone(memory_format=torch.preserve_format) if n else start
                    for n in (0, 1))
    ours, theirs = ours.requires_grad_(), theirs.requires_grad_()
    strides, address = ours.stride(), ours.data_ptr()
    mine, other = bs.AdamOptimizer([ours], 0.1), torch.optim.Adam([theirs], 0.1)
    ema, averages = bs.Ema(0.5), []
    for step in range(3):
        ema.apply([ours])
        averages = ours.detach().clone() if not step else 0.5 * (averages + ours.detach())
        for p, optimizer in ((ours, mine), (theirs, other)):
            optimizer.zero_grad()
            (p - 1).square().sum().backward()
            optimizer.step()
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert ours.stride() == strides and ours.data_ptr() == address
    assert torch.allclose(ema.average(ours), averages)
    assert float(bs.global_norm([ours.grad])) == pytest.approx(float(ours.grad.norm()))
