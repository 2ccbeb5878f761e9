#!/usr/bin/env python3
"""Writes dense.txt: inputs of the dense ops and results that were computed here, not by bsk.

    make.py > dense.txt

Only Python's own numbers are used. Forward ops are written for complex numbers, so that gradients
are complex steps: the derivative of f at x is the imaginary part of f(x + ih) / h, without
cancellation, for a tiny h. They share nothing with the formulas of the gradient ops.

Each case is a sequence of words: `op NAME`, then any of `attr FIELD VALUE`, `scalar FIELD VALUE`,
`layout ROWS COLS BLOCK_ROWS BLOCK_COLS HEADS MASK` (a digit a block, row-major), `list SIZE NUMBERS`,
`in ARGUMENT TYPE RANK DIMS VALUES` (inputs, and what outputs hold before), `out ARGUMENT ...`
(wanted), then `end`.
"""

import cmath
import itertools
import math
import random
import struct

RNG = random.Random(20)
STEP = 1e-30


class Tensor:
    """A row-major array of f64, or of another type that is named."""

    def __init__(self, dims, values, dtype="f64"):
        self.dims, self.values, self.dtype = list(dims), list(values), dtype

    def like(self, values):
        return Tensor(self.dims, values, self.dtype)


def uniform(*dims, low=-1.0, high=1.0):
    return Tensor(dims, [RNG.uniform(low, high) for _ in range(math.prod(dims))])


def integers(dims, low, high, dtype="i32"):
    return Tensor(dims, [RNG.randrange(low, high) for _ in range(math.prod(dims))], dtype)


def real(v):
    return v.real if isinstance(v, complex) else v


def case(op, attrs=(), scalars=(), inputs=(), outputs=(), layout=(), numbers=None):
    print("op", op)
    if numbers is not None:
        print("list", len(numbers), *numbers)
    if layout:
        print("layout", *layout)
    for word, fields in (("attr", dict(attrs)), ("scalar", dict(scalars))):
        for name, value in fields.items():
            print(word, name, repr(value))
    for word, tensors in (("in", inputs), ("out", outputs)):
        for name, t in tensors:
            dims = " ".join(str(d) for d in t.dims)
            print(f"{word} {name} {t.dtype} {len(t.dims)} {dims}".rstrip())
            words = [repr(real(v)) for v in t.values]
            for i in range(0, len(words), 4):
                print(" ", " ".join(words[i:i + 4]))
    print("end")


def gradient(forward, inputs, name, weights):
    """Of sum(weights * forward(inputs)) by the tensor inputs[name]."""
    result = []
    for i, v in enumerate(inputs[name].values):
        moved = dict(inputs)
        values = list(inputs[name].values)
        values[i] = complex(v, STEP)
        moved[name] = inputs[name].like(values)
        y = forward(moved)
        result.append(sum(w * complex(a).imag for w, a in zip(weights.values, y.values)) / STEP)
    return inputs[name].like(result)


def scaled(t, alpha, old, beta):
    return t.like([alpha * v + beta * o for v, o in zip(t.values, old.values)])


ALPHA_BETA = {"alpha": 1.5, "beta": -0.5}


def grads(op, forward, inputs, weights, results, attrs=(), extra=(), scalars=(), upstream="dy",
          plain=(), saved=(), layout=()):
    """A case of a gradient op: results maps its outputs to the forward's inputs; those in plain
    have no alpha and beta."""
    tensors, wanted = [(upstream, weights)] + list(saved), []
    for out, name in results.items():
        d = gradient(forward, inputs, name, weights)
        if out in plain or "alpha" not in dict(scalars):
            wanted.append((out, d))
            continue
        old = uniform(*d.dims)
        tensors.append((out, old))
        wanted.append((out, scaled(d, dict(scalars)["alpha"], old, dict(scalars)["beta"])))
    tensors += [(n, inputs[n]) for n in extra]
    case(op, attrs, scalars, tensors, wanted, layout)


# --- random numbers: Philox 4x32-10 as its authors describe it ---


def philox(seed, offset, block):
    key = [seed & 0xffffffff, seed >> 32]
    c = [block & 0xffffffff, block >> 32, offset & 0xffffffff, offset >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ key[0], b & 0xffffffff, (a >> 32) ^ c[3] ^ key[1], a & 0xffffffff]
        key = [(key[0] + 0x9E3779B9) & 0xffffffff, (key[1] + 0xBB67AE85) & 0xffffffff]
    return c


def random_word(seed, offset, i):
    return philox(seed, offset, i // 4)[i % 4]


def random_unit(seed, offset, i):
    return (random_word(seed, offset, i) >> 8) / 2**24


def kept(keep, seed, offset, i):
    """What dropout keeps, by 16 bits an element: keep is rounded to a multiple of 2^-16."""
    return (random_word(seed, offset, i // 2) >> i % 2 * 16) % 2**16 < int(keep * 2**16 + 0.5)


# --- element-wise ---


def broadcast(dims, t):
    """The values of t repeated to a shape."""
    out = []
    for e in range(math.prod(dims)):
        at, stride, rest = 0, 1, e
        for d in reversed(range(len(dims))):
            i = rest % dims[d]
            rest //= dims[d]
            if t.dims[d] > 1:
                at += i * stride
                stride *= t.dims[d]
        out.append(t.values[at])
    return out


BINARY = [lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y,
          lambda x, y: x if real(x) > real(y) else y, lambda x, y: x if real(x) < real(y) else y]


def binary_cases():
    for kind, f in enumerate(BINARY):
        inputs = {"x": uniform(3, 4), "y": uniform(1, 4, low=0.5)}
        dims = [3, 4]

        def forward(t, f=f, dims=dims):
            return Tensor(dims, map(f, broadcast(dims, t["x"]), broadcast(dims, t["y"])))

        case("binary", {"kind": kind}, (), inputs.items(), [("z", forward(inputs))])
        grads("binary_grad", forward, inputs, uniform(3, 4), {"dx": "x", "dy": "y"},
              {"kind": kind}, ["x", "y"], ALPHA_BETA, "dz")
    tie = Tensor([2], [1.0, 2.0])
    case("binary_grad", {"kind": 4}, {"alpha": 1.0, "beta": 0.0},
         [("dz", Tensor([2], [8.0, 4.0])), ("x", tie), ("y", Tensor([2], [1.0, 3.0]))],
         [("dx", Tensor([2], [4.0, 0.0])), ("dy", Tensor([2], [4.0, 4.0]))])


def error_function(z):
    """The Taylor series, which converges everywhere and fast near 0."""
    term, total, n = z, z, 0
    while abs(term) > 1e-20 * abs(total):
        n += 1
        term *= -z * z / n
        total += term / (2 * n + 1)
    return 2 / math.sqrt(math.pi) * total


def logistic(x):
    return 1 / (1 + cmath.exp(-x))


def tanh_gelu(x):
    return x / 2 * (1 + cmath.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


UNARY = [
    lambda x, c: -x,
    lambda x, c: 1 / x,
    lambda x, c: x * x,
    lambda x, c: cmath.sqrt(x),
    lambda x, c: cmath.exp(x),
    lambda x, c: cmath.log(x),
    lambda x, c: logistic(x),
    lambda x, c: cmath.tanh(x),
    lambda x, c: x if real(x) > 0 else 0,
    lambda x, c: x if real(x) > 0 else c * (cmath.exp(x) - 1),
    lambda x, c: tanh_gelu(x),
    lambda x, c: x / 2 * (1 + error_function(x / math.sqrt(2))),
    lambda x, c: x * logistic(c * x),
]
OUTPUT_TELLS = [0, 1, 3, 4, 6, 7, 8, 9]


def unary_cases():
    for kind, f in enumerate(UNARY):
        c = 1.3 if kind in (9, 12) else 1.0
        low = 0.1 if kind in (1, 3, 5) else -3.0
        inputs = {"x": uniform(2, 5, low=low, high=3.0)}

        def forward(t, f=f, c=c):
            return t["x"].like([f(v, c) for v in t["x"].values])

        attrs = {"kind": kind, "coefficient": c}
        case("unary", attrs, (), inputs.items(), [("y", forward(inputs))])
        weights = uniform(2, 5)
        grads("unary_grad", forward, inputs, weights, {"dx": "x"}, attrs, ["x"], ALPHA_BETA)
        if kind in OUTPUT_TELLS:
            grads("unary_grad", forward, inputs, weights, {"dx": "x"}, attrs, (), ALPHA_BETA,
                  saved=[("y", forward(inputs))])


def sum_cases():
    xs, old = [uniform(2, 3) for _ in range(3)], uniform(2, 3)
    total = old.like([sum(v) for v in zip(*(x.values for x in xs))])
    case("add_n", {"pairs": 3}, ALPHA_BETA, [("x", x) for x in xs] + [("y", old)],
         [("y", scaled(total, 1.5, old, -0.5))])
    case("assign_add", (), (), [("x", xs[0]), ("y", old)], [("y", scaled(xs[0], 1, old, 1))])


def cast_cases():
    x = Tensor([8], [0.0, -1.75, 300.5, 70000.25, math.nan, math.inf, -math.inf, 2.5])
    for dtype, low, high in (("u8", 0, 255), ("u16", 0, 65535), ("i32", -2**31, 2**31 - 1)):
        whole = [0 if v != v else low if v < low else high if v > high else int(v)
                 for v in x.values]
        case("cast", (), (), [("x", x)], [("y", Tensor([8], whole, dtype))])
    half = Tensor([5], [1 / 3, 2049.0, 2051.0, 1e-8, 65519.9])
    rounded = [struct.unpack("<e", struct.pack("<e", v))[0] for v in half.values]
    case("cast", (), (), [("x", half)], [("y", Tensor([5], rounded, "f16"))])
    a = uniform(3, 4)
    case("transpose_2d", (), (), [("x", a)],
         [("y", Tensor([4, 3], [a.values[i * 4 + j] for j in range(4) for i in range(3)]))])
    a = uniform(2, 3, 2, 2)
    turned = [a.values[((n * 3 + t) * 2 + h) * 2 + d] for n in range(2) for h in range(2)
              for t in range(3) for d in range(2)]
    case("transpose_0213", (), (), [("x", a)], [("y", Tensor([2, 2, 3, 2], turned))])


def channel_cases():
    for first in (0, 1):
        inputs = {"x": uniform(2, 3, 4), "gain": uniform(3), "bias": uniform(3)}

        def forward(t, first=first):
            y = []
            for e, v in enumerate(t["x"].values):
                g, b = t["gain"].values[e // 4 % 3], t["bias"].values[e // 4 % 3]
                v = (v + b) * g if first else v * g + b
                y.append(v if real(v) > 0 else 0)
            return t["x"].like(y)

        attrs = {"relu": 1, "bias_first": first}
        case("cwise_linear", attrs, (), inputs.items(), [("y", forward(inputs))])
        grads("cwise_linear_grad", forward, inputs, uniform(2, 3, 4),
              {"dx": "x", "dgain": "gain", "dbias": "bias"}, attrs, ["x", "gain", "bias"],
              ALPHA_BETA, plain=["dx"])


def filter_cases():
    x = Tensor([6], [0.5, -3.0, math.nan, math.inf, -math.inf, 2.0])
    case("filter", {"zero_infs": 1, "zero_nans": 1}, {"scale": 0.5, "saturate": 0.75}, [("x", x)],
         [("y", x.like([0.25, -0.75, 0.0, 0.0, 0.0, 0.75]))])

    inputs = {"x": uniform(3, 6)}
    weights = uniform(3, 6)
    for sigmas in (0.0, 0.75):

        def forward(t, sigmas=sigmas):
            y = []
            for n in range(3):
                row = t["x"].values[6 * n:6 * n + 6]
                mean = sum(row) / 6
                std = cmath.sqrt(sum((v - mean)**2 for v in row) / 6)
                y += [v - mean - sigmas * std if real(v - mean - sigmas * std) > 0 else 0
                      for v in row]
            return t["x"].like(y)

        case("sparse_relu", (), {"sigmas": sigmas}, inputs.items(), [("y", forward(inputs))])
        grads("sparse_relu_grad", forward, inputs, weights, {"dx": "x"}, (), ["x"],
              {**ALPHA_BETA, "sigmas": sigmas})

    x = uniform(3, 4, 5)
    scalars = {"keep": 0.6, "seed": 0x123456789abc, "offset": 5}
    for shared in (0, 2):
        y = []
        for e, v in enumerate(x.values):
            at = e if not shared else e // 20 * 5 + e % 5
            y.append(v / 0.6 if kept(0.6, scalars["seed"], scalars["offset"], at) else 0.0)
        case("dropout", {"shared": shared}, scalars, [("x", x)], [("y", x.like(y))])


# --- choosing ---


def order(row):
    return sorted(range(len(row)), key=lambda i: (-real(row[i]), i))


def choice_cases():
    inputs = {"x": uniform(2, 4, 3)}

    def at(e, j):
        return (e // 3 * 4 + j) * 3 + e % 3

    def columns(t):
        return [[t["x"].values[at(e, j)] for j in range(4)] for e in range(6)]

    def largest(t):
        return Tensor([2, 3], [c[order(c)[0]] for c in columns(t)])

    where = Tensor([2, 3], [order(c)[0] for c in columns(inputs)], "u8")
    case("reduce_max", (), (), inputs.items(), [("y", largest(inputs)), ("argmax", where)])
    grads("reduce_max_grad", largest, inputs, uniform(2, 3), {"dx": "x"}, (), (), ALPHA_BETA,
          saved=[("argmax", where)])

    index = integers((2, 5, 3), -1, 5, "i64")

    def take(t):
        y = []
        for e, j in enumerate(index.values):
            source = (e // 15 * 4 + j) * 3 + e % 3
            y.append(t["x"].values[source] if 0 <= j < 4 else 0)
        return Tensor([2, 5, 3], y)

    case("take_along", (), (), [("x", inputs["x"]), ("index", index)], [("y", take(inputs))])
    grads("take_along_grad", take, inputs, uniform(2, 5, 3), {"dx": "x"}, (), (), ALPHA_BETA,
          saved=[("index", index)])

    rows = Tensor([2], [3, 1], "i32")

    def fancy(t):
        return Tensor([2, 3], [t["x"].values[at(e, rows.values[e // 3])] for e in range(6)])

    case("fancy_gather", (), (), [("x", inputs["x"]), ("index", rows)], [("y", fancy(inputs))])
    grads("fancy_gather_grad", fancy, inputs, uniform(2, 3), {"dx": "x"}, (), (), ALPHA_BETA,
          saved=[("index", rows)])


def topk_cases():
    inputs = {"x": uniform(3, 7, low=-0.5)}

    def rows(t):
        return [t["x"].values[7 * n:7 * n + 7] for n in range(3)]

    def largest(t):
        return Tensor([3, 4], [r[i] for r in rows(t) for i in order(r)[:4]])

    where = Tensor([3, 4], [i for r in rows(inputs) for i in order(r)[:4]], "u16")
    case("topk", (), (), inputs.items(), [("values", largest(inputs)), ("index", where)])
    grads("topk_grad", largest, inputs, uniform(3, 4), {"dx": "x"}, (), (), ALPHA_BETA,
          saved=[("index", where)])
    for rebase in (0, 1):

        def rectified(t, rebase=rebase):
            y = []
            for r in rows(t):
                kept = order(r)[:4]
                cut = r[kept[-1]] if rebase and real(r[kept[-1]]) > 0 else 0
                y += [v - cut if i in kept and real(v) > real(cut) else 0 for i, v in enumerate(r)]
            return t["x"].like(y)

        attrs = {"k": 4, "rebase": rebase}
        case("rectified_topk", attrs, (), inputs.items(), [("y", rectified(inputs))])
        grads("rectified_topk_grad", rectified, inputs, uniform(3, 7), {"dx": "x"}, attrs, ["x"],
              ALPHA_BETA)


def softmax_cases():
    inputs = {"x": uniform(2, 3, 6, low=-3.0, high=3.0)}
    mask = Tensor([1, 3, 6], [RNG.choice([0.0, 0.5, 1.0, 2.0]) for _ in range(12)] + [0.0] * 6)
    for k in (0, 3):

        def forward(t, k=k):
            y = []
            for n in range(6):
                row = t["x"].values[6 * n:6 * n + 6]
                factors = mask.values[n % 3 * 6:n % 3 * 6 + 6]
                live = {i: v * f * -0.7 for i, (v, f) in enumerate(zip(row, factors)) if f}
                best = sorted(live, key=lambda i: (-real(live[i]), i))[:k or None]
                total = sum(cmath.exp(live[i]) for i in best)
                y += [cmath.exp(live[i]) / total if i in best else 0 for i in range(6)]
            return t["x"].like(y)

        y = forward(inputs)
        case("masked_topk_softmax" if k else "masked_softmax", {"k": k}, {"scale": -0.7},
             [("x", inputs["x"]), ("mask", mask)], [("y", y)])
        grads("masked_softmax_grad", forward, inputs, uniform(2, 3, 6), {"dx": "x"}, (), (),
              {**ALPHA_BETA, "scale": -0.7},
              saved=[("y", y.like([real(v) for v in y.values])), ("mask", mask)])


# --- norms and cells ---


def moments(values, rms, eps):
    mean = 0 if rms else sum(values) / len(values)
    return mean, 1 / cmath.sqrt(sum((v - mean)**2 for v in values) / len(values) + eps)


def layer_norm_cases():
    for op, rms, axis in (("layer_norm", 0, 0), ("layer_norm", 0, 1), ("rms_norm", 1, 0)):
        rows, features, segments = 3, 8, 2
        size = features // segments
        dims = [rows, features] if axis == 0 else [features, rows]
        inputs = {"x": uniform(*dims), "gain": uniform(features), "bias": uniform(features)}

        def at(n, f, axis=axis):
            return n * features + f if axis == 0 else f * rows + n

        def statistics(t, at=at, rms=rms):
            return [moments([t["x"].values[at(n, s * size + f)] for f in range(size)], rms, 1e-3)
                    for s in range(segments) for n in range(rows)]

        def forward(t, at=at, statistics=statistics):
            y, table = [0] * (rows * features), statistics(t)
            for n in range(rows):
                for f in range(features):
                    mean, rstd = table[f // size * rows + n]
                    v = (t["x"].values[at(n, f)] - mean) * rstd
                    v = v * t["gain"].values[f] + t["bias"].values[f]
                    y[at(n, f)] = v if real(v) > 0 else 0
            return t["x"].like(y)

        attrs = {"axis": axis, "segments": segments, "relu": 1}
        saved = [("rstd", Tensor([segments, rows], [real(r) for _, r in statistics(inputs)]))]
        if not rms:
            means = [real(m) for m, _ in statistics(inputs)]
            saved.append(("mean", Tensor([segments, rows], means)))
        case(op, {**attrs, "eps": 1e-3}, (), inputs.items(), [("y", forward(inputs))] + saved)
        grads(op + "_grad", forward, inputs, uniform(*dims),
              {"dx": "x", "dgain": "gain", "dbias": "bias"}, attrs, ["x", "gain", "bias"],
              ALPHA_BETA, plain=["dx"], saved=saved)


def batch_norm_cases():
    inputs = {"x": uniform(3, 2, 4), "gain": uniform(2), "bias": uniform(2),
              "mean": uniform(2), "var": uniform(2, low=0.2)}

    def channel(t, c):
        return [t["x"].values[(n * 2 + c) * 4 + s] for n in range(3) for s in range(4)]

    def normal(t, table):
        y = []
        for e, v in enumerate(t["x"].values):
            mean, rstd = table[e // 4 % 2]
            y.append((v - mean) * rstd * t["gain"].values[e // 4 % 2]
                     + t["bias"].values[e // 4 % 2])
        return t["x"].like(y)

    def train(t):
        return normal(t, [moments(channel(t, c), 0, 1e-4) for c in range(2)])

    def infer(t):
        return normal(t, [(m, 1 / math.sqrt(v + 1e-4))
                          for m, v in zip(inputs["mean"].values, inputs["var"].values)])

    means = [sum(channel(inputs, c)) / 12 for c in range(2)]
    variances = [sum((v - means[c])**2 for v in channel(inputs, c)) / 12 for c in range(2)]
    saved = [("mean", Tensor([2], means)), ("var", Tensor([2], variances))]
    given = [(n, inputs[n]) for n in ("x", "gain", "bias")]
    case("batch_norm", {"eps": 1e-4}, (), given, [("y", train(inputs))] + saved)
    case("batch_norm_infer", {"eps": 1e-4}, (), inputs.items(), [("y", infer(inputs))])
    results = {"dx": "x", "dgain": "gain", "dbias": "bias"}
    grads("batch_norm_grad", train, inputs, uniform(3, 2, 4), results, {"eps": 1e-4},
          ["x", "gain"], ALPHA_BETA, plain=["dx"], saved=saved)
    grads("batch_norm_grad", infer, inputs, uniform(3, 2, 4), results, {"eps": 1e-4, "infer": 1},
          ["x", "gain", "mean", "var"], ALPHA_BETA, plain=["dx"])


def lstm_cases():
    rows, units = 2, 3
    inputs = {"c": uniform(rows, units), "gates": uniform(rows, 4 * units), "bias": uniform(12)}

    def step(t):
        c_next, h_next = [], []
        for n in range(rows):
            for k in range(units):
                i, u, f, o = (t["gates"].values[n * 12 + g * 3 + k] + t["bias"].values[g * 3 + k]
                              for g in range(4))
                c = logistic(f + 0.5) * t["c"].values[n * 3 + k] + logistic(i) * cmath.tanh(u)
                c_next.append(c)
                h_next.append(logistic(o) * cmath.tanh(c))
        return t["c"].like(c_next), t["c"].like(h_next)

    def both(t):
        c_next, h_next = step(t)
        return Tensor([2, rows, units], c_next.values + h_next.values)

    c_next, h_next = step(inputs)
    scalars = {"forget_bias": 0.5}
    case("lstm_gates", (), scalars, inputs.items(), [("c_next", c_next), ("h_next", h_next)])
    dc, dh = uniform(rows, units), uniform(rows, units)
    weights = Tensor([2, rows, units], dc.values + dh.values)
    old = {"c": dh, "gates": inputs["gates"]}
    wanted = [(f"d{name}", scaled(gradient(both, inputs, name, weights), 1.5, t, -0.5))
              for name, t in old.items()]
    case("lstm_gates_grad", (), ALPHA_BETA | scalars,
         [("dh", dh), ("dc_next", dc)] + list(inputs.items())
         + [(f"d{name}", t) for name, t in old.items()], wanted)

    def quarter(name, g):
        return name, Tensor([rows, units],
                            [inputs["gates"].values[n * 12 + g * 3 + k] for n in range(rows)
                             for k in range(units)])

    split = [quarter(name, g) for g, name in enumerate("iufo")]
    case("lstm_gates", (), scalars, [("c", inputs["c"]), ("bias", inputs["bias"])] + split,
         [("c_next", c_next), ("h_next", h_next)])
    case("split4", (), (), [("x", inputs["gates"])], [quarter(f"y{g}", g) for g in range(4)])
    case("concat4", (), (), [quarter(f"x{g}", g) for g in range(4)], [("y", inputs["gates"])])


# --- loss, products and tables ---


def companion_cases():
    inputs = {"logits": uniform(4, 5, low=-2.0, high=2.0)}
    labels = Tensor([4], [3, 0, 7, 2], "u8")

    def loss(t):
        out = []
        for n, label in enumerate(labels.values):
            row = t["logits"].values[5 * n:5 * n + 5]
            total = cmath.log(sum(cmath.exp(v) for v in row))
            share = [0.02 + (0.9 if v == label else 0) for v in range(5)]
            counted = label < 5 and label != 2
            out.append(sum(s * (total - v) for s, v in zip(share, row)) if counted else 0)
        return Tensor([4], out)

    attrs = {"smoothing": 0.1, "use_ignore_index": 1, "ignore_index": 2}
    dloss = uniform(4)
    old = inputs["logits"].like(inputs["logits"].values[::-1])
    case("cross_entropy", attrs, ALPHA_BETA,
         [("logits", inputs["logits"]), ("labels", labels), ("dloss", dloss), ("dlogits", old)],
         [("loss", loss(inputs)),
          ("dlogits", scaled(gradient(loss, inputs, "logits", dloss), 1.5, old, -0.5))])

    x, dy, old = uniform(5, 2), uniform(5, 3), uniform(2, 3)
    product = [sum(x.values[n * 2 + i] * dy.values[n * 3 + j] for n in range(5))
               for i in range(2) for j in range(3)]
    case("dense_wgrad", (), ALPHA_BETA, [("x", x), ("dy", dy), ("dw", old)],
         [("dw", scaled(old.like(product), 1.5, old, -0.5))])

    table, index = {"table": uniform(4, 3)}, Tensor([6], [1, 3, -1, 1, 0, 9], "i32")

    def rows(t):
        return Tensor([6, 3], [t["table"].values[i * 3 + d] if 0 <= i < 4 else 0
                               for i in index.values for d in range(3)])

    case("embedding", (), (), [("table", table["table"]), ("index", index)], [("y", rows(table))])
    grads("embedding_grad", rows, table, uniform(6, 3), {"dtable": "table"}, (), (), ALPHA_BETA,
          saved=[("index", index)])

    inputs = {"x": uniform(3, 4), "bias": uniform(4)}
    acts = [lambda v: v, lambda v: v if real(v) > 0 else 0, tanh_gelu,
            lambda v: v / 2 * (1 + error_function(v / math.sqrt(2))),
            lambda v: v * logistic(v), lambda v: v * logistic(1.702 * v)]
    for act, f in enumerate(acts):

        def forward(t, f=f):
            return t["x"].like([f(v + t["bias"].values[e % 4])
                                for e, v in enumerate(t["x"].values)])

        case("bias_act", {"act": act}, (), inputs.items(), [("y", forward(inputs))])
        grads("bias_act_grad", forward, inputs, uniform(3, 4), {"dx": "x", "dbias": "bias"},
              {"act": act}, ["x", "bias"], ALPHA_BETA, plain=["dx"])


# --- training ---


def optimizer_cases():
    before, after = [], []
    for _ in range(4):
        p, g, m, v = uniform(3, 2), uniform(3, 2), uniform(3, 2), uniform(3, 2, low=0.0)
        next_m = [0.9 * a + 0.1 * b for a, b in zip(m.values, g.values)]
        next_v = [0.99 * a + 0.01 * b * b for a, b in zip(v.values, g.values)]
        rate = 0.1 * math.sqrt(1 - 0.99**4) / (1 - 0.9**4)
        next_p = [x - rate * a / (math.sqrt(b) + 1e-6) - 0.1 * 0.2 * x
                  for x, a, b in zip(p.values, next_m, next_v)]
        before += [("param", p), ("grad", g), ("m", m), ("v", v)]
        after += [("param", p.like(next_p)), ("m", p.like(next_m)), ("v", p.like(next_v))]
    adam = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6}
    scalars = {"lr": 0.1, "weight_decay": 0.2, "step": 4}
    case("adam", adam, scalars, before[:4], after[:3])
    case("adam_n", {**adam, "pairs": 3}, scalars, before[4:], after[3:])

    p, g, col, row = uniform(3, 4), uniform(3, 4), uniform(4, low=0.1), uniform(3, low=0.1)
    d = 0.9 * (1 - 0.9**2) / (1 - 0.9**3)
    col2 = [d * c + (1 - d) * sum(g.values[r * 4 + i]**2 + 1e-8 for r in range(3)) / 3
            for i, c in enumerate(col.values)]
    row2 = [d * c + (1 - d) * sum(g.values[r * 4 + i]**2 + 1e-8 for i in range(4)) / 4
            for r, c in enumerate(row.values)]
    mean = sum(row2) / 3
    steps = [x / math.sqrt(row2[e // 4] / mean * col2[e % 4]) for e, x in enumerate(g.values)]
    size = math.sqrt(sum(s * s for s in steps) / 12)
    moved = [x - 0.05 * s / max(1, size / 0.5) for x, s in zip(p.values, steps)]
    case("adafactor", {"beta2": 0.9, "eps": 1e-8, "clip": 0.5}, {"lr": 0.05, "step": 2},
         [("param", p), ("grad", g), ("col", col), ("row", row)],
         [("param", p.like(moved)), ("col", col.like(col2)), ("row", row.like(row2))])

    case("ema", (), {"decay": 0.75}, [("average", p), ("param", g)],
         [("average", p.like([0.75 * a + 0.25 * b for a, b in zip(p.values, g.values)]))])

    xs = [uniform(5) for _ in range(3)]
    total = sum((4 * a)**2 for x in xs for a in x.values) + 3.0
    one = Tensor([1], [3.0])
    case("global_norm", {"pairs": 3}, {"beta": 1.0, "grad_scale": 4.0, "clip": 2.0},
         [("x", x) for x in xs] + [("sum", one)],
         [("sum", one.like([total])), ("norm", one.like([math.sqrt(total)])),
          ("norm_scale", Tensor([1], [2 / math.sqrt(total)], "f32"))])

    none = Tensor([1], [0.0])
    case("global_norm", (), {"clip": 2.0}, [("x", Tensor([3], [0.0] * 3)), ("sum", one)],
         [("sum", none), ("norm", none), ("norm_scale", Tensor([1], [0.0], "f32"))])

    for good, scale, factor, norm, wanted in (
            (4, 64.0, 1.0, [], (0, 128.0, 8)), (3, 64.0, 1.0, [0.5], (4, 64.0, 8)),
            (3, 64.0, 0.0, [], (0, 32.0, 7)), (3, 64.0, 0.0, [math.inf], (0, 32.0, 7)),
            (3, 64.0, 0.0, [0.0], (3, 64.0, 7))):
        case("loss_scale", {"interval": 5}, (),
             [("scale", Tensor([1], [scale], "f32")), ("norm_scale", Tensor([1], [factor], "f32")),
              ("good", Tensor([1], [good], "i32")), ("steps", Tensor([1], [7], "i64"))] +
             [("norm", Tensor([1], [n], "f32")) for n in norm],
             [("scale", Tensor([1], [wanted[1]], "f32")), ("good", Tensor([1], [wanted[0]], "i32")),
              ("steps", Tensor([1], [wanted[2]], "i64"))])


def format_numbers(ebits, fbits, emax, flush):
    """All magnitudes of a format, from the definition."""
    bottom = max(emax - 2**ebits + 2, -126)
    numbers = [0.0] if flush else [2.0**(bottom - fbits) * i for i in range(2**fbits)]
    for e in range(bottom, emax + 1):
        numbers += [2.0**(e - fbits) * (2**fbits + i) for i in range(2**fbits)]
    return numbers


def quantize_cases():
    for ebits, fbits, emax, stochastic in ((4, 3, 1, 0), (3, 2, 0, 1), (2, 0, 0, 0)):
        numbers = format_numbers(ebits, fbits, emax, False)
        x = uniform(24, low=-3.0, high=3.0)
        x.values += [math.inf, numbers[1] * 0.4, numbers[2] + numbers[1] * 0.5, -numbers[1] * 1.7]
        x.dims = [28]
        y = []
        for e, v in enumerate(x.values):
            below = max(i for i, q in enumerate(numbers) if q <= abs(v))
            if below + 1 < len(numbers):
                share = (abs(v) - numbers[below]) / (numbers[below + 1] - numbers[below])
                if stochastic:
                    below += random_unit(77, 3, e) < share
                else:
                    below += share > 0.5 or (share == 0.5 and below % 2)
            y.append(math.copysign(numbers[below], v))
        case("quantize", {"ebits": ebits, "fbits": fbits, "stochastic": stochastic},
             {"emax": emax, "seed": 77, "offset": 3}, [("x", x)], [("y", x.like(y))])

    x = uniform(40)
    sizes = [abs(v) for v in x.values]
    mean = sum(sizes) / 40
    std = math.sqrt(sum((v - mean)**2 for v in sizes) / 40)
    stats = [mean, std, max(sizes), sum(v >= 0.8 for v in sizes) / 40,
             sum(0 < v < 0.2 for v in sizes) / 40]
    exponent = math.frexp(mean + 3 * std)[1] - 1 + 2
    case("tensor_stats", {"bias_pad": 2, "spread": 3.0}, {"saturate": 0.8, "tiny": 0.2},
         [("x", x)], [("stats", Tensor([5], stats)), ("exponent", Tensor([1], [exponent], "i32"))])


# --- attention ---


def attention_cases():
    batch, per_head, heads, kv_heads, queries, keys, d, dv = 2, 2, 4, 2, 5, 7, 2, 3
    # two patterns on 3 x 3 blocks of 2 x 3 elements; the second leaves out a row of blocks
    masks = ("110011101", "011000111")
    layout = (queries, keys, 2, 3, 2, "".join(masks))
    slots = [[-1] * 9 for _ in masks]
    count = 0
    for h, mask in enumerate(masks):
        for at in range(9):
            if mask[at] == "1":
                slots[h][at] = count
                count += 1
    names = {"q": (batch, heads, queries, d), "k": (batch, kv_heads, keys, d),
             "v": (batch, kv_heads, keys, dv)}
    for full in (False, True):
        inputs = {name: uniform(*dims) for name, dims in names.items()}
        bias, slopes = uniform(1, heads, 1, keys), uniform(heads, low=0.1, high=0.5)
        prefix = Tensor([batch], [2, 5], "i32")
        bits = integers((3, 2, 1), 0, 8, "u8")
        index = integers((count,), -1, 3)
        attrs, scalars, extra = {}, {"scale": -0.6}, []
        if full:
            attrs = {"causal": 1, "align": 1, "softcap": 0.9, "window": 6, "dropout": 1}
            scalars.update({"keep": 0.75, "seed": 12, "offset": 5})
            extra = [("bias", bias), ("slopes", slopes), ("prefix", prefix), ("bits", bits),
                     ("bits_index", index)]

        def row(t, b, h, i):
            """Scores of the visible keys, and what dropout makes of each."""
            q = t["q"].values[((b * heads + h) * queries + i) * d:][:d]
            scores, factors = {}, {}
            for j in range(keys):
                slot = slots[h // per_head][i // 2 * 3 + j // 3]
                k = t["k"].values[((b * kv_heads + h // 2) * keys + j) * d:][:d]
                if slot < 0:
                    continue
                score = -0.6 * sum(x * y for x, y in zip(q, k))
                factors[j] = 1
                if full:
                    pos = i + keys - queries
                    mask = index.values[slot]
                    if ((j > pos and j >= prefix.values[b]) or abs(pos - j) >= 6
                            or (mask >= 0 and not bits.values[mask * 2 + i % 2] >> j % 3 & 1)):
                        continue
                    score = (0.9 * cmath.tanh(score / 0.9) - slopes.values[h] * abs(pos - j)
                             + bias.values[h * keys + j])
                    block = (b * per_head + h % per_head) * count + slot
                    element = (block * 2 + i % 2) * 3 + j % 3
                    factors[j] = 1 / 0.75 if kept(0.75, 12, 5, element) else 0
                scores[j] = score
            return scores, factors

        def every_row():
            return ((b, h, i) for b in range(batch) for h in range(heads) for i in range(queries))

        def forward(t):
            o = []
            for b, h, i in every_row():
                scores, factors = row(t, b, h, i)
                total = sum(cmath.exp(s) for s in scores.values())
                for f in range(dv):
                    o.append(sum(cmath.exp(s) / total * factors[j] *
                                 t["v"].values[((b * kv_heads + h // 2) * keys + j) * dv + f]
                                 for j, s in scores.items()))
            return Tensor((batch, heads, queries, dv), o)

        lse = []
        for b, h, i in every_row():
            total = sum(cmath.exp(s) for s in row(inputs, b, h, i)[0].values())
            lse.append(math.log(real(total)) if total else -math.inf)
        lse, o = Tensor((batch, heads, queries), lse), forward(inputs)
        case("attention", attrs, scalars, list(inputs.items()) + extra, [("o", o), ("lse", lse)],
             layout)
        saved = [("o", o.like([real(v) for v in o.values])), ("lse", lse)] + extra
        grads("attention_grad", forward, inputs, uniform(batch, heads, queries, dv),
              {"dq": "q", "dk": "k", "dv": "v"}, attrs, ["q", "k", "v"], {**ALPHA_BETA, **scalars},
              "dout", saved=saved, layout=layout)


def decode_cases():
    """Two members with 3 and 2 queries, over 5 pages of 4 keys, of which one member has a bad one."""
    batch, heads, kv_heads, queries, d, dv, pages, page, columns = 2, 4, 2, 3, 2, 3, 5, 4, 3
    q = uniform(batch, heads, queries, d)
    k, v = uniform(pages, kv_heads, page, d), uniform(pages, kv_heads, page, dv)
    table = Tensor([batch, columns], [4, 0, 2, 1, 9, 3], "i32")
    q_len, k_len = Tensor([batch], [3, 2], "i32"), Tensor([batch], [11, 40], "i32")
    slopes = uniform(heads, low=0.1, high=0.5)
    # lists of blocks of 2 keys by member, head and block of 2 queries; one block is named twice
    index = Tensor([batch, kv_heads, 2, 4], [0, 3, 5, 1, 2, 2, -1, 4, 5, 4, 3, 2, 6, 0, 1, 2,
                                             1, 0, 5, 4, 0, 4, 2, 1, 3, 2, 1, 0, 5, 4, 3, 2], "i32")
    count = Tensor([batch, kv_heads, 2], [3, 4, 2, 9, 4, 0, 4, 3], "i32")
    for listed in (False, True):
        o, lse = [], []
        for at in range(batch * heads * queries):
            b, h, i = at // (heads * queries), at // queries % heads, at % queries
            seen = list(range(columns * page))
            if listed:
                entry = (b * kv_heads + h // 2) * 2 + i // 2
                blocks = index.values[entry * 4:][:min(count.values[entry], 4)]
                seen = [2 * block + j for block in blocks if 0 <= block < 6 for j in range(2)]
            keys = min(k_len.values[b], columns * page)
            pos = i + keys - q_len.values[b]
            powers, total, sums = 0, 0.0, [0.0] * dv
            for j in seen:
                where = table.values[b * columns + j // page]
                if (j >= keys or not 0 <= where < pages or i >= q_len.values[b]
                        or (listed and (j > pos or pos - j >= 9))):
                    continue
                slot = (where * kv_heads + h // 2) * page + j % page
                score = 0.8 * sum(q.values[at * d + f] * k.values[slot * d + f] for f in range(d))
                if listed:
                    score = 1.2 * math.tanh(score / 1.2) - slopes.values[h] * abs(pos - j)
                powers += 1
                total += math.exp(score)
                for f in range(dv):
                    sums[f] += math.exp(score) * v.values[slot * dv + f]
            o += [s / total if powers else 0.0 for s in sums]
            lse.append(math.log(total) if powers else -math.inf)
        attrs = {"causal": 1, "window": 9, "softcap": 1.2, "block": 2, "q_block": 2}
        lists = [("slopes", slopes), ("block_index", index), ("block_count", count)]
        case("attention_decode", attrs if listed else {}, {"scale": 0.8},
             [("q", q), ("k", k), ("v", v), ("table", table), ("q_len", q_len), ("k_len", k_len)] +
             (lists if listed else []),
             [("o", Tensor((batch, heads, queries, dv), o)),
              ("lse", Tensor((batch, heads, queries), lse))])


def list_cases():
    rows, columns, capacity = 4, 9, 6
    scores = uniform(rows, columns)
    scores.values[3], scores.values[12], scores.values[20] = math.inf, -math.inf, scores.values[21]
    limit = [9, 6, 9, 2]
    mask = integers((rows, columns), 0, 2, "u8")
    mask.values[:columns] = [7] * columns

    def lists(kept):
        index = [j for row in kept for j in (row + [-1] * capacity)[:capacity]]
        return [("index", Tensor([rows, capacity], index, "i32")),
                ("count", Tensor([rows], [len(row) for row in kept], "i32"))]

    kept = []
    for n, end in enumerate(limit):
        row = scores.values[n * columns:][:end]
        always = [j for j in range(end) if j < 1 or j >= end - 2]
        others = sorted((-row[j], j) for j in range(end) if j not in always and row[j] > -math.inf)
        kept.append(sorted(always + [j for _, j in others[:5 - len(always)]]))
    case("layout_topk", {"k": 5, "first": 1, "last": 2}, {},
         [("scores", scores), ("limit", Tensor([rows], limit, "i32"))], lists(kept))
    case("layout_mask", {}, {}, [("mask", mask)],
         lists([[j for j in range(columns) if mask.values[n * columns + j]] for n in range(rows)]))


def grouped_cases():
    """Offsets that start late, descend and lie behind the rows."""
    rows, k, m, offsets = 9, 3, 2, [1, 4, 3, 12]
    inputs = {"x": uniform(rows, k), "w": uniform(3, k, m), "bias": uniform(3, m)}
    where = ("offsets", Tensor([4], offsets, "i32"))
    group = [-1, 0, 0, 0, 2, 2, 2, 2, 2]
    old, dy = uniform(rows, m), uniform(rows, m)

    def product(t, alpha=1.0, beta=0.0, act=lambda v: v):
        y = []
        for n, g in enumerate(group):
            for j in range(m):
                kept = beta * old.values[n * m + j]
                total = sum(t["x"].values[n * k + i] * t["w"].values[(g * k + i) * m + j]
                            for i in range(k))
                y.append(kept if g < 0 else
                         act(alpha * total + t["bias"].values[g * m + j] + kept))
        return Tensor([rows, m], y)

    y = product(inputs, 1.5, -0.5, lambda v: v / (1 + math.exp(-v)))
    case("grouped_matmul", {"act": 4}, ALPHA_BETA,
         [("x", inputs["x"]), where, ("w", inputs["w"]), ("bias", inputs["bias"]), ("y", old)],
         [("y", y)])
    dw, dbias = uniform(3, k, m), uniform(3, m)
    case("grouped_wgrad", {}, ALPHA_BETA,
         [("x", inputs["x"]), where, ("dy", dy), ("dw", dw), ("dbias", dbias)],
         [("dw", scaled(gradient(product, inputs, "w", dy), 1.5, dw, -0.5)),
          ("dbias", scaled(gradient(product, inputs, "bias", dy), 1.5, dbias, -0.5))])

    tokens, choices, groups = 5, 2, 3
    experts = [2, 0, 1, 3, -1, 2, 0, 2, 1, 0]
    order = [slot for _, slot in sorted((e, s) for s, e in enumerate(experts) if 0 <= e < groups)]
    room = [-1] * (len(experts) - len(order))
    place = [order.index(slot) if slot in order else -1 for slot in range(len(experts))]
    case("moe_route", {}, {}, [("experts", Tensor([tokens, choices], experts, "i32"))],
         [("offsets", Tensor([groups + 1], [sum(0 <= e < g for e in experts)
                                            for g in range(groups + 1)], "i32")),
          ("order", Tensor([len(experts)], order + room, "i32")),
          ("token", Tensor([len(experts)], [s // choices for s in order] + room, "i32")),
          ("place", Tensor([tokens, choices], place, "i32"))])


def conv_cases():
    """Blocks of several sizes that share channels, in one and in two dimensions."""
    blocks = [([0, 2], [1]), ([1, 2, 0], [1, 3])]
    numbers = [n for c, k in blocks for n in (len(c), len(k), *c, *k)]
    images, ins, outs = 2, 3, 4

    def shape(filters, stride, dilation, pad):
        return {f"shape.{name}[{d}]": v[d] for name, v in
                (("filter", filters), ("stride", stride), ("dilation", dilation), ("pad", pad))
                for d in range(len(v))}

    def check(size, result, filters, stride, dilation, pad):
        places = [tuple(i) for i in itertools.product(*map(range, size))]
        points = list(itertools.product(*map(range, result)))
        taps = list(itertools.product(*map(range, filters)))
        inputs = {"x": uniform(images, ins, *size),
                  "w": uniform(sum(len(c) * len(k) for c, k in blocks) * len(taps))}

        def product(t):
            y = [0.0] * (images * outs * len(points))
            for n, (i, q) in itertools.product(range(images), enumerate(points)):
                at = 0
                for channels, results in blocks:
                    for k, c, tap in itertools.product(results, channels, taps):
                        p = tuple(a * s + b * d - e
                                  for a, s, b, d, e in zip(q, stride, tap, dilation, pad))
                        if p in places:
                            y[(n * outs + k) * len(points) + i] += t["w"].values[at] * t[
                                "x"].values[(n * ins + c) * len(places) + places.index(p)]
                        at += 1
            return Tensor([images, outs, *result], y)

        attrs = shape(filters, stride, dilation, pad)
        y, dy = product(inputs), uniform(images, outs, *result)
        old = uniform(*y.dims)
        case("conv", attrs, ALPHA_BETA, [*inputs.items(), ("y", old)],
             [("y", scaled(y, 1.5, old, -0.5))], numbers=numbers)
        for op, name, other in (("conv_dgrad", "x", "w"), ("conv_wgrad", "w", "x")):
            old = uniform(*inputs[name].dims)
            case(op, attrs, ALPHA_BETA,
                 [("dy", dy), (other, inputs[other]), ("d" + name, old)],
                 [("d" + name, scaled(gradient(product, inputs, name, dy), 1.5, old, -0.5))],
                 numbers=numbers)

    check((6,), (3,), (3,), (2,), (1,), (1,))
    check((3, 4), (3, 3), (2, 2), (1, 1), (1, 2), (0, 1))


def edge_cases():
    """Sets of taps outside of the image as sets, of a filter of 3 x 2 on images of 4 x 3."""
    size, taps, pad = (4, 3), list(itertools.product(range(3), range(2))), (1, 1)
    numbers, edges = {}, []
    for q in itertools.product(*map(range, size)):
        lacked = frozenset(t for t in taps
                           if not all(0 <= a + b - c < n for a, b, c, n in zip(q, t, pad, size)))
        edges.append(numbers.setdefault(lacked, len(numbers)) if lacked else -1)
    sets = len(numbers)
    inputs = {"x": uniform(2, 3, *size), "gain": uniform(3, sets), "bias": uniform(3, sets),
              "edges": Tensor([len(edges)], edges, "i32")}

    def forward(t):
        y = list(t["x"].values)
        for i, v in enumerate(y):
            e = edges[i % len(edges)]
            if e >= 0:
                at = i // len(edges) % 3 * sets + e
                y[i] = v * t["gain"].values[at] + t["bias"].values[at]
        return t["x"].like(y)

    case("conv_edge_bias", (), (), inputs.items(), [("y", forward(inputs))])
    grads("conv_edge_bias_grad", forward, inputs, uniform(2, 3, *size),
          {"dx": "x", "dgain": "gain", "dbias": "bias"}, (), ["x", "edges", "gain"], ALPHA_BETA,
          plain=["dx"])


def main():
    for cases in (binary_cases, unary_cases, sum_cases, cast_cases, channel_cases, filter_cases,
                  choice_cases, topk_cases, softmax_cases, layer_norm_cases, batch_norm_cases,
                  lstm_cases, companion_cases, optimizer_cases, quantize_cases, attention_cases,
                  decode_cases, list_cases, grouped_cases, conv_cases, edge_cases):
        cases()


if __name__ == "__main__":
    main()
