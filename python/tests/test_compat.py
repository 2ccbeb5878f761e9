"""The aliases of older libraries against dense torch."""

import pickle

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


@pytest.mark.parametrize("layout,heads", [
    (torch.ones(3, 5).triu().flip(1), 2),
    (torch.tensor([[[1, 0, 0], [1, 1, 0]], [[0, 1, 1], [0, 0, 1]]]), 2),
    (torch.tensor([[[1, 0, 0], [1, 1, 0]], [[0, 1, 1], [0, 0, 1]]]), 4)])
def test_parts_of_attention(layout, heads):
    """The parts equal dense torch, where heads differ and the grid is no square."""
    torch.manual_seed(6)
    bst = compat.BlocksparseTransformer(layout, 8, heads, mask_callback=causal_callback)
    rows, cols = layout.shape[-2] * 8, layout.shape[-1] * 8
    q, k, v = (torch.randn(3, n, 4 * heads, dtype=torch.float64, requires_grad=True)
               for n in (rows, cols, cols))
    s = bst.query_key_op(q, k)
    assert s.shape == (3, heads, bst.blocks, 8, 8)
    assert torch.allclose(s, bst.nt_test(q, k))
    for key in (None, 5):
        w = bst.masked_softmax(s, 0.5, key)
        assert torch.allclose(w, bst.masked_softmax_test(s, 0.5, key))
        dw = torch.randn_like(w)
        ds, = torch.autograd.grad(w, s, dw, retain_graph=True)
        assert torch.allclose(ds, bst.masked_softmax_grad_test(dw, w, 0.5))
    y = bst.weight_value_op(w, v)
    assert torch.allclose(y, bst.nn_test(w, v))
    assert torch.allclose(bst.tn_op(w, q), bst.tn_test(w, q))
    draw, inputs = torch.randn_like(y), (q, k, v)
    expected = bst.nn_test(bst.masked_softmax_test(bst.nt_test(q, k), 0.5, 5), v)
    for a, b in zip(torch.autograd.grad(y, inputs, draw),
                    torch.autograd.grad(expected, inputs, draw)):
        assert torch.allclose(a, b)


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


def test_matmul_oracles_and_l2_normalize():
    torch.manual_seed(6)
    mask = (torch.rand(5, 4) < 0.6).int()
    for axis in (0, 1):
        bsmm = compat.BlocksparseMatMul(mask, 8, axis)
        make = dict(dtype=torch.float64, requires_grad=True)
        w, x = torch.randn(bsmm.w_shape, **make), torch.randn(bsmm.i_shape(6), **make)
        y = bsmm(x, w)
        e = torch.randn_like(y)
        dx, dw = torch.autograd.grad(y, (x, w), e)
        assert torch.allclose(y, bsmm.fprop_test(x, w))
        assert torch.allclose(dx, bsmm.bprop_test(e, w))
        assert torch.allclose(dw, bsmm.updat_test(x, e))
        gain = torch.rand(bsmm.K, dtype=torch.float64).requires_grad_()
        for g in (None, gain):
            inputs = (w,) if g is None else (w, g)
            got, expected = bsmm.l2_normalize(w, g), bsmm.l2_normalize_test(w, g)
            draw = torch.randn_like(got)
            assert torch.allclose(got, expected)
            for a, b in zip(torch.autograd.grad(got, inputs, draw),
                            torch.autograd.grad(expected, inputs, draw)):
                assert torch.allclose(a, b)


def test_blocksparse_readme():
    """The example of openai/blocksparse: its activations are [N, features]."""
    from bsk.compat import BlocksparseMatMul
    hidden_size, block_size, minibatch_size = 512, 32, 64
    torch.manual_seed(7)
    sparsity = torch.randint(2, (hidden_size // block_size, hidden_size // block_size))
    bsmm = BlocksparseMatMul(sparsity, block_size=block_size)
    x = torch.ones(minibatch_size, hidden_size)
    w = torch.randn(bsmm.w_shape)
    y = bsmm(x, w)
    assert y.shape == (minibatch_size, hidden_size)
    assert torch.allclose(y, bsmm.fprop_test(x, w), atol=1e-3)
    assert torch.allclose(bsmm(x.t(), w), y.t(), atol=1e-3)
    square = torch.randn(hidden_size, hidden_size)  # fits both ways
    fixed = BlocksparseMatMul(sparsity, block_size, feature_axis=0)
    assert torch.equal(bsmm(square, w), fixed(square, w))
    with pytest.raises(ValueError, match="must be"):
        fixed(x, w)


@pytest.mark.parametrize("options", [
    {"attn_mode": "all"}, {"attn_mode": "local", "local_attn_ctx": 64},
    {"attn_mode": "strided", "local_attn_ctx": 8}])
def test_sparse_attention_readme(options):
    """The comparison of openai/sparse_attention's README, with less context."""
    from bsk.compat import attention_impl, blocksparse_attention_impl
    torch.manual_seed(8)
    q, k, v = (torch.randn(4, 256, 64, requires_grad=True) for _ in range(3))
    dense = attention_impl(q, k, v, heads=4, **options, recompute=True)
    sparse = blocksparse_attention_impl(q, k, v, heads=4, **options, recompute=True)
    assert torch.allclose(dense, sparse, atol=1e-5)
    grads = [torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (dense, sparse)]
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*grads))


def test_fixed_readme():
    from bsk.compat import blocksparse_attention_impl
    q, k, v = (torch.randn(4, 256, 64) for _ in range(3))
    out = blocksparse_attention_impl(q, k, v, heads=4, attn_mode="fixed", local_attn_ctx=128,
                                     num_verts=4, vertsize=1, recompute=True)
    assert out.shape == q.shape and torch.isfinite(out).all()


@pytest.mark.parametrize("mode,context", [("all", None), ("local", 16), ("strided", 4),
                                          ("fixed", 16)])
def test_blocksparse_obj(mode, context):
    """The parts give what the fused function gives."""
    torch.manual_seed(9)
    more = {"num_verts": 2, "vertsize": 1} if mode == "fixed" else {}
    bst = compat.get_blocksparse_obj(64, 2, mode, 8, context, **more)
    q, k, v = (torch.randn(2, 64, 16) for _ in range(3))
    want = compat.blocksparse_attention_impl(q, k, v, 2, mode, context, blocksize=8, **more)
    if mode == "strided":
        q, k, v, want = (compat.strided_transpose(x, 64, context, 8) for x in (q, k, v, want))
    got = bst.weight_value_op(bst.masked_softmax(bst.query_key_op(q, k), 8 ** -0.5), v)
    assert torch.allclose(got, want, atol=1e-5)


def test_recomputable():
    runs = []

    @compat.recomputable("mlp")
    def mlp(x, w, scale=1.0):
        runs.append(1)
        return scale * torch.tanh(x @ w)

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    plain = torch.autograd.grad(mlp(x, w, scale=2.0).sum(), (x, w))
    assert len(runs) == 1 and compat.shape_list(x) == [3, 4]
    mlp(x, w, scale=2.0, recompute=True).sum().backward()
    assert len(runs) == 3
    assert torch.equal(plain[0], x.grad) and torch.equal(plain[1], w.grad)


def test_pytorch_block_sparse_readme():
    """Its linear layer in a model, and its patcher with the regular expressions of the README."""
    from bsk.compat import BlockSparseLinear, BlockSparseModelPatcher
    model = torch.nn.Sequential(BlockSparseLinear(1024, 256, density=0.1), torch.nn.ReLU(),
                                torch.nn.Linear(256, 64))
    assert model(torch.randn(2, 1024)).shape == (2, 64)
    names = torch.nn.ModuleDict({"encoder": torch.nn.ModuleDict({"layer": torch.nn.ModuleList(
        torch.nn.ModuleDict({"intermediate": torch.nn.ModuleDict(
            {"dense": torch.nn.Linear(64, 128)})}) for _ in range(3))})})
    patcher = BlockSparseModelPatcher()
    patcher.add_pattern(r"encoder\.layer\.[0-1]+\.intermediate\.dense", {"density": 0.5})
    assert patcher.patch_model(names) == 2
    patcher.add_pattern(r"encoder\.layer\.2", {"density": 0.25})  # the start of a name
    assert patcher.patch_model(names) == 1
    # One device: torch runs the module as it is.
    gpu = torch.cuda.is_available() and any(d.backend in ("cuda", "hip") for d in bsk.devices())
    parallel = torch.nn.DataParallel(model.to("cuda" if gpu else "cpu"))
    x = torch.randn(4, 1024, device=model[2].weight.device)
    assert torch.equal(parallel(x), model(x))


@pytest.mark.parametrize("kind", [compat.BlockSparseMatrix, compat.BlockSparseMatrixEmulator])
def test_block_sparse_matrix(kind):
    torch.manual_seed(10)
    matrix = kind.randn((128, 64), blocks=[(0, 0), (1, 0), (2, 0), (0, 1)])
    mask = matrix.block_mask_build()
    assert mask.tolist() == [[True, True], [True, False], [True, False], [False, False]]
    assert torch.equal(matrix.block_mask_build([(0, 0), (1, 0), (2, 0), (0, 1)]), mask)
    dense = matrix.to_dense().detach()
    matrix.check_with_dense(dense)
    with pytest.raises(ValueError, match="differ"):
        matrix.check_with_dense(dense + 1)
    sparse = matrix.to_sparse().to_dense()
    assert torch.equal(sparse.permute(0, 2, 1, 3).reshape(128, 64), dense)
    x = torch.randn(3, 5, 64)
    assert torch.allclose(matrix.reverse_matmul(x), x @ dense.t(), atol=1e-4)
    y = torch.randn(3, 5, 128)
    assert torch.allclose(matrix.reverse_matmul(y, False), y @ dense, atol=1e-4)
    made = matrix.matmul_with_output_sparse_support(y, x, overwrite_data=True)
    assert torch.equal(matrix.data, made)
    expected = bsk.torch.blocks_from_dense(y.flatten(0, 1).t() @ x.flatten(0, 1), matrix.layout)
    assert torch.allclose(made, expected, atol=1e-4)
    assert torch.allclose(matrix.multiply_(2.0).data, 2 * made)
    matrix.rebuild([[0, 1], [1, 0], [0, 1], [1, 0]], [3, 0, 1, 2])
    assert matrix.build_coo_block_index().t().tolist() == [[1, 0], [2, 1], [3, 0], [0, 1]]
    with pytest.raises(ValueError, match="must have 4"):
        matrix.rebuild([[1, 1], [1, 1], [1, 1], [1, 1]])


def test_block_sparse_matrix_carries_its_layout():
    torch.manual_seed(12)
    matrix = compat.BlockSparseMatrix.randn((128, 128), n_blocks=6)
    model, fresh = torch.nn.ModuleList([matrix]), torch.nn.ModuleList(
        [compat.BlockSparseMatrix.zeros((128, 128), n_blocks=9, seed=5)])
    fresh.load_state_dict(model.state_dict())
    assert fresh[0].layout == matrix.layout and torch.equal(fresh[0].data, matrix.data)
    again = pickle.loads(pickle.dumps(matrix))
    assert torch.equal(again.to_dense(), matrix.to_dense())
    before = matrix.layout
    optimizer = compat.SparseOptimizer(compat.SparseOptimizer.sparse_objects(model), lr=0.4)
    assert optimizer.step() == 2 and matrix.layout != before
    x = torch.randn(3, 128)
    assert torch.allclose(matrix.reverse_matmul(x), x @ matrix.to_dense().t(), atol=1e-4)


# The larger sizes: pytorch_block_sparse's rows 1 and (16, 16), densities 0.42 and 1.
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("lead,density", [((1,), 0.42), ((16, 16), 0.42), ((1,), 1.0)])
def test_reverse_matmul_large(lead, density, transpose):
    torch.manual_seed(11)
    count = int(density * 32 * 64)
    matrix = compat.BlockSparseMatrix.randn((2048, 1024), n_blocks=count, positive=True)
    assert matrix.layout.nnz == count
    x, dense = torch.rand(*lead, 1024 if transpose else 2048), matrix.to_dense()
    expected = x @ (dense.t() if transpose else dense)
    assert torch.allclose(matrix.reverse_matmul(x, transpose), expected, rtol=1e-5, atol=1e-3)


def test_numbers_that_would_be_ignored_are_refused():
    x = torch.ones(2, 4)
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.ones(3)
    layout = bsk.Layout.full((8, 8), 4)
    for call in (lambda: compat.gelu(x, alpha=0.5),
                 lambda: compat.clip_by_global_norm([x], clip_norm=0.0),
                 lambda: compat.AdamOptimizer([parameter], grad_scale=0.0).step(),
                 lambda: bsk.torch.attention(*(torch.ones(1, 1, 8, 4),) * 3, layout, scale=0.0)):
        with pytest.raises((ValueError, NotImplementedError), match="0"):
            call()


def test_fixed_takes_whole_blocks():
    with pytest.raises(ValueError, match="local_attn_ctx is 20"):
        compat.get_blocksparse_obj(64, 2, "fixed", 8, 20)


def test_rebuild_takes_a_permutation():
    matrix = compat.BlockSparseMatrix.randn((64, 64), blocks=[(0, 0), (1, 1)])
    with pytest.raises(ValueError, match="block_ptr"):
        matrix.rebuild([[0, 1], [1, 0]], [0, 0])


def test_matrices_of_other_shapes_and_ragged_edges():
    matrix = compat.BlockSparseMatrix.randn((20, 28), block_shape=8)
    dense = matrix.to_dense().detach()
    matrix.check_with_dense(dense)
    with pytest.raises(ValueError, match=r"dense is \[48, 48\]; must be \[20, 28\]"):
        matrix.check_with_dense(torch.zeros(48, 48))
    for p, kind in ((2, "l2"), (float("inf"), "max")):
        expected = bsk.ops.block_norm(matrix.layout, matrix.data.detach(), type=kind)
        assert torch.allclose(matrix.block_norm(p), expected)
    assert torch.allclose(matrix.block_norm(1).sum(), dense.abs().sum())
