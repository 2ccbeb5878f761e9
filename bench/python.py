#!/usr/bin/env python3
"""Times of the Python package: what a call adds to the C interface, and a training step of a layer
beside torch.nn.Linear.

    python.py [--only overhead|linear] [--device cuda] [--size N IN OUT BLOCK DENSITY] [--out FILE]

Writes one JSON object: every round's times beside the medians. Rounds take turns, so that clocks
and neighbours meet both sides.
"""

import argparse
import ctypes
import json
import platform
import statistics
import sys
import time

import torch

import bsk
import bsk.torch
from bsk import _abi, _arrays, _c, ops


def wait(device):
    if device != "cpu":
        torch.cuda.synchronize()


# --- what a call adds -----------------------------------------------------------------------------

def best(function, device, number=400, repeat=50):
    """Microseconds of a call: the smallest mean of `number` calls, without waiting for a GPU."""
    times = []
    for _ in range(repeat):
        wait(device)
        start = time.perf_counter()
        for _ in range(number):
            function()
        times.append((time.perf_counter() - start) / number * 1e6)
    wait(device)
    return min(times)


def c_call(plan, tensors):
    """A function that runs a plan of matmul by C alone, with arguments that are ready."""
    queue, space = plan.enter(plan)
    size = ctypes.sizeof(_c.structs["bsk_matmul_args"])
    values = []
    for name, kind, _ in _abi.STRUCTS["bsk_matmul_args"]:
        if kind != "bsk_mem":
            values.append({"struct_size": size, "alpha": 1.0}.get(name, 0))
            continue
        address = space if name == "workspace" else 0
        if name in tensors:
            address = tensors[name].data_ptr()
        values += [plan.mem_kind if address else 0, address]
        if name in _c.SIZED:
            values.append(plan.workspace_bytes if name == "workspace" else 0)
    packed = plan.pack(*values)
    _c.check(plan.run(plan.handle, queue, packed))
    run, handle = plan.run, plan.handle
    return lambda: run(handle, queue, packed)


def overhead(device, dtype):
    """A product of one block, by the package and by the C function."""
    layout = bsk.Layout.full((32, 32), 32)
    more = {"device": device, "dtype": dtype}
    x, w, y = torch.zeros(8, 32, **more), torch.zeros(1, 32, 32, **more), torch.empty(8, 32, **more)
    ops.clear_plans()

    def call():
        ops.matmul(layout, x, w, y=y)

    call()
    plan = list(ops._plans.values())[0]
    plain = c_call(plan, {"x": x, "w": w, "y": y})
    got = [[best(f, device) for f in (call, plain)] for _ in range(3)]
    package, c = (min(r[i] for r in got) for i in (0, 1))
    result = {"device": device, "dtype": str(dtype), "entry": plan.entry, "call_us": package,
              "c_us": c, "overhead_us": package - c,
              "describe_us": best(lambda: _arrays.describe[type(x)](x), device),
              "torch_mm_us": best(lambda: torch.mm(x, w[0], out=y), device)}
    run, plan.run = plan.run, lambda *arguments: 0
    result["python_us"] = best(call, device)  # all but the C function
    plan.run = run
    layer = bsk.torch.BlockSparseLinear(32, 32, density=1.0, **more)
    linear = torch.nn.Linear(32, 32, **more)
    with torch.no_grad():
        result["layer_us"] = best(lambda: layer(x), device)
        result["nn_linear_us"] = best(lambda: linear(x), device)
    ops.clear_plans()
    return result


# --- a training step ------------------------------------------------------------------------------

def timed(function, device, calls):
    """Milliseconds of a call, by the device's events or, on the CPU, by the clock."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - start) * 1e3 / calls
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    for _ in range(calls):
        function()
    events[1].record()
    events[1].synchronize()
    return events[0].elapsed_time(events[1]) / calls


def rounds(functions, device, seconds):
    """Times of each function by its name: as many rounds as `seconds` have room for, five at
    least, in each of which every function has its turn."""
    calls = {}
    for name, function in functions.items():
        for _ in range(3):
            function()
        wait(device)
        once = timed(function, device, 2)
        calls[name] = max(1, min(50, round(20 / max(once, 1e-3))))
    got = {name: [] for name in functions}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(next(iter(got.values()))) < 5:
        for name, function in functions.items():
            got[name].append(timed(function, device, calls[name]))
    return got


def step_of(layer, x, dy):
    def step():
        x.grad = None
        for p in layer.parameters():
            p.grad = None
        layer(x).backward(dy)
    return step


def kernels(function, device):
    """[name, launches, microseconds] of what the device runs in one call, by torch's profiler."""
    if device == "cpu":
        return None
    from torch.profiler import ProfilerActivity, profile
    calls = 10
    with profile(activities=[ProfilerActivity.CUDA]) as got:
        for _ in range(calls):
            function()
        wait(device)
    rows = []
    for row in got.key_averages():
        total = getattr(row, "device_time_total", None) or getattr(row, "cuda_time_total", 0)
        if total:
            rows.append([row.key[:120], row.count / calls, total / calls])
    return sorted(rows, key=lambda r: -r[2])


def linear(device, size, dtype, seconds):
    """Forward and backward with bias beside torch.nn.Linear, then their parts."""
    n, inputs, outputs, block, density = size
    torch.manual_seed(0)
    more = {"device": device, "dtype": dtype}
    sparse = bsk.torch.BlockSparseLinear(inputs, outputs, density=density, seed=0,
                                         block_shape=(block, block), **more)
    bare = bsk.torch.BlockSparseLinear(inputs, outputs, bias=False, pattern=sparse.layout, **more)
    dense = torch.nn.Linear(inputs, outputs, **more)
    x = torch.randn(n, inputs, requires_grad=True, **more)
    dy = torch.randn(n, outputs, **more)
    ops.clear_plans()
    steps = {"sparse": step_of(sparse, x, dy), "dense": step_of(dense, x, dy),
             "sparse without bias": step_of(bare, x, dy)}
    times = rounds(steps, device, seconds)
    entries = sorted({f"{op}: {entry}" for op, entry in ops.plans()})
    ratios = [d / s for s, d in zip(times["sparse"], times["dense"])]

    layout, w, bias = sparse.layout, sparse.weight.detach(), sparse.bias.detach().float()
    weight, inner = dense.weight.detach(), x.detach()

    def forward(layer):
        return lambda: layer(inner)

    def no_grad(function):
        with torch.no_grad():
            return rounds(function, device, seconds / 2)

    parts = no_grad({
        "forward, sparse, packed once": forward(sparse),
        "forward, sparse": lambda: ops.matmul(layout, inner, w, bias=bias),
        "forward, sparse without bias": lambda: ops.matmul(layout, inner, w),
        "forward, dense": forward(dense),
        "dx, sparse": lambda: ops.matmul(layout, dy, w, transpose_w=1),
        "dx, dense": lambda: dy @ weight,
        "dw, sparse": lambda: ops.matmul_wgrad(layout, inner, dy),
        "dw, dense": lambda: dy.t() @ inner,
        "dbias by torch": lambda: dy.sum(0),
        "dbias by bias_act_grad": lambda: ops.bias_act_grad(dy, dbias=True)})
    return {"device": device, "n": n, "in": inputs, "out": outputs, "block": block,
            "density": density, "dtype": str(dtype), "entries": entries,
            "sparse_ms": statistics.median(times["sparse"]),
            "dense_ms": statistics.median(times["dense"]),
            "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
            "parts_ms": {name: statistics.median(t) for name, t in parts.items()},
            "rounds_ms": times, "kernels_sparse": kernels(steps["sparse"], device),
            "kernels_dense": kernels(steps["dense"], device)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", choices=["overhead", "linear"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", nargs=5, type=float, default=[8192, 4096, 4096, 32, 0.25],
                        metavar=("N", "IN", "OUT", "BLOCK", "DENSITY"))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each set of rounds")
    parser.add_argument("--out", help="a file instead of the standard output")
    args = parser.parse_args()
    dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
    result = {"torch": torch.__version__, "bsk": bsk.version(), "python": platform.python_version(),
              "devices": [repr(d) for d in bsk.devices()]}
    if args.only != "linear":
        result["overhead"] = [overhead("cpu", torch.float32)]
        if args.device != "cpu":
            result["overhead"].append(overhead(args.device, dtype))
    if args.only != "overhead":
        size = [*map(int, args.size[:4]), args.size[4]]
        result["linear"] = linear(args.device, size, dtype, args.seconds)
    with open(args.out, "w") if args.out else sys.stdout as file:
        print(json.dumps(result, indent=1), file=file)


if __name__ == "__main__":
    main()
