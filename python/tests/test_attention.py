"""Attention over patterns against dense torch: masks, dropout, heads, modules."""

import copy
import importlib
import math

import pytest

torch = pytest.importorskip("torch")

import bsk  # noqa: E402
import bsk.torch as bt  # noqa: E402
from bsk import Layout  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::bsk.StagedWarning")
COMPILES = hasattr(torch.library, "custom_op")


def places():
    found = ["cpu"]
    if torch.cuda.is_available() and any(d.backend in ("cuda", "hip") for d in bsk.devices()):
        found.append("cuda")
    return found


@pytest.fixture(params=places())
def device(request):
    return request.param


def operands(device, heads=4, kv_heads=4, time=40, k_time=40, dtype=torch.float64, batch=2):
    torch.manual_seed(0)
    make = dict(dtype=dtype, device=device, requires_grad=True)
    return (torch.randn(batch, heads, time, 8, **make),
            torch.randn(batch, kv_heads, k_time, 8, **make),
            torch.randn(batch, kv_heads, k_time, 8, **make))


def seen_blocks(layout, device):
    """[heads of the layout, rows, cols]: the elements of the kept blocks."""
    masks = layout.to_mask() if layout.heads > 1 else [layout.to_mask()]
    mask = torch.tensor(masks, device=device).bool()
    (r, c), (rows, cols) = layout.block, layout.shape
    return mask.repeat_interleave(r, 1).repeat_interleave(c, 2)[:, :rows, :cols]


def dense(q, k, v, seen, bias=None, keep=None, softcap=0.0):
    """softmax(q k^T) v with a mask; queries that see nothing give zeros."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    s = s if bias is None else s + bias
    seen = seen.expand(s.shape)
    s = s.masked_fill(~seen, torch.finfo(s.dtype).min)
    p = torch.softmax(s, -1) * seen
    return (p if keep is None else p * keep) @ v


def equal(got, expected, inputs):
    """Results and gradients."""
    assert got.shape == expected.shape and torch.allclose(got, expected, atol=1e-6)
    draw = torch.randn_like(got)
    for a, b in zip(torch.autograd.grad((got * draw).sum(), inputs),
                    torch.autograd.grad((expected * draw).sum(), inputs)):
        assert torch.allclose(a, b, atol=1e-6)


def positions(time, k_time, device):
    return torch.arange(time, device=device)[:, None], torch.arange(k_time, device=device)[None]


PATTERNS = {
    "full": lambda: Layout.full((40, 40), 8), "causal": lambda: Layout.causal(40, 8),
    "local": lambda: Layout.local(40, 8, 16), "sink": lambda: Layout.sink_local(40, 8, 8, 16),
    "bigbird": lambda: Layout.bigbird(40, 8, 3, 1, 1, seed=1),
    "longformer": lambda: Layout.longformer(40, 8, 3, (0,)),
    "fixed": lambda: Layout.fixed(40, 8, 2, 1, 2, 4),
    "random": lambda: Layout.random((40, 40), (8, 4), 0.4, seed=2)}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(device, pattern, kv_heads, causal):
    layout = PATTERNS[pattern]()
    inputs = operands(device, kv_heads=kv_heads)
    i, j = positions(40, 40, device)
    seen = seen_blocks(layout, device) & ((j <= i) | (not causal))
    equal(bt.attention(*inputs, layout, causal), dense(*inputs, seen), inputs)


def test_key_padding_and_documents(device):
    layout, inputs = Layout.causal(40, 8), operands(device)
    i, j = positions(40, 40, device)
    padding = torch.rand(2, 40, device=device) < 0.3
    causal = (j <= i) & seen_blocks(layout, device)
    equal(bt.attention(*inputs, layout, True, key_padding_mask=padding),
          dense(*inputs, causal & ~padding[:, None, None]), inputs)
    documents = torch.randint(3, (2, 40), device=device).sort().values
    same = documents[:, None, :, None] == documents[:, None, None]
    equal(bt.attention(*inputs, layout, True, documents=documents), dense(*inputs, causal & same),
          inputs)
    equal(bt.attention(*inputs, layout, True, documents=documents, key_padding_mask=padding),
          dense(*inputs, causal & same & ~padding[:, None, None]), inputs)
    with pytest.raises(TypeError, match="torch.bool"):
        bt.attention(*inputs, layout, key_padding_mask=padding.float())


def test_lengths_and_prefix(device):
    layout, inputs = Layout.full((40, 48), 8), operands(device, k_time=48)
    i, j = positions(40, 48, device)
    lengths, prefix = torch.tensor([33, 48], device=device), torch.tensor([5, 20], device=device)
    seen = ((j <= i) | (j < prefix[:, None, None, None])) & (j < lengths[:, None, None, None])
    equal(bt.attention(*inputs, layout, True, k_len=lengths, prefix=prefix), dense(*inputs, seen),
          inputs)
    equal(bt.attention(*inputs, layout, True, align="end"), dense(*inputs, j <= i + 8), inputs)


def test_bias_and_slopes(device):
    layout, inputs = PATTERNS["random"](), operands(device)
    seen, (i, j) = seen_blocks(layout, device), positions(40, 40, device)
    bias = torch.randn(4, 40, 40, dtype=torch.float64, device=device)
    equal(bt.attention(*inputs, layout, bias=bias), dense(*inputs, seen, bias), inputs)
    equal(bt.attention(*inputs, layout, bias=bias[:1, :, :1]),
          dense(*inputs, seen, bias[:1, :, :1]), inputs)
    slopes = bt.alibi_slopes(4, device)
    assert slopes.tolist() == [0.25, 0.0625, 0.015625, 0.00390625]
    assert len(bt.alibi_slopes(12)) == 12 and float(bt.alibi_slopes(12)[0]) == 0.5
    far = -slopes.double()[:, None, None] * (i - j).abs()
    equal(bt.attention(*inputs, layout, slopes=slopes), dense(*inputs, seen, far), inputs)
    equal(bt.attention(*inputs, layout, softcap=0.7), dense(*inputs, seen, softcap=0.7), inputs)
    with pytest.raises(NotImplementedError, match="bias gets no gradient"):
        bt.attention(*inputs, layout, bias=bias.requires_grad_())


def test_mask_bits(device):
    layout, inputs = Layout.random((36, 40), (8, 12), 0.6, seed=4), operands(device, time=36)
    mask = torch.rand(36, 40, device=device) < 0.5
    bits = bt.mask_bits(mask, layout)
    assert bits.shape == (layout.nnz, 8, 2)
    equal(bt.attention(*inputs, layout, bits=bits),
          dense(*inputs, seen_blocks(layout, device) & mask), inputs)


def test_strided(device):
    layout, inputs = Layout.strided(40, 2, 5), operands(device)
    i, j = positions(40, 40, device)
    equal(bt.attention(*inputs, layout, True, interleave=5),
          dense(*inputs, (j <= i) & ((i - j) % 5 == 0)), inputs)


def test_dropout(device):
    """The same seed drops the same elements; what is kept shows with values of ones and zeros."""
    layout = Layout.full((64, 64), 16)
    q, k, _ = operands(device, time=64, k_time=64)
    eye = torch.eye(64, dtype=q.dtype, device=device).expand(2, 4, 64, 64).clone()
    plain = bt.attention(q, k, eye, layout)
    dropped = bt.attention(q, k, eye, layout, dropout=0.25, seed=7)
    assert torch.equal(dropped, bt.attention(q, k, eye, layout, dropout=0.25, seed=7))
    kept = dropped != 0
    assert abs(float(kept.double().mean()) - 0.75) < 0.02
    assert torch.allclose(dropped[kept], plain[kept] / 0.75, atol=1e-6)
    inputs = operands(device, time=64, k_time=64)
    equal(bt.attention(*inputs, layout, dropout=0.25, seed=7),
          dense(*inputs, torch.ones_like(kept), keep=kept / 0.75), inputs)
    torch.manual_seed(3)
    first, second = (bt.attention(q, k, eye, layout, dropout=0.5) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(first, bt.attention(q, k, eye, layout, dropout=0.5))
    assert not bt.attention(q, k, eye, layout, dropout=1.0).any()
    with pytest.raises(ValueError, match="dropout is 2"):
        bt.attention(q, k, eye, layout, dropout=2)


def test_gradcheck_and_second_derivative(device):
    layout = Layout.causal(6, 2)
    make = dict(dtype=torch.float64, device=device, requires_grad=True)
    q, k, v = (torch.randn(1, 2, 6, 3, **make) for _ in range(3))
    assert torch.autograd.gradcheck(
        lambda *x: bt.attention(*x, layout, True, softcap=2.0, dropout=0.3, seed=1), (q, k, v),
        atol=1e-6)
    first, = torch.autograd.grad(bt.attention(q, k, v, layout, True).square().sum(), q,
                                 create_graph=True)
    with pytest.raises(NotImplementedError, match="once only"):
        first.sum().backward()


@pytest.mark.skipif(not hasattr(nn.functional, "scaled_dot_product_attention"),
                    reason="torch before 2.0")
@pytest.mark.parametrize("mask", [None, "keys", "elements", "batch", "heads", "numbers", "causal"])
def test_scaled_dot_product_attention(device, mask):
    """With all blocks it is torch's own."""
    layout, inputs = Layout.full((40, 40), 8), operands(device)
    torch.manual_seed(1)
    shape = {"keys": (2, 1, 1, 40), "elements": (40, 40), "batch": (2, 1, 40, 40),
             "heads": (4, 40, 40), "numbers": (1, 4, 40, 40)}.get(mask)
    attn_mask = None if shape is None else torch.rand(shape, device=device) < 0.7
    if mask == "numbers":
        attn_mask = torch.randn(shape, device=device, dtype=torch.float64)
    more = {"attn_mask": attn_mask, "is_causal": mask == "causal", "scale": 0.3}
    equal(bt.scaled_dot_product_attention(*inputs, layout=layout, **more),
          nn.functional.scaled_dot_product_attention(*inputs, **more), inputs)
    if mask in (None, "elements"):
        one = [x[0, 0].detach().requires_grad_() for x in inputs]
        equal(bt.scaled_dot_product_attention(*one, layout=layout, **more),
              nn.functional.scaled_dot_product_attention(*one, **more), one)
        five = [x[None].expand(3, 2, 4, 40, 8).detach().requires_grad_() for x in inputs]
        equal(bt.scaled_dot_product_attention(*five, layout=layout, **more),
              nn.functional.scaled_dot_product_attention(*five, **more), five)
    if mask == "batch":
        three = [x[:, 0].detach().requires_grad_() for x in inputs]
        equal(bt.scaled_dot_product_attention(*three, attn_mask[:, 0], layout=layout),
              nn.functional.scaled_dot_product_attention(*three, attn_mask[:, 0]), three)


def test_sdpa_over_a_pattern(device):
    layout, inputs = PATTERNS["random"](), operands(device)
    mask = torch.rand(2, 4, 40, 40, device=device) < 0.5
    mask[0, 1, 3] = False
    equal(bt.scaled_dot_product_attention(*inputs, mask, layout=layout),
          dense(*inputs, seen_blocks(layout, device) & mask), inputs)
    dropped = bt.scaled_dot_product_attention(*inputs, dropout_p=0.5, layout=layout)
    assert not torch.allclose(dropped, bt.scaled_dot_product_attention(*inputs, layout=layout))


def module(device, **more):
    torch.manual_seed(6)
    return bt.BlockSparseAttention(32, 4, block=8, kv_heads=2, **more).to(device)


def test_module(device):
    x = torch.randn(2, 40, 32, device=device)
    padding = torch.zeros(2, 40, dtype=torch.bool, device=device)
    padding[1, 30:] = True
    layer = module(device, dropout=0.3, alibi=True)
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    y = layer(x, key_padding_mask=padding)
    assert torch.equal(y, layer(x, key_padding_mask=padding)) and y.shape == x.shape
    assert torch.allclose(y[1, :30], layer(x[1:, :30])[0], atol=1e-5)
    # Documents are as good as sequences of their own; ALiBi looks at distances alone.
    documents = (torch.arange(40, device=device) >= 16)[None]
    parts = torch.cat([layer(x[:, :16]), layer(x[:, 16:])], 1)
    assert torch.allclose(layer(x, documents=documents), parts, atol=1e-5)
    other = copy.deepcopy(layer)
    assert torch.equal(other(x), layer(x)) and other._number != layer._number
    assert set(layer.state_dict()) == {f"{n}.{p}" for n in ("q", "k", "v", "out")
                                       for p in ("weight", "bias")}


def test_module_cross_attention(device):
    layer = module(device, causal=False)
    x, context = torch.randn(2, 40, 32, device=device), torch.randn(2, 24, 32, device=device)
    q, k, v = (f(y).reshape(2, -1, h, 8).transpose(1, 2)
               for f, y, h in ((layer.q, x, 4), (layer.k, context, 2), (layer.v, context, 2)))
    expected = dense(q, k, v, torch.ones(40, 24, dtype=torch.bool, device=device))
    expected = layer.out(expected.transpose(1, 2).reshape(2, 40, 32))
    assert torch.allclose(layer(x, context), expected, atol=1e-5)


def test_autocast(device):
    layer, x = module(device), torch.randn(2, 40, 32, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16 and torch.allclose(y.float(), layer(x), atol=3e-2)
    y.float().sum().backward()
    assert layer.q.weight.grad.dtype == torch.float32


@pytest.mark.skipif(not COMPILES, reason="torch before 2.4")
def test_compile(device):
    model = module(device, linear=bt.BlockSparseLinear, alibi=True)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 40, 32, device=device)
    padding = torch.rand(2, 40, device=device) < 0.2
    got = compiled(x, key_padding_mask=padding)
    assert torch.allclose(got, model(x, key_padding_mask=padding), atol=1e-5)
    got.sum().backward()
    grad = model.q.weight.grad.clone()
    model.zero_grad()
    model(x, key_padding_mask=padding).sum().backward()
    assert torch.allclose(grad, model.q.weight.grad, atol=1e-5)
    for time in (48, 56):  # other lengths, other layouts
        x = torch.randn(2, time, 32, device=device)
        assert torch.allclose(compiled(x), model(x), atol=1e-5)
    # Layouts that the function finds outside.
    inputs = operands(device)
    for layout in (Layout.local(40, 8, 16), Layout.causal(40, 8), Layout.full((40, 40), 8)):
        function = torch.compile(lambda q, k, v: bt.attention(q, k, v, layout, True, 16),
                                 backend="aot_eager", fullgraph=True)
        assert torch.allclose(function(*inputs), bt.attention(*inputs, layout, True, 16))


@pytest.mark.skipif(not COMPILES, reason="torch before 2.4")
def test_opcheck():
    from bsk.torch._register import token_of
    op = importlib.import_module("bsk.torch.attention")._attention.op
    layout = Layout.causal(16, 8)
    q, k, v = (x.transpose(1, 2) for x in operands("cpu", heads=16, kv_heads=16, time=4, k_time=4))
    torch.library.opcheck(op, (q, k, v, *[None] * 10, token_of(layout), 1, True, 0, None, 0.0, False,
                               1.0))


@pytest.mark.skipif(not hasattr(torch, "func"), reason="torch before 2.0")
def test_func(device):
    layout, (q, k, v) = Layout.causal(16, 8), operands(device, time=16, k_time=16)
    q, k, v = (x.detach() for x in (q, k, v))

    def loss(q):
        return bt.attention(q, k, v, layout, True).square().sum()

    leaf = q.clone().requires_grad_()
    assert torch.allclose(torch.func.grad(loss)(q), torch.autograd.grad(loss(leaf), leaf)[0])
    many = torch.stack([q, 2 * q])
    got = torch.func.vmap(lambda q: bt.attention(q, k, v, layout, True))(many)
    assert torch.allclose(got[1], bt.attention(2 * q, k, v, layout, True))
    assert math.isfinite(float(got.sum()))


def test_numbers_of_64_bits():
    q, k, v = (torch.randn(1, 1, 16, 8) for _ in range(3))
    layout = Layout.full((16, 16), 8)
    small = torch.arange(16)[None] // 5
    small[0, 15] = -3
    large = torch.where(small < 0, small - 2**40, small * 2**32)
    wanted = bt.attention(q, k, v, layout, documents=small.int())
    assert torch.equal(bt.attention(q, k, v, layout, documents=large), wanted)
    assert torch.equal(bt.attention(q, k, v, layout, documents=(small.int(), small)), wanted)
    length = torch.tensor([2**32 + 3])
    assert torch.equal(bt.attention(q, k, v, layout, k_len=length), bt.attention(q, k, v, layout))
    for options in ({"documents": small.float()}, {"k_len": length.float()}):
        with pytest.raises(TypeError, match="integers"):
            bt.attention(q, k, v, layout, **options)


def test_masks_with_several_leading_dimensions():
    q, k, v = (torch.randn(2, 3, 2, 16, 8) for _ in range(3))
    layout = Layout.full((16, 16), 8)
    for shape in ((3, 1, 16, 16), (1, 2, 16, 16), (2, 1, 1, 16, 16), (3, 1, 1, 16)):
        mask = torch.rand(shape) < 0.5
        mask[..., 0] = True
        torch.testing.assert_close(
            bt.scaled_dot_product_attention(q, k, v, mask, layout=layout),
            torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
            if hasattr(torch.nn.functional, "scaled_dot_product_attention") else
            torch.softmax((q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~mask, -1e30), -1) @ v,
            rtol=1e-4, atol=1e-5)


def test_masks_of_heads_and_of_other_types():
    layout = Layout.full((20, 12), 8, heads=2)
    masks = torch.rand(2, 20, 12) < 0.5
    bits = bt.mask_bits(masks, layout)
    for head in (0, 1):
        alone = bt.mask_bits(masks[head], Layout.full((20, 12), 8))
        assert torch.equal(bits.reshape(2, 6, 8, 1)[head], alone)
    assert torch.equal(bt.mask_bits(masks[0], layout), bt.mask_bits(masks[:1].expand(2, 20, 12), layout))
    for wrong in (masks.int(), masks.float()):
        with pytest.raises(TypeError, match="mask_bits: mask is of .*; must be torch.bool"):
            bt.mask_bits(wrong, layout)


def test_tensors_without_heads():
    q, layout = torch.randn(2, 8, 4), Layout.full((8, 8), 8)
    with pytest.raises(bsk.InvalidError, match=r"attention: q is \[2, 8, 4\]; must be \[batch"):
        bt.attention(q, q, q, layout)
    with pytest.raises(bsk.InvalidError, match=r"attention: v is \[2, 8, 4\]"):
        bt.attention(q[None], q[None], q, layout)


def test_masks_of_a_function(device):
    visible = bsk.ConvVisible(4, 8, (3, 3))
    layout = Layout.from_elements(visible, visible.shape, 8)
    bits, index = layout.element_bits(visible)
    q, k, v = (torch.randn(1, 2, 32, 8, device=device) for _ in range(3))
    got = bt.attention(q, k, v, layout, bits_index=torch.tensor(index, device=device),
                       bits=torch.tensor(bits.tolist(), dtype=torch.uint8, device=device))
    seen = torch.tensor([[visible(0, i, j) for j in range(32)] for i in range(32)], device=device)
    s = (q @ k.transpose(-1, -2) * 8 ** -0.5).masked_fill(~seen, -math.inf)
    assert torch.allclose(got, torch.softmax(s, -1) @ v, atol=1e-5)
