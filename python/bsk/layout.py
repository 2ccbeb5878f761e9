"""Block layouts: which blocks of a matrix are kept."""

from __future__ import annotations

import array
import contextlib
import ctypes
import hashlib
import html
import weakref
from typing import Any, Callable, Sequence, Tuple, Union

from . import _arrays, _c
from ._c import check, lib

# A number stands for two of the same.
Pair = Union[int, Tuple[int, int]]


def _ints(values, code):
    """A C array of integers from whatever iterable or array: 'i' 32 bits, 'q' 64, 'B' bytes."""
    if values is None:
        return None
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    if hasattr(values, "reshape"):
        values = values.reshape(-1)
    if hasattr(values, "tolist"):
        values = values.tolist()
    return array.array(code, values)


def _address(values):
    return values.buffer_info()[0] if values is not None and len(values) else None


def _nested(values):
    """A mask as rows of numbers, and its shape."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    if hasattr(values, "tolist"):
        values = values.tolist()
    shape = []
    level = values
    while isinstance(level, (list, tuple)):
        shape.append(len(level))
        level = level[0] if level else 0
    flat = values
    for size in shape[1:]:
        if any(not isinstance(row, (list, tuple)) or len(row) != size for row in flat):
            raise _c.InvalidError(f"the mask has rows of different lengths; must all have {size}")
        flat = [x for row in flat for x in row]
    if any(isinstance(x, (list, tuple)) for x in flat):
        raise _c.InvalidError("the mask has lists among its numbers")
    return [1 if x else 0 for x in flat], tuple(shape)


def _is_number(x):
    """Whether x is a whole number, NumPy's own among them, and not a list of them."""
    return hasattr(x, "__index__") and not hasattr(x, "__len__")


def pair(x, name="block"):
    """(x, x) of a number, two numbers as a tuple."""
    both = (x, x) if _is_number(x) else tuple(x) if hasattr(x, "__iter__") else ()
    if len(both) != 2:
        raise _c.InvalidError(f"{name} is {x!r}; must be a number, or two of them")
    return both


_ElementFunction = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64,
                                    ctypes.c_int64)


@contextlib.contextmanager
def _element_function(visible):
    """(function, its first argument) for the C interface. What a function of Python raises comes
    out when the library is done."""
    if isinstance(visible, ConvVisible):
        yield visible.function, ctypes.addressof(visible.pattern)
        return
    raised = []

    @_ElementFunction
    def function(_, head, row, col):
        try:
            return not raised and bool(visible(head, row, col))
        except BaseException as error:
            raised.append(error)
            return False

    try:
        yield function, None
    finally:
        if raised:
            raise raised[0]


class ConvVisible:
    """Which elements of attention in the shape of a convolution are visible: queries and keys are
    pixels, and a query sees those under a filter around its own. `Layout.from_elements` and
    `Layout.element_bits` take it without a call of Python for each element.

    Parameters
    ----------
    height, width : int
        Of the keys' picture; height 1 for a sequence.
    filter : (int, int)
    stride : int
        The queries' picture is smaller by it.
    causal : bool
    transposed : bool
        Queries at the high resolution.

    Attributes
    ----------
    shape : (queries, keys)

    Examples
    --------
    >>> import bsk
    >>> visible = bsk.ConvVisible(8, 8, (3, 3))
    >>> visible(head=0, row=9, col=0), visible(head=0, row=9, col=10)
    (True, False)
    """

    def __init__(self, height: int, width: int, filter: tuple[int, int], stride: int = 1,
                 causal: bool = True, transposed: bool = False) -> None:
        self.pattern = _c.new("bsk_conv_pattern", height=height, width=width,
                              filter_height=filter[0], filter_width=filter[1], stride=stride,
                              causal=int(causal))
        if stride < 1:
            raise _c.InvalidError(f"stride is {stride}; must be at least 1")
        small = (height // stride if height > 1 else 1) * (width // stride)
        self.shape = (height * width, small) if transposed else (small, height * width)
        self.name = "deconv" if transposed else "conv"
        self.function = getattr(lib, f"bsk_{self.name}_visible")
        self.layout(self.shape)  # checks the pattern

    def layout(self, block: Pair) -> Layout:
        """The blocks with a visible element, as `Layout.conv` gives them."""
        return Layout._attention(self.name, self.shape, block, 1, ctypes.addressof(self.pattern))

    def __call__(self, head: int, row: int, col: int) -> bool:
        for name, value, size in (("row", row, self.shape[0]), ("col", col, self.shape[1])):
            if not 0 <= value < size:
                raise _c.InvalidError(f"{name} is {value}; must be in [0, {size})")
        return bool(self.function(ctypes.addressof(self.pattern), head, row, col))


# Where only numbers can be passed on, a layout has one that follows from what it is: compiled code
# outlives a process, in the caches of torch.compile and in what torch.export saved.
by_token = weakref.WeakValueDictionary()


class Layout:
    """Which blocks of a matrix, or of one matrix a head, are kept. Immutable.

    Made by the class methods ``from_mask``, ``from_coo``, ``from_bsr``, ``from_csc``,
    ``from_dense``, ``from_torch_bsr``, ``from_scipy``, ``from_bytes``, ``full``, ``random``,
    ``barabasi_albert``, ``watts_strogatz``, ``from_predicate``, ``from_elements``, the attention patterns (``causal``,
    ``local``, ``sink_local``, ``strided``, ``fixed``, ``sliding``, ``bigbird``, ``longformer``,
    ``variable``, ``conv``), and by the operators ``a | b`` and ``a & b``.

    Attributes
    ----------
    shape : (rows, cols) of the matrix in elements
    block : (rows, cols) of a block
    grid : (rows, cols) in blocks
    heads, nnz : numbers of heads and of kept blocks
    density : share of the blocks that are kept
    ragged : whether the last block of a dimension is cut short

    Notes
    -----
    The values of the kept blocks are an array ``[nnz, *block]``; a block's index there is its slot.
    Two layouts are equal if they keep the same blocks in the same slots.
    """

    __slots__ = ("handle", "shape", "block", "grid", "heads", "nnz", "density", "info", "ragged",
                 "_bytes", "token", "_first", "__weakref__")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        info = _c.new("bsk_layout_info")
        check(lib.bsk_layout_query(handle, ctypes.addressof(info)))
        self.info = info
        self.shape = info.rows, info.cols
        self.block = info.block_rows, info.block_cols
        self.grid = info.grid_rows, info.grid_cols
        self.heads, self.nnz, self.density = info.heads, info.nnz, info.density
        self.ragged = any(self.shape[i] % self.block[i] for i in (0, 1))
        self._bytes = None
        digest = hashlib.blake2b(self.to_bytes(), digest_size=8).digest()
        self.token = int.from_bytes(digest, "little") >> 2
        first = by_token.setdefault(self.token, self)
        self._first = None if first is self else first  # lives as long as one that equals it

    def __del__(self):
        if getattr(self, "handle", None) and lib is not None:
            handle = ctypes.c_void_p(self.handle)
            lib.bsk_layout_release(ctypes.addressof(handle))

    # --- making them ---

    @classmethod
    def _call(cls, function, *arguments):
        handle = ctypes.c_void_p()
        _c.call(function, *arguments, ctypes.addressof(handle))
        return cls(handle.value)

    @classmethod
    def _make(cls, function, shape, block, heads, order, *arguments):
        block = pair(block)
        order = _c.choice("bsk_order", order, "order")
        params = _c.new("bsk_layout_params", rows=shape[0], cols=shape[1], block_rows=block[0],
                        block_cols=block[1], heads=heads, order=order)
        return cls._call(function, None, ctypes.addressof(params), *arguments)

    @classmethod
    def from_mask(cls, mask: Any, block: Pair, shape: tuple[int, int] | None = None,
                  order: str = "row") -> Layout:
        """From a grid of numbers, of which those that are not 0 are kept.

        Parameters
        ----------
        mask : array or nested lists, [grid rows, grid cols] or [heads, grid rows, grid cols]
        block : int or (rows, cols)
        shape : (rows, cols), optional
            The matrix's size in elements; by default the grid's.
        order : {'row', 'col', 'morton'}
            How blocks are numbered.
        """
        flat, size = _nested(mask)
        heads, *grid = size if len(size) == 3 else (1, *size)
        if len(grid) != 2:
            raise _c.InvalidError(f"the mask has {len(size)} dimensions; must be 2 or 3")
        block = pair(block)
        shape = shape or (grid[0] * block[0], grid[1] * block[1])
        expected = [-(-shape[i] // block[i]) for i in (0, 1)]
        if grid != expected:
            raise _c.InvalidError(f"the mask has {grid[0]} x {grid[1]} blocks; {shape[0]} x "
                                  f"{shape[1]} elements have {expected[0]} x {expected[1]}")
        data = array.array("B", flat)
        return cls._make("bsk_layout_from_mask", shape, block, heads, order, _address(data))

    @classmethod
    def from_coo(cls, row: Any, col: Any, shape: tuple[int, int], block: Pair, head: Any = None,
                 heads: int = 1, order: str = "row") -> Layout:
        """From coordinates of blocks in any order; ``order="given"`` keeps it for the slots."""
        row, col, head = _ints(row, "i"), _ints(col, "i"), _ints(head, "i")
        if len(row) != len(col) or head is not None and len(head) != len(row):
            raise _c.InvalidError("row, col and head differ in length")
        return cls._make("bsk_layout_from_coo", shape, block, heads, order, len(row),
                         _address(head), _address(row), _address(col))

    @classmethod
    def from_bsr(cls, row_start: Any, col: Any, shape: tuple[int, int], block: Pair,
                 slot: Any = None, heads: int = 1, order: str = "given") -> Layout:
        """From compressed rows: ``row_start`` [heads, grid rows + 1] are offsets into ``col``."""
        row_start, col, slot = _ints(row_start, "q"), _ints(col, "i"), _ints(slot, "i")
        cls._check_offsets(row_start, col, slot, heads, shape[0], block, 0)
        return cls._make("bsk_layout_from_bsr", shape, block, heads, order, _address(row_start),
                         _address(col), _address(slot))

    @classmethod
    def from_csc(cls, col_start: Any, row: Any, shape: tuple[int, int], block: Pair,
                 slot: Any = None, heads: int = 1, order: str = "given") -> Layout:
        """From compressed columns: ``col_start`` [heads, grid cols + 1], offsets into ``row``."""
        col_start, row, slot = _ints(col_start, "q"), _ints(row, "i"), _ints(slot, "i")
        cls._check_offsets(col_start, row, slot, heads, shape[1], block, 1)
        return cls._make("bsk_layout_from_csc", shape, block, heads, order, _address(col_start),
                         _address(row), _address(slot))

    @staticmethod
    def _check_offsets(start, index, slot, heads, size, block, axis):
        """The lengths that the C interface cannot see."""
        side = pair(block)[axis]
        expected = heads * (-(-size // side) + 1)
        if len(start) != expected:
            raise _c.InvalidError(f"there are {len(start)} offsets; must be {expected}")
        if start[-1] != len(index) or slot is not None and len(slot) != len(index):
            raise _c.InvalidError(f"the offsets end at {start[-1]}; there are {len(index)} indices")

    @classmethod
    def from_dense(cls, matrix: Any, block: Pair, keep: int | float | None = None,
                   threshold: float = 0.0, norm: str = "l2") -> Layout:
        """Keeps the blocks of a matrix in host memory whose norm exceeds a threshold, or, with
        ``keep``, that many of the largest in each head; a share of them, if it is a float."""
        matrix = matrix.detach().cpu() if hasattr(matrix, "detach") else matrix
        signature, address = _arrays.describe[type(matrix)](matrix)
        *_, size, _, at = signature = _arrays.whole(signature)
        if at != _arrays.HOST and getattr(at, "type", None) != "cpu":
            raise _c.InvalidError("the matrix lies on a device; must be in host memory")
        if len(size) not in (2, 3):
            raise _c.InvalidError(f"the matrix has {len(size)} dimensions; must be 2 or 3")
        desc = _arrays.tensor(signature, "the matrix")
        block = pair(block)
        heads = size[0] if len(size) == 3 else 1
        if keep is not None and not keep >= 0:
            raise _c.InvalidError(f"keep is {keep}; must not be negative")
        if keep is not None and not hasattr(keep, "__index__"):  # a share
            grid = -(-size[-2] // block[0]) * -(-size[-1] // block[1])
            keep = int(float(keep) * grid + 0.5)  # as `random` rounds
        return cls._make("bsk_layout_from_dense", size[-2:], block, heads, 0,
                         ctypes.addressof(desc), address, _c.choice("bsk_norm", norm, "norm"),
                         float(threshold), -1 if keep is None else keep)

    @classmethod
    def from_torch_bsr(cls, tensor: Any) -> Layout:
        """The layout of a ``torch.sparse_bsr`` tensor; its ``values()`` are the blocks."""
        values = tensor.values()
        return cls.from_bsr(tensor.crow_indices(), tensor.col_indices(), tuple(tensor.shape),
                            tuple(values.shape[-2:]))

    @classmethod
    def from_scipy(cls, matrix: Any) -> Layout:
        """The layout of a ``scipy.sparse.bsr_matrix``; its ``data`` are the blocks."""
        return cls.from_bsr(matrix.indptr, matrix.indices, matrix.shape, matrix.blocksize)

    @classmethod
    def from_bytes(cls, data: bytes) -> Layout:
        """The inverse of ``to_bytes``; any other bytes raise `bsk.FormatError`."""
        data = bytes(data)
        return cls._call("bsk_layout_deserialize", None, data, len(data))

    @classmethod
    def full(cls, shape: tuple[int, int], block: Pair, heads: int = 1) -> Layout:
        """All blocks."""
        return cls.random(shape, block, 1.0, heads=heads)

    @classmethod
    def random(cls, shape: tuple[int, int], block: Pair, density: float, seed: int = 0,
               heads: int = 1, order: str = "row") -> Layout:
        """density * grid blocks of each head, halves rounded up, drawn without replacement."""
        return cls._make("bsk_layout_random", shape, block, heads, order, float(density), seed)

    @classmethod
    def barabasi_albert(cls, shape: tuple[int, int], block: Pair, m: int, seed: int = 0) -> Layout:
        """A graph by preferential attachment, m neighbours for each new node, and the diagonal."""
        return cls._make("bsk_layout_barabasi_albert", shape, block, 1, 0, m, seed)

    @classmethod
    def watts_strogatz(cls, shape: tuple[int, int], block: Pair, k: int, p: float,
                       seed: int = 0) -> Layout:
        """A small world: a ring with k neighbours each, edges rewired with probability p."""
        return cls._make("bsk_layout_watts_strogatz", shape, block, 1, 0, k, float(p), seed)

    @classmethod
    def from_predicate(cls, keep: Callable[..., bool], shape: tuple[int, int], block: Pair,
                       heads: int = 1, order: str = "row") -> Layout:
        """The blocks (i, j) of head h for which ``keep(h, i, j)`` is true."""
        block = pair(block)
        rows, cols = -(-shape[0] // block[0]), -(-shape[1] // block[1])
        return cls.from_mask([[[keep(h, i, j) for j in range(cols)] for i in range(rows)]
                              for h in range(heads)], block, shape, order)

    @classmethod
    def from_elements(cls, visible: Callable[[int, int, int], bool], shape: tuple[int, int],
                      block: Pair, heads: int = 1, order: str = "row") -> Layout:
        """The blocks that have an element for which ``visible(head, row, col)`` is true.

        Parameters
        ----------
        visible : callable
            Called once at least for each element until one of its block is visible: its answers
            must not change. What it raises is raised here. A `ConvVisible` is not called through
            Python.
        """
        with _element_function(visible) as function:
            return cls._make("bsk_layout_from_elements", shape, block, heads, order, *function)

    # --- attention patterns: rows are queries, columns keys. time is the length of both, or a pair
    # (queries, keys); align="end" lets the last query meet the last key. ---

    @classmethod
    def _attention(cls, name, time, block, heads, *arguments):
        size = pair(time, "time")
        return cls._make(f"bsk_layout_{name}", size, block, heads, 0, *arguments)

    @staticmethod
    def _shift(time, align):
        if align not in ("start", "end"):
            raise _c.InvalidError(f"align is {align!r}; must be 'start' or 'end'")
        return 0 if _is_number(time) or align == "start" else time[1] - time[0]

    @classmethod
    def causal(cls, time: Pair, block: Pair, align: str = "start") -> Layout:
        """Keys that are not after the query."""
        return cls._attention("causal", time, block, 1, cls._shift(time, align))

    @classmethod
    def local(cls, time: Pair, block: Pair, window: int, align: str = "start") -> Layout:
        """Of the causal keys those less than ``window`` before the query."""
        return cls._attention("local", time, block, 1, window, cls._shift(time, align))

    @classmethod
    def sink_local(cls, time: Pair, block: Pair, sink: int, window: int,
                   align: str = "start") -> Layout:
        """``local``, and the first ``sink`` keys."""
        return cls._attention("sink_local", time, block, 1, sink, window, cls._shift(time, align))

    @classmethod
    def strided(cls, time: Pair, block: Pair, stride: int) -> Layout:
        """Keys at distances that are multiples of ``stride``, for attention with
        ``interleave=stride``, in whose order of time the layout is."""
        return cls._attention("strided", time, block, 1, stride)

    @classmethod
    def sliding(cls, time: Pair, block: Pair, blocks: int, causal: bool = False) -> Layout:
        """The blocks within half of ``blocks`` of the diagonal."""
        return cls._attention("sliding", time, block, 1, blocks, int(causal))

    @classmethod
    def fixed(cls, time: Pair, block: Pair, local: int, globals: int = 1, patterns: int = 1,
              heads: int | None = None, bidirectional: bool = False, horizontal: bool = False,
              deepspeed: bool = False) -> Layout:
        """Stripes of ``local`` block columns, and ``globals`` block columns of each stripe: head h
        has group h % patterns of them, counted from the stripe's right end."""
        pattern = _c.new("bsk_fixed_pattern", local=local, patterns=patterns,
                         bidirectional=int(bidirectional), horizontal=int(horizontal),
                         deepspeed=int(deepspeed))
        _c.put(pattern, "global", globals)
        return cls._attention("fixed", time, block, heads or patterns, ctypes.addressof(pattern))

    @classmethod
    def _global(cls, name, time, block, heads, ranges=(), windows=(), **fields):
        ranges = [(r, r + 1) if _is_number(r) else tuple(r) for r in ranges]
        start, end, sizes = (array.array("i", v) for v in (
            [r[0] for r in ranges], [r[1] for r in ranges], windows))
        pattern = _c.new("bsk_global_pattern", count=len(ranges), start=_address(start),
                         end=_address(end), windows=_address(sizes), window_count=len(sizes),
                         **fields)
        return cls._attention(name, time, block, heads, ctypes.addressof(pattern))

    @classmethod
    def bigbird(cls, time: Pair, block: Pair, window: int = 3, first: int = 1, random: int = 1,
                heads: int = 1, seed: int = 0, causal: bool = False) -> Layout:
        """Blocks within half of ``window`` of the diagonal, the first rows and columns, and
        ``random`` blocks of each row."""
        return cls._global("bigbird", time, block, heads, window=window, first=first, random=random,
                           seed=seed, causal=int(causal))

    @classmethod
    def longformer(cls, time: Pair, block: Pair, window: int = 3, globals: Sequence[int] = (0,),
                   heads: int = 1, causal: bool = False) -> Layout:
        """Blocks within half of ``window`` of the diagonal, and the rows and columns of the blocks
        (or ranges) in ``globals``."""
        return cls._global("longformer", time, block, heads, globals, window=window,
                           causal=int(causal))

    @classmethod
    def variable(cls, time: Pair, block: Pair, windows: Sequence[int] = (4,),
                 globals: Sequence[Any] = (0,), random: int = 0, horizontal: bool = False,
                 heads: int = 1, seed: int = 0, causal: bool = False) -> Layout:
        """Windows of the listed sizes, columns of ``globals`` (with ``horizontal`` rows as well),
        and ``random`` blocks of each row."""
        return cls._global("variable", time, block, heads, globals, windows, random=random,
                           horizontal=int(horizontal), seed=seed, causal=int(causal))

    @classmethod
    def conv(cls, height: int, width: int, filter: tuple[int, int], block: Pair, stride: int = 1,
             causal: bool = True, transposed: bool = False) -> Layout:
        """The blocks with elements of a `ConvVisible`, which explains the arguments."""
        return ConvVisible(height, width, filter, stride, causal, transposed).layout(block)

    # --- algebra ---

    def __or__(self, other):
        if not isinstance(other, Layout):
            return NotImplemented
        return self._call("bsk_layout_union", self.handle, other.handle)

    def __and__(self, other):
        if not isinstance(other, Layout):
            return NotImplemented
        return self._call("bsk_layout_intersect", self.handle, other.handle)

    def union(self, other: Layout) -> Layout:
        """The blocks that either keeps."""
        return self | other

    def intersect(self, other: Layout) -> Layout:
        """The blocks that both keep."""
        return self & other

    def transpose(self) -> Layout:
        """Rows and columns exchanged; blocks keep their slots and are to be read transposed."""
        return self._call("bsk_layout_transpose", self.handle)

    @property
    def T(self) -> Layout:
        return self.transpose()

    def broadcast(self, heads: int) -> Layout:
        """One head repeated."""
        return self._call("bsk_layout_broadcast", self.handle, heads)

    def crop(self, row: int, rows: int, col: int, cols: int) -> tuple[Layout, array.array]:
        """The blocks of a part of the grid.

        Returns
        -------
        layout : Layout
        slots : array.array of int
            For each kept block its slot here; for `bsk.ops.block_gather`.
        """
        slots = array.array("i", bytes(4 * max(self.nnz, 1)))
        made = self._call("bsk_layout_crop", self.handle, row, rows, col, cols, _address(slots))
        return made, slots[:made.nnz]

    def split(self, parts: int, axis: int = 0) -> list[int]:
        """Cuts the grid into ranges for several devices, so that the fullest has as few kept blocks
        as possible.

        Parameters
        ----------
        parts : int
        axis : {0, 1}
            Cut between block rows, or between block columns.

        Returns
        -------
        list of int
            Range p is from element p to element p + 1, in block rows or columns; for `crop`.
        """
        if axis not in (0, 1):
            raise _c.InvalidError(f"axis is {axis!r}; must be 0 or 1")
        # For numbers of parts that are refused, the library says why.
        first = array.array("i", bytes(4 * (min(max(parts, 0), self.grid[axis]) + 1)))
        _c.call("bsk_layout_split", self.handle, axis, parts, _address(first))
        return first.tolist()

    def compact(self, gate: Any) -> tuple[Layout, array.array]:
        """Drops the blocks whose gate is 0; returns the layout and the kept blocks' slots here."""
        gate = _ints(gate, "f")
        if len(gate) != self.nnz:
            raise _c.InvalidError(f"there are {len(gate)} gates; must be {self.nnz}")
        slots = array.array("i", bytes(4 * max(self.nnz, 1)))
        made = self._call("bsk_layout_compact", self.handle, _address(gate), _address(slots))
        return made, slots[:made.nnz]

    def move_blocks(self, slot: Any, row: Any, col: Any) -> Layout:
        """Blocks get new positions; values stay in their slots."""
        slot, row, col = _ints(slot, "i"), _ints(row, "i"), _ints(col, "i")
        if not len(slot) == len(row) == len(col):
            raise _c.InvalidError("slot, row and col differ in length")
        return self._call("bsk_layout_move_blocks", self.handle, len(slot), _address(slot),
                          _address(row), _address(col))

    def evolve(self, norm: Any, fraction: float, seed: int = 0) -> tuple[Layout, array.array]:
        """Frees the share of blocks of smallest norm and draws new positions for their slots.

        Returns
        -------
        layout : Layout
        keep : array.array of bytes
            1 for blocks that stayed, 0 for those that moved: for `bsk.ops.block_renew`.
        """
        norm = _ints(norm, "f")
        if len(norm) != self.nnz:
            raise _c.InvalidError(f"there are {len(norm)} norms; must be {self.nnz}")
        keep = array.array("B", bytes(max(self.nnz, 1)))
        made = self._call("bsk_pattern_evolve", self.handle, _address(norm), float(fraction), seed,
                          _address(keep))
        return made, keep[:self.nnz]

    # --- looking at them ---

    def element_bits(self, visible: Callable[[int, int, int], bool]
                     ) -> tuple[memoryview, array.array]:
        """The masks of the kept blocks as attention takes them.

        Parameters
        ----------
        visible : callable
            As `from_elements` has it.

        Returns
        -------
        bits : memoryview [masks, r, ceil(c / 8)] of bytes
            Equal masks are there once.
        index : array.array of int
            For each slot the number of its mask, or -1 where all of the block is visible.
        """
        room, rows, width = max(self.nnz, 1), self.block[0], -(-self.block[1] // 8)
        bits, masks = bytearray(room * rows * width), ctypes.c_int64(room)
        index = array.array("i", bytes(4 * room))
        with _element_function(visible) as function:
            _c.call("bsk_layout_element_bits", self.handle, *function, _address(index),
                    ctypes.addressof(ctypes.c_char.from_buffer(bits)), ctypes.addressof(masks))
        count = max(masks.value, 1)  # a view has no size 0: there is one that nothing names
        view = memoryview(bits)[:count * rows * width].cast("B", (count, rows, width))
        return view, index[:self.nnz]

    def find(self, row: int, col: int, head: int = 0) -> int | None:
        """The slot of a block, or None."""
        slot = ctypes.c_int64()
        _c.call("bsk_layout_find", self.handle, head, row, col, ctypes.addressof(slot))
        return None if slot.value < 0 else slot.value

    def reach(self, row: int, rows: int) -> memoryview:
        """Which block columns some block rows need: memoryview [heads, grid cols] of bytes, 1 where
        one of the rows keeps a block."""
        cols = bytearray(self.heads * self.grid[1])
        _c.call("bsk_layout_reach", self.handle, row, rows,
                ctypes.addressof(ctypes.c_char.from_buffer(cols)))
        return memoryview(cols).cast("B", (self.heads, self.grid[1]))

    def to_coo(self) -> tuple[array.array, array.array, array.array]:
        """(head, row, col) by slot, as array.array of 32-bit integers."""
        made = [array.array("i", bytes(4 * self.nnz)) for _ in range(3)]
        check(lib.bsk_layout_to_coo(self.handle, *map(_address, made)))
        return tuple(made)

    def to_bsr(self) -> tuple[array.array, array.array, array.array]:
        """(row_start, col, slot): offsets by row, with the columns ascending within a row."""
        start = array.array("q", bytes(8 * self.heads * (self.grid[0] + 1)))
        col, slot = (array.array("i", bytes(4 * self.nnz)) for _ in range(2))
        check(lib.bsk_layout_to_bsr(self.handle, *map(_address, (start, col, slot))))
        return start, col, slot

    def to_mask(self) -> list:
        """Nested lists of 0 and 1: [heads][grid rows][grid cols], without heads if there is one."""
        rows, cols = self.grid
        flat = array.array("B", bytes(self.heads * rows * cols))
        check(lib.bsk_layout_to_mask(self.handle, _address(flat)))
        rows_of = [flat[i * cols:(i + 1) * cols].tolist() for i in range(self.heads * rows)]
        by_head = [rows_of[h * rows:(h + 1) * rows] for h in range(self.heads)]
        return by_head if self.heads > 1 else by_head[0]

    def to_bytes(self) -> bytes:
        """The serialized form: portable, versioned, with a checksum."""
        if self._bytes is None:
            size = ctypes.c_size_t()
            check(lib.bsk_layout_serialize(self.handle, None, ctypes.addressof(size)))
            data = ctypes.create_string_buffer(size.value)
            check(lib.bsk_layout_serialize(self.handle, ctypes.addressof(data),
                                           ctypes.addressof(size)))
            self._bytes = data.raw
        return self._bytes

    def plot(self, size: int = 256, color: str = "#1f4e79") -> str:
        """The pattern as the text of an SVG picture, heads side by side.

        Parameters
        ----------
        size : int
            Width of a head in pixels.
        color : str
            Of kept blocks.
        """
        rows, cols = self.grid
        unit = size / cols
        tall, gap = unit * rows, unit + 4
        width = self.heads * (size + gap) - gap
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{tall:g}" '
                 f'viewBox="0 0 {width:g} {tall:g}"><title>{html.escape(repr(self))}</title>']
        masks = self.to_mask()
        for h, mask in enumerate(masks if self.heads > 1 else [masks]):
            left = h * (size + gap)
            path = []
            for i, row in enumerate(mask):
                j = 0
                while j < cols:  # one rectangle for a run of blocks
                    k = j
                    while k < cols and row[k]:
                        k += 1
                    if k > j:
                        path.append(f"M{left + j * unit:g} {i * unit:g}h{(k - j) * unit:g}"
                                    f"v{unit:g}h{(j - k) * unit:g}z")
                    j = k + 1
            parts.append(f'<rect x="{left:g}" width="{size}" height="{tall:g}" fill="#eee"/>'
                         f'<path d="{"".join(path)}" fill="{color}"/>')
        return "".join(parts) + "</svg>"

    def _repr_svg_(self):
        return self.plot()

    def __repr__(self):
        heads = f", {self.heads} heads" if self.heads > 1 else ""
        return (f"<bsk.Layout {self.shape[0]} x {self.shape[1]} in blocks of {self.block[0]} x "
                f"{self.block[1]}{heads}: {self.nnz} blocks, density {self.density:.3g}>")

    def __eq__(self, other):
        if not isinstance(other, Layout):
            return NotImplemented
        return self.handle == other.handle or self.to_bytes() == other.to_bytes()

    def __hash__(self):
        return hash(self.to_bytes())

    def __reduce__(self):
        return _unpickle, (self.to_bytes(),)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


def _unpickle(data):
    return Layout.from_bytes(data)
