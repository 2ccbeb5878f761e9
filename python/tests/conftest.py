"""What the tests share."""

import pytest


@pytest.fixture
def np():
    return pytest.importorskip("numpy")


def dense_of(np, layout, blocks):
    """The matrix [heads, rows, cols] of blocks, by a loop."""
    (r, c), (height, width) = layout.block, layout.grid
    full = np.zeros((layout.heads, height * r, width * c), blocks.dtype)
    for slot, (h, i, j) in enumerate(zip(*layout.to_coo())):
        full[h, i * r:(i + 1) * r, j * c:(j + 1) * c] = blocks[slot]
    full = full[:, :layout.shape[0], :layout.shape[1]]
    return full if layout.heads > 1 else full[0]
