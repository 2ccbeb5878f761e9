"""Shapes and element types of the outputs that a caller leaves out.

An output d<name> is like the input <name>, and y is like x; RULES has what differs. An op without a
rule works all the same: its outputs must be given.
"""

from . import _abi, _arrays, _c

F64, F32, I32, I64 = (_arrays.DTYPES[n] for n in ("f64", "f32", "i32", "i64"))


class Request:
    """What rules can look at: shapes by name, choices by name, the layout."""

    def __init__(self, shapes, choices, layout):
        self.__dict__.update(choices)
        self.__dict__.update(shapes)
        self.shapes = shapes
        self.layout = layout

    def nc(self, n, features):
        return (n, features) if self.axis == 0 else (features, n)

    def n_of(self, shape):
        return shape[0 if self.axis == 0 else 1]

    def features_of(self, shape):
        return shape[1 if self.axis == 0 else 0]

    @property
    def sides(self):
        """Rows and columns of the block matrix as it is used."""
        size = self.layout.shape
        turned = getattr(self, "transpose_w", 0) or getattr(self, "transpose_s", 0)
        return size[::-1] if turned else size

    @property
    def blocks(self):
        return (self.layout.nnz, *self.layout.block)

    def batched(self, like, *shape):
        return like[:len(like) - 2] + shape


def _reduced(r):
    for name in ("block_rows", "block_cols"):
        if getattr(r, name) < 1:
            raise _c.InvalidError(f"reduced_wgrad: {name} is {getattr(r, name)}; must be at least "
                                  f"1")
    return (-(-r.features_of(r.x) // r.block_rows), -(-r.features_of(r.dy) // r.block_cols))


def _sdd_s(r):
    batch = r.a[0] if len(r.a) == 3 else 1
    groups = batch // r.layout.heads
    return (groups, *r.blocks) if groups > 1 else r.blocks


def _channels(shape, side):
    """One more than the last channel of a side of the blocks."""
    return max((c for block in shape.blocks for c in block[side]), default=-1) + 1


def _broadcast(r):
    return tuple(max(a, b) if a and b else 0 for a, b in zip(r.x, r.y))


def _scores(r):
    return (r.q[0], r.q[1] // r.layout.heads, *r.blocks)


def _applied(r):
    if r.transpose:
        raise _c.InvalidError("attn_apply: with transpose the number of key/value heads is free: "
                              "give y")
    groups = r.s[1] * r.layout.heads
    return (r.s[0], groups, r.layout.shape[0], r.v[3])


RULES = {
    "matmul": {"y": lambda r: r.nc(r.n_of(r.x), r.sides[1])},
    "matmul_dgrad": {"dx": lambda r: r.nc(r.n_of(r.dy), r.sides[0])},
    "matmul_wgrad": {"dw": lambda r: r.blocks, "dgate": lambda r: (r.layout.nnz,),
                     "dbias": lambda r: (r.features_of(r.dy),)},
    "dsd": {"c": lambda r: r.batched(r.b, r.sides[0], r.b[-1])},
    "dds": {"c": lambda r: r.batched(r.a, r.a[-2], r.sides[1])},
    "sdd": {"s": _sdd_s, "dgate": lambda r: (r.layout.nnz,), "bsum": lambda r: (r.b[-1],)},
    "reduced_wgrad": {"g": _reduced},
    "l2_normalize": {"y": lambda r: r.w, "saved": lambda r: (r.layout.shape[1],)},
    "l2_normalize_grad": {"dgain": lambda r: (r.layout.shape[1],)},
    "weight_identity": {"w": lambda r: r.blocks},
    "weight_orthogonal": {"w": lambda r: r.blocks},
    "weight_normal": {"w": lambda r: r.blocks},
    "block_norm": {"norm": lambda r: (r.layout.nnz,)},
    "prune_sparsity": {"gate": lambda r: r.norm},
    "prune_threshold": {"gate": lambda r: r.norm},
    "concrete_gate": {"gate": lambda r: r.loga, "concrete": lambda r: r.loga},
    "concrete_gate_infer": {"gate": lambda r: r.loga},
    "concrete_gate_grad": {"dloga": lambda r: r.dgate},
    "block_gather": {"y": lambda r: r.index + r.x[1:]},
    "proj_scatter": {"y": None},
    "proj_gather": {"y": lambda r: r.nc(r.n_of(r.x), r.index[0])},
    "embedding": {"y": lambda r: r.index + r.table[1:]},
    "dense_wgrad": {"dw": lambda r: (r.features_of(r.x), r.features_of(r.dy))},
    "cross_entropy": {"loss": lambda r: r.labels, "dlogits": lambda r: r.logits},
    "binary": {"z": _broadcast},
    "unary_grad": {"dx": lambda r: r.dy},
    "transpose_2d": {"y": lambda r: r.x[::-1]},
    "transpose_0213": {"y": lambda r: (r.x[0], r.x[2], r.x[1], r.x[3])},
    "cwise_linear_grad": {"dx": lambda r: r.dy, "dgain": lambda r: (r.dy[1],),
                          "dbias": lambda r: (r.dy[1],)},
    "sparse_relu_grad": {"dx": lambda r: r.dy},
    "bias_act_grad": {"dx": lambda r: r.dy, "dbias": lambda r: (r.features_of(r.dy),)},
    "reduce_max": {"y": lambda r: (r.x[0], r.x[2]), "argmax": lambda r: (r.x[0], r.x[2])},
    "take_along": {"y": lambda r: r.index},
    "fancy_gather": {"y": lambda r: (r.x[0], r.x[2])},
    "masked_softmax_grad": {"dx": lambda r: r.dy},
    "layer_norm": {n: lambda r: (max(r.segments, 1), r.n_of(r.x)) for n in ("mean", "rstd")},
    "layer_norm_grad": {"dgain": lambda r: (r.features_of(r.x),),
                        "dbias": lambda r: (r.features_of(r.x),)},
    "batch_norm": {n: lambda r: (r.x[1],) for n in ("mean", "var")},
    "batch_norm_grad": {n: lambda r: (r.x[1],) for n in ("dgain", "dbias")},
    "lstm_gates": {n: lambda r: r.c for n in ("c_next", "h_next")},
    "lstm_gates_grad": {"dgates": lambda r: r.gates, **{
        n: lambda r: r.c for n in ("dc", "di", "du", "df", "do_")}},
    "split4": {n: lambda r: r.nc(r.n_of(r.x), r.features_of(r.x) // 4)
               for n in ("y0", "y1", "y2", "y3")},
    "concat4": {"y": lambda r: r.nc(r.n_of(r.x0), 4 * r.features_of(r.x0))},
    "adam": {"copy": lambda r: r.param},
    "global_norm": {n: lambda r: (1,) for n in ("sum", "norm", "norm_scale")},
    "tensor_stats": {"stats": lambda r: (_abi.CONSTANTS["BSK_STATS_COUNT"],),
                     "exponent": lambda r: (1,)},
    "attn_scores": {"s": _scores},
    "attn_apply": {"y": _applied},
    "block_softmax": {"lse": lambda r: (r.x[0], r.x[1] * r.layout.heads, r.layout.shape[0])},
    "block_softmax_grad": {"dx": lambda r: r.dy},
    "attention": {"o": lambda r: (*r.q[:3], r.v[3]), "lse": lambda r: r.q[:3]},
    "attention_decode": {"o": lambda r: (*r.q[:3], r.v[3]), "lse": lambda r: r.q[:3]},
    "layout_topk": {"index": lambda r: r.scores[:-1] + (r.k or r.scores[-1],),
                    "count": lambda r: r.scores[:-1]},
    "layout_mask": {"index": lambda r: r.mask, "count": lambda r: r.mask[:-1]},
    "grouped_matmul": {"y": lambda r: (r.x[0], r.w[2])},
    "grouped_wgrad": {"dw": lambda r: (r.offsets[0] - 1, r.x[1], r.dy[1]),
                      "dbias": lambda r: (r.offsets[0] - 1, r.dy[1])},
    "conv": {"y": lambda r: (r.x[0], _channels(r.shape, 1), *r.shape.outputs(r.x[2:]))},
    "conv_dgrad": {"dx": None},
    "conv_edge_bias_grad": {"dx": lambda r: r.dy, "dgain": lambda r: r.gain,
                            "dbias": lambda r: r.gain},
    "conv_wgrad": {"dw": lambda r: (r.shape.filters,)},
    "moe_route": {"offsets": None, "place": lambda r: r.experts,
                  **{n: lambda r: (r.experts[0] * r.experts[1],) for n in ("order", "token")}},
}
for _name in ("masked_topk_softmax",):
    RULES[_name] = {"y": lambda r: r.x}
RULES["rms_norm"], RULES["rms_norm_grad"] = RULES["layer_norm"], RULES["layer_norm_grad"]

# f32, or f64 where the main argument is f64.
SIDE = {"saved", "mean", "var", "rstd", "dgain", "dbias", "bsum", "dgate", "loss", "lse", "norm",
        "g", "sum", "gate", "stats"}
# Products of 8-bit numbers, which have factors of their own beside them, are f32.
EIGHT_BITS = {_arrays.DTYPES[n] for n in ("i8", "f8e4m3", "f8e5m2")}
PRODUCTS = {name for name, op in _abi.OPS.items()
            if op["tensors"][0][0] + "_scale" in {t[0] for t in op["tensors"]}}
TYPES = {"argmax": I64, "index": I64, "exponent": I32, "norm_scale": F32}


def output_of(op, name, shapes, choices, layout, main):
    """The shape and the element type's code of an output."""
    request = Request(shapes, choices, layout)
    rules = RULES.get(op, {})
    rule = rules.get(name)
    if rule is None:
        like = name[1:] if name[0] == "d" and name[1:] in shapes else "x"
        if name in rules or like not in shapes or name not in ("y", "d" + like):
            raise _c.InvalidError(f"{op}: {name} must be given")
        rule = shapes.__getitem__
        request = like
    try:
        shape = tuple(rule(request))
    except (AttributeError, IndexError, ZeroDivisionError):
        shape = None
    if shape is None or len(shape) > _abi.CONSTANTS["BSK_MAX_RANK"]:
        there = ", ".join(f"{n} {list(s)}" for n, s in shapes.items())
        raise _c.InvalidError(f"{op}: the shape of {name} does not follow from those of {there}")
    if op.startswith("layout_") or op == "moe_route":
        return shape, I32
    if name in TYPES:
        return shape, TYPES[name]
    if op in PRODUCTS and main in EIGHT_BITS:
        return shape, F32
    return shape, (F64 if main == F64 else F32) if name in SIDE else main
