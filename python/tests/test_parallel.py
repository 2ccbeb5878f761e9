"""Layers and attention of several processes beside those of one. The processes of a test run this
file, and in it all cases, since to start them takes longest."""

import copy
import os
import pathlib
import pickle
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch without its distributed, or that without gloo", allow_module_level=True)

import torch.distributed as dist  # noqa: E402

import bsk  # noqa: E402
from bsk import Layout  # noqa: E402
from bsk.torch import BlockSparseLinear, attention, parallel  # noqa: E402


def close(got, want):
    bound = max(4 * torch.finfo(want.dtype).eps, 2e-5)
    assert got.dtype == want.dtype and got.shape == want.shape, (got.shape, want.shape)
    assert torch.allclose(got, want, rtol=bound, atol=bound * float(want.abs().max())), \
        (got - want).abs().max()


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def sums(dtype):
    """Whether processes of the CPU can add numbers of a type: old versions of gloo lack bf16."""
    try:
        dist.all_reduce(torch.zeros(1, dtype=dtype))
        return True
    except RuntimeError:
        return False


# --- layers ---------------------------------------------------------------------------------------

def skewed(shape, block, axis):
    """A layout whose lines along an axis are the fuller the later they are, but for the last."""
    grid = [-(-s // b) for s, b in zip(shape, block)]
    mask = [[int((i + 3 * j) % grid[axis] <= (i, j)[axis]) for j in range(grid[1])]
            for i in range(grid[0])]
    for i in range(grid[0]):
        mask[i][-1] = int(i == 1)
    return Layout.from_mask(mask, block, shape=shape)


def part_of(whole, part, axis):
    """The slots of a part in the whole: what cannot be told from the part's own layout."""
    start = part.cut[part.rank] // whole.layout.block[axis]
    places = [list(c) for c in part.layout.to_coo()[1:]]
    places[axis] = [start + i for i in places[axis]]
    return [whole.layout.find(row, col) for row, col in zip(*places)]


def check_part(whole, part, axis):
    slots = part_of(whole, part, axis)
    assert torch.equal(part.weight, whole.weight[slots])
    close(part.weight.grad, whole.weight.grad[slots])
    if whole.bias is not None:
        own = slice(*part.cut[part.rank:part.rank + 2]) if axis else slice(None)
        close(part.bias.grad, whole.bias.grad[own])
    return len(slots)


def both(whole, part, dtype):
    """Runs the layers of one process and of several, backwards as well."""
    x = random(2, 5, whole[0].in_features, dtype=dtype).requires_grad_()
    g = random(2, 5, whole[-1].out_features, dtype=dtype)
    got = []
    for layers in (whole, part):
        x.grad = None
        y = torch.nn.Sequential(*layers)(x)
        y.backward(g)
        got += [y, x.grad]
    close(got[2], got[0])
    close(got[3], got[1])


def layers(rank, size, dtype):
    for shape, block, bias in (((75, 60), (8, 12), True), ((64, 64), (16, 8), False)):
        made = [BlockSparseLinear(*s, bias=bias, pattern=skewed(s, b, axis), dtype=dtype)
                for s, b, axis in ((shape, block, 1), (shape[::-1], block[::-1], 0))]
        column = parallel.ColumnParallelLinear(made[0])
        row = parallel.RowParallelLinear(made[1])
        assert len(set(column.widths)) > 1 and len(set(row.widths)) > 1
        both(made[:1], [column], dtype)
        both(made[1:], [row], dtype)
        for whole, part, axis in ((made[0], column, 1), (made[1], row, 0)):
            nnz = torch.tensor([check_part(whole, part, axis)])
            dist.all_reduce(nnz)
            assert int(nnz) == whole.layout.nnz
        for layer in made:
            layer.zero_grad()
        column = parallel.ColumnParallelLinear(made[0], gather_output=False)
        row = parallel.RowParallelLinear(made[1], cut=column.cut, input_is_parallel=True)
        both(made, [column, row], dtype)
        check_part(made[0], column, 1)
        check_part(made[1], row, 0)


def gradients_of_gradients():
    whole = BlockSparseLinear(40, 48, pattern=skewed((40, 48), (8, 8), 1))
    x, g = random(3, 40).requires_grad_(), random(3, 48)
    got = []
    for layer in (whole, parallel.ColumnParallelLinear(whole), parallel.RowParallelLinear(whole)):
        slope, = torch.autograd.grad((layer(x).tanh() * g).sum(), x, create_graph=True)
        got.append(torch.autograd.grad(slope.square().sum(), x)[0])
    close(got[1], got[0])
    close(got[2], got[0])


def modules(rank, size):
    whole = BlockSparseLinear(40, 48, pattern=skewed((40, 48), (8, 8), 1))
    whole.weight.requires_grad_(False)
    part = parallel.ColumnParallelLinear(whole, cut=[0, 16, 48] if size == 2 else [0, 8, 40, 48])
    assert part.widths == ([16, 32] if size == 2 else [8, 32, 8])
    assert not part.weight.requires_grad and part.bias.requires_grad
    x = random(3, 40)
    for again in (copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert torch.equal(again(x), part(x))
    again = parallel.ColumnParallelLinear(BlockSparseLinear(40, 48, pattern=whole.layout),
                                          cut=part.cut)
    again.load_state_dict(part.state_dict())
    assert torch.equal(again(x), part(x)) and f"rank={rank}" in repr(part)
    assert part(x[:0]).shape == (0, 48)
    for cut in ([0, 12, 48], [0, 48], [8, 16, 48], [0, 8, 16, 24, 48], [0] * size + [48]):
        with pytest.raises(ValueError, match="the cut is"):
            parallel.ColumnParallelLinear(whole, cut=cut)
    with pytest.raises(bsk.InvalidError, match=rf"parts = {size} must be in \[1, 1\]"):
        parallel.RowParallelLinear(BlockSparseLinear(8, 8, block_shape=8))


# --- attention ------------------------------------------------------------------------------------

BF16 = {"dtype": torch.bfloat16}
ATTENTION = [  # layout, heads, key/value heads, options
    (Layout.causal(75, 8), 4, 2, {"causal": True}),
    (Layout.full((64, 64), 8), 2, 2, {"causal": True, "softcap": 3.0}),
    (Layout.full((72, 72), (8, 4)), 2, 1, {"window": 9, "scale": 0.7}),
    (Layout.sliding(75, 8, 3), 2, 2, {"window": 12}),
    (Layout.sliding(75, 8, 3), 2, 2, {"window": 6, "causal": True, **BF16}),
    (Layout.sink_local(90, (6, 9), 5, 20), 2, 1, {"window": 0, "causal": True}),
    (Layout.random((72, 72), 8, 0.2, seed=1, heads=4), 4, 2, {}),
    (Layout.random((72, 72), 8, 0.3, seed=2, heads=2), 4, 4, {"causal": True}),
    (Layout.random((72, 72), 8, 0.3, seed=3, heads=2), 6, 3, BF16),
    (Layout.random((48, 80), (8, 16), 0.4, seed=4), 2, 2, {}),
    (Layout.from_coo([0, 1, 5], [8, 2, 0], (70, 70), (7, 8)), 2, 2, {"window": 70}),
    (Layout.from_coo([4, 5, 5], [0, 1, 4], (48, 48), 8), 2, 2, {"causal": True}),
    (Layout.from_coo([], [], (48, 48), 8), 1, 1, {"causal": True}),
]


def needed_keys(layout, heads, kv_heads, causal, window):
    """For each query block and key/value head the keys of blocks with a visible element: bool
    [kv_heads, grid rows, keys]."""
    (rows, cols), (r, c) = layout.shape, layout.block
    i, j = torch.arange(rows)[:, None], torch.arange(cols)
    seen = torch.ones(rows, cols, dtype=torch.bool)
    if causal:
        seen &= j <= i
    if window:
        seen &= (i - j).abs() < window
    masks = layout.to_mask() if layout.heads > 1 else [layout.to_mask()]
    needed = torch.zeros(kv_heads, layout.grid[0], cols, dtype=torch.bool)
    for h in range(heads):
        for a, line in enumerate(masks[h // (heads // layout.heads)]):
            for b, kept in enumerate(line):
                if kept and seen[a * r:(a + 1) * r, b * c:(b + 1) * c].any():
                    needed[h // (heads // kv_heads), a, b * c:(b + 1) * c] = True
    return needed


def attend(layout, heads, kv_heads, options, rank, size, sent):
    options = dict(options)
    dtype = options.pop("dtype", torch.float32)
    causal, window = options.get("causal", False), options.get("window", 0)
    split = parallel.sequence_split(layout, size, causal, window)
    mine, own = slice(*split.queries[rank:rank + 2]), slice(*split.keys[rank:rank + 2])
    q = random(2, heads, layout.shape[0], 8, dtype=dtype).requires_grad_()
    k = random(2, kv_heads, layout.shape[1], 8, dtype=dtype).requires_grad_()
    v = random(2, kv_heads, layout.shape[1], 16, dtype=dtype).requires_grad_()
    g = random(2, heads, layout.shape[0], 16, dtype=dtype)
    want = attention(q, k, v, layout, **options)
    want.backward(g)
    runs = []
    for _ in range(2):
        parts = [x.detach()[:, :, s].requires_grad_() for x, s in ((q, mine), (k, own), (v, own))]
        sent.clear()
        o = parallel.sequence_parallel_attention(*parts, layout, **options)
        o.backward(g[:, :, mine])
        runs.append([o, *(x.grad for x in parts)])
    assert all(map(torch.equal, *runs))
    for got, x in zip(runs[0], (want[:, :, mine], q.grad[:, :, mine], k.grad[:, :, own],
                                v.grad[:, :, own])):
        close(got, x)
    # What came, forwards, and went back is what is needed of others, and no more.
    r = layout.block[0]
    needed = needed_keys(layout, heads, kv_heads, causal, window)
    needed = needed[:, mine.start // r:-(-mine.stop // r)].any(1)
    counts = [int(needed[:, a:b].sum()) for a, b in zip(split.keys, split.keys[1:])]
    there, back = sent
    assert list(there[0]) == counts == list(back[1]) and there[1] == back[0]
    counts[rank] = 0
    assert split.received(rank, heads, kv_heads) == counts
    # Others are not read: each process in turn is one that needs none of the spoilt ones.
    spoilt = torch.zeros(kv_heads, layout.shape[1])
    for turn in range(size):
        spoilt.fill_(0)
        if turn == rank:
            spoilt[~needed] = float("nan")
        dist.broadcast(spoilt, turn)
        bad = [(x + spoilt[:, own, None]).to(dtype) for x in parts[1:]]
        o = parallel.sequence_parallel_attention(parts[0], *bad, layout, **options)
        assert turn != rank or torch.equal(o, runs[0][0])
    return sum(counts)


def sequences(rank, size):
    sent, move = [], dist.all_to_all_single

    def counted(y, x, to, of, group=None):
        assert x.dtype == torch.uint8
        sent.append((to, of))
        return move(y, x, to, of, group=group)

    dist.all_to_all_single = counted
    moved = [attend(*case, rank, size, sent) for case in ATTENTION]
    # A block diagonal needs nothing of others.
    diagonal = Layout.from_coo(range(9), range(9), (72, 72), 8)
    assert attend(diagonal, 2, 2, {}, rank, size, sent) == 0 < max(moved) or rank == 0
    dist.all_to_all_single = move
    # Queries are cut by kept blocks: of a triangle the first have more.
    cut = parallel.sequence_split(Layout.full((96, 96), 8), size, causal=True).queries
    assert cut == ([0, 64, 96] if size == 2 else [0, 56, 80, 96])


def autocast(rank, size):
    layout = Layout.causal(64, 8)
    mine = slice(*parallel.sequence_split(layout, size, True).queries[rank:rank + 2])
    x = random(1, 2, 64, 8)
    with torch.autocast("cpu", torch.bfloat16):
        want = attention(x, x, x, layout, causal=True)[:, :, mine]
        part = x[:, :, mine]
        close(parallel.sequence_parallel_attention(part, part, part, layout, causal=True), want)


def groups(rank, size):
    """Of some of the processes."""
    ranks = [0, size - 1]
    group = dist.new_group(ranks)
    whole = BlockSparseLinear(40, 40, pattern=skewed((40, 40), (8, 8), 1))
    layout, x = Layout.causal(40, 8), random(1, 2, 40, 40)
    if rank in ranks:
        place = ranks.index(rank)
        for layer in (parallel.ColumnParallelLinear, parallel.RowParallelLinear):
            close(layer(whole, group)(x), whole(x))
        mine = slice(*parallel.sequence_split(layout, 2, True).queries[place:place + 2])
        part = x[:, :, mine]
        o = parallel.sequence_parallel_attention(part, part, part, layout, True, group=group)
        close(o, attention(x, x, x, layout, True)[:, :, mine])


def refusals(rank, size):
    layout = Layout.causal(64, 8)
    x = torch.zeros(1, 3, 64, 8)
    with pytest.raises(bsk.InvalidError, match="q is .*; must be .* in rank"):
        parallel.sequence_parallel_attention(x, x, x, layout)
    own = x[:, :, slice(*parallel.sequence_split(layout, size).queries[rank:rank + 2])]
    for k, v in ((own, own.half()), (own[:, :1], own), (own.repeat(2, 1, 1, 1),) * 2):
        with pytest.raises(bsk.InvalidError, match="must have one batch"):
            parallel.sequence_parallel_attention(own, k, v, layout)
    with pytest.raises(bsk.InvalidError, match="64 x 32; must be square"):
        parallel.sequence_split(Layout.full((64, 32), 8), size, causal=True)
    with pytest.raises(bsk.InvalidError, match="divide each other"):
        parallel.sequence_split(layout, size).received(rank, 3, 2)


# --- the processes --------------------------------------------------------------------------------

def work(rank, size, store):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size)
    for dtype in filter(sums, (torch.float32, torch.float16, torch.bfloat16)):
        layers(rank, size, dtype)
    gradients_of_gradients()
    modules(rank, size)
    sequences(rank, size)
    autocast(rank, size)
    groups(rank, size)
    refusals(rank, size)
    # Who leaves first takes the connections with him.
    done = [pathlib.Path(f"{store}.{r}") for r in range(size)]
    done[rank].touch()
    while not all(d.exists() for d in done):
        time.sleep(0.01)
    os._exit(0)  # threads of torch's process group may abort while an interpreter ends


@pytest.mark.parametrize("size", [2, 3])
def test_processes(size, tmp_path):
    workers = []
    for rank in range(size):
        with open(tmp_path / f"errors.{rank}", "w") as errors:
            workers.append(subprocess.Popen(
                [sys.executable, __file__, str(rank), str(size), str(tmp_path / "store")],
                env=dict(os.environ, BSK_NUM_THREADS="1"), stderr=errors))
    end = time.monotonic() + 120
    try:
        # The first that fails says why: the others only that it has left.
        while time.monotonic() < end and any(w.poll() is None for w in workers) \
                and not any(w.poll() for w in workers):
            time.sleep(0.02)
        failed = [rank for rank, worker in enumerate(workers) if worker.poll() != 0]
        assert not failed, "".join(f"rank {rank}:\n" + (tmp_path / f"errors.{rank}").read_text()
                                   for rank in failed)
    finally:
        for worker in workers:
            worker.kill()


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
