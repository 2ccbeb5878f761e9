#!/usr/bin/env python3
"""PyTorch, eager and compiled, beside the rows of `bsk bench --set memory`, case by case.

    bsk bench --set memory --device cuda:0 --command "python3 bench/memory_peers.py" --json REPORT

Reads the name of a case in a line of its input; answers lines "torch MEDIAN LEAST SPREAD" and
"torch-compiled ...", milliseconds of a run and half the distance between its quartiles as a share, and
an empty line. Needs PyTorch 2.4 or newer with CUDA. Forward passes run without gradients; a gradient
is `torch.autograd.grad` of a graph that stays. Where PyTorch has no such op there is no figure. Softmax
is not scaled, which PyTorch would do in a pass of its own; the loss of bsk's cross entropy comes with
its gradient, so PyTorch's figure is of both. Adam is the fused one where it is not compiled."""
import argparse
import os
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
    """n, k and m of a case's name."""
    return {w[0]: int(w[1:]) for w in words if w[0] in "nkm" and w[1:].isdigit()}


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
            ms = times_of(make(wrap), given.seconds, given.rounds)
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
        for line in sys.stdin:
            answer(line.strip(), given, to)


if __name__ == "__main__":
    main()
