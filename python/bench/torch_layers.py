"""Times of the package: what a call adds to the C interface, and a training step of a layer.

    torch_layers.py [overhead] [linear [N IN OUT BLOCK DENSITY]] [--device cuda]

Prints one JSON line per measurement. On a machine in use the minima are what counts.
"""

import argparse
import ctypes
import json
import time

import torch

import bsk
import bsk.torch
from bsk import _abi, _arrays, _c, ops


def wait(device):
    if device != "cpu":
        torch.cuda.synchronize()


def best(function, device, number, repeat=50):
    """Seconds of a call: the smallest mean of `number` calls."""
    times = []
    for _ in range(repeat):
        wait(device)
        start = time.perf_counter()
        for _ in range(number):
            function()
        times.append((time.perf_counter() - start) / number)
        wait(device)
    return min(times)


def overhead(device):
    """A product of one block, by the package and by the C function with ready arguments."""
    layout = bsk.Layout.full((32, 32), 32)
    x, w = torch.zeros(1, 32, device=device), torch.zeros(1, 32, 32, device=device)
    y = torch.empty(1, 32, device=device)
    ops.clear_plans()

    def call():
        ops.matmul(layout, x, w, y=y)

    call()
    plan = list(ops._plans.values())[0]
    queue, space = plan.enter(plan)
    values = []
    for name, kind, _ in _abi.STRUCTS["bsk_matmul_args"]:
        if kind == "bsk_mem":
            tensor = {"x": x, "w": w, "y": y}.get(name)
            address = tensor.data_ptr() if tensor is not None else 0
            address = space if name == "workspace" else address
            values += [plan.mem_kind if address else 0, address]
            if name in _c.SIZED:
                values.append(plan.workspace_bytes if name == "workspace" else 0)
        else:
            values.append({"struct_size": ctypes.sizeof(_c.structs["bsk_matmul_args"]),
                           "alpha": 1.0}.get(name, 0))
    packed = plan.pack(*values)
    _c.check(plan.run(plan.handle, queue, packed))
    number = 400
    package = best(call, device, number)
    plain = best(lambda: plan.run(plan.handle, queue, packed), device, number)
    describe = best(lambda: _arrays.describe[type(x)](x), device, number)
    plan.run = lambda *arguments: 0  # what is left is Python's
    python = best(call, device, number)
    ops.clear_plans()
    return {"measured": "overhead", "device": device, "entry": plan.entry,
            "call_us": package * 1e6, "c_us": plain * 1e6, "overhead_us": (package - plain) * 1e6,
            "python_us": python * 1e6, "describe_us": describe * 1e6}


def step_of(layer, x, dy, device):
    def step():
        x.grad = None
        for p in layer.parameters():
            p.grad = None
        layer(x).backward(dy)
    return step


def timed(step, device, seconds=1.0):
    """Median time of a call by the device's events, on the CPU by the clock."""
    for _ in range(3):
        step()
    wait(device)
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds or len(times) < 5:
        if device == "cpu":
            one = time.perf_counter()
            step()
            times.append((time.perf_counter() - one) * 1e3)
        else:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            events[0].record()
            for _ in range(10):
                step()
            events[1].record()
            events[1].synchronize()
            times.append(events[0].elapsed_time(events[1]) / 10)
    return sorted(times)[len(times) // 2]


def linear(device, n, inputs, outputs, block, density, dtype):
    """Forward and backward of a layer beside torch.nn.Linear, taking turns."""
    torch.manual_seed(0)
    more = {"device": device, "dtype": dtype}
    sparse = bsk.torch.BlockSparseLinear(inputs, outputs, density=density, seed=0,
                                         block_shape=(block, block), **more)
    dense = torch.nn.Linear(inputs, outputs, **more)
    x = torch.randn(n, inputs, requires_grad=True, **more)
    dy = torch.randn(n, outputs, **more)
    steps = [step_of(layer, x, dy, device) for layer in (sparse, dense)]
    rounds = [[timed(step, device, 0.4) for step in steps] for _ in range(3)]
    ours, theirs = (sorted(r[i] for r in rounds)[1] for i in (0, 1))
    parts = {}
    with torch.no_grad():
        for name, layer in (("sparse", sparse), ("dense", dense)):
            parts[name + "_forward_ms"] = timed(lambda: layer(x), device, 0.3)
    return {"measured": "linear", "device": device, "n": n, "in": inputs, "out": outputs,
            "block": block, "density": density, "dtype": str(dtype), "sparse_ms": ours,
            "dense_ms": theirs, "ratio": theirs / ours, "rounds": rounds, **parts,
            "entries": sorted({f"{op}: {entry}" for op, entry in ops.plans()})}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="*", default=["overhead", "linear"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if "overhead" in args.what:
        print(json.dumps(overhead("cpu")))
        if args.device != "cpu":
            print(json.dumps(overhead(args.device)))
    if "linear" in args.what:
        numbers = args.what[args.what.index("linear") + 1:]
        n, inputs, outputs, block = map(int, numbers[:4] or (8192, 4096, 4096, 32))
        density = float(numbers[4]) if len(numbers) > 4 else 0.25
        dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
        ops.clear_plans()
        print(json.dumps(linear(args.device, n, inputs, outputs, block, density, dtype)))


if __name__ == "__main__":
    main()
