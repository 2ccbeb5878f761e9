#!/usr/bin/env python3
"""PyTorch, eager and compiled, beside the rows of `bsk bench --set memory` and `--set moe`, case by case.

    bsk bench --set memory --device cuda:0 --command "python3 bench/torch_peers.py" --json REPORT

Reads the name of a case in a line of its input; answers lines "torch MEDIAN LEAST SPREAD" and
"torch-compiled ...", milliseconds of a run and half the distance between its quartiles as a share, and
an empty line. Needs PyTorch 2.4 or newer with CUDA. Forward passes run without gradients; a gradient
is `torch.autograd.grad` of a graph that stays. Where PyTorch has no such op there is no figure. Softmax
is not scaled, which PyTorch would do in a pass of its own; the loss of bsk's cross entropy comes with
its gradient, so PyTorch's figure is of both. Adam is the fused one where it is not compiled. Products of
groups are `torch._grouped_mm`, in the eager form alone."""
import argparse
import os
import random
import statistics
import sys

import torch
import torch._dynamo
import torch._functorch.config
import torch.nn.functional as F

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def bias_act(act):
    return lambda x, bias: act(x + bias)


def gelu(x):
    return F.gelu(x, approximate="tanh")


# op or op and activation: the function, and how many vectors it takes after x
ROWS = {
    "layer_norm": (lambda x, gain, bias: F.layer_norm(x, x.shape[1:], gain, bias), 2),
    "rms_norm": (lambda x, gain: F.rms_norm(x, x.shape[1:], gain), 1),
    "masked_softmax": (lambda x: F.softmax(x, -1), 0),
    "dropout": (lambda x: F.dropout(x, 0.1), 0),
    "unary": (gelu, 0),
    "bias_act relu": (bias_act(torch.relu), 1),
    "bias_act gelu": (bias_act(gelu), 1),
}


def sizes_of(words):
    """n, k, m and g of a case's name."""
    return {w[0]: int(w[1:]) for w in words if w[0] in "nkmg" and w[1:].isdigit()}


def call(function, inputs, grad, wrap):
    """A run of the function's eager or compiled form, or of its gradients."""
    run = wrap(function)
    if not grad:
        return lambda: run(*inputs)
    leaves = [t.requires_grad_() for t in inputs]
    out = run(*leaves)
    dout = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def of_rows(base, dtype, rows, features, grad, wrap):
    function, vectors = ROWS[base]
    shapes = [(rows, features)] + [(features,)] * vectors
    return call(function, [torch.randn(s, device="cuda", dtype=dtype) for s in shapes], grad, wrap)


def of_embedding(rows, width, count, grad, wrap):
    index = torch.randint(rows, (count,), device="cuda", dtype=torch.int32)
    table = torch.randn(rows, width, device="cuda")
    return call(lambda table: F.embedding(index, table), [table], grad, wrap)


def of_loss(dtype, rows, classes, grad, wrap):
    label = torch.randint(classes, (rows,), device="cuda")
    x = torch.randn(rows, classes, device="cuda", dtype=dtype)
    run = wrap(lambda x: F.cross_entropy(x, label, reduction="none"))
    if not grad:
        return lambda: run(x)
    x.requires_grad_()
    ones = torch.ones(rows, device="cuda", dtype=dtype)
    return lambda: torch.autograd.grad(run(x), x, ones)


def of_adam(count, wrap):
    p = torch.randn(count, device="cuda")
    p.grad = torch.randn(count, device="cuda")
    return wrap(torch.optim.Adam([p], fused=wrap is eager, capturable=wrap is not eager).step)


def ends_of(rows, groups, kind):
    """Where each group ends; "any": with none to about twice the mean, by another draw than bsk's."""
    if kind == "even":
        ends = [rows * (g + 1) // groups for g in range(groups)]
    else:
        steps = 2 * groups + 1
        ends = [rows * (2 * g + 1 + random.randrange(3)) // steps for g in range(groups - 1)] + [rows]
    return torch.tensor(ends, device="cuda", dtype=torch.int32)


def of_groups(op, sizes, words, wrap):
    if wrap is not eager:
        return None
    rows, k, m, groups = (sizes[s] for s in "nkmg")
    ends = ends_of(rows, groups, "even" if "even" in words else "any")
    x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    if op == "grouped_wgrad":
        dy = torch.randn(rows, m, device="cuda", dtype=torch.bfloat16)
        return lambda: torch._grouped_mm(x.t(), dy, ends)
    w = torch.randn(groups, k, m, device="cuda", dtype=torch.bfloat16)
    if "t" in words:
        w = w.mT.contiguous().mT
    return lambda: torch._grouped_mm(x, w, ends)


def of_route(sizes, wrap):
    """Slots sorted by expert, and the offsets of these."""
    tokens, choices, groups = (sizes[s] for s in "nkg")
    experts = torch.randint(groups, (tokens * choices,), device="cuda", dtype=torch.int32)
    bounds = torch.arange(groups + 1, device="cuda", dtype=torch.int32)

    def route(experts):
        ranked, order = torch.sort(experts, stable=True)
        return torch.searchsorted(ranked, bounds), order, order // choices

    return call(route, [experts], False, wrap)


def peer_of(name):
    """What makes the call for a case, or None."""
    op, dtype, *words = name.split()
    sizes = sizes_of(words)
    grad = op.endswith("_grad")
    base = op.removesuffix("_grad")
    if base == "bias_act":
        base += " " + next(w for w in words if w in ("relu", "gelu"))
    if base in ROWS:
        features = sizes["m"] if "m" in sizes else sizes["k"]
        return lambda wrap: of_rows(base, TYPES[dtype], sizes["n"], features, grad, wrap)
    if base == "embedding":
        return lambda wrap: of_embedding(sizes["k"], sizes["m"], sizes["n"], grad, wrap)
    if base == "cross_entropy":
        grad = "nograd" not in words
        return lambda wrap: of_loss(TYPES[dtype], sizes["n"], sizes["m"], grad, wrap)
    if op.startswith("grouped_"):
        return lambda wrap: of_groups(op, sizes, words, wrap)
    if base == "moe_route":
        return lambda wrap: of_route(sizes, wrap)
    if base == "adam":
        return lambda wrap: of_adam(sizes["k"] * sizes["m"], wrap)
    return None


def eager(function):
    return function


def compiled(function):
    return torch.compile(function, dynamic=False)


def times_of(run, seconds, rounds):
    """Milliseconds of a call in each round."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once(count):
        start.record()
        for _ in range(count):
            run()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / count

    for _ in range(3):
        run()
    count = max(1, int(seconds * 1e3 / once(3)))
    return [once(count) for _ in range(rounds)]


def answer(name, given, to):
    make = peer_of(name)
    for how, wrap in (("torch", eager), ("torch-compiled", compiled)) if make else ():
        try:
            run = make(wrap)
            if not run:
                continue
            ms = times_of(run, given.seconds, given.rounds)
            low, median, high = statistics.quantiles(ms, n=4, method="inclusive")
        except Exception as e:  # a form that cannot run this case has no figure
            print(f"{name}: {how}: {type(e).__name__}: {str(e)[:160]}", file=sys.stderr)
            continue
        print(how, median, min(ms), (high - low) / 2 / median, file=to)
    torch.cuda.empty_cache()
    print(file=to, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    # what libraries print is no answer
    with os.fdopen(os.dup(1), "w") as to:
        os.dup2(2, 1)
        torch._functorch.config.donated_buffer = False  # graphs stay
        torch._dynamo.config.cache_size_limit = 256
        torch.manual_seed(1)
        random.seed(1)
        for line in sys.stdin:
            answer(line.strip(), given, to)


if __name__ == "__main__":
    main()
