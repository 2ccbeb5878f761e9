"""Differentiable ops and modules, on the CPU and on a GPU where there is one."""

import copy
import gc
import io
import pickle
import threading
import types
import warnings

import pytest

torch = pytest.importorskip("torch")

import bsk  # noqa: E402
import bsk.torch as bt  # noqa: E402
from bsk import Layout, _arrays  # noqa: E402
from bsk.torch import _packed, _register  # noqa: E402
from torch import nn  # noqa: E402


def places():
    found = ["cpu"]
    if torch.cuda.is_available() and any(d.backend in ("cuda", "hip") for d in bsk.devices()):
        found.append("cuda")
    return found


@pytest.fixture(params=places())
def device(request):
    return request.param


@pytest.fixture
def always_packed(monkeypatch):
    """A packed form is kept for plans too that can do without."""
    bsk.ops.clear_plans()
    monkeypatch.setattr(bsk.ops, "_packs", lambda info: info.packed_bytes > 0)
    yield
    bsk.ops.clear_plans()


RAGGED = Layout.random((60, 92), (16, 8), 0.4, seed=3)


def operands(device, dtype=torch.float64, layout=RAGGED, n=5):
    torch.manual_seed(0)
    make = dict(dtype=dtype, device=device, requires_grad=True)
    return (torch.randn(n, layout.shape[0], **make),
            torch.randn((layout.nnz, *layout.block), **make),
            torch.randn(layout.shape[1], **make), torch.rand(layout.nnz, **make))


def test_matmul_equals_dense(device):
    x, w, bias, gate = operands(device)
    dense = bt.blocks_to_dense(w, RAGGED)
    assert torch.allclose(bt.matmul(x, w, RAGGED, bias), x @ dense + bias)
    gated = bt.blocks_to_dense(w * gate[:, None, None], RAGGED)
    assert torch.allclose(bt.matmul(x, w, RAGGED, gate=gate), x @ gated)
    y = torch.randn(2, 3, 92, dtype=x.dtype, device=device)
    assert torch.allclose(bt.matmul(y, w, RAGGED, transpose=True), y @ dense.t())
    assert torch.allclose(bt.matmul_sampled(x, y[0, :1].expand(5, 92), RAGGED),
                          bt.blocks_from_dense(x.t() @ y[0, :1].expand(5, 92), RAGGED))


@pytest.mark.parametrize("transpose", [False, True])
def test_gradcheck(device, transpose):
    layout = Layout.from_mask([[1, 0, 1], [0, 1, 0]], (4, 2), (7, 5))
    x, w, bias, gate = operands(device, layout=layout.T if transpose else layout, n=2)
    if transpose:
        w = torch.randn((layout.nnz, 4, 2), dtype=w.dtype, device=device, requires_grad=True)
    inside = bt.blocks_to_dense(torch.ones_like(w), layout)
    w = (w * bt.blocks_from_dense(inside, layout)).detach().requires_grad_()

    def function(x, w, bias, gate):
        return bt.matmul(x, w, layout, bias, gate, transpose)

    assert torch.autograd.gradcheck(function, (x, w, bias, gate))
    assert torch.autograd.gradgradcheck(function, (x, w, bias, gate))


def test_broadcast_gradient(device):
    """The gradient of a sum repeats one element."""
    x, w, bias, _ = operands(device)
    bt.matmul(x, w, RAGGED, bias).sum().backward()
    assert torch.allclose(bias.grad, torch.full_like(bias, 5))
    assert torch.allclose(x.grad, bt.blocks_to_dense(w, RAGGED).sum(1).expand_as(x))


def kept_for_backward(function):
    """How many elements autograd keeps of a call, parameters among them."""
    sizes = []

    def pack(x):
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        function()
    return sorted(sizes)


@pytest.mark.parametrize("needed", [(), ("x",), ("w",), ("bias",), ("gate",), ("w", "bias"),
                                    ("x", "w", "bias", "gate")])
def test_only_what_gradients_need_is_kept(device, needed):
    inputs = dict(zip(("x", "w", "bias", "gate"), (t.detach() for t in operands(device))))
    for name in needed:
        inputs[name].requires_grad_()
    kept = {"x"} if {"w", "gate"} & set(needed) else set()
    kept |= {"w"} if {"x", "gate"} & set(needed) else set()
    kept |= {"gate"} if {"x", "w", "gate"} & set(needed) else set()
    got = kept_for_backward(lambda: bt.matmul(inputs["x"], inputs["w"], RAGGED, inputs["bias"],
                                              inputs["gate"]))
    assert got == sorted(inputs[n].numel() for n in kept)
    if needed:
        wanted = [inputs[n] for n in needed]
        got, expected = (torch.autograd.grad(y.square().sum(), wanted) for y in (
            bt.matmul(inputs["x"], inputs["w"], RAGGED, inputs["bias"], inputs["gate"]),
            inputs["x"] @ bt.blocks_to_dense(inputs["w"] * inputs["gate"][:, None, None], RAGGED)
            + inputs["bias"]))
        for name, a, b in zip(needed, got, expected):
            # The gradient of what blocks at the edge have outside of the matrix is 0.
            assert torch.allclose(a, b), name


# pytorch_block_sparse's grid of linear layers: inputs, outputs, block, density; rows.
@pytest.mark.parametrize("rows", [32, 256])
@pytest.mark.parametrize("inputs,outputs,block,density", [
    (4, 4, (4, 1), 0.5), (32, 32, (4, 8), 0.5), (32, 32, (32, 32), 1.0), (96, 64, (32, 32), 0.5)])
def test_linear_trains_as_dense(device, rows, inputs, outputs, block, density):
    """40 steps of Adam beside a dense layer times the mask: outputs, dx and dW."""
    torch.manual_seed(1)
    layer = bt.BlockSparseLinear(inputs, outputs, density=density, block_shape=block, seed=1,
                                 device=device)
    twin = bt.PseudoBlockSparseLinear(layer)
    target = torch.randn(rows, outputs, device=device)
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (layer, twin)]
    for _ in range(40):
        x = torch.randn(rows, inputs, device=device, requires_grad=True)
        z = x.detach().clone().requires_grad_()
        for m, i, o in ((layer, x, optimizers[0]), (twin, z, optimizers[1])):
            o.zero_grad()
            ((m(i) - target) ** 2).mean().backward()
        assert torch.allclose(x.grad, z.grad, atol=1e-5)
        assert torch.allclose(bt.blocks_to_dense(layer.weight.grad, layer.layout).t(),
                              twin.weight.grad, atol=1e-5)
        for o in optimizers:
            o.step()
    x = torch.randn(rows, inputs, device=device)
    assert torch.allclose(layer(x), twin(x), atol=1e-4)
    assert layer.layout.nnz == round(layer.layout.grid[0] * layer.layout.grid[1] * density)


def test_from_dense_linear(device):
    dense = nn.Linear(64, 96).to(device)
    whole = bt.BlockSparseLinear(0, 0, density=1.0, torch_nn_linear=dense)
    x = torch.randn(3, 64, device=device)
    assert torch.allclose(whole(x), dense(x), atol=1e-5)
    half = bt.BlockSparseLinear(0, 0, density=0.5, torch_nn_linear=dense, block_shape=(16, 32))
    assert half.layout.block == (32, 16) and half.layout.nnz == 6
    kept = bt.blocks_from_dense(dense.weight.t(), half.layout)
    assert torch.equal(half.weight, kept)
    every = bt.blocks_from_dense(dense.weight.t(), Layout.full((64, 96), (32, 16)))
    best = every.flatten(1).norm(dim=1).sort(descending=True).values[:6]
    assert torch.allclose(kept.flatten(1).norm(dim=1).sort(descending=True).values, best)
    assert torch.equal(bt.dense_twin(half).weight, half.to_dense())


def test_autocast(device):
    layer = bt.BlockSparseLinear(64, 96, density=0.5, seed=2, device=device)
    x = torch.randn(8, 64, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    assert torch.allclose(y.float(), layer(x), atol=3e-2, rtol=3e-2)
    y.sum().backward()
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types(device, dtype):
    layer = bt.BlockSparseLinear(64, 96, density=0.5, seed=2, device=device, dtype=dtype)
    x = torch.randn(8, 64, device=device, dtype=dtype, requires_grad=True)
    y = layer(x)
    y.float().sum().backward()
    assert y.dtype == x.grad.dtype == layer.weight.grad.dtype == layer.bias.grad.dtype == dtype
    expected = x.float() @ layer.to_dense().float().t() + layer.bias.float()
    assert torch.allclose(y.float(), expected, atol=3e-2, rtol=3e-2)


def test_stream(device):
    if device == "cpu":
        pytest.skip("streams are the GPU's")
    layer = bt.BlockSparseLinear(512, 512, density=0.5, seed=2, device=device)
    x = torch.randn(64, 512, device=device)
    expected = layer(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(20):
            y = layer(x * 2) / 2
    stream.synchronize()
    assert torch.allclose(y - layer.bias / 2, expected - layer.bias, atol=1e-4)


def test_graph(device):
    """A captured layer gives new results for new inputs, after its plan was forgotten as well."""
    if device == "cpu":
        pytest.skip("graphs are the GPU's")
    layer = bt.BlockSparseLinear(512, 512, density=0.5, seed=2, device=device).bfloat16()
    x = torch.randn(64, 512, device=device).bfloat16()
    with torch.no_grad():
        layer(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        bsk.ops.clear_plans()
        x.copy_(torch.randn(64, 512, device=device))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, layer(x))


def test_graph_reads_the_weights_of_each_replay(device, always_packed):
    """A capture has no part in what is packed, and leaves it to other runs."""
    if device == "cpu":
        pytest.skip("graphs are the GPU's")
    layer = bt.BlockSparseLinear(512, 512, density=0.5, seed=2, device=device).bfloat16()
    x = torch.randn(64, 512, device=device).bfloat16()

    def images():
        entry = _packed._entries.get(id(layer.weight))
        return 0 if entry is None else len(entry.packed)

    with torch.no_grad():
        for _ in range(3):
            layer(x)
        made = images()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        assert images() == made
        for _ in range(3):
            layer(x)
        assert images() == made
        layer.weight.mul_(-3)
        graph.replay()
        torch.cuda.synchronize()
        expected = nn.functional.linear(x, layer.to_dense(), layer.bias)
        assert torch.allclose(y.float(), expected.float(), atol=5e-2, rtol=2e-2)
        for _ in range(3):
            layer(x)
        assert images() == made


def test_captured_runs_have_no_packed_form(monkeypatch):
    parameter = types.SimpleNamespace(is_cuda=True, device=None, _version=0, data_ptr=lambda: 1)
    entry = types.SimpleNamespace(tensor=lambda: parameter, version=0, address=1, packed=object())
    monkeypatch.setitem(_packed._entries, id(parameter), entry)
    for captures, expected in ((False, entry.packed), (True, None)):
        monkeypatch.setattr(_packed, "is_capturing", lambda device: captures)
        assert _packed.packed_of(parameter) is expected


@pytest.mark.skipif(not hasattr(torch.library, "custom_op"), reason="torch before 2.4")
def test_compile(device):
    layer = bt.BlockSparseLinear(64, 96, density=0.5, seed=2, device=device)
    model = nn.Sequential(layer, nn.ReLU(), bt.BlockSparseLinear(96, 32, device=device))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = torch.randn(8, 64, device=device)
    assert torch.allclose(compiled(x), model(x), atol=1e-5)
    compiled(x).sum().backward()
    got = layer.weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    assert torch.allclose(got, layer.weight.grad, atol=1e-5)


@pytest.mark.skipif(not hasattr(torch.library, "custom_op"), reason="torch before 2.4")
def test_opcheck():
    from bsk.torch import functional
    from bsk.torch._register import token_of
    x, w, bias, gate = operands("cpu")
    torch.library.opcheck(functional._matmul.op, (x, w, bias, gate, token_of(RAGGED), False))


def test_state_dict_carries_the_layout(device):
    model, other = (nn.Sequential(
        bt.BlockSparseLinear(64, 96, density=d, seed=s, device=device), nn.Linear(96, 8).to(device))
        for d, s in ((0.5, 1), (0.25, 2)))
    x = torch.randn(3, 64, device=device)
    memory = io.BytesIO()
    torch.save(model.state_dict(), memory)
    memory.seek(0)
    parameter = other[0].weight
    missing, unexpected = other.load_state_dict(torch.load(memory))
    assert not missing and not unexpected and other[0].weight is parameter
    assert other[0].layout == model[0].layout and torch.equal(other(x), model(x))
    fresh = nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 8)).to(device)
    assert bt.sparsify_like(fresh, model.state_dict()) == ["0"]
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(x), model(x))
    with pytest.raises(RuntimeError, match="layout"):
        other.load_state_dict({k: v for k, v in model.state_dict().items() if "layout" not in k})
    wrong = bt.BlockSparseLinear(32, 96, device=device)
    with pytest.raises(RuntimeError, match="64 x 96"):
        wrong.load_state_dict(model[0].state_dict())


def test_pickle_and_copy(device):
    layer = bt.BlockSparseLinear(64, 96, density=0.5, seed=2, device=device)
    x = torch.randn(3, 64, device=device)
    for made in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(made(x), layer(x))


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
def test_pattern_optimizer(device, kind):
    torch.manual_seed(0)
    layer = bt.BlockSparseLinear(256, 256, density=0.5, seed=2, device=device)
    options = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(torch.optim, kind)(layer.parameters(), lr=1e-2, **options)
    pattern = bt.PatternOptimizer(layer, lr=0.1)
    pattern.attach_optimizer(optimizer)
    x = torch.randn(8, 256, device=device)
    layer(x).square().sum().backward()
    optimizer.step()
    before, old = layer.to_dense().detach(), layer.layout
    norms = layer.weight.detach().flatten(1).norm(dim=1)
    state = "momentum_buffer" if kind == "SGD" else "exp_avg_sq"
    moments = optimizer.state[layer.weight][state].clone()
    assert pattern.step() == int(0.1 * 32) == 3
    assert layer.layout != old and layer.layout.nnz == 32
    moved = [i for i, (a, b) in enumerate(zip(zip(*old.to_coo()), zip(*layer.layout.to_coo())))
             if a != b]
    assert moved == sorted(norms.argsort()[:3].tolist())
    after = optimizer.state[layer.weight][state]
    for slot in range(32):
        assert torch.equal(after[slot], moments[slot] * (slot not in moved))
    changed = (layer.to_dense() != before).reshape(8, 32, 8, 32).any(3).any(1)
    assert int(changed.sum()) == 6
    assert torch.allclose(layer(x), bt.dense_twin(layer)(x), atol=1e-4)
    fresh = layer.weight[moved].detach()
    assert len(fresh.unique()) > 1000 and float(fresh.abs().max()) <= 0.1 * float(
        layer.weight.detach().std()) * 1.1


def test_patcher(device):
    def model():
        torch.manual_seed(3)
        return nn.ModuleDict({"query": nn.Linear(64, 64), "key": nn.Linear(64, 64, bias=False),
                              "out": nn.Linear(64, 32)}).to(device)

    patcher = bt.BlockSparseModelPatcher()
    patched, plain = model(), model()
    assert len(patcher.get_patchable_layers(patched)) == 3
    patcher.add_pattern("query|key", {"density": 1.0})
    assert patcher.patch_model(patched) == 2
    x = torch.randn(2, 64, device=device)
    for name in ("query", "key"):
        assert type(patched[name]) is bt.BlockSparseLinear
        assert torch.allclose(patched[name](x), plain[name](x), atol=1e-5)
    assert type(patched["out"]) is nn.Linear
    pseudo = bt.BlockSparseModelPatcher()
    pseudo.add_pattern("query", {"density": 0.5, "pseudo_linear": True, "block_shape": (16, 16)})
    other = model()
    assert pseudo.patch_model(other) == 1 and other["query"].density == 0.5
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert bt.BlockSparseModelPatcher().patch_model(model()) == 0
    assert caught
    share = bt.BlockSparseModelPatcher()
    share.add_pattern("query|key", {"block_shape": (8, 8)})
    small, total = model(), sum(p.numel() for p in model().parameters())
    share.patch_to_share(small, 0.5)
    assert abs(sum(p.numel() for p in small.parameters()) / total - 0.5) < 0.01
    with pytest.raises(ValueError, match="density"):
        patcher.add_pattern("a", {"densty": 1})


class Block(nn.Module):
    """A small transformer block."""

    def __init__(self, width, heads):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = bt.BlockSparseAttention(width, heads,
                                                 lambda time: Layout.local(time, 8, 16))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.down(torch.relu(self.up(self.norms[1](x))))


def transformer():
    torch.manual_seed(4)
    return nn.Sequential(nn.Embedding(16, 32), Block(32, 4), Block(32, 4), nn.Linear(32, 16))


@pytest.mark.filterwarnings("ignore::bsk.StagedWarning")
def test_transformer_trains_is_saved_and_reloaded(device):
    model = transformer()
    patcher = bt.BlockSparseModelPatcher()
    patcher.add_pattern(r".*\.(q|k|v|out|up|down)", {"density": 0.25, "block_shape": (8, 8)})
    assert patcher.patch_model(model) == 12
    model.to(device)
    tokens = torch.randint(16, (8, 41), device=device)
    tokens[:, 1::2] = tokens[:, :-1:2]  # every other token repeats the one before it
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1),
                                           tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.75 * losses[0]
    memory = io.BytesIO()
    torch.save(model.state_dict(), memory)
    memory.seek(0)
    state, fresh = torch.load(memory), transformer().to(device)
    assert len(bt.sparsify_like(fresh, state)) == 12
    fresh.load_state_dict(state)
    assert torch.equal(fresh(tokens), model(tokens))


@pytest.mark.filterwarnings("ignore::bsk.StagedWarning")
def test_attention(device):
    torch.manual_seed(5)
    layout = Layout.local(40, 8, 16)
    q = torch.randn(2, 4, 40, 8, dtype=torch.float64, device=device, requires_grad=True)
    k, v = (torch.randn(2, 2, 40, 8, dtype=torch.float64, device=device, requires_grad=True)
            for _ in range(2))
    i, j = torch.arange(40, device=device)[:, None], torch.arange(40, device=device)[None]
    seen = (j <= i) & (i - j < 16)
    s = q @ k.repeat_interleave(2, 1).transpose(-1, -2) * 8 ** -0.5
    expected = torch.softmax(s.masked_fill(~seen, float("-inf")), -1) @ v.repeat_interleave(2, 1)
    got = bt.attention(q, k, v, layout, causal=True, window=16)
    assert torch.allclose(got, expected, atol=1e-6)
    draw = torch.randn_like(got)
    for a, b in zip(torch.autograd.grad((got * draw).sum(), (q, k, v)),
                    torch.autograd.grad((expected * draw).sum(), (q, k, v))):
        assert torch.allclose(a, b, atol=1e-6)
    full = Layout.full((40, 40), 8)
    got = bt.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5, layout=full)
    assert torch.isfinite(got).all()


def test_functional_ops_on_tensors(device):
    x = torch.randn(4, 8, device=device)
    y = bsk.ops.bias_act(x, bias=torch.ones(8, device=device), act="relu")
    assert y.device == x.device and torch.allclose(y, torch.relu(x + 1))
    out = torch.empty(4, 8, device=device, dtype=torch.float16)
    assert bsk.ops.bias_act(x, y=out) is out
    if device != "cpu":
        with pytest.raises(bsk.InvalidError, match="lies on"):
            bsk.ops.bias_act(x, bias=torch.ones(8))


def test_weights_are_packed_once(device, always_packed):
    """Without gradients a packed form of the weight is kept while the weight stays."""
    layer = bt.BlockSparseLinear(512, 256, density=0.5, seed=2, device=device)
    tolerance = {"atol": 1e-4}
    if device != "cpu":
        layer, tolerance = layer.bfloat16(), {"atol": 5e-2, "rtol": 2e-2}
    x = torch.randn(64, 512, device=device, dtype=layer.weight.dtype)

    def check():
        got = layer(x)
        expected = nn.functional.linear(x, layer.to_dense(), layer.bias)
        assert torch.allclose(got.float(), expected.float(), **tolerance)

    def images():
        entry = _packed._entries.get(id(layer.weight))
        return 0 if entry is None else len(entry.packed)

    with torch.no_grad():
        for _ in range(3):
            check()
        made = images()  # 1 where the plan has a packed form
        for change in (lambda: layer.weight.mul_(2), lambda: layer.weight.detach().sub_(1),
                       lambda: bsk.ops.unary(layer.weight, y=layer.weight, kind="tanh"),
                       lambda: bsk.ops.unary(layer.weight.data, y=layer.weight.data, kind="neg"),
                       lambda: setattr(layer.weight, "data", layer.weight.data * 3),
                       lambda: layer.weight.data.mul_(0.5),
                       lambda: layer.weight.data.copy_(torch.randn_like(layer.weight) / 16),
                       lambda: layer.load_state_dict(layer.state_dict())):
            change()
            for _ in range(3):
                check()
            assert images() == made
        twin = copy.deepcopy(layer)
        assert type(twin.weight) is type(layer.weight) is nn.Parameter
        assert torch.equal(twin(x), layer(x))
        check(), check()
        assert images() == made
        bt.forget_packed(layer)
        assert images() == 0
        check(), check()
        assert images() == made
    layer(x).float().sum().backward()
    assert images() == 0
    check()
    key = id(layer.weight)
    with torch.no_grad():
        check()
    del layer
    gc.collect()
    assert key not in _packed._entries


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}],
                         ids=lambda o: " ".join(f"{k}={v}" for k, v in o.items()))
def test_optimizers_change_what_was_packed(device, options, always_packed):
    layer = bt.BlockSparseLinear(256, 128, density=0.5, seed=2, device=device)
    x = torch.randn(16, 256, device=device)
    try:
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, **options)
    except (TypeError, RuntimeError) as error:  # fused: before torch 2.4, and on the CPU
        pytest.skip(str(error))
    layer(x).square().mean().backward()
    for _ in range(3):
        with torch.no_grad():
            for _ in range(3):
                assert torch.allclose(layer(x), bt.dense_twin(layer)(x), atol=1e-4)
        optimizer.step()


def test_threads_share_what_was_packed(device, always_packed):
    """Six threads with one weight, which changes between rounds in which all of them run."""
    layer = bt.BlockSparseLinear(256, 192, density=0.5, seed=2, device=device)
    if device != "cpu":
        layer = layer.bfloat16()
    x = torch.randn(32, 256, device=device, dtype=layer.weight.dtype)
    rounds, count, wrong, expected = 12, 6, [], []
    gate = threading.Barrier(count, timeout=60)

    def change(number):
        if number % 3 == 0:
            layer.weight.mul_(-0.5)
        elif number % 3 == 1:
            layer.weight.data.add_(0.25)
        else:
            bsk.ops.unary(layer.weight, y=layer.weight, kind="tanh")
        # A product of the same entry that has no packed form to go by.
        expected[:] = [bsk.ops.matmul(layer.layout, x, layer.weight.clone(), bias=layer.bias.float(),
                                      packed=bsk.ops.Packed())]

    def work(member):
        try:
            with torch.no_grad():
                for number in range(rounds):
                    if gate.wait() == 0:
                        change(number)
                    gate.wait()
                    for _ in range(8):
                        if not torch.equal(layer(x), expected[0]):
                            wrong.append((member, number))
        except Exception as error:
            wrong.append(error)
            gate.abort()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    entry = _packed._entries.get(id(layer.weight))
    assert entry is not None and len(entry.packed) <= 1


def test_changes_in_place_are_counted(device):
    """As torch counts them, so that autograd tells what it kept and others have changed."""
    x, w = torch.rand(4, 8, device=device), torch.rand(4, 8, device=device, requires_grad=True)
    for t in (x, w, w.detach(), x[1:]):
        before = t._version
        bsk.ops.unary(t, y=t, kind="tanh")
        assert t._version == before + 1
    y = w.square()
    bsk.ops.unary(w, y=w, kind="neg")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with torch.inference_mode():  # has no counts
        bsk.ops.unary(x, y=torch.empty_like(x), kind="neg")


def test_what_others_write_to_is_not_packed(device, monkeypatch, always_packed):
    layer = bt.BlockSparseLinear(256, 192, density=0.5, seed=2, device=device)
    x = torch.randn(32, 256, device=device)

    def entries():
        with torch.no_grad():
            for _ in range(3):
                assert torch.allclose(layer(x), bt.dense_twin(layer)(x), atol=1e-3)
        return id(layer.weight) in _packed._entries

    assert entries()
    if device == "cpu":
        layer.share_memory()
        assert not entries()
        assert not any(id(layer.weight) in w for w in _arrays.watched.values())
        return
    monkeypatch.setattr(_packed, "is_capturing", lambda device: True)
    layer(x)
    monkeypatch.setattr(_packed, "is_capturing", lambda device: False)
    assert not entries()


def test_pattern_step_forgets_what_was_packed(device, always_packed):
    layer = bt.BlockSparseLinear(256, 256, density=0.5, seed=2, device=device)
    x = torch.randn(64, 256, device=device)
    pattern = bt.PatternOptimizer(layer, lr=0.3)
    with torch.no_grad():
        for _ in range(3):
            layer(x), layer(x), layer(x)
            pattern.step()
            assert torch.allclose(layer(x), bt.dense_twin(layer)(x), atol=1e-4)


@pytest.mark.skipif(not hasattr(torch, "func"), reason="torch before 2.0")
def test_func(device):
    """The transforms of torch.func: gradients, those of single samples, Jacobians."""
    layer = bt.BlockSparseLinear(64, 32, density=0.5, block_shape=(8, 8), seed=1, device=device)
    x = torch.randn(5, 64, device=device)

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    parameters = dict(layer.named_parameters())
    got = torch.func.grad(loss)(parameters, x)
    loss(parameters, x).backward()
    for name, p in layer.named_parameters():
        assert torch.allclose(got[name], p.grad, atol=1e-5)
    single = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x[:, None])
    for name, p in layer.named_parameters():
        assert single[name].shape == (5, *p.shape)
        assert torch.allclose(single[name].sum(0), p.grad, atol=1e-4)
    jacobian = torch.func.jacrev(layer)(x[0])
    assert torch.allclose(jacobian, layer.to_dense(), atol=1e-5)


def test_negative_bit_and_freed_storage():
    x = torch._neg_view(torch.ones(2, 4))
    assert torch.equal(bsk.ops.filter(x), -torch.ones(2, 4))
    assert torch.equal(bsk.ops.filter(torch.nn.Parameter(x)), -torch.ones(2, 4))
    with pytest.raises(bsk.InvalidError, match="negative bit"):
        bsk.ops.filter(torch.ones(2, 4), y=x)
    freed = torch.ones(2, 4)
    (freed.untyped_storage() if hasattr(freed, "untyped_storage") else freed.storage()).resize_(0)
    with pytest.raises(bsk.InvalidError, match="freed"):
        bsk.ops.filter(freed)


def test_tracing_is_refused():
    layer = bt.BlockSparseLinear(16, 16, block_shape=(8, 8))
    with pytest.raises(NotImplementedError, match="trace"):
        torch.jit.trace(layer, torch.ones(2, 16))
    with pytest.raises(NotImplementedError, match="trace"):
        torch.jit.trace(bsk.compat.relu, torch.ones(2, 16))


def test_patcher_shared_and_frozen_layers():
    shared = nn.Linear(16, 16)
    shared.weight.requires_grad_(False)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    patcher = bt.BlockSparseModelPatcher()
    patcher.add_pattern("2", {"density": 0.5, "block_shape": (8, 8)})
    assert patcher.patch_model(model) == 1
    assert model[0] is model[2] and type(model[0]) is bt.BlockSparseLinear
    assert not model[0].weight.requires_grad and model[0].bias.requires_grad
    fresh = nn.Linear(16, 16)
    fresh = nn.Sequential(fresh, nn.ReLU(), fresh)
    assert bt.sparsify_like(fresh, model.state_dict()) == ["0", "2"]
    assert fresh[0] is fresh[2]
    patcher.add_pattern(".*", {})
    with pytest.raises(ValueError, match="itself"):
        patcher.patch_model(nn.Linear(16, 16))


def test_pattern_optimizer_checks_states_that_came_later():
    layer = bt.BlockSparseLinear(16, 16, block_shape=(8, 8))
    optimizer = torch.optim.Adagrad(layer.parameters())
    optimizer.state.clear()
    pattern = bt.PatternOptimizer(layer, lr=0.5)
    pattern.attach_optimizer(optimizer)
    optimizer.state[layer.weight]["sum"] = torch.zeros_like(layer.weight)
    with pytest.raises(ValueError, match="keeps sum"):
        pattern.step()


def test_layout_without_weights_is_an_error():
    layer, other = (bt.BlockSparseLinear(16, 16, density=d, block_shape=(8, 8), seed=1)
                    for d in (0.5, 1.0))
    state, before = other.state_dict(), layer.weight.detach().clone()
    del state["weight"]
    with pytest.raises(RuntimeError, match="no weight"):
        layer.load_state_dict(state, strict=False)
    assert torch.equal(layer.weight, before)


def test_sampled_product_under_autocast():
    layout = Layout.full((8, 8), 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert bt.matmul_sampled(torch.ones(4, 8), torch.ones(4, 8).bfloat16(),
                                 layout).dtype == torch.bfloat16


# --- what torch does around a run -------------------------------------------------------------

COMPILES = hasattr(torch.library, "custom_op")


def test_equal_layouts_have_one_number():
    one, same, other = (Layout.random((64, 96), 16, 0.5, seed) for seed in (3, 3, 4))
    assert one.token == same.token != other.token
    token = one.token
    del one
    gc.collect()
    assert _register.layout_of(token) is not None  # equal layouts keep each other
    del same
    gc.collect()
    with pytest.raises(RuntimeError, match="no bsk.Layout"):
        _register.layout_of(token)


def test_parameter_of_packed_weight():
    layer = bt.BlockSparseLinear(512, 512, density=0.5, seed=1)
    x = torch.randn(64, 512)
    with torch.no_grad():
        wanted = layer(x)
        again = nn.Parameter(layer.weight)
        assert type(again) is nn.Parameter
        layer.weight = again
        assert torch.equal(layer(x), wanted)


@pytest.mark.skipif(not COMPILES, reason="torch before 2.4")
def test_vjp():
    layer = bt.BlockSparseLinear(64, 96, density=0.5, block_shape=(16, 16), seed=1)
    x, g = torch.randn(4, 64), torch.randn(4, 96)
    y, pull = torch.func.vjp(layer, x)
    x.requires_grad_()
    layer(x).backward(g)
    assert torch.allclose(pull(g)[0], x.grad, atol=1e-6)


@pytest.mark.skipif(not COMPILES, reason="torch before 2.4")
def test_modes_see_the_ops():
    from torch.utils._python_dispatch import TorchDispatchMode
    seen = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    layer = bt.BlockSparseLinear(64, 96, density=0.5, block_shape=(16, 16), seed=1)
    with Names():
        layer(torch.randn(4, 64))
    assert any("bsk.matmul" in name for name in seen)


@pytest.mark.skipif(not COMPILES, reason="torch before 2.4")
def test_meta():
    with torch.device("meta"):
        layer = bt.BlockSparseLinear(64, 96, density=0.5, block_shape=(16, 16))
        heads = bt.BlockSparseAttention(32, 4, block=8, causal=True, alibi=True)
    assert layer(torch.empty(4, 64, device="meta")).shape == (4, 96)
    real = bt.BlockSparseAttention(32, 4, block=8, causal=True, alibi=True)
    heads.to_empty(device="cpu").load_state_dict(real.state_dict())
    x = torch.randn(2, 16, 32)
    assert torch.allclose(heads(x), real(x))


@pytest.mark.skipif(not COMPILES, reason="torch before 2.4")
def test_export_keeps_layouts():
    x = torch.randn(4, 64)
    layer = bt.BlockSparseLinear(64, 96, density=0.5, block_shape=(16, 16), seed=1)
    wanted = nn.functional.linear(x, layer.to_dense(), layer.bias).detach()
    program = torch.export.export(layer, (x,), strict=False)  # of one that has not run
    del layer
    gc.collect()
    assert torch.allclose(program.module()(x), wanted, atol=1e-5)
    heads = bt.BlockSparseAttention(32, 4, block=8, causal=True)
    x = torch.randn(2, 16, 32)
    program = torch.export.export(heads, (x,), strict=False)
    assert torch.allclose(program.module()(x), heads(x), atol=1e-5)


def test_blocks_and_matrices_have_their_shapes(device):
    layout = Layout.random((20, 28), 8, 0.6, seed=3, heads=2)
    dense = torch.randn(2, 20, 28, dtype=torch.float64, device=device, requires_grad=True)
    blocks = bt.blocks_from_dense(dense, layout)
    inside = torch.tensor(layout.to_mask(), dtype=torch.float64, device=device)
    inside = inside.repeat_interleave(8, 1).repeat_interleave(8, 2)[:, :20, :28]
    assert torch.equal(bt.blocks_to_dense(blocks, layout), dense * inside)
    assert torch.autograd.gradcheck(lambda d: bt.blocks_from_dense(d, layout), dense)
    assert torch.autograd.gradcheck(lambda b: bt.blocks_to_dense(b, layout),
                                    torch.randn_like(blocks).requires_grad_())
    alike = bt.blocks_from_dense(dense[0], layout)  # of all heads
    assert torch.equal(bt.blocks_to_dense(alike, layout), dense[0] * inside)
    one = Layout.full((32, 32), 16)
    for function, name, x, legal in (
            (bt.blocks_from_dense, "dense", torch.ones(48, 20), r"\[32, 32\] or \[1, 32, 32\]"),
            (bt.blocks_from_dense, "dense", torch.ones(1, 32), r"\[32, 32\]"),
            (bt.blocks_from_dense, "dense", torch.ones(2, 32, 32), r"\[32, 32\]"),
            (bt.blocks_to_dense, "blocks", torch.ones(1, 16, 16), r"\[4, 16, 16\]"),
            (bt.mask_bits, "mask", torch.ones(1, 32, dtype=torch.bool), r"\[32, 32\]")):
        shape = ", ".join(map(str, x.shape))
        with pytest.raises(bsk.InvalidError,
                           match=rf"{function.__name__}: {name} is \[{shape}\]; must be {legal}"):
            function(x, one)
    with pytest.raises(TypeError, match="layout is a NoneType; must be a bsk.Layout"):
        bt.blocks_from_dense(torch.ones(32, 32), None)
    with pytest.raises(TypeError, match="layout is a int"):
        bt.matmul(torch.ones(4, 32), torch.ones(4, 16, 16), 3)


def test_inputs_without_features(device):
    layer = bt.BlockSparseLinear(32, 32, block_shape=16, density=1.0).to(device)
    assert layer.layout.block == (16, 16)
    with pytest.raises(bsk.InvalidError, match="matmul: x has no dimensions"):
        layer(torch.tensor(1.0, device=device))
    with pytest.raises(bsk.InvalidError, match="matmul_sampled: dy has no dimensions"):
        bt.matmul_sampled(torch.ones(32), torch.tensor(1.0), layer.layout)


def sparse_inside(model, pseudo=False):
    patcher = bt.BlockSparseModelPatcher()
    patcher.add_pattern(".*", {"density": 0.5, "block_shape": 8, "pseudo_linear": pseudo})
    assert not any(rule.endswith("out_proj") for rule, _ in patcher.get_patchable_layers(model))
    return patcher.patch_model(model)


@pytest.mark.parametrize("pseudo", [False, True])
@pytest.mark.parametrize("padding", [False, True])
def test_encoders_of_torch(device, pseudo, padding):
    """Inference, which has a fast path of its own, gives what training does."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).to(device)
    assert sparse_inside(model, pseudo) == 4
    assert isinstance(model.layers[0].self_attn.out_proj, nn.Linear)
    x = torch.randn(3, 8, 32, device=device)
    mask = torch.arange(8, device=device)[None] >= torch.tensor([[8], [5], [3]], device=device)
    mask = mask if padding else None
    expected = model.train()(x, src_key_padding_mask=mask)
    fresh = nn.TransformerEncoder(layer, 2).to(device)
    if not pseudo:
        bt.sparsify_like(fresh, model.state_dict())
        fresh.load_state_dict(model.state_dict())
    with torch.no_grad():
        for made in [model] + [fresh] * (not pseudo):
            got = made.eval()(x, src_key_padding_mask=mask)
            assert got.shape == expected.shape and torch.allclose(got, expected, atol=1e-5)


def test_attention_of_torch_stays_dense(device):
    attention = nn.MultiheadAttention(32, 4).to(device)
    with pytest.warns(UserWarning, match="no nn.Linear"):
        assert sparse_inside(attention) == 0
    shared = nn.ModuleDict({"attention": attention, "out": attention.out_proj})
    assert sparse_inside(shared) == 1 and isinstance(shared["out"], bt.BlockSparseLinear)
    x = torch.randn(3, 2, 32, device=device)
    assert attention(x, x, x)[0].shape == x.shape
