"""Products of groups and layers of experts, on the CPU and on a GPU where there is one."""

import pytest

torch = pytest.importorskip("torch")

import bsk  # noqa: E402
import bsk.torch as bt  # noqa: E402
from torch.nn import functional as F  # noqa: E402

PLACES = ["cpu"] + (["cuda"] if torch.cuda.is_available()
                    and any(d.backend in ("cuda", "hip") for d in bsk.devices()) else [])


@pytest.fixture(params=PLACES)
def device(request):
    return request.param


def operands(device, dtype=torch.float64):
    """Seven rows, of which the last two are of no group, and a group without rows."""
    torch.manual_seed(0)
    made = dict(dtype=dtype, device=device, requires_grad=True)
    offsets = torch.tensor([0, 2, 2, 5], dtype=torch.int32, device=device)
    return (torch.randn(7, 4, **made), torch.randn(3, 4, 5, **made), offsets,
            torch.randn(3, 5, **made))


def by_loop(x, w, offsets, bias=None):
    parts = []
    for g, (begin, end) in enumerate(zip(offsets.tolist(), offsets.tolist()[1:])):
        parts.append(x[begin:end] @ w[g] + (0 if bias is None else bias[g]))
    parts.append(x.new_zeros(x.shape[0] - int(offsets[-1]), w.shape[2]))
    return torch.cat(parts)


@pytest.mark.parametrize("turned", [False, True])
def test_grouped_matmul(device, turned):
    x, w, offsets, bias = operands(device)
    if turned:
        w = w.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    dy = torch.randn(7, 5, dtype=x.dtype, device=device)
    for b in (bias, None):
        y, want = bt.grouped_matmul(x, w, offsets, b), by_loop(x, w, offsets, b)
        assert torch.allclose(y, want)
        inputs = [t for t in (x, w, b) if t is not None]
        for got, expected in zip(torch.autograd.grad(y, inputs, dy),
                                 torch.autograd.grad(want, inputs, dy)):
            assert torch.allclose(got, expected)


def test_gradients(device):
    x, w, offsets, bias = operands(device)

    def product(x, w, bias):
        return bt.grouped_matmul(x, w, offsets, bias)

    assert torch.autograd.gradcheck(product, (x, w, bias))
    assert torch.autograd.gradgradcheck(product, (x, w, bias))
    frozen = w.detach()
    assert torch.autograd.gradgradcheck(lambda x: product(x, frozen, None).square(), x)


def test_gradients_of_one_argument(device):
    x, w, offsets, bias = operands(device)
    for i in range(3):
        inputs = [t.detach() for t in (x, w, bias)]
        inputs[i].requires_grad_()
        bt.grouped_matmul(inputs[0], inputs[1], offsets, inputs[2]).sum().backward()
        reference = [t.detach() for t in (x, w, bias)]
        reference[i].requires_grad_()
        by_loop(reference[0], reference[1], offsets, reference[2]).sum().backward()
        assert torch.allclose(inputs[i].grad, reference[i].grad)


def test_autocast(device):
    x, w, offsets, bias = operands(device, torch.float32)
    with torch.autocast(device, torch.bfloat16):
        y = bt.grouped_matmul(x, w, offsets, bias)
    assert y.dtype == torch.bfloat16
    assert torch.allclose(y.float(), by_loop(x, w, offsets, bias), atol=0.1)


def test_route(device):
    chosen = torch.tensor([[1, 0], [2, 1], [-1, 1], [5, 0]], device=device)
    way = bt.route(chosen, 3)
    assert way.offsets.tolist() == [0, 2, 5, 6]
    assert way.order.tolist() == [1, 7, 0, 3, 5, 2, -1, -1]
    assert way.token.tolist() == [0, 3, 0, 1, 2, 1, -1, -1]
    with pytest.raises(bsk.InvalidError, match=r"chosen is \[8\]; must be \[tokens, choices\]"):
        bt.route(chosen.reshape(-1), 3)


def layer(device, dtype=torch.float64, **options):
    torch.manual_seed(1)
    return bt.MixtureOfExperts(6, 10, 5, 2, dtype=dtype, device=device, **options)


def one_by_one(moe, x, chosen, share):
    """The layer's definition: token after token, choice after choice."""
    act = {"relu": F.relu, "silu": F.silu,
           "gelu": lambda h: F.gelu(h, approximate="tanh")}[moe.act]
    out = []
    for t in range(x.shape[0]):
        y = torch.zeros_like(x[t])
        for j in range(chosen.shape[1]):
            g = int(chosen[t, j])
            if not 0 <= g < moe.experts:
                continue
            h = x[t] @ moe.up[g] + (0 if moe.up_bias is None else moe.up_bias[g])
            h = act(h[:moe.hidden]) * h[moe.hidden:] if moe.gated else act(h)
            z = h @ moe.down[g] + (0 if moe.down_bias is None else moe.down_bias[g])
            y = y + share[t, j] * z
        out.append(y)
    return torch.stack(out)


@pytest.mark.parametrize("options", [dict(), dict(act="gelu", bias=True), dict(gated=True, bias=True),
                                     dict(act="relu", normalized=False)], ids=str)
def test_layer(device, options):
    moe = layer(device, **options)
    x = torch.randn(3, 4, 6, dtype=torch.float64, device=device, requires_grad=True)
    y = moe(x)
    _, chosen, share = moe.choose(x.reshape(-1, 6))
    if options.get("normalized", True):
        assert torch.allclose(share.sum(-1), torch.ones(12, dtype=x.dtype, device=device))
    want = one_by_one(moe, x.reshape(-1, 6), chosen, share).reshape(x.shape)
    assert torch.allclose(y, want)
    inputs, dy = [x, *moe.parameters()], torch.randn_like(y)
    for got, expected in zip(torch.autograd.grad(y, inputs, dy),
                             torch.autograd.grad(want, inputs, dy)):
        assert torch.allclose(got, expected)


def test_dropped_choices(device):
    moe = layer(device, bias=True)
    x = torch.randn(4, 6, dtype=torch.float64, device=device, requires_grad=True)
    chosen = torch.tensor([[0, -1], [-1, -1], [4, 0], [7, 3]], device=device)
    share = torch.rand(4, 2, dtype=torch.float64, device=device, requires_grad=True)
    y, want = moe.apply_experts(x, chosen, share), one_by_one(moe, x, chosen, share)
    assert torch.allclose(y, want) and not y[1].any()
    inputs = [x, share, moe.up, moe.down, moe.up_bias, moe.down_bias]
    for got, expected in zip(torch.autograd.grad(y.square().sum(), inputs),
                             torch.autograd.grad(want.square().sum(), inputs)):
        assert torch.allclose(got, expected)


def test_no_tokens(device):
    moe = layer(device)
    x = torch.zeros(0, 6, dtype=torch.float64, device=device, requires_grad=True)
    y = moe(x)
    assert y.shape == (0, 6)
    y.sum().backward()
    assert not moe.up.grad.any()


def test_refused_arguments():
    with pytest.raises(ValueError, match="act is 'tanh'; must be one of relu, gelu, silu"):
        bt.MixtureOfExperts(4, 4, 2, act="tanh")
    with pytest.raises(ValueError, match=r"choices is 3; must be in \[1, 2\]"):
        bt.MixtureOfExperts(4, 4, 2, 3)


def test_balance_loss(device):
    even = torch.full((6, 3), 1 / 3, dtype=torch.float64, device=device, requires_grad=True)
    chosen = torch.arange(6, device=device).reshape(6, 1) % 3
    assert torch.allclose(bt.balance_loss(even, chosen), torch.ones((), dtype=torch.float64,
                                                                    device=device))
    one = F.one_hot(torch.zeros(6, dtype=torch.long, device=device), 3).double()
    assert float(bt.balance_loss(one, torch.zeros(6, 1, device=device))) == 3
    bt.balance_loss(even, chosen).backward()
    assert torch.allclose(even.grad, torch.full_like(even, 1 / 6))


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="needs torch.compile")
def test_compile(device):
    moe = layer(device, torch.float32, bias=True)
    compiled = torch.compile(moe, backend="aot_eager", fullgraph=bool(bt._register.CUSTOM_OPS))
    x = torch.randn(9, 6, device=device)
    assert torch.allclose(compiled(x), moe(x), atol=1e-5)
    compiled(x).sum().backward()
    got = moe.up.grad.clone()
    moe.zero_grad()
    moe(x).sum().backward()
    assert torch.allclose(got, moe.up.grad, atol=1e-5)


def test_trains(device):
    """Experts learn a piecewise linear function that one of them alone cannot."""
    torch.manual_seed(2)
    moe = bt.MixtureOfExperts(4, 16, 4, 1, act="relu", bias=True, device=device)
    optimizer = torch.optim.Adam(moe.parameters(), lr=1e-2)
    x = torch.randn(256, 4, device=device)
    target = torch.where(x[:, :1] > 0, x, -2 * x.flip(-1))
    first = None
    for _ in range(150):
        optimizer.zero_grad()
        probabilities, chosen, share = moe.choose(x)
        y = moe.apply_experts(x, chosen, share)
        loss = F.mse_loss(y, target) + 1e-2 * bt.balance_loss(probabilities, chosen)
        loss.backward()
        optimizer.step()
        first = first or float(loss)
    assert float(loss) < 0.3 * first
