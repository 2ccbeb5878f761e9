#!/usr/bin/env python3
"""Fused attention beside cuDNN and FlexAttention, in turns in one process.

    python bench/attention_peers.py [--json FILE] [--dims 64,128] [--cases GLOB] [--seconds S]

Needs PyTorch 2.5 or newer with CUDA, and the bsk package. Useful TFLOP/s count visible elements:
4 d flops each forward, 10 d backward. Times are medians over rounds in which every entry runs for
S seconds back to back; outputs of bsk are compared with a float32 reference first."""
import argparse
import fnmatch
import json
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import bsk

BATCH, HEADS, TIME = 2, 16, 8192


def random_case(block):
    n = TIME // block
    kept = torch.rand(n, n, generator=torch.Generator().manual_seed(3)) < 0.1
    kept |= torch.eye(n, dtype=torch.bool)
    on_device = kept.cuda()
    return {
        "layout": bsk.Layout.from_mask(kept.numpy(), block),
        "mask": lambda b, h, q, k: on_device[q // block, k // block],
    }


def fixed_case():
    def mask(b, h, q, k):
        return (q >= k) & ((q // 512 == k // 512) | (k % 512 >= 448))

    return {"layout": bsk.Layout.fixed(TIME, 64, 8, 1), "mask": mask, "options": {"causal": 1}}


# name: what makes the layout for bsk, its rules, and the mask for FlexAttention
CASES = {
    "full": lambda: {"layout": bsk.Layout.full((TIME, TIME), 128), "dense": False},
    "causal": lambda: {
        "layout": bsk.Layout.causal(TIME, 128), "dense": True, "options": {"causal": 1},
        "mask": lambda b, h, q, k: q >= k},
    "random128": lambda: random_case(128),
    "random64": lambda: random_case(64),
    "random32": lambda: random_case(32),
    "local512": lambda: {
        "layout": bsk.Layout.local(TIME, 128, 512), "options": {"causal": 1, "window": 512},
        "mask": lambda b, h, q, k: (q >= k) & (q - k < 512)},
    "fixed512": fixed_case,
    "strided128": lambda: {
        "layout": bsk.Layout.strided(TIME, 64, 128), "options": {"causal": 1, "interleave": 128},
        "mask": lambda b, h, q, k: (q >= k) & ((q - k) % 128 == 0)},
}


def visible(mask):
    if mask is None:
        return TIME * TIME
    i = torch.arange(TIME, device="cuda")
    return int(mask(0, 0, i[:, None], i[None, :]).sum())


def error_of(o, lse, q, k, v, mask):
    """The largest error of one head against float32."""
    s = (q[1, 3].double() @ k[1, 3].double().T) / q.shape[-1] ** 0.5
    if mask is not None:
        i = torch.arange(TIME, device="cuda")
        s.masked_fill_(~mask(0, 0, i[:, None], i[None, :]), float("-inf"))
    wanted = torch.softmax(s, -1) @ v[1, 3].double()
    return ((o[1, 3] - wanted).abs().max().item(),
            (lse[1, 3] - torch.logsumexp(s, -1)).abs().max().item())


def entries(case, d):
    """Name: (forward, backward)."""
    q, k, v = (torch.randn(BATCH, HEADS, TIME, d, device="cuda", dtype=torch.bfloat16)
               for _ in range(3))
    dout = torch.randn_like(q)
    mask, options = case.get("mask"), case.get("options", {})
    scale = d ** -0.5
    layout = case["layout"]
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")
    made = [torch.empty_like(q) for _ in range(3)]

    def forward():
        bsk.ops.attention(layout, q, k, v, o=o, lse=lse, scale=scale, **options)

    def backward():
        bsk.ops.attention_grad(layout, q, k, v, o, dout, lse, dq=made[0], dk=made[1], dv=made[2],
                               scale=scale, **options)

    found = {"bsk": (forward, backward)}
    forward()
    errors = error_of(o, lse, q, k, v, mask)

    def torch_entry(name, run):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        try:
            out = run(*leaves)
            torch.autograd.grad(out, leaves, dout, retain_graph=True)
        except Exception as e:  # a peer that cannot run this case has no row
            print(f"{name}: {type(e).__name__}: {str(e)[:120]}")
            return

        def grad():
            torch.autograd.grad(out, leaves, dout, retain_graph=True)

        found[name] = (lambda: run(q, k, v), grad)

    if "dense" in case:
        def cudnn(q, k, v):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return F.scaled_dot_product_attention(q, k, v, is_causal=case["dense"])
        torch_entry("cudnn", cudnn)
    if mask is not None:
        flex = torch.compile(flex_attention, dynamic=False)
        blocks = create_block_mask(mask, None, None, TIME, TIME, device="cuda", BLOCK_SIZE=128)
        torch_entry("flex", lambda q, k, v: flex(q, k, v, block_mask=blocks))
    return found, errors


def time_of(run, seconds):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    stop.record()
    stop.synchronize()
    count = max(1, int(seconds * 1e3 / max(start.elapsed_time(stop), 1e-3)))
    start.record()
    for _ in range(count):
        run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json")
    parser.add_argument("--commit", default="unknown", help="of the library, for the report")
    parser.add_argument("--dims", default="128,64")
    parser.add_argument("--cases", default="*")
    parser.add_argument("--seconds", type=float, default=0.03)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch._dynamo.config.cache_size_limit = 256
    torch.manual_seed(1)
    rows = []
    for d in map(int, given.dims.split(",")):
        for name, make in CASES.items():
            if not fnmatch.fnmatch(name, given.cases):
                continue
            case = make()
            count = visible(case.get("mask"))
            found, errors = entries(case, d)
            for way, per_element in enumerate((4, 10)):
                times = {n: [] for n in found}
                for _ in range(given.rounds):
                    for n, runs in found.items():
                        times[n].append(time_of(runs[way], given.seconds))
                for n, ms in times.items():
                    ms = statistics.median(ms)
                    rate = per_element * d * count * BATCH * HEADS / ms / 1e9
                    row = {"case": name, "d": d, "op": ("forward", "backward")[way], "entry": n,
                           "ms": ms, "tflops": rate}
                    if n == "bsk" and not way:
                        row["error_o"], row["error_lse"] = errors
                    rows.append(row)
                    print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v)
                                    for v in row.values()), flush=True)
            if given.json:
                with open(given.json, "w") as f:
                    json.dump({"device": {"name": torch.cuda.get_device_name(), "backend": "cuda",
                                          "driver": f"CUDA {torch.version.cuda}"},
                               "torch": torch.__version__, "version": bsk.__version__,
                               "commit": given.commit, "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
