"""Layouts: construction, algebra, export, pickling, pictures."""

import pickle
import xml.etree.ElementTree

import pytest

import bsk
from bsk import Layout

MASK = [[1, 0, 1], [0, 1, 0]]


def test_from_mask():
    layout = Layout.from_mask(MASK, (8, 4))
    assert layout.shape == (16, 12) and layout.block == (8, 4) and layout.grid == (2, 3)
    assert layout.nnz == 3 and layout.density == 0.5 and layout.heads == 1
    assert layout.to_mask() == MASK
    assert repr(layout) == "<bsk.Layout 16 x 12 in blocks of 8 x 4: 3 blocks, density 0.5>"


def test_from_mask_with_heads_and_ragged_edges():
    layout = Layout.from_mask([MASK, [[1, 1, 1], [1, 1, 1]]], 8, shape=(15, 17))
    assert layout.heads == 2 and layout.nnz == 9 and layout.to_mask()[0] == MASK
    with pytest.raises(bsk.InvalidError):
        Layout.from_mask(MASK, 8, shape=(15, 27))


def test_reference_example():
    """The index arrays of pytorch_block_sparse's example: shape 128 x 64, blocks of 32."""
    layout = Layout.from_coo([0, 1, 2, 0], [0, 0, 0, 1], (128, 64), 32, order="given")
    start, col, slot = layout.to_bsr()
    assert list(start) == [0, 2, 3, 4, 4]
    assert list(zip(col, slot)) == [(0, 0), (1, 3), (0, 1), (0, 2)]
    assert [list(a) for a in layout.to_coo()] == [[0] * 4, [0, 1, 2, 0], [0, 0, 0, 1]]
    assert layout.find(0, 1) == 3 and layout.find(3, 1) is None


def test_from_bsr_and_csc():
    layout = Layout.from_bsr([0, 2, 3], [0, 2, 1], (16, 12), (8, 4))
    assert layout == Layout.from_mask(MASK, (8, 4))
    assert Layout.from_csc([0, 1, 2, 3], [0, 1, 0], (16, 12), (8, 4)).to_mask() == MASK
    for start, col in (([0, 2], [0, 2, 1]), ([0, 2, 4], [0, 2, 1]), ([0, 2, 3], [0, 2, 9])):
        with pytest.raises(bsk.InvalidError):
            Layout.from_bsr(start, col, (16, 12), (8, 4))


def test_duplicates_are_refused():
    with pytest.raises(bsk.InvalidError):
        Layout.from_coo([0, 0], [1, 1], (16, 16), 8)


def test_algebra():
    a, b = (Layout.from_mask(m, 8) for m in (MASK, [[1, 1, 0], [0, 0, 0]]))
    assert (a | b).to_mask() == [[1, 1, 1], [0, 1, 0]] == a.union(b).to_mask()
    assert (a & b).to_mask() == [[1, 0, 0], [0, 0, 0]] == a.intersect(b).to_mask()
    assert a.T.to_mask() == [[1, 0], [0, 1], [1, 0]]
    made, slots = a.crop(0, 2, 1, 2)
    assert made.to_mask() == [[0, 1], [1, 0]] and list(slots) == [1, 2]
    made, slots = a.compact([1, 0, 2.5])
    assert made.to_mask() == [[1, 0, 0], [0, 1, 0]] and list(slots) == [0, 2]
    assert a.broadcast(3).heads == 3
    moved = a.move_blocks([0], [1], [0])
    assert moved.to_mask() == [[0, 0, 1], [1, 1, 0]] and moved.find(1, 0) == 0


def test_split_and_reach():
    layout = Layout.from_mask([[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]], 8)
    assert layout.split(2) == [0, 2, 4] and layout.split(1) == [0, 4]
    assert layout.split(2, axis=1) == [0, 2, 4] and layout.split(4, axis=1) == [0, 1, 2, 3, 4]
    parts = layout.split(3)
    made = [layout.crop(a, b - a, 0, 4)[0] for a, b in zip(parts, parts[1:])]
    assert [p.nnz for p in made] == [4, 1, 2]
    assert layout.reach(1, 3).tolist() == [[0, 0, 1, 1]]
    assert layout.broadcast(2).reach(1, 1).tolist() == [[0, 0, 0, 0]] * 2
    for parts, axis, what in ((0, 0, r"parts = 0 must be in \[1, 4\]"), (5, 1, "parts = 5"),
                              (-1, 0, "parts = -1"), (2**40, 0, "argument"), (2, 2, "axis is 2")):
        with pytest.raises(bsk.InvalidError, match=what):
            layout.split(parts, axis)
    with pytest.raises(bsk.InvalidError, match=r"rows = 4 must be in \[1, 3\]"):
        layout.reach(1, 4)


def test_equality_hash_and_pickle():
    a, b = (Layout.random((64, 64), 8, 0.3, seed=s) for s in (1, 2))
    again = pickle.loads(pickle.dumps(a))
    assert again == a and hash(again) == hash(a) and a != b and a != 3
    assert Layout.from_bytes(a.to_bytes()) == a
    assert Layout.random((64, 64), 8, 0.3, seed=1) == a
    with pytest.raises(bsk.FormatError):
        Layout.from_bytes(a.to_bytes()[:-1])


def test_evolve():
    layout = Layout.random((256, 256), 32, 0.5, seed=5)
    evolved, keep = layout.evolve(range(layout.nnz), 0.25)
    assert evolved.nnz == layout.nnz and list(keep) == [0] * 8 + [1] * 24
    with pytest.raises(bsk.InvalidError):
        layout.evolve([1.0], 0.25)


def test_plot():
    picture = Layout.from_mask([MASK, MASK], 8).plot()
    root = xml.etree.ElementTree.fromstring(picture)
    paths = [e for e in root if e.tag.endswith("path")]
    assert len(paths) == 2 and paths[0].get("d").count("M") == 3


def test_from_dense(np):
    dense = np.zeros((16, 12), np.float32)
    dense[0, 0], dense[9, 5] = 1, -3
    assert Layout.from_dense(dense, 4, threshold=0.5).nnz == 2
    assert Layout.from_dense(dense, 4, threshold=0.5).find(2, 1) == 1
    assert Layout.from_dense(dense, 4, keep=1).find(2, 1) == 0
    assert Layout.from_dense(dense, 4, keep=0.5).nnz == 6
    for grid in ((1, 1), (1, 5), (3, 1)):  # halves are rounded as `random` rounds them
        matrix = np.ones((4 * grid[0], 4 * grid[1]), np.float32)
        kept = Layout.from_dense(matrix, 4, keep=0.5)
        assert kept.nnz == Layout.random(matrix.shape, 4, 0.5).nnz == int(matrix.size / 32 + 0.5)


def test_from_scipy(np):
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.kron(np.array(MASK), np.ones((8, 4)))
    made = sparse.bsr_matrix(dense, blocksize=(8, 4))
    assert Layout.from_scipy(made).to_mask() == MASK


def test_from_torch():
    torch = pytest.importorskip("torch")
    mask = torch.tensor(MASK, dtype=torch.bool)
    assert Layout.from_mask(mask, 8).to_mask() == MASK
    dense = torch.kron(mask.float(), torch.ones(8, 4))
    if hasattr(dense, "to_sparse_bsr"):
        try:
            made = dense.to_sparse_bsr((8, 4))
        except RuntimeError:
            pytest.skip("this torch cannot make it")
        assert Layout.from_torch_bsr(made).to_mask() == MASK


def elements(visible, time):
    return [[bool(visible(i, j)) for j in range(time)] for i in range(time)]


def test_attention_patterns():
    """A block is kept if an element of it is visible."""
    for time, block, window in ((64, 8, 16), (64, 8, 1), (60, 8, 13)):
        n = -(-time // block)
        for layout, visible in (
                (Layout.causal(time, block), lambda i, j: j <= i),
                (Layout.local(time, block, window), lambda i, j: 0 <= i - j < window)):
            full = elements(visible, time)
            expected = [[int(any(full[i][j] for i in range(a * block, min(a * block + block, time))
                                 for j in range(b * block, min(b * block + block, time))))
                         for b in range(n)] for a in range(n)]
            assert layout.to_mask() == expected
    assert Layout.strided(64, 8, 4).nnz == 4 * 3
    fixed = Layout.fixed(64, 8, 4, patterns=2)
    assert fixed.heads == 2
    assert fixed.to_mask()[0][7] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert fixed.to_mask()[1][7] == [0, 0, 1, 0, 1, 1, 1, 1]
    assert Layout.sliding(40, 8, 3).to_mask()[2] == [0, 1, 1, 1, 0]
    assert Layout.longformer(40, 8, 1).to_mask()[2] == [1, 0, 1, 0, 0]
    assert Layout.conv(1, 32, (1, 3), 8).to_mask() == [
        [1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert Layout.variable(32, 8, (2,), ()).to_mask()[3] == [0, 0, 1, 1]
    assert Layout.causal((8, 24), 8, align="end").to_mask() == [[1, 1, 1]]
    assert Layout.sink_local(64, 8, 8, 8).to_mask()[7] == [1, 0, 0, 0, 0, 0, 1, 1]
    big = Layout.bigbird(64, 8, 3, 1, 2, heads=2, seed=1)
    assert big.heads == 2 and all(sum(row) >= 3 for row in big.to_mask()[0])


def test_what_does_not_fit_is_refused(np):
    for mask in ([[1, 0], [1]], [[1], [1, 0]], [[[1, 1]], [[1, 1], [1, 1]]], [[1, 0], 1],
                 [1, [1]], [[1, [0]]]):
        with pytest.raises(bsk.InvalidError, match="mask has"):
            Layout.from_mask(mask, 8)
    layout = Layout.full((8, 8), 8)
    for call in (lambda: Layout.random((2**64 + 8, 8), 8, 1.0), lambda: layout.find(2**64, 0),
                 lambda: Layout.full((8, 8), 2**32 + 8), lambda: Layout.local(64, 8, 2**64 + 8),
                 lambda: Layout.random((8, 8), 8, 1.0, seed=2**64)):
        with pytest.raises(bsk.InvalidError, match="must be in"):
            call()
    with pytest.raises(bsk.InvalidError, match="stride"):
        Layout.conv(4, 4, (3, 3), 4, stride=0)


def test_from_dense_checks(np):
    class Elsewhere:
        __cuda_array_interface__ = {"shape": (8, 8), "typestr": "<f4", "data": (64, False),
                                    "version": 3}

    matrix = np.eye(8, dtype=np.float32)
    for call in (lambda: Layout.from_dense(matrix[0], 4), lambda: Layout.from_dense(matrix, 4, -1),
                 lambda: Layout.from_dense(matrix, 4, -0.5),
                 lambda: Layout.from_dense(Elsewhere(), 4)):
        with pytest.raises(bsk.InvalidError):
            call()
    assert Layout.from_dense(matrix, 4, np.int64(1)).nnz == 1
    assert Layout.from_dense(matrix, 4, np.float32(0.5)).nnz == 2


def test_numbers_of_numpy():
    np = pytest.importorskip("numpy")
    assert Layout.full((64, 64), np.int64(16)) == Layout.full((64, 64), 16)
    assert Layout.causal(np.int64(64), np.int32(16)) == Layout.causal(64, 16)


def test_from_elements_and_their_bits():
    asked = []

    def visible(head, row, col):
        asked.append((head, row, col))
        return col <= row and (row - col) % 3 == head

    layout = Layout.from_elements(visible, (13, 11), (4, 8), heads=2)
    assert all(0 <= h < 2 and 0 <= i < 13 and 0 <= j < 11 for h, i, j in asked)
    full = [[[visible(h, i, j) for j in range(11)] for i in range(13)] for h in range(2)]
    assert layout.to_mask() == [[[int(any(full[h][i][j] for i in range(4 * a, min(4 * a + 4, 13))
                                          for j in range(8 * b, min(8 * b + 8, 11))))
                                  for b in range(2)] for a in range(4)] for h in range(2)]
    bits, index = layout.element_bits(visible)
    assert bits.shape == (max(index) + 1, 4, 1) and len(index) == layout.nnz
    for slot, (h, a, b) in enumerate(zip(*layout.to_coo())):
        for i in range(4 * a, min(4 * a + 4, 13)):
            for j in range(8 * b, min(8 * b + 8, 11)):
                seen = index[slot] < 0 or bits[index[slot], i % 4, 0] >> j % 8 & 1
                assert bool(seen) == full[h][i][j]
    bits, index = Layout.full((8, 8), 4).element_bits(lambda head, row, col: True)
    assert list(index) == [-1] * 4 and bits.shape == (1, 4, 1)
    assert not len(Layout.from_mask([[0]], 8).element_bits(lambda head, row, col: True)[1])


def test_errors_of_predicates():
    def visible(head, row, col):
        raise KeyError(row)

    for call in (lambda: Layout.from_elements(visible, (8, 8), 4),
                 lambda: Layout.full((8, 8), 4).element_bits(visible)):
        with pytest.raises(KeyError, match="0"):
            call()
    with pytest.raises(TypeError):
        Layout.from_elements(lambda: True, (8, 8), 4)
    with pytest.raises(bsk.InvalidError, match="cols = -8"):
        Layout.from_elements(lambda *_: True, (8, -8), 4)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "causal": False},
                                     {"stride": 2, "transposed": True}])
def test_elements_of_convolutions(options):
    visible = bsk.ConvVisible(4, 8, (3, 3), **options)
    layout = Layout.conv(4, 8, (3, 3), 4, **options)
    elements = Layout.conv(4, 8, (3, 3), 1, **options).to_mask()
    assert visible.shape == layout.shape
    assert [[int(visible(0, i, j)) for j in range(layout.shape[1])]
            for i in range(layout.shape[0])] == elements
    assert Layout.from_elements(visible, visible.shape, 4) == layout
    assert layout.element_bits(visible) == layout.element_bits(lambda *at: visible(*at))
    with pytest.raises(bsk.InvalidError, match="stride = 2 must divide"):
        bsk.ConvVisible(7, 8, (3, 3), stride=2)
    with pytest.raises(bsk.InvalidError, match="row is -1"):
        visible(0, -1, 0)


def test_wrong_words_and_types():
    layout = Layout.full((8, 8), 8)
    with pytest.raises(bsk.InvalidError, match="order is 'rows'; must be one of row, col"):
        Layout.random((8, 8), 8, 0.5, order="rows")
    for block in (None, 0.5, (8, 8, 8)):
        with pytest.raises(bsk.InvalidError, match="block is .*; must be a number, or two"):
            Layout.full((8, 8), block)
    for call in (lambda: layout | 3, lambda: layout & None, lambda: layout.union(3)):
        with pytest.raises(TypeError, match="unsupported operand"):
            call()


def test_unknown_norm(np):
    with pytest.raises(bsk.InvalidError, match="norm is 'l1'; must be one of max, l2"):
        Layout.from_dense(np.eye(8, dtype=np.float32), 4, norm="l1")
