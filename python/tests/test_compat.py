"""The aliases of older libraries against dense torch."""

import pytest

torch = pytest.importorskip("torch")

import bsk  # noqa: E402
from bsk import compat  # noqa: E402

# pytorch_block_sparse's grid: (leading sizes, rows C, columns R), and its lists of blocks.
SIZES = [((32,), 32, 32), ((32,), 64, 32), ((64,), 32, 32), ((128,), 32, 32), ((128,), 64, 32),
         ((32,), 32, 64), ((64, 32), 32, 64), ((64, 128, 32), 128, 256), ((32,), 64, 64),
         ((32,), 64, 128), ((1,), 32, 32)]
BLOCKS = [None, [(0, 0)], [(0, 0), (1, 0)], [(1, 0), (0, 1)], [(0, 1), (1, 1), (2, 0), (1, 0)]]


@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("lead,inner,outer", SIZES)
def test_reverse_matmul(lead, inner, outer, transpose):
    torch.manual_seed(1)
    shape = (outer, inner) if transpose else (inner, outer)
    grid = shape[0] // 32, shape[1] // 32
    for blocks in BLOCKS[:1] if len(lead) > 2 else BLOCKS:
        if blocks and any(i >= grid[0] or j >= grid[1] for i, j in blocks):
            continue
        matrix = compat.BlockSparseMatrix.randn(shape, blocks=blocks, positive=True)
        x = torch.rand(*lead, inner)
        dense = matrix.to_dense()
        expected = x @ (dense.t() if transpose else dense)
        got = matrix.reverse_matmul(x, transpose)
        assert got.shape == expected.shape
        # Other orders of summation: 1e-5 as there, and no absolute part beyond what a sum of f32
        # numbers has.
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("turned_a", [False, True])
@pytest.mark.parametrize("turned_b", [False, True])
@pytest.mark.parametrize("sizes,blocks", [
    ((64, 128, 256), None), ((64, 128, 256), [(0, 0)]), ((64, 128, 256), [(0, 1), (2, 3)]),
    ((64, 128, 256), [(3, 7), (1, 0), (2, 2)]), ((64, 128, 256), [(0, 0), (1, 1), (2, 2), (3, 3)]),
    ((1, 32, 32), None)])
def test_matmul_with_output_sparse_support(sizes, blocks, turned_a, turned_b):
    torch.manual_seed(2)
    n, rows, cols = sizes
    a = torch.rand(rows, n).t() if turned_a else torch.rand(n, rows)
    b = torch.rand(cols, n).t() if turned_b else torch.rand(n, cols)
    matrix = compat.BlockSparseMatrix.zeros((rows, cols), blocks=blocks)
    got = matrix.matmul_with_output_sparse_support(a, b)
    assert torch.allclose(got, bsk.torch.blocks_from_dense(a.t() @ b, matrix.layout), rtol=1e-4)


@pytest.mark.parametrize("size", [(32, 32), (64, 32), (32, 64), (64, 64), (256, 64)])
def test_round_trip(size):
    dense = torch.randn(size)
    assert torch.equal(compat.BlockSparseMatrix.from_dense(dense).to_dense(), dense)
    some = compat.BlockSparseMatrix.from_dense(dense, block_count=1)
    assert some.layout.nnz == 1
    best = max(dense[i:i + 32, j:j + 32].norm() for i in range(0, size[0], 32)
               for j in range(0, size[1], 32))
    assert torch.allclose(some.block_norm(), best)


@pytest.mark.parametrize("block", [(1, 2), (2, 4)])
def test_small_blocks(block):
    dense = torch.randn(8, 8)
    blocks = [(0, 0), (3, 1), (2, 0)]
    matrix = compat.BlockSparseMatrix.from_dense(dense, block, blocks=blocks)
    for slot, (i, j) in enumerate(zip(*matrix.build_coo_block_index().tolist())):
        part = dense[i * block[0]:(i + 1) * block[0], j * block[1]:(j + 1) * block[1]]
        assert torch.equal(matrix.data[slot], part)


def test_block_replace():
    matrix = compat.BlockSparseMatrix.randn((64, 128), blocks=[(0, 0), (1, 1), (0, 3)])
    before = matrix.data.detach().clone()
    norms = matrix.block_norm()
    assert torch.allclose(norms, before.flatten(1).norm(2, 1))
    slot = matrix.layout.find(1, 1)
    matrix.block_replace([(1, 2, slot)])
    dense = matrix.to_dense()
    assert torch.equal(dense[32:, 64:96], before[slot]) and not dense[32:, 32:64].any()
    assert torch.equal(matrix.data, before)
    x = torch.randn(5, 128)
    assert torch.allclose(matrix.reverse_matmul(x), x @ dense.t(), atol=1e-4)
    with pytest.raises(bsk.InvalidError):
        matrix.block_replace([(0, 0, slot)])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("z_order", [True, False])
def test_blocksparse_matmul(axis, z_order):
    torch.manual_seed(3)
    mask = (torch.rand(6, 4) < 0.5).int()
    bsmm = compat.BlocksparseMatMul(mask, 8, axis, z_order)
    w = torch.randn(bsmm.w_shape, requires_grad=True)
    gate = torch.rand(bsmm.g_shape, requires_grad=True)
    x = torch.randn(bsmm.i_shape(12), requires_grad=True)
    dense = torch.zeros(bsmm.C, bsmm.K)
    for i in range(bsmm.blocks):
        c, k = bsmm.block_coord(i)
        assert mask[c, k]
        dense[c * 8:c * 8 + 8, k * 8:k * 8 + 8] = w[i].detach() * gate[i].detach()
    y = bsmm(x, w, gate=gate, gate_grad=True)
    expected = x @ dense if axis else dense.t() @ x
    assert y.shape == bsmm.o_shape(12) and torch.allclose(y, expected, atol=1e-5)
    y.sum().backward()
    assert x.grad.shape == x.shape and gate.grad.abs().sum() > 0
    identity = bsmm.identity_init(2.0)
    assert identity.shape == w.shape and float(identity.max()) == 2
    assert bsmm.checker_init().shape == (bsmm.blocks,)
    pruned, kept, ones = bsmm.prune(w.detach(), (torch.arange(bsmm.blocks) % 2).float())
    for i in range(pruned.blocks):
        old = [bsmm.block_coord(k) for k in range(bsmm.blocks)].index(pruned.block_coord(i))
        assert torch.equal(kept[i], w[old]) and old % 2


def test_sparse_proj():
    proj = compat.SparseProj(10, nproj=4)
    x, y = torch.randn(10, 3), torch.randn(4, 3)
    assert torch.equal(proj.gather(proj.scatter(y)), y)
    assert torch.allclose(proj.gather(proj.scatter_add(x, y)), proj.gather(x) + y)
    assert torch.allclose(proj.gather(proj.scatter_mul(x, y)), proj.gather(x) * y)


def causal_callback(shape, head, i, j, block):
    row = torch.arange(shape[0])[:, None] + i * shape[0]
    return torch.arange(shape[1])[None] + j * shape[1] <= row


@pytest.mark.parametrize("block", [8, 16])
def test_blocksparse_transformer(block):
    torch.manual_seed(4)
    grid = 4
    bst = compat.BlocksparseTransformer(torch.ones(grid, grid).tril(), block, heads=2,
                                        mask_callback=causal_callback)
    time = grid * block
    q, k, v = (torch.randn(3, time, 16, dtype=torch.float64, requires_grad=True) for _ in range(3))
    s = bst.query_key_op(q, k)
    assert s.shape == (3, 2, bst.blocks, block, block)
    y = bst.weight_value_op(bst.masked_softmax(s, scale=8 ** -0.5), v)
    expected = compat.attention_impl(q, k, v, 2, "all")
    assert torch.allclose(y, expected.to(y.dtype), atol=1e-6)
    draw = torch.randn_like(y)
    got = torch.autograd.grad((y * draw).sum(), (q, k, v))
    want = torch.autograd.grad((expected * draw).sum(), (q, k, v))
    for a, b in zip(got, want):
        assert torch.allclose(a, b, atol=1e-5)
    # Keys before `time` are visible to all queries of the block.
    prefix = bst.masked_softmax(s, autoregress_at_key=0)
    assert torch.allclose(prefix, bst.masked_softmax(s))


@pytest.mark.parametrize("mode,context", [("all", None), ("local", 16), ("strided", 4)])
def test_blocksparse_attention_impl(mode, context):
    torch.manual_seed(5)
    q, k, v = (torch.randn(2, 64, 32, requires_grad=True) for _ in range(3))
    got = compat.blocksparse_attention_impl(q, k, v, 4, mode, context, blocksize=8)
    want = compat.attention_impl(q, k, v, 4, mode, context)
    assert torch.allclose(got, want, atol=1e-5)
    draw = torch.randn_like(got)
    for a, b in zip(torch.autograd.grad((got * draw).sum(), (q, k, v)),
                    torch.autograd.grad((want * draw).sum(), (q, k, v))):
        assert torch.allclose(a, b, atol=1e-5)


def test_fixed_attention():
    q, k, v = (torch.randn(1, 64, 16) for _ in range(3))
    got = compat.blocksparse_attention_impl(q, k, v, 2, "fixed", 32, 8, num_verts=2, vertsize=1)
    i, j = torch.arange(64)[:, None] // 8, torch.arange(64)[None] // 8
    qs, ks, vs = (compat.split_heads(x, 2) for x in (q, k, v))
    for head in range(2):
        seen = (i // 4 == j // 4) | (j % 4 == 3 - head)
        seen &= torch.arange(64)[None] <= torch.arange(64)[:, None]
        p = torch.softmax((qs @ ks.transpose(-1, -2) / 8 ** 0.5)[:, head].masked_fill(
            ~seen, float("-inf")), -1)
        assert torch.allclose(compat.split_heads(got, 2)[:, head], p @ vs[:, head], atol=1e-5)


def test_strided_transpose():
    x = torch.arange(12.).reshape(1, 12, 1)
    assert compat.strided_transpose(x, 12, 4, 1)[0, :3, 0].tolist() == [0, 4, 8]
