#!/usr/bin/env python3
"""Fused attention beside cuDNN and FlexAttention, in turns in one process.

    python bench/attention_peers.py [--json FILE] [--dims 64,128] [--cases GLOBS] [--seconds S]
                                    [--peers all|goals|others]

Needs PyTorch 2.5 or newer with CUDA, and the bsk package. Useful TFLOP/s count visible elements:
4 d flops each forward, 10 d backward. Times are medians over rounds in which every entry runs for
S seconds back to back. FlexAttention is compiled for each case, which takes longer than all else:
`--peers goals` runs the peers that a goal names, `others` the rest.

One head of bsk's outputs and gradients is compared with float64 first, and so is a dense run of
PyTorch that stores its scores and shares in the same type. The status is 1 where bsk is wrong, or
where its errors are more than twice (forward) or three times (backward) those of the dense run. The
file is written anew with each row, so that a run which is cut off leaves what it has."""
import argparse
import fnmatch
import functools
import json
import os
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import bsk

BATCH, HEADS, TIME = 2, 16, 8192
ONE = (1, 3)  # the member and the head that are compared
LIMIT = 0.05  # of errors
OF_DENSE = {"o": 2, "dq": 3, "dk": 3, "dv": 3}  # of errors, over those of a dense run


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

    return {"layout": bsk.Layout.fixed(TIME, 64, 8, 1), "mask": mask, "options": {"causal": 1},
            "goal": "flex"}


# name: what makes the layout for bsk, its rules, the mask for FlexAttention, and the peer that the
# case's goals are ratios to
CASES = {
    "full": lambda: {
        "layout": bsk.Layout.full((TIME, TIME), 128), "dense": False, "goal": "cudnn"},
    "causal": lambda: {
        "layout": bsk.Layout.causal(TIME, 128), "dense": True, "options": {"causal": 1},
        "mask": lambda b, h, q, k: q >= k, "goal": "cudnn"},
    "random128": lambda: random_case(128),
    "random64": lambda: random_case(64),
    "random32": lambda: random_case(32),
    "local512": lambda: {
        "layout": bsk.Layout.local(TIME, 128, 512), "options": {"causal": 1, "window": 512},
        "mask": lambda b, h, q, k: (q >= k) & (q - k < 512), "goal": "flex"},
    "fixed512": fixed_case,
    "strided128": lambda: {
        "layout": bsk.Layout.strided(TIME, 64, 128), "options": {"causal": 1, "interleave": 128},
        "mask": lambda b, h, q, k: (q >= k) & ((q - k) % 128 == 0), "goal": "flex"},
}


def rows_of_scores():
    """Slices of rows, so that the scores of one fit into memory in float64 at any length."""
    step = max(1, 2 ** 26 // TIME)
    return [slice(at, min(at + step, TIME)) for at in range(0, TIME, step)]


@functools.cache
def visible(name):
    """Elements of a case."""
    mask = CASES[name]().get("mask")
    if mask is None:
        return TIME * TIME
    i = torch.arange(TIME, device="cuda")
    return sum(int(mask(0, 0, i[rows, None], i[None, :]).sum()) for rows in rows_of_scores())


def errors_of(tensors, mask, scale):
    """The largest errors of one head against float64: of lse as it is; of rows of o, dq, dk and dv
    relative to the root of the sum of squares of the row's terms, as norms. Roundings stay far below
    LIMIT in every row, however short; a row that is wrong has about 1."""
    q, k, v, o, lse, dout, dq, dk, dv = (t.double() for t in tensors)
    i = torch.arange(TIME, device=q.device)
    made = {"o": o, "dq": dq, "dk": dk, "dv": dv}
    wanted = {n: torch.zeros_like(t) for n, t in made.items()}
    terms = {n: torch.zeros_like(t[:, :1]) for n, t in made.items()}  # squares
    log_sums = torch.zeros_like(lse)

    def add(name, rows, left, square, right, factor):
        wanted[name][rows] += factor * (left @ right)
        terms[name][rows] += factor ** 2 * (square @ right.square().sum(-1, keepdim=True))

    whole = slice(None)
    for rows in rows_of_scores():
        s = scale * (q[rows] @ k.T)
        if mask is not None:
            s.masked_fill_(~mask(0, 0, i[rows, None], i[None, :]), float("-inf"))
        log_sums[rows] = torch.logsumexp(s, -1)
        p = torch.softmax(s, -1)
        add("o", rows, p, p.square(), v, 1)
        add("dv", whole, p.T, p.square().T, dout[rows], 1)
        dp = dout[rows] @ v.T
        delta = (p * dp).sum(-1, keepdim=True)
        # dp - delta may be small beside its own terms
        inner = dout[rows].square() @ v.square().T
        inner += (dout[rows] * o[rows]).square().sum(-1, keepdim=True)
        ds, square = p * (dp - delta), p.square() * inner
        add("dq", rows, ds, square, k, scale)
        add("dk", whole, ds.T, square.T, q[rows], scale)
    errors = {n: ((made[n] - wanted[n]).norm(dim=-1, keepdim=True)
                  / terms[n].sqrt().clamp(min=1e-30)).max().item() for n in made}
    return errors | {"lse": (lse - log_sums).abs().max().item()}


def dense_run(q, k, v, dout, mask, scale):
    """o, lse, dq, dk and dv of one head by products of whole matrices in the type of its inputs."""
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    s = scale * (leaves[0] @ leaves[1].T)
    if mask is not None:
        i = torch.arange(TIME, device=q.device)
        s = s.masked_fill(~mask(0, 0, i[:, None], i[None, :]), float("-inf"))
    o = torch.softmax(s, -1) @ leaves[2]
    return [o.detach(), torch.logsumexp(s.detach(), -1), *torch.autograd.grad(o, leaves, dout)]


def compare(q, k, v, dout, made, mask, scale):
    """Errors of one head of o, lse, dq, dk and dv, and their ratios to those of a dense run."""
    q, k, v, dout = (t[ONE] for t in (q, k, v, dout))

    def errors(o, lse, *gradients):
        return errors_of((q, k, v, o, lse, dout, *gradients), mask, scale)

    own, dense = errors(*(t[ONE] for t in made)), errors(*dense_run(q, k, v, dout, mask, scale))
    return own, {n: own[n] / dense[n] for n in OF_DENSE}


def entries(case, d, peers):
    """Name: (forward, backward); and what compare answers."""
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
    backward()
    compared = compare(q, k, v, dout, (o, lse, *made), mask, scale)

    def wants(name):
        return peers == "all" or (name == case.get("goal")) == (peers == "goals")

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

    if "dense" in case and wants("cudnn"):
        def cudnn(q, k, v):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return F.scaled_dot_product_attention(q, k, v, is_causal=case["dense"])
        torch_entry("cudnn", cudnn)
    if mask is not None and wants("flex"):
        flex = torch.compile(flex_attention, dynamic=False)
        blocks = create_block_mask(mask, None, None, TIME, TIME, device="cuda", BLOCK_SIZE=128)
        torch_entry("flex", lambda q, k, v: flex(q, k, v, block_mask=blocks))
    return found, compared


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


def write(file, commit, rows):
    with open(file + ".new", "w") as f:
        json.dump({"device": {"name": torch.cuda.get_device_name(), "backend": "cuda",
                              "driver": f"CUDA {torch.version.cuda}"},
                   "torch": torch.__version__, "version": bsk.__version__, "commit": commit,
                   "rows": rows}, f, indent=1)
    os.replace(file + ".new", file)


def rows_of(name, d, given):
    """The rows of a case, one after the other, as they are measured."""
    found, (errors, of_dense) = entries(CASES[name](), d, given.peers)
    for way, per_element, checked in ((0, 4, ("o", "lse")), (1, 10, ("dq", "dk", "dv"))):
        times = {n: [] for n in found}
        for _ in range(given.rounds):
            for n, runs in found.items():
                times[n].append(time_of(runs[way], given.seconds))
        for n, ms in times.items():
            ms = statistics.median(ms)
            rate = per_element * d * visible(name) * BATCH * HEADS / ms / 1e9
            row = {"case": name, "d": d, "op": ("forward", "backward")[way], "entry": n, "ms": ms,
                   "tflops": rate}
            if n == "bsk":
                row.update((f"error_{k}", errors[k]) for k in checked)
                row.update((f"of_dense_{k}", of_dense[k]) for k in checked if k in of_dense)
            yield row


def faults(row):
    """Names of the outputs that are wrong."""
    limits = {f"error_{n}": LIMIT for n in (*OF_DENSE, "lse")}
    limits |= {f"of_dense_{n}": times for n, times in OF_DENSE.items()}
    return [f"{row['case']} d{row['d']} {n}" for n, limit in limits.items()
            if n in row and not row[n] <= limit]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json")
    parser.add_argument("--commit", default="unknown", help="of the library, for the report")
    parser.add_argument("--dims", default="128,64")
    parser.add_argument("--cases", default="*")
    parser.add_argument("--peers", default="all", choices=("all", "goals", "others"))
    parser.add_argument("--seconds", type=float, default=0.03)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch._dynamo.config.cache_size_limit = 256
    torch.manual_seed(1)
    rows, wrong = [], []
    globs = given.cases.split(",")
    for d in map(int, given.dims.split(",")):
        for name in (n for n in CASES if any(fnmatch.fnmatch(n, glob) for glob in globs)):
            for row in rows_of(name, d, given):
                rows.append(row)
                wrong += faults(row)
                print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v)
                                for v in row.values()), flush=True)
                if given.json:
                    write(given.json, given.commit, rows)
    if wrong:
        raise SystemExit("wrong: " + ", ".join(wrong))


if __name__ == "__main__":
    main()
