"""Every op of the library as a function.

The functions are made from the C structs when they are first asked for, so their names, their
arguments and their documentation are those of the C interface. They share these rules:

- Inputs come first, the layout (if the op has one) before them. Optional inputs, choices, scalars
  and outputs are keywords.
- An output that is left out is made, of the kind and on the device of the first input, with the
  shape that the op defines; ``y="f32"`` asks for an element type. An optional output is
  made where it is ``True`` or an element type. Outputs that are given are written in place.
- Where ``beta`` is not 0 the output must be given, since it is read; ``dx`` beside other gradients
  where ``dx_blend`` is set and ``dx_beta`` is not 0.
- Where 0 stands for a default in the C structs, that is what ``None`` gives, and 0 is refused;
  ``TINY`` is next to it.
- What an op changes in place it returns where it has no other output.
- One result is returned as it is, several as a named tuple.
- Nothing is recorded for gradients; see `bsk.torch` for that.
- Plans are kept for later calls with the same arguments but for memory and scalars.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import math
import struct
import sys
import threading

from . import _abi, _arrays, _c
from ._shapes import output_of

# Plans that are kept. Half of them, the oldest, go when there are more.
MAX_PLANS = 1024
_plans = {}
_plans_lock = threading.Lock()
# A number next to 0 in all types of scalars: for those of which 0 stands for a default.
TINY = 1e-37
_ROWS = {"int32_t", "int64_t", "uint64_t", "double", "float"}


class Plan:
    """A plan of the library and what a run of it needs."""

    captured = False

    def __init__(self, op, handle, layout, where, info, packers, run, makers):
        self.op = op
        self.handle = handle
        self.layout = layout  # its address is part of the key
        self.where = where
        self.enter = where.enter
        self.mem_kind = where.mem_kind
        self.workspace_bytes = info.workspace_bytes
        self.workspace_alignment = max(info.workspace_alignment, 1)
        self.packed_bytes = info.packed_bytes
        self.packed_alignment = max(info.packed_alignment, 1)
        self.packs = _packs(info)
        self.entry = info.entry.decode()
        self.pack, self.pack_few = packers  # all fields, and all but those of `extra`
        self.run = run
        self.makers = makers

    def __del__(self):
        if not sys.is_finalizing() and self.where.destroy(self):
            handle = ctypes.c_void_p(self.handle)
            _c.lib.bsk_plan_destroy(ctypes.addressof(handle))


class Packed:
    """The packed forms of one array of weights, for the argument ``packed`` of the products.

    A run whose plan reads the weights in another order than they have in memory packs them first.
    With an object of this class the second run of a plan does it, and later ones find the image:
    for weights that stay as they are, and are given to every call with the same object. Such calls
    have plans of their own, whose entry may be another.

    Parameters
    ----------
    all_plans : bool
        Pack for plans too that have an image, but no need of it in each run. Otherwise only plans
        that would pack in each run have one; other calls get the entry for weights as they are.

    Examples
    --------
    >>> import numpy as np, bsk
    >>> layout, packed = bsk.Layout.full((64, 64), 32), bsk.ops.Packed()
    >>> x, w = np.ones((8, 64), np.float32), np.ones((4, 32, 32), np.float32)
    >>> [float(bsk.ops.matmul(layout, x, w, packed=packed).sum()) for _ in range(3)]
    [32768.0, 32768.0, 32768.0]
    >>> w *= 2
    >>> packed.clear()
    >>> float(bsk.ops.matmul(layout, x, w, packed=packed).sum())
    65536.0
    """

    # Images that are kept: each size of the activations has a plan, and so an image, of its own.
    MAX_IMAGES = 4

    def __init__(self, all_plans: bool = True) -> None:
        self.all_plans = all_plans
        self.images = {}

    @property
    def trait(self) -> int:
        return _PACKED if self.all_plans else _PACKED_IF_IT_PACKS

    def clear(self) -> None:
        """To be called when the weights have changed."""
        self.images = {}

    def __len__(self) -> int:
        return sum(1 for image in self.images.values() if image)

    def image(self, plan, queue, kind, weights):
        """The address of the image for a run, or 0, and what is to be held while it runs."""
        if not plan.packed_bytes or not (self.all_plans or plan.packs):
            return 0, None
        if plan.captured and plan.where.capturing():  # the weights may change between replays
            return 0, None
        images, key = self.images, (plan, plan.where.order(queue), weights)
        found = images.get(key)
        if found:
            return found
        if found is None:
            for oldest in list(images)[:len(images) + 1 - self.MAX_IMAGES]:
                images.pop(oldest, None)  # another thread may have been faster
            images[key] = ()
            return 0, None
        address, owner = plan.where.memory(plan.packed_bytes, plan.packed_alignment)
        function = getattr(_c.lib, f"bsk_{plan.op}_prepack")
        _c.check(function(plan.handle, queue, _c.Mem(kind=kind, handle=weights),
                          _c.Mem(kind=kind, handle=address, size=plan.packed_bytes)))
        images[key] = address, owner
        return address, owner


class ConvShape(collections.namedtuple("ConvShape", "blocks filter stride dilation pad")):
    """The blocks and the geometry of a convolution, for the argument ``shape`` of ``conv``,
    ``conv_dgrad`` and ``conv_wgrad``.

    Parameters
    ----------
    blocks : iterable of (inputs, outputs)
        The channels of each block, which may share them with others.
    filter : iterable of int
        Its size in each of 1 to 3 dimensions.
    stride, dilation, pad : iterable of int, optional
        For each dimension; padding is that before the image.

    Examples
    --------
    >>> import numpy as np, bsk
    >>> shape = bsk.ops.ConvShape([([0, 1], [0]), ([1], [0, 1])], filter=(3,), pad=(1,))
    >>> bsk.ops.conv(np.ones((1, 2, 4)), np.ones(12), shape=shape)[0].tolist()
    [[6.0, 9.0, 9.0, 6.0], [2.0, 3.0, 3.0, 2.0]]
    """

    __slots__ = ()

    def __new__(cls, blocks, filter, stride=None, dilation=None, pad=None):
        filter = tuple(map(int, filter))
        if not 1 <= len(filter) <= 3:
            raise _c.InvalidError(f"filter has {len(filter)} dimensions; legal are 1 to 3")
        sizes = {"stride": stride, "dilation": dilation, "pad": pad}
        for name, value in sizes.items():
            default = (0 if name == "pad" else 1,) * len(filter)
            sizes[name] = default if value is None else tuple(map(int, value))
            if len(sizes[name]) != len(filter):
                raise _c.InvalidError(f"{name} has {len(sizes[name])} dimensions; filter has "
                                      f"{len(filter)}")
            if name != "pad" and 0 in sizes[name]:
                raise _c.InvalidError(f"{name} is {sizes[name]}; must be at least 1")
        if 0 in filter:
            raise _c.InvalidError(f"filter is {filter}; must be at least 1")
        blocks = tuple((tuple(map(int, ins)), tuple(map(int, outs))) for ins, outs in blocks)
        return super().__new__(cls, blocks, filter, **sizes)

    def outputs(self, image):
        """The sizes of the outputs of an image, which has as much padding behind as before."""
        sizes = zip(image, self.filter, self.stride, self.dilation, self.pad)
        return tuple(max((n + 2 * p - (f - 1) * d - 1) // s + 1, 0) for n, f, s, d, p in sizes)

    @property
    def filters(self):
        """Elements of the filters of all blocks."""
        return math.prod(self.filter) * sum(len(ins) * len(outs) for ins, outs in self.blocks)

    def edges(self, inputs, outputs, deconv=False):
        """What ``conv_edge_bias`` takes as edges, and how many sets there are, for the sizes of the
        images x and y of ``conv``; with deconv for its inputs, as the outputs of ``conv_dgrad``.

        Examples
        --------
        >>> import bsk
        >>> bsk.ops.ConvShape([], filter=(3,), pad=(1,)).edges((5,), (5,))
        ([0, -1, -1, -1, 1], 2)
        """
        rank, made, sets = len(self.filter), _c.structs["bsk_conv_shape"](), ctypes.c_int64()
        held = self.put(made)
        sizes = [(ctypes.c_int64 * rank)(*map(int, s)) for s in (inputs, outputs)]
        count = math.prod(sizes[0 if deconv else 1])
        edges = (ctypes.c_int32 * max(count, 1))()
        at = [ctypes.addressof(a) for a in (made, *sizes, edges, sets)]
        _c.check(_c.lib.bsk_conv_edges(at[0], rank, *at[1:3], int(deconv), *at[3:]))
        del held
        return edges[:count], sets.value

    def put(self, made):
        """Fills the C struct; the result is to be held while that is used."""
        numbers = [n for ins, outs in self.blocks for n in (len(ins), len(outs), *ins, *outs)]
        if any(not -2**31 <= n < 2**31 for n in (*numbers, *itertools.chain(*self[1:]))):
            raise _c.InvalidError("shape has numbers of more than 32 bits")
        held = (ctypes.c_int32 * len(numbers))(*numbers)
        made.blocks, made.blocks_size = ctypes.addressof(held), len(numbers)
        for name in self._fields[1:]:
            for d, value in enumerate(getattr(self, name)):
                getattr(made, name)[d] = value
        return held


# Outputs that beta has no part in, of ops that have one.
_WITHOUT_BETA = {"global_norm": {"norm", "norm_scale"}}


def _beta_of(op, name):
    """The scalar that an output is multiplied by, or None, and what must be set for it."""
    if name == "dx" and "dx_blend" in op.attrs:
        return "dx_beta", "dx_blend and "
    has = "beta" in op.scalars and name not in _WITHOUT_BETA.get(op.name, ())
    return "beta" if has else None, ""


class Description:
    """What an op's structs say, sorted by what a Python function does with it."""

    def __init__(self, name):
        op = _abi.OPS[name]
        self.name = name
        self.params_type = _c.structs[op["params"]]
        self.args_type = _c.structs[op["args"]]
        self.params_name, self.args_name = op["params"], op["args"]
        self.doc = op["doc"]
        fields = _abi.STRUCTS[op["params"]]
        place = {f: i for i, (f, _, _) in enumerate(fields)}
        tensors = sorted(((t[0], t[1], set(t[2:])) for t in op["tensors"]),
                         key=lambda t: place[t[0]])
        self.tensors = tensors
        self.inputs = [n for n, role, flags in tensors if role != "out" and "optional" not in flags]
        self.optional = [n for n, role, flags in tensors if role != "out" and "optional" in flags]
        self.outputs = [n for n, role, flags in tensors if role == "out"]
        self.required = [n for n, role, flags in tensors
                         if role == "out" and "optional" not in flags]
        self.updated = [n for n, role, flags in tensors if role == "inout"]
        self.lists = [n for n, _, flags in tensors if "list" in flags]
        known = {n for n, _, _ in tensors} | {"struct_size", "layout", "pairs"}
        self.layout = "layout" in place
        self.attrs = {f: kind for f, kind, _ in fields if f not in known}
        self.scalars = {f: kind for f, kind, _ in _abi.STRUCTS[op["args"]] if kind in _ROWS}
        self.zeros = op["zeros"]  # what 0 stands for
        self.fields = [f for f, _, _ in _abi.STRUCTS[op["args"]]]
        self.packed = "packed" in self.fields
        self.weights = next((n for n in ("w", "s") if n in self.inputs), None)
        # Tensors that most calls leave out.
        self.extra = [n for n in self.optional + [n for n in self.outputs if n not in self.required]
                      if n not in self.lists]
        self.packers = (_c.packer(self.args_type).pack,
                        _c.packer(self.args_type, self.extra).pack)

    def order(self):
        """Names in the order of the function's arguments: positional ones, keywords."""
        first = (["layout"] if self.layout else []) + self.inputs
        return first, [*self.outputs, *self.optional, *self.attrs, *self.scalars]


def _is_zero(op, name):
    kind = op.attrs.get(name) or op.scalars.get(name)
    near = f": {TINY} can, which is next to it" if kind in ("double", "float") else ""
    raise _c.InvalidError(f"{op.name}: {name} is 0, which stands for the default {op.zeros[name]} "
                          f"and cannot be given{near}")


def _no_layout(op, layout):
    raise TypeError(f"{op.name}: layout is a {type(layout).__name__}; must be a bsk.Layout")


def _unfit(op, scalars):
    """Raises the error of a scalar that the args struct cannot hold."""
    for n, value in scalars.items():
        _c.fitting(_c.SCALARS[op.scalars[n]], value, f"{op.name}: {n}")
    raise


# Of what plans are made for: all addresses or'ed together up to 16; runs with packed weights; such
# runs, if without an image each of them would pack.
_PACKED, _PACKED_IF_IT_PACKS = 16, 32


def _create(op, where, params, alignment, packed):
    """The handle of a new plan of the library, and what that says of it."""
    options = _c.new("bsk_plan_options", alignment=alignment, packed=packed)
    handle, info = ctypes.c_void_p(), _c.new("bsk_plan_info")
    _c.check(getattr(_c.lib, f"bsk_{op.name}_plan")(
        where.device.handle, ctypes.addressof(params), ctypes.addressof(options),
        ctypes.addressof(handle)))
    _c.check(_c.lib.bsk_plan_query(handle.value, ctypes.addressof(info)))
    return handle, info


def _packs(info):
    """Whether each run packs the weights into the workspace, so that an image saves time."""
    return 0 < info.packed_bytes <= info.workspace_bytes


def _make_plan(op, layout, attributes, signatures, given, pairs, traits):
    """A plan for tensors of these signatures; outputs without one get the shape of the op."""
    described = {n: _arrays.whole(s) for n, s in signatures.items() if type(s) is tuple}
    if not described:
        raise _c.InvalidError(f"{op.name}: {op.outputs[0]} must be given: there is no input whose "
                              f"kind it could have")
    first = next(iter(described))
    at = _arrays.common([s[3] for s in described.values()], list(described), op.name)
    params = _c.new(op.params_name)
    if op.layout:
        params.layout = layout.handle
    if op.lists:
        params.pairs = pairs
    numbers, held = {}, None
    for n, value in attributes.items():
        if op.attrs[n] == "bsk_conv_shape":
            if not isinstance(value, ConvShape):
                raise _c.InvalidError(f"{op.name}: shape is a {type(value).__name__}; must be a "
                                      f"bsk.ops.ConvShape")
            numbers[n], held = value, value.put(getattr(params, n))
            continue
        if n in op.zeros:
            value = 0 if value is None else value or _is_zero(op, n)
        numbers[n] = _c.choice(op.attrs[n], value, n)
        _c.put(params, n, numbers[n])
    tensors = {n: _arrays.tensor(s, f"{op.name}: {n}") for n, s in described.items()}
    makers = {}
    shapes = {n: tuple(t.dims[:t.rank]) for n, t in tensors.items()}
    main = tensors[first].dtype
    for n in op.outputs:
        wanted = signatures[n]
        if n in described or wanted is None and n not in op.required or wanted is False:
            continue
        shape, code = output_of(op.name, n, shapes, numbers, layout, main)
        if isinstance(wanted, str):
            code = _arrays.dtype_code(wanted)
        t = _c.Tensor()
        t.dtype, t.rank = code, len(shape)
        for i, size in enumerate(shape):
            t.dims[i] = size
        tensors[n] = t
        # The parts of edge blocks that lie outside of the matrix are never written.
        zeros = op.layout and layout.ragged and shape[-2:] == layout.block
        makers[n] = _arrays.allocator(given[first], at, shape, code, zeros)
    for n, t in tensors.items():
        setattr(params, n, t)
    low = traits % _PACKED
    where = _arrays.place(at)
    handle, info = _create(op, where, params, low & -low, traits >= _PACKED)
    if traits & _PACKED_IF_IT_PACKS and not _packs(info):
        _c.lib.bsk_plan_destroy(ctypes.addressof(handle))
        handle, info = _create(op, where, params, low & -low, False)
    del held  # the plan has a copy
    if info.staged:
        _c.warn_staged(info)
    run = where.runner(getattr(_c.lib, f"bsk_{op.name}_run"), bool(makers))
    return Plan(op.name, handle.value, layout, where, info, op.packers, run, makers)


def _remember(key, plan):
    with _plans_lock:
        if len(_plans) >= MAX_PLANS:
            for old in list(itertools.islice(_plans, MAX_PLANS // 2)):
                del _plans[old]
        _plans[key] = plan


def clear_plans() -> None:
    """Forgets all plans."""
    with _plans_lock:
        _plans.clear()


def plans() -> list[tuple[str, str]]:
    """The plans that are kept: a list of (op, entry)."""
    return [(key[0], plan.entry) for key, plan in list(_plans.items())]


def _default(op, name):
    """The text of an argument's default value."""
    if name in op.zeros:
        return "None"
    if name in ("alpha", "dx_alpha"):
        return "1.0"
    if name == "keep":
        return "1.0"
    if name == "step":
        return "1"
    kind = op.scalars.get(name) or op.attrs.get(name)
    if kind == "bsk_conv_shape":
        return "None"
    if kind in _c.enums:
        return repr(_c.enums[kind](0).name)
    return "0.0" if kind == "double" else "0"


def _source(op):
    """The text of the function of an op: straight code, since it runs before every kernel."""
    first, keywords = op.order()
    defaults = [f"{n}=None" if n in op.outputs or n in op.optional else f"{n}={_default(op, n)}"
                for n in keywords] + ["packed=None"] * op.packed
    lines = [f"def {op.name}({', '.join(first + ['*'] + defaults if defaults else first)}):"]
    add = lines.append
    names = [n for n, _, _ in op.tensors]
    extra = op.extra
    for n, role, flags in op.tensors:
        look = "_describe" if role == "in" else "_describe_out"
        if "list" in flags:
            add(f"    if {n} is None: s_{n} = None; p_{n} = (0,)")
            add("    else:")
            add(f"        if _type({n}) not in (_list, _tuple): {n} = [{n}]")
            add(f"        s_{n}, p_{n} = _describe_list({n}, {n!r}, {look})")
        elif n in op.inputs or n in op.required:
            made = n in op.required
            if made:
                add(f"    if {n} is None or _type({n}) is _str or {n} is True: "
                    f"s_{n} = {n}; p_{n} = 0")
            add(f"    {'elif' if made else 'if'} _type({n}) is _tensor and not {n}.is_neg():")
            if role != "in":
                add(f"        _written({n})")
            add(f"        s_{n} = {_arrays.torch_signature(n)}")
            add(f"        p_{n} = {n}.data_ptr() or _without_memory({n})")
            add(f"    else: s_{n}, p_{n} = {look}[_type({n})]({n})")
    spots = {n: f"p_{n}" + ("[0]" if n in op.lists else "") for n in names}
    add(f"    _low = {' | '.join(spots[n] for n in names if n not in extra) or 0}")
    if extra:
        add(f"    if {' is '.join(extra)} is None:")
        for n in extra:
            if n in op.outputs:
                add(f"        p_{n} = 0")
        add("        _rest = None")
        add("    else:")
        for n in extra:
            if n in op.outputs:
                add(f"        if {n} is None or _type({n}) in (_bool, _str): "
                    f"s_{n} = {n}; p_{n} = 0")
                add(f"        else: s_{n}, p_{n} = _describe_out[_type({n})]({n})")
            else:
                add(f"        if {n} is None: s_{n} = None; p_{n} = 0")
                add(f"        else: s_{n}, p_{n} = _describe[_type({n})]({n})")
        add(f"        _rest = ({', '.join('s_' + n for n in extra)},)")
        add(f"        _low |= {' | '.join(spots[n] for n in extra)}")
    add("    _low &= 15")
    if op.packed:
        add("    if packed is not None: _low |= packed.trait")
    key = [repr(op.name), *(["layout.handle"] if op.layout else []), *op.attrs,
           *(f"s_{n}" for n in names if n not in extra), *(["_rest"] if extra else []),
           *(f"_len(p_{n})" for n in op.lists), "_low"]
    key = f"_key = ({', '.join(key)})"
    if op.layout:
        add(f"    try: {key}")
        add("    except AttributeError: _no_layout(_OP, layout)")
    else:
        add(f"    {key}")
    add("    _plan = _plans.get(_key)")
    add("    if _plan is None:")
    pairs = f"_len(p_{op.lists[0]}) - 1" if op.lists else "1"
    for n in op.lists[1:]:
        add(f"        if s_{n} is not None and _len(p_{n}) != _len(p_{op.lists[0]}): "
            f"_uneven({op.lists[0]!r}, {n!r})")
    if extra:
        add(f"        _more = _rest or (None,) * {len(extra)}")
    signatures = [f"{n!r}: " + (f"_more[{extra.index(n)}]" if n in extra else f"s_{n}")
                  for n in names]
    add(f"        _plan = _make_plan(_OP, {'layout' if op.layout else 'None'}, "
        f"{{{', '.join(f'{n!r}: {n}' for n in op.attrs)}}}, {{{', '.join(signatures)}}}, "
        f"{{{', '.join(f'{n!r}: {n}' for n in names)}}}, {pairs}, _low)")
    add("        _remember(_key, _plan)")
    for n in op.outputs:
        if n in op.lists:
            continue
        add(f"    m_{n} = not p_{n}" + ("" if n in op.required else f" and {n}"))
        add(f"    if m_{n}:")
        beta, when = _beta_of(op, n)
        if beta:
            add(f"        if {when}{beta}: _unread({n!r}, {beta!r})")
        add(f"        {n} = _plan.makers[{n!r}]()")
        add(f"        p_{n} = _describe[_type({n})]({n})[1]")
    for n in op.scalars:
        if n in op.zeros:
            add(f"    {n} = 0 if {n} is None else {n} or _is_zero(_OP, {n!r})")
    add("    _kind = _plan.mem_kind")
    add("    _queue, _space = _plan.enter(_plan)")
    if op.packed:
        add("    _image, _held = (0, None) if packed is None else "
            f"packed.image(_plan, _queue, _kind, p_{op.weights})")
    values = []  # (field, text)
    for n in op.fields:
        if n == "struct_size":
            text = str(ctypes.sizeof(op.args_type))
        elif n == "workspace":
            text = "_kind if _space else 0, _space, _plan.workspace_bytes"
        elif n == "packed":
            text = "_kind if _image else 0, _image, _plan.packed_bytes"
        elif n in op.lists:
            add(f"    a_{n} = _views(_kind, p_{n})")
            text = f"a_{n}.buffer_info()[0] if s_{n} else 0"
        elif n in op.scalars:
            text = n
        elif n in extra:
            text = f"_kind if p_{n} else 0, p_{n}"
        else:
            text = f"_kind, p_{n}"
        values.append((n, text))
    add("    try:")
    if extra:
        few = ", ".join(text for n, text in values if n not in extra)
        add(f"        if _rest is None: _args = _plan.pack_few({few})")
        add(f"        else: _args = _plan.pack({', '.join(text for _, text in values)})")
    else:
        add(f"        _args = _plan.pack({', '.join(text for _, text in values)})")
    scalars = ", ".join(f"{n!r}: {n}" for n in op.scalars)
    add(f"    except _struct_error: _unfit(_OP, {{{scalars}}})")
    add("    _status = _plan.run(_plan.handle, _queue, _args)")
    add("    if _status: _check(_status)")
    made = [n for n in op.outputs if n not in op.lists]
    if made and op.inputs:
        like = f"{op.inputs[0]}[0]" if op.inputs[0] in op.lists else op.inputs[0]
        add(f"    if {' or '.join('m_' + n for n in made)}:")
        add(f"        _convert = _converters[_type({like})]")
        add("        if _convert:")
        for n in made:
            add(f"            if m_{n}: {n} = _convert({n}, {like})")
    results = op.outputs or op.updated
    if op.required == op.outputs and len(results) == 1:
        add(f"    return {results[0]}")
    else:
        add(f"    return _results({', '.join(op.outputs + op.updated)})")
    return "\n".join(lines)


def _describe_list(arrays, name, look):
    if not arrays:
        raise _c.InvalidError(f"{name} is an empty list; one array is needed")
    pairs = [look[type(x)](x) for x in arrays]
    if any(p[0] != pairs[0][0] for p in pairs):
        raise _c.InvalidError(f"the arrays in {name} differ in type, shape, strides or place")
    low = 0
    for _, address in pairs:
        low |= address
    return pairs[0][0], [low & 15, *(p[1] for p in pairs)]


def _views(kind, pointers):
    import array
    # One bsk_mem is four words: kind, handle, offset, size.
    return array.array("Q", [w for p in pointers[1:] for w in (kind, p, 0, 0)])


def _unread(name, beta):
    raise _c.InvalidError(f"{name} is read where {beta} is not 0: give it")


def _uneven(a, b):
    raise _c.InvalidError(f"{a} and {b} hold different numbers of arrays")


def _results(op):
    """What the function returns: the outputs that there are, or else what the op has updated; as it
    is or as a named tuple."""
    types = {}

    def results(*values):
        there = {n: v for n, v in zip(op.outputs, values) if v is not None and v is not False}
        if not there:
            updated = zip(op.updated, values[len(op.outputs):])
            there = {n: v for n, v in updated if v is not None}
        if len(there) == 1:
            return next(iter(there.values()))
        names = tuple(there)
        if names not in types:
            types[names] = collections.namedtuple(op.name, [n.rstrip("_") for n in names])
        return types[names](*there.values())

    return results


def _documentation(op):
    first, keywords = op.order()
    roles = {n: (role, flags) for n, role, flags in op.tensors}
    text = [op.doc, "", "Parameters", "----------"]
    for n in first + keywords:
        if n == "layout":
            text += ["layout : bsk.Layout"]
        elif n in roles:
            role, flags = roles[n]
            what = "list of arrays" if "list" in flags else "array"
            if role == "out":
                what += " or element type, output" + (", optional" if "optional" in flags else "")
            elif role == "inout":
                what += ", changed in place"
            elif "optional" in flags:
                what += ", optional"
            text += [f"{n} : {what}"]
        else:
            kind = op.attrs.get(n) or op.scalars.get(n)
            if kind == "bsk_conv_shape":
                text += [f"{n} : bsk.ops.ConvShape"]
                continue
            legal = ("{" + ", ".join(map(repr, _c.enums[kind].__members__)) + "}"
                     if kind in _c.enums else {"double": "float"}.get(kind, "int"))
            text += [f"{n} : {legal}, default {op.zeros.get(n) or _default(op, n)}"]
    if op.packed:
        text += ["packed : bsk.ops.Packed, optional",
                 "    Packed forms of the weights, which runs take from their second on."]
    text += ["", "Returns", "-------"]
    text += [", ".join(names) + " : array" + (" or named tuple of arrays" if len(names) > 1 else "")
             for names in (op.outputs, op.updated if not op.required else []) if names]
    if op.outputs and op.updated and not op.required:
        text[-1] += f", without {' and '.join(op.outputs)}"
    return "\n".join(text)


def _make(name):
    op = Description(name)
    # Underscores keep these apart from the names of the op's arguments.
    tensor, written = _arrays.torch_types()
    space = {"_OP": op, "_describe": _arrays.describe, "_describe_out": _arrays.describe_out,
             "_tensor": tensor, "_written": written, "_without_memory": _arrays.without_memory,
             "_describe_list": _describe_list, "_views": _views, "_plans": _plans,
             "_make_plan": _make_plan, "_is_zero": _is_zero, "_remember": _remember,
             "_no_layout": _no_layout, "_unfit": _unfit, "_struct_error": struct.error,
             "_check": _c.check, "_converters": _arrays.converters, "_unread": _unread,
             "_uneven": _uneven, "_results": _results(op), "_type": type, "_len": len,
             "_str": str, "_bool": bool,
             "_list": list, "_tuple": tuple}
    exec(compile(_source(op), f"<bsk.ops.{name}>", "exec"), space)
    function = space[name]
    function.__doc__ = _documentation(op)
    function.__module__ = __name__
    return function


def __getattr__(name):
    if name not in _abi.OPS:
        raise AttributeError(f"bsk has no op {name}")
    function = globals()[name] = _make(name)
    return function


def __dir__():
    return sorted([*_abi.OPS, "ConvShape", "Packed", "clear_plans", "plans", "MAX_PLANS", "TINY"])


__all__ = sorted(_abi.OPS)
